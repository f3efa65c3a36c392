"""Every command as a Python function, and a finished run with what one asks of it.

A function takes what its command takes. Data is a data set, a prepared directory or a named set; a run is a `Run` or
its directory. Nothing here prints. Remarks go to the logger "hmlet", and `progress` reports on long calls.
"""

from hmlet.api.runs import Run, analyze, compare, evaluate, export, report, serve
from hmlet.api.training import finish, fit, plan, requested, resolve, tune
from hmlet.api.upkeep import package, pull, push, refit, update
from hmlet.config import SettingsRequest
from hmlet.models import DEFAULT
from hmlet.training.environment import environment
from hmlet.training.profiling import MeasuredRun
from hmlet.tuning.study import Pruning, Sampler

__all__ = [
    "DEFAULT",
    "MeasuredRun",
    "Pruning",
    "Run",
    "Sampler",
    "SettingsRequest",
    "analyze",
    "compare",
    "environment",
    "evaluate",
    "export",
    "finish",
    "fit",
    "package",
    "plan",
    "pull",
    "push",
    "refit",
    "report",
    "requested",
    "resolve",
    "serve",
    "tune",
    "update",
]
