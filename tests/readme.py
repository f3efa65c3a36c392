"""What README.md tells a reader to run."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"


def code_blocks(language: str) -> list[str]:
    """README's fenced blocks of one language."""
    text = README.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


# `make` stands for itself: make test cannot run make test.
SHELL = "\n".join(block for block in code_blocks("sh") if not block.startswith("make "))
