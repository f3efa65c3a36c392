"""How a process is asked to stop: by a signal, which long work looks for where it can save itself."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class StopRequest:
    """Turns the first SIGINT or SIGTERM into a wish that the loop sees; the second one ends the process at once."""

    def __init__(self) -> None:
        self.made = False

    def __enter__(self) -> StopRequest:
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.made = True
        for each in self._before:
            signal.signal(each, signal.SIG_DFL)

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
