"""What commands share: the app, options, one JSON object on standard output, tables, progress on standard error."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec, PathFinder
from io import TextIOWrapper
from pathlib import Path
from time import monotonic
from types import ModuleType
from typing import Annotated, Any

import typer

from hmlet.system.outside import is_utf8, read_text
from hmlet.system.progress import Advance, shown, speaks
from hmlet.system.spelling import in_shell
from hmlet.system.stopping import end_when_told
from hmlet.system.threads import wait_without_spinning
from hmlet.system.units import duration, readable

__all__ = [
    "Json",
    "MaybeModel",
    "Overrides",
    "Preset",
    "app",
    "do_without_pandas",
    "duration",
    "end_when_told",
    "given",
    "in_shell",
    "is_utf8",
    "note",
    "print_emphasised",
    "print_json",
    "print_line",
    "print_table",
    "progress",
    "read_text",
    "readable",
    "remarks",
    "report_error",
    "say_stopped",
    "settle_streams",
    "speaks",
    "wait_without_spinning",
]

app = typer.Typer(
    name="hmlet",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

LINE_SECONDS = 30.0
_NUMBER = re.compile(r"[-+]?[\d.,]+(e[-+]?\d+)?( ?(%|[kMGT]B))?")
_BOLD, _ITALIC = re.compile(r"\*\*([^*|]+)\*\*"), re.compile(r"\*([^*|]+)\*")
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")  # all but the end of a line

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object to standard output and nothing else.")]
# The recipe options of train, plan and tune.
_MODEL = typer.Option(help="The model's name; `hmlet models` lists them, the default first.")
_DATA = typer.Argument(metavar="DATA", help="A prepared directory, an interaction file or a named set.")
Data = Annotated[str, _DATA]
MaybeData = Annotated[str | None, _DATA]
MaybeModel = Annotated[str | None, _MODEL]
Preset = Annotated[str, typer.Option(help="Recipe to start from: hmlet, fitted, gpu, fast, best, paper or authors.")]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="section.key=value, repeatable.")]


def given(context: typer.Context, option: str) -> bool:
    """Whether an option was given on the command line instead of left at its default."""
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def settle_streams() -> None:
    """Let both streams accept any text: a closed stream discards it, and standard output escapes what its encoding
    lacks, as standard error already does."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - open to the end
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


class _WithoutPandas(PathFinder):
    """Python's own finder of modules, which does not find pandas."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if fullname == "pandas" else super().find_spec(fullname, path, target)


def do_without_pandas() -> None:
    """Let pandas count as not installed. No command needs it, and pyarrow would import it with its first array, for a
    fifth of a second."""
    sys.meta_path[:] = [_WithoutPandas if finder is PathFinder else finder for finder in sys.meta_path]


def report_error(message: str) -> None:
    """One line `error: …` on standard error."""
    _remark(f"error: {' '.join(message.split())}")


def say_stopped(number: int) -> None:
    """One line about the signal that ends the process, written without Python's streams, which may be in use."""
    if speaks():
        word = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}.get(signal.Signals(number), "stopped")
        with suppress(OSError):
            shown_cursor = b"\x1b[?25h\n" if os.isatty(2) else b""  # a progress bar hides it
            os.write(2, shown_cursor + f"error: {word}\n".encode())


def print_json(value: Any) -> None:
    """One JSON object; NaN is not JSON and raises instead of printing invalid output."""
    everything = "utf" in (sys.stdout.encoding or "utf").lower()  # other encodings get JSON escapes
    _write(json.dumps(value, ensure_ascii=not everything, allow_nan=False))


def print_line(text: str = "") -> None:
    """Text for people, without terminal control sequences."""
    _write(_harmless(text))


def _harmless(text: str) -> str:
    """The text with its control characters escaped; ids and names may contain some."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def _write(text: str) -> None:
    if speaks():
        sys.stdout.write(text + "\n")


def print_emphasised(text: str) -> None:
    """Markdown with **bold** and *italic* rendered by the terminal, columns still aligned."""
    shown = _harmless(text)
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        shown = _BOLD.sub("\x1b[1m\\1\x1b[0m    ", shown)
        shown = _ITALIC.sub("\x1b[3m\\1\x1b[0m  ", shown)
    _write(shown)


def note(text: str) -> None:
    """A remark on standard error, so that piped output stays clean."""
    if speaks():
        _remark(text)


@contextmanager
def remarks() -> Iterator[None]:
    """Show what the library logs as notes."""
    logger, handler = logging.getLogger("hmlet"), _Notes()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


class _Notes(logging.Handler):
    """A note for every record."""

    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())


def _remark(line: str) -> None:
    """A line on standard error; if it cannot be written, for example on a full disk, work continues."""
    with suppress(OSError):
        sys.stderr.write(line + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A plain aligned table: numbers to the right, words to the left."""
    from rich.cells import cell_len  # a character may take zero or two terminal columns

    cells = [[_harmless(str(cell)).replace("\n", r"\n") for cell in row] for row in rows]
    widths = [max([cell_len(name), *(cell_len(row[at]) for row in cells)]) for at, name in enumerate(columns)]
    numeric = [all(_NUMBER.fullmatch(row[at]) for row in cells) for at in range(len(columns))]
    for row in [list(columns), ["-" * width for width in widths], *cells]:
        spaces = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        padded = [
            space + cell if right else cell + space for cell, space, right in zip(row, spaces, numeric, strict=True)
        ]
        print_line("  ".join(padded).rstrip())


@contextmanager
def progress(title: str) -> Iterator[Advance]:
    """A progress bar on standard error if it is a terminal, otherwise an occasional line."""
    if not (sys.stderr.isatty() and speaks()):
        yield _lines(title)
        return
    with shown(title) as advance:
        yield advance


def _lines(title: str) -> Advance:
    """Progress for a log: at most one line every LINE_SECONDS, and none for short work."""
    said_at = monotonic()

    def advance(done: float, total: float | None = None, text: str = "") -> None:
        nonlocal said_at
        if monotonic() - said_at >= LINE_SECONDS:
            said_at = monotonic()
            note("  ".join(filter(None, [title, f"{done / total:.0%}" if total else "", text])))

    return advance
