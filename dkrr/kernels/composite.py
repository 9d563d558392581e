"""Sums, products, multiples and normalisations of kernels, combined strip by strip while the strip is in cache."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dkrr.errors import InputError
from dkrr.kernels.base import Kernel
from dkrr.kernels.blocks import Block, Fill, Fillers, FloatArray, Scratch, are_moderate, check_diagonal, moderate_rows
from dkrr.kernels.columns import Compound
from dkrr.values import positive


@dataclass(frozen=True)
class _Pair(Compound):
    """Two kernels and the ufunc that combines their values."""

    _part_names: ClassVar[tuple[str, ...]] = ("left", "right")
    _passes: ClassVar[int] = 1
    _strip_buffers: ClassVar[int] = 1
    _combine: ClassVar[np.ufunc]

    left: Kernel
    right: Kernel

    def _filler(self, X: Block, Y: Block, dtype: np.dtype[Any]) -> Fill:
        return self._fillers(Y, dtype)(X)

    def _fillers(self, Y: Block, dtype: np.dtype[Any]) -> Fillers:
        first, second = self.left._fillers(Y, dtype), self.right._fillers(Y, dtype)
        return lambda X: self._combined(first(X), second(X), Scratch(dtype))

    def _combined(self, first: Fill, second: Fill, scratch: Scratch) -> Fill:
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
class Scaled(Compound):
    """k(x, z) = s k₁(x, z), written ``s * k1``.

    Parameters
    ----------
    base : Kernel
        k₁.
    scale : float
        s > 0.
    """

    tag: ClassVar[str] = "scaled"
    _passes: ClassVar[int] = 1

    base: Kernel
    scale: float

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "scale", positive(self.scale, "the scale of a kernel"))

    @property
    def row_degree(self) -> float | None:
        return self.base.row_degree

    def _filler(self, X: Block, Y: Block, dtype: np.dtype[Any]) -> Fill:
        return self._fillers(Y, dtype)(X)

    def _fillers(self, Y: Block, dtype: np.dtype[Any]) -> Fillers:
        base = self.base._fillers(Y, dtype)
        return lambda X: self._multiplied(base(X))

    def _multiplied(self, base: Fill) -> Fill:
        def fill(rows: slice, columns: slice, out: FloatArray) -> None:
            base(rows, columns, out)
            out *= self.scale

        return fill

    def _diagonal(self, X: Block) -> npt.NDArray[np.float64]:
        return self.scale * self.base._diagonal(X)


@dataclass(frozen=True)
class Normalized(Compound):
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
    _has_unit_diagonal: ClassVar[bool] = True
    _passes: ClassVar[int] = 2

    base: Kernel

    @property
    def row_degree(self) -> float | None:
        return None if self.base.row_degree is None else 0

    def _dense_workspace_bytes(self, n_rows: int, n_columns: int, n_features: int) -> int:
        lengths = 4 * 8 * (n_rows + n_columns)
        return super()._dense_workspace_bytes(n_rows, n_columns, n_features) + lengths

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
        """Rows of which the part neither overflows nor underflows, where it allows, and 1 / √k₁(x, x), or 0.

        Where k₁(c x, z) is a power of c times k₁(x, z), rows may be multiplied by powers of two, which cancel. The part
        is computed in `dtype`.
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
            "positive semidefinite cannot be normalised"
        )
    np.sqrt(diagonal, out=diagonal)
    np.divide(1.0, diagonal, out=diagonal, where=diagonal > 0)
    return diagonal
