"""Executing a plan: from checked data to a fitted value."""

from dkrr.fitting.results import FittedModel
from dkrr.fitting.run import Fit, fit

__all__ = ["Fit", "FittedModel", "fit"]
