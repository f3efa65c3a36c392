"""Real processes that start at once: forked from one that has imported PyTorch and hmlet for all of them.

Importing these takes a process longer than anything that our tests want of it. Where starting `python` is itself what
is tested (the tutorial, torchrun, a bare machine), a test starts one.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection

WARM = get_context("forkserver")
WARM.set_forkserver_preload(
    [
        *("hmlet.cli", "hmlet.training.loop", "hmlet.data.catalog", "hmlet.serving.app", "hmlet.serving.server"),
        "torch._dynamo",  # the first training imports it (docs/log.md),
        "pandas",  # and pyarrow imports this one, where there is one
    ]
)


class Forked:
    """`python -c CODE ARGUMENTS` without the start: a process of its own, its standard streams, and how it ended.

    `variables` are added to its environment.
    """

    def __init__(self, code: str, *arguments: str, **variables: str) -> None:
        their_input, self._input = WARM.Pipe(duplex=False)
        self._output, their_output = WARM.Pipe(duplex=False)
        streams, environment = (their_input, their_output), {**os.environ, **variables}
        self._process = WARM.Process(target=_run, args=(code, arguments, environment, streams), daemon=True)
        self._process.start()
        for end in streams:
            end.close()
        self._written = os.fdopen(self._output.fileno(), closefd=False, encoding="utf-8")
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status, or minus the signal that ended it; None while it runs."""
        return self._process.exitcode

    def send(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        with suppress(ProcessLookupError):
            if self.status is None:
                os.kill(self.pid, number)

    def line(self) -> str:
        """The next line that it wrote, to standard output or standard error."""
        return self._written.readline()

    def wait(self, seconds: float = 100) -> str:
        """All further lines, when it has seen the end of its standard input and ended; too late, it is killed."""
        late = threading.Timer(seconds, self.send, [signal.SIGKILL])
        late.start()
        self._input.close()
        written = self._written.read()
        self._process.join()
        late.cancel()
        return written


def _run(code: str, arguments: tuple[str, ...], environment: dict[str, str], streams: tuple[Connection, ...]) -> None:
    """What the forked process does."""
    for number, stream in enumerate((*streams, streams[-1])):
        os.dup2(stream.fileno(), number)
    for stream in streams:
        stream.close()
    sys.stdin = os.fdopen(0, closefd=False)  # multiprocessing has put another one there
    sys.stdout = os.fdopen(1, "w", closefd=False)  # the one there may believe that it can seek
    sys.argv = ["-c", *arguments]
    os.environ.clear()
    os.environ.update(environment)
    exec(code, {"__name__": "__main__"})
