"""Systems that leave rows out: (C_j K C_j + λ_j I) β_j = C_j y_j, each column j with its own training set.

C_j is diag(√w) with zeros on the rows that are left out. All columns share the products with K, and a product K C_j β_j
holds the predictions of the rows that are left out.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dkrr.cluster import RunRecord
from dkrr.linalg.gram_products import Operator, Precision

Array = NDArray[np.float64]


Numbers = NDArray[np.intp]


@dataclass(frozen=True)
class TrainingSets:
    """Training sets, and which of them every column has.

    Parameters
    ----------
    scales : ndarray of shape (n, n_sets)
        √w of the rows of a set, and 0 of the others.
    of_column : ndarray of shape (m,)
        Number of the set of every column.
    """

    scales: Array
    of_column: Numbers

    def scale(self, columns: Numbers | slice = slice(None)) -> Array:
        """Diagonals of C of some columns, of shape (n, k)."""
        return self.scales[:, self.of_column[columns]]


@dataclass
class TrainingSetOperator(Operator):
    """C_j K C_j, with the last product K C_j x_j.

    Parameters
    ----------
    operator : Operator
        K.
    sets : TrainingSets
    """

    operator: Operator
    sets: TrainingSets
    last_product: Array = field(init=False)
    """K C x of the last product, of the shape of its vectors."""

    def __post_init__(self) -> None:
        self.n = self.operator.n
        self.last_product = np.empty((self.n, 0))
        shape = (self.n, len(self.sets.of_column))
        self._vectors, self._products = np.zeros(shape), np.zeros(shape)

    @property
    def record(self) -> RunRecord:  # type: ignore[override]
        """Record of all products."""
        return self.operator.record

    def multiply(self, vectors: Array, precision: Precision = "float64", columns: Numbers | None = None) -> Array:
        which = slice(None) if columns is None else columns
        scale = self.sets.scale(which)
        self.last_product = self.operator.multiply(vectors * scale, precision)
        if precision == "float64":
            self._vectors[:, which], self._products[:, which] = vectors, self.last_product
        return self.last_product * scale

    def products_of_all_rows(self, x: Array) -> Array:
        """K C x of all columns in float64, of shape (n, m); only columns that differ from the last are multiplied."""
        changed = np.flatnonzero((self._vectors != x).any(axis=0))
        if len(changed):
            changed_x = np.ascontiguousarray(x[:, changed])
            self._products[:, changed] = self.operator.multiply(changed_x * self.sets.scale(changed))
            self._vectors[:, changed] = changed_x
        return self._products
