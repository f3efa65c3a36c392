"""fit(): train a recipe in a run directory that is new, resumed or extended, once it is known that it can be done."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from hmlet.config import Recipe, differences
from hmlet.data import Dataset
from hmlet.errors import ConfigError, OutOfMemory, RunError, TrainingError
from hmlet.graph import Sizes, require_edges
from hmlet.losses.sampling import eligible_users
from hmlet.runs.checkpoint import CHECKPOINT, load_checkpoint, save_checkpoint
from hmlet.runs.directory import RunDirectory, require_new
from hmlet.runs.locking import locked
from hmlet.runs.record import RECORD, RefittedFrom, RunRecord, UpdatedFrom, Versions
from hmlet.system.allocation import give_back_freed_memory
from hmlet.system.ranks import ALONE, Ranks
from hmlet.system.spelling import call, enumerated, option, override
from hmlet.system.stopping import StopRequest
from hmlet.system.units import duration, readable
from hmlet.training.ahead import Ahead
from hmlet.training.comparison import compare, shares
from hmlet.training.forecast import measure_pace, shortened, within_budget
from hmlet.training.planning import MemoryPlan, plainly_fits, remembered_plan, require_memory, smaller_model
from hmlet.training.profiling import PROFILE, UNWATCHED, Profile
from hmlet.training.steps import deterministic
from hmlet.training.trainer import Listener, Tell, Trainer, extendable, untold
from hmlet.version import VERSION


def choose_device(name: str, ranks: Ranks = ALONE) -> torch.device:
    """The device that a name means: "auto" uses CUDA if available. Every rank has its own device."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or not (number or "0").isdecimal():
        raise ConfigError(f"there is no device {name!r}", "use auto, cpu or cuda")
    if kind == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("there is no CUDA device", f"use {option('device', 'cpu')}")
    at, count = int(number or 0) if ranks.size == 1 else ranks.local, torch.cuda.device_count()
    if at < count:
        return torch.device("cuda", at)
    if ranks.size == 1:
        raise ConfigError(f"there is no device {name!r}", f"the last one is cuda:{count - 1}")
    raise ConfigError(
        f"there is no CUDA device for process {at} of this machine",
        f"use --nproc-per-node {count} of torchrun, or {option('device', 'cpu')}",
    )


def fit(
    data: Dataset,
    recipe: Recipe | Sequence[Recipe],
    out: Path | str,
    *,
    device: str = "auto",
    resume: bool = False,
    extend: bool = False,
    deadline: float | None = None,
    listener: Listener | None = None,
    begin: Callable[[Recipe], None] = lambda recipe: None,
    tell: Tell = untold,
    ranks: Ranks = ALONE,
    profile: Profile | None = None,
    origin: UpdatedFrom | RefittedFrom | None = None,
    start: RunDirectory | None = None,
    keep_data: bool = True,
) -> RunDirectory:
    """Train a recipe on a data set's training part and write the run directory.

    The validation part selects the model; the test part is never read. Of several recipes, each with a loss of its own,
    a short training by each decides on the validation part which one a new run is trained by. With `resume`, an
    unfinished run in `out` goes on from its last checkpoint, and a finished one is returned as it is. With `extend`, a
    run in `out` goes on with the larger number of epochs that the recipe says. `begin` is told the recipe that is
    trained, `listener` of every epoch, and `tell` how long the training takes and, if that is not little, how much
    memory.
    With a `deadline` (of time.monotonic), a new run is trained for as many of the recipe's epochs as fit, on the whole
    schedule; the run's recipe says how many. A resumed run keeps that number and has no deadline.
    With several `ranks` (hmlet.system.ranks.joined), each calls this with the same arguments, and rank 0 alone writes.
    A `profile` sees where the time goes and is written to profile.json; the run is the same with and without it.
    The new run keeps a copy of its data, unless told not to. `origin` is what its record says of an earlier run, and
    `start` is a finished run whose model it goes on from.
    """
    place = choose_device(device, ranks)
    if place.type == "cuda":
        torch.cuda.set_device(place)  # where Triton launches
    if profile is not None and ranks.size > 1:
        raise ConfigError(f"profiling supports a single process; {ranks.size} were started", "profile without torchrun")
    if ranks.rank:
        tell = untold
    recipes = [recipe] if isinstance(recipe, Recipe) else list(recipe)
    _require_budget(deadline, extend, recipes[0].train.epochs)
    path, compared, chosen_in = Path(out), None, 0.0
    resumed = (resume or extend) and (path / RECORD).is_file()
    ahead = Ahead(() if resumed or ranks.size > 1 else recipes, Sizes.of(data), place)
    if resumed:
        recipe = _as_begun(path, recipes, shorter=deadline is not None)
        deadline = None
        _require_possible(data, recipe, place, ranks, tell)
    else:
        recipes = _possible(data, recipes, place, ranks, tell)
        if deadline is not None or len(recipes) > 1:
            require_new(path)
        parts = shares(data, recipes, place.type) if len(recipes) > 1 else []
        if deadline is not None:
            now = time.monotonic()  # the comparison takes its part of the time
            ends = now + (deadline - now) / (1 + sum(parts))
            recipes = [_fitted_in(data, each, place, ranks, ends, tell) for each in recipes]
        began = time.monotonic()
        if len(recipes) > 1:
            ahead.wait()
        recipe, compared = _best(data, recipes, parts, place, ranks, tell)
        chosen_in = time.monotonic() - began
    # Unlike GPUs draw unlike numbers from one seed, and ranks have to draw the same.
    kind = torch.cuda.get_device_name(place) if place.type == "cuda" else "cpu"
    ranks.require_same(data=data.fingerprint, recipe=recipe.to_toml(), version=VERSION, device=kind)
    with ExitStack() as held, deterministic(recipe.train.deterministic), StopRequest() as request:
        held.callback(give_back_freed_memory)
        ranks.first(lambda: held.enter_context(locked(path)))  # its value is None
        record = ranks.first(
            lambda: _enter(
                path, recipe, data, place, resume, extend, compared, chosen_in, origin, keep_data
            ).record.as_json()
        )
        run = RunDirectory(path, RunRecord.model_validate(record))
        if run.finished:
            if not extendable(recipe, run.record.epochs):
                ranks.first(lambda: run.remove(CHECKPOINT))  # a kill between the record and this leaves it
            return run
        if resumed and ranks.size == 1:  # not before: a finished run needs no kernels
            ahead = Ahead([recipe], Sizes.of(data), place)
        begin(recipe)
        watch = profile or UNWATCHED
        with watch.phase("graph and model"):
            trainer = Trainer(data, recipe, place, run, watch, ranks, deadline, tell, chosen_in)
            ahead.wait()
            trainer.restore(start)
        with _telling_what_is_kept(run, recipe, place):
            with watch.phase("training"):
                trainer.loop(listener or (lambda event: None), request)
            with watch.phase("saving"):
                trainer.finish()
        if profile is not None:
            run.write_json(PROFILE, profile.as_json())
            run.write_record()
        return run


@contextmanager
def _telling_what_is_kept(run: RunDirectory, recipe: Recipe, device: torch.device) -> Iterator[None]:
    """Say of a training that fails inside the block whether it leaves a checkpoint."""
    try:
        yield
    except (TrainingError, torch.OutOfMemoryError) as error:
        failure = error if isinstance(error, TrainingError) else _out_of_memory(recipe, device, error)
        kept = "; the last checkpoint is kept" if run.has(CHECKPOINT) else ""
        raise type(failure)(failure.message, failure.hint + kept) from error


def _out_of_memory(recipe: Recipe, device: torch.device, error: torch.OutOfMemoryError) -> OutOfMemory:
    smaller = "" if recipe.model.solved else "lower train.batch_size"
    advice = ", or ".join(filter(None, [smaller_model(recipe.model), smaller, "use a larger device"]))
    return OutOfMemory(f"{device} ran out of memory ({error})", advice)


def finish(data: Dataset, out: Path | str, *, device: str = "auto") -> RunDirectory:
    """Make a finished run of an interrupted one: its best model so far, or without a validation the last one."""
    place, path = choose_device(device), Path(out)
    with locked(path):
        run = RunDirectory.open(path)
        if run.finished:
            raise RunError(f"{path} is finished already", "use it as it is")
        if not run.has(CHECKPOINT):
            raise RunError(f"{path} has no checkpoint yet", f"train it with {call('fit', resume=True)}")
        recipe = run.recipe()
        with deterministic(recipe.train.deterministic):
            trainer = Trainer(data, recipe, place, run)
            trainer.restore()
            trained, epochs = len(trainer.state.history), recipe.train.epochs
            trainer.finish(f"ended by hmlet finish after {trained} of {epochs} epochs")
        return run


def _require_budget(deadline: float | None, extend: bool, epochs: int) -> None:
    """Refuse a deadline that is not a number, and one for a run that goes on to a given number of epochs."""
    if deadline is not None and math.isnan(deadline):
        raise ConfigError(f"{option('minutes')} is not a number", f"use {option('minutes', 10)}, say")
    if deadline is not None and extend:
        raise ConfigError(
            f"{option('extend', True)} sets the number of epochs, and {option('minutes')} would choose another",
            f"leave out {option('minutes')}, and say how many in total with {override(f'train.epochs={epochs}')}",
        )


def _as_begun(path: Path, recipes: Sequence[Recipe], shorter: bool) -> Recipe:
    """The recipe that a run was started with, if it is one of these, or one of these with fewer epochs."""
    own = RunDirectory.open(path).recipe()
    for recipe in recipes:
        if own == (shortened(recipe, min(own.train.epochs, recipe.train.epochs)) if shorter else recipe):
            return own
    return recipes[0]


def _possible(data: Dataset, recipes: Sequence[Recipe], device: torch.device, ranks: Ranks, tell: Tell) -> list[Recipe]:
    """The first recipe, which has to be possible, and those of the others that are, if there is a validation part."""
    first, *others = recipes
    _require_possible(data, first, device, ranks, tell)
    possible = [first]
    for recipe in others if data.count("valid") else ():
        try:
            _require_possible(data, recipe, device, ranks, untold)
        except (ConfigError, OutOfMemory):
            continue
        possible.append(recipe)
    return possible


def _best(
    data: Dataset, recipes: Sequence[Recipe], parts: Sequence[float], device: torch.device, ranks: Ranks, tell: Tell
) -> tuple[Recipe, Mapping[str, float] | None]:
    """The only recipe, or the one that short trainings by several speak for, with what these gave by loss."""
    if len(recipes) == 1:
        return recipes[0], None
    losses = enumerated([each.objective for each in recipes])
    tell(f"comparing the losses {losses} on the validation part, by short trainings")

    def told(comparing: float, training: float) -> None:
        first = recipes[0].objective
        tell(f"the comparison takes about {duration(comparing)}, training with {first} another {duration(training)}")

    compared = compare(data, recipes, parts, device, ranks, told)
    worths = {each.recipe.objective: each.ndcg for each in compared}
    chosen = compared[0]
    why = "" if chosen.ndcg == max(worths.values()) else ", which trains faster; the difference may be chance"
    reached = ", ".join(f"{loss} {ndcg:.4f}" for loss, ndcg in worths.items())
    tell(f"NDCG@20: {reached}; going on with {chosen.recipe.objective}{why}")
    return chosen.recipe, worths


def _fitted_in(
    data: Dataset, recipe: Recipe, device: torch.device, ranks: Ranks, deadline: float, tell: Tell
) -> Recipe:
    """The recipe with as many of its epochs as fit before the deadline."""
    with deterministic(recipe.train.deterministic):
        pace, per_epoch = measure_pace(data, recipe, device, ranks)
    left = deadline - time.monotonic()
    epochs = ranks.first(lambda: within_budget(recipe, pace, per_epoch, left).train.epochs)
    shorter = shortened(recipe, epochs)
    takes = duration(pace.total(shorter, per_epoch))
    tell(f"{epochs} of {recipe.train.epochs} epochs fit into the budget: about {takes}")
    return shorter


def _require_possible(data: Dataset, recipe: Recipe, device: torch.device, ranks: Ranks, tell: Tell) -> None:
    """Refuse data that no training can use, a model that these ranks cannot share, and a need of too much memory."""
    require_ranks(recipe, ranks)
    if data.count("train") == 0:
        raise ConfigError(f"{data.name} has no training interactions", "check how it was split")
    if not recipe.model.solved:
        eligible_users(data.csr("train"), data.n_items)
    require_edges(data.count("train"))  # before memory is looked at: no change of the recipe would help
    if plainly_fits(recipe, Sizes.of(data), device):
        return
    plan = _require_memory(recipe, Sizes.of(data), device, ranks)
    share = " a rank" if ranks.size > 1 else ""
    tell(f"{recipe.model.name} on {data.name}: about {readable(plan.total)} of memory{share}")


def _require_memory(recipe: Recipe, sizes: Sizes, device: torch.device, ranks: Ranks) -> MemoryPlan:
    """The plan of a training that fits; the error for one that does not says whether smaller batches would help."""
    plan = remembered_plan(recipe, sizes, device.type, ranks)
    try:
        require_memory(plan, device, recipe.model)
    except OutOfMemory as error:
        smallest = recipe.changed(["train.batch_size=1"])
        try:
            require_memory(remembered_plan(smallest, sizes, device.type, ranks), device, recipe.model)
        except OutOfMemory:
            raise error from None
        raise OutOfMemory(error.message, f"lower train.batch_size, or {error.hint}") from None
    return plan


def require_ranks(recipe: Recipe, ranks: Ranks) -> None:
    """Refuse more ranks than one for a closed form, and an embedding size that does not fall into equal shares."""
    if ranks.size > 1 and recipe.model.solved:
        raise ConfigError(
            f"{recipe.model.name} has a closed form, which runs in one process", "use one device, without torchrun"
        )
    ranks.require_columns(recipe.model.columns)


def _enter(
    path: Path,
    recipe: Recipe,
    data: Dataset,
    device: torch.device,
    resume: bool,
    extend: bool,
    compared: Mapping[str, float] | None,
    chosen_in: float,
    origin: UpdatedFrom | RefittedFrom | None,
    keep_data: bool,
) -> RunDirectory:
    """The run directory to train in: a new one, or with `resume` the one that is there, if it is of the same making."""
    started = (path / RECORD).is_file()
    if not extend and not (resume and started):
        return RunDirectory.create(path, recipe, data, str(device), compared, chosen_in, origin, keep_data)
    run = RunDirectory.open(path)
    before = run.record.data
    if before.fingerprint != data.fingerprint:
        raise RunError(
            f"{path} was trained on other data: {before.name} ({before.fingerprint[:12]}) there"
            f" and {data.name} ({data.fingerprint[:12]}) here",
            f"resume with that data set, or choose another {option('out')}",
        )
    own = run.recipe()
    if extend:
        _extend(run, own, recipe)
    elif own != recipe:
        raise RunError(
            f"{path} has another recipe than the one given: {differences(own.flat(), recipe.flat())}",
            f"omit the model and all settings to use its own, or choose another {option('out')}",
        )
    if not run.finished:
        _require_same_versions(run)
    return run


def _extend(run: RunDirectory, own: Recipe, recipe: Recipe) -> None:
    """Let a run go on from its checkpoint with the larger number of epochs of a recipe."""
    epochs, more = own.train.epochs, recipe.train.epochs
    fresh = f"train a new run with {override(f'train.epochs={more}')} and another {option('out')}"
    same = recipe.model_copy(update={"train": recipe.train.model_copy(update={"epochs": epochs})})
    if own != same:
        raise RunError(
            f"{option('extend', True)} changes the number of epochs alone: {differences(own.flat(), same.flat())}",
            f"omit the other settings, or choose another {option('out')}",
        )
    if more <= epochs:
        raise RunError(
            f"{run.path} has {epochs} epochs already",
            f"say how many epochs in total, as in {override(f'train.epochs={2 * epochs}')}",
        )
    if own.train.schedule != "constant":
        raise RunError(
            f"{run.path} cannot be extended: its step size falls along a cosine to nearly nothing in epoch {epochs}",
            fresh,
        )
    if own.loss.continued() != own.loss:
        raise RunError(f"{run.path} cannot be extended: its loss follows a schedule that ends in epoch {epochs}", fresh)
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
            f"{run.path} was started with {begun}, and this is {here}",
            f"install {begun} to continue, or start over with another {option('out')}",
        )
