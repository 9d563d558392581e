"""Sums, products, multiples and normalisations of kernels, combined strip by strip while the strip is in cache."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dkrr.errors import InputError, InputTypeError
from dkrr.kernels import columns as parts
from dkrr.kernels.base import EntryCost, Kernel
from dkrr.kernels.blocks import (
    STRIP_ENTRIES,
    Block,
    Fill,
    FloatArray,
    Scratch,
    are_moderate,
    check_diagonal,
    moderate_rows,
    positive,
)
from dkrr.kernels.costs import PASS_SECONDS


@dataclass(frozen=True)
class _Pair(Kernel):
    """Two kernels and the ufunc that combines their values."""

    _combine: ClassVar[np.ufunc]

    left: Kernel
    right: Kernel

    def __post_init__(self) -> None:
        _check_part(self.left)
        _check_part(self.right)

    def fitted(self, X: Any) -> Kernel:
        return parts.fitted_parts(self, X)

    def encode(self, X: Any) -> Any:
        return parts.encode_parts(self, X)

    def resolved(self, n_features: int) -> Kernel:
        """Return the kernel with both parts resolved."""
        left, right = self.left.resolved(n_features), self.right.resolved(n_features)
        return self if left is self.left and right is self.right else type(self)(left, right)

    def entry_cost(self, n_features: int) -> EntryCost:
        """Return the cost of one entry: both parts and one pass."""
        both = self.left.entry_cost(n_features) + self.right.entry_cost(n_features)
        return both + EntryCost(0.0, PASS_SECONDS)

    def _dense_workspace_bytes(self, n_rows: int, n_columns: int, n_features: int) -> int:
        """Return an upper bound of the temporary memory: both parts at once, and one strip."""
        shape = n_rows, n_columns, n_features
        parts = self.left._dense_workspace_bytes(*shape) + self.right._dense_workspace_bytes(*shape)
        return parts + 8 * STRIP_ENTRIES

    def _buffers(self) -> int:
        return self.left._buffers() + self.right._buffers() + 1

    @property
    def sparse_parts(self) -> int:
        each = self.left.sparse_parts, self.right.sparse_parts
        return sum(each) if all(each) else 0

    def sparse_width(self, n_features: int, stored: int) -> int:
        """See base class: that of the part which counts more."""
        return max(part.sparse_width(n_features, stored) for part in (self.left, self.right))

    def _csr_strips(self) -> int:
        return max(self.left._csr_strips(), self.right._csr_strips())

    def _filler(self, X: Block, Y: Block, dtype: np.dtype[Any]) -> Fill:
        first, second = self.left._filler(X, Y, dtype), self.right._filler(X, Y, dtype)
        scratch = Scratch(dtype)

        def fill(rows: slice, columns: slice, out: FloatArray) -> None:
            other = scratch.like(out)
            first(rows, columns, out)
            second(rows, columns, other)
            self._combine(out, other, out=out)

        return fill

    def _diagonal(self, X: Block) -> npt.NDArray[np.float64]:
        combined: npt.NDArray[np.float64] = self._combine(self.left._diagonal(X), self.right._diagonal(X))
        return combined


@dataclass(frozen=True)
class Sum(_Pair):
    """k(x, z) = k₁(x, z) + k₂(x, z), written ``k1 + k2``.

    Parameters
    ----------
    left, right : Kernel
        k₁ and k₂.
    """

    tag: ClassVar[str] = "sum"
    _combine: ClassVar[np.ufunc] = np.add

    @property
    def row_degree(self) -> float | None:
        return self.left.row_degree if self.left.row_degree == self.right.row_degree else None


@dataclass(frozen=True)
class Product(_Pair):
    """k(x, z) = k₁(x, z) k₂(x, z), written ``k1 * k2``.

    Parameters
    ----------
    left, right : Kernel
        k₁ and k₂.
    """

    tag: ClassVar[str] = "product"
    _combine: ClassVar[np.ufunc] = np.multiply

    @property
    def row_degree(self) -> float | None:
        first, second = self.left.row_degree, self.right.row_degree
        return None if first is None or second is None else first + second


@dataclass(frozen=True)
class Scaled(Kernel):
    """k(x, z) = s k₁(x, z), written ``s * k1``.

    Parameters
    ----------
    base : Kernel
        k₁.
    scale : float
        s > 0.
    """

    tag: ClassVar[str] = "scaled"

    base: Kernel
    scale: float

    def __post_init__(self) -> None:
        _check_part(self.base)
        object.__setattr__(self, "scale", positive(self.scale, "the scale of a kernel"))

    def fitted(self, X: Any) -> Kernel:
        return parts.fitted_parts(self, X)

    def encode(self, X: Any) -> Any:
        return parts.encode_parts(self, X)

    def resolved(self, n_features: int) -> Kernel:
        """Return the kernel with its part resolved."""
        base = self.base.resolved(n_features)
        return self if base is self.base else Scaled(base, self.scale)

    @property
    def row_degree(self) -> float | None:
        return self.base.row_degree

    def entry_cost(self, n_features: int) -> EntryCost:
        """Return the cost of one entry: that of the part and one pass."""
        return self.base.entry_cost(n_features) + EntryCost(0.0, PASS_SECONDS)

    def _dense_workspace_bytes(self, n_rows: int, n_columns: int, n_features: int) -> int:
        """Return an upper bound of the temporary memory: that of the part."""
        return self.base._dense_workspace_bytes(n_rows, n_columns, n_features)

    def _buffers(self) -> int:
        return self.base._buffers()

    @property
    def sparse_parts(self) -> int:
        return self.base.sparse_parts

    def sparse_width(self, n_features: int, stored: int) -> int:
        return self.base.sparse_width(n_features, stored)

    def _csr_strips(self) -> int:
        return self.base._csr_strips()

    def _filler(self, X: Block, Y: Block, dtype: np.dtype[Any]) -> Fill:
        base = self.base._filler(X, Y, dtype)

        def fill(rows: slice, columns: slice, out: FloatArray) -> None:
            base(rows, columns, out)
            out *= self.scale

        return fill

    def _diagonal(self, X: Block) -> npt.NDArray[np.float64]:
        return self.scale * self.base._diagonal(X)


@dataclass(frozen=True)
class Normalized(Kernel):
    """k(x, z) = k₁(x, z) / √(k₁(x, x) k₁(z, z)): the cosine of φ₁(x) and φ₁(z); 0 where φ₁ is 0.

    Parameters
    ----------
    base : Kernel
        k₁, positive semidefinite.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.kernels import Normalized, Polynomial
    >>> Normalized(Polynomial(degree=2, gamma=1.0))(np.array([[0.0], [3.0]]))
    array([[1. , 0.1],
           [0.1, 1. ]])
    """

    tag: ClassVar[str] = "normalized"

    base: Kernel

    def __post_init__(self) -> None:
        _check_part(self.base)

    @property
    def has_unit_diagonal(self) -> bool:
        """See base class; zero rows of k₁ apart."""
        return True

    def fitted(self, X: Any) -> Kernel:
        return parts.fitted_parts(self, X)

    def encode(self, X: Any) -> Any:
        return parts.encode_parts(self, X)

    def resolved(self, n_features: int) -> Kernel:
        """Return the kernel with its part resolved."""
        base = self.base.resolved(n_features)
        return self if base is self.base else Normalized(base)

    @property
    def row_degree(self) -> float | None:
        return None if self.base.row_degree is None else 0

    def entry_cost(self, n_features: int) -> EntryCost:
        """Return the cost of one entry: that of the part and two passes."""
        return self.base.entry_cost(n_features) + EntryCost(0.0, 2 * PASS_SECONDS)

    def _dense_workspace_bytes(self, n_rows: int, n_columns: int, n_features: int) -> int:
        """Return an upper bound of the temporary memory: that of the part, and the lengths of the rows."""
        return self.base._dense_workspace_bytes(n_rows, n_columns, n_features) + 4 * 8 * (n_rows + n_columns)

    def _buffers(self) -> int:
        return self.base._buffers()

    @property
    def sparse_parts(self) -> int:
        return self.base.sparse_parts

    def sparse_width(self, n_features: int, stored: int) -> int:
        return self.base.sparse_width(n_features, stored)

    def _csr_strips(self) -> int:
        return self.base._csr_strips()

    def _filler(self, X: Block, Y: Block, dtype: np.dtype[Any]) -> Fill:
        # Lengths first: what they need in memory is free again when the part's filler is made.
        rows, lengths = self.prepared(X, dtype)
        others, theirs = (rows, lengths) if Y is X else self.prepared(Y, dtype)
        left, right = lengths.astype(dtype, copy=False), theirs.astype(dtype, copy=False)
        base = self.base._filler(rows, others, dtype)

        def fill(rows: slice, columns: slice, out: FloatArray) -> None:
            base(rows, columns, out)
            out *= left[rows, np.newaxis]
            out *= right[columns]

        return fill

    def _diagonal(self, X: Block) -> npt.NDArray[np.float64]:
        return (self.prepared(X)[1] > 0).astype(np.float64)

    def prepared(self, X: Block, dtype: npt.DTypeLike = np.float64) -> tuple[Block, npt.NDArray[np.float64]]:
        """Return rows of which the part neither overflows nor underflows, where it allows, and 1 / √k₁(x, x), or 0.

        Where k₁(c x, z) is a power of c times k₁(x, z), rows may be multiplied by powers of two, which cancel.

        Parameters
        ----------
        X : ndarray or CSR, shape (n_rows, n_features)
        dtype : dtype
            float64 or float32: what the part is computed in.

        Raises
        ------
        NotFiniteError
            If k₁(x, x) overflows all the same.
        """
        diagonal = self.base._diagonal(X)
        if self.base.row_degree is not None and not are_moderate(diagonal, dtype):
            X = moderate_rows(X)
            diagonal = self.base._diagonal(X)
        return X, _inverse_roots(diagonal, self.base)


def _inverse_roots(diagonal: npt.NDArray[np.float64], kernel: Kernel) -> npt.NDArray[np.float64]:
    """Turn k(x, x) into 1 / √k(x, x), 0 where it is 0, in place; an error where it is negative or infinite."""
    check_diagonal(diagonal, kernel)
    if diagonal.min(initial=0.0) < 0:
        raise InputError(
            f"k(x, x) = {diagonal.min():.3g} for a row under {kernel!r}; expected at least 0: a kernel that is not "
            "positive semidefinite has no lengths, and cannot be normalised"
        )
    np.sqrt(diagonal, out=diagonal)
    np.divide(1.0, diagonal, out=diagonal, where=diagonal > 0)
    return diagonal


def _check_part(part: object) -> None:
    if not isinstance(part, Kernel):
        raise InputTypeError(
            f"{part!r} is not a kernel; expected a dkrr.kernels.Kernel: wrap a function of blocks in CallableKernel"
        )
    if part.is_precomputed:
        raise InputError(
            "a precomputed kernel cannot be part of a sum, product or multiple, because its X is already a "
            "Gram matrix: combine the matrices instead"
        )
