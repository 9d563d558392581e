"""The normal equations, in memory and in tiles, weighted and centred, against sums over single samples."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.errors import InputError
from dkrr.features import IdentityMap, PolynomialMap
from dkrr.linalg import segments
from dkrr.linalg.normal import (
    NormalParts,
    accumulate,
    feature_sums,
    normal_cost,
    normal_part,
    normal_tasks,
    primal_residual,
)
from dkrr.linalg.segments import Segment
from dkrr.linalg.sources import SummedTiles
from dkrr.rows import as_rows, write_rows
from dkrr.runtime import Meter
from dkrr.tiles import TileGrid
from tests.inputs import KINDS, table
from tests.linalg.systems import RowsElsewhere, empty_tiles, empty_vectors, files_of, remove_chunks, run, vectors
from tests.linalg.test_sources import whole
from tests.oracles import naive_normal
from tests.stores import place

N, D = 29, 3
MAP = PolynomialMap(degree=2, gamma=0.7, coef0=1.0)
DIMENSION = MAP.dimension(D)  # 10
TOLERANCE = {"rtol": 1e-11, "atol": 1e-12}
everything = slice(0, DIMENSION)


def samples(seed=0):
    """X, y, weights (one of them zero), and Φ."""
    rng = np.random.default_rng(seed)
    X, y, w = rng.standard_normal((N, D)), rng.standard_normal((N, 2)), rng.uniform(0.1, 2.0, (N, 1))
    w[5] = 0.0
    return X, y, w, MAP.transform(X)


def expected(phi, y, w, centred):
    """ΦᵀWΦ, ΦᵀWy and the mean that was subtracted."""
    weights = np.ones(len(phi)) if w is None else w[:, 0]
    centre = np.average(phi, axis=0, weights=weights) if centred else None
    matrix, moments = naive_normal(phi - (centre if centred else 0.0), weights, y)
    return matrix, moments, centre


weighted_and_centred = pytest.mark.parametrize(
    ("weighted", "centred"), [(False, False), (True, False), (False, True), (True, True)]
)


ONE_TILE = TileGrid(DIMENSION, DIMENSION, DIMENSION)


@weighted_and_centred
@settings(max_examples=15, deadline=None)
@given(st.integers(1, N + 3), st.integers(0, N - 1), st.data())
def test_accumulate(weighted, centred, block, start, data):
    stop = data.draw(st.integers(start + 1, N))
    a = data.draw(st.integers(0, DIMENSION - 1))
    rows = slice(a, data.draw(st.integers(a + 1, DIMENSION)))
    columns = rows if data.draw(st.booleans()) else slice(0, data.draw(st.integers(1, DIMENSION)))
    X, y, w, phi = samples()
    w = w if weighted else None
    _, _, centre = expected(phi, y, w, centred)
    here = slice(start, stop)
    part = phi[here] - (0.0 if centre is None else centre)
    whole_matrix, whole_moments = naive_normal(part, np.ones(stop - start) if w is None else w[here, 0], y[here])
    matrix = np.full((rows.stop - rows.start, columns.stop - columns.start), 0.5)  # it is added to
    moments = np.full((rows.stop - rows.start, 2), 0.5)
    segment = Segment(as_rows(X), start, stop, block, y, w)
    blocks = [(matrix, slice(0, len(matrix)), slice(0, matrix.shape[1]))]
    accumulate(Meter(), MAP, segment, centre, blocks, moments, rows, columns)
    lower = np.tri(*matrix.shape, dtype=bool) if rows == columns else np.ones(matrix.shape, bool)
    assert_allclose(matrix[lower], (whole_matrix[rows, columns] + 0.5)[lower], **TOLERANCE)
    assert (matrix[~lower] == 0.5).all()
    assert_allclose(moments, whole_moments[rows] + 0.5, **TOLERANCE)


@pytest.mark.parametrize("height", [1, 2, 7, 50])
@pytest.mark.parametrize("stored", [False, True])
@weighted_and_centred
def test_strips_of_any_height(tmp_path, monkeypatch, height, stored, weighted, centred):
    """Cut within the blocks that the plan reads, whose targets and weights are then kept for several strips."""
    monkeypatch.setattr(segments, "STRIP_ROWS", height)
    monkeypatch.setattr(segments, "STRIP_BYTES", 0)
    X, y, w, phi = samples()
    w = w if weighted else None
    _, _, centre = expected(phi, y, w, centred)
    targets, weights = y, w
    if stored:
        by_rows = TileGrid(N, 5, 5)
        targets, weights = vectors(tmp_path, by_rows, y), None if w is None else vectors(tmp_path, by_rows, w)
    rows = write_rows(as_rows(X), place(tmp_path / "rows"), 4)
    segment = Segment(rows, 2, 27, 5, targets, weights)
    here = slice(2, 27)
    part = phi[here] - (0.0 if centre is None else centre)
    whole_matrix, whole_moments = naive_normal(part, np.ones(25) if w is None else w[here, 0], y[here])
    for grid in (ONE_TILE, TileGrid(DIMENSION, 2, 2)):
        matrix, moments = normal_part(Meter(), MAP, segment, centre, grid)
        for i, j in grid.lower():
            block = whole_matrix[grid.rows(i), grid.rows(j)]
            lower = np.tri(*block.shape, dtype=bool) if i == j else np.ones(block.shape, bool)
            assert_allclose(matrix.tile_buffer(i, j)[lower], block[lower], **TOLERANCE)
    assert_allclose(moments, whole_moments, **TOLERANCE)
    assert_allclose(
        feature_sums(Meter(), MAP, segment), ((1.0 if w is None else w) * phi)[here].sum(axis=0), **TOLERANCE
    )
    coef = np.random.default_rng(3).standard_normal((DIMENSION, 2))
    residuals = np.full_like(y, np.inf)
    gradient = primal_residual(Meter(), MAP, segment, centre, coef, residuals)
    assert_allclose(residuals[here], y[here] - part @ coef, **TOLERANCE)
    assert np.isinf(residuals[:2]).all() and np.isinf(residuals[27:]).all(), "rows of other segments"
    _, of_residuals = naive_normal(part, np.ones(25) if w is None else w[here, 0], residuals[here])
    assert_allclose(gradient, of_residuals, **TOLERANCE)


@pytest.mark.parametrize("strip", [1, 3, 4, 7, 50])
@pytest.mark.parametrize("block", [1, 4, 5, 8, 50])
def test_residuals_in_a_store(tmp_path, monkeypatch, strip, block):
    """In chunks that neither the strips nor the rows as they are stored begin or end with."""
    monkeypatch.setattr(segments, "STRIP_ROWS", strip)
    monkeypatch.setattr(segments, "STRIP_BYTES", 0)
    X, y, w, phi = samples()
    by_rows, coef = TileGrid(N, block, block), np.random.default_rng(3).standard_normal((DIMENSION, 3))
    rows = write_rows(as_rows(X), place(tmp_path / "rows"), 6)
    targets, weights, found = (
        vectors(tmp_path, by_rows, y),
        vectors(tmp_path, by_rows, w),
        empty_vectors(tmp_path, by_rows, 2),
    )
    middle, gradient = N // 2 // block * block, 0.0
    for a, b in ((0, middle), (middle, N)):
        if a < b:
            segment = Segment(rows, a, b, block, targets, weights, np.array([0.5, -2.0]))
            gradient = gradient + primal_residual(Meter(), MAP, segment, None, coef, found)
    y3 = np.column_stack([y - [0.5, -2.0], np.zeros(N)])  # a column more than there are targets has targets of 0
    assert_allclose(found.load(), (y3 - phi @ coef)[:, :2], **TOLERANCE)
    assert_allclose(gradient, phi.T @ (w * (y3 - phi @ coef)), **TOLERANCE)


def test_targets_less_their_means():
    X, y, w, _ = samples()
    means, before = np.array([3.0, -1e3]), y.copy()
    plain, less = Segment(as_rows(X), 3, 25, 5, y - means, w), Segment(as_rows(X), 3, 25, 5, y, w, means)
    (_, a), (_, b) = (normal_part(Meter(), MAP, segment, None, ONE_TILE) for segment in (less, plain))
    assert_array_equal(a, b)
    assert_array_equal(y, before, err_msg="the targets are the caller's")


def test_a_bad_value_is_named_where_it_is_read():
    X, y, _, _ = samples()
    X[17, 2] = np.nan
    segment = Segment(as_rows(X), 3, N, 4, y)
    for work in (
        lambda: normal_part(Meter(), MAP, segment, None, ONE_TILE),
        lambda: feature_sums(Meter(), MAP, segment),
    ):
        with pytest.raises(InputError, match="row 17, column 2"):
            work()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_rows(kind, tmp_path):
    case = table(kind, tmp_path)
    X, y, matrix, moments = case.array, np.ones((23, 1)), np.zeros((7, 7)), np.zeros((7, 1))
    before = X.copy()
    segment = Segment(as_rows(case.handed_in), 0, 23, 6, y, np.full((23, 1), 4.0))
    everything = slice(0, 7)
    blocks = [(matrix, everything, everything)]
    accumulate(Meter(), IdentityMap(), segment, np.ones(7), blocks, moments, everything, everything)
    assert_allclose(np.tril(matrix), np.tril(4 * (X - 1).T @ (X - 1)), rtol=1e-12)
    assert_allclose(moments, 4 * (X - 1).T @ y, rtol=1e-11, atol=1e-9)
    assert (before == X).all(), "the user's rows are not changed"
    assert (y == 1).all()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("block", [1, 4, 100])
def test_feature_sums(weighted, block):
    X, y, w, phi = samples()
    segment = Segment(as_rows(X), 3, 20, block, y, w if weighted else None)
    total = feature_sums(Meter(), MAP, segment)
    assert_allclose(total, ((w if weighted else 1.0) * phi)[3:20].sum(axis=0), **TOLERANCE)


@weighted_and_centred
@pytest.mark.parametrize("block", [1, 5, 100])
def test_residual(weighted, centred, block):
    X, y, w, phi = samples()
    w = w if weighted else None
    _, _, centre = expected(phi, y, w, centred)
    coef = np.random.default_rng(3).standard_normal((DIMENSION, 2))
    segment = Segment(as_rows(X), 4, 25, block, y, w)
    residuals = np.zeros_like(y)
    gradient = primal_residual(Meter(), MAP, segment, centre, coef, residuals)
    part = phi[4:25] - (0.0 if centre is None else centre)
    assert_allclose(residuals[4:25], y[4:25] - part @ coef, **TOLERANCE)
    _, moments = naive_normal(part, np.ones(21) if w is None else w[4:25, 0], residuals[4:25])
    assert_allclose(gradient, moments, **TOLERANCE)


class TestTiles:
    def parts(self, folder, grid, cuts=(0, 11, 29), *, weighted=True, centred=True):
        X, y, w, phi = samples()
        w = w if weighted else None
        matrix, moments, centre = expected(phi, y, w, centred)
        by_rows = TileGrid(N, 4, 4)
        targets, weights = vectors(folder, by_rows, y), None if w is None else vectors(folder, by_rows, w)
        count = len(cuts) - 1
        return matrix, moments, NormalParts(
            segments=tuple(
                Segment(RowsElsewhere(X), a, b, 4, targets, weights) for a, b in itertools.pairwise(cuts)
            ),
            matrices=tuple(empty_tiles(folder, grid) for _ in range(count)),
            moments=tuple(empty_vectors(folder, grid, 2) for _ in range(count)),
            centre=None if centre is None else vectors(folder, grid, centre[:, None]),
        )  # fmt: skip

    @weighted_and_centred
    @pytest.mark.parametrize(
        "grid", [TileGrid(10, 4, 2), TileGrid(10, 10, 5), TileGrid(10, 3, 3), TileGrid(10, 20, 5)], ids=str
    )
    def test_sum_of_the_parts(self, tmp_path, grid, weighted, centred):
        matrix, moments, parts = self.parts(tmp_path, grid, weighted=weighted, centred=centred)
        record = run(normal_tasks(MAP, parts))
        assert_allclose(whole(SummedTiles(parts.matrices), grid), matrix, **TOLERANCE)
        assert_allclose(sum(m.load() for m in parts.moments), moments, **TOLERANCE)
        written = sum(len(raw) for a in parts.moments for raw in files_of(a).values())
        written += sum(len(raw) for m in parts.matrices for raw in files_of(m.array).values())
        assert record.bytes_written == written
        assert record.bytes_read == len(list(grid.lower())) * 8 * N * D, "X is read once for every tile"

    def test_resume(self, tmp_path):
        grid = TileGrid(10, 4, 2)
        _, _, parts = self.parts(tmp_path, grid)
        run(normal_tasks(MAP, parts))
        before = [files_of(m.array) for m in parts.matrices] + [files_of(m) for m in parts.moments]
        assert normal_tasks(MAP, parts) == []
        remove_chunks(parts.matrices[0].array, [(2, 1)])
        remove_chunks(parts.moments[1], [(1, 0)])
        tasks = normal_tasks(MAP, parts)
        assert {t.key for t in tasks} == {"normal-0-2-0", "normal-1-1-1"}
        run(tasks)
        assert [files_of(m.array) for m in parts.matrices] + [files_of(m) for m in parts.moments] == before

    def test_flops_are_those_of_the_products(self, tmp_path):
        _, _, parts = self.parts(tmp_path, TileGrid(10, 5, 5))
        assert sum(t.flops for t in normal_tasks(MAP, parts)) == N * 10 * 10


def test_cost_with_distinct_primes():
    n, row_bytes, dimension, t, tiles = 10_007, 13, 101, 3, 5
    plain = normal_cost(n, row_bytes, dimension, t, tiles, 0.0, centred=False)
    centred = normal_cost(n, row_bytes, dimension, t, tiles, 0.0, centred=True)
    assert plain.n_tasks == 15
    assert plain.read_bytes == 16 * n * row_bytes, "once a tile, and once for the residual"
    assert centred.read_bytes - plain.read_bytes == n * row_bytes
    assert plain.gemm_flops >= n * dimension**2
