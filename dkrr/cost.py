"""Work of an algorithm in operations and bytes, which rates convert to seconds, and the stages of a fit."""

from dataclasses import dataclass, fields
from typing import Self

__all__ = ["STAGE_NAMES", "Stage", "Work"]

STAGE_NAMES = (
    "drawing centres",
    "starting workers",
    "checking X",
    "copying X",
    "reading X",
    "checking symmetry",
    "targets",
    "diagonal",
    "Gram matrix",
    "normal matrix",
    "preconditioner",
    "factorisation",
    "substitution",
    "conjugate gradient",
    "likelihood",
    "Newton steps",
    "true residual",
    "training errors",
    "held-out errors",
    "held-out models",
    "predictions",
    "suggestions",
)
"""Every stage of a fit, about in the order in which they run, and those of predictions and suggestions."""


@dataclass(frozen=True)
class Stage:
    """Named stage of a fit, projected or measured.

    Attributes
    ----------
    name : str
        Name of the stage, such as "factorisation": a fit and its plan have the same.
    seconds : float
        Wall time.
    read_bytes : float
        Bytes read from the store.
    written_bytes : float
        Bytes written to the store.
    disk_bytes : int
        Peak space of its results in the store.
    peak_bytes : int
        Peak memory of any process that works during the stage.

    See Also
    --------
    dkrr.planning.Plan : The plan of a fit.
    dkrr.solvers.SolveResult : What a fit reports of its work.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr import KernelRidge
    >>> model = KernelRidge(kernel="rbf").fit(np.eye(3), [1.0, 2.0, 3.0])
    >>> "factorisation" in [stage.name for stage in model.plan_.chosen.stages]
    True
    """

    name: str
    seconds: float
    read_bytes: float = 0.0
    written_bytes: float = 0.0
    disk_bytes: int = 0
    peak_bytes: int = 0

    def times(self, factor: float, peak_bytes: int = 0) -> Self:
        """Stage that runs this `factor` times, with results that take no more space.

        Parameters
        ----------
        factor : float
            Number of times.
        peak_bytes : int, default=0
            Peak memory of the new stage.

        Returns
        -------
        Stage
            Stage with the sums of all times.
        """
        seconds, read, written = (factor * x for x in (self.seconds, self.read_bytes, self.written_bytes))
        return type(self)(self.name, seconds, read, written, self.disk_bytes, peak_bytes)


@dataclass(frozen=True)
class Work:
    """Cost of a primitive (flops, elementwise seconds, bytes), summed over its tasks."""

    gemm_flops: float = 0.0
    """Floating-point operations that run at the rate of a matrix product."""
    element_seconds: float = 0.0
    """Seconds of elementwise work (exp, powers, conversions) on one core."""
    read_bytes: float = 0.0
    """Bytes read from the store."""
    cold_bytes: float = 0.0
    """Bytes read that the disk itself delivers, not the system's cache of files."""
    written_bytes: float = 0.0
    """Bytes written to the store."""
    n_tasks: int = 0
    memory_bytes: float = 0.0
    """Bytes of matrices in memory that are read to be multiplied by a few vectors."""
    fresh_bytes: float = 0.0
    """Bytes of memory that a process fills for the first time."""
    row_bytes: float = 0.0
    """Bytes of X read where it is stored."""
    disk_bytes: int = 0
    """Space in the store that stays in use after the work."""
    dense_flops: float = 0.0
    """Floating-point operations of factorisations in memory."""
    dense_side: int = 0
    """Rows of the largest matrix factored in memory."""

    def __add__(self, other: Self) -> Self:
        values = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return type(self)(**(values | {"dense_side": max(self.dense_side, other.dense_side)}))

    def times(self, factor: float) -> Self:
        """Work repeated `factor` times; its result takes no more space."""
        values = {f.name: getattr(self, f.name) * factor for f in fields(self)}
        whole = {"n_tasks": round(values["n_tasks"]), "dense_side": self.dense_side, "disk_bytes": self.disk_bytes}
        return type(self)(**(values | whole))
