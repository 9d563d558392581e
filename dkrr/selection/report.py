"""What a selection reports besides scores."""

from copy import copy
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dkrr.solvers import SolveResult, Status
from dkrr.solvers.result import INACCURATE_ABOVE

Array = NDArray[np.float64]
MAX_NAMED = 6
"""Values of λ that a message names."""


def without_score(alphas: Array, reached: float, wanted: float, remedy: str, what: str = "true residual") -> str:
    """Words for λ whose systems were not solved."""
    named = ", ".join(f"{alpha:g}" for alpha in alphas[:MAX_NAMED]) + (", ..." if len(alphas) > MAX_NAMED else "")
    return (
        f"no scores of alpha = {named}: the {what} of their systems is {reached:.1e}, where {wanted:.1e} is needed; "
        f"expected {remedy}"
    )


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
    """Residual that the score of every λ and fold asks for, of shape (n_alphas, n_folds); infinite for λ given up."""
    stopped: NDArray[np.bool_] = field(init=False)
    """Whether a λ was given up, since larger ones have better scores; of shape (n_alphas,)."""
    seconds: float = 0.0
    messages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        shape = (self.n_alphas, self.n_folds)
        self.iterations, self.residuals = np.zeros(shape, np.intp), np.full(shape, np.nan)
        self.wanted = np.full(shape, np.inf)
        self.stopped = np.zeros(self.n_alphas, bool)

    def take(self, a: int, fold: int, residual: float, wanted: float) -> None:
        """Take the residual of a λ and a fold, and the one that its score asks for; of several the worst."""
        if not self.residuals[a, fold] / self.wanted[a, fold] >= residual / wanted:
            self.residuals[a, fold], self.wanted[a, fold] = residual, wanted

    def take_fit(self, fold: int, result: SolveResult, tol: float) -> None:
        """Take the result of a fit of a fold whose targets are those of all λ, to a residual `tol` if iterative."""
        wanted = INACCURATE_ABOVE if result.status in (Status.SOLVED, Status.INACCURATE) else tol
        self.iterations[:, fold] = result.iterations
        for a, residual in enumerate(np.reshape(result.residuals, (self.n_alphas, -1)).max(axis=1).tolist()):
            self.take(a, fold, residual, wanted)

    @property
    def unsolved(self) -> NDArray[np.bool_]:
        """Whether some system of a λ has a larger residual than its score asks for, of shape (n_alphas,)."""
        return np.asarray((self.residuals > self.wanted).any(axis=1))

    def leave_out(self, values: Array, alphas: Array) -> tuple[str, ...]:
        """Set the scores of unsolved λ to NaN, of shape (n_alphas, ...), and say so.

        Those of λ that were given up, too: what they had lost to may be among them.
        """
        bad = self.unsolved
        if not bad.any():
            return ()
        bad |= self.stopped
        values[bad] = np.nan
        remedy = "larger values or max_iter, or solver='cholesky'" if self.iterations[bad].any() else "larger values"
        wanted = np.where(self.residuals > self.wanted, self.wanted, np.inf)[bad]
        return (without_score(alphas[bad], float(np.nanmax(self.residuals[bad])), float(wanted.min()), remedy),)

    def in_order(self, order: NDArray[np.intp]) -> Self:
        """The same with the λ in another order."""
        other = copy(self)
        other.iterations, other.residuals = self.iterations[order], self.residuals[order]
        other.wanted, other.stopped = self.wanted[order], self.stopped[order]
        return other
