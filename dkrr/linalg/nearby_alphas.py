"""Solutions for other λ from a factor for one, without a product with K, and whether they predict new rows better.

The solution for the shift λ + δ is x + y with x = A⁻¹b and (A + δI) y = −δx. Conjugate gradient solves
(I + δA⁻¹) z = −δx for z = Ay, which is about what y adds to the predictions, and y follows from the same substitutions.
A = K + λI has no eigenvalue below λ, so that those of I + δA⁻¹ lie between 1 and 1 + δ/λ: for λ/3 and 3λ between 1/3
and 3. An iteration is a substitution with the factor, and makes the error 0.27 times as large at worst.
"""

from collections.abc import Callable
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray

from dkrr.blas import column_norms
from dkrr.cost import Work

Array = NDArray[np.float64]

FACTORS = (1 / 3, 3.0)
"""Multiples of λ that are compared with it."""
TOL = 0.03
"""Relative error, about, of the differences between the predictions with two λ."""
MAX_STEPS = 4
"""Most iterations, which leave 0.01 of the error at worst; 3 are usual."""
MIN_ROWS = 100
"""New rows of positive weight below which λ are not compared."""
MAX_ROWS = 2000
"""New rows that are predicted at most, spread over all of them."""
SIGNIFICANCE = -3.0
"""Student's t of the differences of squared errors below which another λ is better."""


def solutions_nearby(solve: Callable[[Array], Array], right_sides: Array, shifts: Array) -> tuple[Array, Array] | None:
    """Solutions of A x = b and of (A + δI) x = b for several δ; None where A + δI is not positive definite.

    Parameters
    ----------
    solve : callable
        Multiplies vectors, of shape (n, k), by A⁻¹.
    right_sides : ndarray of shape (n, m)
        b.
    shifts : ndarray of shape (d,)
        δ, which may be negative.

    Returns
    -------
    own : ndarray of shape (n, m)
    others : ndarray of shape (d, n, m)
    """
    own = solve(right_sides)
    m = own.shape[1]
    delta = np.repeat(shifts, m)
    # z = A y for the differences y of the solutions: an error in z is about one in the predictions K y.
    r = -delta * np.tile(own, (1, len(shifts)))
    y, p, square = np.zeros_like(r), r.copy(), np.einsum("ij,ij->j", r, r)
    goal = TOL * column_norms(r)
    for _ in range(MAX_STEPS):
        q = solve(p)
        image = p + delta * q
        curvature = np.einsum("ij,ij->j", p, image)
        if not (np.isfinite(curvature).all() and (curvature[square > 0] > 0).all()):
            return None
        length = np.divide(square, curvature, out=np.zeros_like(square), where=square > 0)
        y += length * q
        r -= length * image
        if (column_norms(r) <= goal).all():
            break
        before, square = square, np.einsum("ij,ij->j", r, r)
        p = r + np.divide(square, before, out=np.zeros_like(square), where=before > 0) * p
    return own, own + y.reshape(len(own), len(shifts), m).transpose(1, 0, 2)


def paired_t(own: Array, others: Array, weights: Array) -> float:
    """Student's t of the mean of others − own, of shape (n,) each, with weights; negative where others are smaller."""
    share = weights / weights.sum()
    differences = others - own
    mean = float(share @ differences)
    spread = sqrt(float(share**2 @ (differences - mean) ** 2))
    return mean / spread if spread > 0 else (0.0 if mean == 0 else np.sign(mean) * inf)


def alpha_check_work(n: int, n_new: int, n_right_sides: int, entry_seconds: float, itemsize: int = 8) -> Work:
    """Work of the solutions with a factor of n rows, and of the predictions of the new ones.

    Parameters
    ----------
    n, n_new : int
        Rows of the factor, and new ones.
    n_right_sides : int
        Right-hand sides of one λ.
    entry_seconds : float
        Time of an entry of K.
    itemsize : int
        Bytes of an entry of the factor.
    """
    wide, m = len(FACTORS) * n_right_sides, min(n_new, MAX_ROWS)
    return Work(
        gemm_flops=2.0 * n**2 * (n_right_sides + MAX_STEPS * wide) + 2.0 * m * n * (n_right_sides + wide),
        element_seconds=entry_seconds * m * n,
        memory_bytes=float(itemsize) * n**2 * (1 + MAX_STEPS),
    )
