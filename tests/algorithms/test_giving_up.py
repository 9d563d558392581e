"""Iterations are watched: a factorisation takes over where it is surely faster, and the answer is its answer.

Histories are made up; what a fit does is forced by a decision that is made up, too.
"""

from math import exp, inf, log, log1p

import dask
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import dkrr
from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.errors import WrongStoreError
from dkrr.linalg import giving_up
from dkrr.linalg.giving_up import ACCELERATION, MOST_LOST, OPTIMISM, GivenUpError, Watch, is_given_up, iterations_left
from dkrr.linalg.iteration_state import Cycle, State
from dkrr.linalg.result import Residuals
from dkrr.planning import iterations_first, planner
from dkrr.solvers import Status

TOL = 1e-8


@pytest.fixture(autouse=True)
def idle(monkeypatch):
    """No other program takes a part of the processors."""
    monkeypatch.setattr(giving_up, "slowdown", lambda: 1.0)


RATES = st.floats(0.05, 2.0)


def falling(rate, n, start=1.0):
    """Residuals of a steady iteration."""
    return [start * exp(-rate * k) for k in range(n)]


# What is left


@given(st.floats(0.2, 2.0), st.integers(6, 60))
def test_a_steady_iteration_is_extrapolated_to_its_end(rate, n):
    residuals = falling(rate, n)
    fewest, likely = iterations_left(residuals, TOL)
    left = max(0.0, log(residuals[-1] / TOL) / rate)
    assert_allclose(likely, left, rtol=1e-6, atol=1e-6)
    assert_allclose(fewest, left / ACCELERATION, rtol=1e-6, atol=1e-6)


@given(RATES, RATES, st.integers(6, 40), st.integers(0, 60))
def test_the_best_rate_so_far_bounds_what_is_left_from_below(fast, slow, n, plateau):
    fast, slow = max(fast, slow), min(fast, slow)
    first = falling(fast, n)
    residuals = first + falling(slow / 20, plateau, first[-1])
    fewest, likely = iterations_left(residuals, TOL)
    assert 0 <= fewest <= likely
    if plateau < n // 2 and residuals[-1] > TOL:  # the window of the best rate lies before the plateau
        assert fewest <= log(residuals[-1] / TOL) / fast * 1.0001


@given(st.lists(st.floats(0.5001, 2.0), min_size=1, max_size=giving_up.EARLY))
def test_a_plateau_at_the_start_says_nothing_of_the_fewest_iterations(residuals):
    assert iterations_left([1.0, *residuals][: giving_up.EARLY], TOL)[0] == 0.0


@given(st.floats(1.0, 1e6), st.integers(6, giving_up.EARLY))
def test_at_the_start_the_rate_of_the_ritz_values_counts(condition, n):
    fewest, likely = iterations_left([1.0] * n, TOL, condition)
    root = condition**0.5
    chebyshev = inf if root == 1 else -log((root - 1) / (root + 1))
    assert_allclose(likely, OPTIMISM * log(1 / TOL) / min(chebyshev, log1p(2e9)), rtol=1e-6)
    assert fewest == 0.0
    steady = falling(1.0, n)
    assert iterations_left(steady, TOL, condition)[1] <= iterations_left(steady, TOL)[1]
    assert iterations_left(falling(1.0, 2 * giving_up.EARLY), TOL, condition)[0] <= likely


@given(st.lists(st.floats(1e-12, 1e3), min_size=1, max_size=80), st.floats(1.0, 10.0))
def test_a_smaller_tolerance_never_leaves_fewer(residuals, factor):
    for one, other in zip(iterations_left(residuals, TOL), iterations_left(residuals, TOL / factor), strict=True):
        assert one <= other


def test_what_is_met_leaves_nothing():
    assert iterations_left([1.0, 1e-3, 1e-9], TOL) == (0.0, 0.0)
    assert iterations_left([1.0] * 40, TOL) == (inf, inf)
    assert iterations_left([1.0] * 10, TOL) == (0.0, inf)  # nothing is known of the rate yet
    assert iterations_left([inf, np.nan, 1e-9], TOL) == (0.0, 0.0)


# The decision


@given(st.floats(0.01, 100), st.floats(0.0, 100), st.floats(0.0, 100), st.floats(0.0, 100))
def test_iterations_that_are_likely_to_end_sooner_than_a_factorisation_go_on(factor, likely, share, lost):
    fewest = share / 100 * likely
    given_up = is_given_up(fewest, likely, lost, factor, MOST_LOST * factor)
    assert not (given_up and likely <= factor)
    assert given_up or fewest <= factor
    assert given_up or likely <= factor or lost < MOST_LOST * factor


def watched(monkeypatch, residuals, seconds, *, factor, before=0.0, cycle=None, **more):
    """Iterations and seconds after which these residuals are given up; None if they are not."""
    now = [0.0]
    monkeypatch.setattr(giving_up.time, "perf_counter", lambda: now[0])
    watch, state = Watch(factor, begun=0.0, **more), State(np.zeros((1, 1)), np.zeros((1, 1)), np.ones(1, bool))
    now[0], state.cycle = before, cycle
    for k, residual in enumerate(residuals):
        now[0] += seconds
        state.iteration += 1
        state.history.append(Residuals(state.iteration, now[0], residual, is_true=False))
        try:
            watch(state, TOL)
        except GivenUpError as error:
            return k + 1, error.seconds
    return None


def test_iterations_that_keep_their_promise_are_not_given_up(monkeypatch):
    # 40 iterations of 2 s beside a factor of 100 s, also from a preconditioner of 15 s.
    assert watched(monkeypatch, falling(0.5, 40), 2.0, factor=100.0, before=15.0) is None


def test_iterations_that_are_hopeless_are_given_up_at_once(monkeypatch):
    n, seconds = watched(monkeypatch, falling(0.01, 4000), 1.0, factor=100.0)
    assert n <= giving_up.EARLY + 1 and seconds < MOST_LOST * 100


@given(rate=st.floats(0.01, 1.0), before=st.floats(0.0, 20.0))
def test_the_loss_is_at_most_a_third_of_the_factorisation(rate, before):
    with pytest.MonkeyPatch.context() as monkeypatch:
        residuals = falling(rate, 20_000)
        residuals = residuals[: sum(r > TOL for r in residuals)]
        found = watched(monkeypatch, residuals, 1.0, factor=100.0, before=before)
        whole = before + len(residuals)
        if found is None:
            assert whole <= (1 + MOST_LOST) * 100 + 2
        else:
            assert found[1] <= MOST_LOST * 100 + 2 and whole - found[1] > 100 / ACCELERATION - 2


def test_a_plateau_that_ends_in_time_is_waited_for(monkeypatch):
    assert watched(monkeypatch, [0.9] * 18 + falling(0.5, 38, 0.9), 1.0, factor=100.0) is None


@pytest.mark.parametrize(("eigenvalue", "ends"), [(1e-4, (7, 35.0)), (0.3, None)])
def test_on_a_plateau_the_ritz_values_decide(monkeypatch, eigenvalue, ends):
    # Two eigenvalues, 1 and this one: coefficients of two steps have both.
    A, b = np.diag([1.0, eigenvalue]), np.array([1.0, 1.0])
    traced, r, p = list[np.ndarray](), b.copy(), b.copy()
    for _ in range(2):
        step = (r @ r) / (p @ A @ p)
        traced.append(np.array([[step], [r @ r]]))
        new = r - step * A @ p
        r, p = new, new + (new @ new) / (r @ r) * p
    cycle = Cycle(*[np.zeros(1)] * 7, traced=[*traced, *[np.full((2, 1), np.nan)] * giving_up.WINDOW])
    assert_allclose(cycle.condition(), 1 / eigenvalue, rtol=1e-9)
    # 5 s each: a third of the factor's time has passed after 7 of them.
    plateau = [0.9] * 18 + falling(2.0, 10, 0.9)
    assert watched(monkeypatch, plateau, 5.0, factor=200.0 if ends is None else 100.0, cycle=cycle) == ends


def test_the_runs_before_count(monkeypatch):
    slow = falling(0.12, 200)  # likely 154 s
    assert watched(monkeypatch, slow, 1.0, factor=110.0)[0] > 20
    assert watched(monkeypatch, slow, 1.0, factor=110.0, earlier=40.0)[0] < 10


def test_a_step_is_compared_with_the_share_of_a_factorisation(monkeypatch):
    # Of ten steps each may take ten seconds.
    n, _ = watched(monkeypatch, falling(0.2, 90), 1.0, factor=100.0, n_steps=10)
    assert n <= 10
    assert watched(monkeypatch, falling(0.2, 90), 1.0, factor=10_000.0, n_steps=10) is None


def test_steps_of_few_iterations_are_compared_as_a_whole(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(giving_up.time, "perf_counter", lambda: now[0])
    watch = Watch(100.0, n_steps=10, begun=0.0)
    watch.begin_step()
    for now[0] in (20.0, 25.0, 40.0):  # 10, 5 and 10 s are lost
        watch.begin_step()
    now[0] = 49.0  # which took less than its share
    watch.begin_step()
    now[0] = 90.0
    with pytest.raises(GivenUpError, match="after 5 steps"):
        watch.begin_step()


def test_a_preconditioner_may_take_what_was_planned(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(giving_up.time, "perf_counter", lambda: now[0])
    watch = Watch(30.0, prepared_after=12.0, begun=0.0)
    for now[0] in (5.0, 11.0, 23.0):
        watch.prepare()
    now[0] = 25.0
    with pytest.raises(GivenUpError, match="preconditioner took longer than planned"):
        watch.prepare()


def test_other_programs_that_take_the_processors_delay_a_factorisation_as_well(monkeypatch):
    slow = falling(0.2, 90)
    assert watched(monkeypatch, slow, 2.0, factor=100.0)[0] < 20
    monkeypatch.setattr(giving_up, "slowdown", lambda: 2.0)
    assert watched(monkeypatch, slow, 2.0, factor=100.0) is None
    assert watched(monkeypatch, falling(0.02, 900), 2.0, factor=100.0) is not None


# Fits


@pytest.fixture
def iterating(monkeypatch):
    """Iterations that begin wherever they are possible and a factorisation can take over."""
    monkeypatch.setattr(iterations_first, "PROMISED", 1e6)
    monkeypatch.setattr(iterations_first, "SOON_SECONDS", 0.0)
    monkeypatch.setattr(iterations_first, "is_surely_faster", lambda *_: False)
    for name in ("TINY_SECONDS", "SMALL_SECONDS", "MIN_COMPARED_SECONDS"):
        monkeypatch.setattr(planner, name, 0.0)
    monkeypatch.setattr(
        planner, "_cheapest", lambda fitting, _: min(fitting, key=lambda c: (c.solver != "cg", c.seconds))
    )
    monkeypatch.setattr(Watch, "prepare", lambda _: None)


def decided(monkeypatch, *, after):
    """Give up at a number of decisions, or never."""
    calls = iter(range(10**6))
    # A decision to give up is made twice: once more after the processors were measured.
    monkeypatch.setattr(giving_up, "is_given_up", lambda *_: after is not None and next(calls) in (after, after + 1))


def sample(n=400):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, 4))
    y = np.sin(X[:, 0]) + 0.3 * rng.normal(size=n)
    return X, y, (y > 0.2).astype(int)


RBF = {"kernel": "rbf", "gamma": 0.5}
LINEAR = {"kernel": "linear", "form": "primal"}


@pytest.mark.parametrize("settings", [RBF, {**RBF, "fit_intercept": True}, LINEAR])
def test_a_regression_that_is_given_up_is_that_of_the_factorisation(iterating, monkeypatch, settings):
    X, y, _ = sample()
    X = X if settings is not LINEAR else np.hstack([X, np.random.default_rng(0).normal(size=(400, 40))])
    exact = KernelRidge(0.05, **settings, solver="cholesky").fit(X, y)
    decided(monkeypatch, after=1)
    model = KernelRidge(0.05, **settings).fit(X, y)
    result, codes = model.solve_result_, [reason.code for reason in model.plan_.reasons]
    assert_allclose(model.predict(X), exact.predict(X), rtol=1e-9)
    assert (model.plan_.solver, result.status) == ("cholesky", Status.SOLVED)
    assert "given up after" in result.messages[0] and "watched" in codes and codes[-1] == "iterations-given-up"
    assert [one.refused.code for one in model.plan_.rejected if not one.is_direct and one.refused] == codes[-1:]
    assert {"conjugate gradient", "factorisation"} <= {stage.name for stage in result.stages}
    assert result.seconds >= sum(stage.seconds for stage in result.stages) * 0.9
    decided(monkeypatch, after=None)
    model.fit(X, y)
    assert (model.plan_.solver, model.solve_result_.status) == ("cg", Status.CONVERGED)


def test_a_plan_that_is_watched_has_room_for_both(iterating):
    X, y, _ = sample()
    plan = dkrr.plan(X, y, **RBF, alpha=0.05)
    direct = plan.chosen.otherwise
    assert plan.solver == "cg" and direct is not None and direct.is_direct
    assert plan.peak_bytes >= direct.peak_bytes and plan.disk_bytes >= direct.disk_bytes
    assert "watched: changes to a factorisation" in str(plan)
    assert plan.seconds_range[1] <= max(plan.seconds, (1 + MOST_LOST) * direct.seconds) * (1 + 1e-12)


def test_iterations_that_were_asked_for_are_not_watched(iterating, monkeypatch):
    X, y, _ = sample()
    decided(monkeypatch, after=0)
    model = KernelRidge(0.05, **RBF, solver="cg").fit(X, y)
    assert model.plan_.chosen.otherwise is None and model.solve_result_.status is Status.CONVERGED


@pytest.mark.parametrize("settings", [RBF, LINEAR])
@pytest.mark.parametrize("in_store", [False, True])
def test_newton_goes_on_from_its_point_by_factors(iterating, monkeypatch, settings, in_store, tmp_path):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(500, 4 if settings is RBF else 40))
    codes = (X @ rng.normal(size=X.shape[1]) + rng.normal(size=500) > 0).astype(int)
    settings = {**settings, "tol": 1e-7}
    exact = KernelLogisticRegression(1e-4, **settings, solver="cholesky").fit(X, codes)
    decided(monkeypatch, after=70 if settings["kernel"] == "rbf" else 12)  # not in the first step
    where = {"store": tmp_path / "run"} if in_store else {}
    model = KernelLogisticRegression(1e-4, **settings, **where).fit(X, codes)
    result = model.solve_result_
    assert_allclose(model.predict_proba(X), exact.predict_proba(X), atol=1e-6)
    assert (model.plan_.solver, result.status) == ("cholesky", Status.CONVERGED)
    assert "given up after" in result.messages[0]
    assert max(step.inner_iterations for step in result.steps) > 1, "the steps before are not taken again"
    assert result.iterations == len(result.steps) <= exact.solve_result_.iterations + 3


def test_a_run_in_a_store_remembers_that_iterations_were_given_up(iterating, monkeypatch, tmp_path):
    X, y, _ = sample()
    fit = {"alpha": 0.05, **RBF, "store": tmp_path / "run"}
    decided(monkeypatch, after=1)
    first = KernelRidge(**fit).fit(X, y)
    decided(monkeypatch, after=0)  # which no iteration asks for
    again = KernelRidge(**fit).fit(X, y)
    assert_array_equal(again.dual_coef_, first.dual_coef_)
    assert again.plan_.solver == "cholesky" and again.solve_result_.messages == first.solve_result_.messages
    assert {"resumed", "iterations-given-up"} <= {reason.code for reason in again.plan_.reasons}
    assert not list((tmp_path / "run").glob("checkpoint-*")) + list((tmp_path / "run").glob("pivots-*"))
    with pytest.raises(WrongStoreError, match="holds a run that continues with solver='cholesky'"):
        KernelRidge(**fit, solver="cg").fit(X, y)


class Killed(BaseException):
    """The end of a process."""


def test_a_run_that_is_killed_goes_on_iterating_with_the_time_that_has_passed(iterating, monkeypatch, tmp_path):
    X, y, _ = sample()
    fit, seen = {"alpha": 0.05, **RBF, "store": tmp_path / "run"}, list[float]()

    def kill(fewest, likely, lost, *_):
        seen.append(lost)
        raise Killed

    with pytest.MonkeyPatch.context() as patch, dask.config.set({"dkrr.checkpoint-seconds": 0}):
        patch.setattr(giving_up, "is_given_up", kill)
        with pytest.raises(Killed):
            KernelRidge(**fit).fit(X, y)
    lost = list[float]()
    monkeypatch.setattr(giving_up, "is_given_up", lambda fewest, likely, sum_, *_: lost.append(sum_))
    model = KernelRidge(**fit).fit(X, y)
    assert model.plan_.solver == "cg" and model.plan_.chosen.otherwise is not None
    assert model.solve_result_.status is Status.CONVERGED
    assert lost[0] > 0.5 * seen[0]
