"""The endpoints that recommend, find similar items and explain."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Body, FastAPI, Request, Response

from hmlet.data.interactions import Id
from hmlet.serving import schemas
from hmlet.serving.failures import Refusal
from hmlet.serving.guard import Scope
from hmlet.serving.replies import JsonObject, StreamedReply, listed, listed_content, listed_reply, origin, reply
from hmlet.serving.service import Service
from hmlet.serving.state import Filter, Lineup, Served

SMALL_LISTS = 8  # more of them in one call, or more recommendations, and it waits with the large ones
SMALL_PAIRS = 1000
BLOCK_PAIRS = 1000  # of a large call, computed and sent at a time: some 60 KB of JSON


@dataclass(frozen=True)
class Asked:
    """Whom a request asks for, with what the run of each one's arm knows of them."""

    lineup: Lineup
    users: list[tuple[schemas.Arm, Id]]
    k: int
    among: Mapping[schemas.Arm, Filter]
    warnings: list[str] | None  # of skipped ids; None if unknown ones are refused

    @classmethod
    def of(cls, lineup: Lineup, request: schemas.ForUsers) -> Asked:
        """Resolve a request. An unknown id is refused, or skipped with a warning if the request says so."""
        warnings = _warnings(request)
        users = []
        for user in request.users:
            arm = lineup.arm(user)
            users += [(arm, known) for known in lineup.runs[arm].known("user", [user], warnings)]
        asked = {arm for arm, _ in users} or {"a"}
        runs = {arm: served for arm, served in lineup.runs.items() if arm in asked}
        among = {arm: served.filter(request.allow, request.deny, warnings) for arm, served in runs.items()}
        return cls(lineup, users, request.k, among, warnings)

    @property
    def served(self) -> list[Served]:
        return [self.lineup.runs[arm] for arm in self.among]

    def of_arm(self, arm: schemas.Arm) -> list[Id]:
        return [user for each, user in self.users if each == arm]

    def count(self, service: Service) -> None:
        for arm in self.among:
            service.metrics.lists.labels(arm).inc(len(self.of_arm(arm)))

    def merged(self, answers: Mapping[schemas.Arm, Sequence[JsonObject]]) -> list[JsonObject]:
        """The lists of each arm's users in the order of the request, with the arm if there are two."""
        left = {arm: iter(lists) for arm, lists in answers.items()}
        if len(self.lineup.runs) == 1:
            return list(left["a"])
        return [{**next(left[arm]), "arm": arm} for arm, _ in self.users]

    def blocks(self) -> Iterator[list[JsonObject]]:
        """The lists of a few users at a time."""
        size = max(1, BLOCK_PAIRS // self.k)
        for start in range(0, len(self.users), size):
            some = Asked(self.lineup, self.users[start : start + size], self.k, self.among, None)
            yield some.merged(
                {arm: self.lineup.runs[arm].recommend(some.of_arm(arm), self.k, self.among[arm]) for arm in self.among}
            )


def add_answers(app: FastAPI, service: Service) -> None:
    @app.post("/v1/recommend", response_model=list[schemas.Recommendation] | schemas.Recommendations, tags=["answers"])
    async def recommend(request: Annotated[schemas.Recommend, Body()], connection: Request) -> Response:
        """The best items of users, or of a newcomer who has some items. Items that they have are left out.

        The answer is a list; with `"on_unknown": "skip"` it is an object with the list and the warnings.

        The answer to a call for more than 8 users or 1,000 recommendations is computed while it is read. If that fails
        on the way, the answer ends before its last chunk.
        """
        return await recommended(service, request, connection.scope)

    @app.post("/v1/similar", response_model=list[schemas.SimilarItems] | schemas.SimilarAnswer, tags=["answers"])
    async def similar(request: schemas.Similar, connection: Request) -> Response:
        """The items most like each of some items, by the cosine of their factors. The run of arm a answers."""
        served, warnings = service.current, _warnings(request)
        items, k = served.known("item", request.items, warnings), request.k
        if is_small(service, len(items), k, "items"):
            found = await service.compute(lambda: served.similar(items, k))
            return listed_reply("similar", found, warnings, served)
        size = max(1, BLOCK_PAIRS // k)
        blocks = (served.similar(items[start : start + size], k) for start in range(0, len(items), size))
        return await _streamed(service, connection.scope, listed("similar", warnings, blocks), served)

    @app.post("/v1/explain", tags=["answers"], response_model=schemas.ArmExplanation)
    async def explain(request: schemas.Explain) -> Response:
        """Why a user gets an item: the score by layer, the gates' choices, and the items that carried it."""
        lineup = service.lineup
        arm = lineup.arm(request.user)
        served = lineup.runs[arm]
        served.check_known("user", [request.user])
        served.check_known("item", [request.item])
        answer = await service.compute(lambda: served.explain(request.user, request.item))
        return reply({**answer, **_arm(lineup, arm)}, served)


async def recommended(service: Service, request: schemas.Recommend, scope: Scope) -> Response:
    """The answer to a request for recommendations."""
    lineup = service.lineup
    if isinstance(request, schemas.ForNewcomer):
        return await _for_newcomer(service, lineup, request)
    asked = Asked.of(lineup, request)
    if is_small(service, len(asked.users), asked.k, "users"):
        content = await few(service, asked)
        return Response(content, media_type="application/json", headers=origin(*asked.served))
    asked.count(service)
    blocks = listed("recommendations", asked.warnings, asked.blocks())
    return await _streamed(service, scope, blocks, *asked.served)


async def few(service: Service, asked: Asked) -> bytes:
    """The lists of a small call, as JSON."""
    asked.count(service)
    calls = [
        service.recommend(asked.lineup.runs[arm], asked.of_arm(arm), asked.k, among)
        for arm, among in asked.among.items()
    ]
    answers = [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)
    lists = asked.merged(dict(zip(asked.among, answers, strict=True)))
    return listed_content("recommendations", lists, asked.warnings)


async def _for_newcomer(service: Service, lineup: Lineup, request: schemas.ForNewcomer) -> Response:
    arm, warnings = lineup.arm(*request.items), _warnings(request)
    served = lineup.runs[arm]
    items = served.known("item", request.items, warnings)
    among = served.filter(request.allow, request.deny, warnings)
    found: list[JsonObject] = []
    if items:
        service.metrics.lists.labels(arm).inc()
        lists = await service.compute(lambda: served.recommend_new(items, request.k, among))
        found = [{**each, **_arm(lineup, arm)} for each in lists]
    return listed_reply("recommendations", found, warnings, served)


def _arm(lineup: Lineup, arm: schemas.Arm) -> dict[str, Any]:
    return {} if len(lineup.runs) == 1 else {"arm": arm}


def _warnings(request: schemas.Skipping) -> list[str] | None:
    """A list for warnings, if unknown ids are to be skipped."""
    return [] if request.on_unknown == "skip" else None


def is_small(service: Service, lists: int, k: int, what: str) -> bool:
    """Whether a call is answered at once. Refuses one that asks for too much."""
    most = service.settings.limits.pairs
    if lists * k > most:
        raise Refusal(
            413,
            f"{lists} {what} × k = {k} is more than {most:,} recommendations",
            f"ask for fewer {what} at a time, or use `hmlet export`",
        )
    return lists <= SMALL_LISTS and lists * k <= SMALL_PAIRS


async def _streamed(service: Service, scope: Scope, blocks: Iterator[bytes], *served: Served) -> Response:
    scope["leave"]()
    return StreamedReply(await service.stream(blocks), *served)
