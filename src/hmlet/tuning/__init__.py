"""Search for a recipe: the space, its trials, and the study that processes share."""

from hmlet.tuning.queue import LocalQueue
from hmlet.tuning.search import Tuning, tune
from hmlet.tuning.space import Point, Range, Space, draw, load_space
from hmlet.tuning.trial import Objective, TrialRecord, best_trial

__all__ = [
    "LocalQueue",
    "Objective",
    "Point",
    "Range",
    "Space",
    "TrialRecord",
    "Tuning",
    "best_trial",
    "draw",
    "load_space",
    "tune",
]
