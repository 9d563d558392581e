"""Choosing λ and the kernel by held-out predictions, in far less time than separate fits take."""

from dkrr.selection.candidates import Selected, all_candidates_failed_error, best_of, displayed, select
from dkrr.selection.curve import LearningCurve, gain_of
from dkrr.selection.folds import Folds
from dkrr.selection.optimum import Optimum, Search
from dkrr.selection.scores import (
    Report,
    Score,
    ScoreSheet,
    named,
    negative_squared_error,
    without_score,
)
from dkrr.selection.scoring import Candidate, SelectionRequest, planned

__all__ = [
    "Candidate",
    "Folds",
    "LearningCurve",
    "Optimum",
    "Report",
    "Score",
    "ScoreSheet",
    "Search",
    "Selected",
    "SelectionRequest",
    "all_candidates_failed_error",
    "best_of",
    "displayed",
    "gain_of",
    "named",
    "negative_squared_error",
    "planned",
    "select",
    "without_score",
]
