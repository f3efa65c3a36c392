"""A script that uses the public API as its types have it; tests/test_api.py has mypy check it.

`misspelt` in tests/test_api.py makes a copy with one wrong name.
"""

from __future__ import annotations

from pathlib import Path

import hmlet
import hmlet.recommend.answers as hmlet_answers


def study(place: Path) -> str:
    """Train two models and say which is better, touching every function and method."""
    data: hmlet.Dataset = hmlet.Dataset.load(place / "plays")
    parts = hmlet.Dataset.from_parts(train=data.to_frame(), test=place / "test.csv", user="listener")
    recipe: hmlet.Recipe = hmlet.resolve("lightgcn", data, seed=2, epochs=5, embedding_size=8)
    plan: hmlet.Plan = hmlet.plan(data, recipe, device="cpu", memory="8GB")
    if not plan.fits:
        return ", ".join(change.what for change in plan.changes)
    run: hmlet.Run = hmlet.fit(
        data,
        recipe,
        place / "lightgcn",
        device="cpu",
        callbacks=[lambda event: None, hmlet.callbacks.TensorBoard("events")],
    )
    best: float = (run.record.valid or {})["ndcg"]
    gated = hmlet.fit(data, out=place / "gated", device="cpu", resume=True, profile=True)
    evaluation: hmlet.Evaluation = run.evaluate("test", k=10)
    recall: float = hmlet.evaluate(place / "lightgcn").metrics["recall"]
    (first,) = run.recommend(["ann"], k=3)
    frame = run.recommend_all(k=3).to_frame("pandas")
    pairs: float = float(run.predict([("ann", "So What")]).sum()) + run.embeddings().items.size
    near: list[hmlet_answers.SimilarItems] = run.similar_items(["So What"], k=2)
    one: list[hmlet_answers.ScoredItem] = run.similar_items("So What", k=2)
    lengths: list[int] = [each.k for each in run.evaluate(k=[5, 10])]
    names: list[str] = [f"{each['item']} {each['score']:.3f}" for each in first["items"]]
    sentence: str = gated.explain("ann", "So What")["sentence"]
    comparison: hmlet.Comparison = hmlet.compare(run, place / "gated", k=10)
    analysis: hmlet.Analysis = gated.analyze(centrality="none")
    classes = {name: size.share for name, size in analysis.class_size.items()}
    rows: int = run.export(place / "topn.csv") + hmlet.export(run, place / "topn.parquet", users=["ann"])
    page: Path = gated.report(place / "page.html")[0]
    tuned: hmlet.Tuning = hmlet.tune(parts, "lightgcn", place / "tuned", sampler="random", trials=2)
    again: hmlet.Reproduction = hmlet.reproduce(data, models=["lightgcn"], seeds=1, out=place / "again")
    tried: hmlet.FirstTry = hmlet.try_file(place / "plays.csv", minutes=1)
    board: hmlet.Leaderboard = hmlet.leaderboard(data, place / "board", models=[hmlet.list_models()[0].name])
    leader: str | None = max(board.best, tried.board.best, key=str)
    told = [
        frame,
        pairs,
        near,
        one,
        lengths,
        best,
        leader,
        evaluation.k,
        recall,
        names,
        sentence,
        classes,
        rows,
        page,
        tuned.best.value,
        again.page,
    ]
    return f"{comparison.conclusion()} {told}"


def offer(run: hmlet.Run) -> None:
    """Serve a run until the process is told to stop."""
    try:
        run.serve(port=0, listening=lambda address: None)
    except hmlet.HmletError as error:
        raise SystemExit(error.exit_code) from error
