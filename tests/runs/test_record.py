"""The typed record: every stored one survives it unchanged, and a forged one is refused by file and field."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planted import dataset

from hmlet.config import resolve
from hmlet.errors import RunError
from hmlet.reproduction.records import read_pack
from hmlet.runs.directory import RunDirectory
from hmlet.runs.record import RESTORE, RunRecord, Source, checkout, json_checksum
from hmlet.system.outside import Content, Origin

ROOT = Path(__file__).resolve().parents[2]
STORED = {path: path.read_bytes() for path in sorted((ROOT / "tests" / "stored").rglob("run.json"))}
for pack in sorted((ROOT / "lab" / "results" / "runs").glob("*.jsonl")):
    STORED |= {pack / run: files["run.json"] for run, files in read_pack(pack).items()}
FIRST, SECOND = "0" * 64, "1" * 64


def content() -> dict[str, Any]:
    """A finished record as it is on disk, without its checksum."""
    return {
        "format_version": 2,
        "status": "finished",
        "model": "hmlet-end",
        "seed": 1,
        "data": {"name": "debian", "reference": "debian", "fingerprint": "abc"},
        "versions": {"hmlet": "0.1", "python": "3.11", "torch": "2.6", "numpy": "2.0"},
        "hardware": {"device": "x86_64", "kind": "cpu", "threads": 2, "system": "Linux"},
        "best_epoch": 3,
        "epochs": 5,
        "valid": {"ndcg": 0.5},
        "timings": {"training_seconds": 1.5},
        "files": {"config.toml": FIRST},
    }


def read(text: bytes, path: Path) -> RunRecord:
    return RunRecord.from_content(Content(Origin(path, RunError, RESTORE), text))


def sealed(record: object, checksum: object = None) -> bytes:
    assert isinstance(record, dict)
    return json.dumps({**record, "checksum": checksum or json_checksum(record)}).encode()


def test_every_stored_record_keeps_its_content_and_its_checksum() -> None:
    assert len(STORED) > 200
    for path, stored in STORED.items():
        assert json.loads(read(stored, path).to_text()) == json.loads(stored), path


def test_unknown_keys_survive_a_rewrite() -> None:
    newer = content() | {"later": {"list": [1, None, "two"]}}
    newer["hardware"] |= {"memory": 64}
    record = read(sealed(newer), Path("run.json")).with_coverage("test train 20", 0.25)
    written = json.loads(record.to_text())
    assert written.pop("checksum") == json_checksum(written)
    assert written == newer | {"coverage": {"test train 20": 0.25}}


def test_checksums_of_a_file_that_is_being_replaced_are_one_string_on_disk() -> None:
    record = read(sealed(content()), Path("run.json"))
    both = record.with_file("config.toml", *record.files["config.toml"], SECOND)
    assert both.as_json()["files"] == {"config.toml": f"{FIRST} {SECOND}"}
    again = read(both.to_text().encode(), Path("run.json"))
    assert again.files == {"config.toml": (FIRST, SECOND)}
    assert again == both
    assert record.files == {"config.toml": (FIRST,)}  # as it was


def test_what_is_not_known_while_training_is_not_written() -> None:
    running = {key: content()[key] for key in ("format_version", "model", "seed", "data", "versions", "hardware")}
    record = read(sealed(running | {"status": "running"}), Path("run.json"))
    assert record.as_json() == running | {"status": "running"}
    ended = record.concluded(3, 5, None, 1.5).as_json()
    assert ended == running | {
        "status": "finished", "best_epoch": 3, "epochs": 5, "valid": None, "timings": {"training_seconds": 1.5}
    }  # fmt: skip


FORGERIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "data": lambda record: record.pop("data"),
    "data.fingerprint": lambda record: record["data"].update(fingerprint=3),
    "versions.torch": lambda record: record["versions"].pop("torch"),
    "hardware.threads": lambda record: record["hardware"].update(threads="2"),
    "status": lambda record: record.update(status="ended"),
    "seed": lambda record: record.update(seed=True),
    "best_epoch": lambda record: record.pop("best_epoch"),
    "epochs": lambda record: record.update(epochs=0),
    "valid.ndcg": lambda record: record["valid"].update(ndcg=None),
    "timings": lambda record: record.pop("timings"),
    "timings.training_seconds": lambda record: record["timings"].update(training_seconds="long"),
    "coverage.test train 20": lambda record: record.update(coverage={"test train 20": "much"}),
    "files.config.toml": lambda record: record["files"].update({"config.toml": "short"}),
    "files": lambda record: record.update(files=None),
    "format_version": lambda record: record.pop("format_version"),
}


@pytest.mark.parametrize("field", FORGERIES)
def test_a_forged_record_is_refused_by_its_field(field: str) -> None:
    """The checksum is right: whoever forges a record can compute it."""
    record = content()
    FORGERIES[field](record)
    with pytest.raises(RunError) as refused:
        read(sealed(record), Path("some/run.json"))
    assert refused.value.message.startswith("some/run.json: ")
    assert field in refused.value.message


@pytest.mark.parametrize(
    "text",
    [
        b"", b"[]", b"{}", b"null", b"\xff", b'{"checksum": "x"}', sealed(content(), "x"), sealed(content(), [1]),
        b'{"checksum": "x", "a": NaN}', b'{"checksum": "x", "a": 1e999}', b'{"checksum": "x", "a": "\\ud800"}',
        b'{"checksum": "x", "a": ' + b"9" * 5000 + b"}", b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_damaged_record_is_refused_by_its_file(text: bytes) -> None:
    with pytest.raises(RunError, match=r"some/run\.json"):
        read(text, Path("some/run.json"))


# -- where the code came from ---------------------------------------------------------------------------------------


def git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    return subprocess.run(["git", *identity, *arguments], cwd=root, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with one commit."""
    root = tmp_path.resolve()
    (root / "src").mkdir()
    (root / "src" / "code.py").write_text("1\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "first")
    return root


def test_a_checkout_has_its_commit_and_whether_src_was_changed(root: Path) -> None:
    commit = git(root, "rev-parse", "HEAD").strip()
    (root / "results").mkdir()
    (root / "results" / "new.json").write_text("{}")  # what a campaign writes is no change of the code
    assert checkout(root) == (commit, True)
    (root / "src" / "more.py").write_text("2\n")
    checkout.cache_clear()
    assert checkout(root) == (commit, False)
    assert checkout(root / "src") == (None, None)  # a package inside another project's checkout
    assert checkout(root.parent / "nowhere") == (None, None)


def test_looking_at_a_checkout_does_not_lock_it(root: Path) -> None:
    """By default `git status` writes what it saw of the files to the index, under a lock that a signal may leave."""
    os.utime(root / "src" / "code.py", (1, 1))
    index = (root / ".git" / "index").read_bytes()
    assert checkout(root)[1] is True
    assert (root / ".git" / "index").read_bytes() == index


@pytest.mark.parametrize(
    ("told", "commit", "clean"), [("0" * 39 + "a", "0" * 39 + "a", True), ("f" * 40 + "+", "f" * 40, False)]
)
def test_a_copy_is_told_its_commit(
    told: str, commit: str, clean: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HMLET_COMMIT", told)
    assert Source.here() == Source(commit=commit, clean=clean)
    monkeypatch.setenv("HMLET_COMMIT", "not a commit")
    assert Source.here() == Source(**dict(zip(("commit", "clean"), checkout(ROOT), strict=True)))


def test_a_new_run_says_what_code_made_it_and_an_old_one_need_not(tmp_path: Path) -> None:
    data = dataset(2, 2, train=[(0, 0), (1, 1)])
    record = RunDirectory.create(tmp_path / "run", resolve("bpr"), data, "cpu").record
    assert record.source == Source.here()
    assert "source" in record.as_json()
    old = read(sealed(content()), Path("run.json"))
    assert old.source == Source(commit=None, clean=None)
    assert "source" not in old.as_json()
