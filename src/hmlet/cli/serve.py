"""`hmlet serve`: a finished run over HTTP, and the page that explores it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hmlet.cli.console import app, note

if TYPE_CHECKING:
    from hmlet.serving.settings import Settings


@app.command()
def serve(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    host: Annotated[str, typer.Option(help="The address to listen on; one that others can reach needs a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.", min=0, max=65535)] = 8000,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the bearer token that requests must carry (or set HMLET_TOKEN).")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A further name by which requests may call the service, repeatable.")
    ] = None,
    reload_root: Annotated[
        Path | None, typer.Option(help="Let POST /v1/reload swap in runs of this directory. SIGHUP rereads RUN always.")
    ] = None,
    approximate: Annotated[
        bool, typer.Option("--approximate", help="Search an index; GET /v1/model says how much it finds.")
    ] = False,
) -> None:
    """Serve a run over HTTP, with the explorer page at /.

    Example: hmlet serve runs/end --port 8000
    """
    settings = _settings(host, port, token_file, allow_host or [], reload_root, approximate)

    from hmlet.api import Run
    from hmlet.errors import MissingExtra

    try:
        from hmlet.serving.server import serve
    except ImportError as error:
        raise MissingExtra("hmlet serve", str(error.name), "serve") from error
    serve(run, Run.open, settings, lambda address: note(f"serving {run} at {address} (Ctrl-C stops)"))


def _settings(
    host: str, port: int, token_file: Path | None, hosts: list[str], reload_root: Path | None, approximate: bool
) -> Settings:
    import os

    from hmlet.errors import ConfigError
    from hmlet.serving.settings import Settings

    try:
        token = token_file.read_text(encoding="utf-8") if token_file else os.environ.get("HMLET_TOKEN")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the token in {token_file}", "write one line of text into it") from error
    return Settings(host, port, None if token is None else token.strip(), tuple(hosts), reload_root, approximate)
