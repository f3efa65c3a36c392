"""Small trained runs, and the service over them: in this process, or in one of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forked import Forked
from server import Server as _Server
from starlette.testclient import TestClient

from hmlet.api import Run, fit
from hmlet.config import resolve
from hmlet.data.catalog import load
from hmlet.serving.app import create_app
from hmlet.serving.observe import Metrics
from hmlet.serving.service import Service
from hmlet.serving.settings import Settings

GIMP = {"users": ["gimp"], "k": 3}
BODIES: list[Any] = [  # requests of every kind, good and bad
    GIMP,
    {"users": ["gimp", "inkscape"], "k": 2, "deny": ["libc6"]},
    {"users": ["gimp"] * 9, "k": 3},  # a large one, which is streamed
    {"users": ["gimp"], "allow": ["libc6", "no such item"], "on_unknown": "skip"},
    {"users": ["nobody"]},
    {"users": ["nobody"], "on_unknown": "skip"},
    {"users": ["gimp"] * 1000, "k": 1000},  # too large
    {"items": ["libc6"], "k": 3},
    {"items": ["no such item"]},
    {"users": ["gimp"], "items": ["libc6"]},
    {"users": ["gimp"], "k": 0},
    {"users": ["gimp"], "k": "3"},
    {"users": [True]},
    {"users": []},
    {"users": ["gimp"], "more": 1},
    {},
    [],
    None,
    "gimp",
]
SMALL = ["train.epochs=1", "model.embedding_size=8", "model.gate_hidden=[8]"]


def train(out: Path, seed: int = 1) -> Run:
    return fit(load("debian"), resolve("hmlet-end", "hmlet", None, SMALL, seed), out)


@contextmanager
def client_of(path: Path, settings: Settings) -> Iterator[TestClient]:
    service = Service(path, settings, Metrics())
    app: Any = create_app(service)
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        client.service = service  # type: ignore[attr-defined]
        yield client


# `hmlet serve` with other limits than those that it always has.
LIMITED = """\
import json, sys
from pathlib import Path
from hmlet.serving.server import serve
from hmlet.serving.settings import Limits, Settings
run, port, limits = sys.argv[1:]
serve(Path(run), Settings(port=int(port), limits=Limits(**json.loads(limits))))
"""


class Server(_Server):
    """The service with other limits, if some are given."""

    def __init__(self, *arguments: str, port: int | None = None, **limits: float) -> None:
        self.limits = limits
        super().__init__(*arguments, port=port)

    def start(self, *arguments: str) -> Forked:
        if not self.limits:
            return super().start(*arguments)
        return Forked(LIMITED, *arguments, str(self.port), json.dumps(self.limits))
