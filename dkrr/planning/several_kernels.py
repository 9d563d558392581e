"""Plans of a selection among several kernels: whether one run forms the tiles of all, and how many kernels it takes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil

from dkrr.errors import PlanError
from dkrr.kernels.families import KernelFamily
from dkrr.planning.iteration import Iterative
from dkrr.planning.limits import PROCESS_MARGIN_BYTES
from dkrr.planning.problem import Problem
from dkrr.planning.resources import Resources
from dkrr.planning.selection import FoldSizes, SelectionPlan, plan_sweep
from dkrr.units import format_bytes, format_seconds

SURELY_FASTER = 0.95
"""Projected time together over that one by one, below which kernels are taken together."""
IN_CALLER = "in the calling process, whose threads form the tiles of several kernels together"
ON_WORKERS = "kernels in one run: only threads of the calling process form tiles of several, and a Dask client exists"
ONLY_SWEEPS = "kernels in one run: only sweeps of conjugate gradient share work between kernels"
ONE_BY_ONE = "kernels one by one: slower (about {seconds} for all, as chosen {together})"
IN_ONE_RUN = "{count} kernels in one run (about {seconds} for all)"
TOO_LARGE = "{count} kernels in one run (their factors and vectors exceed the memory)"
KEPT = ", as one kernel at a time leaves memory in which tiles are kept"
Run = tuple[list[int], list[SelectionPlan]]
"""Numbers of the kernels of a run, and their plans."""


def plan_together(
    problems: Sequence[Problem], plans: Sequence[SelectionPlan], sizes: FoldSizes, resources: Resources
) -> list[Run]:
    """Runs in which kernels that share work are scored, with a plan for each kernel.

    Parameters
    ----------
    problems : sequence of Problem
        One for every kernel, as for `plan_selection`.
    plans : sequence of SelectionPlan
        Plans of the kernels one by one.
    sizes : FoldSizes
    resources : Resources

    Returns
    -------
    list of (list of int, list of SelectionPlan)
        Numbers of the kernels of every run, and their plans with the reasons: `plans` for kernels that are alone.
    """
    sweeps = [k for k, plan in enumerate(plans) if plan.method == "sweep"]
    others = [k for k in range(len(plans)) if k not in sweeps]
    if resources.cluster_is_running:
        return _one_by_one(plans, range(len(plans)), ON_WORKERS)
    found = _one_by_one(plans, others, ONLY_SWEEPS)
    return found + _runs_of(sweeps, problems, plans, sizes, resources) if sweeps else found


def _runs_of(
    numbers: Sequence[int],
    problems: Sequence[Problem],
    plans: Sequence[SelectionPlan],
    sizes: FoldSizes,
    resources: Resources,
) -> list[Run]:
    """Runs of the kernels with these numbers, all of which conjugate gradient scores."""
    alone, against = sum(plans[k].seconds for k in numbers), list[str]()
    best, least = list[Run](), SURELY_FASTER * alone
    for count in group_sizes(len(numbers)):
        parts = [list(numbers[start : start + count]) for start in range(0, len(numbers), count)]
        try:
            found = [_run([problems[k] for k in part], [plans[k] for k in part], sizes, resources) for part in parts]
        except PlanError:
            against.append(TOO_LARGE.format(count=count))
        else:
            seconds = sum(plan.seconds for run in found for plan in run)
            against.append(IN_ONE_RUN.format(count=count, seconds=format_seconds(seconds)))
            if seconds < least:
                best, least = list(zip(parts, found, strict=True)), seconds
                chosen = against[-1]
    if not best:
        why = KEPT if _keeps_tiles(plans[numbers[0]]) else ""
        return _one_by_one(plans, numbers, "; ".join(against) + f": not faster than one by one{why}" if against else "")
    against.remove(chosen)
    rejected = (ONE_BY_ONE.format(seconds=format_seconds(alone), together=format_seconds(least)), *against)
    return [(part, [replace(plan, rejected=(*rejected, *plan.rejected)) for plan in run]) for part, run in best]


def group_sizes(count: int) -> Iterator[int]:
    """Numbers of kernels of a run that are compared: all, half of them, ..., two."""
    while count > 1:
        yield count
        count = ceil(count / 2) if count > 2 else 1


def _one_by_one(plans: Sequence[SelectionPlan], numbers: Sequence[int], against: str) -> list[Run]:
    more = (against,) if against else ()
    return [([k], [replace(plans[k], rejected=(*plans[k].rejected, *more))]) for k in numbers]


def _keeps_tiles(plan: SelectionPlan) -> bool:
    """Whether tiles of a kernel that is alone are formed once."""
    chosen = plan.plan.chosen
    assert isinstance(chosen, Iterative)
    products = chosen.tile_products
    return products.is_stored or products.kept_tiles > 0


def _run(
    problems: Sequence[Problem], plans: Sequence[SelectionPlan], sizes: FoldSizes, resources: Resources
) -> list[SelectionPlan]:
    """Plans of kernels in one run, each with its share of the memory.

    Raises
    ------
    PlanError
        If they do not fit.
    """
    count = len(problems)
    if count == 1:
        return [plans[0]]
    # What the process holds whatever the number of kernels; the rest is divided among them.
    threads, limit = resources.local_threads, resources.local_limit_bytes
    fixed = resources.in_caller("memory", threads, threads).baseline_bytes + PROCESS_MARGIN_BYTES
    share = fixed + max(0, limit - fixed) // count
    shared = replace(resources, local_limit_bytes=share, confined=IN_CALLER, share=None)
    family = KernelFamily(tuple(problem.kernel for problem in problems))
    factor = family.entry_factor(problems[0].d, resources.rates.gemm_flops)
    found = []
    for problem in problems:
        (plan,) = plan_sweep(
            replace(problem, solver=problem.settings, form="dual", n_kernels=count, entry_factor=factor), sizes, shared
        )
        chosen = plan.plan.chosen
        chosen = replace(chosen, place=replace(chosen.place, limit_bytes=limit))
        one = replace(plan.plan, chosen=chosen, resources=resources)
        own = max(0, plan.peak_bytes - fixed)
        reason = (
            f"the tiles of {count} kernels are formed together, in {factor:.0%} of the time that they take one by one; "
            f"every kernel has a factor and vectors of its own, of {format_bytes(own)}"
        )
        found.append(
            replace(plan, plan=one, peak_bytes=fixed + count * own, reasons=(*plan.reasons, reason), n_kernels=count)
        )
    return found
