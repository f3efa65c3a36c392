"""Requests and answers of the explorer. The map has an entry per node in each list, users first."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from hmlet.serving.schemas import Id, IdText, Request, ServedData

Side = Literal["user", "item"]
MOST_CHANGED = 200  # items of one "what if"
Changed = Annotated[list[Id], Meta(max_length=MOST_CHANGED)]


class Preparing(Struct, kw_only=True):
    """What is still being computed."""

    preparing: str


class ComparedRun(Struct, kw_only=True):
    """A run that the lists of the served one can be held against."""

    name: str
    model: str


class About(Struct, kw_only=True):
    """What the explorer can show of the served run."""

    run: str
    model: str
    data: ServedData
    gated_layers: list[int]
    mapped: bool  # it has embeddings, which can be laid out
    held_out: bool  # some interactions were not trained on, so lists can have hits
    compared: list[ComparedRun]


class NotableUser(Struct, kw_only=True):
    user: int | str
    name: str | None = None
    degree: int
    hits: int
    held_out: int
    usual: float


class Start(Struct, kw_only=True):
    """Users worth a look, and the items that most users have. `users` says how many users were looked at."""

    users: int
    list_length: int
    hits: list[NotableUser]
    surprising: list[NotableUser]
    typical: list[NotableUser]
    popular: list[Near]


class Near(Struct, kw_only=True):
    """A node beside another: how similar it is, or how strongly two steps join them."""

    id: int | str
    name: str | None = None
    degree: int
    score: float | None = None


class NodePaths(Struct, kw_only=True):
    """The strongest two-step paths; `joined` has positions in `between` and `far`."""

    between: list[Near]
    far: list[Near]
    joined: list[tuple[int, int]]


class GateAt(Struct, kw_only=True):
    layer: int
    probability: float  # of the non-linear branch
    nonlinear: bool


class NodePage(Struct, kw_only=True):
    """A user or an item: how popular it is, what is like it, what it is joined to, and what its gates chose."""

    side: Side
    id: int | str
    name: str | None = None
    degree: int
    rank: int  # 1 is the node of its side with the most training interactions
    of: int
    similar: list[Near]
    joined: list[Near]
    reach: list[int]
    paths: NodePaths
    gates: list[GateAt]


class Cluster(Struct, kw_only=True):
    """A cluster, described by its most popular items."""

    nodes: int
    items: list[int | str]


class Gate(Struct, kw_only=True):
    """A gated layer: the probability of the non-linear branch in percent, by node."""

    layer: int
    percent: list[int]


class Plane(Struct, kw_only=True):
    """The map: places from 0 to 65,535, training interactions and clusters, by node."""

    users: int
    nodes: list[int] | None  # which nodes of the graph these are; None: all of them
    x: list[int]
    y: list[int]
    degree: list[int]
    cluster: list[int]
    clusters: list[Cluster]
    gates: list[Gate]


class Labels(Struct, kw_only=True):
    """The ids of the map's nodes, and their names where there are any."""

    ids: list[int | str]
    names: list[str | None] | None


class WhatIf(Request):
    """A user or the items of a new user, and the items to add and to take away."""

    user: Id | None = None
    items: Changed = field(default_factory=list)
    add: Changed = field(default_factory=list)
    without: Changed = field(default_factory=list)
    k: Annotated[int, Meta(ge=1, le=100)] = 20

    def __post_init__(self) -> None:
        if (self.user is None) == (not self.items):
            raise ValueError('a request has either a "user", whom the model knows, or the "items" of a new user')


class OfNode(Struct):
    """A user or an item."""

    id: IdText


class OfUser(Struct):
    """A user, and the length of the lists to compare."""

    user: IdText
    k: Annotated[int, Meta(ge=1, le=100)] = 20


class MovedItem(Struct, kw_only=True):
    """An item of the new list, and its old rank; None: it was not among the first 200."""

    item: int | str
    name: str | None = None
    score: float
    was: int | None


class LeftItem(Struct, kw_only=True):
    """An item of the old list that is not in the new one, and its new rank."""

    item: int | str
    name: str | None = None
    was: int
    now: int | None


class Moves(Struct, kw_only=True):
    items: list[MovedItem]
    left: list[LeftItem]


class JudgedItem(Struct, kw_only=True):
    item: int | str
    name: str | None = None
    score: float
    hit: bool


class RunList(Struct, kw_only=True):
    name: str
    model: str
    items: list[JudgedItem]


class SideBySide(Struct, kw_only=True):
    """Each run's list for one user, without the training items; hits are items that the user has beyond those."""

    user: int | str
    name: str | None = None
    held_out: int
    runs: list[RunList]
