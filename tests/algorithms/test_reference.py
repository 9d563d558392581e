"""Sums of features about a reference near their mean, and the fits that are made of them, in one pass over the rows."""

import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from flint import arb, arb_mat

from dkrr import KernelRidge
from dkrr.data import MemoryRows, as_rows, write_rows
from dkrr.data.rows import dense
from dkrr.errors import InputError
from dkrr.features import CallableMap
from dkrr.fitting import reference
from dkrr.fitting.data import TrainingData
from dkrr.fitting.reference import SAMPLE_ROWS, STRIPS, reference_of
from dkrr.kernels import Linear
from dkrr.kernels.maps import IdentityMap
from dkrr.solvers import Cholesky
from tests import precise
from tests.stores import place
from tests.systems import traced_peak

N = 5000
RNG = np.random.default_rng(0)
PLAIN = RNG.standard_normal((N, 3))
ONE_HEAVY = np.where(np.arange(N) == 1234, 1e14, 1.0)
AT_ONE_PLACE = np.zeros((N, 1))
AT_ONE_PLACE[N // 2 - 200 : N // 2 + 200] = 1e6  # where a sample of one strip lies
CASES = {
    "offset": (PLAIN + 1e7, None),
    "one weight of 1e14": (PLAIN, ONE_HEAVY),
    "a heavy row far away": (PLAIN + 1e5 * (ONE_HEAVY[:, None] > 1), np.minimum(ONE_HEAVY, 1e10)),
    "weights that decay": (PLAIN, np.exp(-np.arange(N) / 200.0)),
    "weights over many orders": (PLAIN, np.exp(8.0 * RNG.standard_normal(N))),
    "two rows count": (PLAIN, (np.arange(N) > N - 3).astype(float)),
    "drift": (PLAIN + np.arange(N)[:, None], None),
    "groups in order": ((np.arange(N)[:, None] // 500 == np.arange(10)).astype(float), None),
    "far away at one place": (PLAIN + AT_ONE_PLACE, None),
    "few rows": (PLAIN[:7] + 1e7, None),
}


def data_of(rows, weights):
    n = rows.shape[0]
    common = {"kernel": Linear(), "feature_map": IdentityMap(), "fit_intercept": True, "alphas": np.ones(1)}
    return TrainingData(rows=rows, weights=weights, targets=np.zeros((n, 1)), **common)


@pytest.mark.parametrize("container", ["memory", "sparse", "chunks", "one chunk"])
@pytest.mark.parametrize("case", CASES)
def test_digits_that_subtracting_the_mean_loses_are_few(case, container, tmp_path, monkeypatch):
    monkeypatch.setattr(reference, "BYTES_READ", 0)  # of one chunk one strip is read
    X, w = CASES[case]
    rows = MemoryRows(sp.csr_array(X) if container == "sparse" else X)
    if "chunk" in container:
        rows = write_rows(rows, place(tmp_path / "rows"), 16 if container == "chunks" else N)
    found = reference_of(data_of(rows, w), dense)
    X, w = X.astype(np.longdouble), np.ones(len(X), np.longdouble) if w is None else w.astype(np.longdouble)
    mean = w @ X / w.sum()
    ratio = w.sum() * (found - mean) ** 2 / (w @ (X - mean) ** 2)
    assert (ratio < N / SAMPLE_ROWS).all()


def test_constant_features_are_their_own_reference():
    X = np.column_stack([np.full(N, 0.1), PLAIN])
    assert reference_of(data_of(MemoryRows(X), RNG.random(N)), dense)[0] == 0.1


def test_of_rows_in_chunks_few_are_read(tmp_path):
    rows, read = write_rows(MemoryRows(PLAIN), place(tmp_path / "rows"), 16), []
    whole = type(rows).read
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            type(rows), "read", lambda self, a, b, *columns: read.append(b - a) or whole(self, a, b, *columns)
        )
        reference_of(data_of(rows, None), dense)
    assert sum(read) <= SAMPLE_ROWS + 2 * 16 * STRIPS


def test_the_sample_takes_the_memory_of_one_chunk_at_a_time(tmp_path):
    n, d = 16_000, 64
    array = zarr.create_array(tmp_path / "x.zarr", shape=(n, d), chunks=(2000, d), dtype="float64")  # compressed
    array[:] = np.random.default_rng(0).standard_normal((n, d))
    rows = as_rows(tmp_path / "x.zarr")
    peak = traced_peak(lambda: reference_of(data_of(rows, None), dense))
    assert peak < 6 * 2000 * d * 8, "and not eight chunks, compressed and not"


def test_a_bad_row_of_the_sample_is_refused_with_the_first_one_of_all():
    X = PLAIN.copy()
    X[:, 1] = np.nan
    X[:3] = 0.0
    with pytest.raises(InputError, match="row 3, column 1"):
        reference_of(data_of(as_rows(X), None), dense)


# Fits

ALPHA = 1e-3


def exact_fit(X, w, y):
    """Coefficients of the columns of X, diag(A + λI), A + λI and Σ w (y − ȳ)², in 180 digits, where nothing cancels."""
    d = X.shape[1]
    with precise.precision():
        columns = precise.matrix(np.column_stack([X, np.ones(len(X)), y]))
        scaled = arb_mat([[arb(u) * v for v in row] for u, row in zip(w.tolist(), columns.table(), strict=True)])
        sums = (scaled.transpose() * columns).table()
        means = [v / sums[d][d] for v in sums[d]]
        left = [[sums[i][j] - means[i] * sums[d][j] for j in (*range(d), d + 1)] for i in (*range(d), d + 1)]
        for i in range(d):
            left[i][i] += arb(ALPHA)
        A, b = arb_mat([row[:d] for row in left[:d]]), arb_mat([row[d:] for row in left[:d]])
        return precise.floats(A.solve(b))[:, 0], precise.floats(A), float(left[d][d].mid())


@pytest.mark.parametrize("where", ["memory", "tiles", "sparse"])
@pytest.mark.parametrize("case", CASES)
def test_coefficients_are_as_right_as_their_system_allows(case, where, tmp_path):
    X, w = CASES[case]
    y = (X - X.mean(axis=0)) @ np.arange(1.0, 1.0 + X.shape[1]) + np.sin(np.arange(len(X)))
    store = {"store": str(tmp_path / "run.zarr"), "tile": 2} if where == "tiles" else {}
    # Of a function no origin is subtracted before.
    settings = {"kernel": CallableMap(dense, X.shape[1]), "fit_intercept": True, "form": "primal", "solver": Cholesky()}
    model = KernelRidge(ALPHA, **settings, **store).fit(sp.csr_array(X) if where == "sparse" else X, y, sample_weight=w)
    coef, A, square = exact_fit(X, np.ones(len(X)) if w is None else w, y)
    D = np.sqrt(A.diagonal())
    # Rounding of sums grows as the root of the number of rows if it is as often positive as negative.
    rounding = np.finfo(float).eps * np.sqrt(len(X))
    bound = rounding * np.linalg.cond(A / D / D[:, None]) * np.sqrt(square)
    assert np.linalg.norm(D * (model.coef_ - coef)) < bound


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_an_intercept_takes_no_further_pass_over_the_rows(sparse, weighted, monkeypatch):
    read, whole = [0], MemoryRows.read

    def counted(self, start, stop, *columns):
        read[-1] += stop - start
        return whole(self, start, stop, *columns)

    monkeypatch.setattr(MemoryRows, "read", counted)
    X, weights = sp.csr_array(PLAIN) if sparse else PLAIN, 1.0 + RNG.random(N) if weighted else None
    for fit_intercept in (False, True):
        KernelRidge(fit_intercept=fit_intercept, form="primal", kernel="poly", degree=2, solver=Cholesky()).fit(
            X, PLAIN[:, 0], sample_weight=weights
        )
        read.append(0)
    assert 2 * N <= read[1] <= read[0] + SAMPLE_ROWS
