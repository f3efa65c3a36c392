"""The campaign: train what is missing, record the metrics, and delete the weights.

Any moment may be the last: a run that was cut short goes on from its checkpoint, one that has been recorded is never
trained again, and a file with everything that is known so far can be written after each run.
"""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from hmlet.analysis.study import analyse
from hmlet.data import Dataset
from hmlet.errors import ConfigError, MissingExtra, TrainingError
from hmlet.models import ItemWeights
from hmlet.ranking.evaluation import evaluate
from hmlet.ranking.scoring import Scored, factor_scorer, scored_by_weights
from hmlet.reproduction.plan import Choice, Planned, folder
from hmlet.reproduction.records import (
    RECORD_FILES,
    SCORE_FILES,
    TEST_K,
    VALID_FILE,
    WALL_FILE,
    Record,
    Records,
    pack,
    write_paired,
)
from hmlet.runs.directory import RunDirectory, keep_only
from hmlet.runs.locking import locked
from hmlet.runs.record import RECORD, Hardware
from hmlet.system.spelling import option
from hmlet.training.loop import choose_device, fit

EXACT_ON_CPU = 20_000  # nodes up to which exact betweenness takes seconds there
SAMPLED = "sampled:1000"
Also = Callable[[RunDirectory, Planned, Dataset, torch.device], None]


def nothing_else(run: RunDirectory, planned: Planned, data: Dataset, device: torch.device) -> None:
    """The paper's tables need no more files of a run."""


@dataclass(frozen=True)
class CampaignProgress:
    """The progress of a campaign: told at every epoch and at every end of a run."""

    run: Planned
    share: float  # of this run, 0 to 1; 1 says that it has been recorded
    done: int  # runs recorded, of all that are wanted
    wanted: int
    seconds_left: float | None  # for all of them, by what others took


@dataclass
class Outcome:
    """What a call did: runs it found done, runs it trained, and what it left, with the reason."""

    found: int = 0
    trained: list[Path] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)  # run -> why it cannot be trained here
    left: list[str] = field(default_factory=list)  # too little time was left

    def as_json(self) -> dict[str, object]:
        return {
            "found": self.found,
            "trained": [str(path) for path in self.trained],
            "skipped": self.skipped,
            "left": self.left,
        }


def plan_runs(choices: Sequence[Choice]) -> list[Planned]:
    """The runs of several data sets, the most valuable first: by value, then by seed, then by data set."""
    runs = [run for choice in choices for run in choice.runs()]
    return sorted(runs, key=lambda run: (run.cell.value, run.recipe.seed))


def run_campaign(
    runs: Sequence[Planned],
    data: Mapping[str, Dataset],
    out: Path,
    *,
    device: str = "auto",
    minutes: float | None = None,
    keep: bool = False,
    packed: Path | None = None,
    also: Also = nothing_else,
    listener: Callable[[CampaignProgress], None] = lambda progress: None,
) -> Outcome:
    """Train and record, in their order, the runs that `out` does not have yet.

    `minutes` starts no run that would not end within that time, judged by how long others took on this device; the
    first one there is always tried. `packed` is rewritten after each run with what this call has recorded. `also` may
    add files of RECORD_FILES to a finished run, before its weights go.
    """
    if minutes is not None and not minutes > 0:
        raise ConfigError(f"{option('minutes', minutes)} is not positive", f"use {option('minutes', 9)}, say")
    campaign = _Campaign(data, out, choose_device(device), keep, also, listener)
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    outcome = Outcome()
    missing = [run for run in runs if not campaign.done(run)]
    outcome.found = len(runs) - len(missing)
    for at, run in enumerate(missing):
        expected = campaign.expected(run)
        if deadline is not None and time.monotonic() + (expected or 0.0) > deadline:
            outcome.left = [f"{each.dataset}/{each.name}" for each in missing[at:]]
            break
        later = [campaign.expected(each) for each in missing[at + 1 :]]
        try:
            outcome.trained.append(campaign.train(run, outcome.found + len(outcome.trained), len(runs), later))
        except (MissingExtra, TrainingError) as error:  # no reason to leave the others undone
            outcome.skipped[f"{run.dataset}/{run.name}"] = str(error)
            continue
        if packed is not None:
            pack(outcome.trained, packed)
    return outcome


class _Campaign:
    """What the runs of one call share."""

    def __init__(
        self,
        data: Mapping[str, Dataset],
        out: Path,
        device: torch.device,
        keep: bool,
        also: Also,
        listener: Callable[[CampaignProgress], None],
    ) -> None:
        self.data, self.out, self.device, self.keep = data, out, device, keep
        self.also, self.listener = also, listener
        self.records = Records.read(out)
        self.hardware = Hardware.of(str(device)).device

    def done(self, run: Planned) -> bool:
        record = self.records.find(run.dataset, run.recipe, self.data[run.dataset].fingerprint)
        if record is None or not record.complete(run):
            return False
        if not self.keep and record.path == self._place(run):
            keep_only(record.path, RECORD_FILES)  # a kill between the last file and this leaves the weights
        return True

    def expected(self, run: Planned) -> float | None:
        """The seconds that a run will take."""
        return self.records.seconds(run.dataset, run.recipe, self.hardware)

    def _place(self, run: Planned) -> Path:
        return self.out / folder(run.dataset) / run.name

    def train(self, run: Planned, done: int, wanted: int, later: Sequence[float | None]) -> Path:
        """Train one run, or finish it, and record it; returns its directory. `later` is what the others will take."""
        place, began, expected = self._place(run), time.monotonic(), self.expected(run)

        def tell(share: float, finished: int = 0) -> None:
            spent = time.monotonic() - began
            this = spent / share if share > 0.05 else expected
            left = _total([this, *later])
            self.listener(CampaignProgress(run, share, done + finished, wanted, None if left is None else left - spent))

        tell(0.0)
        _clear(place)
        recipe = run.recipe.changed(["train.save_layers=false"])  # nothing here needs them, and they are large
        finished = fit(
            self.data[run.dataset],
            recipe,
            place,
            device=str(self.device),
            resume=True,
            listener=lambda event: tell(0.99 * event["epoch"] / event["epochs"]),
            keep_data=False,
        )
        self._record(finished, run, began)
        record = Record.read(place)
        assert record is not None
        self.records.add(record)
        tell(1.0, 1)
        if self.device.type == "cuda":
            gc.collect()  # a captured step holds its tensors in a cycle
            torch.cuda.empty_cache()
        return place

    def _record(self, run: RunDirectory, planned: Planned, began: float) -> None:
        """Write down all that the tables need, the file that makes it a record last, then drop the weights."""
        data = self.data[planned.dataset]
        if planned.analysed:
            exact = self.device.type == "cuda" or data.n_users + data.n_items <= EXACT_ON_CPU
            analyse([run], data, "exact" if exact else SAMPLED, device=self.device)
        self.also(run, planned, data, self.device)
        scored = _scored(run, data, self.device)
        plain = evaluate(scored, data, planned.part, "train", TEST_K)
        strict = evaluate(scored, data, planned.part, "train+valid", TEST_K) if planned.part == "test" else None
        with locked(run.path):
            if planned.tested:
                write_paired(run, plain)
            if strict is not None:
                run.write_json(SCORE_FILES["train+valid"], strict.as_json())
            trained = run.record.timings.training_seconds  # of all calls that took part
            run.write_json(WALL_FILE, {"wall_seconds": round(max(time.monotonic() - began, trained), 1)})
            run.write_json(VALID_FILE if strict is None else SCORE_FILES["train"], plain.as_json())
            run.write_record()
            if not self.keep:
                keep_only(run.path, RECORD_FILES)


def _scored(run: RunDirectory, data: Dataset, device: torch.device) -> Scored:
    """What ranks, on a device: factors of both sides, or histories and item-item weights."""
    weights = run.item_weights()
    if weights is None:
        users_UF, items_IF = run.factors()
        return users_UF.to(device), factor_scorer(items_IF.to(device), repeatedly=True)
    return scored_by_weights(ItemWeights(*(each.to(device) for each in weights)), data.csr("train"))


def _total(seconds: Sequence[float | None]) -> float | None:
    """The sum, with the mean for what is not known; None where nothing is."""
    some = [each for each in seconds if each is not None]
    return sum(some) / len(some) * len(seconds) if some else None


def _clear(place: Path) -> None:
    """Make room where a finished run has lost its weights before all that the tables need of it was written."""
    if (place / RECORD).is_file():
        run = RunDirectory.open(place)
        if run.finished and not run.has("model.safetensors"):
            shutil.rmtree(place)
