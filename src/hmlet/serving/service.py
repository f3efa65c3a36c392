"""What all endpoints share: the run that is served, the threads that compute, the counters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hmlet.data.interactions import Id
from hmlet.errors import HmletError
from hmlet.recommend.answers import Recommendation
from hmlet.serving.failures import Refusal, overloaded
from hmlet.serving.observe import LOGGER, Metrics
from hmlet.serving.schemas import Arm
from hmlet.serving.settings import Settings
from hmlet.serving.state import EVERYTHING, Filter, Lineup, Served, Shelf
from hmlet.system.spelling import option

T = TypeVar("T")
GATHERING_SECONDS = 0.001  # that a group waits for others: ranking two groups takes longer than ranking them as one
RANKED_TOGETHER = 32  # small requests in one group: beyond it the answers come later, and no sooner


class Question(NamedTuple):
    """What small requests have in common that are ranked together."""

    served: Served
    k: int
    among: Filter


class Service:
    """The threads: one ranks for known users, one answers other small requests, one large requests, and one loads.

    So a batch does not delay a page, and neither does someone's search.
    """

    def __init__(self, shelf: Shelf, settings: Settings) -> None:
        self.shelf = shelf
        self.settings = settings
        self.metrics = Metrics()
        self._waiting: dict[Question, list[tuple[Sequence[Id], asyncio.Future[list[Recommendation]]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_group = 0  # requests that were ranked together last
        self._awaited: tuple[Question, asyncio.Future[None]] | None = None  # a group that waits for as many
        self._large_calls = 0  # that wait for their answer, or for the first block of it
        self._rest_until = 0.0  # of the thread for large requests
        self._reload_waits = False
        self._announce()

    def open(self) -> None:
        """Start the threads, and warm the run in the one that loads; `close` ends them."""
        self._threads = [ThreadPoolExecutor(1, name) for name in ("ranker", "single", "large", "loader")]
        self._ranker, self._single, self._large, self._loader = self._threads
        self._turn, self._loading = asyncio.Lock(), asyncio.Lock()
        for served in self.shelf.runs.values():
            self._loader.submit(self._warm, served)

    @staticmethod
    def _warm(served: Served) -> None:
        try:
            served.warm()
        except Exception as error:  # whoever asks for it is told, and recommendations need none of it
            LOGGER.error("not warm", extra={"fields": {"run": served.name, "reason": str(error)}})

    @property
    def current(self) -> Served:
        """The run of arm a. An endpoint asks once, so that a swap never mixes two runs in one answer."""
        return self.shelf.current

    @property
    def lineup(self) -> Lineup:
        """The runs to answer users from. An endpoint asks once, like for `current`."""
        return self.shelf.lineup

    async def compute(self, work: Callable[[], T], *, large: bool = False) -> T:
        """What `work` returns, unless it takes too long; work that still waits for its turn is then dropped."""
        loop = asyncio.get_running_loop()
        if not large:
            return await self._in_time(loop.run_in_executor(self._single, work), self.settings.limits.seconds)
        if self._large_calls >= self.settings.limits.large:
            raise overloaded(f"{self._large_calls} large requests are waiting", {"connection": "close"})
        self._large_calls += 1
        try:
            return await self._in_time(loop.run_in_executor(self._large, work), self.settings.limits.seconds)
        finally:
            self._large_calls -= 1

    async def stream(self, blocks: Iterator[bytes]) -> AsyncIterator[bytes]:
        """Blocks of a large answer. The first is ready when this returns, so that an error still has its own status.

        Each later block is computed after the client has read the one before: nobody computes what nobody reads.
        """

        async def as_they_are_read(block: bytes) -> AsyncIterator[bytes]:
            while block:
                yield block
                yield (block := b"")  # sends nothing, but waits until the system has taken the block
                block = await asyncio.get_running_loop().run_in_executor(self._large, self._next, blocks)

        return as_they_are_read(await self.compute(lambda: self._next(blocks), large=True))

    def _next(self, blocks: Iterator[bytes]) -> bytes:
        """The next block. Its thread then rests as long as it has worked: threads of one process hinder each other."""
        time.sleep(max(0.0, self._rest_until - time.monotonic()))
        began = time.monotonic()
        try:
            return next(blocks, b"")
        finally:
            ended = time.monotonic()
            self._rest_until = ended + (ended - began)

    async def _in_time(self, work: Awaitable[T], seconds: float) -> T:
        try:
            async with asyncio.timeout(seconds):
                return await work
        except TimeoutError:
            raise Refusal(
                503,
                f"this took longer than {seconds:g} seconds",
                "ask for less at a time, or later",
                "timeout",
                {"retry-after": "1"},
            ) from None

    async def recommend(
        self, served: Served, users: Sequence[Id], k: int, among: Filter = EVERYTHING
    ) -> list[Recommendation]:
        """The top-k of a few users, ranked together with those who wait for the same: a product serves many rows.

        The ranking does not depend on who is ranked together, so an answer is the same in any company.
        """
        question = Question(served, k, among)
        waiting = self._waiting.setdefault(question, [])
        answer: asyncio.Future[list[Recommendation]] = asyncio.get_running_loop().create_future()
        waiting.append((users, answer))
        if len(waiting) == 1:
            self._keep(self._rank(question))
        elif self._awaited and self._awaited[0] == question and len(waiting) >= self._last_group:
            _settle(self._awaited[1])
        return await self._in_time(answer, self.settings.limits.seconds)

    async def _rank(self, question: Question) -> None:
        """Answer those who ask the same. Who comes while the thread is busy joins the next group."""
        async with self._turn:
            await self._gather(question)
            waiting = self._waiting.pop(question)
            waiting = [each for each in waiting if not each[1].done()]  # others have waited too long
            group, rest = waiting[:RANKED_TOGETHER], waiting[RANKED_TOGETHER:]
            if rest:
                self._waiting[question] = rest
                self._keep(self._rank(question))
            if not group:
                return
            self._last_group = len(group)
            everyone = [user for users, _ in group for user in users]
            loop = asyncio.get_running_loop()
            outcome = await asyncio.gather(
                loop.run_in_executor(self._ranker, question.served.recommend, everyone, *question[1:]),
                return_exceptions=True,
            )
        ranked = outcome[0] if isinstance(outcome[0], BaseException) else iter(outcome[0])
        for users, answer in group:
            if isinstance(ranked, BaseException):
                if not answer.done():
                    answer.set_exception(ranked)
            else:
                mine = list(islice(ranked, len(users)))
                if not answer.done():
                    answer.set_result(mine)

    async def _gather(self, question: Question) -> None:
        """Wait a moment, until as many ask as did last time: clients that were answered together come together."""
        if len(self._waiting[question]) < self._last_group:
            loop = asyncio.get_running_loop()
            enough = loop.create_future()
            clock = loop.call_later(GATHERING_SECONDS, _settle, enough)
            self._awaited = question, enough
            await enough
            clock.cancel()
            self._awaited = None

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task; the loop itself would not keep it alive."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def reload(self, path: Path | None = None, arm: Arm = "a") -> Served:
        """Serve another run, or the same directory read again. One that cannot be loaded is refused: the old stays.

        A second call is refused while the first is under way. After a load that took too long, the next one begins when
        the thread is free.
        """
        if arm not in self.shelf.runs:
            raise Refusal(409, f"this service has no arm {arm}", f"start it with {option('ab')}")
        if self._loading.locked():
            raise overloaded("another run is being loaded")
        async with self._loading:
            return await self._reload(path, arm)

    async def _reload(self, path: Path | None, arm: Arm) -> Served:
        try:
            loading = asyncio.get_running_loop().run_in_executor(self._loader, self.shelf.load, path, arm)
            served = await self._in_time(loading, self.settings.limits.load_seconds)
        except Exception as error:  # whatever a forged run can cause, and lack of memory: the old run goes on
            self.metrics.reloads.labels("refused").inc()
            LOGGER.error("reload refused", extra={"fields": {"run": str(path), "reason": str(error)}})
            known = error if isinstance(error, HmletError) else HmletError(f"{error!r:.200}", "train it again")
            raise Refusal(409, f"{known.message}; the old run is still served", known.hint, "run") from error
        self.shelf.runs[arm] = served
        self.metrics.reloads.labels("served").inc()
        self._announce()
        LOGGER.info("reloaded", extra={"fields": {"run": served.name, "arm": arm}})
        return served

    def reload_in_background(self) -> None:
        """Read what is served again, after any load under way; the outcome is in the log. SIGHUP calls this."""

        async def reload() -> None:
            async with self._loading:
                self._reload_waits = False
                for arm in self.shelf.runs:
                    with suppress(Refusal):  # it is in the log
                        await self._reload(None, arm)

        if not self._reload_waits:
            self._reload_waits = True
            self._keep(reload())

    def _announce(self) -> None:
        self.metrics.run.clear()
        for arm, served in self.shelf.runs.items():
            self.metrics.run.labels(served.name, served.run.record.model, arm).set(1)

    def close(self) -> None:
        for pool in self._threads:
            pool.shutdown(wait=False, cancel_futures=True)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
