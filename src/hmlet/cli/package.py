"""`hmlet package`, `push` and `pull`: a finished run on its way to other machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hmlet.cli.console import Json, app, print_json, print_line, progress
from hmlet.cli.evaluate import DataNow, RunPath

Repository = Annotated[str, typer.Argument(metavar="REPOSITORY", help="owner/name on the Hugging Face Hub.")]


@app.command()
def package(
    run: RunPath,
    out: Annotated[Path, typer.Option(help="The folder to write, or an archive whose name ends with .tar.gz.")],
    wheel: Annotated[
        Path | None, typer.Option(help="An hmlet wheel to include, if the target cannot install hmlet from an index.")
    ] = None,
    data: DataNow = None,
    as_json: Json = False,
) -> None:
    """Write everything needed to serve a run elsewhere: data, model card, Dockerfile, compose and Kubernetes files.

    Example: hmlet package runs/end --out package
    """
    import hmlet

    written = hmlet.package(hmlet.Run.open(run, data), out, wheel=wheel, progress=progress)
    if as_json:
        print_json({"package": str(written)})
        return
    print_line(f"{written}: see its README.md, the model card, for how to serve it")


@app.command()
def push(
    run: RunPath,
    repository: Repository,
    private: Annotated[
        bool, typer.Option("--private/--public", help="Visibility of the repository if it is created.")
    ] = True,
    data: DataNow = None,
    as_json: Json = False,
) -> None:
    """Upload a run's package to the Hugging Face Hub. It contains the interactions and ids of all users.

    The token is that of HF_TOKEN, or of `hf auth login`.

    Example: hmlet push runs/end me/recommender
    """
    import hmlet

    commit = hmlet.push(hmlet.Run.open(run, data), repository, private=private, progress=progress)
    if as_json:
        print_json({"repository": repository, "commit": commit})
        return
    print_line(commit)


@app.command()
def pull(
    repository: Repository,
    out: Annotated[Path, typer.Option(help="The folder to write; the run is in its subfolder `run`.")],
    revision: Annotated[str | None, typer.Option(help="A branch, tag or commit. Default: the latest.")] = None,
    as_json: Json = False,
) -> None:
    """Download a run that `hmlet push` uploaded.

    Example: hmlet pull me/recommender --out recommender
    """
    import hmlet

    run = hmlet.pull(repository, out, revision=revision, progress=progress)
    if as_json:
        print_json({"run": str(run.directory.path), "model": run.record.model})
        return
    print_line(f"{run.directory.path}: {run.record.model} on {run.record.data.name}")
