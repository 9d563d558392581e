"""The spectrum of a sample against that of all rows."""

import numpy as np
import pytest

from dkrr.kernels import RBF, Laplacian
from dkrr.linalg.spectrum import SAMPLE, estimated_spectrum, power_law
from dkrr.rows import MemoryRows, as_rows
from dkrr.tiles.arrays import create_array


@pytest.mark.parametrize("kernel", [RBF(gamma=1 / 12), Laplacian(gamma=1 / 12)], ids=["rbf", "laplacian"])
def test_as_of_all_rows_within_a_factor_of_two(kernel):
    n = 3000
    X = np.random.default_rng(0).standard_normal((n, 12)) / (1 + np.arange(12)) ** 0.5
    K = kernel(X)
    K -= K.mean(axis=0)
    K -= K.mean(axis=1)[:, None]
    whole = np.linalg.eigvalsh(K)[::-1] / n
    largest, thousandth, decay = estimated_spectrum(kernel, MemoryRows(X))
    assert largest == pytest.approx(whole[0], rel=0.2)
    for k in (100, 250, 500):
        assert 0.5 < thousandth * (k / 1000) ** -decay / whole[k - 1] < 2.0


def test_a_power_law_is_found():
    k = np.arange(1, 1025)
    largest, thousandth, decay = power_law(0.3 * k**-1.5)
    assert (largest, decay) == (pytest.approx(0.3), pytest.approx(1.5))
    assert thousandth == pytest.approx(0.3 * 1000**-1.5)
    assert power_law(np.zeros(1024))[0] == 0.0, "a constant kernel"


def test_rows_in_a_store(tmp_path):
    X = np.random.default_rng(0).standard_normal((2 * SAMPLE + 17, 3))
    stored = create_array(str(tmp_path / "X.zarr"), X.shape, X.dtype)
    stored[:] = X
    found = [estimated_spectrum(RBF(gamma=0.5), rows) for rows in (MemoryRows(X), as_rows(stored))]
    assert found[0] == pytest.approx(found[1], rel=0.35)


def test_nan_is_left_to_the_check_of_all_rows():
    X = np.zeros((SAMPLE, 2))
    X[3, 1] = np.nan
    assert estimated_spectrum(RBF(gamma=0.5), MemoryRows(X)) is None


def test_many_directions_that_no_sample_resolves():
    """The squares and products of 60 columns are 1,830 directions, which look larger in a sample of fewer rows."""
    X, kernel = np.random.default_rng(0).standard_normal((4096, 60)), RBF(gamma=1 / 60)
    K = kernel(X)
    K -= K.mean(axis=0)
    K -= K.mean(axis=1)[:, None]
    whole = np.linalg.eigvalsh(K)[::-1] / len(X)
    _, thousandth, decay = estimated_spectrum(kernel, MemoryRows(X))
    assert 0.4 < thousandth * 0.5**-decay / whole[499] < 2.5
