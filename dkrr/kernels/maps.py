"""Feature maps that follow from kernels: of all columns or some, about an origin, in multiples, sums and normalised.

`feature_map` makes them. They are neither described nor saved, which their kernels are.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import numpy as np

from dkrr import blas
from dkrr.kernels import multisets
from dkrr.kernels.blocks import STRIP_ENTRIES, STRIP_ROWS, Block, is_sparse
from dkrr.kernels.composite import Normalized
from dkrr.kernels.dot import unit_rows
from dkrr.kernels.map_base import ENTRY_COPY_SECONDS, Array, FeatureMap, ImpliedMap, dense_rows


class RowsMap(ImpliedMap):
    """A map whose features are the columns of rows as long as x, so that products work on stored entries alone."""

    keeps_sparse: ClassVar[bool] = True

    @abstractmethod
    def _rows(self, X: Block) -> Block:
        """Rows whose columns are the features."""

    def dimension(self, n_features: int) -> int:
        return n_features

    def _multiply(self, X: Block, coef: Array) -> Array:
        rows = self._rows(X)
        product: Array = rows @ coef if is_sparse(rows) else blas.product(rows, coef)
        return product

    def _adjoint(self, X: Block, values: Array) -> Array:
        rows = self._rows(X)
        if is_sparse(rows):
            product: Array = rows.T @ values
            return product
        out = np.zeros((X.shape[1], values.shape[1]))
        if len(values):
            blas.gemm(out, np.ascontiguousarray(rows, np.float64), values, transpose_a=True)
        return out


@dataclass(frozen=True)
class IdentityMap(RowsMap):
    """φ(x) = x, for the linear kernel."""

    is_identity: ClassVar[bool] = True

    def _rows(self, X: Block) -> Block:
        return X

    def _fill(self, X: Block, start: int, stop: int, out: Array) -> None:
        out[...] = dense_rows(X[:, start:stop])


@dataclass(frozen=True)
class NormalizedMap(RowsMap):
    """φ(x) = x / ‖x‖, for the cosine kernel; a row of zeros stays."""

    def _rows(self, X: Block) -> Block:
        return unit_rows(X)

    def _fill(self, X: Block, start: int, stop: int, out: Array) -> None:
        for top in range(0, len(out), STRIP_ROWS):
            rows = slice(top, top + STRIP_ROWS)
            out[rows] = dense_rows(unit_rows(X[rows])[:, start:stop])


@dataclass(frozen=True)
class PolynomialMap(ImpliedMap):
    """All monomials of degree p of (√c, √γ x), for the kernel (γ xᵀz + c)ᵖ.

    By the multinomial theorem (x'ᵀz')ᵖ = Σ p!/∏mᵢ! ∏ (x'ᵢ z'ᵢ)^mᵢ over the multisets of p columns of
    x' = [√c, √γ x], so each monomial of x' gets the weight √(p!/∏mᵢ!). D = C(d + p, p), or C(d + p − 1, p)
    without the constant (c = 0). The order is that of `sklearn.preprocessing.PolynomialFeatures`.
    """

    degree: int
    """p ≥ 0."""
    gamma: float
    """γ > 0."""
    coef0: float
    """c ≥ 0."""

    def entry_seconds(self, n_features: int) -> float:  # noqa: ARG002
        # Each further factor of a monomial costs as much as the first.
        return ENTRY_COPY_SECONDS + 1.6e-9 * self.degree

    def dimension(self, n_features: int) -> int:
        return multisets.count(self._n_symbols(n_features), self.degree)

    def _n_symbols(self, n_features: int) -> int:
        return n_features + (self.coef0 > 0)

    def _fill(self, X: Block, start: int, stop: int, out: Array) -> None:
        d = X.shape[1]
        strips = multisets.strips(self._n_symbols(d), self.degree, multisets.root_weights, start, stop, out)
        for indices, weights, rows, strip, factor in strips:
            symbols = multisets.symbols(X[rows], sqrt(self.gamma), sqrt(self.coef0))
            strip[...] = weights
            for row in indices:
                multisets.take(symbols, row, factor)
                strip *= factor


@dataclass(frozen=True)
class WrapperMap(ImpliedMap):
    """A map with as many features as another one, φ₁, made from those in one more pass."""

    base: FeatureMap
    """φ₁."""

    def _base_columns(self, n_features: int) -> int:
        """Number of columns that φ₁ takes."""
        return n_features

    @property
    def keeps_sparse(self) -> bool:
        return self.base.keeps_sparse

    def dimension(self, n_features: int) -> int:
        return self.base.dimension(self._base_columns(n_features))

    def entry_seconds(self, n_features: int) -> float:
        return self.base.entry_seconds(self._base_columns(n_features)) + ENTRY_COPY_SECONDS

    def held_bytes(self, n_features: int) -> int:
        return self.base.held_bytes(self._base_columns(n_features))


@dataclass(frozen=True)
class ScaledMap(WrapperMap):
    """φ(x) = √s φ₁(x), for the kernel s k₁."""

    scale: float
    """s > 0."""

    def _fill(self, X: Block, start: int, stop: int, out: Array) -> None:
        self.base._fill(X, start, stop, out)
        out *= sqrt(self.scale)

    def _multiply(self, X: Block, coef: Array) -> Array:
        return sqrt(self.scale) * self.base._multiply(X, coef)

    def _adjoint(self, X: Block, values: Array) -> Array:
        return sqrt(self.scale) * self.base._adjoint(X, values)


@dataclass(frozen=True)
class UnitLengthMap(WrapperMap):
    """φ(x) = φ₁(x) / ‖φ₁(x)‖, for the kernel k₁ normalised; 0 where φ₁ is 0.

    Lengths come from the kernel, ‖φ₁(x)‖² = k₁(x, x), so a range of features takes no others wherever k₁(x, x) has a
    closed form (which the kernel of an approximation, a `MapKernel`, has not). `NormalizedMap` is x / ‖x‖ itself.
    """

    normalized: Normalized
    """The kernel, with all parameters known."""

    def held_bytes(self, n_features: int) -> int:
        # A kernel without a closed form computes features for its diagonal.
        return super().held_bytes(n_features) + self.normalized.base.workspace_bytes(STRIP_ROWS, 0, n_features)

    def _fill(self, X: Block, start: int, stop: int, out: Array) -> None:
        rows, inverse_lengths = self._prepared(X)
        self.base._fill(rows, start, stop, out)
        out *= inverse_lengths

    def _multiply(self, X: Block, coef: Array) -> Array:
        rows, inverse_lengths = self._prepared(X)
        product: Array = inverse_lengths * self.base._multiply(rows, coef)
        return product

    def _adjoint(self, X: Block, values: Array) -> Array:
        rows, inverse_lengths = self._prepared(X)
        return self.base._adjoint(rows, inverse_lengths * values)

    def _prepared(self, X: Block) -> tuple[Block, Array]:
        """Rows, of moderate length where that changes nothing, and 1 / ‖φ₁(x)‖ or 0, of shape (n_rows, 1)."""
        rows, inverse_lengths = self.normalized.prepared(X)
        return rows, inverse_lengths[:, np.newaxis]


@dataclass(frozen=True)
class ConcatenatedMap(ImpliedMap):
    """φ(x) = (φ₁(x), φ₂(x)), for the kernel k₁ + k₂."""

    left: FeatureMap
    """φ₁."""
    right: FeatureMap
    """φ₂."""

    def entry_seconds(self, n_features: int) -> float:
        return max(self.left.entry_seconds(n_features), self.right.entry_seconds(n_features))

    @property
    def keeps_sparse(self) -> bool:
        return self.left.keeps_sparse and self.right.keeps_sparse

    def held_bytes(self, n_features: int) -> int:
        return self.left.held_bytes(n_features) + self.right.held_bytes(n_features)

    def dimension(self, n_features: int) -> int:
        return self.left.dimension(n_features) + self.right.dimension(n_features)

    def _fill(self, X: Block, start: int, stop: int, out: Array) -> None:
        border = self.left.dimension(X.shape[1])
        if start < border:
            end = min(stop, border)
            self.left._fill(X, start, end, out[:, : end - start])
        if stop > border:
            begin = max(start, border)
            self.right._fill(X, begin - border, stop - border, out[:, begin - start :])

    def _multiply(self, X: Block, coef: Array) -> Array:
        border = self.left.dimension(X.shape[1])
        return self.left._multiply(X, coef[:border]) + self.right._multiply(X, coef[border:])

    def _adjoint(self, X: Block, values: Array) -> Array:
        return np.vstack([self.left._adjoint(X, values), self.right._adjoint(X, values)])


@dataclass(frozen=True)
class ColumnsMap(WrapperMap):
    """φ(x) = φ₁ of some of the columns of x, for the kernel ``Columns``."""

    columns: tuple[int, ...] | range
    """Numbers of the columns, which X has."""

    def _base_columns(self, n_features: int) -> int:  # noqa: ARG002
        return len(self.columns)

    def resolved(self, n_features: int) -> FeatureMap:  # noqa: ARG002
        return super().resolved(len(self.columns))

    def _cut(self, X: Block) -> Block:
        is_range = isinstance(self.columns, range)
        part: Block = X[:, slice(self.columns[0], self.columns[-1] + 1) if is_range else list(self.columns)]
        return np.ascontiguousarray(part) if isinstance(part, np.ndarray) else part

    def _fill(self, X: Block, start: int, stop: int, out: Array) -> None:
        self.base._fill(self._cut(X), start, stop, out)

    def _multiply(self, X: Block, coef: Array) -> Array:
        return self.base._multiply(self._cut(X), coef)

    def _adjoint(self, X: Block, values: Array) -> Array:
        return self.base._adjoint(self._cut(X), values)


@dataclass(frozen=True, eq=False)
class CentredMap(ImpliedMap):
    """φ(x) = x − o for an origin o, for the kernel (x − o)ᵀ(z − o)."""

    origin: Array
    """o, of shape (d,)."""

    def dimension(self, n_features: int) -> int:
        return n_features

    def _fill(self, X: Block, start: int, stop: int, out: Array) -> None:
        np.subtract(dense_rows(X[:, start:stop]), self.origin[start:stop], out=out, dtype=np.float64)

    def _multiply(self, X: Block, coef: Array) -> Array:
        out = np.empty((X.shape[0], coef.shape[1]))
        for rows, strip in self._strips(X):
            blas.gemm(out[rows], strip, coef)
        return out

    def _adjoint(self, X: Block, values: Array) -> Array:
        out = np.zeros((X.shape[1], values.shape[1]))
        for rows, strip in self._strips(X):
            blas.gemm(out, strip, values[rows], transpose_a=True, beta=1.0)
        return out

    def _strips(self, X: Block) -> Iterator[tuple[slice, Array]]:
        """Yield ranges of rows with their features, which the next ones overwrite.

        Xw − 1(oᵀw) would need no subtraction from X, and lose the digits that the origin keeps.
        """
        height = max(1, STRIP_ENTRIES // max(X.shape[1], 1))
        strip = np.empty((min(height, X.shape[0]), X.shape[1]))
        for top in range(0, X.shape[0], height):
            rows = slice(top, min(top + height, X.shape[0]))
            features = strip[: rows.stop - top]
            self._fill(X[rows], 0, X.shape[1], features)
            yield rows, features
