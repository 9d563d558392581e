"""The Nyström map of given centres: k(x, C) K_CC⁻¹ k(C, z), and no features that are rounding."""

import json
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.errors import InputError
from dkrr.features import Nystroem
from dkrr.kernels import RBF, Laplacian, Linear, Matern, Polynomial, Precomputed, Sigmoid, nystroem
from dkrr.kernels.descriptions import feature_map_from_dict, kernel_from_dict
from dkrr.kernels.kernel_features import arrays_of
from dkrr.kernels.map_base import MapKernel
from dkrr.kernels.nystroem import NystroemMap, whitened
from tests.systems import random

KERNELS = [RBF(gamma=0.4), Laplacian(gamma=0.3), Matern(nu=2.5), 2 * RBF(gamma=1.0) + Linear(), Polynomial(degree=5)]


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_a_nystroem_map_is_the_formula_of_its_centres(kernel):
    X, Z, C = random(13, 4, seed=1), random(11, 4, seed=2), random(17, 4)
    found = MapKernel(whitened(kernel, C))(X, Z)
    assert_allclose(found, kernel(X, C) @ np.linalg.solve(kernel(C), kernel(C, Z)), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("kernel", "centres", "ranks"),
    [
        (RBF(gamma=0.5), np.repeat(random(20, 3), 3, axis=0), {20}),
        (Polynomial(degree=2), random(60, 3), {10}),
        (RBF(gamma=0.5), np.zeros((4, 2)), {1}),
        (RBF(gamma=1e-3), random(200, 2), range(10, 80)),
    ],
    ids=["duplicates", "polynomial", "one point", "nearly singular"],
)
def test_centres_that_repeat_others_are_left_out(kernel, centres, ranks):
    phi = whitened(kernel, centres)
    features, rank = phi.transform(centres), phi.dimension(centres.shape[1])
    assert features.shape[1] == rank in ranks
    assert_allclose(features @ features.T, kernel(centres), rtol=1e-9, atol=1e-9)
    assert len(ranks) > 1 or np.linalg.matrix_rank(features) == rank  # so that λ = 0 has a solution


@pytest.mark.parametrize("kernel", [RBF(gamma=0.4), 2 * Laplacian(gamma=1.0) + Linear()], ids=str)
def test_nystroem_features_do_not_depend_on_ranges_containers_and_strips(kernel, monkeypatch):
    monkeypatch.setattr(nystroem, "STRIP_COLUMNS", 5)
    monkeypatch.setattr(nystroem, "GRAM_STRIP_ENTRIES", 70)
    X, C = np.where(random(23, 4) > 0, random(23, 4), 0.0), random(17, 4, seed=3)
    phi, of_sparse = whitened(kernel, C), whitened(kernel, sp.csr_array(C))
    whole = phi.transform(X)
    assert_allclose(whole, kernel(X, phi.centres) @ phi.whitening, rtol=1e-9, atol=1e-9)
    for start, stop in ((0, 4), (4, 5), (5, 11), (4, 17), (16, 17), (5, 4)):
        assert_allclose(phi.transform(X, slice(start, stop)), whole[:, start:stop], rtol=1e-9, atol=1e-9)
    assert sp.issparse(of_sparse.centres)
    for each in (phi, of_sparse):
        assert_allclose(each.transform(sp.csr_array(X)), whole, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_nystroem_map_comes_back_from_its_description_and_arrays(sparse):
    C = random(9, 4)
    phi = whitened(RBF(), sp.csr_array(C) if sparse else C)
    again = feature_map_from_dict(json.loads(json.dumps(phi.to_dict())), arrays=arrays_of(phi))
    assert again == phi == pickle.loads(pickle.dumps(phi)) and hash(again) == hash(phi)
    assert_array_equal(again.transform(C), phi.transform(C))
    kernel = 2.0 * (Linear() + phi)
    assert kernel_from_dict(json.loads(json.dumps(kernel.to_dict())), arrays=arrays_of(kernel)) == kernel
    assert phi != whitened(RBF(), C + 1) and "9 centres" in repr(phi)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Nystroem(Precomputed(), 10), "precomputed"),
        (lambda: Nystroem(RBF(), 10).transform(random(3, 2)), "no centres yet"),
        (lambda: whitened(Sigmoid(coef0=-1.0), random(30, 3)), "not positive semidefinite"),
        (lambda: whitened(Linear(), np.zeros((3, 2))), "or zero there"),
        (lambda: NystroemMap(RBF(), random(3, 2), np.eye(4)), "for every centre"),
        (lambda: whitened(RBF(), random(9, 2)).transform(random(3, 4)), "features"),
        (lambda: feature_map_from_dict(whitened(RBF(), random(9, 2)).to_dict()), "is missing; expected"),
    ],
)
def test_wrong_centres_and_kernels_are_named(make, match):
    with pytest.raises(InputError, match=match):
        make()
