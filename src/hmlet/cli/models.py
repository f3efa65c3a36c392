"""`hmlet models`: every model in a line."""

from __future__ import annotations

from hmlet.cli.console import Json, app, print_json, print_table


@app.command()
def models(as_json: Json = False) -> None:
    """List every model: its kind, a summary, and the losses that can train it.

    Example: hmlet models
    """
    import hmlet

    found = hmlet.list_models()
    if as_json:
        print_json([each.as_json() for each in found])
        return
    print_table(
        ["model", "kind", "summary", "losses"],
        [[each.name, each.kind, each.summary, ", ".join(each.losses) or "none (solved directly)"] for each in found],
    )
