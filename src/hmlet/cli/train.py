"""`hmlet train`: a recipe and a data set to a run directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hmlet.cli.console import (
    Json,
    MaybeModel,
    Overrides,
    Preset,
    app,
    given,
    note,
    print_json,
    print_line,
    print_table,
    progress,
    speaks,
)

if TYPE_CHECKING:
    from hmlet.config import Recipe
    from hmlet.runs.record import RunRecord


@app.command()
def train(
    context: typer.Context,
    data: Annotated[str, typer.Argument(metavar="DATA", help="A prepared directory or a named set.")],
    model: MaybeModel = None,
    out: Annotated[Path | None, typer.Option(help="The run directory to write.")] = None,
    preset: Preset = "hmlet",
    config: Annotated[Path | None, typer.Option(help="A TOML recipe on top of the preset.")] = None,
    overrides: Overrides = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    seed: Annotated[int | None, typer.Option(help="The number that every random choice comes from.")] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on from the last checkpoint of --out; without --model, by its own recipe."),
    ] = False,
    deterministic: Annotated[bool, typer.Option("--deterministic", help="Bit-identical on CUDA too.")] = False,
    tensorboard: Annotated[Path | None, typer.Option(help="Also write TensorBoard events there.")] = None,
    profiled: Annotated[
        bool, typer.Option("--profile", help="Also say where the time went, beside the least that the device needs.")
    ] = False,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print the resolved recipe and stop.")] = False,
    as_json: Json = False,
) -> None:
    """Train a model and write its run directory.

    Example: hmlet train debian --model hmlet-end --out runs/end --set train.epochs=50

    On several devices: torchrun --nproc-per-node 4 -m hmlet train … --resume
    """
    from hmlet.config import resolve
    from hmlet.data.catalog import known_name, load
    from hmlet.errors import ConfigError

    chosen = [*(overrides or []), *(["train.deterministic=true"] if deterministic else [])]
    if model is not None:
        recipe = resolve(model, preset, config, chosen, seed, known_name(data))
    elif resume and out is not None and not (chosen or config or given(context, "preset") or given(context, "seed")):
        from hmlet.runs.directory import RunDirectory

        recipe = RunDirectory.open(out).recipe()
    else:
        raise ConfigError("train needs --model", "for example --model hmlet-end; only --resume alone can do without it")
    model = recipe.model.name
    if print_config:
        if as_json:
            print_json(recipe.model_dump(mode="json", exclude_none=True))
        else:
            print_line(recipe.to_toml().rstrip())
        return
    if out is None:
        raise ConfigError("train needs --out", "name the run directory to write, for example --out runs/first")

    from hmlet.system.ranks import joined
    from hmlet.training.loop import choose_device, fit
    from hmlet.training.planning import Sizes, memory_plan, readable
    from hmlet.training.profiling import UNWATCHED, Profile

    profile = Profile() if profiled else None
    with progress(f"loading {data}") as advance, (profile or UNWATCHED).phase("load"):
        dataset = load(data, advance=advance)
    with (
        joined() as ranks,
        progress(f"training {model}") as advance,
        _Events(tensorboard if speaks() else None) as record,
    ):
        kind = choose_device(device, ranks).type
        plan = memory_plan(recipe, Sizes.of(dataset), kind, ranks)
        note(f"{model} on {dataset.name}: about {readable(plan.total)} of memory{' a rank' * (ranks.size > 1)}")
        if kind == "cpu" and recipe.train.precision == "bfloat16":
            note(
                "this recipe was made for a GPU and takes long on a CPU; --set model.embedding_size=64 makes it smaller"
            )

        def listen(event: dict[str, Any]) -> None:
            at, last = event["epoch"], event["epochs"]
            advance(at, last, f"epoch {at} of {last}  loss {event['loss']:.4f}  {_best(event)}".rstrip())
            record(event)

        run = fit(dataset, recipe, out, device=device, resume=resume, listener=listen, ranks=ranks, profile=profile)
    measured = run.read_json("profile.json") if profiled and speaks() and "profile.json" in run.record.files else None
    if as_json:
        found = run.record.model_dump(include={"model", "best_epoch", "valid", "timings"})
        print_json({"run": str(run.path), **found, **({"profile": measured} if measured else {})})
        return
    print_line(_summary(run.path, run.record))
    if _still_rose(run.record, recipe):
        note("validation still rose at the end; more may come of a larger train.epochs or train.learning_rate")
    if measured:
        _print_profile(measured)


def _summary(path: Path, record: RunRecord) -> str:
    """One line: the best epoch, and what it is worth by the validation part."""
    line = f"{path}: best epoch {record.best_epoch} of {record.epochs}"
    if not record.valid:
        return f"{line}; no validation part: the last epoch is kept"
    worth = ", ".join(f"{name} {record.valid[name]:.4f}" for name in ("ndcg", "recall", "precision"))
    return f"{line}; validation @20: {worth}"


def _still_rose(record: RunRecord, recipe: Recipe) -> bool:
    """Whether the schedule ended before learning did; one that lets the step size go to nothing is best at its end."""
    train = recipe.train
    return (
        bool(record.valid) and record.best_epoch == train.epochs > train.validate_every and train.schedule == "constant"
    )


def _print_profile(measured: dict[str, Any]) -> None:
    """Two tables: the run by phase, and a step by part beside its floor."""
    print_line()
    total = measured["seconds"]
    rows = [(name, f"{seconds:.3f}", f"{seconds / total:.1%}") for name, seconds in measured["phases"].items()]
    print_table(["phase", "seconds", "share"], [*rows, ("all", f"{total:.3f}", "100.0%")])
    step = measured.get("step")
    if step is None:
        return

    def milliseconds(seconds: float | None) -> str:
        return "–" if seconds is None else f"{1e3 * seconds:.3f}"

    print_line()
    parts = [
        (row["part"], milliseconds(row["seconds"]), milliseconds(row["floor_seconds"]), row.get("bound", "–"))
        for row in step["parts"]
    ]
    whole = ("a step", milliseconds(step["seconds"]), milliseconds(step["floor_seconds"]), "")
    print_table(["part, with its gradient", "ms", "floor ms", "floor waits for"], [*parts, whole])
    rates = step["rates"]
    share = "no step was measured" if step["seconds"] is None else f"{step['share_of_floor']:.0%} of the floor"
    print_line(
        f"{share}; this device copies {rates['copied'] / 1e9:.0f} GB/s, gathers {rates['gathered'] / 1e9:.0f} GB/s"
        f" from its cache and multiplies {rates['multiplied'] / 1e12:.2f} TFLOP/s"
    )


def _best(event: dict[str, Any]) -> str:
    best = event["best"]
    return f"best ndcg {best['ndcg']:.4f} (epoch {best['epoch']})" if best["epoch"] else ""


class _Events:
    """Scalars of each epoch as TensorBoard events, or nothing where no directory is given."""

    def __init__(self, directory: Path | None) -> None:
        self.writer: Any = None
        if directory is not None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                from hmlet.errors import MissingExtra

                raise MissingExtra("--tensorboard", "tensorboard", "tensorboard") from error
            self.writer = SummaryWriter(str(directory))

    def __enter__(self) -> Any:
        return self._record

    def _record(self, event: dict[str, Any]) -> None:
        if self.writer is None:
            return
        self.writer.add_scalar("loss", event["loss"], event["epoch"])
        for name, value in event.get("valid", {}).items():
            self.writer.add_scalar(f"valid/{name}", value, event["epoch"])

    def __exit__(self, *exception: object) -> None:
        if self.writer is not None:
            self.writer.close()
