"""Users and items as answers name them: by their own ids, with their names if the data set has names."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from hmlet.data import Vocabulary
from hmlet.data.interactions import Id


class Named(TypedDict):
    """A readable name; None if the data set has names, but not this one."""

    name: NotRequired[str | None]


class NamedItem(Named):
    """An item."""

    item: Id


class NamedUser(Named):
    """A user."""

    user: Id


def named_item(items: Vocabulary, index: int) -> NamedItem:
    return {"item": items.id(index), **_name(items, index)}


def named_user(users: Vocabulary, index: int) -> NamedUser:
    return {"user": users.id(index), **_name(users, index)}


def _name(vocabulary: Vocabulary, index: int) -> Named:
    return {} if vocabulary.names is None else {"name": vocabulary.name(index)}
