"""The checkpoint of a training: it checks itself, because it is replaced while the record is not."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from hmlet.errors import RunError
from hmlet.runs import tensors as files
from hmlet.runs.directory import RunDirectory
from hmlet.runs.record import FORMAT_VERSION, json_checksum
from hmlet.system.files import replacing
from hmlet.system.spelling import option

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


def load_checkpoint(run: RunDirectory) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The tensors and the loop state of the last checkpoint, or None if there is none."""
    path, fresh = run.file(CHECKPOINT), "delete it to train from the start"
    if not path.is_file():
        return None
    if run.record.format_version != FORMAT_VERSION:
        raise RunError(
            f"{path} was begun by an older hmlet", f"finish it with that one, or choose another {option('out')}"
        )
    try:
        tensors, metadata = files.read(path)
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path} is damaged ({error})", fresh) from error
    if metadata.pop("checksum", "") != files.checksum(tensors, metadata):
        raise RunError(f"{path} is damaged (its checksum differs)", fresh)
    if not {*metadata["run"].split()} & {*_identities(run, run.record.files["config.toml"])}:
        raise RunError(f"{path} is of another run", f"put the right one there, or {fresh}")
    return tensors, json.loads(metadata["state"])


def _identities(run: RunDirectory, recipes: Iterable[str]) -> list[str]:
    """A checksum of recipe and data for each recipe, which a run shares with its checkpoint and with no other run."""
    return [json_checksum([recipe, run.record.data.fingerprint]) for recipe in recipes]
