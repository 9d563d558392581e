"""Many targets in batches: the answers of all at once, with nothing of their size in memory."""

import dask.array as da
import numpy as np
import pytest
import zarr
from numpy.testing import assert_allclose, assert_array_equal

from dkrr import KernelRidge, load, plan, save, status, verify
from dkrr.fitting.batches import FinishedBatches
from dkrr.solvers import ConjugateGradient, Float32Cholesky
from dkrr.tiles.mapped import is_mapped
from tests.pairs import every_pair

pytestmark = pytest.mark.usefixtures("one_blas_thread")

N, T, WIDTH = 90, 23, 5

WAYS = {
    "cholesky": {"solver": "cholesky"},
    "cholesky tiles": {"solver": "cholesky", "tile": 32},
    "float32": {"solver": ConjugateGradient(Float32Cholesky()), "tol": 1e-12},
    "float32 tiles": {"solver": ConjugateGradient(Float32Cholesky()), "tol": 1e-12, "tile": 32},
    "cg": {"solver": ConjugateGradient(), "tol": 1e-12},
    "cg alone": {"solver": ConjugateGradient(preconditioner=None), "tol": 1e-12},
}


def samples():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, 3))
    return X, np.sin(X @ rng.standard_normal((3, T))) + 0.1 * rng.standard_normal((N, T)) + 2.0, rng.uniform(0.5, 2, N)


@pytest.fixture
def batched(monkeypatch):
    """Batches of WIDTH targets at most."""
    for name, value in {"WHOLE_BYTES": 0, "MIN_BATCH": WIDTH, "BATCH_FRACTION": 0.0}.items():
        monkeypatch.setattr(f"dkrr.planning.batches.{name}", value)
    monkeypatch.setattr("dkrr.rows.open.HELD_BYTES", 0)
    monkeypatch.setattr("dkrr.rows.open.COPIED_BYTES", 1000)


def assert_same(batched, whole, X):
    assert batched.plan_.problem.batch == WIDTH and whole.plan_.problem.batch == 0
    assert is_mapped(batched.dual_coef_) and not is_mapped(whole.dual_coef_)
    for name in ("dual_coef_", "intercept_", "norm_"):
        assert_allclose(getattr(batched, name), getattr(whole, name), rtol=1e-8, atol=1e-9)
    assert_allclose(batched.predict(X), whole.predict(X), rtol=1e-9, atol=1e-9)
    found, expected = batched.solve_result_, whole.solve_result_
    assert found.status == expected.status and found.residual <= 1e-11
    assert np.isnan(expected.condition) or found.condition == pytest.approx(expected.condition, rel=0.5)
    assert len(found.residuals) == len(expected.residuals)


@every_pair(way=list(WAYS), alphas=["one", "three", "each"], weighted=[False, True])
def test_batches_give_the_answer_of_all_at_once(way, alphas, weighted, request, tmp_path):
    X, y, w = samples()
    alpha = {"one": 0.5, "three": np.resize([0.5, 1.0, 3.0], T), "each": np.linspace(0.5, 2.0, T)}[alphas]
    settings = {"alpha": alpha, "kernel": "rbf", "fit_intercept": weighted, "form": "dual", **WAYS[way]}
    whole = KernelRidge(**settings).fit(X, y, w if weighted else None)
    request.getfixturevalue("batched")
    found = KernelRidge(**settings).fit(X, y, w if weighted else None)
    assert_same(found, whole, X)
    assert "batches-of-targets" in found.plan_.to_dict()["reason_codes"] and found.plan_.disk_bytes >= y.nbytes
    assert "targets" in {s.name for s in found.solve_result_.stages}
    if way == "cholesky":
        save(found, str(tmp_path / "model.zarr"))
        assert_array_equal(load(str(tmp_path / "model.zarr")).predict(X), found.predict(X))


@pytest.mark.parametrize("kind", ["dask", "zarr", "path", "float32 file", "fortran file"])
@pytest.mark.parametrize("vector", [False, True])
def test_large_targets_are_copied_to_a_file(tmp_path, kind, vector, request):
    X, y, _ = samples()
    y = y.astype(np.float32).astype(np.float64)
    y = y[:, 0] if vector else y
    whole = KernelRidge(kernel="rbf").fit(X, y)
    request.getfixturevalue("batched")
    given = y
    if kind == "dask":
        given = da.from_array(y, chunks=(17, 4)[: y.ndim])
    elif kind in ("zarr", "path"):
        given = zarr.create_array(str(tmp_path / "y.zarr"), data=y, chunks=(17, 4)[: y.ndim])
        given = str(tmp_path / "y.zarr") if kind == "path" else given
    else:
        np.save(tmp_path / "y.npy", np.asfortranarray(y) if kind == "fortran file" else y.astype(np.float32))
        given = tmp_path / "y.npy"
    found = KernelRidge(kernel="rbf").fit(X, given)
    assert found.plan_.problem.y_is_mapped or (kind == "fortran file" and vector)
    assert vector or found.plan_.problem.batch == WIDTH
    assert_allclose(found.dual_coef_, whole.dual_coef_, rtol=1e-9, atol=1e-10)
    assert plan(X, given, kernel="rbf").problem.batch == found.plan_.problem.batch


@pytest.mark.parametrize("way", ["cholesky", "float32 tiles", "cg"])
def test_a_stopped_run_keeps_its_finished_batches(way, tmp_path, request, monkeypatch):
    X, y, _ = samples()
    settings = {"alpha": 0.5, "kernel": "rbf", "fit_intercept": True, "form": "dual", **WAYS[way]}
    whole = KernelRidge(**settings).fit(X, y)
    request.getfixturevalue("batched")
    saved, save_batch, killed_at = [], FinishedBatches.save, 3

    def save_until_killed(self, batch, solution):
        save_batch(self, batch, solution)
        saved.append(batch.name)
        if len(saved) == killed_at:
            raise KeyboardInterrupt

    monkeypatch.setattr(FinishedBatches, "save", save_until_killed)
    store = str(tmp_path / "run.zarr")
    with pytest.raises(KeyboardInterrupt):
        KernelRidge(**settings, store=store).fit(X, y)
    # An iteration resumes from its checkpoint.
    assert way == "cg" or "2 batches of targets are left to solve" in str(status(store))
    chunk = tmp_path / "run.zarr/batches/0-0-5-coef/c.0.0"
    content = bytearray(chunk.read_bytes())
    content[40] ^= 1
    chunk.write_bytes(content)
    assert not verify(store).is_whole
    monkeypatch.setattr("dkrr.planning.batches.MIN_BATCH", 2 * WIDTH)  # the run keeps its own width
    resumed = KernelRidge(**settings, store=store).fit(X, y)
    assert sorted(saved) == sorted([*set(saved), "0-0-5"]), "the damaged batch is solved again, and no other"
    assert_same(resumed, whole, X)
    assert verify(store).is_whole and "batches" not in str(status(store).left)
    again = KernelRidge(**settings, store=store).fit(X, y)
    assert len(saved) == -(-T // WIDTH) + 1
    assert_array_equal(again.dual_coef_, resumed.dual_coef_)
