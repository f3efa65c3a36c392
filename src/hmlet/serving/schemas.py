"""What requests and answers look like: FastAPI checks the first and documents both.

A member of a union has its tag in angle brackets: Pydantic puts it into the path of an error, which is told without it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, StrictInt, StrictStr, Tag

# The most that a request may ask for: part of the description that clients read, and so the same for every service.
MAX_K = 1000
MAX_USERS = 1000
MAX_ITEMS = 1000  # of a newcomer, or to find similar ones of
MAX_FILTER = 10_000  # ids in `allow` or `deny`
ID_LENGTH = 500
QUERY_LENGTH = 100


def _whole(value: object) -> object:
    """JSON has one kind of number: 20.0 is the integer 20."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _kind_of_id(value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return "<text>" if isinstance(value, str) else "<integer>"


Arm = Literal["a", "b"]
Integer = Annotated[StrictInt, BeforeValidator(_whole)]
Text = Annotated[StrictStr, Field(max_length=ID_LENGTH)]
Id = Annotated[
    Annotated[Integer, Tag("<integer>")] | Annotated[Text, Tag("<text>")],
    Discriminator(_kind_of_id, custom_error_type="id", custom_error_message="An id is a whole number or a text"),
]
ListLength = Annotated[StrictInt, Field(ge=1, le=MAX_K, description="Length of the list."), BeforeValidator(_whole)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Skipping(_Request):
    on_unknown: Annotated[
        Literal["error", "skip"],
        Field(description="Refuse a request with an id that the run does not have, or skip the id with a warning."),
    ] = "error"


class _Filtered(Skipping):
    k: ListLength = 20
    allow: Annotated[
        list[Id] | None, Field(max_length=MAX_FILTER, description="Recommend these items only; without it, any.")
    ] = None
    deny: Annotated[list[Id] | None, Field(max_length=MAX_FILTER, description="Never recommend these items.")] = None


class ForUsers(_Filtered):
    """Users whom the model knows, by their own ids."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"users": ["gimp", "0ad"], "k": 5, "deny": ["libc6"]}]})
    users: Annotated[list[Id], Field(min_length=1, max_length=MAX_USERS)]


class ForNewcomer(_Filtered):
    """Someone whom the model has never seen, by the items that they have."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"items": ["libc6", "libgtk-3-0"], "k": 5}]})
    items: Annotated[list[Id], Field(min_length=1, max_length=MAX_ITEMS)]


def _kind(value: object) -> str | None:
    """The member that fits; None if a body has both lists or neither."""
    if isinstance(value, dict) and ("users" in value) != ("items" in value):
        return "<users>" if "users" in value else "<newcomer>"
    return None


Recommend = Annotated[
    Annotated[ForUsers, Tag("<users>")] | Annotated[ForNewcomer, Tag("<newcomer>")],
    Discriminator(
        _kind,
        custom_error_type="users_or_items",
        custom_error_message='A request has either "users", whom the model knows, or the "items" of a newcomer',
    ),
]


class Similar(Skipping):
    """Items, by their own ids."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"items": ["libc6", "libgtk-3-0"], "k": 5}]})
    items: Annotated[list[Id], Field(min_length=1, max_length=MAX_ITEMS)]
    k: ListLength = 20


class Explain(_Request):
    model_config = ConfigDict(json_schema_extra={"examples": [{"user": "gimp", "item": "libc6"}]})
    user: Id
    item: Id


class Reload(_Request):
    model_config = ConfigDict(json_schema_extra={"examples": [{"run": "second"}]})
    run: Annotated[StrictStr, Field(min_length=1, max_length=ID_LENGTH, description="A run below the root.")]
    arm: Annotated[Arm, Field(description="The arm to replace; b only in a service with two runs.")] = "a"


class Error(BaseModel):
    code: str
    message: str
    hint: str


class Failure(BaseModel):
    """The one error shape."""

    error: Error


class ScoredItem(BaseModel):
    item: int | str
    score: float
    name: str | None = None


class Recommendation(BaseModel):
    user: int | str | None = None
    items: list[ScoredItem]
    arm: Arm | None = None


class Recommendations(BaseModel):
    """What a request with `on_unknown: "skip"` gets: a list for each known user, and warnings that name the others."""

    recommendations: list[Recommendation]
    warnings: list[str]


class SimilarItems(BaseModel):
    item: int | str
    items: list[ScoredItem]


class SimilarAnswer(BaseModel):
    """What a request with `on_unknown: "skip"` gets: a list for each known item, and warnings that name the others."""

    similar: list[SimilarItems]
    warnings: list[str]


class Health(BaseModel):
    status: str


class User(BaseModel):
    user: int | str
    name: str | None = None
    degree: int


class Item(BaseModel):
    item: int | str
    name: str | None = None
    degree: int


class OwnItem(BaseModel):
    item: int | str
    name: str | None = None


class LayerPart(BaseModel):
    layer: int
    contribution: float


class BranchChoice(BaseModel):
    branch: Literal["linear", "non-linear"]
    probability: float


class GateChoices(BaseModel):
    """What the gate of one layer chose for the user and for the item."""

    layer: int
    user: BranchChoice
    item: BranchChoice


class Carrier(OwnItem):
    """One of the user's items, and what the score loses without it."""

    contribution: float


class Explanation(OwnItem):
    """The score by layer and by the user's items. Either way, with `from_popularity`, the parts add up to it; by item
    there is also a remainder."""

    user: int | str
    score: float
    seen: bool
    layers: list[LayerPart]
    gates: list[GateChoices]
    carried_by: list[Carrier]
    from_popularity: float
    remainder: float
    sentence: str


class ArmExplanation(Explanation):
    """An explanation, and the arm that it comes from if two runs are served."""

    arm: Arm | None = None


class Node(BaseModel):
    """A node of the gate map: for each gated layer, the non-linear branch's `probability` and whether it was chosen."""

    model_config = ConfigDict(populate_by_name=True)
    side: str
    id: int | str
    degree: int
    class_: Annotated[str | None, Field(alias="class")]
    probability: list[float]
    nonlinear: list[bool]


class Overview(BaseModel):
    """The gate map. FL and FNL chose the linear and the non-linear branch at every gated layer, PNL both."""

    layers: list[int]
    nodes: int
    classes: dict[str, int]
    nonlinear_share: dict[str, float]
    sample: list[Node]


class ServedData(BaseModel):
    """The data set of the run, and its numbers of users and items."""

    name: str
    users: int
    items: int


class Search(BaseModel):
    """How items are found. An approximate search has an index, and its recall was measured on so many users."""

    kind: Literal["exact", "approximate"]
    index: str | None = None
    recall_at_20: float | None = None
    measured_on_users: int | None = None


class ServedArm(BaseModel):
    """One of two runs, and the share of users whom it answers."""

    arm: Arm
    run: str
    model: str
    share: float


class Served(BaseModel):
    """What is served, and how it is searched."""

    run: str
    model: str
    data: ServedData
    factor_size: int | None  # None: it ranks by item-item weights
    valid: dict[str, float] | None
    versions: dict[str, str]
    named: dict[str, bool]
    search: Search
    arms: list[ServedArm] | None = None  # of a service with two runs
