"""The function of a fitted model, f(x) = φ(x)ᵀ w + b or Σᵢ αᵢ k(x, xᵢ) + b, from which predictions are computed."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dkrr import blas
from dkrr.data import Rows
from dkrr.data.rows import Block
from dkrr.kernels import Kernel
from dkrr.kernels.map_base import FeatureMap
from dkrr.linalg.cross_gram_products import BLOCK_ROWS, ComputedCrossGram, CrossGram, GivenCrossGram
from dkrr.planning.problem import DeviceName

Array = NDArray[np.float64]

PREDICTED_ROWS = BLOCK_ROWS
"""Rows that are predicted together."""
PREDICTED_BYTES = 16 * 2**20
"""Bound for each of: rows of a block, their features, their predictions."""
TRANSFORMED_ROWS, TRANSFORMED_BYTES = 2**18, 2**26
"""Most rows, and bytes of rows, that are predicted together by features whose products are transforms."""


@dataclass(frozen=True)
class FittedFunction:
    """f(x) = φ(x)ᵀ w + b, or Σᵢ αᵢ k(x, xᵢ) + b; predicts in primal form if `coef` is given."""

    kernel: Kernel
    n_features: int
    coef: Array | None
    """w, of shape (D, t)."""
    feature_map: FeatureMap | None
    """φ; given if and only if `coef` is."""
    dual_coef: Array | None
    """α, of shape (n, t)."""
    rows: Rows | None
    """Training rows, for the dual form."""
    intercept: Array
    """b, of shape (t,)."""
    intercept_shift: Array | None = None
    """Difference of the intercept of the kernel about 0 from b, of shape (t,), if `kernel` has an origin."""
    keep_alive: Any = None
    """Owner of the temporary folder of `rows`, if any."""
    device: DeviceName = "auto"
    """Where products with K(x, X) are computed in this process: a copy elsewhere does not need the same GPU."""

    @property
    def plain_intercept(self) -> Array:
        """Intercept of the kernel about 0, whatever origin the fit used; shape (t,)."""
        return self.intercept if self.intercept_shift is None else self.intercept + self.intercept_shift

    @cached_property
    def cross(self) -> CrossGram:
        """K(x, X) with the training rows, for the dual form; keeps what depends on these alone."""
        return GivenCrossGram() if self.rows is None else ComputedCrossGram(self.kernel, self.rows)

    def __getstate__(self) -> dict[str, Any]:
        state = {field.name: getattr(self, field.name) for field in fields(self)}  # without K(x, X)
        return state | ({"device": "auto"} if self.device == "cuda" else {})

    @property
    def n_targets(self) -> int:
        """Number of targets."""
        return len(self.intercept)

    def block_rows(self, rows: Rows) -> int:
        """Number of rows that are predicted together: fewer if they, their features or their predictions are wide."""
        phi, row_bytes = self.feature_map, rows.dense_window_row_bytes if rows.is_sparse else 8 * rows.shape[1]
        if phi is not None and phi.is_transform:
            return max(1, min(TRANSFORMED_ROWS, TRANSFORMED_BYTES // row_bytes))
        widest = max(row_bytes, 8 * len(self.intercept))
        if phi is not None and not (rows.is_sparse and phi.keeps_sparse):
            widest = max(widest, 8 * phi.dimension(self.n_features))
        return max(1, min(PREDICTED_ROWS, PREDICTED_BYTES // widest))

    def shares_values(self, other: "FittedFunction") -> bool:
        """Whether another function of the same training rows is of the same values of a kernel, or of features."""
        if (self.coef is None) != (other.coef is None):
            return False
        return self.kernel == other.kernel and self.feature_map == other.feature_map

    def predict_block(
        self, x: Block, first: int, others: Sequence["FittedFunction"] = (), cross: CrossGram | None = None
    ) -> list[Array]:
        """Predictions of a block of at most `block_rows` rows by this function, and by others that share its values.

        Parameters
        ----------
        x : ndarray or CSR of shape (m, d)
        first : int
            Number of the first row, for messages.
        others : sequence of FittedFunction
        cross : CrossGram, optional
            K(x, X) on a GPU; None: here.

        Returns
        -------
        list of ndarray of shape (m, t)
            From one evaluation of the kernel or the features; the bits are those of each function alone.
        """
        phi, outs, coefs = self.feature_map, list[Array](), list[Array]()
        for one in (self, *others):
            coef = one.dual_coef if one.coef is None else one.coef
            assert coef is not None
            coefs.append(coef)
            outs.append(np.tile(one.intercept, (x.shape[0], 1)))
        if phi is None:
            (cross or self.cross).add_times(x, coefs, outs, first)
        elif phi.is_transform or (sp.issparse(x) and phi.keeps_sparse):
            for out, coef in zip(outs, coefs, strict=True):
                out += phi.multiply(x, coef)
        else:
            features = phi.transform(x)
            for out, coef in zip(outs, coefs, strict=True):
                out += blas.product(features, coef)
        return outs
