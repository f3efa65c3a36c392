"""A package: what is in it, what it says, and that it needs nothing of this machine."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tarfile
from pathlib import Path

import pytest
from finished import finished
from planted import checkerboard

import hmlet
from hmlet.api import Run
from hmlet.cli import main
from hmlet.data import Dataset
from hmlet.errors import RunError
from hmlet.packaging.folder import _label, requirements
from hmlet.version import VERSION

FILES = {
    ".dockerignore", "Dockerfile", "README.md", "compose.yaml", "kubernetes.yaml", "requirements.txt", "run", "wheels",
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose data is on disk, which it keeps no copy of."""
    place = tmp_path_factory.mktemp("packed")
    data = Dataset.load(checkerboard().save(place / "source"))
    return hmlet.fit(
        data,
        hmlet.resolve("hmlet-end", overrides=["train.epochs=2", "model.embedding_size=8", "model.gate_hidden=[8]"]),
        place / "run",
        device="cpu",
        keep_data=False,
    )


@pytest.fixture(scope="module")
def package(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hmlet.package(run, tmp_path_factory.mktemp("package") / "out")


def test_a_package_answers_when_everything_else_is_gone(run: Run, tmp_path: Path) -> None:
    """The run and its data are removed; the package, moved, gives the same answers of every kind."""
    place = run.directory.path.parent
    shutil.copytree(place, tmp_path / "here")
    source = Run.open(tmp_path / "here" / "run", data=tmp_path / "here" / "source")
    users, newcomer = ["u0", "u3"], [["i0", "i2"]]
    asked = source.recommend(users), source.recommend_new(newcomer), source.explain("u0", "i1"), source.evaluate()
    hmlet.package(source, tmp_path / "package")
    shutil.move(tmp_path / "package", tmp_path / "moved")
    shutil.rmtree(tmp_path / "here")
    copy = Run.open(tmp_path / "moved" / "run")
    said = copy.recommend(users), copy.recommend_new(newcomer), copy.explain("u0", "i1"), copy.evaluate()
    assert said[:3] == asked[:3]
    assert said[3].metrics == asked[3].metrics


def test_nothing_in_it_names_a_place_of_this_machine(package: Path, run: Run) -> None:
    assert {file.name for file in package.iterdir()} == FILES
    for file in package.rglob("*"):
        if file.is_file():
            assert str(run.directory.path.parent).encode() not in file.read_bytes(), file


def test_earlier_runs_are_named_without_their_place(tmp_path: Path) -> None:
    old = finished("bpr", tmp_path / "secret" / "old")
    refit = hmlet.refit(old, tmp_path / "secret" / "refit", device="cpu")
    hmlet.package(refit, tmp_path / "package")
    record = json.loads((tmp_path / "package" / "run" / "run.json").read_text())
    assert record["refitted_from"]["run"] == "old"
    assert record["data"]["reference"] == "."
    card = (tmp_path / "package" / "README.md").read_text()
    assert "no test figures exist for it" in card
    assert f"{old.evaluate().metrics['ndcg']:.4f}" in card


def test_the_card_has_the_figures_of_the_run(package: Path, run: Run) -> None:
    card = (package / "README.md").read_text(encoding="utf-8")
    assert "# hmlet-end on checkerboard" in card
    test = run.evaluate().metrics
    assert f"| test | {test['ndcg']:.4f} | {test['recall']:.4f} | {test['precision']:.4f} |" in card
    assert run.recipe.to_toml() in card
    for part in ("train", "valid", "test"):
        assert f"| {part} interactions | {run.data.count(part)} |" in card
    assert run.data.fingerprint in card
    assert "the interactions and the ids of all users" in card


def test_the_image_is_built_from_what_is_there(package: Path) -> None:
    """Every file that the Dockerfile copies exists and is not ignored, and its command is one that hmlet accepts."""
    text = (package / "Dockerfile").read_text().replace("\\\n", " ")
    copied = [shlex.split(line)[1:-1] for line in text.splitlines() if line.startswith("COPY")]
    sources = [each.rstrip("/") for line in copied for each in line]
    assert sources == ["requirements.txt", "wheels", "run"]
    ignored = (package / ".dockerignore").read_text().splitlines()
    assert ignored == ["*", *(f"!{each}" for each in sources)]
    assert all((package / each).exists() for each in sources)
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)
    command = json.loads(entry)
    assert command[:3] == ["hmlet", "serve", "run"]
    assert main([*command[1:], "--help"]) == 0


def test_the_manifests_agree_with_the_image(package: Path) -> None:
    yaml = pytest.importorskip("yaml")
    deployment, service = yaml.safe_load_all((package / "kubernetes.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (compose,) = yaml.safe_load((package / "compose.yaml").read_text())["services"].values()
    assert container["image"] == compose["image"] == "hmlet-end-checkerboard:latest"
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    paths = {
        probe: container[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    assert paths == {"startupProbe": "/v1/ready", "readinessProbe": "/v1/ready", "livenessProbe": "/v1/health"}
    assert compose["environment"]["HMLET_TOKEN"].startswith("${HMLET_TOKEN:?")
    assert container["env"][0]["name"] == "HMLET_TOKEN"
    assert main(["serve", "run", *container["args"], "--help"]) == 0


def test_requirements_pin_this_hmlet(package: Path) -> None:
    lines = (package / "requirements.txt").read_text().splitlines()
    assert lines == requirements()
    assert lines[0] == f"hmlet[serve]=={VERSION}"
    assert all(re.fullmatch(r"[\w.-]+(\[serve\])?==[\w.]+", line) for line in lines)


def test_an_archive_unpacks_into_one_folder(run: Run, tmp_path: Path) -> None:
    wheel = tmp_path / "hmlet-1-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    out = hmlet.package(run, tmp_path / "packed.tar.gz", wheel=wheel)
    with tarfile.open(out) as archive:
        assert {entry.name.partition("/")[0] for entry in archive} == {"packed"}
        assert {entry.uname for entry in archive} == {""}
        archive.extractall(tmp_path / "there")
    assert (tmp_path / "there" / "packed" / "wheels" / wheel.name).read_bytes() == b"a wheel"
    assert Run.open(tmp_path / "there" / "packed" / "run").recommend(["u0"]) == run.recommend(["u0"])


def test_what_is_there_is_not_overwritten_and_a_wheel_is_a_wheel(run: Run, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="exists already"):
        hmlet.package(run, tmp_path)
    with pytest.raises(RunError, match="is not a wheel"):
        hmlet.package(run, tmp_path / "out", wheel=tmp_path / "nothing.whl")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "label"),
    [("hmlet-end-My Data", "hmlet-end-my-data"), ("9 lives", "run-9-lives"), ("Ä_b." + "c" * 80, "b-" + "c" * 61)],
)
def test_names_are_those_that_kubernetes_takes(text: str, label: str) -> None:
    assert _label(text) == label
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", label)
