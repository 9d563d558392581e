"""The data of one fit, and the algebra that is the same in memory and on disk."""

from dataclasses import dataclass, replace
from math import frexp, ldexp
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dkrr.config import setting
from dkrr.data import Rows
from dkrr.data.arrays import is_mapped, mapped_array
from dkrr.data.rows import digest_of
from dkrr.fitting.requests import FitRequest, Labels, Targets
from dkrr.kernels import Kernel
from dkrr.kernels.centring import Centring
from dkrr.kernels.map_base import FeatureMap
from dkrr.linalg.likelihood import Bernoulli, Likelihood
from dkrr.linalg.products import SAFE_SIZES, column_sizes
from dkrr.planning.problem import Problem

Array = NDArray[np.float64]

MEAN_BYTES = 2 * 2**20
"""Bytes of targets in a temporary array while their means are found."""
WEIGHTS_IN_RANGE = (1e-30, 1e30)
"""Largest sample weight of a classification: gradients, which are as large, are squared and multiplied by K."""
MAX_EXPONENT = 960
"""Scaled weights and alphas stay within 2 to this power, and its inverse."""
ORIGIN = "origin"
"""Name of the note in a store that holds the origin of the kernel of its run."""


@dataclass(frozen=True, kw_only=True)
class FitData:
    """Data of one fit, with the kernel as it is computed."""

    rows: Rows
    """X, of shape (n, d); for a precomputed kernel the Gram matrix itself."""
    weights: Array | None
    """Sample weights (times class weights), of shape (n,); None: ones."""
    kernel: Kernel
    feature_map: FeatureMap | None
    fit_intercept: bool
    centring: Centring | None = None
    """Change of the kernel by `centre_linear_parts`; None: unchanged."""

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.rows.shape[0]

    def fingerprint(self, rows_digest: str) -> dict[str, Any]:
        """Values that a run shares with the one that it resumes."""
        return {
            "X": rows_digest,
            "lengths": [self.n],  # of a run that grows also those before, in the order of the chain of checksums
            "shape": list(self.rows.shape),
            "dtype": str(np.dtype(self.rows.dtype)),
            "kernel": (self.kernel if self.centring is None else self.centring.plain).to_dict(),
            "fit_intercept": self.fit_intercept,
        }

    def notes(self) -> dict[str, Any]:
        """Values that a run takes over from the one that it resumes."""
        return {} if self.centring is None else {ORIGIN: self.centring.origin.tolist()}


def sizes_out_of_range(targets: Array) -> Array | None:
    """Powers of two by which targets have to be divided for their squares, of shape (t,); None if there is no need."""
    largest = np.maximum(targets.max(axis=0), -targets.min(axis=0))
    is_safe = [SAFE_SIZES[0] < size < SAFE_SIZES[1] or size == 0 for size in largest.tolist()]
    return None if all(is_safe) else np.where(is_safe, 1.0, column_sizes(targets))


@dataclass(frozen=True, kw_only=True)
class TrainingData(FitData):
    """Data of a ridge regression."""

    targets: Array
    """y, of shape (n, t)."""
    alphas: Array
    """λ of every target, of shape (t,)."""

    @classmethod
    def of(cls, outputs: Targets, shared: dict[str, Any]) -> Self:
        """Data of these targets, with the `shared_fields` of a request."""
        return cls(targets=outputs.values, alphas=outputs.alphas, **shared)

    def in_range(self) -> tuple["TrainingData", Array | None]:
        """Problem with targets whose sums and squares neither overflow nor underflow, and their powers of two.

        Coefficients are linear in the targets, and a power of two changes none of their digits.

        Returns
        -------
        data : TrainingData
        sizes : ndarray of shape (t,) or None
            Powers of two that its targets have been divided by, and its solution is to be multiplied by; None if
            nothing had to be done.
        """
        sizes = sizes_out_of_range(self.targets)
        if sizes is None:
            return self, None
        return replace(self, targets=np.divide(self.targets, sizes, out=self.room_for_errors())), sizes

    def of_columns(self, columns: NDArray[np.intp]) -> Self:
        """Problem with some of the targets, which are in memory."""
        first, stop = int(columns[0]), int(columns[-1]) + 1
        taken = slice(first, stop) if stop - first == len(columns) else columns
        return replace(self, targets=np.array(self.targets[:, taken], order="C"), alphas=self.alphas[columns])

    def alpha_groups(self) -> list[tuple[float, NDArray[np.intp]]]:
        """Distinct values of λ, each with the columns of its targets: one factorisation each."""
        return [(a, np.flatnonzero(self.alphas == a)) for a in sorted(set(self.alphas.tolist()))]

    def target_means(self) -> Array:
        """Weighted means of the targets with an intercept, else zeros; shape (t,)."""
        if not self.fit_intercept:
            return np.zeros(self.targets.shape[1])
        # Differences from the first row: the mean of a constant is then that constant, to the last digit.
        first, total = self.targets[0], np.zeros(self.targets.shape[1])
        block = max(1, MEAN_BYTES // (8 * len(total)))
        for start in range(0, self.n, block):
            part = self.targets[start : start + block] - first
            total += part.sum(axis=0) if self.weights is None else self.weights[start : start + block] @ part
        return np.asarray(first + total / (self.n if self.weights is None else self.weights.sum()))

    def room_for_errors(self) -> Array:
        """Array for the training errors, of the targets' shape: in memory, or in a mapped file if the targets are."""
        if not is_mapped(self.targets):
            return np.empty(self.targets.shape)
        return mapped_array(self.targets.shape, setting("temporary-directory"))

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
        """Right-hand sides c (y − ȳ) of some targets, and c for an intercept; shape (n, len(columns) + 1 or 0)."""
        scale = self.dual_scale()
        y = self.targets[:, columns] - means[columns]
        if self.fit_intercept:
            y = np.column_stack([y, np.ones(self.n)])
        return np.ascontiguousarray(y if scale is None else y * scale[:, None])

    def dual_coefficients(self, beta: Array) -> tuple[Array, Array]:
        """Undo the scaling and free the intercept.

        From [K + λW⁻¹ 1; 1ᵀ 0][α; b] = [y; 0]: with u and v the solutions for y and for ones, b = 1ᵀu / 1ᵀv and
        α = u − v b. Where weights span many orders, a b that is off by its last digit leaves 1ᵀα far from the rounding
        of α. So what is left is taken as u once more.

        Parameters
        ----------
        beta : ndarray of shape (n, number of right-hand sides)

        Returns
        -------
        alpha : ndarray of shape (n, targets of this group)
        constants : ndarray of shape (2, targets of this group)
            Both parts of b, which is to be added to the means.
        """
        scale = self.dual_scale()
        if not self.fit_intercept:
            return beta if scale is None else beta * scale[:, None], np.zeros((2, beta.shape[1]))
        alpha, v = beta[:, :-1], beta[:, -1:]
        total, constants = _weighted_sum(v, scale), np.empty((2, alpha.shape[1]))
        for part in constants:
            part[:] = _weighted_sum(alpha, scale) / total
            alpha = alpha - v * part
        return alpha if scale is None else alpha * scale[:, None], constants

    def fingerprint(self, rows_digest: str) -> dict[str, Any]:
        return super().fingerprint(rows_digest) | {
            "y": digest_of(self.targets),
            "sample_weight": None if self.weights is None else digest_of(self.weights),
            "alpha": self.alphas.tolist(),
        }


def _weighted_sum(vectors: Array, scale: Array | None) -> Array:
    return vectors.sum(axis=0) if scale is None else scale @ vectors


@dataclass(frozen=True)
class TargetSizes:
    """Sizes of the targets less their means, which relative residuals of a primal fit refer to; of shape (t,) each."""

    weighted: Array
    """‖√W y‖."""
    plain: Array
    """‖y‖ over the rows of positive weight."""
    ordinary: Array
    """‖y‖ times the root of the median weight, at most ‖√W y‖: that may be the size of a few heavy rows alone."""
    totals: Array
    """Σ w y, which rounding of the means leaves."""

    @classmethod
    def of(cls, data: TrainingData, means: Array) -> "TargetSizes":
        """Sizes of the targets of a fit, a few rows at a time."""
        squares, totals, weights = np.zeros((2, len(means))), np.zeros(len(means)), data.weights
        most = 1.0 if weights is None else max(float(weights.max()), np.finfo(float).tiny)
        block = max(1, MEAN_BYTES // (8 * max(len(means), 1)))
        for start in range(0, data.n, block):
            y = data.targets[start : start + block] - means
            w = None if weights is None else weights[start : start + block]
            totals += y.sum(axis=0) if w is None else w @ y
            y *= y
            squares += y.sum(axis=0) if w is None else np.array([w / most, w > 0]) @ y
        weighted, plain = np.sqrt(squares)
        weighted = weighted * np.sqrt(most)
        if weights is None:
            return cls(weighted, plain, weighted, totals)
        middle = float(np.median(weights[weights > 0])) if (weights > 0).any() else 0.0
        return cls(weighted, plain, np.minimum(weighted, np.sqrt(middle) * plain), totals)


@dataclass(frozen=True, kw_only=True)
class LabelledData(FitData):
    """Data of a classification."""

    codes: NDArray[np.intp]
    """Numbers of the classes, of shape (n,)."""
    likelihood: Likelihood
    alphas: tuple[float, ...]
    """λ, one model after the other."""
    unit: float = 1.0
    """Power of two that weights and alphas have been divided by, and with them the objective."""

    @classmethod
    def of(cls, outputs: Labels, shared: dict[str, Any]) -> Self:
        """Data of these labels, with the `shared_fields` of a request."""
        return cls(codes=outputs.codes, likelihood=outputs.likelihood, alphas=outputs.alphas, **shared)

    def in_range(self) -> "LabelledData":
        """Problem with weights whose squares neither overflow nor underflow.

        The objective is linear in weights and alphas, so that dividing both by one power of two changes neither its
        minimum nor a digit. Where they are so far apart that any power would make one of them overflow or underflow,
        they stay as they are.
        """
        largest = 1.0 if self.weights is None else float(self.weights.max(initial=0.0))
        if WEIGHTS_IN_RANGE[0] <= largest <= WEIGHTS_IN_RANGE[1] or largest == 0.0:
            return self
        assert self.weights is not None
        own = frexp(largest)[1] - 1
        least = frexp(min(*self.alphas, float(self.weights[self.weights > 0].min())))[1] + MAX_EXPONENT
        most = max(own, frexp(max(self.alphas))[1]) - MAX_EXPONENT
        if most > least:
            return self
        exponent = min(max(own, most), least)
        weights = np.ldexp(self.weights, -exponent)
        alphas = tuple(ldexp(alpha, -exponent) for alpha in self.alphas)
        return replace(self, weights=weights, alphas=alphas, unit=ldexp(1.0, exponent))

    def fingerprint(self, rows_digest: str) -> dict[str, Any]:
        return super().fingerprint(rows_digest) | {
            "classes": digest_of(self.codes),
            "weight": None if self.weights is None else digest_of(self.weights * self.unit),
            "alpha": [alpha * self.unit for alpha in self.alphas],
            "one_vs_rest": isinstance(self.likelihood, Bernoulli) and self.likelihood.n_columns > 1,
        }


def shared_fields(request: FitRequest, problem: Problem) -> dict[str, Any]:
    """Fields of FitData; the kernel is the problem's, in which nothing is left open."""
    return {
        "rows": request.rows,
        "weights": request.weights,
        "kernel": problem.kernel,
        "feature_map": problem.feature_map,
        "fit_intercept": request.settings.fit_intercept,
    }
