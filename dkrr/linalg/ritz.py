"""Ritz values: eigenvalues that the coefficients of conjugate gradient show."""

from math import nan

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

Array = NDArray[np.float64]


def ritz_values(steps: Array, products: Array) -> tuple[float, float]:
    """Extreme eigenvalues of Lanczos's tridiagonal matrix, from the coefficients of conjugate gradient.

    Parameters
    ----------
    steps : ndarray of shape (k,)
        Step lengths.
    products : ndarray of shape (k,)
        rᵀz before each of them. From the first NaN on, both are ignored.

    Returns
    -------
    smallest, largest : float
        NaN without an iteration.

    References
    ----------
    G. H. Golub, C. F. Van Loan, "Matrix Computations", 4th ed., 2013, section 11.3.
    """
    unusable = np.flatnonzero(~(np.isfinite(steps) & np.isfinite(products) & (steps > 0) & (products > 0)))
    k = int(unusable[0]) if len(unusable) else len(steps)
    if k == 0:
        return nan, nan
    steps, beta = steps[:k], products[1:k] / products[: k - 1]
    diagonal = 1.0 / steps
    diagonal[1:] += beta / steps[:-1]
    if not np.isfinite(diagonal).all():
        return nan, nan
    values = scipy.linalg.eigvalsh_tridiagonal(diagonal, np.sqrt(beta) / steps[:-1])
    return max(float(values[0]), 0.0), float(values[-1])
