"""The whole analysis of a run: what it writes, what it refuses, and that centralities are computed once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gated_run import make_run, small_data

from hmlet.analysis import cached, study
from hmlet.analysis.result import Analysis, Findings
from hmlet.cli import main
from hmlet.data import Dataset
from hmlet.errors import ConfigError, RunError
from hmlet.graph import training_graph
from hmlet.runs import recorded as runs
from hmlet.runs.directory import RunDirectory
from hmlet.runs.locking import locked

DATA = small_data()
DEGREE = training_graph(DATA).degree


def by_degree(data: Dataset = DATA) -> np.ndarray:
    """Probabilities that grow with the degree: the paper's claim, planted."""
    rank = DEGREE.argsort().argsort() / len(DEGREE)
    return np.stack([0.2 + 0.7 * rank, 0.05 + 0.7 * rank], axis=1)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return make_run(tmp_path / "end", DATA, probability=by_degree())


def test_an_analysis_leaves_what_others_have_recorded_since(run: RunDirectory) -> None:
    other = RunDirectory.open(run.path)
    with other.update():
        other.record = other.record.with_coverage("test train 20", 0.5)
    study.analyse([run], DATA, "none")
    assert RunDirectory.open(run.path).record.coverage == {"test train 20": 0.5}


def test_a_planted_claim_holds_and_is_written_into_the_run(run: RunDirectory) -> None:
    (result,) = study.analyse([run], DATA)
    assert result.verdict["degree"].verdict == "holds"
    assert result.gate_share == pytest.approx(
        {"3": (by_degree()[:, 0] > 0.5).mean(), "4": (by_degree()[:, 1] > 0.5).mean()}
    )
    assert set(result.centrality_boxes) == {"degree", "pagerank", "betweenness", "closeness"}
    assert result.users.nodes + result.items.nodes == result.nodes == len(DEGREE)
    for name in ("fnl", "pnl", "fl"):
        parts = [side.class_size[name].nodes for side in (result.users, result.items)]
        assert sum(parts) == result.class_size[name].nodes
    assert RunDirectory.open(run.path).read_json("analysis.json") == result.as_json()


@pytest.mark.parametrize(("value", "name"), [(0.9, "fnl"), (0.1, "fl")])
def test_forced_gates_give_one_class_everywhere(tmp_path: Path, value: float, name: str) -> None:
    forced = make_run(tmp_path / "forced", DATA, probability=np.full((len(DEGREE), 2), value))
    (result,) = study.analyse([forced], DATA, "none")
    for side in (result, result.users, result.items):
        assert side.class_size[name].share == 1.0
        assert side.verdict["degree"].verdict == "too weak to say"
    assert result.centrality_method is None
    assert set(result.centrality_boxes) == {"degree"}


def test_several_seeds_get_their_stability(tmp_path: Path) -> None:
    chance = np.random.default_rng(1).random((len(DEGREE), 2))
    runs = [make_run(tmp_path / f"{seed}", DATA, probability=chance, seed=seed) for seed in range(2)]
    results = study.analyse(runs, DATA, "none")
    assert [result.stability.keep for result in results] == [1.0, 1.0]
    assert results[0].stability.seeds == [0, 1]


def test_a_sample_states_its_error(run: RunDirectory) -> None:
    (result,) = study.analyse([run], DATA, "sampled:30")
    assert (result.centrality_method.sources, result.centrality_method.exact) == (30, False)
    assert 0 < result.centrality_method.betweenness_relative_error.median < 1


def test_an_analysis_shows_itself_in_one_line(run: RunDirectory) -> None:
    (result,) = study.analyse([run], DATA, "none")
    high, low = ((by_degree() > 0.5).sum(axis=1) == count for count in (2, 0))
    shares = f"FNL {high.mean():.1%}, PNL {1 - high.mean() - low.mean():.1%}, FL {low.mean():.1%}"
    assert repr(result) == f"<Analysis of hmlet-end on small <b>&, seed 0: {len(DEGREE)} nodes, {shares}>"


def test_reading_an_analysis_gives_what_was_written(tmp_path: Path) -> None:
    chance = np.random.default_rng(2).random((len(DEGREE), 2))
    runs = [make_run(tmp_path / f"{seed}", DATA, probability=chance, seed=seed) for seed in range(2)]
    for given, centrality in ((runs[:1], "none"), (runs[:1], "exact"), (runs, "sampled:30")):
        result = study.analyse(given, DATA, centrality)[0]
        content = (runs[0].path / "analysis.json").read_bytes()
        assert Analysis.from_json(content, "here") == result
        assert json.loads(content) == result.as_json()


def test_an_older_analysis_is_judged_by_todays_rule(run: RunDirectory) -> None:
    """On every side; the numbers stay."""
    (result,) = study.analyse([run], DATA, "none")

    def wrong(side: Findings) -> Findings:
        return replace(side, verdict={"degree": replace(side.verdict["degree"], verdict="unheard of")})

    older = replace(wrong(result), users=wrong(result.users), items=wrong(result.items))
    assert Analysis.from_json(json.dumps(older.as_json()).encode(), "here") == result


@pytest.mark.parametrize(
    ("damage", "field"),
    [
        (lambda found: found.pop("gate_share"), "gate_share: Field required"),
        (lambda found: found["items"]["verdict"]["degree"]["spearman"].update(rho="0.5"), "items.verdict.degree.spear"),
        (lambda found: found["degree_deciles"][3].pop("nodes"), "degree_deciles.3.nodes"),
        (lambda found: found["centrality_method"].pop("sources"), "centrality_method"),
    ],
    ids=["top", "side", "list", "method"],
)
def test_an_analysis_that_does_not_fit_is_refused_by_its_field(
    run: RunDirectory, damage: Callable[[Any], object], field: str
) -> None:
    found = study.analyse([run], DATA)[0].as_json()
    damage(found)
    with pytest.raises(RunError, match=rf"end/analysis.json is not an analysis \({field}"):
        Analysis.from_json(json.dumps(found).encode(), "end/analysis.json")


def test_text_that_is_not_json_is_no_analysis() -> None:
    with pytest.raises(RunError, match="here is not an analysis"):
        Analysis.from_json(b"{", "here")


@pytest.mark.parametrize("text", ["", "all", "sampled", "sampled:", "sampled:1", "sampled:-5", "exact:3"])
def test_an_unknown_centrality_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="sampled:N"):
        study.parse_centrality(text)


def test_runs_that_do_not_belong_together_are_refused(tmp_path: Path, run: RunDirectory) -> None:
    other = small_data(seed=5)
    stranger = make_run(tmp_path / "other", other, probability=np.ones((len(DEGREE), 2)))
    with pytest.raises(RunError, match="was not trained on"):
        study.analyse([run, stranger], DATA, "none")
    with pytest.raises(RunError, match="lightgcn, which has no gates"):
        study.analyse([make_run(tmp_path / "plain", DATA, model="lightgcn")], DATA)


def test_centralities_are_computed_once_and_a_damaged_entry_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HMLET_CACHE", str(tmp_path))
    graph, calls = training_graph(DATA), []
    compute = cached.centralities
    monkeypatch.setattr(cached, "centralities", lambda *a, **k: calls.append(1) or compute(*a, **k))
    first = cached.cached_centralities(DATA, graph)
    second = cached.cached_centralities(DATA, graph)
    assert len(calls) == 1
    np.testing.assert_array_equal(first.betweenness, second.betweenness)
    assert second.exact
    (entry,) = (tmp_path / "centrality").iterdir()
    content = bytearray(entry.read_bytes())
    content[-3] ^= 1
    entry.write_bytes(content)
    third = cached.cached_centralities(DATA, graph)
    assert len(calls) == 2
    np.testing.assert_array_equal(first.closeness, third.closeness)
    cached.cached_centralities(DATA, graph, samples=20)
    assert len(calls) == 3


def test_the_command_prints_what_it_found(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(run.path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"gate_share", "class_size", "degree_deciles", "centrality_boxes", "neighbour_cosine", "verdict"} <= set(
        found
    )
    assert main(["analyze", str(run.path), "--centrality", "none"]) == 0
    assert "holds" in capsys.readouterr().out


def test_an_analysis_that_cannot_be_kept_is_printed_all_the_same(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runs, "PATIENCE", 0.0)
    with locked(run.path):
        assert main(["analyze", str(run.path), "--centrality", "none", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["nodes"] == len(DEGREE)
    assert err.startswith(
        f"the analysis could not be stored in {run.path}: {run.path} is being written by another process"
    )
    assert not (run.path / "analysis.json").exists()


def test_the_command_refuses_a_device_that_is_not_here(
    run: RunDirectory, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for device, message in (("gpu", "there is no device 'gpu'"), ("cuda", "there is no CUDA device")):
        assert main(["analyze", str(run.path), "--device", device]) == 2
        assert message in capsys.readouterr().err


def test_the_command_explains_a_model_without_gates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hmlet: Callable[..., object]
) -> None:
    path = make_run(tmp_path / "plain", DATA, model="lightgcn").path
    assert main(["analyze", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert "lightgcn, which has no gates to analyse" in err
    assert "hmlet-end" in err
