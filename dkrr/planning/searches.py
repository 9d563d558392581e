"""The plan of a whole search: the scores of all kernels, the learning curve, what is optimised, and the last fit.

Times have a range. What is uncertain of direct solvers are rates, and what Python adds to short work; of iterations it
is their number, since a preconditioner's rank follows the spectrum that is found, and a race its best λ.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType
from typing import Any, NamedTuple

from dkrr.planning.explain import columns_of, layout
from dkrr.planning.plan import ITERATION_STAGE, RATES, Plan
from dkrr.planning.selection import FoldSizes, ScoringPlan
from dkrr.text import Explained, Reason, format_bytes, format_seconds, plural

USUAL_EVALUATIONS = 10
"""Evaluations that an optimisation by gradients takes in the mean."""
RATE_DOUBT = (0.6, 1.7)
"""Smallest and largest time of work over that of the plan, where it is known what is to be done."""
ITERATION_DOUBT = (0.23, 2.3)
"""Fewest and most iterations over those that are expected."""
USUAL_ITERATIONS = 20.0
"""Iterations where the factor may have as many columns as `LARGE_RANK` says: most of the spectrum is then known to it,
and how much of it decides (70 sweeps over 200 to 4,000 rows: 2 to 300, whatever the estimate of the spectrum)."""
LARGE_RANK = (0.2, 0.35)
"""Rank over the number of rows up to which iterations are those of the plan, and from which they are the usual ones."""
FIT_SECONDS = (3e-3, 15e-3)
"""Overhead of a fit, for checks, its plan and its result: with a factor, and with iterations."""
STEP_SECONDS = 1.5e-3
"""Overhead for each λ of a fit or of scores."""
ITERATION_SECONDS = (1.2e-3, 5e-5)
"""Overhead of an iteration, and of each of its columns."""
SEARCH_SECONDS = 0.02
"""Overhead of a search: checks, folds, the table of results."""
PLAN_SECONDS = (0.01, 0.025, 3072)
"""Time of the plan of one kernel, and for each 1,024 rows of its sample, and the most rows of a sample."""
OWN_DOUBT = (0.4, 2.5)
"""Smallest and largest of these times over their values."""
NOTHING_LEFT: Mapping[str, Any] = MappingProxyType({})
"""Fields of a last fit that leaves nothing for standard deviations."""


class Seconds(NamedTuple):
    """A time that is expected, and its range."""

    low: float
    expected: float
    high: float

    def __add__(self, other: "Seconds") -> "Seconds":  # type: ignore[override]
        return Seconds(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, count: float) -> "Seconds":
        """Seconds multiplied by a factor."""
        return Seconds(*(count * value for value in self))


def _of_work(seconds: float) -> Seconds:
    return Seconds(RATE_DOUBT[0] * seconds, seconds, RATE_DOUBT[1] * seconds)


def _own(seconds: float) -> Seconds:
    return Seconds(OWN_DOUBT[0] * seconds, seconds, OWN_DOUBT[1] * seconds)


def expected_iterations(plan: Plan, planned: float) -> float:
    """Expected iterations, from those of a plan: its rank is raised while that pays, unless it is given."""
    details, p = plan.chosen.details, plan.problem
    if plan.form == "primal" or p.iteration_settings.rank is not None or planned <= USUAL_ITERATIONS:
        return planned
    low, high = LARGE_RANK
    known = min(1.0, max(0.0, (details.rank_limit / p.n - low) / (high - low)))
    return float(planned ** (1 - known) * USUAL_ITERATIONS**known)


class PartOfFit(NamedTuple):
    """Fractions of the time of a fit that are left, if another run has done some of it."""

    iterations: float = 1.0
    preparation: float = 1.0
    """All that comes before the iterations."""


WHOLE_FIT = PartOfFit()


def seconds_of_fit(plan: Plan, part: PartOfFit = WHOLE_FIT) -> Seconds:
    """Time of a fit, or of a part of it if it iterates."""
    n_alphas = len(plan.problem.alphas)
    if plan.chosen.is_direct:
        return _of_work(plan.seconds) + _own(FIT_SECONDS[0] + n_alphas * STEP_SECONDS)
    return _iterated(plan, part) + _own(FIT_SECONDS[1])


def _iterated(plan: Plan, part: PartOfFit = WHOLE_FIT) -> Seconds:
    """Time of conjugate gradient and of what comes before it."""
    details, p = plan.chosen.details, plan.problem
    iterating = sum(stage.seconds for stage in plan.chosen.stages if stage.name == ITERATION_STAGE)
    planned = max(1, details.iterations)
    count = expected_iterations(plan, part.iterations * min(planned, p.iteration_settings.max_iter))
    each = iterating / planned + ITERATION_SECONDS[0] + ITERATION_SECONDS[1] * p.systems.n_columns
    low, high = ITERATION_DOUBT
    work = _of_work(part.preparation * (plan.seconds - iterating))
    return work + Seconds(low * count * each, count * each, min(high * count, p.iteration_settings.max_iter) * each)


def seconds_of_scores(plan: ScoringPlan) -> Seconds:
    """Time of the scores of one kernel, without a learning curve."""
    p, n_alphas = plan.plan.problem, plan.n_alphas
    if plan.method == "sweep":
        assert plan.asked is not None
        batches = ceil(plan.asked.n_targets / p.n_targets)
        return (_iterated(plan.plan) + _own(FIT_SECONDS[1])).times(batches)
    if plan.method in ("refits", "paths"):
        n_own = n_alphas if plan.method == "paths" else 0
        return (seconds_of_fit(plan.plan) + _own(n_own * STEP_SECONDS)).times(plan.sizes.n_folds)
    curve = plan.sizes.n_folds * sum(part.seconds for part in plan.parts)
    return _of_work(plan.seconds - curve) + _own(FIT_SECONDS[0] + n_alphas * STEP_SECONDS)


@dataclass(frozen=True)
class Optimising:
    """Plan of the optimisation from the best candidate."""

    plan: ScoringPlan
    """Plan of one evaluation of the error and its gradient."""
    max_evaluations: int

    @property
    def evaluations(self) -> int:
        """Evaluations that are expected."""
        return min(self.max_evaluations, USUAL_EVALUATIONS)

    @property
    def seconds(self) -> Seconds:
        """Time of all of them, with two solves each."""
        return seconds_of_scores(self.plan).times(2.0 * self.evaluations)


class Group(NamedTuple):
    """Kernels of a search that are scored by the same method."""

    name: str
    plans: list[ScoringPlan]

    def text(self) -> str:
        """Summary of the scoring, and how long it takes."""
        times = [seconds_of_scores(plan).expected for plan in self.plans]
        least, most = format_seconds(min(times)), format_seconds(max(times))
        each = f"about {least}" if least == most else f"about {least} to {most}"
        count = f" × {len(times)}" if len(times) > 1 else ""
        return f"{self.name}{count}: {self.plans[0].summary()} ({each}{' each' if len(times) > 1 else ''})"


@dataclass(frozen=True, repr=False)
class SelectionPlan(Explained):
    """Work that a search will do, its projected cost, and the reasons.

    ``str(plan)`` explains it, as a notebook does; ``plan.to_dict()`` is for programs. What is said of one way to the
    scores (`method`, `plan`, `reasons`, ...) is that of the kernel that takes longest.

    Attributes
    ----------
    kernels : tuple of ScoringPlan
        How the λ of every kernel are scored.
    last : Plan or None
        Fit of all rows with the best candidate, if that is of the kernel that takes longest; None: there is none.
    optimising : Optimising or None
        Plan of the optimisation from the best candidate; None: there is none.
    last_part : PartOfFit
        What is left to do of the last fit after the scores.

    See Also
    --------
    dkrr.plan : Make a plan without carrying it out.
    dkrr.KernelRidgeCV : Kernel ridge regression with a choice of λ and kernel.
    dkrr.planning.Plan : The plan of a fit.

    Examples
    --------
    >>> import numpy as np, dkrr
    >>> plan = dkrr.plan(np.eye(10), np.arange(10.0), kernel="rbf", alphas=[0.1, 1.0], cv=5)
    >>> plan.n_alphas, plan.sizes.n_folds, len(plan.kernels)
    (2, 5, 1)
    """

    kernels: tuple[ScoringPlan, ...]
    last: Plan | None = None
    optimising: Optimising | None = None
    last_part: PartOfFit = WHOLE_FIT

    # The scores of one kernel

    @property
    def main(self) -> ScoringPlan:
        """Plan of the kernel whose scores take longest."""
        return max(self.kernels, key=lambda plan: plan.seconds)

    @property
    def method(self) -> str:
        """Method of the scores."""
        return self.main.method

    @property
    def plan(self) -> Plan:
        """Plan of the systems."""
        return self.main.plan

    @property
    def sizes(self) -> FoldSizes:
        """Sizes of the folds, which the plan depends on."""
        return self.main.sizes

    @property
    def n_alphas(self) -> int:
        """λ of every kernel."""
        return self.main.n_alphas

    @property
    def curve(self) -> tuple[float, ...]:
        """Fractions of the training rows, for a learning curve."""
        return self.main.curve

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Why so."""
        longest = [max(group.plans, key=lambda plan: plan.seconds) for group in self.groups()]
        return tuple({reason.code: reason for plan in longest for reason in plan.reasons}.values())

    @property
    def rejected(self) -> tuple[Reason, ...]:
        """Rejected methods of the search and of its last fit."""
        longest = [max(group.plans, key=lambda plan: plan.seconds) for group in self.groups()]
        found = {(reason.code, plan.summary()): reason for plan in longest for reason in plan.rejected}
        return tuple(found.values())

    def groups(self) -> list[Group]:
        """Kernels of the same kind that are scored by the same method, in the order of their first one."""
        found = dict[tuple[str, str], Group]()
        for plan in self.kernels:
            name = str(plan.plan.problem.kernel.to_dict()["kernel"])
            found.setdefault((name, plan.summary()), Group(name, [])).plans.append(plan)
        return list(found.values())

    def summary(self) -> str:
        """Short description of the work."""
        return self.main.summary() if len(self.kernels) == 1 else f"{self._grid()}: {self.main.summary()}"

    def _grid(self) -> str:
        folds = "leave-one-out" if self.sizes.is_loo else plural(self.sizes.n_folds, "fold")
        return f"{plural(len(self.kernels), 'kernel')} × {self.n_alphas} λ × {folds}"

    # What it costs

    def steps(self) -> list[tuple[str, Seconds]]:
        """Parts of the work in their order, with their times; those of a display of progress."""
        found = list[tuple[str, Seconds]]()
        for plan in self.kernels:
            found.append(("scores", seconds_of_scores(plan)))
            found += [("learning curve", seconds_of_fit(part).times(plan.sizes.n_folds)) for part in plan.parts]
        if self.optimising is not None:
            found.append(("optimum", self.optimising.seconds))
        if self.last is not None:
            found.append(("last fit", self._last_seconds(self.last)))
        return found

    def _last_seconds(self, last: Plan) -> Seconds:
        return seconds_of_fit(last, self.last_part) + _own(self._planning(1))

    def _planning(self, n_kernels: int) -> float:
        each, by_rows, most = PLAN_SECONDS
        n_rows = 0 if self.plan.form == "primal" else min(self.plan.problem.n, most)
        return n_kernels * (each + by_rows * n_rows / 1024)

    @property
    def _total(self) -> Seconds:
        total = _own(SEARCH_SECONDS + self._planning(len(self.kernels)))
        for _, seconds in self.steps():
            total += seconds
        return total

    @property
    def seconds(self) -> float:
        """Projected wall time of all of it."""
        return self._total.expected

    @property
    def seconds_range(self) -> tuple[float, float]:
        """Shortest and longest wall time that rates and the estimate of the iterations leave possible."""
        return self._total.low, self._total.high

    @property
    def peak_bytes(self) -> int:
        """Projected highest memory of any process that works."""
        others = [] if self.last is None else [self.last.peak_bytes]
        others += [] if self.optimising is None else [self.optimising.plan.peak_bytes]
        return max([plan.peak_bytes for plan in self.kernels] + others)

    @property
    def disk_bytes(self) -> int:
        """Projected space in stores: in that of every kernel if they are kept, else in the largest."""
        found = [plan.disk_bytes for plan in self._plans()]
        return sum(found) if self._keeps else max(found)

    @property
    def _keeps(self) -> bool:
        return self.plan.problem.keeps_store

    def _plans(self) -> list[Plan]:
        """Plans of everything: of the scores, of one fit of each part of the rows, and of the last fit."""
        every = [one for plan in self.kernels for one in (plan.plan, *plan.parts)]
        return every if self.last is None else [*every, self.last]

    # What it says

    def facts(self) -> list[tuple[str, str]]:
        """Lines of the text, by what they tell."""
        groups, low_high = self.groups(), [format_seconds(seconds) for seconds in self.seconds_range]
        how = [self.main.summary()] if len(self.kernels) == 1 else [group.text() for group in groups]
        found = [("how", how[0]), *(("", text) for text in how[1:])]
        steps = self.steps()

        def of(name: str) -> str:
            return f"about {format_seconds(sum(seconds.expected for step, seconds in steps if step == name))}"

        if self.curve:
            fits = len(self.kernels) * len(self.curve) * self.sizes.n_folds
            found.append(("curve", f"{plural(fits, 'fit')} to parts of the training rows, {of('learning curve')}"))
        if self.optimising is not None:
            count, most = self.optimising.evaluations, self.optimising.max_evaluations
            found.append(("optimum", f"{plural(count, 'evaluation')} (an estimate; at most {most}), {of('optimum')}"))
        if self.last is not None:
            found.append(("last fit", f"{self.last.chosen.summary()}, {of('last fit')}"))
        time = f"about {format_seconds(self.seconds)} in all ({low_high[0]} to {low_high[1]}: {self._doubt()})"
        is_here = all(plan.chosen.place.is_memory for plan in self._plans())
        disk = "none" if is_here else f"{format_bytes(self.disk_bytes)}{' in the stores that are kept' * self._keeps}"
        memory = f"at most {self.main.memory()} per process (limit {format_bytes(self.main.limit_bytes)})"
        if self.last is not None and self.last.peak_bytes > self.main.peak_bytes:
            most, limit = self.last.peak_bytes, self.last.chosen.limit_bytes
            memory = f"at most {format_bytes(most)} per process (limit {format_bytes(limit)}), in the last fit"
        return [
            *found,
            ("time", time),
            ("rates", RATES[self.plan.resources.rates_from]),
            ("memory", memory),
            ("disk", disk),
        ]

    def _doubt(self) -> str:
        iterates = any(not plan.chosen.is_direct for plan in self._plans())
        return "the iterations are an estimate" if iterates else "rates are estimates"

    def title(self) -> str:
        """First line of the text."""
        p = self.plan.problem if self.main.asked is None else self.main.asked
        return f"dkrr selection: {plural(p.n, 'row')} × {plural(p.d, 'column')}, {columns_of(p)}, {self._grid()}"

    def beginning(self) -> str:
        """The text without reasons, for a display before the work."""
        return "\n".join([self.title(), *(f"  {name:12}{text}" for name, text in self.facts())])

    def to_dict(self) -> dict[str, Any]:
        """Plan as values of JSON."""
        kernels = [
            {
                "kernels": [plan.plan.problem.kernel.to_dict() for plan in group.plans],
                "name": group.plans[0].summary(),
                "seconds": [seconds_of_scores(plan).expected for plan in group.plans],
            }
            for group in self.groups()
        ]
        optimum = None
        if self.optimising is not None:
            optimum = {"evaluations": self.optimising.evaluations, "seconds": self.optimising.seconds.expected}
        return self.main.to_dict() | {
            "n_kernels": len(self.kernels),
            "kernels": kernels,
            "optimum": optimum,
            "last_fit": None if self.last is None else self.last.to_dict(),
            "peak_bytes": self.peak_bytes,
            "disk_bytes": self.disk_bytes,
            "seconds": self.seconds,
            "seconds_range": list(self.seconds_range),
        }

    def _summary(self) -> str:
        cost = f"about {format_seconds(self.seconds)}, at most {format_bytes(self.peak_bytes)} per process"
        return f"{self.main.method}, {cost}"

    def __str__(self) -> str:
        return layout(self.title(), self.facts(), self.reasons, self.rejected)
