"""All columns and their products: features that show which pairs of columns act together."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp

from dkrr import blas
from dkrr.kernels import map_base
from dkrr.kernels.base import Kernel
from dkrr.kernels.blocks import Block, is_sparse
from dkrr.kernels.dot import Linear, Polynomial
from dkrr.kernels.map_base import ENTRY_COPY_SECONDS, Array, FeatureMap
from dkrr.kernels.maps import ConcatenatedMap, IdentityMap, PolynomialMap

_PARTS = ConcatenatedMap(IdentityMap(), PolynomialMap(degree=2, gamma=1.0, coef0=0.0))


@dataclass(frozen=True)
class InteractionMap(FeatureMap):
    """φ(x) = (x, x₁x, ..., x_d x), all columns and all products of two, for the kernel xᵀz + (xᵀz)².

    xᵢxⱼ and xⱼxᵢ are one feature, √2 xᵢxⱼ for i < j: inner products are the same, and so are fits and predictions, with
    D = d + d(d + 1)/2 instead of d + d². In the literal form each of the two has the coefficient w/√2, for a
    coefficient w here. The order is x, then x₁², x₁x₂, ..., x₁x_d, x₂², ...

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.kernels.interactions import InteractionMap
    >>> InteractionMap().transform(np.array([[3.0, 2.0]])).round(3)
    array([[3.   , 2.   , 9.   , 8.485, 4.   ]])
    """

    tag: ClassVar[str] = "interactions"
    # Not keeps_sparse, although products work on stored entries alone: a row has a feature for each pair of these, and
    # that property promises as many as there are stored entries.

    def dimension(self, n_features: int) -> int:
        return _PARTS.dimension(n_features)

    def entry_seconds(self, n_features: int) -> float:  # noqa: ARG002
        return 2 * ENTRY_COPY_SECONDS

    def kernel(self) -> Kernel:
        return Linear() + Polynomial(degree=2, gamma=1.0, coef0=0.0)

    def _fill(self, X: Block, start: int, stop: int, out: Array) -> None:
        _PARTS._fill(X, start, stop, out)

    # A product with the quadratic features is a product with a d × d matrix, which GEMM computes without them.

    def _multiply(self, X: Block, coef: Array) -> Array:
        d = X.shape[1]
        out = _PARTS.left._multiply(X, coef[:d])
        if is_sparse(X):
            for rows in _strips_of_pairs(X):
                out[rows] += _products_of_pairs(X[rows]) @ coef[d:]
            return out
        for target in range(coef.shape[1]):
            # xᵀSx with the coefficients in the upper triangle S.
            form = np.zeros((d, d))
            for i, row in _rows_of_pairs(d):
                form[i, i:] = coef[d + row.start : d + row.stop, target] * sqrt(2.0)
                form[i, i] /= sqrt(2.0)
            for rows, block in _strips(X):
                out[rows, target] += np.einsum("ij,ij->i", blas.product(block, form), block)
        return out

    def _adjoint(self, X: Block, values: Array) -> Array:
        d = X.shape[1]
        out = np.zeros((self.dimension(d), values.shape[1]))
        out[:d] = _PARTS.left._adjoint(X, values)
        if is_sparse(X):
            for rows in _strips_of_pairs(X):
                out[d:] += _products_of_pairs(X[rows]).T @ values[rows]
            return out
        for target in range(values.shape[1]):
            moments = np.zeros((d, d))  # Σ vᵢ xᵢxᵢᵀ
            for rows, block in _strips(X):
                blas.gemm(moments, block, block * values[rows, target, np.newaxis], transpose_a=True, beta=1.0)
            for i, row in _rows_of_pairs(d):
                out[d + row.start : d + row.stop, target] = moments[i, i:] * sqrt(2.0)
                out[d + row.start, target] = moments[i, i]
        return out


def _strips(X: Block) -> Iterator[tuple[slice, Array]]:
    """Yield dense rows in float64, a few at a time, so that a temporary of their size is small."""
    height = max(1, map_base.MAX_FEATURE_ENTRIES // X.shape[1])
    for top in range(0, X.shape[0], height):
        rows = slice(top, min(top + height, X.shape[0]))
        yield rows, np.ascontiguousarray(X[rows], np.float64)


def _rows_of_pairs(n_features: int) -> Iterator[tuple[int, slice]]:
    """Yield each i and the positions of the pairs (i, i), ..., (i, d − 1) among all pairs."""
    start = 0
    for i in range(n_features):
        yield i, slice(start, start + n_features - i)
        start += n_features - i


def _strips_of_pairs(X: Any) -> Iterator[slice]:
    """Yield ranges of CSR rows with about PRODUCT_ENTRIES pairs of stored entries, at least one row each."""
    stored = np.diff(X.indptr).astype(np.int64)
    before = np.concatenate([[0], np.cumsum(stored * (stored + 1) // 2)])
    top = 0
    while top < len(stored):
        stop = int(np.searchsorted(before, before[top] + map_base.MAX_FEATURE_ENTRIES, side="right")) - 1
        yield slice(top, max(top + 1, stop))
        top = max(top + 1, stop)


def _products_of_pairs(X: Any) -> Any:
    """Quadratic features of CSR rows as CSR, of shape (n_rows, d(d + 1)/2)."""
    n_rows, d = X.shape
    stored = np.diff(X.indptr).astype(np.int64)
    # Entry k of a row pairs with itself and those after it, whose columns are larger in canonical CSR.
    entries = np.arange(len(X.data), dtype=np.int64)
    partners = np.repeat(X.indptr[1:].astype(np.int64), stored) - entries
    first = np.repeat(entries, partners)
    second = first + np.arange(len(first)) - np.repeat(np.cumsum(partners) - partners, partners)
    i, j = X.indices[first].astype(np.int64), X.indices[second].astype(np.int64)
    values = X.data[first].astype(np.float64) * X.data[second]
    values *= np.where(i == j, 1.0, sqrt(2.0))
    indptr = np.concatenate([[0], np.cumsum(stored * (stored + 1) // 2)])
    return sp.csr_array((values, i * d - i * (i - 1) // 2 + (j - i), indptr), shape=(n_rows, d * (d + 1) // 2))
