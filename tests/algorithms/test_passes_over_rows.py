"""Sums over the rows of the primal form, in memory, in strips and in tiles, against sums over single samples."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from dkrr.cluster import Meter
from dkrr.data import MemoryRows, as_rows, write_rows
from dkrr.kernels.maps import IdentityMap, PolynomialMap
from dkrr.linalg import passes
from dkrr.linalg.likelihood import Bernoulli, Softmax
from dkrr.linalg.likelihood_passes import LikelihoodPass, likelihood_pass
from dkrr.linalg.normal import (
    normal_moments,
    normal_part,
    normal_product,
    primal_residual,
    squared_values,
    training_errors,
    weighted_squares,
    weighted_sums,
)
from dkrr.linalg.passes import Design, Segment
from dkrr.linalg.sources import FormedTiles
from dkrr.store import TileGrid
from tests import systems
from tests.oracles import naive_normal
from tests.pairs import every_pair
from tests.stores import place
from tests.systems import random

one_blas_thread = systems.one_blas_thread

N, D = 29, 3
TOLERANCE = {"rtol": 1e-10, "atol": 1e-11}
MAPS = {"identity": IdentityMap(), "polynomial": PolynomialMap(degree=2, gamma=0.7, coef0=1.0)}
LIKELIHOODS = {"binary": Bernoulli(1), "one vs rest": Bernoulli(3), "softmax": Softmax(3)}
YES_OR_NO = {name: [False, True] for name in ("sparse", "weighted", "stored")}
ranges = st.tuples(st.integers(0, N - 1), st.integers(1, N)).map(lambda t: slice(t[0], min(sum(t), N)))


class Case:
    """Rows with their features, targets and weights, and a segment of them."""

    def __init__(self, which, sparse, weighted, here=slice(0, N), block=7, dtype="float64", folder=None):
        rng = np.random.default_rng(0)
        X = np.where(rng.random((N, D)) < 0.5, 2 * rng.standard_normal((N, D)), 0.0).astype(dtype)
        self.map, self.here, self.X = MAPS[which], here, X
        self.y, w = rng.standard_normal((N, 2)), rng.uniform(0.1, 2.0, (N, 1))
        w[5] = 0.0
        self.w, self.phi = w if weighted else None, self.map.transform(X.astype(float))
        self.own_w, self.p = np.ones(N) if self.w is None else w[:, 0], self.phi.shape[1]
        rows = MemoryRows(sp.csr_array(X) if sparse else X)
        if folder:  # stored in other chunks than the segment reads
            rows = write_rows(rows, place(folder / "rows"), 4)
        self.segment = Segment(rows, here.start, here.stop, block, *self.stored(folder, self.y, self.w))

    def stored(self, folder, *arrays):
        grid = TileGrid(N, 6, 6)
        return [systems.vectors(folder, grid, a) if folder and a is not None else a for a in arrays]


@every_pair(which=list(MAPS), **YES_OR_NO, centred=[False, True], strip=[1, 7, 50])
@given(here=ranges, block=st.integers(1, N + 3), entries=st.sampled_from([1, 13, 10**6]))
def test_sums_of_least_squares_are_those_of_single_samples(
    tmp_path_factory, which, sparse, weighted, centred, stored, strip, here, block, entries
):
    case = Case(which, sparse, weighted, here, block, folder=tmp_path_factory.mktemp("p") if stored else None)
    centre = np.average(case.phi, axis=0, weights=case.own_w) if centred else None
    phi, w, y = (case.phi - (0.0 if centre is None else centre))[here], case.own_w[here], case.y[here]
    matrix, moments = naive_normal(phi, w, y)
    V, coef = random(case.p, 3, seed=4), random(case.p, 2, seed=5)
    meter, common, raw_rows = Meter(), (Design(case.map, centre), case.segment), (Design(case.map), case.segment)
    for callers in (V, coef, case.y, case.X):
        callers.flags.writeable = False
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "MIN_STRIP_ROWS", strip)
        patch.setattr(passes, "FEATURE_STRIP_BYTES", 0)
        patch.setattr(passes, "SPARSE_BLOCK_ENTRIES", entries)
        blocks = [block for _, block in case.segment.blocks(Meter())]
        assert not sparse or all(block.nnz <= entries or block.shape[0] == 1 for block in blocks)
        assert_allclose(normal_product(meter, *common, V), matrix @ V, **TOLERANCE)
        assert_allclose(normal_moments(Meter(), *common, None), moments, **TOLERANCE)
        assert_allclose(normal_moments(Meter(), *common, coef), moments - matrix @ coef, **TOLERANCE)
        raw, weight = case.phi[here], case.own_w[here]
        assert_allclose(weighted_sums(Meter(), *raw_rows, None)[:, 0], weight @ raw, **TOLERANCE)
        assert_allclose(weighted_squares(Meter(), *raw_rows, None)[:, 0], weight @ raw**2, **TOLERANCE)
        for grid in (TileGrid(case.p, case.p, case.p), TileGrid(case.p, 2, 2)):
            tiles, found = normal_part(Meter(), *common, grid)
            assert_allclose(systems.whole(FormedTiles((tiles,)), grid), matrix, **TOLERANCE)
            assert_allclose(found, np.column_stack([moments, w @ phi])[:, : 2 + centred], **TOLERANCE)
        # Errors of training, in memory: rows of other segments are left as they are.
        for means in (None, np.array([0.5, -2.0])):
            segment, shifted = replace(case.segment, means=means), y - (0.0 if means is None else means)
            errors, residuals = np.full_like(case.y, 7.0), np.full_like(case.y, 7.0)
            sums = [
                training_errors(Meter(), common[0], segment, None, errors, coef),
                primal_residual(Meter(), common[0], segment, coef, residuals),
            ]
            expected = np.full_like(case.y, 7.0)
            expected[here] = shifted - phi @ coef
            weighted = w[:, None] * expected[here]
            assert_allclose(errors, expected, **TOLERANCE)
            assert_allclose(residuals, expected, **TOLERANCE)
            squares = [(weighted * v).sum(axis=0) for v in (expected[here], weighted)]
            for found in sums:
                of_sums = [phi.T @ weighted, weighted.sum(axis=0), *squares]
                assert_allclose(found, np.vstack(of_sums)[: len(found)], **TOLERANCE)
            # Those that are known, in place, less those of a change.
            training_errors(Meter(), common[0], segment, errors, errors, coef)
            assert_allclose(errors[here], expected[here] - phi @ coef, **TOLERANCE)
        squares = (phi @ V) ** 2
        assert_allclose(squared_values(Meter(), *common, V), [w @ squares, (w > 0) @ squares], **TOLERANCE)
    assert (meter.bytes_read > 0) == stored


@pytest.mark.parametrize(("strip", "block"), [(1, 5), (4, 1), (4, 8), (50, 50)])
def test_residuals_are_written_in_chunks_that_strips_do_not_begin_or_end_with(tmp_path, monkeypatch, strip, block):
    monkeypatch.setattr(passes, "MIN_STRIP_ROWS", strip)
    monkeypatch.setattr(passes, "FEATURE_STRIP_BYTES", 0)
    case, by_rows = Case("polynomial", False, True, folder=tmp_path), TileGrid(N, block, block)
    coef, found, middle = random(case.p, 3), systems.empty_vectors(tmp_path, by_rows, 2), N // 2 // block * block
    for a, b in ((0, middle), (middle, N)) if middle else [(0, N)]:
        segment = replace(case.segment, start=a, stop=b, block=block)
        primal_residual(Meter(), Design(case.map), segment, coef, found)
    assert_allclose(found.load(), case.y - case.phi @ coef[:, :2], **TOLERANCE)


@every_pair(dtype=["int8", "uint8", "float32", "bool"], sparse=[False, True])
def test_numbers_of_other_types_are_summed_in_float64(sparse, dtype):
    """Counts in small integers: their squares do not fit in the type."""
    X, passes = (
        (np.abs(60 * random(N, D)) % 120).astype(dtype),
        LikelihoodPass(IdentityMap(), Softmax(3), D, False, "matrix"),
    )

    def sums(rows):
        segment = Segment(as_rows(rows), 0, N, 6, np.ones((N, 1)))
        common = (Meter(), Design(IdentityMap()), segment)
        yield from (
            weighted_squares(*common, None),
            weighted_sums(*common, None),
            normal_product(*common, random(D, 2)),
        )
        yield likelihood_pass(Meter(), passes, segment, 0.01 * random(D, 3))

    for found, expected in zip(sums(sp.csr_array(X) if sparse else X), sums(X.astype(float)), strict=True):
        assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_rows_with_many_features_stay_sparse():
    """A million columns: nothing of rows × columns is formed."""
    n, d = 50, 1_000_000
    X = sp.random_array((n, d), density=1e-5, format="csr", rng=np.random.default_rng(0))
    segment, V = Segment(MemoryRows(X), 0, n, 20, np.ones((n, 1)), np.ones((n, 1))), np.ones((d, 1))
    for sums, shared in ((weighted_sums, None), (weighted_squares, None), (normal_product, V)):
        peak = systems.traced_peak(lambda: sums(Meter(), Design(IdentityMap()), segment, shared))  # noqa: B023
        assert peak < 8 * 8 * d


@every_pair(which=list(MAPS), loss=list(LIKELIHOODS), **YES_OR_NO, intercept=[False, True])
@given(here=ranges, block=st.integers(1, N + 3))
def test_sums_of_a_likelihood_are_those_of_single_samples(
    tmp_path_factory, which, loss, sparse, weighted, intercept, stored, here, block
):
    folder = tmp_path_factory.mktemp("p") if stored else None
    case, like = Case(which, sparse, weighted, here, block, folder=folder), LIKELIHOODS[loss]
    codes = np.random.default_rng(1).integers(0, max(like.n_columns, 2), N)
    (labels,) = case.stored(folder, codes[:, None].astype(float))
    segment = Segment(case.segment.rows, here.start, here.stop, block, labels, case.segment.weights)
    phi = np.column_stack([case.phi, np.ones(N)]) if intercept else case.phi
    p, m = phi.shape[1], like.n_columns
    coef = 0.3 * random(p, m, seed=2)
    coef.flags.writeable = False
    data, matrices = (
        (phi[here] @ coef, codes[here], case.own_w[here]),
        np.zeros((like.n_systems, *2 * (p * m // like.n_systems,))),
    )
    like.root(data[0], data[2]).add_products(matrices, phi[here])
    diagonal = np.concatenate([M.diagonal() for M in matrices]).reshape(m, p).T
    meter = Meter()
    for curvature in ("matrix", "diagonal"):
        passes = LikelihoodPass(case.map, like, D, intercept, curvature)
        found_values, found_gradient, found = passes.unpack(likelihood_pass(meter, passes, segment, coef))
        assert_allclose(found_values, like.values(*data), **TOLERANCE)
        assert_allclose(found_gradient, phi[here].T @ like.gradient(*data), **TOLERANCE)
        lower = np.tri(matrices.shape[1], dtype=bool) if curvature == "matrix" else np.ones((p, m), bool)
        expected = matrices if curvature == "matrix" else diagonal
        assert found.shape == expected.shape
        assert_allclose(found[..., lower], expected[..., lower], **TOLERANCE)
    assert (meter.bytes_read > 0) == stored
