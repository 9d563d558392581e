"""Estimates of condition numbers, from below and not far from it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.linalg.residual import Moments, condition_number, multiplied_probe, scaling_of, with_probe, worst


def estimate(A, diagonal=None):
    n, scaling = len(A), None if diagonal is None else scaling_of(diagonal)
    probe = with_probe(np.zeros((n, 1)), scaling)[:, -1]
    v = multiplied_probe(probe, scaling)
    solved = Moments.of_solved(probe, np.linalg.solve(A, probe), scaling)
    return condition_number(Moments.of_multiplied(v, A @ v, scaling), solved)


def with_eigenvalues(values, seed=0):
    Q = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(values), len(values))))[0]
    return (Q * values) @ Q.T


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 60), st.floats(0, 12), st.floats(0.1, 8.0), st.integers(0, 100))
def test_never_above_and_seldom_far_below(n, digits, bend, seed):
    values = 10 ** (-digits * np.linspace(0, 1, n) ** bend)
    found, exact = estimate(with_eigenvalues(values, seed)), 10**digits
    assert 1.0 <= found <= exact * 1.01 * (1 + 1e-15 * exact * n)
    assert found >= exact / 1000


@pytest.mark.parametrize("side", ["one small", "one large", "a plateau"])
def test_of_the_spectra_of_kernel_matrices(side):
    values = {"one small": np.r_[np.ones(79), 1e-9], "one large": np.r_[1e9, np.ones(79)]}.get(side)
    if values is None:
        values = np.maximum(2.0 ** -np.arange(80), 1e-9)
    for seed in range(5):
        assert estimate(with_eigenvalues(values, seed)) == pytest.approx(1e9, rel=0.75)


@pytest.mark.parametrize("size", [1e-150, 1e150])
def test_rows_of_any_size_count_for_nothing(size):
    A = with_eigenvalues(np.logspace(0, -6, 40))
    A /= np.sqrt(np.outer(A.diagonal(), A.diagonal()))
    d = np.logspace(0, 10, 40)
    scaled = size * A * d[:, None] * d
    plain = estimate(A, np.ones(40))
    assert 1e4 < plain <= 1.001 * np.linalg.cond(A)
    assert_allclose(estimate(scaled, scaled.diagonal()), plain, rtol=1e-6)


def test_parts_of_the_rows_add_up():
    z, v = np.random.default_rng(0).standard_normal((2, 30))
    cuts = [slice(0, 7), slice(7, 8), slice(8, 30)]
    for kind in (Moments.of_solved, Moments.of_multiplied):
        assert_allclose(Moments.total([kind(z[c], v[c], v[c] ** 2) for c in cuts]), kind(z, v, v**2), rtol=1e-13)


def test_what_cannot_be_known():
    good = Moments(1.0, 1.0)
    assert condition_number(good, good) == 1.0
    assert condition_number(good, Moments(-1e-20, 1e10)) == math.inf
    assert math.isnan(condition_number(Moments(math.nan, 1.0), good))
    assert math.isnan(condition_number(good, Moments(math.inf, math.inf)))
    assert worst([math.nan, 3.0, 2.0]) == 3.0
    assert math.isnan(worst([math.nan]))
    assert math.isnan(worst([]))


def test_the_probe_is_always_the_same():
    B = np.ones((9, 2))
    assert_array_equal(with_probe(B), with_probe(B))
    assert_array_equal(with_probe(B)[:, :2], B)
    assert_allclose(with_probe(B, np.full(9, 2.0))[:, 2], 2 * with_probe(B)[:, 2])
    # A caller overwrites its own copy, never what is kept for the next fit.
    with_probe(B)[:, 2] = np.nan
    assert np.isfinite(with_probe(B)).all()


def test_diagonal_entries_that_are_not_positive():
    assert_array_equal(scaling_of(np.array([4.0, 0.0, -1.0])), [2.0, 1.0, 1.0])
