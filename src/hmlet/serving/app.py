"""The endpoints. Each takes the served run once, computes in a worker thread, and answers in JSON."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

from fastapi import Body, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic_core import ErrorDetails, to_json
from starlette.exceptions import HTTPException

from hmlet.errors import HmletError
from hmlet.recommend.answers import Recommendation
from hmlet.serving import schemas
from hmlet.serving.exploring import PAGE_FILES, add_explorer
from hmlet.serving.failures import BUG, Refusal, refusal, shape
from hmlet.serving.guard import App, Guard
from hmlet.serving.observe import Observe
from hmlet.serving.service import Service
from hmlet.serving.state import Served
from hmlet.version import VERSION

SHOWN_CHARACTERS = 60  # of a value that is wrong
SMALL_USERS = 8  # more of them in one call, or more recommendations, and it waits with the large ones
SMALL_PAIRS = 1000
BLOCK_PAIRS = 1000  # of a large call, computed and sent at a time: some 60 KB of JSON
PUBLIC = frozenset({*PAGE_FILES, "/v1/health", "/v1/ready"})
JsonObject = Mapping[str, object]
Responses = dict[int | str, dict[str, object]]  # what FastAPI documents by status
FAILURES: Responses = {
    status: {"model": schemas.Failure, "description": text}
    for status, text in {
        400: "A host, a header or a text that is not accepted",
        401: "No token, or another one",
        403: "From a page of another origin, or outside what may be loaded",
        404: "An id that the run does not have",
        408: "A request that came too slowly",
        413: "More than one request may hold",
        415: "A body that is not JSON",
        422: "A request that does not fit its description",
        503: "Too many requests at once, one that took too long, or a run whose files are damaged",
    }.items()
}
REFUSED: Responses = {
    409: {"model": schemas.Failure, "description": "A run that cannot be loaded; the old one is still served"}
}
SearchText = Annotated[str, Query(max_length=schemas.QUERY_LENGTH)]
Limit = Annotated[int, Query(ge=1, le=100)]


def create_app(service: Service) -> App:
    """The whole service as one ASGI application."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.open()
        explorer.open()
        yield
        explorer.close()
        service.close()

    app = FastAPI(
        title="hmlet",
        version=VERSION,
        description='Recommendations of a finished run. Every error is `{"error": {"code", "message", "hint"}}`.',
        docs_url=None,  # it would load scripts from the network
        redoc_url=None,
        lifespan=lifespan,
        responses=FAILURES,
    )
    app.router.route_class = _Parsed
    _add_failures(app)
    _add_probes(app, service)
    _add_answers(app, service)
    _add_looking(app, service)
    if service.settings.reload_root is not None:
        _add_reload(app, service, service.settings.reload_root.resolve())
    explorer = add_explorer(app, service)
    return Observe(Guard(app, service.settings, PUBLIC), service.metrics)


class _Parsed(APIRoute):
    """A route that takes the body as `guard` has parsed it; FastAPI would parse it again."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def parsed(request: Request) -> Response:
            if "json" in request.scope:
                request._json = request.scope["json"]
            return await answer(request)

        return parsed


def reply(value: BaseModel | JsonObject | Sequence[JsonObject], served: Served | None = None) -> Response:
    """A JSON answer that says which run it came from."""
    if isinstance(value, BaseModel):
        content = value.model_dump_json(by_alias=True, exclude_unset=True).encode()
    else:
        content = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    return Response(content, media_type="application/json", headers=_origin(served))


def _origin(served: Served | None) -> dict[str, str]:
    return {} if served is None else {"x-hmlet-run": served.name}


def _blocks(served: Served, request: schemas.ForUsers) -> Iterator[bytes]:
    """The recommendations of many users as JSON, a few users at a time."""
    users, before = max(1, BLOCK_PAIRS // request.k), b"["
    for start in range(0, len(request.users), users):
        after = b"" if start + users < len(request.users) else b"]"
        chosen = request.users[start : start + users]
        yield before + _encoded(served.recommend(chosen, request.k)) + after  # in no variable: it would stay
        before = b","


def _encoded(answer: list[Recommendation]) -> bytes:
    """Recommendations as JSON without the brackets of their list.

    Pydantic's encoder takes a fifth of the time of Python's, during which no other thread runs; it would let NaN pass.
    """
    if not isfinite(sum(item["score"] for each in answer for item in each["items"])):
        raise ValueError("a score is not finite")
    return to_json(answer)[1:-1]


def _add_failures(app: FastAPI) -> None:
    @app.exception_handler(HmletError)
    async def known(request: Request, error: HmletError) -> Response:
        known = refusal(error)
        return Response(shape(known), known.status, known.headers, "application/json")

    @app.exception_handler(HTTPException)
    async def routed(request: Request, error: HTTPException) -> Response:
        hint = "GET /openapi.json lists what there is"
        wrong = Refusal(error.status_code, str(error.detail), hint)
        return Response(shape(wrong), error.status_code, error.headers, "application/json")

    @app.exception_handler(Exception)
    async def unknown(request: Request, error: Exception) -> Response:
        return Response(shape(BUG), 500, media_type="application/json")  # the error goes on to `observe`, which logs it

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        wrong = Refusal(
            422,
            "; ".join(map(_complaint, error.errors()[:3])),
            "GET /openapi.json describes the request, with examples",
        )
        return Response(shape(wrong), 422, media_type="application/json")


def _complaint(error: ErrorDetails) -> str:
    """What Pydantic says about one value: where it is, what is wrong, and what was sent."""
    path = ".".join(str(part) for part in error["loc"] if not str(part).startswith("<"))[:100]
    if error["type"] == "missing":
        return f"{path}: {error['msg']}"
    sent = json.dumps(error["input"], ensure_ascii=False, default=str)
    return f"{path}: {error['msg']} (sent: {sent if len(sent) <= SHOWN_CHARACTERS else sent[:SHOWN_CHARACTERS] + '…'})"


def _add_probes(app: FastAPI, service: Service) -> None:
    @app.get("/v1/health", response_model=schemas.Health, tags=["operation"])
    async def health() -> Response:
        """Whether the process answers."""
        return reply({"status": "ok"})

    @app.get("/v1/ready", response_model=schemas.Health, tags=["operation"])
    async def ready() -> Response:
        """Whether a run is loaded. The service loads one before it listens, so this says no more than health does."""
        return reply({"status": "ready"}, service.current)

    @app.get("/v1/model", response_model=schemas.Served, tags=["operation"])
    async def model() -> Response:
        """The run that is served."""
        served = service.current
        return reply(served.describe(), served)

    @app.get("/metrics", tags=["operation"], response_class=Response)
    async def prometheus() -> Response:
        """Counters for Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_answers(app: FastAPI, service: Service) -> None:
    @app.post("/v1/recommend", response_model=list[schemas.Recommendation], tags=["answers"])
    async def recommend(request: Annotated[schemas.Recommend, Body()], connection: Request) -> Response:
        """The best items of users, or of a newcomer who has some items. Items that they have are left out.

        The answer to a call for more than 8 users or 1,000 recommendations is computed while it is read. If that fails
        on the way, the answer ends before its last chunk.
        """
        served = service.current
        if isinstance(request, schemas.ForNewcomer):
            served.check_known("item", request.items)
            answer = await service.compute(lambda: served.recommend_new(request.items, request.k))
            return reply(answer, served)
        served.check_known("user", request.users)
        limits = service.settings.limits
        if len(request.users) * request.k > limits.pairs:
            raise Refusal(
                413,
                f"{len(request.users)} users × k = {request.k} is more than {limits.pairs:,} recommendations",
                "ask for fewer users at a time, or use `hmlet export`",
            )
        if len(request.users) <= SMALL_USERS and len(request.users) * request.k <= SMALL_PAIRS:
            return reply(await service.recommend(served, request.users, request.k), served)
        connection.scope["leave"]()
        blocks = await service.stream(_blocks(served, request))
        return StreamingResponse(blocks, media_type="application/json", headers=_origin(served))

    @app.post("/v1/explain", tags=["answers"], response_model=schemas.Explanation)
    async def explain(request: schemas.Explain) -> Response:
        """Why a user gets an item: the score by layer, the gates' choices, and the items that carried it."""
        served = service.current
        served.check_known("user", [request.user])
        served.check_known("item", [request.item])
        return reply(await service.compute(lambda: served.explain(request.user, request.item)), served)


def _add_looking(app: FastAPI, service: Service) -> None:
    @app.get("/v1/users", response_model=list[schemas.User], tags=["looking around"])
    async def users(query: SearchText = "", limit: Limit = 20) -> Response:
        """Users whose id or name has the query in it."""
        served = service.current
        return reply(await service.compute(lambda: served.search("user", query, limit)), served)

    @app.get("/v1/items", response_model=list[schemas.Item], tags=["looking around"])
    async def items(query: SearchText = "", limit: Limit = 20) -> Response:
        """Items whose id or name has the query in it."""
        served = service.current
        return reply(await service.compute(lambda: served.search("item", query, limit)), served)

    @app.get("/v1/history", response_model=list[schemas.OwnItem], tags=["looking around"])
    async def history(
        user: Annotated[str, Query(max_length=schemas.ID_LENGTH)], limit: Annotated[int, Query(ge=1, le=1000)] = 200
    ) -> Response:
        """The items that a user has, which recommendations leave out."""
        served = service.current
        served.check_known("user", [user])
        return reply(await service.compute(lambda: served.history(user, limit)), served)

    @app.get("/v1/overview", response_model=schemas.Overview, tags=["looking around"])
    async def overview(connection: Request, limit: Annotated[int, Query(ge=1, le=10_000)] = 2000) -> Response:
        """The gate map: every class's size, and a sample of nodes with their degree and choices."""
        served = service.current
        connection.scope["leave"]()
        return await service.compute(lambda: reply(served.overview(limit), served), large=True)


def _add_reload(app: FastAPI, service: Service, root: Path) -> None:
    @app.post("/v1/reload", response_model=schemas.Served, tags=["operation"], responses=REFUSED)
    async def reload(request: schemas.Reload, connection: Request) -> Response:
        """Serve another run from now on. Requests under way are answered from the old one."""
        if "\0" in request.run or not (path := (root / request.run).resolve()).is_relative_to(root):
            raise Refusal(403, f"{request.run[:100]!r} is not below the reload root", "name a run inside it")
        connection.scope["leave"]()
        served = await service.reload(path)
        return reply(served.describe(), served)
