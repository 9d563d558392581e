"""Solvers of the normal equations of Fourier features: a complete factor, or conjugate gradient with a partial one."""

import uuid
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.cluster import Progress, ThreadExecutor
from dkrr.linalg.conjugate_gradient import Iteration
from dkrr.linalg.fourier_normal import FourierNormalColumns, FourierNormalMatrix
from dkrr.linalg.pivoted_cholesky import PivotedCholesky
from dkrr.linalg.preconditioners import LowRank
from dkrr.linalg.sums import cho_solve, cholesky_factor
from dkrr.text import plural

Array = NDArray[np.float64]

TRACE_LEFT = 0.1
"""Largest trace that a partial factor leaves, over λ."""
MIN_TOL = 1e-13
"""Relative residual of systems by conjugate gradient: with a looser one, λ being far smaller than A, predictions and
refinements are."""


class NormalSolver(ABC):
    """Solutions of (A + λI) X = B for several λ, with a matrix A of Fourier features."""

    iterations = 0
    """Iterations of conjugate gradient so far."""

    @abstractmethod
    def solve(self, right_sides: Array, alphas: Array) -> Array:
        """X of shape (D, t), with the λ of every column."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Give up what it holds outside of itself."""


class CholeskySolver(NormalSolver):
    """Solver with a complete factor, which is kept for the next right-hand sides of the same λ."""

    def __init__(self, matrix: FourierNormalMatrix, progress: Progress, n_alphas: int) -> None:
        self._matrix, self._progress = matrix, progress
        self._entries = None if n_alphas == 1 else matrix.matrix()
        self._alpha, self._factor = np.nan, np.empty((0, 0))

    def factor(self, alpha: float) -> Array:
        """Lower factor of A + λI, valid until that of another λ is asked for."""
        if alpha != self._alpha:
            with self._progress.measured("factorisation"):
                entries = self._matrix.matrix() if self._entries is None else self._entries.copy()
                self._alpha, self._factor = alpha, cholesky_factor(entries, alpha)
        return self._factor

    def solve(self, right_sides: Array, alphas: Array) -> Array:
        out = np.empty_like(right_sides)
        for alpha in np.unique(alphas).tolist():
            columns = alphas == alpha
            out[:, columns] = cho_solve(self.factor(alpha), right_sides[:, columns])
        return out


class CGSolver(NormalSolver):
    """Solver by conjugate gradient, preconditioned by a partial factor; all λ at once."""

    def __init__(
        self, matrix: FourierNormalMatrix, least_alpha: float, rank_limit: int, progress: Progress, max_iter: int
    ) -> None:
        self._matrix, self._progress, self._max_iter = matrix, progress, max_iter
        self.messages = list[str]()
        self._preconditioner: tuple[tuple[float, ...], Any] = ((), None)
        with progress.measured("preconditioner"), ThreadExecutor(matrix.threads) as executor:
            self._partial = PivotedCholesky(
                columns=FourierNormalColumns(matrix),
                executor=executor,
                run=f"grid-{uuid.uuid4().hex}",
                slots=matrix.threads,
                capacity=rank_limit,
            )
            self._partial.grow(rank_limit, lambda f: float(f.residual_diagonal.sum()) <= TRACE_LEFT * least_alpha)

    def close(self) -> None:
        """Give up the factor."""
        self._partial.close()

    def solve(self, right_sides: Array, alphas: Array) -> Array:
        matrix = self._matrix
        with self._progress.measured("conjugate gradient"), ThreadExecutor(matrix.threads) as executor:
            self._partial.executor = executor
            key = tuple(alphas.tolist())
            if self._preconditioner[0] != key:
                self._preconditioner = key, LowRank(self._partial, alphas[None, :])
            outcome = Iteration(
                operator=matrix,
                shift=alphas[None, :],
                right_sides=right_sides,
                preconditioner=self._preconditioner[1],
                tol=MIN_TOL,
                max_iter=self._max_iter,
                estimates_condition=False,
            ).run()
        self.residuals = outcome.residuals
        self.iterations += outcome.iterations
        self.messages.append(
            f"conjugate gradient: {plural(outcome.iterations, 'iteration')}, rank {self._partial.rank}"
        )
        return outcome.x
