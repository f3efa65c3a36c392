"""Recipes, plans, training and tuning: what happens before there is a run, and what makes one."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple
from pathlib import Path
from typing import Unpack

import torch

from hmlet.api.runs import Run
from hmlet.callbacks import Callback, TensorBoard, telling
from hmlet.config import DEFAULT_PRESET, Recipe, Settings, SettingsRequest, Shape, Target
from hmlet.config.fitting import NARROW
from hmlet.data import Dataset
from hmlet.data.catalog import known_name, load
from hmlet.data.inputs import DataLike, as_dataset
from hmlet.errors import ConfigError
from hmlet.graph import Sizes
from hmlet.models import DEFAULT
from hmlet.runs.directory import RunDirectory
from hmlet.runs.finished import recorded_data
from hmlet.runs.record import RECORD
from hmlet.system.progress import Advance, Progress, hidden, watching
from hmlet.system.ranks import Ranks, joined
from hmlet.system.spelling import option, override
from hmlet.system.threads import possible_threads, working_threads
from hmlet.system.units import duration
from hmlet.training import loop as training
from hmlet.training.capacity import Plan, device_kind, plan_training
from hmlet.training.loop import choose_device
from hmlet.training.profiling import UNWATCHED, Profile
from hmlet.training.trainer import EpochEvent, Listener
from hmlet.tuning import Space, TrialRecord, Tuning, best_trial, load_space
from hmlet.tuning import search as tuning
from hmlet.tuning.choice import choose
from hmlet.tuning.study import Pruning, Sampler

TOLD_SECONDS = 5.0  # shorter than this, a forecast is not shown
log = logging.getLogger(__name__)


def resolve(
    model: str = DEFAULT,
    data: DataLike | None = None,
    *,
    preset: str = DEFAULT_PRESET,
    config: Path | str | None = None,
    overrides: Sequence[str] = (),
    seed: int | None = None,
    device: str = "auto",
    **settings: Unpack[Settings],
) -> Recipe:
    """The recipe that `hmlet train DATA --model MODEL --print-config` prints.

    Example: hmlet.resolve("lightgcn", "debian", epochs=50)

    Data that no search was made for gets the recipe that the default rule has for its size and the device. `config` is
    a TOML file on top of the preset, `overrides` are `section.key=value` on top of both, and `settings` win over all.
    """
    request = SettingsRequest(model, preset, None if config is None else Path(config), overrides, settings, seed)
    return request.resolve(_target(None if data is None else _source(data), choose_device(device).type))


def requested(
    data: DataLike,
    request: SettingsRequest,
    out: Path | str | None = None,
    *,
    device: str = "auto",
    resume: bool = False,
    extend: bool = False,
) -> list[Recipe]:
    """The recipes that `fit` chooses from on validation: the run's own if there is one that the request leaves open;
    else the request's and, where the default rule decides, one for each other loss that may be better.

    To extend a run, its own number of epochs is doubled unless the request changes something.
    """
    return _requested(request, _source(data), device, _begun(out, resume, extend), extend)


def plan(
    data: DataLike | None = None,
    recipe: Recipe | str = DEFAULT,
    *,
    users: float | None = None,
    items: float | None = None,
    edges: float | None = None,
    preset: str = DEFAULT_PRESET,
    overrides: Sequence[str] = (),
    device: str = "auto",
    devices: int = 1,
    memory: int | str | None = None,
    **settings: Unpack[Settings],
) -> Plan:
    """The memory that a training takes on each device, and what to change if it does not fit: `hmlet plan`.

    Example: hmlet.plan("debian", "lightgcn", device="cuda", devices=8, memory="80GB").fits

    `users`, `items` and `edges` (training interactions) plan for data that is not here. `memory` is what a device has,
    in bytes or as text, by default what is free here; with it, "cuda" needs no CUDA device on this machine.
    """
    source = None if data is None else _source(data)
    sizes = _sizes(source, users, items, edges)
    if isinstance(recipe, str):
        known = None if source is None else known_name(source)
        target = Target(known, Shape(*astuple(sizes)), device_kind(device, memory))
        recipe = SettingsRequest(recipe, preset, overrides=overrides, settings=settings).resolve(target)
    elif settings:
        recipe = recipe.changed(**settings)
    return plan_training(recipe, sizes, device=device, devices=devices, memory=memory)


def fit(
    data: DataLike,
    recipe: Recipe | Sequence[Recipe] | SettingsRequest | str | None = None,
    out: Path | str = "run",
    *,
    device: str = "auto",
    minutes: float | None = None,
    threads: int | None = None,
    seed: int | None = None,
    resume: bool = False,
    extend: bool = False,
    keep_data: bool = True,
    profile: bool = False,
    tensorboard: Path | str | None = None,
    callbacks: Iterable[Callback | Listener] = (),
    progress: Progress | bool = True,
    ranks: Ranks | None = None,
    **settings: Unpack[Settings],
) -> Run:
    """Train a recipe, or a model by its name, and open the finished run: `hmlet train`.

    Example: hmlet.fit("debian", "lightgcn", "runs/lightgcn", epochs=50, embedding_size=32)

    `data` is a pandas, Polars or Arrow frame, a SciPy matrix, an interaction file, a prepared directory, a named set or
    a `Dataset`, which has constructors for columns with other names, other splits and own parts. `settings` and `seed`
    change the recipe. If you pass several recipes with different losses, each is trained briefly and the best on
    validation is used. A model's name does the same for data without a searched recipe. `minutes` is a
    budget for the whole call: the recipe's schedule is shortened to as many epochs as fit, which the recipe of the
    finished run names. `threads` on the CPU are by default as many as the process may use. With
    `resume`, the run in `out` continues from its last checkpoint, by its own recipe if none is given. With `extend`, a
    run with a constant step size trains for more epochs: those of the recipe, or twice its own. The run keeps a copy
    of its data, unless `keep_data` is off and the data is on disk. `profile` writes where the time goes to
    profile.json; `tensorboard` is a directory for TensorBoard events; `callbacks` are called after every epoch
    (hmlet.callbacks). Processes that torchrun started train together; `ranks` are those of a group already joined.
    """
    if not isinstance(callbacks, Iterable):
        raise ConfigError(f"{option('callbacks')} is a single callback", "pass a list of callbacks")
    began, progress = time.monotonic(), watching(progress)
    source = _source(data, progress)
    begun = _begun(out, resume, extend)
    if isinstance(recipe, SettingsRequest | str | None):
        request = recipe if isinstance(recipe, SettingsRequest) else SettingsRequest(recipe)
        recipes = _requested(request.changed(settings, seed), source, device, begun, extend)
    else:
        change, given = SettingsRequest().changed(settings, seed), [recipe] if isinstance(recipe, Recipe) else recipe
        recipes = [change.applied_to(each) for each in given]
    first = recipes[0]
    deadline = _deadline(began, minutes, extend, first)
    watch = Profile() if profile else None
    with (watch or UNWATCHED).phase("load"):
        dataset = _load(source, progress)
    calls = [*callbacks, *([] if tensorboard is None else [TensorBoard(tensorboard)])]
    with (
        joined(ranks) as group,
        training_threads(choose_device(device, group), threads, begun),
        telling(calls, dataset, Path(out), first=group.rank == 0) as told,
        progress(f"training {first.model.name}") as advance,
    ):
        if group.rank == 0:
            _warn(first, choose_device(device, group).type)
        chosen = choose(
            dataset,
            recipes,
            out,
            device=device,
            resume=resume or extend,
            deadline=deadline,
            ranks=group,
            tell=_say,
        )
        trained = training.fit(
            dataset,
            chosen,
            out,
            device=device,
            resume=resume,
            extend=extend,
            deadline=deadline,
            listener=_showing(advance, told.epoch),
            begin=told.begin,
            tell=_say,
            ranks=group,
            profile=watch,
            keep_data=keep_data,
        )
        told.record = trained.record
    run = Run(trained)
    run.data = dataset  # it need not be read again
    return run


def finish(
    run: Path | str, data: Path | str | None = None, *, device: str = "auto", progress: Progress | bool = True
) -> Run:
    """Finish an interrupted run with its best model so far: `hmlet finish`.

    Example: hmlet.finish("runs/end").evaluate()

    Without a validation so far, the model is kept as the last checkpoint has it. The record has a note about it. `data`
    says where the run's data is, if the run has no copy and the data has moved.
    """
    directory = RunDirectory.open(run)
    with watching(progress)(f"finishing {run}"):
        return Run(training.finish(recorded_data(directory, data), run, device=device), data)


def tune(
    data: DataLike,
    recipe: Recipe | str,
    out: Path | str,
    *,
    space: Space | Path | str | None = None,
    trials: int | None = None,
    sampler: Sampler = "grid",
    pruning: Pruning | None = None,
    storage: str | None = None,
    preset: str = DEFAULT_PRESET,
    device: str = "auto",
    keep: bool = False,
    progress: Progress | bool = True,
    **settings: Unpack[Settings],
) -> Tuning:
    """Search for a model's best recipe by validation NDCG@20; the test part is never read: `hmlet tune`.

    Example: hmlet.tune("debian", "lightgcn", "tuned", sampler="tpe", trials=30).recipe

    `space` is a TOML file with a [space] table, or its content; by default the model's own for the preset. `settings`
    change the recipe. `trials` is by default the whole grid, or 20 points. Only the best trial keeps its weights,
    unless `keep`. Call it again with the same `out` to go on after a stop, or at the same time to share the work.
    """
    progress = watching(progress)
    source = _source(data, progress)
    if isinstance(recipe, str):
        chosen = resolve(recipe, source, preset=preset, device=device, **settings)
    else:
        chosen = recipe.changed(**settings) if settings else recipe
    name = chosen.model.name
    if space is None or isinstance(space, str | Path):
        space = load_space(None if space is None else Path(space), name, preset, chosen.train.loss)
    dataset = _load(source, progress)
    with training_threads(choose_device(device), None), progress(f"tuning {name}") as advance:

        def tell(records: Sequence[TrialRecord]) -> None:
            ended, best = sum(record.ended for record in records), best_trial(records)
            value = 0.0 if best is None else best.value or 0.0
            advance(ended, len(records), f"trial {ended} of {len(records)}  best ndcg {value:.4f}")

        return tuning.tune(
            dataset,
            chosen,
            space,
            out,
            sampler=sampler,
            trials=trials,
            pruning=pruning,
            storage=storage,
            keep=keep,
            device=device,
            listener=tell,
        )


def _source(data: DataLike, progress: Progress = hidden) -> Dataset | Path | str:
    """A prepared directory or a named set as it is, whose size is known before it is loaded; else the data set."""
    if isinstance(data, Path | str) and not Path(data).is_file():
        return data
    with progress(f"reading {data if isinstance(data, Path | str) else type(data).__name__}") as advance:
        return as_dataset(data, advance)


def _load(data: Dataset | Path | str, progress: Progress) -> Dataset:
    if isinstance(data, Dataset):
        return data
    with progress(f"loading {data}") as advance:
        return load(data, advance=advance)


def _showing(advance: Advance, further: Listener) -> Listener:
    """A listener that moves the progress bar, and then calls another one."""

    def listen(event: EpochEvent) -> None:
        at, last, best = event["epoch"], event["epochs"], event["best"]
        worth = f"  best ndcg {best['ndcg']:.4f} (epoch {best['epoch']})" if best["epoch"] else ""
        left = f"  about {duration(event['left'])} left" if event["left"] >= TOLD_SECONDS else ""
        advance(at, last, f"epoch {at} of {last}  loss {event['loss']:.4f}{worth}{left}")
        further(event)

    return listen


def _say(text: str) -> None:
    log.info("%s", text)


def _deadline(began: float, minutes: float | None, extend: bool, recipe: Recipe) -> float | None:
    """When the time is over; none for a run that goes on to a given number of epochs."""
    if minutes is None:
        return None
    if math.isnan(minutes):
        raise ConfigError(f"{option('minutes')} is not a number", f"use {option('minutes', 10)}, say")
    if extend:
        total = override(f"train.epochs={recipe.train.epochs}")
        raise ConfigError(
            f"{option('extend', True)} sets the number of epochs, and {option('minutes')} would choose another",
            f"leave out {option('minutes')}, and say how many in total with {total}",
        )
    return began + 60 * minutes


def _begun(out: Path | str | None, resume: bool, extend: bool) -> RunDirectory | None:
    """The run to continue. What is extended has to exist."""
    if out is None or not (extend or (resume and (Path(out) / RECORD).is_file())):
        return None
    return RunDirectory.open(out)


def _requested(
    request: SettingsRequest, data: Dataset | Path | str, device: str, begun: RunDirectory | None, extend: bool
) -> list[Recipe]:
    if begun is None or not request.open or (request.overrides and not extend):
        return request.alternatives(_target(data, choose_device(device).type))
    own = begun.recipe()
    if extend and not request.overrides and "epochs" not in request.settings:
        own = own.changed(epochs=2 * own.train.epochs)
    return [request.applied_to(own)]


def _target(data: Dataset | Path | str | None, device: str) -> Target:
    """What settings for this data on a kind of device are for."""
    return Target(device=device) if data is None else Target(known_name(data), Shape.of(data), device)


def _sizes(data: Dataset | Path | str | None, users: float | None, items: float | None, edges: float | None) -> Sizes:
    given = (users, items, edges)
    if data is not None and given == (None, None, None):
        return Sizes.of(_load(data, hidden))
    if data is not None:
        raise ConfigError(f"plan was given DATA, {str(data)!r}, and sizes", "give one or the other")
    if users is None or items is None or edges is None:
        raise ConfigError(
            f"plan needs DATA, or {option('users')}, {option('items')} and {option('edges')}", "for example debian"
        )
    sizes = Sizes(int(users), int(items), int(edges))
    if sizes.edges > sizes.users * sizes.items:
        raise ConfigError(
            f"{option('edges')} {sizes.edges:,} are more than the {sizes.users * sizes.items:,} pairs of "
            f"{sizes.users:,} users and {sizes.items:,} items",
            "count each pair once",
        )
    return sizes


def training_threads(
    device: torch.device, threads: int | None, begun: RunDirectory | None = None
) -> AbstractContextManager[None]:
    """The CPU threads of a training. A resumed one takes as many as before, because sums depend on the number."""
    if threads is None and device.type == "cuda":
        return nullcontext()
    if threads is None and begun is not None and begun.record.hardware.kind == "cpu":
        threads = min(begun.record.hardware.threads, possible_threads())
    return working_threads(threads)


def _warn(recipe: Recipe, device: str) -> None:
    """Warn that a wide model is slow without a GPU."""
    columns = recipe.model.columns
    if device == "cpu" and columns > NARROW and not recipe.model.solved:
        smaller = override("model.embedding_size=64")
        log.warning("an embedding of %s columns is meant for a GPU and slow on a CPU; use %s", columns, smaller)
