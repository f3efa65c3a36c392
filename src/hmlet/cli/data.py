"""`hmlet data …`: fetch, prepare and describe data sets."""

from __future__ import annotations

import typer

app = typer.Typer(help="Fetch, prepare and describe data sets.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    pass
