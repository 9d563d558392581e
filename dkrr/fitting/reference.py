"""A point near the weighted mean of the features, about which sums over all rows lose no digits.

With s = Σ w (φ − c) and W = Σ w, sums about the mean φ̄ = c + s / W follow from sums about any reference c:

    Σ w (φ − φ̄)(φ − φ̄)ᵀ = Σ w (φ − c)(φ − c)ᵀ − s sᵀ / W

The mean need not be known before the pass that sums. The difference loses the digits of the ratio W (φ̄ − c)ⱼ² / Aⱼⱼ,
A being the result. Where c is the mean of strips of rows with weights v in all, one strip for each of q equal parts of
W, that ratio is about W / (q min v) at most, whatever the rows are: what puts a strip far from the mean is in A too.
Rows like each other have a ratio of about one over the number of rows in the strips.

References
----------
T. F. Chan, G. H. Golub, R. J. LeVeque, "Algorithms for computing the sample variance: analysis and recommendations",
The American Statistician 37 (1983).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.data import scan
from dkrr.data.rows import Block, check_finite
from dkrr.errors import InputError, NotFiniteError
from dkrr.fitting.data import FitData

Array = NDArray[np.float64]

SAMPLE_ROWS = 256
SAMPLE_BYTES = 8 * 2**20
"""Most rows of the sample, and bytes of their features."""
STRIPS = 8
"""Strips of consecutive rows that make up the sample, since neighbours may be alike."""
SHARE_READ, BYTES_READ = 1 / 16, 16 * 2**20
"""Fraction of the bytes of X, or bytes, that may be read for the sample; one strip is read in any case."""


def reference_of(data: FitData, feature_rows: Callable[[Block], Any]) -> Array:
    """Weighted mean of the features of a sample of the rows; that of a constant feature is the constant, exactly.

    Parameters
    ----------
    data : FitData
        With a feature map.
    feature_rows : callable
        Gives the features of a block of rows, of shape (m, D); dense.

    Returns
    -------
    ndarray of shape (D,)

    Raises
    ------
    InputError
        If the sample holds NaN or infinity; the message names the first such row of X.
    NotFiniteError
        If float64 does not hold sums of features.
    """
    assert data.feature_map is not None
    d = data.rows.shape[1]
    strips = _strips(data, max(1, SAMPLE_BYTES // (8 * max(data.feature_map.dimension(d), d))))
    weights = np.ones(strips.shape) if data.weights is None else data.weights[strips]
    shares, first, total = weights / (weights.sum(axis=1, keepdims=True) * len(strips)), None, 0.0
    if data.rows.is_in_memory:
        strips, shares = strips.reshape(1, -1), shares.reshape(1, -1)
    for numbers, share in zip(strips, shares, strict=True):  # one by one: each may take the memory of a chunk
        together = len(numbers) == numbers[-1] - numbers[0] + 1
        x = data.rows.read(int(numbers[0]), int(numbers[-1]) + 1) if together else data.rows.take(numbers)
        try:
            check_finite(x, "X")
        except InputError:
            scan(data.rows, "X")  # whose message names the first such row by its number in X
            raise
        features = np.asarray(feature_rows(x), np.float64)
        first = np.array(features[0]) if first is None else first
        with np.errstate(over="ignore", invalid="ignore"):
            total = total + share @ (features - first)
    assert first is not None
    return checked_sums(first + total)


def checked_sums(sums: Array) -> Array:
    """Sums of features, which are returned.

    Raises
    ------
    NotFiniteError
        If float64 does not hold them.
    """
    if not np.isfinite(sums).all():
        raise NotFiniteError(
            "a sum of features is infinite or NaN: products of the columns of X, or their sum over the rows, exceed "
            "the range of float64 (1e308); expected columns nearer to 1: look for outliers in X"
        )
    return sums


def _strips(data: FitData, most: int) -> NDArray[np.intp]:
    """Numbers of the rows of every strip, one strip a line: strip k of q holds the quantile (k + ½) / q of the weights.

    So a row that has more than 1/q of all weight is in the sample.
    """
    n, rows = data.n, data.rows
    most, reads = min(most, SAMPLE_ROWS, n), max(SHARE_READ * rows.n_bytes, BYTES_READ)
    count = 1 if most == n else int(max(1, min(STRIPS, most, reads // max(rows.read_overhead_bytes, 1))))
    height = most // count
    quantiles = (np.arange(count) + 0.5) / count
    if data.weights is None:
        inside = (quantiles * n).astype(np.intp)
    else:
        totals = np.cumsum(data.weights)
        inside = np.searchsorted(totals, quantiles * totals[-1], side="right")
    first = np.clip(inside - height // 2, 0, n - height)
    return np.asarray(first[:, None] + np.arange(height))
