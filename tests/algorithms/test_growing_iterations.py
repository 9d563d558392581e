"""A run in a store that grows: iterations begin at its solution, and pivots of its preconditioner stay."""

import copy
from contextlib import suppress
from itertools import count

import numpy as np
import pytest
from numpy.testing import assert_allclose

from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.cluster import SerialExecutor
from dkrr.data import MemoryRows
from dkrr.fitting.kept_preconditioner import KeptPreconditioner
from dkrr.fitting.storage import Checkpoints
from dkrr.kernels import RBF, Linear
from dkrr.linalg.column_sources import GramColumns
from dkrr.linalg.conjugate_gradient import Iteration
from dkrr.linalg.iteration_state import State
from dkrr.linalg.pivoted_cholesky import PivotedCholesky
from dkrr.solvers import ConjugateGradient, RPCholesky
from dkrr.store import ChunkedArray, RunStore
from tests.systems import MatrixOperator, positive_definite

CG = ConjugateGradient(RPCholesky(), precision="float64")
SMOOTH = {"kernel": "rbf", "gamma": 0.1, "alpha": 1e-2, "solver": CG}


def sample(n, seed=3):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 6))
    y = np.column_stack([np.sin(X @ rng.normal(size=6)), X[:, 0] * X[:, 1]]) + 0.1 * rng.normal(size=(n, 2))
    return X, y


def iterations(model):
    return model.solve_result_.iterations


def rank(model):
    return model.solve_result_.rank


def residual(model, X, y):
    K = RBF(gamma=0.1)(X)
    return np.linalg.norm(y - model.alpha * model.dual_coef_ - K @ model.dual_coef_) / np.linalg.norm(y)


@pytest.mark.parametrize(
    ("weighted", "intercept"), [pytest.param(False, False, marks=pytest.mark.nightly), (True, True)]
)
def test_conjugate_gradient_begins_at_the_solution_of_the_earlier_rows(tmp_path, monkeypatch, weighted, intercept):
    X, y = sample(606)
    w = np.random.default_rng(1).uniform(0.5, 2.0, 606) if weighted else np.ones(606)
    settings = {**SMOOTH, "fit_intercept": intercept}
    for name in ("run", "other"):
        KernelRidge(**settings, store=tmp_path / name).fit(X[:600], y[:600], w[:600])
    grown = KernelRidge(**settings, store=tmp_path / "run").fit(X, y, w)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "load_start", lambda _: None)
        whole = KernelRidge(**settings, store=tmp_path / "other").fit(X, y, w)
    assert rank(grown) == rank(whole)
    assert iterations(grown) < iterations(whole), (iterations(grown), iterations(whole))
    assert any("before it grew" in text for text in grown.solve_result_.messages)
    assert_allclose(grown.predict(X), whole.predict(X), rtol=0, atol=1e-6)
    assert grown.solve_result_.residual <= 1e-8
    if not (weighted or intercept):
        assert residual(grown, X, y) <= 1e-8
    again = KernelRidge(**settings, store=tmp_path / "run").fit(X, y, w)
    assert_allclose(again.dual_coef_, grown.dual_coef_, rtol=0, atol=0)


def test_pivots_stay_and_drawing_continues(tmp_path):
    X, y = sample(900)
    KernelRidge(**SMOOTH, store=tmp_path / "run").fit(X[:600], y[:600])
    before = RunStore(str(tmp_path / "run"))
    first = before.open_array(before.note("pivots")).load()[:, 0].astype(int).tolist()
    grown = KernelRidge(**SMOOTH, store=tmp_path / "run").fit(X, y)
    now = RunStore(str(tmp_path / "run"))
    index = now.open_array(now.note("pivots")).load()[:, 0].astype(int).tolist()
    whole = KernelRidge(**SMOOTH).fit(X, y)
    assert index[: len(first)] == first and len(set(index)) == len(index)
    # The rank that pays follows from times, and differs a little from run to run.
    assert len(index) > len(first) and iterations(grown) <= 1.5 * iterations(whole)


def test_other_targets_keep_the_whole_preconditioner(tmp_path):
    X, y = sample(500)
    first = KernelRidge(**SMOOTH, store=tmp_path / "run").fit(X, y)
    drawn = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PivotedCholesky, "_add_round", lambda *_: drawn.append(1))
        other = KernelRidge(**SMOOTH, store=tmp_path / "run").fit(X, y[:, ::-1] ** 2)
    assert not drawn and rank(other) == rank(first)
    assert_allclose(other.predict(X), KernelRidge(**SMOOTH).fit(X, y[:, ::-1] ** 2).predict(X), rtol=0, atol=1e-6)


def test_a_first_guess_that_is_worse_than_zero_is_not_taken():
    A = positive_definite(40)
    rng = np.random.default_rng(2)
    X = rng.standard_normal((40, 3))
    B = A @ X + 0.5 * X
    guess = np.column_stack([X[:, 0], 1e3 * X[:, 1], np.full(40, np.nan)])
    found = Iteration(MatrixOperator(A), np.array([[0.5]]), B).run(guess)
    assert_allclose(found.x, X, rtol=0, atol=1e-6)
    same = Iteration(MatrixOperator(A), np.array([[0.5]]), B[:, :1]).run(guess[:, :1])
    assert same.iterations == 0


def test_a_state_within_a_cycle_has_its_correction_in_the_solution():
    A, states = positive_definite(40), []
    iteration = Iteration(MatrixOperator(A), np.array([[0.5]]), 300.0 * np.ones((40, 2)))
    iteration.on_iteration = lambda state: states.append(copy.deepcopy(state))
    found = iteration.run()
    arrays, plain = states[-1].arrays()
    assert_allclose(State.from_arrays(arrays, plain).solution(), found.x, rtol=1e-6)


GAUSS = RBF(gamma=0.3)


def factor(n, kernel=GAUSS, scale=1.0, slots=3):
    X = np.random.default_rng(2).normal(size=(211, 3)) * np.where(np.arange(211) < 150, 1.0, scale)[:, None]
    run = f"grown-{np.random.default_rng().integers(2**60)}"
    columns = GramColumns(kernel, MemoryRows(X[:n]))
    return PivotedCholesky(columns, SerialExecutor(), run, slots, capacity=120, dtype=np.float32)


@pytest.mark.parametrize(("kernel", "scale", "is_kept"), [(GAUSS, 1.0, True), (Linear(), 40.0, False)])
def test_columns_that_are_kept_serve_more_rows(tmp_path, kernel, scale, is_kept):
    """Unless the largest entry of the matrix has another order of size."""
    store = RunStore(str(tmp_path / "run"))
    store.open()
    small, large, again = factor(150, kernel), factor(211, kernel, scale, slots=2), factor(211, kernel, scale)
    small.grow(30)
    KeptPreconditioner(store, small, 1e9)._save(is_complete=True)
    keeping = KeptPreconditioner(store, large, 1e9)
    assert keeping.load() is (True if is_kept else None)
    again.restore(small.index)
    if is_kept:
        unit = np.eye(small.rank)
        assert_allclose(large.expand(unit), again.expand(unit), rtol=0, atol=1e-5)
        assert_allclose(large.residual_diagonal, again.residual_diagonal, rtol=0, atol=1e-5)
        assert [r for r, _ in large.traces] == [r for r, _ in again.traces]
        large.grow(45)
        keeping.follow()
        assert KeptPreconditioner(store, factor(211, kernel, scale), 1e9).load() is True
        assert store.note("preconditioner")["segments"][-1][1] == 211
        assert KeptPreconditioner(store, factor(150, kernel), 1e9).load() is None, "of fewer rows"


def test_traces_of_pivots_that_are_restored_are_those_of_their_drawing():
    drawn, restored = factor(211), factor(211)
    drawn.grow(60)
    restored.restore(drawn.index)
    assert restored.traces[0] == drawn.traces[0] and len(restored.traces) > 3
    traces = dict(restored.traces)
    for r, trace in drawn.traces:
        if r in traces:
            assert traces[r] == pytest.approx(trace, rel=1e-3)
    assert restored.traces[-1] == (60, pytest.approx(drawn.traces[-1][1], rel=1e-2))


CLASSES = {"kernel": "rbf", "gamma": 0.2, "alpha": 0.1, "tol": 1e-10}


@pytest.mark.parametrize(
    ("settings", "fewer"),
    [
        pytest.param({}, 2, marks=pytest.mark.nightly),
        ({"solver": "cg"}, 2),
        ({"kernel": "polynomial", "degree": 2, "form": "primal"}, 2),
    ],
)
def test_newtons_method_begins_at_the_solution_of_the_earlier_rows(tmp_path, settings, fewer):
    X, y = sample(404)
    labels, settings = np.digitize(y[:, 0], [-0.3, 0.3]), {**CLASSES, **settings}
    KernelLogisticRegression(**settings, store=tmp_path / "run").fit(X[:400], labels[:400])
    grown = KernelLogisticRegression(**settings, store=tmp_path / "run").fit(X, labels)
    whole = KernelLogisticRegression(**settings).fit(X, labels)
    assert grown.n_iter_ <= whole.n_iter_ - fewer, (grown.n_iter_, whole.n_iter_)
    assert_allclose(grown.decision_function(X), whole.decision_function(X), rtol=0, atol=1e-6)
    again = KernelLogisticRegression(**settings, store=tmp_path / "run").fit(X, labels)
    assert_allclose(again.decision_function(X), grown.decision_function(X), rtol=0, atol=0)


@pytest.mark.nightly
def test_every_alpha_of_a_path_begins_at_its_own_earlier_solution(tmp_path):
    X, y = sample(303)
    labels, settings = y[:, 0] > 0, {k: v for k, v in CLASSES.items() if k != "alpha"}
    alphas = (1.0, 0.1)
    KernelLogisticRegression(**settings, store=tmp_path / "run").fit_path(X[:300], labels[:300], alphas)
    grown = KernelLogisticRegression(**settings, store=tmp_path / "run").fit_path(X, labels, alphas)
    whole = KernelLogisticRegression(**settings).fit_path(X, labels, alphas)
    assert grown[0].n_iter_ < whole[0].n_iter_
    for one, other in zip(grown, whole, strict=True):
        assert one.n_iter_ <= other.n_iter_
        assert_allclose(one.decision_function(X), other.decision_function(X), rtol=0, atol=1e-6)


def until(action, writes, at):
    """The action, which a number of writes later ends the process."""

    def write(*args, **more):
        if next(writes) >= at:
            raise KeyboardInterrupt
        return action(*args, **more)

    return write


@pytest.mark.parametrize("estimator", [KernelRidge, KernelLogisticRegression])
@pytest.mark.parametrize("at", [1, 4, *(pytest.param(at, marks=pytest.mark.nightly) for at in (0, 2, 3, 5, 6, 8, 13))])
def test_a_growth_that_is_killed_is_finished_by_the_same_call(tmp_path, monkeypatch, estimator, at):
    X, y = sample(303)
    y = y[:, 0] if estimator is KernelRidge else y[:, 0] > 0
    settings = {**SMOOTH, "gamma": 0.2, "alpha": 0.1, "tol": 1e-10}

    def fitted(n):
        return estimator(**settings, store=tmp_path / "run").fit(X[:n], y[:n])

    fitted(300)
    writes = count()
    with monkeypatch.context() as patch:
        for owner, name in ((ChunkedArray, "fill"), (RunStore, "_write")):
            patch.setattr(owner, name, until(getattr(owner, name), writes, at))
        with suppress(KeyboardInterrupt):  # of fewer writes there are
            fitted(303)
    grown, whole = fitted(303), estimator(**settings).fit(X, y)
    assert_allclose(grown.predict(X), whole.predict(X), rtol=0, atol=1e-6)
    assert grown.solve_result_.status.is_good
