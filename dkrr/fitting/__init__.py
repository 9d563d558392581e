"""Executing a plan: from checked data to a fitted value."""

from dkrr.fitting.data import TrainingData
from dkrr.fitting.execute import fit

__all__ = ["TrainingData", "fit"]
