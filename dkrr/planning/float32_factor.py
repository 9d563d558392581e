"""Conjugate gradient preconditioned by a complete Cholesky factor in float32, and what it costs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, log10
from typing import Any, ClassVar

from dkrr.cost import Stage
from dkrr.linalg.cholesky import cholesky_cost, cold_cholesky_bytes, factor_bytes, partial_bytes
from dkrr.linalg.inverse import apply_cost
from dkrr.linalg.sources import gram_cost
from dkrr.linalg.tiled_operator import pass_cost
from dkrr.planning.direct_dual import tiled_bytes
from dkrr.planning.inputs import cache_bytes, sharing_stages, symmetry_stages
from dkrr.planning.iteration import why_iterative
from dkrr.planning.limits import RESIDENT_ROWS_FRACTION
from dkrr.planning.problem import Form, Problem
from dkrr.planning.resources import Resources, cold_fraction
from dkrr.planning.schedule import factorisation_seconds
from dkrr.planning.strategy import Settings, Strategy, Systems, Tiling
from dkrr.planning.tilings import TileChoice, place_line, short_place, tile_choices, tiles_line
from dkrr.solvers import ConjugateGradient, Float32Cholesky
from dkrr.solvers.conjugate_gradient import DIGITS_PER_ITERATION


@dataclass(frozen=True, kw_only=True)
class Float32Factor(Strategy):
    """Conjugate gradient in float64 with a factor in float32; float64 follows if that breaks down."""

    tiling: Tiling
    keeps_rows: bool
    """Every process keeps X in memory."""
    iterations: int
    """Expected of conjugate gradient."""

    linear_solver: ClassVar = "cg"

    @classmethod
    def serves(cls, settings: Settings) -> bool:
        return isinstance(settings, ConjugateGradient) and isinstance(settings.preconditioner, Float32Cholesky)

    @classmethod
    def candidates(cls, problem: Problem, resources: Resources, form: Form) -> Iterator["Float32Factor"]:
        if form == "dual":  # its columns are those of K
            systems = Systems.of_ridge(problem)
            for choice in tile_choices(problem, resources, form):
                yield dual_factored(problem, systems, choice)

    def summary(self) -> str:
        how = "conjugate gradient with a float32 factor"
        return f"{self.form}, {how}, {short_place(self.place)}, tiles of {self.tiling.tile:,}"

    def solves_by(self) -> str:
        return "conjugate gradient with factors in float32"

    def lines(self, problem: Problem) -> list[str]:
        how = (
            f"conjugate gradient to a true residual of {problem.tol:.0e}, preconditioned by a tiled Cholesky factor in "
            f"float32; about {self.iterations} iterations (an estimate)"
        )
        return [f"  solver      {how}", place_line(self.place), tiles_line(self.tiling, self.form, problem)]

    def reasons(self, problem: Problem, priced: Strategy, others: Sequence[Strategy]) -> list[str]:
        return [
            why_iterative(problem, priced, others),
            "a factor in float32 takes half the disk and half the time; float64 follows if it breaks down",
        ]

    def layout(self) -> dict[str, Any]:
        return self.layout_of(self.tiling)


def factored_iterations(tol: float) -> int:
    """Iterations of conjugate gradient that a complete factor in float32 leaves to do."""
    return ceil(-log10(tol) / DIGITS_PER_ITERATION)


def dual_factored(p: Problem, systems: Systems, choice: TileChoice) -> Float32Factor:
    """Tiled Cholesky of K + λW⁻¹ in float32, as the preconditioner of conjugate gradient in float64.

    The memory is that of the float64 factorisation, which follows if float32 breaks down.
    """
    resources, place, grid, columns = choice
    rates, m, groups = resources.rates, systems.n_right_sides, systems.n_factors
    needed = tiled_bytes(p, place, grid, m + 1)
    doubled = {name: 2 * getattr(rates, name) for name in ("read_bytes", "cold_read_bytes", "write_bytes")}
    fast = replace(rates.faster(2.0), **doubled)
    cache, stored = cache_bytes(resources, place, needed), factor_bytes(grid, 4)
    cost = cholesky_cost(grid, 0, columns, 4)
    cold = cold_cholesky_bytes(grid, cache, columns, 4) / max(cost.read_bytes, 1.0)
    form_seconds = rates.seconds(gram_cost(p.entry(rates, "float32"), float(grid.tile**2)))
    factor = factorisation_seconds(grid, columns, place.slots, fast.reading(cold), form_seconds)
    product = rates.seconds(pass_cost(p.entry(rates), p.n**2 / 2, m, "float64", 0.0)) / place.slots
    apply = apply_cost(grid, m, 4, place.slots if resources.cluster_is_running else None)
    iterations = factored_iterations(systems.tol)
    passes = iterations + 1
    peak, rows_bytes = needed + place.threads * 4 * 8 * p.n * m, p.n * p.bytes_of_row
    is_small = p.stored_bytes <= place.limit_bytes * RESIDENT_ROWS_FRACTION
    keeps_rows = is_small and peak + rows_bytes <= place.usable_bytes
    peak += rows_bytes if keeps_rows else 0
    # X is read for the factor's tiles, and by every product unless processes keep it.
    block = grid.tile * p.stored_bytes / p.n * grid.n_tiles**2
    once, again = (p.stored_bytes * place.n_workers, 0.0) if keeps_rows else (0, block * passes / 2)
    applied = rates.reading(cold_fraction(stored, cache)).seconds(apply)
    iterated = Stage("conjugate gradient", passes * (product + applied), iterations * apply.read_bytes + again)
    kept = systems.n_stored * stored + partial_bytes(grid, 0, columns, 4)
    factored = Stage("factorisation", factor, cost.read_bytes + block + once, cost.written_bytes, kept)
    return Float32Factor(
        form="dual",
        place=place,
        stages=(
            *sharing_stages(p, place, rates),
            *symmetry_stages(p),
            factored.times(groups, peak),
            iterated.times(groups, peak),
        ),
        tiling=choice.tiling,
        keeps_rows=keeps_rows,
        iterations=iterations,
    )
