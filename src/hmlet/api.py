"""Every command as a Python function, and a finished run with what one asks of it.

A function takes what its command takes. Data is a data set, a prepared directory or a named set; a run is a `Run` or
its directory. Nothing here prints. Remarks go to the logger "hmlet", and `progress` is told how far long work is.

What needs SciPy's statistics is imported where it is used: that takes a second, and recommendations do without.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from hmlet.config import DEFAULT_PRESET, Recipe, Shape, resolution
from hmlet.data import Dataset
from hmlet.data.catalog import known_name, load
from hmlet.data.interactions import Id
from hmlet.errors import ConfigError, DataError, MissingExtra, NothingHeldOut, RunError
from hmlet.models import DEFAULT
from hmlet.ranking.evaluation import KNOWN, Evaluation
from hmlet.recommend.export import export as write_lists
from hmlet.recommend.recommender import Recommender
from hmlet.runs.directory import RunDirectory
from hmlet.runs.finished import recorded_data
from hmlet.runs.record import RECORD
from hmlet.serving.settings import Settings
from hmlet.system.progress import Progress, hidden
from hmlet.system.ranks import Ranks, joined
from hmlet.system.spelling import option, override
from hmlet.system.threads import possible_threads, working_threads
from hmlet.system.units import duration
from hmlet.training import loop as training
from hmlet.training.capacity import Plan, device_kind, plan_training
from hmlet.training.environment import environment
from hmlet.training.loop import choose_device
from hmlet.training.planning import Sizes
from hmlet.training.profiling import PROFILE, UNWATCHED, MeasuredRun, Profile
from hmlet.training.tensorboard import tensorboard_events
from hmlet.training.trainer import EpochEvent, Listener
from hmlet.tuning import Space, TrialRecord, Tuning, best_trial, load_space
from hmlet.tuning import search as tuning
from hmlet.tuning.backend import Pruning, Sampler

if TYPE_CHECKING:
    from hmlet.analysis.result import Analysis
    from hmlet.ranking.statistics import Comparison

__all__ = [
    "DEFAULT",
    "RECORD",
    "MeasuredRun",
    "Pruning",
    "Run",
    "Sampler",
    "analyze",
    "compare",
    "environment",
    "evaluate",
    "export",
    "finish",
    "fit",
    "longer_recipe",
    "plan",
    "recorded_recipe",
    "report",
    "resolve",
    "serve",
    "tune",
]

TOLD_SECONDS = 5.0  # less time than this is not worth a word beside a progress bar
log = logging.getLogger(__name__)


# -- before and while a model is trained --------------------------------------------------------------------------


def resolve(
    model: str = DEFAULT,
    data: Dataset | Path | str | None = None,
    *,
    preset: str = DEFAULT_PRESET,
    config: Path | str | None = None,
    overrides: Sequence[str] = (),
    seed: int | None = None,
    device: str = "auto",
) -> Recipe:
    """The recipe that `hmlet train DATA --model MODEL --print-config` prints.

    Example: hmlet.resolve("lightgcn", "debian", overrides=["train.epochs=50"])

    Data that no search was made for gets the recipe that the default rule has for its size and the device. `config` is
    a TOML file on top of the preset; `overrides` are `section.key=value` on top of both.
    """
    return alternatives(model, data, preset=preset, config=config, overrides=overrides, seed=seed, device=device)[0]


def alternatives(
    model: str = DEFAULT,
    data: Dataset | Path | str | None = None,
    *,
    preset: str = DEFAULT_PRESET,
    config: Path | str | None = None,
    overrides: Sequence[str] = (),
    seed: int | None = None,
    device: str = "auto",
) -> list[Recipe]:
    """The recipes that `hmlet train DATA` compares before it trains: `resolve`'s and, where the default rule decides,
    one for each other loss that may be better."""
    known, shape = (None, None) if data is None else (known_name(data), Shape.of(data))
    file, kind = None if config is None else Path(config), choose_device(device).type
    return resolution.alternatives(model, preset, file, overrides, seed, known, shape, kind)


def recorded_recipe(out: Path | str) -> Recipe:
    """The recipe of a run, finished or not."""
    return RunDirectory.open(out).recipe()


def longer_recipe(out: Path | str, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a run with as many epochs as `overrides` say, or with twice as many: what `--extend` trains."""
    own = recorded_recipe(out)
    changed = own.changed(overrides)
    return changed if overrides else changed.changed([f"train.epochs={2 * own.train.epochs}"])


def plan(
    data: Dataset | Path | str | None = None,
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
) -> Plan:
    """The memory that a training takes on each device, and what to change if it does not fit: `hmlet plan`.

    Example: hmlet.plan("debian", "lightgcn", device="cuda", devices=8, memory="80GB").fits

    `users`, `items` and `edges` (training interactions) plan for data that is not here. `memory` is what a device has,
    in bytes or as text, by default what is free here; with it, "cuda" needs no CUDA device on this machine.
    """
    sizes = _sizes(data, users, items, edges)
    if isinstance(recipe, str):
        known, kind = None if data is None else known_name(data), device_kind(device, memory)
        recipe = resolution.resolve(
            recipe, preset, None, overrides, dataset=known, shape=Shape(*astuple(sizes)), device=kind
        )
    return plan_training(recipe, sizes, device=device, devices=devices, memory=memory)


def fit(
    data: Dataset | Path | str,
    recipe: Recipe | Sequence[Recipe] | str | None = None,
    out: Path | str = "run",
    *,
    device: str = "auto",
    minutes: float | None = None,
    threads: int | None = None,
    resume: bool = False,
    extend: bool = False,
    profile: bool = False,
    tensorboard: Path | str | None = None,
    listener: Listener | None = None,
    progress: Progress = hidden,
    ranks: Ranks | None = None,
) -> Run:
    """Train a recipe, or a model by its name, and open the finished run: `hmlet train`.

    Example: hmlet.fit("debian", "lightgcn", "runs/lightgcn")

    Of several recipes, each with a loss of its own, the one that is best on validation after a short training is taken;
    a model by its name, for data that no search was made for, has such alternatives.
    `minutes` is a budget for the whole call: the recipe's schedule is shortened to as many epochs as fit, which the
    recipe of the finished run names. `threads` on the CPU are by default those that this machine has and that are fast
    now. With `resume`, the run in `out` goes on from its last checkpoint, by its own recipe if none is given. With
    `extend`, a run with a constant step size goes on with more epochs: those of the recipe, or twice its own. `profile`
    writes where the time goes to profile.json; `tensorboard` is a directory for TensorBoard events; the `listener` is
    told of every epoch. Processes that torchrun started train together; `ranks` are those of a group already joined.
    """
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    _require_data(data)
    begun = RunDirectory.open(out) if (resume or extend) and (Path(out) / RECORD).is_file() else None
    if recipe is None and begun is not None:
        recipe = longer_recipe(out) if extend else begun.recipe()
    if isinstance(recipe, str | None):
        recipe = alternatives(recipe or DEFAULT, data, device=device)
    recipes = [recipe] if isinstance(recipe, Recipe) else list(recipe)
    chosen = recipes[0]
    watch = Profile() if profile else None
    with (watch or UNWATCHED).phase("load"):
        dataset = _load(data, progress)
    with (
        ExitStack() as listening,
        _together(ranks) as group,
        _threads(choose_device(device, group), threads, chosen, begun),
        progress(f"training {chosen.model.name}") as advance,
    ):
        listeners = [] if listener is None else [listener]
        if tensorboard is not None and group.rank == 0:
            listeners.append(listening.enter_context(tensorboard_events(tensorboard)))
        if group.rank == 0:
            _warn(chosen, choose_device(device, group).type)

        def listen(event: EpochEvent) -> None:
            at, last, best = event["epoch"], event["epochs"], event["best"]
            worth = f"  best ndcg {best['ndcg']:.4f} (epoch {best['epoch']})" if best["epoch"] else ""
            left = f"  about {duration(event['left'])} left" if event["left"] >= TOLD_SECONDS else ""
            advance(at, last, f"epoch {at} of {last}  loss {event['loss']:.4f}{worth}{left}")
            for each in listeners:
                each(event)

        trained = training.fit(
            dataset,
            recipes,
            out,
            device=device,
            resume=resume,
            extend=extend,
            deadline=deadline,
            listener=listen,
            tell=lambda text: log.info("%s", text),
            ranks=group,
            profile=watch,
        )
    run = Run(trained)
    run.data = dataset  # it need not be read again
    return run


def finish(run: Path | str, *, device: str = "auto", progress: Progress = hidden) -> Run:
    """Make a finished run of an interrupted one, with its best model so far: `hmlet finish`.

    Example: hmlet.finish("runs/end").evaluate()

    Without a validation so far, the model is kept as the last checkpoint has it. The record has a note about it.
    """
    directory = RunDirectory.open(run)
    with progress(f"finishing {run}"):
        return Run(training.finish(recorded_data(directory), run, device=device))


def tune(
    data: Dataset | Path | str,
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
    progress: Progress = hidden,
) -> Tuning:
    """Search for a model's best recipe by validation NDCG@20; the test part is never read: `hmlet tune`.

    Example: hmlet.tune("debian", "lightgcn", "tuned", sampler="tpe", trials=30).recipe

    `space` is a TOML file with a [space] table, or its content; by default the model's own for the preset. `trials` is
    by default the whole grid, or 20 points. Only the best trial keeps its weights, unless `keep`. Call it again with
    the same `out` to go on after a stop, or at the same time to share the work.
    """
    _require_data(data)
    chosen = resolve(recipe, data, preset=preset, device=device) if isinstance(recipe, str) else recipe
    name = chosen.model.name
    if space is None or isinstance(space, str | Path):
        space = load_space(None if space is None else Path(space), name, preset, chosen.train.loss)
    dataset = _load(data, progress)
    with _threads(choose_device(device), None, chosen), progress(f"tuning {name}") as advance:

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


# -- after training -----------------------------------------------------------------------------------------------


def evaluate(
    run: Run | Path | str, split: str = "test", mask: str = "train", k: int = 20, *, progress: Progress = hidden
) -> Evaluation:
    """Full-ranking metrics of a run, averaged over users: `hmlet evaluate`.

    Example: hmlet.evaluate("runs/end").metrics["ndcg"]

    `mask` names the parts whose items are left out of the ranking: train or train+valid.
    """
    with working_threads(), progress(f"evaluating {_path(run)}") as advance:
        return _open(run).evaluate(split, mask, k, advance)


def compare(
    *runs: Run | Path | str, split: str = "test", mask: str = "train", k: int = 20, progress: Progress = hidden
) -> Comparison:
    """Models side by side, and whether the gap between the two best can be chance: `hmlet compare`.

    Example: hmlet.compare("runs/end", "runs/lightgcn").conclusion()

    Runs that differ only in their seed count as one model. `Comparison.floor` has what every model has to beat: the
    metrics of popularity on the same data, unless a run is of that model.
    """
    from hmlet.runs.comparison import compare_runs

    with progress("evaluating") as advance:
        return compare_runs([_open(run) for run in runs], split, mask, k, advance)


def analyze(
    *runs: Run | Path | str, centrality: str = "exact", device: str = "auto", progress: Progress = hidden
) -> list[Analysis]:
    """What the gates of each run chose and what explains it, kept in the run as analysis.json: `hmlet analyze`.

    Example: hmlet.analyze("runs/end", centrality="sampled:1000")[0].verdict["degree"].verdict

    Several runs of one model and data set also tell how many nodes keep their class. `centrality` is exact, sampled:N
    (betweenness and closeness from N sources) or none; `device` computes it.
    """
    from hmlet.analysis.study import analysed, keep

    opened, place = _open_all(runs), choose_device(device)
    directories = [run.directory for run in opened]
    with progress("centralities") as advance:
        found = analysed(directories, opened[0].data, centrality, device=place, advance=advance)
    for directory, result in zip(directories, found, strict=True):
        try:
            keep(directory, result)
        except RunError as error:  # the numbers are right even if they cannot be kept
            log.warning("the analysis is not kept in %s: %s", directory.path, error)
    return found


def report(
    *runs: Run | Path | str, out: Path | str, figures: Path | str | None = None, progress: Progress = hidden
) -> list[Path]:
    """Write one self-contained page about runs, and return the files written, the page first: `hmlet report`.

    Example: hmlet.report("runs/end", "runs/lightgcn", out="report.html")

    The gates shown are those of the first run that `analyze` has seen. `figures` is a directory for every figure as SVG
    and PNG besides.
    """
    from hmlet.reporting import write_report
    from hmlet.runs.comparison import compare_runs, floor_of

    opened = _open_all(runs)
    with progress("comparing") as advance:
        try:
            scores = [run.evaluate("test", "train", 20) for run in opened]
            comparison = compare_runs(opened, advance=advance) if len(opened) > 1 else None
            floor = floor_of(opened) if comparison is None else comparison.floor
        except NothingHeldOut as error:  # the page has its other figures
            log.warning("the report has no test scores: %s", error.message)
            scores, comparison, floor = [], None, None
    return write_report(
        [run.directory for run in opened],
        Path(out),
        comparison=comparison,
        scores=scores,
        floor=floor,
        figures=None if figures is None else Path(figures),
    )


def export(
    run: Run | Path | str,
    out: Path | str,
    k: int = 20,
    users: Iterable[Id] | None = None,
    mask: str = KNOWN,
    *,
    allow: Iterable[Id] | None = None,
    deny: Iterable[Id] | None = None,
    progress: Progress = hidden,
    ranks: Ranks | None = None,
) -> int:
    """Write the top-k of users to a .parquet, .csv or .jsonl file and return its number of rows: `hmlet export`.

    Example: hmlet.export("runs/end", "topn.parquet", k=20)

    `users` are all by default. `mask` names the parts whose items are left out; `allow` and `deny` are lists of items.
    Processes that torchrun started share the work; `ranks` are those of a group already joined.
    """
    with _together(ranks) as group, working_threads(), progress("exporting") as advance:
        opened = _open(run)
        chosen = None if users is None else opened.data.users.indices(users).astype(np.int64)
        return write_lists(opened, out, k, chosen, mask, opened.allowed(allow, deny), advance, group)


def serve(
    run: Run | Path | str,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    allow_hosts: Sequence[str] = (),
    reload_root: Path | str | None = None,
    approximate: bool = False,
    listening: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve a run over HTTP until the process is told to stop: `hmlet serve`.

    Example: hmlet.serve("runs/end", port=8000)

    Requests must carry the bearer `token`, by default that of HMLET_TOKEN; an address that other machines can reach
    needs one. `reload_root` is a directory whose runs POST /v1/reload may swap in. `listening` is told the address once
    requests are answered there.
    """
    if token is None and "HMLET_TOKEN" in os.environ:
        token = os.environ["HMLET_TOKEN"].strip()
    root = None if reload_root is None else Path(reload_root)
    settings = Settings(host, port, token, tuple(allow_hosts), root, approximate)
    try:
        from hmlet.serving import server
    except ImportError as error:
        raise MissingExtra("hmlet serve", str(error.name), "serve") from error
    server.serve(_path(run), Run.open, settings, listening)


# -- a run ------------------------------------------------------------------------------------------------------


class Run(Recommender):
    """A finished run: its data, its factors, what they recommend, and how good they are.

    Example: hmlet.Run.open("runs/end").recommend(["gimp"], k=5)
    """

    @property
    def still_improving(self) -> bool:
        """Whether validation was best at the very end of a constant schedule: more epochs may give more."""
        train, record = self.recipe.train, self.record
        ended = record.best_epoch == train.epochs > train.validate_every
        return bool(record.valid) and ended and train.schedule == "constant"

    @property
    def profile(self) -> MeasuredRun | None:
        """Where the time of the training went, if it was profiled: the content of profile.json."""
        if PROFILE not in self.record.files:
            return None
        return cast("MeasuredRun", self.directory.read_json(PROFILE))

    def analyze(self, *, centrality: str = "exact", device: str = "auto", progress: Progress = hidden) -> Analysis:
        """What the gates chose, and what explains it; see `hmlet.analyze`."""
        (found,) = analyze(self, centrality=centrality, device=device, progress=progress)
        return found

    def report(self, out: Path | str, *, figures: Path | str | None = None, progress: Progress = hidden) -> list[Path]:
        """Write a page about this run; see `hmlet.report`."""
        return report(self, out=out, figures=figures, progress=progress)

    export = export
    serve = serve


# -- what the functions share -------------------------------------------------------------------------------------


def _path(run: Run | Path | str) -> Path:
    return run.directory.path if isinstance(run, Run) else Path(run)


def _open(run: Run | Path | str) -> Run:
    return run if isinstance(run, Run) else Run.open(run)


def _open_all(runs: Sequence[Run | Path | str]) -> list[Run]:
    if not runs:
        raise ConfigError("there is no run to look at", "name at least one")
    return [_open(run) for run in runs]


def _require_data(data: Dataset | Path | str) -> None:
    if not isinstance(data, Dataset | Path | str):
        raise DataError(f"cannot train on a {type(data).__name__}", "make a data set of it: Dataset.from_frame(…)")


def _load(data: Dataset | Path | str, progress: Progress) -> Dataset:
    if isinstance(data, Dataset):
        return data
    with progress(f"loading {data}") as advance:
        return load(data, advance=advance)


def _sizes(data: Dataset | Path | str | None, users: float | None, items: float | None, edges: float | None) -> Sizes:
    given = (users, items, edges)
    if data is not None and given == (None, None, None):
        return Sizes.of(_load(data, hidden))
    if data is not None:
        raise ConfigError(f"plan was given DATA, {str(data)!r}, and sizes as well", "leave out one or the other")
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


def _threads(
    device: torch.device, threads: int | None, recipe: Recipe, begun: RunDirectory | None = None
) -> AbstractContextManager[None]:
    """The CPU threads of a training. A resumed one takes as many as before, because sums depend on the number."""
    if threads is None and device.type == "cuda":
        return nullcontext()
    if threads is None and begun is not None and begun.record.hardware.kind == "cpu":
        threads = min(begun.record.hardware.threads, possible_threads())
    return working_threads(threads, measured=not recipe.train.deterministic)


@contextmanager
def _together(ranks: Ranks | None) -> Iterator[Ranks]:
    """The given ranks, or for the length of the call those that torchrun started."""
    if ranks is not None:
        yield ranks
        return
    with joined() as group:
        yield group


def _warn(recipe: Recipe, device: str) -> None:
    """Warn that a recipe for a GPU is slow without one."""
    if device == "cpu" and recipe.train.precision == "bfloat16":
        smaller = override("model.embedding_size=64")
        log.warning("this recipe was made for a GPU and takes long on a CPU; %s makes it smaller", smaller)
