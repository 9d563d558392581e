"""The explicit feature map as a value: φ(x) for blocks of rows, with ⟨φ(x), φ(z)⟩ = k(x, z)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dkrr.errors import InputError
from dkrr.kernels.base import Kernel
from dkrr.kernels.blocks import Rows, as_rows

COPY_SECONDS = 1e-9
"""Time of an entry that is copied, and centred or weighted afterwards, measured in blocks of 64 MiB."""


class FeatureMap(ABC):
    """A finite feature map φ: ℝᵈ → ℝᴰ, as an immutable value that is called on blocks of rows.

    Subclasses are frozen dataclasses. They give `dimension`, `kernel` and `_fill`.
    """

    tag: ClassVar[str]
    """Name in a description (`to_dict`)."""

    @abstractmethod
    def dimension(self, n_features: int) -> int:
        """Return D, by integer arithmetic alone: it may be far too large for anything else.

        Parameters
        ----------
        n_features : int
            d, number of columns of X.
        """

    def entry_seconds(self) -> float:
        """Return the time of one entry of Φ on one core, for dense rows."""
        return COPY_SECONDS

    @abstractmethod
    def kernel(self) -> Kernel:
        """Return the kernel k(x, z) = ⟨φ(x), φ(z)⟩."""

    def transform(self, X: Rows, columns: slice | None = None) -> npt.NDArray[np.float64]:
        """Return Φ, the features of each row.

        Parameters
        ----------
        X : ndarray or CSR, shape (n_rows, n_features)
        columns : slice, optional
            Only these of the D columns, and no work for the others. None means all. The step must be 1.

        Returns
        -------
        ndarray of float64, shape (n_rows, D) or (n_rows, number of columns)

        Raises
        ------
        InputError
            If X is not two-dimensional and real, or the slice has a step.
        """
        rows = as_rows(X)
        start, stop = column_range(columns, self.dimension(rows.shape[1]))
        out = np.empty((rows.shape[0], stop - start))
        if out.size:
            self._fill(rows, start, stop, out)
        return out

    def to_dict(self) -> dict[str, Any]:
        """Return a description of JSON's types only, from which `feature_map_from_dict` makes the value."""
        description: dict[str, Any] = {"feature_map": self.tag}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            description[field.name] = value.to_dict() if isinstance(value, FeatureMap) else value
        return description

    @abstractmethod
    def _fill(self, X: Rows, start: int, stop: int, out: npt.NDArray[np.float64]) -> None:
        """Write columns start...stop of Φ, for checked rows and a range that is not empty."""


def column_range(columns: slice | None, dimension: int) -> tuple[int, int]:
    """Return the first column of a slice and the one after its last."""
    if columns is None:
        return 0, dimension
    if not isinstance(columns, slice) or columns.step not in (None, 1):
        raise InputError(f"columns is {columns!r}; expected a slice of the {dimension} features with step 1")
    # Not slice.indices(), which cannot take a dimension beyond the machine's word.
    bounds = []
    for bound, default in ((columns.start, 0), (columns.stop, dimension)):
        position = default if bound is None else int(bound)
        bounds.append(min(max(position + dimension if position < 0 else position, 0), dimension))
    return bounds[0], max(bounds)
