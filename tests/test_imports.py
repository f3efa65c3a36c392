"""What may be imported when: nothing heavy for `--help`, nothing beyond the core for a prepared directory."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from bare import CORE, forbidden_modules, run_bare
from packaging.requirements import Requirement

import hmlet
from hmlet.data import Dataset, Interactions, Vocabulary

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ["torch", "numpy", "scipy", "pyarrow", "polars", "matplotlib", "starlette", "uvicorn", "networkit", "optuna"]
IMPORTED_BY_HELP = """\
import sys
from hmlet.cli import main
status = main(sys.argv[1:])
print(*sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
sys.exit(status)
"""


@pytest.mark.parametrize("arguments", [["--help"], ["data", "--help"]], ids=" ".join)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED_BY_HELP, *arguments], capture_output=True, text=True, check=True
    )
    assert "Usage: hmlet" in done.stdout
    assert not set(HEAVY).intersection(done.stderr.split())


def test_a_command_that_reads_data_does_not_import_pandas() -> None:
    """pyarrow would, where it is installed."""
    code = "import atexit, sys; atexit.register(lambda: print(*sys.modules)); from hmlet.cli import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", code, "data", "stats", "debian"], capture_output=True, text=True, check=True
    )
    imported = set(done.stdout.splitlines()[-1].split())
    assert "pyarrow" in imported
    assert not {"pandas", "torch"} & imported


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_preparing_a_file_does_not_import_pandas(suffix: str, tmp_path: Path) -> None:
    rows = pa.table({"user": ["a", "a", "b", "b", "c"], "item": ["x", "y", "x", "y", "x"], "stars": [1.0] * 5})
    write = {"csv": pyarrow.csv.write_csv, "parquet": pq.write_table}[suffix]
    write(rows, tmp_path / f"rows.{suffix}")
    code = f"""\
import sys
from hmlet.data import Dataset
data = Dataset.from_file("rows.{suffix}", core=2, split="ratio:0.5,0,0.5", weight="stars")
data.save("out")
print(len(data), len(Dataset.load("out")), "polars" in sys.modules, "pandas" in sys.modules)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.split() == ["4", "4", "True", "False"]


CALLED = {"hmlet", "hmlet.api", "hmlet.errors", "hmlet.version"}
OWN_ROOM = {"console": "hmlet.system", "data": "hmlet.data", "reproduce": "hmlet.reproduction"}


@pytest.mark.parametrize(
    "module", sorted((Path(hmlet.__file__).parent / "cli").glob("*.py")), ids=lambda path: path.stem
)
def test_a_command_calls_the_api_alone(module: Path) -> None:
    """What happens between the calls belongs to the library, where Python users have it too."""
    imported = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
    ours = {name for name in imported if name.partition(".")[0] == "hmlet"}
    rooms = ("hmlet.cli", OWN_ROOM.get(module.stem, "hmlet.cli"))
    assert not imported & {"torch", "numpy"}
    assert {name for name in ours - CALLED if not name.startswith(rooms)} == set()


def test_import_hmlet_is_free() -> None:
    code = "import sys, hmlet; print(hmlet.__version__, *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {*HEAVY, "typer", "rich"}.intersection(done.stdout.split())


def test_names_that_are_imported_on_first_use_are_listed() -> None:
    assert set(hmlet.__all__) <= set(dir(hmlet))
    assert all(hasattr(hmlet, name) for name in dir(hmlet))


def test_bare_python_has_the_core_and_nothing_else(tmp_path: Path) -> None:
    present = run_bare(tmp_path, "-c", f"import {', '.join(CORE)}")
    assert (present.returncode, present.stderr) == (0, "")
    for module in ("pandas", "optuna", "matplotlib", "starlette", "pytest"):
        assert module in forbidden_modules()
        assert f"No module named '{module}'" in run_bare(tmp_path, "-c", f"import {module}").stderr


def test_bare_imports_hold_in_child_processes(tmp_path: Path) -> None:
    code = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', 'import pandas']).returncode)"
    assert run_bare(tmp_path, "-c", code).returncode == 1


def test_a_prepared_directory_loads_under_bare_imports(tmp_path: Path) -> None:
    tiny = Interactions(
        user=np.array([0, 0, 1, 1], dtype=np.int32),
        item=np.array([0, 1, 1, 2], dtype=np.int32),
        users=Vocabulary("user", pa.array(["ann", "bob"])),
        items=Vocabulary("item", pa.array([10, 20, 30])),
    )
    Dataset("tiny", tiny, np.array([0, 2, 0, 1], dtype=np.uint8)).save(tmp_path / "tiny")
    code = "from hmlet.data import Dataset; d = Dataset.load('tiny'); print(d.name, d.n_users, d.n_items, len(d))"
    done = run_bare(tmp_path, "-c", code)
    assert (done.stdout, done.stderr) == ("tiny 2 3 4\n", "")


CORE_SCRIPT = """
import hmlet
from pathlib import Path

Path("plays.csv").write_text("user,item\\n" + "".join(f"u{u},i{i}\\n" for u in range(9) for i in range(u % 2, 12, 2)))
run = hmlet.fit("plays.csv", "lightgcn", epochs=2, embedding_size=4, device="cpu")
print(run.recommend(["u0"], k=2, mask="train").to_frame().shape)

def sklearn():
    import hmlet.sklearn

board = hmlet.Dataset.from_file("plays.csv")
for call in (
    lambda: hmlet.serve(run, port=0),
    lambda: run.report("page.html"),
    lambda: hmlet.tune(board, "bpr", "tuned", sampler="tpe", trials=1),
    lambda: hmlet.fit(board, "bpr", "a", epochs=1, callbacks=[hmlet.callbacks.MLflow()]),
    lambda: hmlet.fit(board, "bpr", "b", epochs=1, callbacks=[hmlet.callbacks.WandB()]),
    lambda: hmlet.fit(board, "bpr", "c", epochs=1, tensorboard="events"),
    sklearn,
):
    try:
        call()
    except hmlet.HmletError as error:
        print(error.hint)
"""


def test_the_core_reads_a_file_trains_and_recommends_and_the_rest_names_its_extra(tmp_path: Path) -> None:
    done = run_bare(tmp_path, "-c", CORE_SCRIPT)
    extras = ["serve", "report", "tune", "mlflow", "wandb", "tensorboard", "sklearn"]
    assert done.stdout.splitlines() == ["(2, 4)", *(f"pip install 'hmlet[{extra}]'" for extra in extras)], done.stderr


def test_the_core_is_what_pyproject_declares() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {Requirement(text).name for text in project["dependencies"]} == set(CORE)
    assert project["urls"]
