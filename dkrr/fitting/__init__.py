"""Executing a plan: from checked data to a fitted value."""

from dkrr.fitting.data import LabelledData, TrainingData
from dkrr.fitting.logistic import Fitted, fit_path
from dkrr.fitting.results import warn_of
from dkrr.fitting.sampled import about_the_rows, drawn
from dkrr.fitting.solve import fit

__all__ = ["Fitted", "LabelledData", "TrainingData", "about_the_rows", "drawn", "fit", "fit_path", "warn_of"]
