"""The files of the explorer and of the reference. They are read once, so that a request can name no other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files

from fastapi import FastAPI, Response

KINDS = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
ADDRESSES = {"index.html": "/", "docs.html": "/docs"}  # of the pages; every other file is at its name
STATIC = {
    ADDRESSES.get(file.name, f"/{file.name}"): file
    for folder in ("page", "reference")
    for file in (files("hmlet.serving") / folder).iterdir()
}


def add_static(app: FastAPI) -> None:
    for path, file in STATIC.items():
        kind = KINDS[file.name.rpartition(".")[2]]
        app.add_api_route(path, _constant(file.read_bytes(), kind), include_in_schema=False)


def _constant(content: bytes, kind: str) -> Callable[[], Awaitable[Response]]:
    async def page() -> Response:
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    return page
