"""The fitted value: everything a prediction needs, and nothing of how it was found."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.features import FeatureMap
from dkrr.kernels import Kernel
from dkrr.rows import Rows


@dataclass(frozen=True)
class FittedFunction:
    """f(x) = φ(x)ᵀ w + b, or Σᵢ αᵢ k(x, xᵢ) + b; predicts in primal form where `coef` is there."""

    kernel: Kernel
    n_features: int
    coef: NDArray[np.float64] | None
    """w, of shape (D, t)."""
    feature_map: FeatureMap | None
    """φ; there if and only if `coef` is."""
    dual_coef: NDArray[np.float64] | None
    """α, of shape (n, t)."""
    rows: Rows | None
    """The training rows, for the dual form."""
    intercept: NDArray[np.float64]
    """b, of shape (t,)."""
    intercept_shift: NDArray[np.float64] | None = None
    """What b lacks of the intercept of the kernel about 0, of shape (t,), where `kernel` has an origin."""
    keep_alive: Any = None
    """Owner of the temporary folder that `rows` lie in, if any."""

    @property
    def plain_intercept(self) -> NDArray[np.float64]:
        """The intercept of the kernel about 0, whatever origin the fit has taken; shape (t,)."""
        return self.intercept if self.intercept_shift is None else self.intercept + self.intercept_shift

    @property
    def n_targets(self) -> int:
        """Number of targets."""
        return len(self.intercept)
