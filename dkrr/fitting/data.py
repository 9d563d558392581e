"""The data of one fit, and the algebra that is the same in memory and on disk."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.features import FeatureMap
from dkrr.kernels import Kernel
from dkrr.kernels.centring import Centring
from dkrr.linalg.likelihood import Bernoulli, Likelihood, Softmax
from dkrr.linalg.operator import SAFE_SIZES, column_sizes
from dkrr.rows import Rows
from dkrr.rows.checks import digest_of

Array = NDArray[np.float64]

ORIGINS = "origins"
"""Name of the note in a store that holds the origins of the kernel of its run."""


@dataclass(frozen=True)
class TrainingData:
    """Checked arguments of one fit."""

    rows: Rows
    """X, of shape (n, d); for a precomputed kernel the Gram matrix itself."""
    targets: Array
    """y, of shape (n, t)."""
    weights: Array | None
    """Sample weights, of shape (n,)."""
    alphas: Array
    """λ of every target, of shape (t,)."""
    kernel: Kernel
    feature_map: FeatureMap | None
    fit_intercept: bool
    centring: Centring | None = None
    """What `about_the_rows` did to the kernel; None: nothing."""

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.rows.shape[0]

    def in_range(self) -> tuple["TrainingData", Array | None]:
        """The same problem with targets whose sums and squares have a place in float64.

        Coefficients are linear in the targets, and a power of two changes none of their digits.

        Returns
        -------
        data : TrainingData
        sizes : ndarray of shape (t,) or None
            Powers of two that its targets have been divided by, and its solution is to be multiplied by; None if
            nothing had to be done.
        """
        sizes = column_sizes(self.targets)
        is_safe = (sizes > SAFE_SIZES[0]) & (sizes < SAFE_SIZES[1])
        if is_safe.all():
            return self, None
        sizes = np.where(is_safe, 1.0, sizes)
        return replace(self, targets=self.targets / sizes), sizes

    def alpha_groups(self) -> list[tuple[float, NDArray[np.intp]]]:
        """Distinct values of λ, each with the columns of its targets: one factorisation each."""
        return [(float(a), np.flatnonzero(self.alphas == a)) for a in np.unique(self.alphas)]

    def target_means(self) -> Array:
        """Weighted means of the targets with a free intercept, else zeros; shape (t,)."""
        if not self.fit_intercept:
            return np.zeros(self.targets.shape[1])
        return np.asarray(np.average(self.targets, axis=0, weights=self.weights))

    def dual_scale(self) -> Array | None:
        """√w, of shape (n,); None without weights."""
        return None if self.weights is None else np.sqrt(self.weights)

    def dual_shift(self, alpha: float) -> Array:
        """Diagonal of the system (diag(c) K diag(c) + diag(s)) β = c y for c = √w, from (K + λ W⁻¹) α = y, α = c β.

        In this form a weight may be zero: the row and column vanish, and β = 0 there whatever the diagonal is. It
        must not be 0, so λ = 0 puts a 1 there.
        """
        shift = np.full(self.n, alpha)
        if self.weights is not None and alpha == 0:
            shift[self.weights == 0] = 1.0
        return shift

    def dual_right_sides(self, columns: NDArray[np.intp], means: Array) -> Array:
        """Right-hand sides c (y − ȳ) of some targets, and c for a free intercept; shape (n, len(columns) + 1 or 0)."""
        scale = self.dual_scale()
        y = self.targets[:, columns] - means[columns]
        if self.fit_intercept:
            y = np.column_stack([y, np.ones(self.n)])
        return np.ascontiguousarray(y if scale is None else y * scale[:, None])

    def dual_coefficients(self, beta: Array) -> tuple[Array, Array]:
        """Undo the scaling and free the intercept.

        From [K + λW⁻¹ 1; 1ᵀ 0][α; b] = [y; 0]: with u and v the solutions for y and for ones, b = 1ᵀu / 1ᵀv and
        α = u − v b.

        Parameters
        ----------
        beta : ndarray of shape (n, number of right-hand sides)

        Returns
        -------
        alpha : ndarray of shape (n, targets of this group)
        intercept : ndarray of shape (targets of this group,)
            To be added to the means.
        """
        scale = self.dual_scale()
        u = beta if scale is None else beta * scale[:, None]
        if not self.fit_intercept:
            return u, np.zeros(u.shape[1])
        u, v = u[:, :-1], u[:, -1:]
        intercept = u.sum(axis=0) / v.sum()
        return u - v * intercept, intercept

    def fingerprint(self, rows_digest: str) -> dict[str, Any]:
        """What must be the same for a run to go on."""
        return {
            "X": rows_digest,
            "shape": list(self.rows.shape),
            "dtype": str(np.dtype(self.rows.dtype)),
            "y": digest_of(self.targets),
            "sample_weight": None if self.weights is None else digest_of(self.weights),
            "kernel": (self.kernel if self.centring is None else self.centring.plain).to_dict(),
            "alpha": self.alphas.tolist(),
            "fit_intercept": self.fit_intercept,
        }

    def notes(self) -> dict[str, Any]:
        """What a run that goes on takes over from the one that began."""
        return {} if self.centring is None else {ORIGINS: self.centring.to_list()}


@dataclass(frozen=True)
class LabelledData:
    """Checked arguments of one classification."""

    rows: Rows
    """X, of shape (n, d); for a precomputed kernel the Gram matrix itself."""
    codes: NDArray[np.intp]
    """Numbers of the classes, of shape (n,)."""
    n_classes: int
    weights: Array | None
    """Sample weights times class weights, of shape (n,); None: ones."""
    alphas: tuple[float, ...]
    """λ, one model after the other."""
    kernel: Kernel
    feature_map: FeatureMap | None
    fit_intercept: bool
    is_multinomial: bool
    """One softmax of all classes, not a model for each."""
    centring: Centring | None = None
    """What `about_the_rows` did to the kernel; None: nothing."""

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.rows.shape[0]

    @property
    def likelihood(self) -> Likelihood:
        """Of the labels."""
        if self.n_classes == 2:
            return Bernoulli(1)
        return Softmax(self.n_classes) if self.is_multinomial else Bernoulli(self.n_classes)

    def fingerprint(self, rows_digest: str) -> dict[str, Any]:
        """What must be the same for a run to go on."""
        return {
            "X": rows_digest,
            "shape": list(self.rows.shape),
            "dtype": str(np.dtype(self.rows.dtype)),
            "classes": digest_of(self.codes),
            "weight": None if self.weights is None else digest_of(self.weights),
            "kernel": (self.kernel if self.centring is None else self.centring.plain).to_dict(),
            "alpha": list(self.alphas),
            "fit_intercept": self.fit_intercept,
            "multinomial": self.is_multinomial,
        }

    def notes(self) -> dict[str, Any]:
        """What a run that goes on takes over from the one that began."""
        return {} if self.centring is None else {ORIGINS: self.centring.to_list()}
