"""How long work tells whoever waits how far it is. The command line shows it as a bar; nobody needs to listen."""

from __future__ import annotations

from typing import Protocol


class Advance(Protocol):
    """What long work calls: how far it is, of how much where that is known, and a few words on what it does."""

    def __call__(self, done: float, total: float | None = None, text: str = "") -> None: ...


def silent(done: float, total: float | None = None, text: str = "") -> None:
    """Progress that nobody watches."""
