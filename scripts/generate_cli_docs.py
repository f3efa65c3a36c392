"""Writes docs/cli.md, the reference of every command, from the commands themselves (`make docs`).

The width is fixed and colour is off, so that the text is the same in every terminal; tests/test_docs.py compares it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from hmlet.cli import app

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
WIDTH = 100
HEADER = """\
# Command-line reference

Written by `make docs` from the commands themselves; do not edit. Every command exits with 0 on success, with 2 and one
line `error: …` on standard error for a user error, and with 1 for an internal error. After SIGINT or SIGTERM the
status is 130 or 143, and 75 if a training lost another rank.
"""


def reference() -> str:
    """The whole reference in Markdown: one section per command, in the order of `--help`."""
    command = typer.main.get_command(app)
    sections = [f"## {path}\n\n```text\n{text}\n```\n" for path, text in help_texts(command, "hmlet")]
    return "\n".join([HEADER, *sections])


def help_texts(command: Any, name: str, parent: Any = None) -> Iterator[tuple[str, str]]:
    """The full name and the `--help` text of a command and of every visible command below it."""
    context = command.context_class(command, info_name=name, parent=parent, terminal_width=WIDTH, color=False)
    help_text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    yield context.command_path, help_text
    for child_name, child in getattr(command, "commands", {}).items():
        if not child.hidden:
            yield from help_texts(child, child_name, context)


if __name__ == "__main__":
    REFERENCE.write_text(reference(), encoding="utf-8")
