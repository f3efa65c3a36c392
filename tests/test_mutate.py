"""The mutation script makes the mutants it should, and tells a test that notices from one that does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOY = '''"""Toy."""


def bigger(a: int | None, b: int) -> int:
    """a + 1 if a > b."""
    return a + 1 if a > b else b


def unused() -> int:
    return 7
'''
TESTS = {
    "sharp": "assert (bigger(2, 1), bigger(1, 1), bigger(0, 5)) == (3, 1, 5)",
    "blunt": "assert bigger(2, 1)",
    "hanging": "while bigger(2, 1) != 3: pass",
}
# What the script is told instead of this project: another tree, and no library worth sharing.
DRIVER = """
import sys
from pathlib import Path
sys.path.insert(0, {scripts!r})
import mutate
mutate.ROOT, mutate.PACKAGE, mutate.SHARED = Path({tree!r}), Path({tree!r}) / "src" / "hmlet", ()
mutate.EQUIVALENT, mutate.MODULES = Path({tree!r}) / "equivalent.toml", {{"toy": ({tests!r},)}}
mutate.main()
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A package with one module, and three files of tests."""
    package = tmp_path / "src" / "hmlet"
    package.mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    (package / "__init__.py").touch()
    (package / "toy.py").write_text(TOY)
    (tmp_path / "equivalent.toml").touch()
    for name, claim in TESTS.items():
        text = f"from hmlet.toy import bigger\n\n\ndef test_it():\n    {claim}\n\n\ndef test_nothing():\n    pass\n"
        (tmp_path / "tests" / f"test_{name}.py").write_text(text)
    return tmp_path


def run(tree: Path, tests: str, *options: str) -> subprocess.CompletedProcess[str]:
    code = DRIVER.format(scripts=str(ROOT / "scripts"), tree=str(tree), tests=f"test_{tests}.py")
    command = [sys.executable, "-c", code, "--record", str(tree / "record.json"), *options]
    bare = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, env=bare, capture_output=True, text=True, timeout=100)


def score(tree: Path, tests: str, *options: str) -> dict[str, Any]:
    done = run(tree, tests, *options)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((tree / "record.json").read_text())["modules"]["toy"]
    return found


def survivors(found: dict[str, Any]) -> dict[str, str]:
    return {each["change"]: each["outcome"] for each in found["survivors"]}


UNCALLED = dict.fromkeys(("return None", "constant: 8 instead of 7", "constant: 6 instead of 7"), "no test calls it")


def test_a_sharp_test_kills_every_mutant_of_what_it_calls(tree: Path) -> None:
    found = score(tree, "sharp")
    assert (found["mutants"], found["drawn"], found["killed"]) == (9, 9, 6)
    assert survivors(found) == UNCALLED


def test_a_blunt_one_lets_most_live_and_a_listed_one_does_not_count(tree: Path) -> None:
    line = "return a + 1 if a > b else b"
    (tree / "equivalent.toml").write_text(f'[[toy]]\nwas = "{line}"\nchanges = ["arithmetic: a - 1"]\nreason = "so"\n')
    found = score(tree, "blunt")
    lives = ("comparison: a >= b", "boolean: not a > b", "constant: 2 instead of 1", "constant: 0 instead of 1")
    assert survivors(found) == UNCALLED | dict.fromkeys(lives, "survived")
    assert (found["equivalent"], found["killed"]) == (1, 1)  # `return None` is the one that it notices
    again = score(tree, "sharp", "--again")
    assert survivors(again) == UNCALLED
    assert (again["drawn"], again["equivalent"], again["killed"]) == (9, 1, 5)


def test_a_hanging_test_is_stopped_and_a_stale_entry_refused(tree: Path) -> None:
    found = score(tree, "hanging", "--limit", "1", "--sample", "3")
    assert found["drawn"] == 3
    (tree / "equivalent.toml").write_text('[[toy]]\nwas = "gone"\nchanges = ["return None"]\nreason = "so"\n')
    done = run(tree, "sharp")
    assert done.returncode != 0
    assert "not a mutant of toy" in done.stderr
