"""Where the time of a run goes: wall time by phase, and a step's time by part beside its floor.

A profile only looks. It waits for the device where a phase begins or ends, takes the time of some steps, and has
PyTorch's profiler record some more; the model moves exactly as without it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from statistics import median
from time import perf_counter
from typing import NotRequired, TypedDict

import torch
from torch import Tensor
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity

from hmlet.config import Recipe
from hmlet.graph.kernels.parts import PREFIX, Part
from hmlet.models.base import resting_epochs
from hmlet.training.floor import PartFloor, by_part, floor_seconds, measure, multiplied_type, step_parts
from hmlet.training.steps import GradientSteps, Steps

PROFILE = "profile.json"
WARM_UP = 10  # steps before anything is measured: libraries choose algorithms, kernels are compiled, a graph captured
MEASURED = 20  # steps whose wall time is taken, and as many that are recorded
SUMS: Part = "sums of gradients"
OTHER, IDLE = "other", "between operations"
NO_FLOOR: PartFloor = {"floor_seconds": 0.0}

BACKWARD = 1  # PyTorch's RecordScope of a node's own backward pass
# Autograd's event around a node's backward pass. Beside that pass, it adds up the gradients of several users.
ENGINE = "autograd::engine::evaluate_function"


class MeasuredPart(PartFloor):
    """A part of a step and its lower bound."""

    part: str
    seconds: float | None  # None if none was recorded


class MeasuredStep(TypedDict):
    """A step by part. `seconds` is the median of the timed steps; None if none was timed."""

    timed: int
    recorded: int
    steps_per_epoch: int
    gates_frozen: bool
    seconds: float | None
    floor_seconds: float
    share_of_floor: float | None
    parts: list[MeasuredPart]
    rates: dict[str, float]


class MeasuredRun(TypedDict):
    """The content of profile.json; a model that is solved takes no step."""

    seconds: float
    phases: dict[str, float]
    step: NotRequired[MeasuredStep]


class Unwatched:
    """The placeholder when nothing is profiled."""

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

    def as_json(self) -> MeasuredRun:
        """What profile.json holds. Measures the device's rates, so it is asked for once, when the training is over."""
        found: MeasuredRun = {"seconds": sum(self.phases.values()), "phases": dict(self.phases)}
        if self.watched is not None:
            found["step"] = self.watched.as_json()
        return found


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
        self._profiler: torch.profiler.profile | None = None

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
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.steps.on_cuda else [])]
            self.steps.step_eagerly(True)  # the kernels of a captured graph belong to no operation
            self._profiler = torch.profiler.profile(activities=activities, acc_events=True)
            self._profiler.start()
        self.steps.take(step, epoch)
        self.recorded += 1
        if self.recorded == self.wanted:
            self._stop_recording()

    def _stop_recording(self) -> None:
        if self._profiler is not None:
            self._now()
            self._profiler.stop()
            self.parts = seconds_by_part(self._profiler.events(), self.steps.on_cuda)  # type: ignore[no-untyped-call]
            self._profiler = None
            self.steps.step_eagerly(False)

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

    def as_json(self) -> MeasuredStep:
        """A step's median seconds, its parts, its floor, and the rates behind that."""
        recipe, model, operator = self.steps.recipe, self.steps.model, self.steps.operator
        storage = operator.storage or torch.float32
        frozen = self.epoch < resting_epochs(recipe.model)
        rates = measure(self.steps.device, multiplied_type(recipe, self.steps.device), recipe.model.columns)
        parts = step_parts(recipe, model.n_users, model.n_items, operator.n_edges, storage.itemsize, frozen)
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
                {"part": name, "seconds": measured.get(name), **floor.get(name, NO_FLOOR)}
                for name in sorted({*measured, *floor}, key=lambda name: -measured.get(name, 0.0))
            ],
            "rates": rates.as_json(),
        }


def _window(recipe: Recipe, step: int, per_epoch: int) -> tuple[int, int]:
    """The first step to time in a run that begins at `step`, and how many are timed and then recorded."""
    epochs = recipe.train.epochs
    rest = resting_epochs(recipe.model)
    rest = rest if rest < epochs else 0
    begin, end = max(step, rest * per_epoch), epochs * per_epoch
    first = begin + min(WARM_UP, (end - begin) // 2)
    return first, min(MEASURED, (end - first) // 2)


def seconds_by_part(events: Iterable[FunctionEvent], on_cuda: bool) -> dict[str, float]:
    """Each part's seconds: of kernels on CUDA, of the time inside operations (less that of those they call) on CPU.

    A part counts its forward and its backward work together.
    """
    on_host = [event for event in events if event.device_type.name == "CPU"]
    forward = forward_parts(on_host)
    found: dict[str, float] = {}
    for event in _launchers(on_host) if on_cuda else on_host:
        name = part_of(event, forward)
        times = [kernel.duration for kernel in event.kernels] if on_cuda else [event.self_cpu_time_total]
        found[name] = found.get(name, 0.0) + sum(times) * 1e-6
    return found


def _launchers(events: Iterable[FunctionEvent]) -> Iterable[FunctionEvent]:
    """The events that launched kernels, each kernel's once.

    PyTorch lists an operation's kernels also under an event of CUDA's own that happens to have the operation's number
    (pytorch/pytorch#124388). Such an event has no children, while an operation's launches are its children.
    """
    found: dict[int, FunctionEvent] = {}
    for event in events:
        if event.kernels and not event.is_user_annotation:  # annotations span what others launched
            known = found.setdefault(event.id, event)
            found[event.id] = known if known.cpu_children else event
    return found.values()


Forward = dict[tuple[int, int], str]
"""The part of each forward operation, by its thread and its sequence number; its backward node has that number too."""


def forward_parts(events: Iterable[FunctionEvent]) -> Forward:
    """The parts of forward operations. Of several with one number the last made the node, so that one counts."""
    found: Forward = {}
    for event in events:
        if event.sequence_nr >= 0 and not event.fwd_thread:
            found[event.thread, event.sequence_nr] = part_of(event, found)
    return found


def part_of(event: FunctionEvent, forward: Forward) -> str:
    """The part of a step that an event belongs to: that of the innermost scope around it (hmlet.graph.kernels.part).

    Backward work outside any scope belongs to the part of the forward operation that it differentiates.
    """
    outer: FunctionEvent | None = event
    while outer is not None:
        if outer.name.startswith(PREFIX):
            return outer.name.removeprefix(PREFIX)
        if outer.scope == BACKWARD and outer.fwd_thread:
            return forward.get((outer.fwd_thread, outer.sequence_nr), OTHER)
        if outer.name.startswith(ENGINE):
            return SUMS
        outer = outer.cpu_parent
    return OTHER
