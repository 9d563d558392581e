"""Measured peak ≤ projected peak ≤ limit, for every worker process, and on disk only what was planned."""

import pytest

from tests.fitting.running import finish, start


@pytest.mark.parametrize(
    ("n", "d", "settings"),
    [
        (5000, 8, {"kernel": "rbf", "memory_limit": "250MiB"}),
        (3000, 300, {"kernel": "laplacian", "memory_limit": "500MiB", "tile": 800}),
        (4000, 8, {"kernel": "rbf", "memory_limit": "3GiB", "tile": 2000}),
        (3000, 60, {"kernel": "polynomial", "degree": 2, "form": "primal", "memory_limit": "450MiB", "tile": 500}),
        (6000, 8, {"targets": 1200, "fit_intercept": True, "memory_limit": "550MiB", "tile": 8}),
    ],
    ids=str,
)
def test_workers_keep_the_promise(tmp_path, n, d, settings):
    settings |= {"workers": 2, "solver": "cholesky"}
    _, facts = finish(start(n, d, None, tmp_path / "out.npz", **settings), tmp_path / "out.npz")
    assert (facts["execution"], facts["solver"]) == ("dask", "cholesky")
    assert facts["residual"] < 1e-10
    assert max(facts["peaks"].values()) <= facts["projected"] <= facts["limit"]
    assert facts["written"] <= 1.01 * facts["planned_written"]


def test_the_calling_process_keeps_the_promise(tmp_path):
    settings = {"kernel": "rbf", "memory_limit": "700MiB", "solver": "cholesky"}
    _, facts = finish(start(5000, 8, None, tmp_path / "out.npz", **settings), tmp_path / "out.npz")
    assert facts["execution"] == "memory"
    assert facts["peak"] <= facts["projected"] <= facts["limit"]


@pytest.mark.slow
def test_memory_does_not_grow_with_n(tmp_path):
    peaks = []
    for n in (2000, 6000):
        settings = {"kernel": "rbf", "memory_limit": "420MiB", "tile": 700, "workers": 2, "solver": "cholesky"}
        _, facts = finish(start(n, 8, None, tmp_path / "out.npz", **settings), tmp_path / "out.npz")
        peaks.append(max(facts["peaks"].values()))
        assert facts["written"] <= 1.01 * facts["planned_written"]
        assert peaks[-1] <= facts["projected"] <= facts["limit"]
    assert peaks[1] < peaks[0] + 30 * 2**20
