"""The rows whose targets would lower the summed variance of a Gaussian process most, chosen greedily.

With C the posterior covariance of the candidates, a new target at row i with noise of variance λ makes it

    C − C·ᵢCᵢ· / (Cᵢᵢ + λ),

whatever the target is, so the sum of the variances falls by Σᵣ Cᵢᵣ² / (Cᵢᵢ + λ). The candidate with the largest fall is
taken, and the same is asked of what is left.

References
----------
S. Seo, M. Wallat, T. Graepel, K. Obermayer, "Gaussian process regression: active data selection and test point
rejection", IJCNN 2000.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.linalg.cross_gram_products import in_threads

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]

EPS = float(np.finfo(float).eps)
STRIP_BYTES = 2**19
"""Bytes of the rows of C that are updated and squared while they are in a core's cache."""
FLOPS_PER_ENTRY = 30.0
"""Operations of products of matrices that take as long as one entry of C in one choice, which is bound by memory."""


def choice_flops(n_candidates: int, n_chosen: int) -> float:
    """Operations of products of matrices that take as long as `greedy_choices`."""
    return FLOPS_PER_ENTRY * n_chosen * float(n_candidates) ** 2


def greedy_choices(
    covariance: Array, rounding: Array, noise: float, n_chosen: int, threads: int, advance: Callable[[float], None]
) -> tuple[Numbers, Array]:
    """Choose candidates one after another by the fall of the summed variance.

    Parameters
    ----------
    covariance : ndarray of shape (c, c)
        Posterior covariance C of the candidates, symmetric; overwritten by that after all choices.
    rounding : ndarray of shape (c,)
        Size of the rounding in the variances: candidates whose variance is not larger are known, and have no gain.
    noise : float
        λ ≥ 0, variance of the noise of a new target.
    n_chosen : int
        At most c.
    threads : int
    advance : callable
        Is told the operations of every choice.

    Returns
    -------
    chosen : ndarray of shape (n_chosen,)
        Numbers of the candidates, in the order of choice; of several with the same fall the first one.
    falls : ndarray of shape (n_chosen,)
        Fall of the summed variance by each.
    """
    c = len(covariance)
    height = max(1, STRIP_BYTES // (8 * c))
    diagonal, squares, change = covariance.diagonal(), np.empty(c), np.zeros(c)
    rounding = np.maximum(rounding, EPS * (n_chosen + 1) * diagonal)  # of the updates
    is_left = np.ones(c, bool)
    chosen, falls = np.empty(n_chosen, np.intp), np.empty(n_chosen)

    def update(start: int) -> None:
        """Subtract the last choice from some rows, and sum the squares of what is left."""
        strip = covariance[start : start + height]
        if change.any():
            blas.gemm(strip, change[start : start + height, None], change[None, :], alpha=-1.0, beta=1.0)
        np.einsum("ij,ij->i", strip, strip, out=squares[start : start + height])

    for j in range(n_chosen):
        for _ in in_threads(update, range(0, c, height), threads):
            pass
        is_known = diagonal <= rounding
        pivots = np.where(is_known, 1.0, diagonal + noise)
        gains = np.where(is_known, 0.0, squares / pivots)
        i = int(np.argmax(np.where(is_left, gains, -1.0)))
        chosen[j], falls[j], is_left[i] = i, gains[i], False
        change[:] = 0.0 if is_known[i] else covariance[i] / np.sqrt(pivots[i])
        advance(choice_flops(c, 1))
    return chosen, falls
