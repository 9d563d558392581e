"""Measured peak ≤ projected peak ≤ limit, for every worker process, and on disk only what was planned."""

import tempfile
from functools import cache
from pathlib import Path

import pytest

from tests.fitting.running import finish, start

TIGHT = {"kernel": "rbf", "memory_limit": "250MiB"}


@cache
def facts_of(n, d, **settings):
    """What a fit in a process of its own measured; the same one is not run twice."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.npz"
        return finish(start(n, d, None, out, **settings), out)[1]


@pytest.mark.parametrize(
    ("n", "d", "settings"),
    [
        (5000, 8, TIGHT),
        (3000, 300, {"kernel": "laplacian", "memory_limit": "500MiB", "tile": 800}),
        (4000, 8, {"kernel": "rbf", "memory_limit": "3GiB", "tile": 2000}),
        (3000, 60, {"kernel": "polynomial", "degree": 2, "form": "primal", "memory_limit": "450MiB", "tile": 500}),
        (6000, 8, {"targets": 1200, "fit_intercept": True, "memory_limit": "550MiB", "tile": 8}),
    ],
    ids=str,
)
def test_workers_keep_the_promise(n, d, settings):
    facts = facts_of(n, d, workers=2, solver="cholesky", **settings)
    assert (facts["execution"], facts["solver"]) == ("dask", "cholesky")
    assert facts["residual"] < 1e-10
    assert max(facts["peaks"].values()) <= facts["projected"] <= facts["limit"]
    assert facts["written"] <= 1.01 * facts["planned_written"]


def test_the_calling_process_keeps_the_promise():
    facts = facts_of(5000, 8, kernel="rbf", memory_limit="700MiB", solver="cholesky")
    assert facts["execution"] == "memory"
    assert facts["peak"] <= facts["projected"] <= facts["limit"]


def test_memory_does_not_grow_with_n():
    """The tiles of 5,000 rows take 100 MiB, those of 2,600 a third of it."""
    large = facts_of(5000, 8, workers=2, solver="cholesky", **TIGHT)
    small = facts_of(2600, 8, workers=2, solver="cholesky", tile=large["tile"], **TIGHT)
    assert small["execution"] == large["execution"] == "dask" and small["tile"] == large["tile"]
    assert max(large["peaks"].values()) < max(small["peaks"].values()) + 30 * 2**20
