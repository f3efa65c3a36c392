"""Which column of an unknown file plays which role: guessed from the columns' names and, failing that, their values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from functools import cached_property
from itertools import pairwise

from hmlet.data.columns import GUESSES, Columns, listed, plain
from hmlet.errors import DataError
from hmlet.system.spelling import option

_WORDS = {  # substrings of column names, such as customer_key or MovieTitle
    "user": "user customer visitor member account reviewer client person listener viewer reader buyer shopper "
    "subscriber player patient uid author maintainer",
    "item": "item product movie film book isbn asin article news video track song artist album game app business place "
    "venue location poi sku recipe package course restaurant hotel show anime content iid",
    "rating": "rating ratings score stars",
    "timestamp": "timestamp time date datetime ts",
    "name": "name title label",
}
WORDS = {role: frozenset(words.split()) for role, words in _WORDS.items()}
BY_NAME, BY_VALUES, BY_ORDER, GIVEN = "by its name", "by its values", "by its place among the columns", "as given"
MOST_RATINGS = 20  # distinct values
LARGEST_RATING = 100
# Seconds, milliseconds, microseconds or nanoseconds between 1990 and 2100.
_TIMES = [(6.3e8 * unit, 4.2e9 * unit) for unit in (1, 10**3, 10**6, 10**9)]


@dataclass(frozen=True)
class SampledColumn:
    """A column's name and its first values, as the file has them."""

    name: str
    values: Sequence[object]

    @cached_property
    def tokens(self) -> frozenset[str]:
        """The words of its name, without a plural or an `id` at the end: userIds -> user."""
        split = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", self.name)
        words = re.findall(r"[a-z]+", split.lower())
        return frozenset({*words, *(re.sub(r"(?<=..)ids?$", "", word) for word in words)})

    @cached_property
    def present(self) -> list[object]:
        return [value for value in self.values if value is not None and value != ""]

    @cached_property
    def distinct(self) -> int:
        return len({str(value) for value in self.present})

    @cached_property
    def numbers(self) -> list[float] | None:
        """Its values as numbers; None if one of them is none."""
        found = []
        for value in self.present:
            try:
                found.append(float(value) if isinstance(value, int | float | str) else math.nan)
            except ValueError:
                return None
        return found if found and all(map(math.isfinite, found)) else None

    @property
    def whole(self) -> bool:
        return self.numbers is not None and not any("." in str(value) for value in self.present)

    def is_id(self) -> bool:
        """Whether the values can be ids: text or whole numbers in every row, and more than one."""
        full = len(self.present) == len(self.values)
        typed = all(isinstance(value, int | str) and not isinstance(value, bool) for value in self.present)
        return full and typed and self.distinct > 1 and (self.numbers is None or self.whole)

    def is_row_number(self) -> bool:
        """Whether it counts the rows."""
        found = self.numbers
        return found is not None and len(found) > 2 and all(b - a == 1 for a, b in pairwise(found))

    def is_time(self) -> bool:
        if self.present and all(isinstance(value, date) for value in self.present):
            return True
        if self.numbers is not None:
            return any(all(low <= number <= high for number in self.numbers) for low, high in _TIMES)
        return bool(self.present) and all(isinstance(value, str) and _is_date(value) for value in self.present)

    def is_rating(self) -> bool:
        """Whether the values are few small numbers that repeat."""
        found = self.numbers
        few = 1 < self.distinct <= min(MOST_RATINGS, len(self.present) // 2)
        return found is not None and few and all(-LARGEST_RATING <= number <= LARGEST_RATING for number in found)


@dataclass(frozen=True)
class Guess:
    """The columns of a file, and why each was chosen: role -> reason."""

    columns: Columns
    reasons: dict[str, str] = field(default_factory=dict)

    def chosen(self) -> dict[str, str]:
        """The name of each role's column."""
        return {role: str(getattr(self.columns, role)) for role in self.reasons}

    def taking(self, role: str, column: SampledColumn, reason: str) -> Guess:
        changed = replace(self.columns, **{role: column.name})  # type: ignore[arg-type]  # a role is a field of text
        return Guess(changed, {**self.reasons, role: reason})


def guess_columns(sample: Sequence[SampledColumn], shown: str, given: Columns) -> Guess:
    """The columns that the user gave, and a guess for user, item, rating, timestamp and the items' names.

    A name decides where it can. Otherwise values that look like times or ratings are no ids, nor are numbers that count
    the rows; of what is left, users are expected before items.
    """
    roles = ("user", "item", "rating", "timestamp", "user_name", "item_name")
    guess = Guess(given, {role: GIVEN for role in roles if getattr(given, role) is not None})
    suits: dict[str, Callable[[SampledColumn], bool]] = {
        "user": SampledColumn.is_id,
        "item": SampledColumn.is_id,
        "timestamp": SampledColumn.is_time,
        "rating": lambda column: column.numbers is not None,
    }
    for role, fits in suits.items():
        if role not in guess.reasons and (column := _by_name(role, _unused(sample, guess), fits)) is not None:
            guess = guess.taking(role, column, BY_NAME)
    unused = _unused(sample, guess)
    times = [column for column in unused if column.is_time()]
    wanted = sum(role not in guess.reasons for role in ("user", "item"))
    if "timestamp" not in guess.reasons and times and len(unused) > wanted:
        guess = guess.taking("timestamp", times[0], BY_VALUES)
    guess = _with_ids(sample, shown, guess)
    if "rating" not in guess.reasons and (ratings := [each for each in _unused(sample, guess) if each.is_rating()]):
        guess = guess.taking("rating", ratings[0], BY_VALUES)
    return _with_names(sample, guess)


def _unused(sample: Sequence[SampledColumn], guess: Guess) -> list[SampledColumn]:
    taken = guess.chosen().values()
    return [column for column in sample if column.name not in taken]


def _by_name(
    role: str, columns: Sequence[SampledColumn], fits: Callable[[SampledColumn], bool]
) -> SampledColumn | None:
    """The column whose whole name is usual for a role, or else the one with a usual word in it; ids before names.

    Values have to fit, except under a usual name of users or items: reading the file says what is wrong with those.
    """
    certain = columns if role in ("user", "item") else [column for column in columns if fits(column)]
    for usual in GUESSES[role]:
        for column in certain:
            if plain(column.name) == usual:
                return column
    worded = [column for column in columns if fits(column) and column.tokens & WORDS[role]]
    return min(worded, key=lambda column: bool(column.tokens & WORDS["name"]), default=None)


def _with_ids(sample: Sequence[SampledColumn], shown: str, guess: Guess) -> Guess:
    """The guess with a user and an item, whose columns no name has shown."""
    missing = [role for role in ("user", "item") if role not in guess.reasons]
    left = [column for column in _unused(sample, guess) if column.is_id()]
    unlikely: tuple[Callable[[SampledColumn], bool], ...] = (
        SampledColumn.is_row_number,
        SampledColumn.is_rating,
        lambda column: column.distinct == len(column.values),  # nothing repeats
    )
    for test in unlikely:
        likely = [column for column in left if not test(column)]
        left = likely if len(likely) >= len(missing) else left
    if len(left) < len(missing):
        raise DataError(
            f"{shown} has no column that looks like the {missing[-1]}; "
            f"its columns are {listed([column.name for column in sample])}",
            f"name them with {option('user')} and {option('item')}",
        )
    reason = BY_VALUES if len(missing) == 1 else BY_ORDER
    widest = sorted(left, key=lambda column: -column.distinct)[: len(missing)]
    for role, column in zip(missing, [column for column in left if column in widest], strict=True):
        guess = guess.taking(role, column, reason)
    return guess


def _with_names(sample: Sequence[SampledColumn], guess: Guess) -> Guess:
    """The guess with a column of item names, if one column has a single name for each item."""
    if "item_name" in guess.reasons:
        return guess
    items = next((column for column in sample if column.name == guess.columns.item), None)
    for column in _unused(sample, guess):
        titled = column.tokens & WORDS["name"] and not column.tokens & WORDS["user"]
        text = all(isinstance(value, str) for value in column.present) and column.numbers is None
        if items is not None and titled and text and column.distinct > 1:
            pairs = {(str(item), name) for item, name in zip(items.values, column.values, strict=True)}
            if len(pairs) == items.distinct:
                return guess.taking("item_name", column, BY_NAME)
    return guess


def _is_date(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return "-" in text or "T" in text  # 20240131 is a number
