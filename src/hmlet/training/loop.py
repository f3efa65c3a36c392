"""fit(): train a recipe in a run directory that is new, resumed or extended, once it is known that it can be done."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from hmlet.config import Recipe, differences
from hmlet.data import Dataset
from hmlet.errors import ConfigError, OutOfMemory, RunError, TrainingError
from hmlet.graph import Sizes, require_edges
from hmlet.losses.sampling import eligible_users
from hmlet.runs.checkpoint import CHECKPOINT, load_checkpoint, save_checkpoint
from hmlet.runs.directory import RunDirectory
from hmlet.runs.locking import locked
from hmlet.runs.record import RECORD, RefittedFrom, RunRecord, UpdatedFrom, Versions
from hmlet.system.allocation import give_back_freed_memory
from hmlet.system.ranks import ALONE, Ranks
from hmlet.system.spelling import call, option, override
from hmlet.system.stopping import StopRequest
from hmlet.system.units import readable
from hmlet.training.ahead import Ahead
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


def use_device(name: str, ranks: Ranks = ALONE) -> torch.device:
    """The device that a name means, which is also where Triton launches from now on."""
    place = choose_device(name, ranks)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    return place


@dataclass(frozen=True)
class Chosen:
    """The recipe to train, and what its choice took."""

    recipe: Recipe
    scores: Mapping[str, float] = field(default_factory=dict)
    """Validation NDCG@20 of a short training by each loss, if several were compared."""
    seconds: float = 0.0  # of this comparison
    kernels: Ahead | None = None  # those that the choice began to compile


def fit(
    data: Dataset,
    chosen: Chosen | Recipe,
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

    The validation part selects the model; the test part is never read. `hmlet.tuning.choice.choose` decides between
    recipes, and shortens them to a budget. With `resume`, an unfinished run in `out` goes on from its last checkpoint,
    and a finished one is returned as it is. With `extend`, a run in `out` goes on with the larger number of epochs that
    the recipe says. `begin` is told the recipe that is trained, `listener` of every epoch, and `tell` how long the
    training takes and, if that is not little, how much memory.
    A new run begins no epoch that would end after the `deadline` (of time.monotonic); a resumed one has none.
    With several `ranks` (hmlet.system.ranks.joined), each calls this with the same arguments, and rank 0 alone writes.
    A `profile` sees where the time goes and is written to profile.json; the run is the same with and without it.
    The new run keeps a copy of its data, unless told not to. `origin` is what its record says of an earlier run, and
    `start` is a finished run whose model it goes on from.
    """
    path, chosen = Path(out), chosen if isinstance(chosen, Chosen) else Chosen(chosen)
    recipe, tell = chosen.recipe, untold if ranks.rank else tell
    place = use_device(device, ranks)
    begun = _begun(path, resume, extend)
    done = begun is not None and begun.finished and not extend
    kernels = chosen.kernels or compile_ahead([] if done else [recipe], data, place, ranks)
    require_possible(data, recipe, place, ranks, tell)
    _require_same(ranks, profile, data, recipe, place)
    with _alone_in(path, recipe, ranks) as request:
        run = _entered(path, chosen, data, place, ranks, begun, extend, origin, keep_data)
        if run.finished:
            return _cleared(run, recipe, ranks)
        begin(recipe)
        watch, ends = profile or UNWATCHED, None if begun else deadline
        with watch.phase("graph and model"):
            trainer = Trainer(data, recipe, place, run, watch, ranks, ends, tell, chosen.seconds)
            kernels.wait()
            trainer.restore(start)
        return _trained(trainer, listener or (lambda event: None), request, profile)


def _begun(path: Path, resume: bool, extend: bool) -> RunDirectory | None:
    """The run to continue: one that is there, if wanted; to extend one, there has to be one."""
    return RunDirectory.open(path) if extend or (resume and (path / RECORD).is_file()) else None


def compile_ahead(recipes: Sequence[Recipe], data: Dataset, device: torch.device, ranks: Ranks) -> Ahead:
    """The kernels of some recipes, compiled from now on; several ranks compile theirs when they launch them."""
    return Ahead(() if ranks.size > 1 else recipes, Sizes.of(data), device)


def require_possible(data: Dataset, recipe: Recipe, device: torch.device, ranks: Ranks, tell: Tell = untold) -> None:
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


def _require_same(ranks: Ranks, profile: Profile | None, data: Dataset, recipe: Recipe, device: torch.device) -> None:
    """Refuse ranks that would train different things, and a profile of several."""
    if profile is not None and ranks.size > 1:
        raise ConfigError(f"profiling supports a single process; {ranks.size} were started", "profile without torchrun")
    # Unlike GPUs draw unlike numbers from one seed, and ranks have to draw the same.
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    ranks.require_same(data=data.fingerprint, recipe=recipe.to_toml(), version=VERSION, device=kind)


@contextmanager
def _alone_in(path: Path, recipe: Recipe, ranks: Ranks) -> Iterator[StopRequest]:
    """The run directory for this training alone, signals that ask it to stop, and PyTorch as the recipe wants it."""
    with ExitStack() as held, deterministic(recipe.train.deterministic), StopRequest() as request:
        held.callback(give_back_freed_memory)
        ranks.first(lambda: held.enter_context(locked(path)))  # its value is None
        yield request


def _entered(
    path: Path,
    chosen: Chosen,
    data: Dataset,
    device: torch.device,
    ranks: Ranks,
    begun: RunDirectory | None,
    extend: bool,
    origin: UpdatedFrom | RefittedFrom | None,
    keep_data: bool,
) -> RunDirectory:
    """The run directory that rank 0 enters for all: a new one, or the one that is there to resume or extend."""

    def enter() -> RunDirectory:
        if begun is not None:
            return _continued(path, chosen.recipe, data, extend)
        recipe, scores, seconds = chosen.recipe, chosen.scores, chosen.seconds
        return RunDirectory.create(path, recipe, data, str(device), scores, seconds, origin, keep_data)

    record = ranks.first(lambda: enter().record.as_json())
    return RunDirectory(path, RunRecord.model_validate(record))


def _continued(path: Path, recipe: Recipe, data: Dataset, extend: bool) -> RunDirectory:
    """The run that is there, to go on with, if it is of the same making; with more epochs to `extend` it."""
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


def _cleared(run: RunDirectory, recipe: Recipe, ranks: Ranks) -> RunDirectory:
    """A finished run without the checkpoint that a kill right after its record left."""
    if not extendable(recipe, run.record.epochs):
        ranks.first(lambda: run.remove(CHECKPOINT))
    return run


def _trained(trainer: Trainer, listener: Listener, request: StopRequest, profile: Profile | None) -> RunDirectory:
    """The finished run: every epoch, then every file."""
    run = trainer.run
    with _telling_what_is_kept(run, trainer.recipe, trainer.device):
        with trainer.watch.phase("training"):
            trainer.loop(listener, request)
        with trainer.watch.phase("saving"):
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
