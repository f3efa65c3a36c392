"""What all endpoints share: the run that is served, the threads that compute, the counters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from hmlet.errors import HmletError
from hmlet.serve.failures import Refusal
from hmlet.serve.observe import LOGGER, Metrics
from hmlet.serve.settings import Settings
from hmlet.serve.state import Served, Shelf

T = TypeVar("T")


class Service:
    """A thread for small requests and one for large, so that nobody's batch delays somebody's page; one to load."""

    def __init__(self, shelf: Shelf, settings: Settings) -> None:
        self.shelf = shelf
        self.settings = settings
        self.metrics = Metrics()
        self._announce(shelf.current)

    def open(self) -> None:
        """Start the threads; `close` ends them."""
        self._small, self._large, self._loader = (ThreadPoolExecutor(1, name) for name in ("small", "large", "loader"))

    @property
    def current(self) -> Served:
        """The run to answer from. An endpoint asks once, so that a swap never mixes two runs in one answer."""
        return self.shelf.current

    async def compute(self, work: Callable[[], T], *, large: bool = False) -> T:
        """What `work` returns, unless it takes too long; work that still waits for its turn is then dropped."""
        seconds = self.settings.limits.seconds
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.get_running_loop().run_in_executor(self._large if large else self._small, work)
        except TimeoutError:
            raise Refusal(
                503,
                f"this took longer than {seconds:g} seconds",
                "ask for less at a time, or later",
                "timeout",
                {"retry-after": "1"},
            ) from None

    async def reload(self, path: Path | None = None) -> Served:
        """Serve another run, or the same directory read again. One that cannot be loaded is refused: the old stays."""
        try:
            served = await asyncio.get_running_loop().run_in_executor(self._loader, self.shelf.reload, path)
        except (HmletError, OSError, KeyError, ValueError) as error:
            self.metrics.reloads.labels("refused").inc()
            LOGGER.error("reload refused", extra={"fields": {"run": str(path), "reason": str(error)}})
            known = error if isinstance(error, HmletError) else HmletError(repr(error), "train it again")
            raise Refusal(409, f"{known.message}; the old run is still served", known.hint, "run") from error
        self.metrics.reloads.labels("served").inc()
        self._announce(served)
        LOGGER.info("reloaded", extra={"fields": {"run": served.name}})
        return served

    def reload_in_background(self) -> None:
        """Read the served directory again; the outcome is in the log. SIGHUP calls this."""
        task = asyncio.get_running_loop().create_task(self.reload())
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # logged already

    def _announce(self, served: Served) -> None:
        self.metrics.run.clear()
        self.metrics.run.labels(served.name, served.run.record["model"]).set(1)

    def close(self) -> None:
        for pool in (self._small, self._large, self._loader):
            pool.shutdown(wait=False, cancel_futures=True)
