"""Several processes behind one address. They share the socket, the embeddings, the counters, and which run is served.

A directory holds what they share. Each process maps the copies of the embeddings in it, so memory has them once; a
reload writes there which run is served now, and the other processes follow.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, NamedTuple

from hmlet.errors import ConfigError, HmletError
from hmlet.serving.observe import LOGGER, SHARED_METRICS
from hmlet.serving.settings import Settings, listen

Work = Callable[[socket.socket, Path, Callable[[], None]], None]
STOP = (signal.SIGTERM, signal.SIGINT)
TURN_SECONDS = 0.2  # between looks at signals and at workers that have died


class Worker(NamedTuple):
    process: SpawnProcess
    news: Connection  # None once it answers requests, or the error that it cannot start with

    @classmethod
    def start(cls, work: Work, listening: socket.socket, shared: Path) -> Worker:
        here, there = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("spawn").Process(target=_run, args=(work, listening, shared, there))
        process.start()
        there.close()
        return cls(process, here)

    def require_start(self, received: set[int]) -> None:
        """Wait until it answers requests, or a signal says stop. Raises the error that it ends with instead."""
        while not self.news.poll(TURN_SECONDS):
            if received.intersection(STOP):
                return
        error = self.reason()
        if error is not None:
            raise error

    def reason(self) -> HmletError | None:
        """The error that it has ended with, if it said one."""
        try:
            error: HmletError | None = self.news.recv()
            return error
        except EOFError:
            return HmletError("a worker ended without a word", "look at the log above")


def _run(work: Work, listening: socket.socket, shared: Path, news: Connection) -> None:
    """What a worker's process does."""
    os.setpgrp()  # Ctrl-C reaches the first process alone, which says when to stop
    try:
        work(listening, shared, lambda: news.send(None))
    except HmletError as error:
        news.send(error)
        sys.exit(error.exit_code)


def supervise(work: Work, settings: Settings, listening: Callable[[str], None]) -> None:
    """Keep so many workers at work until a signal says stop. A worker that dies is replaced."""
    if sys.platform == "win32":
        raise ConfigError("several workers need Linux or macOS", "start several services behind a proxy")
    with listen(settings) as sock, _shared_directory() as shared, _signals() as received:
        workers: list[Worker] = []
        try:
            for _ in range(settings.workers):
                workers.append(Worker.start(work, sock, shared))
            for worker in workers:
                worker.require_start(received)
            if not received.intersection(STOP):
                listening(settings.address(sock.getsockname()[1]))
            while not received.intersection(STOP):
                if signal.SIGHUP in received:
                    received.discard(signal.SIGHUP)
                    _send(workers, signal.SIGHUP)
                died = wait([worker.process.sentinel for worker in workers], TURN_SECONDS)
                for at, worker in enumerate(workers):
                    if worker.process.sentinel in died:
                        fields = {"status": worker.process.exitcode, "reason": worker.reason()}
                        LOGGER.error("worker died", extra={"fields": fields})
                        time.sleep(1)  # one that dies at once does not keep a core busy
                        workers[at] = Worker.start(work, sock, shared)
        finally:
            _send(workers, signal.SIGTERM)
            for worker in workers:
                worker.process.join(2 * settings.limits.seconds)
                worker.process.kill()


def _send(workers: Sequence[Worker], number: signal.Signals) -> None:
    for worker in workers:
        if worker.process.is_alive() and worker.process.pid is not None:
            os.kill(worker.process.pid, number)


@contextmanager
def _shared_directory() -> Iterator[Path]:
    """A directory for the workers, in which they also add up their counters."""
    with tempfile.TemporaryDirectory(prefix="hmlet-serve-") as directory:
        before = os.environ.get(SHARED_METRICS)
        os.environ[SHARED_METRICS] = directory
        try:
            yield Path(directory)
        finally:
            os.environ.pop(SHARED_METRICS)
            if before is not None:
                os.environ[SHARED_METRICS] = before


@contextmanager
def _signals() -> Iterator[set[int]]:
    """The signals that came meanwhile."""
    received: set[int] = set()

    def note(number: int, _: Any) -> None:
        received.add(number)

    before = {each: signal.signal(each, note) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
