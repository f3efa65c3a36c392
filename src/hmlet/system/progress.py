"""Progress reporting. Long work says how far it is; a bar shows that in a terminal or a notebook."""

from __future__ import annotations

import os
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


@contextmanager
def shown(title: str) -> Iterator[Advance]:
    """A Progress that shows a bar in a terminal (on standard error) or a notebook, and nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not (speaks() and (console.is_terminal or console.is_jupyter)):
        yield silent
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[text]}"),
        console=console,
    ) as bar:
        task = bar.add_task(title, total=None, text="")

        def advance(done: float, total: float | None = None, text: str = "") -> None:
            bar.update(task, completed=done, total=total, text=text)

        yield advance


def watching(progress: Progress | bool) -> Progress:
    """What the argument `progress` means: True shows bars, False nothing, and anything else is shown by itself."""
    if isinstance(progress, bool):
        return shown if progress else hidden
    return progress


def speaks() -> bool:
    """Whether this process may write for people: of those that torchrun starts for one command, only the first."""
    return "TORCHELASTIC_RUN_ID" not in os.environ or os.environ.get("RANK") == "0"
