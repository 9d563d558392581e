"""Kernels of distances whose parameter may be a sequence: one length for each column.

Columns are divided by their lengths before anything else is done, so that blocks take as long as with one length for
all: the copies have n × d entries, and the block n × m.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Self, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dkrr.errors import InputError
from dkrr.kernels.base import Kernel
from dkrr.kernels.blocks import Block, is_sparse

Array: TypeAlias = npt.NDArray[np.float64]
Scales: TypeAlias = float | Sequence[float]
"""Number for all columns, or one number for each, which kernels hold as a tuple."""


class WithLengths(Kernel):
    """A kernel of differences x − z, each divided by the length of its column or by one for all."""

    @abstractmethod
    def lengths(self, n_features: int) -> Array:
        """Length of every column, of shape (n_features,).

        Parameters
        ----------
        n_features : int
            Number of columns of X.

        Returns
        -------
        ndarray, shape (n_features,)
            Lengths.
        """

    @abstractmethod
    def with_lengths(self, lengths: Array) -> Self:
        """The kernel with other lengths, of shape (1,) for all columns together or (n_features,) for each.

        Parameters
        ----------
        lengths : ndarray, shape (1,) or (n_features,)
            Lengths, above 0.

        Returns
        -------
        Kernel
            Kernel of the same kind.
        """

    def length_slopes(self, n_features: int) -> tuple[Kernel, Array]:  # noqa: ARG002
        """Derivatives ∂k/∂log ℓₖ = cₖ (xₖ − zₖ)² h(x, z) by the length ℓₖ of every column.

        Parameters
        ----------
        n_features : int
            Number of columns of X.

        Returns
        -------
        h : Kernel
            Kernel that multiplies the squared difference.
        c : ndarray of shape (n_features,)
            Factor of every column.

        Raises
        ------
        InputError
            If the derivatives have no such form.
        """
        raise InputError(
            f"the derivative of {self!r} by its lengths is not bounded, or not of squared differences; expected "
            f"a kernel with such derivatives, as RBF and Matern with nu = 1.5 or 2.5 are"
        )

    @property
    def has_length_of_columns(self) -> bool:
        """Whether every column has its own length."""
        return isinstance(getattr(self, self._of_columns), tuple)

    @property
    def sparse_parts(self) -> int:
        # Divided rows count as a part more.
        return (2 if self.has_length_of_columns else 1) * super().sparse_parts

    def kept_bytes(self, n_columns: int, n_features: int) -> int:
        divided = 8 * n_columns * n_features if isinstance(getattr(self, self._of_columns), tuple) else 0
        return super().kept_bytes(n_columns, n_features) + divided


def reference(scales: Scales, power: float) -> float:
    """The number that distances are multiplied with, and columns by their ratio to it: none becomes larger."""
    if isinstance(scales, Sequence):
        return max(scales) if power > 0 else min(scales)
    return scales


def times_ratios(X: Block, scales: Scales, power: float) -> Block:
    """Rows with columns times a power of (scale / reference), dense or CSR; X itself with one scale for all."""
    if not isinstance(scales, tuple):
        return X
    ratios: Array = (np.array(scales) / reference(scales, power)) ** power
    if not is_sparse(X):
        return X * ratios
    data = ratios[X.indices]
    data *= X.data
    return sp.csr_array((data, X.indices, X.indptr), shape=X.shape)
