"""`hmlet models`: every model, what kind it is, and which losses train it."""

from __future__ import annotations

import json

import pytest

import hmlet
from hmlet.cli import main
from hmlet.losses import LOSSES
from hmlet.models import MODELS


def test_every_model_says_what_it_is() -> None:
    found = {each.name: each for each in hmlet.list_models()}
    assert list(found) == list(MODELS)
    assert found["lightgcn"].summary == "LightGCN: linear propagation, layers averaged."
    assert found["lightgcn"].losses == tuple(LOSSES)
    assert {name: found[name].kind for name in ("hmlet-end", "bpr", "wrmf")} == {
        "hmlet-end": "graph",
        "bpr": "factorisation",
        "wrmf": "factorisation",
    }
    assert found["wrmf"].losses == ()
    assert all(each.summary for each in found.values())


def test_the_command_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == [each.as_json() for each in hmlet.list_models()]
    assert said[0].keys() == {"name", "kind", "summary", "losses"}
    assert main(["models"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in MODELS)
