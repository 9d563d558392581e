"""Random Fourier features: near the kernel, by D^(-1/2), and a function of the seed alone."""

import json
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from dkrr.features import MapKernel, RandomFourier, feature_map_from_dict, fourier
from dkrr.kernels import RBF, Laplacian, Matern

KERNELS = [
    RBF(gamma=0.3),
    Laplacian(gamma=0.4),
    Matern(nu=0.5),
    Matern(nu=1.5, length_scale=2.0),
    Matern(nu=2.5, length_scale=0.7),
]
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=str)


def rows(n, d, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


@every_kernel
def test_the_error_falls_as_one_over_the_root_of_d(kernel):
    X = rows(60, 4)
    exact, below = kernel(X), np.tril_indices(60, -1)

    def error(n_components, seeds):
        maps = [RandomFourier(kernel, n_components, seed).transform(X) for seed in seeds]
        return np.sqrt(np.mean([((phi @ phi.T - exact)[below] ** 2).mean() for phi in maps]))

    few, many = error(64, range(16)), error(4096, range(4))
    # The variance of an entry is (1 + k(2Δ) - 2 k(Δ)²) / D: at most 1.02 for these kernels.
    assert few * 8 < 1.25
    assert many * 64 < 1.25
    assert 5 < few / many < 13  # 8, but for chance


@every_kernel
def test_the_mean_is_the_kernel(kernel):
    X = rows(20, 3)
    mean = np.mean([MapKernel(RandomFourier(kernel, 400, seed))(X) for seed in range(60)], axis=0)
    assert np.abs(mean - kernel(X)).max() < 5 / np.sqrt(400 * 60)


@every_kernel
def test_a_point_with_itself_is_exact(kernel):
    assert_allclose(MapKernel(RandomFourier(kernel, 10)).diagonal(rows(9, 3)), 1.0, rtol=1e-14)


def test_the_seed_and_the_columns_determine_the_features():
    X, phi = rows(5, 3), RandomFourier(RBF(), 8)
    again = feature_map_from_dict(json.loads(json.dumps(phi.to_dict())))
    fourier.frequencies.cache_clear()
    assert_array_equal(again.transform(X), phi.transform(X))
    assert not np.allclose(RandomFourier(RBF(), 8, random_state=1).transform(X), phi.transform(X))
    fewer = RandomFourier(RBF(), 6).transform(X)
    assert_allclose(fewer * np.sqrt(6 / 8), phi.transform(X)[:, :6], rtol=1e-14)


def test_frequencies_are_the_same_in_every_version():
    # A saved model holds the seed, not the frequencies.
    found = [fourier.frequencies(kernel, 5, 2, 1)[1, 3] for kernel in (RBF(gamma=0.5), Laplacian(gamma=1.0), Matern())]
    assert_allclose(found, [1.175488527608616, 2.5280396250287787, 0.8894539057538315], rtol=1e-12)


@every_kernel
def test_the_distribution_of_the_frequencies(kernel):
    one = np.concatenate([fourier.frequencies(kernel, seed, 1, b)[0] for seed in range(5) for b in range(4)])
    theirs = {
        RBF: lambda: stats.norm(scale=np.sqrt(2 * kernel.gamma)),
        Laplacian: lambda: stats.cauchy(scale=kernel.gamma),
        Matern: lambda: stats.t(2 * kernel.nu, scale=1 / kernel.length_scale),
    }[type(kernel)]()
    assert stats.kstest(one, theirs.cdf).pvalue > 1e-3


def test_blocks_of_frequencies_leave_no_seams(monkeypatch):
    monkeypatch.setattr(fourier, "BLOCK_FREQUENCIES", 5)
    fourier.frequencies.cache_clear()
    X, phi = rows(7, 3), RandomFourier(Matern(), 34)
    whole = phi.transform(X)
    omega = np.hstack([fourier.frequencies(Matern(), 0, 3, b) for b in range(4)])[:, :17]
    assert_allclose(whole[:, 0::2], np.cos(X @ omega) * np.sqrt(2 / 34), atol=1e-14)
    assert_allclose(whole[:, 1::2], np.sin(X @ omega) * np.sqrt(2 / 34), atol=1e-14)
    for start in range(34):
        for stop in range(start, 35):
            assert_allclose(phi.transform(X, slice(start, stop)), whole[:, start:stop], atol=1e-14)
    fourier.frequencies.cache_clear()


def test_other_frequencies_are_not_drawn(monkeypatch):
    monkeypatch.setattr(fourier, "BLOCK_FREQUENCIES", 4)
    fourier.frequencies.cache_clear()
    RandomFourier(RBF(), 800).transform(rows(2, 3), slice(9, 15))
    assert fourier.frequencies.cache_info().misses == 1
    fourier.frequencies.cache_clear()


def test_many_sparse_columns_are_not_made_dense():
    X = sp.random_array((30, 200_000), density=1e-4, rng=np.random.default_rng(0), format="csr")
    fourier.frequencies.cache_clear()
    tracemalloc.start()
    phi = RandomFourier(RBF(gamma=0.1), 12)
    features = phi.transform(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    fourier.frequencies.cache_clear()
    assert peak < phi.held_bytes(200_000) + 2**20
    assert np.isfinite(features).all()


def test_the_cost_is_that_of_a_projection():
    assert RandomFourier(RBF(), 2000).entry_seconds(5500) > 5 * RandomFourier(RBF(), 2000).entry_seconds(10)
    kernel = MapKernel(RandomFourier(RBF(), 2000))
    assert kernel.entry_cost(10).gemm_flops == 4000
    assert kernel.workspace_bytes(100, 50, 10) > 150 * 2000 * 8
