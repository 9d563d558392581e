"""What a fit found, before it becomes a fitted value."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dkrr.fitting.data import TrainingData
from dkrr.rows import Rows
from dkrr.solvers.conjugate_gradient import Outcome

Array = NDArray[np.float64]


@dataclass(frozen=True)
class DualSolution:
    """α and b."""

    dual_coef: Array
    """Shape (n, t)."""
    intercept: Array
    """Shape (t,)."""
    rows: Rows
    """The training rows, readable after the fit."""
    residual: float
    """Largest true relative residual."""
    outcome: Outcome | None = None
    """What an iterative solver reports besides."""
    messages: tuple[str, ...] = ()
    """What was done other than planned."""


@dataclass(frozen=True)
class PrimalSolution:
    """w, b and, by duality, α."""

    coef: Array
    """Shape (D, t)."""
    intercept: Array
    """Shape (t,)."""
    dual_coef: Array | None
    """Shape (n, t); None where some λ is 0 (it is then not determined)."""
    residual: float
    outcome: Outcome | None = None
    messages: tuple[str, ...] = ()

    @classmethod
    def build(
        cls, data: TrainingData, coef: Array, means: Array, centre: Array | None, errors: Array, residual: float
    ) -> Self:
        """From the solution of the centred problem and its training errors y − f(X).

        The dual coefficients come free: y − f(X) = λ W⁻¹ α.
        """
        dual = None
        if (data.alphas > 0).all():
            dual = errors / data.alphas
            if data.weights is not None:
                dual *= data.weights[:, None]
        return cls(coef, means if centre is None else means - centre @ coef, dual, residual)
