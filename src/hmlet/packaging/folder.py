"""package(): everything that a run needs to be served elsewhere, in one folder or archive.

The folder holds the run with its data, the model card, and what a container needs: a Dockerfile, a compose file and a
Kubernetes manifest with probes. Nothing in it refers to a place on this machine.
"""

from __future__ import annotations

import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from string import Template

from hmlet.errors import RunError
from hmlet.packaging.card import TEMPLATES, model_card
from hmlet.recommend.recommender import Recommender
from hmlet.runs.directory import DATA
from hmlet.runs.record import RECORD
from hmlet.system.files import replacing, unfinished, unwritable
from hmlet.system.spelling import option
from hmlet.version import VERSION

RUN = "run"
ARCHIVES = (".tar.gz", ".tgz")
SERVED_MIB = 1024  # of memory that the service takes without a run: Python, PyTorch and answers under way
COPIES = 3  # of a run's files that the service holds at most: two runs while one replaces the other, and an index


def package(run: Recommender, out: Path, *, wheel: Path | None = None) -> Path:
    """Write a run as a folder, or as an archive if the name ends with .tar.gz; returns the path.

    `wheel` is a wheel of hmlet to include, for places whose package index does not have it.
    """
    if out.exists():
        raise RunError(f"{out} exists already", f"choose another {option('out')}")
    if wheel is not None and (wheel.suffix != ".whl" or not wheel.is_file()):
        raise RunError(f"{wheel} is not a wheel", "build one with `pip wheel`, and name the .whl file")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.name.endswith(ARCHIVES):
            _archive(run, out, wheel)
        else:
            with under_temporary_name(out) as folder:
                _fill(folder, run, wheel)
                folder.rename(out)
    except OSError as error:
        raise unwritable(out, error, RunError) from error
    return out


@contextmanager
def under_temporary_name(out: Path) -> Iterator[Path]:
    """A temporary folder next to `out`, deleted after the block unless it was renamed."""
    with unfinished(Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".tmp", dir=out.parent))) as folder:
        folder.chmod(0o755)
        yield folder


def _archive(run: Recommender, out: Path, wheel: Path | None) -> None:
    """The folder as a compressed archive that unpacks into one directory."""
    name = next(out.name.removesuffix(suffix) for suffix in ARCHIVES if out.name.endswith(suffix))
    with under_temporary_name(out) as folder:
        _fill(folder, run, wheel)
        with replacing(out, RunError) as temporary, tarfile.open(temporary, "w:gz") as archive:
            archive.add(folder, name or RUN, filter=_anonymous)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """An entry that names nobody of this machine."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def _fill(folder: Path, run: Recommender, wheel: Path | None) -> None:
    card = model_card(run)  # first: it may add an evaluation to the run
    _copy_run(run, folder / RUN)
    size = sum(file.stat().st_size for file in (folder / RUN).rglob("*") if file.is_file())
    name = _label(f"{run.record.model}-{run.record.data.name}")
    values = {"name": name, "image": f"{name}:latest", "memory": SERVED_MIB + COPIES * (size >> 20)}
    for file in ("Dockerfile", "compose.yaml", "kubernetes.yaml"):
        text = (TEMPLATES / file).read_text(encoding="utf-8")
        (folder / file).write_text(Template(text).substitute(values), encoding="utf-8")
    (folder / "README.md").write_text(card, encoding="utf-8")
    (folder / "requirements.txt").write_text("".join(f"{each}\n" for each in requirements()), encoding="utf-8")
    (folder / ".dockerignore").write_text("*\n!requirements.txt\n!wheels\n!run\n", encoding="utf-8")
    (folder / "wheels").mkdir()
    (folder / "wheels" / "README.md").write_text((TEMPLATES / "wheels.md").read_text("utf-8"), encoding="utf-8")
    if wheel is not None:
        shutil.copy(wheel, folder / "wheels" / wheel.name)


def _copy_run(run: Recommender, place: Path) -> None:
    """The files that the record vouches for, checked; the data, wherever it is now; and a record without paths."""
    place.mkdir()
    for name in run.record.files:
        (place / name).write_bytes(run.directory.read_bytes(name))
    run.data.save(place / DATA)
    (place / RECORD).write_text(run.record.portable().to_text(), encoding="utf-8")


def _label(text: str) -> str:
    """A text as Kubernetes names things: at most 63 of a to z, 0 to 9 and hyphens, beginning with a letter."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return (plain if plain[:1].isalpha() else f"run-{plain}")[:63].strip("-")


def requirements() -> list[str]:
    """This hmlet with the service, and the versions of its libraries that are installed here."""
    pinned = [f"hmlet[serve]=={VERSION}"]
    for needed in _declared():
        name, _, condition = needed.partition(";")
        if "extra" not in condition or re.search(r"""extra == ['"]serve['"]""", condition):
            library = re.match(r"[\w.-]+", name)
            assert library is not None
            try:
                pinned.append(f"{library[0]}=={metadata.version(library[0]).partition('+')[0]}")
            except metadata.PackageNotFoundError:  # an extra that is not installed here
                continue
    return pinned


def _declared() -> list[str]:
    """What hmlet's metadata says that it needs; nothing where it runs from a source tree that is not installed."""
    try:
        return metadata.requires("hmlet") or []
    except metadata.PackageNotFoundError:
        return []
