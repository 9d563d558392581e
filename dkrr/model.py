"""The fitted function: everything that a prediction needs."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.features import FeatureMap
from dkrr.kernels import Kernel
from dkrr.rows import Rows


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

    @property
    def n_targets(self) -> int:
        """Number of targets."""
        return len(self.intercept)
