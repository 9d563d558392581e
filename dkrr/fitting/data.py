"""The data of one fit, and the algebra that is the same in memory and on disk."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dkrr.config import setting
from dkrr.data import Rows
from dkrr.data.arrays import is_mapped, mapped_array
from dkrr.data.rows import Checksums, digest_of, digests_of_weights
from dkrr.fitting.requests import FitRequest, Labels, Targets
from dkrr.kernels import Kernel
from dkrr.kernels.centring import Centring
from dkrr.kernels.map_base import FeatureMap
from dkrr.linalg.likelihood import Bernoulli, Likelihood
from dkrr.planning.problem import Problem

Array = NDArray[np.float64]

MEAN_BYTES = 2 * 2**20
"""Bytes of targets in a temporary array while their means are found."""
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
    outputs_in_run: ClassVar[str] = ""
    """Name of the outputs in the fingerprint of a run that grows; empty: its data are always the same."""

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.rows.shape[0]

    def fingerprint(self, rows: Checksums) -> dict[str, Any]:
        """Values that a run shares with the one that it resumes, or of which it has more."""
        return {
            "X": list(rows.digests),
            "lengths": list(rows.lengths),
            "shape": list(self.rows.shape),
            "dtype": str(np.dtype(self.rows.dtype)),
            "kernel": (self.kernel if self.centring is None else self.centring.plain).to_dict(),
            "fit_intercept": self.fit_intercept,
        }

    def notes(self) -> dict[str, Any]:
        """Values that a run takes over from the one that it resumes."""
        return {} if self.centring is None else {ORIGIN: self.centring.origin.tolist()}


@dataclass(frozen=True, kw_only=True)
class TrainingData(FitData):
    """Data of a ridge regression."""

    targets: Array
    """y, of shape (n, t)."""
    alphas: Array
    """λ of every target, of shape (t,)."""
    outputs_in_run = "y"

    @classmethod
    def of(cls, outputs: Targets, shared: dict[str, Any]) -> Self:
        """Data of these targets, with the `shared_fields` of a request."""
        return cls(targets=outputs.values, alphas=outputs.alphas, **shared)

    def of_columns(self, columns: NDArray[np.intp]) -> Self:
        """Problem with some of the targets, which are in memory."""
        first, stop = int(columns[0]), int(columns[-1]) + 1
        taken = slice(first, stop) if stop - first == len(columns) else columns
        return replace(self, targets=np.array(self.targets[:, taken], order="C"), alphas=self.alphas[columns])

    def alpha_groups(self) -> list[tuple[float, NDArray[np.intp]]]:
        """Distinct values of λ, each with the columns of its targets: one factorisation each."""
        alphas = sorted(set(self.alphas.tolist()))
        if len(alphas) == 1:
            return [(alphas[0], np.arange(len(self.alphas)))]
        return [(a, np.flatnonzero(self.alphas == a)) for a in alphas]

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
        shift = np.full(len(self.targets), alpha)
        if self.weights is not None and alpha == 0:
            shift[self.weights == 0] = 1.0
        return shift

    def dual_right_sides(self, columns: NDArray[np.intp], means: Array) -> Array:
        """Right-hand sides c (y − ȳ) of some targets, and c for an intercept; shape (n, len(columns) + 1 or 0)."""
        scale = self.dual_scale()
        y = self.targets[:, columns] - means[columns]
        if self.fit_intercept:
            y = np.column_stack([y, np.ones(len(y))])
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

    def fingerprint(self, rows: Checksums) -> dict[str, Any]:
        return super().fingerprint(rows) | {
            "y": digest_of(self.targets),
            "sample_weight": digests_of_weights(self.weights, rows.lengths),
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
        block = max(1, MEAN_BYTES // (8 * max(len(means), 1)))
        for start in range(0, data.n, block):
            y = data.targets[start : start + block] - means
            w = None if weights is None else weights[start : start + block]
            totals += y.sum(axis=0) if w is None else w @ y
            y *= y
            squares += y.sum(axis=0) if w is None else np.array([w, w > 0]) @ y
        weighted, plain = np.sqrt(squares)
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
    outputs_in_run = "classes"

    @classmethod
    def of(cls, outputs: Labels, shared: dict[str, Any]) -> Self:
        """Data of these labels, with the `shared_fields` of a request."""
        return cls(codes=outputs.codes, likelihood=outputs.likelihood, alphas=outputs.alphas, **shared)

    def fingerprint(self, rows: Checksums) -> dict[str, Any]:
        return super().fingerprint(rows) | {
            "classes": digest_of(self.codes),
            "weight": digests_of_weights(self.weights, rows.lengths),
            "alpha": list(self.alphas),
            "one_vs_rest": isinstance(self.likelihood, Bernoulli) and self.likelihood.n_columns > 1,
        }


def shared_fields(request: FitRequest, problem: Problem, features: FeatureMap | None = None) -> dict[str, Any]:
    """Fields of FitData; the kernel is the problem's, in which nothing is left open.

    With `features` these take the place of the problem's.
    """
    return {
        "rows": request.rows,
        "weights": request.weights,
        "kernel": problem.kernel,
        "feature_map": features or problem.feature_map,
        "fit_intercept": request.settings.fit_intercept,
    }
