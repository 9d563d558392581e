"""What a selection reports besides scores."""

from copy import copy
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass
class Report:
    """How the systems of one kernel were solved.

    Parameters
    ----------
    n_alphas, n_folds : int
    """

    n_alphas: int
    n_folds: int
    iterations: NDArray[np.intp] = field(init=False)
    """Iterations of conjugate gradient for every λ and fold, of shape (n_alphas, n_folds); 0 by a factor."""
    residuals: Array = field(init=False)
    """Largest true relative residual of every λ and fold, of shape (n_alphas, n_folds); NaN where none is known."""
    wanted: Array = field(init=False)
    """Residual that the score of every λ and fold asks for, of shape (n_alphas, n_folds)."""
    stopped: NDArray[np.bool_] = field(init=False)
    """Whether a λ was given up, since larger ones have better scores; of shape (n_alphas,)."""
    seconds: float = 0.0
    messages: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Why λ have no scores whose systems are too ill-conditioned."""

    def __post_init__(self) -> None:
        shape = (self.n_alphas, self.n_folds)
        self.iterations, self.residuals = np.zeros(shape, np.intp), np.full(shape, np.nan)
        self.wanted = np.full(shape, np.inf)
        self.stopped = np.zeros(self.n_alphas, bool)

    def take(self, a: int, fold: int, residual: float, wanted: float) -> None:
        """Take the residual of a λ and a fold, and the one that its score asks for; of several the worst."""
        if not self.residuals[a, fold] / self.wanted[a, fold] >= residual / wanted:
            self.residuals[a, fold], self.wanted[a, fold] = residual, wanted

    def in_order(self, order: NDArray[np.intp]) -> Self:
        """The same with the λ in another order."""
        other = copy(self)
        other.iterations, other.residuals = self.iterations[order], self.residuals[order]
        other.wanted, other.stopped = self.wanted[order], self.stopped[order]
        return other
