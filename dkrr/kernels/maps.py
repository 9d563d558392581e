"""Feature maps that are finite: of all columns or some, about an origin, in multiples and concatenations."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from dkrr import blas
from dkrr.checks import finite, n_dimensions, positive, positive_or_none, shown, whole
from dkrr.errors import InputError, InputTypeError
from dkrr.kernels import multisets
from dkrr.kernels.base import Kernel
from dkrr.kernels.blocks import STRIP_ENTRIES, STRIP_ROWS, Block, is_sparse
from dkrr.kernels.centring import AboutOrigin, CentredLinear
from dkrr.kernels.columns import Columns
from dkrr.kernels.composite import Normalized
from dkrr.kernels.dot import Cosine, Linear, Polynomial, unit_rows
from dkrr.kernels.map_base import COPY_SECONDS, Array, FeatureMap, check_map, dense_rows


class RowsMap(FeatureMap):
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
    """φ(x) = x, for the linear kernel.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.features import IdentityMap
    >>> IdentityMap().transform(np.array([[1.0, 2.0, 3.0]]), columns=slice(1, 3))
    array([[2., 3.]])
    """

    tag: ClassVar[str] = "identity"

    def kernel(self) -> Kernel:
        return Linear()

    def _rows(self, X: Block) -> Block:
        return X

    def _fill(self, X: Block, start: int, stop: int, out: Array) -> None:
        out[...] = dense_rows(X[:, start:stop])


@dataclass(frozen=True)
class NormalizedMap(RowsMap):
    """φ(x) = x / ‖x‖, for the cosine kernel; a row of zeros stays.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.features import NormalizedMap
    >>> NormalizedMap().transform(np.array([[3.0, 4.0]]))
    array([[0.6, 0.8]])
    """

    tag: ClassVar[str] = "normalized"

    def kernel(self) -> Kernel:
        return Cosine()

    def _rows(self, X: Block) -> Block:
        return unit_rows(X)

    def _fill(self, X: Block, start: int, stop: int, out: Array) -> None:
        for top in range(0, len(out), STRIP_ROWS):
            rows = slice(top, top + STRIP_ROWS)
            out[rows] = dense_rows(unit_rows(X[rows])[:, start:stop])


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
        object.__setattr__(self, "gamma", positive_or_none(self.gamma, "gamma"))
        coef0 = finite(self.coef0, "coef0")
        if coef0 < 0:
            raise InputError(f"coef0 is {self.coef0!r}; expected at least 0: below, the kernel has no real feature map")
        object.__setattr__(self, "coef0", coef0)

    def entry_seconds(self, n_features: int) -> float:  # noqa: ARG002
        # Each further factor of a monomial costs as much as the first.
        return COPY_SECONDS + 1.6e-9 * self.degree

    def dimension(self, n_features: int) -> int:
        return multisets.count(self._n_symbols(n_features), self.degree)

    def kernel(self) -> Kernel:
        return Polynomial(self.degree, self.gamma, self.coef0)

    def _n_symbols(self, n_features: int) -> int:
        return n_features + (self.coef0 > 0)

    def _fill(self, X: Block, start: int, stop: int, out: Array) -> None:
        d = X.shape[1]
        root_gamma = sqrt(1.0 / d if self.gamma is None else self.gamma)
        strips = multisets.strips(self._n_symbols(d), self.degree, multisets.root_weights, start, stop, out)
        for indices, weights, rows, strip, factor in strips:
            symbols = multisets.symbols(X[rows], root_gamma, sqrt(self.coef0))
            strip[...] = weights
            for row in indices:
                multisets.take(symbols, row, factor)
                strip *= factor


@dataclass(frozen=True)
class WrapperMap(FeatureMap):
    """A map with as many features as another one, φ₁, made from those in one more pass."""

    base: FeatureMap

    def __post_init__(self) -> None:
        check_map(self.base)

    def _base_columns(self, n_features: int) -> int:
        """Number of columns that φ₁ takes."""
        return n_features

    @property
    def keeps_sparse(self) -> bool:
        return self.base.keeps_sparse

    def dimension(self, n_features: int) -> int:
        return self.base.dimension(self._base_columns(n_features))

    def entry_seconds(self, n_features: int) -> float:
        return self.base.entry_seconds(self._base_columns(n_features)) + COPY_SECONDS

    def held_bytes(self, n_features: int) -> int:
        return self.base.held_bytes(self._base_columns(n_features))


@dataclass(frozen=True)
class ScaledMap(WrapperMap):
    """φ(x) = √s φ₁(x), for the kernel s k₁.

    Parameters
    ----------
    base : FeatureMap
        φ₁.
    scale : float
        s > 0.
    """

    tag: ClassVar[str] = "scaled"

    scale: float

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "scale", positive(self.scale, "the scale of a feature map"))

    def kernel(self) -> Kernel:
        return self.scale * self.base.kernel()

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

    def held_bytes(self, n_features: int) -> int:
        # A kernel without a closed form computes features for its diagonal.
        return super().held_bytes(n_features) + self.base.kernel().workspace_bytes(STRIP_ROWS, 0, n_features)

    def kernel(self) -> Kernel:
        return Normalized(self.base.kernel())

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
        check_map(self.left, "left")
        check_map(self.right, "right")

    def entry_seconds(self, n_features: int) -> float:
        return max(self.left.entry_seconds(n_features), self.right.entry_seconds(n_features))

    @property
    def keeps_sparse(self) -> bool:
        return self.left.keeps_sparse and self.right.keeps_sparse

    def held_bytes(self, n_features: int) -> int:
        return self.left.held_bytes(n_features) + self.right.held_bytes(n_features)

    def dimension(self, n_features: int) -> int:
        return self.left.dimension(n_features) + self.right.dimension(n_features)

    def kernel(self) -> Kernel:
        return self.left.kernel() + self.right.kernel()

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
    """φ(x) = φ₁ of some of the columns of x, for the kernel ``Columns``.

    Parameters
    ----------
    base : FeatureMap
        φ₁.
    columns : sequence of int, optional
        Numbers of the columns; None: those from `start` to `stop` − 1.
    start, stop : int, optional
        Consecutive columns.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.features import ColumnsMap, IdentityMap
    >>> ColumnsMap(IdentityMap(), [2, 0]).transform(np.array([[1.0, 2.0, 3.0]]))
    array([[3., 1.]])
    """

    tag: ClassVar[str] = "columns"

    columns: tuple[int, ...] | None = None
    start: int | None = None
    stop: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("start", "stop"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole(getattr(self, name), name, 0))
        if self.columns is not None:
            object.__setattr__(self, "columns", _checked_columns(self.columns))
        elif self.start is None or self.stop is None:
            raise InputError("columns is None; expected columns=, or start= and stop=")
        elif self.stop <= self.start:
            raise InputError(f"stop is {self.stop} and start {self.start}; expected at least one column between them")

    @property
    def _numbers(self) -> Sequence[int]:
        return range(self.start or 0, self.stop or 0) if self.columns is None else self.columns

    @property
    def width(self) -> int:
        """Number of the columns."""
        return len(self._numbers)

    def _base_columns(self, n_features: int) -> int:  # noqa: ARG002
        return self.width

    def resolved(self, n_features: int) -> FeatureMap:  # noqa: ARG002
        return super().resolved(self.width)

    def kernel(self) -> Kernel:
        return Columns(self.base.kernel(), tuple(self._numbers))

    def to_dict(self) -> dict[str, Any]:
        description = super().to_dict()
        return {**description, "columns": None if self.columns is None else list(self.columns)}

    def _cut(self, X: Block) -> Block:
        needed = max(self.columns) + 1 if self.columns else self.stop or 0
        if X.shape[1] < needed:
            raise InputError(f"X has {X.shape[1]} columns; expected at least {needed} for {self!r}")
        part: Block = X[:, slice(self.start, self.stop) if self.columns is None else list(self.columns)]
        return np.ascontiguousarray(part) if isinstance(part, np.ndarray) else part

    def _fill(self, X: Block, start: int, stop: int, out: Array) -> None:
        self.base._fill(self._cut(X), start, stop, out)

    def _multiply(self, X: Block, coef: Array) -> Array:
        return self.base._multiply(self._cut(X), coef)

    def _adjoint(self, X: Block, values: Array) -> Array:
        return self.base._adjoint(self._cut(X), values)


def _checked_columns(columns: Any) -> tuple[int, ...]:
    if not isinstance(columns, Sequence | np.ndarray) or isinstance(columns, str | bytes) or n_dimensions(columns) != 1:
        raise InputTypeError(f"columns is {shown(columns)}; expected numbers of columns, at least one")
    if len(columns) == 0:
        raise InputError("columns is empty; expected numbers of columns, at least one")
    return tuple(whole(column, "columns", 0, "they count from 0") for column in columns)


@dataclass(frozen=True, eq=False, repr=False)
class CentredMap(AboutOrigin, FeatureMap):
    """φ(x) = x − o for an origin o, for the kernel (x − o)ᵀ(z − o).

    Parameters
    ----------
    origin : array-like of float, d numbers in all
        o, a number for each column.
    """

    tag: ClassVar[str] = "centred"

    origin: Array

    def dimension(self, n_features: int) -> int:
        return n_features

    def kernel(self) -> Kernel:
        return CentredLinear(self.origin)

    def to_dict(self) -> dict[str, Any]:
        """See base class; the checksum of the origin stands for it."""
        return {"feature_map": self.tag, "origin": {"array": self._digest}}

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


def difference_at_zero(phi: FeatureMap, plain: FeatureMap, n_features: int) -> Array:
    """φ(0) of a map with origins minus that of the map without, (D,); parts without an origin are not computed."""
    if isinstance(phi, CentredMap) and not isinstance(plain, CentredMap):
        return -phi.origin
    if isinstance(phi, ScaledMap) and isinstance(plain, ScaledMap):
        return sqrt(phi.scale) * difference_at_zero(phi.base, plain.base, n_features)
    if isinstance(phi, ColumnsMap) and isinstance(plain, ColumnsMap):
        return difference_at_zero(phi.base, plain.base, phi.width)
    if isinstance(phi, ConcatenatedMap) and isinstance(plain, ConcatenatedMap):
        pairs = (phi.left, plain.left), (phi.right, plain.right)
        return np.concatenate([difference_at_zero(one, other, n_features) for one, other in pairs])
    return np.zeros(phi.dimension(n_features))
