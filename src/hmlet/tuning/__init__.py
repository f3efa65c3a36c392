"""Search for a recipe: spaces, and trials that any number of processes work off."""

from hmlet.tuning.search import TrialRecord, Tuning, tune
from hmlet.tuning.space import Range, Space, load_space

__all__ = ["Range", "Space", "TrialRecord", "Tuning", "load_space", "tune"]
