"""SIGINT and SIGTERM end every command soon, at every moment, without a traceback or a temporary file left behind."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from finished import finished

from hmlet.api import fit
from hmlet.cli import app
from hmlet.config import resolve
from hmlet.data.catalog import load

SECONDS = 5.0  # from the signal to the end
LATEST = 5.0  # seconds from the start to the last moment
MOMENTS = 50  # a command in the long form

# Each command as it works for a while; {run}, {unfinished}, {rows} and {nowhere} are made below.
COMMANDS = {
    "analyze": "{run}",
    "compare": "{run} {run}",
    "data fetch": "gowalla --mirror {nowhere}",
    "data list": "",
    "data prepare": "{rows} --out prepared",
    "data stats": "debian",
    "doctor": "",
    "evaluate": "{run} -k 21",
    "explain": "{run} --user u1 --item i1",
    "export": "{run} --out topn.csv",
    "finish": "{unfinished}",
    "leaderboard": "debian --out board",
    "models": "",
    "package": "{run} --out packed",
    "plan": "debian --model hmlet-end",
    "pull": "nobody/nothing --out pulled",
    "push": "{run} nobody/nothing",
    "recommend": "{run} --user u1",
    "report": "{run} --out report.html",
    "reproduce": "--dataset debian --seeds 1 --out results",
    "serve": "{run} --port 0",
    "similar": "{run} --item i1",
    "train": "debian --model hmlet-end --out run",
    "try": "{rows} --out tried",
    "tune": "debian --model lightgcn --out tuned --trials 3",
    "update": "{run} {rows} --user user --item item",
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path | str]]:
    """What the commands work on. Mirror and Hub are an address that accepts connections and says nothing."""
    root = tmp_path_factory.mktemp("signals")
    finished("hmlet-end", root / "run")

    def stop(event: Any) -> None:
        raise KeyboardInterrupt

    recipe = resolve("hmlet-end", overrides=["model.embedding_size=8", "train.checkpoint_seconds=0", "train.epochs=2"])
    with pytest.raises(KeyboardInterrupt):
        fit(load("debian"), recipe, root / "unfinished", callbacks=[stop])
    dice = random.Random(1)
    rows = [f"{dice.randrange(5000)},{dice.randrange(2000)}" for _ in range(200_000)]
    (root / "rows.csv").write_text("\n".join(["user,item", *rows]))
    with socket.create_server(("127.0.0.1", 0)) as nowhere:
        address = f"http://127.0.0.1:{nowhere.getsockname()[1]}"
        yield {**{name: root / name for name in ("run", "unfinished")}, "rows": root / "rows.csv", "nowhere": address}


def end(command: str, places: dict[str, Path | str], here: Path, moment: float, number: signal.Signals) -> None:
    """Start a command, send it a signal at a moment, and require a good end."""
    own = dict(places)
    if command == "finish":
        own["unfinished"] = here / "unfinished"
        shutil.copytree(places["unfinished"], here / "unfinished")
    (here / "tmp").mkdir()
    words = [*command.split(), *(word.format(**own) for word in COMMANDS[command].split())]
    process = subprocess.Popen(
        [sys.executable, "-m", "hmlet", *words],
        cwd=here,
        env={
            **os.environ,
            "TMPDIR": str(here / "tmp"),
            "HMLET_CACHE": str(here / "cache"),
            "HF_ENDPOINT": str(places["nowhere"]),
            "HF_TOKEN": "hf_none",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
    )
    time.sleep(moment)
    process.send_signal(number)
    began = time.monotonic()
    try:
        _, said = process.communicate(timeout=4 * SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"{command}: {number.name} after {moment:.3f} s did not end it") from None
    case = f"{command}: {number.name} after {moment:.3f} s: status {process.returncode}\n{said}"
    assert time.monotonic() - began < SECONDS, case
    if "Traceback" in said and f"hmlet{os.sep}" not in said:
        return  # Python itself was still starting, and had not reached our first line
    assert "Traceback" not in said, case
    # 130 is also what a training says that has saved itself; 0 is a command that was quicker, or the service.
    assert process.returncode in (0, -number, 128 + number, 130), case
    left = [path for path in here.rglob("*") if path.name.endswith((".tmp", ".tmp.old")) or path.match("tmp/*")]
    assert left == [], case


def leaves(group: Any, prefix: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, f"{name} ")
        else:
            yield prefix + name


def test_every_command_is_tried() -> None:
    assert set(COMMANDS) == set(leaves(typer.main.get_command(app)))


@pytest.mark.parametrize("at", range(len(COMMANDS)))
def test_a_signal_ends_a_command(places: dict[str, Path | str], tmp_path: Path, at: int) -> None:
    moment = 0.05 + 2.5 * at / len(COMMANDS)
    end(list(COMMANDS)[at], places, tmp_path, moment, (signal.SIGINT, signal.SIGTERM)[at % 2])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", ["serve", "train"])
def test_a_signal_ends_what_runs_for_long(
    places: dict[str, Path | str], tmp_path: Path, command: str, number: signal.Signals
) -> None:
    end(command, places, tmp_path, LATEST, number)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_signal_at_any_moment_ends_a_command(places: dict[str, Path | str], tmp_path: Path, command: str) -> None:
    for at in range(MOMENTS):
        (tmp_path / str(at)).mkdir()
        number = (signal.SIGINT, signal.SIGTERM)[at % 2]
        end(command, places, tmp_path / str(at), LATEST * at / (MOMENTS - 1), number)
        shutil.rmtree(tmp_path / str(at))
