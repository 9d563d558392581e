"""Products of a symmetric matrix with a block of vectors: what conjugate gradient needs of a matrix."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dkrr.cluster import RunRecord

Vectors = NDArray[np.float64]
Precision = Literal["float64", "float32"]

SAFE_SIZES = (1e-120, 1e120)
"""Bounds of numbers whose squares, and sums of these, neither overflow nor underflow."""
SAFE_SQUARES = (1e-240, 1e240)
"""Squares of those bounds."""


class Operator(ABC):
    """A symmetric matrix that is only multiplied by vectors, with the record of its tasks."""

    n: int
    """Rows (and columns)."""
    record: RunRecord

    @abstractmethod
    def multiply(
        self, vectors: Vectors, precision: Precision = "float64", columns: NDArray[np.intp] | None = None
    ) -> Vectors:
        """Product with a block of vectors.

        Parameters
        ----------
        vectors : ndarray of shape (n, m)
        precision : {"float64", "float32"}
            Precision of the entries and their products; sums are always float64.
        columns : ndarray of shape (m,), optional
            Right-hand sides that the vectors belong to, where those have matrices of their own.

        Returns
        -------
        ndarray of shape (n, m)
        """


@dataclass
class LastProduct(Operator):
    """An operator that keeps its last product in float64, so that it is not computed again."""

    operator: Operator

    def __post_init__(self) -> None:
        self.n = self.operator.n
        self._vectors, self._product = np.empty((self.n, 0)), np.empty((self.n, 0))

    @property
    def record(self) -> RunRecord:  # type: ignore[override]
        """Record of all products."""
        return self.operator.record

    def multiply(
        self,
        vectors: Vectors,
        precision: Precision = "float64",
        columns: NDArray[np.intp] | None = None,
    ) -> Vectors:
        product = self.operator.multiply(vectors, precision, columns)
        if precision != "float64":
            return product
        width = self._vectors.shape[1]
        stop = vectors.shape[1] if columns is None else int(columns.max(initial=-1)) + 1
        if columns is None or len(columns) == stop >= width:
            self._vectors, self._product = vectors, product
        elif stop <= width:
            self._vectors, self._product = self._vectors.copy(), self._product.copy()
            self._vectors[:, columns], self._product[:, columns] = vectors, product
        # Else they are of some right-hand sides, as after a checkpoint, before there was a product of all.
        return product

    def of(self, vectors: Vectors) -> Vectors:
        """A V in float64, of shape (n, m): only columns that differ from the last ones are multiplied again."""
        if self._vectors.shape != vectors.shape:
            return self.operator.multiply(vectors)
        changed = np.flatnonzero((self._vectors != vectors).any(axis=0))
        if len(changed) == 0:
            return self._product
        product = self._product.copy()
        product[:, changed] = self.operator.multiply(np.ascontiguousarray(vectors[:, changed]), "float64", changed)
        return product


def column_sizes(vectors: Vectors) -> Vectors:
    """Powers of two about as large as the columns, of shape (m,): to divide by one changes no digit."""
    mantissa, exponent = np.frexp(np.maximum(vectors.max(axis=0), -vectors.min(axis=0)))
    # The smallest power of two at or above, among those that are not denormal.
    return np.ldexp(1.0, np.clip(exponent - (mantissa == 0.5), -1022, 1023))  # type: ignore[no-any-return]


def root_mean_squares(vectors: Vectors) -> Vectors:
    """Root mean squares of columns, of shape (m,), also where squares overflow or underflow."""
    return column_norms(vectors) / math.sqrt(len(vectors))


def column_norms(vectors: Vectors) -> Vectors:
    """Euclidean norms of columns, of shape (m,), also where squares overflow or underflow."""
    with np.errstate(over="ignore", under="ignore"):
        if vectors.shape[1] == 1:  # most often; half the time for small fits
            square = float(vectors[:, 0] @ vectors[:, 0])
            if SAFE_SQUARES[0] < square < SAFE_SQUARES[1]:
                return np.array([math.sqrt(square)])
        else:
            squares: Vectors = np.einsum("ij,ij->j", vectors, vectors)
            if ((squares > SAFE_SQUARES[0]) & (squares < SAFE_SQUARES[1])).all():
                return np.sqrt(squares)
    sizes = column_sizes(vectors)
    scaled = vectors / sizes
    with np.errstate(over="ignore"):
        return np.sqrt(np.einsum("ij,ij->j", scaled, scaled)) * sizes  # type: ignore[no-any-return]
