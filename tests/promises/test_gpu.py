"""Fits with products on a GPU, made up of this process's memory: the same models, and clear refusals without one."""

import pickle
import re
import subprocess
import sys

import array_api_strict
import dask
import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

import dkrr
from dkrr import KernelLogisticRegression, KernelRidge, KernelRidgeCV
from dkrr.errors import InputError, MemoryLimitError, PlanError
from dkrr.kernels import RBF
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
        ({"form": "primal", "kernel": "poly"}, X, "form is 'primal'.*expected form 'dual' or 'auto'"),
        ({"solver": "cholesky"}, X, "solver is Cholesky.*solver 'cg' or 'auto'"),
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


def test_a_range_of_float32_that_is_left_is_said_before_the_iterations(card):
    far = X * 1e17
    with pytest.raises(InputError, match="leaves the range of float32 on a GPU.*device='cpu'"):
        KernelRidge(**MODEL, device="cuda", solver=ConjugateGradient(precision="mixed")).fit(far, Y)


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
