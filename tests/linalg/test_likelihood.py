"""Likelihoods and their derivatives against sums over single rows, finite differences and exact limits."""

from math import exp, expm1, log, log1p

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.linalg.likelihood import Bernoulli, Softmax
from dkrr.linalg.roots import DiagonalRoot
from tests.oracles import naive_probabilities

N = 17
LIKELIHOODS = {"binary": Bernoulli(1), "ovr": Bernoulli(3), "softmax": Softmax(3), "softmax of two": Softmax(2)}

every_likelihood = pytest.mark.parametrize("which", LIKELIHOODS)
every_weight = pytest.mark.parametrize("weighted", [False, True], ids=["ones", "weighted"])


class Case:
    """Scores of some rows, with what they are judged by."""

    def __init__(self, which, weighted=False, size=2.0, n=N):
        rng = np.random.default_rng(3)
        self.like = LIKELIHOODS[which]
        m = self.like.n_columns
        self.is_softmax = isinstance(self.like, Softmax)
        self.n_classes = 2 if m == 1 else m
        self.scores = size * rng.standard_normal((n, m))
        self.codes = rng.integers(0, self.n_classes, n)
        self.weights = rng.uniform(0.2, 3.0, n) if weighted else None
        if weighted:
            self.weights[[0, 5]] = 0.0
        self.v = np.ones(n) if self.weights is None else self.weights

    def naive_values(self):
        """By logarithms of probabilities, a row after the other."""
        total = np.zeros(self.like.n_systems)
        for f, code, v in zip(self.scores, self.codes, self.v, strict=True):
            if self.is_softmax:
                total[0] -= v * log(exp(f[code]) / sum(exp(x) for x in f))
                continue
            for k, x in enumerate(f):
                is_class = code == (k if len(f) > 1 else 1)
                p = 1 / (1 + exp(-x))
                total[k] -= v * log(p if is_class else 1 - p)
        return total

    def naive_curvature(self):
        """v (diag(p) − p pᵀ), or v p (1 − p) for each column; of shape (n, m, m)."""
        n, m = self.scores.shape
        W = np.zeros((n, m, m))
        for i, f in enumerate(self.scores):
            if self.is_softmax:
                p = naive_probabilities(f[None])[0]
                W[i] = self.v[i] * (np.diag(p) - np.outer(p, p))
            else:
                p = 1 / (1 + np.exp(-f))
                W[i] = self.v[i] * np.diag(p * (1 - p))
        return W

    def root_matrices(self):
        """C of every row, (n, m, m), a column from each unit vector."""
        root, (n, m) = self.like.root(self.scores, self.weights), self.scores.shape
        return np.stack([root.apply(np.tile(e, (n, 1))) for e in np.eye(m)], axis=2)


@every_weight
@every_likelihood
class TestAgainstNaive:
    def test_values(self, which, weighted):
        case = Case(which, weighted)
        found = case.like.values(case.scores, case.codes, case.weights)
        assert found.shape == (case.like.n_systems,)
        assert_allclose(found, case.naive_values(), rtol=1e-13)

    def test_gradient(self, which, weighted):
        case, h = Case(which, weighted), 1e-6
        found = case.like.gradient(case.scores, case.codes, case.weights)
        expected = np.zeros_like(found)
        for i, k in np.ndindex(*expected.shape):
            values = []
            for sign in (1, -1):
                moved = case.scores.copy()
                moved[i, k] += sign * h
                values.append(case.like.values(moved, case.codes, case.weights).sum())
            expected[i, k] = (values[0] - values[1]) / (2 * h)
        assert_allclose(found, expected, atol=1e-7)

    def test_root_is_that_of_the_curvature(self, which, weighted):
        case = Case(which, weighted)
        C = case.root_matrices()
        assert_allclose(C @ C.transpose(0, 2, 1), case.naive_curvature(), atol=1e-14)

    def test_curvature_is_the_change_of_the_gradient(self, which, weighted):
        case, h = Case(which, weighted), 1e-6
        root, rng = case.like.root(case.scores, case.weights), np.random.default_rng(5)
        u = rng.standard_normal(case.scores.shape)
        up, down = (case.like.gradient(case.scores + sign * h * u, case.codes, case.weights) for sign in (1, -1))
        assert_allclose(root.weigh(u), (up - down) / (2 * h), atol=1e-7)

    def test_root_and_its_parts(self, which, weighted):
        case, rng = Case(which, weighted), np.random.default_rng(5)
        root, C = case.like.root(case.scores, case.weights), case.root_matrices()
        x, y = rng.standard_normal((2, *case.scores.shape))
        before = x.copy()
        assert_allclose(root.apply(x), np.einsum("ijk,ik->ij", C, x), atol=1e-14)
        assert_allclose(root.adjoint(y), np.einsum("ikj,ik->ij", C, y), atol=1e-14)
        assert_allclose((root.apply(x) * y).sum(), (x * root.adjoint(y)).sum(), rtol=1e-12)
        assert_allclose(root.weigh(x), np.einsum("ijk,ik->ij", case.naive_curvature(), x), atol=1e-14)
        assert_allclose(root.total(), case.naive_curvature().sum(axis=0), atol=1e-13)
        assert_array_equal(x, before)

    def test_inverse_of_the_root(self, which, weighted):
        """Exact for what W can reproduce, of which gradients are."""
        case = Case(which, weighted)
        root = case.like.root(case.scores, case.weights)
        r = case.like.gradient(case.scores, case.codes, case.weights)
        keep = root.scale > 0
        assert_allclose(root.apply(root.invert(r, keep)), r, atol=1e-13)
        keep[3:6] = False
        r[3:6] = np.nan  # not looked at
        q = root.invert(r, keep)
        assert np.isfinite(q).all() and not q[3:6].any()

    def test_a_row_of_weight_zero_does_not_count(self, which, weighted):
        case = Case(which, weighted)
        v = case.v.copy()
        v[4] = 0.0
        left = np.delete(np.arange(N), 4)
        like, s, c = case.like, case.scores, case.codes
        assert_allclose(like.values(s, c, v), like.values(s[left], c[left], v[left]), rtol=1e-13)
        assert not like.gradient(s, c, v)[4].any()
        assert not like.root(s, v).weigh(np.ones_like(s))[4].any()

    def test_ones_are_no_weights(self, which, weighted):
        case = Case(which, weighted)
        like, s, c, ones = case.like, case.scores, case.codes, np.ones(N)
        assert_allclose(like.values(s, c, ones), like.values(s, c, None), rtol=1e-14)
        assert_array_equal(like.gradient(s, c, ones), like.gradient(s, c, None))
        assert_array_equal(like.root(s, ones).scale, like.root(s, None).scale)
        v = np.linspace(0.0, 3.0, len(s))
        assert_allclose(like.root(s, None).weighted(v).scale, like.root(s, v).scale, rtol=1e-15)


@every_likelihood
class TestProbabilities:
    def test_sum_to_one(self, which):
        for size in (0.1, 3.0, 300.0):
            case = Case(which, size=size)
            p = case.like.probabilities(case.scores)
            assert p.shape == (N, case.n_classes)
            assert (p >= 0).all()
            assert_allclose(p.sum(axis=1), 1.0, rtol=1e-14)

    def test_values(self, which):
        case = Case(which)
        p = case.like.probabilities(case.scores)
        if case.is_softmax or case.like.n_columns == 1:
            assert_allclose(p, naive_probabilities(case.scores), rtol=1e-13)
        else:
            separate = 1 / (1 + np.exp(-case.scores))
            assert_allclose(p, separate / separate.sum(axis=1, keepdims=True), rtol=1e-13)
        assert_allclose(np.exp(case.like.log_probabilities(case.scores)), p, rtol=1e-13)

    def test_logarithms_are_finite_where_probabilities_are_zero(self, which):
        case = Case(which)
        m = case.like.n_columns
        extreme = np.array([[-800.0] * m, [800.0] * m, [800.0] + [-800.0] * (m - 1), [-1e6] * (m - 1) + [1e6]])
        with np.errstate(all="raise", under="ignore"):
            p, log_p = case.like.probabilities(extreme), case.like.log_probabilities(extreme)
        assert np.isfinite(p).all() and np.isfinite(log_p).all()
        assert_allclose(p.sum(axis=1), 1.0, rtol=1e-8)
        assert_allclose(np.exp(log_p), p, atol=1e-14)
        assert (log_p <= 0).all()

    def test_the_largest_score_has_the_largest_probability(self, which):
        case = Case(which)
        if case.like.n_columns > 1:
            assert_array_equal(case.like.probabilities(case.scores).argmax(axis=1), case.scores.argmax(axis=1))


class TestExtremes:
    """Where exp overflows, or 1 − p has no digits left."""

    @pytest.mark.parametrize("size", [800.0, 1e5])
    @every_likelihood
    def test_everything_is_finite(self, which, size):
        case = Case(which)
        signs = np.where(np.random.default_rng(0).random(case.scores.shape) < 0.5, -1.0, 1.0)
        scores = size * signs
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            values = case.like.values(scores, case.codes, None)
            gradient = case.like.gradient(scores, case.codes, None)
            root = case.like.root(scores, None)
            q = root.invert(gradient, root.scale > 0)
        assert np.isfinite(values).all() and np.isfinite(gradient).all()
        assert np.isfinite(root.scale).all() and np.isfinite(root.total()).all() and np.isfinite(q).all()
        assert np.abs(gradient).max() <= 1.0

    def test_of_two_classes(self):
        like, codes = Bernoulli(1), np.array([1, 0])
        for f in (800.0, 700.0, 40.0, 1e-3):
            right, wrong = np.array([[f], [-f]]), np.array([[-f], [f]])
            assert_allclose(like.values(right, codes, None), [2 * log1p(exp(-f))], rtol=1e-14)
            assert_allclose(like.values(wrong, codes, None), [2 * f + 2 * log1p(exp(-f))], rtol=1e-14)
            share = exp(-f) / (1 + exp(-f))
            assert_allclose(like.gradient(right, codes, None), [[-share], [share]], rtol=1e-13)
            assert_allclose(like.gradient(wrong, codes, None), [[share - 1], [1 - share]], rtol=1e-14)
            assert_allclose(like.root(right, None).scale ** 2, share * (1 - share) * np.ones((2, 1)), rtol=1e-13)

    @pytest.mark.parametrize("f", [700.0, 40.0, 2.0])
    def test_softmax_keeps_all_digits(self, f):
        """p − 1 of the class that a row has is minus the sum of the others."""
        scores, codes = np.array([[f, 0.0, -1.0]]), np.array([0])
        others = np.array([exp(-f), exp(-f - 1)]) / (1 + exp(-f) + exp(-f - 1))
        found = Softmax(3).gradient(scores, codes, None)
        assert_allclose(found[0, 1:], others, rtol=1e-13)
        assert_allclose(found[0, 0], -others.sum(), rtol=1e-13)
        assert_allclose(found.sum(), 0.0, atol=1e-15 * others.sum())
        assert_allclose(Softmax(3).values(scores, codes, None), [log1p(exp(-f) + exp(-f - 1))], rtol=1e-12)
        assert_allclose(Softmax(3).root(scores, None).scale[0, 1:] ** 2, others, rtol=1e-13)

    def test_scores_that_a_softmax_does_not_see(self):
        """The same number added to all of a row."""
        like, case = LIKELIHOODS["softmax"], Case("softmax")
        for extra in (700.0, -800.0):
            moved = case.scores + extra
            assert_allclose(like.probabilities(moved), like.probabilities(case.scores), rtol=1e-11)
            assert_allclose(
                like.gradient(moved, case.codes, None), like.gradient(case.scores, case.codes, None), rtol=1e-11
            )
            assert_allclose(like.log_probabilities(moved), like.log_probabilities(case.scores), atol=1e-11)

    def test_one_vs_rest_where_every_class_is_all_but_impossible(self):
        found = Bernoulli(3).probabilities(np.array([[-800.0, -801.0, -900.0], [-5000.0, -5000.0, -5000.0]]))
        first = np.array([1.0, exp(-1), exp(-100)])
        assert_allclose(found, [first / first.sum(), np.full(3, 1 / 3)], rtol=1e-12)

    @pytest.mark.parametrize("size", [800.0, 1e6])
    def test_one_vs_rest_probabilities_sum_to_one_there_too(self, size):
        p = Bernoulli(3).probabilities(np.array([[-1.0, -1.0, -1.0], [-1.0, -1.0, 1.0]]) * size - [0.0, 0.3, 0.7])
        assert_allclose(p.sum(axis=1), 1.0, rtol=1e-14)


class TestSystems:
    @settings(max_examples=20, deadline=None)
    @given(n=st.integers(1, 9), m=st.integers(2, 5), weighted=st.booleans())
    def test_one_vs_rest_is_so_many_models_of_two_classes(self, n, m, weighted):
        rng = np.random.default_rng(n + 10 * m)
        scores, codes = 3 * rng.standard_normal((n, m)), rng.integers(0, m, n)
        v = rng.uniform(0, 2, n) if weighted else None
        whole, single = Bernoulli(m), Bernoulli(1)
        for k in range(m):
            column, own = scores[:, k : k + 1], (codes == k).astype(np.intp)
            assert_allclose(whole.values(scores, codes, v)[k], single.values(column, own, v)[0], rtol=1e-13)
            assert_allclose(whole.gradient(scores, codes, v)[:, k : k + 1], single.gradient(column, own, v))

    def test_a_softmax_of_two_is_the_model_of_their_difference(self):
        case = Case("softmax of two", weighted=True)
        difference = case.scores[:, 1:] - case.scores[:, :1]
        assert_allclose(
            Softmax(2).values(case.scores, case.codes, case.weights),
            Bernoulli(1).values(difference, case.codes, case.weights),
            rtol=1e-13,
        )
        assert_allclose(Softmax(2).probabilities(case.scores), Bernoulli(1).probabilities(difference), rtol=1e-12)

    def test_sums_per_system(self):
        x = np.array([1.0, 2.0, 4.0])
        assert_array_equal(Bernoulli(3).per_system(x), x)
        assert_array_equal(Softmax(3).per_system(x), [7.0])
        assert_array_equal(Bernoulli(1).per_system(x[:1]), [1.0])
        assert [like.n_systems for like in LIKELIHOODS.values()] == [1, 3, 1, 1]

    def test_some_columns_of_a_root(self):
        case = Case("ovr", weighted=True)
        root = case.like.root(case.scores, case.weights)
        assert isinstance(root, DiagonalRoot)
        found = root.of_columns(np.array([2, 0]))
        assert_array_equal(found.scale, root.scale[:, [2, 0]])
        assert found.scale.flags.c_contiguous

    def test_the_objective_has_a_closed_form_where_all_scores_are_zero(self):
        for which, expected in (("binary", log(2)), ("ovr", 3 * log(2)), ("softmax", log(3))):
            case = Case(which)
            values = case.like.values(np.zeros_like(case.scores), case.codes, None)
            assert_allclose(values.sum(), N * expected, rtol=1e-14)
        assert_allclose(
            Bernoulli(1).values(np.full((1, 1), 1e-9), np.array([1]), None), [log(2) + expm1(-1e-9) / 2], rtol=1e-15
        )
