"""The reference about which features are summed: near their mean, whatever the rows and weights are."""

import numpy as np
import pytest
import scipy.sparse as sp

from dkrr.data import MemoryRows, as_rows, write_rows
from dkrr.data.rows import dense
from dkrr.errors import InputError
from dkrr.fitting.data import TrainingData
from dkrr.fitting.reference import SAMPLE_ROWS, STRIPS, reference_of
from dkrr.kernels import Linear
from dkrr.kernels.maps import IdentityMap
from tests.stores import place

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
    "weights that decay": (PLAIN, np.exp(-np.arange(N) / 10.0)),
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
def test_digits_that_subtracting_the_mean_loses_are_few(case, container, tmp_path):
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


def test_a_bad_row_of_the_sample_is_refused_with_the_first_one_of_all():
    X = PLAIN.copy()
    X[:, 1] = np.nan
    X[:3] = 0.0
    with pytest.raises(InputError, match="row 3, column 1"):
        reference_of(data_of(as_rows(X), None), dense)
