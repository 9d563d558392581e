"""A selection that is killed goes on from its checkpoint, and one whose store is damaged from what is whole."""

import shutil
import signal
import subprocess
import sys
import textwrap
import time

import dask
import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_allclose

from dkrr import KernelRidgeCV
from dkrr.errors import StoreError
from dkrr.fitting.gram import FactoredGram
from dkrr.solvers import ConjugateGradient

SCRIPT = """
    import dask, sys
    from tests.selection.test_resume import search
    with dask.config.set({"dkrr.checkpoint-seconds": 0.01}):
        search(sys.argv[1])
"""


def search(store):
    """Ten λ without a preconditioner: some hundred iterations."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1500, 4))
    y = np.sin(X[:, 0]) + 0.3 * rng.standard_normal(1500)
    solver = ConjugateGradient(preconditioner=None)
    return KernelRidgeCV(np.geomspace(1e-4, 10, 10), gamma=0.5, cv=3, solver=solver, store=store).fit(X, y)


def test_a_killed_selection_goes_on(tmp_path):
    expected = search(str(tmp_path / "whole"))
    store = tmp_path / "run"
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(SCRIPT), str(store)])
    deadline = time.monotonic() + 60
    while not list((store / "kernel-0").glob("checkpoint-*")) if (store / "kernel-0").is_dir() else True:
        assert time.monotonic() < deadline and process.poll() is None, "no checkpoint was written"
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (store / "fit").exists(), "killed too late to say anything"
    resumed = search(str(store))
    assert resumed.alpha_ == expected.alpha_
    assert resumed.cv_results_["iterations"].max() > 0
    known = ~expected.cv_results_["stopped"] & ~resumed.cv_results_["stopped"]
    for results in (expected.cv_results_, resumed.cv_results_):
        assert np.isfinite(results["mean_test_score"][known]).all()
    found, whole = (s.cv_results_["mean_test_score"][known] for s in (resumed, expected))
    assert_allclose(found, whole, rtol=2e-3)
    assert_allclose(resumed.predict(np.zeros((1, 4))), expected.predict(np.zeros((1, 4))), atol=1e-5)


@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_what_is_damaged_is_computed_again(tmp_path, monkeypatch, solver):
    """A bit of a chunk of every array, and of every description; the same scores, and words about what was damaged."""
    monkeypatch.setattr(FactoredGram, "release", lambda *_: None)  # the store of a run that is killed just before
    rng = np.random.default_rng(1)
    n, tile, gammas = (900, 100, 0.5) if solver == "cholesky" else (240, 64, [0.1, 0.5])
    X, y, store = rng.standard_normal((n, 3)), rng.standard_normal(n), tmp_path / "run"

    def searched():
        rows = da.from_array(X, chunks=300)  # so that the store has a copy
        return KernelRidgeCV([0.1, 1.0], gamma=gammas, cv=3, solver=solver, tile=tile, store=str(store)).fit(rows, y)

    with dask.config.set({"dkrr.checkpoint-seconds": 0}):
        whole = searched()
        scores, predicted, said = whole.cv_results_["mean_test_score"], whole.predict(X), set()
        shutil.copytree(store, tmp_path / "whole")
        files = [max(folder.glob("c.*"), default=folder / "zarr.json") for folder in (store / "kernel-0").rglob("*/")]
        for file in (path.relative_to(store) for path in [*files, store / "kernel-0/zarr.json"]):
            shutil.rmtree(store)
            shutil.copytree(tmp_path / "whole", store)
            raw = bytearray((store / file).read_bytes())
            raw[len(raw) // 2] ^= 4
            (store / file).write_bytes(bytes(raw))
            if len(file.parts) == 2:  # what the run belongs to is not known any more
                with pytest.raises(StoreError, match="is damaged"):
                    searched()
                continue
            again = searched()
            assert_allclose(again.cv_results_["mean_test_score"], scores, rtol=1e-3)
            assert_allclose(again.predict(X), predicted, atol=1e-4)
            said |= {text for text in again.solve_result_.messages if file.name in text and text.startswith("scores: ")}
    assert said
