"""One pass of the primal form over dense and sparse rows, against sums over single samples."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.errors import InputError
from dkrr.features import IdentityMap, PolynomialMap
from dkrr.linalg.likelihood import Bernoulli, Softmax
from dkrr.linalg.likelihood_pass import CurvatureProduct, Passes, curvature_product, likelihood_pass
from dkrr.linalg.segments import Segment
from dkrr.rows import MemoryRows
from dkrr.runtime import Meter, SerialExecutor, ThreadExecutor
from dkrr.tiles import TileGrid
from tests.linalg.systems import RowsElsewhere, vectors
from tests.pairs import every_pair

N, D = 29, 4
CUTS = [(slice(3, 6), 1), (slice(3, 25), 7), (slice(0, N), 100)]  # a segment, and the height of its blocks
TOLERANCE = {"rtol": 1e-11, "atol": 1e-12}
MAPS = {"identity": IdentityMap(), "polynomial": PolynomialMap(degree=2, gamma=0.7, coef0=1.0)}
LIKELIHOODS = {"binary": Bernoulli(1), "ovr": Bernoulli(3), "softmax": Softmax(3)}

every_likelihood = pytest.mark.parametrize("loss", LIKELIHOODS)
every_form = pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
PROBLEMS = {
    "which": list(MAPS),
    "loss": list(LIKELIHOODS),
    "sparse": [False, True],
    "weighted": [False, True],
    "intercept": [False, True],
}
every_problem = every_pair(**PROBLEMS)


class Case:
    """Rows and coefficients, and what a pass over some of them has to find."""

    def __init__(self, which, loss, sparse, weighted, intercept, here=slice(0, N), block=7, dtype=np.float64):
        rng = np.random.default_rng(0)
        self.map, self.like = MAPS[which], LIKELIHOODS[loss]
        X = np.where(rng.random((N, D)) < 0.5, rng.standard_normal((N, D)), 0.0).astype(dtype)
        m = self.like.n_columns
        self.codes = rng.integers(0, max(m, 2), N)
        self.weights = rng.uniform(0.1, 2.0, N) if weighted else None
        if weighted:
            self.weights[5] = 0.0
        phi = self.map.transform(X)
        self.phi = (np.column_stack([phi, np.ones(N)]) if intercept else phi)[here]
        self.p, self.m, self.s = self.phi.shape[1], m, self.like.n_systems
        self.coef = rng.standard_normal((self.p, m))
        self.rows = MemoryRows(sp.csr_array(X) if sparse else X)
        self.intercept = intercept
        self.own_codes = self.codes[here]
        self.own_weights = None if self.weights is None else self.weights[here]
        self.segment = self.part(here.start, here.stop, block)

    def part(self, start, stop, block, rows=None):
        weights = None if self.weights is None else self.weights[:, None]
        return Segment(rows or self.rows, start, stop, block, self.codes[:, None].astype(float), weights)

    def passes(self, curvature):
        return Passes(self.map, self.like, D, self.intercept, curvature)

    def matrices(self):
        """Σᵢ Wᵢ ⊗ φᵢ φᵢᵀ for each system, a sample after the other, features of a class together."""
        scores, side = self.phi @ self.coef, self.p * self.m // self.s
        total = np.zeros((self.s, side, side))
        for i, f in enumerate(scores):
            v = 1.0 if self.own_weights is None else self.own_weights[i]
            outer = np.outer(self.phi[i], self.phi[i])
            if isinstance(self.like, Softmax):
                q = np.exp(f) / np.exp(f).sum()
                total[0] += np.kron(v * (np.diag(q) - np.outer(q, q)), outer)
            else:
                q = 1 / (1 + np.exp(-f))
                for k in range(self.s):
                    total[k] += v * q[k] * (1 - q[k]) * outer
        return total

    def check_sums(self, values, gradient):
        scores = self.phi @ self.coef
        assert_allclose(values, self.like.values(scores, self.own_codes, self.own_weights), **TOLERANCE)
        g = self.like.gradient(scores, self.own_codes, self.own_weights)
        assert_allclose(gradient, self.phi.T @ g, **TOLERANCE)

    def diagonal(self):
        """Of the matrices, of shape (p, m)."""
        return np.concatenate([M.diagonal() for M in self.matrices()]).reshape(self.m, self.p).T


class TestPass:
    @every_pair(cut=CUTS, **PROBLEMS)
    def test_matrix(self, which, loss, sparse, weighted, intercept, cut):
        case = Case(which, loss, sparse, weighted, intercept, *cut)
        passes, coef = case.passes("matrix"), case.coef.copy()
        assert passes.dimension == case.p
        packed = likelihood_pass(Meter(), passes, case.segment, case.coef)
        assert packed.shape == (sum(passes.pack_sizes()),)
        values, gradient, matrices = passes.unpack(packed)
        case.check_sums(values, gradient)
        expected = case.matrices()
        assert matrices.shape == expected.shape
        lower = np.tril_indices(expected.shape[1])
        for found, wanted in zip(matrices, expected, strict=True):
            assert_allclose(found[lower], wanted[lower], **TOLERANCE)
        assert_array_equal(case.coef, coef)

    @every_pair(cut=CUTS, **PROBLEMS)
    def test_diagonal(self, which, loss, sparse, weighted, intercept, cut):
        case = Case(which, loss, sparse, weighted, intercept, *cut)
        passes = case.passes("diagonal")
        packed = likelihood_pass(Meter(), passes, case.segment, case.coef)
        assert packed.shape == (sum(passes.pack_sizes()),)
        values, gradient, diagonal = passes.unpack(packed)
        case.check_sums(values, gradient)
        assert_allclose(diagonal, case.diagonal(), **TOLERANCE)

    @every_problem
    def test_product(self, which, loss, sparse, weighted, intercept):
        case = Case(which, loss, sparse, weighted, intercept)
        V = np.random.default_rng(1).standard_normal((case.p, case.m))
        found = curvature_product(Meter(), case.passes("diagonal"), case.segment, (case.coef, V))
        expected = np.zeros_like(V)
        if case.s == 1:
            expected = (case.matrices()[0] @ V.T.ravel()).reshape(case.m, case.p).T
        else:
            expected = np.column_stack([M @ V[:, k] for k, M in enumerate(case.matrices())])
        assert_allclose(found, expected, **TOLERANCE)

    @every_problem
    def test_segments_add_up(self, which, loss, sparse, weighted, intercept):
        case = Case(which, loss, sparse, weighted, intercept)
        for curvature in ("matrix", "diagonal"):
            passes = case.passes(curvature)
            whole = likelihood_pass(Meter(), passes, case.segment, case.coef)
            cuts = itertools.pairwise([0, 1, 12, N])
            parts = [likelihood_pass(Meter(), passes, case.part(a, b, 4), case.coef) for a, b in cuts]
            assert_allclose(sum(parts), whole, **TOLERANCE)


@settings(max_examples=25, deadline=None)
@given(
    block=st.integers(1, N + 3),
    start=st.integers(0, N - 1),
    length=st.integers(1, N),
    loss=st.sampled_from(list(LIKELIHOODS)),
    intercept=st.booleans(),
)
def test_ragged_segments(block, start, length, loss, intercept):
    case = Case("identity", loss, False, True, intercept, slice(start, min(start + length, N)), block)
    values, gradient, diagonal = case.passes("diagonal").unpack(
        likelihood_pass(Meter(), case.passes("diagonal"), case.segment, case.coef)
    )
    case.check_sums(values, gradient)
    assert_allclose(diagonal, case.diagonal(), **TOLERANCE)


@every_form
@pytest.mark.parametrize("dtype", [np.float32, np.int8])
@pytest.mark.parametrize("curvature", ["matrix", "diagonal"])
def test_other_types_are_summed_in_float64(curvature, dtype, sparse):
    rng = np.random.default_rng(0)
    X = np.where(rng.random((N, D)) < 0.5, 10 * rng.standard_normal((N, D)), 0.0).astype(dtype)
    case = Case("identity", "softmax", sparse, True, True)
    case.coef *= 0.1
    case.phi = np.column_stack([X.astype(np.float64), np.ones(N)])
    rows = MemoryRows(sp.csr_array(X) if sparse else X)
    found = likelihood_pass(Meter(), case.passes(curvature), case.part(0, N, 7, rows), case.coef)
    values, gradient, rest = case.passes(curvature).unpack(found)
    case.check_sums(values, gradient)
    expected = case.matrices() if curvature == "matrix" else case.diagonal()
    if curvature == "matrix":
        lower = np.tril_indices(rest.shape[-1])
        rest, expected = rest[0][lower], expected[0][lower]
    assert_allclose(rest, expected, rtol=1e-10, atol=1e-10)


@every_likelihood
@pytest.mark.parametrize("curvature", ["matrix", "diagonal"])
def test_labels_and_weights_may_be_stored(tmp_path, curvature, loss):
    case, grid = Case("identity", loss, False, True, True), TileGrid(N, 6, 6)
    codes = vectors(tmp_path, grid, case.codes[:, None].astype(float))
    weights = vectors(tmp_path, grid, case.weights[:, None])
    meter, rows = Meter(), RowsElsewhere(case.rows.array)
    passes = case.passes(curvature)
    found = likelihood_pass(meter, passes, Segment(rows, 2, 27, 5, codes, weights), case.coef)
    assert_allclose(found, likelihood_pass(Meter(), passes, case.part(2, 27, 5), case.coef), **TOLERANCE)
    assert meter.bytes_read >= 25 * D * 8


@pytest.mark.parametrize("curvature", ["matrix", "diagonal"])
@pytest.mark.parametrize("loss", LIKELIHOODS)
def test_scores_of_any_size(curvature, loss):
    case = Case("identity", loss, False, True, True)
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        found = likelihood_pass(Meter(), case.passes(curvature), case.segment, 1e3 * case.coef)
    assert np.isfinite(found).all()


def test_the_first_bad_value_is_named():
    case = Case("identity", "binary", False, False, True)
    X = np.array(case.rows.array)
    X[17, 2] = np.nan
    with pytest.raises(InputError, match="X contains NaN.*row 17, column 2"):
        likelihood_pass(Meter(), case.passes("matrix"), case.part(0, N, 7, MemoryRows(X)), case.coef)


class TestCurvatureProduct:
    def make(self, case, executor, coef=None):
        segments = tuple(case.part(a, b, 4) for a, b in itertools.pairwise([0, 11, 12, N]))
        return CurvatureProduct(case.passes("diagonal"), segments, executor, case.coef if coef is None else coef)

    @every_problem
    def test_is_the_dense_matrix(self, which, loss, sparse, weighted, intercept):
        case = Case(which, loss, sparse, weighted, intercept)
        is_softmax = loss == "softmax"
        V = np.random.default_rng(1).standard_normal((case.p * case.m, 1) if is_softmax else (case.p, case.m))
        expected = np.column_stack([M @ V[:, k] for k, M in enumerate(case.matrices())])
        with ThreadExecutor(2) as threads:
            for executor in (SerialExecutor(), threads):
                operator = self.make(case, executor)
                assert operator.n == len(V)
                for precision in ("float64", "float32"):  # always in float64
                    assert_allclose(operator.multiply(V, precision), expected, **TOLERANCE)
                assert len(operator.record.tasks) == 6

    @every_problem
    def test_the_only_column(self, which, loss, sparse, weighted, intercept):
        case = Case(which, loss, sparse, weighted, intercept)
        n_systems = case.m if loss == "softmax" else 1
        V = np.random.default_rng(1).standard_normal((case.p * n_systems, 1))
        found = self.make(case, SerialExecutor()).multiply(V, columns=np.array([0]))
        assert_allclose(found, case.matrices()[0] @ V, **TOLERANCE)

    @every_pair(columns=[[1], [0, 2], [0, 1, 2]], **PROBLEMS | {"loss": ["ovr"]})
    def test_some_columns(self, which, loss, sparse, weighted, intercept, columns):
        """Columns of systems that are still open, and of those that this solve continues with."""
        case = Case(which, loss, sparse, weighted, intercept)
        V = np.random.default_rng(1).standard_normal((case.p, len(columns)))
        expected = np.column_stack([case.matrices()[k] @ V[:, i] for i, k in enumerate(columns)])
        found = self.make(case, SerialExecutor()).multiply(V, columns=np.array(columns))
        assert_allclose(found, expected, **TOLERANCE)
        of_open = self.make(case, SerialExecutor(), np.ascontiguousarray(case.coef[:, columns]))
        assert_allclose(of_open.multiply(V), expected, **TOLERANCE)
