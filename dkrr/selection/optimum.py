"""λ and lengths beyond the grid: the cross-validated error made smaller by its gradient.

L-BFGS-B works on the logarithms of λ and of the lengths, and on that of the error, so that neither scales nor units
matter; it starts at the best candidate of the grid.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from math import exp, isfinite, log
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from dkrr.checks import MIN_TOL, shown, whole
from dkrr.cluster import Progress, make_progress
from dkrr.cost import Stage
from dkrr.data.rows import digest_of
from dkrr.errors import DkrrError, InputError, StoreError, warn_inaccurate
from dkrr.fitting.context import QUIET_SECONDS, open_context
from dkrr.fitting.data import shared_fields
from dkrr.fitting.request_plans import with_spectrum
from dkrr.fitting.requests import FitRequest, Targets
from dkrr.fitting.sampled import centre_linear_parts
from dkrr.fitting.score_plans import plan_gradient
from dkrr.kernels import Kernel
from dkrr.kernels.lengths import WithLengths
from dkrr.linalg.result import in_terms_of_alpha
from dkrr.planning.resources import Resources
from dkrr.planning.searches import Optimising
from dkrr.planning.selection import FoldSizes, ScoringPlan
from dkrr.selection.folds import Folds
from dkrr.selection.gradients import EvaluatedData, Evaluation, HeldOutError
from dkrr.store import RunStore
from dkrr.store.run_store import ENDED, STAGE
from dkrr.text import Explained, plural

Array = NDArray[np.float64]
OptimizedParameters = Literal["isotropic", "ard", "alpha"]

RANGE = 1000.0
"""Factor by which λ and every length may become larger or smaller than where they start."""
MIN_GAIN = 1e-3
"""Relative decrease of the error by a step below which the search has converged."""
MIN_SLOPE = 1e-3
"""Relative change of the error over that of any parameter, below which it has."""
TOL_RATIO = 0.1
"""Residual of an evaluation over that of scores: line searches compare errors that differ by little."""
EVALUATIONS = "evaluations"
"""Name of the note in a store that holds the evaluations of its run."""


@dataclass(frozen=True, repr=False)
class Optimum(Explained):
    """Best evaluation of a search by gradients, and how the search ended.

    ``str(optimum)`` explains it, as a notebook does.

    Attributes
    ----------
    alpha : float
        λ of the best evaluation.
    kernel : Kernel
        Kernel with its lengths.
    score : float
        Negative mean over the folds of the mean squared error, as candidates of the grid have it.
    n_evaluations : int
        Number of evaluations of the error and its gradient.
    converged : bool
        Whether a further step would hardly change the error.
    message : str
        Why the search has ended.
    alphas : ndarray
        λ of every evaluation, of shape (n_evaluations,).
    lengths : ndarray or None
        Lengths of every evaluation, of shape (n_evaluations, d) or (n_evaluations, 1); None where only λ was sought.
    scores : ndarray
        Their scores, of shape (n_evaluations,).
    gradients : ndarray
        Derivatives of the scores by the logarithms of λ and of the lengths, of shape (n_evaluations, 1 + lengths).
    plan : ScoringPlan
        Method of the evaluations, and their projected cost.
    stages : tuple of Stage
        Time of all evaluations by stage.
    predictions : tuple of ndarray
        Predictions of the rows that each fold holds out, of shape (k, t).

    See Also
    --------
    dkrr.KernelRidgeCV : Kernel ridge regression with a choice of λ and kernel.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr import KernelRidgeCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-2.0, 2.0, size=(40, 1))
    >>> y = np.sin(X[:, 0]) + 0.3 * rng.normal(size=40)
    >>> optimum = KernelRidgeCV([0.01], kernel="rbf", gamma=[1.0], cv=5, optimize="alpha").fit(X, y).optimum_
    >>> optimum.converged, bool(optimum.score == max(optimum.scores))
    (True, True)
    """

    alpha: float
    kernel: Kernel
    score: float
    n_evaluations: int
    converged: bool
    message: str
    alphas: Array
    lengths: Array | None
    scores: Array
    gradients: Array
    plan: ScoringPlan
    stages: tuple[Stage, ...] = field(repr=False)
    predictions: tuple[Array, ...] = field(repr=False)

    def _summary(self) -> str:
        how = "converged" if self.converged else "not converged"
        return f"{how}, score {self.score:.6g}, alpha={self.alpha:.4g}, {self.kernel!r}"

    def __str__(self) -> str:
        return "\n".join(
            [
                f"dkrr optimum: {'converged' if self.converged else 'not converged'}",
                f"  alpha       {self.alpha:.6g} (from {self.alphas[0]:.4g})",
                f"  kernel      {self.kernel!r}",
                f"  score       {self.score:.6g} (from {self.scores[0]:.6g})",
                f"  work        {plural(self.n_evaluations, 'evaluation')}",
                f"  ended       {self.message}",
            ]
        )


@dataclass(frozen=True)
class Search:
    """Parameters to optimise, and the largest number of evaluations."""

    what: OptimizedParameters
    max_evaluations: int

    @classmethod
    def checked(cls, what: Any, max_evaluations: Any) -> "Search | None":
        """Search from a user's arguments; None for None."""
        n_evaluations = whole(max_evaluations, "max_evaluations", 1)
        if what is None:
            return None
        if not isinstance(what, str) or what not in get_args(OptimizedParameters):
            raise InputError(
                f"optimize is {shown(what)}; expected None, 'isotropic' (λ and one length for all "
                f"columns), 'ard' (λ and a length for each column) or 'alpha' (λ alone)"
            )
        return cls(what, n_evaluations)  # type: ignore[arg-type]

    def check(self, request: FitRequest, alphas: Array) -> None:
        """Refuse a kernel without bounded derivatives by its lengths, and candidates without a logarithm."""
        if not (alphas > 0).all():
            raise InputError(
                "alphas has 0, and optimize works on the logarithm of λ; expected candidates above 0: leave 0 out, or "
                "give optimize=None"
            )
        if self.what == "alpha":
            return
        kernel, d = request.settings.kernel, request.rows.shape[1]
        if not isinstance(kernel, WithLengths):
            raise InputError(
                f"kernel is {kernel!r}, and optimize={self.what!r} asks for derivatives by lengths; expected a "
                f"kernel with such derivatives, as RBF and Matern with nu = 1.5 or 2.5 are: for other kernels give "
                f"optimize='alpha'"
            )
        kernel.resolved(d)
        kernel.length_slopes(d)
        if request.rows.is_sparse:
            raise InputError(
                f"X is sparse, and optimize={self.what!r} multiplies whole columns; expected dense rows: give "
                f"X.toarray(), or optimize='alpha'"
            )

    def planned(self, request: FitRequest, sizes: FoldSizes, resources: Resources) -> Optimising:
        """Plan of all evaluations, from one λ and kernel.

        Parameters
        ----------
        request : FitRequest
            As of `optimise`.
        """
        kernel, _ = self.start(request.settings.kernel, request.rows.shape[1])
        request = request.with_settings(kernel=kernel, tol=max(TOL_RATIO * request.settings.tol, MIN_TOL))
        plan = plan_gradient(with_spectrum(request.problem(), request.rows), sizes, resources)
        return Optimising(plan, self.max_evaluations)

    def start(self, kernel: Kernel, n_features: int) -> tuple[Kernel, Array]:
        """Kernel to begin with, and the lengths that are to be found, of shape (0,), (1,) or (n_features,)."""
        kernel = kernel.resolved(n_features)
        if self.what == "alpha":
            return kernel, np.empty(0)
        assert isinstance(kernel, WithLengths)
        lengths = kernel.lengths(n_features)
        if self.what == "isotropic":
            return kernel, np.exp(np.log(lengths).mean(keepdims=True))
        return kernel.with_lengths(lengths), lengths

    def kernel(self, begun: Kernel, lengths: Array, n_features: int) -> Kernel:
        """The kernel that was begun with, with other lengths."""
        if self.what == "alpha":
            return begun
        assert isinstance(begun, WithLengths)
        if self.what == "ard":
            return begun.with_lengths(lengths)
        own = begun.lengths(n_features)
        scaled = own * (lengths / np.exp(np.log(own).mean()))
        return begun.with_lengths(scaled if begun.has_length_of_columns else scaled[:1])

    def gradient(self, evaluation: Evaluation) -> Array:
        """Derivatives by the logarithms of λ and of what `start` gives."""
        by_lengths = np.empty(0) if evaluation.by_log_lengths is None else evaluation.by_log_lengths
        if self.what == "isotropic":
            by_lengths = by_lengths.sum(keepdims=True)
        return np.concatenate([[evaluation.by_log_alpha], by_lengths])


class _Ended(Exception):  # noqa: N818
    """The search ends before L-BFGS-B does."""


class _Objective:
    """Logarithm of the error over that at the start, and its gradient; keeps the best evaluation.

    Parameters
    ----------
    search : Search
    error : HeldOutError
    kernel : Kernel
        Kernel to begin with.
    n_features : int
    progress : Progress
    log : _Log
    """

    def __init__(
        self, search: Search, error: HeldOutError, kernel: Kernel, n_features: int, progress: Progress, log: "_Log"
    ) -> None:
        self._search, self._error, self._kernel, self._d = search, error, kernel, n_features
        self._progress, self._log = progress, log
        self.parameters, self.values, self.gradients = list[Array](), list[float](), list[Array]()
        self.best, self.predictions = 0, tuple[Array, ...]()
        self.excess = 0.0

    def kernel(self, parameters: Array) -> Kernel:
        """Kernel with the lengths in the parameters."""
        return self._search.kernel(self._kernel, np.exp(parameters[1:]), self._d)

    def __call__(self, parameters: Array) -> tuple[float, Array]:
        number = len(self.values)
        if number == self._search.max_evaluations:
            raise _Ended(f"stopped after {plural(number, 'evaluation')}, as max_evaluations asks")
        found = self._log.found(number, parameters)
        if found is None:
            value, gradient, excess = self._evaluated(parameters)
            self._log.add(parameters, value, gradient, excess)
        else:
            value, gradient, excess = found
        self.parameters.append(parameters.copy())
        self.values.append(value)
        self.gradients.append(gradient)
        self.excess = max(self.excess, excess)
        if number == 0 or value < self.values[self.best]:
            self.best = number
            self.predictions = self._last if found is None else ()
        if not (isfinite(value) and value > 0):
            raise _Ended("the error is 0 or not finite, and has no logarithm")
        self._progress.note(
            f"evaluation {number + 1}: error {value:.4g} ({value / self.values[0] - 1:+.2%}), alpha "
            f"{exp(parameters[0]):.3g}"
        )
        return log(value / self.values[0]), gradient / value

    def _evaluated(self, parameters: Array) -> tuple[float, Array, float]:
        try:
            evaluation = self._evaluate(parameters)
        except DkrrError as error:
            if not self.values:
                raise
            raise _Ended(f"an evaluation failed: {error}") from error
        if evaluation.excess > 1 / TOL_RATIO:  # of scores, too
            if not self.values:
                raise InputError(
                    f"the systems of the first evaluation, with alpha = {exp(parameters[0]):g}, were solved to "
                    f"{evaluation.excess:.1e} times the residual that is needed; expected larger values of alphas, a "
                    f"larger max_iter, or optimize=None"
                )
            raise _Ended(f"the systems of an evaluation, with alpha = {exp(parameters[0]):g}, were not solved")
        self._last = evaluation.predictions
        return evaluation.value, self._search.gradient(evaluation), evaluation.excess

    def _evaluate(self, parameters: Array) -> Evaluation:
        alpha = exp(parameters[0])
        with in_terms_of_alpha([alpha], "dual"):
            return self._error(alpha, self.kernel(parameters), of_lengths=self._search.what != "alpha")

    def predictions_of_best(self) -> tuple[Array, ...]:
        """Held-out predictions of the best evaluation, which is made again if an earlier run made it."""
        return self.predictions or self._evaluate(self.parameters[self.best]).predictions


class _Log:
    """Evaluations in a store: a run that was killed repeats none of them, since the search is deterministic."""

    def __init__(self, url: str | None, fingerprint: dict[str, Any], tol: float) -> None:
        self._store, self._entries, self._tol = None, list[Any](), tol
        if url is None:
            return
        self._store = RunStore(url)
        self._store.open()
        self._store.claim(fingerprint, {})
        self._entries = self._store.note(EVALUATIONS) or []

    def found(self, number: int, parameters: Array) -> tuple[float, Array, float] | None:
        """Value, gradient and excess of an earlier run's evaluation of this number, if it was of these parameters.

        It must be as accurate as those of this run.
        """
        if number < len(self._entries):
            theirs, tol, value, gradient, excess = self._entries[number]
            if theirs == parameters.tolist() and tol <= self._tol:
                return value, np.array(gradient), excess
            del self._entries[number:]
        return None

    def add(self, parameters: Array, value: float, gradient: Array, excess: float) -> None:
        """Write an evaluation."""
        if self._store is not None:
            self._entries.append([parameters.tolist(), self._tol, value, gradient.tolist(), excess])
            stage = {"name": f"evaluations, {len(self._entries):,} kept", "done": 0.0}
            self._store.set_notes({EVALUATIONS: self._entries, STAGE: stage})

    def end(self) -> None:
        """Note that the search has ended, for `dkrr.status`."""
        stage = {"name": ENDED, "done": 1.0}
        if self._store is not None and self._store.note(STAGE) != stage:
            with suppress(StoreError, OSError):  # all is known without it
                self._store.set_note(STAGE, stage)


def optimise(
    search: Search,
    request: FitRequest,
    folds: Folds,
    sizes: FoldSizes,
    resources: Resources,
    store: str | None,
    show_progress: bool | None,
) -> Optimum:
    """Make the cross-validated squared error smaller, from one λ and kernel.

    Parameters
    ----------
    search : Search
    request : FitRequest
        Request of a fit with the first λ and kernel, to the residual that scores need, without a store.
    folds : Folds
    sizes : FoldSizes
    resources : Resources
    store : str or None
        Store that takes the evaluations.
    show_progress : bool or None
        As in `make_progress`.

    Raises
    ------
    DkrrError
        See dkrr.errors; only of the first evaluation, others end the search.

    Warns
    -----
    ConvergenceWarning
        If the search has not converged, or a system of an evaluation has not.
    """
    outputs = request.outputs
    assert isinstance(outputs, Targets)
    d, alpha = request.rows.shape[1], float(outputs.alphas[0])
    kernel, lengths = search.start(request.settings.kernel, d)
    tol = max(TOL_RATIO * request.settings.tol, MIN_TOL)
    request = request.with_settings(kernel=kernel, tol=tol)
    plan = plan_gradient(with_spectrum(request.problem(), request.rows), sizes, resources)
    seconds = plan.seconds * min(search.max_evaluations, 10)
    progress = make_progress(False if show_progress is None and seconds < QUIET_SECONDS else show_progress)
    data = centre_linear_parts(EvaluatedData.of(outputs, shared_fields(request, plan.plan.priced)))
    start = np.log(np.concatenate([[alpha], lengths]))
    log_of_run = _Log(store, _fingerprint(search, data, folds, start), plan.plan.problem.tol)
    with open_context(plan.plan, None, progress) as context:
        error = HeldOutError(data, folds, plan.plan, context)
        objective = _Objective(search, error, data.kernel, d, progress, log_of_run)
        converged, message = _minimised(objective, start)
        predictions = objective.predictions_of_best()
    log_of_run.end()
    best, values = objective.best, np.array(objective.values)
    for text in _shortfalls(objective, message, converged=converged):
        warn_inaccurate(text, stacklevel=6)
    parameters = np.exp(objective.parameters)
    return Optimum(
        alpha=float(parameters[best, 0]),
        kernel=objective.kernel(objective.parameters[best]),
        score=-float(values[best]),
        n_evaluations=len(values),
        converged=converged,
        message=message,
        alphas=parameters[:, 0],
        lengths=None if search.what == "alpha" else parameters[:, 1:],
        scores=-values,
        gradients=-np.array(objective.gradients),
        plan=plan,
        stages=context.stages,
        predictions=predictions,
    )


def _minimised(objective: _Objective, start: Array) -> tuple[bool, str]:
    """Whether the search has converged, and why it ended."""
    options = {"ftol": MIN_GAIN, "gtol": MIN_SLOPE, "maxiter": 10**6, "maxfun": 10**9}
    bounds = [(s - log(RANGE), s + log(RANGE)) for s in start]
    try:
        found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    except _Ended as ended:
        return False, str(ended)
    n = len(objective.values)
    if ends := _ends_of_range(objective, start):
        return False, (
            f"it ended at the bound of the range, a factor of {RANGE:g} from the start, with {ends}, and the error "
            f"falls beyond; expected an optimum within: start there (alphas, or the kernel's lengths), or use another "
            f"kernel"
        )
    if found.status == 0:
        return True, f"converged after {plural(n, 'evaluation')}"
    return False, f"no smaller error was found in the direction of descent after {plural(n, 'evaluation')}"


def _ends_of_range(objective: _Objective, start: Array) -> str:
    """Parameters of the best evaluation that are at an end of their range, and would go on; empty if none is."""
    best = objective.best
    found, slopes = objective.parameters[best], objective.gradients[best] / objective.values[best]
    low = (found <= start - log(RANGE)) & (slopes > MIN_SLOPE)
    high = (found >= start + log(RANGE)) & (slopes < -MIN_SLOPE)
    beyond, values = np.flatnonzero(low | high), np.exp(found)
    names = [f"alpha = {values[k]:.3g}" if k == 0 else f"length {k - 1} = {values[k]:.3g}" for k in beyond]
    return ", ".join(names)


def _shortfalls(objective: _Objective, message: str, *, converged: bool) -> Iterator[str]:
    """Messages on what the result lacks."""
    if not converged:
        yield f"the search for lengths and alpha has not converged: {message}; the best of its evaluations is taken"
    if objective.excess > 1:
        yield (
            f"systems of the search for lengths and alpha were solved to {objective.excess:.1f} times the residual "
            f"that is needed; expected larger values of alphas, or a larger max_iter"
        )


def _fingerprint(search: Search, data: EvaluatedData, folds: Folds, start: Array) -> dict[str, Any]:
    """Values that evaluations in a store depend on, except X, by which the stores of the candidates are compared."""
    parts = [np.concatenate([folds.training(k), [-1], test]) for k, test in enumerate(folds.test)]
    return {
        "optimize": search.what,
        "start": start.tolist(),
        "kernel": data.kernel.to_dict(),
        "shape": list(data.rows.shape),
        "fit_intercept": data.fit_intercept,
        "y": digest_of(data.targets),
        "sample_weight": None if data.weights is None else digest_of(data.weights),
        "folds": digest_of(np.concatenate(parts).astype(np.float64)),
    }
