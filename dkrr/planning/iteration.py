"""Conjugate gradient, with tiles of K in memory, on disk or formed at every pass, or with streamed rows; its price.

What it needs that no plan can know is the spectrum of the matrix. It is estimated on a sample of the rows, or taken to
be a typical one where there are none; the rank is chosen while the factor shows what it really is.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import Any, ClassVar

import numpy as np

from dkrr.blas import BYTES_PER_THREAD
from dkrr.cost import Stage
from dkrr.errors import InputError
from dkrr.features import IdentityMap
from dkrr.linalg.normal import TARGET_COPIES
from dkrr.linalg.normal_product import SECONDS_PER_STREAMED_ENTRY
from dkrr.linalg.operator import Precision
from dkrr.linalg.pivot_stopping import expected_iterations
from dkrr.linalg.pivoted_cholesky import (
    FACTOR_DTYPE,
    PRICED_RANKS,
    SMALL_RANKS,
    factor_rows_bytes,
    partial_apply_seconds,
    partial_factor_cost,
    small_matrix_cost,
)
from dkrr.linalg.sources import KERNEL_BLOCK, gram_cost, gram_workspace_bytes
from dkrr.linalg.tiled_operator import (
    KEPT_FRACTIONS,
    MAX_TILE,
    MIN_TILE,
    SECONDS_PER_TILE,
    STORE_ABOVE_RATIO,
    STORED_TILE,
    USE_SECONDS,
    WORKSPACE_FRACTION,
    multiply_bytes,
    pass_cost,
)
from dkrr.planning.direct import (
    cache_bytes,
    feature_bytes,
    feature_seconds,
    layout_of,
    mapped_target_stage,
    rates_of_rows,
    rows_at_once,
    sharing_stages,
    symmetry_stages,
)
from dkrr.planning.limits import PROCESS_MARGIN_BYTES, RESIDENT_ROWS_FRACTION
from dkrr.planning.problem import TYPICAL_CONDITION, Form, Problem
from dkrr.planning.resources import Place, Resources, cold_fraction
from dkrr.planning.strategy import SMALL_SECONDS, Settings, Strategy, Systems, Tiling, of_processes
from dkrr.solvers import ConjugateGradient, Float32Cholesky
from dkrr.solvers.conjugate_gradient import (
    MIXED_ITERATION_FACTOR,
    ROUND_TRIPS_PER_ITERATION,
    cycles_in_low_precision,
)
from dkrr.units import format_bytes, format_seconds

MAX_ITERATIONS_PLANNED = 1_000_000
SURELY_FASTER = 2.0
"""By how much conjugate gradient must beat the direct solver to be chosen: its iterations are an estimate."""
MANY_ITERATIONS = 2000
"""Of the primal form, where the spectrum is not known: if that many are still faster than a direct solver, as with wide
sparse rows, it is chosen."""
SPECTRUM_UNKNOWN = "its iterations cannot be estimated before the fit; give solver='cg' to use it"
DIRECT_IS_SOON_DONE = f"a factorisation takes no more than {SMALL_SECONDS:g} s, and is exact to rounding"
NOT_SURELY_FASTER = f"not {SURELY_FASTER:g} × faster, which the estimate of its iterations may be off by"


@dataclass(frozen=True)
class TileProducts:
    """Products with K, tile by tile (dual form)."""

    tile: int
    n_tiles: int
    """Tiles along one side."""
    precision: Precision
    kept_tiles: int
    """Tiles that each place keeps in memory; the others are formed at every pass."""
    keeps_rows: bool
    """Every process keeps X in memory."""
    is_stored: bool = False
    """Tiles are formed once and read from disk at every pass."""
    cold_fraction: float = 0.0
    """Fraction of those that the system's cache of files has no room for: the disk itself delivers it at every pass."""

    @property
    def all_tiles(self) -> int:
        """Tiles of the lower triangle."""
        return self.n_tiles * (self.n_tiles + 1) // 2

    def kept_fraction(self, slots: int) -> float:
        """Fraction of the tiles that places keep."""
        return min(1.0, self.kept_tiles * slots / self.all_tiles)

    def describe(self, slots: int) -> str:
        """Words for what a product does."""
        low = "mixed precision" if self.precision == "float32" else "float64"
        if self.is_stored:
            return f"{low}, tiles of {self.tile:,} formed once and read from disk at every pass"
        kept = min(self.all_tiles, self.kept_tiles * slots)
        if kept == self.all_tiles:
            return f"{low}, the matrix kept in memory"
        part = f", {kept / self.all_tiles:.0%} of them kept in memory" if kept else ""
        return f"{low}, tiles of {self.tile:,} formed at every pass{part}"


@dataclass(frozen=True)
class RowPasses:
    """Products with ΦᵀWΦ, the rows streamed at every pass (primal form)."""

    tile: int
    """Features."""
    row_block: int
    """Rows of X that are in memory at once."""
    row_parts: int = 1
    """Ranges of rows, a task each."""

    def describe(self, slots: int) -> str:  # noqa: ARG002
        """Words for what a product does."""
        return "float64, the rows streamed at every pass"


@dataclass(frozen=True, kw_only=True)
class Iterative(Strategy):
    """Conjugate gradient to a true residual, preconditioned by a partial factor or a diagonal."""

    products: TileProducts | RowPasses
    iterations: int
    """Expected, from the spectrum."""
    rank: int = 0
    """Expected columns of the preconditioner's factor."""
    rank_limit: int = 0
    """Columns that fit in memory."""

    linear_solver: ClassVar = "cg"

    @classmethod
    def serves(cls, settings: Settings) -> bool:
        if isinstance(settings, ConjugateGradient):
            return not isinstance(settings.preconditioner, Float32Cholesky)
        return settings is None

    @classmethod
    def candidates(cls, problem: Problem, resources: Resources, form: Form) -> Iterator["Iterative"]:
        if form == "dual":
            yield from dual_iterative(problem, Systems.of_ridge(problem), resources)
        elif settings_of(problem).preconditioner in ("auto", None):
            yield from primal_iterative(problem, Systems.of_ridge(problem), resources)
        else:
            refuse_columns_of_gram(problem)

    @property
    def uses_threads(self) -> bool:
        return True

    @property
    def tile_products(self) -> TileProducts:
        """Products of the dual form."""
        assert isinstance(self.products, TileProducts)
        return self.products

    @property
    def row_passes(self) -> RowPasses:
        """Products of the primal form."""
        assert isinstance(self.products, RowPasses)
        return self.products

    def summary(self) -> str:
        where = f"{self.place.n_workers} workers" if self.place.execution == "dask" else "in this process"
        return f"{self.form}, conjugate gradient, {where}, {self.products.describe(self.place.slots)}"

    def lines(self, problem: Problem) -> list[str]:
        rank = f"rank {self.rank:,}"
        if self.rank < self.rank_limit:
            rank = f"rank up to {self.rank_limit:,}, about {self.rank:,}"
        how = f"preconditioned ({rank})" if self.rank_limit else "not preconditioned by a factor"
        where = "on Dask workers" if self.place.execution == "dask" else "in the calling process"
        return [
            f"  solver      conjugate gradient, {how}, to a true residual of {problem.tol:.0e}; about "
            f"{self.iterations} iterations (an estimate)",
            f"  where       {where}{of_processes(self.place)}",
            f"  products    {self.products.describe(self.place.slots)}",
        ]

    def reasons(self, problem: Problem, priced: Strategy, others: Sequence[Strategy]) -> list[str]:
        reasons = [why_iterative(problem, priced, others)]
        if self.place.execution == "memory":
            reasons.append("in the calling process, since its threads do as much as workers would")
        elif self.place.execution == "serial":
            kept = "checkpoints in the store" if problem.keeps_store else "its tiles in a temporary store"
            reasons.append(f"in the calling process, with {kept}")
        if isinstance(problem.solver, ConjugateGradient) and problem.solver.rank is not None:
            reasons.append(f"a preconditioner of rank {self.rank:,} was asked for")
        elif self.rank:
            reasons.append(
                f"a preconditioner of rank {self.rank:,}: more would take longer to make than it saves, or not fit in "
                f"memory; the spectrum, once seen, may stop it earlier or let it grow to {self.rank_limit:,}"
            )
        if isinstance(self.products, RowPasses):
            return reasons
        if self.products.precision == "float32":
            reasons.append(
                "products in float32 are about half the time; the residual that counts is computed in float64"
            )
        return reasons + self._tile_reasons(self.products, problem, others)

    def _tile_reasons(self, products: TileProducts, problem: Problem, others: Sequence[Strategy]) -> list[str]:
        """Why the tiles of the dual form are kept, formed again at every pass or read from disk."""
        is_kept = products.kept_tiles * self.place.slots >= products.all_tiles and not products.is_stored
        if problem.kernel.is_precomputed or is_kept:
            return []
        whole = products.all_tiles * products.tile**2 * itemsize_of(products.precision)
        too_large = f"the whole matrix would take {format_bytes(whole)} of memory"
        seconds = [
            c.seconds
            for c in others
            if isinstance(c.for_systems, Iterative)
            and isinstance(c.for_systems.products, TileProducts)
            and c.for_systems.products.is_stored != products.is_stored
            and not c.refused
        ]
        best = format_seconds(min(seconds)) if seconds else ""
        if not products.is_stored:
            if not best:
                return [f"{too_large}; its tiles are formed again at every pass"]
            return [f"{too_large}; forming tiles again takes less time than a disk (about {best} in all)"]
        reasons = [f"{too_large}; its tiles are formed once and read from disk at every pass"]
        if best:
            reasons[0] += f", as forming them again would take longer (about {best} in all)"
        if products.cold_fraction > 0:
            reasons.append(
                f"{products.cold_fraction:.0%} of the tiles are more than the system's cache of files has memory for, "
                f"and come from the disk itself at every pass"
            )
        return reasons

    def doubt(self, problem: Problem, direct_seconds: float) -> str:
        if direct_seconds <= SMALL_SECONDS:
            return DIRECT_IS_SOON_DONE
        doubt = doubt_of_spectrum(problem, self, direct_seconds, MANY_ITERATIONS)
        if not doubt and self.form == "dual" and SURELY_FASTER * self.seconds > direct_seconds:
            return NOT_SURELY_FASTER
        return doubt

    def layout(self) -> dict[str, Any]:
        parts = self.products.row_parts if isinstance(self.products, RowPasses) else 1
        return layout_of(self, Tiling(self.products.tile, self.products.tile), parts)

    def growth_seconds(self, problem: Problem, resources: Resources) -> tuple[float, Callable[[int], float]]:
        """Time of one product, and from a rank to the time that one more pivot costs there (dual form)."""
        p, products, slots = problem, self.tile_products, self.place.slots
        entry = p.entry(resources.rates, products.precision)
        kept = products.kept_fraction(slots)
        product = pass_cost(entry, p.n**2 / 2, p.n_right_sides, products.precision, kept)
        apply = partial_apply_seconds(p.n, 1, p.n_right_sides, slots)

        def pivot_seconds(rank: int) -> float:
            step = max(1, rank // 50)
            more = factor_seconds(p, resources, slots, rank + step) - factor_seconds(p, resources, slots, rank)
            return more / step + self.iterations * apply

        return resources.rates.seconds(product) / slots, pivot_seconds


def settings_of(problem: Problem) -> ConjugateGradient:
    """Settings that the user gave, or the planner's."""
    return problem.solver if isinstance(problem.solver, ConjugateGradient) else ConjugateGradient()


def itemsize_of(precision: Precision) -> int:
    """Bytes of a number."""
    return 4 if precision == "float32" else 8


def refuse_columns_of_gram(problem: Problem) -> None:
    """Refuse a preconditioner made of columns of K where the primal form is the only one.

    Raises
    ------
    InputError
        Naming the preconditioner.
    """
    if problem.form == "primal" or problem.kernel.is_precomputed:
        raise InputError(
            f"preconditioner={settings_of(problem).preconditioner!r} is made of columns of K and serves the dual form "
            f"only; use preconditioner='auto' or form='dual'"
        )


def why_iterative(problem: Problem, priced: Strategy, others: Sequence[Strategy]) -> str:
    """Reason for conjugate gradient."""
    if isinstance(problem.solver, ConjugateGradient):
        return "conjugate gradient was asked for"
    direct = [c for c in others if c.solver == "cholesky" and c.form == priced.form]
    possible = min((c for c in direct if not c.refused), key=lambda c: c.seconds, default=None)
    if possible is not None:
        return (
            f"conjugate gradient, since {'factorisations' if problem.loss == 'logistic' else 'a factorisation'} would "
            f"take about {format_seconds(possible.seconds)} and {format_bytes(possible.disk_bytes)} of disk"
        )
    if direct:
        return f"conjugate gradient, since a factorisation {direct[0].refused}"
    return "conjugate gradient, since the matrix is too large for a factorisation"


def doubt_of_spectrum(problem: Problem, priced: Any, direct_seconds: float, many: int) -> str:
    """Whether too little is known of the spectrum to compare an iterative solver with a direct one.

    Parameters
    ----------
    problem : Problem
    priced : Strategy
    direct_seconds : float
    many : int
        Iterations of the primal form that would be many.
    """
    if priced.form == "primal":
        worst = priced.seconds * max(1.0, many / max(priced.for_systems.iterations, 1))
        return "" if worst <= direct_seconds else SPECTRUM_UNKNOWN
    return "" if problem.kernel.has_unit_diagonal and min(problem.alphas) > 0 else SPECTRUM_UNKNOWN


def dual_iterative(problem: Problem, systems: Systems, resources: Resources) -> list[Iterative]:
    """Conjugate gradient on K + λW⁻¹: the places, times tiles kept, times ranks, times precisions."""
    settings, places = settings_of(problem), caller_and_workers(problem, resources)

    def of_ranks(ranks: list[int], fractions: tuple[float, ...]) -> list[Iterative]:
        return [
            _dual(problem, systems, resources, place, precision, rank, fraction)
            for place in places
            for precision in _precisions(settings)
            for rank in ranks
            for fraction in fractions
        ]

    ranks = priced_ranks(problem)
    candidates = of_ranks(ranks, KEPT_FRACTIONS)
    if settings.rank is None and candidates[0].rank and not any(c.fits for c in candidates):
        # Also without a factor: a limit that is refused is then one that cannot be met.
        candidates += of_ranks([r for r in SMALL_RANKS if r < candidates[0].rank] + [0], KEPT_FRACTIONS[:1])
    if _is_costly(problem, resources):
        candidates += [
            _stored(problem, systems, resources, replace(place, execution="serial") if place.is_memory else place, rank)
            for place in places
            for rank in ranks
        ]
    return candidates


def _is_costly(problem: Problem, resources: Resources) -> bool:
    """Whether an entry takes longer to compute than to read."""
    rates = resources.rates
    return rates.seconds(gram_cost(problem.entry(rates), 1.0)) > STORE_ABOVE_RATIO * 8 / rates.read_bytes


def caller_and_workers(problem: Problem, r: Resources) -> list[Place]:
    """Places of work that threads of the calling process do as well as workers."""
    if r.cluster_is_running:
        return [r.on_workers()]
    here = r.in_caller("serial" if problem.wants_tiles else "memory", r.local_threads)
    caller = replace(here, baseline_bytes=here.baseline_bytes + r.local_threads * BYTES_PER_THREAD)
    return [caller] if r.confined else [caller, r.on_workers()]


def _precisions(settings: ConjugateGradient) -> tuple[Precision, ...]:
    return {"auto": ("float64", "float32"), "mixed": ("float32",), "float64": ("float64",)}[settings.precision]  # type: ignore[return-value]


def priced_ranks(problem: Problem) -> list[int]:
    """Ranks of the preconditioner's factor that are compared."""
    settings = settings_of(problem)
    if settings.preconditioner is None:
        return [0]
    if settings.rank is not None:
        return [min(settings.rank, problem.n)]
    return [r for r in PRICED_RANKS if r <= problem.n // 4] or [max(1, problem.n // 4)]


def cg_tile(problem: Problem, place_limit: int, slots: int) -> int:
    """Tiles as large as the kernel's temporaries allow, and enough of them that every place has as much to do."""
    n = problem.n
    wanted = problem.tile if problem.layout is None else problem.layout.tile
    if wanted is not None:
        return min(wanted, n)
    n_tiles = max(ceil(n / MAX_TILE), min(ceil(n / MIN_TILE), 5 + ceil(2 * sqrt(slots))))
    tile = ceil(n / n_tiles)

    def temporaries(tile: int) -> int:
        return problem.kernel.pieces_bytes(tile, tile, problem.d, problem.csr_bytes(tile))

    fixed, most = temporaries(1), place_limit * WORKSPACE_FRACTION
    while tile > MIN_TILE and temporaries(tile) - fixed > most:
        tile = max(MIN_TILE, ceil(tile / 2))
    return tile


def iterations_expected(eigenvalue: float, shift: float, tol: float) -> int:
    """Iterations for a system whose preconditioner leaves eigenvalues up to this one."""
    return int(min(ceil(expected_iterations(eigenvalue, max(shift, 1e-14), tol)) + 1, MAX_ITERATIONS_PLANNED))


def dual_iterations_expected(p: Problem, systems: Systems, rank: int) -> int:
    """Iterations for all systems, with a factor of this rank."""
    left = p.n * p.spectrum.eigenvalue(rank)
    return systems.n_steps * (iterations_expected(left, systems.shift, systems.tol) + systems.more_iterations)


def primal_iterations_expected(p: Problem, shift: float, tol: float) -> int:
    """Iterations for a system, with the diagonal of ΦᵀWΦ as preconditioner."""
    largest = TYPICAL_CONDITION * shift if shift > 0 else TYPICAL_CONDITION
    found = iterations_expected(min(largest, p.n * p.spectrum.largest), shift, tol)
    return min(found, (p.dimension or 1) + 1)


def _iterations_and_products(p: Problem, systems: Systems, rank: int, precision: Precision) -> tuple[int, int]:
    """Expected iterations, and the products in float64 besides them."""
    iterations = dual_iterations_expected(p, systems, rank)
    if systems.n_products:
        return iterations, systems.n_products
    if precision == "float64":
        return iterations, 1
    return ceil(iterations * MIXED_ITERATION_FACTOR), cycles_in_low_precision(systems.tol)


def _dual(
    p: Problem,
    systems: Systems,
    resources: Resources,
    place: Place,
    precision: Precision,
    rank: int,
    fraction: float,
) -> Iterative:
    """Price for one place, precision and rank, with tiles in a fraction of the memory that is left for them."""
    products, peak = _tiles_kept(p, systems, place, precision, rank, fraction)
    limit = rank
    if settings_of(p).rank is None and rank > 0:
        limit = _largest_rank(p, systems, place, rank, place.usable_bytes - peak)
    peak += _factor_bytes(p, systems, place, limit) - _factor_bytes(p, systems, place, rank)
    iterations, n_products = _iterations_and_products(p, systems, rank, precision)
    return Iterative(
        form="dual",
        place=place,
        stages=(
            *_dual_sharing(p, resources, place, products, peak, systems.n_columns),
            _preconditioner(p, systems, resources, place, rank, peak),
            _first_pass(p, resources, place, products, peak),
            _iterating(p, systems, resources, place, products, rank, iterations, n_products, peak),
        ),
        products=products,
        iterations=iterations,
        rank=rank,
        rank_limit=limit,
    )


def _tiles_kept(
    p: Problem, systems: Systems, place: Place, precision: Precision, rank: int, fraction: float
) -> tuple[TileProducts, int]:
    """Tiles that are kept in a fraction of the free memory, and what a process then holds."""
    itemsize = itemsize_of(precision)
    tile, keeps_rows = _tile_and_rows(p, systems, place, rank)
    needed = _needed_bytes(p, systems, place, rank, tile, keeps_rows=keeps_rows)
    products = TileProducts(tile, ceil(p.n / tile), precision, 0, keeps_rows)
    free = max(0, place.usable_bytes - needed)
    room = int(fraction * free / (itemsize * tile**2 * place.threads))
    kept = min(ceil(products.all_tiles / place.slots), room)
    return replace(products, kept_tiles=kept), needed + place.threads * kept * itemsize * tile**2


def _dual_sharing(
    p: Problem, resources: Resources, place: Place, products: TileProducts, peak_bytes: int, m: int
) -> tuple[Stage, ...]:
    """What comes before the work, and reading X where processes keep it."""
    start, check, copy = sharing_stages(p, place, resources.rates)
    kept = 0 if is_held(p, place) or not products.keeps_rows else p.stored_bytes * place.n_workers
    checkpoint = 5 * 8 * p.n * m if p.keeps_store else 0
    # What processes keep is read once, and never from the cache again.
    each = reading_seconds(p, resources, place, peak_bytes)
    read = Stage("reading X", kept * each, kept, checkpoint, 2 * checkpoint)
    return start, check.plus(check.read_bytes * each), copy, read, *symmetry_stages(p)


def is_held(p: Problem, place: Place) -> bool:
    """Whether X is in the memory of the process that works."""
    return p.x_in_memory and place.is_memory


def reading_seconds(p: Problem, resources: Resources, place: Place, peak_bytes: float) -> float:
    """Time to read one byte of X, where all slots read."""
    rates = rates_of_rows(p, resources, place.n_workers, peak_bytes, on_workers=place.execution == "dask")
    return 1.0 / rates.read_bytes / place.slots


def _preconditioner(
    p: Problem, systems: Systems, resources: Resources, place: Place, rank: int, peak_bytes: int
) -> Stage:
    """Factor, and a small matrix for every diagonal."""
    others = (systems.n_steps - 1) * systems.n_columns
    small = resources.rates.seconds(small_matrix_cost(p.n, rank, place.slots))
    seconds = factor_seconds(p, resources, place.slots, rank) + others * small
    return Stage("preconditioner", seconds, peak_bytes=peak_bytes)


def _first_pass(p: Problem, resources: Resources, place: Place, products: TileProducts, peak_bytes: int) -> Stage:
    """Forming the tiles that are kept."""
    rates, precision, kept = resources.rates, products.precision, products.kept_fraction(place.slots)
    entries = float(p.n) ** 2 / 2
    seconds = rates.seconds(pass_cost(p.entry(rates, precision), entries, 1, precision, 0.0)) * kept
    seconds += kept * entries * itemsize_of(precision) / rates.fresh_bytes
    return Stage("Gram matrix", seconds / place.slots, peak_bytes=peak_bytes)


def _iterating(
    p: Problem,
    systems: Systems,
    resources: Resources,
    place: Place,
    products: TileProducts,
    rank: int,
    iterations: int,
    n_products: int,
    peak_bytes: int,
) -> Stage:
    """All iterations, and products in float64 for true residuals."""
    rates, precision, m, slots = resources.rates, products.precision, systems.n_columns, place.slots
    entries, kept = float(p.n) ** 2 / 2, products.kept_fraction(slots)
    one = rates.seconds(pass_cost(p.entry(rates, precision), entries, m, precision, kept))
    one = (one + SECONDS_PER_TILE * (1.0 - kept) * products.all_tiles) / slots
    check = one
    if precision == "float32":
        check = rates.seconds(pass_cost(p.entry(rates), entries, m, "float64", 0.0)) / slots
    apply = partial_apply_seconds(p.n, rank, m, slots)
    trips = ROUND_TRIPS_PER_ITERATION * rates.round_trip_seconds if place.execution == "dask" else 0.0
    seconds, x_read = iterations * (one + apply + trips) + n_products * check, 0.0
    if not products.keeps_rows and not is_held(p, place):
        x_read = (iterations + n_products) * (p.stored_bytes * (products.n_tiles + 1) / 2)
        seconds += x_read * reading_seconds(p, resources, place, peak_bytes)
    return Stage("conjugate gradient", seconds, x_read, peak_bytes=peak_bytes)


def _stored(p: Problem, systems: Systems, resources: Resources, place: Place, rank: int) -> Iterative:
    """Price of the same with tiles that are formed once and kept on disk."""
    rates = resources.rates
    room = place.threads * 2 * 8 * min(p.n, STORED_TILE) ** 2
    less = replace(place, usable_bytes=place.usable_bytes - room)
    formed = _dual(p, systems, resources, less, "float64", rank, 0.0)
    assert isinstance(formed.products, TileProducts)
    tile = min(formed.products.tile, STORED_TILE)
    n_tiles = ceil(p.n / tile)
    disk = n_tiles * (n_tiles + 1) // 2 * (8 * tile**2 + 4)
    entries = float(p.n) ** 2 / 2
    one = rates.seconds(pass_cost(p.entry(rates), entries, 1, "float64", 0.0)) / place.slots
    peak = formed.peak_bytes + place.threads * 2 * 8 * tile**2
    cold = cold_fraction(disk, cache_bytes(resources, place, peak))
    read = (entries * USE_SECONDS["float64"] + disk / rates.reading(cold).read_bytes) / place.slots
    passes = formed.iterations + 1
    *before, gram, iterating = formed.stages
    # Tiles are formed once, from the rows of both their sides.
    x_read = 0.0 if formed.products.keeps_rows else float(p.stored_bytes) * n_tiles
    return replace(
        formed,
        place=place,
        stages=(
            *(replace(s, peak_bytes=peak) if s.peak_bytes else s for s in before),
            Stage("Gram matrix", gram.seconds + one + disk / rates.write_bytes, x_read, disk, disk, peak),
            replace(iterating.plus(passes * (read - one)), read_bytes=float(passes * disk), peak_bytes=peak),
        ),
        products=replace(formed.products, tile=tile, n_tiles=n_tiles, is_stored=True, cold_fraction=cold),
    )


def _tile_and_rows(p: Problem, systems: Systems, place: Place, rank: int) -> tuple[int, bool]:
    """Tile size, and whether every process keeps X; less of both where more would not fit.

    So the memory that is needed at least does not depend on the limit, and a limit that a refusal names is enough.
    """
    # X is here already, or read into memory here, or every process keeps it if it is small, or its tiles are read at
    # every pass.
    loads = not p.x_in_memory and place.is_memory
    is_small = p.stored_bytes <= place.limit_bytes * RESIDENT_ROWS_FRACTION
    keeps_rows = loads or (not is_held(p, place) and is_small)
    tile, is_free = cg_tile(p, place.limit_bytes, place.slots), p.tile is None and p.layout is None

    def fits() -> bool:
        return _needed_bytes(p, systems, place, rank, tile, keeps_rows=keeps_rows) <= place.usable_bytes

    while is_free and tile > MIN_TILE and not fits():
        tile = max(MIN_TILE, ceil(0.75 * tile))
    if not loads and not fits():
        keeps_rows = False
    return tile, keeps_rows


def _needed_bytes(p: Problem, systems: Systems, place: Place, rank: int, tile: int, *, keeps_rows: bool) -> int:
    """Memory of a process without tiles that are kept."""
    m = systems.n_columns
    needed = place.baseline_bytes + PROCESS_MARGIN_BYTES + (p.n * p.bytes_of_row if keeps_rows else 0)
    product = multiply_bytes(p.kernel, p.n, tile, p.d, p.bytes_of_part(tile), m, is_sparse=p.is_sparse)
    if p.is_sparse and rank:
        # Kernels of a process's rows with pivots, in blocks that may be higher than tiles.
        block = min(p.n, KERNEL_BLOCK)
        product = max(product, gram_workspace_bytes(p.kernel, block, p.bytes_of_part(block), p.d, p.csr_bytes(block)))
    needed += place.threads * (product + p.read_overhead_bytes)
    needed += (4 if place.execution == "dask" else systems.n_vectors) * 8 * p.n * m
    return needed + _factor_bytes(p, systems, place, rank)


def factor_seconds(problem: Problem, resources: Resources, slots: int, rank: int) -> float:
    """Time to make the preconditioner's factor and the small matrix that goes with it."""
    return resources.rates.seconds(partial_factor_cost(problem.n, rank, problem.entry(resources.rates), slots))


def _factor_bytes(p: Problem, systems: Systems, place: Place, rank: int) -> int:
    if rank == 0:
        return 0
    rows = place.threads * factor_rows_bytes(p.n, rank, np.dtype(FACTOR_DTYPE).itemsize, place.slots)
    # The pivots' triangle, the small matrix and its sums: in the calling process, where that does the work.
    square = 8 * rank**2 * (3 * place.threads if place.execution == "dask" else place.threads + 2)
    if place.execution != "dask":
        square += 8 * rank**2 * systems.n_curvatures
    return rows + square + p.bytes_of_any(rank)


def _largest_rank(p: Problem, systems: Systems, place: Place, rank: int, free: int) -> int:
    """Twice the rank that is expected to do, if the memory that is left allows it."""
    least, most = rank, min(p.n, 2 * rank)
    while least < most:
        middle = (least + most + 1) // 2
        if _factor_bytes(p, systems, place, middle) - _factor_bytes(p, systems, place, rank) <= free:
            least = middle
        else:
            most = middle - 1
    return least


def primal_iterative(p: Problem, systems: Systems, resources: Resources) -> list[Iterative]:
    """Conjugate gradient on ΦᵀWΦ + λI, the rows streamed at every pass; a diagonal preconditioner."""
    return [_primal(p, systems, resources, place) for place in caller_and_workers(p, resources)]


def _primal(p: Problem, systems: Systems, resources: Resources, place: Place) -> Iterative:
    rates, dimension = resources.rates, p.side("primal")
    t = p.n_targets * systems.n_factors
    block = rows_at_once(p, 1 if p.streams_sparse else dimension)
    iterations = primal_iterations_expected(p, systems.shift, systems.tol)
    seconds = iterations * stream_seconds(p, streamed_entries(p, dimension), t) / place.slots
    # Besides the products: the check of X, moments, squares, the true residual, errors, and means for an intercept.
    passes = iterations + 5 + (1 if p.fit_intercept else 0)
    x_read = 0.0 if is_held(p, place) else float(passes) * p.stored_bytes
    checkpoint = 5 * 8 * dimension * t if p.keeps_store else 0
    peak = _primal_bytes(p, place, block, t)
    seconds += x_read * reading_seconds(p, resources, place, peak)
    # Targets are copied to a store and read twice, errors go there and back.
    copied = 0 if place.is_memory else 2 * p.y_bytes
    moved = copied / rates.write_bytes + 1.5 * copied / rates.read_bytes
    start, _, copy = sharing_stages(p, place, rates)
    return Iterative(
        form="primal",
        place=place,
        stages=(
            start,
            Stage("checking X", 0.0),  # a pass, which is among those of the iterations
            copy,
            mapped_target_stage(p, resources, place.n_workers, peak).plus(moved, 1.5 * copied, copied, copied),
            Stage("conjugate gradient", seconds, x_read, checkpoint, 2 * checkpoint, peak),
        ),
        products=RowPasses(dimension, block),
        iterations=iterations,
    )


def streamed_entries(p: Problem, dimension: int) -> float:
    """Entries of Φ that a pass over the rows uses."""
    return p.n * (p.bytes_of_row / 12 if p.streams_sparse else float(dimension))


def stream_seconds(p: Problem, entries: float, m: int) -> float:
    """Time of one slot to form so many entries of Φ, and of both of their products with m vectors."""
    features = 0.0 if isinstance(p.feature_map, IdentityMap) else feature_seconds(p)
    return entries * (SECONDS_PER_STREAMED_ENTRY * m + features)


def _primal_bytes(p: Problem, place: Place, block: int, t: int) -> int:
    """Memory of a process that streams rows in blocks, for t vectors."""
    dimension = p.side("primal")
    width = p.most_bytes_of_row if p.streams_sparse else 8 * dimension
    rows = block * (3 * width + p.most_bytes_of_row + TARGET_COPIES * 8 * t)
    peak = place.baseline_bytes + PROCESS_MARGIN_BYTES
    peak += place.threads * (rows + 6 * 8 * dimension * t + feature_bytes(p)) + p.read_overhead_bytes
    return peak + (0 if place.execution == "dask" else 12 * 8 * dimension * t + p.y_bytes_to_come)
