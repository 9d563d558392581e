"""Executing a plan: from checked data to a fitted value."""

from dkrr.fitting.data import TrainingData
from dkrr.fitting.execute import fit, warn_of
from dkrr.fitting.sampled import drawn

__all__ = ["TrainingData", "drawn", "fit", "warn_of"]
