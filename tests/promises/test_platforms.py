"""What only Linux has is not needed: without it, fits in memory and in tiles, predictions and records work."""

import os

import dask
import numpy as np
import pytest
import zarr

import dkrr
from dkrr import limits

ONLY_LINUX = ("sched_getaffinity", "sched_setaffinity", "posix_fadvise", "posix_fallocate", "preadv", "sendfile")


@pytest.mark.parametrize("settings", [{}, {"store": "run.zarr", "tile": 64}], ids=["memory", "tiles"])
def test_fits_and_predictions_work_without_what_only_linux_has(tmp_path, monkeypatch, settings):
    for name in ONLY_LINUX:
        monkeypatch.delattr(os, name, raising=False)
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(0).normal(size=(200, 3))
    y = np.sin(X[:, 0])
    zarr.save_array("x.zarr", X, zarr_format=3)
    with dask.config.set({"dkrr.local.workers": None}):
        model = dkrr.KernelRidge(0.1, kernel="rbf", gamma=0.2, solver="cholesky", **settings).fit("x.zarr", y)
    K = np.exp(-0.2 * ((X[:, None] - X) ** 2).sum(axis=2))
    exact = np.linalg.solve(K + 0.1 * np.eye(200), y)
    np.testing.assert_allclose(model.dual_coef_, exact, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.predict(X), K @ exact, atol=1e-11)


def test_peak_memory_where_the_system_counts_in_bytes(monkeypatch):
    def no_file(path, *_):
        raise FileNotFoundError(path)

    monkeypatch.setattr(limits.os, "open", no_file)
    in_kib = limits.peak_resident_bytes()
    monkeypatch.setattr(limits.sys, "platform", "darwin")
    assert limits.peak_resident_bytes() == in_kib // 1024
    limits.reset_peak()
