"""Measured peak ≤ projected peak ≤ limit, for every worker process, and on disk only what was planned."""

from functools import cache

import pytest

from tests.fitting.running import case, fit_here, fit_in_forks

TIGHT = {"kernel": "rbf", "memory_limit": "250MiB"}


@cache
def facts_of(n, d, **settings):
    """Facts of a fit on workers, which start with it: what this process holds does not count. No fit runs twice."""
    return fit_here(n, d, None, workers=2, solver="cholesky", **settings)[1]


@pytest.mark.parametrize(
    ("n", "d", "settings"),
    [
        (5000, 8, TIGHT),
        (2300, 300, {"kernel": "laplacian", "memory_limit": "500MiB", "tile": 800}),
        (4000, 8, {"kernel": "rbf", "memory_limit": "3GiB", "tile": 2000}),
        (3000, 60, {"kernel": "polynomial", "degree": 2, "form": "primal", "memory_limit": "450MiB", "tile": 500}),
        (6000, 8, {"targets": 1200, "fit_intercept": True, "memory_limit": "550MiB", "tile": 8}),
    ],
    ids=str,
)
def test_workers_keep_the_promise(n, d, settings):
    facts = facts_of(n, d, **settings)
    assert (facts["execution"], facts["solver"]) == ("dask", "cholesky")
    assert facts["residual"] < 1e-10
    assert max(facts["peaks"].values()) <= facts["projected"] <= facts["limit"]
    assert facts["written"] <= 1.01 * facts["planned_written"]


def test_the_calling_process_keeps_the_promise():
    (facts,) = fit_in_forks([case(5000, 8, None, kernel="rbf", memory_limit="700MiB", solver="cholesky")])
    assert facts["execution"] == "memory"
    assert facts["peak"] <= facts["projected"] <= facts["limit"]


def test_memory_does_not_grow_with_n():
    """The tiles of 5,000 rows take 100 MiB, those of 2,600 a third of it."""
    large = facts_of(5000, 8, **TIGHT)
    small = facts_of(2600, 8, tile=large["tile"], **TIGHT)
    assert small["execution"] == large["execution"] == "dask" and small["tile"] == large["tile"]
    assert max(large["peaks"].values()) < max(small["peaks"].values()) + 30 * 2**20
