"""A profile looks and does not touch: equal runs, honest phases, and parts that stand beside their floor."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from planted import checkerboard

from hmlet.cli import main
from hmlet.config import Recipe, resolve
from hmlet.errors import ConfigError
from hmlet.runs.directory import RunDirectory
from hmlet.system.ranks import Ranks
from hmlet.training import loop as training
from hmlet.training import profiling
from hmlet.training.profiling import OTHER, Profile, part_of, seconds_by_part

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
    assert set(profiled.record.files) - set(plain.record.files) == {"profile.json"}


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
    pytest.importorskip("implicit")
    run = fit(tmp_path / "run", recipe("wrmf"), Profile())
    assert set(run.read_json("profile.json")) == {"seconds", "phases"}


def test_several_processes_are_not_profiled(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a profile is of one process, and there are 2"):
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


@pytest.mark.parametrize(
    ("names", "part"),
    [
        (["aten::random_", "_DropoutReLU"], "BatchNorm, dropout, activation"),
        (["aten::copy_", "aten::to", "_ForkBackward"], "product"),
        (["aten::mul", "_ForkActivationBackward"], "BatchNorm, dropout, activation"),
        (["_gradient_sums_kernel"], "BatchNorm, dropout, activation"),
        (["_apply_kernel"], "BatchNorm, dropout, activation"),
        (["aten::cat", "_DenseBackward"], "matrix products"),
        (["_segments_kernel"], "product"),
        (["_thin_kernel"], "edge dropout"),
        (["_triplets_kernel"], "sampling"),
        (["_head_backward_kernel"], "matrix products"),
        (["_noisy_choice_kernel"], "mixture"),
        (["_means_kernel"], "readout and loss"),
        (["aten::rand", "hmlet::sampling"], "sampling"),
        (["nvjet_tst_192x192_64x4_2x1_v_bz_coopB_NNT"], "matrix products"),
        (["sm80_xmma_gemm_bf16bf16_bf16f32_f32_nn_n_tilesize128x128x32_relu"], "matrix products"),
        (["aten::mm", "MmBackward0", "autograd::engine::evaluate_function: MmBackward0"], "matrix products"),
        (["void at::native::batch_norm_backward_reduce_channels_last_kernel"], "BatchNorm, dropout, activation"),
        (["_mix_backward_kernel"], "mixture"),
        (["void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor>"], "optimizer"),
        (["void at::native::indexFuncLargeIndex<float, long>"], "readout and loss"),
        (["aten::bitwise_not"], OTHER),
    ],
)
def test_names_tell_the_part(names: list[str], part: str) -> None:
    assert part_of(names) == part


def test_every_kernel_of_ours_has_a_part() -> None:
    sources = (Path(profiling.__file__).parents[1] / "graph" / "kernels").glob("triton*.py")
    names = [name for source in sources for name in re.findall(r"def (\w+_kernel)\(", source.read_text("utf-8"))]
    assert len(names) > 20
    assert [name for name in names if part_of([name]) == OTHER] == []


def test_kernels_count_on_a_gpu_and_operations_without_their_children_on_a_cpu() -> None:
    def event(name: str, kind: str, elapsed: float, own: float, parent: Any = None) -> SimpleNamespace:
        return SimpleNamespace(
            name=name, device_type=SimpleNamespace(name=kind), time_range=SimpleNamespace(elapsed_us=lambda: elapsed),
            self_cpu_time_total=own, cpu_parent=parent, is_user_annotation="Optimizer" in name,
        )  # fmt: skip

    outer = event("_Fork", "CPU", 10.0, 4.0)
    events = [
        outer,
        event("aten::empty", "CPU", 6.0, 6.0, outer),
        event("_segments_kernel", "CUDA", 100.0, 0.0),
        event("Optimizer.step#Adam.step", "CUDA", 500.0, 0.0),  # a span of kernels that are counted themselves
    ]
    assert seconds_by_part(events, on_cuda=False) == pytest.approx({"product": 10e-6})
    assert seconds_by_part(events, on_cuda=True) == pytest.approx({"product": 100e-6})
