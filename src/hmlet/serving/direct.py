"""The way of the most frequent request: POST /v1/recommend without the layers of the framework."""

from __future__ import annotations

from fastapi import FastAPI
from pydantic import TypeAdapter, ValidationError

from hmlet.errors import HmletError
from hmlet.serving import schemas
from hmlet.serving.answering import recommended
from hmlet.serving.guard import Receive, Scope, Send
from hmlet.serving.replies import refused
from hmlet.serving.service import Service

PATH = "/v1/recommend"
REQUEST: TypeAdapter[schemas.Recommend] = TypeAdapter(schemas.Recommend)


class Direct:
    """An ASGI application that answers valid requests for recommendations itself, and leaves all others to FastAPI.

    FastAPI has the same endpoint: it documents it, and says what is wrong with a request that is not valid.
    """

    def __init__(self, app: FastAPI, service: Service) -> None:
        self.app = app
        self.service = service
        self.route = next(route for route in app.routes if getattr(route, "path", "") == PATH)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") != PATH or "json" not in scope:
            await self.app(scope, receive, send)
            return
        try:
            request = REQUEST.validate_python(scope["json"])
        except ValidationError:
            await self.app(scope, receive, send)
            return
        scope["route"] = self.route  # by which `observe` counts
        try:
            response = await recommended(self.service, request, scope)
        except HmletError as error:
            response = refused(error)
        await response(scope, receive, send)
