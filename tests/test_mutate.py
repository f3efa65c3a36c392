"""The mutation script makes the mutants it should, and tells a test that notices from one that does not."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def mutate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, over a package with one module and two files of tests."""
    spec = importlib.util.spec_from_file_location("mutate", ROOT / "scripts" / "mutate.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "mutate", script)
    spec.loader.exec_module(script)
    package = tmp_path / "src" / "hmlet"
    package.mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    (package / "__init__.py").touch()
    (package / "toy.py").write_text(
        '"""Toy."""\n\n\ndef bigger(a, b):\n    """a if a > b."""\n    return a + 1 if a > b else b\n'
    )
    sharp, blunt = "(bigger(2, 1), bigger(1, 1), bigger(0, 5)) == (3, 1, 5)", "bigger(2, 1)"
    for name, claim in {"sharp": sharp, "blunt": blunt}.items():
        text = f"from hmlet.toy import bigger\n\n\ndef test():\n    assert {claim}\n"
        (tmp_path / "tests" / f"{name}.py").write_text(text)
    for name, value in {"ROOT": tmp_path, "PACKAGE": package}.items():
        monkeypatch.setattr(script, name, value)
    return script


def test_every_kind_of_mutant_of_a_line(mutate: ModuleType) -> None:
    changes = {each.change for each in mutate.mutants("toy")}
    assert changes == {
        "comparison: a >= b",
        "boolean: not a > b",
        "arithmetic: a - 1",
        "constant: 2 instead of 1",
        "constant: 0 instead of 1",
        "return None",
    }
    assert all(each.line == 6 for each in mutate.mutants("toy"))


def test_a_sharp_test_kills_what_a_blunt_one_lets_live(mutate: ModuleType) -> None:
    (wider,) = [each for each in mutate.mutants("toy") if each.change == "comparison: a >= b"]
    assert mutate.run(wider, ("sharp.py",), 60).outcome == "killed"
    assert mutate.run(wider, ("blunt.py",), 60).outcome == "survived"
