"""Named sets: got over HTTP or from a directory, checked by content, cached, rebuilt when damaged."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from hmlet.data import Dataset, catalog, download
from hmlet.data.catalog import NamedSet, PartFile, hash_pairs
from hmlet.errors import DataError

# The paper's splits, where this machine has them: they are for measuring and not part of the package.
BENCHMARKS = Path(os.environ.get("HMLET_DATA_MIRROR") or Path(__file__).parents[2].parent / "shared" / "data")

FILES = {"train.txt": b"0 0 1 2\n1 1 2\n2 0 2\n", "val.txt": b"0 3\n1 0\n", "test.txt": b"1 3\n2 1\n"}


def digest(content: bytes) -> str:
    rows = [[int(word) for word in line.split()] for line in content.splitlines() if line.strip()]
    return hash_pairs(np.array(sorted(row[0] * 2**31 + item for row in rows for item in row[1:]), dtype=np.int64))


TINY = NamedSet(
    *("tiny", "for tests", 3, 4),
    tuple(
        PartFile(name, pairs, None, digest(FILES[name]))
        for name, pairs in (("train.txt", 7), ("val.txt", 2), ("test.txt", 2))
    ),
)


@pytest.fixture(autouse=True)
def _tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(catalog.CATALOG, "tiny", TINY)
    monkeypatch.setenv("HMLET_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HMLET_DATA_MIRROR", raising=False)
    monkeypatch.setattr(download, "RETRY_SECONDS", 0.001)


def mirror(folder: Path, files: dict[str, bytes] = FILES) -> str:
    (folder / "tiny").mkdir(parents=True)
    for name, content in files.items():
        (folder / "tiny" / name).write_bytes(content)
    return str(folder)


class Handler(BaseHTTPRequestHandler):
    """Serves FILES with Range; `misbehave`, where set, may answer instead."""

    misbehave: Callable[[Handler, str, bytes], bool] = staticmethod(lambda handler, name, content: False)
    ranges: list[str | None]

    def do_GET(self) -> None:
        name = self.path.removeprefix("/tiny/")
        self.ranges.append(self.headers.get("Range"))
        if name not in FILES:
            self.send_error(404)
        elif not self.misbehave(self, name, FILES[name]):
            self.answer(FILES[name])

    def answer(self, content: bytes, upto: int | None = None) -> None:
        wanted = self.headers.get("Range")
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        if start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.end_headers()
            return
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:upto])

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def server(misbehave: Callable[[Handler, str, bytes], bool] | None = None) -> Iterator[tuple[str, type[Handler]]]:
    """The address of a server that lives meanwhile, and its handler class, which notes the ranges it was asked for."""
    own = type("OwnHandler", (Handler,), {"ranges": []} | ({"misbehave": staticmethod(misbehave)} if misbehave else {}))
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), own)
    threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{httpd.server_port}", own
    finally:
        httpd.shutdown()
        httpd.server_close()


def test_a_set_comes_from_a_directory_and_then_from_the_cache(tmp_path: Path) -> None:
    first = catalog.load("tiny", mirror=mirror(tmp_path / "mirror"))
    assert [first.count(part) for part in ("train", "valid", "test")] == [7, 2, 2]
    assert first.csr("train").row(1).tolist() == [1, 2]
    assert catalog.is_at_hand("tiny")
    assert catalog.load("tiny").fingerprint == first.fingerprint  # no mirror any more


def test_line_order_and_blank_lines_do_not_matter(tmp_path: Path) -> None:
    other = FILES | {"train.txt": b"\n2 2 0\r\n\n1 2\n1 1\n0 2 1 0 0\n"}
    plain = catalog.load("tiny", mirror=mirror(tmp_path / "a"))
    assert catalog.fetch("tiny", mirror=mirror(tmp_path / "b", other)).fingerprint == plain.fingerprint


def test_a_set_comes_over_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, float | None]] = []
    with server() as (url, _):
        monkeypatch.setenv("HMLET_DATA_MIRROR", url + "/")
        dataset = catalog.load("tiny", advance=lambda done, total=None, text="": seen.append((done, total)))
    assert len(dataset) == 11
    assert seen[0] == (len(FILES["train.txt"]), len(FILES["train.txt"]))
    assert sorted(path.name for path in (tmp_path / "cache").rglob("*.txt*")) == []


def test_a_transfer_that_breaks_off_is_resumed() -> None:
    breaks = iter([5, 9])

    def break_off(handler: Handler, name: str, content: bytes) -> bool:
        upto = next(breaks, None) if name == "train.txt" else None
        if upto:
            handler.answer(content, upto)
        return upto is not None

    with server(break_off) as (url, handler):
        assert len(catalog.fetch("tiny", mirror=url)) == 11
    assert handler.ranges == [None, "bytes=5-", "bytes=9-", None, None]


def test_a_later_call_takes_up_what_an_earlier_one_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "DOWNLOAD_ATTEMPTS", 1)

    def break_off(handler: Handler, name: str, content: bytes) -> bool:
        handler.answer(content, 6)
        return True

    with server(break_off) as (url, _), pytest.raises(DataError, match=r"6 of 20 bytes.*the partial download is kept"):
        catalog.fetch("tiny", mirror=url)
    assert not catalog.is_at_hand("tiny")
    with server() as (url, handler):
        catalog.fetch("tiny", mirror=url)
    assert handler.ranges == ["bytes=6-", None, None]


def test_a_server_without_ranges_starts_again() -> None:
    calls = iter([True, False])

    def whole(handler: Handler, name: str, content: bytes) -> bool:
        del handler.headers["Range"]
        if name == "train.txt" and next(calls):
            handler.answer(content, 4)
            return True
        return False

    with server(whole) as (url, _):
        assert len(catalog.fetch("tiny", mirror=url)) == 11


def test_a_complete_part_file_is_not_downloaded_again(tmp_path: Path) -> None:
    raw = tmp_path / "cache" / "raw" / "tiny"
    raw.mkdir(parents=True)
    (raw / "train.txt.part").write_bytes(FILES["train.txt"])
    with server() as (url, handler):
        assert len(catalog.fetch("tiny", mirror=url)) == 11
    assert handler.ranges[0] == "bytes=20-"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (b"0 0 1 2\n1 1 2\n2 0\n", "6 distinct pairs, not 7"),
        (b"0 0 1 2\n1 1 2\n2 0 3\n", "not the right ones"),
        (b"<html>moved</html>\n", "line 1.*not a whole number"),
        (b"0 5000000000\n", "0 distinct pairs"),
    ],
)
def test_the_wrong_file_is_refused_and_forgotten(tmp_path: Path, wrong: bytes, message: str) -> None:
    def lie(handler: Handler, name: str, content: bytes) -> bool:
        handler.answer(wrong if name == "train.txt" else content)
        return True

    with server(lie) as (url, _), pytest.raises(DataError, match=message):
        catalog.fetch("tiny", mirror=url)
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []
    with server() as (url, _):
        assert len(catalog.fetch("tiny", mirror=url)) == 11


def test_parts_that_overlap_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = FILES | {"test.txt": b"1 3\n0 0\n"}
    parts = tuple(PartFile(part.file, part.pairs) for part in TINY.files)
    monkeypatch.setitem(catalog.CATALOG, "tiny", NamedSet("tiny", "", 3, 4, parts))
    with pytest.raises(DataError, match="share pairs"):
        catalog.fetch("tiny", mirror=mirror(tmp_path / "mirror", files))


def test_a_slow_server_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "STALLED_SECONDS", 0.05)
    monkeypatch.setattr(download, "DOWNLOAD_ATTEMPTS", 2)
    released = threading.Event()

    def stall(handler: Handler, name: str, content: bytes) -> bool:
        released.wait(5)
        return True

    with server(stall) as (url, handler):
        with pytest.raises(DataError, match=r"2 attempts.*timed out"):
            catalog.fetch("tiny", mirror=url)
        released.set()
        assert len(handler.ranges) == 2


def test_a_server_that_recovers_is_asked_again() -> None:
    answers = iter([503, 429])

    def busy(handler: Handler, name: str, content: bytes) -> bool:
        code = next(answers, None)
        if code:
            handler.send_error(code)
        return code is not None

    with server(busy) as (url, _):
        assert len(catalog.fetch("tiny", mirror=url)) == 11


def test_a_missing_file_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = (PartFile("nowhere.txt", 7), *TINY.files[1:])
    monkeypatch.setitem(catalog.CATALOG, "tiny", NamedSet("tiny", "", 3, 4, parts))
    with server() as (url, handler), pytest.raises(DataError, match="404"):
        catalog.fetch("tiny", mirror=url)
    assert len(handler.ranges) == 1


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HMLET_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DataError, match=r"cannot write to .*file.cache.*: .*: set HMLET_CACHE"):
        catalog.fetch("tiny", mirror="http://nowhere.invalid")


def test_a_server_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "MAX_DOWNLOAD_BYTES", 10)
    with server() as (url, _), pytest.raises(DataError, match="sends more than"):
        catalog.fetch("tiny", mirror=url)


@pytest.mark.parametrize("name", ["interactions.parquet", "users.parquet", "dataset.json"])
def test_a_damaged_cache_is_rebuilt(tmp_path: Path, name: str) -> None:
    first = catalog.load("tiny", mirror=mirror(tmp_path / "mirror"))
    damaged = next((tmp_path / "cache").rglob(name))
    damaged.write_bytes(damaged.read_bytes()[:-3] + b"???")
    again = catalog.load("tiny", mirror=str(tmp_path / "mirror"))
    assert again.fingerprint == first.fingerprint
    assert Dataset.load(damaged.parent).fingerprint == first.fingerprint


def test_a_set_without_a_home_asks_for_a_mirror() -> None:
    with pytest.raises(DataError, match=r"no public download.*`mirror`"):
        catalog.load("tiny")


def test_a_mirror_without_the_set_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no .*train.txt"):
        catalog.load("tiny", mirror=str(tmp_path))
    with pytest.raises(DataError, match="http or https"):
        catalog.load("tiny", mirror="ftp://host")


def test_unknown_names_list_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"neither a prepared directory nor a named set.*debian"):
        catalog.load("movielens")
    with pytest.raises(DataError, match="no named set 'movielens'"):
        catalog.fetch("movielens")
    with pytest.raises(DataError, match="not a prepared directory"):
        catalog.load(tmp_path)


def test_a_prepared_directory_comes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog.load("tiny", mirror=mirror(tmp_path / "mirror")).save(tmp_path / "debian")
    monkeypatch.chdir(tmp_path)
    assert catalog.load("debian").name == "tiny"
    assert catalog.load_named("debian").name == "debian"


def test_debian_is_embedded_small_and_readable() -> None:
    dataset = catalog.load("debian")
    assert (dataset.n_users, dataset.n_items, len(dataset)) == (3779, 1285, 61020)
    both = dataset.csr("train", "valid", "test")
    assert both.counts.min() >= 10
    assert np.bincount(both.items).min() >= 10
    gimp = int(dataset.users.indices(["gimp"])[0])
    assert dataset.users.name(gimp) == "GNU Image Manipulation Program"
    assert "libgtk2.0-0" in {dataset.items.id(int(item)) for item in both.row(gimp)}
    assert (catalog.EMBEDDED / "debian.parquet").stat().st_size < 1_000_000
    assert (catalog.EMBEDDED / "LICENSE-NOTE.txt").is_file()
    assert dataset.provenance.release_date == "2026-07-11"
    assert catalog.interactions(catalog.find("debian")) == len(dataset)


def test_the_catalogue_agrees_with_the_paper() -> None:
    paper = {
        "gowalla": (29858, 40981, 1027370),
        "yelp2018": (31668, 38048, 1561406),
        "amazon-book": (52643, 91599, 2984108),
    }
    for name, counts in paper.items():
        named = catalog.find(name)
        assert (named.users, named.items, catalog.interactions(named)) == counts
        assert named.public
        assert all(file.home and file.home.endswith(name) for file in named.files)


@pytest.mark.parametrize(
    ("name", "users", "items", "interactions"),
    [("gowalla", 29858, 40981, 1027370), ("yelp2018", 31668, 38048, 1561406)],
)
def test_the_papers_counts_come_out(name: str, users: int, items: int, interactions: int) -> None:
    if not (BENCHMARKS / name).is_dir():
        pytest.skip("set HMLET_DATA_MIRROR to a directory that has the benchmark files")
    dataset = catalog.load(name, mirror=str(BENCHMARKS))
    assert (dataset.n_users, dataset.n_items, len(dataset)) == (users, items, interactions)
    assert dataset.csr("train").counts.min() > 0


def test_the_cache_directory_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert catalog.cache_directory() == tmp_path / "cache"
    monkeypatch.delenv("HMLET_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert catalog.cache_directory().name == "hmlet"


def test_fetch_prints_one_json_object_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from hmlet.cli import main

    assert main(["data", "fetch", "tiny", "--mirror", mirror(tmp_path / "mirror"), "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["interactions"] == 11
    assert captured.err == ""


def test_a_file_with_columns_of_other_names_is_to_be_prepared(tmp_path: Path) -> None:
    (file := tmp_path / "plays.csv").write_text("listener,song\nann,Naima\n", encoding="utf-8")
    with pytest.raises(
        DataError, match=r"looks like the user.*prepare it with `hmlet.Dataset.from_file\(…\)`: name it"
    ):
        catalog.load(file)
