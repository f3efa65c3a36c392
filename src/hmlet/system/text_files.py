"""Text files that an option names: recipes, lists of ids, tokens. One place checks what kind of file it is."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from hmlet.errors import ConfigError
from hmlet.system.units import readable

SMALL = 1 << 20  # bytes: more than any recipe or token needs


def read_text(path: Path, content: str, most: int = SMALL) -> str:
    """The text of a regular file of at most `most` bytes, in UTF-8; `content` says in an error what it should hold.

    A pipe would block and a device may never end, so both are refused before anything is read.
    """
    hint = f"give a text file with {content}"
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise ConfigError(f"{path} is not a regular file", hint)
            found = file.read(most + 1)
        if len(found) > most:
            raise ConfigError(f"{path} is larger than {readable(most)}", hint)
        return found.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 (byte {error.start})", hint) from error
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise ConfigError(f"cannot read {path} ({getattr(error, 'strerror', None) or error})", hint) from error
