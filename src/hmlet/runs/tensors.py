"""Tensors in safetensors files: written, read into memory, and checked by shape and value."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt
from safetensors.torch import save_file
from torch import Tensor

from hmlet.system.outside import Content, Origin, checked

LONGEST_HEADER = 1 << 20  # bytes: a few thousand tensors
BLOCK = 1 << 24  # numbers that are looked at together
LARGEST = 1e12  # in a finished model: beyond it, products over a few layers overflow, and training has diverged
_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def save(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors; with `metadata`, also these strings and a checksum of all."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    strings = {} if metadata is None else {**metadata, "checksum": checksum(contiguous, metadata)}
    save_file(contiguous, path, strings)


class _Entry(BaseModel):
    """What the header of a safetensors file says of a tensor."""

    model_config = ConfigDict(strict=True, extra="forbid")

    dtype: str
    shape: list[Annotated[int, Field(ge=0, lt=2**48)]]
    data_offsets: Annotated[list[NonNegativeInt], Field(min_length=2, max_length=2)]


class Stored(NamedTuple):
    """The content of a safetensors file."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    sha256: str  # of the whole file


def read(origin: Origin) -> Stored:
    """The tensors of a file, read once into memory of this process, and the SHA-256 of the bytes that were read.

    safetensors' own reader maps the file, so that a later change of the file would change the tensors (decision 0015).
    """
    with origin.open() as file:
        size, digest = os.fstat(file.fileno()).st_size, hashlib.sha256()
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > min(size - 8, LONGEST_HEADER):
            raise origin.fault("is damaged (it has no whole safetensors header)")
        header = file.read(length)
        digest.update(start + header)
        entries, metadata = _header(Content(origin, header), size - 8 - length)
        tensors = {}
        for name, entry in entries:
            tensors[name] = tensor = torch.empty(entry.shape, dtype=_TYPES[entry.dtype])
            place = _bytes(tensor)
            if file.readinto(place) != len(place):  # type: ignore[attr-defined]  # a buffered reader has it
                raise origin.fault("is damaged (it became shorter while it was read)")
            digest.update(place)
        if file.read(1):
            raise origin.fault("is damaged (it became longer while it was read)")
    return Stored(tensors, metadata, digest.hexdigest())


def _header(header: Content, size: int) -> tuple[list[tuple[str, _Entry]], dict[str, str]]:
    """The entry of each tensor, in the order of their bytes, which fill `size` bytes without a gap; and the strings."""
    origin = header.origin
    content = header.json_object()
    metadata = checked(dict[str, str], content.pop("__metadata__", {}), origin, "__metadata__")
    entries = [(name, checked(_Entry, each, origin, name)) for name, each in content.items()]
    entries.sort(key=lambda each: each[1].data_offsets)
    end = 0
    for name, entry in entries:
        if entry.dtype not in _TYPES:
            raise origin.fault(f": tensor {name!r}: its type {entry.dtype!r} is unknown")
        end, begin = end + math.prod(entry.shape) * _TYPES[entry.dtype].itemsize, end
        if entry.data_offsets != [begin, end]:
            raise origin.fault(f": tensor {name!r}: its place is {entry.data_offsets}, not {[begin, end]}")
    if end != size:
        raise origin.fault(f"is damaged (it has {size} bytes of tensors, not {end})")
    return entries, metadata


class Shape(NamedTuple):
    """What a tensor has to be; None means any length."""

    lengths: tuple[int | None, ...]
    types: tuple[torch.dtype, ...] = (torch.float32,)

    def fits(self, tensor: Tensor) -> bool:
        same = all(wanted in (None, found) for wanted, found in zip(self.lengths, tensor.shape, strict=False))
        return same and len(self.lengths) == tensor.dim() and tensor.dtype in self.types

    def __str__(self) -> str:
        lengths = " × ".join("any" if each is None else str(each) for each in self.lengths) or "a single number"
        return f"{' or '.join(str(each).removeprefix('torch.') for each in self.types)} {lengths}"


def require(tensors: Mapping[str, Tensor], expected: Mapping[str, Shape], origin: Origin) -> None:
    """Refuse tensors other than the expected ones, and numbers that no product could take."""
    for name in sorted({*tensors} ^ {*expected}):
        raise origin.fault(
            f": tensor {name!r}: {'the recipe has no such tensor' if name in tensors else 'it is missing'}"
        )
    for name, tensor in tensors.items():
        if not expected[name].fits(tensor):
            found = Shape(tuple(tensor.shape), (tensor.dtype,))
            raise origin.fault(f": tensor {name!r}: it is {found}, and the recipe and the ids want {expected[name]}")
        if not is_finite(tensor, LARGEST):
            raise origin.kind(
                f"{origin.path}: tensor {name!r}: it has numbers that are not finite or beyond {LARGEST:g}",
                "train again with a smaller train.learning_rate",
            )


def is_finite(tensor: Tensor, most: float = math.inf) -> bool:
    """Whether every number is finite, and none beyond `most`; a block at a time, so that this takes little memory."""
    if not tensor.is_floating_point():
        return True
    flat, most = tensor.reshape(-1), min(most, torch.finfo(tensor.dtype).max)
    return all(bool((flat[start : start + BLOCK].abs() <= most).all()) for start in range(0, len(flat), BLOCK))


def _bytes(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """SHA-256 over names, types, shapes and bytes of all tensors, and over the strings beside them."""
    digest = hashlib.sha256(json.dumps(dict(metadata), sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()
