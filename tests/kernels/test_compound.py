"""A kernel made of others states its values; the base does the rest."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.errors import InputError, InputTypeError
from dkrr.kernels import RBF, BagOfWords, Chi2, Columns, Kernel, Linear, Precomputed
from dkrr.kernels.columns import Compound


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
def test_values(rows):
    kernel = Squared(Linear() + RBF())
    assert_allclose(kernel(rows), (Linear() + RBF())(rows) ** 2, rtol=1e-14)
    assert_array_equal(kernel.diagonal(rows), kernel(rows).diagonal())


def test_what_follows_from_the_parts():
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


def test_data_that_are_not_numbers():
    documents = ["the cat sat", "the cat ran", "dogs bark"]
    kernel = Squared(BagOfWords()).fitted(documents)
    assert isinstance(kernel.base, Columns)
    assert_allclose(kernel(documents), BagOfWords().fitted(documents)(documents) ** 2, rtol=1e-14)


def test_parts_are_checked():
    with pytest.raises(InputTypeError, match="base is 'rbf'; expected a dkrr.kernels.Kernel"):
        Squared("rbf")
    with pytest.raises(InputError, match="base is a precomputed kernel"):
        Squared(Precomputed())
