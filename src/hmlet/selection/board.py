"""The table of a leaderboard: a row for each model, and what the rows say together."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from hmlet.ranking.evaluation import Evaluation
from hmlet.ranking.statistics import RESAMPLES, SIGNIFICANT, TABLE, TITLES, bootstrap_interval, t_test
from hmlet.runs.finished import FinishedRun
from hmlet.system.frames import Framed, table_of

K = 20
SELECTED_BY = "ndcg"  # on the validation part
COLUMNS = (
    *("model", "loss", "valid NDCG@20", *(f"test {TITLES[name]}@{K}" for name in TABLE)),
    *("95 % interval", "p", "seconds"),
)


@dataclass(frozen=True)
class Scores:
    """A model's metrics @20 on one part: means over users, and their 95 % intervals by bootstrap."""

    means: dict[str, float]
    intervals: dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Entry:
    """A finished run and its metrics."""

    run: FinishedRun
    valid: Evaluation
    test: Evaluation
    wanted_epochs: int  # of its default recipe; a run that was cut to fit the budget has fewer


@dataclass(frozen=True)
class Row:
    """One model of a leaderboard; one that did not finish has a note instead of numbers."""

    model: str
    kind: str
    seconds: float | None = None  # of training and validation, and of comparing losses before
    valid: Scores | None = None
    test: Scores | None = None
    p: float | None = (
        None  # of the paired t-test against the best model, by users' test NDCG@20; None of the best itself
    )
    run: Path | None = None
    note: str = ""
    loss: str | None = None  # that it was trained by; None for a closed form

    def as_json(self) -> dict[str, object]:
        parts = {"valid": self.valid, "test": self.test}
        return {
            "model": self.model,
            "kind": self.kind,
            "loss": self.loss,
            "seconds": self.seconds,
            **{part: None if scores is None else scores.means for part, scores in parts.items()},
            "intervals": {part: None if scores is None else scores.intervals for part, scores in parts.items()},
            "p": self.p,
            "run": None if self.run is None else str(self.run),
            "note": self.note,
        }

    def cells(self) -> list[str]:
        """The row as text, under COLUMNS; a note is not among them."""
        if self.valid is None or self.test is None:
            return [self.model, *["–"] * (len(COLUMNS) - 1)]
        low, high = self.test.intervals[SELECTED_BY]
        return [
            self.model,
            self.loss or "–",
            f"{self.valid.means[SELECTED_BY]:.4f}",
            *(f"{self.test.means[name]:.4f}" for name in TABLE),
            f"{low:.4f} … {high:.4f}",
            "best" if self.p is None else f"{self.p:.2g}",
            f"{self.seconds:,.1f}",
        ]


@dataclass(frozen=True, repr=False)
class Leaderboard(Framed):
    """Models on one data set, the best by validation first and those without numbers last; a row for each."""

    data: str
    out: Path
    rows: tuple[Row, ...]
    page: Path | None  # None where the plotting library is missing
    columns: ClassVar[tuple[str, ...]] = COLUMNS  # of each row's cells

    @property
    def best(self) -> str | None:
        """The model with the highest validation NDCG@20; None if no model finished."""
        return self.rows[0].model if self.ranked else None

    @property
    def ranked(self) -> tuple[Row, ...]:
        """The rows that have numbers."""
        return tuple(row for row in self.rows if row.valid is not None)

    @property
    def serve(self) -> str | None:
        """The command that serves the best model."""
        return shlex.join(["hmlet", "serve", str(self.rows[0].run)]) if self.ranked else None

    def __repr__(self) -> str:
        done = f"{len(self.ranked)} of {len(self.rows)} models"
        return f"<Leaderboard on {self.data}: {done}, best {self.best}>"

    def as_json(self) -> dict[str, object]:
        """What `hmlet leaderboard --json` prints."""
        return {
            "data": self.data,
            "rows": [row.as_json() for row in self.rows],
            "best": self.best,
            "conclusion": self.conclusion(),
            "page": None if self.page is None else str(self.page),
            "serve": self.serve,
        }

    def to_arrow(self) -> pa.Table:
        columns = [
            "model",
            "kind",
            "loss",
            "seconds",
            *(f"{part}_{name}" for part in ("valid", "test") for name in TABLE),
        ]
        rows = []
        for row in self.rows:
            parts = {"valid": row.valid, "test": row.test}
            means = {
                f"{part}_{name}": None if scores is None else scores.means[name]
                for part, scores in parts.items()
                for name in TABLE
            }
            rows.append({**row.as_json(), **means})
        return table_of([*columns, "p", "run", "note"], rows)

    def conclusion(self) -> str:
        """One or two plain sentences on the best model and how sure its lead is."""
        if not self.ranked:
            return "No model finished."
        best, *others = self.ranked
        text = f"{best.model} is best on validation."
        clear = [row for row in others if row.p is not None and row.p < SIGNIFICANT]
        ahead = [row.model for row in clear if _test(row) > _test(best)]
        unclear = [row.model for row in others if row not in clear]
        if ahead:
            text += f" On test, {_listed(ahead)} did better (p < {SIGNIFICANT})."
        if unclear:
            verb = "does" if len(unclear) == 1 else "do"
            text += f" On test, {_listed(unclear)} {verb} not differ significantly from it (p ≥ {SIGNIFICANT})."
        if others and not ahead and not unclear:
            text += f" On test, it beats every other model (p < {SIGNIFICANT})."
        return text


def _listed(names: list[str]) -> str:
    """Names as a sentence has them: "a, b and c"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _test(row: Row) -> float:
    return 0.0 if row.test is None else row.test.means[SELECTED_BY]


def rank(entries: Mapping[str, Entry], kinds: Mapping[str, str], notes: Mapping[str, str]) -> tuple[Row, ...]:
    """The rows of finished runs, best first, and then those of models that have a note instead."""
    order = sorted(entries, key=lambda name: -entries[name].valid.metrics[SELECTED_BY])
    valid, test = (
        _scores([getattr(entries[name], part) for name in order]) if order else [] for part in ("valid", "test")
    )
    rows = []
    for at, name in enumerate(order):
        entry, best = entries[name], entries[order[0]]
        values, others = (each.test.per_user[SELECTED_BY] for each in (best, entry))
        recipe, record = entry.run.recipe, entry.run.record
        rows.append(
            Row(
                model=name,
                kind=kinds[name],
                seconds=record.compared_seconds + record.timings.training_seconds,
                valid=valid[at],
                test=test[at],
                p=t_test(values, others) if at else None,
                run=entry.run.directory.path,
                note=_shortening(entry),
                loss=None if recipe.model.solved else recipe.objective,
            )
        )
    return (*rows, *(Row(name, kinds[name], note=note) for name, note in notes.items()))


def _shortening(entry: Entry) -> str:
    epochs = entry.run.recipe.train.epochs
    return f"shortened to {epochs} of {entry.wanted_epochs} epochs" if epochs < entry.wanted_epochs else ""


def _scores(evaluations: Sequence[Evaluation]) -> list[Scores]:
    """The metrics of models on one part. All intervals come from the same draws of users."""
    values_UP = np.stack([each.per_user[name] for each in evaluations for name in TABLE], axis=1)
    low_P, high_P = bootstrap_interval(values_UP, RESAMPLES, np.random.default_rng(0))
    found = []
    for at, each in enumerate(evaluations):
        places = {name: at * len(TABLE) + offset for offset, name in enumerate(TABLE)}
        intervals = {name: (float(low_P[place]), float(high_P[place])) for name, place in places.items()}
        found.append(Scores({name: each.metrics[name] for name in TABLE}, intervals))
    return found
