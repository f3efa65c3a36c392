"""Every command and endpoint on forged runs, checkpoints and data sets: one line of error, or a right answer."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from finished import finished
from forging import expected_scores, forge_dataset, forge_run
from planted import checkerboard
from starlette.testclient import TestClient

from hmlet.api import Run
from hmlet.cli import main
from hmlet.config import resolve
from hmlet.data import Dataset
from hmlet.serving.app import create_app
from hmlet.serving.observe import Metrics
from hmlet.serving.service import Service
from hmlet.serving.settings import Settings
from hmlet.training import loop as training
from hmlet.training.trainer import StopTraining

MODELS = {"hmlet-end": [], "ngcf": [], "bpr": [], "ease": [], "itemknn": ["model.neighbours=1"]}
STOPPED = ["train.epochs=3", "train.batch_size=256", "train.checkpoint_seconds=0", "model.embedding_size=8"]
ON_RUN = (
    ["evaluate", "{run}", "--json"],
    ["evaluate", "{run}", "-k", "5", "--split", "valid", "--json"],
    ["recommend", "{run}", "--user", "u3", "--json"],
    ["recommend", "{run}", "--user", "u3"],
    ["recommend", "{run}", "--items", "i1,i3", "--json"],
    ["similar", "{run}", "--item", "i4", "--json"],
    ["similar", "{run}", "--user", "u4", "--json"],
    ["explain", "{run}", "--user", "u2", "--item", "i5", "--json"],
    ["export", "{run}", "--out", "{out}.jsonl", "-k", "3"],
    ["export", "{run}", "--out", "{out}.parquet", "--json"],
    ["analyze", "{run}", "--json"],
    ["compare", "{run}", "{sound}", "--json"],
)
ON_STOPPED = (["finish", "{run}"], ["train", "{data}", "--out", "{run}", "--resume"], ["evaluate", "{run}"])
ON_DATA = (
    ["data", "stats", "{data}", "--json"],
    ["plan", "{data}", "--model", "bpr", "--json"],
    ["train", "{data}", "--model", "popularity", "--out", "{out}", "--device", "cpu"],
)
PATHS = ("/v1/ready", "/v1/model", "/v1/overview", "/v1/users?query=u1", "/v1/items", "/v1/history?user=u1")


class Workshop:
    """Valid runs and data, and a place to forge copies of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data = checkerboard().save(root / "data")
        self.runs = []
        for model, settings in MODELS.items():
            run = finished(model, root / model, "train.epochs=1", *settings)
            run.evaluate("test")
            self.runs.append(root / model)
        Run.open(root / "hmlet-end").analyze(device="cpu")
        self.statuses: Counter[int] = Counter()
        self.stopped = [self._stop(model) for model in ("bpr", "hmlet-end")]

    def _stop(self, model: str) -> Path:
        def stop(event: Any) -> None:
            raise StopTraining

        gates = ["model.gate_hidden=[8]"] if model.startswith("hmlet") else []
        out = self.root / f"stopped-{model}"
        recipe, data = resolve(model, overrides=[*STOPPED, *gates]), Dataset.load(self.data)
        with pytest.raises(StopTraining):
            training.fit(data, recipe, out, device="cpu", listener=stop)
        return out

    def case(self, number: int, capsys: pytest.CaptureFixture[str]) -> list[str]:
        """The faults of one forged case, and how many commands answered."""
        rng, place = Random(number), self.root / "forged"
        shutil.rmtree(place, ignore_errors=True)
        kind = rng.random()
        if kind < 0.65:
            base, commands = rng.choice(self.runs), ON_RUN
        elif kind < 0.8:
            base, commands = rng.choice(self.stopped), ON_STOPPED
        else:
            base, commands = self.data, ON_DATA
        shutil.copytree(base, place)
        (place / "run.lock").unlink(missing_ok=True)
        if commands is ON_DATA:
            done = forge_dataset(place, rng)
        else:
            done = forge_run(place, [each for each in self.runs + self.stopped if each != base], rng)
        faults = []
        for command in rng.sample(commands, min(3, len(commands))):
            for fault in self._command(command, place, capsys):
                faults.append(f"case {number}: {done} of {base.name}: {' '.join(command)}: {fault}")
        if commands is ON_RUN and number % 4 == 0:
            for fault in endpoints(place, base):
                faults.append(f"case {number}: {done} of {base.name}: {fault}")
        return faults

    def _command(self, command: list[str], place: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[str]:
        out = self.root / "out"
        for old in self.root.glob("out*"):
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        names = {"run": place, "data": place if "{data}" in command and command in ON_DATA else self.data}
        filled = [word.format(**names, out=out, sound=self.root / "bpr") for word in command]
        capsys.readouterr()
        try:
            status = main(filled)
        except BaseException:
            yield traceback.format_exc(limit=-4)
            return
        said = capsys.readouterr()
        self.statuses[status] += 1
        if status == 2:
            if not said.err.splitlines()[-1].startswith("error: "):
                yield f"no error line: {said.err!r}"
            if left := [each.name for each in self.root.glob(".out*")]:
                yield f"left behind: {left}"
        elif status == 0:
            yield from wrong(command, place, out, said.out)
        else:
            yield f"status {status}: {said.err}"


def wrong(command: list[str], place: Path, out: Path, said: str) -> Iterator[str]:
    """What is wrong with the answer of a command that succeeded."""

    def not_json(name: str) -> None:
        raise ValueError(name)

    answer = json.loads(said, parse_constant=not_json) if "--json" in command else None
    if command[0] == "recommend" and "u3" in command and answer is not None:
        data = Run.open(place).data
        user = int(data.users.indices(["u3"])[0])
        found = answer[0]["items"]
        scores = [each["score"] for each in found]
        right = expected_scores(place, data, user, data.items.indices([each["item"] for each in found]).tolist())
        if not all(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) for a, b in zip(scores, right, strict=True)):
            yield f"scores {scores[:3]} instead of {right[:3]}"
        if scores != sorted(scores, reverse=True):
            yield "not sorted"
    if command[0] == "export":
        written = next(iter(out.parent.glob("out.*")), None)
        if written is None or not written.stat().st_size:
            yield "no file"


def endpoints(place: Path, base: Path) -> Iterator[str]:
    """What goes wrong when a service over a valid run is asked to reload a forged one, and is then asked things."""
    service = Service(base, Settings(reload_root=place.parent, token="t"), Metrics())
    app: Any = create_app(service)
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        client.headers["Authorization"] = "Bearer t"
        answers = [client.post("/v1/reload", json={"run": place.name})]
        answers += [client.get(path) for path in PATHS]
        answers.append(client.post("/v1/recommend", json={"users": ["u1", "u2"], "k": 3}))
        answers.append(client.post("/v1/recommend", json={"items": ["i1", "i3"], "k": 3}))
        answers.append(client.post("/v1/recommend", json={"users": ["u1"], "deny": ["i3"], "on_unknown": "skip"}))
        answers.append(client.post("/v1/similar", json={"items": ["i1", "i3"], "k": 3}))
        answers.append(client.post("/v1/explain", json={"user": "u1", "item": "i3"}))
        for answer in answers:
            if answer.status_code >= 500:
                yield f"{answer.request.url.path} answers {answer.status_code}: {answer.text[:200]}"


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("workshop"))


def test_forged_directories_are_refused_or_answer_rightly(
    workshop: Workshop, capsys: pytest.CaptureFixture[str]
) -> None:
    faults = [fault for number in range(60) for fault in workshop.case(number, capsys)]
    assert not faults, "\n".join(faults)
    assert min(workshop.statuses[status] for status in (0, 2)) > 20, "both happen: neither is the only thing tested"


@pytest.mark.slow
def test_five_thousand_forged_cases(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    """HMLET_FORGED_FROM chooses other cases, HMLET_FORGED fewer."""
    first, count = int(os.environ.get("HMLET_FORGED_FROM", "1000")), int(os.environ.get("HMLET_FORGED", "5000"))
    faults: list[str] = []
    for number in range(first, first + count):
        faults += workshop.case(number, capsys)
        if (done := number - first + 1) % 250 == 0:
            with capsys.disabled():
                sys.stdout.write(f"{done} cases, exit statuses {dict(workshop.statuses)}, {len(faults)} faults\n")
                sys.stdout.flush()
    assert not faults, f"{len(faults)} faults\n" + "\n".join(faults[:100])
