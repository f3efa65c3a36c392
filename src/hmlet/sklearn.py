"""A recommender with the conventions of scikit-learn: `fit`, `score`, `get_params` and `set_params`, `clone`.

X holds interactions. A frame with a user and an item in each row, or an array with two columns, can be divided by the
cross-validation of scikit-learn; `fit` also takes a SciPy matrix, a file or a data set.
"""

from __future__ import annotations

import inspect
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np
import numpy.typing as npt

from hmlet.api import DEFAULT, Run, fit
from hmlet.config import Settings
from hmlet.data import Dataset
from hmlet.data.inputs import DataLike, Frame, SparseMatrix, as_dataset, as_pairs, prepared
from hmlet.data.interactions import Id
from hmlet.errors import DataError, MissingExtra, RunError
from hmlet.recommend.answers import Neighbours, Recommendations, ScoredItem
from hmlet.system.files import unwritable

try:
    from sklearn.base import BaseEstimator
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:
    raise MissingExtra("hmlet.sklearn", "scikit-learn", "sklearn") from error


class Recommender(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A model of hmlet as an estimator; every setting of its recipe is a parameter.

    Example: GridSearchCV(Recommender("lightgcn", epochs=20), {"embedding_size": [32, 64]}).fit(ratings)

    A parameter that is None is the recipe's own. `split` takes some of each user's interactions for validation, which
    chooses the epoch. The run of a fitted estimator is `run_`; it is temporary, and `save` keeps it. A pickle of a
    fitted estimator contains the files of its run.
    """

    def __init__(
        self,
        model: str = DEFAULT,
        *,
        user: str | None = None,
        item: str | None = None,
        split: str = "ratio:0.9,0.1,0",
        k: int = 20,
        seed: int | None = None,
        device: str = "auto",
        progress: bool = False,
        **settings: Unpack[Settings],
    ) -> None:
        self.model, self.user, self.item, self.split = model, user, item, split
        self.k, self.seed, self.device, self.progress = k, seed, device, progress
        unknown = [name for name in settings if name not in Settings.__annotations__]
        if unknown:
            raise TypeError(f"Recommender has no parameter {unknown[0]!r}")
        for name in Settings.__annotations__:
            setattr(self, name, settings.get(name))

    def fit(self, X: DataLike | npt.NDArray[Any], y: object = None) -> Self:
        """Train on interactions; `y` is ignored."""
        place = _temporary()
        given = {name: value for name in Settings.__annotations__ if (value := getattr(self, name)) is not None}
        settings: Settings = given  # type: ignore[assignment]  # names and values are checked by `fit`
        self.run_: Run = fit(
            self._dataset(X),
            self.model,
            Path(place.name) / "run",
            device=self.device,
            seed=self.seed,
            progress=self.progress,
            **settings,
        )
        self._place = place  # removed with the estimator
        return self

    def recommend(self, users: Iterable[Id], k: int | None = None) -> Recommendations:
        """The best items of users, without those that they have."""
        return self._fitted().recommend(users, k or self.k)

    def predict(self, X: Frame | npt.NDArray[Any] | Iterable[tuple[Id, Id]]) -> npt.NDArray[np.float64]:
        """The score of each (user, item) pair; -inf where the user or the item was not trained."""
        run = self._fitted()
        users, items = as_pairs(_pairs(X), self.user, self.item)
        known = [user in run.data.users and item in run.data.items for user, item in zip(users, items, strict=True)]
        scores = np.full(len(users), -np.inf)
        chosen = [(user, item) for user, item, here in zip(users, items, known, strict=True) if here]
        scores[np.flatnonzero(known)] = run.predict(chosen)
        return scores

    def score(self, X: Frame | npt.NDArray[Any], y: object = None) -> float:
        """NDCG@k of the held-out interactions of X, averaged over the users of the training data that it has.

        Items of the training data are left out of the lists. Held-out items that were not trained cannot be found.
        """
        run = self._fitted()
        users, items = as_pairs(_pairs(X), self.user, self.item)
        wanted: dict[Id, set[str]] = {}
        for user, item in zip(users, items, strict=True):
            if user in run.data.users:
                wanted.setdefault(user, set()).add(str(item))
        if not wanted:
            raise DataError("no user of X was in the training data", "hold out interactions, not users")
        discount = 1 / np.log2(np.arange(self.k) + 2)
        found = []
        for each, held_out in zip(run.recommend(wanted, self.k), wanted.values(), strict=True):
            hits = np.array([str(row["item"]) in held_out for row in each["items"]], dtype=float)
            found.append(hits @ discount[: len(hits)] / discount[: len(held_out)].sum())
        return float(np.mean(found))

    def similar_items(self, item: Id, k: int | None = None) -> Neighbours[ScoredItem]:
        """The items most like one of them."""
        return self._fitted().similar_items(item, k or self.k)

    def save(self, path: Path | str) -> Run:
        """Keep the run in a directory of its own, where `hmlet.Run(path)` finds it, and return it."""
        run = self._fitted().directory.path
        try:
            shutil.copytree(run, path)
        except OSError as error:
            raise unwritable(Path(path), error, RunError) from error
        return Run(path)

    def __getstate__(self) -> dict[str, Any]:
        """The estimator with the files of its run, so that a pickle is whole."""
        state: dict[str, Any] = {**super().__getstate__()}
        if state.pop("_place", None) is not None:
            run = state.pop("run_").directory.path
            files = (path for path in run.rglob("*") if path.is_file())
            state["_files"] = {path.relative_to(run).as_posix(): path.read_bytes() for path in files}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = state.pop("_files", None)
        super().__setstate__(state)
        if files is not None:
            self._place = _temporary()
            for name, content in files.items():
                path = Path(self._place.name) / "run" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            self.run_ = Run(Path(self._place.name) / "run")

    def _fitted(self) -> Run:
        check_is_fitted(self, "run_")
        return self.run_

    def _dataset(self, X: DataLike | npt.NDArray[Any]) -> Dataset:
        """The data set, split as `split` says unless it comes with its parts."""
        data = _pairs(X)
        if isinstance(data, SparseMatrix):
            return Dataset.from_matrix(data, split=self.split)
        path = Path(data) if isinstance(data, Path | str) else None
        if isinstance(data, Frame) or (path is not None and path.is_file()):
            return prepared([path or data], {"user": self.user, "item": self.item, "split": self.split})
        return as_dataset(data)


def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="hmlet-sklearn-")


def _pairs(given: Any) -> Any:
    """An array with two columns as a frame of users and items; everything else as it is."""
    if not isinstance(given, np.ndarray):
        return given
    if given.ndim != 2 or given.shape[1] != 2:
        raise DataError(f"X is an array of shape {given.shape}", "give it a column of users and one of items")
    import polars

    try:
        return polars.DataFrame({"user": given[:, 0].tolist(), "item": given[:, 1].tolist()})
    except TypeError as error:
        raise DataError("X has ids of several types in one column", "make them all integers, or all text") from error


def _parameters() -> inspect.Signature:
    """The signature of `Recommender` with every setting by its name, which scikit-learn reads its parameters from."""
    signature = inspect.signature(Recommender.__init__)
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    settings = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in Settings.__annotations__
    ]
    return signature.replace(parameters=[*own, *settings])


Recommender.__init__.__signature__ = _parameters()  # type: ignore[attr-defined]
