"""fit(): one loop for every model. Occasional acts first, the step next, the count last.

What can be killed at any moment is the whole loop; what resume loads is LoopState and the tensors beside it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict, cast

import torch
from torch import Tensor

from hmlet.config import Recipe, differences
from hmlet.data import Dataset
from hmlet.errors import ConfigError, HmletError, OutOfMemory, RunError
from hmlet.graph import require_edges
from hmlet.losses import build_loss
from hmlet.runs.checkpoint import CHECKPOINT, load_checkpoint, save_checkpoint
from hmlet.runs.choices import GATES, gates_table, is_nonlinear
from hmlet.runs.directory import Epoch, RunDirectory, require_new
from hmlet.runs.locking import locked
from hmlet.runs.record import RECORD, RunRecord, Versions
from hmlet.system.ranks import ALONE, Ranks
from hmlet.system.stopping import StopRequest
from hmlet.system.units import duration
from hmlet.training.forecast import WARM_UP, Forecast, measure_pace, saving_seconds, shortened, within_budget
from hmlet.training.learner import Learner
from hmlet.training.planning import Sizes, memory_plan, require_memory
from hmlet.training.profiling import UNWATCHED, Profile, Unwatched
from hmlet.training.steps import GradientSteps, deterministic
from hmlet.version import VERSION

SELECTION = "ndcg"  # the validation metric, at k = 20, that chooses the model
FORETOLD_AFTER = 5.0  # seconds until the time of the whole run is told
RECONSIDERED = 60.0  # seconds between two looks at that time
CHANGED = 1.25  # by how much it has to change to be told again
LONG = 60.0  # seconds of training that are worth a rehearsal of what has not been timed yet
log = logging.getLogger(__name__)


class Best(TypedDict):
    """The best validation so far; epoch 0 if there was none."""

    epoch: int
    ndcg: float


class EpochEvent(Epoch):
    """What a listener is told at the end of an epoch: its row of metrics.jsonl, and the progress of the training."""

    epochs: int
    best: Best
    left: float  # seconds to the end, as far as that can be told; early stopping aside


Listener = Callable[[EpochEvent], None]


class StopTraining(Exception):
    """Raised by a listener to end a training early, as pruning does; the run stays resumable."""


class Interrupted(HmletError):
    """A training that was asked to stop and saved itself."""

    code = "interrupted"
    exit_code = 130
    of_all_ranks = True


@dataclass
class LoopState:
    """Where the loop stands: all of it that is not a tensor, and what resume loads."""

    step: int = 0
    best_epoch: int = 0
    best_value: float = -1.0
    stale: int = 0  # evaluations since the best one
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)


def choose_device(name: str, ranks: Ranks = ALONE) -> torch.device:
    """The device that a name means: "auto" takes CUDA where there is one. Every rank has a device of its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or not (number or "0").isdecimal():
        raise ConfigError(f"there is no device {name!r}", "use auto, cpu or cuda")
    if kind == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("there is no CUDA device", "use --device cpu")
    at, count = int(number or 0) if ranks.size == 1 else ranks.local, torch.cuda.device_count()
    if at < count:
        return torch.device("cuda", at)
    if ranks.size == 1:
        raise ConfigError(f"there is no device {name!r}", f"the last one is cuda:{count - 1}")
    raise ConfigError(
        f"there is no CUDA device for process {at} of this machine", f"use --nproc-per-node {count}, or --device cpu"
    )


def fit(
    data: Dataset,
    recipe: Recipe,
    out: Path | str,
    *,
    device: str = "auto",
    resume: bool = False,
    extend: bool = False,
    deadline: float | None = None,
    listener: Listener | None = None,
    ranks: Ranks = ALONE,
    profile: Profile | None = None,
) -> RunDirectory:
    """Train a recipe on a data set's training part and write the run directory.

    The validation part selects the model; the test part is never read. With `resume`, an unfinished run in `out`
    goes on from its last checkpoint, and a finished one is returned as it is. With `extend`, a run in `out` goes on
    with the larger number of epochs that the recipe says. `listener` is told of every epoch.
    With a `deadline` (of time.monotonic), a new run is trained for as many of the recipe's epochs as fit, on the whole
    schedule; the run's recipe says how many. A resumed run keeps that number and has no deadline.
    With several `ranks` (hmlet.system.ranks.joined), each calls this with the same arguments, and rank 0 alone writes.
    A `profile` sees where the time goes and is written to profile.json; the run is the same with and without it.
    """
    place = choose_device(device, ranks)
    if place.type == "cuda":
        torch.cuda.set_device(place)  # where Triton launches
    _require_splittable(recipe, ranks)
    if profile is not None and ranks.size > 1:
        raise ConfigError(f"a profile is of one process, and there are {ranks.size}", "profile without torchrun")
    if data.count("train") == 0:
        raise ConfigError(f"{data.name} has no training interactions", "check the split that prepared it")
    if not recipe.model.solved:
        build_loss(recipe.train.loss, recipe.loss).require(data.csr("train"), data.n_items)
    require_edges(data.count("train"))  # before memory is looked at: no change of the recipe would help
    require_memory(memory_plan(recipe, Sizes.of(data), place.type, ranks), place)
    path = Path(out)
    if deadline is not None and resume and (path / RECORD).is_file():
        recipe, deadline = _as_begun(path, recipe), None
    elif deadline is not None:
        require_new(path)
        recipe = _fitted_in(data, recipe, place, ranks, deadline)
    # Unlike GPUs draw unlike numbers from one seed, and ranks have to draw the same.
    kind = torch.cuda.get_device_name(place) if place.type == "cuda" else "cpu"
    ranks.require_same(data=data.fingerprint, recipe=recipe.to_toml(), version=VERSION, device=kind)
    with ExitStack() as held, deterministic(recipe.train.deterministic), StopRequest() as request:
        ranks.first(lambda: held.enter_context(locked(path)))  # its value is None
        record = ranks.first(lambda: _enter(path, recipe, data, place, resume, extend).record.as_json())
        run = RunDirectory(path, RunRecord.model_validate(record))
        if run.finished:
            if not extendable(recipe, run.record.epochs):
                ranks.first(lambda: run.remove(CHECKPOINT))  # a kill between the record and this leaves it
            return run
        watch = profile or UNWATCHED
        with watch.phase("graph and model"):
            trainer = Trainer(data, recipe, place, run, watch, ranks, deadline)
            trainer.restore()
        try:
            with watch.phase("training"):
                trainer.loop(listener or (lambda event: None), request)
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(
                f"{place} ran out of memory ({error})",
                "lower model.embedding_size, train.batch_size or model.layers; the last checkpoint is kept",
            ) from error
        with watch.phase("saving"):
            trainer.finish()
        if profile is not None:
            run.write_json("profile.json", profile.as_json())
            run.write_record()
        return run


def finish(data: Dataset, out: Path | str, *, device: str = "auto") -> RunDirectory:
    """Make a finished run of an interrupted one: its best model so far, or without a validation the last one."""
    place, path = choose_device(device), Path(out)
    with locked(path):
        run = RunDirectory.open(path)
        if run.finished:
            raise RunError(f"{path} is finished already", "use it as it is")
        if not run.has(CHECKPOINT):
            raise RunError(f"{path} has no checkpoint yet", "train it with `hmlet train … --resume`")
        recipe = run.recipe()
        with deterministic(recipe.train.deterministic):
            trainer = Trainer(data, recipe, place, run)
            trainer.restore()
            trained, epochs = len(trainer.state.history), recipe.train.epochs
            trainer.finish(f"ended by hmlet finish after {trained} of {epochs} epochs")
        return run


def extendable(recipe: Recipe, epochs: int) -> bool:
    """Whether a run that ended after so many epochs keeps its checkpoint, so that more epochs can follow.

    Those of a cosine would follow a step size of nearly nothing, and whoever stopped early gains nothing by more.
    """
    return recipe.train.schedule == "constant" and not recipe.model.solved and epochs == recipe.train.epochs


def _as_begun(path: Path, recipe: Recipe) -> Recipe:
    """The recipe that a run with a budget was begun with, if it is this one with fewer epochs."""
    own = RunDirectory.open(path).recipe()
    return own if own == shortened(recipe, min(own.train.epochs, recipe.train.epochs)) else recipe


def _fitted_in(data: Dataset, recipe: Recipe, device: torch.device, ranks: Ranks, deadline: float) -> Recipe:
    """The recipe with as many of its epochs as fit before the deadline."""
    with deterministic(recipe.train.deterministic):
        pace, per_epoch = measure_pace(data, recipe, device, ranks)
    left = deadline - time.monotonic()
    epochs = ranks.first(lambda: within_budget(recipe, pace, per_epoch, left).train.epochs)
    shorter = shortened(recipe, epochs)
    if ranks.rank == 0:
        takes = duration(pace.total(shorter, per_epoch))
        log.info("%d of %d epochs fit into the budget: about %s", epochs, recipe.train.epochs, takes)
    return shorter


def _require_splittable(recipe: Recipe, ranks: Ranks) -> None:
    """Refuse what several ranks cannot share."""
    if ranks.size > 1 and not recipe.model.splits:
        raise ConfigError(f"{recipe.model.name} is solved in one process", "start it without torchrun")
    ranks.require_columns(recipe.model.columns)


def _enter(path: Path, recipe: Recipe, data: Dataset, device: torch.device, resume: bool, extend: bool) -> RunDirectory:
    """The run directory to train in: a new one, or with `resume` the one that is there, if it is of the same making."""
    started = (path / RECORD).is_file()
    if not extend and not (resume and started):
        return RunDirectory.create(path, recipe, data, str(device))
    run = RunDirectory.open(path)
    before = run.record.data
    if before.fingerprint != data.fingerprint:
        raise RunError(
            f"{path} was trained on other data: {before.name} ({before.fingerprint[:12]}) there"
            f" and {data.name} ({data.fingerprint[:12]}) here",
            "resume with that data set, or choose another --out",
        )
    own = run.recipe()
    if extend:
        _extend(run, own, recipe)
    elif own != recipe:
        raise RunError(
            f"{path} has another recipe than the one given: {differences(own.flat(), recipe.flat())}",
            "leave --model, --preset, --config and --set out to go on with its own, or choose another --out",
        )
    if not run.finished:
        _require_same_versions(run)
    return run


def _extend(run: RunDirectory, own: Recipe, recipe: Recipe) -> None:
    """Let a run go on from its checkpoint with the larger number of epochs of a recipe."""
    epochs, more = own.train.epochs, recipe.train.epochs
    fresh = f"train a new run with --set train.epochs={max(more, epochs + 1)} and another --out"
    same = recipe.model_copy(update={"train": recipe.train.model_copy(update={"epochs": epochs})})
    if own != same:
        raise RunError(
            f"--extend changes the number of epochs alone: {differences(own.flat(), same.flat())}",
            "leave the other settings out, or choose another --out",
        )
    if more <= epochs:
        raise RunError(
            f"{run.path} has {epochs} epochs already", f"say how many, as in --set train.epochs={2 * epochs}"
        )
    if own.train.schedule != "constant":
        raise RunError(
            f"{run.path} cannot be extended: its step size falls along a cosine to nearly nothing in epoch {epochs}",
            fresh,
        )
    saved = load_checkpoint(run)
    if saved is None:
        raise RunError(
            f"{run.path} has no checkpoint: only an unfinished run, and one that trained all its epochs, keep theirs",
            fresh,
        )
    save_checkpoint(run, *saved, becomes=hashlib.sha256(recipe.to_toml().encode()).hexdigest())
    run.reopen(recipe)


def _require_same_versions(run: RunDirectory) -> None:
    """Refuse to go on with a run that other versions began: half of each would be the numbers of neither."""

    def told(recorded: Versions) -> str:
        # What follows a + says for which devices torch was built, and a run may move from one to another.
        return " and ".join(f"{name} {getattr(recorded, name).partition('+')[0]}" for name in ("hmlet", "torch"))

    begun, here = told(run.record.versions), told(Versions.here())
    if begun != here:
        raise RunError(
            f"{run.path} was begun with {begun}, and this is {here}",
            f"install {begun} to go on, or start anew with another --out",
        )


class Trainer(Learner):
    """A model on its way: what the loop moves, saves and restores."""

    def __init__(
        self,
        data: Dataset,
        recipe: Recipe,
        device: torch.device,
        run: RunDirectory,
        watch: Profile | Unwatched = UNWATCHED,
        ranks: Ranks = ALONE,
        deadline: float | None = None,
    ) -> None:
        super().__init__(data, recipe, device, watch, ranks)
        self.run, self.deadline = run, deadline
        self.state = LoopState()
        self.best: dict[str, Tensor] = {}
        self._stopped_by_time = False
        self._saved_at = time.monotonic()
        self._started_at = time.monotonic()

    # -- the loop -------------------------------------------------------------------------------------------------

    def loop(self, listener: Listener, request: StopRequest) -> None:
        """Train until the epochs are done or validation has stopped improving."""
        state, train = self.state, self.recipe.train
        total = train.epochs * self.steps.per_epoch
        self._foretell()
        self.model.train()
        while True:
            epoch, within = divmod(state.step, self.steps.per_epoch)
            if within == 0 and epoch > len(state.history):
                listener(self._end_epoch(epoch))
            if state.step >= total or (train.patience and state.stale >= train.patience):
                break
            if within == 0 and self._out_of_time():
                self._stopped_by_time = True
                break
            late = time.monotonic() - self._saved_at >= train.checkpoint_seconds
            asked, due = self.ranks.any(request.made, late)
            if asked:
                self.save()
                raise Interrupted(
                    f"stopped in epoch {epoch + 1}; everything is saved",
                    f"go on with --resume in {self.run.path}, or keep its best model with hmlet finish",
                )
            if due:
                with self.watch.phase("saving"):
                    self.save()
            self.steps.take(state.step, epoch)
            state.step += 1
            self._tell_time()

    # -- time -----------------------------------------------------------------------------------------------------

    def _foretell(self) -> None:
        """Begin to time the training."""
        self.forecast = Forecast(self.recipe, self.steps.per_epoch, self.state.step, saving_seconds(self))
        self._warm_at = self.state.step + WARM_UP
        self._tell_at = self._started_at + FORETOLD_AFTER
        self._told: float | None = None

    def _tell_time(self) -> None:
        """Say how long the run will take, after a few seconds and when that has changed."""
        if self.state.step == self._warm_at:
            self.synchronize()
            self.forecast.stretch(self.state.step)
        if time.monotonic() < self._tell_at or self.state.step <= self._warm_at:
            return
        self.synchronize()
        self.forecast.stretch(self.state.step)
        if self.forecast.left() > LONG and self.ranks.size == 1:
            self._rehearse()
        spent = self.state.seconds + time.monotonic() - self._started_at
        whole = spent + self.forecast.left()
        if self.ranks.rank == 0 and (self._told is None or not 1 / CHANGED < whole / self._told < CHANGED):
            sooner = "; early stopping may end it sooner" if self.recipe.train.patience and self.validates else ""
            log.info("this run takes about %s, %s so far%s", duration(whole), duration(spent), sooner)
            self._told = whole
        self._tell_at = time.monotonic() + RECONSIDERED

    def _rehearse(self) -> None:
        """Time what the rest of a long training consists of and has not been seen yet; the model stays as it is."""
        if self.validates and self.forecast.validation is None:
            drawn = self.ranking_noise.get_state()
            began = time.monotonic()
            self.evaluate(1)
            self.synchronize()
            self.ranking_noise.set_state(drawn)
            self.forecast.validated(time.monotonic() - began)
        # A captured step cannot be rehearsed.
        unseen = self.forecast.rests and self.forecast.slowdown is None
        if unseen and isinstance(self.steps, GradientSteps) and not self.steps.on_cuda:
            self.forecast.slowdown = self.steps.slowdown()
            self.forecast.resume()

    def _out_of_time(self) -> bool:
        """Whether one more epoch would pass the deadline: the machine became slower than when epochs were chosen."""
        if self.deadline is None or not self.state.history:
            return False
        epoch = self.state.seconds / len(self.state.history)
        return self.ranks.any(time.monotonic() + epoch + self.forecast.saving > self.deadline)[0]

    def _end_epoch(self, epoch: int) -> EpochEvent:
        """Record a finished epoch, with an evaluation where one is due; returns what listeners are told."""
        state, train = self.state, self.recipe.train
        row: dict[str, Any] = {"epoch": epoch, "loss": self.steps.mean_loss()}
        self.forecast.stretch(state.step)
        due = epoch % train.validate_every == 0 or epoch == train.epochs
        if due and self.validates:  # with nothing to validate on, the last epoch is the model
            began = time.monotonic()
            with self.watch.phase("validation"):
                row |= self._validate(epoch)
            self.forecast.validated(time.monotonic() - began)
        state.seconds += time.monotonic() - self._started_at
        self._started_at = time.monotonic()
        row["seconds"] = round(state.seconds, 3)
        state.history.append(row)
        self.ranks.first(lambda: self.run.append_metrics(row))
        best = Best(epoch=state.best_epoch, ndcg=state.best_value)
        return cast("EpochEvent", {**row, "epochs": train.epochs, "best": best, "left": self.forecast.left()})

    def _validate(self, epoch: int) -> dict[str, Any]:
        evaluation, layers = self.evaluate(epoch)
        value = evaluation.metrics[SELECTION]
        if value > self.state.best_value:
            self.state.best_value, self.state.best_epoch, self.state.stale = value, epoch, 0
            self.best = {}  # after the last epoch the model itself is the best one
            if epoch < self.recipe.train.epochs:
                self.best = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        else:
            self.state.stale += 1
        row: dict[str, Any] = {"valid": evaluation.metrics}
        if layers.gates:
            row["temperature"] = self.model.temperature(epoch - 1)
            row["gate_share"] = {str(at): float(is_nonlinear(p).double().mean()) for at, p in layers.gates.items()}
        return row

    # -- saving and restoring -------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint from which the loop goes on exactly as it would have."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors |= {f"best.{name}": tensor for name, tensor in self.best.items()}
        tensors |= {f"steps.{name}": tensor for name, tensor in self.steps.tensors().items()}
        tensors["ranking_noise"] = self.ranking_noise.get_state()
        state = {**asdict(self.state), "seconds": self.state.seconds + time.monotonic() - self._started_at}
        whole = self.ranks.hand_in(tensors, self.width, _is_split)
        self.ranks.first(lambda: save_checkpoint(self.run, whole, state))
        self._saved_at = time.monotonic()

    def restore(self) -> None:
        """Take up the last checkpoint, where there is one; metrics.jsonl goes back to what it says."""
        tensors: dict[str, Tensor] = {}

        def read() -> dict[str, Any] | None:
            saved = load_checkpoint(self.run)
            tensors.update(saved[0] if saved else {})
            return saved[1] if saved else None

        state = self.ranks.first(read)
        if state is not None:
            tensors = self.ranks.hand_out(tensors, _is_split)
            self.state = LoopState(**state)
            self.model.load_state_dict(_under("model.", tensors))
            self.best = {name: tensor.to(self.device) for name, tensor in _under("best.", tensors).items()}
            self.steps.load(_under("steps.", tensors))
            self.ranking_noise.set_state(tensors["ranking_noise"])
        elif self.recipe.model.starts_spectrally:
            with self.watch.phase("start"):
                self.start()
        self.ranks.first(self._write_metrics)

    def _write_metrics(self) -> None:
        self.run.write_text("metrics.jsonl", "".join(json.dumps(row) + "\n" for row in self.state.history))

    @torch.no_grad()
    def finish(self, note: str = "") -> RunDirectory:
        """Write the best model's factors, layers and gates, then the record that makes the run finished."""
        epochs = max(1, len(self.state.history))  # where none is complete, it is the first
        keep = extendable(self.recipe, epochs)
        if keep:
            self.save()
        if not note and self._stopped_by_time:
            note = f"the budget ended it after {epochs} of {self.recipe.train.epochs} epochs"
        if self.best:
            self.model.load_state_dict(self.best)
        self.model.eval()
        best_epoch = self.state.best_epoch or epochs
        layers = self.finished(best_epoch)
        if self.model.item_weights() is None:
            own_NF = layers.factors().float()
            users_UF, items_IF = own_NF[: self.model.n_users].clone(), own_NF[self.model.n_users :].clone()
            self._write_tensors("factors.safetensors", {"users": users_UF, "items": items_IF}, _all_split)
        self._write_tensors("model.safetensors", dict(self.model.state_dict()), _is_split)
        if self.recipe.train.save_layers and len(layers.embeddings_ND) > 1:
            embeddings = {str(at): each_ND for at, each_ND in enumerate(layers.embeddings_ND)}
            self._write_tensors("layers.safetensors", embeddings, _all_split)
        record = self.ranks.first(lambda: self._conclude(best_epoch, epochs, note, layers.gates).as_json())
        self.run.record = RunRecord.model_validate(record)
        if not keep:
            self.ranks.first(lambda: self.run.remove(CHECKPOINT))
        return self.run

    def _write_tensors(self, name: str, tensors: dict[str, Tensor], is_split: Callable[[str, Tensor], bool]) -> None:
        whole = self.ranks.hand_in(tensors, self.width, is_split)
        self.ranks.first(lambda: self.run.write_tensors(name, whole))

    def _conclude(self, best_epoch: int, epochs: int, note: str, gates: Mapping[int, Tensor]) -> RunRecord:
        """Write all that is not a split tensor, the record last; returns the record."""
        run, state = self.run, self.state
        if gates:
            run.write_table(GATES, gates_table(gates))
        self._write_metrics()
        valid = next((row["valid"] for row in state.history if row["epoch"] == best_epoch and "valid" in row), None)
        run.record = run.record.concluded(best_epoch, epochs, valid, round(state.seconds, 3), note)
        run.write_record()
        return run.record


def _is_split(name: str, tensor: Tensor) -> bool:
    """Whether a tensor of a checkpoint or a model has a column for each of the embeddings': e⁰, and its optimizer's."""
    return name.split(".")[-1] == "embedding" or (name.startswith("steps.adam.0.") and tensor.dim() == 2)


def _all_split(name: str, tensor: Tensor) -> bool:
    return True


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
