"""HMLET and the baselines of its paper, from an interaction file to recommendations.

Each command has a function here. The names are imported on first use, so that `import hmlet` costs nothing and
`hmlet --help` needs no torch. Type checkers see the imports below, which have to be those of `_HOMES`.
"""

from __future__ import annotations

from importlib import import_module

from hmlet.version import VERSION as __version__

TYPE_CHECKING = False  # type checkers take it for true; typing itself would be most of the time of `import hmlet`
if TYPE_CHECKING:
    from hmlet import callbacks as callbacks
    from hmlet.analysis.result import Analysis
    from hmlet.api import (
        Run,
        analyze,
        compare,
        evaluate,
        export,
        finish,
        fit,
        package,
        plan,
        pull,
        push,
        refit,
        report,
        resolve,
        serve,
        tune,
        update,
    )
    from hmlet.config import Recipe
    from hmlet.config.listing import ModelSummary, list_models
    from hmlet.data import Dataset
    from hmlet.errors import HmletError
    from hmlet.ranking.evaluation import Evaluation, Evaluations
    from hmlet.ranking.statistics import Comparison
    from hmlet.recommend.answers import Embeddings, Neighbourhoods, Neighbours, Recommendations, TopN
    from hmlet.reproduction import Reproduction, reproduce
    from hmlet.selection import FirstTry, Leaderboard, leaderboard, try_file
    from hmlet.training.capacity import Plan
    from hmlet.tuning import Tuning

_HOMES = {
    "Analysis": "hmlet.analysis.result",
    "Comparison": "hmlet.ranking.statistics",
    "Dataset": "hmlet.data",
    "Embeddings": "hmlet.recommend.answers",
    "Evaluation": "hmlet.ranking.evaluation",
    "Evaluations": "hmlet.ranking.evaluation",
    "FirstTry": "hmlet.selection",
    "HmletError": "hmlet.errors",
    "Leaderboard": "hmlet.selection",
    "ModelSummary": "hmlet.config.listing",
    "Neighbourhoods": "hmlet.recommend.answers",
    "Neighbours": "hmlet.recommend.answers",
    "Plan": "hmlet.training.capacity",
    "Recipe": "hmlet.config",
    "Recommendations": "hmlet.recommend.answers",
    "Reproduction": "hmlet.reproduction",
    "Run": "hmlet.api",
    "TopN": "hmlet.recommend.answers",
    "Tuning": "hmlet.tuning",
    "analyze": "hmlet.api",
    "compare": "hmlet.api",
    "evaluate": "hmlet.api",
    "export": "hmlet.api",
    "finish": "hmlet.api",
    "fit": "hmlet.api",
    "leaderboard": "hmlet.selection",
    "list_models": "hmlet.config.listing",
    "package": "hmlet.api",
    "plan": "hmlet.api",
    "pull": "hmlet.api",
    "push": "hmlet.api",
    "refit": "hmlet.api",
    "report": "hmlet.api",
    "reproduce": "hmlet.reproduction",
    "resolve": "hmlet.api",
    "serve": "hmlet.api",
    "try_file": "hmlet.selection",
    "tune": "hmlet.api",
    "update": "hmlet.api",
}

__all__ = [
    "Analysis",
    "Comparison",
    "Dataset",
    "Embeddings",
    "Evaluation",
    "Evaluations",
    "FirstTry",
    "HmletError",
    "Leaderboard",
    "ModelSummary",
    "Neighbourhoods",
    "Neighbours",
    "Plan",
    "Recipe",
    "Recommendations",
    "Reproduction",
    "Run",
    "TopN",
    "Tuning",
    "__version__",
    "analyze",
    "compare",
    "evaluate",
    "export",
    "finish",
    "fit",
    "leaderboard",
    "list_models",
    "package",
    "plan",
    "pull",
    "push",
    "refit",
    "report",
    "reproduce",
    "resolve",
    "serve",
    "try_file",
    "tune",
    "update",
]


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]


if not TYPE_CHECKING:  # a type checker would take it for every name that there is not

    def __getattr__(name: str) -> object:
        if name == "callbacks":
            return import_module("hmlet.callbacks")
        if name not in _HOMES:
            raise AttributeError(f"module 'hmlet' has no attribute {name!r}")
        import_module("hmlet.system.threads").wait_without_spinning()  # before torch is loaded
        return getattr(import_module(_HOMES[name]), name)
