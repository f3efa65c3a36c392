"""The page of a leaderboard, from the parts of a report's page."""

from __future__ import annotations

import shlex
from html import escape

from hmlet.ranking.statistics import TABLE, TITLES
from hmlet.reporting import figures as drawing
from hmlet.reporting.layout import Card, Cell, document, duration, figure, p_value, table
from hmlet.selection.board import SELECTED_BY, K, Leaderboard, Row, Scores


def render(board: Leaderboard) -> str:
    """The whole page as one HTML text that needs no other file."""
    ranked, unranked = board.ranked, [row for row in board.rows if row.valid is None]
    sections: list[tuple[str, list[Card | None]]] = [
        ("Every metric", [_scores_table(ranked)] if ranked else []),
        ("Without a result", [_notes_table(unranked)] if unranked else []),
    ]
    answer = [_answer(board), _standings(ranked) if ranked else None]
    return document(f"Which model is best on {board.data}?", answer, sections)


def _standings(rows: tuple[Row, ...]) -> Card:
    points = [
        (row.model, row.test.means[SELECTED_BY], row.test.intervals[SELECTED_BY])
        for row in rows
        if row.test is not None
    ]
    see = "Best on validation first. The bar is the 95 % interval of the mean over users."
    return figure(drawing.standings(points, f"test {TITLES[SELECTED_BY]}@{K}", see))


def _scores_table(rows: tuple[Row, ...]) -> Card:
    titles = [f"{TITLES[name]}@{K}" for name in TABLE]
    columns = [
        "model",
        "loss",
        *(f"validation {title}" for title in titles),
        *(f"test {title}" for title in titles),
        "p against the best",
        "training",
    ]
    cells: list[list[object]] = []
    for row in rows:
        assert row.valid is not None
        assert row.test is not None
        assert row.seconds is not None
        model = row.model if row.p is not None else Cell(f'<span class="yes">{escape(row.model)}</span>')
        scores = [_with_interval(part, name) for part in (row.valid, row.test) for name in TABLE]
        p = "–" if row.p is None else p_value(row.p)
        shortened = escape(row.note.removeprefix("shortened to "))
        cells.append(
            [
                model,
                row.loss or "–",
                *scores,
                p,
                Cell(f'{duration(row.seconds)}<br><span class="range">{shortened}</span>'),
            ]
        )
    see = (
        "Means over users with their 95 % intervals. Validation chooses the model; the test part only measures it. "
        "p is of the paired t-test of test NDCG, not corrected for the number of models."
    )
    return table("Accuracy", see, columns, cells, wide=True)


def _with_interval(scores: Scores, name: str) -> Cell:
    low, high = scores.intervals[name]
    return Cell(f'{scores.means[name]:.4f}<br><span class="range">{low:.4f} – {high:.4f}</span>')


def _answer(board: Leaderboard) -> Card:
    """The card that leads the page: the best model, and what to do with it."""
    conclusion = f'<p class="answer">{escape(board.conclusion())}</p>'
    if not board.ranked:
        return Card(conclusion, kind="lead")
    commands = [
        ("Serve the best model over HTTP, with a page to explore it:", str(board.serve)),
        ("Write a report about it:", shlex.join(["hmlet", "report", str(board.rows[0].run), "--out", "report.html"])),
    ]
    listed = "".join(
        f'<p class="see">{escape(what)}</p><pre class="command">{escape(command)}</pre>' for what, command in commands
    )
    return Card(f"{conclusion}<h3>What to do next</h3>{listed}", kind="lead")


def _notes_table(rows: list[Row]) -> Card:
    see = "Run the command again to add the models that were skipped or stopped."
    return table("Reasons", see, ["model", "reason"], [[row.model, row.note] for row in rows], wide=True, words=True)
