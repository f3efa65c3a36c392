"""The explorer's endpoints."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event

from hmlet.errors import ConfigError
from hmlet.recommend.recommender import Recommender
from hmlet.serving.endpoints import Answer, Endpoint
from hmlet.serving.errors import Refusal
from hmlet.serving.explorer import schemas
from hmlet.serving.explorer.view import View
from hmlet.serving.guard import Bodies
from hmlet.serving.service import Service

PATIENCE = 3.0  # seconds that a request waits for what is being computed


class Explorer:
    """The view of the run that is served, the runs to compare with, and a thread for slow work."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.others = [Recommender.open(path) for path in service.settings.compare]
        own = service.current.run.record.data
        for run in self.others:
            if run.record.data.fingerprint != own.fingerprint:
                raise ConfigError(
                    f"{run.directory.path} was trained on other data ({run.record.data.name}) than the served run",
                    f"compare with a run of {own.name}",
                )
            run.scored  # noqa: B018 (read now: what is wrong with a file shows before the service listens)
        self._view: View | None = None

    def endpoints(self) -> list[Endpoint]:
        """What the page asks. It is not in the description of the service: it may change with the page."""
        bodies = Bodies(self.service.limits)
        return [
            Endpoint("GET", "/v1/explore", self.about),
            Endpoint("GET", "/v1/explore/start", self.start),
            Endpoint("GET", "/v1/explore/map", self.map),
            Endpoint("GET", "/v1/explore/labels", self.labels),
            Endpoint("GET", "/v1/explore/user", self.user, schemas.OfNode),
            Endpoint("GET", "/v1/explore/item", self.item, schemas.OfNode),
            Endpoint("GET", "/v1/explore/compare", self.compare, schemas.OfUser),
            Endpoint("POST", "/v1/explore/what-if", self.what_if, schemas.WhatIf, bodies=bodies),
        ]

    def open(self) -> None:
        self._thread, self._stop = ThreadPoolExecutor(1, "explorer"), Event()
        self._view = None

    def close(self) -> None:
        self._stop.set()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def view(self) -> View:
        """The view of the run that is served now."""
        served = self.service.current
        if self._view is None or self._view.served is not served:
            self._view = View(served, self._thread.submit)
        return self._view

    async def about(self, _: None) -> Answer:
        """What the explorer can show. Whoever asks may look further, so the slow parts are begun."""
        view = self.view()
        answer = await self.service.compute(lambda: view.about(self._comparable(view)))
        self._start_of(view)
        if view.mapped:
            self._map_of(view)
        return Answer.of(answer, view.served)

    async def start(self, _: None) -> Answer:
        """Users worth a look."""
        view = self.view()
        return await self._prepared(self._start_of(view), "the choice of users", view)

    async def map(self, _: None) -> Answer:
        """The map of the embeddings."""
        view = self.view()
        return await self._prepared(self._map_of(view), "the map", view)

    async def labels(self, _: None) -> Answer:
        """The ids and names of the map's nodes."""
        view = self.view()
        return await self._prepared(view.prepared("labels", view.labels), "the list of names", view)

    async def user(self, request: schemas.OfNode) -> Answer:
        """A user: its popularity, what is like it, what it is joined to, and how it is reached."""
        return await self._node("user", request.id)

    async def item(self, request: schemas.OfNode) -> Answer:
        """An item: its popularity, what is like it, what it is joined to, and how it is reached."""
        return await self._node("item", request.id)

    async def _node(self, side: schemas.Side, id: str) -> Answer:
        view = self.view()
        view.served.known(side, [id])
        return Answer.of(await self.service.compute(lambda: view.node(side, id)), view.served)

    async def compare(self, request: schemas.OfUser) -> Answer:
        """The lists of all runs for one user, with the held-out items that they hit."""
        view = self.view()
        view.served.known("user", [request.user])
        others = self._comparable(view)
        return Answer.of(
            await self.service.compute(lambda: view.side_by_side(request.user, others, request.k)), view.served
        )

    async def what_if(self, request: schemas.WhatIf) -> Answer:
        """The list of a user or a new user after a change of their items, and how it has moved."""
        view = self.view()
        view.served.known("item", [*request.items, *request.add, *request.without])
        if request.user is not None:
            view.served.known("user", [request.user])
        return Answer.of(await self.service.compute(lambda: view.moves(request)), view.served)

    def _comparable(self, view: View) -> list[Recommender]:
        """The other runs, as far as they are of the same data: another run may have been swapped in."""
        fingerprint = view.served.run.record.data.fingerprint
        return [run for run in self.others if run.record.data.fingerprint == fingerprint]

    def _start_of(self, view: View) -> Future[bytes]:
        return view.prepared("start", view.start)

    def _map_of(self, view: View) -> Future[bytes]:
        if not view.mapped:
            raise Refusal(404, f"{view.served.run.record.model} has no embeddings to map", "serve another model")
        stop = self._stop
        return view.prepared("plane", lambda: view.plane(stop))

    async def _prepared(self, future: Future[bytes], what: str, view: View) -> Answer:
        """A prepared answer, or 202 if it is still being computed."""
        try:
            content = await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), PATIENCE)
        except TimeoutError:
            waiting = Answer.of(schemas.Preparing(preparing=what)).content
            return Answer(waiting, headers={"retry-after": "1"}, status=202)
        return Answer(content, view.served)
