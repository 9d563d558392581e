"""Price of the test of whether λ should be searched again, in fits that have a factor of their first rows."""

from dataclasses import replace

from dkrr.fitting.costs.gram_costs import GramCosts
from dkrr.linalg.nearby_alphas import FACTORS, MAX_STEPS, MIN_ROWS, alpha_check_work
from dkrr.linalg.substitution import apply_work
from dkrr.planning.problem import Problem
from dkrr.planning.resources import Resources, cold_fraction
from dkrr.planning.strategy import Strategy
from dkrr.planning.work import Step
from dkrr.store import TileGrid

ALPHA_CHECK = "held-out errors"
"""Stage of the plan that is the test; a fit whose plan does not have it has no test."""
MAX_SHARE = 0.25
"""Largest fraction of the time of a fit that the test takes: of a few rows that enter a large factor there is none."""


def with_alpha_check(chosen: Strategy, p: Problem, r: Resources, itemsize: int) -> Strategy:
    """The strategy with the test as a stage, where a factor is kept, enough rows are new, and that takes little time.

    Parameters
    ----------
    chosen : Strategy
        Factorisation of all rows, with entries of `itemsize` bytes.
    p : Problem
    r : Resources
    itemsize : int
    """
    n, n_new = p.n_kept_rows, p.n - p.n_kept_rows
    if not n or n_new < MIN_ROWS or p.loss != "squared" or min(p.alphas) <= 0:
        return chosen
    site, width = GramCosts(p, r, chosen.place), p.systems.n_right_sides
    work, seconds = alpha_check_work(n, n_new, width, p.entry_time(), itemsize), None
    if not chosen.place.is_memory:
        grid = TileGrid(n, chosen.tiling.tile, chosen.tiling.panel)
        one = apply_work(grid, len(FACTORS) * width, itemsize, chosen.place.slots if r.cluster_is_running else None)
        rates = r.rates.reading(cold_fraction(one.read_bytes, site.cache_bytes(chosen.peak_bytes)))
        seconds = (1 + MAX_STEPS) * rates.seconds(one, r.local_threads)
        work = one.times(1 + MAX_STEPS)
    (stage,) = site.price([Step(ALPHA_CHECK, work, p.systems.n_factors, "blas", seconds)], chosen.peak_bytes)
    if stage.seconds > MAX_SHARE * chosen.seconds:
        return chosen
    return replace(chosen, stages=(*chosen.stages, stage))
