"""Feature maps that are finite: identity, unit length, monomials, multiples and concatenations."""

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dkrr import blas
from dkrr.errors import InputError, InputTypeError
from dkrr.features import multisets
from dkrr.features.base import COPY_SECONDS, Array, FeatureMap
from dkrr.kernels import Cosine, Kernel, Linear, Normalized, Polynomial
from dkrr.kernels.blocks import STRIP_COLUMNS, STRIP_ROWS, Block, Scratch, finite, is_sparse, positive
from dkrr.kernels.dot import unit_rows


@dataclass(frozen=True)
class IdentityMap(FeatureMap):
    """φ(x) = x, for the linear kernel.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.features import IdentityMap
    >>> IdentityMap().transform(np.array([[1.0, 2.0, 3.0]]), columns=slice(1, 3))
    array([[2., 3.]])
    """

    tag: ClassVar[str] = "identity"
    keeps_sparse: ClassVar[bool] = True

    def dimension(self, n_features: int) -> int:
        """Return D = d."""
        return n_features

    def kernel(self) -> Kernel:
        """Return the linear kernel."""
        return Linear()

    def _fill(self, X: Block, start: int, stop: int, out: npt.NDArray[np.float64]) -> None:
        out[...] = _dense(X[:, start:stop])

    def _multiply(self, X: Block, coef: Array) -> Array:
        return _product(X, coef)

    def _adjoint(self, X: Block, values: Array) -> Array:
        return _transposed_product(X, values)


@dataclass(frozen=True)
class NormalizedMap(FeatureMap):
    """φ(x) = x / ‖x‖, for the cosine kernel; a row of zeros stays.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.features import NormalizedMap
    >>> NormalizedMap().transform(np.array([[3.0, 4.0]]))
    array([[0.6, 0.8]])
    """

    tag: ClassVar[str] = "normalized"
    keeps_sparse: ClassVar[bool] = True

    def dimension(self, n_features: int) -> int:
        """Return D = d."""
        return n_features

    def kernel(self) -> Kernel:
        """Return the cosine kernel."""
        return Cosine()

    def _fill(self, X: Block, start: int, stop: int, out: npt.NDArray[np.float64]) -> None:
        for top in range(0, len(out), STRIP_ROWS):
            rows = slice(top, top + STRIP_ROWS)
            out[rows] = _dense(unit_rows(X[rows])[:, start:stop])

    def _multiply(self, X: Block, coef: Array) -> Array:
        return _product(unit_rows(X), coef)

    def _adjoint(self, X: Block, values: Array) -> Array:
        return _transposed_product(unit_rows(X), values)


@dataclass(frozen=True)
class PolynomialMap(FeatureMap):
    """All monomials of degree p of (√c, √γ x), for the kernel (γ xᵀz + c)ᵖ.

    By the multinomial theorem (x'ᵀz')ᵖ = Σ p!/∏mᵢ! ∏ (x'ᵢ z'ᵢ)^mᵢ over the multisets of p columns of
    x' = [√c, √γ x], so each monomial of x' gets the weight √(p!/∏mᵢ!). D = C(d + p, p), or C(d + p − 1, p)
    without the constant (c = 0). The order is that of `sklearn.preprocessing.PolynomialFeatures`.

    Parameters
    ----------
    degree : int
        p ≥ 0.
    gamma : float, optional
        γ > 0; None means 1 / n_features.
    coef0 : float
        c ≥ 0.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.features import PolynomialMap
    >>> PolynomialMap(degree=2, gamma=1.0).transform(np.array([[3.0]])).round(3)
    array([[1.   , 4.243, 9.   ]])
    """

    tag: ClassVar[str] = "polynomial"

    degree: int = 3
    gamma: float | None = None
    coef0: float = 1.0

    def __post_init__(self) -> None:
        degree = finite(self.degree, "degree")
        if degree < 0 or not degree.is_integer():
            raise InputError(
                f"degree is {self.degree!r}; expected a whole number of at least 0: the kernel of a fractional "
                "degree has no finite feature map"
            )
        object.__setattr__(self, "degree", int(degree))
        if self.gamma is not None:
            object.__setattr__(self, "gamma", positive(self.gamma, "gamma"))
        coef0 = finite(self.coef0, "coef0")
        if coef0 < 0:
            raise InputError(f"coef0 is {self.coef0!r}; expected at least 0: below, the kernel has no real feature map")
        object.__setattr__(self, "coef0", coef0)

    def entry_seconds(self, n_features: int) -> float:  # noqa: ARG002
        """See base class; each further factor of a monomial costs as much as the first."""
        return COPY_SECONDS + 1.6e-9 * self.degree

    def dimension(self, n_features: int) -> int:
        """Return D = C(d + p, p), or C(d + p − 1, p) for coef0 = 0."""
        return multisets.count(self._n_symbols(n_features), self.degree)

    def kernel(self) -> Kernel:
        """Return the polynomial kernel."""
        return Polynomial(self.degree, self.gamma, self.coef0)

    def _n_symbols(self, n_features: int) -> int:
        return n_features + (self.coef0 > 0)

    def _fill(self, X: Block, start: int, stop: int, out: npt.NDArray[np.float64]) -> None:
        n_rows, d = X.shape
        if stop >= 2**63:
            raise InputError(
                f"the feature map has {self.dimension(d)} features, and columns beyond 2**63 cannot be "
                'computed: use a smaller degree or the kernel itself (form="dual")'
            )
        scratch = Scratch()
        # Columns outside, so that the index table is made once a panel; rows inside, so that the working
        # strip stays in cache and no temporary grows with X or D.
        for left in range(start, stop, STRIP_COLUMNS):
            right = min(left + STRIP_COLUMNS, stop)
            indices = multisets.table(self._n_symbols(d), self.degree, left, right)
            weights = multisets.root_weights(indices)
            for top in range(0, n_rows, STRIP_ROWS):
                symbols = self._symbols(X[top : top + STRIP_ROWS])
                strip = out[top : top + STRIP_ROWS, left - start : right - start]
                strip[...] = weights
                factor = scratch.like(strip)
                for row in indices:
                    # mode="clip" writes into `out` directly; the indices are in range anyway.
                    np.take(symbols, row, axis=1, out=factor, mode="clip")
                    strip *= factor

    def _symbols(self, X: Block) -> npt.NDArray[np.float64]:
        """Return x' = [√c, √γ x], the constant first, or without it for c = 0."""
        n_rows, d = X.shape
        symbols = np.empty((n_rows, self._n_symbols(d)))
        root_gamma = sqrt(1.0 / d if self.gamma is None else self.gamma)
        # Of float32 rows and a Python number NumPy would make a product in float32.
        np.multiply(_dense(X), root_gamma, out=symbols[:, -d:], dtype=np.float64)
        if self.coef0 > 0:
            symbols[:, 0] = sqrt(self.coef0)
        return symbols


@dataclass(frozen=True)
class ScaledMap(FeatureMap):
    """φ(x) = √s φ₁(x), for the kernel s k₁.

    Parameters
    ----------
    base : FeatureMap
        φ₁.
    scale : float
        s > 0.
    """

    tag: ClassVar[str] = "scaled"

    base: FeatureMap
    scale: float

    def __post_init__(self) -> None:
        _check_part(self.base)
        object.__setattr__(self, "scale", positive(self.scale, "the scale of a feature map"))

    def entry_seconds(self, n_features: int) -> float:
        return self.base.entry_seconds(n_features) + COPY_SECONDS

    @property
    def keeps_sparse(self) -> bool:
        return self.base.keeps_sparse

    def held_bytes(self, n_features: int) -> int:
        return self.base.held_bytes(n_features)

    def dimension(self, n_features: int) -> int:
        """Return that of the part."""
        return self.base.dimension(n_features)

    def kernel(self) -> Kernel:
        """Return the scaled kernel."""
        return self.scale * self.base.kernel()

    def _fill(self, X: Block, start: int, stop: int, out: npt.NDArray[np.float64]) -> None:
        self.base._fill(X, start, stop, out)
        out *= sqrt(self.scale)

    def _multiply(self, X: Block, coef: Array) -> Array:
        return sqrt(self.scale) * self.base._multiply(X, coef)

    def _adjoint(self, X: Block, values: Array) -> Array:
        return sqrt(self.scale) * self.base._adjoint(X, values)


@dataclass(frozen=True)
class UnitLengthMap(FeatureMap):
    """φ(x) = φ₁(x) / ‖φ₁(x)‖, for the kernel k₁ normalised; 0 where φ₁ is 0.

    Lengths come from the kernel, ‖φ₁(x)‖² = k₁(x, x), so some of the features need no others wherever k₁(x, x) has a
    closed form (not where it is an approximation's, a `MapKernel`). `NormalizedMap` is that of the columns themselves.

    Parameters
    ----------
    base : FeatureMap
        φ₁.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.features import PolynomialMap, UnitLengthMap
    >>> UnitLengthMap(PolynomialMap(degree=1, gamma=1.0)).transform(np.array([[0.75]]))
    array([[0.8, 0.6]])
    """

    tag: ClassVar[str] = "unit_length"

    base: FeatureMap

    def __post_init__(self) -> None:
        _check_part(self.base)

    def entry_seconds(self, n_features: int) -> float:
        return self.base.entry_seconds(n_features) + COPY_SECONDS

    @property
    def keeps_sparse(self) -> bool:
        return self.base.keeps_sparse

    def held_bytes(self, n_features: int) -> int:
        """See base class; a kernel without a closed form computes features for its diagonal."""
        lengths = self.base.kernel().workspace_bytes(STRIP_ROWS, 0, n_features)
        return self.base.held_bytes(n_features) + lengths

    def dimension(self, n_features: int) -> int:
        """Return that of the part."""
        return self.base.dimension(n_features)

    def kernel(self) -> Kernel:
        """Return the normalised kernel."""
        return Normalized(self.base.kernel())

    def _fill(self, X: Block, start: int, stop: int, out: npt.NDArray[np.float64]) -> None:
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
        """Return rows, of moderate length where that changes nothing, and 1 / ‖φ₁(x)‖ or 0, of shape (n_rows, 1)."""
        kernel = Normalized(self.base.kernel().resolved(X.shape[1]))
        rows, inverse_lengths = kernel.prepared(X)
        return rows, inverse_lengths[:, np.newaxis]


@dataclass(frozen=True)
class ConcatenatedMap(FeatureMap):
    """φ(x) = (φ₁(x), φ₂(x)), for the kernel k₁ + k₂.

    Parameters
    ----------
    left, right : FeatureMap
        φ₁ and φ₂.
    """

    tag: ClassVar[str] = "concatenated"

    left: FeatureMap
    right: FeatureMap

    def __post_init__(self) -> None:
        _check_part(self.left)
        _check_part(self.right)

    def entry_seconds(self, n_features: int) -> float:
        return max(self.left.entry_seconds(n_features), self.right.entry_seconds(n_features))

    @property
    def keeps_sparse(self) -> bool:
        return self.left.keeps_sparse and self.right.keeps_sparse

    def held_bytes(self, n_features: int) -> int:
        return self.left.held_bytes(n_features) + self.right.held_bytes(n_features)

    def dimension(self, n_features: int) -> int:
        """Return D = D₁ + D₂."""
        return self.left.dimension(n_features) + self.right.dimension(n_features)

    def kernel(self) -> Kernel:
        """Return the sum of the two kernels."""
        return self.left.kernel() + self.right.kernel()

    def _fill(self, X: Block, start: int, stop: int, out: npt.NDArray[np.float64]) -> None:
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


def _dense(X: Block) -> npt.NDArray[np.float64]:
    dense: npt.NDArray[np.float64] = X.toarray() if is_sparse(X) else X
    return dense


def _product(X: Block, coef: Array) -> Array:
    """Return X w; only the result is dense."""
    product: Array = X @ coef if is_sparse(X) else blas.product(X, coef)
    return product


def _transposed_product(X: Block, values: Array) -> Array:
    """Return Xᵀ v; only the result is dense."""
    if is_sparse(X):
        product: Array = X.T @ values
        return product
    out = np.zeros((X.shape[1], values.shape[1]))
    if len(values):
        blas.gemm(out, np.ascontiguousarray(X, np.float64), values, transpose_a=True)
    return out


def _check_part(part: object) -> None:
    if not isinstance(part, FeatureMap):
        raise InputTypeError(f"{part!r} is not a feature map; expected a dkrr.features.FeatureMap")
