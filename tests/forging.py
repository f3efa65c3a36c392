"""Runs, checkpoints and data sets forged from valid ones by structure, with every checksum right.

A forger can compute checksums, so none of these is refused by one. Each change is drawn from a `random.Random`: delete,
retype, resize, reorder, nest, repeat, or take the file of another run.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from hmlet.data import PARTS, Dataset
from hmlet.runs import tensors as files
from hmlet.runs.checkpoint import CHECKPOINT
from hmlet.runs.record import json_checksum

OTHER_TYPES = (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 10**30, 1.5, 1e308, float("nan"), float("inf"), "", "x", "../x", "a\0b", [], {}, [[]],
    {"a": {}},
)  # fmt: skip


# -- seals --------------------------------------------------------------------------------------------------------


def seal_record(path: Path, content: dict[str, Any]) -> None:
    """Write a run.json or a dataset.json with its own checksum."""
    content.pop("checksum", None)
    try:
        checksum = (
            json_checksum(content)
            if path.name == "run.json"
            else hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        )
    except ValueError:
        checksum = "0" * 64
    path.write_text(json.dumps({**content, "checksum": checksum}))


def seal_run(run: Path) -> None:
    """Have run.json vouch for the files as they are."""
    content = json.loads((run / "run.json").read_text())
    if isinstance(content.get("files"), dict):
        for name in content["files"]:
            if (run / name).is_file():
                content["files"][name] = hashlib.sha256((run / name).read_bytes()).hexdigest()
    seal_record(run / "run.json", content)


def seal_dataset(directory: Path) -> None:
    """Have dataset.json vouch for the tables as they are: checksums, and counts and fingerprint if they can be made."""
    path = directory / "dataset.json"
    content = json.loads(path.read_text())
    names = ("interactions.parquet", "users.parquet", "items.parquet")
    content["checksums"] = {
        name: hashlib.sha256((directory / name).read_bytes()).hexdigest()
        for name in names
        if (directory / name).is_file()
    }
    try:
        tables = {name: pq.read_table(directory / name) for name in names}
        columns = {name: tables[names[0]][name].to_pylist() for name in ("user", "item", "split")}
        rows = sorted(zip(map(PARTS.index, columns["split"]), columns["user"], columns["item"], strict=True))
        users, items = (tables[name]["id"].to_pylist() for name in names[1:])
        digest = hashlib.sha256(f"hmlet dataset 1 {len(users)} {len(items)}".encode())
        for ids in (users, items):
            digest.update("\0".join(map(str, ids)).encode())
        for code, part in enumerate(PARTS):
            own = [row for row in rows if row[0] == code]
            digest.update(f"{part} {len(own)}".encode())
            content[part] = len(own)
            for at in (1, 2):
                digest.update(np.array([row[at] for row in own], dtype="<i4").data)
        content |= {"users": len(users), "items": len(items), "interactions": len(rows)}
        content["fingerprint"] = digest.hexdigest()
    except Exception:  # a table that has no such column has no fingerprint
        pass
    seal_record(path, content)


def follow_data(run: Path) -> None:
    """Have a run that keeps its data name the fingerprint that this has."""
    content = json.loads((run / "run.json").read_text())
    content["data"]["fingerprint"] = json.loads((run / "data" / "dataset.json").read_text())["fingerprint"]
    seal_record(run / "run.json", content)


# -- changes ------------------------------------------------------------------------------------------------------


def forge_json(value: Any, rng: Random) -> Any:
    """A JSON value with one change somewhere inside."""
    places: list[tuple[Any, Any]] = []

    def walk(inner: Any) -> None:
        for key in list(inner) if isinstance(inner, dict) else range(len(inner)):
            places.append((inner, key))
            if isinstance(inner[key], dict | list):
                walk(inner[key])

    if isinstance(value, dict | list):
        walk(value)
    if not places:
        return rng.choice(ODD)
    inside, key = rng.choice(places)
    act = rng.randrange(7)
    if act == 0:
        del inside[key]
    elif act in (1, 2, 3):
        inside[key] = rng.choice(ODD)
    elif act == 4:
        inside[key] = [inside[key]]
    elif act == 5:
        deep = inside[key]
        for _ in range(rng.choice([5, 40, 400])):
            deep = [deep]
        inside[key] = deep
    else:
        other, name = rng.choice(places)
        inside[key], other[name] = other[name], inside[key]
    return value


def forge_text(path: Path, rng: Random) -> None:
    """A text file with a line left out, repeated, moved or with another value."""
    lines = path.read_text().splitlines()
    at = rng.randrange(len(lines))
    act = rng.randrange(6)
    if act == 0:
        del lines[at]
    elif act == 1:
        lines.insert(at, lines[at])
    elif act == 2:
        rng.shuffle(lines)
    elif act == 3:
        lines[at] = (
            lines[at].partition("=")[0] + "= " + rng.choice(["[" * 4000, "10000000000000", '"x"', "[]", "nan", "-1"])
        )
    elif act == 4 and path.suffix == ".jsonl":
        lines[at] = json.dumps(forge_json(json.loads(lines[at]), rng))
    else:
        lines[at] = rng.choice(["", "[]", "\x00", "{}", "null", "[[[", '{"a": 1, "a": 2}'])
    path.write_text("\n".join(lines) + rng.choice(["", "\n"]))


def forge_json_file(path: Path, rng: Random) -> None:
    value = forge_json(json.loads(path.read_text()), rng)
    text = json.dumps(value)
    if isinstance(value, dict) and value and rng.random() < 0.1:
        text = f"{{{json.dumps(next(iter(value)))}: 1, {text[1:]}"  # a key twice
    path.write_text(text)


def forge_table(path: Path, rng: Random) -> None:
    """A Parquet file with a column or its rows changed."""
    table = pq.read_table(path)
    name = rng.choice(table.column_names)
    at, column = table.column_names.index(name), table[name]
    count = len(table)
    some = [rng.randrange(count) for _ in range(rng.choice([1, 1, count]))] if count else []

    def changed(values: list[Any], kind: Any = None) -> pa.Table:
        return table.set_column(at, name, pa.array(values, kind or column.type))

    def cast(kind: Any) -> pa.Table:
        try:
            return table.set_column(at, name, column.cast(kind))
        except pa.ArrowException:
            return changed(list(range(count)), pa.int64())

    values = column.to_pylist()
    acts: list[Callable[[], pa.Table]] = [
        lambda: table.drop_columns([name]),
        lambda: table.rename_columns([rng.choice(["x", ""]) if each == name else each for each in table.column_names]),
        lambda: cast(rng.choice([pa.string(), pa.int64(), pa.float64(), pa.int8(), pa.large_string(), pa.binary()])),
        lambda: changed([None if row in some else each for row, each in enumerate(values)]),
        lambda: table.slice(0, rng.choice([0, 1, count - 1])),
        lambda: pa.concat_tables([table, table.slice(0, rng.choice([1, count]))]),
        lambda: table.take(pa.array([rng.randrange(count) for _ in range(count)])) if count else table,
        lambda: table.take(pa.array(rng.sample(range(count), count))),
        lambda: changed([_odd_value(each, rng) if row in some else each for row, each in enumerate(values)]),
        lambda: table.set_column(at, name, pa.array([[each] for each in values])),
        lambda: table.append_column(name, column),
        lambda: changed([values[0]] * count) if count else table,
        lambda: changed(values[::-1]),
    ]  # fmt: skip
    pq.write_table(rng.choice(acts)(), path)


def _odd_value(value: Any, rng: Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return rng.choice([float("nan"), float("inf"), -1.0, 1e30])
    if isinstance(value, int):
        return rng.choice([-1, 0, 1, 120, 127])
    return rng.choice(["", "x", "a\0b", " ", "é" * 1000])


def forge_tensors(path: Path, rng: Random) -> None:
    """A safetensors file with a tensor changed, its own checksum and loop state included."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        metadata = dict(file.metadata() or {})
    metadata.pop("checksum", None)
    name = rng.choice(sorted(tensors))
    tensor = tensors[name]

    def put(changed: Tensor) -> None:
        tensors[name] = changed.contiguous()

    def fill(value: float) -> None:
        if tensor.numel():
            place = rng.randrange(tensor.numel())
            changed = tensor.clone().reshape(-1)
            changed[place] = (
                value if tensor.is_floating_point() else int(max(-128, min(120, value))) if value == value else 0
            )
            put(changed.reshape(tensor.shape))

    acts: list[Callable[[], object]] = [
        lambda: tensors.pop(name),
        lambda: tensors.update({f"{name}x": tensors.pop(name)}),
        lambda: tensors.update(extra=torch.zeros(3)),
        lambda: put(tensor.to(rng.choice(OTHER_TYPES))),
        lambda: put(tensor[:-1] if tensor.dim() else tensor.reshape(1)),
        lambda: put(torch.cat([tensor, tensor[:1]]) if tensor.dim() else tensor.reshape(1, 1)),
        lambda: put(tensor[..., :-1] if tensor.dim() else tensor),
        lambda: put(tensor.reshape(-1)),
        lambda: put(tensor[None]),
        lambda: put(tensor.T if tensor.dim() == 2 else tensor),
        lambda: put(torch.zeros(0)),
        lambda: put(torch.zeros_like(tensor)),
        lambda: fill(float("nan")),
        lambda: fill(float("inf")),
        lambda: fill(-1.0),
        lambda: fill(3e38),
        lambda: metadata.update(state=json.dumps(forge_json(json.loads(metadata.get("state", "{}")), rng))),
    ]  # fmt: skip
    rng.choice(acts[-1:] if metadata and rng.random() < 0.4 else acts)()
    save_file(tensors, path, {**metadata, "checksum": files.checksum(tensors, metadata)})


FORGERS: dict[str, Callable[[Path, Random], None]] = {
    ".json": forge_json_file,
    ".toml": forge_text,
    ".jsonl": forge_text,
    ".parquet": forge_table,
    ".safetensors": forge_tensors,
}


def forge_run(run: Path, others: list[Path], rng: Random) -> str:
    """Forge one file of a run (or of the data that it keeps) and seal everything again; returns what was done."""
    own = [path for path in sorted(run.iterdir()) if path.suffix in FORGERS]
    kept = sorted((run / "data").glob("*")) if (run / "data").is_dir() else []
    path = rng.choice(kept) if kept and rng.random() < 0.25 else rng.choice(own)
    label = str(path.relative_to(run))
    act = rng.random()
    if act < 0.08 and path.name != "run.json":
        path.unlink()
        label = f"delete {label}"
    elif act < 0.25:
        other = rng.choice(others) / label
        label = f"swap {label} with {other.parent.name}"
        if other.is_file():
            shutil.copy(other, path)
    else:
        FORGERS[path.suffix](path, rng)
    try:
        if path.parent != run:
            seal_dataset(path.parent)
            follow_data(run)
        elif path.name != CHECKPOINT:
            seal_run(run)
    except (ValueError, KeyError, TypeError, AttributeError, OSError):  # what is no record has no seal
        label += " (unsealed)"
    return label


def forge_dataset(directory: Path, rng: Random) -> str:
    """Forge one file of a prepared directory and seal it again."""
    path = rng.choice(sorted(directory.glob("*")))
    FORGERS[path.suffix](path, rng)
    if path.name != "dataset.json":
        seal_dataset(directory)
    elif rng.random() < 0.8:
        content = json.loads(path.read_text())
        if isinstance(content, dict):
            seal_record(path, content)
    return path.name


def expected_scores(run: Path, data: Dataset, user: int, items: list[int]) -> list[float]:
    """The scores of items for a user, from the run's files by another reader."""
    if (run / "factors.safetensors").is_file() and "factors.safetensors" in json.loads((run / "run.json").read_text())[
        "files"
    ]:
        with safe_open(run / "factors.safetensors", framework="pt") as file:
            users_UF, items_IF = (file.get_tensor(name).double() for name in ("users", "items"))
        return [float(users_UF[user] @ items_IF[item]) for item in items]
    with safe_open(run / "model.safetensors", framework="pt") as file:
        values, others, offsets = (file.get_tensor(name) for name in ("values", "items", "offsets"))
    weights = torch.zeros(data.n_items, data.n_items, dtype=torch.float64)
    if len(offsets):
        for item in range(data.n_items):
            row = slice(int(offsets[item]), int(offsets[item + 1]))
            weights[item].index_add_(0, others[row].long(), values[row].double())
    else:
        weights = values.double()
    own = data.csr("train").row(user).tolist()
    return [float(weights[own, item].sum()) for item in items]
