"""How a process is asked to stop: by SIGINT (Ctrl-C) or SIGTERM.

Most commands have nothing to save, and `end_when_told` ends them at once. Training saves a checkpoint first: there a
StopRequest takes the signals, and the loop looks at it. The service has its own handlers.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from hmlet.system.files import remove_unfinished

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def end_when_told(say: Callable[[int], None]) -> None:
    """From now on, end the process when a signal asks for it; `say` receives its name.

    Everything that hmlet writes survives a kill, so only temporary files are removed. An exception instead of this
    could be swallowed inside a library, or end in a traceback. Python runs the handler in the main thread, once that
    returns from a library; the second thread is for the case that this takes long.
    """
    ending = threading.RLock()

    def end(number: int, frame: object) -> None:
        with ending:  # the other thread waits here for the end: it would miss the files that are removed
            remove_unfinished()
            say(number)
            os._exit(128 + number)

    def watch() -> None:
        while True:
            for number in os.read(told, 64):
                if signal.getsignal(number) is end:
                    end(number, None)

    told, telling = os.pipe()
    os.set_blocking(telling, False)
    signal.set_wakeup_fd(telling, warn_on_full_buffer=False)
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, end)
    threading.Thread(target=watch, name="signals", daemon=True).start()


class StopRequest:
    """Turns the first SIGINT or SIGTERM into a wish that the loop sees; the second one ends the process at once.

    A wish that comes too late for the loop is not lost: the block ends with the signal.
    """

    def __init__(self) -> None:
        self.made = False
        self._number: int | None = None

    def __enter__(self) -> StopRequest:
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: object) -> None:
        self.made, self._number = True, number
        for each in self._before:
            signal.signal(each, signal.SIG_DFL)

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._number is not None and kind is None:
            signal.raise_signal(self._number)
