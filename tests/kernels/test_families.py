"""Several kernels at once are what each of them is alone."""

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.kernels import RBF, Chi2, Columns, Cosine, Laplacian, Linear, Matern, Precomputed, weighted_sums
from dkrr.kernels.families import KernelFamily, families

BANDS = [Columns(RBF(0.5), [0, 1]), Columns(RBF(), [2, 3, 4]), Linear(), Columns(Laplacian(0.2), [0, 1])]
FAMILIES = {
    "RBF": [RBF(gamma) for gamma in (0.01, 0.3, 2.0, None)],
    "Laplacian": [Laplacian(gamma) for gamma in (2.0, 0.01, 0.3)],
    "sums": weighted_sums(BANDS, 8),
    "sums of γ": [RBF(0.1) + RBF(0.4), 2.0 * RBF(0.1) + Linear(), RBF(0.4) * Linear() + RBF(0.4), Linear()],
    "mixed": [RBF(0.1), Laplacian(0.3), RBF(0.2), Cosine(), Laplacian(0.1), Matern()],
    "one": [RBF(0.7)],
}


def collected(family, X, Y=None, **how):
    """Matrices from the pieces, NaN where none was."""
    found = np.full(
        (len(family.kernels), len(X if isinstance(X, np.ndarray) else X.toarray()), (X if Y is None else Y).shape[0]),
        np.nan,
    )
    for k, rows, columns, piece in family.pieces(X, Y, **how):
        assert np.isnan(found[k, rows, columns]).all()
        found[k, rows, columns] = piece
    return found


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("shape", [(1, 1), (37, 5), (5, 2100), (523, 130)])
def test_a_block(name, shape):
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((shape[0], 5)) + 3.0, rng.standard_normal((shape[1], 5)) + 3.0
    family = KernelFamily(tuple(FAMILIES[name]))
    for k, found in enumerate(collected(family, X, Y)):
        assert_allclose(found, family.kernels[k](X, Y), rtol=1e-12, atol=1e-13)
    for k, found in enumerate(collected(family, X, Y, dtype=np.float32)):
        assert_allclose(found, family.kernels[k](X, Y), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("n", [1, 256, 601])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_a_symmetric_block(name, n, is_sparse):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((n, 5))
    rows = sp.csr_array(X) if is_sparse else X
    family = KernelFamily(tuple(FAMILIES[name]))
    wanted = list(range(len(family.kernels)))[::2]
    found = collected(family, rows, wanted=wanted)
    for k, kernel in enumerate(family.kernels):
        lower = np.tril_indices(n)
        if k not in wanted:
            assert np.isnan(found[k]).all()
            continue
        assert_allclose(found[k][lower], kernel(rows)[lower], rtol=1e-12, atol=1e-13)
        corner = found[k][: min(n, 256), : min(n, 256)]
        assert_array_equal(corner, corner.T)
        assert_array_equal(corner.diagonal(), kernel.diagonal(rows)[: len(corner)])


def test_rows_far_from_each_other():
    """Where products lose digits entries come from differences, for the smallest γ as for the largest."""
    rng = np.random.default_rng(0)
    X = np.vstack([rng.standard_normal((40, 3)) + 1e6, rng.standard_normal((40, 3)) - 1e6, [[1e200, 0, 0]]])
    kernels = tuple(RBF(gamma) for gamma in (1e-12, 1e-3, 1.0, 50.0))
    for kernel, found in zip(kernels, collected(KernelFamily(kernels), X, X.copy()), strict=True):
        assert_allclose(found, kernel(X, X.copy()), rtol=1e-9, atol=1e-11)


def test_what_is_shared():
    sums = weighted_sums(BANDS, 6)
    assert families([RBF(0.1), Laplacian(0.1), RBF(), Linear(), Laplacian()], 5) == [[0, 2], [1, 4], [3]]
    assert families(sums, 5) == [[0, 1, 2, 3, 4, 5]]
    assert families([Chi2(1.0), Chi2(1.0) + Linear(), RBF() * Linear(), RBF(), 2.0 * Linear()], 5) == [
        [0, 1, 4],
        [2],
        [3],
    ]
    assert families([Columns(RBF(1.0), [0]), Columns(RBF(1.0), [1]), Columns(RBF(2.0), [1])], 5) == [[0], [1, 2]]
    assert families([Precomputed(), Precomputed()], 5) == [[0], [1]]


def test_costs():
    gammas = tuple(Laplacian(gamma) for gamma in (0.1, 0.2, 0.3, 0.4))
    assert 0.25 < KernelFamily(gammas).entry_factor(80, 50e9) < 0.35
    assert 0.4 < KernelFamily(tuple(RBF(k.gamma) for k in gammas)).entry_factor(80, 50e9) < 0.6
    assert KernelFamily((RBF(0.1), Linear())).entry_factor(80, 50e9) == 1.0
