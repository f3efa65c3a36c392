"""The application: endpoints, the explorer and the pages behind a router, and the guard around it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from starlette.routing import Route, Router

from hmlet.serving.endpoints import Answer, Endpoint
from hmlet.serving.explorer.routes import Explorer
from hmlet.serving.guard import App, Guard
from hmlet.serving.openapi import description
from hmlet.serving.routes import endpoints
from hmlet.serving.service import Service

KINDS = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
ADDRESSES = {"index.html": "/", "docs.html": "/docs"}  # of the pages; every other file is at its name
PAGE_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


def create_app(service: Service) -> App:
    """The whole service as one ASGI application."""
    explorer = Explorer(service)

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        service.open()
        explorer.open()
        yield
        explorer.close()
        service.close()

    described = endpoints(service)
    document = Answer.of(description(described))
    pages = _pages()
    every = [*described, *explorer.endpoints(), _constant("/openapi.json", document), *pages]
    routes = [Route(each.path, each, methods=[each.method]) for each in every]
    router = Router(routes, redirect_slashes=False, lifespan=lifespan)
    # The files of the pages need no token: they are the same for every run.
    return Guard(router, service.settings, service.metrics, frozenset(page.path for page in pages))


def _pages() -> list[Endpoint]:
    """The files of the explorer and of the reference. They are read once, so that a request can name no other."""
    folders = files("hmlet.serving") / "explorer" / "page", files("hmlet.serving") / "reference"
    return [
        _constant(
            ADDRESSES.get(file.name, f"/{file.name}"),
            Answer(file.read_bytes(), headers=PAGE_HEADERS, kind=KINDS[file.name.rpartition(".")[2]]),
        )
        for folder in folders
        for file in folder.iterdir()
    ]


def _constant(path: str, answer: Answer) -> Endpoint:
    async def work(_: None) -> Answer:
        return answer

    return Endpoint("GET", path, work)
