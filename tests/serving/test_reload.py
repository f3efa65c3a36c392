"""A swap to another run: nobody is dropped, no answer mixes two runs, and a broken run changes nothing."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from finished import finished
from safetensors.torch import load_file
from served import client_of
from server import error_of
from starlette.testclient import TestClient
from torch import Tensor

from hmlet.api import Run
from hmlet.runs.directory import RunDirectory
from hmlet.serving.loaded_run import LoadedRun
from hmlet.serving.service import Service
from hmlet.serving.settings import Limits, Settings

USERS = ["gimp", "inkscape", "0ad"]


@pytest.fixture
def client(runs: Path) -> Iterator[TestClient]:
    with client_of(runs / "first", Settings(reload_root=runs)) as client:
        yield client


def test_a_swap_under_load_drops_and_mixes_nothing(client: TestClient, runs: Path) -> None:
    expected = {}
    for name in ("first", "second"):
        run = Run.open(runs / name)
        expected[run.record.files["factors.safetensors"][0][:12]] = run.recommend(USERS, 20)
    assert len({json.dumps(answer) for answer in expected.values()}) == 2
    stop, wrong, seen = threading.Event(), [], set()

    def ask() -> None:
        while not stop.is_set():
            answer = client.post("/v1/recommend", json={"users": USERS, "k": 20})
            run = answer.headers.get("x-hmlet-run", "")[-12:]
            seen.add(run)
            if answer.status_code != 200 or answer.json() != expected[run]:
                wrong.append((answer.status_code, run))

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for thread in askers:
        thread.start()
    for name in ("second", "first", "second"):
        assert client.post("/v1/reload", json={"run": name}).status_code == 200
    stop.set()
    for thread in askers:
        thread.join(30)
    assert wrong == []
    assert seen == set(expected)


def is_warm(served: LoadedRun) -> bool:
    made = {"degrees", "_searchable", "_choices"} <= vars(served).keys()
    return made and "fold_in" in vars(served.run) and "user" in served.run.fold_in._rules  # type: ignore[attr-defined]


def test_the_first_newcomer_finds_the_run_warm(client: TestClient, runs: Path) -> None:
    assert not is_warm(LoadedRun(Run.open(runs / "first"), runs / "first"))
    service: Service = client.service  # type: ignore[attr-defined]
    service._loading.submit(lambda: None).result(60)  # after all that the start has left to this thread
    assert is_warm(service.current)
    assert client.post("/v1/reload", json={"run": "second"}).status_code == 200
    assert is_warm(service.current)


def test_a_run_without_layers_is_served_all_the_same(tmp_path: Path) -> None:
    run = finished("hmlet-end", tmp_path / "run", "train.save_layers=false")
    with client_of(tmp_path / "run", Settings(reload_root=tmp_path)) as client:
        assert client.post("/v1/reload", json={"run": "run"}).status_code == 200
        assert client.post("/v1/recommend", json={"users": ["u1"]}).json() == run.recommend(["u1"])
        answer = client.post("/v1/recommend", json={"items": ["i1"]})
        assert (answer.status_code, error_of(answer)["code"]) == (422, "config")


def test_damaged_layers_are_refused_and_do_not_touch_recommendations(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "first", tmp_path / "run")
    layers = tmp_path / "run" / "layers.safetensors"
    layers.write_bytes(layers.read_bytes()[:-1])
    with client_of(tmp_path / "run", Settings(reload_root=tmp_path)) as client:
        assert client.post("/v1/recommend", json={"users": USERS}).status_code == 200
        answer = client.post("/v1/recommend", json={"items": ["libc6"]})
        assert (answer.status_code, error_of(answer)["code"]) == (503, "run")
        assert client.post("/v1/reload", json={"run": "run"}).status_code == 409


@pytest.mark.parametrize("fault", ["missing", "flipped", "truncated", "unfinished", "empty"])
def test_a_broken_run_is_refused_and_the_old_one_stays(client: TestClient, runs: Path, fault: str) -> None:
    broken = runs / f"broken-{fault}"
    if fault == "empty":
        broken.mkdir()
    elif fault != "missing":
        shutil.copytree(runs / "second", broken)
        factors = broken / "factors.safetensors"
        content = bytearray(factors.read_bytes())
        content[-5] ^= 1
        if fault == "flipped":
            factors.write_bytes(content)
        elif fault == "truncated":
            factors.write_bytes(content[:-100])
        else:
            (broken / "run.json").write_text((broken / "run.json").read_text().replace("finished", "running"))
    before = client.get("/v1/model").json()
    answer = client.post("/v1/reload", json={"run": broken.name})
    assert (answer.status_code, error_of(answer)["code"]) == (409, "run")
    assert "still served" in error_of(answer)["message"]
    assert client.get("/v1/model").json() == before
    assert client.post("/v1/recommend", json={"users": USERS}).status_code == 200
    assert 'hmlet_reloads_total{outcome="refused"} 1.0' in client.get("/metrics").text


def forged(run: Path, out: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    """A copy of a run with other factors, and a record that vouches for them."""
    shutil.copytree(run, out)
    opened = RunDirectory.open(out)
    opened.write_tensors("factors.safetensors", change(load_file(out / "factors.safetensors")))
    opened.write_record()


FORGERIES: dict[str, Callable[[Tensor], Tensor]] = {
    "not finite": lambda factors: torch.full_like(factors, float("nan")),
    "too short": lambda factors: factors[:-1].contiguous(),
    "one column": lambda factors: factors[:, 0].contiguous(),
    "other type": lambda factors: factors.to(torch.int64),
    "empty": lambda factors: factors[:0].contiguous(),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_run_that_cannot_answer_is_refused_and_the_old_one_stays(runs: Path, tmp_path: Path, forgery: str) -> None:
    for at, name in enumerate(load_file(runs / "second" / "factors.safetensors")):
        forged(
            runs / "second",
            tmp_path / f"forged-{at}",
            lambda all, name=name: all | {name: FORGERIES[forgery](all[name])},
        )
        with client_of(runs / "first", Settings(reload_root=tmp_path)) as client:
            before = client.get("/v1/model").json()
            answer = client.post("/v1/reload", json={"run": f"forged-{at}"})
            assert (answer.status_code, error_of(answer)["code"]) == (409, "run")
            assert f"forged-{at}" in error_of(answer)["message"]
            assert client.get("/v1/model").json() == before
            assert client.post("/v1/recommend", json={"users": USERS}).status_code == 200


def test_a_second_reload_is_refused_while_one_runs(client: TestClient, runs: Path) -> None:
    service: Service = client.service  # type: ignore[attr-defined]
    entered, leave, load = threading.Event(), threading.Event(), service.load

    def slow(path: Path) -> LoadedRun:
        entered.set()
        leave.wait(10)
        return load(path)

    service.load = slow  # type: ignore[method-assign]
    first = threading.Thread(target=client.post, args=("/v1/reload",), kwargs={"json": {"run": "second"}})
    first.start()
    assert entered.wait(10)
    answer = client.post("/v1/reload", json={"run": "second"})
    assert (answer.status_code, error_of(answer)["code"]) == (503, "overloaded")
    leave.set()
    first.join(30)
    assert client.get("/v1/model").headers["x-hmlet-run"] == LoadedRun(Run.open(runs / "second"), runs).name


def test_a_run_that_loads_too_slowly_is_never_served(runs: Path) -> None:
    with client_of(runs / "first", Settings(reload_root=runs, limits=Limits(load_seconds=0.2))) as client:
        service: Service = client.service  # type: ignore[attr-defined]
        before, leave, load = service.current, threading.Event(), service.load

        def slow(path: Path) -> LoadedRun:
            leave.wait(10)
            return load(path)

        service.load = slow  # type: ignore[method-assign]
        answer = client.post("/v1/reload", json={"run": "second"})
        assert (answer.status_code, error_of(answer)["code"]) == (409, "run")
        assert "longer than 0.2 seconds; the old run is still served" in error_of(answer)["message"]
        leave.set()
        service._loading.submit(lambda: None).result(60)  # after the late load
        assert service.current is before


@pytest.mark.parametrize("name", ["../first", "/etc", "link", "a\0b"])
def test_nothing_outside_the_root_is_loaded(runs: Path, tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    shutil.copytree(runs / "first", tmp_path / "first")
    (root / "link").symlink_to(tmp_path / "first")
    with client_of(runs / "first", Settings(reload_root=root)) as client:
        answer = client.post("/v1/reload", json={"run": name})
        assert (answer.status_code, error_of(answer)["code"]) == (403, "forbidden")


def test_without_a_root_there_is_no_reload(runs: Path) -> None:
    with client_of(runs / "first", Settings()) as client:
        assert client.post("/v1/reload", json={"run": "second"}).status_code == 404
