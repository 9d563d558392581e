"""The objective of kernel logistic regression in the primal form, f = Φβ + 1bᵀ, by streaming passes over the rows."""

from dataclasses import InitVar, dataclass, field

import numpy as np
from numpy.typing import NDArray

from dkrr.blas import column_norms
from dkrr.cluster import Executor, Progress, RunRecord, SerialExecutor, Task
from dkrr.errors import NotFiniteError, NotPositiveDefiniteError
from dkrr.linalg.conjugate_gradient import Iteration
from dkrr.linalg.giving_up import Watch, unwatched
from dkrr.linalg.in_memory_cholesky import factor_in_memory, memory_system
from dkrr.linalg.likelihood_passes import CurvatureProduct, LikelihoodPass, likelihood_pass
from dkrr.linalg.newton import Mask, Objective, Point
from dkrr.linalg.passes import Segment
from dkrr.linalg.preconditioners import Diagonal, Identity, Preconditioner
from dkrr.linalg.sources import FormedTiles
from dkrr.linalg.substitution import substituted
from dkrr.store import MemoryMatrix

Array = NDArray[np.float64]

MAX_MATRIX_SIDE = 20_000
"""Largest curvature matrix of the primal form that is held in memory: 3 GiB."""


@dataclass
class PrimalObjective(Objective):
    """Σᵢ vᵢ (−log likelihood of row i) + λ ‖β‖².

    One pass gives the objective, its gradient and its curvature at the end of a step, so that a step whose length
    needs no search costs one pass (and with conjugate gradient one for each iteration).

    Parameters
    ----------
    passes : LikelihoodPass
    segments : tuple of Segment
        The rows with their class codes and weights; one task each.
    executor : Executor
    alpha : float
        λ.
    max_iter : int
        Of conjugate gradient, for one step.
    is_preconditioned : bool
        By the diagonal.
    start : Point
        Where to begin.
    progress : Progress
    least_weight : float
        Smallest weight of a row but 0.
    known : ndarray of shape (n_systems,), optional
        The references, where an earlier objective of the same labels has computed them.
    watch : Watch, optional
        Watches the iterations, which a factorisation may replace.
    """

    passes: LikelihoodPass
    segments: tuple[Segment, ...]
    executor: Executor
    alpha: float
    max_iter: int
    is_preconditioned: bool
    start: InitVar[Point]
    progress: Progress
    least_weight: float = 1.0
    record: RunRecord = field(default_factory=RunRecord)
    known: InitVar[Array | None] = None
    watch: Watch | None = None
    messages: list[str] = field(default_factory=list)

    def __post_init__(self, start: Point, known: Array | None) -> None:
        penalties = np.full(self.passes.dimension, 2 * self.alpha)
        # An intercept is the last coefficient.
        coef = np.vstack([start.coef, start.intercept]) if self.passes.fit_intercept else start.coef
        if self.passes.fit_intercept:
            penalties[-1] = 0.0
        self._penalties = penalties[:, None]
        if known is None and coef.any():
            known = self._beyond_rounding(self._evaluate(np.zeros_like(coef)))
        if known is not None:
            # Where the gradient at zero vanishes so does the solution, and other starts could not be judged.
            coef = np.where(np.broadcast_to(known == 0, coef.shape[1]), 0.0, coef)
        found = self._evaluate(coef)
        self._take(coef, found)
        self.references = self._beyond_rounding(found) if known is None else known

    @property
    def point(self) -> Point:
        """See base class; scores are not kept."""
        if self.passes.fit_intercept:
            return Point(np.ascontiguousarray(self._coef[:-1]), self._coef[-1].copy())
        return Point(self._coef, np.zeros(self._coef.shape[1]))

    def _evaluate(self, coef: Array) -> tuple[Array, Array, Array]:
        """Objective, its gradient, and the curvature of the likelihood."""
        tasks = [Task(f"likelihood-{k}", likelihood_pass, (self.passes, s)) for k, s in enumerate(self.segments)]
        with self.progress.measured("likelihood"):
            packed, record = self.executor.total(tasks, np.ascontiguousarray(coef))
        self.record.add(record)
        values, gradient, curvature = self.passes.unpack(np.asarray(packed))
        with np.errstate(over="ignore", invalid="ignore"):
            penalised = self._penalties * coef
            values = values + self.passes.likelihood.per_system(0.5 * (penalised * coef).sum(axis=0))
            return values, gradient + penalised, curvature

    def _beyond_rounding(self, found: tuple[Array, Array, Array]) -> Array:
        """Norms of gradients at zero; 0 where terms cancel to rounding."""
        values, gradient, _ = found
        like, p = self.passes.likelihood, self.passes.dimension
        self._check_finite(found)
        curvature = self._diagonal(found)
        # The constant apart, since features may be of any size.
        ranges = [slice(None)] if not self.passes.fit_intercept else [slice(0, p - 1), slice(p - 1, p)]
        is_zero = np.ones(like.n_systems, np.bool_)
        for which in ranges:
            # At zero Σ v φ² is some multiple of the curvature's trace, and Σ v of the objective.
            squares = like.per_system(curvature[which].sum(axis=0))
            rounding = 100 * float(np.finfo(float).eps) * np.sqrt(squares) * np.sqrt(values)
            is_zero &= self._together(column_norms(gradient[which])) <= rounding
        return np.where(is_zero, 0.0, self._norms(gradient, values))

    def _norms(self, gradient: Array, values: Array) -> Array:
        if self.passes.fit_intercept:
            # Σ vᵢ |pᵢ − yᵢ| is no larger than the objective. A sum of terms that cancel is only rounding; next to
            # features that are small it would seem large.
            is_rounding = np.abs(gradient[-1]) <= 4 * float(np.finfo(float).eps) * values
            gradient = np.vstack([gradient[:-1], np.where(is_rounding, 0.0, gradient[-1])])
        return self._together(column_norms(gradient))

    def _together(self, norms: Array) -> Array:
        """Norms of all columns of every system."""
        return norms if self.passes.likelihood.n_systems == len(norms) else column_norms(norms[:, None])

    def _diagonal(self, found: tuple[Array, Array, Array]) -> Array:
        """Diagonal of the curvature, of shape (p, m)."""
        curvature, p = found[2], self.passes.dimension
        if self.passes.curvature == "diagonal":
            return curvature
        return np.concatenate([matrix.diagonal().reshape(-1, p) for matrix in curvature]).T

    def _check_finite(self, found: tuple[Array, Array, Array]) -> None:
        """Raise NotFiniteError if the curvature, whose largest entries are in its diagonal, is infinite or NaN."""
        diagonals = [m.diagonal() for m in found[2]] if self.passes.curvature == "matrix" else [found[2]]
        if not all(np.isfinite(d).all() for d in diagonals):
            j = int(np.flatnonzero(~np.isfinite(self._diagonal(found)).all(axis=1))[0])
            raise NotFiniteError(
                f"the curvature of kernel logistic regression is not finite at feature {j}: sums of squares of "
                f"features leave the range of float64 (1e308); expected finite numbers: rescale the columns of X"
            )

    def _take(self, coef: Array, found: tuple[Array, Array, Array]) -> None:
        self._check_finite(found)
        self._coef = coef
        self.values, self._gradient, self._curvature = found
        self.gradients = self._norms(self._gradient, self.values)
        self._direction = np.zeros_like(coef)
        self._solved = np.zeros(coef.shape[1], np.bool_)

    def decrements(self, wanted: Mask) -> Array | None:
        """See base class; those of the next step's directions, which cost no pass where the curvature is a matrix."""
        if self.passes.curvature != "matrix":
            return None
        try:
            return -self.find_direction(wanted, 0.0)
        except NotPositiveDefiniteError:
            return np.full(len(wanted), np.inf)

    def sensitivities(self) -> Array:
        return np.asarray(super().sensitivities() / np.sqrt(self.least_weight))

    def find_direction(self, is_open: Mask, forcing: float) -> Array:
        like = self.passes.likelihood
        columns = np.flatnonzero(is_open) if like.n_systems > 1 else np.arange(like.n_columns)
        if self.passes.curvature == "matrix":
            # A matrix is overwritten by its factor; what was solved for the decrements is there.
            with self.progress.measured("factorisation"):
                self._solve_directly(columns[~self._solved[columns]])
        else:
            self._iterate(columns, forcing)
        return like.per_system((self._gradient * self._direction).sum(axis=0))

    def _solve_directly(self, columns: NDArray[np.intp]) -> None:
        p, like = self.passes.dimension, self.passes.likelihood
        batches = [[k] for k in columns] if like.n_systems > 1 else [list(columns)]
        for batch in batches:
            if not batch:
                continue
            matrix = self._curvature[batch[0] if like.n_systems > 1 else 0]
            shift = np.tile(self._penalties[:, 0], len(batch))
            self._free_of_gauge(matrix, shift, len(batch))
            right_side = -np.ascontiguousarray(self._gradient[:, batch].T).reshape(-1, 1)
            try:
                factor = MemoryMatrix.of_square(matrix)
                factor_in_memory(memory_system(FormedTiles((factor,)), shift, factor), SerialExecutor())
                x = substituted(factor, right_side)
            except NotPositiveDefiniteError as error:
                raise NotPositiveDefiniteError(
                    f"kernel logistic regression, λ = alpha = {self.alpha:g}: the curvature is not positive definite "
                    f"at feature {error.row % p}: λ is below its rounding. Increase alpha, or scale the columns of X",
                    error.row % p,
                ) from None
            self._direction[:, batch] = x.reshape(len(batch), p).T
            self._solved[batch] = True

    def _free_of_gauge(self, matrix: Array, shift: Array, m: int) -> None:
        """Make the matrix definite in directions that the step has no part in.

        Equal coefficients of a feature in all classes of a softmax change no probability; with a penalty they are 0.
        Only 2λ would hold them up, and nothing those of the constant. Nor does an intercept matter where every
        probability is 0 or 1 to the last digit.
        """
        p = self.passes.dimension
        diagonal = matrix.diagonal().reshape(m, p)
        if m > 1:
            equal = np.einsum("kjlj->jkl", matrix.reshape(m, p, m, p))
            equal += np.maximum(diagonal.mean(axis=0), float(np.finfo(float).tiny) ** 0.5)[:, None, None]
        if self.passes.fit_intercept:
            last = np.arange(m) * p + p - 1
            shift[last] += np.where(matrix[last, last] > 0, 0.0, 1.0)

    def _iterate(self, columns: NDArray[np.intp], forcing: float) -> None:
        if self.watch is not None:
            self.watch.begin_step()
        p, like = self.passes.dimension, self.passes.likelihood
        is_softmax = like.n_systems == 1 and len(columns) > 1

        def stack(x: Array) -> Array:
            return np.ascontiguousarray(x.T).reshape(-1, 1) if is_softmax else x

        coef = np.ascontiguousarray(self._coef[:, columns])
        shift = np.tile(self._penalties, (len(columns), 1)) if is_softmax else self._penalties
        preconditioner: Preconditioner = Identity()
        if self.is_preconditioned:
            preconditioner = Diagonal(stack(np.ascontiguousarray(self._curvature[:, columns])), shift)
        right_sides = stack(-np.ascontiguousarray(self._gradient[:, columns]))
        operator = CurvatureProduct(self.passes, self.segments, self.executor, coef)
        outcome = Iteration(
            operator=operator,
            shift=shift,
            right_sides=right_sides,
            preconditioner=preconditioner,
            tol=forcing,
            max_iter=self.max_iter,
            progress=self.progress,
            estimates_condition=False,
            watch=self.watch or unwatched,
        ).run()
        self.record.add(operator.record)
        self.inner_iterations += outcome.iterations
        self.messages += outcome.messages
        x = outcome.x
        self._direction[:, columns] = x.reshape(len(columns), p).T if is_softmax else x
        if is_softmax and self.passes.fit_intercept:
            self._direction[-1] -= self._direction[-1].mean()  # equal intercepts change nothing

    def along(self, step_lengths: Array) -> Array:
        """See base class; a pass, whose gradient and curvature are kept."""
        trial = self._coef + np.broadcast_to(step_lengths, (self._coef.shape[1],)) * self._direction
        self._trial = (trial, self._evaluate(trial))
        return self._trial[1][0]

    def step(self, step_lengths: Array) -> None:
        wanted = self._coef + np.broadcast_to(step_lengths, (self._coef.shape[1],)) * self._direction
        trial, found = self._trial
        self._take(wanted, found if np.array_equal(trial, wanted) else self._evaluate(wanted))
