"""The process: load the run, listen, reload on SIGHUP, stop gracefully on SIGTERM and SIGINT."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType

import torch
import uvicorn

from hmlet.serving.app import create_app
from hmlet.serving.connections import Connection, sweep
from hmlet.serving.observe import Metrics, logging_to
from hmlet.serving.service import Service
from hmlet.serving.settings import Settings, listen
from hmlet.serving.workers import supervise

OPEN_FILES = 65_536


def serve(
    path: Path,
    settings: Settings,
    data: Path | str | None = None,
    listening: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve a run until the process is told to stop. Raises what is wrong with the run before it listens.

    `data` says where the run's data is now; `listening` hears the address once requests are answered there.
    """
    if settings.workers > 1:
        with logging_to(sys.stderr.fileno(), settings.token, Metrics().log_dropped):
            supervise(partial(_work, path, settings, data), settings, listening)
        return
    with listen(settings) as sock:
        _work(path, settings, data, sock, None, lambda: listening(settings.address(sock.getsockname()[1])))


def _work(
    path: Path,
    settings: Settings,
    data: Path | str | None,
    sock: socket.socket,
    shared: Path | None,
    ready: Callable[[], None],
) -> None:
    """Answer what comes to a socket, alone or beside other workers, which `shared` is a directory for."""
    torch.set_num_threads(1)  # the cores go to requests, and not to the halves of one
    sys.setswitchinterval(0.0005)  # seconds: else a thread that computes makes the event loop wait ten times longer
    _allow_many_connections()
    metrics = Metrics()
    with logging_to(sys.stderr.fileno(), settings.token, metrics.log_dropped):
        service = Service(path, settings, metrics, data, shared)
        server = _Server(_config(service), ready)
        gc.freeze()  # what is loaded stays: a full collection that visits it stops every request for 0.1 s
        asyncio.run(_run(server, service, sock))


def _config(service: Service) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(service),
        http=Connection,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=int(service.limits.seconds),
    )


class _Server(uvicorn.Server):
    """uvicorn's server, which says when requests are answered."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop gracefully, or at once when told twice. No signal is raised again after that: a good end is status 0."""
        self.force_exit = self.should_exit
        self.should_exit = True


async def _run(server: uvicorn.Server, service: Service, sock: socket.socket) -> None:
    """Listen until a signal says stop."""
    with suppress(AttributeError, NotImplementedError):  # a system without this signal
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, service.reload_in_background)
    waiting = [asyncio.create_task(sweep(server.server_state.connections, service.limits.seconds))]
    if service.shared is not None:
        waiting.append(asyncio.create_task(service.follow()))
    await server.serve([sock])
    for task in waiting:
        task.cancel()


def _allow_many_connections() -> None:
    """Raise the soft limit on open files: 1,024, as it often is, is fewer than a slow crowd's connections."""
    try:
        import resource
    except ImportError:  # a system without such limits
        return
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if most == resource.RLIM_INFINITY else min(OPEN_FILES, most)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
