"""`hmlet doctor`: libraries and extras as the package's metadata has them."""

from __future__ import annotations

import platform
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch

from hmlet.cli import main
from hmlet.training import environment

PROJECT = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_metadata_is_read() -> None:
    lines = [
        "torch>=2.6",
        "numpy",
        'polars>=1.30; extra == "data"',
        "fast-api[standard]>=1; extra == 'serve'",
        'mine; sys_platform == "linux" and extra == "dev"',
        'hmlet[data,serve]; extra == "all"',
    ]
    assert environment.requirements(lines) == (["torch", "numpy"], {"data": ["polars"], "serve": ["fast-api"]})


def test_an_extra_that_lacks_a_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = ["torch", 'nowhere; extra == "far"', 'numpy; extra == "near"', 'hmlet[far,near]; extra == "all"']
    monkeypatch.setattr(environment, "requires", lambda package: declared)
    found = environment.environment()
    assert found.missing_extras == ["far"]
    assert (found.libraries["nowhere"], list(found.libraries)) == (None, ["torch", "nowhere", "numpy"])
    assert found.devices["cpu"].free_bytes > 0


def test_what_is_not_installed_declares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(package: str) -> None:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(environment, "requires", requires)
    found = environment.environment()
    assert (found.libraries, found.missing_extras) == ({}, [])


def test_a_gpu_is_named_with_its_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda place: f"GPU {place.index}")
    monkeypatch.setattr(environment, "free_memory", lambda place: 7)
    for triton, told, narrow in (("3.1", "3.1", ", bfloat16"), (None, "missing", "")):
        monkeypatch.setattr(environment, "multiplies_bfloat16", lambda place, able=bool(narrow): able)
        monkeypatch.setattr(environment, "_version", lambda name, triton=triton: triton)
        devices = environment.environment().as_json()["devices"]
        assert devices["cuda:0"] == {"name": f"GPU 0, Triton {told}", "free_bytes": 7}
        assert devices["cpu"]["name"] == f"{platform.machine()}, {torch.get_num_threads()} threads{narrow}"


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("forbidden", [False, True])
def test_sources_are_compiled_at_every_start_if_python_may_not_keep_the_result(
    kept: bool, forbidden: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = tmp_path / "torch.pyc"
    if kept:
        compiled.touch()
    monkeypatch.setattr(environment, "cache_from_source", lambda source: str(compiled))
    monkeypatch.setattr(sys, "dont_write_bytecode", forbidden)
    assert environment.environment().compiles_at_start == (forbidden and not kept)
    assert main(["doctor"]) == 0
    assert ("PYTHONDONTWRITEBYTECODE" in capsys.readouterr().out) == (forbidden and not kept)


def test_every_extra_that_all_includes_is_known() -> None:
    optional = PROJECT["optional-dependencies"]
    lines = [f'{each}; extra == "{extra}"' for extra, listed in optional.items() for each in listed]
    _, extras = environment.requirements(lines)
    assert set(extras) == set(optional) - {"all", "dev", "docs"} - {
        "mlflow",
        "wandb",
    }  # large, and only for those who use them
