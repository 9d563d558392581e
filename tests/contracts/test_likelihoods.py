"""What holds of every likelihood and of its root: a row of LIKELIHOODS joins one to these tests."""

from math import exp, expm1, log, log1p

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.linalg.likelihood import Bernoulli, Softmax
from tests.oracles import naive_probabilities
from tests.systems import random

N = 17
LIKELIHOODS = {"binary": Bernoulli(1), "one vs rest": Bernoulli(3), "softmax": Softmax(3), "softmax of two": Softmax(2)}
EXTREME = {"over": "raise", "divide": "raise", "invalid": "raise"}


class Case:
    """Scores of some rows, with what they are judged by."""

    def __init__(self, which, weighted=False):
        rng = np.random.default_rng(3)
        self.like = LIKELIHOODS[which]
        m = self.like.n_columns
        self.is_softmax = isinstance(self.like, Softmax)
        self.scores, self.codes = 2 * rng.standard_normal((N, m)), rng.integers(0, max(m, 2), N)
        self.weights = rng.uniform(0.2, 3.0, N) * (np.arange(N) % 5 > 0) if weighted else None
        self.v = np.ones(N) if self.weights is None else self.weights
        self.root = self.like.root(self.scores, self.weights)
        self.Y = np.eye(max(m, 2))[self.codes][:, -m:]
        self.P = naive_probabilities(self.scores) if self.is_softmax else 1 / (1 + np.exp(-self.scores))

    def naive_values(self):
        """By logarithms of probabilities."""
        found = self.Y * np.log(self.P) + (0 if self.is_softmax else (1 - self.Y) * np.log(1 - self.P))
        return -self.v @ (found.sum(axis=1, keepdims=True) if self.is_softmax else found)

    def naive_curvature(self):
        """v (diag(p) − p pᵀ), or v p (1 − p) for each column; of shape (n, m, m)."""
        squares = self.P[:, :, None] * self.P[:, None] * (1.0 if self.is_softmax else np.eye(self.P.shape[1]))
        return self.v[:, None, None] * (self.P[:, :, None] * np.eye(self.P.shape[1]) - squares)


@pytest.fixture(params=[(which, weighted) for which in LIKELIHOODS for weighted in (False, True)], ids=str)
def case(request):
    return Case(*request.param)


def test_values_are_sums_over_single_rows_and_derivatives_are_finite_differences(case):
    like, s, c, w, h = case.like, case.scores, case.codes, case.weights, 1e-6
    found = like.values(s, c, w)
    assert found.shape == (like.n_systems,)
    assert_allclose(found, case.naive_values(), rtol=1e-13)
    gradient, u = like.gradient(s, c, w), random(*s.shape, seed=5)
    for i, k in np.ndindex(*s.shape):
        unit = np.zeros(s.shape)
        unit[i, k] = h
        difference = (like.values(s + unit, c, w) - like.values(s - unit, c, w)).sum() / (2 * h)
        assert gradient[i, k] == pytest.approx(difference, abs=1e-7)
    difference = (like.gradient(s + h * u, c, w) - like.gradient(s - h * u, c, w)) / (2 * h)
    assert_allclose(case.root.weigh(u), difference, atol=1e-7)


def test_the_root_is_that_of_the_curvature(case):
    root, W, (x, y) = case.root, case.naive_curvature(), random(2, *case.scores.shape, seed=5)
    C, before = np.stack([root.apply(np.tile(e, (N, 1))) for e in np.eye(x.shape[1])], axis=2), x.copy()
    assert_allclose(C @ C.transpose(0, 2, 1), W, atol=1e-14)
    assert_allclose(root.apply(x), np.einsum("ijk,ik->ij", C, x), atol=1e-14)
    assert_allclose(root.adjoint(y), np.einsum("ikj,ik->ij", C, y), atol=1e-14)
    assert_allclose(root.weigh(x), np.einsum("ijk,ik->ij", W, x), atol=1e-14)
    assert_allclose(root.total(), W.sum(axis=0), atol=1e-13)
    assert_array_equal(x, before)
    assert_allclose(case.like.root(case.scores, None).weighted(case.v).scale, root.scale, rtol=1e-15)
    # Its inverse is exact for what W can reproduce, of which gradients are.
    r, keep = case.like.gradient(case.scores, case.codes, case.weights), root.scale > 0
    assert_allclose(root.apply(root.invert(r, keep)), r, atol=1e-13)
    keep[3:6], r[3:6] = False, np.nan  # not looked at
    q = root.invert(r, keep)
    assert np.isfinite(q).all() and not q[3:6].any()


@pytest.mark.parametrize("which", LIKELIHOODS)
def test_probabilities_sum_to_one_and_all_is_finite_at_scores_of_any_size(which):
    case = Case(which)
    like, codes, m = case.like, case.codes, case.like.n_columns
    naive = naive_probabilities(case.scores, one_vs_rest=which == "one vs rest")
    assert_allclose(like.probabilities(case.scores), naive, rtol=1e-13)
    assert_allclose(np.exp(like.log_probabilities(case.scores)), naive, rtol=1e-13)
    extreme = np.array([[-800.0] * m, [800.0] * m, [800.0] + [-800.0] * (m - 1), [-1e6] * (m - 1) + [1e6]])
    for scores in (extreme, 300 * case.scores, 0.1 * case.scores, 1e5 * np.sign(case.scores)):
        with np.errstate(**EXTREME):
            p, log_p, root = like.probabilities(scores), like.log_probabilities(scores), like.root(scores, None)
            gradient = like.gradient(scores, codes[: len(scores)], None)
            values, inverse = like.values(scores, codes[: len(scores)], None), root.invert(gradient, root.scale > 0)
        assert all(np.isfinite(part).all() for part in (values, root.scale, root.total(), inverse))
        assert np.abs(gradient).max() <= 1.0
        assert p.shape == (len(scores), max(m, 2)) and np.isfinite(log_p).all()
        assert (p >= 0).all() and (log_p <= 0).all()
        assert_allclose(p.sum(axis=1), 1.0, rtol=1e-8)
        assert_allclose(np.exp(log_p), p, atol=1e-14)


def test_two_classes_keep_all_digits_where_probabilities_are_nearly_certain():
    like, codes = Bernoulli(1), np.array([1, 0])
    for f in (800.0, 700.0, 40.0, 1e-3):
        right, wrong = np.array([[f], [-f]]), np.array([[-f], [f]])
        assert_allclose(like.values(right, codes, None), [2 * log1p(exp(-f))], rtol=1e-14)
        assert_allclose(like.values(wrong, codes, None), [2 * f + 2 * log1p(exp(-f))], rtol=1e-14)
        share = exp(-f) / (1 + exp(-f))
        assert_allclose(like.gradient(right, codes, None), [[-share], [share]], rtol=1e-13)
        assert_allclose(like.gradient(wrong, codes, None), [[share - 1], [1 - share]], rtol=1e-14)
        assert_allclose(like.root(right, None).scale ** 2, share * (1 - share) * np.ones((2, 1)), rtol=1e-13)
    near = like.values(np.full((1, 1), 1e-9), np.array([1]), None)
    assert_allclose(near, [log(2) + expm1(-1e-9) / 2], rtol=1e-15)


@pytest.mark.parametrize("f", [700.0, 40.0, 2.0])
def test_a_softmax_keeps_all_digits_and_does_not_see_a_common_score(f):
    """p − 1 of the class that a row has is minus the sum of the others."""
    like, scores, codes = Softmax(3), np.array([[f, 0.0, -1.0]]), np.array([0])
    others = np.array([exp(-f), exp(-f - 1)]) / (1 + exp(-f) + exp(-f - 1))
    found = like.gradient(scores, codes, None)
    assert_allclose(found[0, 1:], others, rtol=1e-13)
    assert_allclose(found[0, 0], -others.sum(), rtol=1e-13)
    assert_allclose(found.sum(), 0.0, atol=1e-15 * others.sum())
    assert_allclose(like.values(scores, codes, None), [log1p(exp(-f) + exp(-f - 1))], rtol=1e-12)
    assert_allclose(like.root(scores, None).scale[0, 1:] ** 2, others, rtol=1e-13)
    case = Case("softmax")
    for function in (like.probabilities, lambda s: like.gradient(s, case.codes, None), like.log_probabilities):
        for extra in (f, -800.0):
            assert_allclose(function(case.scores + extra), function(case.scores), rtol=1e-11, atol=1e-11)


def test_one_vs_rest_probabilities_are_right_where_every_class_is_all_but_impossible():
    like = Bernoulli(3)
    found = like.probabilities(np.array([[-800.0, -801.0, -900.0], [-5000.0, -5000.0, -5000.0]]))
    first = np.array([1.0, exp(-1), exp(-100)])
    assert_allclose(found, [first / first.sum(), np.full(3, 1 / 3)], rtol=1e-12)
    for size in (800.0, 1e6):
        p = like.probabilities(np.array([[-1.0, -1.0, -1.0], [-1.0, -1.0, 1.0]]) * size - [0.0, 0.3, 0.7])
        assert_allclose(p.sum(axis=1), 1.0, rtol=1e-14)
