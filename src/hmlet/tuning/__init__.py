"""Search for a recipe: the space, one trial of it, and the queues that trials come from."""

from hmlet.tuning.queue import LocalQueue, Queue
from hmlet.tuning.search import Tuning, tune
from hmlet.tuning.space import Point, Range, Space, draw, load_space
from hmlet.tuning.trial import Objective, TrialRecord, best_trial

__all__ = [
    "LocalQueue",
    "Objective",
    "Point",
    "Queue",
    "Range",
    "Space",
    "TrialRecord",
    "Tuning",
    "best_trial",
    "draw",
    "load_space",
    "tune",
]
