"""Search for a recipe: the space, its trials, and the study that processes share."""

from hmlet.tuning.search import Tuning, tune
from hmlet.tuning.space import Point, Range, Space, load_space
from hmlet.tuning.trial import Objective, TrialRecord, best_trial

__all__ = [
    "Objective",
    "Point",
    "Range",
    "Space",
    "TrialRecord",
    "Tuning",
    "best_trial",
    "load_space",
    "tune",
]
