"""Many more targets than features: the answers of one target at a time, within the memory that was planned."""

import tracemalloc

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from dkrr import KernelRidge
from dkrr.rows import as_rows, write_rows
from dkrr.tiles.mapped import is_mapped
from tests.pairs import every_pair
from tests.stores import place

N, D, T = 61, 3, 40
WAYS = {
    "memory": {},
    "tiles": {"tile": 2},
    "cg": {"solver": "cg", "tol": 1e-13},
    "cg tiles": {"solver": "cg", "tile": 2, "tol": 1e-13},
}


def samples():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, D)) + 2.0
    return X, X @ rng.standard_normal((D, T)) + rng.standard_normal((N, T)) + np.arange(T), rng.uniform(0.1, 3.0, N)


@every_pair(way=list(WAYS), weighted=[False, True], fit_intercept=[False, True])
def test_targets_together_have_the_answers_of_one_at_a_time(way, weighted, fit_intercept):
    X, y, w = samples()
    w, before, alpha = w if weighted else None, y.copy(), np.repeat([0.1, 3.0], T // 2)
    model = KernelRidge(alpha, form="primal", fit_intercept=fit_intercept, **WAYS[way]).fit(X, y, w)
    assert_array_equal(y, before, err_msg="y is the caller's")
    for k in (0, T // 2 - 1, T // 2, T - 1):
        alone = KernelRidge(alpha[k], form="primal", fit_intercept=fit_intercept, **WAYS[way]).fit(X, y[:, k], w)
        assert_allclose(model.coef_[:, k], alone.coef_, rtol=1e-9, atol=1e-10)
        assert_allclose(model.dual_coef_[:, k], alone.dual_coef_, rtol=1e-7, atol=1e-9)
    # The definition of α, from the predictions.
    errors = (y - model.predict(X)) * (1.0 if w is None else w[:, None])
    assert_allclose(model.dual_coef_, errors / alpha, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("way", ["memory", "tiles", "cg"])
def test_targets_in_a_file_stay_there(tmp_path, way):
    X, y, w = samples()
    np.save(tmp_path / "y.npy", y)
    settings = {"form": "primal", "fit_intercept": True, **WAYS[way]}
    rows = write_rows(as_rows(X), place(tmp_path / "X.zarr"), 16)
    here, mapped = KernelRidge(**settings).fit(rows, y, w), KernelRidge(**settings)
    mapped.fit(rows, tmp_path / "y.npy", w)
    assert is_mapped(mapped.dual_coef_) and not is_mapped(here.dual_coef_)
    assert mapped.plan_.peak_bytes < mapped.plan_.resources.local_limit_bytes
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
    tracemalloc.start()
    try:
        model = KernelRidge(fit_intercept=True, solver="cholesky").fit(X, y, w)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (model.plan_.form, model.plan_.execution) == ("primal", "memory")
    assert y.nbytes <= peak < 1.6 * y.nbytes
    assert peak < model.plan_.peak_bytes - model.plan_.resources.local_baseline_bytes
