"""The board: variants are trained to the end of their schedule, recorded once, and shown as their records say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from planted import checkerboard
from planted_records import plant

from hmlet.data import Dataset
from hmlet.errors import ConfigError
from hmlet.reproduction import campaign
from hmlet.reproduction.markdown import sheet_markdown
from hmlet.reproduction.records import Records
from hmlet.training.loop import fit
from lab.board.__main__ import main
from lab.board.board import board, board_sheet, plan_board, read_board
from lab.board.published import published
from lab.board.splits import board_split, selection_split
from lab.board.variants import VARIANTS, load_variants
from lab.script import call

DATA = checkerboard()
FILE = """
[[checkerboard]]
name = "small"
title = "LightGCN, small"
model = { name = "lightgcn", embedding_size = 4, layers = 2 }
train = { epochs = 3, batch_size = 256, patience = 2, validate_every = 1 }

[[checkerboard]]
name = "ease"
title = "EASE"
model = { name = "ease" }
train = { epochs = 1 }
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "variants.toml"
    path.write_text(FILE)
    return path


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> list[Dataset]:
    """The data sets that were trained on."""
    seen: list[Dataset] = []

    def noting(data: Dataset, *arguments: Any, **options: Any) -> Any:
        seen.append(data)
        return fit(data, *arguments, **options)

    monkeypatch.setattr(campaign, "fit", noting)
    return seen


def test_variants_are_trained_once_and_resumed(file: Path, tmp_path: Path, fitted: list[Dataset]) -> None:
    out = tmp_path / "out"
    first = board(DATA, variants=["ease"], file=file, out=out, device="cpu")
    assert (first.outcome.found, len(first.outcome.trained)) == (0, 1)
    whole = board(DATA, file=file, out=out, seeds=2, device="cpu")
    assert (whole.outcome.found, len(whole.outcome.trained)) == (1, 2)  # one closed form, two seeds of the other
    assert [len(row.row.records) for row in whole.rows] == [2, 1]
    assert {data.fingerprint for data in fitted} == {board_split(DATA).fingerprint}
    again = board(DATA, file=file, out=out, seeds=2, device="cpu")
    assert (again.outcome.found, again.outcome.trained, len(fitted)) == (3, [], 3)
    assert whole.rows[1].spread("recall").mean == 1.0  # type: ignore[union-attr]  # EASE solves the checkerboard
    for record in Records.read(out).all:
        assert record.dataset == "checkerboard-board"
        assert record.run.record.epochs == record.run.record.best_epoch == record.recipe.train.epochs
        assert (record.recipe.train.patience, record.run.record.valid) == (0, None)


def test_the_selection_is_scored_on_the_held_out_tenth(file: Path, tmp_path: Path, fitted: list[Dataset]) -> None:
    out = tmp_path / "out"
    result = board(DATA, file=file, selection=True, seeds=1, out=out, device="cpu")
    (split,) = {data.fingerprint for data in fitted}
    assert split == selection_split(DATA).fingerprint
    for row in result.rows:
        assert row.spread("ndcg") is None
        (record,) = row.held_out.records
        held_out = row.spread("ndcg", held_out=True)
        assert held_out is not None
        assert record.run.record.valid is not None
        assert held_out.mean == pytest.approx(record.run.record.valid["ndcg"])
        assert not (record.path / "test_mask-train.json").exists()
    assert board(DATA, file=file, selection=True, seeds=1, out=out, device="cpu").outcome.found == 2


def test_cells_are_what_the_records_say(file: Path, tmp_path: Path) -> None:
    variants = load_variants("checkerboard", file)
    split, tenth = board_split(DATA), selection_split(DATA)
    for seed, value in ((1, 0.1), (2, 0.3)):
        plant(tmp_path, split, variants[0].recipe(seed), (value, value + 0.2, 0.0))
    plant(tmp_path, tenth, variants[0].recipe(1), (0.5, 0.5, 0.5))  # a test score of this data set counts for nothing
    small, ease = board_sheet(read_board("checkerboard", variants, tmp_path)).rows
    assert small[:6] == ["**LightGCN, small**", "4", "0.4000 ± 0.1414", "0.2000 ± 0.1414", "2 of 5", "1.0"]
    assert ease[:6] == ["**EASE**", "–", "not run", "not run", "0 of 1", "–"]
    assert small[6:8] == ease[6:8] == ["nothing", "not run"]


def test_the_published_rows_are_shown_with_their_source() -> None:
    for dataset in ("gowalla", "yelp2018"):
        rows = published(dataset)
        assert len(rows) > 10
        text = sheet_markdown(board_sheet(read_board(dataset, load_variants(dataset), Path("nowhere"))), Path())
        for row in rows:
            assert row.source.startswith("https://")
            assert f"[{row.paper}]({row.source})" in text
            assert row.recall > row.ndcg


def test_the_variants_of_the_package_are_recipes() -> None:
    for dataset in ("gowalla", "yelp2018"):
        variants = load_variants(dataset)
        assert {variant.recipe(1).model.columns for variant in variants if variant.seeds == 5} >= {64, 512}
        assert {"popularity", "itemknn", "ease", "gf-cf", "cheby-cf"} <= {variant.name for variant in variants}
        assert len(plan_board(dataset, variants)) == sum(variant.seeds for variant in variants)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no variants for checkerboard"),
        ("[[checkerboard]]\nname = 'x'\n", "checkerboard.0.title"),
        (FILE + FILE, "two variants of checkerboard are called"),
        ("[", "cannot be read"),
    ],
)
def test_bad_variants_are_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "variants.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_variants("checkerboard", path)


def test_unknown_variants_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"there is no variant 'hmlet' for gowalla.*hmlet-end-512"):
        load_variants("gowalla", VARIANTS, ["hmlet"])


def test_the_command(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = str(DATA.save(tmp_path / "data"))
    out = ["--variants", str(file), "--out", str(tmp_path / "out"), "--device", "cpu"]
    main([source, "--variant", "ease", *out, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["dataset"], found["variants"][0]["variant"]) == ("checkerboard", "ease")
    assert found["variants"][0]["recall"]["mean"] == 1.0
    main([source, *out, "--plan", "--json"])
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["done"] for run in runs] == [False, True, False, False, False, False]
    main([source, "--prepare", str(tmp_path / "splits"), "--json"])
    prepared = json.loads(capsys.readouterr().out)["prepared"]
    assert [Dataset.load(path).count("test") for path in prepared] == [0, DATA.count("valid") + DATA.count("test")]
    assert call(main, [source, "--variant", "none", *out]) == 2
    assert "there is no variant 'none'" in capsys.readouterr().err
