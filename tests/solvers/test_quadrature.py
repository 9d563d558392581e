"""Stochastic Lanczos quadrature against the logarithm of the matrix."""

import numpy as np
import pytest
import scipy.linalg

from dkrr.errors import NotPositiveDefiniteError
from dkrr.linalg.operator import column_sizes
from dkrr.linalg.preconditioner import Diagonal
from dkrr.solvers.conjugate_gradient import Iteration
from dkrr.solvers.quadrature import LanczosTrace, log_quadrature
from tests.linalg.systems import MatrixOperator, positive_definite


def test_every_probe_is_that_of_the_logarithm():
    A, n = positive_definite(37), 37
    shift = np.full((1, 5), 0.7)
    M = Diagonal(A.diagonal()[:, None].copy(), shift)
    root = np.sqrt(A.diagonal() + 0.7)
    probes = root[:, None] * np.random.default_rng(0).standard_normal((n, 5)) * [1.0, 1e3, 1e-4, 1.0, 1.0]
    probes[:, 4] = 0.0
    trace = LanczosTrace(slice(0, 5))
    iteration = Iteration(MatrixOperator(A), shift, probes, M, tol=1e-12, on_cycle=trace.on_cycle)
    iteration.on_step, iteration.on_iteration = trace.on_step, trace.on_iteration
    iteration.run()
    H = (A + 0.7 * np.eye(n)) / root[:, None] / root
    g = probes / root[:, None]
    expected = np.einsum("ij,ij->j", g, scipy.linalg.logm(H).real @ g)
    assert trace.values(column_sizes(probes)) == pytest.approx(expected, rel=1e-9)


def test_indefinite_coefficients_are_refused():
    with pytest.raises(NotPositiveDefiniteError, match="an eigenvalue that is not positive"):
        log_quadrature(np.array([1.0, -0.2]), np.array([1.0, 1.0]))
