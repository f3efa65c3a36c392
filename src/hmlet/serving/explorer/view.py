"""What the page of the explorer shows of one run, beyond the answers of the service.

The map and the users worth a look take seconds to compute for a large run. They are computed in a thread of their own
when the first visitor comes; a service without visitors pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import cached_property
from threading import Event

import numpy as np
import numpy.typing as npt
import torch

from hmlet.analysis.cached import cached_layout
from hmlet.data.interactions import Id
from hmlet.graph import Graph, training_graph
from hmlet.ranking.evaluation import KNOWN, seen_items
from hmlet.ranking.scoring import Histories
from hmlet.recommend import notable
from hmlet.recommend.recommender import Recommender
from hmlet.recommend.surroundings import paths, reach
from hmlet.recommend.what_if import what_if
from hmlet.runs.directory import FACTORS
from hmlet.serving.endpoints import to_json
from hmlet.serving.errors import Refusal
from hmlet.serving.explorer import schemas
from hmlet.serving.loaded_run import LoadedRun
from hmlet.serving.schemas import ServedData

MOST_MAPPED = 100_000  # nodes: with more of them the map has a sample, even in degree
SHOWN_NOTABLE = 6
SHOWN_POPULAR = 12
SHOWN_SIMILAR = 12
SHOWN_JOINED = 24
SHOWN_BETWEEN, SHOWN_FAR = 6, 8
STEPS = 4  # as far as four layers see
DEPTH = 200  # ranks that a "what if" knows of


class View:
    """What the explorer knows of one served run; slow parts are computed once, in the thread of the explorer."""

    def __init__(self, served: LoadedRun, submit: Callable[[Callable[[], bytes]], Future[bytes]]) -> None:
        self.served, self.data = served, served.data
        self._submit, self._running = submit, dict[str, Future[bytes]]()

    def about(self, others: list[Recommender]) -> schemas.About:
        record, data = self.served.run.record, self.data
        return schemas.About(
            run=self.served.name,
            model=record.model,
            data=ServedData(name=record.data.name, users=data.n_users, items=data.n_items),
            gated_layers=list(self.served.run.choices.layers) if self.served.run.choices else [],
            mapped=self.mapped,
            held_out=data.count("valid") + data.count("test") > 0,
            compared=[schemas.ComparedRun(name=name_of(run), model=run.record.model) for run in others],
        )

    @property
    def mapped(self) -> bool:
        """Whether there are embeddings to lay out: an item-item model has none, and one number is no direction."""
        return not isinstance(self.served.run.scored[0], Histories) and self.served.run.factors[0].shape[1] > 1

    def prepared(self, name: str, make: Callable[[], bytes]) -> Future[bytes]:
        """An answer that is computed once; one that failed is computed again."""
        future = self._running.get(name)
        if future is None or (future.done() and (future.cancelled() or future.exception() is not None)):
            future = self._running[name] = self._submit(make)
        return future

    def near(self, side: str, index: int, score: float | None = None) -> schemas.Near:
        vocabulary = self.served.vocabulary(side)
        degree = int(self.served.degrees[side][index])
        return schemas.Near(id=vocabulary.id(index), name=vocabulary.name(index), degree=degree, score=score)

    # -- users worth a look ---------------------------------------------------------------------------------------

    def start(self) -> bytes:
        found = notable.notable(self.served.run.scored, self.data)

        def users(positions: list[int]) -> list[schemas.NotableUser]:
            return [
                schemas.NotableUser(
                    user=self.data.users.id(int(found.users[at])),
                    name=self.data.users.name(int(found.users[at])),
                    degree=int(self.served.degrees["user"][found.users[at]]),
                    hits=int(found.hits[at]),
                    held_out=int(found.held_out[at]),
                    usual=float(found.usual[at]),
                )
                for at in positions
            ]

        popular = np.argsort(-self.served.degrees["item"], kind="stable")[:SHOWN_POPULAR].tolist()
        answer = schemas.Start(
            users=len(found.users),
            list_length=notable.LIST,
            hits=users(found.most_hits(SHOWN_NOTABLE)),
            surprising=users(found.most_surprising(SHOWN_NOTABLE)),
            typical=users(found.most_typical(SHOWN_NOTABLE)),
            popular=[self.near("item", at) for at in popular],
        )
        return to_json(answer)

    # -- the map --------------------------------------------------------------------------------------------------

    @cached_property
    def mapped_nodes(self) -> npt.NDArray[np.int64]:
        """The nodes of the map: all of them, or a sample that is even in degree; the most popular is in it."""
        degree_N = np.concatenate([self.served.degrees["user"], self.served.degrees["item"]])
        if len(degree_N) <= MOST_MAPPED:
            return np.arange(len(degree_N))
        order = np.argsort(degree_N, kind="stable")
        return np.sort(order[np.linspace(0, len(order) - 1, MOST_MAPPED).astype(np.int64)])

    def plane(self, stop: Event) -> bytes:
        def advance(done: float, total: float | None = None, text: str = "") -> None:
            if stop.is_set():
                raise Refusal(503, "the service is stopping", "try again later")

        run, nodes = self.served.run, self.mapped_nodes
        factors_NF = torch.cat([each.cpu() for each in run.directions])[torch.from_numpy(nodes)]
        checksum = run.record.files[FACTORS][0]
        found = cached_layout(factors_NF, f"{checksum[:32]}-{len(nodes)}", advance)
        place_N2 = np.round((found.place_N2.astype(np.float64) + 1) / 2 * 65535).astype(np.int64)
        degree_N = np.concatenate([self.served.degrees["user"], self.served.degrees["item"]])[nodes]
        n_users = self.data.n_users
        clusters = []
        for at in range(int(found.cluster_N.max(initial=-1)) + 1):
            own = np.flatnonzero((found.cluster_N == at) & (nodes >= n_users))
            best = nodes[own[np.argsort(-degree_N[own], kind="stable")[:3]]] - n_users
            clusters.append(
                schemas.Cluster(nodes=int((found.cluster_N == at).sum()), items=self.data.items.ids_at(best.tolist()))
            )
        chosen = run.choices
        answer = schemas.Plane(
            users=int((nodes < n_users).sum()),
            nodes=None if len(nodes) == n_users + self.data.n_items else nodes.tolist(),
            x=place_N2[:, 0].tolist(),
            y=place_N2[:, 1].tolist(),
            degree=degree_N.tolist(),
            cluster=found.cluster_N.tolist(),
            clusters=clusters,
            gates=[]
            if chosen is None
            else [
                schemas.Gate(layer=layer, percent=np.round(100 * chosen.probability_NL[nodes, at]).astype(int).tolist())
                for at, layer in enumerate(chosen.layers)
            ],
        )
        return to_json(answer)

    def labels(self) -> bytes:
        n_users, nodes = self.data.n_users, self.mapped_nodes
        users, items = nodes[nodes < n_users].tolist(), (nodes[nodes >= n_users] - n_users).tolist()
        names = [self.data.users.names_at(users), self.data.items.names_at(items)]
        joined = None
        if any(each is not None for each in names):
            joined = [*(names[0] or [None] * len(users)), *(names[1] or [None] * len(items))]
        ids = [*self.data.users.ids_at(users), *self.data.items.ids_at(items)]
        return to_json(schemas.Labels(ids=ids, names=joined))

    # -- a user or an item ----------------------------------------------------------------------------------------

    @cached_property
    def graph(self) -> Graph:
        return training_graph(self.data)

    def node(self, side: schemas.Side, given: Id) -> schemas.NodePage:
        vocabulary, degrees = self.served.vocabulary(side), self.served.degrees[side]
        other: schemas.Side = "item" if side == "user" else "user"
        index = int(vocabulary.indices([given])[0])
        first, across = (0, self.data.n_users) if side == "user" else (self.data.n_users, 0)
        graph, at = self.graph, first + index
        joined = graph.neighbours[graph.indptr[at] : graph.indptr[at + 1]].astype(np.int64) - across
        joined = joined[np.argsort(-self.served.degrees[other][joined], kind="stable")][:SHOWN_JOINED]
        found = paths(graph, at, SHOWN_BETWEEN, SHOWN_FAR)
        chosen = self.served.run.choices
        return schemas.NodePage(
            side=side,
            id=vocabulary.id(index),
            name=vocabulary.name(index),
            degree=int(degrees[index]),
            rank=int((degrees > degrees[index]).sum()) + 1,
            of=len(vocabulary),
            similar=self._similar(side, given),
            joined=[self.near(other, each) for each in joined.tolist()],
            reach=reach(graph, at, STEPS),
            paths=schemas.NodePaths(
                between=[self.near(other, each - across) for each in found.between],
                far=[
                    self.near(side, each - first, strength)
                    for each, strength in zip(found.far, found.strength, strict=True)
                ],
                joined=found.joined,
            ),
            gates=[]
            if chosen is None
            else [
                schemas.GateAt(
                    layer=layer,
                    probability=float(chosen.probability_NL[at, place]),
                    nonlinear=bool(chosen.nonlinear_NL[at, place]),
                )
                for place, layer in enumerate(chosen.layers)
            ],
        )

    def _similar(self, side: schemas.Side, given: Id) -> list[schemas.Near]:
        run, vocabulary = self.served.run, self.served.vocabulary(side)
        if side == "user":
            found = [(each["user"], each["score"]) for each in run.similar_users(given, SHOWN_SIMILAR)]
        else:
            found = [(each["item"], each["score"]) for each in run.similar_items(given, SHOWN_SIMILAR)]
        indices = vocabulary.indices(one for one, _ in found).tolist()
        return [self.near(side, at, score) for at, (_, score) in zip(indices, found, strict=True)]

    # -- lists ----------------------------------------------------------------------------------------------------

    def moves(self, request: schemas.WhatIf) -> schemas.Moves:
        items, who = self.data.items, request.items if request.user is None else request.user
        before, after = what_if(self.served.run, who, request.add, request.without, max(DEPTH, request.k))
        was, now = ({item: rank for rank, item in enumerate(each.items, 1)} for each in (before, after))
        kept = after.items[: request.k]
        return schemas.Moves(
            items=[
                schemas.MovedItem(item=items.id(each), name=items.name(each), score=score, was=was.get(each))
                for each, score in zip(kept, after.scores, strict=False)
            ],
            left=[
                schemas.LeftItem(item=items.id(each), name=items.name(each), was=rank, now=now.get(each))
                for rank, each in enumerate(before.items[: request.k], 1)
                if each not in kept
            ],
        )

    def side_by_side(self, given: Id, others: list[Recommender], k: int) -> schemas.SideBySide:
        data, user = self.data, int(self.data.users.indices([given])[0])
        train, everything = seen_items(data, "train"), seen_items(data, KNOWN).row(user)
        held_out = np.setdiff1d(everything, train.row(user))
        lists = []
        for run in (self.served.run, *others):
            (found,) = run.top(np.array([user]), k, mask="train").each()
            judged = [
                schemas.JudgedItem(
                    item=data.items.id(item), name=data.items.name(item), score=score, hit=item in held_out
                )
                for item, score in zip(*found, strict=True)
            ]
            lists.append(schemas.RunList(name=name_of(run), model=run.record.model, items=judged))
        return schemas.SideBySide(
            user=data.users.id(user), name=data.users.name(user), held_out=len(held_out), runs=lists
        )


def name_of(run: Recommender) -> str:
    return run.directory.path.resolve().name
