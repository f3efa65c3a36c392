"""The checkpoint of a training: it checks itself, because it is replaced while the record is not."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from torch import Tensor

from hmlet.errors import RunError
from hmlet.runs import tensors as files
from hmlet.runs.directory import RunDirectory
from hmlet.runs.record import json_checksum
from hmlet.system.files import replacing
from hmlet.system.outside import Content, Origin

CHECKPOINT = "checkpoint.safetensors"


def save_checkpoint(
    run: RunDirectory, tensors: Mapping[str, Tensor], state: Mapping[str, object], becomes: str | None = None
) -> None:
    """Replace the run's checkpoint by these tensors and this loop state.

    `becomes` is the checksum of a recipe that the run is about to get: the checkpoint belongs to the run before and
    after that.
    """
    recipes = [*run.record.files["config.toml"], *([] if becomes is None else [becomes])]
    metadata = {"state": json.dumps(state, allow_nan=False), "run": " ".join(_identities(run, recipes))}
    with replacing(run.path / CHECKPOINT, RunError) as temporary:
        files.save(temporary, tensors, metadata)


def load_checkpoint(run: RunDirectory) -> tuple[dict[str, Tensor], dict[str, object]] | None:
    """The tensors and the loop state of the last checkpoint, or None if there is none."""
    origin = checkpoint_origin(run)
    if not origin.path.is_file():
        return None
    tensors, metadata, _ = files.read(origin)
    if metadata.pop("checksum", "") != files.checksum(tensors, metadata):
        raise origin.fault("is damaged (its checksum differs)")
    if not {*metadata.get("run", "").split()} & {*_identities(run, run.record.files.get("config.toml", ()))}:
        raise RunError(f"{origin.path} belongs to another run", f"restore the right file, or {origin.fix}")
    for name, tensor in tensors.items():
        if not files.is_finite(tensor):
            raise origin.fault(f": tensor {name!r}: it has numbers that are not finite")
    return tensors, Content(origin, metadata.get("state", "").encode()).json_object()


def checkpoint_origin(run: RunDirectory) -> Origin:
    """The checkpoint of a run, for reading and for errors."""
    return Origin(run.file(CHECKPOINT), RunError, "delete it to train from the start")


def _identities(run: RunDirectory, recipes: Iterable[str]) -> list[str]:
    """A checksum of recipe and data for each recipe, which a run shares with its checkpoint and with no other run."""
    return [json_checksum([recipe, run.record.data.fingerprint]) for recipe in recipes]
