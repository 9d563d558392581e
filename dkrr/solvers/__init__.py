"""Solvers of (A + diag(s)) X = B, and what they report."""

from dkrr.solvers.conjugate_gradient import (
    ConjugateGradient,
    Float32Cholesky,
    GreedyCholesky,
    RPCholesky,
    UniformNystroem,
)
from dkrr.solvers.direct import Cholesky
from dkrr.solvers.result import SolveResult, Status

__all__ = [
    "Cholesky",
    "ConjugateGradient",
    "Float32Cholesky",
    "GreedyCholesky",
    "RPCholesky",
    "SolveResult",
    "Status",
    "UniformNystroem",
]
