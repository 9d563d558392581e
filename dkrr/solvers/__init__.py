"""Solvers of (A + diag(s)) X = B, and what they report."""

from dkrr.solvers.direct import Cholesky
from dkrr.solvers.result import SolveResult, Status
from dkrr.solvers.settings import ConjugateGradient, Float32Cholesky, RPCholesky

__all__ = [
    "Cholesky",
    "ConjugateGradient",
    "Float32Cholesky",
    "RPCholesky",
    "SolveResult",
    "Status",
]
