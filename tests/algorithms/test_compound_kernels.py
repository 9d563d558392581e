"""A kernel made of others states its values; the base does the rest."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.errors import InputError
from dkrr.kernels import (
    RBF,
    BagOfWords,
    CallableKernel,
    Kernel,
    Linear,
    Normalized,
    Precomputed,
    Sigmoid,
    kernel_from_dict,
)
from dkrr.kernels.columns import Compound
from dkrr.kernels.custom import FunctionCost
from tests.systems import random


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


def test_a_compound_states_its_values_and_gets_the_rest():
    base, kernel = Linear() + RBF(), Squared(Linear() + RBF())
    for rows in (random(9, 4), sp.csr_array(random(9, 4))):
        assert_allclose(kernel(rows), base(rows) ** 2, rtol=1e-14)
        assert_array_equal(kernel.diagonal(rows), kernel(rows).diagonal())
    assert kernel.parts == (base,) and kernel.sparse_parts == base.sparse_parts == 2
    assert kernel.resolved(4) == Squared(Linear() + RBF(0.25))
    assert kernel.entry_cost(4) == base.entry_cost(4)
    assert kernel.workspace_bytes(50, 60, 4) == base.workspace_bytes(50, 60, 4)
    assert kernel.pieces_bytes(50, 60, 4, 80) == base.pieces_bytes(50, 60, 4, 80)
    documents = ["the cat sat", "the cat ran", "dogs bark"]
    learned = Squared(BagOfWords()).fitted(documents)
    assert_allclose(learned(documents), BagOfWords().fitted(documents)(documents) ** 2, rtol=1e-14)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Squared("rbf"), "base is 'rbf'; expected a dkrr.kernels.Kernel"),
        (lambda: Squared(Precomputed()), "base is a precomputed kernel"),
        (lambda: Normalized(Sigmoid(0.01, -1.0))(random(4, 2)), r"k\(x, x\) = -0\.\d+ .*expected at least 0"),
        (lambda: Normalized(Precomputed()), "combine the matrices instead"),
        (lambda: kernel_from_dict({"kernel": "normalized", "base": {"kernel": "rbf"}, "scale": 2}), "no parameter"),
    ],
)
def test_parts_must_be_kernels_that_have_lengths_where_these_count(make, message):
    with pytest.raises(InputError, match=message):
        make()


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
