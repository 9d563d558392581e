"""Passes over rows for the objective, gradient and Hessian of a likelihood in the primal form.

The scores Φβ + b of logistic regression are computed where the rows are, from the coefficients that every task is
called with, so nothing as long as the rows is kept or sent. The intercept is a last feature that is 1 everywhere.
"""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dkrr import blas
from dkrr.cluster import Executor, Meter, RunRecord, Task
from dkrr.kernels.map_base import FeatureMap
from dkrr.linalg.gram_products import Operator, Precision
from dkrr.linalg.likelihood import Likelihood
from dkrr.linalg.passes import Design, Segment

Array = NDArray[np.float64]


HessianForm = Literal["matrix", "diagonal"]


@dataclass(frozen=True)
class LikelihoodPass:
    """Settings of all passes of one fit."""

    feature_map: FeatureMap
    likelihood: Likelihood
    n_features: int
    """Columns of X."""
    fit_intercept: bool
    curvature: HessianForm

    @property
    def design(self) -> Design:
        """Φ, with a column of ones for an intercept."""
        return Design(self.feature_map, has_constant=self.fit_intercept)

    @property
    def dimension(self) -> int:
        """Features, the constant included."""
        return self.design.dimension(self.n_features)

    def pack_sizes(self) -> tuple[int, int, int]:
        """Lengths of the objective, the gradient and the curvature in what a pass returns."""
        p, m, s = self.dimension, self.likelihood.n_columns, self.likelihood.n_systems
        whole = s * (p * m // s) ** 2
        return s, p * m, whole if self.curvature == "matrix" else p * m

    def pass_over(self, meter: Meter, segment: Segment, coef: Array) -> Array:
        """Sums of a segment for the objective, its gradient and its curvature, packed; see `likelihood_pass`."""
        like, design = self.likelihood, self.design
        multiply = design.times(coef)
        packed = np.zeros(sum(self.pack_sizes()))
        values, gradient, curvature = self.unpack(packed)
        codes, row_weights = segment.target_rows(), segment.weight_rows()
        for where, x in segment.strips(meter, self.dimension):
            y, weights = codes[where][:, 0].astype(np.intp), None if row_weights is None else row_weights[where][:, 0]
            if self.curvature == "matrix":
                with meter.time("features"):
                    phi = design.features(x)
                with meter.time("multiply"):
                    scores = blas.product(phi, coef)
            else:
                with meter.time("multiply"):
                    scores = multiply(x)
            with meter.time("likelihood"):
                values += like.values(scores, y, weights)
                g = like.gradient(scores, y, weights)
                root = like.root(scores, weights)
            if self.curvature == "matrix":
                with meter.time("gemm"):
                    blas.gemm(gradient, phi, g, transpose_a=True, beta=1.0)
                with meter.time("syrk"):
                    root.add_products(curvature, phi)
            else:
                with meter.time("multiply"):
                    gradient += design.adjoint(x, g)
                    curvature += design.adjoint_of_squares(x, root.diagonal())
        return packed

    def unpack(self, packed: Array) -> tuple[Array, Array, Array]:
        """Objective (s,), gradient (p, m) and curvature: s matrices (p m / s, p m / s) or the diagonal (p, m)."""
        p, m, s = self.dimension, self.likelihood.n_columns, self.likelihood.n_systems
        a, b, _ = self.pack_sizes()
        values, gradient, rest = packed[:a], packed[a : a + b].reshape(p, m), packed[a + b :]
        if self.curvature == "diagonal":
            return values, gradient, rest.reshape(p, m)
        side = p * m // s
        return values, gradient, rest.reshape(s, side, side)


def likelihood_pass(meter: Meter, passes: LikelihoodPass, segment: Segment, coef: Array) -> Array:
    """Task: sums of a segment for the objective, its gradient and its curvature, packed; `coef` is of shape (p, m).

    Only the lower triangles of matrices are computed. With softmax the features of a class are consecutive: row
    k p + j is feature j of class k.
    """
    return passes.pass_over(meter, segment, coef)


def curvature_product(meter: Meter, passes: LikelihoodPass, segment: Segment, shared: tuple[Array, Array]) -> Array:
    """Task: sum of a segment for ΦᵀWΦ V, of shape (p, k).

    Parameters
    ----------
    meter, passes, segment
    shared : (coef, V)
        Coefficients (p, k) at which W is taken, and vectors (p, k), of the columns of the open systems.
    """
    coef, vectors = shared
    k = coef.shape[1]
    total, design = np.zeros(vectors.shape), passes.design
    multiply, row_weights = design.times(np.hstack([coef, vectors])), segment.weight_rows()
    for where, x in segment.strips(meter, passes.dimension):
        weights = None if row_weights is None else row_weights[where][:, 0]
        with meter.time("multiply"):
            u = multiply(x)
        with meter.time("likelihood"):
            weighted = passes.likelihood.root(np.ascontiguousarray(u[:, :k]), weights).weigh(u[:, k:])
        with meter.time("multiply"):
            total += design.adjoint(x, weighted)
    return total


@dataclass
class CurvatureProduct(Operator):
    """Product with ΦᵀWΦ at given coefficients, streamed over the rows.

    Parameters
    ----------
    passes : LikelihoodPass
    segments : tuple of Segment
    executor : Executor
    coef : ndarray of shape (p, k)
        Coefficients of the columns that are solved for.
    """

    passes: LikelihoodPass
    segments: tuple[Segment, ...]
    executor: Executor
    coef: Array
    record: RunRecord = field(default_factory=RunRecord)

    def __post_init__(self) -> None:
        self._is_coupled = self.passes.likelihood.n_systems == 1 and self.coef.shape[1] > 1
        self.n = self.coef.size if self._is_coupled else len(self.coef)

    def multiply(
        self,
        vectors: Array,
        precision: Precision = "float64",  # noqa: ARG002
        columns: NDArray[np.intp] | None = None,
    ) -> Array:
        """See base class; always in float64. With softmax vectors are stacked, (k p, 1), class after class."""
        coef = self.coef
        if self._is_coupled:
            vectors = np.ascontiguousarray(vectors.reshape(coef.shape[1], -1).T)
        elif columns is not None:
            coef = np.ascontiguousarray(coef[:, columns])
        tasks = [Task(f"curvature-{k}", curvature_product, (self.passes, s)) for k, s in enumerate(self.segments)]
        total, record = self.executor.total(tasks, (coef, np.ascontiguousarray(vectors)))
        self.record.add(record)
        found: Array = np.asarray(total)
        return np.ascontiguousarray(found.T).reshape(-1, 1) if self._is_coupled else found
