"""Amounts of memory and time as people write them."""

from __future__ import annotations

import re

from hmlet.errors import ConfigError
from hmlet.system.spelling import option

SHOWN_UNITS = {"TB": 10**12, "GB": 10**9, "MB": 10**6, "kB": 10**3}
READ_UNITS = {"B": 1, "MB": 10**6, "GB": 10**9, "TB": 10**12, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def readable(count: int) -> str:
    """A number of bytes in the unit that suits it."""
    unit = next((unit for unit, size in SHOWN_UNITS.items() if count >= size), "kB")
    return f"{count / SHOWN_UNITS[unit]:,.1f} {unit}"


def parse_bytes(memory: str) -> int:
    """The number of bytes that a size such as 80GB means."""
    found = re.fullmatch(r"([\d.]+(?:e\d+)?)\s*([a-z]*)", memory.strip(), re.IGNORECASE)
    number, unit = found.groups() if found else ("", "")
    try:
        return int(float(number) * READ_UNITS[unit.upper()])
    except (ValueError, KeyError, OverflowError) as error:
        raise ConfigError(f"{option('memory')} {memory!r} is not a size", "write 80GB, say") from error


def duration(seconds: float) -> str:
    """A time in the unit that suits it: "42 seconds", "3.5 minutes", "12 minutes", "2.1 hours"."""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    value, unit = (seconds / 60, "minutes") if seconds < 90 * 60 else (seconds / 3600, "hours")
    return f"{value:.0f} {unit}" if value >= 9.5 else f"{value:.1f} {unit}"
