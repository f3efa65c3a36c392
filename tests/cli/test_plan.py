"""`hmlet plan` as a user calls it."""

from __future__ import annotations

import json

import pytest

from hmlet.cli import main

SIZES = ["--users", "1e8", "--items", "1e7", "--edges", "1e9"]


def test_a_plan_of_sizes_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """A hundred million nodes take no memory to plan, and CUDA no device."""
    cuda = ["--device", "cuda", "--devices", "8", "--memory", "141GB"]
    assert main(["plan", *SIZES, "--model", "lightgcn", *cuda, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == {
        "model", "device", "devices", "sizes", "bytes", "fits", "refused", "free", "changes", "seconds"
    }  # fmt: skip
    assert found["seconds"] is None  # no device of this machine
    assert found["sizes"] == {"users": 10**8, "items": 10**7, "edges": 10**9}
    assert found["bytes"].keys() == {
        "graph", "table", "optimizer", "activations", "ranking", "start", "captured", "total"
    }  # fmt: skip
    # One epoch: the parameters and their gradient, and no earlier epoch to keep a copy of.
    assert found["bytes"]["table"] == 2 * 110_000_000 * 64 * 4 // 8
    assert (found["free"], found["fits"], found["changes"]) == (141 * 10**9, found["bytes"]["total"] <= 141e9, [])


def test_a_plan_of_more_edges_than_a_graph_can_have(capsys: pytest.CaptureFixture[str]) -> None:
    """The bytes are told all the same, and no change is offered, because none would help."""
    arguments = ["plan", "--users", "1e8", "--items", "1e7", "--edges", "1e10", "--model", "lightgcn"]
    assert main([*arguments, "--device", "cuda", "--memory", "9TB", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["fits"], found["changes"]) == (False, [])
    assert found["refused"].startswith(
        "10,000,000,000 training interactions exceed the graph's limit of 1,073,741,823 edges"
    )
    assert found["bytes"]["graph"] > 10**10 * 36
    assert main([*arguments, "--device", "cuda", "--memory", "9TB"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("It cannot be trained: 10,000,000,000 training")


def test_a_plan_of_a_data_set_says_what_to_change(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "debian", "--model", "bpr", "--device", "cpu", "--memory", "20MB"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "bpr on cpu, D = 64, 3,779 users, 1,285 items, 47,398 interactions"
    assert any(line.startswith("It does not fit: ") and line.endswith("and there is 20.0 MB.") for line in lines)
    assert any(line.startswith("--set model.embedding_size=") for line in lines)
    assert main(["plan", "debian", "--model", "bpr", "--device", "cpu", "--memory", "1GiB"]) == 0
    assert "It fits: " in capsys.readouterr().out


def test_a_plan_for_this_machine_tells_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    short = ["--set", "train.epochs=2", "--set", "model.embedding_size=8", "--device", "cpu"]
    assert main(["plan", "--users", "300", "--items", "200", "--edges", "3000", *short, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"] == "hmlet-end"  # the default
    assert 0.0 < found["seconds"] < 600.0
    assert main(["plan", "--users", "300", "--items", "200", "--edges", "3000", *short]) == 0
    assert "It takes about " in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "plan needs DATA, or --users, --items and --edges"),
        (["--users", "5", "--items", "5"], "plan needs DATA, or --users, --items and --edges"),
        (["debian", "--users", "5"], "plan was given DATA, 'debian', and sizes"),
        (["--users", "30", "--items", "40", "--edges", "1201"], "--edges 1,201 are more than the 1,200 pairs"),
        (["debian", "--memory", "much"], "--memory 'much' is not a size"),
        (["debian", "--memory", "1.2.3GB"], "--memory '1.2.3GB' is not a size"),
        (["debian", "--memory", "1e999"], "--memory '1e999' is not a size"),
        (["--users", "inf", "--items", "1", "--edges", "1"], "Invalid value for '--users'"),
        (["--users", "1", "--items", "1", "--edges", "1e30"], "Invalid value for '--edges'"),
        (["debian", "--memory", "12"], "--memory '12' is not a size: write 80GB, say"),
        (["debian", "--devices", "7"], "cannot be split over 7 ranks"),
        (["debian", "--device", "tpu", "--memory", "1GB"], "there is no device 'tpu'"),
    ],
)
def test_mistakes(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *arguments, "--model", "lightgcn"]) == 2
    assert message in capsys.readouterr().err
