"""A cheap test of whether λ should be searched again, with the factor that earlier rows have left."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from dkrr.linalg.alpha_check import FACTORS, TOL, paired_t, solutions_nearby
from tests.systems import positive_definite


@pytest.mark.parametrize("alpha", [1e-3, 0.1, 10.0])
def test_solutions_for_other_shifts_follow_from_a_factor(alpha):
    rng = np.random.default_rng(1)
    K = positive_definite(61) - 0.9 * np.eye(61)
    K -= min(0.0, np.linalg.eigvalsh(K)[0]) * np.eye(61)
    A, B = K + alpha * np.eye(61), rng.standard_normal((61, 3))
    inverse, calls = np.linalg.inv(A), []
    shifts = alpha * (np.array(FACTORS) - 1)
    own, others = solutions_nearby(lambda V: calls.append(V.shape[1]) or inverse @ V, B, shifts)
    assert_allclose(own, np.linalg.solve(A, B), rtol=1e-8, atol=1e-12)
    for shift, found in zip(shifts, others, strict=True):
        expected = np.linalg.solve(A + shift * np.eye(61), B)
        assert np.linalg.norm(found - expected) <= 4 * TOL * np.linalg.norm(expected)
    assert calls[0] == 3 and len(calls) <= 8 and set(calls[1:]) == {6}


def test_a_shift_that_makes_the_matrix_indefinite_gives_nothing():
    A = np.diag(np.linspace(1.0, 2.0, 5))
    assert solutions_nearby(lambda V: V / A.diagonal()[:, None], np.ones((5, 1)), np.array([-1.5])) is None


def test_students_t_of_paired_differences():
    rng = np.random.default_rng(2)
    own, others = rng.random(400), rng.random(400)
    d = others - own
    assert paired_t(own, others, np.ones(400)) == pytest.approx(d.mean() / (d.std() / 20))
    assert paired_t(own, own, np.ones(400)) == 0.0
    assert paired_t(own, own - 1.0, np.ones(400)) == -np.inf
    twice = np.r_[np.full(100, 2.0), np.ones(300)]
    assert paired_t(own, own - 0.1 * rng.random(400), twice) < -3
