"""Algorithms on tiles; each module states its cost beside its code."""

TASK_MODULES = (
    "dkrr.linalg.cholesky",
    "dkrr.linalg.residual",
    "dkrr.linalg.preconditioners",
    "dkrr.linalg.likelihood_passes",
)
"""Modules that import all libraries that tasks need: workers import them before anything is planned or timed."""
