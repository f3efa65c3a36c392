"""What comes into the project and what leaves it: no loader that runs code, hashed locks, no trace of a machine."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent

# Reading (or writing) one of these formats runs code that the file carries.
UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
UNSAFE_CALLS = {
    "eval", "exec",
    "torch.load", "torch.save", "torch.hub.load", "torch.jit.load",
    "yaml.load", "yaml.full_load", "yaml.unsafe_load",
    "pandas.read_pickle", "pd.read_pickle",
    "os.system", "os.popen",
}  # fmt: skip
UNSAFE_KEYWORDS = {"allow_pickle", "shell"}

# The only hosts that our files may name: where the data and the literature live, and names that are no host at all.
HOSTS = {"github.com", "raw.githubusercontent.com", "www.debian.org", "deb.debian.org", "snapshot.debian.org"}
HOSTS |= {"arxiv.org", "doi.org", "keepachangelog.com", "semver.org", "www.w3.org"}
HOSTS |= {"fast.hugflare.com", "paperswithcode.com", "vercel.hyper.ai"}  # where published numbers were found
NO_HOSTS = re.compile(r"localhost|127\.0\.0\.1|\[::1\]|(.+\.)?(example|invalid|test|example\.(com|org))|[{<$].*")


def tracked_texts() -> list[tuple[str, str]]:
    """Name and content of every text file that git keeps."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if names.returncode:
        pytest.skip("not a git checkout")
    texts = []
    for name in filter(None, names.stdout.split("\0")):
        content = (ROOT / name).read_bytes() if (ROOT / name).is_file() else b"\0"
        if b"\0" not in content:
            texts.append((name, content.decode()))
    return texts


def unsafe_uses(source: str) -> list[str]:
    """Every import, call or switch in a program that could run code out of a file."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names if name.name.split(".")[0] in UNSAFE_MODULES]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name.name}" for name in node.names]
            found += [name for name in names if name.split(".")[0] in UNSAFE_MODULES or name in UNSAFE_CALLS]
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            found += [name] * (name in UNSAFE_CALLS)
            switches = [keyword for keyword in node.keywords if keyword.arg in UNSAFE_KEYWORDS]
            found += [f"{each.arg}=" for each in switches if ast.unparse(each.value) != "False"]
    return found


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import joblib.numpy_pickle",
        "from torch import load",
        "torch.load(path, weights_only=True)",
        "torch.save(state, path)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text)",
        "eval(text)",
        "subprocess.run(text, shell=True)",
    ],
)
def test_the_scan_sees(source: str) -> None:
    assert len(unsafe_uses(source)) == 1


@pytest.mark.parametrize(
    "source", ["model.eval()", "np.load(path, allow_pickle=False)", "safetensors.torch.load_file(path)"]
)
def test_the_scan_lets_pass(source: str) -> None:
    assert unsafe_uses(source) == []


def test_no_unsafe_loader_in_the_package() -> None:
    files = sorted((ROOT / "src").rglob("*.py"))
    assert files
    found = {str(path.relative_to(ROOT)): unsafe_uses(path.read_text(encoding="utf-8")) for path in files}
    assert {name: uses for name, uses in found.items() if uses} == {}


def lock_entries(name: str) -> list[str]:
    """The entries of a lock: a pin and its hashes each, without comments."""
    lines = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", "").splitlines()
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def pins(name: str) -> dict[str, str]:
    """The version of each package in a lock; where Python versions differ, the last one."""
    requirements = [Requirement(re.split(r"\s+--hash", entry)[0]) for entry in lock_entries(name)]
    return {each.name: str(each.specifier).removeprefix("==") for each in requirements}


def test_every_entry_of_the_lock_is_pinned_and_hashed() -> None:
    entries = lock_entries("requirements.lock")
    assert entries
    for entry in entries:  # a line with an index, a link or a path would not match
        assert re.fullmatch(r"[a-z0-9-]+==[\w.+]+( ; [^-]+?)?(\s+--hash=sha256:[0-9a-f]{64})+\s*", entry), entry


def test_the_lock_covers_what_pyproject_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    locked = pins("requirements.lock")
    for requirement in map(Requirement, asked):
        if requirement.name != "hmlet":
            assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)]), requirement


def test_the_lock_takes_both_builds_of_pytorch_and_no_nvidia_library() -> None:
    (torch,) = [entry for entry in lock_entries("requirements.lock") if entry.startswith("torch==")]
    cpu = re.search(r"^TORCH_CPU := (sha256:[0-9a-f]{64})$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert cpu is not None
    assert torch.count(f"--hash={cpu[1]}") == 1
    assert torch.count("--hash=") > 1
    assert not [name for name in pins("requirements.lock") if name.startswith(("nvidia", "cuda"))]


def audited(report: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "audit.py"), "-"]
    return subprocess.run(command, input=report, capture_output=True, text=True, timeout=60)


def test_a_finding_of_the_audit_fails_and_a_lost_connection_does_not() -> None:
    clean = {"name": "numpy", "version": "2.4.0", "vulns": []}
    unknown = {"name": "torch", "skip_reason": "Dependency not found on PyPI"}
    found = {"name": "h11", "version": "0.14.0", "vulns": [{"id": "PYSEC-2025-1", "fix_versions": ["0.16.0"]}]}
    good = audited(json.dumps({"dependencies": [clean, unknown]}))
    assert (good.returncode, "1 of 2 packages audited, 0 findings" in good.stdout) == (0, True)
    bad = audited(json.dumps({"dependencies": [clean, found]}))
    assert (bad.returncode, "h11 0.14.0: PYSEC-2025-1, fixed in 0.16.0" in bad.stdout) == (1, True)
    lost = audited("")
    assert (lost.returncode, "nothing was audited" in lost.stdout) == (0, True)


def test_files_name_no_host_beyond_the_known_ones() -> None:
    named = [(file, host) for file, text in tracked_texts() for host in re.findall(r"https?://([^\s/:;\"'`)>]+)", text)]
    assert [(file, host) for file, host in named if host not in HOSTS and not NO_HOSTS.fullmatch(host)] == []


def test_files_name_no_path_of_a_machine() -> None:
    places = re.compile(rf"(?<![\w.}}])/({'|'.join(['work', 'root', 'home/[a-z]', 'Users/[a-z]'])})\b")
    assert [(file, found.group()) for file, text in tracked_texts() for found in [places.search(text)] if found] == []
