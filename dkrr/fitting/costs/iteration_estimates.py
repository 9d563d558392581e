"""Expected iterations of conjugate gradient: from the spectrum of K, measured on a sample of the rows or typical."""

from math import ceil, log, sqrt

from dkrr.linalg.pivoted_cholesky import SPREAD
from dkrr.planning.facts import TYPICAL
from dkrr.planning.problem import Problem

MAX_ITERATIONS = 1_000_000
"""Most iterations that are planned."""
RELIED_FRACTION = 0.01
"""Fraction of the smallest eigenvalue that a sample suggests, on which the number of iterations relies."""
TYPICAL_CONDITION = 300.0
"""Condition number of ΦᵀWΦ scaled to a unit diagonal: correlated features, fewer than rows."""


def iterations_expected(eigenvalue: float, shift: float, tol: float) -> int:
    """Iterations for a system whose preconditioner leaves eigenvalues up to this one.

    Chebyshev's bound log(2 / tol) / log((√κ + 1) / (√κ − 1)) for κ = 1 + λ / shift, times SPREAD. Where a factor leaves
    little, κ is close to 1 and a few iterations suffice (measured: 2 to 5).
    """
    root = sqrt(1.0 + max(eigenvalue, 0.0) / max(shift, 1e-14))
    if root <= 1.0:
        return 2
    found = SPREAD * log(2.0 / tol) / (log(root + 1.0) - log(root - 1.0))
    return int(min(ceil(found) + 1, MAX_ITERATIONS))


def dual_iterations(p: Problem, rank: int, shift: float) -> int:
    """Iterations for a system of K with a preconditioner of this rank."""
    smallest = 0.0 if p.facts.spectrum == TYPICAL else RELIED_FRACTION * p.n * p.facts.spectrum.eigenvalue(p.n)
    return iterations_expected(p.n * p.facts.spectrum.eigenvalue(rank), shift + smallest, p.systems.tol)


def primal_iterations(p: Problem) -> int:
    """Iterations for a system of ΦᵀWΦ, with the diagonal of ΦᵀWΦ as preconditioner."""
    shift = p.systems.shift
    largest = TYPICAL_CONDITION * (shift if shift > 0 else 1.0)
    found = iterations_expected(min(largest, p.n * p.facts.spectrum.largest), shift, p.systems.tol)
    return min(found, (p.dimension or 1) + 1)
