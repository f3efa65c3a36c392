"""Freed memory is kept, so that the next block costs no page faults, and given back when that is asked for."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only GNU's C library can be asked")

# The page faults of a second block of 64 MB after a first one was freed, and the resident bytes that stay of it.
CODE = """
import resource
from pathlib import Path
from hmlet.system.allocation import give_back_freed_memory, keep_freed_memory
SIZE = 64 << 20
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = bytearray(SIZE)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
{first}
faults()
again = faults()
kept = resident()
give_back_freed_memory()
faults()
print(again, kept > SIZE, resident() > SIZE)
"""


def _run(first: str) -> tuple[int, bool, bool]:
    done = subprocess.run([sys.executable, "-c", CODE.format(first=first)], capture_output=True, text=True, check=True)
    again, kept, after = done.stdout.split()
    return int(again), kept == "True", after == "True"


def test_a_freed_block_is_used_again_without_page_faults_until_it_is_given_back() -> None:
    again, kept, after = _run("keep_freed_memory()")
    assert again < 1000  # a page has 4 KB at the least, and the block would need 16,384 of these
    assert kept
    assert not after


def test_without_it_a_freed_block_goes_back_at_once() -> None:
    assert _run("")[1:] == (False, False)
