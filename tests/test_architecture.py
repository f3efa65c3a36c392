"""The rules that keep a model in one file: nobody outside models/ names one, and the layers stay few."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import hmlet
from hmlet.losses import LOSSES
from hmlet.models import MODELS

SOURCE = Path(hmlet.__file__).parent
ROOT = Path(__file__).resolve().parent.parent
# A loss may share its model's name, and the package its family's: as words these say nothing of a model.
NAMES = {*MODELS, *(model.Config.family for model in MODELS.values())} - {*LOSSES, "hmlet"}
CLASSES = {each.__name__ for model in MODELS.values() for each in (model, model.Config)}


def outside() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if SOURCE / "models" not in path.parents)


def words(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every string of a module that is not a docstring, and every name that it imports or uses."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value
        elif isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.alias):
            yield node.lineno, node.name


SPELLED = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, sorted(NAMES)))})(?![\w-])")


def named_models(source: str) -> list[str]:
    """The lines at which a module names a model, and the name: "12 lightgcn"."""
    found = []
    for line, text in words(ast.parse(source)):
        named = text if text in CLASSES else (match[1] if (match := SPELLED.search(text)) else None)
        if named:
            found.append(f"{line} {named}")
    return found


def test_no_module_outside_models_names_a_model() -> None:
    found = {str(path.relative_to(SOURCE)): named_models(path.read_text(encoding="utf-8")) for path in outside()}
    assert {path: named for path, named in found.items() if named} == {}


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("if name == 'lightgcn': ...", ["1 lightgcn"]),
        ("f'use {x} or hmlet-end'", ["1 hmlet-end"]),
        ("from hmlet.models.wrmf import WRMF", ["1 WRMF"]),
        ("isinstance(model, NGCF)", ["1 NGCF"]),
        ('"""As in LightGCN: hmlet-end."""', []),
        ("word = 'ngcfs and my-lightgcn-run'", []),
    ],
)
def test_the_rule_notices_a_model(source: str, named: list[str]) -> None:
    """Documentation may name models, and a word that only contains a name is another word."""
    assert named_models(source) == named


OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]+")
# Options of torchrun and git are the same whoever reads about them.
OTHERS = {"--nproc-per-node", "--show-toplevel", "--porcelain", "--no-optional-locks"}
COMMANDS = {"selection/page.py": {"--out"}}  # a page with a command to copy
NO_MESSAGES = {"system/spelling.py", "reporting/drawing.py"}  # where options are spelled; names of CSS


def named_options(source: str) -> set[str]:
    """The options that the strings of a module name, documentation aside."""
    tree = ast.parse(source)
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # of fields too
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in documentation)
    return {option for node in found for option in OPTION.findall(str(node.value))}


def test_no_message_outside_the_command_line_names_an_option() -> None:
    """Python users read these messages too: `hmlet.system.spelling` names a setting for either reader."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith("cli/") and name not in NO_MESSAGES:
            found[name] = named_options(path.read_text(encoding="utf-8")) - OTHERS - COMMANDS.get(name, set())
    assert {name: options for name, options in found.items() if options} == {}


def test_the_rule_notices_an_option() -> None:
    source = '''"""As `--out` says."""\nraise E(f"{x} is wrong", "use --device cpu")\ny = "a -- b --"'''
    assert named_options(source) == {"--device"}


def test_there_are_at_most_eleven_layers() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (layers,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    assert len(layers) <= 11
