"""User errors. Each message names the value, the place and the fix; none of them is an internal error."""

from __future__ import annotations


class HmletError(Exception):
    """A user's mistake or a fault of the environment: what happened, and what to do about it.

    `message` says what is wrong and where; `hint` says what to try. The command line prints both on one
    line as `error: …` and exits with `exit_code`; the service puts them into its one error shape.
    """

    code = "error"
    exit_code = 2
    # Of several processes (ranks) each may meet an error, and one line about it is enough.
    of_one_rank = False  # this one alone meets it, and says so at once
    of_all_ranks = False  # all end by it together, and rank 0 speaks for them

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}: {self.hint}" if self.hint else self.message


class ConfigError(HmletError):
    """A recipe, an option or a combination of them that cannot be carried out."""

    code = "config"


class TooLittleTime(ConfigError):
    """A budget into which not even one epoch fits."""


class DataError(HmletError):
    """An input file or a prepared directory that cannot be used as it is."""

    code = "data"


class NothingHeldOut(DataError):
    """A part to evaluate on in which no user has an item."""


class RunError(HmletError):
    """A run directory that is missing, damaged, locked or made by something else."""

    code = "run"


class MissingExtra(HmletError):
    """A feature whose optional library is not installed."""

    code = "missing-extra"

    def __init__(self, feature: str, library: str, extra: str) -> None:
        super().__init__(f"{feature} needs {library}, which is not installed", f"pip install 'hmlet[{extra}]'")


class TrainingError(HmletError):
    """A training that had to stop: a non-finite loss, or memory that ran out. The last good checkpoint survives."""

    code = "training"


class OutOfMemory(TrainingError):
    """A device whose memory ran out while training."""

    of_one_rank = True


class LostRank(HmletError):
    """A process of a training on several that is gone. Its checkpoints are intact; start it again."""

    code = "lost-rank"
    exit_code = 75  # "try again" among the system's exit statuses
    of_one_rank = True


class UnknownId(HmletError):
    """A user or an item that the data set does not have."""

    code = "unknown-id"
