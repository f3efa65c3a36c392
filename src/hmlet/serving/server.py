"""The process: load the run, listen, reload on SIGHUP, stop gracefully on SIGTERM and SIGINT."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch
import uvicorn

from hmlet.errors import ConfigError
from hmlet.serving.app import create_guard
from hmlet.serving.express import Express
from hmlet.serving.observe import JsonLines, LogWriter, Observe
from hmlet.serving.protocol import impatient
from hmlet.serving.service import Service
from hmlet.serving.settings import Settings
from hmlet.serving.state import Opener, Shelf
from hmlet.system.spelling import option

OPEN_FILES = 65_536


def serve(
    path: Path, opener: Opener, settings: Settings, listening: Callable[[str], None] = lambda address: None
) -> None:
    """Serve a run until the process is told to stop. Raises what is wrong with the run before it listens.

    `listening` hears the address once requests are answered there.
    """
    torch.set_num_threads(1)  # the cores go to requests, and not to the halves of one
    sys.setswitchinterval(0.0005)  # seconds: else the thread that ranks waits ten times longer for its turn
    gc.freeze()  # imported modules stay for good: a full collection that visits them stops every request for 0.1 s
    gc.set_threshold(700, 10, 1000)  # and full ones are rare: requests leave no cycles, and a crowd has many objects
    _allow_many_connections()
    log = LogWriter(sys.stderr.fileno(), JsonLines(settings.token))
    try:
        _log_to(log)
        share = 0.5 if settings.share is None else settings.share
        shelf = Shelf(opener, path, approximate=settings.approximate, other=settings.ab, share=share)
        service = Service(shelf, settings)
        service.metrics.log_dropped.set_function(lambda: log.dropped)
        asyncio.run(_run(_server(service, settings, listening), service))
    finally:
        log.close()


def _server(service: Service, settings: Settings, listening: Callable[[str], None]) -> _Server:
    guard = create_guard(service)
    config = uvicorn.Config(
        Observe(guard, service.metrics),
        host=settings.host,
        port=settings.port,
        http=impatient(settings.limits, service.metrics, Express(service, guard)),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=int(settings.limits.seconds),
    )
    return _Server(config, listening)


class _Server(uvicorn.Server):
    """uvicorn's server, which says where it listens: the port behind port 0 is not known before."""

    def __init__(self, config: uvicorn.Config, listening: Callable[[str], None]) -> None:
        super().__init__(config)
        self._listening = listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        host, port = self.config.host, self.servers[0].sockets[0].getsockname()[1]
        self._listening(f"http://{f'[{host}]' if ':' in host else host}:{port}/")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop gracefully, or at once when told twice. No signal is raised again after that: a good end is status 0."""
        self.force_exit = self.should_exit
        self.should_exit = True


async def _run(server: uvicorn.Server, service: Service) -> None:
    """Listen until a signal says stop; an address that is taken is the user's to solve, and no traceback's."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, service.reload_in_background)
    try:
        await server.serve()
    except SystemExit as end:
        where = f"{server.config.host}:{server.config.port}"
        raise ConfigError(f"cannot listen on {where}", f"choose another {option('host')} or {option('port')}") from end


def _allow_many_connections() -> None:
    """Raise the soft limit on open files: 1,024, as it often is, is fewer than a slow crowd's connections."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if most == resource.RLIM_INFINITY else min(OPEN_FILES, most)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _log_to(handler: logging.Handler) -> None:
    """Log our own structured lines and uvicorn's, and nothing else; not from where in the code, which takes time."""
    logging._srcfile = None  # as "Optimization" in Python's "Logging HOWTO" says
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    for name in ("hmlet.serving", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
