"""Many targets, at once or in batches: the answers of one target at a time, within the memory that was planned."""

import dask.array as da
import numpy as np
import pytest
import zarr
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from dkrr import KernelRidge, load, plan, save, status, verify
from dkrr.data import as_rows, write_rows
from dkrr.data.arrays import is_mapped
from dkrr.fitting.batches import FinishedBatches
from dkrr.solvers import ConjugateGradient, Float32Cholesky
from tests.oracles import assert_close, naive_gram, naive_kernel_ridge
from tests.pairs import every_pair
from tests.stores import flip, place
from tests.systems import traced_peak

pytestmark = pytest.mark.usefixtures("one_blas_thread")

N, D, T, WIDTH = 61, 3, 23, 5


def samples():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, D)) + 2.0
    return X, X @ rng.standard_normal((D, T)) + rng.standard_normal((N, T)) + np.arange(T), rng.uniform(0.1, 3.0, N)


# Many more targets than features


@every_pair(
    way=[{}, {"tile": 2}, {"solver": "cg", "tol": 1e-13}, {"solver": "cg", "tile": 2, "tol": 1e-13}],
    weighted=[False, True],
    fit_intercept=[False, True],
    ids=str,
)
def test_targets_together_have_the_answers_of_one_at_a_time(way, weighted, fit_intercept):
    X, y, w = samples()
    w, before, alpha = w if weighted else None, y.copy(), np.repeat([0.1, 3.0], [11, 12])
    model = KernelRidge(alpha, form="primal", fit_intercept=fit_intercept, **way).fit(X, y, w)
    assert_array_equal(y, before, err_msg="y is the caller's")
    dual, intercept = naive_kernel_ridge(X @ X.T, y, alpha, w, fit_intercept)
    assert_close(model.dual_coef_, dual)
    assert_close(model.coef_.T, X.T @ dual)
    assert_allclose(model.intercept_, intercept, atol=1e-8)


@pytest.mark.parametrize("way", [{}, {"tile": 2}, {"solver": "cg", "tol": 1e-13}], ids=str)
def test_targets_in_a_file_stay_there(tmp_path, way):
    X, y, w = samples()
    np.save(tmp_path / "y.npy", y)
    rows, model = write_rows(as_rows(X), place(tmp_path / "X.zarr"), 16), KernelRidge(form="primal", fit_intercept=True)
    here, mapped = (clone(model).set_params(**way).fit(rows, given, w) for given in (y, tmp_path / "y.npy"))
    assert is_mapped(mapped.dual_coef_) and not is_mapped(here.dual_coef_)
    assert mapped.plan_.chosen.disk_bytes >= y.nbytes
    for name in ("coef_", "dual_coef_", "intercept_"):
        assert_array_equal(getattr(mapped, name), getattr(here, name))
    assert_array_equal(np.load(tmp_path / "y.npy"), y)


@pytest.mark.parametrize("weighted", [False, True])
def test_there_is_no_copy_of_the_targets(weighted):
    """Besides y there is α, and a few strips of rows: no copy of y, centred, weighted or with its errors."""
    rng, n, t = np.random.default_rng(0), 8000, 400
    X, y, w = rng.standard_normal((n, 4)), np.ones((n, t)), rng.uniform(0.5, 2.0, n) if weighted else None
    y[:, 1:] += X[:, :1]
    KernelRidge(fit_intercept=True).fit(X, y[:, 1], w)  # what a process loads and measures once is not of this fit
    model = KernelRidge(fit_intercept=True, solver="cholesky")
    peak = traced_peak(lambda: model.fit(X, y, w))
    assert peak < min(1.6 * y.nbytes, model.plan_.peak_bytes - model.plan_.resources.local_baseline_bytes)


# Batches


METHODS = {
    "cholesky": {"solver": "cholesky"},
    "cholesky tiles": {"solver": "cholesky", "tile": 32},
    "float32": {"solver": ConjugateGradient(Float32Cholesky()), "tol": 1e-12},
    "float32 tiles": {"solver": ConjugateGradient(Float32Cholesky()), "tol": 1e-12, "tile": 32},
    "cg": {"solver": ConjugateGradient(), "tol": 1e-12},
    "cg alone": {"solver": ConjugateGradient(preconditioner=None), "tol": 1e-12},
}


@pytest.fixture
def batched(monkeypatch):
    """Batches of WIDTH targets at most, and files of all targets."""
    for name, value in {
        "planning.target_batches.WHOLE_BYTES": 0,
        "planning.target_batches.MIN_BATCH": WIDTH,
        "planning.target_batches.BATCH_FRACTION": 0.0,
        "data.open.MAX_HELD_TARGET_BYTES": 0,
        "data.open.COPIED_BYTES": 400,
    }.items():
        monkeypatch.setattr(f"dkrr.{name}", value)


def fitted(way, alpha=0.5, weighted=False, **more):
    X, y, w = samples()
    model = KernelRidge(alpha, kernel="rbf", fit_intercept=True, form="dual", **METHODS[way], **more)
    return model.fit(X, y, w if weighted else None)


def assert_right(model, alpha=0.5, weighted=False):
    """Coefficients, constants, norms and residuals of batches are those of naive loops."""
    X, y, w = samples()
    K = naive_gram("rbf", X)
    coef, intercept = naive_kernel_ridge(K, y, np.broadcast_to(alpha, T), w if weighted else None, True)
    assert model.plan_.problem.batch == WIDTH and is_mapped(model.dual_coef_)
    assert_close(model.dual_coef_, coef)
    assert_close(model.intercept_, intercept)
    assert_close(model.rkhs_norm_, np.sqrt(np.einsum("it,ij,jt->t", coef, K, coef)))
    assert_close(model.predict(X), K @ coef + intercept)
    assert model.solve_result_.residual <= 1e-11


@every_pair(by_day="values", way=list(METHODS), alphas=["one", "three", "each"], weighted=[False, True])
def test_batches_give_the_answer_of_all_at_once(way, alphas, weighted, request, tmp_path):
    alpha = {"one": 0.5, "three": np.resize([0.5, 1.0, 3.0], T), "each": np.linspace(0.5, 2.0, T)}[alphas]
    expected = fitted(way, alpha, weighted).solve_result_
    request.getfixturevalue("batched")
    model = fitted(way, alpha, weighted)
    assert_right(model, alpha, weighted)
    found = model.solve_result_
    assert found.status == expected.status and len(found.residuals) == len(expected.residuals)
    assert np.isnan(expected.condition) or found.condition == pytest.approx(expected.condition, rel=0.5)
    assert "batches-of-targets" in model.plan_.to_dict()["reason_codes"] and model.plan_.disk_bytes >= 8 * N * T
    assert "targets" in {s.name for s in found.stages}
    if way == "cholesky":
        X, _, _ = samples()
        save(model, str(tmp_path / "model.zarr"))
        assert_array_equal(load(str(tmp_path / "model.zarr")).predict(X), model.predict(X))


GIVEN = {
    "dask": lambda y, folder: da.from_array(y, chunks=(17, 4)[: y.ndim]),
    "zarr path": lambda y, folder: zarr.create_array(f"{folder}/y", data=y, chunks=(17, 4)[: y.ndim]) and f"{folder}/y",
    "float32": lambda y, folder: np.save(folder / "y.npy", y.astype(np.float32)) or folder / "y.npy",
    "fortran": lambda y, folder: np.save(folder / "y.npy", np.asfortranarray(y)) or folder / "y.npy",
}


@pytest.mark.parametrize("kind", GIVEN)
@pytest.mark.parametrize("shape", [(N,), (N, T)])
def test_large_targets_are_copied_to_a_file(tmp_path, kind, shape, batched):
    X, y, _ = samples()
    y = y[:, : shape[-1] if len(shape) > 1 else 1].astype(np.float32).astype(np.float64)
    expected, _ = naive_kernel_ridge(naive_gram("rbf", X), y, np.ones(y.shape[1]))
    given = GIVEN[kind](y.reshape(shape), tmp_path)
    found = KernelRidge(kernel="rbf").fit(X, given)
    assert found.plan_.problem.y_is_mapped or (kind == "fortran" and shape == (N,))
    assert_close(found.dual_coef_, expected.reshape(shape))
    assert shape == (N,) or plan(X, given, kernel="rbf").problem.batch == found.plan_.problem.batch == WIDTH


@pytest.mark.parametrize("way", ["cholesky", "float32 tiles", "cg"])
def test_a_stopped_run_keeps_its_finished_batches(way, tmp_path, batched, monkeypatch):
    saved, save_batch = [], FinishedBatches.save

    def save_until_killed(self, batch, solution):
        save_batch(self, batch, solution)
        saved.append(batch.name)
        if len(saved) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(FinishedBatches, "save", save_until_killed)
    store = str(tmp_path / "run.zarr")
    with pytest.raises(KeyboardInterrupt):
        fitted(way, store=store)
    # An iteration resumes from its checkpoint.
    assert way == "cg" or "2 batches of targets are left to solve" in str(status(store))
    chunk = tmp_path / "run.zarr/batches/0-0-5-coef/c.0.0"
    flip(chunk, 40)
    assert not verify(store).is_whole
    monkeypatch.setattr("dkrr.planning.target_batches.MIN_BATCH", 2 * WIDTH)  # the run keeps its own width
    resumed = fitted(way, store=store)
    assert sorted(saved) == sorted([*set(saved), "0-0-5"]), "the damaged batch is solved again, and no other"
    assert_right(resumed)
    assert verify(store).is_whole and "batches" not in str(status(store).left)
    again = fitted(way, store=store)
    assert len(saved) == -(-T // WIDTH) + 1
    assert_array_equal(again.dual_coef_, resumed.dual_coef_)
