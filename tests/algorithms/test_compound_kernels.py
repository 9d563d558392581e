"""A kernel made of others states its values; the base does the rest."""

from dataclasses import FrozenInstanceError, dataclass
from typing import ClassVar

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.errors import InputError, InputTypeError
from dkrr.kernels import (
    RBF,
    AdditiveChi2,
    BagOfWords,
    CallableKernel,
    Chi2,
    Columns,
    Cosine,
    Kernel,
    Linear,
    Matern,
    Normalized,
    Polynomial,
    Precomputed,
    Sigmoid,
    kernel_from_dict,
)
from dkrr.kernels.columns import Compound
from dkrr.kernels.custom import FunctionCost


@dataclass(frozen=True)
class Squared(Compound):
    """k(x, z) = k₁(x, z)²."""

    tag: ClassVar[str] = "squared"

    base: Kernel

    def _filler(self, X, Y, dtype):
        base = self.base._filler(X, Y, dtype)

        def fill(rows, columns, out):
            base(rows, columns, out)
            out *= out

        return fill

    def _diagonal(self, X):
        return self.base._diagonal(X) ** 2


X = np.random.default_rng(0).standard_normal((9, 4))


@pytest.mark.parametrize("rows", [X, sp.csr_array(X)], ids=["dense", "CSR"])
def test_a_compound_states_its_values_and_gets_the_rest(rows):
    kernel = Squared(Linear() + RBF())
    assert_allclose(kernel(rows), (Linear() + RBF())(rows) ** 2, rtol=1e-14)
    assert_array_equal(kernel.diagonal(rows), kernel(rows).diagonal())


def test_cost_and_parameters_of_a_compound_follow_from_its_parts():
    kernel = Squared(RBF())
    assert kernel.parts == (RBF(),)
    assert kernel.resolved(4) == Squared(RBF(0.25))
    assert kernel.entry_cost(4) == RBF().entry_cost(4)
    assert kernel.workspace_bytes(50, 60, 4) == RBF().workspace_bytes(50, 60, 4)
    assert kernel.pieces_bytes(50, 60, 4, 80) == RBF().pieces_bytes(50, 60, 4, 80)
    assert (kernel.sparse_parts, Squared(RBF() * Linear()).sparse_parts, Squared(Chi2()).sparse_parts) == (1, 2, 0)


def test_resolved_kernels_are_not_copied():
    kernel = Squared(Linear() + RBF(0.5))
    assert kernel.resolved(4) is kernel


def test_a_compound_learns_from_data_that_are_not_numbers():
    documents = ["the cat sat", "the cat ran", "dogs bark"]
    kernel = Squared(BagOfWords()).fitted(documents)
    assert isinstance(kernel.base, Columns)
    assert_allclose(kernel(documents), BagOfWords().fitted(documents)(documents) ** 2, rtol=1e-14)


def test_parts_of_a_compound_must_be_kernels():
    with pytest.raises(InputTypeError, match="base is 'rbf'; expected a dkrr.kernels.Kernel"):
        Squared("rbf")
    with pytest.raises(InputError, match="base is a precomputed kernel"):
        Squared(Precomputed())


def rows(n, d, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


def test_a_row_without_length_is_at_right_angles_to_all():
    X = np.array([[1.0, 2.0], [0.0, 0.0], [3.0, -1.0]])
    K = Normalized(Polynomial(degree=2, coef0=0.0))(X)
    assert_array_equal(K[1], 0.0)
    assert_array_equal(K[:, 1], 0.0)
    assert_array_equal(K.diagonal(), [1.0, 0.0, 1.0])
    assert_array_equal(Normalized(AdditiveChi2())(np.abs(X)), 0.0)


def test_the_normalised_linear_kernel_is_the_cosine():
    X, Z = rows(20, 5), rows(30, 5, seed=1)
    assert_allclose(Normalized(Linear())(X, Z), Cosine()(X, Z), rtol=1e-13, atol=1e-14)
    assert_allclose(Normalized(RBF())(X, Z), RBF()(X, Z), rtol=1e-15)  # it has unit diagonal already
    assert_allclose(Normalized(Normalized(Polynomial()))(X, Z), Normalized(Polynomial())(X, Z), rtol=1e-14)
    assert_allclose(Normalized(3.7 * Polynomial())(X, Z), Normalized(Polynomial())(X, Z), rtol=1e-13)


def test_normalising_tiny_and_huge_values_gives_the_cosine():
    for scale in (1e-150, 1e150):
        kernel = Normalized(scale * Linear())
        X = rows(5, 3)
        assert_allclose(kernel(X), Cosine()(X), rtol=1e-12, atol=1e-14)


def test_what_has_no_lengths_is_refused():
    with pytest.raises(InputError, match=r"k\(x, x\) = -0\.\d+ .*expected at least 0"):
        Normalized(Sigmoid(gamma=0.01, coef0=-1.0))(rows(4, 2))
    with pytest.raises(InputTypeError, match="expected a dkrr"):
        Normalized("rbf")
    with pytest.raises(InputError, match="combine the matrices instead"):
        Normalized(Precomputed())
    with pytest.raises(InputError, match="no parameter"):
        kernel_from_dict({"kernel": "normalized", "base": {"kernel": "rbf"}, "scale": 2})


def test_parameters_of_nested_parts_are_set_by_their_path():
    kernel = Normalized(RBF(1.0) + 2.0 * Linear()) * Matern()
    assert kernel.get_params()["left__base__right__scale"] == 2.0
    changed = kernel.set_params(left__base__right__scale=3, left__base__left__gamma=0.5, right__nu=0.5)
    assert changed == Normalized(RBF(0.5) + 3.0 * Linear()) * Matern(0.5)
    assert kernel == Normalized(RBF(1.0) + 2.0 * Linear()) * Matern()
    with pytest.raises(FrozenInstanceError):
        kernel.left = Linear()


def test_a_part_and_its_parameter_can_be_set_together():
    assert (RBF() + Linear()).set_params(right__nu=2.5, right=Matern()) == RBF() + Matern(2.5)


def test_a_measured_cost_is_not_kept_for_another_function():
    kernel = CallableKernel(max, cost=FunctionCost(1.0, 1.0, 1.0, 1))
    assert "cost" not in kernel.get_params()
    assert kernel.set_params(function=min).cost is None


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"left__gama": 1.0}, "RBF has no parameter 'gama'; expected one of: 'gamma'"),
        ({"gamma": 1.0}, "Sum has no parameter 'gamma'; expected one of: 'left', 'left__gamma', 'right'"),
        ({"left__gamma__x": 1.0}, "gamma is None, which has no parameter 'x'"),
        ({"left__gamma": -1.0}, "gamma is -1.0; expected a finite number above 0"),
        ({"right__x": 1.0}, "Linear has no parameter 'x'; expected one of: none"),
    ],
)
def test_a_wrong_parameter_is_named_with_those_that_exist(params, message):
    with pytest.raises(InputError, match=message):
        (RBF() + Linear()).set_params(**params)
