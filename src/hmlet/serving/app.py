"""The endpoints. Each takes the served run once, computes in a worker thread, and answers in JSON."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException

from hmlet.errors import HmletError
from hmlet.serving import schemas
from hmlet.serving.answering import add_answers
from hmlet.serving.direct import Direct
from hmlet.serving.exploring import add_explorer
from hmlet.serving.failures import BUG, Refusal, shape
from hmlet.serving.guard import App, Guard
from hmlet.serving.observe import Observe
from hmlet.serving.replies import refused, reply
from hmlet.serving.service import Service
from hmlet.serving.static import STATIC, add_static
from hmlet.version import VERSION

SHOWN_CHARACTERS = 60  # of a value that is wrong
PUBLIC = frozenset(STATIC)  # it says nothing about the run
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
Limit = Annotated[int, Query(ge=1, le=1000)]
Offset = Annotated[int, Query(ge=0, le=2**31)]


def create_app(service: Service) -> App:
    """The whole service as one ASGI application."""
    return Observe(create_guard(service), service.metrics)


def create_guard(service: Service) -> Guard:
    """The endpoints behind their door, without what counts and logs."""

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
        docs_url=None,  # FastAPI's page loads scripts from the network; ours is in reference/
        redoc_url=None,
        lifespan=lifespan,
        responses=FAILURES,
    )
    app.router.route_class = _Parsed
    _add_failures(app)
    _add_probes(app, service)
    add_answers(app, service)
    _add_looking(app, service)
    if service.settings.reload_root is not None:
        _add_reload(app, service, service.settings.reload_root.resolve())
    add_static(app)
    explorer = add_explorer(app, service)
    return Guard(Direct(app, service), service.settings, PUBLIC)


class _Parsed(APIRoute):
    """A route that takes the body as `guard` has parsed it; FastAPI would parse it again."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def parsed(request: Request) -> Response:
            if "json" in request.scope:
                request._json = request.scope["json"]
            return await answer(request)

        return parsed


def _add_failures(app: FastAPI) -> None:
    @app.exception_handler(HmletError)
    async def known(request: Request, error: HmletError) -> Response:
        return refused(error)

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
        return reply({"status": "ready"})

    @app.get("/v1/model", response_model=schemas.Served, tags=["operation"])
    async def model() -> Response:
        """The run that is served, or both if there are two."""
        lineup = service.lineup
        return reply(lineup.describe(), *lineup.runs.values())

    @app.get("/metrics", tags=["operation"], response_class=Response)
    async def prometheus() -> Response:
        """Counters for Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_looking(app: FastAPI, service: Service) -> None:
    async def page(side: str, query: str, limit: int, offset: int) -> Response:
        served = service.current
        found = await service.compute(lambda: served.search(side, query, limit + 1, offset))
        following = {"x-hmlet-next": str(offset + limit)} if len(found) > limit else {}
        return reply(found[:limit], served, headers=following)

    @app.get("/v1/users", response_model=list[schemas.User], tags=["looking around"])
    async def users(query: SearchText = "", limit: Limit = 20, offset: Offset = 0) -> Response:
        """Users whose id or name contains the query; all without one. The header x-hmlet-next is the next offset."""
        return await page("user", query, limit, offset)

    @app.get("/v1/items", response_model=list[schemas.Item], tags=["looking around"])
    async def items(query: SearchText = "", limit: Limit = 20, offset: Offset = 0) -> Response:
        """Items whose id or name contains the query; all without one. The header x-hmlet-next is the next offset."""
        return await page("item", query, limit, offset)

    @app.get("/v1/history", response_model=list[schemas.OwnItem], tags=["looking around"])
    async def history(
        user: Annotated[str, Query(max_length=schemas.ID_LENGTH)], limit: Annotated[int, Query(ge=1, le=1000)] = 200
    ) -> Response:
        """The items that a user has, which recommendations leave out."""
        lineup = service.lineup
        served = lineup.runs[lineup.arm(user)]
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
        served = await service.reload(path, request.arm)
        return reply(served.describe(), served)
