"""Which runs count as one model, and what a comparison calls them."""

from __future__ import annotations

from hmlet.runs.comparison import label_runs


def test_runs_of_one_recipe_are_seeds_of_one_model() -> None:
    runs = [("end", "r1", "runs/1"), ("gcn", "r2", "runs/2"), ("end", "r1", "runs/3")]
    assert label_runs(runs) == {"end": [0, 2], "gcn": [1]}


def test_two_recipes_of_one_model_are_told_apart() -> None:
    runs = [("end", "r1", "slow"), ("end", "r2", "fast"), ("end", "r1", "slow2"), ("gcn", "r3", "gcn")]
    assert label_runs(runs) == {"end (slow)": [0, 2], "end (fast)": [1], "gcn": [3]}


def test_runs_of_a_single_recipe_are_compared_one_by_one() -> None:
    assert label_runs([("end", "r", "a"), ("end", "r", "b")]) == {"end (a)": [0], "end (b)": [1]}
    assert label_runs([("end", "r", "a"), ("end", "r", "a")]) == {"end (a)": [0], "end (a) #2": [1]}


def test_a_label_has_as_much_of_the_path_as_tells_runs_apart() -> None:
    runs = [("end", "r", "/long/way/x/run"), ("end", "r", "/long/way/y/run"), ("end", "r", "z")]
    assert list(label_runs(runs)) == ["end (x/run)", "end (y/run)", "end (z)"]
    nested = [("end", "r", "run"), ("end", "r", "x/run"), ("end", "r", ".")]
    assert list(label_runs(nested)) == ["end (run)", "end (x/run)", "end (.)"]
