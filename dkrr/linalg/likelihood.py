"""Negative log likelihoods of class labels given scores, with the derivatives that Newton's method needs.

Scores are f, of shape (n, m). `Bernoulli` is one independent logistic model for each column (two classes need one
column, one-vs-rest a column for every class); `Softmax` is one model of all classes, a column each. What belongs to one
model is a *system*: m of them, or 1.

Second derivatives are given by their roots. That of a row is a matrix Wᵢ = Cᵢ Cᵢᵀ, never divided by: for independent
logistic models Cᵢ = √(v p (1 − p)), for a softmax Cᵢ = √v diag(√p) (I − √p √pᵀ), since I − √p √pᵀ is a projection.
A `DiagonalRoot` has a system for each column: vectors are of shape (n, m). A `SoftmaxRoot` has one of all columns:
vectors are *stacked*, of shape (n m, 1), row after row.

References
----------
C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, chapter 3. J. Zhu,
T. Hastie, "Kernel logistic regression and the import vector machine", J. Comput. Graph. Statist. 14 (2005).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logsumexp

from dkrr import blas
from dkrr.linalg.preconditioners import Preconditioner, Wrapped

Array = NDArray[np.float64]
Columns = NDArray[np.intp]
Correction = Callable[[Array, Columns], Array]
"""Function of residuals r of some columns that returns M⁻¹ Ĉ (Ĉᵀ M⁻¹ Ĉ)⁺ Ĉᵀ M⁻¹ r, for Ĉ = Cᵀ1 of every system."""

RANK_TOLERANCE = 1e-12
"""Bound of zero eigenvalues of ΣW, relative to the largest: equal scores for all classes change nothing."""


@dataclass(frozen=True)
class HessianRoot(ABC):
    """C, the root of the curvature of n rows at their scores; it maps (n, m) to (n, m), a row at a time."""

    scale: Array
    """Factors c, of shape (n, m)."""
    is_softmax: ClassVar[bool]
    """All columns form one system."""

    @abstractmethod
    def apply(self, x: Array) -> Array:
        """C x; of shape (n, m)."""

    @abstractmethod
    def adjoint(self, y: Array) -> Array:
        """Cᵀ y; of shape (n, m)."""

    @abstractmethod
    def invert(self, r: Array, keep: NDArray[np.bool_]) -> Array:
        """Solution q of C q ≈ r that uses only the entries of r that are kept; of shape (n, m)."""

    @abstractmethod
    def project(self, x: Array) -> Array:
        """Projection of x onto what C does not map to 0 for every scale; of shape (n, m)."""

    @abstractmethod
    def diagonal(self) -> Array:
        """Diagonals of the Wᵢ, of shape (n, m)."""

    @abstractmethod
    def total(self) -> Array:
        """Σᵢ Wᵢ, of shape (m, m)."""

    @abstractmethod
    def inverse_total(self) -> Array:
        """(Σᵢ Wᵢ)⁺, of shape (m, m)."""

    @abstractmethod
    def pairs(self) -> Array:
        """Entries of the Wᵢ for every pair of columns with one, (n, pairs); of a softmax (k, l ≤ k), row by row."""

    @abstractmethod
    def add_products(self, matrices: Array, phi: Array) -> None:
        """Add the lower triangles of ΦᵀWΦ to the matrices of the systems.

        Parameters
        ----------
        matrices : ndarray of shape (m, p, p), or (1, m p, m p) for a softmax
            Overwritten. With softmax the features of a class are consecutive.
        phi : ndarray of shape (n, p)
            Φ.
        """

    @abstractmethod
    def of_columns(self, columns: Columns) -> Self:
        """Root of the systems of some of the columns."""

    @abstractmethod
    def stack(self, x: Array) -> Array:
        """Vectors with a column for each class, (n, m), as vectors with one for each system."""

    @abstractmethod
    def split(self, x: Array) -> list[Array]:
        """Stacked vectors divided into those that `unstack` takes, side by side."""

    @abstractmethod
    def precondition(self, base: Preconditioner) -> Preconditioner:
        """Preconditioner of the systems, from a preconditioner of each diag(c) K diag(c) + s."""

    @abstractmethod
    def correction(self, base: Preconditioner) -> Correction:
        """Correction to subtract from the preconditioner M⁻¹ of the systems, so that Ĉᵀ M⁻¹ r = 0."""

    @property
    def system_size(self) -> int:
        """Length of a vector of a system."""
        return self.scale.size if self.is_softmax else len(self.scale)

    def unstack(self, x: Array) -> Array:
        """Undo `stack`."""
        return x.reshape(self.scale.shape)

    def weighted(self, weights: Array | None) -> Self:
        """Root times the roots of the weights, of shape (n,), of the rows."""
        return self if weights is None else replace(self, scale=self.scale * np.sqrt(weights)[:, None])

    def weigh(self, u: Array) -> Array:
        """W u = C Cᵀ u; of shape (n, m)."""
        return self.apply(self.adjoint(u))


@dataclass(frozen=True)
class DiagonalRoot(HessianRoot):
    """Root of independent columns, C = diag(c)."""

    is_softmax = False

    def apply(self, x: Array) -> Array:
        return self.scale * x

    def adjoint(self, y: Array) -> Array:
        return self.scale * y

    def invert(self, r: Array, keep: NDArray[np.bool_]) -> Array:
        return np.divide(r, self.scale, out=np.zeros_like(r), where=keep)

    def project(self, x: Array) -> Array:
        return x

    def diagonal(self) -> Array:
        return self.scale**2

    def total(self) -> Array:
        return np.diag((self.scale**2).sum(axis=0))

    def inverse_total(self) -> Array:
        totals = (self.scale**2).sum(axis=0)
        return np.diag(np.divide(1.0, totals, out=np.zeros_like(totals), where=totals > 0))

    def pairs(self) -> Array:
        return self.diagonal()

    def add_products(self, matrices: Array, phi: Array) -> None:
        for k, matrix in enumerate(matrices):
            blas.syrk(matrix, phi * self.scale[:, k, None], transpose=True, beta=1.0)

    def of_columns(self, columns: Columns) -> Self:
        if np.array_equal(columns, np.arange(self.scale.shape[1])):
            return self
        return replace(self, scale=np.ascontiguousarray(self.scale[:, columns]))

    def stack(self, x: Array) -> Array:
        return x

    def split(self, x: Array) -> list[Array]:
        return [x]

    def precondition(self, base: Preconditioner) -> Preconditioner:
        return base

    def correction(self, base: Preconditioner) -> Correction:
        m = self.scale.shape[1]
        solved = base.apply(self.scale, np.arange(m))
        sizes = (self.scale * solved).sum(axis=0)
        inverse = np.divide(1.0, sizes, out=np.zeros(m), where=sizes > 0)

        def correction(residuals: Array, columns: Columns) -> Array:
            own = solved[:, columns]
            return np.asarray(own * ((own * residuals).sum(axis=0) * inverse[columns]))

        return correction


@dataclass(frozen=True)
class SoftmaxRoot(HessianRoot):
    """C = diag(c) (I − u uᵀ) with unit vectors u = √p and c = √v u."""

    unit: Array
    """u, of shape (n, m)."""
    is_softmax = True

    def apply(self, x: Array) -> Array:
        return self.scale * self.project(x)

    def adjoint(self, y: Array) -> Array:
        return self.project(self.scale * y)

    def invert(self, r: Array, keep: NDArray[np.bool_]) -> Array:
        # With Σₖ rₖ = 0 this is exact: diag(c) (I − u uᵀ) (r / c) = r − p Σₖ rₖ.
        return self.project(np.divide(r, self.scale, out=np.zeros_like(r), where=keep))

    def project(self, x: Array) -> Array:
        """(I − u uᵀ) x; of shape (n, m)."""
        return np.asarray(x - self.unit * (self.unit * x).sum(axis=1, keepdims=True))

    def diagonal(self) -> Array:
        return np.asarray(self.scale**2 * (1.0 - self.unit**2))

    def total(self) -> Array:
        p = self.scale * self.unit
        cross = p.T @ (self.scale * self.unit)  # v p pᵀ is (√v p) (√v p)ᵀ
        return np.asarray(np.diag((self.scale**2).sum(axis=0)) - cross)

    def inverse_total(self) -> Array:
        return _pseudo_inverse(self.total())

    def pairs(self) -> Array:
        shares, diagonal = self.scale * self.unit, np.maximum(self.diagonal(), 0.0)
        columns = range(self.scale.shape[1])
        return np.stack(
            [diagonal[:, k] if k == j else -shares[:, k] * shares[:, j] for k in columns for j in range(k + 1)], axis=1
        )

    def add_products(self, matrices: Array, phi: Array) -> None:
        (matrix,) = matrices
        p, shares, diagonal = phi.shape[1], self.scale * self.unit, np.maximum(self.diagonal(), 0.0)
        for k in range(self.scale.shape[1]):
            here = slice(k * p, (k + 1) * p)
            blas.syrk(matrix[here, here], phi * np.sqrt(diagonal[:, k])[:, None], transpose=True, beta=1.0)
            if k:
                # −p_k p_l of all earlier classes l in one product.
                others = (phi[:, None, :] * shares[:, :k, None]).reshape(len(phi), k * p)
                blas.gemm(matrix[here, : k * p], phi * (-shares[:, k])[:, None], others, transpose_a=True, beta=1.0)

    def of_columns(self, columns: Columns) -> Self:  # noqa: ARG002
        """See base class; all classes are one system."""
        return self

    def stack(self, x: Array) -> Array:
        return x.reshape(-1, 1)

    def split(self, x: Array) -> list[Array]:
        return np.split(x, x.shape[1], axis=1)

    def precondition(self, base: Preconditioner) -> Preconditioner:
        return Classwise(base, self)

    def correction(self, base: Preconditioner) -> Correction:
        n, m = self.scale.shape
        constants = [self.adjoint(np.broadcast_to(unit, (n, m))) for unit in np.eye(m)]
        directions = np.stack(constants, axis=2).reshape(n * m, m)
        solved = base.apply(directions, np.zeros(m, np.intp))
        products = directions.T @ solved
        inverse = _pseudo_inverse((products + products.T) / 2)
        return lambda residuals, _: np.asarray(solved @ (inverse @ (solved.T @ residuals)))


def _pseudo_inverse(matrix: Array) -> Array:
    return np.asarray(np.linalg.pinv(matrix, rcond=RANK_TOLERANCE, hermitian=True), np.float64)


@dataclass
class Classwise(Wrapped):
    """(I − u uᵀ) M⁻¹ (I − u uᵀ) on stacked vectors of a softmax, M⁻¹ acting on each class separately.

    Only the projections couple the classes; M may represent the rest completely.
    """

    root: SoftmaxRoot
    is_complete = False

    def apply(self, residuals: Array, columns: Columns) -> Array:  # noqa: ARG002
        """See base class; `residuals` is of shape (n m, k)."""
        n, m = self.root.scale.shape
        k = residuals.shape[1]
        wide = residuals.reshape(n, m, k)
        unit = self.root.unit[:, :, None]
        wide = wide - unit * (unit * wide).sum(axis=1, keepdims=True)
        z = self.base.apply(wide.reshape(n, m * k), np.repeat(np.arange(m), k)).reshape(n, m, k)
        z = z - unit * (unit * z).sum(axis=1, keepdims=True)
        return np.ascontiguousarray(z.reshape(n * m, k))

    def raise_shift_if_inexact(self, residuals: Array, columns: Columns) -> bool:  # noqa: ARG002
        """See base class; `residuals` is of shape (n m, k)."""
        n, m = self.root.scale.shape
        k = residuals.shape[1]
        return self.base.raise_shift_if_inexact(residuals.reshape(n, m * k), np.repeat(np.arange(m), k))


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
    def root(self, scores: Array, weights: Array | None) -> HessianRoot:
        """C at these scores."""

    @abstractmethod
    def probabilities(self, scores: Array) -> Array:
        """Probabilities of all classes, of shape (n, number of classes); one-vs-rest probabilities are normalised."""

    @abstractmethod
    def log_probabilities(self, scores: Array) -> Array:
        """Logarithms of the probabilities, finite also where a probability is too small for float64."""

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
        """Log p of every class separately: where all are next to impossible, what counts is by how much."""
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
class WeightedLikelihood:
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
