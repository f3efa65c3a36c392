"""Would the tests notice? Breaks a module one small way at a time: `python scripts/mutate.py losses/sampling`.

A mutant is one change of a module's syntax tree: a comparison, an arithmetic or boolean operator, a constant moved by
one, a returned value replaced by None, or a statement deleted. The module is compiled from the changed tree in a fresh
process, which then runs the test files listed for it and stops at the first failure. A mutant survives if they all
pass. Mutants are drawn with a fixed seed, so a score can be made again; nothing is written into src/.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "hmlet"
# Each module, and the test files that know its right answers.
MODULES: dict[str, tuple[str, ...]] = {
    "ranking/metrics": ("ranking/test_metrics.py",),
    "ranking/statistics": ("ranking/test_statistics.py",),
    "ranking/evaluation": ("ranking/test_evaluation.py",),
    "ranking/scoring": ("ranking/test_scoring.py", "ranking/test_evaluation.py"),
    "ranking/top_k": ("ranking/test_top_k.py",),
    "losses/sampling": ("losses/test_sampling.py",),
    "losses/base": ("losses",),
    **{
        f"losses/{name}": ("losses", "test_contract.py")
        for name in ("bpr", "softmax", "softmax_at_k", "bsl", "multinomial")
    },
    "graph/kernels/log_sum_exp": ("graph/kernels/test_log_sum_exp.py", "losses"),
    "reproduction/differences": ("reproduction/test_differences.py",),
    "training/steps": ("training/test_steps.py", "training/test_optimizer.py", "training/test_loop.py"),
    "training/optimizer": ("training/test_optimizer.py",),
    **{f"training/{name}": ("training/test_loop.py", "training/test_resume.py") for name in ("loop", "trainer")},
    "models/base": ("models", "test_contract.py"),
    "models/hmlet": ("models/test_hmlet.py", "models/test_propagation.py", "models/test_gating.py"),
    "models/gating": ("models/test_gating.py", "models/test_hmlet.py", "models/test_propagation.py"),
    **{f"models/{name}": ("models/test_propagation.py",) for name in ("lightgcn", "lrgccf", "ngcf", "gcmc", "mf")},
    "models/pinsage": ("models/test_pinsage.py", "models/test_propagation.py"),
    "models/wrmf": ("models/test_wrmf.py",),
    **{
        f"models/{name}": ("models/test_closed_forms.py",)
        for name in ("ease", "gfcf", "chebycf", "itemknn", "popularity")
    },
}
COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
DELETED = (ast.Assign, ast.AugAssign, ast.Expr, ast.Raise, ast.Delete)
# Run in the fresh process: compile the module from the mutant's text before anything imports it.
RUNNER = """
import importlib.abc, importlib.util, sys
name, source, origin, *tests = sys.argv[1:]
class Mutant(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, wanted, path=None, target=None):
        if wanted == name:
            return importlib.util.spec_from_file_location(
                name, origin, loader=self, submodule_search_locations=[] if origin.endswith("__init__.py") else None)
    def create_module(self, spec): return None
    def exec_module(self, module): exec(compile(open(source).read(), origin, "exec"), module.__dict__)
sys.meta_path.insert(0, Mutant())
import pytest
sys.exit(pytest.main(["-x", "-q", "--no-header", "-p", "no:cacheprovider", "-m", "not slow and not browser", *tests]))
"""


@dataclass(frozen=True)
class Mutant:
    """One change: where it is, what it does, and the line as it was."""

    module: str
    line: int
    change: str
    was: str
    source: str


@dataclass(frozen=True)
class Result:
    """What the tests said of a mutant: killed, survived or timeout (which counts as killed)."""

    module: str
    line: int
    change: str
    was: str
    outcome: str
    seconds: float


def mutants(module: str) -> list[Mutant]:
    """Every mutant of a module, in the order of its lines."""
    text = (PACKAGE / f"{module}.py").read_text(encoding="utf-8")
    plain, lines = ast.unparse(ast.parse(text)), text.splitlines()
    found: dict[str, Mutant] = {}
    for index in range(sum(1 for _ in ast.walk(ast.parse(text)))):
        tree = ast.parse(text)
        node = list(ast.walk(tree))[index]
        for kind, line in changes(node):
            source = ast.unparse(ast.fix_missing_locations(tree))
            if source != plain:
                found[source] = Mutant(module, line, kind, lines[line - 1].strip(), source)
    return sorted(found.values(), key=lambda each: each.line)


def changes(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Change a node in each way that it has, one at a time: what was done and in which line, while it is so."""
    line = getattr(node, "lineno", 0)
    if isinstance(node, ast.Compare):
        for at, operator in enumerate(node.ops):
            node.ops[at] = COMPARISONS[type(operator)]()
            yield f"comparison: {ast.unparse(node)}", line
            node.ops[at] = operator
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        node.op = OPERATORS[type(node.op)]()
        yield f"arithmetic: {ast.unparse(node)}", line
    elif isinstance(node, ast.BoolOp):
        node.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        yield f"boolean: {ast.unparse(node)}", line
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node.op = ast.UAdd()
        yield f"arithmetic: {ast.unparse(node)}", line
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        test = node.test
        node.test = ast.UnaryOp(ast.Not(), test)
        yield f"boolean: {ast.unparse(node.test)}", line
        node.test = test
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        value = node.value
        for moved in [not value] if isinstance(value, bool) else [value + 1, value - 1]:
            node.value = moved
            yield f"constant: {moved} instead of {value}", line
        node.value = value
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        node.value = ast.Constant(None)
        yield "return None", line
    for field in ("body", "orelse", "finalbody"):
        statements = getattr(node, field, None)
        if not isinstance(statements, list) or isinstance(node, ast.Module | ast.ClassDef):
            continue
        for at, statement in enumerate(statements):
            if isinstance(statement, DELETED) and not _is_text(statement):
                statements[at] = ast.Pass()
                yield f"deleted: {ast.unparse(statement)}", statement.lineno
                statements[at] = statement


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_text(statement: ast.stmt) -> bool:
    """Whether a statement is a docstring."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def run(mutant: Mutant, tests: tuple[str, ...], limit: float) -> Result:
    """Run the tests against a mutant."""
    began = time.monotonic()
    origin = PACKAGE / f"{mutant.module}.py"
    name = "hmlet." + mutant.module.replace("/", ".")
    with tempfile.NamedTemporaryFile("w", suffix=".py", encoding="utf-8") as file:
        file.write(mutant.source)
        file.flush()
        command = [sys.executable, "-c", RUNNER, name, file.name, str(origin), *(f"tests/{each}" for each in tests)]
        try:
            done = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, timeout=limit)
            outcome = "survived" if done.returncode == 0 else "killed"
        except subprocess.TimeoutExpired:
            outcome = "timeout"
    about = {key: value for key, value in asdict(mutant).items() if key != "source"}
    return Result(**about, outcome=outcome, seconds=round(time.monotonic() - began, 1))


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"}


def healthy(module: str, limit: float) -> float:
    """The seconds that the tests of the unchanged module take; they have to pass, or no mutant could survive."""
    text = (PACKAGE / f"{module}.py").read_text(encoding="utf-8")
    result = run(Mutant(module, 0, "none", "", text), MODULES[module], limit)
    if result.outcome != "survived":
        sys.exit(f"the tests of {module} do not pass without a mutant ({result.outcome})")
    return result.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", choices=[[], *MODULES], default=[], metavar="MODULE")
    parser.add_argument("--sample", type=int, default=40, help="mutants of each module; 0 takes all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one mutant at most")
    parser.add_argument("--record", type=Path, help="a JSON file for the result")
    options = parser.parse_args()
    results: list[Result] = []
    for module in options.modules or MODULES:
        found = mutants(module)
        drawn = random.Random(options.seed).sample(found, min(options.sample or len(found), len(found)))
        usual = healthy(module, options.limit)
        for mutant in sorted(drawn, key=lambda each: each.line):
            results.append(run(mutant, MODULES[module], min(options.limit, 10 + 5 * usual)))
            if results[-1].outcome == "survived":
                print(f"{module}.py:{mutant.line} {mutant.change}  (was: {mutant.was})", flush=True)
        print(f"{module}: {score(results, module)} of {len(drawn)} killed ({len(found)} mutants in all)", flush=True)
    if options.record:
        options.record.write_text(json.dumps(record(results, options.seed), indent=1, ensure_ascii=False) + "\n")


def score(results: list[Result], module: str) -> int:
    return sum(each.module == module and each.outcome != "survived" for each in results)


def record(results: list[Result], seed: int) -> dict[str, object]:
    modules = sorted({each.module for each in results})
    return {
        "seed": seed,
        "modules": {
            module: {
                "tests": MODULES[module],
                "mutants": sum(each.module == module for each in results),
                "killed": score(results, module),
            }
            for module in modules
        },
        "survivors": [asdict(each) for each in results if each.outcome == "survived"],
    }


if __name__ == "__main__":
    main()
