"""From what a call names, data sets by name or path, to a choice and a loaded data set for each."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hmlet.data import Dataset
from hmlet.data.catalog import distinct_name, known_name, load
from hmlet.errors import DataError
from hmlet.reproduction.plan import Choice, Planned
from hmlet.reproduction.records import Records
from hmlet.system.progress import Progress, hidden
from hmlet.system.spelling import option

DEFAULT_DATA = "debian"
DEFAULT_TABLES = ("main",)


def choose(
    datasets: Sequence[Dataset | Path | str] = (),
    *,
    models: Sequence[str] = (),
    tables: Sequence[str] = DEFAULT_TABLES,
    seeds: int | None = None,
    preset: str | None = None,
    overrides: Sequence[str] = (),
    progress: Progress = hidden,
) -> tuple[list[Choice], dict[str, Dataset]]:
    """A choice for each data set, and the data sets by the names that the choices have for them."""
    asked: list[tuple[Dataset | Path | str, Choice]] = [
        (each, Choice(known_name(each) or "own", tuple(tables), tuple(models), seeds, preset, tuple(overrides)))
        for each in datasets or [DEFAULT_DATA]
    ]
    for _, choice in asked:
        choice.runs()  # refuses a recipe that cannot be resolved before anything is loaded
    choices: list[Choice] = []
    loaded: dict[str, Dataset] = {}
    for each, choice in asked:
        data = load_distinct(each, progress)
        if data.name in loaded:  # their records would lie in one folder
            raise DataError(
                f"two data sets are called {data.name}", f"reproduce them separately, each with its own {option('out')}"
            )
        choices.append(replace(choice, dataset=data.name))
        loaded[data.name] = data
    return choices, loaded


def load_distinct(data: Dataset | Path | str, progress: Progress) -> Dataset:
    """The data set that a call names; only a named set has a named set's name."""
    if isinstance(data, Dataset):
        found = copy(data)
    else:
        with progress(f"loading {data}") as advance:
            found = load(data, advance=advance)
    found.name = distinct_name(found)
    return found


@dataclass(frozen=True)
class WantedRun:
    """A run that a choice wants, and whether it has been recorded."""

    dataset: str
    table: str
    cell: str
    seed: int
    run: str
    done: bool

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def wanted_runs(runs: Sequence[Planned], out: Path | str) -> list[WantedRun]:
    """The planned runs, and whether each has been recorded: `hmlet reproduce --plan`."""
    records = Records.read(Path(out))
    wanted = []
    for run in runs:
        record = records.find(run.dataset, run.recipe)
        cell = f"{run.cell.group}: {run.cell.label}".removeprefix(": ")
        done = record is not None and record.complete(run)
        name = run.name if record is None else record.name
        wanted.append(WantedRun(run.dataset, run.cell.table, cell, run.recipe.seed, name, done))
    return wanted
