"""What a fit reports: norms against arithmetic of 180 digits, residuals, stages; and the range of its data."""

import gc
import time
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.cluster import ThreadExecutor
from dkrr.cost import Stage
from dkrr.data import as_rows
from dkrr.fitting import context, fallbacks, run
from dkrr.fitting.costs.details import Float32Factor
from dkrr.fitting.data import TrainingData
from dkrr.fitting.results import function_norms
from dkrr.kernels import RBF, Polynomial, Precomputed
from dkrr.linalg import refinement as refining
from dkrr.linalg.pivoted_cholesky import PivotedCholesky
from dkrr.linalg.square import ONE_TILE
from dkrr.linalg.substitution import threads_at_once
from dkrr.planning import iterations_first
from dkrr.solvers import ConjugateGradient, Float32Cholesky, RPCholesky, SolveResult, Status
from dkrr.store import MemoryMatrix, TileGrid
from dkrr.text import codes_of
from tests import precise
from tests.nightly.accuracy import fits, trials
from tests.pairs import every_pair

pytestmark = pytest.mark.usefixtures("one_blas_thread")

RNG = np.random.default_rng(0)
WEIGHTS, X, Y = RNG.uniform(0.0, 2.0, 30) * (np.arange(30) != 4), RNG.normal(size=(30, 3)), RNG.normal(size=30)
ROWS = np.random.default_rng(3).standard_normal((90, 4))
PLACES = {"memory": {}, "tiles": {"tile": 12}, "cg": {"solver": "cg", "tol": 1e-13}}
every_place = pytest.mark.parametrize("place", PLACES)


# ‖f‖ in the kernel's space


@every_pair(
    place=list(PLACES), fit_intercept=[False, True], weighted=[False, True], alpha=[1e-6, 1e15], n_targets=[1, 13]
)
def test_norms_are_right_for_any_alpha(place, fit_intercept, weighted, alpha, n_targets):
    weights = WEIGHTS if weighted else None
    exact = precise.ridge(RBF(gamma=0.5), X, Y, alpha, sample_weight=weights, fit_intercept=fit_intercept)
    columns = Y if n_targets == 1 else np.column_stack([Y] * n_targets)  # the check of tiles has a way for many
    model = KernelRidge(alpha, kernel="rbf", gamma=0.5, fit_intercept=fit_intercept, **PLACES[place])
    model.fit(X, columns, sample_weight=weights)
    assert_allclose(model.rkhs_norm_, exact.norm[0], rtol=1e-11)
    assert model.solve_result_.messages == () or place == "cg"


@every_place
@pytest.mark.parametrize("alpha", [1.0, 1e-12])
@pytest.mark.filterwarnings("ignore::dkrr.errors.ConvergenceWarning")
def test_opposite_targets_of_equal_rows_leave_a_norm_of_nothing(place, alpha):
    model = KernelRidge(alpha, kernel="rbf", **PLACES[place]).fit(np.vstack([X, X]), np.concatenate([Y, -Y]))
    assert model.rkhs_norm_ == 0.0
    (message,) = (m for m in model.solve_result_.messages if "rkhs_norm_" in m)
    bound = float(message.split("below ")[1].split(",")[0])
    assert 0.0 < bound < 1e-5 * np.abs(model.dual_coef_).max()


@every_place
@pytest.mark.filterwarnings("ignore::dkrr.errors.ConvergenceWarning")
def test_norms_near_rounding_are_as_far_off_as_a_message_says(place):
    rows, y = np.vstack([X, X + 3e-7 * np.random.default_rng(1).standard_normal(X.shape)]), np.concatenate([Y, -Y])
    model = KernelRidge(1e-10, kernel="rbf", gamma=0.5, **PLACES[place]).fit(rows, y)
    (message,) = (m for m in model.solve_result_.messages if "rkhs_norm_" in m)
    said = float(message.split("as much as ")[1].split(" of")[0])
    with precise.precision():
        coef = precise.matrix(model.dual_coef_)
        (exact,) = precise.floats(coef.transpose() * precise.gram(RBF(gamma=0.5), rows) * coef).ravel()
    assert abs(model.rkhs_norm_ / np.sqrt(exact) - 1.0) < said < 1.0


@pytest.mark.parametrize("kernel", [RBF(gamma=0.5), Polynomial(degree=2), Precomputed()], ids=str)
def test_norms_that_rounding_hides_are_zero_and_a_message_says_so(kernel):
    K, coef = (
        RBF(gamma=0.5)(X) if kernel == Precomputed() else kernel(X),
        np.random.default_rng(1).standard_normal((30, 5)),
    )
    common = {"weights": None, "kernel": kernel, "feature_map": None, "fit_intercept": False}
    rows = as_rows(K if kernel == Precomputed() else X)
    data = TrainingData(rows=rows, alphas=np.ones(5), targets=coef, **common)
    errors = 2 * np.finfo(float).eps * np.sqrt(30) * np.einsum("i,ij,ij->j", K.diagonal(), coef, coef)
    norms, messages = function_norms(data, rows, coef, errors * [0.9, 1.1, -1.0, 4e3, 6e3])
    assert_allclose(norms, np.sqrt(errors * [0.0, 1.1, 0.0, 4e3, 6e3]), rtol=1e-12)
    assert ["target 0 and 1 more is given as 0" in messages[0], "target 1 and 1 more may be" in messages[1]] == [
        True
    ] * 2
    assert "as much as 7e-01 of itself" in messages[1], "1 - (1 - 1 / 1.1) ** 0.5"
    assert function_norms(data, rows, np.zeros((30, 3)), np.zeros(3))[1] == (), "of nothing, nothing is hidden"


# Residuals


def test_an_intercept_with_weights_over_many_orders_leaves_an_honest_residual():
    # With α = u − v b, b that is off by its last digit leaves Σα far above the rounding of α.
    found = fits.run(trials.trial("weights", 34))
    assert found.ended == "SOLVED" and not found.dishonest


def test_an_iteration_with_an_intercept_continues_until_the_coefficients_meet_the_tolerance():
    rng, tol = np.random.default_rng(0), 1e-3
    rows = 30.0 + rng.standard_normal((60, 3))
    y = rows @ [1.0, 2.0, 3.0] + 0.01 * rng.standard_normal(60)
    # dkrr does not centre a kernel that it does not know.
    settings = {"form": "dual", "fit_intercept": True, "tol": tol, "solver": ConjugateGradient(preconditioner=None)}
    model = KernelRidge(kernel=lambda a, b: a @ b.T, **settings).fit(rows, y)
    left = y - model.intercept_ - rows @ (rows.T @ model.dual_coef_) - model.dual_coef_
    left = np.linalg.norm(left) / np.linalg.norm(y - y.mean())
    # Rounding of products with entries of 2,700: those of u and v are combined.
    assert_allclose(model.solve_result_.residual, left, rtol=1e-6, atol=1e-10)
    assert model.solve_result_.status.name == "CONVERGED" and left <= tol


# Where tiles and rows live


@pytest.mark.parametrize("precision", ["float64", "mixed"])
def test_the_answer_does_not_depend_on_which_tiles_stay_in_memory(precision, small_process):
    rows, settings = np.random.default_rng(7).normal(size=(601, 5)), {"alpha": 0.01, "kernel": "rbf", "gamma": 0.2}
    expected = KernelRidge(**settings).fit(rows, rows[:, :2]).dual_coef_
    settings |= {"tol": 1e-10, "tile": 89, "solver": ConjugateGradient(RPCholesky(101), precision)}
    plan = KernelRidge(**settings).fit(rows, rows[:, :2]).plan_
    c = plan.chosen
    kept = c.details.products.kept_tiles * c.place.slots * 89**2 * c.details.products.itemsize
    part = KernelRidge(**settings, memory_limit=plan.peak_bytes - kept // 2).fit(rows, rows[:, :2])
    assert part.plan_.chosen.details.products.kept_fraction(part.plan_.chosen.place.slots) < 1
    assert_allclose(part.dual_coef_, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


def test_temporary_rows_live_as_long_as_a_model_of_a_path_reads_them():
    y, rows = ROWS[:, 0] > 0, da.from_array(ROWS, chunks=(40, 4))
    first, *others = KernelLogisticRegression(kernel="rbf", tile=30).fit_path(rows, y, [1.0, 0.1])
    del others
    gc.collect()
    expected = KernelLogisticRegression(kernel="rbf").fit(ROWS, y).decision_function(ROWS)
    assert_allclose(first.decision_function(ROWS), expected, rtol=0, atol=1e-5)
    folder = Path(first._model.keep_alive.path)
    assert folder.exists()
    del first
    gc.collect()
    assert not folder.exists()


# Stages: what was planned and what was measured lie side by side, by the same names


SOLVERS = {"cholesky": "cholesky", "cg": "cg", "float32": ConjugateGradient(Float32Cholesky())}
OUTPUTS = {KernelRidge: np.sin(ROWS[:, 0]), KernelLogisticRegression: np.digitize(ROWS[:, 0], [-0.5, 0.5])}


@every_pair(estimator=list(OUTPUTS), kind=["dual", "primal", "precomputed"], solver=list(SOLVERS), stored=[False, True])
def test_stages_have_one_name_in_the_plan_and_in_the_result_and_are_shown_once(
    estimator, kind, solver, stored, tmp_path, capsys
):
    # Columns of K do not precondition the primal form.
    solver = SOLVERS["cholesky" if (kind, solver) == ("primal", "float32") else solver]
    rows = ROWS @ ROWS.T + np.eye(90) if kind == "precomputed" else ROWS
    settings = {"kernel": "precomputed"} if kind == "precomputed" else {"kernel": "linear", "form": kind}
    settings |= {"store": str(tmp_path / "run.zarr"), "tile": 40} if stored else {}
    settings |= {"fit_intercept": True} if estimator is KernelRidge else {}
    model = estimator(alpha=0.5, solver=solver, progress=True, **settings).fit(rows, OUTPUTS[estimator])
    strategy = model.plan_.chosen
    planned = {s.name: s.seconds for s in strategy.stages}
    measured = {s.name: s.seconds for s in model.solve_result_.stages}
    assert set(measured) <= set(planned) and all(seconds >= 0 for seconds in measured.values())
    missing = {name for name, seconds in planned.items() if seconds > 0 and name not in measured}
    # Tiles and rows that conjugate gradient keeps: a product forms or reads those that are missing.
    assert missing <= ({"Gram matrix", "reading X"} if strategy.solver == "cg" else set())
    assert ("checking symmetry" in measured) == (kind == "precomputed")
    assert sum(measured.values()) <= model.solve_result_.seconds
    assert capsys.readouterr().err.count("true residual") == ("true residual" in measured)


def test_the_stage_of_the_preconditioner_has_its_pivots_and_its_small_matrices(monkeypatch):
    for name in ("grow", "gram"):
        work = getattr(PivotedCholesky, name)

        def slow(*given, work=work):
            time.sleep(0.1)
            return work(*given)

        monkeypatch.setattr(PivotedCholesky, name, slow)
    model = KernelRidge(0.5, solver=ConjugateGradient(RPCholesky(5))).fit(ROWS, ROWS[:, 0])
    (stage,) = (one for one in model.solve_result_.stages if one.name == "preconditioner")
    assert stage.seconds >= 0.2


def test_the_text_of_a_result_is_that_of_the_golden_file(golden):
    stages = (Stage("factorisation", 83.25), Stage("true residual", 4.5))
    common = {"seconds": 91.5, "bytes_read": 2**30, "bytes_written": 3 * 2**29, "peak_bytes": 300 * 2**20}
    found = [
        SolveResult(Status.SOLVED, 3e-16, 0, **common, condition=4e5, stages=stages, seconds_by_kind={"gemm": 80.0}),
        SolveResult(
            Status.MAX_ITERATIONS, 2e-5, 70, **common, residuals=(2e-5, 1e-9), rank=500, messages=("the rank grows",)
        ),
    ]
    golden("results.txt", "\n\n".join(f"{one}\n{one!r}" for one in found) + "\n")


# Factors in float32: the accuracy of float64, whatever the problem, and what a breakdown leads to


N = ONE_TILE + 53
FLOAT32, SETTINGS = ConjugateGradient(Float32Cholesky()), {"kernel": "rbf", "gamma": 0.3}


@pytest.fixture
def data():
    """Rows, targets and weights, on so slow a machine that these few rows are worth a factor in float32."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, 3))
    y = np.column_stack([np.sin(X[:, 0]), X[:, 1] ** 2]) + 0.1 * rng.standard_normal((N, 2))
    weights = 10.0 ** rng.uniform(-4, 0, N)
    weights[7] = 0.0
    with dask.config.set({"dkrr.rates.gemm-gflops": 5}):
        yield X, y, weights


@pytest.fixture(autouse=True)
def factored(monkeypatch):
    """No iterations without a complete factor, which may be faster on some machines."""
    monkeypatch.setattr(iterations_first, "PROMISED", 0.0)


def in_float32(model):
    return isinstance(model.plan_.chosen.details, Float32Factor)


def check_against_float64(model, X, y, weights=None):
    """The same function, residual and condition as a factorisation in float64."""
    model.fit(X, y, sample_weight=weights)
    other = clone(model).set_params(solver="cholesky").fit(X, y, sample_weight=weights)
    assert in_float32(model) and not in_float32(other)
    found, expected = model.solve_result_, other.solve_result_
    assert found.status is expected.status is Status.SOLVED
    # Refinement ends at the level of rounding, which is 40 √n units where all entries are alike.
    assert found.residual <= max(3 * expected.residual, 1e-14)
    assert 0 < found.iterations < 15 and expected.iterations == 0
    assert model.n_iter_ is other.n_iter_ is None, "both are direct solves"
    assert found.condition == pytest.approx(expected.condition, rel=0.5)
    assert any("factored in float32" in m for m in found.messages)
    assert not any("float32" in m for m in expected.messages)
    assert_allclose(model.predict(X[:50]), other.predict(X[:50]), atol=1e-8)
    assert_allclose(model.rkhs_norm_, other.rkhs_norm_, rtol=1e-9)


@every_pair(
    by_day="values",
    tile=[700, None],
    case=[(False, False, 1e-2), (True, True, [1.0, 0.1]), (False, True, 1e9)],
)
def test_fits_in_float32_are_as_accurate_as_in_float64(data, tile, case):
    (X, y, weights), (weighted, fit_intercept, alpha) = data, case
    model = KernelRidge(alpha, **SETTINGS, fit_intercept=fit_intercept, tile=tile, form="dual")
    check_against_float64(model, X, y, np.maximum(weights, 0.01) if weighted else None)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_newton_steps_are_solved_in_float32(data, n_classes):
    X, labels = data[0][:700], np.digitize(data[1][:700, 0], [-0.3, 0.3][: n_classes - 1])
    model, other = (KernelLogisticRegression(0.1, **SETTINGS, solver=s).fit(X, labels) for s in (FLOAT32, "cholesky"))
    assert in_float32(model) and model.plan_.execution == "memory"
    assert model.solve_result_.status is Status.CONVERGED and model.solve_result_.residual <= 1e-8
    assert_allclose(model.predict_proba(X[:40]), other.predict_proba(X[:40]), atol=1e-6)


def test_few_vectors_are_swept_and_checked_by_threads_of_a_process_that_works_alone(data, monkeypatch, tmp_path):
    X, y, _ = data
    settings = {"alpha": 0.1, "kernel": "rbf", "gamma": 0.3, "solver": "cholesky", "tile": 64}
    counts = list[int]()
    for n_threads in (1, 3):
        monkeypatch.setattr(context, "threads_at_once", lambda *_, n=n_threads: n)
        monkeypatch.setattr(context, "ThreadExecutor", lambda n: counts.append(n) or ThreadExecutor(n))
        model = KernelRidge(**settings, store=str(tmp_path / f"{n_threads}.zarr")).fit(X[:300], y[:300])
        assert model.plan_.execution == "serial" and model.solve_result_.residual <= 1e-12
        counts.append(0)
        if n_threads == 1:
            alone = model.dual_coef_
    assert counts == [0, 3, 3, 0], "the sweeps, and the residual"
    assert_allclose(model.dual_coef_, alone, rtol=1e-11)


def test_threads_that_sweep_take_no_more_memory_than_a_task_of_a_factorisation():
    grid = TileGrid(20_000, 2880, 480)
    assert [threads_at_once(grid, 2, n) for n in (1, 2, 3, 64)] == [1, 2, 3, 3]
    assert threads_at_once(grid, 100, 64) == 1 == threads_at_once(TileGrid(300, 64, 64), 2, 64)


def test_a_plan_foresees_that_alpha_is_too_small(data):
    model = KernelRidge(1e-7, **SETTINGS).fit(*data[:2])
    assert not in_float32(model) and model.solve_result_.iterations == 0
    assert "float64" in codes_of(model.plan_.reasons)


def test_the_diagonal_shows_that_alpha_is_too_small(data):
    # A plan does not know the scale of these entries.
    X, y, _ = data
    K = 1e6 * RBF(gamma=0.3)(X)
    model = KernelRidge(1.0, kernel="precomputed").fit(K, y)
    assert model.solve_result_.status is Status.SOLVED and not in_float32(model)
    assert model.solve_result_.messages[0].startswith("λ is too small for a factor in float32")
    assert_allclose(model.predict(K[:9]), K[:9] @ np.linalg.solve(K + np.eye(N), y), atol=1e-4)


def test_a_breakdown_leads_to_float64_and_is_released_first(data, monkeypatch):
    X, y, _ = data
    planned, alive = run.plan_of, []

    def plan_of(request):
        alive.append(sum(isinstance(o, MemoryMatrix) and o.dtype == np.float32 for o in gc.get_objects()))
        return planned(request)

    for module in (run, fallbacks):
        monkeypatch.setattr(module, "plan_of", plan_of)
    gc.collect()
    gc.disable()
    try:
        model = KernelRidge(1e-8, **SETTINGS, solver=FLOAT32).fit(X, y)
    finally:
        gc.enable()
    assert alive == [0, 0], "of the first plan, and of the second one"
    found = model.solve_result_
    assert found.status is Status.SOLVED and not in_float32(model)
    assert "broke down at row" in found.messages[0] and "factoring in float64 instead" in found.messages[0]


@pytest.mark.parametrize("tile", [None, 700])
def test_iterations_that_do_not_end_lead_to_float64(data, monkeypatch, tile):
    monkeypatch.setattr(refining, "MAX_REFINEMENT_ITERATIONS", 1)
    found = KernelRidge(1e-2, **SETTINGS, tile=tile).fit(*data[:2]).solve_result_
    assert "did not reach the level of rounding" in found.messages[0]
    assert not any("factored in float32" in message for message in found.messages)
    assert found.status is Status.SOLVED and found.residual <= 1e-12


def test_a_factor_in_float32_is_found_in_the_store(data, tmp_path):
    models = [KernelRidge(1e-2, **SETTINGS, tile=700, store=tmp_path / "r.zarr").fit(*data[:2]) for _ in range(2)]
    tasks = [[t.key for t in model.solve_result_.record.tasks if t.key.startswith("L-")] for model in models]
    assert all(map(in_float32, models)) and tasks[0] and not tasks[1]
    assert_array_equal(models[1].dual_coef_, models[0].dual_coef_)
