"""Taylor features: the RBF kernel's exponential series of xᵀz, cut off, as a finite feature map."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import numpy as np
from scipy.special import gammainc

from dkrr.checks import finite, positive, whole
from dkrr.errors import InputError
from dkrr.kernels import multisets
from dkrr.kernels.base import Kernel
from dkrr.kernels.blocks import Block, squared_norms
from dkrr.kernels.dot import MAX_DEGREE, TaylorRBF
from dkrr.kernels.map_base import ENTRY_COPY_SECONDS, Array, FeatureMap

MAX_TAYLOR_FEATURES = 100_000
"""Most features of a map that `TaylorMap.for_error` returns, unless it is asked for more."""


@dataclass(frozen=True)
class TaylorMap(FeatureMap):
    """φ(x) = exp(−γ‖x‖²) · all monomials of √(2γ) x of degree at most r, each over √∏mᵢ!, mᵢ its exponents.

    With 1/σ² = 2γ, k(x, z) = exp(−‖x − z‖²/2σ²) = exp(−‖x‖²/2σ²) exp(−‖z‖²/2σ²) Σₖ (xᵀz)ᵏ/(k! σ²ᵏ), and the terms of
    degree k ≤ r are the inner products of these monomials by the multinomial theorem. D = C(d + r, r); the order is
    that of `PolynomialMap`. φ depends on where the origin is: centre the rows.

    The error. With s = xᵀz/σ², |s| ≤ S = ‖x‖‖z‖/σ² and the series' remainder R(s):

    - Cotter et al.: |k − φᵀφ| ≤ S^(r+1)/(r + 1)!, for Lagrange's form |R(s)| ≤ exp(max(s, 0)) |s|^(r+1)/(r + 1)! meets
      the factor exp(−(‖x‖² + ‖z‖²)/2σ²) ≤ exp(−S).
    - Sharper, and what `error_bound` gives: |k − φᵀφ| ≤ P(r + 1, S), the regularised lower incomplete gamma function
      (the probability of more than r events of a Poisson variable with mean S). For |R(s)| ≤ R(|s|), term by term, and
      exp(−(‖x‖² + ‖z‖²)/2σ²) R(|s|) ≤ exp(−|s|) R(|s|) = P(r + 1, |s|), which grows with |s|. It is attained at x = z.

    Parameters
    ----------
    degree : int
        r, from 0 to 500.
    gamma : float, optional
        γ > 0; None means 1 / n_features. With a length scale σ, γ = 1 / (2σ²).

    See Also
    --------
    dkrr.kernels.TaylorRBF : RBF with a series of finite degree.
    dkrr.features.RandomFourier : An approximation of RBF and other kernels by random frequencies.

    References
    ----------
    A. Cotter, J. Keshet, N. Srebro, "Explicit approximations of the Gaussian kernel", arXiv:1109.4603, 2011.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.features import TaylorMap
    >>> from dkrr.kernels import RBF
    >>> phi = TaylorMap.for_error(1e-6, radius=1.0, n_features=2, gamma=0.5)
    >>> phi, phi.dimension(2)
    (TaylorMap(degree=9, gamma=0.5), 55)
    >>> X = np.array([[0.6, -0.8], [0.3, 0.1]])
    >>> bool(np.abs(phi.transform(X) @ phi.transform(X).T - RBF(gamma=0.5)(X)).max() <= phi.error_bound(1.0))
    True
    """

    tag: ClassVar[str] = "taylor"

    degree: int
    gamma: float | None = None

    def __post_init__(self) -> None:
        checked = TaylorRBF(degree=self.degree, gamma=self.gamma)
        object.__setattr__(self, "degree", checked.degree)
        object.__setattr__(self, "gamma", checked.gamma)

    @classmethod
    def for_error(
        cls,
        error: float,
        radius: float,
        n_features: int,
        gamma: float | None = None,
        most_features: int = MAX_TAYLOR_FEATURES,
    ) -> TaylorMap:
        """Map of least degree whose inner products are within `error` of the RBF kernel.

        Parameters
        ----------
        error : float
            Largest |k(x, z) − φ(x)ᵀφ(z)|, above 0.
        radius : float
            Largest ‖x‖ of all rows, those of predictions too.
        n_features : int
            d.
        gamma : float, optional
            As for the kernel; None means 1 / n_features.
        most_features : int, default=100000
            Largest D to accept.

        Returns
        -------
        TaylorMap
            Map of the least degree that suffices.

        Raises
        ------
        InputError
            If no degree suffices, or D would exceed `most_features`.
        """
        error, d = positive(error, "error"), whole(n_features, "n_features", 1)
        known = 1.0 / d if gamma is None else positive(gamma, "gamma")
        reach = _reach(radius, known)
        enough = np.flatnonzero(gammainc(np.arange(1.0, MAX_DEGREE + 2), reach) <= error)
        advice = (
            "centre the rows, take a larger error or a smaller gamma, or use dkrr.features.RandomFourier or Nystroem, "
            "whose number of features does not depend on the columns, or the RBF kernel itself, which is exact"
        )
        if not len(enough):
            raise InputError(
                f"no Taylor map of degree up to {MAX_DEGREE} is within {error:g} of the RBF kernel for "
                f"gamma={known:g} and rows of length up to {radius:g} (‖x‖²/σ² is {reach:.3g}); expected rows near the "
                f"origin: {advice}"
            )
        found = cls(int(enough[0]), known)
        dimension = found.dimension(d)
        if dimension > most_features:
            size = f"{dimension:,}" if dimension < 10**12 else f"over 10^{len(str(dimension)) - 1}"
            raise InputError(
                f"an error of {error:g} for gamma={known:g} and rows of length up to {radius:g} takes degree "
                f"{found.degree}, and so {size} features of {d} columns; expected at most most_features="
                f"{most_features:,}: {advice}"
            )
        return found

    def error_bound(self, radius: float, n_features: int | None = None) -> float:
        """Largest |k(x, z) − φ(x)ᵀφ(z)| over ‖x‖, ‖z‖ ≤ radius: the bound is attained, see the class.

        Parameters
        ----------
        radius : float
            Largest ‖x‖ of all rows.
        n_features : int, optional
            Number of columns d; needed where gamma is None.

        Returns
        -------
        float
            The bound.
        """
        if self.gamma is None and n_features is None:
            raise InputError("gamma is None, that is 1 / n_features; expected n_features beside the radius")
        gamma = 1.0 / whole(n_features, "n_features", 1) if self.gamma is None else self.gamma
        return float(gammainc(self.degree + 1.0, _reach(radius, gamma)))

    def entry_seconds(self, n_features: int) -> float:  # noqa: ARG002
        # A monomial takes a factor, and its root, for each degree.
        return ENTRY_COPY_SECONDS + 2.0e-9 * self.degree

    def dimension(self, n_features: int) -> int:
        return multisets.count(n_features + 1, self.degree)

    def kernel(self) -> Kernel:
        return TaylorRBF(degree=self.degree, gamma=self.gamma)

    def _fill(self, X: Block, start: int, stop: int, out: Array) -> None:
        d = X.shape[1]
        gamma = 1.0 / d if self.gamma is None else self.gamma
        decay = np.exp(-gamma * squared_norms(X))
        # Symbol 0 is a constant 1, so that multisets of exactly r are the monomials of degree at most r.
        strips = multisets.strips(d + 1, self.degree, _inverse_roots, start, stop, out)
        for indices, roots, rows, strip, factor in strips:
            symbols = multisets.symbols(X[rows], sqrt(2 * gamma), 1.0)
            # The decay first, and the roots one by one, so that no product leaves the range of float64.
            strip[...] = decay[rows, np.newaxis]
            for row, root in zip(indices, roots, strict=True):
                multisets.take(symbols, row, factor)
                factor *= root
                strip *= factor


def _reach(radius: float, gamma: float) -> float:
    """Largest ‖x‖‖z‖/σ² of rows of length up to `radius`."""
    length = finite(radius, "radius")
    if length < 0:
        raise InputError(f"radius is {radius!r}; expected the largest length of a row, at least 0")
    return 2 * gamma * length**2


def _inverse_roots(indices: multisets.Indices) -> Array:
    """Factors, one for each position of a multiset, of its 1/√∏mᵢ!; the constant, symbol 0, has none."""
    roots = np.ones(indices.shape)
    run = np.ones(indices.shape[1])
    for position in range(1, len(indices)):
        again = (indices[position] == indices[position - 1]) & (indices[position] > 0)
        run = np.where(again, run + 1, 1.0)
        np.divide(1.0, np.sqrt(run), out=roots[position])
    return roots
