"""Choosing λ and the kernel by held-out predictions, in far less time than separate fits take."""

from dkrr.selection.folds import Folds
from dkrr.selection.report import Report
from dkrr.selection.run import Candidate, Selected, SelectionRequest, select, selected
from dkrr.selection.scores import Score, ScoreSheet, negative_squared_error

__all__ = [
    "Candidate",
    "Folds",
    "Report",
    "Score",
    "ScoreSheet",
    "Selected",
    "SelectionRequest",
    "negative_squared_error",
    "select",
    "selected",
]
