"""Extreme eigenvalues of A + diag(s), and its condition number, from what conjugate gradient computes anyway."""

from collections.abc import Sequence
from math import nan

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dkrr.linalg.operator import column_norms
from dkrr.linalg.preconditioner import Identity, Preconditioner

Array = NDArray[np.float64]

MAX_TRACED = 4
"""Columns whose coefficients are kept to estimate eigenvalues from."""


def columns_to_trace(shift: Array, m: int) -> NDArray[np.intp]:
    """Columns, of m, from which the extreme eigenvalues are estimated: some of those with the smallest shifts."""
    order = np.argsort(shift[0], kind="stable") if shift.shape[1] > 1 else np.arange(m)
    return np.asarray(order[: min(m, MAX_TRACED)], np.intp)


def extremes_of(
    traced: Sequence[Array], preconditioner: Preconditioner, columns: NDArray[np.intp], known: Array | None
) -> Array | None:
    """Smallest and largest eigenvalues of A + diag(s) that the cycles so far show, of shape (2, t).

    Those of M⁻¹ (A + s) times those of M bound them; the smallest is not below s, since A is taken to be positive
    semidefinite, and not above ‖(A + s) x‖ / ‖x‖.

    Parameters
    ----------
    traced : sequence of ndarray of shape (2, t)
        Step lengths and rᵀz before them, for every iteration of a cycle.
    preconditioner : Preconditioner
        M.
    columns : ndarray of shape (t,)
        Numbers of the columns that are traced.
    known : ndarray of shape (2, t) or None
        What the cycles before show.
    """
    low, high = preconditioner.extremes(columns)
    if not np.isfinite(low).any():
        return known
    ritz = np.array([ritz_values(*column) for column in np.array(traced).transpose(2, 1, 0)]).T
    found = np.array([ritz[0] * low, np.minimum(np.maximum(ritz[1], 1.0), 2.0) * high])
    if preconditioner.is_scaling:
        found[1] = ritz[1]
    if known is None:
        known = np.full_like(found, nan)
    return np.array([np.fmin(known[0], found[0]), np.fmax(known[1], found[1])])


def condition_number(
    extremes: Array, preconditioner: Preconditioner, x: Array, images: Array, least: Array, deflated: Array | None
) -> float:
    """Largest condition number of the columns that are traced; NaN where nothing is known.

    Parameters
    ----------
    extremes : ndarray of shape (2, t)
        Estimates of the smallest and the largest eigenvalue.
    preconditioner : Preconditioner
    x, images : ndarray of shape (n, t)
        Solutions, and their products with A + diag(s).
    least : ndarray of shape (t,) or (1,)
        Smallest s.
    deflated : ndarray of shape (t,) or None
        Rayleigh quotients of the direction that the cycles were kept free of.
    """
    low, high = extremes
    if not preconditioner.is_scaling or isinstance(preconditioner, Identity):
        lengths = column_norms(x)
        low = np.fmin(low, np.divide(column_norms(images), lengths, out=np.full(len(lengths), nan), where=lengths > 0))
        high = high if deflated is None else np.fmax(high, deflated)
        low = np.maximum(low, least)
    ratios = np.divide(high, low, out=np.full(len(high), nan), where=low > 0)
    return float(np.fmax.reduce(np.maximum(ratios, 1.0))) if np.isfinite(ratios).any() else nan


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
