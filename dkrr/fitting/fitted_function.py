"""The function of a fitted model, f(x) = φ(x)ᵀ w + b or Σᵢ αᵢ k(x, xᵢ) + b, from which predictions are computed."""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.data import Rows
from dkrr.kernels import Kernel
from dkrr.kernels.base import KernelTo
from dkrr.kernels.map_base import FeatureMap

KEPT_BYTES = 16 * 2**20
"""Most memory of what a function keeps of the training rows for predictions of a few rows."""


@dataclass(frozen=True)
class FittedFunction:
    """f(x) = φ(x)ᵀ w + b, or Σᵢ αᵢ k(x, xᵢ) + b; predicts in primal form if `coef` is given."""

    kernel: Kernel
    n_features: int
    coef: NDArray[np.float64] | None
    """w, of shape (D, t)."""
    feature_map: FeatureMap | None
    """φ; given if and only if `coef` is."""
    dual_coef: NDArray[np.float64] | None
    """α, of shape (n, t)."""
    rows: Rows | None
    """Training rows, for the dual form."""
    intercept: NDArray[np.float64]
    """b, of shape (t,)."""
    intercept_shift: NDArray[np.float64] | None = None
    """Difference of the intercept of the kernel about 0 from b, of shape (t,), if `kernel` has an origin."""
    keep_alive: Any = None
    """Owner of the temporary folder of `rows`, if any."""

    @property
    def plain_intercept(self) -> NDArray[np.float64]:
        """Intercept of the kernel about 0, whatever origin the fit used; shape (t,)."""
        return self.intercept if self.intercept_shift is None else self.intercept + self.intercept_shift

    def kernel_to(self, start: int, stop: int) -> KernelTo | None:
        """k(·, xᵢ) of some training rows, which is kept; None if too much would be kept of all rows together."""
        if not self._keeps_kernels:
            return None
        known = self._kernels_to.get((start, stop))
        if known is None:
            # Two threads may both do this: either result will do.
            assert self.rows is not None
            known = self._kernels_to[start, stop] = self.kernel.to(self.rows.read(start, stop))
        return known

    @cached_property
    def _keeps_kernels(self) -> bool:
        rows = self.rows
        if rows is None or rows.is_sparse or not rows.is_in_memory:
            return False
        return self.kernel.kept_bytes(*rows.shape) <= KEPT_BYTES

    @cached_property
    def _kernels_to(self) -> dict[tuple[int, int], KernelTo]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # without what is kept

    @property
    def n_targets(self) -> int:
        """Number of targets."""
        return len(self.intercept)
