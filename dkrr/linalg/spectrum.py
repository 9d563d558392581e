"""Eigenvalues of the kernel matrix of a few rows: what a plan can know of the spectrum before the work."""

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dkrr import blas
from dkrr.data import MemoryRows, Rows
from dkrr.kernels import Kernel

SAMPLE = 1024
"""Rows: 0.1 s, and the 250 largest of their eigenvalues over n are within a factor of two of those of all rows."""
MIN_SAMPLED_ROWS = 4 * SAMPLE
"""Rows from which the spectrum is estimated on a sample: below, the whole solve is about as short."""
MAX_SAMPLE_BYTES = 64 * 2**20
"""Most memory that the rows of a sample may take: planning has no part of a memory limit."""
_BLOCKS = 16
"""Blocks of consecutive rows that are read where rows are in a store."""


def estimated_spectrum(kernel: Kernel, rows: Rows, seed: int = 0) -> tuple[float, float, float] | None:
    """Power law of the eigenvalues of K / n, the constant deflated, from a sample of the rows.

    Eigenvalues that a sample does not resolve (many directions with little variance each) fall with its size, by up to
    one half where it is twice as large. How much they fall from half the sample to all of it is carried on to n.

    Parameters
    ----------
    kernel : Kernel
    rows : Rows
        Of shape (n, d), n at least SAMPLE.
    seed : int

    Returns
    -------
    largest, thousandth, decay : float
        See `power_law`; None where the sample has NaN or infinity, which a check of all rows will name.
    """
    n, rng = rows.shape[0], np.random.default_rng(seed)
    if isinstance(rows, MemoryRows):
        block = rows.take(np.sort(rng.choice(n, SAMPLE, replace=False)))
    else:
        height = SAMPLE // _BLOCKS
        starts = np.sort(rng.choice(n // height, _BLOCKS, replace=False)) * height
        blocks = [rows.read(int(k), int(k) + height) for k in starts]
        block = sp.csr_array(sp.vstack(blocks, format="csr")) if rows.is_sparse else np.concatenate(blocks)
    matrix = np.asarray(kernel(block), np.float64)
    if not np.isfinite(matrix).all():
        return None
    whole, half = _eigenvalues(matrix), _eigenvalues(matrix[::2, ::2])
    largest, thousandth, decay = power_law(whole)
    at = SAMPLE // 10
    fall = float(np.clip(whole[at] / max(half[at], np.finfo(float).tiny), 0.5, 1.0))
    return largest, float(thousandth * fall ** np.log2(n / SAMPLE)), decay


def _eigenvalues(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Eigenvalues of the centred matrix over its size, in descending order."""
    centred = matrix - matrix.mean(axis=0)
    centred -= centred.mean(axis=1)[:, None]
    with blas.one_thread():
        return np.asarray(np.linalg.eigvalsh(centred)[::-1] / len(matrix))


def power_law(eigenvalues: NDArray[np.float64]) -> tuple[float, float, float]:
    """What all rows' eigenvalues of K / n should be, from those of a sample in descending order.

    Those from a 24th to a quarter of the sample lie on a power law; the last ones are too small in any sample.

    Returns
    -------
    largest, thousandth, decay : float
        The k-th is min(largest, thousandth · (k / 1000)^−decay).
    """
    size = len(eigenvalues)
    number = np.arange(max(2, size // 24), max(4, size // 4))
    found = np.maximum(eigenvalues[number - 1], np.finfo(float).tiny)
    slope, offset = np.polyfit(np.log(number), np.log(found), 1)
    decay = float(np.clip(-slope, 0.1, 20.0))
    return float(max(eigenvalues[0], 0.0)), float(np.exp(offset - decay * np.log(1000.0))), decay
