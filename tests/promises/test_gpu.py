"""Fits with products on a GPU, made up of this process's memory: the same models, and clear refusals without one."""

import multiprocessing
import pickle
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import array_api_strict
import dask
import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

import dkrr
from dkrr import KernelLogisticRegression, KernelRidge, KernelRidgeCV
from dkrr.errors import ConvergenceWarning, InputError, MemoryLimitError, PlanError
from dkrr.fitting import prediction, request_plans
from dkrr.kernels import RBF, Matern
from dkrr.linalg import device_products
from dkrr.machine import gpu
from dkrr.solvers import ConjugateGradient
from tests import gpus
from tests.systems import random

N = 420
X = random(N, 4)
Y = np.column_stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2]])
WEIGHTS = np.where(np.arange(N) % 17 == 0, 0.0, np.linspace(0.5, 2.0, N))
MODEL = {"kernel": "rbf", "gamma": 0.2, "alpha": 0.05}
CODES = (Y[:, 0] > 0).astype(int) + (Y[:, 1] > 0)


@pytest.fixture
def card(monkeypatch):
    return gpus.install(monkeypatch, gpus.MadeUpDevice(array_api_strict))


def is_on_gpu(plan):
    return plan.chosen.method.device == "cuda"


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("precision", ["mixed", "float64"])
def test_the_model_is_that_of_a_factorisation(card, weights, intercept, precision):
    solver = ConjugateGradient(precision=precision)
    given = MODEL | {"alpha": [0.05, 0.5], "fit_intercept": intercept}
    found = KernelRidge(**given, device="cuda", solver=solver, tol=1e-10).fit(X, Y, sample_weight=weights)
    expected = KernelRidge(**given, device="cpu", solver="cholesky").fit(X, Y, sample_weight=weights)
    assert is_on_gpu(found.plan_) and found.solve_result_.residual <= 1e-10
    assert_allclose(found.dual_coef_, expected.dual_coef_, rtol=0, atol=1e-7)
    Z = random(50, 4, seed=3)
    assert_allclose(found.predict(Z), expected.predict(Z), rtol=0, atol=1e-8)
    assert "GPU" in str(found.plan_) and found.plan_.to_dict()["products"]["gpu"] == "made up"


def test_a_search_and_standard_deviations_and_intervals_of_a_model_run_there(card):
    search = {"kernel": "rbf", "gamma": 0.2, "alphas": [1e-3, 1e-2, 0.1, 1.0], "cv": 4}
    found, expected = (KernelRidgeCV(**search, device=device).fit(X, Y) for device in ("cuda", "cpu"))
    assert is_on_gpu(found.plan_) and is_on_gpu(found.selection_plan_.main.plan)
    assert found.alpha_ == expected.alpha_
    assert found.best_score_ == pytest.approx(expected.best_score_, rel=1e-2)
    one, other = (KernelRidge(**MODEL, device=device).fit(X, Y) for device in ("cuda", "cpu"))
    stds = [model.predict(X[:20], return_std=True)[1] for model in (one, other)]
    assert_allclose(stds[0], stds[1], rtol=1e-3)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_classifications_run_there(card, n_classes):
    codes = np.minimum(CODES, n_classes - 1)
    found, expected = (KernelLogisticRegression(**MODEL, device=one).fit(X, codes) for one in ("cuda", "cpu"))
    assert is_on_gpu(found.plan_)
    assert_allclose(found.predict_proba(X), expected.predict_proba(X), rtol=0, atol=1e-5)


def test_a_run_resumes_there_and_elsewhere(monkeypatch, tmp_path, card):
    given = MODEL | {"alpha": 1e-5, "tol": 1e-10, "store": str(tmp_path / "run.zarr")}
    multiply, left = device_products.DeviceExecutor.multiply, [6]

    def stopping(*arguments):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return multiply(*arguments)

    with dask.config.set({"dkrr.checkpoint-seconds": 0}):
        expected = KernelRidge(**given | {"store": str(tmp_path / "whole.zarr")}, device="cuda").fit(X, Y)
        monkeypatch.setattr(device_products.DeviceExecutor, "multiply", stopping)
        with pytest.raises(KeyboardInterrupt):
            KernelRidge(**given, device="cuda").fit(X, Y)
        monkeypatch.setattr(device_products.DeviceExecutor, "multiply", multiply)
        resumed = KernelRidge(**given, device="cuda").fit(X, Y)
    assert resumed.solve_result_.iterations == expected.solve_result_.iterations
    assert_array_equal(resumed.dual_coef_, expected.dual_coef_)
    again = KernelRidge(**given, device="cpu").fit(X, Y)
    assert not is_on_gpu(again.plan_)
    assert_allclose(again.dual_coef_, resumed.dual_coef_, rtol=1e-6, atol=1e-6 * np.abs(expected.dual_coef_).max())


def test_predictions_are_planned_there_and_take_one_turn_after_another(card):
    found, other = (KernelRidge(**MODEL, device=device).fit(X, Y) for device in ("cuda", "cpu"))
    plan = dkrr.plan(np.tile(X, (9, 1)), model=found)
    assert "products with K on the GPU" in plan.reasons
    assert plan.seconds < dkrr.plan(np.tile(X, (9, 1)), model=other).seconds
    with ThreadPoolExecutor(3) as pool:
        several = list(pool.map(found.predict, [X] * 3))
    for one in several:
        assert_allclose(one, other.predict(X), rtol=0, atol=1e-7)


def test_long_work_looks_for_a_gpu_and_short_work_does_not(monkeypatch):
    sizes, looked = {"n_features": 20, "kernel": "rbf"}, []
    opened = gpu.OpenedGpu(gpus.MadeUpDevice(), gpus.made_up(60 * gpus.GIB))
    monkeypatch.setattr(gpu, "_found", None)
    monkeypatch.setattr(gpu, "_opened", lambda: looked.append(1) or opened)
    for module in (gpu, request_plans, prediction):
        monkeypatch.setattr(module, "has_cupy", lambda: True)
    assert not is_on_gpu(dkrr.plan(n_samples=5000, **sizes)) and not looked
    assert not is_on_gpu(dkrr.plan(n_samples=100_000, **sizes, device="cpu")) and not looked
    assert not is_on_gpu(dkrr.plan(n_samples=100_000, **sizes | {"kernel": "laplacian"})) and not looked
    KernelRidge(**MODEL).fit(X, Y).predict(X)
    assert not looked
    plan = dkrr.plan(n_samples=100_000, **sizes)
    assert is_on_gpu(plan) and len(looked) == 1
    assert "gpu-is-faster" in plan.to_dict()["reason_codes"]
    search = dkrr.plan(n_samples=100_000, **sizes, alphas=[0.1, 1.0], cv=3)
    assert is_on_gpu(search.main.plan) and len(looked) == 1


def test_a_saved_or_copied_model_does_not_need_the_gpu(monkeypatch, tmp_path, card):
    model = KernelRidge(**MODEL, device="cuda").fit(X, Y)
    expected = model.predict(X)
    dkrr.save(model, tmp_path / "model.zarr")
    copied = pickle.dumps(model)
    monkeypatch.setattr(gpu, "_found", gpu.NoGpu("it is gone"))
    for other in (dkrr.load(tmp_path / "model.zarr"), pickle.loads(copied)):
        assert_allclose(other.predict(X), expected, rtol=0, atol=1e-10)
    with pytest.raises(InputError, match="it is gone"):
        model.predict(X)
    with pytest.raises(InputError, match="it is gone"):
        model.fit(X, Y)


@pytest.mark.parametrize(
    ("settings", "x", "message"),
    [
        ({"form": "primal", "kernel": "poly"}, X, "form is 'primal'.*expected device='auto' or 'cpu'"),
        ({"solver": "cholesky"}, X, "solver is Cholesky.*expected device='auto' or 'cpu'"),
        ({"kernel": "laplacian"}, X, "Laplacian has no form on a GPU.*expected device='auto' or 'cpu'"),
        ({"kernel": "precomputed", "gamma": None}, RBF()(X), "Precomputed has no form on a GPU"),
        ({}, sp.csr_array(X), "rows on a GPU are dense, and X is sparse"),
    ],
)
def test_what_a_gpu_cannot_do_is_refused_before_work(card, settings, x, message):
    with pytest.raises((InputError, PlanError), match=message):
        KernelRidge(**MODEL | settings, device="cuda").fit(x, Y)


def test_a_gpu_whose_memory_others_hold_is_refused_with_the_numbers(monkeypatch):
    gpus.install(monkeypatch, gpus.MadeUpDevice(free=2**20), gpus.made_up(2**20))
    with pytest.raises(MemoryLimitError, match=r"1 MiB of 2 MiB are free.*Nothing was computed"):
        KernelRidge(**MODEL, device="cuda").fit(X, Y)


def test_products_that_leave_the_range_of_float32_are_computed_in_float64(card):
    far, solver = X * 1e17, ConjugateGradient(precision="mixed")
    found = KernelRidge(**MODEL, device="cuda", solver=solver).fit(far, Y)
    assert found.solve_result_.residual <= 1e-8
    assert_allclose(found.dual_coef_, Y / 1.05, rtol=1e-6)


def test_a_factor_takes_over_on_the_cpu_where_iterations_fail_or_a_factor_is_needed(card):
    with pytest.warns(ConvergenceWarning, match="ill-conditioned"):
        found = KernelRidge(kernel="rbf", gamma=1e-3, alpha=1e-13, tol=1e-12, device="cuda").fit(X, Y)
    assert found.plan_.chosen.is_direct and any("factoring" in text for text in found.solve_result_.messages)
    model = KernelRidge(**MODEL, device="cuda").fit(X, Y)
    ends = [KernelRidge(**MODEL, device="cpu").fit(X, Y).predict_interval(X[:9]), model.predict_interval(X[:9])]
    assert_allclose(ends[0], ends[1], rtol=0, atol=1e-6)
    grown = KernelRidge(**MODEL, device="cuda").partial_fit(X[:200], Y[:200]).partial_fit(X[200:], Y[200:])
    assert_allclose(grown.predict(X), model.predict(X), rtol=0, atol=1e-6)


def test_a_default_of_the_configuration_opens_a_gpu_and_leaves_the_choice_to_the_plan(monkeypatch):
    monkeypatch.setattr(gpu, "_found", None)
    monkeypatch.setattr(gpu, "_opened", lambda: gpu.OpenedGpu(gpus.MadeUpDevice(), gpus.made_up(60 * gpus.GIB)))
    with dask.config.set({"dkrr.device": "cuda"}):
        assert not is_on_gpu(KernelRidge(**MODEL, device="cpu").fit(X, Y).plan_) and gpu.known_gpu() is None
        for settings in ({}, {"solver": "cholesky"}, {"kernel": "laplacian"}, {"uncertainty": "intervals"}):
            assert not is_on_gpu(KernelRidge(**MODEL | settings).fit(X, Y).plan_) and gpu.known_gpu() is not None
        assert is_on_gpu(dkrr.plan(n_samples=100_000, n_features=20, kernel="rbf"))
    with dask.config.set({"dkrr.device": "cpu"}):
        assert not is_on_gpu(dkrr.plan(n_samples=100_000, n_features=20, kernel="rbf"))
    with pytest.raises(InputError, match="device is 'cuda' and uncertainty is 'intervals'"):
        KernelRidge(**MODEL, device="cuda", uncertainty="intervals").fit(X, Y)


@pytest.mark.parametrize("kernel", [RBF(gamma=0.2), Matern(nu=0.5, length_scale=2.0)], ids=str)
@pytest.mark.parametrize("far", [1e12, 1e20, 1e100])
def test_rows_far_from_all_others_take_no_digits_from_them(card, kernel, far):
    """One value, which moves a mean; and a second cluster, which no origin is near."""
    for move in (np.arange(N) == 5, np.arange(N) < N // 3):
        rows = X.copy()
        rows[move, 1] = far if move.sum() == 1 else far * (1.0 + np.arange(move.sum()))
        found, expected = (KernelRidge(0.1, kernel=kernel, device=one).fit(rows, Y) for one in ("cuda", "cpu"))
        assert_allclose(found.dual_coef_, expected.dual_coef_, rtol=0, atol=1e-6)
        assert_allclose(found.predict(X), expected.predict(X), rtol=0, atol=1e-6)


def test_other_rows_than_those_of_the_fit_may_be_sparse(card):
    model = KernelRidge(**MODEL, device="cuda").fit(X, Y)
    assert_allclose(model.predict(sp.csr_array(X[:50])), model.predict(X[:50]), rtol=0, atol=1e-12)


def test_predictions_that_were_not_asked_to_be_there_fall_back(monkeypatch):
    monkeypatch.setattr(prediction, "MIN_GPU_ENTRIES", 0.0)
    monkeypatch.setattr(prediction, "gpu_for", lambda *_: gpu.open_gpu())
    full = gpus.install(monkeypatch, gpus.MadeUpDevice(most=10))
    model = KernelRidge(**MODEL).fit(X, Y)
    expected = model.set_params(device="cpu")._model
    found = model.set_params(device="auto").predict(X)
    assert full.refused and expected is not None
    gpus.install(monkeypatch)
    beyond = X.copy()
    beyond[3] = 1e200
    assert_allclose(model.predict(beyond)[3], 0.0, atol=1e-12)
    assert_allclose(model.predict(X), found, rtol=0, atol=1e-12)


def test_too_little_memory_here_and_a_search_that_factors_have_their_own_words(card):
    with pytest.raises(MemoryLimitError, match="no plan fits in memory.*smallest memory_limit that suffices"):
        KernelRidge(**MODEL, device="cuda", memory_limit="10MiB").fit(X, Y)
    with pytest.raises(InputError, match="device asks for conjugate gradient; expected device='auto' or 'cpu'"):
        KernelRidgeCV([0.1, 1.0], kernel="rbf", cv="loo", device="cuda").fit(X, Y)


def test_a_fork_of_a_process_with_a_gpu_predicts_and_is_told_why_it_cannot_fit(card):
    model = KernelRidge(**MODEL, device="cuda").fit(X, Y)
    expected = model.predict(X)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        found, error = pool.apply(_in_a_fork, (model,))
    assert_allclose(found, expected, rtol=0, atol=1e-10)
    assert "forked" in error


def _in_a_fork(model):
    try:
        return model.predict(X), str(model.fit(X, Y))
    except InputError as error:
        return model.predict(X), str(error)


def test_no_room_for_predictions_is_an_error_and_leaves_nothing_there(monkeypatch, card):
    model = KernelRidge(**MODEL, device="cuda").fit(X, Y)
    full = gpus.install(monkeypatch, gpus.MadeUpDevice(most=10))
    with pytest.raises(MemoryLimitError, match="the GPU has not memory enough") as error:
        model.predict(X)
    assert error.value.__cause__ is None and error.value.__context__ is None and full.released
    assert_allclose(model.set_params(device="cpu").predict(X), model.set_params(device="auto").predict(X))


FAKES = {
    "raise ImportError('libcublas.so.12: cannot open shared object file')": "cannot be loaded.*libcublas.*CUDA 13",
    "class cuda:\n class runtime:\n  @staticmethod\n  def getDeviceProperties(_):\n   raise RuntimeError('no device')\n"
    " class Device:\n  id = 0": "finds no GPU that it can use.*no device.*device='cpu'",
}


@pytest.mark.parametrize("source", [None, *FAKES], ids=["no CuPy", "no CUDA", "no GPU"])
def test_errors_without_cupy_and_without_a_gpu(tmp_path, source):
    if source is not None:
        (tmp_path / "cupy.py").write_text(source)
    code = (
        "import numpy as np, sys, dkrr, dkrr.cli\n"
        "assert 'cupy' not in sys.modules\n"
        "X = np.eye(5)\n"
        "dkrr.KernelRidge(kernel='rbf').fit(X, X[:, 0]).predict(X)\n"
        "try: dkrr.KernelRidge(kernel='rbf', device='cuda').fit(X, X[:, 0])\n"
        "except dkrr.errors.InputError as error: print(error)\n"
        "print(dkrr.plan(n_samples=200_000, n_features=20, kernel='rbf'))\n"
    )
    environment = {"PYTHONPATH": str(tmp_path), "PATH": ""}
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    error, *plan = done.stdout.splitlines()
    assert re.search(FAKES.get(source, r"CuPy is not installed.*pip install 'dkrr\[cuda\]'"), error), error
    assert ("on the CPU, since CuPy" in "".join(plan)) == (source is not None)
