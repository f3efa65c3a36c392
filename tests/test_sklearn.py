"""The estimator keeps scikit-learn's contracts: parameters, clones and a grid search, by its own tools."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
from planted import checkerboard
from scipy.sparse import csr_matrix

from hmlet import Run
from hmlet.config import Settings
from hmlet.errors import ConfigError, DataError, RunError

pytest.importorskip("sklearn")
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV

from hmlet.sklearn import Recommender

RATINGS = checkerboard().to_frame("pandas")[["user", "item"]].sample(frac=1, random_state=0)


def small(**settings: object) -> Recommender:
    return Recommender("bpr", device="cpu", epochs=15, embedding_size=8, learning_rate=0.05, **settings)


def test_parameters_are_those_of_scikit_learn() -> None:
    estimator = small(seed=3)
    assert set(estimator.get_params()) >= {*Settings.__annotations__, "model", "split", "seed", "k"}
    assert estimator.get_params()["embedding_size"] == 8
    assert estimator.set_params(embedding_size=4, model="lightgcn").embedding_size == 4
    assert clone(estimator).get_params() == estimator.get_params()
    assert repr(Recommender("bpr", epochs=3)) == "Recommender(epochs=3, model='bpr')"
    with pytest.raises(ValueError, match="Invalid parameter 'epoch'"):
        estimator.set_params(epoch=3)
    with pytest.raises(TypeError, match="has no parameter 'epoch'"):
        Recommender("bpr", epoch=3)
    with pytest.raises(NotFittedError):
        estimator.recommend(["u0"])
    with pytest.raises(ConfigError, match="`layers` is no setting of bpr"):
        small(layers=3).fit(RATINGS)


def test_it_learns_scores_and_is_kept(tmp_path: Path) -> None:
    train, test = RATINGS[:500], RATINGS[500:]
    estimator = small().fit(train)
    untrained = small().set_params(epochs=1, learning_rate=1e-9, start="random").fit(train)
    assert estimator.score(test) > 2 * untrained.score(test)
    assert estimator.score(test.to_numpy()) == estimator.score(test)
    scores = estimator.predict([*test.itertuples(index=False, name=None), ("u0", "nothing")])
    assert np.isfinite(scores[:-1]).all()
    assert scores[-1] == -np.inf
    kept = estimator.save(tmp_path / "kept")
    with pytest.raises(RunError, match=r"cannot write .*kept: File exists: choose another place"):
        estimator.save(tmp_path / "kept")
    expected = estimator.recommend(["u1"], 3)
    del estimator
    assert Run(kept.directory.path).recommend(["u1"], 3) == expected


def pickled(estimator: Recommender) -> Recommender:
    found: Recommender = pickle.loads(pickle.dumps(estimator))  # noqa: S301 - our own
    return found


@pytest.mark.parametrize("copied", [pickled, deepcopy])
def test_a_copy_has_a_run_of_its_own(copied: Callable[[Recommender], Recommender], tmp_path: Path) -> None:
    """It outlives the first estimator, whose run is temporary."""
    first = small(k=7).fit(RATINGS)
    expected, place = first.recommend(["u1"], 3), first.run_.directory.path
    second = copied(first)
    assert first.recommend(["u1"], 3) == expected
    del first
    assert not place.exists()
    assert second.recommend(["u1"], 3) == expected
    assert second.get_params()["k"] == 7
    assert Run(second.save(tmp_path / "kept").directory.path).recommend(["u1"], 3) == expected
    assert not hasattr(copied(small()), "run_")


def test_it_splits_what_comes_without_parts(tmp_path: Path) -> None:
    ratings = RATINGS.assign(user=RATINGS["user"].str[1:].astype(int), item=RATINGS["item"].str[1:].astype(int))
    matrix = csr_matrix((np.ones(len(ratings)), (ratings["user"], ratings["item"])))
    ratings.to_csv(tmp_path / "ratings.csv", index=False)
    quick = Recommender("popularity", device="cpu", split="ratio:0.5,0.5,0")
    for given in (ratings, ratings.to_numpy(), matrix, str(tmp_path / "ratings.csv")):
        assert quick.fit(given).run_.data.count("train") == len(ratings) // 2
    with pytest.raises(DataError, match="X has ids of several types in one column: make them all integers"):
        quick.fit(np.array([["a", 1], [3, 2]], dtype=object))
    board = checkerboard()
    assert quick.fit(board).run_.data is board


def test_a_grid_search_finds_the_better_setting() -> None:
    grid = {"epochs": [1, 15], "seed": [1]}
    search = GridSearchCV(small(), grid, cv=2).fit(RATINGS)
    assert search.best_params_ == {"epochs": 15, "seed": 1}
    assert search.cv_results_["mean_test_score"].argmax() == 1
    assert len(search.best_estimator_.recommend(["u0"], 3)[0]["items"]) == 3
