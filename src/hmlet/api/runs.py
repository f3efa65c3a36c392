"""A finished run with what one asks of it, and the functions that take one run or several.

What needs SciPy's statistics is imported where it is used: that takes a second, and recommendations do without.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast, overload

import numpy as np

from hmlet.data.inputs import Reading
from hmlet.data.interactions import Id
from hmlet.errors import ConfigError, MissingExtra, NothingHeldOut, RunError
from hmlet.ranking.evaluation import KNOWN, Evaluation, Evaluations
from hmlet.recommend.export import export as write_lists
from hmlet.recommend.recommender import Recommender
from hmlet.runs.finished import list_length
from hmlet.serving.settings import Settings
from hmlet.system.progress import Progress, watching
from hmlet.system.ranks import Ranks, joined
from hmlet.system.threads import working_threads
from hmlet.training.loop import choose_device
from hmlet.training.profiling import PROFILE, MeasuredRun

if TYPE_CHECKING:
    from hmlet.analysis.result import Analysis
    from hmlet.ranking.statistics import Comparison

log = logging.getLogger(__name__)


@overload
def evaluate(
    run: Run | Path | str,
    split: str = "test",
    mask: str = "train",
    k: int = 20,
    *,
    device: str = "auto",
    progress: Progress | bool = True,
) -> Evaluation: ...
@overload
def evaluate(
    run: Run | Path | str,
    split: str = "test",
    mask: str = "train",
    *,
    k: Sequence[int],
    device: str = "auto",
    progress: Progress | bool = True,
) -> Evaluations: ...
def evaluate(
    run: Run | Path | str,
    split: str = "test",
    mask: str = "train",
    k: int | Sequence[int] = 20,
    *,
    device: str = "auto",
    progress: Progress | bool = True,
) -> Evaluation | Evaluations:
    """Full-ranking metrics of a run, averaged over users: `hmlet evaluate`.

    Example: hmlet.evaluate("runs/end").metrics["ndcg"]

    `mask` names the parts whose items are left out of the ranking: train or train+valid. Several lengths `k` of the
    lists give an evaluation each. The device does not change the numbers.
    """
    with working_threads(), watching(progress)(f"evaluating {_path(run)}") as advance:
        opened, place = open_run(run), str(choose_device(device))
        if isinstance(k, Iterable):
            return opened.evaluate(split, mask, k=k, advance=advance, device=place)
        return opened.evaluate(split, mask, k, advance, place)


def compare(
    *runs: Run | Path | str, split: str = "test", mask: str = "train", k: int = 20, progress: Progress | bool = True
) -> Comparison:
    """Compare models and test whether the difference between the two best is significant: `hmlet compare`.

    Example: hmlet.compare("runs/end", "runs/lightgcn").conclusion()

    Runs that differ only in their seed count as one model. `Comparison.floor` has what every model has to beat: the
    metrics of popularity on the same data, unless one of the runs is popularity.
    """
    from hmlet.runs.comparison import compare_runs

    with watching(progress)("evaluating") as advance:
        return compare_runs([open_run(run) for run in runs], split, mask, k, advance)


def analyze(
    *runs: Run | Path | str, centrality: str = "exact", device: str = "auto", progress: Progress | bool = True
) -> list[Analysis]:
    """What the gates of each run chose and what explains it, kept in the run as analysis.json: `hmlet analyze`.

    Example: hmlet.analyze("runs/end", centrality="sampled:1000")[0].verdict["degree"].verdict

    Several runs of one model and data set also tell how many nodes keep their class. `centrality` is exact, sampled:N
    (betweenness and closeness from N sources) or none; `device` computes it.
    """
    from hmlet.analysis.study import analysed, keep

    opened, place = _open_all(runs), choose_device(device)
    directories = [run.directory for run in opened]
    with watching(progress)("centralities") as advance:
        found = analysed(directories, opened[0].data, centrality, device=place, advance=advance)
    for directory, result in zip(directories, found, strict=True):
        try:
            keep(directory, result)
        except RunError as error:  # the numbers are right even if they cannot be kept
            log.warning("the analysis could not be stored in %s: %s", directory.path, error)
    return found


def report(
    *runs: Run | Path | str, out: Path | str, figures: Path | str | None = None, progress: Progress | bool = True
) -> list[Path]:
    """Write one self-contained page about runs, and return the files written, the page first: `hmlet report`.

    Example: hmlet.report("runs/end", "runs/lightgcn", out="report.html")

    The gate figures show the first analysed run. With `figures`, every figure is also written to
    that directory as SVG and PNG.
    """
    from hmlet.reporting import write_report
    from hmlet.runs.comparison import compare_runs, floor_of

    opened = _open_all(runs)
    with watching(progress)("comparing") as advance:
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
    progress: Progress | bool = True,
    ranks: Ranks | None = None,
) -> int:
    """Write the top-k of users to a .parquet, .csv or .jsonl file and return its number of rows: `hmlet export`.

    Example: hmlet.export("runs/end", "topn.parquet", k=20)

    `users` are all by default. `mask` names the parts whose items are left out; `allow` and `deny` are lists of items.
    Processes that torchrun started share the work; `ranks` are those of a group already joined.
    """
    with joined(ranks) as group, working_threads(), watching(progress)("exporting") as advance:
        opened = open_run(run)
        chosen = None if users is None else opened.data.users.indices(users).astype(np.int64)
        return write_lists(opened, out, list_length(k), chosen, mask, opened.allowed(allow, deny), advance, group)


def serve(
    run: Run | Path | str,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    allow_hosts: Sequence[str] = (),
    reload_root: Path | str | None = None,
    approximate: bool = False,
    compare: Sequence[Path | str] = (),
    workers: int = 1,
    listening: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve a run over HTTP until the process is told to stop: `hmlet serve`.

    Example: hmlet.serve("runs/end", port=8000)

    Requests must carry the bearer `token`, by default that of HMLET_TOKEN; an address that other machines can reach
    needs one. `reload_root` is a directory whose runs POST /v1/reload may swap in. `compare` are further runs of the
    same data, which the explorer shows beside this one. `workers` is how many processes share the address. `listening`
    receives the address once the service answers requests.
    """
    if token is None and "HMLET_TOKEN" in os.environ:
        token = os.environ["HMLET_TOKEN"].strip()
    root = None if reload_root is None else Path(reload_root)
    settings = Settings(host, port, token, tuple(allow_hosts), root, approximate, tuple(map(Path, compare)), workers)
    try:
        from hmlet.serving import server
    except ImportError as error:
        raise MissingExtra("hmlet serve", str(error.name), "serve") from error
    server.serve(_path(run), settings, run.data_now if isinstance(run, Run) else None, listening)


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

    def analyze(self, *, centrality: str = "exact", device: str = "auto", progress: Progress | bool = True) -> Analysis:
        """What the gates chose, and what explains it; see `hmlet.analyze`."""
        (found,) = analyze(self, centrality=centrality, device=device, progress=progress)
        return found

    def report(
        self, out: Path | str, *, figures: Path | str | None = None, progress: Progress | bool = True
    ) -> list[Path]:
        """Write a page about this run; see `hmlet.report`."""
        return report(self, out=out, figures=figures, progress=progress)

    def update(
        self,
        interactions: Any,
        out: Path | str | None = None,
        *,
        device: str = "auto",
        threads: int | None = None,
        resume: bool = False,
        progress: Progress | bool = True,
        **options: Unpack[Reading],
    ) -> Run:
        """Train further on new interactions, as a new run; see `hmlet.update`."""
        from hmlet.api.upkeep import update  # which needs this class

        return update(
            self, interactions, out, device=device, threads=threads, resume=resume, progress=progress, **options
        )

    export = export
    serve = serve


def _path(run: Run | Path | str) -> Path:
    return run.directory.path if isinstance(run, Run) else Path(run)


def open_run(run: Run | Path | str) -> Run:
    """A run as it is, or the finished run in a directory."""
    return run if isinstance(run, Run) else Run.open(run)


def _open_all(runs: Sequence[Run | Path | str]) -> list[Run]:
    if not runs:
        raise ConfigError("no runs were given", "name at least one")
    return [open_run(run) for run in runs]
