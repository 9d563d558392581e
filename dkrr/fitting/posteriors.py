"""Posteriors of a fitted regression: standard deviations, the likelihood, leave-one-out residuals.

Kernel ridge regression is the mean of a Gaussian process with covariance s² k and noise of variance s² λ / wᵢ. All of
this follows from the Cholesky factor of K + λW⁻¹ (in primal form of ΦᵀWΦ + λI), which the fit leaves (`uncertainty`),
or which is made once, when it is first asked for, and kept. Where a factor is not affordable, or conjugate gradient was
requested, variances come with certified bounds and the likelihood with a standard error.
"""

import math
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dkrr.cluster import Progress, SerialExecutor
from dkrr.cost import Work
from dkrr.data import Rows, refuse_changed
from dkrr.data.watched import watched_data
from dkrr.errors import InputError, warn_inaccurate
from dkrr.fitting.context import Context, progress_of
from dkrr.fitting.fold_models import FoldModels, SavedFolds, name_of
from dkrr.fitting.gaussian_process import Array, CholeskyPosterior, Numbers, Posterior
from dkrr.fitting.intervals import CrossValidationIntervals, RefittedFolds, refitted
from dkrr.fitting.kept import Kept
from dkrr.fitting.posterior_cg import IteratedPosterior
from dkrr.fitting.posterior_cholesky import DualPosterior
from dkrr.fitting.posterior_fourier import FourierPosterior
from dkrr.fitting.posterior_plans import plan_uncertainty
from dkrr.fitting.posterior_primal import PrimalPosterior
from dkrr.fitting.prediction import refuse_nan
from dkrr.fitting.prediction_costs import (
    is_kept_in_memory,
    is_read_by_workers,
    memory_of,
    room_for,
    rows_together,
    size_of_normal,
    size_of_tiles,
)
from dkrr.fitting.request_plans import plan_of, with_spectrum
from dkrr.fitting.requests import FitRequest, Targets
from dkrr.fitting.results import SavedPosterior
from dkrr.fitting.storage import MemoryStorage
from dkrr.kernels import Kernel, Polynomial, Sigmoid
from dkrr.kernels.kernel_features import feature_map, parts_of
from dkrr.limits import resident_bytes
from dkrr.linalg.held_out import folds_flops
from dkrr.linalg.posterior import takes_second_sweep
from dkrr.linalg.triangle import TriangleRows
from dkrr.linalg.variance_bounds import VarianceBounds
from dkrr.machine.detection import detect
from dkrr.planning import Plan
from dkrr.planning.predictions import ROWS_TOGETHER, Deviations
from dkrr.planning.problem import Problem
from dkrr.planning.resources import Resources
from dkrr.planning.uncertainty import UncertaintyPlan
from dkrr.store import MemoryMatrix, TileGrid
from dkrr.store.paths import local_path
from dkrr.text import format_seconds

ROW_SECONDS = 2e-7
"""Seconds of a row in the passes over all rows for the model without one fold."""


class Posteriors:
    """Posteriors of a fit, one for the targets of every λ.

    Parameters
    ----------
    request : FitRequest
        Request of the fit, with the features that its strategy has had.
    kernel : Kernel
        Kernel of the fit, with what it drew from the rows and its origins.
    saved : mapping, optional
        By λ, what the fit has left, or a saved model holds, of the posteriors with a factor.
    data : sequence of Rows, optional
        X, y and weights as `watched_data` of the request returned them; None: they are watched from now on.
    """

    _show_progress: bool | None = None
    """Whether work that the fit has not done is shown, as in `make_progress`."""

    def __init__(
        self,
        request: FitRequest,
        kernel: Kernel,
        saved: Mapping[float, SavedPosterior] | None = None,
        data: Sequence[Rows] | None = None,
    ) -> None:
        changes: dict[str, Any] = {"uncertainty": False}  # fits here keep nothing
        if request.settings.device == "cuda":  # which a copy elsewhere may not have, and factors do not need
            changes["device"] = "auto"
        if request.features is not None:
            changes["form"] = "primal"
        elif kernel.is_plain or feature_map(kernel, request.rows.shape[1]) is None:  # no grid was worth it
            changes["form"] = "dual"
        request = replace(request, settings=replace(request.settings, **changes), folds=(), posteriors=None, kept=None)
        outputs = request.outputs
        assert isinstance(outputs, Targets)
        self._given, self._request, self._outputs, self._is_prepared = request, request, outputs, False
        self._kernel, self._saved = kernel, dict(saved or {})
        self._groups = list[tuple[float, Numbers]]()
        for alpha in sorted(set(outputs.alphas.tolist())):
            self._groups.append((alpha, np.flatnonzero(outputs.alphas == alpha)))
        self._factored = dict[float, CholeskyPosterior]()
        self._iterated = dict[float, IteratedPosterior]()
        self._fold_models = dict[str, list[tuple[Numbers, FoldModels]] | RefittedFolds]()
        """By the name of the folds."""
        self._saved_folds = dict[str, list[SavedFolds]]()
        """Models without folds in a saved model, by the name of the folds."""
        self.plan: UncertaintyPlan | None = None
        """Plan of the last call that had a choice; runs of conjugate gradient are planned again when they begin."""
        self._watched = watched_data(request.rows, outputs.values, request.weights) if data is None else data

    @property
    def targets(self) -> Array:
        """Targets of the fit, of shape (n, t)."""
        return self._outputs.values

    @property
    def request(self) -> FitRequest:
        """Request of the fit.

        Raises
        ------
        InputError
            If its data were changed in place.
        """
        self._refuse_changed_data()
        return self._request

    @property
    def given(self) -> FitRequest:
        """Request of the fit, with the kernel before anything was drawn or moved.

        Raises
        ------
        InputError
            If its data were changed in place.
        """
        self._refuse_changed_data()
        return self._given

    def within(self, memory_limit: int | str | None, show_progress: bool | None) -> "Posteriors":
        """Set the limit of memory and the display of progress for later calls, and return these posteriors."""
        self._show_progress = show_progress
        if memory_limit != self._request.settings.memory_limit:
            for name in ("_given", "_request"):
                setattr(self, name, vars(self)[name].with_settings(memory_limit=memory_limit))
            self._iterated.clear()  # which have their own plans
            vars(self).pop("_resources", None)
        return self

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name != "_resources"}  # those of this machine
        saved = {alpha: one for alpha, one in self._saved.items() if one.left is None}
        return state | {"_factored": {}, "_iterated": {}, "_saved": saved, "_fold_models": {}}  # which are large

    def _prepare(self) -> None:
        """Take what the fit drew, and see that the data are those of the fit."""
        self._refuse_changed_data()
        if not self._is_prepared:
            self._request, self._is_prepared = self._request.with_settings(kernel=self._kernel), True

    @cached_property
    def _is_primal(self) -> bool:
        return plan_of(self._request).has_primal_factor

    def _has_primal_factor(self, alpha: float) -> bool:
        saved = self._saved.get(alpha)
        return self._is_primal and alpha > 0 if saved is None else saved.numbers["form"] == "primal"

    @property
    def _flops_of_sums(self) -> float:
        """Operations of ΦᵀWΦ; none on a Fourier grid, where its sums are transforms."""
        is_grid = self._request.features is not None
        return 0.0 if is_grid else len(self._outputs.values) * float(self._n_features) ** 2

    @property
    def _n_features(self) -> int:
        """Number of features of the primal form."""
        d = self._given.rows.shape[1]
        phi = self._request.features or feature_map(self._kernel, d)
        assert phi is not None
        return phi.dimension(d)

    def _refuse_changed_data(self) -> None:
        """Refuse data that were changed since the fit; rows outside of memory are compared when they are read."""
        for rows in self._watched:
            refuse_changed(rows)

    def factored(self) -> list[tuple[Numbers, CholeskyPosterior]]:
        """Posteriors with a Cholesky factor each.

        Raises
        ------
        DkrrError
            As a fit by a Cholesky factorisation does.
        """
        self._prepare()
        self._resources  # noqa: B018 - see there
        return [(columns, self._with_factor(alpha, columns)) for alpha, columns in self._groups]

    def of_rows(self, n_rows: int) -> list[tuple[Numbers, Posterior]]:
        """Posteriors for the variances of `n_rows` rows, or for the likelihood (0)."""
        self._prepare()
        return [(columns, self._chosen(alpha, columns, n_rows)) for alpha, columns in self._groups]

    @property
    def kernel(self) -> Kernel:
        """Kernel of the fit, with what it drew from the rows and its origins."""
        return self._kernel

    @property
    def has_factor(self) -> bool:
        """Whether the fit, or an earlier question, has left a factor of the dual form in this process's memory."""
        return any(self._factor_in_memory(alpha) is not None for alpha, _ in self._groups)

    def kept(self, alphas: Sequence[float], new: Rows) -> Kept | None:
        """What a fit of these rows and new ones takes: factors of all values of λ, in memory; None unless all exist."""
        found = [self._factor_in_memory(alpha) for alpha in sorted(set(alphas))]
        factors = {f"system-{k}": factor for k, factor in enumerate(found) if factor is not None}
        if len(factors) < len(found):
            return None
        left = (saved.left for saved in self._saved.values())
        matrix = next((one.matrix for one in left if one is not None and one.matrix is not None), None)
        swept = {f"system-{k}": self._swept(alpha, new) for k, alpha in enumerate(sorted(set(alphas)))}
        known = {group: one for group, one in swept.items() if one is not None}
        return Kept(len(self._outputs.values), factors.get, swept=known, matrix=matrix)

    def _swept(self, alpha: float, new: Rows) -> Array | None:
        posterior = self._factored.get(alpha)
        if not new.is_in_memory or not isinstance(posterior, DualPosterior):
            return None
        return posterior.swept(new.read(0, new.shape[0]))

    def _factor_in_memory(self, alpha: float) -> MemoryMatrix | None:
        saved, known = self._saved.get(alpha), self._factored.get(alpha)
        factor: Any = None
        if isinstance(known, DualPosterior):
            factor = known.factor
        elif saved is not None and isinstance(saved.arrays["factor"], TriangleRows):
            factor = saved.arrays["factor"].factor
        return factor if isinstance(factor, MemoryMatrix) else None

    def _with_factor(self, alpha: float, columns: Numbers) -> CholeskyPosterior:
        if alpha not in self._factored:
            saved, is_primal = self._saved.get(alpha), self._has_primal_factor(alpha)
            is_on_grid = is_primal and self._request.features is not None
            kind = FourierPosterior if is_on_grid else PrimalPosterior if is_primal else DualPosterior
            self._factored[alpha] = kind(self._request, alpha, columns, saved, self._opened)
        return self._factored[alpha]

    def _opened(self, plan: Plan) -> Progress:
        """Display of a factorisation that the fit has not left, which says what it will do."""
        progress = progress_of(self._show_progress, plan.seconds)
        how = f"{plan.chosen.summary()}; about {format_seconds(plan.seconds)}"
        progress.note(f"factoring for standard deviations, which a fit with uncertainty=True does not repeat: {how}")
        return progress

    def _chosen(self, alpha: float, columns: Numbers, n_rows: int) -> Posterior:
        """Posterior by the way that a plan chooses, whatever earlier questions have left.

        Leave-one-out residuals and intervals always take a factor: if it were used where the plan is conjugate
        gradient, standard deviations and likelihoods would be others after them than before.
        """
        if alpha in self._saved or self._has_primal_factor(alpha):
            return self._with_factor(alpha, columns)
        problem = replace(self._problem, alphas=(alpha,))
        self.plan = plan_uncertainty(problem, self._resources, n_rows)
        if self.plan.method == "factor":
            return self._with_factor(alpha, columns)
        if any(map(_may_be_indefinite, parts_of(self._problem.kernel))):
            raise InputError(
                f"kernel is {self._problem.kernel!r}; expected one that is always positive semidefinite, as bounds by "
                f"conjugate gradient assume: use solver='cholesky'"
            )
        if alpha not in self._iterated:
            self._iterated[alpha] = IteratedPosterior(self._request, alpha, columns, problem)
        return self._iterated[alpha]

    @cached_property
    def _resources(self) -> Resources:
        """Resources of this machine at the first access, before a factor takes some of its memory."""
        return detect(self._request.settings.memory_limit, None)

    @cached_property
    def _problem(self) -> Problem:
        """Systems of one λ in dual form, with the spectrum where it matters."""
        targets = Targets(self._outputs.values[:, :1], self._outputs.alphas[:1])
        request = replace(self._request.with_settings(form="dual", store=None), outputs=targets)
        return with_spectrum(request.problem(), request.rows)

    def saved(self) -> dict[float, SavedPosterior]:
        """Saved state of each posterior with a Cholesky factor, by λ."""
        return {one.alpha: one.saved() for _, one in self.of_rows(0) if isinstance(one, CholeskyPosterior)}

    def intervals(self, folds: Sequence[Numbers], coverage: float) -> CrossValidationIntervals:
        """Intervals by the models that leave out folds.

        Warns
        -----
        ConvergenceWarning
            If these may have few correct digits.
        """
        models, n_targets = self.fold_models(folds), self._outputs.values.shape[1]
        if isinstance(models, RefittedFolds):
            return CrossValidationIntervals(models, coverage, n_targets)
        for _, one in models:
            if one.doubt:
                warn_inaccurate(one.doubt, stacklevel=4)
        return CrossValidationIntervals(models, coverage, n_targets)

    def fold_models(
        self, folds: Sequence[Numbers], context: Context | None = None
    ) -> "list[tuple[Numbers, FoldModels]] | RefittedFolds":
        """Models that leave out folds, computed once for these and kept: of the targets of every λ, or all by refits.

        Parameters
        ----------
        folds : sequence of ndarray of intp
            Numbers of rows in ascending order; every row is in one fold.
        context : Context, optional
            Context of the fit that they are a stage of; None: they are shown as a separate run.
        """
        self._prepare()
        key = name_of(folds)
        if key not in self._fold_models:
            self._fold_models[key] = self._found_folds(folds, key, context)
        return self._fold_models[key]

    def _found_folds(
        self, folds: Sequence[Numbers], key: str, context: Context | None
    ) -> "list[tuple[Numbers, FoldModels]] | RefittedFolds":
        if key in self._saved_folds:
            each = zip(self._groups, self._saved_folds[key], strict=True)
            return [(columns, one.restored(self._request, alpha, columns, folds)) for (alpha, columns), one in each]
        if context is None:
            context = Context(MemoryStorage(), SerialExecutor(), self._display(len(folds)))
            are_saved = "" if self._given.learns else ", and dkrr.save(model, path, uncertainty=True) saves them"
            context.progress.note(
                f"computing the models that leave out one of {len(folds)} folds each, which intervals take; they are "
                f"kept{are_saved}"
            )
        if self._given.learns:
            with context.progress.stage("held-out models", len(folds)):
                return refitted(self._given, folds, context.progress)
        return [(columns, one.fold_models(folds, context)) for columns, one in self.factored()]

    def _display(self, n_folds: int) -> Progress:
        """Display of the models that leave out folds; None of the setting shows nothing of work that is soon done."""
        work = Work(gemm_flops=self.flops_of_folds(n_folds))
        seconds = self._resources.rates.seconds(work, self._resources.local_threads)
        return progress_of(self._show_progress, seconds + len(self._outputs.values) * (n_folds + 2) * ROW_SECONDS)

    def keep_folds(self, folds: Sequence[Numbers], saved: Sequence[SavedFolds]) -> None:
        """Take models that leave out folds from a saved model, of one λ after another.

        Raises
        ------
        ValueError
            If they are of other folds or targets, or not finite.
        """
        for (_, columns), one in zip(self._groups, saved, strict=True):
            one.check(len(columns), folds, self._given.weights)
        self._saved_folds[name_of(folds)] = list(saved)

    def saved_folds(self, folds: Sequence[Numbers]) -> dict[float, SavedFolds]:
        """Saved state of the models that leave out these folds, by λ; empty where they are not known."""
        if self._given.learns or not self.knows_models_of(folds):
            return {}
        models = self.fold_models(folds)
        assert not isinstance(models, RefittedFolds)
        return {alpha: one.saved() for (alpha, _), (_, one) in zip(self._groups, models, strict=True)}

    def planned_deviations(self, n_rows: int, resources: Resources, *, in_stores: bool) -> tuple[Deviations, ...]:
        """Plan of the standard deviations of `n_rows` rows by each posterior; nothing is computed yet.

        With `in_stores` large factors of saved models are read where they are stored, as workers do.
        """
        self._prepare()
        for alpha, columns in self._groups:
            if alpha in self._saved and self._saved[alpha].left is not None:
                self._with_factor(alpha, columns)  # which the fit has left
        found = [self._planned(alpha, n_rows, resources, in_stores=in_stores) for alpha, _ in self._groups]
        for k, (alpha, _) in enumerate(self._groups):
            size = found[k].size
            if size is not None and not size.of_features and takes_second_sweep(size.side, alpha):
                found[k] = replace(found[k], sweeps=2)
        return tuple(found)

    def _planned(self, alpha: float, n_rows: int, resources: Resources, *, in_stores: bool) -> Deviations:
        saved, known = self._saved.get(alpha), self._factored.get(alpha)
        n, threads = len(self._outputs.values), resources.local_threads
        is_saved = saved is not None and saved.left is None and saved.numbers["form"] == "dual"
        if saved is not None and is_saved and (known is None or in_stores):
            grid = TileGrid(n, saved.numbers["tile"], saved.numbers["panel"])
            room = room_for(resources, resources.local_baseline_bytes)
            is_stored = (in_stores and is_read_by_workers(memory_of(grid))) or not is_kept_in_memory(grid, room)
            size = size_of_tiles(grid, threads, is_stored=is_stored)
            return Deviations(size, size.loaded_bytes / resources.rates.read_bytes)
        plan: UncertaintyPlan | None = None
        if saved is None and not self._has_primal_factor(alpha):  # as `_chosen`, whatever earlier questions have left
            plan = plan_uncertainty(replace(self._problem, alphas=(alpha,)), resources, n_rows)
            if plan.method == "iterations":
                return Deviations(None, plan=plan)
        if known is not None:
            size = known.factor_size
            return Deviations(size if in_stores else replace(size, loaded_bytes=0))  # it is in memory already
        if plan is None:
            side = saved.arrays["factor"].shape[0] if saved is not None else self._n_features + 1
            size = size_of_normal(side, is_transform=self._request.features is not None)
            flops = 0.0 if saved is not None else self._flops_of_sums + side**3 / 3
            return Deviations(size, resources.rates.seconds(Work(gemm_flops=flops), threads))
        tiling, is_memory = plan.plan.chosen.tiling, plan.plan.chosen.place.is_memory
        size = size_of_tiles(TileGrid(n, tiling.tile, tiling.panel), threads, is_stored=not is_memory)
        return Deviations(size, plan=plan)

    def flops_of_folds(self, n_folds: int) -> float:
        """Operations of the models that leave out folds, besides those of factors."""
        self._prepare()
        n, total = len(self._outputs.values), 0.0
        for alpha, _ in self._groups:
            if self._given.learns:
                total += n_folds * n**3 / 3
            elif self._has_primal_factor(alpha):
                total += self._flops_of_sums + n_folds * self._n_features**3 / 3
            else:
                total += folds_flops(n, n_folds)
        return total

    def store_path(self) -> Path | None:
        """Folder on this machine that workers read large factors of a saved model from; None: there is none."""
        found = [saved.arrays["factor"] for saved in self._saved.values() if saved.numbers["form"] == "dual"]
        return next(
            (local_path(one.url) for one in found if one.url is not None and is_read_by_workers(one.n_bytes)), None
        )

    def knows_models_of(self, folds: Sequence[Numbers]) -> bool:
        """Whether the models that leave out these folds are known."""
        return name_of(folds) in self._fold_models or name_of(folds) in self._saved_folds

    def variances(self, n_rows: int, scale: float | None, block_rows: int | None = None) -> "Variances":
        """Variances of some number of rows for s², or (None) for that of every target.

        At most `block_rows` of them are computed together; None: the largest number that fits in memory.
        """
        posteriors = self.of_rows(n_rows)
        return Variances(posteriors, scale, block_rows or self._rows_together(posteriors))

    def _rows_together(self, posteriors: list[tuple[Numbers, Posterior]]) -> int:
        sizes = [one.factor_size for _, one in posteriors if isinstance(one, CholeskyPosterior)]
        held, resources = resident_bytes(), self._resources
        room = room_for(resources, held)
        if resources.cluster_is_running:  # whose workers may be asked for blocks
            place = resources.on_workers()
            room = min(room, place.usable_bytes - place.baseline_bytes)
        return rows_together(sizes, room, held)

    def loo_residuals(self) -> Array:
        """Y − f₋ᵢ(xᵢ), of shape (n, t).

        Raises
        ------
        InputError
            If the kernel learns from its training rows: every row would need a separate fit.
        NotFiniteError
            If one is NaN.
        """
        if self._given.learns:
            learned = self._given.learned
            kernel = self._given.settings.kernel if learned is None else learned.kernel
            raise InputError(
                f"kernel is {kernel!r}, which learns from the training rows, so that loo_residuals() would take a fit "
                f"for each of {len(self._outputs.values):,} rows; expected a kernel that does not: use y - "
                f"cross_val_predict(model, X, y, cv=10) of scikit-learn, or a kernel that is fixed before the fit "
                f"(BagOfWords with vocabulary and idf)"
            )
        found = np.empty(self._outputs.values.shape)
        for columns, one in self.factored():
            found[:, columns] = one.loo_residuals()
        refuse_nan(found)
        return found

    def log_likelihoods(self) -> tuple[Array, Array]:
        """Logarithm of the marginal likelihood of every target, and its standard error; two arrays of shape (t,)."""
        found, errors = (np.empty(self._outputs.values.shape[1]) for _ in range(2))
        for columns, one in self.of_rows(0):
            found[columns], errors[columns] = one.log_likelihoods()
        return found, errors


def _may_be_indefinite(part: Any) -> bool:
    is_polynomial = isinstance(part, Polynomial)
    return isinstance(part, Sigmoid) or (is_polynomial and (part.coef0 < 0 or part.degree != int(part.degree)))


class Variances:
    """Variances of f at rows, for the s² of every target; travels to workers.

    Parameters
    ----------
    posteriors : list of (ndarray, Posterior)
        Targets, and their posterior.
    scale : float, optional
        s²; None: of every target where its likelihood is largest.
    block_rows : int
        Most rows whose variances are computed together.
    """

    def __init__(
        self,
        posteriors: list[tuple[Numbers, Posterior]],
        scale: float | None,
        block_rows: int = ROWS_TOGETHER,
    ) -> None:
        self._block_rows = block_rows
        self._groups = [
            (columns, one, np.sqrt(one.scales()) if scale is None else np.full(len(columns), math.sqrt(scale)))
            for columns, one in posteriors
        ]
        self._token = uuid.uuid4().hex  # a checksum of a factor would take long
        self.n_targets = sum(len(columns) for columns, _ in posteriors)
        self._lock = threading.Lock()

    def __dask_tokenize__(self) -> str:
        return self._token

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def _each(self, rows: Rows, first: int) -> Iterator[tuple[slice, Numbers, Array, VarianceBounds]]:
        with self._lock:  # each uses all threads, and memory for one block
            for columns, one, roots in self._groups:
                for where, found in one.variances(rows, first, self._block_rows):
                    yield where, columns, roots, found

    def deviations(self, rows: Rows, first: int = 0, advance: Callable[[float], None] | None = None) -> Array:
        """Standard deviations, of shape (m, t); `first` is the number of the first row, for messages.

        `advance` is told which fraction of the work each block was.
        """
        out = np.empty((rows.shape[0], self.n_targets))
        for where, columns, roots, found in self._each(rows, first):
            out[where, columns] = np.sqrt(found.value[:, None]) * roots
            if advance is not None:
                advance((where.stop - where.start) / (rows.shape[0] * len(self._groups)))
        return out

    def bounds(self, rows: Rows, first: int = 0) -> Array:
        """Lower bounds of the variances of all targets, then upper ones; shape (m, 2 t)."""
        t = self.n_targets
        out = np.empty((rows.shape[0], 2 * t))
        for where, columns, roots, found in self._each(rows, first):
            with np.errstate(over="ignore"):
                out[where, columns] = found.lower[:, None] * roots * roots
                out[where, t + columns] = found.upper[:, None] * roots * roots
        return out
