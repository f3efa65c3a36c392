"""Where the time of a run goes: wall time by phase, and a step's time by part beside its floor.

A profile only looks. It waits for the device where a phase begins or ends, takes the time of some steps, and has
PyTorch's profiler record some more; the model moves exactly as without it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity

from hmlet.config import Recipe
from hmlet.training.floor import by_part, floor_seconds, measure, step_parts
from hmlet.training.steps import GradientSteps, Steps

WARM_UP = 10  # steps before anything is measured: libraries choose algorithms, kernels are compiled, a graph captured
MEASURED = 20  # steps whose wall time is taken, and as many that are recorded
OTHER, IDLE = "other", "between operations"

# By names of kernels, of PyTorch's operations and of autograd's nodes; the first line that fits one of them counts.
PARTS = {
    "optimizer": r"adam",
    "sampling": r"hmlet::sampling|triplets_kernel|searchsorted|distribution",
    "edge dropout": r"hmlet::edge dropout|thin_kernel",
    "product": r"product|segments_kernel|join_kernel|embedding_bag|\b_fork(backward)?$",
    "matrix products": r"gemm|(^|[: ])(add)?mm($|backward)|\b_dense|nvjet|cutlass|splitk|cublas|_head",
    "BatchNorm, dropout, activation": r"norm|dropout|elu|threshold|activation|^_(moments|stat|apply|gradient|totals)",
    "mixture": r"mix|softmax|choice|uniform|aten::log$",
    "readout and loss": r"rows|index|gather|scatter|softplus|bpr|penalty|margins|means|finish",
    "sums of gradients": r"accumulate|aten::add|functor_add",
}
_PATTERNS = {part: re.compile(pattern, re.IGNORECASE) for part, pattern in PARTS.items()}


class Unwatched:
    """What stands for a profile where none is made."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()

    def steps(self, steps: Steps) -> Steps:
        return steps


UNWATCHED = Unwatched()


class Profile:
    """The clock of one run, and what its steps were seen to do."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}
        self.watched: WatchedSteps | None = None
        self._open: list[str] = []
        self._since = perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time in here counts for this phase, and not for the one around it."""
        self._charge()
        self._open.append(name)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def _charge(self) -> None:
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
        now = perf_counter()
        if self._open:
            self.phases[self._open[-1]] = self.phases.get(self._open[-1], 0.0) + now - self._since
        self._since = now

    def steps(self, steps: Steps) -> Steps:
        """The same steps, some of them recorded. Steps that follow no gradient have no parts to tell apart."""
        if not isinstance(steps, GradientSteps):
            return steps
        self.watched = WatchedSteps(steps, self.phase)
        return self.watched

    def as_json(self) -> dict[str, Any]:
        """What profile.json holds. Measures the device's rates, so it is asked for once, when the training is over."""
        found: dict[str, Any] = {"seconds": sum(self.phases.values()), "phases": dict(self.phases)}
        return found if self.watched is None else found | {"step": self.watched.as_json()}


class WatchedSteps:
    """Gradient steps of which some are timed and then some recorded, all of the latter in one epoch.

    Trained gates are waited for, because most steps have them. The steps that are recorded are slower than others, so
    they are a phase of their own.
    """

    def __init__(self, steps: GradientSteps, phase: Callable[[str], AbstractContextManager[None]]) -> None:
        self.steps, self.phase, self.per_epoch = steps, phase, steps.per_epoch
        self.first: int | None = None  # the first step that is timed
        self.epoch = 0  # of the last step that was timed
        self.timed: list[float] = []  # seconds of each
        self.recorded = 0
        self.parts: dict[str, float] = {}  # seconds of all recorded steps
        self._profiler: Any = None

    def take(self, step: int, epoch: int) -> None:
        if self.first is None:
            self.first, self.wanted = _window(self.steps.recipe, step, self.per_epoch)
        if step < self.first or self.parts:
            self.steps.take(step, epoch)
        elif len(self.timed) < self.wanted:
            self._take_time(step, epoch)
        else:
            with self.phase("profiling"):
                self._record(step, epoch)

    def _take_time(self, step: int, epoch: int) -> None:
        began = self._now()
        self.steps.take(step, epoch)
        self.timed.append(self._now() - began)
        self.epoch = epoch

    def _record(self, step: int, epoch: int) -> None:
        if self._profiler is None:
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it would write of itself to standard error
            os.environ.setdefault("TEARDOWN_CUPTI", "0")  # a captured graph goes on after the recording
            activity = ProfilerActivity.CUDA if self.steps.on_cuda else ProfilerActivity.CPU
            self._profiler = torch.profiler.profile(activities=[activity], acc_events=True)
            self._profiler.start()
        self.steps.take(step, epoch)
        self.recorded += 1
        if self.recorded == self.wanted:
            self._stop_recording()

    def _stop_recording(self) -> None:
        if self._profiler is not None:
            self._now()
            self._profiler.stop()
            self.parts = seconds_by_part(self._profiler.events(), self.steps.on_cuda)
            self._profiler = None

    def _now(self) -> float:
        if self.steps.on_cuda:
            torch.cuda.synchronize(self.steps.device)
        return perf_counter()

    def mean_loss(self) -> float:
        with self.phase("profiling"):
            self._stop_recording()  # what follows an epoch is no step
        return self.steps.mean_loss()

    def tensors(self) -> dict[str, Tensor]:
        return self.steps.tensors()

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.steps.load(tensors)

    def as_json(self) -> dict[str, Any]:
        """A step's median seconds, its parts, its floor, and the rates behind that."""
        recipe, operator, device = self.steps.recipe, self.steps.operator, self.steps.device
        storage = operator.storage or torch.float32
        frozen = self.epoch < recipe.model.warmup
        rates = measure(device, storage, recipe.model.embedding_size)
        parts = step_parts(recipe, operator.n_nodes, operator.n_edges, storage.itemsize, frozen)
        floor = by_part(parts, rates)
        least = floor_seconds(parts, rates)
        seconds = median(self.timed) if self.timed else None
        measured = {name: total / self.recorded for name, total in self.parts.items()}
        if seconds is not None and measured:
            measured[IDLE] = max(seconds - sum(measured.values()), 0.0)
        return {
            "timed": len(self.timed),
            "recorded": self.recorded,
            "steps_per_epoch": self.per_epoch,
            "gates_frozen": frozen,
            "seconds": seconds,
            "floor_seconds": least,
            "share_of_floor": least / seconds if seconds else None,
            "parts": [
                {"part": name, "seconds": measured.get(name), **floor.get(name, {"floor_seconds": 0.0})}
                for name in sorted({*measured, *floor}, key=lambda name: -measured.get(name, 0.0))
            ],
            "rates": rates.as_json(),
        }


def _window(recipe: Recipe, step: int, per_epoch: int) -> tuple[int, int]:
    """The first step to time in a run that begins at `step`, and how many are timed and then recorded."""
    epochs = recipe.train.epochs
    rest = recipe.model.warmup if recipe.model.warmup < epochs else 0
    begin, end = max(step, rest * per_epoch), epochs * per_epoch
    first = begin + min(WARM_UP, (end - begin) // 2)
    return first, min(MEASURED, (end - first) // 2)


def seconds_by_part(events: Iterable[Any], on_cuda: bool) -> dict[str, float]:
    """Each part's seconds: of kernels on CUDA, of the time inside operations (less that of those they call) on CPU.

    A part counts its forward and its backward work together.
    """
    found: dict[str, float] = {}
    for event in events:
        on_device = event.device_type.name == "CUDA"
        if on_device != on_cuda or (on_cuda and event.is_user_annotation):
            continue
        microseconds = event.time_range.elapsed_us() if on_cuda else event.self_cpu_time_total
        part = part_of(_names(event))
        found[part] = found.get(part, 0.0) + microseconds * 1e-6
    return found


def _names(event: Any) -> Iterator[str]:
    """An event's name, and those of the events that it happened in."""
    while event is not None:
        yield event.name
        event = event.cpu_parent


def part_of(names: Iterable[str]) -> str:
    """The part of a step that an event of these names belongs to."""
    known = list(names)
    return next((part for part, pattern in _PATTERNS.items() if any(map(pattern.search, known))), OTHER)
