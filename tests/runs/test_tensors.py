"""Tensors from files: in our memory for good, with a header that tells the truth, and the shapes of recipe and ids."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from finished import finished
from forging import seal_run
from safetensors.torch import load_file, save_file
from torch import Tensor

from hmlet.api import Run
from hmlet.errors import RunError
from hmlet.runs import tensors
from hmlet.system.outside import Origin

SAMPLE = {
    "a": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "b": torch.tensor(7, dtype=torch.int64),
    "c": torch.tensor([True, False]),
    "d": torch.empty(0, 4, dtype=torch.bfloat16),
}


def origin(path: Path) -> Origin:
    return Origin(path, RunError, "restore it")


def test_tensors_and_their_checksum_are_the_files(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    save_file(SAMPLE, path, {"word": "é"})
    found = tensors.read(origin(path))
    assert found.metadata == {"word": "é"}
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert {name: (each.dtype, each.tolist()) for name, each in found.tensors.items()} == {
        name: (each.dtype, each.tolist()) for name, each in load_file(path).items()
    }


def test_overwriting_the_file_does_not_reach_tensors(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    save_file({"a": torch.ones(1 << 20)}, path)
    found = tensors.read(origin(path)).tensors["a"]
    with path.open("r+b") as file:  # the same file, as `cp` writes it
        file.write(bytes(path.stat().st_size))
        file.truncate(10)
    assert bool((found == 1).all())


HEADERS: dict[str, object] = {
    "tensor 'a': its place is": {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}},
    "its type 'F99' is unknown": {"a": {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}},
    "a.shape.0: ": {"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}},
    "a.data_offsets: ": {"a": {"dtype": "F32", "shape": [2], "data_offsets": [8]}},
    "a.dtype: Field required": {"a": {"shape": [2], "data_offsets": [0, 8]}},
    "it has 8 bytes of tensors, not 4": {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}},
    "tensor 'a': its place is [0, 8], not [4, 12]": {
        "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
    },
    "__metadata__.x: ": {"__metadata__": {"x": 1}},
    "is a JSON list": [],
}


@pytest.mark.parametrize("what", HEADERS)
def test_a_forged_header_is_refused(what: str, tmp_path: Path) -> None:
    header = json.dumps(HEADERS[what]).encode()
    (tmp_path / "t").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    with pytest.raises(RunError) as refused:
        tensors.read(origin(tmp_path / "t"))
    assert what in refused.value.message
    assert str(tmp_path / "t") in refused.value.message


@pytest.mark.parametrize("content", [b"", b"\0" * 7, b"\xff" * 8, struct.pack("<Q", 100) + b"{}"])
def test_a_file_without_a_whole_header_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(RunError, match="no whole safetensors header"):
        tensors.read(origin(tmp_path / "t"))


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_finite_numbers_are_told_from_others(kind: torch.dtype) -> None:
    largest = torch.finfo(kind).max
    assert tensors.is_finite(torch.tensor([-largest, 0.0, largest], dtype=kind))
    for wrong in (torch.nan, torch.inf, -torch.inf):
        assert not tensors.is_finite(torch.tensor([0.0, wrong], dtype=kind))
    assert tensors.is_finite(torch.tensor([-8.0, 8.0], dtype=kind), 8)
    assert not tensors.is_finite(torch.tensor([-9.0, 8.0], dtype=kind), 8)


# -- against recipe and ids ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished("lightgcn", tmp_path_factory.mktemp("trained") / "run", "train.epochs=1").directory.path


def poison(tensor: Tensor) -> Tensor:
    changed = tensor.clone()
    changed.view(-1)[3] = torch.nan
    return changed


FORGED: dict[str, tuple[str, str, Callable[[Tensor], Tensor], Callable[[Run], object]]] = {
    "too few users": ("factors", "users", lambda x: x[:-1], lambda run: run.recommend(["u1"])),
    "another width": ("factors", "users", lambda x: x[:, :-1], lambda run: run.recommend(["u1"])),
    "another type": ("factors", "items", lambda x: x.double(), lambda run: run.recommend(["u1"])),
    "not finite": ("factors", "items", poison, lambda run: run.recommend(["u1"])),
    "huge": ("layers", "1", lambda x: 1e30 * x, lambda run: run.recommend_new([["i1"]])),
    "a narrow layer": ("layers", "1", lambda x: x[:, :-1], lambda run: run.recommend_new([["i1"]])),
    "a short layer": ("layers", "2", lambda x: x[:-1], lambda run: run.explain("u1", "i1")),
    "no matrix": ("model", "embedding", lambda x: x.reshape(-1), lambda run: run.recommend_new([["i1"]])),
    "not finite e⁰": ("model", "embedding", poison, lambda run: run.recommend_new([["i1"]])),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_tensor_is_refused_by_file_and_name(case: str, trained: Path, tmp_path: Path) -> None:
    """Its checksums are right: whoever forges a file can compute them."""
    file, name, change, use = FORGED[case]
    run = shutil.copytree(trained, tmp_path / "run")
    path = run / f"{file}.safetensors"
    stored = load_file(path)
    save_file({**stored, name: change(stored[name]).contiguous()}, path)
    seal_run(run)
    with pytest.raises(RunError) as refused:
        use(Run.open(run))
    assert str(path) in refused.value.message
    assert f"tensor {name!r}" in refused.value.message or "tensor 'items'" in refused.value.message
    assert refused.value.hint
