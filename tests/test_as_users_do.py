"""Ten short scripts as users of implicit, LightFM, RecBole, RecTools and scikit-learn would write them.

The data has a right answer: user u likes the items with u ≡ i (mod 2) and misses two of them in the files, so a model
that has learned it recommends items of the user's own parity. Each script leaves what it found in `answer`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

USERS, ITEMS = 40, 24
SMALL = "epochs=25, embedding_size=8, learning_rate=0.05, device='cpu'"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("files")
    rows = [(u, i) for u in range(USERS) for i in range(u % 2, ITEMS, 2) if (u // 2 + i // 2) % 6]
    user, item = np.array(rows).T
    plays = 1 + (user + item) % 5
    sp.save_npz(place / "plays.npz", sp.csr_matrix((plays, (user, item)), shape=(USERS, ITEMS)))
    frame = pd.DataFrame({"user_id": user, "item_id": item, "weight": plays, "datetime": 10**9 + np.arange(len(user))})
    frame.to_csv(place / "interactions.csv", index=False)
    frame.to_csv(place / "u.data", sep="\t", header=False, index=False)
    (place / "ratings.dat").write_text(frame.to_csv(header=False, index=False).replace(",", "::"))
    typed = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    (place / "ml.inter").write_text(typed + frame.to_csv(sep="\t", header=False, index=False))
    (place / "ml.item").write_text(
        "item_id:token\ttitle:token_seq\n" + "".join(f"{i}\tTitle {i}\n" for i in range(ITEMS))
    )
    return place


def even(items: Any) -> bool:
    """Whether all items, as ids or titles, are those of an even user."""
    return len(items) > 0 and all(int(str(item).split()[-1]) % 2 == 0 for item in items)


SCRIPTS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "implicit: fit a CSR matrix, recommend by index": (
        """
        import scipy.sparse
        import hmlet
        user_plays = scipy.sparse.load_npz("plays.npz")
        model = hmlet.fit(user_plays, "wrmf", epochs=5, embedding_size=2, alpha=2.0, device="cpu")
        ids = [each["item"] for each in model.recommend([4], k=2)[0]["items"]]
        related = [each["item"] for each in model.similar_items(6, k=5)]
        answer = ids + related
        """,
        even,
    ),
    "implicit: recommendations for everybody, and the factors": (
        f"""
        import scipy.sparse
        import hmlet
        model = hmlet.fit(scipy.sparse.load_npz("plays.npz"), "bpr", {SMALL})
        user_factors, item_factors = model.embeddings().users, model.embeddings().items
        top = model.recommend_all(k=2).to_frame()
        answer = top.filter(top["user"] == 4)["item"].to_list() + [2 * (user_factors[4] @ item_factors[6] > 0)]
        """,
        even,
    ),
    "LightFM: fit with a loss, score pairs": (
        f"""
        import numpy as np, scipy.sparse
        import hmlet
        interactions = scipy.sparse.load_npz("plays.npz").tocoo()
        model = hmlet.fit(interactions, "bpr", loss="softmax", loss_temperature=0.3, {SMALL})
        scores = model.predict(np.stack([np.full(24, 4), np.arange(24)], axis=1))
        answer = np.argsort(-scores)[:8]
        """,
        even,
    ),
    "LightFM: own train and test matrices, precision at k": (
        f"""
        import scipy.sparse
        import hmlet
        data = scipy.sparse.load_npz("plays.npz")
        test = scipy.sparse.csr_matrix(data.multiply(data == 5))
        train = data - test
        model = hmlet.fit(hmlet.Dataset.from_parts(train=train, test=test), "lightgcn", {SMALL})
        answer = [round(each.metrics["precision"], 2) for each in model.evaluate(k=[2, 5])]
        """,
        lambda found: found[0] > 0.4 and found[1] > 0.2,
    ),
    "RecBole: an atomic file and a model by name": (
        f"""
        import hmlet
        data = hmlet.Dataset.from_file("ml.inter", item_names="ml.item")
        model = hmlet.fit(data, "lightgcn", layers=2, {SMALL})
        answer = [each["name"] for each in model.recommend([4], k=2)[0]["items"]]
        """,
        even,
    ),
    "RecBole: a config, early stopping, metrics at several k": (
        f"""
        import hmlet
        config = dict({SMALL}, patience=3, validate_every=5, seed=2020)
        data = hmlet.Dataset.from_file("u.data", split="leave-one-out")
        result = hmlet.fit(data, "lightgcn", **config).evaluate(k=[10, 20]).to_frame("pandas")
        answer = result.set_index("k")[["recall", "ndcg", "mrr"]]
        """,
        lambda found: list(found.index) == [10, 20] and found.loc[20, "recall"] > 0.9,
    ),
    "RecTools: pandas in, pandas out": (
        f"""
        import pandas as pd
        import hmlet
        ratings = pd.read_csv("interactions.csv")
        data = hmlet.Dataset.from_frame(ratings, weight="weight", timestamp="datetime")
        model = hmlet.fit(data, "lightgcn", {SMALL})
        recos = model.recommend(ratings["user_id"].unique(), k=2).to_frame("pandas")
        answer = recos[recos["user"] == 4].sort_values("rank")["item"]
        """,
        even,
    ),
    "RecTools: the file of MovieLens 1M, a time split and several models": (
        """
        import hmlet
        data = hmlet.Dataset.from_file("ratings.dat", split="temporal:0.8,0.1,0.1", timestamp="timestamp")
        models = [hmlet.fit(data, name, f"runs/{name}", device="cpu") for name in ("popularity", "itemknn", "ease")]
        table = {model.record.model: model.evaluate(k=10).metrics["coverage"] for model in models}
        answer = sorted(table)
        """,
        lambda found: found == ["ease", "itemknn", "popularity"],
    ),
    "scikit-learn: a grid search": (
        f"""
        import pandas as pd
        from sklearn.model_selection import GridSearchCV
        from hmlet.sklearn import Recommender
        ratings = pd.read_csv("interactions.csv").sample(frac=1, random_state=0)
        search = GridSearchCV(Recommender("bpr", {SMALL}), {{"epochs": [1, 25]}}, cv=2).fit(ratings)
        answer = [each["item"] for each in search.best_estimator_.recommend([4], k=2)[0]["items"]]
        """,
        even,
    ),
    "scikit-learn: train_test_split, fit, score": (
        f"""
        import pandas as pd
        from sklearn.model_selection import train_test_split
        from hmlet.sklearn import Recommender
        train, test = train_test_split(pd.read_csv("interactions.csv")[["user_id", "item_id"]], random_state=0)
        model = Recommender("lightgcn", layers=2, {SMALL}).fit(train)
        answer = model.score(test)
        """,
        lambda found: found > 0.4,
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs_and_finds_the_answer(
    name: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name.startswith("scikit-learn"):
        pytest.importorskip("sklearn")
    script, is_right = SCRIPTS[name]
    text = textwrap.dedent(script).strip()
    assert len(text.splitlines()) <= 10
    for file in files.iterdir():
        (tmp_path / file.name).symlink_to(file)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(text, name, "exec"), names)
    assert is_right(names["answer"]), names["answer"]
