"""Progress reporting. Long work says how far it is; the command line shows that as a bar, and nobody has to listen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Advance(Protocol):
    """What long work calls: how much is done, of how much if that is known, and a few words on what it does."""

    def __call__(self, done: float, total: float | None = None, text: str = "") -> None: ...


class Progress(Protocol):
    """What shows progress: entered with a title such as "loading debian", it gives the work its Advance."""

    def __call__(self, title: str) -> AbstractContextManager[Advance]: ...


def silent(done: float, total: float | None = None, text: str = "") -> None:
    """Progress that nobody watches."""


@contextmanager
def hidden(title: str) -> Iterator[Advance]:
    """A Progress that shows nothing."""
    yield silent
