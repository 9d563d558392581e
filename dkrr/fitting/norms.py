"""‖f‖ = √(αᵀKα) in the kernel's space, from products that a fit makes anyway.

Of αᵀKα float64 knows no more than what rounding in the entries of K leaves, about ε Σ Kᵢᵢ αᵢ²: where rows of X repeat
each other (or nearly) and λ is small, coefficients are huge and cancel, and there may be nothing left. Such norms are
0, and a message says how large they may be.
"""

import math

import numpy as np
from numpy.typing import NDArray

from dkrr.data import Rows
from dkrr.data.rows import dense
from dkrr.fitting.data import TrainingData
from dkrr.kernels import Kernel
from dkrr.linalg.sources import located
from dkrr.planning.problem import Form

Array = NDArray[np.float64]

EPS = float(np.finfo(float).eps)
ROUNDING = 2 * EPS
"""Times √n Σ Kᵢᵢ αᵢ²: error of αᵀKα (measured on rows that repeat each other: up to a third of this)."""
_BLOCK = 1024


def function_norms(data: TrainingData, rows: Rows, coef: Array, squares: Array) -> tuple[Array, tuple[str, ...]]:
    """Norms of the functions of a dual solution.

    Parameters
    ----------
    coef : ndarray of shape (n, t)
        α.
    squares : ndarray of shape (t,)
        αᵀKα, as computed.

    Returns
    -------
    norms : ndarray of shape (t,)
    messages : tuple of str
        What is below rounding.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        errors = ROUNDING * math.sqrt(data.n) * _weighted_squares(data.kernel, rows, coef)
        known = ~(squares <= errors)
        if known.all():
            return np.sqrt(squares), ()
        norms = np.sqrt(np.where(known, squares, 0.0))
        lost = np.flatnonzero(~known & (errors > 0))
        if len(lost) == 0:
            return norms, ()
        bounds = np.sqrt(errors[lost])
    which = "" if len(norms) == 1 else f" of target {lost[0]}" + (f" and {len(lost) - 1} more" if len(lost) > 1 else "")
    return norms, (
        f"norm_{which} is given as 0: rounding in K hides what is below {bounds.max():.1e}, since coefficients cancel",
    )


def _weighted_squares(kernel: Kernel, rows: Rows, coef: Array) -> Array:
    """Σ Kᵢᵢ αᵢ² of every column, of shape (t,)."""
    if kernel.has_unit_diagonal:
        return np.einsum("ij,ij->j", coef, coef)  # type: ignore[no-any-return]
    diagonal, total = np.maximum(gram_diagonal(kernel, rows), 0.0), np.zeros(coef.shape[1])
    for start in range(0, len(coef), _BLOCK):  # with many targets no second array of their size
        here = slice(start, start + _BLOCK)
        total += np.einsum("ij,ij->j", diagonal[here, None] * coef[here], coef[here])
    return total


def scale_of(data: TrainingData, form: Form) -> str:
    """Sentence on the scale of K, for an error of a matrix that is not positive definite."""
    diagonal, what = gram_diagonal(data.kernel, data.rows), "k(x, x)"
    if data.weights is not None:
        what = "sample_weight × k(x, x)"
        with np.errstate(over="ignore"):
            diagonal = diagonal * data.weights
    size, remedy, feature_map = float(diagonal.max()), "bring the rows of X nearer to one scale", data.feature_map
    if form == "dual" and feature_map is not None and feature_map.dimension(data.rows.shape[1]) < data.n:
        remedy += ", or give form='primal'"
    return f"{what} is up to {size:.1e}, and the rounding of such entries {EPS * size:.1e}: {remedy}"


def gram_diagonal(kernel: Kernel, rows: Rows) -> Array:
    """Kᵢᵢ, of shape (n,), a block of rows at a time."""
    n = rows.shape[0]
    if kernel.has_unit_diagonal:
        return np.ones(n)
    diagonal = np.empty(n)
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        here = slice(start, stop)
        if kernel.is_precomputed:
            # Only entries around the diagonal are read.
            diagonal[here] = dense(rows.read(start, stop, here)).diagonal()
        else:
            with located(here, here):
                diagonal[here] = kernel.diagonal(rows.read(start, stop))
    return diagonal
