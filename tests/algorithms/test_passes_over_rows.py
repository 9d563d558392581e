"""Sums over the rows of the primal form, in memory, in strips and in tiles, against sums over single samples."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.errors import InputError
from dkrr.features import IdentityMap, PolynomialMap
from dkrr.linalg import segments
from dkrr.linalg.likelihood import Bernoulli, Softmax
from dkrr.linalg.likelihood_pass import Passes, curvature_product, likelihood_pass
from dkrr.linalg.normal import (
    NormalParts,
    accumulate,
    feature_sums,
    normal_part,
    normal_tasks,
    primal_residual,
)
from dkrr.linalg.normal_product import (
    normal_moments,
    normal_product,
    training_errors,
    weighted_squares,
    weighted_sums,
)
from dkrr.linalg.segments import Segment
from dkrr.linalg.sources import SummedTiles
from dkrr.rows import MemoryRows, as_rows, write_rows
from dkrr.runtime import Meter
from dkrr.tiles import TileGrid
from tests.oracles import naive_normal, naive_probabilities
from tests.pairs import every_pair
from tests.stores import place
from tests.systems import (
    RowsElsewhere,
    empty_tiles,
    empty_vectors,
    files_of,
    one_blas_thread,  # noqa: F401
    random,
    remove_chunks,
    run,
    traced_peak,
    vectors,
    whole,
)

N, D = 29, 3
TOLERANCE = {"rtol": 1e-10, "atol": 1e-11}
MAPS = {"identity": IdentityMap(), "polynomial": PolynomialMap(degree=2, gamma=0.7, coef0=1.0)}
LIKELIHOODS = {"binary": Bernoulli(1), "ovr": Bernoulli(3), "softmax": Softmax(3)}
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
        return [vectors(folder, grid, a) if folder and a is not None else a for a in arrays]


@every_pair(
    which=list(MAPS),
    sparse=[False, True],
    weighted=[False, True],
    centred=[False, True],
    stored=[False, True],
    strip=[1, 7, 50],
)
@given(here=ranges, block=st.integers(1, N + 3), entries=st.sampled_from([1, 13, 10**6]))
def test_sums_of_least_squares_are_those_of_single_samples(
    tmp_path_factory, which, sparse, weighted, centred, stored, strip, here, block, entries
):
    case = Case(which, sparse, weighted, here, block, folder=tmp_path_factory.mktemp("p") if stored else None)
    centre = np.average(case.phi, axis=0, weights=case.own_w) if centred else None
    phi, w, y = (case.phi - (0.0 if centre is None else centre))[here], case.own_w[here], case.y[here]
    matrix, moments = naive_normal(phi, w, y)
    V, coef, before = random(case.p, 3, seed=4), random(case.p, 2, seed=5), case.y.copy()
    given_ = V.copy()
    meter, common = Meter(), (case.map, case.segment, centre)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "STRIP_ROWS", strip)
        patch.setattr(segments, "STRIP_BYTES", 0)
        patch.setattr(segments, "BLOCK_ENTRIES", entries)
        blocks = [block for _, block in case.segment.blocks(Meter())]
        assert not sparse or all(block.nnz <= entries or block.shape[0] == 1 for block in blocks)
        assert_allclose(normal_product(meter, *common, V), matrix @ V, **TOLERANCE)
        assert_allclose(normal_moments(Meter(), *common, None), moments, **TOLERANCE)
        assert_allclose(normal_moments(Meter(), *common, coef), moments - matrix @ coef, **TOLERANCE)
        raw, weight = case.phi[here], case.own_w[here]
        assert_allclose(weighted_sums(Meter(), *common[:2], None)[:, 0], weight @ raw, **TOLERANCE)
        assert_allclose(weighted_squares(Meter(), *common[:2], None)[:, 0], weight @ raw**2, **TOLERANCE)
        assert_allclose(feature_sums(Meter(), *common[:2]), weight @ raw, **TOLERANCE)
        for grid in (TileGrid(case.p, case.p, case.p), TileGrid(case.p, 2, 2)):
            tiles, found = normal_part(Meter(), *common, grid)
            assert_allclose(whole(SummedTiles((tiles,)), grid), matrix, **TOLERANCE)
            assert_allclose(found, moments, **TOLERANCE)
        # Errors of training, in memory: rows of other segments are left as they are.
        for means in (None, np.array([0.5, -2.0])):
            segment, shifted = replace(case.segment, means=means), y - (0.0 if means is None else means)
            errors, residuals = np.full_like(case.y, 7.0), np.full_like(case.y, 7.0)
            training_errors(Meter(), case.map, segment, centre, errors, coef)
            gradient = primal_residual(Meter(), case.map, segment, centre, coef, residuals)
            expected = np.full_like(case.y, 7.0)
            expected[here] = shifted - phi @ coef
            assert_allclose(errors, expected, **TOLERANCE)
            assert_allclose(residuals, expected, **TOLERANCE)
            assert_allclose(gradient, phi.T @ (w[:, None] * expected[here]), **TOLERANCE)
    assert (meter.bytes_read > 0) == stored
    assert_array_equal(V, given_)
    assert_array_equal(case.y, before, err_msg="targets are the caller's")
    assert_array_equal(case.X, Case(which, sparse, weighted).X, err_msg="and so are the rows")


@given(rows=ranges, columns=ranges, on_diagonal=st.booleans(), sparse=st.booleans(), block=st.integers(1, N))
def test_any_block_of_the_normal_matrix_is_added_to_what_is_there(rows, columns, on_diagonal, sparse, block):
    case = Case("polynomial", sparse, True, slice(3, 25), block)
    rows, columns = (slice(s.start % case.p, max(s.stop % case.p, s.start % case.p + 1)) for s in (rows, columns))
    columns = rows if on_diagonal else slice(0, columns.stop)
    centre = case.phi.mean(axis=0)
    total, sums = naive_normal((case.phi - centre)[3:25], case.own_w[3:25], case.y[3:25])
    matrix = np.full((rows.stop - rows.start, columns.stop - columns.start), 0.5)
    moments = np.full((len(matrix), 2), 0.5)
    blocks = [(matrix, slice(0, len(matrix)), slice(0, matrix.shape[1]))]
    accumulate(Meter(), case.map, case.segment, centre, blocks, moments, rows, columns)
    lower = np.tri(*matrix.shape, dtype=bool) | (rows != columns)
    assert_allclose(matrix[lower], (total[rows, columns] + 0.5)[lower], **TOLERANCE)
    assert (matrix[~lower] == 0.5).all()
    assert_allclose(moments, sums[rows] + 0.5, **TOLERANCE)


@pytest.mark.parametrize(("strip", "block"), [(1, 5), (4, 1), (4, 5), (4, 8), (50, 5), (50, 50)])
def test_residuals_are_written_in_chunks_that_neither_strips_nor_rows_begin_or_end_with(
    tmp_path, monkeypatch, strip, block
):
    monkeypatch.setattr(segments, "STRIP_ROWS", strip)
    monkeypatch.setattr(segments, "STRIP_BYTES", 0)
    case, by_rows = Case("polynomial", False, True, folder=tmp_path), TileGrid(N, block, block)
    coef, means, gradient = random(case.p, 3), np.array([0.5, -2.0]), 0.0
    targets, weights = vectors(tmp_path, by_rows, case.y), vectors(tmp_path, by_rows, case.w)
    found, middle = empty_vectors(tmp_path, by_rows, 2), N // 2 // block * block
    for a, b in ((0, middle), (middle, N)):
        if a < b:
            segment = Segment(case.segment.rows, a, b, block, targets, weights, means)
            gradient = gradient + primal_residual(Meter(), case.map, segment, None, coef, found)
    y = np.column_stack([case.y - means, np.zeros(N)])  # a column more than there are targets has targets of 0
    assert_allclose(found.load(), (y - case.phi @ coef)[:, :2], **TOLERANCE)
    assert_allclose(gradient, case.phi.T @ (case.w * (y - case.phi @ coef)), **TOLERANCE)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "float32", "bool"])
@pytest.mark.parametrize("sparse", [False, True])
def test_numbers_of_other_types_are_summed_in_float64(sparse, dtype):
    """Counts in small integers: their squares do not fit in the type."""
    X = (np.abs(60 * random(N, D)) % 120).astype(dtype)
    segment = Segment(as_rows(sp.csr_array(X) if sparse else X), 0, N, 6, np.ones((N, 1)))
    exact, V, coef = X.astype(float), random(D, 2), 0.01 * random(D, 3)
    assert_allclose(weighted_squares(Meter(), IdentityMap(), segment, None)[:, 0], (exact**2).sum(axis=0), rtol=1e-13)
    assert_allclose(weighted_sums(Meter(), IdentityMap(), segment, None)[:, 0], exact.sum(axis=0), rtol=1e-13)
    assert_allclose(normal_product(Meter(), IdentityMap(), segment, None, V), exact.T @ (exact @ V), rtol=1e-9)
    for curvature in ("matrix", "diagonal"):
        passes = Passes(IdentityMap(), Softmax(3), D, False, curvature)
        found, expected = (
            likelihood_pass(Meter(), passes, Segment(as_rows(rows), 0, N, 6, np.ones((N, 1))), coef)
            for rows in (sp.csr_array(X) if sparse else X, exact)
        )
        assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_rows_with_many_features_stay_sparse():
    """A million columns: nothing of rows × columns is formed."""
    n, d = 50, 1_000_000
    X = sp.random_array((n, d), density=1e-5, format="csr", rng=np.random.default_rng(0))
    segment, V = Segment(MemoryRows(X), 0, n, 20, np.ones((n, 1)), np.ones((n, 1))), np.ones((d, 1))

    def work():
        normal_product(Meter(), IdentityMap(), segment, np.zeros(d), V)
        weighted_sums(Meter(), IdentityMap(), segment, None)
        weighted_squares(Meter(), IdentityMap(), segment, None)

    assert traced_peak(work) < 8 * 8 * d < 8 * n * d / 5


def test_the_first_bad_value_is_named_where_it_is_read():
    case = Case("polynomial", False, False)
    case.X[17, 2] = np.nan
    passes = Passes(case.map, Bernoulli(1), D, True, "matrix")
    for work in (
        lambda: normal_part(Meter(), case.map, case.segment, None, TileGrid(case.p, case.p, case.p)),
        lambda: feature_sums(Meter(), case.map, case.segment),
        lambda: likelihood_pass(Meter(), passes, case.segment, np.zeros((passes.dimension, 1))),
    ):
        with pytest.raises(InputError, match=r"X contains NaN.*row 17, column 2"):
            work()


def parts_of(folder, grid, *, weighted=True, centred=True):
    """Tasks of the normal equations of two segments, and what they sum up to."""
    case, by_rows = Case("polynomial", False, weighted), TileGrid(N, 4, 4)
    centre = np.average(case.phi, axis=0, weights=case.own_w) if centred else None
    expected = naive_normal(case.phi - (0.0 if centre is None else centre), case.own_w, case.y)
    targets, weights = vectors(folder, by_rows, case.y), case.w if case.w is None else vectors(folder, by_rows, case.w)
    return *expected, NormalParts(
        segments=tuple(Segment(RowsElsewhere(case.X), a, b, 4, targets, weights) for a, b in ((0, 11), (11, N))),
        matrices=tuple(empty_tiles(folder, grid) for _ in range(2)),
        moments=tuple(empty_vectors(folder, grid, 2) for _ in range(2)),
        centre=None if centre is None else vectors(folder, grid, centre[:, None]),
    )


def files(parts):
    return [files_of(m.array) for m in parts.matrices] + [files_of(m) for m in parts.moments]


@pytest.mark.parametrize(
    ("grid", "weighted", "centred"),
    [(TileGrid(10, 4, 2), True, True), (TileGrid(10, 10, 5), False, True), (TileGrid(10, 3, 3), True, False),
     (TileGrid(10, 20, 5), False, False)],
    ids=str,
)  # fmt: skip
def test_the_normal_equations_in_tiles_resume_from_what_exists(tmp_path, grid, weighted, centred):
    matrix, moments, parts = parts_of(tmp_path, grid, weighted=weighted, centred=centred)
    tasks = normal_tasks(MAPS["polynomial"], parts)
    record = run(tasks)
    assert sum(t.flops for t in tasks) >= N * 10 * 10
    assert_allclose(whole(SummedTiles(parts.matrices), grid), matrix, **TOLERANCE)
    assert_allclose(sum(m.load() for m in parts.moments), moments, **TOLERANCE)
    before = files(parts)
    assert record.bytes_written == sum(len(raw) for part in before for raw in part.values())
    assert record.bytes_read == len(list(grid.lower())) * 8 * N * D, "X is read once for every tile"
    assert normal_tasks(MAPS["polynomial"], parts) == []
    last = grid.n_tiles - 1
    remove_chunks(parts.matrices[0].array, [(last, 0)])
    remove_chunks(parts.moments[1], [(last, 0)])
    tasks = normal_tasks(MAPS["polynomial"], parts)
    assert {t.key for t in tasks} == {f"normal-0-{last}-0", f"normal-1-{last}-{last}"}
    run(tasks)
    assert files(parts) == before


def written_out(like, phi, coef, codes, weights):
    """Value, gradient and Σᵢ Wᵢ ⊗ φᵢ φᵢᵀ of each system, a sample after the other, features of a class together."""
    (n, p), m, s = phi.shape, like.n_columns, like.n_systems
    scores, total = phi @ coef, np.zeros((s, p * m // s, p * m // s))
    for i in range(n):
        outer, v = np.outer(phi[i], phi[i]), weights[i]
        if isinstance(like, Softmax):
            q = naive_probabilities(scores[i : i + 1])[0]
            total[0] += np.kron(v * (np.diag(q) - np.outer(q, q)), outer)
        else:
            for k, q in enumerate(1 / (1 + np.exp(-scores[i]))):
                total[k] += v * q * (1 - q) * outer
    return like.values(scores, codes, weights), phi.T @ like.gradient(scores, codes, weights), total


@every_pair(
    which=list(MAPS),
    loss=list(LIKELIHOODS),
    sparse=[False, True],
    weighted=[False, True],
    intercept=[False, True],
    stored=[False, True],
)
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
    p, m, s = phi.shape[1], like.n_columns, like.n_systems
    coef, V = 0.3 * random(p, m, seed=2), random(p, m, seed=3)
    before = coef.copy()
    values, gradient, matrices = written_out(like, phi[here], coef, codes[here], case.own_w[here])
    diagonal = np.concatenate([M.diagonal() for M in matrices]).reshape(m, p).T
    meter = Meter()
    for curvature in ("matrix", "diagonal"):
        passes = Passes(case.map, like, D, intercept, curvature)
        assert passes.dimension == p
        packed = likelihood_pass(meter, passes, segment, coef)
        assert packed.shape == (sum(passes.pack_sizes()),)
        found_values, found_gradient, found = passes.unpack(packed)
        assert_allclose(found_values, values, **TOLERANCE)
        assert_allclose(found_gradient, gradient, **TOLERANCE)
        lower = np.tri(matrices.shape[1], dtype=bool) if curvature == "matrix" else np.ones((p, m), bool)
        expected = matrices if curvature == "matrix" else diagonal
        assert found.shape == expected.shape
        assert_allclose(found[..., lower], expected[..., lower], **TOLERANCE)
    product = curvature_product(Meter(), passes, segment, (coef, V))
    flat = [M @ v for M, v in zip(matrices, V.T.reshape(s, -1), strict=True)]
    assert_allclose(product, np.concatenate(flat).reshape(m, p).T, **TOLERANCE)
    assert_array_equal(coef, before)
    assert (meter.bytes_read > 0) == stored


@pytest.mark.parametrize("curvature", ["matrix", "diagonal"])
@pytest.mark.parametrize("loss", LIKELIHOODS)
def test_scores_of_any_size_have_finite_sums(curvature, loss):
    case, like = Case("identity", False, True), LIKELIHOODS[loss]
    codes = np.random.default_rng(1).integers(0, max(like.n_columns, 2), (N, 1)).astype(float)
    segment, passes = replace(case.segment, targets=codes), Passes(case.map, like, D, True, curvature)
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        found = likelihood_pass(Meter(), passes, segment, 1e3 * random(D + 1, like.n_columns))
    assert np.isfinite(found).all()
