"""Iterative refinement: conjugate gradient in float64, preconditioned by a Cholesky factor in float32.

X₀ = M⁻¹ B with the factor M in float32, then conjugate gradient preconditioned by M, with products and residuals in
float64, until the true residual is at the level of float64's rounding: each iteration gains the digits that the factor
has. The reported residual is that of X in float64, as with every other solver.

References
----------
E. Carson, N. J. Higham, "Accelerating the solution of linear systems by iterative refinement in three precisions",
SIAM J. Sci. Comput. 40 (2018). N. J. Higham, S. Pranesh, "Exploiting lower precision arithmetic in solving symmetric
positive definite linear systems and least squares problems", SIAM J. Sci. Comput. 43 (2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from dkrr.blas import column_norms, column_sizes
from dkrr.cluster import Progress
from dkrr.linalg.condition import SolvedProbe, scaling_of, with_probe
from dkrr.linalg.conjugate_gradient import Iteration
from dkrr.linalg.float32_tiles import FLOAT64_ROUNDING
from dkrr.linalg.gram_products import Operator
from dkrr.linalg.iteration_state import State
from dkrr.linalg.preconditioners import Preconditioner

Array = NDArray[np.float64]

MAX_REFINEMENT_ITERATIONS = 40
"""Iterations after which a factorisation in float64 is expected to be sooner done."""
ROUNDING_FACTOR = 40.0
"""Residual that counts as the level of rounding in float64, divided by √n units of rounding and by ‖diag(A)‖ ‖x‖ / ‖b‖.
Products leave up to 34 such units where all entries are alike, and fewer where they are small."""
REFINEMENT_TOL_FRACTION = 0.03
"""Fraction of that at which the recurrence of an iteration ends: the true residual is then what rounding leaves."""


def rounding_level(n: int, largest: float, x: Array, right_sides: Array) -> Array:
    """Relative residuals at which rounding in float64 dominates, of shape (m,).

    Parameters
    ----------
    n : int
    largest : float
        Largest diagonal entry of the matrix.
    x, right_sides : ndarray of shape (n, m)
        Approximate solutions, and right-hand sides.
    """
    sizes = column_norms(right_sides)
    ratios = column_norms(x) / np.where(sizes > 0, sizes, 1.0)
    return np.clip(ROUNDING_FACTOR * FLOAT64_ROUNDING * sqrt(n) * largest * ratios, FLOAT64_ROUNDING, 1e-3)


@dataclass(frozen=True)
class Refinement:
    """An iteration that is to bring a first solution to the level of rounding, and where it begins."""

    iteration: Iteration
    start: State
    condition: float
    """Estimate of κ₂ of A + diag(s) with its diagonal scaled to ones; see dkrr.linalg.condition."""

    @classmethod
    def begun(
        cls,
        operator: Operator,
        diagonal: Array,
        shift: Array,
        right_sides: Array,
        preconditioner: Preconditioner,
        progress: Progress,
    ) -> Refinement:
        """Solve (A + diag(s)) X = B with M⁻¹, and compute the residual that this leaves.

        Parameters
        ----------
        operator : Operator
            A.
        diagonal, shift : ndarray of shape (n,)
            Diagonal of A, and s.
        right_sides : ndarray of shape (n, m)
        preconditioner : Preconditioner
            M⁻¹.
        progress : Progress
        """
        n, m = right_sides.shape
        with progress.measured("conjugate gradient"):
            b = right_sides / column_sizes(right_sides)  # as the iteration works
            scaling = scaling_of(diagonal + shift)
            both = with_probe(b, scaling)
            x = preconditioner.apply(both, np.arange(m + 1))
            probe = SolvedProbe.of_solution(both[:, -1], x[:, -1], scaling)
            x[:, -1] = probe.vector
            # What overflows becomes a residual or a condition number that is not finite.
            with np.errstate(over="ignore", invalid="ignore"):
                product = operator.multiply(x) + shift[:, None] * x
                start = State(np.ascontiguousarray(x[:, :m]), b - product[:, :m], np.ones(m, bool))
        iteration = Iteration(
            operator=operator,
            shift=shift[:, None],
            right_sides=right_sides,
            preconditioner=preconditioner,
            tol=rounding_level(n, float((diagonal + shift).max()), start.x, b),
            recurrence_fraction=REFINEMENT_TOL_FRACTION,
            max_iter=MAX_REFINEMENT_ITERATIONS,
            progress=progress,
            estimates_condition=False,
        )
        return cls(iteration, start, probe.condition(product[:, -1]))
