"""Plans of fits: choose, measure what could change the choice, choose again, until nothing could."""

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import cached_property
from typing import Generic, Protocol, Self, TypeVar

from dkrr.data import Rows
from dkrr.errors import DkrrError, InputError, MemoryLimitError, PlanError, WrongStoreError
from dkrr.fitting import methods
from dkrr.fitting.costs.centre_costs import drawing_of
from dkrr.fitting.grids import GridInBox, box_of, error_for, grid_in_box, may_have_grid
from dkrr.fitting.requests import FitRequest, needs_cpu
from dkrr.kernels.device import refusal
from dkrr.kernels.fourier_grid import grid_columns
from dkrr.kernels.kernel_features import is_drawn, refuse_more_components_than_rows
from dkrr.kernels.map_base import FeatureMap
from dkrr.kernels.nonuniform import is_available
from dkrr.linalg.preconditioners import MAX_SAMPLE_BYTES, MIN_SAMPLED_ROWS, SAMPLE, estimated_spectrum
from dkrr.linalg.solver_settings import Cholesky, ConjugateGradient, Float32Cholesky
from dkrr.machine import measures
from dkrr.machine.calibration import LONG_SECONDS, newly_measured
from dkrr.machine.detection import detect
from dkrr.machine.gpu import found_gpu, has_cupy
from dkrr.machine.measures import with_measured_kernel
from dkrr.planning import Plan
from dkrr.planning.facts import TYPICAL, Spectrum
from dkrr.planning.iterations_first import is_soon_done
from dkrr.planning.planner import choose
from dkrr.planning.problem import Because, Problem
from dkrr.planning.resources import Resources
from dkrr.planning.strategy import Strategy
from dkrr.text import NO_REASON, Reason, format_bytes, plural

SOON_SECONDS = 0.02
"""A fit in dual form that takes no longer is not compared with a grid."""
DECISIVE_SPEEDUP = 5.0
"""By how much a grid must beat the dual form for its spectrum not to be estimated."""
NO_LIMIT = 2**62
"""Bytes of memory."""
HELD_MATRICES = 3
"""D × D matrices besides those of a fit: sums of earlier rows, of the new ones and of all."""
SUMMED = "normal matrix"
"""Stage that passes over the rows of a call."""
GROWS = Because(
    form=Reason("grows", "primal, since sums of features are kept for further rows, and not the rows"),
    solver=Reason("grows", "sums in the calling process, and a factor of them"),
)
KEEPS_FACTOR = Reason("keeps-factor", "rows and a factor in float64 are kept in the calling process for further rows")
FEATURES_REMEDY = (
    "give a kernel with explicit features (linear, polynomial, or RandomFourier(RBF(), 2000) and Nystroem(RBF(), 2000) "
    "of dkrr.features), or give all rows to fit"
)


def make_plan(problem: Problem, resources: Resources, features: FeatureMap | None = None) -> Plan:
    """Cheapest strategy of all methods that stays within the limits; see `dkrr.planning.planner.choose`.

    With `features` all candidates have these, in place of the kernel's own.
    """
    if features is None:
        drawing = None if problem.kernel.is_plain else drawing_of(problem, resources)
        return choose(methods.METHODS, problem, resources, drawing)
    plan = choose(methods.METHODS, problem.with_features(features), resources)
    return replace(plan, problem=replace(plan.problem, feature_map=problem.feature_map))


class Timed(Protocol):
    """Plan of a fit, or of the scores of a search."""

    @property
    def seconds(self) -> float:
        """Projected wall time."""

    def noted(self, reason: Reason) -> Self:
        """Plan with one more reason."""


P = TypeVar("P", bound=Timed)


DUAL_ON_GPU = Reason("gpu-requested", "dual, since device='cuda' was requested: a GPU multiplies by K")
CG_ON_GPU = Reason("gpu-iterates", "device='cuda' was requested, and a GPU iterates")


def for_device(problem: Problem) -> Problem:
    """Problem with the form and the solver that a requested GPU has; of what factors, on the CPU."""
    if problem.device != "cuda":
        return problem
    if needs_cpu(problem.form, problem.solver):  # a factorisation that takes over, or that intervals take
        return replace(problem, device="cpu")
    return problem.with_form("dual", DUAL_ON_GPU).with_solver(ConjugateGradient(), CG_ON_GPU)


class Choice(ABC, Generic[P]):
    """What is cheapest for a problem, as far as its facts tell; parts of the answer are computed once asked for."""

    def __init__(self, problem: Problem, resources: Resources) -> None:
        self.problem, self.resources = for_device(problem), resources

    @abstractmethod
    def again(self, problem: Problem, resources: Resources) -> "Choice[P]":
        """The same choice with other facts."""

    @cached_property
    def plain(self) -> Plan | DkrrError:
        """Fit without a grid; or why there is none."""
        try:
            return make_plan(self.problem, self.resources)
        except (PlanError, InputError, WrongStoreError) as error:  # the primal form was asked for, or begun
            return error

    @cached_property
    @abstractmethod
    def grid(self) -> GridInBox | None:
        """Grid in the box of the rows; None: none is to be compared."""

    @cached_property
    @abstractmethod
    def on_grid(self) -> P | Reason:
        """Plan with the grid that is to be compared; or why there is none."""

    @property
    def is_decided(self) -> bool:
        """Whether a grid is so much faster that no estimate of the other plan's time could change the choice."""
        if self.grid is None:
            return False
        on_grid = self.on_grid
        if isinstance(on_grid, Reason):
            return False
        return not isinstance(self.plain, Plan) or self.plain.seconds >= DECISIVE_SPEEDUP * on_grid.seconds

    @abstractmethod
    def next_fact(self, rows: Rows | None) -> "Choice[P] | None":
        """The choice with one more measurement, the cheapest that could change it; None: none could."""

    @abstractmethod
    def best(self) -> P:
        """The cheapest plan, with what it was compared with."""

    def _with_box(self, rows: Rows | None) -> "Choice[P] | None":
        """The choice that knows the box of the rows; None where it is known, or a scan of the rows does not pay."""
        p = self.problem
        if rows is None or p.facts.box is not None or not may_have_grid(p):
            return None
        if isinstance(self.plain, Plan) and self.plain.chosen.seconds <= SOON_SECONDS:
            return None
        return self.again(p.measured(box=box_of(rows, grid_columns(p.kernel, p.d))), self.resources)

    def _with_spectrum(self, rows: Rows | None) -> "Choice[P] | None":
        """The choice that knows the spectrum; None where it is known, does not matter or costs too much."""
        if rows is None or self.problem.facts.spectrum is not TYPICAL:
            return None
        found = with_spectrum(self.problem, rows)
        return None if found is self.problem else self.again(found, self.resources)


def settled(choice: Choice[P], rows: Rows | None) -> P:
    """The cheapest plan, once no measurement could change it; of rows that are not given nothing is measured."""
    p = choice.problem
    if not p.kernel.is_plain or p.n**2 / 2 * p.kernel.nominal_seconds(p.d) > measures.GRAM_SECONDS:
        choice = choice.again(with_measured_kernel(p, rows), choice.resources)  # which all prices depend on
    while (known := choice.next_fact(rows)) is not None:
        choice = known
    plan = choice.best()
    if not may_gain_by_gpu(choice.problem, choice.resources, plan.seconds):
        return plan
    found = found_gpu()
    if isinstance(found, str):
        return plan.noted(Reason("no-gpu", f"on the CPU, since {found}"))
    return settled(choice.again(choice.problem, replace(choice.resources, gpu=found)), rows)


def may_gain_by_gpu(p: Problem, r: Resources, seconds: float) -> bool:
    """Whether a GPU is to be looked for, by what the work takes without it: to open one takes a second."""
    if p.device != "auto" or r.gpu is not None or r.confined or seconds < LONG_SECONDS or not has_cupy():
        return False
    return not (r.cluster_is_running or p.is_sparse or refusal(p.kernel))


class FitChoice(Choice[Plan]):
    """Choice of a fit."""

    def again(self, problem: Problem, resources: Resources) -> "FitChoice":
        return FitChoice(problem, resources)

    @cached_property
    def grid(self) -> GridInBox | None:
        p = self.problem
        if p.facts.box is None or not may_have_grid(p):
            return None
        if isinstance(self.plain, Plan) and self.plain.chosen.seconds <= SOON_SECONDS:
            return None
        return grid_in_box(p, error_for(p))

    @cached_property
    def on_grid(self) -> Plan | Reason:
        grid, p, plain = self.grid, self.problem, self.plain
        assert grid is not None
        if grid.features is None:
            return grid.text
        why = grid.chosen(p.n, plain.seconds if isinstance(plain, Plan) else None)
        primal = replace(p, form="primal", because=replace(p.because, form=p.because.form or why))
        try:
            plan = make_plan(primal, self.resources, grid.features)
        except PlanError as error:
            return grid.refused(error)
        if not is_available():
            return grid.finufft_missing(plan.seconds)
        return replace(plan, problem=replace(plan.problem, form=p.form))

    def next_fact(self, rows: Rows | None) -> Choice[Plan] | None:
        p = self.problem
        if p.solver is None:
            plain = self.plain
            # A direct solver that is soon done is not compared with one whose time is only an estimate.
            if isinstance(plain, Plan) and plain.chosen.method.is_direct and plain.chosen.seconds <= SOON_SECONDS:
                return None
        if (known := self._with_box(rows)) is not None:
            return known
        if self.is_decided:
            return None
        if p.solver is None:
            plain = self.plain
            if isinstance(plain, DkrrError) or (
                plain.chosen.method.is_direct and is_soon_done(p, plain.chosen.seconds)
            ):
                return None
        # Without a bound of its entries a kernel has iterations only at request (`iterations_first.doubt`).
        may_iterate = p.solver is not None or p.kernel.has_unit_diagonal
        if may_iterate and (known := self._with_spectrum(rows)) is not None:
            return known
        plain = self.plain
        if isinstance(plain, DkrrError) or (measured := newly_measured(plain)) is None:
            return None
        return self.again(p, measured)

    def best(self) -> Plan:
        plain, grid = self.plain, self.grid
        if grid is None:
            if isinstance(plain, DkrrError):
                raise plain
            return plain
        on_grid = self.on_grid
        if isinstance(plain, DkrrError):
            if isinstance(on_grid, Plan):
                return on_grid
            raise type(plain)(f"{plain}; {on_grid}") from plain
        if not isinstance(on_grid, Plan):
            return plain.noted(on_grid)
        if plain.seconds <= on_grid.seconds:
            return plain.noted(grid.is_slower(on_grid.seconds))
        return replace(on_grid, compared=(plain.chosen, *plain.rejected))


def plan_of(request: FitRequest, resources: Resources | None = None) -> Plan:
    """Plan of a fit; raises PlanError if none stays within the limits. Resources that are not given are found."""
    settings, rows = request.settings, request.rows
    if not settings.kernel.is_plain:
        refuse_more_components_than_rows(settings.kernel, rows.shape[0])
    problem = request.problem()
    # Before the sample, some of whose memory stays in use.
    resources = detect(settings.memory_limit, settings.store, rows=rows.url) if resources is None else resources
    return settled(FitChoice(problem, resources), rows)


def with_spectrum(problem: Problem, rows: Rows) -> Problem:
    """The problem with its kernel measured, and its spectrum estimated.

    The latter only if conjugate gradient may be chosen and a sample costs little.
    """
    p = problem = with_measured_kernel(problem, rows)
    is_asked_for = isinstance(p.solver, ConjugateGradient) and not isinstance(p.solver.preconditioner, Float32Cholesky)
    is_possible = p.solver is None and min(p.alphas) > 0
    is_costly = p.kernel.is_precomputed or bool(p.kernel.functions) or rows.is_computed or is_drawn(p.kernel)
    is_costly = is_costly or SAMPLE * p.bytes_of_row > MAX_SAMPLE_BYTES
    if p.form == "primal" or p.n < MIN_SAMPLED_ROWS or is_costly or not (is_asked_for or is_possible):
        return problem
    found = estimated_spectrum(p.kernel, rows)
    return problem if found is None else problem.measured(spectrum=Spectrum(*found))


def plan_of_sums(request: FitRequest) -> tuple[FitRequest, Plan]:
    """Plan of a fit that grows, and its request: in the primal form with a factor, in the calling process.

    Time and memory are those of one call, which do not grow with the rows so far: of its own rows, and of the sums that
    are kept and merged. Dual coefficients are not computed, nor planned.

    Raises
    ------
    InputError
        If the kernel has no explicit features, or the settings exclude them.
    MemoryLimitError
        If the sums do not fit in memory.
    """
    settings = request.settings
    request = replace(
        _factored(request, "keeps sums whose matrix it factors").with_settings(form="primal"), because=GROWS
    )
    resources = _here(request, "which keeps the sums")
    try:
        plan, in_memory = _planned_in_memory(request, resources)
    except InputError as error:
        raise InputError(
            f"kernel is {settings.kernel!r}, and form='primal' of partial_fit takes explicit features, which it has "
            f"not: {error}; expected one that has: {FEATURES_REMEDY}"
        ) from error
    side = plan.dimension or 0
    more = HELD_MATRICES * 8 * side**2
    _refuse_above(
        resources,
        in_memory.peak_bytes + more,
        f"sums of {plural(side, 'feature')} take",
        "fewer features, {limit}, or all rows in one call of fit, which has other ways",
    )
    stages = [one for one in in_memory.stages if one.name in (SUMMED, "factorisation")]
    stages = [replace(one, peak_bytes=one.peak_bytes + more) for one in stages]
    return request, _in_place(plan, in_memory, replace(in_memory, stages=tuple(stages)))


def plan_of_factor(request: FitRequest, held_bytes: int) -> tuple[FitRequest, Plan]:
    """Plan of a dual fit that grows, and its request: with a factor in float64 that stays in the calling process.

    Parameters
    ----------
    request : FitRequest
        All rows so far, and those of the call.
    held_bytes : int
        Memory of this process in which a factor, and K, of earlier rows are already.

    Raises
    ------
    InputError
        If the settings exclude a factor.
    MemoryLimitError
        If the factor does not fit in memory.
    """
    request = _factored(request, "keeps a factor").with_settings(form="dual")
    if request.settings.uncertainty is False:  # which keeps the factor, as this does
        request = request.with_settings(uncertainty=True)
    resources = _here(request, "which keeps the factor")
    # What is kept is a part of the factor that is planned, and must not count twice.
    resources = replace(resources, local_baseline_bytes=max(0, resources.local_baseline_bytes - held_bytes))
    plan, in_memory = _planned_in_memory(request, resources)
    p = plan.problem
    has_sums = p.feature_map is not None or may_have_grid(replace(p, form="primal"))
    sums = ", form='primal', which keeps sums and not the rows" if has_sums else ""
    _refuse_above(
        resources,
        in_memory.peak_bytes,
        f"a factor of {plural(p.n, 'row')} takes",
        f"{{limit}}{sums}, or for larger data all rows in fit with store=, whose factor is on disk and grows there",
    )
    return request, _in_place(plan, in_memory, in_memory)


def _factored(request: FitRequest, what: str) -> FitRequest:
    """Request with a factorisation in this process, without a store; refuses conjugate gradient."""
    if isinstance(request.settings.solver, ConjugateGradient):
        raise InputError(
            f"solver is 'cg', and partial_fit {what}; expected solver='cholesky' or 'auto': or give all rows to fit"
        )
    return request.with_settings(solver=Cholesky(), store=None)


def _here(request: FitRequest, what: str) -> Resources:
    """Resources of this process, which alone does the work."""
    resources = detect(request.settings.memory_limit, None, rows=request.rows.url)
    return replace(resources, confined=f"in the calling process, {what}")


def _planned_in_memory(request: FitRequest, resources: Resources) -> tuple[Plan, Strategy]:
    """Plan of a fit, and its strategy in memory, whatever the limit: what grows is there, not in tiles on disk."""
    try:
        plan = plan_of(request, resources)
    except PlanError:  # which names the limit of a plan with tiles on disk
        plan = plan_of(request, replace(resources, local_limit_bytes=NO_LIMIT))
    return plan, next(one for one in (plan.chosen, *plan.candidates) if one.execution == "memory")


def _refuse_above(resources: Resources, needed: int, what: str, expected: str) -> None:
    """Refuse what needs more memory than the limit; `expected` has a place for the smallest one."""
    allowed = resources.local_limit_bytes
    if needed > allowed:
        suffices, name = resources.confined_limit(needed)
        limit = f"a {name} of at least {format_bytes(1.005 * suffices)} ({suffices} bytes)"
        raise MemoryLimitError(
            f"{what} up to {format_bytes(needed)} in this process, and {format_bytes(allowed)} are allowed; expected "
            f"{expected.format(limit=limit)}. Nothing was computed"
        )


def _in_place(plan: Plan, in_memory: Strategy, chosen: Strategy) -> Plan:
    """Plan with a strategy in memory, whatever else would have been chosen."""
    others = tuple(one for one in plan.candidates[1:] if one is not in_memory)
    return replace(plan, chosen=replace(chosen, refused=NO_REASON), candidates=(in_memory, *others))
