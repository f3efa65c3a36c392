"""A profile looks and does not touch: equal runs, honest phases, and parts that stand beside their floor."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import planted
import pytest
import torch
from planted import checkerboard
from torch import Tensor, nn
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from hmlet.cli import main
from hmlet.config import Recipe, resolve
from hmlet.errors import ConfigError
from hmlet.graph.kernels import (
    Activation,
    build_operator,
    dense,
    dropout_relu,
    gumbel_softmax,
    head,
    mix,
    norm_dropout_relu,
    part,
)
from hmlet.graph.kernels.parts import Part
from hmlet.graph.work import Rates
from hmlet.runs.directory import RunDirectory
from hmlet.system.ranks import Ranks
from hmlet.training import loop as training
from hmlet.training import profiling
from hmlet.training.learner import Learner
from hmlet.training.profiling import OTHER, SUMS, Profile, forward_parts, part_of, seconds_by_part

STEPS_AN_EPOCH = 8  # 480 training pairs


@pytest.fixture(scope="module", autouse=True)
def quick_rates() -> Iterator[None]:
    """Rates of tiny probes: their values mean nothing here."""
    with pytest.MonkeyPatch.context() as patch:
        for name, size in {"COPY_BYTES": 1 << 16, "MATRIX": 16, "CACHED_BYTES": 1 << 12, "GATHERS": 1 << 8}.items():
            patch.setattr(f"hmlet.training.floor.{name}", {"cpu": size})
        yield


def recipe(model: str, *overrides: str) -> Recipe:
    sizes = ["train.epochs=4", "train.batch_size=64", "train.validate_every=2", "model.embedding_size=8"]
    gates = ["model.gate_hidden=[8]", "model.gate_warmup=1"] if model.startswith("hmlet") else []
    return resolve(model, overrides=[*sizes, *gates, *overrides])


def fit(out: Path, how: Recipe, profile: Profile | None = None) -> RunDirectory:
    return training.fit(checkerboard(), how, out, device="cpu", profile=profile)


def untimed(run: RunDirectory) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in run.metrics()]


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory, quick_rates: None) -> RunDirectory:
    return fit(tmp_path_factory.mktemp("profiled") / "run", recipe("hmlet-end"), Profile())


def test_a_profiled_run_is_the_same_run(profiled: RunDirectory, tmp_path: Path) -> None:
    plain = fit(tmp_path / "plain", recipe("hmlet-end"))
    assert untimed(profiled) == untimed(plain)
    different = {name for name, digest in plain.record.files.items() if profiled.record.files[name] != digest}
    assert different == {"metrics.jsonl"}  # which has the seconds of each epoch
    assert set(RunDirectory.open(profiled.path).record.files) - set(plain.record.files) == {"profile.json"}


def test_profile_json_has_the_phases_and_a_step_beside_its_floor(profiled: RunDirectory) -> None:
    found = profiled.read_json("profile.json")
    assert set(found["phases"]) == {"graph and model", "training", "profiling", "validation", "saving"}
    assert found["seconds"] == pytest.approx(sum(found["phases"].values()))
    step = found["step"]
    # 24 steps have trained gates: 10 of them warm up, 7 are timed and 7 recorded.
    assert (step["timed"], step["recorded"]) == (7, 7)
    assert (step["steps_per_epoch"], step["gates_frozen"]) == (STEPS_AN_EPOCH, False)
    parts = {row["part"]: row for row in step["parts"]}
    floored = {"sampling", "edge dropout", "product", "matrix products", "mixture", "readout and loss", "optimizer"}
    assert {name for name, row in parts.items() if row["floor_seconds"] > 0} == floored
    assert all(parts[name]["seconds"] > 0 for name in floored)  # each was seen under its name
    assert sum(row["floor_seconds"] for row in parts.values()) == pytest.approx(step["floor_seconds"])
    assert step["share_of_floor"] == pytest.approx(step["floor_seconds"] / step["seconds"])


def test_recording_ends_with_its_epoch(tmp_path: Path) -> None:
    step = fit(tmp_path / "run", recipe("lightgcn"), Profile()).read_json("profile.json")["step"]
    assert (step["timed"], step["recorded"]) == (11, 3)  # steps 10 … 20, and 21 … 23, the last of the third epoch


def test_time_in_a_phase_is_not_time_of_the_one_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 1.0, 3.0, 7.0, 15.0])
    monkeypatch.setattr(profiling, "perf_counter", lambda: next(moments))
    profile = Profile()
    with profile.phase("outer"), profile.phase("inner"):
        pass
    assert profile.phases == {"outer": 2.0 + 8.0, "inner": 4.0}


def test_a_model_without_gradient_steps_has_phases_alone(tmp_path: Path) -> None:
    run = fit(tmp_path / "run", recipe("wrmf"), Profile())
    assert set(run.read_json("profile.json")) == {"seconds", "phases"}


def test_several_processes_are_not_profiled(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="profiling supports a single process; 2 were started"):
        training.fit(
            checkerboard(), recipe("bpr"), tmp_path / "run", device="cpu", ranks=Ranks(size=2), profile=Profile()
        )
    assert not (tmp_path / "run").exists()


def test_steps_are_watched_where_gates_are_trained_and_everything_is_warm() -> None:
    gated = recipe("hmlet-end", "model.gate_warmup=2", "train.epochs=100")
    assert profiling._window(gated, 0, 8) == (2 * 8 + 10, 20)
    assert profiling._window(gated, 400, 8) == (410, 20)  # resumed
    assert profiling._window(recipe("hmlet-end", "model.gate_warmup=4"), 0, 8) == (10, 11)  # never trained
    assert profiling._window(recipe("lightgcn", "train.epochs=1"), 0, 1) == (0, 0)  # too short to see anything


@pytest.mark.parametrize(("product", "idle"), [(1.0, 1.5), (10.0, 0.0)])
def test_a_step_is_its_median_and_what_its_parts_leave_is_idle(
    product: float, idle: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two recorded steps have `product` seconds together; recording may make them slower than the timed ones."""
    monkeypatch.setattr(profiling, "measure", lambda *rest: Rates(1.0, 1.0, 1.0))
    steps = Learner(checkerboard(), recipe("lightgcn"), torch.device("cpu")).steps
    watched = Profile().steps(steps)
    assert isinstance(watched, profiling.WatchedSteps)
    watched.timed, watched.recorded, watched.parts = [3.0, 1.0, 2.0], 2, {"product": product}
    found = watched.as_json()
    seconds = {row["part"]: row["seconds"] for row in found["parts"]}
    assert (found["seconds"], seconds["product"], seconds[profiling.IDLE]) == (2.0, product / 2, idle)


def test_a_training_too_short_to_measure_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkerboard().save(tmp_path / "data")
    settings = [f"--set={key}" for key in ("train.epochs=1", "train.batch_size=480", "model.embedding_size=8")]
    command = ["train", str(tmp_path / "data"), "--model", "lightgcn", "--device", "cpu", "--profile", *settings]
    assert main([*command, "--out", str(tmp_path / "text")]) == 0
    text = capsys.readouterr().out
    assert "no step was measured" in text
    assert [line.split()[0] for line in text.splitlines() if line.startswith(("load", "training", "saving"))]
    assert main([*command, "--out", str(tmp_path / "json"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["profile"] == json.loads((tmp_path / "json" / "profile.json").read_text())
    assert found["profile"]["step"]["seconds"] is None


# -- which part an event belongs to -----------------------------------------------------------------------------------


def recorded(work: Callable[[], Tensor]) -> list[FunctionEvent]:
    """What the profiler sees of some work and its backward pass, after one to warm up."""
    work().sum().backward()
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as found:
        work().sum().backward()
    return list(found.events())


def parts_of(events: list[FunctionEvent], operation: str) -> list[str]:
    """The part of each operation of a name, in order, but not of those that it consists of."""
    forward = forward_parts(events)
    return [part_of(event, forward) for event in events if event.name == operation]


def test_an_operation_belongs_to_its_innermost_scope_and_so_does_its_gradient() -> None:
    a, b = (torch.randn(40, 40, requires_grad=True) for _ in range(2))

    def work() -> Tensor:
        with part("mixture"):
            first = a @ b
            with part("product"):
                second = torch.tanh(first)
        return torch.sigmoid(first + second)  # `first` has two users, whose gradients are added

    events = recorded(work)
    assert parts_of(events, "aten::mm") == ["mixture"] * 3  # forward, and one for each of its inputs
    assert parts_of(events, "aten::tanh") == ["product"]
    assert parts_of(events, "aten::tanh_backward") == ["product"]
    assert parts_of(events, "aten::sigmoid_backward") == [OTHER]
    assert parts_of(events, "aten::add_") == [SUMS] * 3  # of `first`, and onto the gradients that a and b have
    total = sum(event.self_cpu_time_total for event in events)
    assert sum(seconds_by_part(events, on_cuda=False).values()) == pytest.approx(total * 1e-6)


def test_a_scope_of_an_operation_that_makes_no_node_does_not_claim_the_next_one() -> None:
    a = torch.randn(9, requires_grad=True)

    def work() -> Tensor:
        with part("sampling"):
            drawn = torch.rand(9) + 1.0  # these have the sequence number that the next node gets
        return a * drawn

    assert parts_of(recorded(work), "aten::mul") == [OTHER, OTHER]


def _kernels() -> dict[str, tuple[Part, Callable[[], Tensor]]]:
    """Each function of hmlet.graph.kernels that a step calls, with the part that it should be counted for."""
    x, y = (torch.randn(70, 8, requires_grad=True) for _ in range(2))
    weight, bias, choice = (torch.randn(*shape, requires_grad=True) for shape in ((16, 8), (2,), (70, 2)))
    norm, draw = nn.BatchNorm1d(8), torch.Generator()
    graph = planted.graph(planted.random_pairs(3, 30, 40, 0.1), 30, 40)
    operator = build_operator(graph.indptr, graph.neighbours, graph.edges, graph.scale())
    return {
        "product": ("product", lambda: operator(x)),
        "dense": ("matrix products", lambda: dense(x * 1.0, y * 1.0, weight)[0]),
        "head": ("matrix products", lambda: head(x, weight[:8, :2], bias)),
        "norm": ("BatchNorm, dropout, activation", lambda: norm_dropout_relu(x, norm, 0.4, draw)),
        "dropout": ("BatchNorm, dropout, activation", lambda: dropout_relu(x, 0.4, draw, 0, 70)),
        "activation": ("BatchNorm, dropout, activation", lambda: Activation("elu").fork(x)[0]),
        "choice": ("mixture", lambda: gumbel_softmax(choice, 0.7, True, draw)),
        "mix": ("mixture", lambda: mix(choice, x, y)),
    }


@pytest.mark.parametrize("name", _kernels())
def test_a_kernel_names_its_part(name: str) -> None:
    expected, work = _kernels()[name]
    found = seconds_by_part(recorded(work), on_cuda=False)
    assert found.pop(expected) > 0
    # The sum at the end and its gradient, slices and copies of inputs, and gradients that leaves accumulate.
    assert set(found) <= {OTHER, SUMS}


def test_kernels_count_for_the_operation_that_launched_them() -> None:
    def event(name: str, parent: Any = None, **others: Any) -> SimpleNamespace:
        values = {"sequence_nr": -1, "fwd_thread": 0, "thread": 1, "scope": 0, "kernels": [], "kind": "CPU"} | others
        values = {"id": next(numbers), "cpu_children": ["cudaLaunchKernel"]} | values
        return SimpleNamespace(
            name=name, cpu_parent=parent, device_type=SimpleNamespace(name=values.pop("kind")), self_cpu_time_total=9.0,
            is_user_annotation=name.startswith("Optimizer"), **values,
        )  # fmt: skip

    numbers = count()

    def kernels(*durations: float) -> list[SimpleNamespace]:
        return [SimpleNamespace(duration=duration) for duration in durations]

    scope = event("hmlet::mixture", kernels=kernels(3.0))  # a Triton kernel outside any operation
    forward = event("Mix", scope, sequence_nr=0, kernels=kernels(10.0, 20.0))
    engine = event(f"{profiling.ENGINE}: MixBackward", thread=2, fwd_thread=1, sequence_nr=0)
    backward = event("MixBackward", engine, thread=2, fwd_thread=1, sequence_nr=0, scope=1, kernels=kernels(400.0))
    optimizer = event("hmlet::optimizer")
    events: list[Any] = [
        scope,
        forward,
        engine,
        backward,
        event("aten::add_", engine, thread=2, kernels=kernels(5.0)),
        event("torch::autograd::AccumulateGrad", event(profiling.ENGINE), scope=1, kernels=kernels(6.0)),
        event("Optimizer.step#Adam.step", optimizer, kernels=kernels(5000.0)),  # spans kernels counted elsewhere
        event("aten::_fused_adam_", optimizer, kernels=kernels(50.0)),
        event("aten::fill_", kernels=kernels(1.0)),
        event("cudaDeviceSynchronize", id=forward.id, cpu_children=[], kernels=forward.kernels),  # not its own
        event("mix_kernel", kind="CUDA", kernels=kernels(7000.0)),
    ]
    expected = {"mixture": 433e-6, SUMS: 11e-6, "optimizer": 50e-6, OTHER: 1e-6}
    assert seconds_by_part(events, on_cuda=True) == pytest.approx(expected)
