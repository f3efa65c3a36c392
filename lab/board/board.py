"""Our best configurations on a benchmark's public split, beside what others published: `python -m lab.board`.

Nothing is chosen on the public test part. Recipes are compared on a held-out tenth of the training part
(`selection=True`), and what is chosen there is trained on all of it (docs/decisions/0013).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from hmlet.config.listing import kind
from hmlet.data import Dataset
from hmlet.ranking.statistics import Spread
from hmlet.reproduction import train_missing
from hmlet.reproduction.campaign import Outcome
from hmlet.reproduction.cells import Cell
from hmlet.reproduction.choosing import load_distinct
from hmlet.reproduction.plan import Planned
from hmlet.reproduction.records import Record, Records, one_dataset
from hmlet.reproduction.sheets import MISSING, Links, Sheet, Value, number
from hmlet.reproduction.tables import Row
from hmlet.system.progress import Progress, hidden, watching
from hmlet.training.trainer import Interrupted
from lab.board.published import Published, published
from lab.board.splits import BOARD, SELECTION, board_split, selection_split
from lab.board.variants import Variant, load_variants


@dataclass(frozen=True)
class BoardRow:
    """A variant, its records on the public split, and those on the held-out tenth."""

    variant: Variant
    row: Row
    held_out: Row

    def spread(self, metric: str, *, held_out: bool = False) -> Spread | None:
        """Mean and deviation over the seeds that were run, on the public test part or on the held-out tenth."""
        return self.held_out.spread(metric, "valid") if held_out else self.row.spread(metric)

    @property
    def size(self) -> int | None:
        """The embedding size; None for a closed form."""
        model = self.variant.recipe(1).model
        return None if kind(type(model)) == "closed form" else model.columns

    def seconds(self, *, held_out: bool = False) -> float | None:
        """Seconds of training, the mean over seeds."""
        records = (self.held_out if held_out else self.row).records
        return fmean(record.run.record.timings.training_seconds for record in records) if records else None

    def as_json(self) -> dict[str, object]:
        found = {
            name: None if each is None else {"mean": each.mean, "std": each.std}
            for name, each in (
                ("recall", self.spread("recall")),
                ("ndcg", self.spread("ndcg")),
                ("held_out_recall", self.spread("recall", held_out=True)),
                ("held_out_ndcg", self.spread("ndcg", held_out=True)),
            )
        }
        return {
            "variant": self.variant.name,
            "title": self.variant.title,
            "size": self.size,
            "seeds": len(self.row.records),
            "seconds": self.seconds(),
            "devices": sorted({record.device for record in self.row.records}),
            **found,
        }


@dataclass(frozen=True, repr=False)
class Board:
    """What `board` did, our rows in the order of the variants, and the published ones."""

    dataset: str
    rows: tuple[BoardRow, ...]
    published: tuple[Published, ...]
    outcome: Outcome

    def __repr__(self) -> str:
        trained = f"{self.outcome.found} runs found, {len(self.outcome.trained)} trained, {len(self.outcome.left)} left"
        return f"<Board of {self.dataset}: {len(self.rows)} variants, {trained}>"

    def as_json(self) -> dict[str, object]:
        return {
            "dataset": self.dataset,
            "variants": [row.as_json() for row in self.rows],
            "published": [row.model_dump() for row in self.published],
            **self.outcome.as_json(),
        }


def board(
    data: Dataset | Path | str,
    *,
    variants: Sequence[str] = (),
    file: Path | str | None = None,
    selection: bool = False,
    seeds: int | None = None,
    out: Path | str = "board",
    minutes: float | None = None,
    packed: Path | str | None = None,
    device: str = "auto",
    keep: bool = False,
    progress: Progress | bool = True,
) -> Board:
    """Train our variants on a benchmark's public split and set them beside the published rows.

    Example: board("gowalla", variants=["ease"])

    `data` is a named benchmark, or the prepared directory of one; its public split is made here. `file` is a TOML file
    of variants, `variants` names some of them. With `selection` they train without a tenth of the training part and
    are scored on that, to choose between them; the test part is left out. Recorded runs in `out` are not trained
    again. `seeds` caps those of each variant, `minutes` starts no run that would not end in that time.
    """
    progress = watching(progress)
    whole = load_distinct(data, progress)
    chosen = load_variants(whole.name, None if file is None else Path(file), variants)
    split = selection_split(whole) if selection else board_split(whole)
    try:
        outcome = train_missing(
            "training the variants", plan_board(whole.name, chosen, selection=selection, seeds=seeds),
            {split.name: split}, Path(out),
            device=device, minutes=minutes, keep=keep, packed=packed, progress=progress,
        )  # fmt: skip
    except Interrupted as stop:
        raise Interrupted(stop.message, "call it again to go on") from stop
    return replace(read_board(whole.name, chosen, Path(out), seeds=seeds), outcome=outcome)


def prepare_board(data: Dataset | Path | str, folder: Path | str, *, progress: Progress = hidden) -> list[Path]:
    """Write both splits of a benchmark as prepared directories, which every command takes."""
    whole = load_distinct(data, progress)
    return [split.save(Path(folder) / split.name) for split in (selection_split(whole), board_split(whole))]


def plan_board(
    dataset: str, variants: Sequence[Variant], *, selection: bool = False, seeds: int | None = None
) -> list[Planned]:
    """The runs of some variants: the first seed of each variant, then the second, and so on."""
    name = f"{dataset}-{SELECTION if selection else BOARD}"
    cells = [(variant, _cell(variant, seeds)) for variant in variants]
    runs = [
        Planned(name, cell, variant.recipe(seed), tested=False, part="valid" if selection else "test")
        for variant, cell in cells
        for seed in range(1, cell.seeds + 1)
    ]
    return sorted(runs, key=lambda run: run.recipe.seed)


def read_board(dataset: str, variants: Sequence[Variant], out: Path, *, seeds: int | None = None) -> Board:
    """The board that the records in `out` make, training nothing."""
    records, cells = Records.read(out), [(variant, _cell(variant, seeds)) for variant in variants]
    found = {
        kind: [Row(cell, _found(records, f"{dataset}-{kind}", variant, cell.seeds)) for variant, cell in cells]
        for kind in (BOARD, SELECTION)
    }
    for own in found.values():
        one_dataset([record for row in own for record in row.records])
    rows = tuple(map(BoardRow, variants, found[BOARD], found[SELECTION]))
    done = sum(len(row.row.records) for row in rows)
    return Board(dataset, rows, tuple(published(dataset)), Outcome(found=done))


def board_sheet(board: Board) -> Sheet:
    """Our rows in the order of the variants, then the published ones, the best first."""
    ours: list[list[Value]] = [
        [
            f"**{row.variant.title}**",
            MISSING if row.size is None else f"{row.size}",
            number(row.spread("recall")),
            number(row.spread("ndcg")),
            row.row.seeds,
            seconds_text(row.seconds()),
            row.variant.chosen_on,
            number(row.spread("ndcg", held_out=True)),
            Links(row.row.records) if row.row.records else "",
        ]
        for row in board.rows
    ]
    told = {True: "test", False: "other data", None: "not said"}
    others: list[list[Value]] = [
        [
            row.method,
            MISSING if row.size is None else f"{row.size}",
            f"{row.recall:.4f}",
            f"{row.ndcg:.4f}",
            MISSING,
            MISSING,
            told[row.epochs_on_test],
            MISSING,
            f"[{row.paper}]({row.source})",
        ]
        for row in board.published
    ]
    return Sheet(
        "The board",
        "Ours are bold: mean ± standard deviation over seeds, and seconds of training.",
        ["method", "D", "Recall@20", "NDCG@20", "seeds", "seconds", "chosen on", "held-out NDCG@20", "source"],
        [*ours, *others],
    )


def seconds_text(seconds: float | None) -> str:
    return MISSING if seconds is None else f"{seconds:.1f}"


def _cell(variant: Variant, seeds: int | None) -> Cell:
    wanted = min(variant.seeds, seeds or variant.seeds)
    return Cell("board", variant.title, variant.recipe(1).model.name, seeds=wanted, group=variant.name)


def _found(records: Records, dataset: str, variant: Variant, seeds: int) -> tuple[Record, ...]:
    """The records of a variant, whichever of its seeds were run."""
    recipes = (variant.recipe(seed) for seed in range(1, seeds + 1))
    return tuple(found for recipe in recipes if (found := records.find(dataset, recipe)) is not None)
