"""A selection that is killed goes on from its checkpoint."""

import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
from numpy.testing import assert_allclose

from dkrr import KernelRidgeCV
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
