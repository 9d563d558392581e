"""Access of the benchmarks to the planner's internals: its candidates, how they differ, how to select one.

`benchmarks.cases` and `benchmarks.ways` need nothing else of it, so another planner needs only other functions here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from dkrr.fitting.costs.details import Float32Factor, Iterative, RowPasses, TileProducts
from dkrr.fitting.request_plans import make_plan
from dkrr.linalg.result import SolveResult
from dkrr.planning import Plan, Strategy
from dkrr.planning.problem import Problem
from dkrr.planning.resources import Resources
from dkrr.planning.searches import SelectionPlan


def tier(c: Strategy) -> str:
    """Where the matrix is while it is used."""
    details = c.details
    if not isinstance(details, Iterative):
        return "in memory" if c.place.is_memory else "tiles on disk"
    if isinstance(details.products, RowPasses):
        return "rows streamed"
    kept = details.products.kept_fraction(c.place.slots)
    return "in memory" if kept == 1 else "partly in memory" if kept else "formed at every pass"


def precision(c: Strategy) -> str:
    """Precision of the products, or of the factor."""
    details = c.details
    if isinstance(details, Iterative) and isinstance(details.products, TileProducts):
        return details.products.precision
    return "float32" if isinstance(c.details, Float32Factor) else "float64"


def tile(c: Strategy) -> int:
    """Rows of a tile."""
    return int(c.layout()["tile"])


def kept_tiles(c: Strategy) -> int:
    """Tiles that every place keeps in memory."""
    details = c.details
    return (
        details.products.kept_tiles
        if isinstance(details, Iterative) and isinstance(details.products, TileProducts)
        else 0
    )


def kind(c: Strategy) -> dict[str, Any]:
    """Properties in which candidates really differ; the rest is detail."""
    on_tiles = c.execution != "memory" and (c.solver == "cholesky" or isinstance(c.details, Float32Factor))
    return {
        "form": c.form,
        "solver": "float32" if isinstance(c.details, Float32Factor) else c.solver,
        "execution": c.execution,
        "n_workers": c.n_workers,
        "precision": precision(c),
        "tier": tier(c),
        "tile": tile(c) if on_tiles else 0,
    }


def kind_of_plan(plan: Plan | SelectionPlan) -> dict[str, Any]:
    """`kind` of what a plan chose, and of a search its method."""
    return kind(plan.chosen) if isinstance(plan, Plan) else {"method": plan.method} | kind(plan.plan.chosen)


OTHER_TILES = 1.4
"""Factor by which the size of a tile must differ to be another way."""


def is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two values of `kind` are one way: their tiles may differ a little."""
    tiles = sorted((one["tile"], other["tile"]))
    return {**one, "tile": 0} == {**other, "tile": 0} and tiles[1] <= OTHER_TILES * tiles[0]


def matches(c: Strategy, wanted: Mapping[str, Any]) -> bool:
    """Whether a candidate has all of some entries of `kind`."""
    found = kind(c)
    return all(found[name] == value for name, value in wanted.items())


@contextmanager
def choosing(among: Callable[[list[Strategy]], list[Strategy]]) -> Iterator[None]:
    """The planner chooses among fewer of the candidates that it may choose."""
    from dkrr.planning import planner

    original = planner._cheapest

    def cheapest(fitting: list[Strategy], resources: Resources) -> Strategy:
        chosen = among(fitting)
        if not chosen:
            raise LookupError(f"no such candidate among {len(fitting)}: {sorted({c.summary() for c in fitting})}")
        return original(chosen, resources)

    with mock.patch.object(planner, "_cheapest", cheapest):
        yield


def admissible(problem: Problem, resources: Resources) -> list[Strategy]:
    """Every candidate that the planner may choose, as it prices them."""
    found: list[Strategy] = []

    def note(fitting: list[Strategy]) -> list[Strategy]:
        found.extend(fitting)
        return fitting

    with choosing(note), every_candidate():
        make_plan(problem, resources)
    return found


@contextmanager
def every_candidate() -> Iterator[None]:
    """Price also what the planner leaves out where a short fit in memory is possible; nothing is given up."""
    with ExitStack() as stack:
        for name in ("TINY_SECONDS", "MIN_COMPARED_SECONDS"):
            stack.enter_context(mock.patch(f"dkrr.planning.planner.{name}", 0.0))
        stack.enter_context(mock.patch("dkrr.planning.planner.watched", lambda _, chosen, __: chosen))
        yield


def best_of_kinds(candidates: Sequence[Strategy], chosen: Strategy) -> list[Strategy]:
    """The chosen one, then the fastest of each other kind."""
    kept: list[Strategy] = []
    for c in sorted(candidates, key=lambda c: (c != chosen, c.seconds)):
        if not any(is_same(kind(c), kind(k)) for k in kept):
            kept.append(c)
    return kept


def known_iterations(plan: Plan, result: SolveResult) -> Strategy:
    """The chosen candidate, priced with the iterations and the rank that the spectrum turned out to need.

    What is left between this and the measurement is the cost model's error.
    """
    c = plan.chosen
    if c.solver == "cholesky" or not result.iterations or plan.problem.loss != "squared":
        return c
    groups = len(plan.problem.alphas) if isinstance(c.details, Float32Factor) else 1
    with ExitStack() as stack:
        for name, value in {
            "iteration_estimates.iterations_expected": lambda *_: result.iterations,
            "dual_cg_costs.iterations_in_low_precision": lambda iterations, _: iterations,
            "dual_cg_costs.priced_ranks": lambda *_: [result.rank],
            "primal_costs.primal_iterations": lambda *_: result.iterations,
            "dual_costs.refining_iterations": lambda *_: result.iterations // groups,
        }.items():
            stack.enter_context(mock.patch(f"dkrr.fitting.costs.{name}", value))
        wanted = {name: value for name, value in kind(c).items() if name != "tier"}
        priced = [p for p in admissible(plan.problem, plan.resources) if matches(p, wanted)]
    # The same tiles are kept: how many fit depends on the rank, and the run kept what was planned.
    return min(priced, key=lambda p: (abs(kept_tiles(p) - kept_tiles(c)), p.seconds), default=c)
