"""Products with the normal matrix, streamed over dense and sparse rows, against sums over single samples."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.features import IdentityMap, PolynomialMap
from dkrr.linalg.normal_product import (
    NormalOperator,
    normal_moments,
    normal_product,
    training_errors,
    weighted_squares,
    weighted_sums,
)
from dkrr.linalg.preconditioner import Diagonal
from dkrr.linalg.segments import Segment
from dkrr.rows import MemoryRows, as_rows
from dkrr.runtime import Meter, SerialExecutor, ThreadExecutor
from dkrr.tiles import TileGrid
from tests.inputs import KINDS, numbers, table
from tests.linalg.systems import vectors
from tests.oracles import naive_normal

N, D, T = 29, 5, 2
TOLERANCE = {"rtol": 1e-11, "atol": 1e-12}
MAPS = {"identity": IdentityMap(), "polynomial": PolynomialMap(degree=2, gamma=0.7, coef0=1.0)}

every_map = pytest.mark.parametrize("which", MAPS)
every_form = pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
weighted_and_centred = pytest.mark.parametrize(
    ("weighted", "centred"), [(False, False), (True, False), (False, True), (True, True)]
)


class Case:
    """Rows, their features, and the normal matrix of some of them."""

    def __init__(self, which, sparse, weighted, centred, here=slice(0, N), block=7, dtype=np.float64):
        rng = np.random.default_rng(0)
        self.map = MAPS[which]
        X = np.where(rng.random((N, D)) < 0.5, rng.standard_normal((N, D)), 0.0).astype(dtype)
        self.y, w = rng.standard_normal((N, T)), rng.uniform(0.1, 2.0, (N, 1))
        w[5] = 0.0
        phi = self.map.transform(X)
        self.n_columns = phi.shape[1]
        self.weights = w if weighted else None
        ones = w[:, 0] if weighted else np.ones(N)
        self.centre = np.average(phi, axis=0, weights=ones) if centred else None
        self.phi = (phi - (self.centre if centred else 0.0))[here]
        self.raw, self.ones, self.targets = phi[here], ones[here], self.y[here]
        self.matrix, self.moments = naive_normal(self.phi, self.ones, self.targets)
        rows = MemoryRows(sp.csr_array(X) if sparse else X)
        self.segment = Segment(rows, here.start, here.stop, block, self.y, self.weights)

    def coef(self, m=3):
        return np.random.default_rng(4).standard_normal((self.n_columns, m))


@weighted_and_centred
@every_form
@every_map
class TestTasks:
    @settings(max_examples=12, deadline=None)
    @given(st.integers(1, N + 3), st.integers(0, N - 1), st.integers(1, N), st.integers(1, 4))
    def test_product(self, which, sparse, weighted, centred, block, start, length, m):
        case = Case(which, sparse, weighted, centred, slice(start, min(start + length, N)), block)
        V = case.coef(m)
        before = V.copy()
        found = normal_product(Meter(), case.map, case.segment, case.centre, V)
        assert_allclose(found, case.matrix @ V, **TOLERANCE)
        assert_array_equal(V, before)

    @pytest.mark.parametrize("block", [1, 7, 100])
    def test_moments(self, which, sparse, weighted, centred, block):
        case = Case(which, sparse, weighted, centred, slice(3, 25), block)
        targets = case.y.copy()
        found = normal_moments(Meter(), case.map, case.segment, case.centre, None)
        assert_allclose(found, case.moments, **TOLERANCE)
        W = case.coef(T)
        found = normal_moments(Meter(), case.map, case.segment, case.centre, W)
        assert_allclose(found, case.moments - case.matrix @ W, **TOLERANCE)
        assert_array_equal(case.y, targets, err_msg="the targets are the caller's")

    @pytest.mark.parametrize("block", [1, 7, 100])
    def test_sums(self, which, sparse, weighted, centred, block):
        case = Case(which, sparse, weighted, centred, slice(3, 25), block)
        sums = weighted_sums(Meter(), case.map, case.segment, None)
        squares = weighted_squares(Meter(), case.map, case.segment, None)
        assert sums.shape == squares.shape == (case.n_columns, 1)
        assert_allclose(sums[:, 0], case.ones @ case.raw, **TOLERANCE)
        assert_allclose(squares[:, 0], case.ones @ case.raw**2, **TOLERANCE)

    @pytest.mark.parametrize("block", [1, 7, 100])
    def test_errors(self, which, sparse, weighted, centred, block):
        case = Case(which, sparse, weighted, centred, slice(3, 25), block)
        W = case.coef(T)
        found, means = np.zeros_like(case.y), np.array([4.0] * T)
        assert training_errors(Meter(), case.map, case.segment, case.centre, found, W) is None
        assert_allclose(found[3:25], case.targets - case.phi @ W, **TOLERANCE)
        assert (found[:3] == 0).all() and (found[25:] == 0).all(), "rows of other segments"
        centred = replace(case.segment, means=means)
        training_errors(Meter(), case.map, centred, case.centre, found, W)
        assert_allclose(found[3:25], case.targets - means - case.phi @ W, **TOLERANCE)

    @pytest.mark.parametrize("entries", [1, 13])
    def test_blocks_cut_by_entries(self, which, sparse, weighted, centred, entries, monkeypatch):
        case = Case(which, sparse, weighted, centred, slice(3, 25), 7)
        monkeypatch.setattr("dkrr.linalg.segments.BLOCK_ENTRIES", entries)
        blocks = [block for _, block in case.segment.blocks(Meter())]
        assert not sparse or all(block.nnz <= entries or block.shape[0] == 1 for block in blocks)
        assert len(blocks) > 4 or not sparse
        found = normal_product(Meter(), case.map, case.segment, case.centre, case.coef())
        assert_allclose(found, case.matrix @ case.coef(), **TOLERANCE)

    def test_operator(self, which, sparse, weighted, centred):
        case, passes = Case(which, sparse, weighted, centred), []
        V = case.coef()
        segments = tuple(
            Segment(case.segment.rows, a, b, 4, case.y, case.weights) for a, b in itertools.pairwise([0, 11, 12, N])
        )
        with ThreadExecutor(2) as threads:
            for executor in (SerialExecutor(), threads):
                operator = NormalOperator(
                    case.map, segments, executor, case.n_columns, case.centre, lambda: passes.append(1)
                )
                assert operator.n == case.n_columns
                for precision in ("float64", "float32"):  # always in float64
                    assert_allclose(operator.multiply(V, precision), case.matrix @ V, **TOLERANCE)
                assert_allclose(operator.multiply(V[:, 1:2]), case.matrix @ V[:, 1:2], **TOLERANCE)
                assert len(operator.record.tasks) == 9
                assert operator.record.bytes_read == 0, "rows in memory are not read"
        assert len(passes) == 6


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_rows(kind, tmp_path):
    case = table(kind, tmp_path)
    X, w = case.array, np.full((23, 1), 4.0)
    before, V = X.copy(), np.random.default_rng(0).standard_normal((7, 2))
    segment = Segment(as_rows(case.handed_in), 0, 23, 6, np.ones((23, 1)), w)
    meter = Meter()
    found = normal_product(meter, IdentityMap(), segment, np.ones(7), V)
    assert_allclose(found, 4 * (X - 1).T @ ((X - 1) @ V), rtol=1e-9, atol=1e-8)
    assert (meter.bytes_read > 0) == (not segment.rows.is_in_memory)
    assert_allclose(weighted_squares(Meter(), IdentityMap(), segment, None)[:, 0], 4 * (X**2).sum(axis=0), rtol=1e-12)
    assert_array_equal(before, X)
    assert (w == 4.0).all(), "the weights are the caller's"


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "float32", "bool"])
@every_form
def test_numbers_of_other_types(sparse, dtype):
    """Counts in small integers: their squares do not fit in the type."""
    X = (np.abs(numbers((23, 7))) % 120).astype(dtype)
    segment = Segment(as_rows(sp.csr_array(X) if sparse else X), 0, 23, 6, np.ones((23, 1)))
    exact = X.astype(float)
    assert_allclose(weighted_squares(Meter(), IdentityMap(), segment, None)[:, 0], (exact**2).sum(axis=0), rtol=1e-13)
    assert_allclose(weighted_sums(Meter(), IdentityMap(), segment, None)[:, 0], exact.sum(axis=0), rtol=1e-13)
    V = np.random.default_rng(0).standard_normal((7, 2))
    assert_allclose(
        normal_product(Meter(), IdentityMap(), segment, None, V), exact.T @ (exact @ V), rtol=1e-9, atol=1e-8
    )


def test_vectors_in_the_store(tmp_path):
    case = Case("polynomial", True, True, True, slice(2, 27), 6)
    grid = TileGrid(N, 4, 4)
    stored = Segment(
        case.segment.rows, 2, 27, 6, vectors(tmp_path, grid, case.y), vectors(tmp_path, grid, case.weights)
    )
    V, W = case.coef(), case.coef(T)
    assert_allclose(normal_product(Meter(), case.map, stored, case.centre, V), case.matrix @ V, **TOLERANCE)
    found = normal_moments(Meter(), case.map, stored, case.centre, W)
    assert_allclose(found, case.moments - case.matrix @ W, **TOLERANCE)
    assert_allclose(weighted_sums(Meter(), case.map, stored, None)[:, 0], case.ones @ case.raw, **TOLERANCE)


def test_many_features_stay_sparse():
    """A million columns: nothing of rows × columns is formed."""
    import tracemalloc

    n, d = 50, 1_000_000
    X = sp.random_array((n, d), density=1e-5, format="csr", rng=np.random.default_rng(0))
    segment = Segment(MemoryRows(X), 0, n, 20, np.ones((n, 1)), np.ones((n, 1)))
    V = np.ones((d, 1))
    tracemalloc.start()
    normal_product(Meter(), IdentityMap(), segment, np.zeros(d), V)
    weighted_sums(Meter(), IdentityMap(), segment, None)
    weighted_squares(Meter(), IdentityMap(), segment, None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 8 * d < 8 * n * d / 5


class TestDiagonal:
    def test_apply(self):
        a, shift, R = np.array([1.0, 2.0, 5.0]), np.array([[1.0, 0.0]]), np.arange(6.0).reshape(3, 2)
        before = R.copy()
        assert_array_equal(Diagonal(a[:, None], shift).apply(R, np.arange(2)), R / np.column_stack([a + 1, a]))
        assert_array_equal(Diagonal(a[:, None], shift).apply(R[:, :1], np.array([1])), R[:, :1] / a[:, None])
        assert_array_equal(R, before)

    def test_features_that_are_zero(self):
        found = Diagonal(np.array([[0.0], [2.0]]), np.array([[0.0]])).apply(np.ones((2, 1)), np.array([0]))
        assert_array_equal(found, [[1.0], [0.5]])
        assert not Diagonal(np.ones((2, 1)), np.ones((1, 1))).can_grow
