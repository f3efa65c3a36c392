"""Which column of a file plays which role: named by the user, or guessed from the header."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hmlet.errors import DataError
from hmlet.system.spelling import option

ROLES = ("user", "item", "rating", "timestamp", "user_name", "item_name", "weight", "part")

# Spelling variants are one guess: case, spaces, hyphens and underscores do not count.
GUESSES = {
    role: words.split()
    for role, words in {
        "user": "user userid uid username reviewerid customerid customer visitorid memberid accountid",
        "item": "item itemid iid movieid productid product asin parentasin isbn bookid businessid trackid songid "
        "artistid gameid articleid newsid videoid placeid locationid",
        "rating": "rating ratings score stars overall preference",
        "timestamp": "timestamp time datetime date ts unixreviewtime createdat unixtime",
    }.items()
}

NAME_WORDS = ("name", "title", "label")
_USUAL = {"id", *NAME_WORDS, *(name for names in GUESSES.values() for name in names)}


class UnclearColumns(DataError):
    """A file of which it cannot be told, or was not told rightly, which column plays which role."""


@dataclass(frozen=True)
class Columns:
    """The user's names for the roles. User and item are guessed where they are not given; the rest only on demand."""

    user: str | None = None
    item: str | None = None
    rating: str | None = None
    timestamp: str | None = None
    user_name: str | None = None
    item_name: str | None = None
    weight: str | None = None
    part: str | None = None  # train, valid or test: `split="column:NAME"` names it
    needed: tuple[str, ...] = ("user", "item")
    welcome: tuple[str, ...] = ()  # taken where a guess fits, and done without otherwise

    @property
    def named(self) -> dict[str, str]:
        """The names that were given, except to the column of the parts, which new interactions do not have."""
        return {role: name for role in ROLES if role != "part" and (name := getattr(self, role)) is not None}

    def guessing(self, *needed: str, welcome: tuple[str, ...] = ()) -> Columns:
        """The same, with more roles to guess."""
        return replace(self, needed=(*self.needed, *needed), welcome=welcome)

    def resolve(self, header: Sequence[str], shown: str, otherwise: str = "") -> dict[str, int]:
        """The position of each role's column; user and item always have one. `otherwise` ends the advice on these."""
        chosen = {}
        for role in ROLES:
            name = getattr(self, role)
            at = self._guessed(role, header, shown, otherwise) if name is None else self._named(role, header, shown)
            if at is not None:
                chosen[role] = at
        if chosen["user"] == chosen["item"]:
            raise UnclearColumns(
                f"{shown}: user and item are the same column {header[chosen['user']]!r}",
                f"name them with {option('user')} and {option('item')}",
            )
        return chosen

    def _guessed(self, role: str, header: Sequence[str], shown: str, otherwise: str) -> int | None:
        if role not in self.needed + self.welcome:
            return None
        spellings = [plain(name) for name in header]
        guess = next((guess for guess in GUESSES[role] if guess in spellings), None)
        if guess is not None and spellings.count(guess) > 1:
            alike = [name for name, spelling in zip(header, spellings, strict=True) if spelling == guess]
            raise UnclearColumns(
                f"{shown} has {len(alike)} columns that look like the {role}: {listed(alike)}",
                f"rename one, or name the right one with {option(role)}",
            )
        at = None if guess is None else spellings.index(guess)
        if at is None and role in self.needed:
            raise UnclearColumns(
                f"{shown} has no column that looks like the {role}; its columns are {listed(header)}",
                f"name it with {option(role)}" + (otherwise if role in ("user", "item") else ""),
            )
        return at

    def _named(self, role: str, header: Sequence[str], shown: str) -> int:
        name = getattr(self, role)
        found = [at for at, each in enumerate(header) if each == name]
        found = found or [at for at, each in enumerate(header) if each.strip() == str(name).strip()]
        if len(found) != 1:
            problem = f"has {len(found)} columns named" if found else "has no column"
            raise UnclearColumns(
                f"{shown} {problem} {name!r}; its columns are {listed(header)}",
                f"name the right one with {option('split' if role == 'part' else role)}",
            )
        return found[0]


@dataclass(frozen=True)
class NamesColumns(Columns):
    """The columns of a file of names, found by their own: the id in the user's role, the name in the item's."""

    kind: str = "item"  # whose names they are

    def resolve(self, header: Sequence[str], shown: str, otherwise: str = "") -> dict[str, int]:
        """The positions of the two; no option names them."""
        spellings = [plain(name) for name in header]
        ids = next((name for name in ("id", *GUESSES[self.kind]) if name in spellings), None)
        rest = [name for name in spellings if name != ids]
        exact = (name for name in rest if name in NAME_WORDS)
        name = next(exact, None) or next((name for name in rest if any(word in name for word in NAME_WORDS)), None)
        if ids is None or name is None or spellings.count(ids) > 1 or spellings.count(name) > 1:
            raise DataError(
                f"{shown} has not one column of {self.kind} ids and one of names; its columns are {listed(header)}",
                "give a file of names the header id,name",
            )
        return {"user": spellings.index(ids), "item": spellings.index(name)}


def looks_like_header(fields: Sequence[str], names: Sequence[str]) -> bool:
    """Whether the first row of a file with these columns has names itself: two usual ones, or one in its column."""
    found, own = [plain(field) for field in fields], [plain(name) for name in names]
    repeated = sum(field == name != "" for field, name in zip(found, own, strict=False))
    return repeated + sum(field in _USUAL for field in found) > 1


def listed(header: Sequence[str]) -> str:
    """The names of columns for a message, the first twenty of many."""
    shown = [repr(name if len(name) <= 40 else name[:37] + "...") for name in header[:20]]
    return ", ".join(shown) + (f" and {len(header) - 20} more" if len(header) > 20 else "")


def plain(name: str) -> str:
    """A name without what its spellings differ in: case, spaces, hyphens, underscores."""
    return "".join(letter for letter in name.lower() if letter not in " _-.")
