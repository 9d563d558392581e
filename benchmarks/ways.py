"""Strategies that the planner has for the problem of a case, and what it would choose if a rate were another.

``python -m benchmarks.ways '{"name": "one", "n": 3000, "solver": "auto"}'`` prints one line of JSON; nothing is fitted.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from math import inf
from pathlib import Path
from typing import Any
from unittest import mock

import dkrr
from benchmarks.candidates import admissible, best_of_kinds, is_same, kind, kind_of_plan, matches
from benchmarks.cases import Case, command, memory_of_first_plan, surroundings
from dkrr.fitting.costs.details import Iterative
from dkrr.linalg.gram_products import Precision
from dkrr.linalg.preconditioners import estimated_spectrum
from dkrr.machine import calibration, detection
from dkrr.planning import Plan, Strategy
from dkrr.planning.problem import Problem
from dkrr.planning.resources import Rates
from dkrr.planning.searches import SelectionPlan

NEAR = 5.0
"""Times of the best plan, of those that are taken unasked, up to which a way is tried."""
MAX_WAYS = 5
"""Ways that are tried."""
FACTORS = (0.5, 2.0)
"""By which every rate is multiplied, one at a time."""
KERNELS = "kernels"
"""Rate of the entries of kernels, among those of a machine."""


@dataclass(frozen=True)
class Way:
    """Strategy for the problem of a case, and the case that forces it."""

    label: str
    case: Case
    kind: dict[str, Any]
    predicted_seconds: float
    is_chosen: bool = False
    is_gamble: bool = False
    """The planner does not take it unasked."""


def describe(case: Case, folder: Path) -> dict[str, Any]:
    """Ways to try, those that are skipped, and the choices with other rates, as values of JSON."""
    X, y = case.data(folder)
    case.model(folder)  # imports what is in memory when a fit is planned
    with surroundings(case, folder), memory_of_first_plan():
        plan = case.plan(X, y)
        found = searches(case, plan, X, y) if isinstance(plan, SelectionPlan) else fits(case, plan)
        with with_spectrum_once():
            changes = list(changed_choices(case, plan, found, X, y))
    least = min(way.predicted_seconds for way in found if not way.is_gamble)
    near = [w for w in in_turns(found) if w.is_chosen or w.predicted_seconds <= NEAR * least]
    return {
        "ways": [asdict(w) for w in near[:MAX_WAYS]],
        "skipped": [_skipped(w, least) for w in found if w not in near[:MAX_WAYS]],
        "changes": changes,
        "n_rates": len(FACTORS) * len(names_of_rates(rates_of(plan))),
    }


def in_turns(found: list[Way]) -> list[Way]:
    """The chosen way, then the fastest by its plan of each form, solver and place, then the next of each."""
    turns, places = Counter[tuple[str, ...]](), list[tuple[bool, int, float]]()
    found = sorted(found, key=lambda way: way.predicted_seconds)
    for way in found:
        group = tuple(way.kind[name] for name in ("form", "solver", "execution"))
        places.append((not way.is_chosen, turns[group], way.predicted_seconds))
        turns[group] += 1
    return [way for _, way in sorted(zip(places, found, strict=True), key=lambda pair: pair[0])]


def _skipped(way: Way, least: float) -> dict[str, Any]:
    ratio = way.predicted_seconds / least
    why = f"its plan takes {ratio:.3g} × the best plan's time" if ratio > NEAR else "others come first"
    return {"label": way.label, "predicted_seconds": way.predicted_seconds, "why": why}


def fits(case: Case, plan: Plan) -> list[Way]:
    """The best way of each kind, those that are not taken unasked, and half and twice the rank."""
    free = admissible(plan.problem, plan.resources)
    best = best_of_kinds([plan.chosen, *free], plan.chosen)
    found = [_way(case, c) for c in best]
    found[0] = replace(found[0], case=case, is_chosen=True)  # as the planner chooses it
    for solver in ("cg", "float32"):
        asked = replace(case, solver=solver)
        problem = replace(plan.problem, solver=asked.solver_value())
        with suppress(dkrr.errors.DkrrError):  # no such way exists
            gambles = [
                c for c in admissible(problem, plan.resources) if not any(is_same(kind(c), w.kind) for w in found)
            ]
            found += [replace(_way(asked, c), is_gamble=True) for c in best_of_kinds(gambles, plan.chosen)]
    ranked = [(c, c.details.rank) for c in best if isinstance(c.details, Iterative) and c.details.rank][:1]
    for c, rank in [(one, rank) for one, found_rank in ranked for rank in (found_rank // 2, 2 * found_rank)]:
        asked = replace(case, solver="cg", rank=rank)
        problem = replace(plan.problem, solver=asked.solver_value())
        same = {name: kind(c)[name] for name in ("form", "solver", "execution", "n_workers", "precision")}
        priced = list[Strategy]()
        with suppress(dkrr.errors.DkrrError):  # none has room for it
            priced = [one for one in admissible(problem, plan.resources) if matches(one, same)] if rank else []
        found += [_way(asked, one) for one in sorted(priced, key=lambda one: one.seconds)[:1]]
    return found


def _way(case: Case, c: Strategy) -> Way:
    label = c.summary() + (f", rank {case.rank or 'found'}" if isinstance(c.details, Iterative) else "")
    return Way(label, replace(case, force=kind(c)), kind(c), c.seconds)


def searches(case: Case, plan: SelectionPlan, X: Any, y: Any) -> list[Way]:
    """The chosen way to search, and those that the other forms and solvers lead to."""
    found = [Way(plan.summary(), case, kind_of_plan(plan), plan.seconds, is_chosen=True)]
    for form, solver in product(("primal", "dual"), ("cholesky", "cg")):
        asked = replace(case, form=form, solver=solver)
        with suppress(dkrr.errors.DkrrError):  # no such way exists
            other = asked.plan(X, y)
            if not any(is_same(kind_of_plan(other), w.kind) for w in found):
                found.append(Way(_summary(other), asked, kind_of_plan(other), other.seconds))
    return found


def changed_choices(
    case: Case, plan: Plan | SelectionPlan, found: list[Way], X: Any, y: Any
) -> Iterator[dict[str, Any]]:
    """Choices with every rate in turn half or twice as large, with their prices at the true rates."""
    chosen = kind_of_plan(plan)
    for name, factor in product(names_of_rates(rates_of(plan)), FACTORS):
        with rate_times(name, factor):
            other = case.plan(X, y)
        new = kind_of_plan(other)
        if not is_same(new, chosen):
            known = next((w for w in found if w.case.rank is None and is_same(w.kind, new)), None)
            yield {
                "rate": name,
                "factor": factor,
                "label": _summary(other),
                "kind": new,
                "predicted_seconds": None if known is None else known.predicted_seconds,
            }


def _summary(plan: Plan | SelectionPlan) -> str:
    return plan.chosen.summary() if isinstance(plan, Plan) else plan.summary()


def rates_of(plan: Plan | SelectionPlan) -> Rates:
    """Rates that it was made with."""
    return (plan if isinstance(plan, Plan) else plan.plan).resources.rates


def names_of_rates(rates: Rates) -> list[str]:
    """Rates that are not zero, and that of kernels."""
    return [*(f.name for f in fields(rates) if getattr(rates, f.name)), KERNELS]


@contextmanager
def rate_times(name: str, factor: float) -> Iterator[None]:
    """Context in which plans are made with one rate multiplied by `factor`; no other rate is measured."""
    known, entry_time = detection.known_rates, Problem.entry_time

    def known_rates(profile: Any, given: Any) -> Any:
        rates, rates_from = known(profile, given)
        return replace(rates, **{name: factor * getattr(rates, name)}), rates_from

    def slower(problem: Problem, precision: Precision = "float64") -> float:
        return entry_time(problem, precision) / factor

    with ExitStack() as stack:
        if name == KERNELS:
            stack.enter_context(mock.patch.object(Problem, "entry_time", slower))
        else:
            stack.enter_context(mock.patch.object(detection, "known_rates", known_rates))
        stack.enter_context(mock.patch.object(calibration, "LONG_SECONDS", inf))
        yield


@contextmanager
def with_spectrum_once() -> Iterator[None]:
    """All plans of one X have the same estimate of its spectrum, which takes longer than they do."""
    estimates = list[Any]()

    def estimate(*arguments: Any) -> Any:
        if not estimates:
            estimates.append(estimated_spectrum(*arguments))
        return estimates[0]

    with mock.patch("dkrr.fitting.request_plans.estimated_spectrum", estimate):
        yield


main = command(describe)

if __name__ == "__main__":
    main()
