"""Costs of many targets in the dual form, which are solved for a batch at a time (`planning.target_batches`)."""

from dataclasses import replace

from dkrr.fitting.costs.gram_costs import GramCosts
from dkrr.linalg.square import solving_work
from dkrr.planning.problem import Problem
from dkrr.planning.resources import Resources, cold_fraction
from dkrr.planning.strategy import Strategy
from dkrr.planning.target_batches import n_batches
from dkrr.planning.work import Step, written

SHARED_STAGES = {
    "starting workers",
    "checking X",
    "copying X",
    "reading X",
    "checking symmetry",
    "Gram matrix",
    "factorisation",
    "preconditioner",
    "held-out models",
}
"""Stages that all batches share."""


def in_batches(one: Strategy, p: Problem, resources: Resources) -> Strategy:
    """Strategy for all batches, from the one that is priced for one of them."""
    site, count, peak = GramCosts(p, resources, one.place), n_batches(p), one.peak_bytes
    rates = resources.rates_of_disk.reading(cold_fraction(2 * p.y_bytes, site.cache_bytes(peak)))
    # Read for the ranges of the targets, for the batches, and the coefficients for their norms.
    moved = written(p.y_bytes, 3.0 * p.y_bytes)
    moved = replace(moved, written_bytes=p.y_bytes * (2 if p.keeps_store else 1))
    recipe = [Step("targets", moved, seconds=rates.seconds(moved))]
    stages = [s if s.name in SHARED_STAGES else s.times(count, peak) for s in one.stages]
    if one.is_whole and one.method.solver == "cholesky":  # substitutions with a stored factor, which has the first
        solved = solving_work(p.n, p.batch)
        stages = [s for s in stages if s.name != "true residual"]
        recipe.append(Step("true residual", solved, count - 1, "blas"))
        is_kept = one.details.keeps_matrix
        recipe.append(
            Step("true residual", solved if is_kept else site.product(p.batch), count, "blas" if is_kept else "tasks")
        )
    return replace(one, stages=(*stages, *site.price(recipe, peak)))
