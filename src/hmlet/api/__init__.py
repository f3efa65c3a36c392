"""Every command as a Python function, and a finished run with what one asks of it.

A function takes what its command takes. Data is a data set, a prepared directory or a named set; a run is a `Run` or
its directory. Nothing here prints. Remarks go to the logger "hmlet", and `progress` reports on long calls.
"""

from hmlet.api.runs import Run, analyze, compare, evaluate, export, report, serve
from hmlet.api.training import alternatives, finish, fit, longer_recipe, plan, recorded_recipe, resolve, tune
from hmlet.api.upkeep import package, pull, push, refit, update
from hmlet.models import DEFAULT
from hmlet.runs.record import RECORD
from hmlet.training.environment import environment
from hmlet.training.profiling import MeasuredRun
from hmlet.tuning.study import Pruning, Sampler

__all__ = [
    "DEFAULT",
    "RECORD",
    "MeasuredRun",
    "Pruning",
    "Run",
    "Sampler",
    "alternatives",
    "analyze",
    "compare",
    "environment",
    "evaluate",
    "export",
    "finish",
    "fit",
    "longer_recipe",
    "package",
    "plan",
    "pull",
    "push",
    "recorded_recipe",
    "refit",
    "report",
    "resolve",
    "serve",
    "tune",
    "update",
]
