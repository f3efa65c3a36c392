"""Which model is best for this data: every model within a budget of time, in one table and on one page."""

from hmlet.selection.board import Leaderboard, Row, Scores
from hmlet.selection.contest import leaderboard
from hmlet.selection.first_try import FirstTry, try_file

__all__ = ["FirstTry", "Leaderboard", "Row", "Scores", "leaderboard", "try_file"]
