"""Negative log likelihoods of class labels given scores, with the derivatives that Newton's method needs.

Scores are f, of shape (n, m). `Bernoulli` is one independent logistic model for each column (two classes need one
column, one-vs-rest a column for every class); `Softmax` is one model of all classes, a column each. What belongs to one
model is a *system*: m of them, or 1.

Second derivatives are given by their roots; see dkrr.linalg.roots.

References
----------
C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, chapter 3. J. Zhu,
T. Hastie, "Kernel logistic regression and the import vector machine", J. Comput. Graph. Statist. 14 (2005).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logsumexp

from dkrr.linalg.roots import DiagonalRoot, Root, SoftmaxRoot

Array = NDArray[np.float64]
Codes = NDArray[np.intp]

SECONDS_PER_SCORE = 40e-9
"""Likelihood, gradient and curvature of one score."""


class Likelihood(ABC):
    """−log likelihood of class codes given scores, weighted by rows; see the module."""

    def __init__(self, n_columns: int) -> None:
        self.n_columns = n_columns

    @property
    @abstractmethod
    def n_systems(self) -> int:
        """Models that are independent of each other."""

    @abstractmethod
    def values(self, scores: Array, codes: Codes, weights: Array | None) -> Array:
        """Σᵢ vᵢ (−log likelihood of row i) of every system, of shape (n_systems,).

        Parameters
        ----------
        scores : ndarray of shape (n, m)
        codes : ndarray of shape (n,)
            Number of the class of every row.
        weights : ndarray of shape (n,), optional
            v; None means ones.
        """

    @abstractmethod
    def gradient(self, scores: Array, codes: Codes, weights: Array | None) -> Array:
        """V (p − y), of shape (n, m), to full relative precision also where p is close to y."""

    @abstractmethod
    def root(self, scores: Array, weights: Array | None) -> Root:
        """C at these scores."""

    @abstractmethod
    def probabilities(self, scores: Array) -> Array:
        """Probabilities of all classes, of shape (n, number of classes); one-vs-rest probabilities are normalised."""

    @abstractmethod
    def log_probabilities(self, scores: Array) -> Array:
        """Their logarithms, finite also where a probability is too small for float64."""

    def per_system(self, of_columns: Array) -> Array:
        """Sums over the columns of every system: from shape (m,) to (n_systems,)."""
        return of_columns if self.n_systems == len(of_columns) else of_columns.sum(keepdims=True)


class Bernoulli(Likelihood):
    """A logistic model for each column: whether a row is of that class (with one column: of the second class)."""

    @property
    def n_systems(self) -> int:
        return self.n_columns

    def _signed(self, scores: Array, codes: Codes) -> tuple[Array, Array]:
        """±1 where a row is not, or is, of the class; and the scores with that sign."""
        classes = np.arange(self.n_columns) if self.n_columns > 1 else np.ones(1, np.intp)
        sign = np.where(codes[:, None] == classes, -1.0, 1.0)
        return sign, sign * scores

    def values(self, scores: Array, codes: Codes, weights: Array | None) -> Array:
        lost = np.logaddexp(0.0, self._signed(scores, codes)[1])
        return np.asarray(lost.sum(axis=0) if weights is None else weights @ lost)

    def gradient(self, scores: Array, codes: Codes, weights: Array | None) -> Array:
        sign, signed = self._signed(scores, codes)
        g = sign * expit(signed)
        return np.asarray(g if weights is None else g * weights[:, None])

    def root(self, scores: Array, weights: Array | None) -> DiagonalRoot:
        w = expit(scores) * expit(-scores)
        return DiagonalRoot(np.sqrt(w if weights is None else w * weights[:, None]))

    def probabilities(self, scores: Array) -> Array:
        if self.n_columns == 1:
            return np.hstack([expit(-scores), expit(scores)])
        log_p = self._log_each(scores)
        e = np.exp(log_p - log_p.max(axis=1, keepdims=True))
        return np.asarray(e / e.sum(axis=1, keepdims=True))

    def _log_each(self, scores: Array) -> Array:
        """Log p of every class by itself: where all are next to impossible, what counts is by how much."""
        return np.asarray(-np.logaddexp(0.0, -scores))

    def log_probabilities(self, scores: Array) -> Array:
        log_p = self._log_each(scores)
        if self.n_columns == 1:
            return np.hstack([self._log_each(-scores), log_p])
        return np.asarray(log_p - logsumexp(log_p, axis=1, keepdims=True))


class Softmax(Likelihood):
    """The multinomial model with a column for every class; pₖ ∝ exp fₖ."""

    @property
    def n_systems(self) -> int:
        return 1

    def values(self, scores: Array, codes: Codes, weights: Array | None) -> Array:
        rows = np.arange(len(codes))
        lost = logsumexp(scores - scores[rows, codes][:, None], axis=1)
        return np.atleast_1d(lost.sum() if weights is None else weights @ lost)

    def gradient(self, scores: Array, codes: Codes, weights: Array | None) -> Array:
        rows, g = np.arange(len(codes)), self.probabilities(scores)
        # p − 1 is minus the sum of the others, which has all digits where p is close to 1.
        g[rows, codes] = 0.0
        g[rows, codes] = -g.sum(axis=1)
        return g if weights is None else g * weights[:, None]

    def root(self, scores: Array, weights: Array | None) -> SoftmaxRoot:
        unit = np.sqrt(self.probabilities(scores))
        return SoftmaxRoot(unit if weights is None else unit * np.sqrt(weights)[:, None], unit)

    def probabilities(self, scores: Array) -> Array:
        e = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(e / e.sum(axis=1, keepdims=True))

    def log_probabilities(self, scores: Array) -> Array:
        return np.asarray(scores - logsumexp(scores, axis=1, keepdims=True))


@dataclass(frozen=True)
class LabelTerms:
    """Terms of an objective that depend on the labels: their likelihood, weighted."""

    likelihood: Likelihood
    codes: Codes
    """Numbers of the classes, of shape (n,)."""
    weights: Array | None
    """v, of shape (n,); None: ones."""

    def values(self, scores: Array) -> Array:
        """Σᵢ vᵢ (−log likelihood of row i) of every system, of shape (n_systems,)."""
        return self.likelihood.values(scores, self.codes, self.weights)

    def gradient(self, scores: Array) -> Array:
        """V (p − y), of shape (n, m)."""
        return self.likelihood.gradient(scores, self.codes, self.weights)
