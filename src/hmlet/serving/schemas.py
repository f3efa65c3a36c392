"""Requests and answers as types. msgspec decodes and encodes them, and /openapi.json is generated from them.

Lists, explanations and similar items are the library's own types (hmlet.recommend).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from hmlet.recommend.answers import Recommendation, SimilarItems

# What one request may ask for. Clients read it in the description, so it is the same for every service.
MAX_K = 1000
MAX_USERS = 1000
MAX_ITEMS = 1000
MAX_FILTER = 10_000
ID_LENGTH = 500

IdText = Annotated[str, Meta(max_length=ID_LENGTH)]
Id = int | IdText
OnUnknown = Annotated[
    Literal["error", "skip"],
    Meta(description="Refuse a request with an id that the run does not have, or skip the id with a warning."),
]
Length = Annotated[int, Meta(ge=1, le=MAX_K, description="Length of the list.")]
Users = Annotated[list[Id], Meta(min_length=1, max_length=MAX_USERS)]
Items = Annotated[list[Id], Meta(min_length=1, max_length=MAX_ITEMS)]
Filter = Annotated[list[Id], Meta(max_length=MAX_FILTER)]
Kind = Literal["number", "string"]


class Request(Struct, forbid_unknown_fields=True):
    """A body."""


# -- requests -----------------------------------------------------------------------------------------------------


class Recommend(Request):
    """Either `users` that the model knows, or the `items` of someone it has never seen."""

    users: Annotated[Users | UnsetType, Meta(description="Users that the model knows.")] = UNSET
    items: Annotated[Items | UnsetType, Meta(description="The items of a new user.")] = UNSET
    k: Length = 20
    allow: Annotated[Filter | None, Meta(description="Recommend these items only; any without it.")] = None
    deny: Annotated[Filter | None, Meta(description="Never recommend these items.")] = None
    on_unknown: OnUnknown = "error"

    def __post_init__(self) -> None:
        if (self.users is UNSET) == (self.items is UNSET):
            raise ValueError('a request has either "users", whom the model knows, or the "items" of a new user')


class Similar(Request):
    """Items, by their own ids."""

    items: Items
    k: Length = 20
    on_unknown: OnUnknown = "error"


class Explain(Request):
    """A user and an item."""

    user: Id
    item: Id


class Reload(Request):
    """A run below the reload root."""

    run: Annotated[str, Meta(min_length=1, max_length=ID_LENGTH, description="A run below the reload root.")]


class Page(Struct):
    """Part of a search."""

    query: Annotated[str, Meta(max_length=100, description="Part of an id or a name; everything without it.")] = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 20
    offset: Annotated[int, Meta(ge=0, le=2**31)] = 0


class OfUser(Struct):
    """One user, and how many of their items to list."""

    user: IdText
    limit: Annotated[int, Meta(ge=1, le=1000)] = 200


class Sample(Struct):
    """How many nodes to show."""

    limit: Annotated[int, Meta(ge=1, le=10_000)] = 2000


# -- answers ------------------------------------------------------------------------------------------------------


class Error(Struct):
    code: str
    message: str
    hint: str


class Failure(Struct):
    """The one error shape."""

    error: Error


class Recommendations(Struct):
    """The answer with `on_unknown: "skip"`: a list for each known user, and a warning for each unknown id."""

    recommendations: list[Recommendation]
    warnings: list[str]


class SimilarAnswer(Struct):
    """The answer with `on_unknown: "skip"`: a list for each known item, and a warning for each unknown id."""

    similar: list[SimilarItems]
    warnings: list[str]


class Health(Struct):
    status: str


class User(Struct):
    user: int | str
    degree: int
    name: str | UnsetType | None = UNSET


class Item(Struct):
    item: int | str
    degree: int
    name: str | UnsetType | None = UNSET


class OwnItem(Struct):
    item: int | str
    name: str | UnsetType | None = UNSET


class Node(Struct):
    """A node of the gate map: for each gated layer, the non-linear branch's `probability` and whether it was chosen."""

    side: str
    id: int | str
    degree: int
    class_: str | None = field(name="class")
    probability: list[float]
    nonlinear: list[bool]


class Overview(Struct):
    """The gate map. FL and FNL chose the linear and the non-linear branch at every gated layer, PNL both."""

    layers: list[int]
    nodes: int
    classes: dict[str, int]
    nonlinear_share: dict[str, float]
    sample: list[Node]


class ServedData(Struct):
    """The data set of the run, and its numbers of users and items."""

    name: str
    users: int
    items: int


class Search(Struct):
    """How items are found. An approximate search has an index, and its recall was measured on so many users."""

    kind: Literal["exact", "approximate"]
    index: str | UnsetType = UNSET
    recall_at_20: float | UnsetType = UNSET
    measured_on_users: int | UnsetType = UNSET


class Ids(Struct):
    """Whether answers carry the ids of users and of items as numbers or as strings. Requests may use either.

    Numbers beyond 2^53 would change in JavaScript, so a side that has one gets strings for all of its ids.
    """

    user: Kind
    item: Kind


class Served(Struct):
    """The run that is served, its data and quality, and how it is searched."""

    run: str
    model: str
    data: ServedData
    ids: Ids
    factor_size: int | None  # None: it ranks by item-item weights
    valid: dict[str, float] | None
    versions: dict[str, str]
    named: dict[str, bool]
    search: Search


Examples = list[dict[str, Any]]
EXAMPLES: dict[type, Examples] = {  # of bodies; the embedded data set has these ids
    Recommend: [{"users": ["gimp", "0ad"], "k": 5, "deny": ["libc6"]}, {"items": ["libc6", "libgtk-3-0"], "k": 5}],
    Similar: [{"items": ["libc6", "libgtk-3-0"], "k": 5}],
    Explain: [{"user": "gimp", "item": "libc6"}],
    Reload: [{"run": "second"}],
}
