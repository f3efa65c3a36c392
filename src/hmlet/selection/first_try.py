"""try_file(): from a file that nobody has described to recommendations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hmlet.data import Columns, Dataset, Dialect
from hmlet.data.guessing import Guess
from hmlet.data.interactions import Id
from hmlet.data.preparation import guess_file, prepare
from hmlet.errors import DataError
from hmlet.models import MODELS, QUICK
from hmlet.recommend.answers import Recommendation
from hmlet.recommend.recommender import Recommender
from hmlet.selection.board import Leaderboard
from hmlet.selection.contest import DATA, leaderboard
from hmlet.system.progress import Progress, watching
from hmlet.system.spelling import option

SHOWN_USERS, SHOWN_ITEMS = 3, 5


@dataclass(frozen=True)
class Example:
    """A user, some of the items that the user has, and what is recommended."""

    user: Id
    has: list[str]
    recommended: Recommendation

    def as_json(self) -> dict[str, object]:
        return {"user": self.user, "has": self.has, "items": self.recommended["items"]}


@dataclass(frozen=True, repr=False)
class FirstTry:
    """What became of a file: the guessed columns, the data set, the models and a few recommendations."""

    file: Path
    out: Path
    guess: Guess
    data: Dataset
    board: Leaderboard
    examples: tuple[Example, ...]  # of the best model; none if no model finished

    def __repr__(self) -> str:
        return f"<FirstTry of {self.file}: {self.data!r}, best {self.board.best}>"

    def as_json(self) -> dict[str, object]:
        """What `hmlet try --json` prints."""
        return {
            "file": str(self.file),
            "columns": self.guess.chosen(),
            "reasons": self.guess.reasons,
            "statistics": self.data.statistics().to_json(),
            "prepared": str(self.out / DATA),
            "leaderboard": self.board.as_json(),
            "recommendations": [example.as_json() for example in self.examples],
        }


def try_file(
    file: Path | str,
    out: Path | str | None = None,
    *,
    minutes: float = 3.0,
    user: str | None = None,
    item: str | None = None,
    rating: str | None = None,
    timestamp: str | None = None,
    min_rating: float | None = None,
    format: str | None = None,
    delimiter: str | None = None,
    columns: Sequence[str] = (),
    device: str = "auto",
    progress: Progress | bool = True,
) -> FirstTry:
    """Guess the columns of a file, prepare it, train the quick models and recommend to three users: `hmlet try`.

    Example: hmlet.try_file("ratings.csv", minutes=2).board.best

    `out` is by default a directory in the current one, named after the file; nothing that is there is overwritten, and
    calling it again with the same file goes on. Columns that are given are not guessed. `columns` names all of a file
    without a header line.
    """
    source, progress = Path(file), watching(progress)
    place = Path(f"{source.name.partition('.')[0]}-hmlet") if out is None else Path(out)
    _require_free(place)
    dialect = Dialect(format, delimiter, columns)
    guess = guess_file(source, Columns(user, item, rating, timestamp), dialect)
    with progress("preparing") as advance:
        data = prepare(
            [source],
            columns=guess.columns,
            dialect=dialect,
            min_rating=min_rating,
            advance=advance,
        )
    quick = [name for name in QUICK if name in MODELS]
    board = leaderboard(data, place, minutes=minutes, models=quick, device=device, progress=progress)
    best = None if board.best is None else Recommender.open(str(board.rows[0].run))
    return FirstTry(source, place, guess, data, board, () if best is None else examples(best))


def _require_free(place: Path) -> None:
    """Reject a directory with files that no earlier try has written."""
    if place.is_file() or (place.is_dir() and any(place.iterdir()) and not (place / DATA).is_dir()):
        raise DataError(f"{place} exists already and is not empty", f"choose another {option('out')}")


def examples(run: Recommender) -> tuple[Example, ...]:
    """Recommendations for three users with about the median number of items, who have some in training."""
    data = run.data
    counts = data.csr("train").counts
    distance = np.where(counts > 0, np.abs(counts - np.median(counts[counts > 0])), np.inf)
    chosen = [int(at) for at in np.argsort(distance, kind="stable")[:SHOWN_USERS] if counts[at]]
    found = []
    for answer, at in zip(run.recommend([data.users.id(at) for at in chosen], SHOWN_ITEMS), chosen, strict=True):
        own = data.csr("train").row(at)[:SHOWN_ITEMS]
        has = [data.items.name(int(item)) or str(data.items.id(int(item))) for item in own]
        found.append(Example(data.users.id(at), has, answer))
    return tuple(found)
