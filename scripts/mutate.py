"""Would the tests notice? Breaks a module one small way at a time: `python scripts/mutate.py losses/sampling`.

A mutant is one change of a module's syntax tree: a comparison, an arithmetic or boolean operator, a constant moved by
one, a returned value replaced by None, or a statement deleted. A mutant survives if every test of the module passes.

PyTorch and the other heavy libraries are imported once, and pytest starts once for each module. When the tests import
the module, the process forks for every mutant; the child executes the changed tree and goes on. Nothing is written
into src/. The first child has the module as it is: it records how long each test takes and which functions it calls.
A mutant then meets the tests that call its function, fastest first, and is killed by the first failure, or by a time
limit. Tests that run the program in another process do not see the mutant there.

Mutants are drawn with a fixed seed. scripts/equivalent_mutants.toml lists those that change nothing a caller can see,
with the reason; they are left out of the score.
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import FrameType, ModuleType
from typing import TypedDict

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "hmlet"
EQUIVALENT = ROOT / "scripts" / "equivalent_mutants.toml"
# Each module, and the test files that know its right answers.
DEFAULTS, FLOOR = "config/test_defaults.py", "training/test_floor.py"
PROPAGATION = (DEFAULTS, "models/test_propagation.py", FLOOR)
CLOSED_FORMS = (DEFAULTS, "models/test_closed_forms.py")
LOSSES = (DEFAULTS, *(f"losses/test_{name}.py" for name in ("base", "bpr", "softmax", "multinomial")), FLOOR)
LOOP = ("training/test_loop.py", "training/test_forecast.py")  # test_resume.py trains in processes of its own
MODULES: dict[str, tuple[str, ...]] = {
    "ranking/metrics": ("ranking/test_metrics.py",),
    "ranking/statistics": ("ranking/test_statistics.py",),
    "ranking/evaluation": ("ranking/test_evaluation.py",),
    "ranking/scoring": ("ranking/test_scoring.py", "ranking/test_evaluation.py", "ranking/test_top_k.py"),
    "ranking/top_k": ("ranking/test_top_k.py", "ranking/test_scoring.py"),
    "reproduction/differences": ("reproduction/test_differences.py",),
    "losses/sampling": ("losses/test_sampling.py", "data/test_inputs.py"),
    **{f"losses/{name}": LOSSES for name in ("base", "bpr", "softmax", "softmax_at_k", "bsl", "multinomial")},
    "graph/layers": ("graph/test_layers.py", "models/test_propagation.py"),
    "graph/kernels/log_sum_exp": ("graph/kernels/test_log_sum_exp.py", "losses/test_softmax.py"),
    "training/steps": ("training/test_steps.py", "training/test_optimizer.py", "training/test_trainer.py", *LOOP),
    "training/optimizer": ("training/test_optimizer.py",),
    "training/learner": ("training/test_learner.py", "training/test_steps.py", *LOOP),
    "training/forecast": ("training/test_trainer.py", "training/test_forecast.py"),
    "training/loop": ("training/test_comparison.py", "training/test_profiling.py", *LOOP),
    "training/trainer": ("training/test_trainer.py", "training/test_loop.py"),
    "training/comparison": ("training/test_comparison.py", "training/test_loop.py"),
    "training/refitting": ("training/test_refitting.py",),
    "training/updating": ("training/test_updating.py",),
    "training/planning": ("training/test_planning.py", "cli/test_plan.py"),
    "training/capacity": ("training/test_capacity.py", "cli/test_plan.py"),
    "training/floor": (FLOOR, "training/test_forecast.py", "training/test_comparison.py"),
    "training/profiling": ("training/test_profiling.py",),
    "training/environment": ("training/test_environment.py",),
    "models/growth": ("models/test_growth.py",),
    "models/base": (DEFAULTS, "models/test_base.py", "models/test_gating.py", "models/test_propagation.py"),
    "models/hmlet": ("models/test_hmlet.py", "models/test_gating.py", *PROPAGATION),
    "models/gating": ("models/test_hmlet.py", "models/test_gating.py", *PROPAGATION),
    **{f"models/{name}": PROPAGATION for name in ("lightgcn", "lrgccf", "ngcf", "gcmc")},
    "models/mf": (*PROPAGATION, "models/test_newcomer.py", "recommend/test_foldin.py"),
    "models/pinsage": ("models/test_pinsage.py", *PROPAGATION),
    "models/wrmf": ("models/test_wrmf.py", *PROPAGATION, "models/test_newcomer.py", "recommend/test_foldin.py"),
    "models/popularity": (*CLOSED_FORMS, "models/test_newcomer.py"),
    **{
        f"models/{name}": CLOSED_FORMS
        for name in ("ease", "gfcf", "chebycf", "itemknn", "item_item", "spectral_filter")
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
# Imported once, before anything forks.
SHARED = (
    "torch", "torch._dynamo", "numpy", "scipy.stats", "scipy.sparse.linalg", "pyarrow.parquet", "polars", "pandas",
    "pydantic", "hypothesis", "safetensors.torch",
)  # fmt: skip
ALL = "**all**"
KILLED, TIMEOUT, SURVIVED, UNCALLED = "killed", "timeout", "survived", "no test calls it"


# -- mutants ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """One change: where it is, what it does, the line as it was, and the first line of the function that it is in."""

    line: int
    change: str
    was: str
    function: int | None


def mutants(tree: ast.Module, lines: Sequence[str]) -> Iterator[Mutant]:
    """Every mutant of a module; while one is yielded, the tree is so changed."""
    kept, inside = set(_kept(tree)), dict[ast.AST, int | None]({tree: None})
    for node in list(ast.walk(tree)):
        for child in ast.iter_child_nodes(node):
            within = isinstance(node, ast.FunctionDef) and child in node.body
            inside[child] = _first_line(node) if within else inside[node]
        if node not in kept:
            for change, line, place in changes(node):
                yield Mutant(line, change, lines[line - 1].strip(), inside[place])


def changes(node: ast.AST) -> Iterator[tuple[str, int, ast.AST]]:
    """Change a node in each way that it has, one at a time: what was done, in which line, and where in the tree."""
    line = getattr(node, "lineno", 0)
    if isinstance(node, ast.Compare):
        for at, comparison in enumerate(node.ops):
            node.ops[at] = COMPARISONS[type(comparison)]()
            yield f"comparison: {ast.unparse(node)}", line, node
            node.ops[at] = comparison
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        operator, node.op = node.op, OPERATORS[type(node.op)]()
        yield f"arithmetic: {ast.unparse(node)}", line, node
        node.op = operator
    elif isinstance(node, ast.BoolOp):
        either, node.op = node.op, ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        yield f"boolean: {ast.unparse(node)}", line, node
        node.op = either
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        minus, node.op = node.op, ast.UAdd()
        yield f"arithmetic: {ast.unparse(node)}", line, node
        node.op = minus
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        test, node.test = node.test, ast.UnaryOp(ast.Not(), node.test)
        yield f"boolean: {ast.unparse(node.test)}", line, node
        node.test = test
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        value = node.value
        for moved in [not value] if isinstance(value, bool) else [value + 1, value - 1]:
            node.value = moved
            yield f"constant: {moved} instead of {value}", line, node
        node.value = value
    elif isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
        returned, node.value = node.value, ast.Constant(None)
        yield "return None", line, node
        node.value = returned
    for name in ("body", "orelse", "finalbody"):
        statements = getattr(node, name, None)
        if not isinstance(statements, list) or isinstance(node, ast.Module | ast.ClassDef):
            continue
        for at, statement in enumerate(statements):
            if isinstance(statement, DELETED) and not _is_text(statement):
                statements[at] = ast.Pass()
                yield f"deleted: {ast.unparse(statement)}", statement.lineno, statement
                statements[at] = statement


def _kept(tree: ast.Module) -> Iterator[ast.AST]:
    """What no test could notice: unions in annotations, imports for type checkers, and what only guards against
    mistakes of ours, which are the keywords of `zip` and `dataclass`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield node
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(annotation, ast.AST):
                yield from (each for each in ast.walk(annotation) if isinstance(each, ast.BinOp))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("zip", "dataclass"):
            yield from (keyword.value for keyword in node.keywords)


def _first_line(function: ast.AST) -> int:
    """The first line as its code object has it: a decorator's, where there is one."""
    assert isinstance(function, ast.FunctionDef)
    return min([function.lineno, *(each.lineno for each in function.decorator_list)])


def _is_text(statement: ast.stmt) -> bool:
    """Whether a statement is a docstring."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


# -- tests --------------------------------------------------------------------------------------------------------


@dataclass
class Sight:
    """What the tests do with the unchanged module: how long each takes, and the first lines of functions it calls."""

    seconds: dict[str, float] = field(default_factory=dict)
    calls: dict[str, list[int]] = field(default_factory=dict)

    def stages(self, mutant: Mutant) -> list[list[str]]:
        """The tests that call a mutant's function, by file: the fastest file first, and in it the fastest test."""
        chosen: dict[str, list[str]] = {}
        for test in sorted(self.seconds, key=self.seconds.__getitem__):
            if mutant.function is None or mutant.function in self.calls[test]:
                chosen.setdefault(_file(test), []).append(test)
        return sorted(chosen.values(), key=self.total)

    def total(self, tests: Sequence[str]) -> float:
        """Seconds that some tests take together."""
        return sum(self.seconds[test] for test in tests)


def _file(test: str) -> str:
    return test.partition("::")[0]


class Trial(MetaPathFinder, Loader):
    """Puts each mutant in the module's place, in a process of its own. Also the pytest plugin that watches and sorts.

    The process that imports the module tries every mutant, writes the outcomes and ends inside the import.
    """

    def __init__(self, module: str, drawn: set[int], limit: float, scratch: Path) -> None:
        self.origin, self.name = str(PACKAGE / f"{module}.py"), "hmlet." + module.replace("/", ".")
        self.drawn, self.limit = drawn, limit
        self.outcomes, self.seen = scratch / "outcomes.json", scratch / "seen.json"
        self.sight: Sight | None = None  # of the child that has no mutant
        self.tests: list[str] | None = None  # of a child that has one, all in one file
        self.called: set[int] = set()  # in this test, or by the import of all tests before there is one
        self.imported: set[int] = set()
        self.fixtures: dict[str, set[int]] = {}  # by name

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return spec_from_file_location(fullname, self.origin, loader=self) if fullname == self.name else None

    def exec_module(self, module: ModuleType) -> None:
        text = Path(self.origin).read_text(encoding="utf-8")
        tree = ast.parse(text)
        child = _fork()
        if not child:
            self.sight = Sight()
            sys.settrace(self._trace)
            threading.settrace(self._trace)
            exec(compile(tree, self.origin, "exec"), module.__dict__)
            return
        if _outcome(child, 600.0) != SURVIVED:
            os._exit(1)
        sight, outcomes = Sight(**json.loads(self.seen.read_text())), {}
        for at, mutant in enumerate(mutants(tree, text.splitlines())):
            if at not in self.drawn:
                continue
            outcomes[at] = UNCALLED
            for tests in sight.stages(mutant):
                child = _fork()
                if not child:
                    self.tests = tests
                    exec(compile(ast.fix_missing_locations(tree), self.origin, "exec"), module.__dict__)
                    return
                outcomes[at] = _outcome(child, min(self.limit, 10 + 5 * sight.total(tests)))
                if outcomes[at] != SURVIVED:
                    break
        self.outcomes.write_text(json.dumps(outcomes))
        os._exit(0)

    def _trace(self, frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code.co_filename == self.origin:
            self.called.add(frame.f_code.co_firstlineno)

    def pytest_configure(self) -> None:
        """A failure has to be found, not made small."""
        from hypothesis import Phase, settings

        settings.register_profile("mutants", settings.default, phases=(Phase.explicit, Phase.generate))
        settings.load_profile("mutants")

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        skipped = (
            self.tests is not None and collection_path.is_file() and collection_path != ROOT / _file(self.tests[0])
        )
        return True if skipped else None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.tests is not None:
            place = {test: at for at, test in enumerate(self.tests)}
            items[:] = sorted((each for each in items if each.nodeid in place), key=lambda each: place[each.nodeid])
        self.imported = set(self.called)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Iterator[None]:
        """What a fixture calls, everyone calls who has it, though only the first of them makes it."""
        before, self.called = self.called, set()
        try:
            return (yield)
        finally:
            self.fixtures.setdefault(fixturedef.argname, set()).update(self.called)
            self.called |= before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.called, began = set(self.imported), time.perf_counter()
        try:
            return (yield)
        finally:
            if self.sight is not None:
                made = [self.fixtures.get(name, set()) for name in getattr(item, "fixturenames", [])]
                self.sight.seconds[item.nodeid] = time.perf_counter() - began
                self.sight.calls[item.nodeid] = sorted(self.called.union(*made))

    def pytest_sessionfinish(self) -> None:
        if self.sight is not None:
            self.seen.write_text(json.dumps(asdict(self.sight)))


def _fork() -> int:
    """As os.fork; the child leads a process group, so that all that it starts can be ended with it."""
    gc.freeze()  # or every collection in the child would walk through all that was imported, and copy its pages
    child = os.fork()
    if not child:
        os.setsid()
    return child


def _outcome(child: int, limit: float) -> str:
    """How a child that runs tests ended. No test left to run (5) kills nothing."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return SURVIVED if os.waitstatus_to_exitcode(status) in (0, 5) else KILLED
        time.sleep(0.01)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return TIMEOUT


def outcomes(module: str, tests: Sequence[str], drawn: set[int], limit: float = 120.0) -> dict[int, str]:
    """What the tests say of some mutants of a module, by their places in `mutants`."""
    with tempfile.TemporaryDirectory() as scratch:
        trial = Trial(module, drawn, limit, Path(scratch))
        log = Path(scratch) / "log"
        server = _fork()
        if not server:
            with log.open("w") as written:
                os.dup2(written.fileno(), 1)
                os.dup2(written.fileno(), 2)
            sys.meta_path.insert(0, trial)
            where = [f"--basetemp={scratch}/tmp", f"--rootdir={ROOT}", *(f"tests/{each}" for each in tests)]
            what = ["-x", "-q", "--tb=no", "--no-header", "-p", "no:cacheprovider", "-m", "not slow and not browser"]
            os._exit(pytest.main([*what, *where], plugins=[trial]))
        os.waitpid(server, 0)
        if not trial.outcomes.exists():
            sys.exit(f"the tests of {module} do not pass, or do not import it:\n{log.read_text()}")
        return {int(at): outcome for at, outcome in json.loads(trial.outcomes.read_text()).items()}


# -- score --------------------------------------------------------------------------------------------------------


def equivalent(module: str) -> set[tuple[str, str]]:
    """The mutants that change nothing a caller can see: the line as it was, and the change."""
    listed = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))
    return {(each["was"], change) for each in listed.get(module, []) for change in each["changes"]}


class Survivor(TypedDict):
    """A mutant that no test noticed."""

    line: int
    was: str
    change: str
    outcome: str


class Score(TypedDict):
    """A module's score: `drawn` of all its mutants, those listed as equivalent, and of the others those killed."""

    tests: tuple[str, ...]
    mutants: int
    drawn: int
    equivalent: int
    killed: int
    survivors: list[Survivor]


def try_module(module: str, sample: int, seed: int, limit: float, before: Score | None) -> Score:
    """Try mutants of a module: a sample, all of them (0), or the survivors of an earlier score, which it brings up to
    date."""
    text = (PACKAGE / f"{module}.py").read_text(encoding="utf-8")
    every = list(mutants(ast.parse(text), text.splitlines()))
    listed = equivalent(module)
    stale = listed - {(each.was, each.change) for each in every}
    if stale:
        sys.exit(f"{EQUIVALENT.name} lists what is not a mutant of {module}: {sorted(stale)}")
    if before is not None:
        drawn, gone = same_mutants(before["survivors"], every)
    else:
        gone = 0
        drawn = set(random.Random(seed).sample(range(len(every)), min(sample or len(every), len(every))))
    tried = {at for at in drawn if (every[at].was, every[at].change) not in listed}
    found = outcomes(module, MODULES[module], tried, limit) if tried else {}
    survivors = [
        Survivor(line=every[at].line, was=every[at].was, change=every[at].change, outcome=found[at])
        for at in sorted(found, key=lambda at: every[at].line)
        if found[at] not in (KILLED, TIMEOUT)
    ]
    number = before["drawn"] - gone if before is not None else len(drawn)
    skipped = len(drawn) - len(tried)
    if before is not None:
        skipped = before["equivalent"] + sum((each["was"], each["change"]) in listed for each in before["survivors"])
    return Score(
        tests=MODULES[module],
        mutants=len(every),
        drawn=number,
        equivalent=skipped,
        killed=number - skipped - len(survivors),
        survivors=survivors,
    )


def same_mutants(survivors: Sequence[Survivor], every: Sequence[Mutant]) -> tuple[set[int], int]:
    """The places of an earlier score's survivors among a module's mutants, and how many are gone.

    A line may have moved, so the nearest one that reads the same is meant; what is gone leaves the sample. Of several
    mutants of one line that read the same, all are tried.
    """
    found, gone = set[int](), 0
    for each in survivors:
        alike = [at for at, mutant in enumerate(every) if (mutant.was, mutant.change) == (each["was"], each["change"])]
        nearest = min((abs(every[at].line - each["line"]) for at in alike), default=None)
        found |= {at for at in alike if abs(every[at].line - each["line"]) == nearest}
        gone += nearest is None
    return found, gone


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", choices=[[], *MODULES], default=[], metavar="MODULE")
    parser.add_argument("--sample", type=int, default=40, help="mutants of each module; 0 takes all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one file of tests at most")
    parser.add_argument("--record", type=Path, help="a JSON file for the scores; those of other modules are kept")
    parser.add_argument("--again", action="store_true", help="try only the survivors that the record has")
    parser.add_argument("--table", type=Path, nargs="+", metavar="RECORD", help="print records side by side")
    options = parser.parse_args()
    if options.table:
        print(table(options.table, options.modules or MODULES))
        return
    prepare()
    for module in options.modules or MODULES:
        scores = read(options.record)
        if options.again and not scores[module]["survivors"]:
            continue
        began = time.monotonic()
        before = scores[module] if options.again else None
        score = try_module(module, options.sample, options.seed, options.limit, before)
        for each in score["survivors"]:
            print(f"{module}.py:{each['line']} {each['change']}  (was: {each['was']})  {each['outcome']}", flush=True)
        counts = f"{score['drawn']} of {score['mutants']} mutants, {score['equivalent']} equivalent"
        print(f"{module}: {score['killed']} killed; {counts}; {time.monotonic() - began:.0f} s", flush=True)
        if options.record:
            write(options.record, {**read(options.record), module: score}, options.seed)


def prepare() -> None:
    """Import what no mutant changes, as the tests have it: one thread each, examples that do not change."""
    os.environ.update(OMP_NUM_THREADS="1", CI="1")
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT / "src"))
    for name in SHARED:
        importlib.import_module(name)


def read(path: Path | None) -> dict[str, Score]:
    """The scores of a record by module; none where there is no record yet."""
    if path is None or not path.exists():
        return {}
    scores: dict[str, Score] = json.loads(path.read_text(encoding="utf-8"))["modules"]
    return scores


def write(path: Path, scores: dict[str, Score], seed: int) -> None:
    """Put scores into a record, in the order of MODULES."""
    ordered = {module: scores[module] for module in MODULES if module in scores}
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"seed": seed, "modules": ordered}
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def table(records: Sequence[Path], modules: Iterable[str]) -> str:
    """Killed mutants of those that are not equivalent, a row for each package and a column for each record."""
    wanted = set(modules)
    counts = [tally({name: score for name, score in read(each).items() if name in wanted}) for each in records]
    packages = sorted({package for each in counts for package in each}, key=lambda name: (name == ALL, name))
    lines = [["package", *(record.stem for record in records)], ["---", *["--:" for _ in records]]]
    lines += [[package, *(_share(each.get(package)) for each in counts)] for package in packages]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tally(scores: dict[str, Score]) -> dict[str, tuple[int, int]]:
    """By package and for all: mutants killed, and mutants that are not equivalent by what is listed now."""
    found: dict[str, tuple[int, int]] = {}
    for module, score in scores.items():
        listed = equivalent(module)
        alike = score["equivalent"] + sum((each["was"], each["change"]) in listed for each in score["survivors"])
        for name in (module.partition("/")[0], ALL):
            killed, tried = found.get(name, (0, 0))
            found[name] = killed + score["killed"], tried + score["drawn"] - alike
    return found


def _share(count: tuple[int, int] | None) -> str:
    return "" if count is None else f"{count[0]} of {count[1]} ({count[0] / count[1]:.1%})"


if __name__ == "__main__":
    main()
