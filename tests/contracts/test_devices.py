"""What is promised of every kernel that has a form on a GPU: its entries are those of naive loops, in both precisions.

NumPy and the strict namespace of the array API standard stand for CuPy: what both run uses the standard alone.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from dkrr import kernels as k
from dkrr.errors import InputError
from dkrr.kernels import device as of_devices
from dkrr.kernels.centring import CentredLinear
from dkrr.kernels.device import Device, DeviceKernel, refusal
from tests.contracts.kernels import CASES
from tests.gpus import NAMESPACES
from tests.oracles import naive_gram

BOUND = {"float64": 1e-13, "float32": 1e-5}
ON_DEVICES = [
    *(case.kernel for case in CASES if type(case.kernel) in of_devices.FORMS and not refusal(case.kernel)),
    k.RBF(gamma=[0.1, 0.2, 0.3, 0.4, 0.5]),
    k.Matern(nu=2.5, length_scale=[1.0, 2.0, 3.0, 4.0, 5.0]),
    k.Polynomial(degree=5, gamma=0.2, coef0=0.0),
    k.Columns(k.RBF(gamma=0.2), [0, 2]) + 0.5 * k.Columns(k.Linear(), [1]) * k.RBF(gamma=0.1),
    CentredLinear([0.5, -1.0, 0.0, 2.0, 1.0]),
]
LARGE = {"float64": 3e4, "float32": 3e3}
"""Numbers γ with which exponents of distances from a product of matrices have too few digits."""

REFINED = {"float64": 1e-11, "float32": 1e-4}
"""Accuracy of distances from differences of rows that are scaled in a type."""

every_namespace = pytest.mark.parametrize("xp", NAMESPACES.values(), ids=NAMESPACES)
both_precisions = pytest.mark.parametrize("precision", BOUND)


def entries(kernel, X, Z=None):
    """By naive loops."""
    if isinstance(kernel, CentredLinear):
        return naive_gram(k.Linear(), X - kernel.origin, None if Z is None else Z - kernel.origin)
    return naive_gram(kernel, X, Z)


def rows(n, seed):
    return np.random.default_rng(seed).standard_normal((n, 5)) + 2.0


def assert_entries(found, expected, precision):
    largest = max(1.0, np.abs(expected).max())
    assert_allclose(np.asarray(found) / largest, expected / largest, rtol=0, atol=BOUND[precision])


@every_namespace
@both_precisions
@pytest.mark.parametrize("kernel", ON_DEVICES, ids=str)
def test_entries_are_those_of_naive_loops(xp, precision, kernel):
    X, Z = rows(23, 0), rows(9, 1)
    X[4], Z[3], X[7] = X[11], X[2], 0.0  # equal rows, and one of zeros
    on_device = DeviceKernel(kernel.resolved(5), Device(xp), X.mean(axis=0))
    left, right = on_device.rows(X, precision), on_device.rows(Z, precision)
    assert_entries(on_device.block(left, right, precision), entries(kernel, X, Z), precision)
    assert_entries(on_device.block(left[3:8], right, precision), entries(kernel, X[3:8], Z), precision)
    whole = np.asarray(on_device.block(left, left, precision, same=True))
    assert whole.dtype == precision
    assert_entries(whole, entries(kernel, X), precision)
    single = on_device.rows(X[:1], precision)
    assert_entries(on_device.block(single, single, precision, same=True), entries(kernel, X[:1]), precision)


@every_namespace
@both_precisions
@pytest.mark.parametrize("at_once", [3, 2**22])
def test_distances_that_have_lost_their_digits_are_computed_again(monkeypatch, xp, precision, at_once):
    monkeypatch.setattr(of_devices, "PAIRS_AT_ONCE", 5 * at_once)
    X = rows(17, 0)
    Z = X[:11] + 1e-3 * rows(11, 1) / np.sqrt(LARGE[precision] / 1e3)
    X, Z = (one.astype(precision).astype(float) for one in (X, Z))
    for kernel in (k.RBF(gamma=LARGE[precision]), k.Matern(nu=0.5, length_scale=0.5)):
        on_device = DeviceKernel(kernel, Device(xp), np.zeros(5))
        found = on_device.block(on_device.rows(X, precision), on_device.rows(Z, precision), precision)
        assert_allclose(np.asarray(found), naive_gram(kernel, X, Z), rtol=0, atol=REFINED[precision])


def test_few_entries_are_computed_again_where_rows_are_far_from_their_mean(monkeypatch):
    seen, refine = [], of_devices._Distances._refine
    monkeypatch.setattr(
        of_devices._Distances,
        "_refine",
        lambda self, s, mask, *rows: seen.append(mask.mean()) or refine(self, s, mask, *rows),
    )
    X = np.random.default_rng(0).lognormal(size=(400, 3))
    on_device = DeviceKernel(k.RBF(gamma=1e4), Device(np), X.mean(axis=0))
    found = on_device.block(on_device.rows(X, "float64"), on_device.rows(X[:50], "float64"), "float64")
    assert_allclose(found, k.RBF(gamma=1e4)(X, X[:50]), rtol=0, atol=1e-11)
    assert 0 < seen[0] < 0.02


@pytest.mark.parametrize(
    "kernel", [k.Laplacian(), k.Polynomial(degree=2.5), k.RBF() + k.Laplacian(), k.Precomputed()], ids=str
)
def test_kernels_without_a_form_say_so(kernel):
    assert refusal(kernel)
    with pytest.raises(InputError, match="expected device='cpu'"):
        DeviceKernel(kernel, Device(np), np.zeros(3))


def test_rows_beyond_the_range_of_float64_are_refused():
    on_device = DeviceKernel(k.RBF(gamma=1.0), Device(np), np.zeros(2))
    with pytest.raises(InputError, match="leaves the range of float64"):
        on_device.rows(np.full((2, 2), 1e155), "float64")
    assert on_device.rows(np.full((2, 2), 1e16), "float64").n == 2
