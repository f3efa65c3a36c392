"""A model in training: the loop, its clock, its checkpoints, and the files of the finished run.

What can be killed at any moment is the whole loop; what resume loads is LoopState and the tensors beside it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypedDict, cast

import torch
from torch import Tensor

from hmlet.config import Recipe, TrainConfig
from hmlet.data import Dataset
from hmlet.errors import HmletError, RunError, TrainingError
from hmlet.models import EmbeddingConfig, ItemWeighted
from hmlet.models.base import temperature
from hmlet.runs.checkpoint import CHECKPOINT, checkpoint_origin, load_checkpoint, save_checkpoint
from hmlet.runs.choices import GATES, gates_table, is_nonlinear
from hmlet.runs.directory import FACTORS, Epoch, RunDirectory, check_epoch
from hmlet.runs.record import RunRecord
from hmlet.runs.tensors import LARGEST, is_finite
from hmlet.system.outside import checked, first_line
from hmlet.system.ranks import ALONE, Ranks
from hmlet.system.spelling import call, option
from hmlet.system.stopping import StopRequest
from hmlet.system.units import duration
from hmlet.training.forecast import FORETOLD_AFTER, LONG, WARM_UP, Forecast, rehearse, saving_seconds
from hmlet.training.learner import Learner
from hmlet.training.profiling import UNWATCHED, Profile, Unwatched
from hmlet.training.steps import starts_spectrally

SELECTION = "ndcg"  # the validation metric, at k = 20, that chooses the model
RECONSIDERED = 15.0  # seconds between two looks at that time
CHANGED = 1.15  # by how much it has to change to be told again
FEW = 4 << 30  # bytes of a finished model that main memory can hold twice
FALLING = 2  # validations without an improvement after which another is not expected


class Best(TypedDict):
    """The best validation so far; epoch 0 if there was none."""

    epoch: int
    ndcg: float


class EpochEvent(Epoch):
    """What a listener receives at the end of an epoch: its row of metrics.jsonl, and the progress of the training."""

    epochs: int
    best: Best
    left: float  # seconds to the end, as far as that can be told


Listener = Callable[[EpochEvent], None]
IsSplit = Callable[[str, Tensor], bool]
Tell = Callable[[str], None]
"""What a training tells remarks to, such as how long it will take."""


def untold(text: str) -> None:
    """A listener that ignores every remark."""


class StopTraining(Exception):
    """Raised by a listener to end a training early, as pruning does; the run stays resumable."""


class Interrupted(HmletError):
    """A training that was asked to stop and saved itself."""

    code = "interrupted"
    exit_code = 130
    of_all_ranks = True


@dataclass
class LoopState:
    """The state of the loop: all of it that is not a tensor, and what resume loads."""

    step: int = 0
    best_epoch: int = 0
    best_value: float = -1.0
    stale: int = 0  # evaluations since the best one
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)

    def expected_end(self, train: TrainConfig) -> int:
        """The epoch after which training probably ends: where patience ends, once validation has begun to fall."""
        if train.patience and self.stale >= FALLING:
            return min(train.last_epoch, self.best_epoch + train.patience * train.validate_every)
        return train.last_epoch


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
        tell: Tell = untold,
        before: float = 0.0,
    ) -> None:
        super().__init__(data, recipe, device, watch, ranks)
        self.run, self.deadline, self.tell = run, deadline, tell
        self.before = before  # seconds of this run that went into the choice of its recipe
        self.state = LoopState()
        self.best: dict[str, Tensor] = {}
        self._stopped_by_time = False
        self._saved_at = time.monotonic()
        self._started_at = time.monotonic()

    # -- the loop -------------------------------------------------------------------------------------------------

    def loop(self, listener: Listener, request: StopRequest) -> None:
        """Train until the epochs are done or validation has stopped improving."""
        state, train = self.state, self.recipe.train
        total = train.last_epoch * self.steps.per_epoch
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
                    f"go on in {self.run.path} with {option('resume', True)},"
                    f" or keep its best model with {call('finish')}",
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
            rehearse(self, self.forecast)
        spent = self.before + self.state.seconds + time.monotonic() - self._started_at
        train, last = self.recipe.train, self.state.expected_end(self.recipe.train)
        whole = spent + self.forecast.left(last)
        if self._told is None or not 1 / CHANGED < whole / self._told < CHANGED:
            sooner = "; early stopping may end it sooner" if train.patience and self.validates else ""
            if last < train.last_epoch:
                sooner = f"; {duration(spent + self.forecast.left())} if validation improves again"
            self.tell(f"this run takes about {duration(whole)}, {duration(spent)} so far{sooner}")
            self._told = whole
        self._tell_at = time.monotonic() + RECONSIDERED

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
        due = epoch % train.validate_every == 0 or epoch == train.last_epoch
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
        left = self.forecast.left(state.expected_end(train))
        return cast("EpochEvent", {**row, "epochs": train.last_epoch, "best": best, "left": left})

    def _validate(self, epoch: int) -> dict[str, Any]:
        evaluation, layers = self.evaluate(epoch)
        self._require_finite(*layers.embeddings_ND)
        value = evaluation.metrics[SELECTION]
        if value > self.state.best_value:
            self.state.best_value, self.state.best_epoch, self.state.stale = value, epoch, 0
            self.best = {}  # after the last epoch the model itself is the best one
            if epoch < self.recipe.train.last_epoch:
                self.best = {name: tensor.detach().clone() for name, tensor in self.state_tensors().items()}
        else:
            self.state.stale += 1
        row: dict[str, Any] = {"valid": evaluation.metrics}
        if layers.gates:
            row["temperature"] = temperature(self.model, epoch - 1)
            row["gate_share"] = {str(at): float(is_nonlinear(p).double().mean()) for at, p in layers.gates.items()}
        return row

    def _require_finite(self, *tensors: Tensor) -> None:
        """End a training whose model has numbers that no run may have, before it is chosen or saved."""
        if self.ranks.any(not all(is_finite(each, LARGEST) for each in tensors))[0]:
            solved = self.recipe.model.solved
            fix = "raise model.regularization" if solved else "lower train.learning_rate, or train.l2 if it is large"
            wrong = f"the model has numbers that are not finite or beyond {LARGEST:g}"
            raise TrainingError(f"{wrong} after step {self.state.step}", fix)

    # -- saving and restoring -------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint that resumes the loop exactly."""
        self._require_finite(*self.state_tensors().values())
        tensors = {f"model.{name}": tensor for name, tensor in self.state_tensors().items()}
        tensors |= {f"best.{name}": tensor for name, tensor in self.best.items()}
        tensors |= {f"steps.{name}": tensor for name, tensor in self.steps.tensors().items()}
        tensors["ranking_noise"] = self.ranking_noise.get_state()
        state = {**asdict(self.state), "seconds": self.state.seconds + time.monotonic() - self._started_at}
        whole = self.ranks.hand_in(tensors, self.width, _is_split)
        self.ranks.first(lambda: save_checkpoint(self.run, whole, state))
        self._saved_at = time.monotonic()

    def restore(self, before: RunDirectory | None = None) -> None:
        """Load the last checkpoint, if any; metrics.jsonl goes back to what it says.

        Without one, the training starts: with what the finished run `before` learned, or from nothing.
        """
        tensors: dict[str, Tensor] = {}

        def read() -> dict[str, Any] | None:
            saved = load_checkpoint(self.run)
            tensors.update(saved[0] if saved else {})
            return asdict(self._checked_state(saved[1])) if saved else None

        state = self.ranks.first(read)
        if state is not None:
            tensors = self.ranks.hand_out(tensors, _is_split)
            self.state = LoopState(**state)
            try:
                self._take_up(tensors)
            except torch.OutOfMemoryError:
                raise
            except (KeyError, IndexError, ValueError, TypeError, RuntimeError) as error:
                raise checkpoint_origin(self.run).fault(f"does not fit the recipe ({first_line(error)})") from error
        elif before is not None:
            with self.watch.phase("start"):
                self.start_from(before)
            self.save()  # only `before` could start it again
        elif self.run.record.updated_from is not None and isinstance(self.recipe.model, EmbeddingConfig):
            raise RunError(f"{self.run.path} has no checkpoint yet", f"start again with {call('update')}")
        elif starts_spectrally(self.recipe.model):
            with self.watch.phase("start"):
                self.start()
        self.ranks.first(self._write_metrics)

    def _checked_state(self, saved: dict[str, object]) -> LoopState:
        """The loop state of a checkpoint, which has to be one that this loop can be in."""
        origin = checkpoint_origin(self.run)
        state = checked(LoopState, saved, origin, "state")
        for at, row in enumerate(state.history):
            if check_epoch(row, origin, f"state.history.{at}")["epoch"] != at + 1:
                raise origin.fault(f": state.history.{at}.epoch: it is {row['epoch']}, not {at + 1}")
        epochs, per_epoch = len(state.history), self.steps.per_epoch
        last = min(self.recipe.train.epochs, epochs + 1) * per_epoch
        for name, low, value, high in (
            ("step", epochs * per_epoch, state.step, last),
            ("best_epoch", 0, state.best_epoch, epochs),
            ("stale", 0, state.stale, epochs),
        ):
            if not low <= value <= high:
                raise origin.fault(f": state.{name}: it is {value}, not {low} to {high}")
        return state

    def _take_up(self, tensors: dict[str, Tensor]) -> None:
        """Give model, best model, optimizer and generators the tensors of a checkpoint."""
        own = self.state_tensors()
        self.load_state_tensors(_under("model.", tensors))
        self.best = {name: tensor.to(self.device) for name, tensor in _under("best.", tensors).items()}
        if self.best and {name: each.shape for name, each in self.best.items()} != {n: e.shape for n, e in own.items()}:
            raise ValueError("best.* are not the tensors of the model")
        self.steps.load(_under("steps.", tensors))
        self.ranking_noise.set_state(tensors["ranking_noise"])

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
            self.load_state_tensors(self.best)
        self.model.eval()
        best_epoch = self.state.best_epoch or epochs
        layers = self.finished(best_epoch)
        self._require_finite(*self.state_tensors().values(), *layers.embeddings_ND)
        files: dict[str, tuple[dict[str, Tensor], IsSplit]] = {}
        if not isinstance(self.model, ItemWeighted):
            own_NF = layers.factors().float()
            self._require_finite(own_NF)
            users_UF, items_IF = own_NF[: self.model.n_users].clone(), own_NF[self.model.n_users :].clone()
            files[FACTORS] = {"users": users_UF, "items": items_IF}, _all_split
        files["model.safetensors"] = self.state_tensors(), _is_split
        if self.recipe.train.save_layers and len(layers.embeddings_ND) > 1:
            embeddings = {str(at): each_ND for at, each_ND in enumerate(layers.embeddings_ND)}
            files["layers.safetensors"] = embeddings, _all_split
        self._write_tensors(files)
        record = self.ranks.first(lambda: self._conclude(best_epoch, epochs, note, layers.gates).as_json())
        self.run.record = RunRecord.model_validate(record)
        if not keep:
            self.ranks.first(lambda: self.run.remove(CHECKPOINT))
        return self.run

    def _ranked(self, factors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Whole factors of users and items, with the column for what popularity adds."""
        return {"users": self.scores.of_users(factors["users"]), "items": self.scores.of_items(factors["items"])}

    def _write_tensors(self, files: Mapping[str, tuple[dict[str, Tensor], IsSplit]]) -> None:
        """Write the files side by side, or one after the other if they are large or on several ranks."""
        if (
            self.ranks.size == 1
            and sum(each.nbytes for tensors, _ in files.values() for each in tensors.values()) < FEW
        ):
            self.run.write_together(
                {name: self._ranked(tensors) if name == FACTORS else tensors for name, (tensors, _) in files.items()}
            )
            return
        for name, (tensors, is_split) in files.items():
            whole = self.ranks.hand_in(tensors, self.width, is_split)
            if name == FACTORS:
                whole = self._ranked(whole)
            self.ranks.first(lambda name=name, whole=whole: self.run.write_tensors(name, whole))  # type: ignore[misc]

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


def extendable(recipe: Recipe, epochs: int) -> bool:
    """Whether a run that ended after so many epochs keeps its checkpoint, so that more epochs can follow.

    Those of a cosine would follow a step size of nearly nothing, and whoever stopped early gains nothing by more.
    """
    scheduled = recipe.train.schedule != "constant" or recipe.loss.continued() != recipe.loss
    return not scheduled and not recipe.model.solved and epochs == recipe.train.epochs


def _is_split(name: str, tensor: Tensor) -> bool:
    """Whether a tensor of a checkpoint or a model has a column for each of the embeddings': e⁰, and its optimizer's."""
    return name.split(".")[-1] == "embedding" or (name.startswith("steps.adam.0.") and tensor.dim() == 2)


def _all_split(name: str, tensor: Tensor) -> bool:
    return True


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
