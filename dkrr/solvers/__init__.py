"""Solvers of (A + diag(s)) X = B, and what they report."""

from dkrr.solvers.direct import Cholesky
from dkrr.solvers.result import SolveResult, Status

__all__ = ["Cholesky", "SolveResult", "Status"]
