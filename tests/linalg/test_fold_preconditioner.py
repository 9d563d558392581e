"""Preconditioners of training sets: the partial factor of each set itself."""

import uuid

import numpy as np
import pytest
from numpy.testing import assert_allclose

from dkrr.linalg import fold_preconditioner
from dkrr.linalg.fold_preconditioner import FoldLowRank, shared
from dkrr.linalg.low_rank import LOW_PRECISION_RATIO
from dkrr.linalg.pivoted_cholesky import PivotedCholesky
from dkrr.linalg.sources import MatrixColumns
from dkrr.linalg.training_sets import TrainingSetOperator, TrainingSets
from dkrr.rows import MemoryRows
from dkrr.runtime import SerialExecutor
from dkrr.solvers.conjugate_gradient import Iteration
from tests.linalg.systems import MatrixOperator, positive_definite

N = 41


def factor_of(A, rank, dtype=np.float64):
    found = PivotedCholesky(
        MatrixColumns(MemoryRows(A)), SerialExecutor(), f"test-{uuid.uuid4().hex}", 2, 999, dtype=dtype
    )
    found.grow(rank)
    return found


def sets_of(weighted=False, n=N):
    rng = np.random.default_rng(4)
    c = np.sqrt(rng.uniform(0.2, 3.0, n)) if weighted else np.ones(n)
    masks = np.stack([np.arange(n) % 3 != 0, np.arange(n) > 9, np.ones(n, bool), np.arange(n) < 4], axis=1)
    return TrainingSets(c[:, None] * masks, np.array([0, 1, 2, 3, 0, 1]))


def inverse_of(A, factor, c, t, rank):
    """(C F_f F_fᵀ C + t I)⁻¹ from the first pivots, those that a set leaves out being no pivots."""
    first = factor.index[:rank]
    pivots, low = first[c[first] > 0], np.zeros(A.shape)
    if len(pivots):
        low = A[:, pivots] @ np.linalg.solve(A[np.ix_(pivots, pivots)], A[pivots])
    return np.linalg.inv(c[:, None] * low * c + t * np.eye(len(A)))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rank", [0, 7, 25, N])
def test_the_partial_factor_of_each_set(weighted, rank, monkeypatch):
    monkeypatch.setattr(fold_preconditioner, "ENOUGH_LEFT", 0.0)
    A, sets, shift = positive_definite(N), sets_of(weighted), np.array([0.5, 50.0, 80.0, 90.0, 700.0, 600.0])
    factor = factor_of(A, rank)
    preconditioner = FoldLowRank(factor, sets, shift, n_threads=2)
    R = np.random.default_rng(1).standard_normal((N, 6)) * (sets.scale() > 0)
    found = preconditioner.apply(R, np.arange(6))
    assert preconditioner.rank == rank
    for j in range(6):
        c = sets.scale()[:, j]
        n_kept = np.count_nonzero(c[factor.index])
        t = max(shift[j], ((c**2) * factor.left).sum() / max(N - n_kept, 1))
        expected = inverse_of(A, factor, c, t, rank) @ R[:, j]
        assert_allclose(found[:, j], expected, rtol=1e-8, atol=1e-10)
    again = preconditioner.for_columns(TrainingSets(sets.scales, sets.of_column[:2]), shift[:2])
    assert_allclose(again.apply(R[:, :2], np.arange(2)), found[:, :2])


def test_the_first_pivots_suffice_for_large_shifts():
    A, sets = positive_definite(N), sets_of()
    factor, shift = factor_of(A, 35), np.array([1e-3, 1e2, 1e4])
    sets = TrainingSets(sets.scales, np.array([0, 0, 0]))
    preconditioner, c = FoldLowRank(factor, sets, shift), sets.scales[:, 0]
    R = np.random.default_rng(1).standard_normal((N, 3)) * c[:, None]
    found = preconditioner.apply(R, np.arange(3))
    ranks = []
    for j, t in enumerate(np.maximum(shift, (c**2 * factor.left).sum() / (N - np.count_nonzero(c[factor.index])))):
        by_rank = [inverse_of(A, factor, c, t, p) @ R[:, j] for p in range(36)]
        ranks += [p for p, expected in enumerate(by_rank) if np.allclose(expected, found[:, j], rtol=1e-8, atol=1e-14)][
            :1
        ]
    assert len(ranks) == 3 and ranks[0] == 35 > ranks[2], "each t has the factor of its first pivots"


def test_close_shifts_share_the_smallest():
    assert_allclose(shared(np.array([3.0, 1.0, 100.0, 4.0, 4.1, 20.0, 0.0])), [1.0, 1.0, 100.0, 1.0, 4.1, 20.0, 0.0])


def test_products_in_float32():
    A, sets, shift = positive_definite(N), sets_of(), np.full(6, 3.0)
    low = FoldLowRank(factor_of(A, 20, np.float32), sets, shift, mixed=True)
    high = FoldLowRank(factor_of(A, 20), sets, shift)
    R = np.random.default_rng(1).standard_normal((N, 6)) * (sets.scale() > 0)
    assert low.precision == "float32" and high.precision == "float64"
    assert_allclose(low.apply(R, np.arange(6)), high.apply(R, np.arange(6)), rtol=1e-3, atol=1e-4)
    assert low.raise_shift_if_inexact(R, np.arange(6)) and low.precision == "float64"
    assert not low.raise_shift_if_inexact(R, np.arange(6))


def test_products_in_float32_raise_small_shifts():
    """A shift may be lost beside the largest eigenvalue: up to twice as large a one is taken, else float64."""
    A, sets = positive_definite(N), sets_of()
    factor = factor_of(A, N, np.float32)
    largest = float(np.linalg.eigvalsh(A).max())
    for part, precision in ((0.7, "float32"), (0.3, "float64")):
        shift = np.full(6, part * largest / LOW_PRECISION_RATIO)
        assert FoldLowRank(factor, sets, shift, mixed=True).precision == precision


def test_iterations_with_the_pivots_of_a_set():
    """Pivots that are left out would cost more iterations than there are eigenvalues left."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 4))
    A = np.exp(-0.3 * np.abs(X[:, None] - X).sum(axis=2))
    masks = np.stack([np.arange(300) % 5 != k for k in range(5)], axis=1).astype(float)
    sets = TrainingSets(masks, np.arange(5))
    factor, operator = factor_of(A, 100), TrainingSetOperator(MatrixOperator(A), sets)
    right_sides = rng.standard_normal((300, 1)) * masks

    def iterations(preconditioner):
        shift = np.full((1, 5), 1e-3)
        return Iteration(operator, shift, right_sides, preconditioner, tol=1e-3, max_iter=999).run().iterations

    own = FoldLowRank(factor, sets, np.full(5, 1e-3))
    assert iterations(own) < 60


def test_predictions_from_the_last_product():
    A, sets = positive_definite(N), sets_of()
    operator = TrainingSetOperator(MatrixOperator(A), sets)
    X = np.random.default_rng(2).standard_normal((N, 6))
    assert_allclose(operator.multiply(X), sets.scale() * (A @ (sets.scale() * X)))
    assert_allclose(operator.unmasked(X), A @ (sets.scale() * X))
    changed = X.copy()
    changed[:, 3] += 1.0
    assert_allclose(operator.unmasked(changed), A @ (sets.scale() * changed))
    operator.multiply(X[:, :2], "float32", np.arange(2))
    assert_allclose(operator.unmasked(X), A @ (sets.scale() * X))
