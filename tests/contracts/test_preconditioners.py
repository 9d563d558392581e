"""What holds of every preconditioner: a row of MAKERS joins one to all of these tests."""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from dkrr.fitting.dual_ridge import CompleteFactor
from dkrr.linalg import fold_preconditioner
from dkrr.linalg.curvature import Constrained, Curvature, ScaledFactors, factor_scale
from dkrr.linalg.fold_preconditioner import FoldLowRank
from dkrr.linalg.likelihood import Bernoulli, Classwise, Softmax
from dkrr.linalg.preconditioners import Diagonal, Fixed, Identity, LazyPreconditioner, LowRank
from dkrr.linalg.training_sets import TrainingSets
from tests import systems
from tests.systems import partial_factor, positive_definite, random, rows_of

one_blas_thread = systems.one_blas_thread

N, M, SHIFT = 29, 3, 0.3
A = positive_definite(N)
SHIFTS = {
    "one number": np.full((1, M), SHIFT),
    "a number for each": np.array([[0.3, 2.0, 0.1]]),
    "a vector": np.random.default_rng(1).uniform(0.1, 2.0, (N, 1)),
}
SCALES = {
    "no scale": None,
    "a scale": np.random.default_rng(3).uniform(0.5, 2.0, N),
    "a scale for each": np.random.default_rng(4).uniform(0.5, 2.0, (N, M)),
}


def column(x, k):
    """Column k of what may be the same for all, as a vector (n,)."""
    return np.broadcast_to(x[:, 0] if x.shape[1] == 1 else x[:, k], N)


def low_rank(which_shift, which_scale, rank=7, dtype=np.float64, matrix=A):
    """(C F Fᵀ C + diag(t))⁻¹, t as the preconditioner says."""
    scale, F = SCALES[which_scale], partial_factor(matrix, rank, dtype=dtype)
    found = LowRank(F, SHIFTS[which_shift], scale)

    def inverse(k):
        c = np.ones(N) if scale is None else scale if scale.ndim == 1 else scale[:, k]
        t = np.broadcast_to(found.shifts(np.array([k]))[:, 0], N)
        assert (t >= column(SHIFTS[which_shift], k)).all()
        return np.linalg.inv(c[:, None] * (rows_of(F) @ rows_of(F).T) * c + np.diag(t))

    return found, inverse


def folds(rank, weighted, n_threads=1):
    """The rows of a partial factor that each training set has."""
    c = np.sqrt(np.random.default_rng(4).uniform(0.2, 3.0, N)) if weighted else np.ones(N)
    masks = np.stack([np.arange(N) % 3 != 0, np.arange(N) > 9, np.arange(N) < 4], axis=1)
    F, shift = partial_factor(A, rank), np.array([0.5, 50.0, 700.0])
    sets, rows = TrainingSets(c[:, None] * masks, np.arange(3)), rows_of(F)

    def inverse(k):
        own = sets.scale()[:, k]
        n_kept = np.count_nonzero(own[F.index])
        t = max(shift[k], (own**2 * F.residual_diagonal).sum() / max(N - n_kept, 1))
        P = np.diag((own > 0).astype(float))  # residuals are zero where a set has no rows
        return P @ np.linalg.inv(own[:, None] * (rows @ rows.T) * own + t * np.eye(N)) @ P

    return FoldLowRank(F, sets, shift, n_threads=n_threads), inverse


def scores_of(state, m):
    """Scores and weights: usual ones, weights of zero, or next to no curvature."""
    rng = np.random.default_rng(2)
    scores, weights = 2 * rng.standard_normal((N, m)), None
    if state == "weighted":
        weights = rng.uniform(0.1, 3.0, N)
        weights[[0, 7, 22]] = 0.0
    if state == "far":
        scores = np.where(rng.random((N, m)) < 0.4, 800.0, 15.0) * np.sign(scores)
    return scores, weights


def newton(likelihood, state, by, centred):
    """Of a Newton step: by columns, within the classes of a softmax, and on what an intercept leaves."""
    root = likelihood.root(*scores_of(state, likelihood.n_columns))
    m, coupled, c = likelihood.n_columns, isinstance(likelihood, Softmax), root.scale
    if by == "factors":
        c = factor_scale(c)
        solve = [lambda b, k=k: np.linalg.solve(A + np.diag(SHIFT / c[:, k] ** 2), b) for k in range(m)]
        base = ScaledFactors(solve, c)
        parts = [np.linalg.inv(c[:, k, None] * A * c[:, k] + SHIFT * np.eye(N)) for k in range(m)]
    else:
        F = partial_factor(A, 7)
        base = LowRank(F, np.array([[SHIFT]]), c)
        t = [np.broadcast_to(base.shifts(np.array([k]))[:, 0], N) for k in range(m)]
        low = rows_of(F) @ rows_of(F).T
        parts = [np.linalg.inv(c[:, k, None] * low * c[:, k] + np.diag(t[k])) for k in range(m)]
    weigh, ones = systems.dense_roots(root.scale, root.unit if coupled else None)
    if coupled:
        (P,), _ = systems.dense_roots(np.ones_like(root.scale), root.unit)
        whole = np.zeros((N * m, N * m))
        for k in range(m):
            whole[k::m, k::m] = parts[k]
        parts, base = [P @ whole @ P], Classwise(base, root)
    if centred:
        base = Constrained(base, Curvature.of_root(root, centred=True))

    def inverse(k):
        B, H = parts[k], weigh[k].T @ ones
        if not centred:
            return B
        B = B - B @ H @ np.linalg.pinv(H.T @ B @ H, rcond=1e-12, hermitian=True) @ H.T @ B
        P = systems.orthogonal_to(H)
        return P @ B @ P

    return base, inverse


def diagonal():
    a = np.where(np.isin(np.arange(N), [0, 5]), 0.0, np.abs(random(N, 1)[:, 0]))[:, None]
    shift = np.array([[0.3, 2.0, 0.0]])
    total = np.where(a + shift > 0, a + shift, 1.0)  # 0 + 0 counts as 1
    return Diagonal(a, shift), lambda k: np.diag(1 / total[:, k])


def around(wrap):
    base, inverse = low_rank("a number for each", "no scale")
    return wrap(base), inverse


def complete():
    factor = SimpleNamespace(solve=lambda R: np.linalg.solve(A, R))
    return CompleteFactor(factor), lambda k: np.linalg.inv(A)


MAKERS = {
    "identity": lambda: (Identity(), lambda k: np.eye(N)),
    "diagonal": diagonal,
    "deferred": lambda: around(lambda base: LazyPreconditioner(lambda: base, captures_constant=True)),
    "fixed": lambda: around(Fixed),
    "complete factor": complete,
    **{
        f"low rank, {shift}, {scale}": lambda shift=shift, scale=scale: low_rank(shift, scale)
        for shift in SHIFTS
        for scale in SCALES
        if (shift, scale) != ("a vector", "a scale for each")
    },
    "low rank in float32": lambda: low_rank("a vector", "a scale", dtype=np.float32),
    "low rank, complete": lambda: low_rank("a number for each", "a scale", rank=N),
    "low rank, empty": lambda: low_rank("a vector", "no scale", matrix=np.zeros((N, N))),
    **{f"folds, rank {rank}": lambda rank=rank: folds(rank, rank == 20, 1 + rank % 2) for rank in (0, 7, 20, N)},
    **{
        f"newton, {name}, {state}, {by}, {'centred' if centred else 'plain'}": (
            lambda like=like, state=state, by=by, centred=centred: newton(like, state, by, centred)
        )
        for name, like in (("binary", Bernoulli(1)), ("one vs rest", Bernoulli(M)), ("softmax", Softmax(M)))
        for state, by, centred in (("usual", "factors", False), ("weighted", "low rank", True),
                                   ("far", "factors", True), ("far", "low rank", False))
    },
}  # fmt: skip


@pytest.fixture(params=MAKERS)
def made(request, monkeypatch):
    monkeypatch.setattr(fold_preconditioner, "MAX_RESIDUAL_FRACTION", 0.0)  # no set may do with fewer pivots
    preconditioner, inverse = MAKERS[request.param]()
    n_systems = 1 if "softmax" in request.param or "binary" in request.param else M
    return preconditioner, [inverse(k) for k in range(n_systems)]


def test_it_is_the_inverse_of_the_stated_matrix_for_any_right_hand_sides(made):
    preconditioner, inverses = made
    for k, inverse in enumerate(inverses):
        n, size = len(inverse), np.abs(inverse).max()
        support = np.diag((np.abs(inverse).sum(axis=0) > 0).astype(float))
        found = preconditioner.apply(support, np.full(n, k))
        found = support @ found  # rows that a set leaves out are not looked at
        assert_allclose(found, inverse, rtol=1e-7, atol=1e-8 * size)
        assert_allclose(found, found.T, atol=1e-10 * size)
        assert np.linalg.eigvalsh((found + found.T) / 2)[0] >= -1e-11 * size
    m = len(inverses)
    for columns in ([m - 1], [m - 1, 0], [0, m - 1, 0, 0], list(range(m))):
        R = np.column_stack([inverses[k] @ random(n, 1, seed=i) for i, k in enumerate(columns)])  # within its range
        R.flags.writeable = False
        found = preconditioner.apply(R, np.array(columns))
        expected = np.column_stack([inverses[k] @ R[:, i] for i, k in enumerate(columns)])
        for i, k in enumerate(columns):
            inside = np.abs(inverses[k]).sum(axis=0) > 0
            assert_allclose(found[inside, i], expected[inside, i], rtol=1e-6, atol=1e-7 * np.abs(expected).max())
        assert not np.shares_memory(found, R), "the caller works in place"


def test_its_extremes_are_near_those_of_its_inverse_and_it_grows_as_far_as_it_says(made):
    preconditioner, inverses = made
    low, high = preconditioner.extremes(np.arange(len(inverses)))
    assert low.shape == high.shape == (len(inverses),)
    for k, inverse in enumerate(inverses):
        values = np.linalg.eigvalsh(inverse)
        if np.isfinite(low[k]) and 0 < preconditioner.rank < N:
            assert 1 / values[-1] / 3 < low[k] < 3 / values[-1]
            assert 1 / values[0] / 3 < high[k] < 1.5 / values[0]
    preconditioner.apply(np.zeros((len(inverses[0]), 1)), np.zeros(1, np.intp))
    for _ in range(9):
        before, could = preconditioner.rank, preconditioner.can_grow
        grown = preconditioner.grow()
        assert preconditioner.rank > before if grown else preconditioner.rank == before
        assert could or not grown
    assert not preconditioner.can_grow
    assert isinstance(preconditioner.record.tasks, list)
