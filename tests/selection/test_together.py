"""Kernels whose tiles are formed together have the scores that each has alone."""

import threading

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from dkrr import KernelRidgeCV
from dkrr.errors import ConvergenceWarning
from dkrr.kernels import RBF, CallableKernel, Columns, Linear, weighted_sums, weights_of
from dkrr.solvers import ConjugateGradient, RPCholesky
from tests.pairs import every_pair

ALPHAS = np.geomspace(1e-2, 10.0, 4)
GAMMAS = [0.02, 0.1, 0.5]
BANDS = [Columns(RBF(0.3), [0]), Columns(RBF(0.2), [1, 2]), Linear()]
WAYS = {
    "RBF": {"gamma": GAMMAS},
    "Laplacian": {"kernel": "laplacian", "gamma": GAMMAS},
    "sums": {"kernel": weighted_sums(BANDS, 6)},
    "some alone": {"kernel": ["rbf", "laplacian"], "gamma": GAMMAS[:2]},
}


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((149, 3))
    y = np.sin(2 * X[:, :1]) + X[:, 1:2] * [1.0, -1.0] + 0.2 * rng.standard_normal((149, 2))
    return X, y, rng.uniform(0.5, 2.0, 149) * (np.arange(149) % 11 > 0)


def put_together(patch):
    """Plan all kernels in one run, although at this size one after another is faster."""
    patch.setattr("dkrr.planning.several_kernels.SURELY_FASTER", np.inf)
    patch.setattr("dkrr.planning.several_kernels.group_sizes", lambda count: [count] if count > 1 else [])


@pytest.fixture
def together(monkeypatch):
    put_together(monkeypatch)


def both(search, monkeypatch, *data, **more):
    """The search one by one, and together."""
    alone = clone(search).fit(*data, **more)
    with monkeypatch.context() as patch:
        put_together(patch)
        together = clone(search).fit(*data, **more)
    assert alone.selection_plan_.n_kernels == 1 < together.selection_plan_.n_kernels
    assert not [t for t in threading.enumerate() if t.name == "dkrr-turns"]
    return alone, together


@every_pair(
    way=list(WAYS), race=[False, True], settings=[{}, {"fit_intercept": True, "alpha_per_target": True}], ids=str
)
def test_scores_are_those_of_single_runs(rows, way, race, settings, monkeypatch):
    X, y, weights = rows
    search = KernelRidgeCV(ALPHAS, solver="cg", race=race, cv_tol=1e-6, cv=3, **WAYS[way], **settings)
    alone, together = both(search, monkeypatch, X, y, sample_weight=weights)
    a, b = alone.cv_results_, together.cv_results_
    assert_array_equal(a["params"], b["params"])
    # A race ends where scores are known to a bound, which the pivots of a preconditioner may move by an iteration.
    if not race:
        assert_allclose(a["mean_test_score"], b["mean_test_score"], rtol=1e-5)
    else:
        known = ~a["stopped"] & ~b["stopped"]
        assert known.sum() >= len(known) / 3
        assert_allclose(a["mean_test_score"][known], b["mean_test_score"][known], rtol=1e-5)
    assert str(alone.best_params_) == str(together.best_params_)
    assert_allclose(alone.predict(X), together.predict(X), atol=1e-5)


def test_every_kernel_has_its_own_race(rows, together):
    X, y, _ = rows
    search = KernelRidgeCV(np.geomspace(1e-8, 1, 9), gamma=[1e-3, 3.0], solver="cg").fit(X, y[:, 0])
    stopped = search.cv_results_["stopped"].reshape(2, 9).sum(axis=1)
    assert stopped[0] != stopped[1] and stopped.max() > 2


def test_plans_say_why(rows, monkeypatch):
    X, y, _ = rows
    alone, together = both(KernelRidgeCV(ALPHAS, gamma=GAMMAS, solver="cg"), monkeypatch, X, y)
    text = str(alone.selection_plan_)
    assert (
        "3 kernels in one run (about" in text and "one kernel at a time leaves memory in which tiles are kept" in text
    )
    text = str(together.selection_plan_)
    assert "with 2 other kernels" in text and "the tiles of 3 kernels are formed together" in text
    assert "kernels one by one: slower" in text and together.selection_plan_.to_dict()["n_kernels"] == 3
    by_factor = KernelRidgeCV(ALPHAS, gamma=GAMMAS, solver="cholesky").fit(X, y)
    assert "only sweeps of conjugate gradient share work" in str(by_factor.selection_plan_)


def test_targets_wait_where_there_are_many(rows, together, monkeypatch):
    X, y, _ = rows
    monkeypatch.setattr("dkrr.planning.selection.MAX_COLUMNS", 4 * 4)
    search = KernelRidgeCV(ALPHAS, gamma=GAMMAS, solver="cg", cv=4, race=False, cv_tol=1e-6).fit(X, y)
    assert search.selection_plan_.plan.problem.n_targets == 1 and search.selection_plan_.n_kernels == 3
    whole = KernelRidgeCV(ALPHAS, gamma=GAMMAS, solver="cg", cv=4, race=False, cv_tol=1e-6).fit(X, y[:, :1])
    each = [KernelRidgeCV(ALPHAS, gamma=GAMMAS, solver="cholesky", cv=4).fit(X, y[:, [j]]) for j in range(2)]
    scores = np.mean([one.cv_results_["mean_test_score"] for one in each], axis=0)
    assert_allclose(search.cv_results_["mean_test_score"], scores, rtol=1e-4)
    assert_allclose(whole.cv_results_["mean_test_score"], each[0].cv_results_["mean_test_score"], rtol=1e-4)


def test_a_store_is_resumed(rows, together, tmp_path):
    X, y, _ = rows
    search = KernelRidgeCV(ALPHAS, gamma=GAMMAS, solver="cg", store=str(tmp_path / "run"), race=False, cv_tol=1e-6)
    first = clone(search).fit(X, y)
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["fit", "kernel-0", "kernel-1", "kernel-2"]
    again = clone(search).fit(X, y)
    assert_allclose(first.cv_results_["mean_test_score"], again.cv_results_["mean_test_score"], rtol=1e-5)
    assert again.selection_plan_.n_kernels == 3


@pytest.mark.parametrize("preconditioner", [None, RPCholesky(rank=30)])
def test_preconditioners(rows, monkeypatch, preconditioner):
    X, y, _ = rows
    solver = ConjugateGradient(preconditioner=preconditioner, precision="float64")
    search = KernelRidgeCV([0.1, 1.0], gamma=GAMMAS, solver=solver, cv=3, cv_tol=1e-6, race=False)
    alone, together = both(search, monkeypatch, X, y)
    assert_allclose(alone.cv_results_["iterations"], together.cv_results_["iterations"], atol=1)
    assert_allclose(alone.cv_results_["mean_test_score"], together.cv_results_["mean_test_score"], rtol=1e-5)


def test_errors(rows, together):
    X, y, _ = rows

    def failing(X, Y):
        return np.full((len(X), len(Y)), np.nan)

    kernels = [RBF(0.1) + CallableKernel(failing), RBF(0.1)]
    with pytest.raises(Exception, match="nan|NaN|finite") as found:
        KernelRidgeCV(ALPHAS, kernel=kernels, solver="cg").fit(X, y)
    assert not isinstance(found.value, ConvergenceWarning)
    assert not [t for t in threading.enumerate() if t.name == "dkrr-turns"]


def test_systems_that_do_not_converge(rows, together):
    X, y, _ = rows
    solver = ConjugateGradient(preconditioner=None, max_iter=2)
    with pytest.warns(ConvergenceWarning, match="scores of alpha = .* are from a true relative residual") as found:
        KernelRidgeCV(ALPHAS, gamma=GAMMAS, solver=solver, refit=False).fit(X, y)
    assert len(found) == 3 and {str(w.filename) for w in found} == {__file__}


def test_weights_of_the_chosen_sum(rows, together):
    X, y, _ = rows
    search = KernelRidgeCV(ALPHAS, kernel=weighted_sums(BANDS, 8), solver="cg").fit(X, y[:, 0])
    weights = weights_of(search.best_params_["kernel"], BANDS)
    assert search.selection_plan_.n_kernels == 7 and weights[0] > 0 and weights.sum() == pytest.approx(1.0)
