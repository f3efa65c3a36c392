"""Tensors in safetensors files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor


def save(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors; with `metadata`, also these strings and a checksum of all."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    strings = {} if metadata is None else {**metadata, "checksum": checksum(contiguous, metadata)}
    save_file(contiguous, path, strings)


def read(path: Path, device: str = "cpu") -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors, memory-mapped, and the strings beside them."""
    with safe_open(path, framework="pt", device=device) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118


def checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """SHA-256 over names, types, shapes and bytes of all tensors, and over the strings beside them."""
    digest = hashlib.sha256(json.dumps(dict(metadata), sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def without_hidden_biases(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Version 1's gates as version 2 has them: (x + b) - mean is x - (mean - b), and the last bias has no number."""
    upgraded = dict(tensors)
    for name in tensors:
        gate, dot, number = name.rpartition(".bias.")
        if not (gate.startswith("gates.") and dot and number.isdigit()):
            continue
        mean = f"{gate}.norm.{number}.running_mean"
        if mean in tensors:
            upgraded[mean] = tensors[mean] - tensors[name]
        else:
            upgraded[f"{gate}.bias"] = tensors[name]
        del upgraded[name]
    return upgraded
