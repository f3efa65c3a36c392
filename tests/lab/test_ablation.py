"""The ablation: its arms change what they say, and every verdict of planted records is known beforehand."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from planted_records import arm, named_data, plant
from pydantic import ValidationError
from scipy import stats

import lab.ablation
from hmlet.config import Recipe, resolve
from hmlet.errors import ConfigError
from hmlet.reproduction.cells import TABLES, Cell
from hmlet.reproduction.markdown import sheet_markdown
from hmlet.reproduction.plan import Choice
from hmlet.reproduction.records import Records
from hmlet.reproduction.sheets import cost_sheet, main_sheet
from hmlet.reproduction.tables import Tables
from hmlet.runs.directory import RunDirectory
from lab.ablation import PLAN, Ablation, Plan, cells
from lab.campaign import planned
from lab.documents import fill
from lab.noise import CLASSES, stability
from lab.tables import ablation_sheet, all_claims_sheet, changed_sheet, leads_sheet, ranking_sheet

DATA = named_data("gowalla")
CHOICE = Choice("gowalla", TABLES, overrides=("train.epochs=200",))  # the ablation's, so both share runs
TRAINED = (0.1229, 0.1230, 0.1231)  # what the fixture plants for the trained gate's first three seeds
ARMS = {
    ("gates", "all linear"): (0.1199, 0.1200, 0.1202),
    ("gates", "random and frozen"): (0.1260, 0.1262, 0.1262),
    ("readout", "layerwise"): (0.1232, 0.1231, 0.1230),
}


def recipe(model: str, seed: int) -> Recipe:
    return CHOICE.recipe(Cell("main", "", model), seed)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """HMLET(End) with five seeds, LightGCN with two, four arms of the ablation; nothing else."""
    folder = tmp_path_factory.mktemp("records")
    for seed in range(1, 6):
        delta = 0.0001 * (seed - 3)
        plant(
            folder,
            DATA,
            recipe("hmlet-end", seed),
            (0.1231 + delta, 0.1900 + delta, 0.0294),
            strict=(0.13 + delta, 0.2, 0.03),
            noisy=(0.1221 + delta, 0.1231 + delta) if seed < 3 else None,
        )
    for seed in (1, 2):
        plant(folder, DATA, recipe("lightgcn", seed), (0.1200, 0.1870, 0.0288))
    for (group, label), values in ARMS.items():
        for seed, value in enumerate(values, start=1):
            plant(folder, DATA, arm(CHOICE, group, label, seed), (value, 0.18, 0.028))
    plant(folder, DATA, arm(CHOICE, "activation", "tanh", 1), (0.5, 0.5, 0.5))
    return folder


@pytest.fixture(scope="module")
def ablation(out: Path) -> Ablation:
    return Ablation(Tables(CHOICE, Records.read(out)))


# -- the plan ---------------------------------------------------------------------------------------------------


def test_the_ablation_changes_what_it_says() -> None:
    choice = Choice("gowalla", TABLES)
    arms = {(cell.group, cell.label): choice.recipe(cell, 1) for cell in cells(choice)}
    base = arms["gates", "trained"]
    whole = resolve("hmlet-end", "gpu", seed=1, dataset="gowalla")
    assert base == whole.changed(["train.epochs=200", "model.gate_warmup=25"])
    assert (whole.train.epochs, whole.model.gate_warmup) == (400, 50)  # the same share of it
    assert arms["gates", "random and frozen"].model.gate_choice == "random"
    assert arms["gates", "all linear"].model.types == ("linear",) * 4
    assert arms["gates", "all non-linear"].model.types == ("linear", "linear", "non-linear", "non-linear")
    soft = arms["gates", "soft mixture without noise"].model
    assert (soft.gate_training, soft.gate_noise, soft.gate_ranking) == ("soft", False, "soft")
    assert arms["edge dropout", "0.0"].train.edge_dropout == 0.0
    off = arms["edge dropout", "LightGCN, 0.0"]
    assert (off.model.name, off.train.edge_dropout) == ("lightgcn", 0.0)
    assert arms["readout", "layerwise"].model.readout == "layerwise"
    assert arms["input of the non-linear branch", "gated"].model.nonlinear_input == "gated"
    assert {arms["activation", each].model.activation for each in ("elu", "leaky-relu", "relu", "tanh")} == {
        *("elu", "leaky-relu", "relu", "tanh")
    }
    assert [arms["temperature schedule", each].model.temperature for each in ("formula", "authors")] == [
        *("formula", "authors")
    ]
    assert arms["gate warm-up", "30 % of the epochs"].model.gate_warmup == 60
    sizes = [arms["embedding size", each].model.embedding_size for each in ("64", "128", "256", "512")]
    assert sizes == [64, 128, 256, 512]


def test_an_arm_wins_over_what_is_set_for_all() -> None:
    choice = Choice("debian", TABLES, overrides=("model.embedding_size=8", "train.epochs=40"))
    arms = {(cell.group, cell.label): choice.recipe(cell, 1) for cell in cells(choice)}
    assert arms["gates", "trained"].model.embedding_size == 8
    assert arms["embedding size", "64"].model.embedding_size == 64
    assert arms["gate warm-up", "30 % of the epochs"].model.gate_warmup == 12


def test_the_ablation_comes_after_the_title_and_needs_nothing_for_the_tests_alone() -> None:
    choice = Choice("gowalla", TABLES)
    runs = planned(choice, ablation=True)
    assert len({run.name for run in runs}) == len(runs)
    assert [run.recipe.model.name for run in runs[:10]] == ["hmlet-end", "lightgcn"] * 5
    assert all(run.cell.table == "ablation" for run in runs[10:20])
    tested = {run.name for run in choice.runs() if run.tested}
    alone = choice.runs(cells(choice))
    assert all(run.tested == (run.name in tested) for run in alone)


def forget_the_schedule(content: dict[str, Any]) -> None:
    del content["shorter"]["lightgcn"]


def give_arms_and_options(content: dict[str, Any]) -> None:
    content["groups"][1]["arms"] = [{"label": "both"}]


def forget_the_options(content: dict[str, Any]) -> None:
    del content["groups"][1]["options"]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (forget_the_schedule, "shorter lacks lightgcn"),
        (give_arms_and_options, "'edge dropout' needs arms, or a key and its options"),
        (forget_the_options, "'edge dropout' needs arms, or a key and its options"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(spoil: Callable[[dict[str, Any]], None], words: str) -> None:
    content = tomllib.loads(Path(lab.ablation.__file__).with_name("ablation.toml").read_text(encoding="utf-8"))
    assert Plan.model_validate(content) == PLAN
    spoil(content)
    with pytest.raises(ValidationError, match=words):
        Plan.model_validate(content)


def test_an_arm_fits_the_depth_of_the_model() -> None:
    mixed = "layer 3 non-linear, layer 4 linear"
    kinds = {"all linear": [], "all non-linear": [], mixed: []}  # type: ignore[var-annotated]
    for depth in (1, 2, 3):
        for cell in PLAN.cells(depth, 100):
            if cell.label in kinds:
                kinds[cell.label].append(cell.overrides)
    assert kinds["all linear"] == [
        ('model.gate_types=["linear"]',),
        ('model.gate_types=["linear", "linear"]',),
        ('model.gate_types=["linear", "linear", "linear"]',),
    ]
    assert kinds["all non-linear"] == [
        ('model.gate_types=["non-linear"]',),
        ('model.gate_types=["non-linear", "non-linear"]',),
        ('model.gate_types=["linear", "non-linear", "non-linear"]',),
    ]
    assert kinds[mixed] == [
        ('model.gate_types=["linear"]',),
        ('model.gate_types=["non-linear", "linear"]',),
        ('model.gate_types=["linear", "non-linear", "linear"]',),
    ]


# -- the tables -------------------------------------------------------------------------------------------------


def test_verdicts_that_the_unpaired_test_would_not_give_are_listed_with_the_reason(tmp_path: Path) -> None:
    arms = {
        ("gates", "trained"): (0.1200, 0.1230, 0.1260),
        ("gates", "all linear"): (0.1190, 0.1220, 0.1251),  # seeds agree, though they spread by more than that
        ("readout", "layerwise"): (0.1100, 0.1170, 0.1110),  # seeds spread less than the difference, and disagree on it
    }
    for (group, label), values in arms.items():
        for seed, value in enumerate(values, start=1):
            plant(tmp_path, DATA, arm(CHOICE, group, label, seed), (value, 0.18, 0.028))
    listed = {row[1]: row[-3:] for row in changed_sheet([Ablation(Tables(CHOICE, Records.read(tmp_path)))]).rows}
    assert listed == {
        "gates: all linear, to HMLET(End)": ["no clear difference", "lower", "the seeds agree on the difference"],
        "readout: layerwise, to HMLET(End)": ["lower", "no clear difference", "the seeds disagree on the difference"],
    }


def test_classes_are_compared_over_all_seeds_though_one_is_analysed(tmp_path: Path) -> None:
    nodes = DATA.n_users + DATA.n_items
    for seed in (1, 2):
        place = plant(tmp_path, DATA, recipe("hmlet-end", seed), (0.12, 0.19, 0.03))
        run = RunDirectory.open(place)
        classes = np.zeros(nodes, dtype=np.int8)
        classes[: 5 * seed] = 1  # five nodes have another class with the other seed
        run.write_table(CLASSES, pa.table({"class": classes}))
        run.write_record()
    found = Tables(CHOICE, Records.read(tmp_path))
    kept = stability(found)
    assert kept is not None
    assert kept.keep == pytest.approx(1 - 5 / nodes)
    about, _, ours, verdict = all_claims_sheet(found).rows[-1]
    assert about == "A node has one class whatever the seed"
    assert str(ours).startswith(f"{100 * (1 - 5 / nodes):.1f} % of nodes over 2 seeds")
    assert verdict == "–"


def test_an_arm_is_held_against_the_trained_gate(ablation: Ablation) -> None:
    found = {(row.cell.group, row.cell.label): each for row, each in ablation.differences()}
    assert found["gates", "trained"] is None
    assert found["gates", "all linear"].verdict == "lower"
    assert found["gates", "random and frozen"].verdict == "higher"
    assert found["readout", "layerwise"].verdict == "no clear difference"
    assert found["activation", "tanh"].verdict == "too few seeds"
    assert found["activation", "relu"].verdict == "not run"
    raw = {key: stats.ttest_rel(values, TRAINED).pvalue for key, values in ARMS.items()}
    raw["edge dropout", "LightGCN, 0.4"] = stats.ttest_rel((0.12, 0.12), TRAINED[:2]).pvalue  # two seeds are shared
    largest = 0.0
    for times, key in zip((4, 3, 2, 1), sorted(raw, key=raw.__getitem__), strict=True):
        largest = max(largest, times * raw[key])
        assert found[key].holm_p == pytest.approx(largest, rel=1e-6)
    for key, values in ARMS.items():
        assert found[key].unpaired_p == pytest.approx(stats.ttest_ind(values, TRAINED, equal_var=False).pvalue)
    assert ablation.reference is not None
    assert ablation.reference.spread().mean == pytest.approx(0.1230)  # three seeds of five, as every arm has
    shown = {tuple(row[:2]): row for row in ablation_sheet(ablation).rows}
    assert shown["", "all linear"][4] == f"{100 * (np.mean(ARMS['gates', 'all linear']) / 0.123 - 1):+.2f} %"


def test_the_lead_is_of_arms_with_the_same_thing_changed(tmp_path: Path) -> None:
    means = {"64": (0.1100, 0.1200), "128": (0.1201, 0.1200), "256": (0.1300, 0.1200)}
    for size, (ours, rival) in means.items():
        for seed in (1, 2, 3):
            jitter = 0.0002 * (seed - 2)
            plant(tmp_path, DATA, arm(CHOICE, "embedding size", size, seed), (ours + jitter, 0.18, 0.028))
            plant(
                tmp_path, DATA, arm(CHOICE, "embedding size", f"LightGCN, {size}", seed), (rival - jitter, 0.18, 0.028)
            )
    for seed in (1, 2, 3):
        plant(tmp_path, DATA, arm(CHOICE, "edge dropout", "0.0", seed), (0.13, 0.18, 0.028))
    shown = {row[0]: row[1:] for row in leads_sheet(Ablation(Tables(CHOICE, Records.read(tmp_path)))).rows}
    assert list(shown) == [
        *(f"edge dropout {value}" for value in (0.4, 0.0)),
        *(f"start {start}" for start in ("random", "spectral")),
        *(f"embedding size {size}" for size in (64, 128, 256, 512)),
    ]
    assert shown["embedding size 64"][:3] == ["0.1100 ± 0.0002", "0.1200 ± 0.0002", "-8.33 %"]
    assert shown["embedding size 64"][-1] == "behind"
    assert shown["embedding size 128"][2::4] == ["+0.08 %", "no clear difference"]
    assert shown["embedding size 256"][2::4] == ["+8.33 %", "ahead"]
    assert shown["edge dropout 0.0"][1:] == ["not run", "–", "–", "–", "–", "not run"]


def test_noise_and_mask_are_measured_on_the_same_models(ablation: Ablation) -> None:
    plain, noisy, strict = ranking_sheet(ablation.tables).rows
    assert plain[1].startswith("0.1231")
    # Seeds 1 and 2 have draws: 0.0010 below and level, so half of that below their own argmax.
    assert noisy[2] == f"{100 * (-0.0005 / 0.12295):+.2f} %"
    assert noisy[3] == f"{np.std([0.1221, 0.1231], ddof=1):.5f}"
    assert strict[2] == f"{100 * (0.13 / 0.1231 - 1):+.2f} %"


def test_the_cost_counts_every_run_once(ablation: Ablation) -> None:
    ((_, _, runs, minutes),) = cost_sheet([ablation.tables], ["Gowalla"], [ablation.rows]).rows
    assert runs == str(5 + 2 + 9 + 1)
    assert float(str(minutes)) == pytest.approx(17)


def test_blocks_of_a_document_are_filled_and_the_rest_is_left(ablation: Ablation, out: Path) -> None:
    text = "before\n<!-- made from records: main gowalla -->\nold\n<!-- end -->\nafter\n"
    made = fill(text, lambda words: f"{words[0]} of {words[1]}")
    assert made == "before\n<!-- made from records: main gowalla -->\n\nmain of gowalla\n<!-- end -->\nafter\n"
    assert fill(made, lambda words: f"{words[0]} of {words[1]}") == made
    with pytest.raises(ConfigError, match="no end"):
        fill("<!-- made from records: main gowalla -->\n", lambda words: "")
    assert sheet_markdown(main_sheet(ablation.tables), out).startswith("### The main table\n\nTest part")
