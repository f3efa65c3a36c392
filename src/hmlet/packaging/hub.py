"""push() and pull(): a run's package as a model repository on the Hugging Face Hub."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from hmlet.errors import ConfigError, HmletError, MissingExtra, RunError
from hmlet.packaging.folder import RUN, package, under_temporary_name
from hmlet.recommend.recommender import Recommender
from hmlet.runs.record import RECORD
from hmlet.system.files import unfinished
from hmlet.system.spelling import call, option


def push(run: Recommender, repository: str, *, private: bool = True, token: str | None = None) -> str:
    """Upload a run's package in one commit, and return the commit's address. The repository is created if it is new."""
    library = _library()
    with unfinished(Path(tempfile.mkdtemp(prefix="hmlet-"))) as place, _explained(repository):
        folder = package(run, place / "package")
        api = library.HfApi(token=token, library_name="hmlet")
        api.create_repo(repository, private=private, exist_ok=True)
        files = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.is_file()}
        # What another run left there goes in the same commit, so that no commit has a mixture of two runs.
        stale = {name for name in api.list_repo_files(repository) if name.startswith(f"{RUN}/")} - files.keys()
        commit = api.create_commit(
            repository,
            [
                *(library.CommitOperationAdd(name, file) for name, file in sorted(files.items())),
                *(library.CommitOperationDelete(name) for name in sorted(stale)),
            ],
            commit_message=f"Add {run.record.model} on {run.record.data.name}",
        )
    return str(commit.commit_url)


def pull(repository: str, out: Path, *, revision: str | None = None, token: str | None = None) -> Path:
    """Download a package into a new folder, and return the path of the run in it."""
    library = _library()
    if out.exists():
        raise RunError(f"{out} exists already", f"choose another {option('out')}")
    out.parent.mkdir(parents=True, exist_ok=True)
    with under_temporary_name(out) as folder:
        with _explained(repository):
            library.snapshot_download(
                repository,
                revision=revision,
                local_dir=folder,
                token=token,
                library_name="hmlet",
                ignore_patterns=[".git*"],
            )
        if not (folder / RUN / RECORD).is_file():
            raise RunError(f"{repository} has no hmlet run", f"name a repository that {call('push')} wrote")
        shutil.rmtree(folder / ".cache", ignore_errors=True)  # the library's notes on what it downloaded
        folder.rename(out)
    return out / RUN


def _library() -> ModuleType:
    try:
        import huggingface_hub as library
    except ImportError as error:
        raise MissingExtra("the Hugging Face Hub", "huggingface_hub", "hub") from error
    assert isinstance(library, ModuleType)
    return library


@contextmanager
def _explained(repository: str) -> Iterator[None]:
    """A failed Hub request as an error that names the fix."""
    from huggingface_hub import errors

    try:
        yield
    except errors.HFValidationError as error:
        raise ConfigError(f"{repository!r} is not the name of a repository", "write it as owner/name") from error
    except errors.RevisionNotFoundError as error:
        raise RunError(
            f"{repository} has no such revision", f"leave out {option('revision')}, or correct it"
        ) from error
    except (errors.RepositoryNotFoundError, errors.GatedRepoError) as error:
        raise RunError(
            f"there is no repository {repository} that this token can see", "check the name, and set HF_TOKEN"
        ) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        fix = "set HF_TOKEN to a token that may write there" if status in (401, 403) else "try again later"
        raise HmletError(f"the Hub returned {status} for {repository}", fix) from error
    except HmletError:
        raise
    except Exception as error:
        # The HTTP library differs between versions of huggingface_hub, and with it the class of a failed connection.
        if not isinstance(error, OSError) and not type(error).__module__.startswith(("httpx", "httpcore", "requests")):
            raise
        raise HmletError(f"cannot reach the Hub ({error})", "check the network, or HF_ENDPOINT") from error
