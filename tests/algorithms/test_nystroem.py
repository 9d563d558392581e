"""The Nyström map of given centres: k(x, C) K_CC⁻¹ k(C, z), and no features that are rounding."""

import json
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

from dkrr import features
from dkrr.errors import InputError
from dkrr.features import MapKernel, Nystroem, arrays_of, feature_map_from_dict, nystroem, whitened
from dkrr.kernels import RBF, Laplacian, Linear, Matern, Polynomial, Precomputed, Sigmoid

KERNELS = [RBF(gamma=0.4), Laplacian(gamma=0.3), Matern(nu=2.5), 2 * RBF(gamma=1.0) + Linear(), Polynomial(degree=5)]
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=str)


def rows(n, d, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


@every_kernel
def test_a_nystroem_map_is_the_formula_of_its_centres(kernel):
    X, Z, C = rows(13, 4, 1), rows(11, 4, 2), rows(17, 4)
    approximation = MapKernel(whitened(kernel, C))
    inverse = np.linalg.inv(kernel(C))
    assert_allclose(approximation(X, Z), kernel(X, C) @ inverse @ kernel(C, Z), rtol=1e-8, atol=1e-8)
    assert_allclose(approximation(C, Z), kernel(C, Z), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("kernel", "centres", "rank"),
    [
        (RBF(gamma=0.5), np.repeat(rows(20, 3), 3, axis=0), 20),
        (Polynomial(degree=2), rows(60, 3), 10),
        (RBF(gamma=0.5), np.zeros((4, 2)), 1),
    ],
    ids=["duplicates", "polynomial", "one point"],
)
def test_centres_that_repeat_others_are_left_out(kernel, centres, rank):
    phi = whitened(kernel, centres)
    assert phi.dimension(centres.shape[1]) == rank == phi.centres.shape[0]
    Phi = phi.transform(centres)
    assert_allclose(Phi @ Phi.T, kernel(centres), rtol=1e-10, atol=1e-10)
    assert np.linalg.matrix_rank(Phi) == rank  # so that λ = 0 has a solution


def test_a_nearly_singular_matrix_of_centres():
    X = rows(200, 2)
    kernel = RBF(gamma=1e-3)  # numerically of rank 30 or so
    phi = whitened(kernel, X)
    assert 10 < phi.dimension(2) < 80
    assert_allclose(phi.transform(X) @ phi.transform(X).T, kernel(X), rtol=0, atol=1e-9)


@pytest.mark.parametrize("kernel", [RBF(gamma=0.4), 2 * Laplacian(gamma=1.0) + Linear()], ids=str)
def test_nystroem_features_do_not_depend_on_ranges_containers_and_strips(kernel, monkeypatch):
    monkeypatch.setattr(nystroem, "STRIP_COLUMNS", 5)
    monkeypatch.setattr(nystroem, "STRIP_ENTRIES", 70)
    X, C = np.where(rows(23, 4) > 0, rows(23, 4), 0.0), rows(17, 4, 3)
    phi = whitened(kernel, C)
    whole = phi.transform(X)
    assert_allclose(whole, kernel(X, phi.centres) @ phi.whitening, rtol=1e-9, atol=1e-9)
    for start, stop in ((0, 4), (4, 5), (5, 11), (4, 17), (16, 17), (5, 4)):
        assert_allclose(phi.transform(X, slice(start, stop)), whole[:, start:stop], rtol=1e-9, atol=1e-9)
    assert_allclose(phi.transform(sp.csr_array(X)), whole, rtol=1e-8, atol=1e-8)
    of_sparse = whitened(kernel, sp.csr_array(C))
    assert sp.issparse(of_sparse.centres)
    assert_allclose(of_sparse.transform(sp.csr_array(X)), whole, rtol=1e-7, atol=1e-7)


def test_float32_centres_are_whitened_in_float64():
    X = rows(50, 3).astype(np.float32)
    phi = whitened(RBF(), X)
    assert phi.whitening.dtype == phi.centres.dtype == np.float64
    assert_allclose(phi.transform(X) @ phi.transform(X).T, RBF()(X.astype(np.float64)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_nystroem_map_comes_back_from_its_description_and_arrays(sparse):
    C = rows(9, 4)
    phi = whitened(RBF(), sp.csr_array(C) if sparse else C)
    both = features.ScaledMap(features.ConcatenatedMap(features.IdentityMap(), phi), 2.0)
    for value in (phi, both):
        again = feature_map_from_dict(json.loads(json.dumps(value.to_dict())), arrays=arrays_of(value))
        assert again == value == pickle.loads(pickle.dumps(value)) and hash(again) == hash(value)
        assert_array_equal(again.transform(rows(3, 4)), value.transform(rows(3, 4)))
    kernel = both.kernel()
    description = json.loads(json.dumps(kernel.to_dict()))
    assert features.kernel_from_dict(description, arrays=arrays_of(kernel)) == kernel
    assert features.feature_map(kernel, 4).dimension(4) == both.dimension(4) == 13
    assert phi != whitened(RBF(), C + 1) and "9 centres" in repr(phi)


def test_the_cost_of_a_nystroem_map_is_that_of_its_centres():
    few, many, phi = Nystroem(RBF(), 100), Nystroem(RBF(), 5000), whitened(RBF(), rows(100, 10))
    assert many.entry_seconds(10) - few.entry_seconds(10) == pytest.approx(4900 / 55e9) and many.held_bytes(10) > 2e8
    assert (phi.entry_seconds(10), phi.held_bytes(10)) == (few.entry_seconds(10), few.held_bytes(10))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Nystroem(Precomputed(), 10), "precomputed"),
        (lambda: Nystroem(RBF(), 10).transform(rows(3, 2)), "no centres yet"),
        (lambda: whitened(Sigmoid(coef0=-1.0), rows(30, 3)), "not positive semidefinite"),
        (lambda: whitened(Linear(), np.zeros((3, 2))), "or zero there"),
        (lambda: features.NystroemMap(RBF(), rows(3, 2), np.eye(4)), "for every centre"),
        (lambda: whitened(RBF(), rows(9, 2)).transform(rows(3, 4)), "features"),
        (lambda: feature_map_from_dict(whitened(RBF(), rows(9, 2)).to_dict()), "is missing; expected"),
    ],
)
def test_wrong_centres_and_kernels_are_named(make, match):
    with pytest.raises(InputError, match=match):
        make()
