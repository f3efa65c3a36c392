"""`hmlet serve`: serve a finished run over HTTP, with the explorer page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hmlet.cli.console import app, note, read_text
from hmlet.cli.evaluate import DataNow


@app.command()
def serve(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    host: Annotated[str, typer.Option(help="The address to listen on; a non-local address needs a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="The port to listen on; 0 picks a free one.", min=0, max=65535)] = 8000,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the bearer token that requests must carry (or set HMLET_TOKEN).")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Another host name to accept in requests; repeatable.")
    ] = None,
    reload_root: Annotated[
        Path | None,
        typer.Option(help="Allow POST /v1/reload to load runs from this directory. SIGHUP always reloads RUN."),
    ] = None,
    compare: Annotated[
        list[Path] | None, typer.Option(help="A run of the same data to show beside RUN in the explorer, repeatable.")
    ] = None,
    data: DataNow = None,
    approximate: Annotated[
        bool, typer.Option("--approximate", help="Use an approximate index; GET /v1/model reports its recall.")
    ] = False,
    workers: Annotated[
        int, typer.Option(help="Processes that share the address; each takes a core and memory of its own.", min=1)
    ] = 1,
) -> None:
    """Serve a run over HTTP, with the explorer page at /.

    Example: hmlet serve runs/end --port 8000
    """
    import hmlet

    hmlet.serve(
        hmlet.Run.open(run, data),
        host=host,
        port=port,
        token=None if token_file is None else read_text(token_file, "the token as its one line").strip(),
        allow_hosts=allow_host or [],
        reload_root=reload_root,
        approximate=approximate,
        compare=compare or [],
        workers=workers,
        listening=lambda address: note(f"serving {run} at {address} (Ctrl-C stops)"),
    )
