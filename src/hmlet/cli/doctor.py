"""`hmlet doctor`: installed versions, devices, and missing extras."""

from __future__ import annotations

import platform

from hmlet.cli.console import Json, app, print_json, print_line, print_table, readable


@app.command()
def doctor(as_json: Json = False) -> None:
    """Show versions, devices, memory and missing extras.

    Example: hmlet doctor
    """
    from hmlet.api import environment

    found = environment()
    if as_json:
        print_json(found.as_json())
        return
    print_line(f"hmlet {found.hmlet}, Python {found.python} on {platform.system()}")
    print_table(["library", "version"], [[name, number or "missing"] for name, number in found.libraries.items()])
    for place, device in found.devices.items():
        print_line(f"{place}: {device.name}, {readable(device.free_bytes)} free")
    missing = ",".join(found.missing_extras)
    print_line(f"missing: pip install 'hmlet[{missing}]'" if missing else "all extras are installed")
    if found.compiles_at_start:
        print_line("every command starts seconds later than it could, because Python must not keep what it compiles:")
        print_line("unset PYTHONDONTWRITEBYTECODE, or run python -m compileall -q on the folder of the libraries once")
