"""When a partial Cholesky factor has enough pivots: what one more costs, and what it saves conjugate gradient."""

from collections.abc import Callable
from math import inf, log, sqrt

from dkrr.linalg.pivoted_cholesky import PivotedCholesky

SPREAD = 1.2
"""Ratio of measured to expected iterations (QM9, n = 10,000 to 30,000, ranks of 300 to 3,000: 1.0 to 1.3)."""


def expected_iterations(next_eigenvalue: float, shift: float, tol: float) -> float:
    """Iterations of conjugate gradient whose preconditioner leaves eigenvalues up to this one as they are.

    Half of the bound √κ log(2 / tol) for κ = 1 + λ / t, times SPREAD for what rounding and the other eigenvalues add;
    `shift` is t, with which the preconditioner is made. Without a shift no bound exists.
    """
    if shift <= 0:
        return inf
    return 0.5 * SPREAD * sqrt(1.0 + next_eigenvalue / shift) * log(2.0 / tol)


def next_eigenvalue(factor: PivotedCholesky) -> float:
    """Estimate of the largest eigenvalue that a partial factor leaves: what one of the last pivots took off."""
    (before, trace_before), (now, trace) = factor.traces[-2], factor.traces[-1]
    return max(trace_before - trace, 0.0) / max(now - before, 1)


def pivot_stopping_rule(
    shift: float, tol: float, iteration_seconds: float, pivot_seconds: Callable[[int], float]
) -> Callable[[PivotedCholesky], bool]:
    """Test for `PivotedCholesky.grow`: whether more pivots would cost more time than they save.

    Parameters
    ----------
    shift : float
        s. Far below what is left, where the preconditioner is made with a larger one, the rule asks for all pivots
        that fit in memory: eigenvalues that the factor leaves then decide, and a smooth kernel has small ones.
    tol : float
    iteration_seconds : float
        Time of one product with A.
    pivot_seconds : callable
        From a rank to the time that one more pivot costs there, in every later iteration too.
    """

    def enough(factor: PivotedCholesky) -> bool:
        if len(factor.traces) < 3:
            return False
        eigenvalue, s = next_eigenvalue(factor), shift / factor.trace_unit
        if factor.traces[-1][1] <= s:  # all that is left is less than the shift
            return True
        # Eigenvalues fall like a power of their number, so that iterations(r) ~ r^(-power / 2).
        (r0, t0), (r1, t1) = factor.traces[len(factor.traces) // 2], factor.traces[-1]
        if r0 == 0 or r1 == r0 or t1 <= 0:
            return False
        power = 1.0 + log(max(t0 / t1, 1.0)) / log(r1 / r0)
        saved = 0.5 * power * expected_iterations(eigenvalue, s, tol) / r1 * iteration_seconds
        return saved < pivot_seconds(r1)

    return enough
