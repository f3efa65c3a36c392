"""The service on one page: every endpoint, what it takes, what it answers, and how."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from msgspec import UNSET

from hmlet.recommend.answers import Recommendation, SimilarItems
from hmlet.recommend.explanation import Explanation
from hmlet.serving import schemas
from hmlet.serving.endpoints import Answer, Endpoint, listed
from hmlet.serving.errors import Refusal
from hmlet.serving.guard import Bodies
from hmlet.serving.loaded_run import LoadedRun
from hmlet.serving.service import Service

SMALL_LISTS = 8  # more of them in one call, or more recommendations, and it waits with the large ones
SMALL_PAIRS = 1000
BLOCK_PAIRS = 1000  # of a large call, computed and sent at a time: some 60 KB of JSON

Lists = list[Recommendation] | schemas.Recommendations
SimilarLists = list[SimilarItems] | schemas.SimilarAnswer


def endpoints(service: Service) -> list[Endpoint]:
    """All operations that /openapi.json describes; the most frequent comes first."""
    of, bodies = Routes(service), Bodies(service.limits)
    described = [
        Endpoint("POST", "/v1/recommend", of.recommend, schemas.Recommend, Lists, "answers", (404,), bodies),
        Endpoint("POST", "/v1/similar", of.similar, schemas.Similar, SimilarLists, "answers", (404,), bodies),
        Endpoint("POST", "/v1/explain", of.explain, schemas.Explain, Explanation, "answers", (404,), bodies),
        Endpoint("GET", "/v1/users", of.users, schemas.Page, list[schemas.User], "looking around"),
        Endpoint("GET", "/v1/items", of.items, schemas.Page, list[schemas.Item], "looking around"),
        Endpoint("GET", "/v1/history", of.history, schemas.OfUser, list[schemas.OwnItem], "looking around", (404,)),
        Endpoint("GET", "/v1/overview", of.overview, schemas.Sample, schemas.Overview, "looking around"),
        Endpoint("GET", "/v1/health", of.health, None, schemas.Health, "operation"),
        Endpoint("GET", "/v1/ready", of.ready, None, schemas.Health, "operation"),
        Endpoint("GET", "/v1/model", of.model, None, schemas.Served, "operation"),
        Endpoint("GET", "/metrics", of.metrics, None, None, "operation"),
    ]
    if service.settings.reload_root is not None:
        reload = Endpoint(
            "POST", "/v1/reload", of.reload, schemas.Reload, schemas.Served, "operation", (403, 409), bodies
        )
        described.append(reload)
    return described


class Routes:
    """What the endpoints do. Each takes the served run once, so that a swap never mixes two runs in one answer."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def recommend(self, request: schemas.Recommend) -> Answer:
        """The best items of users, or of a new user who has some items. Items that they have are left out.

        The answer is a list; with `"on_unknown": "skip"` it is an object with the list and the warnings.

        The answer to a call for more than 8 users or 1,000 recommendations is computed while it is read. If that fails
        on the way, the answer ends before its last chunk.
        """
        served, k, warnings = self.service.current, request.k, _warnings(request)
        if request.users is UNSET:
            return await self._for_new_user(served, request, warnings)
        users = np.array(served.known("user", request.users, warnings), np.int64)
        allowed_I = served.allowed(request.allow, request.deny, warnings)
        if not self._is_small(len(users), k, "users"):
            some = (users[block] for block in _blocks(len(users), k))
            blocks = (served.recommend(each, k, allowed_I) for each in some)
            return Answer(await self.service.stream(listed("recommendations", warnings, blocks)), served)
        lists = await self.service.recommend(served, users, k, allowed_I) if len(users) else []
        return Answer.of(lists if warnings is None else schemas.Recommendations(lists, list(warnings)), served)

    async def _for_new_user(
        self, served: LoadedRun, request: schemas.Recommend, warnings: dict[str, None] | None
    ) -> Answer:
        items = served.known("item", request.items, warnings)  # type: ignore[arg-type]
        allowed_I = served.allowed(request.allow, request.deny, warnings)
        own = [np.array(items, np.int64)]
        found = await self.service.compute(lambda: served.run.lists_of_new(own, request.k, allowed_I)) if items else []
        lists: list[Recommendation] = [{"items": each} for each in found]
        return Answer.of(lists if warnings is None else schemas.Recommendations(lists, list(warnings)), served)

    async def similar(self, request: schemas.Similar) -> Answer:
        """The items most like each of some items, by the cosine of their embeddings."""
        served, warnings, k = self.service.current, _warnings(request), request.k
        items = [served.data.items.id(at) for at in served.known("item", request.items, warnings)]
        if not self._is_small(len(items), k, "items"):
            blocks = (served.similar(items[block], k) for block in _blocks(len(items), k))
            return Answer(await self.service.stream(listed("similar", warnings, blocks)), served)
        lists = await self.service.compute(lambda: served.similar(items, k)) if items else []
        return Answer.of(lists if warnings is None else schemas.SimilarAnswer(lists, list(warnings)), served)

    async def explain(self, request: schemas.Explain) -> Answer:
        """Why a user gets an item: the score by layer, the gates' choices, and the items that carried it."""
        served = self.service.current
        served.known("user", [request.user])
        served.known("item", [request.item])
        return Answer.of(await self.service.compute(lambda: served.explain(request.user, request.item)), served)

    async def users(self, request: schemas.Page) -> Answer:
        """Users whose id or name contains the query; all without one. The header x-hmlet-next is the next offset."""
        return await self._page("user", request)

    async def items(self, request: schemas.Page) -> Answer:
        """Items whose id or name contains the query; all without one. The header x-hmlet-next is the next offset."""
        return await self._page("item", request)

    async def _page(self, side: str, request: schemas.Page) -> Answer:
        served, limit, offset = self.service.current, request.limit, request.offset
        found = await self.service.compute(lambda: served.search(side, request.query, limit + 1, offset))
        following = {"x-hmlet-next": str(offset + limit)} if len(found) > limit else {}
        return Answer.of(found[:limit], served, **following)

    async def history(self, request: schemas.OfUser) -> Answer:
        """The items that a user has, which recommendations leave out."""
        served = self.service.current
        (user,) = served.known("user", [request.user])
        return Answer.of(await self.service.compute(lambda: served.history(user, request.limit)), served)

    async def overview(self, request: schemas.Sample) -> Answer:
        """The gate map: every class's size, and a sample of nodes with their degree and choices."""
        served = self.service.current
        return await self.service.compute_large(lambda: Answer.of(served.overview(request.limit), served))

    async def health(self, _: None) -> Answer:
        """Whether the process answers."""
        return Answer.of(schemas.Health("ok"))

    async def ready(self, _: None) -> Answer:
        """Whether a run is loaded. The service loads one before it listens, so this says no more than health does."""
        return Answer.of(schemas.Health("ready"))

    async def model(self, _: None) -> Answer:
        """The run that is served."""
        return Answer.of(self.service.current.describe(), self.service.current)

    async def metrics(self, _: None) -> Answer:
        """Counters for Prometheus."""
        text = self.service.metrics.text(self.service)
        return Answer(text, kind="text/plain; version=0.0.4; charset=utf-8")

    async def reload(self, request: schemas.Reload) -> Answer:
        """Serve another run from now on. Requests under way are answered from the old one."""
        root: Path = self.service.settings.reload_root.resolve()  # type: ignore[union-attr]
        try:
            path = (root / request.run).resolve()
        except (OSError, ValueError, RuntimeError):  # a name that is too long, a null character, a loop of links
            path = None
        if path is None or not path.is_relative_to(root):
            raise Refusal(403, f"{request.run[:100]!r} is not below the reload root", "name a run inside it")
        served = await self.service.reload(path)
        return Answer.of(served.describe(), served)

    def _is_small(self, lists: int, k: int, what: str) -> bool:
        """Whether a call is answered at once. Refuses one that asks for too much."""
        most = self.service.limits.pairs
        if lists * k > most:
            raise Refusal(
                413,
                f"{lists} {what} × k = {k} is more than {most:,} recommendations",
                f"ask for fewer {what} at a time, or use `hmlet export`",
            )
        return lists <= SMALL_LISTS and lists * k <= SMALL_PAIRS


def _blocks(lists: int, k: int) -> Iterator[slice]:
    size = max(1, BLOCK_PAIRS // k)
    return (slice(start, start + size) for start in range(0, lists, size))


def _warnings(request: schemas.Recommend | schemas.Similar) -> dict[str, None] | None:
    """A place for warnings, each once, if unknown ids are to be skipped."""
    return {} if request.on_unknown == "skip" else None
