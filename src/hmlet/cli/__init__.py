"""The command line: parse, call, print. Commands import what they need when they run, so `--help` stays quick."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any, TextIO

import typer

from hmlet.cli import (  # noqa: F401 - commands register themselves when they are imported
    analyze,
    compare,
    data,
    doctor,
    evaluate,
    finish,
    leaderboard,
    models,
    package,
    plan,
    recommend,
    report,
    reproduce,
    serve,
    train,
    try_file,
    tune,
    update,
)
from hmlet.cli.console import (
    app,
    do_without_pandas,
    end_when_told,
    in_shell,
    is_utf8,
    print_line,
    remarks,
    report_error,
    say_stopped,
    settle_streams,
    speaks,
    wait_without_spinning,
)
from hmlet.errors import ConfigError, HmletError, LostRank
from hmlet.version import VERSION

app.add_typer(data.app, name="data", no_args_is_help=False)
GRACE = 3.0  # seconds
COMPLETION = "_HMLET_COMPLETE"  # the variable by which the scripts of `hmlet --install-completion` ask
_ON_RANKS = ("train", "export")  # the commands that several processes can share


def _tell_version(wanted: bool) -> None:
    if wanted:
        print_line(f"hmlet {VERSION}")
        raise typer.Exit


@app.callback()
def hmlet(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Graph collaborative filtering in which every node chooses between linear and non-linear propagation."""


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status of one command: 0, 2 for a user error (one line on standard error), 1 for an internal error."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        _require_utf8(arguments)
        _require_one_process(arguments)
        with in_shell(), remarks():
            return _call(arguments)
    except HmletError as error:
        _report(error)
        if isinstance(error, LostRank):
            os._exit(error.exit_code)  # PyTorch's own shutdown may wait for the rank that has died
        return error.exit_code
    except KeyboardInterrupt:
        report_error("interrupted")
        return 130
    except BrokenPipeError:
        _abandon(sys.stdout)  # the reader closed the pipe (`hmlet … | head`)
        return 0
    except Exception as error:
        if _lacks_memory(error):
            _report(HmletError("not enough memory", "free some, raise the limit, or use less data"))
            return HmletError.exit_code
        if isinstance(error, OSError) and error.errno is not None:
            _report(_refused(error))
            if error.filename is None:
                _abandon(sys.stdout)
            return HmletError.exit_code
        # Typer's own usage errors differ in class between versions; all of them can say what is wrong.
        if not hasattr(error, "format_message"):
            raise
        said = error.format_message().rstrip(".")
        report_error(
            f"{said}{' See' if said.endswith('?') else ': see'} `{' '.join(['hmlet', *_command(arguments)])} --help`"
        )
        return 2


def _refused(error: OSError) -> HmletError:
    """A system error that no command handled, for a path or for standard output."""
    if error.filename is None:
        return HmletError(f"cannot read or write: {error.strerror}", "check the disk, and where standard output goes")
    return HmletError(f"{error.filename}: {error.strerror}", "check the path and its permissions")


def _lacks_memory(error: BaseException | None) -> bool:
    """Whether an error means that memory ran out; PyTorch and the dynamic linker have no class for it."""
    if error is None:
        return False
    said = str(error).lower()
    words = ("allocate memory", "not enough memory", "failed to map segment", "out of memory")
    own = isinstance(error, RuntimeError | ImportError | OSError) and any(each in said for each in words)
    return isinstance(error, MemoryError) or own or _lacks_memory(error.__cause__)


def _require_utf8(arguments: list[str]) -> None:
    """Reject an argument that is not UTF-8: JSON cannot store it, and some libraries cannot open it."""
    for argument in arguments:
        if not is_utf8(argument):
            raise ConfigError(f"the argument {argument!r} is not UTF-8", "rename the file, or write the id in UTF-8")


def _abandon(stream: TextIO) -> None:
    """Keep Python from complaining at exit about output that cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _report(error: HmletError) -> None:
    """One line about an error, from a single process if possible.

    A rank that found what every rank can find lets rank 0 say it, whereupon torchrun ends all others. Where that does
    not happen, the error is this rank's alone, or rank 0 is slow: then it speaks after all.
    """
    if not (speaks() or error.of_one_rank or error.of_all_ranks):
        time.sleep(GRACE)
    if speaks() or not error.of_all_ranks:
        report_error(str(error))


def _require_one_process(arguments: list[str]) -> None:
    """Reject several processes of a command that supports only one."""
    if int(os.environ.get("WORLD_SIZE", "1")) <= 1 or "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    if (command := " ".join(_command(arguments))) not in _ON_RANKS or "--refit-all" in arguments:
        raise ConfigError(
            f"hmlet {command} runs in one process", f"start it without torchrun, which is for {' and '.join(_ON_RANKS)}"
        )


def _call(arguments: list[str]) -> int:
    """The status of a command, called without Typer's own main: that swallows interrupts and broken pipes."""
    command = typer.main.get_command(app)
    try:
        with command.make_context("hmlet", arguments or ["--help"]) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    finally:
        sys.stdout.flush()  # a closed pipe raises here, not after main
    return 0


def _command(arguments: list[str]) -> list[str]:
    """The leading words of a command line that name an existing command: `data stats`, `train`."""
    found: list[str] = []
    here: Any = typer.main.get_command(app)
    for word in (word for word in arguments if not word.startswith("-")):
        here = getattr(here, "commands", {}).get(word)
        if here is None:
            break
        found.append(word)
    return found


def run() -> None:
    """The console script's entry."""
    settle_streams()
    if COMPLETION in os.environ:  # a shell asks what may follow; Typer answers and ends the process
        app(prog_name="hmlet")
    end_when_told(say_stopped)
    wait_without_spinning()
    do_without_pandas()
    gc.set_threshold(10_000, 10, 10)  # imports make many objects and no garbage; Python would look after every 700
    status = main()
    gc.freeze()  # or Python looks for garbage among all of PyTorch once more before it exits
    try:
        sys.stderr.flush()
    except OSError:  # a full disk, where Python would exit with its own status
        _abandon(sys.stderr)
    sys.exit(status)
