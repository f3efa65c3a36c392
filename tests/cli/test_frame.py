"""The promises of every command: exit status, one-line errors, JSON alone on standard output, quiet broken pipes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forked import Forked

from hmlet.cli import app, console, main
from hmlet.cli.console import Json, note, print_json, print_line, print_table
from hmlet.errors import DataError, HmletError, MissingExtra
from hmlet.version import VERSION

Register = Callable[[Callable[..., None]], None]


@pytest.fixture
def command() -> Iterator[Register]:
    """A way to give `hmlet` a command `probe` for the length of one test."""
    before = list(app.registered_commands)
    yield lambda function: app.command("probe")(function) and None
    app.registered_commands[:] = before


def raising(error: BaseException) -> Callable[[], None]:
    def probe() -> None:
        raise error

    return probe


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"hmlet {VERSION}\n"


@pytest.mark.parametrize("arguments", [["--help"], []], ids=["asked for", "no words"])
def test_help_succeeds_and_names_the_groups(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Usage: hmlet [OPTIONS] COMMAND")
    assert "data" in out
    assert err == ""


@pytest.mark.parametrize(
    ("shell", "asked"),
    [
        ("bash", {"COMP_WORDS": "hmlet recom", "COMP_CWORD": "1"}),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "hmlet recom"}),
        ("fish", {"_TYPER_COMPLETE_ARGS": "hmlet recom", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}),
    ],
)
def test_a_shell_completes_a_command(shell: str, asked: dict[str, str]) -> None:
    """As the script asks that `hmlet --install-completion` installs."""
    environment = {**os.environ, "_HMLET_COMPLETE": f"complete_{shell}", **asked}
    done = subprocess.run([sys.executable, "-m", "hmlet"], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "recommend" in done.stdout
    assert "report" not in done.stdout


@pytest.mark.parametrize("command", ["analyze", "report", "reproduce", "tune", "data prepare"])
def test_each_of_two_examples_has_a_line_of_its_own(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert out.count("Example: ") == len(re.findall(r"^ *Example: ", out, re.MULTILINE)) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "error: No such command 'trian'. Did you mean 'train'? See `hmlet --help`\n"),
        (["zzz", "data"], "error: No such command 'zzz': see `hmlet --help`\n"),
        (["train", "--colour"], "error: No such option: --colour"),
        (["--colour"], "error: No such option: --colour"),
        (["data"], "error: Missing command: see `hmlet data --help`\n"),
        (["data", "lsit"], "error: No such command 'lsit'. Did you mean 'list'? See `hmlet data --help`\n"),
        (["data", "--colour"], "error: No such option: --colour"),
    ],
)
def test_a_mistyped_word_is_a_users_mistake_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(message)
    assert err.count("\n") == 1
    assert "--help" in err


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (HmletError("k is 0"), "error: k is 0\n"),
        (
            DataError("no column 'user' in a.csv", "name it with --user"),
            "error: no column 'user' in a.csv: name it with --user\n",
        ),
        (DataError("two\nlines", "and\n  a fix"), "error: two lines: and a fix\n"),
        (
            MissingExtra("a report", "matplotlib", "report"),
            "error: a report needs matplotlib, which is not installed: pip install 'hmlet[report]'\n",
        ),
    ],
)
def test_a_users_mistake_is_one_line_and_status_2(
    command: Register, capsys: pytest.CaptureFixture[str], error: HmletError, line: str
) -> None:
    command(raising(error))
    assert main(["probe"]) == 2
    assert capsys.readouterr() == ("", line)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            PermissionError(13, "Permission denied", "a/run.json"),
            "error: a/run.json: Permission denied: check the path",
        ),
        (OSError(36, "File name too long", "nnn"), "error: nnn: File name too long: check the path"),
        (OSError(5, "Input/output error"), "error: cannot read or write: Input/output error: check the disk"),
    ],
)
def test_what_the_system_refuses_is_one_line_and_status_2(
    command: Register, capfd: pytest.CaptureFixture[str], error: OSError, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "dup2", lambda here, there: None)  # the test's own output stays
    command(raising(error))
    assert main(["probe"]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(line)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: not enough memory: you tried to allocate"
        ),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        OSError("libgomp.so.1: failed to map segment from shared object"),  # ctypes gives it no number
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_memory_that_runs_out_is_one_line_and_status_2(
    command: Register, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    command(raising(error))
    assert main(["probe"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("error: not enough memory: ")


def test_a_command_with_little_memory_ends_in_one_line(tmp_path: Path) -> None:
    code = """\
import resource
from pathlib import Path
from hmlet.cli import run
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
run()
"""
    (tmp_path / "rows.csv").write_text("user,item\n" + "".join(f"u{n},i{n % 999}\n" for n in range(1_000_000)))
    process = Forked(code, "data", "prepare", str(tmp_path / "rows.csv"), "--out", str(tmp_path / "out"))
    said = process.wait()
    assert (process.status, said.count("error: ")) == (2, 1), said
    assert "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


def test_a_name_that_is_not_utf8_is_a_users_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "stats", os.fsdecode(b"\xff.csv")]) == 2
    assert "'\\udcff.csv' is not UTF-8: rename the file" in capsys.readouterr().err


def test_an_error_that_is_not_the_systems_is_a_bug_of_ours(command: Register) -> None:
    command(raising(OSError("ours")))
    with pytest.raises(OSError, match="ours"):
        main(["probe"])


def test_a_name_that_is_too_long_is_a_users_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "stats", "n" * 300]) == 2
    assert "File name too long" in capsys.readouterr().err


def test_an_interrupt_is_one_line_and_status_130(command: Register, capsys: pytest.CaptureFixture[str]) -> None:
    command(raising(KeyboardInterrupt()))
    assert main(["probe"]) == 130
    assert capsys.readouterr() == ("", "error: interrupted\n")


def test_a_bug_of_ours_is_not_dressed_up(command: Register) -> None:
    command(raising(ZeroDivisionError("ours")))
    with pytest.raises(ZeroDivisionError, match="ours"):
        main(["probe"])


def test_a_bug_of_ours_is_status_1_with_a_traceback() -> None:
    code = """
from hmlet.cli import app, run
@app.command("probe")
def probe() -> None:
    1 / 0
run()
"""
    done = subprocess.run([sys.executable, "-c", code, "probe"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


def test_json_stands_alone_on_standard_output(command: Register, capsys: pytest.CaptureFixture[str]) -> None:
    def probe(as_json: Json = False) -> None:
        note("three users are new")
        if as_json:
            print_json({"name": "Zoë", "share": 0.5})
        else:
            print_line("Zoë: half")

    command(probe)
    assert main(["probe", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"name": "Zoë", "share": 0.5}
    assert err == "three users are new\n"
    assert main(["probe"]) == 0
    assert capsys.readouterr().out == "Zoë: half\n"


def test_a_table_is_aligned_as_a_terminal_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(
        ["item", "score", "name"], [["日本", "1.5", "two wide"], ["e\u0301", "10", "é, composed"], ["abcdef", "2", ""]]
    )
    assert capsys.readouterr().out.splitlines() == [
        "item    score  name",
        "------  -----  -----------",
        "日本      1.5  two wide",
        "e\u0301          10  é, composed",
        "abcdef      2",
    ]


def test_control_characters_of_an_id_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["item"], [["a\nb\tc"]])
    print_line("\x1b[2Jgone\x9b")
    print_json("\x1b\x9b")
    *lines, answer = capsys.readouterr().out.splitlines()
    assert lines == ["item", "-------", r"a\nb\tc", r"\x1b[2Jgone\x9b"]
    assert json.loads(answer) == "\x1b\x9b"


def test_progress_is_a_line_now_and_then_where_nobody_watches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 29.0, 31.0, 31.0, 60.0, 61.0, 61.0])  # the start, and each call: asked once, or twice to speak
    monkeypatch.setattr(console, "monotonic", lambda: next(clock))
    with console.progress("training bpr") as advance:
        for epoch in (1, 2, 3):
            advance(epoch, 4, f"epoch {epoch}")
        advance(9)
    assert capsys.readouterr() == ("", "training bpr  50%  epoch 2\ntraining bpr\n")


def test_a_number_that_json_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        print_json({"ndcg": float("nan")})


@pytest.mark.parametrize("lines", [1, 100_000], ids=["breaks at the last flush", "breaks in the middle"])
def test_a_reader_that_goes_away_is_no_error(tmp_path: Path, lines: int) -> None:
    script = tmp_path / "talk.py"
    script.write_text(
        "import sys\n"
        "from hmlet.cli import app, run\n"
        "from hmlet.cli.console import print_line\n"
        "@app.command('probe')\n"
        "def probe() -> None:\n"
        "    sys.stdin.read()\n"
        f"    for _ in range({lines}): print_line('a line')\n"
        "run()\n"
    )
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, str(script), "probe"], stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout
    process.stdout.close()  # before the program speaks, which waits for the end of its input
    process.stdout = None
    _, complaint = process.communicate(timeout=60)
    assert (process.returncode, complaint) == (0, "")


_TALK = """
from hmlet.cli import app, run
from hmlet.cli.console import note, print_json, print_line
@app.command('probe')
def probe(as_json: bool = False) -> None:
    note('Zoë listens')
    print_json(['Zoë', '日', '\\udcff']) if as_json else print_line('Zoë 日 \\udcff')
run()
"""


def talk(*arguments: str, shell: str = "", encoding: str = "utf-8") -> subprocess.CompletedProcess[bytes]:
    """What a command does that speaks of Zoë on both streams, which `shell` leads elsewhere."""
    command = ["sh", "-c", f'exec "$@" {shell}', "sh", sys.executable, "-c", _TALK, "probe", *arguments]
    own = {"PYTHONIOENCODING": encoding, "PYTHONUNBUFFERED": ""}  # buffers may still be full at the end
    return subprocess.run(command, capture_output=True, env={**os.environ, **own}, timeout=60)


@pytest.mark.parametrize(
    ("encoding", "line"),
    [
        ("utf-8", "Zoë 日 \\udcff\n".encode()),
        ("latin-1", b"Zo\xeb \\u65e5 \\udcff\n"),
        ("ascii", b"Zo\\xeb \\u65e5 \\udcff\n"),
    ],
)
def test_letters_that_the_terminal_lacks_are_escaped(encoding: str, line: bytes) -> None:
    said = talk(encoding=encoding)
    assert (said.returncode, said.stdout) == (0, line)
    answer = talk("--as-json", encoding=encoding)
    assert json.loads(answer.stdout.decode(encoding)) == ["Zoë", "日", "\udcff"]


@pytest.mark.parametrize("arguments", [["probe"], ["--help"]])
def test_output_that_has_no_room_is_one_line(arguments: list[str]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no device that is always full")
    command = ["sh", "-c", 'exec "$@" >/dev/full', "sh", sys.executable, "-c", _TALK, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        "error: cannot read or write: No space left on device: check the disk"
    )


@pytest.mark.parametrize("shell", ["2>/dev/full", "2>&-"])
def test_a_log_that_cannot_be_written_does_not_stop_the_work(shell: str) -> None:
    done = talk(shell=shell)
    assert (done.returncode, done.stdout) == (0, "Zoë 日 \\udcff\n".encode())


def test_a_closed_output_is_no_error() -> None:
    done = talk(shell=">&-")
    assert (done.returncode, done.stderr.decode()) == (0, "Zoë listens\n")
