"""What all endpoints share: the run that is served, groups of small requests, threads for the rest, and reloads."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from torch import Tensor

from hmlet.errors import HmletError
from hmlet.recommend.answers import Recommendation
from hmlet.recommend.recommender import Recommender
from hmlet.serving.errors import Refusal, overloaded
from hmlet.serving.loaded_run import Indices, LoadedRun
from hmlet.serving.observe import LOGGER, Metrics
from hmlet.serving.settings import Settings
from hmlet.system.files import put

T = TypeVar("T")
GATHERING_SECONDS = 0.001  # that a group waits for as many requests as the one before had
RANKED_TOGETHER = 32  # requests in one group: beyond it the answers come later, and no sooner
RETRY_SECONDS = 30.0
ANNOUNCEMENT = "served-run"  # the file that says what all workers serve
LOOP_SECONDS = 0.005  # of ranking that may keep the event loop; a longer one goes to a thread, which costs 0.1 ms


class Question(NamedTuple):
    """What small requests have in common that are ranked together."""

    served: LoadedRun
    k: int


class Waiting(NamedTuple):
    """A small request, and where its lists go."""

    users: Indices
    answer: asyncio.Future[list[Recommendation]]


class Service:
    """The served run. Small requests for known users are ranked in the event loop, in groups, unless the run is large.

    Threads do the rest: one ranks for a large run, one answers other small requests, one computes large answers, and
    one loads runs, so that none of these delays another kind.
    """

    def __init__(
        self,
        path: Path,
        settings: Settings,
        metrics: Metrics,
        data: Path | str | None = None,
        shared: Path | None = None,
    ) -> None:
        self.settings, self.limits, self.metrics, self.shared = settings, settings.limits, metrics, shared
        self.path, self._data = path, data
        self._announced = self._announcement()
        self.current = self.load(path if self._announced is None else Path(self._announced.partition("\n")[0]))
        self._waiting: dict[Question, list[Waiting]] = {}
        self._last_group = 1  # requests that were ranked together last
        self._gathering: tuple[Question, asyncio.Future[None]] | None = None  # a group that waits for as many
        self._counts = {"requests": 0, "large requests": 0}  # that wait for their answer, or for its first block
        self._tasks: set[asyncio.Task[None]] = set()
        self._reload_waits = False

    def load(self, path: Path) -> LoadedRun:
        """A run that can recommend. The data of the first one may have moved; any other names its own."""
        run = Recommender.open(path, self._data if path.resolve() == self.path.resolve() else None)
        return LoadedRun(run, path, approximate=self.settings.approximate, shared=self.shared)

    def open(self) -> None:
        """Start the threads, and warm the run in the one that loads; `close` ends them."""
        self._threads = [ThreadPoolExecutor(1, name) for name in ("ranking", "single", "large", "loading")]
        self._ranking, self._single, self._large, self._loading = self._threads
        self._turn, self._reloading = asyncio.Lock(), asyncio.Lock()
        self._loading.submit(_warm, self.current)

    def close(self) -> None:
        for pool in self._threads:
            pool.shutdown(wait=False, cancel_futures=True)

    @property
    def in_flight(self) -> int:
        """Requests that wait for their answer."""
        return sum(self._counts.values())

    # -- small requests -------------------------------------------------------------------------------------------

    async def compute(self, work: Callable[[], T]) -> T:
        """What `work` returns, unless it takes too long; work that still waits for its turn is then dropped."""
        with self._slot("requests", self.limits.in_flight):
            return await self._in(self._single, work)

    async def recommend(
        self, served: LoadedRun, users: Indices, k: int, allowed_I: Tensor | None = None
    ) -> list[Recommendation]:
        """The top-k of a few users, ranked together with those who wait for lists of the same length.

        The ranking does not depend on who is ranked together, so an answer is the same in any company.
        """
        with self._slot("requests", self.limits.in_flight):
            if allowed_I is not None:
                return await self._ranked(served, users, k, allowed_I)
            question = Question(served, k)
            waiting = self._waiting.setdefault(question, [])
            answer: asyncio.Future[list[Recommendation]] = asyncio.get_running_loop().create_future()
            waiting.append(Waiting(users, answer))
            if len(waiting) == 1:
                self._keep(self._rank_group(question))
            elif self._gathering and self._gathering[0] == question and len(waiting) >= self._last_group:
                _settle(self._gathering[1])
            return await answer

    async def _rank_group(self, question: Question) -> None:
        """Answer those who ask the same. Whoever comes while a thread is ranking joins the next group."""
        async with self._turn:
            await self._gather(question)
            waiting = [each for each in self._waiting.pop(question) if not each.answer.done()]  # or the client has gone
            group, rest = waiting[:RANKED_TOGETHER], waiting[RANKED_TOGETHER:]
            if rest:
                self._waiting[question] = rest
                self._keep(self._rank_group(question))
            self._last_group = len(group)
            if group:
                try:
                    users = np.concatenate([each.users for each in group]) if len(group) > 1 else group[0].users
                    lists = iter(await self._ranked(question.served, users, question.k, None))
                    for each in group:
                        own = list(islice(lists, len(each.users)))
                        if not each.answer.done():
                            each.answer.set_result(own)
                except Exception as error:
                    for each in group:
                        if not each.answer.done():
                            each.answer.set_exception(error)

    async def _gather(self, question: Question) -> None:
        """Wait a moment, until as many ask as did last time: clients that were answered together come together.

        Whoever is alone does not wait.
        """
        if len(self._waiting[question]) < self._last_group:
            loop = asyncio.get_running_loop()
            enough = loop.create_future()
            clock = loop.call_later(GATHERING_SECONDS, _settle, enough)
            self._gathering = question, enough
            await enough
            clock.cancel()
            self._gathering = None

    async def _ranked(
        self, served: LoadedRun, users: Indices, k: int, allowed_I: Tensor | None
    ) -> list[Recommendation]:
        """The lists, made in the event loop if that is quick, or else in a thread."""
        if served.seconds(len(users), k) <= LOOP_SECONDS:
            return served.recommend(users, k, allowed_I)
        return await self._in(self._ranking, lambda: served.recommend(users, k, allowed_I))

    # -- large requests -------------------------------------------------------------------------------------------

    async def compute_large(self, work: Callable[[], T]) -> T:
        """What `work` returns, unless it takes too long or too many large requests wait."""
        with self._slot("large requests", self.limits.large):
            return await self._in(self._large, work)

    async def stream(self, blocks: Iterator[bytes]) -> AsyncIterator[bytes]:
        """Blocks of a large answer. The first is ready when this returns, so that an error still has its own status.

        Each later block is computed after the client has read the one before: nobody computes what nobody reads.
        """

        async def as_they_are_read(block: bytes) -> AsyncIterator[bytes]:
            while block:
                yield block
                yield (block := b"")  # sends nothing, but waits until the system has taken the block
                block = await self._in(self._large, lambda: next(blocks, b""))

        return as_they_are_read(await self.compute_large(lambda: next(blocks, b"")))

    @contextmanager
    def _slot(self, kind: str, most: int) -> Iterator[None]:
        """Count a request until its answer begins; one too many is refused."""
        if self._counts[kind] >= most:
            raise overloaded(f"{most} {kind} are being answered")
        self._counts[kind] += 1
        try:
            yield
        finally:
            self._counts[kind] -= 1

    async def _in(self, pool: ThreadPoolExecutor, work: Callable[[], T], seconds: float | None = None) -> T:
        seconds = seconds or self.limits.seconds
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.get_running_loop().run_in_executor(pool, work)
        except TimeoutError:
            fix, later = "ask for less at a time, or later", {"retry-after": "1"}
            raise Refusal(503, f"this took longer than {seconds:g} seconds", fix, "timeout", later) from None

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task; the loop itself would not keep it alive."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- another run ----------------------------------------------------------------------------------------------

    async def reload(self, path: Path) -> LoadedRun:
        """Serve another run. One that cannot be loaded is refused, and the old one stays.

        A second call is refused while the first is under way.
        """
        if self._reloading.locked():
            raise overloaded("another run is being loaded")
        async with self._reloading:
            served = await self._reload(path)
            if self.shared is not None:
                self._announced = f"{path}\n{time.time_ns()}"
                put(self.shared / ANNOUNCEMENT, self._announced.encode())
            return served

    async def follow(self) -> None:
        """Serve what another worker was told to serve; a run that cannot be loaded is tried again after a while."""
        pause, first_process = 1.0, os.getppid()
        while True:
            await asyncio.sleep(pause)
            if os.getppid() != first_process:  # which has been killed, and can say no more when to stop
                signal.raise_signal(signal.SIGTERM)
            async with self._reloading:
                announced, pause = self._announcement(), 1.0
                if announced is None or announced == self._announced:
                    continue
                try:
                    await self._reload(Path(announced.partition("\n")[0]))
                    self._announced = announced
                except Refusal:  # it is in the log
                    pause = RETRY_SECONDS

    def _announcement(self) -> str | None:
        """The run that another worker was told to serve, and when."""
        if self.shared is None or not (file := self.shared / ANNOUNCEMENT).exists():
            return None
        return file.read_text(encoding="utf-8")

    def reload_in_background(self) -> None:
        """Read what is served again, after any load under way; the outcome is in the log. SIGHUP calls this."""

        async def reload() -> None:
            async with self._reloading:
                self._reload_waits = False
                with suppress(Refusal):  # it is in the log
                    await self._reload(self.current.path)

        if not self._reload_waits:
            self._reload_waits = True
            self._keep(reload())

    async def _reload(self, path: Path) -> LoadedRun:
        def proved() -> LoadedRun:
            served = self.load(path)
            served.warm()
            return served

        try:
            served = await self._in(self._loading, proved, self.limits.load_seconds)
        except Exception as error:  # whatever a forged run can cause, and lack of memory: the old run goes on
            self.metrics.reloads.labels("refused").inc()
            LOGGER.error("reload refused", extra={"fields": {"run": str(path), "reason": str(error)}})
            known = error if isinstance(error, HmletError) else HmletError(f"{error!r:.200}", "train it again")
            raise Refusal(409, f"{known.message}; the old run is still served", known.hint, "run") from error
        before, self.current = self.current, served
        if before.name != served.name:
            before.remove_shared()
        self.metrics.reloads.labels("served").inc()
        LOGGER.info("reloaded", extra={"fields": {"run": served.name}})
        return served


def _warm(served: LoadedRun) -> None:
    try:
        served.warm()
    except Exception as error:  # whoever asks for it is told, and recommendations need none of it
        LOGGER.error("not warm", extra={"fields": {"run": served.name, "reason": str(error)}})


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
