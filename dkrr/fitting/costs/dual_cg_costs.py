"""Conjugate gradient with the Gram matrix, its tiles in memory or formed at every pass.

What it depends on that no plan can know is the spectrum of the matrix. It is estimated on a sample of the rows, or
assumed to be a typical one without rows; the rank is chosen while the factor shows what the spectrum really is.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, log, log2, sqrt

from dkrr.cluster.tasks import FAN_IN
from dkrr.config import setting
from dkrr.cost import Work
from dkrr.fitting.costs.details import Iterative, TileProducts
from dkrr.fitting.costs.dual_costs import MAX_TILE, newton_steps
from dkrr.fitting.costs.gram_costs import GramCosts
from dkrr.fitting.costs.iteration_estimates import dual_iterations
from dkrr.linalg.conjugate_gradient import (
    ROUND_TRIPS_PER_ITERATION,
    cycles_in_low_precision,
    error_of_products,
    iterations_in_low_precision,
    relative_noise,
)
from dkrr.linalg.fold_preconditioner import capacitance_work, squares_of_sets
from dkrr.linalg.gram_products import (
    GROUPS_PER_PLACE,
    Precision,
    calls_work,
)
from dkrr.linalg.pivoted_cholesky import (
    factor_bytes,
    factor_rows_bytes,
    partial_apply_work,
    partial_factor_work,
    small_matrix_work,
)
from dkrr.linalg.sources import KERNEL_BLOCK
from dkrr.planning.problem import Problem, Systems
from dkrr.planning.resources import RESIDENT_ROWS_FRACTION, ROUND_TRIP_BYTES, Resources
from dkrr.planning.selection import RISES
from dkrr.planning.strategy import Method, Strategy
from dkrr.planning.work import Step

PRICED_RANKS = (250, 500, 750, 1000, 1500, 2000, 3000, 4000, 6000, 8000)
"""Ranks that a plan compares."""
SMALL_RANKS = (100, 50, 25, 10)
"""Ranks that a plan compares where none of those fits in memory."""
MIN_TILE = 512
WORKSPACE_FRACTION = 1 / 16
"""Largest fraction of the memory of a process for the kernel's temporaries of one tile."""
KEPT_FRACTIONS = (0.0, 0.5, 1.0)
"""Fractions of the memory left for tiles that a plan compares; the rest is for the preconditioner's factor."""
UNTIL_LOST = 0.5
"""Iterations until a λ has surely lost over those of its solution (measured on 30,000 rows of QM9, where the smallest
but one is the best)."""
PRECISIONS: dict[str, tuple[Precision, ...]] = {
    "auto": ("float64", "float32"),
    "mixed": ("float32",),
    "float64": ("float64",),
}
"""Precisions of products that are compared, by the setting."""
RANK_GROWTH, RANK_GROWTH_OF_FOLDS = 2.0, 1.45
"""Highest rank over the expected one that the spectrum found may lead to, in a fit and with the folds of a search.
These have some ten small matrices of this size. 12,000 rows of QM9 take the same time with 2,000 to 3,300 columns;
5,000 take 1.1 times as long with a factor of 1.25 as with one of 1.5."""
MORE_CYCLES_OF_FOLDS = 1
"""Cycles in float32 beside those of one fit, since some of its many columns need one more (measured: 1 or 2)."""
WORTH = 10.0
"""Times that computing a preconditioner's columns takes as long as writing them, from which on a store keeps them: the
preconditioner is at most a third of most fits, so that this is at most 3 % of their time."""


def is_worth_keeping(seconds: float, writing: float) -> bool:
    """Whether a store keeps columns of a preconditioner, from the seconds that they took and those of writing them."""
    limit = float(setting("checkpoint-seconds"))
    return limit == 0 or seconds >= max(limit / 3, WORTH * writing)


def squares_of_factor(p: Problem, n_threads: int) -> int:
    """Memory of the process that makes the small matrices of a factor, in matrices of r² numbers.

    The pivots' triangle, sums of every thread, and the matrices of all columns or training sets.
    """
    n = p.systems.n_curvatures
    return n_threads + 2 + n if p.n_folds == 1 else 1 + squares_of_sets(n, n_threads)


def cg_tile(p: Problem, place_limit: int, slots: int) -> int:
    """Tile as large as the kernel's temporaries allow, while every slot has about as many tiles."""
    wanted = p.tile if p.layout is None else p.layout.tile
    if wanted is not None:
        return min(wanted, p.n)
    n_tiles = max(ceil(p.n / MAX_TILE), min(ceil(p.n / MIN_TILE), 5 + ceil(2 * sqrt(slots))))
    tile = ceil(p.n / n_tiles)

    def temporaries(tile: int) -> int:
        return p.kernel.pieces_bytes(tile, tile, p.d, p.csr_bytes(tile))

    fixed, most = temporaries(1), place_limit * WORKSPACE_FRACTION
    while tile > MIN_TILE and temporaries(tile) - fixed > most:
        tile = max(MIN_TILE, ceil(tile / 2))
    return tile


@dataclass(frozen=True)
class IterativeDual:
    """Systems with K, solved in one place with a preconditioner of one rank."""

    site: GramCosts
    systems: Systems
    rank: int

    @property
    def problem(self) -> Problem:
        """Problem."""
        return self.site.problem

    # Memory

    def tiles_kept(self, precision: Precision, fraction: float) -> tuple[TileProducts, int]:
        """Tiles that are kept in a fraction of the free memory, and what a process then holds."""
        p, place = self.problem, self.site.place
        tile, keeps_rows = self._tile_and_rows()
        needed = self._needed_bytes(tile, keeps_rows=keeps_rows)
        products = TileProducts(tile, ceil(p.n / tile), precision, 0, keeps_rows)
        tile_bytes, free = products.itemsize * tile**2, max(0, place.usable_bytes - needed)
        kept = min(ceil(products.all_tiles / place.slots), int(fraction * free / (tile_bytes * place.threads)))
        return replace(products, kept_tiles=kept), needed + place.threads * kept * tile_bytes

    def _tile_and_rows(self) -> tuple[int, bool]:
        """Tile size, and whether every process keeps X; less of both where more would not fit.

        So the memory that is needed at least does not depend on the limit, and a limit that a refusal names is enough.
        """
        p, place = self.problem, self.site.place
        # X is in memory already, or loaded into memory, or kept by every process if it is small, or read at every pass.
        loads = not p.x_in_memory and place.is_memory
        is_small = p.stored_bytes <= place.limit_bytes * RESIDENT_ROWS_FRACTION
        keeps_rows = loads or (not self.site.holds_rows and is_small)
        tile, is_free = cg_tile(p, place.limit_bytes, place.slots), p.tile is None and p.layout is None

        def fits() -> bool:
            return self._needed_bytes(tile, keeps_rows=keeps_rows) <= place.usable_bytes

        while is_free and tile > MIN_TILE and not fits():
            tile = max(MIN_TILE, ceil(0.75 * tile))
        if not loads and not fits():
            keeps_rows = False
        return tile, keeps_rows

    def _needed_bytes(self, tile: int, *, keeps_rows: bool) -> int:
        """Memory of a process without tiles that are kept."""
        p, m = self.problem, self.systems.n_columns
        each = self.site.product_bytes(tile, m)
        if p.is_sparse and self.rank:
            # Kernels of a process's rows with pivots, in blocks that may be higher than tiles.
            each = max(each, self.site.forming_bytes(min(p.n, KERNEL_BLOCK)))
        vectors = (4 if self.site.place.execution == "dask" else self.systems.n_vectors) * 8 * p.n * m
        held = (p.n * p.bytes_of_row if keeps_rows else 0) + vectors + self.factor_bytes(self.rank)
        return self.site.peak(held, each + p.read_overhead_bytes)

    def factor_bytes(self, rank: int) -> int:
        """Memory of a process for a factor of this rank and its small matrices."""
        p, place = self.problem, self.site.place
        if rank == 0:
            return 0
        rows = place.threads * factor_rows_bytes(p.n, rank, place.slots)
        n_squares = 3 * place.threads if place.execution == "dask" else squares_of_factor(p, place.threads)
        return rows + 8 * rank**2 * n_squares + p.largest_rows_bytes(rank)

    def largest_rank(self, free: int) -> int:
        """Highest rank up to which a factor may grow beyond the expected one, if the memory that is left allows it."""
        growth = RANK_GROWTH if self.problem.n_folds == 1 else RANK_GROWTH_OF_FOLDS
        least, most = self.rank, min(self.problem.n, int(growth * self.rank))
        while least < most:
            middle = (least + most + 1) // 2
            if self.factor_bytes(middle) - self.factor_bytes(self.rank) <= free:
                least = middle
            else:
                most = middle - 1
        return least

    # Time

    def counts(self, precision: Precision) -> tuple[int, int]:
        """Expected iterations, and the products in float64 besides them."""
        if not self.problem.races:
            return self._counts_until(self.systems.shift, precision)
        # A mean: any λ may be the best one, and the next smaller ones go on until they have lost.
        each = [self._counts_until(alpha, precision) for alpha in sorted(self.problem.alphas, reverse=True)]
        lost = [UNTIL_LOST * iterations for iterations, _ in [*each[RISES:], *each[-1:] * RISES]]
        iterations = sum(max(here, least) for (here, _), least in zip(each, lost, strict=True))
        return ceil(iterations / len(each)), ceil(sum(products for _, products in each) / len(each))

    def _counts_until(self, shift: float, precision: Precision) -> tuple[int, int]:
        """Those until all systems with at least this λ are solved."""
        s = self.systems
        iterations = s.n_steps * (dual_iterations(self.problem, self.rank, shift) + s.more_iterations)
        if s.n_products:
            return iterations, s.n_products
        if precision == "float64":
            return iterations, 1
        size = 1.0 if self.problem.kernel.has_unit_diagonal else max(1.0, self.problem.facts.spectrum.largest)
        noise = float(relative_noise(error_of_products(self.problem.n, size), shift))
        more = MORE_CYCLES_OF_FOLDS if self.problem.n_folds > 1 else 0
        return iterations_in_low_precision(iterations, noise), int(cycles_in_low_precision(s.tol, noise)) + more

    def strategy(self, method: Method, precision: Precision, fraction: float) -> Strategy:
        """Candidate with tiles in a fraction of the memory that is left for them."""
        products, peak = self.tiles_kept(precision, fraction)
        limit = self.rank
        if self.problem.iteration_settings.rank is None and self.rank > 0:
            limit = self.largest_rank(self.site.place.usable_bytes - peak)
        peak += self.factor_bytes(limit) - self.factor_bytes(self.rank)
        iterations, _ = self.counts(precision)
        return Strategy(
            method=method,
            form="dual",
            place=self.site.place,
            details=Iterative(products=products, iterations=iterations, rank=self.rank, rank_limit=limit),
            stages=self.site.price(self.recipe(products), peak),
            n_steps=self.problem.n_steps if self.problem.loss == "logistic" else 0,
        )

    def recipe(self, products: TileProducts) -> list[Step]:
        """Steps with tiles in memory or formed at every pass."""
        p, s, site, slots = self.problem, self.systems, self.site, self.site.place.slots
        precision, tile, kept = products.precision, products.tile, products.kept_fraction(slots)
        iterations, n_products = self.counts(precision)
        # Threads of a process get new pages one after another.
        fresh = Work(fresh_bytes=float(products.itemsize) * p.n**2 / 2 / max(site.place.n_workers, 1))
        check: tuple[Precision, float] = ("float64", 0.0) if precision == "float32" else (precision, kept)
        reads = not products.keeps_rows and not site.holds_rows
        x_read = Work(row_bytes=p.stored_bytes * (products.n_tiles + 1) / 2 if reads else 0.0)
        loaded = 0 if site.holds_rows or not products.keeps_rows else p.stored_bytes * site.place.n_workers
        checkpoint = 5 * 8 * p.n * s.n_columns if p.keeps_store and p.loss == "squared" else 0
        factor, columns = Step("preconditioner", self._factor(self.rank), by="caller"), factor_bytes(p.n, self.rank)
        small = small_matrix_work(p.n, self.rank, slots, precision)
        if not p.keeps_store or not is_worth_keeping(site.seconds([factor], 0), columns / site.rates.write_bytes):
            columns = 0
        return [
            *site.shared(),
            Step("reading X", Work(row_bytes=loaded)),
            factor,
            Step("preconditioner", self._middles(self.rank), by="blas"),
            Step("preconditioner", Work(written_bytes=columns, disk_bytes=columns), seconds=0.0),
            Step("preconditioner", small, self._small_matrices, "caller"),
            Step("Gram matrix", site.product(1, precision), kept),
            Step("Gram matrix", fresh, kept, "caller"),
            Step("conjugate gradient", site.product(s.n_active, precision, kept) + x_read, iterations),
            Step("conjugate gradient", calls_work(p.n, tile, kept), iterations),
            Step("conjugate gradient", partial_apply_work(p.n, self.rank, s.n_active, precision), iterations),
            Step("conjugate gradient", times=iterations, seconds=self._trip_seconds(products)),
            Step("conjugate gradient", site.product(s.n_columns, *check) + x_read, n_products),
            Step("conjugate gradient", calls_work(p.n, tile, check[1]), n_products),
            Step("conjugate gradient", Work(written_bytes=checkpoint, disk_bytes=2 * checkpoint), seconds=0.0),
            *(newton_steps(site) if p.loss == "logistic" else ()),
        ]

    def _factor(self, rank: int) -> Work:
        return partial_factor_work(self.problem.n, rank, self.problem.entry_time(), self.site.place.slots)

    def _middles(self, rank: int) -> Work:
        """Small matrices of the training sets of folds."""
        n_folds = self.problem.n_folds
        return capacitance_work(self.problem.n, rank, n_folds) if n_folds > 1 else Work()

    @property
    def _small_matrices(self) -> int:
        """Small matrices of all rows: every step of Newton's method has one for each column, with its own weights."""
        return 1 if self.systems.n_steps == 1 else self.systems.n_steps * self.systems.n_columns

    def _trip_seconds(self, products: TileProducts) -> float:
        """Time in which vectors and sums of one iteration travel between the workers."""
        rates, slots = self.site.rates, self.site.place.slots
        if self.site.place.execution != "dask":
            return 0.0
        # Workers get the vectors from each other; sums are added in a tree, whose nodes receive FAN_IN of them.
        hops = log2(max(slots, 2)) + FAN_IN * ceil(log(max(GROUPS_PER_PLACE * slots, 2), FAN_IN))
        longer = max(0.0, products.itemsize * self.problem.n * self.systems.n_columns - ROUND_TRIP_BYTES)
        return ROUND_TRIPS_PER_ITERATION * rates.round_trip_seconds + hops * longer / rates.network_bytes

    def growth_seconds(self, products: TileProducts, iterations: int) -> tuple[float, Callable[[int], float]]:
        """Time of one product, and from a rank to the time that one more pivot costs there, in all later steps too."""
        p, rates, slots, m = self.problem, self.site.rates, self.site.place.slots, self.problem.n_right_sides
        m *= p.n_folds
        precision = products.precision
        once = rates.seconds(self.site.product(m, precision, products.kept_fraction(slots))) / slots
        apply = rates.seconds(partial_apply_work(p.n, 1, m, precision)) / slots

        def build(rank: int) -> float:
            threads = self.site.resources.local_threads
            small = self._small_matrices * rates.seconds(small_matrix_work(p.n, rank, slots, precision))
            return rates.seconds(self._factor(rank)) + small + rates.seconds(self._middles(rank), threads)

        def pivot_seconds(rank: int) -> float:
            step = max(1, rank // 50)
            return (build(rank + step) - build(rank)) / step + iterations * apply

        return once, pivot_seconds


def growth_seconds(problem: Problem, resources: Resources, chosen: Strategy) -> tuple[float, Callable[[int], float]]:
    """Time of one product of a plan, and from a rank to the time that one more pivot costs there (dual form)."""
    details: Iterative = chosen.details
    costs: type[IterativeDual] = chosen.method.costs  # type: ignore[attr-defined]
    iterative = costs(GramCosts(problem, resources, chosen.place), problem.systems, details.rank)
    return iterative.growth_seconds(details.tile_products, details.iterations)


def multiplied_dual(p: Problem, r: Resources, method: Method) -> Iterator[Strategy]:
    """Conjugate gradient on K + λW⁻¹: the places, times precisions, times three ranks, times tiles kept."""
    settings, ranks, least = p.iteration_settings, priced_ranks(p), KEPT_FRACTIONS[:1]
    sites = [GramCosts(p, r, place) for place in r.caller_and_workers(wants_tiles=p.wants_tiles)]
    precisions = PRECISIONS[settings.precision]

    def candidates(
        sites: Sequence[GramCosts], precisions: Sequence[Precision], ranks: Sequence[int], fractions: Sequence[float]
    ) -> list[Strategy]:
        each = product(sites, precisions, ranks, fractions)
        return [IterativeDual(site, p.systems, rank).strategy(method, low, kept) for site, low, rank, kept in each]

    near = ranks
    if len(ranks) > 3:  # the best in one place, with all memory for tiles, and its neighbours
        alone = candidates(sites[:1], precisions[-1:], ranks, KEPT_FRACTIONS[-1:])
        best = min(range(len(ranks)), key=lambda k: (not alone[k].fits, alone[k].seconds))
        near = ranks[max(0, best - 1) : best + 2]
    found = candidates(sites, precisions, near, KEPT_FRACTIONS)
    if len(near) > 1:
        # Where memory is short, a rank between those: the next one may not fit, or only with small tiles.
        highest = {c.details.rank_limit for c in found if c.fits and c.details.products.kept_tiles == 0} - set(near)
        found += candidates(sites, precisions, sorted(highest), least)
    if settings.rank is None and ranks[0] and not any(c.fits for c in found):
        # Also without a factor: a limit that is refused is then one that cannot be met.
        smaller = [*(rank for rank in SMALL_RANKS if rank < ranks[0]), 0]
        found += candidates(sites, precisions, [rank for rank in ranks if rank < near[0]], KEPT_FRACTIONS)
        found += candidates(sites, precisions, smaller, least)
    yield from found


def priced_ranks(problem: Problem) -> list[int]:
    """Ranks of the preconditioner's factor that are compared."""
    settings = problem.iteration_settings
    if settings.preconditioner is None:
        return [0]
    if settings.rank is not None:
        return [min(settings.rank, problem.n)]
    return [r for r in PRICED_RANKS if r <= problem.n // 4] or [max(1, problem.n // 4)]
