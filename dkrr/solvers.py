"""Solvers of (A + diag(s)) X = B, and what they report."""

from dkrr.linalg.result import SolveResult, Status
from dkrr.linalg.solver_settings import Cholesky, ConjugateGradient, Float32Cholesky, RPCholesky

__all__ = [
    "Cholesky",
    "ConjugateGradient",
    "Float32Cholesky",
    "RPCholesky",
    "SolveResult",
    "Status",
]


def __dir__() -> list[str]:
    return __all__
