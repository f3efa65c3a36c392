"""Documents that cannot go stale: the CLI reference is compared, README's commands run, links lead somewhere."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tomllib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from readme import SHELL, code_blocks

from hmlet.data.inputs import Preparing

ROOT = Path(__file__).resolve().parent.parent
GENERATOR = str(ROOT / "scripts" / "generate_cli_docs.py")
ARTIFACTS = str(ROOT / "scripts" / "generate_artifact_docs.py")
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "lab").rglob("*.md")]


def test_the_command_line_reference_is_current() -> None:
    generator = runpy.run_path(GENERATOR)
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == generator["reference"](), (
        "run `make docs` and commit"
    )


def test_the_table_of_the_run_record_is_current() -> None:
    generator = runpy.run_path(ARTIFACTS)
    assert (ROOT / "docs" / "artifacts.md").read_text(encoding="utf-8") == generator["document"](), (
        "run `make docs` and commit"
    )
    described = {key: text for key, _, text in re.findall(r"\| `(.+)` \| (.+) \| (.*) \|", generator["table"]())}
    assert {"files", "data.fingerprint", "timings.training_seconds"} <= described.keys()
    assert all(described.values()), "every field of the record has a docstring"


@pytest.mark.parametrize("columns", ["40", "200"])
def test_the_reference_is_the_same_in_every_terminal(columns: str) -> None:
    code = f"import runpy; print(runpy.run_path({GENERATOR!r})['reference'](), end='')"
    environment = {**os.environ, "COLUMNS": columns, "FORCE_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, encoding="utf-8", check=True
    )
    assert done.stdout == (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


def test_every_test_that_the_security_page_names_exists() -> None:
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    bar, failures = (text.partition(f"## {each}\n")[2].partition("\n## ")[0] for each in ("What shows it", "Failures"))
    assert len(re.findall(r"^\|.*::test_", bar, flags=re.MULTILINE)) == 20
    numbers = re.findall(r"^\| (\d+) \|.*::test_", failures, flags=re.MULTILINE)
    assert list(dict.fromkeys(map(int, numbers))) == list(range(1, 12))
    file = ""
    for named, test in re.findall(r"`(tests/[\w/]+\.py)?::(\w+)`", bar + failures):
        file = named or file
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"


def test_readme_begins_with_the_two_commands() -> None:
    assert code_blocks("sh")[0] == "make demo\nmake test\n"


def test_readme_commands_run(tmp_path: Path) -> None:
    """One shell runs all blocks in their order, as a reader would, in an empty directory."""
    shim = tmp_path / "bin" / "hmlet"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hmlet "$@"\n')
    shim.chmod(0o755)
    environment = {**os.environ, "PATH": f"{shim.parent}{os.pathsep}{os.environ['PATH']}"}
    place = tmp_path / "reader"
    place.mkdir()
    command = ["bash", "-euxo", "pipefail", "-c", SHELL]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "block", [pytest.param(block, id=f"block {at}") for at, block in enumerate(code_blocks("python"))]
)
def test_readme_python_runs(block: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@cache
def anchors(document: Path) -> set[str]:
    """A document's own anchors, and those that GitHub and the site give to its headings."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    named = re.findall(r'<a id="([^"]+)">', text)
    return {*named, *(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)}


@pytest.mark.parametrize("document", [pytest.param(path, id=str(path.relative_to(ROOT))) for path in sorted(DOCUMENTS)])
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", document.read_text(encoding="utf-8"))
    missing = []
    for path, anchor in targets:
        place = document.parent / path if path else document
        if "://" not in path and not (place.exists() and (not anchor or anchor in anchors(place))):
            missing.append(f"{path}#{anchor}")
    assert missing == []


def test_every_decision_stands_in_the_index() -> None:
    index = (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    records = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    assert records
    assert re.findall(r"\]\((\d{4}-[^)]+)\)", index) == records


ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def shown_under(heading: str) -> list[str]:
    """The lines of the first fenced block after a heading of docs/architecture.md."""
    found = re.search(rf"^## {heading}$.*?^```\w*\n(.*?)^```$", ARCHITECTURE, flags=re.MULTILINE | re.DOTALL)
    assert found
    return found[1].splitlines()


def checked_layers() -> list[str]:
    """The lines of the import contract."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    (layers,) = [each["layers"] for each in tools["importlinter"]["contracts"] if each["type"] == "layers"]
    lines: list[str] = layers
    return lines


def test_the_layers_that_are_shown_are_those_that_are_checked() -> None:
    assert shown_under("Who may import whom") == checked_layers()


def test_every_room_is_shown() -> None:
    package = ROOT / "src" / "hmlet"
    rooms = {f"{path.parent.name}/" for path in package.glob("*/__init__.py")} | {"errors.py", "sklearn.py"}
    shown = [line.split()[0] for line in shown_under("The tree") if line.startswith("  ")]
    assert sorted(shown) == sorted(rooms)


def test_the_python_page_runs(tmp_path: Path) -> None:
    """Its blocks are one script, in their order."""
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    if find_spec("sklearn") is None:
        blocks = [block for block in blocks if "sklearn" not in block]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_the_data_page_names_every_option() -> None:
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    said = {name.replace("-", "_") for name in re.findall(r"--([a-z-]+)", page)}
    options = set(Preparing.__annotations__) - {"user_name", "item_name", "user_names", "core", "seed", "name"}
    assert options <= said
