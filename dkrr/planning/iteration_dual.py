"""Price of conjugate gradient with the Gram matrix, its tiles in memory or formed at every pass.

What it depends on that no plan can know is the spectrum of the matrix. It is estimated on a sample of the rows, or
assumed to be a typical one without rows; the rank is chosen while the factor shows what the spectrum really is.
"""

from dataclasses import dataclass, replace
from math import ceil, log, log2, sqrt

import numpy as np

from dkrr.cluster.tasks import FAN_IN
from dkrr.cost import Stage
from dkrr.linalg.fold_preconditioner import middles_cost
from dkrr.linalg.operator import Precision
from dkrr.linalg.pivoted_cholesky import (
    FACTOR_DTYPE,
    SPREAD,
    factor_rows_bytes,
    partial_apply_seconds,
    partial_factor_cost,
    small_matrix_cost,
)
from dkrr.linalg.sources import KERNEL_BLOCK, gram_workspace_bytes
from dkrr.linalg.tiled_operator import (
    GROUPS_PER_PLACE,
    MAX_TILE,
    MIN_TILE,
    SECONDS_PER_TILE,
    WORKSPACE_FRACTION,
    multiply_bytes,
    pass_cost,
)
from dkrr.planning.inputs import is_held, reading_seconds, sharing_stages, symmetry_stages
from dkrr.planning.problem import Problem
from dkrr.planning.products import TileProducts
from dkrr.planning.resources import PROCESS_MARGIN_BYTES, RESIDENT_ROWS_FRACTION, ROUND_TRIP_BYTES, Place, Resources
from dkrr.planning.strategy import Systems
from dkrr.solvers.conjugate_gradient import (
    MIXED_ITERATION_FACTOR,
    ROUND_TRIPS_PER_ITERATION,
    cycles_in_low_precision,
)

MAX_ITERATIONS_PLANNED = 1_000_000


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


def iterations_expected(eigenvalue: float, shift: float, tol: float) -> int:
    """Iterations for a system whose preconditioner leaves eigenvalues up to this one.

    Chebyshev's bound log(2 / tol) / log((√κ + 1) / (√κ − 1)) for κ = 1 + λ / shift, times SPREAD. Where a factor leaves
    little, κ is close to 1 and a few iterations suffice (measured: 2 to 5).
    """
    root = sqrt(1.0 + max(eigenvalue, 0.0) / max(shift, 1e-14))
    if root <= 1.0:
        return 2
    found = SPREAD * log(2.0 / tol) / (log(root + 1.0) - log(root - 1.0))
    return int(min(ceil(found) + 1, MAX_ITERATIONS_PLANNED))


def dual_iterations_expected(p: Problem, systems: Systems, rank: int) -> int:
    """Iterations for all systems, with a factor of this rank."""
    left = p.n * p.spectrum.eigenvalue(rank)
    return systems.n_steps * (iterations_expected(left, systems.shift, systems.tol) + systems.more_iterations)


def factor_seconds(p: Problem, resources: Resources, slots: int, rank: int) -> float:
    """Time to build the preconditioner's factor and the small matrix, or those of folds, that belong to it."""
    seconds = resources.rates.seconds(partial_factor_cost(p.n, rank, p.entry(resources.rates), slots))
    if p.n_folds > 1:
        seconds += resources.rates.seconds(middles_cost(p.n, rank, p.n_folds)) / resources.local_threads
    return seconds


@dataclass(frozen=True)
class GramIteration:
    """Systems with K, solved in one place with a preconditioner of one rank."""

    problem: Problem
    systems: Systems
    resources: Resources
    place: Place
    rank: int

    def tiles_kept(self, precision: Precision, fraction: float) -> tuple[TileProducts, int]:
        """Tiles that are kept in a fraction of the free memory, and what a process then holds."""
        p, place = self.problem, self.place
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
        p, place = self.problem, self.place
        # X is in memory already, or loaded into memory, or kept by every process if it is small, or read at every pass.
        loads = not p.x_in_memory and place.is_memory
        is_small = p.stored_bytes <= place.limit_bytes * RESIDENT_ROWS_FRACTION
        keeps_rows = loads or (not is_held(p, place) and is_small)
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
        p, place, m = self.problem, self.place, self.systems.n_columns
        product = multiply_bytes(p.kernel, p.n, tile, p.d, p.bytes_of_part(tile), m, is_sparse=p.is_sparse)
        if p.is_sparse and self.rank:
            # Kernels of a process's rows with pivots, in blocks that may be higher than tiles.
            block = min(p.n, KERNEL_BLOCK)
            row_bytes = p.bytes_of_part(block)
            product = max(product, gram_workspace_bytes(p.kernel, block, row_bytes, p.d, p.csr_bytes(block)))
        return (
            place.baseline_bytes
            + PROCESS_MARGIN_BYTES
            + (p.n * p.bytes_of_row if keeps_rows else 0)
            + place.threads * (product + p.read_overhead_bytes)
            + (4 if place.execution == "dask" else self.systems.n_vectors) * 8 * p.n * m
            + self.factor_bytes(self.rank)
        )

    def factor_bytes(self, rank: int) -> int:
        """Memory of a process for a factor of this rank and its small matrices."""
        p, place = self.problem, self.place
        if rank == 0:
            return 0
        rows = place.threads * factor_rows_bytes(p.n, rank, np.dtype(FACTOR_DTYPE).itemsize, place.slots)
        # The pivots' triangle, the small matrix and its sums: in the calling process, where that does the work.
        here = place.threads + 2 + self.systems.n_curvatures
        n_squares = 3 * place.threads if place.execution == "dask" else here
        return rows + 8 * rank**2 * n_squares + p.bytes_of_any(rank)

    def largest_rank(self, free: int) -> int:
        """Up to twice the rank that is expected to suffice, if the memory that is left allows it."""
        least, most = self.rank, min(self.problem.n, 2 * self.rank)
        while least < most:
            middle = (least + most + 1) // 2
            if self.factor_bytes(middle) - self.factor_bytes(self.rank) <= free:
                least = middle
            else:
                most = middle - 1
        return least

    def counts(self, precision: Precision) -> tuple[int, int]:
        """Expected iterations, and the products in float64 besides them."""
        iterations = dual_iterations_expected(self.problem, self.systems, self.rank)
        if self.systems.n_products:
            return iterations, self.systems.n_products
        if precision == "float64":
            return iterations, 1
        return ceil(iterations * MIXED_ITERATION_FACTOR), cycles_in_low_precision(self.systems.tol)

    def stages(self, products: TileProducts, peak_bytes: int) -> tuple[Stage, ...]:
        """Stages with tiles in memory or formed at every pass."""
        return (
            *self._sharing(products, peak_bytes),
            self._preconditioner(peak_bytes),
            self._first_pass(products, peak_bytes),
            self._iterating(products, peak_bytes),
        )

    def _sharing(self, products: TileProducts, peak_bytes: int) -> tuple[Stage, ...]:
        """What precedes the work, and reading X where processes keep it."""
        p, place = self.problem, self.place
        start, check, copy = sharing_stages(p, place, self.resources.rates)
        kept = 0 if is_held(p, place) or not products.keeps_rows else p.stored_bytes * place.n_workers
        checkpoint = 5 * 8 * p.n * self.systems.n_columns if p.keeps_store else 0
        # What processes keep is read once, and never from the cache again.
        each = reading_seconds(p, self.resources, place, peak_bytes)
        read = Stage("reading X", kept * each, kept, checkpoint, 2 * checkpoint)
        return start, check.plus(check.read_bytes * each), copy, read, *symmetry_stages(p)

    def _preconditioner(self, peak_bytes: int) -> Stage:
        """Factor, and a small matrix for every diagonal."""
        p, slots = self.problem, self.place.slots
        others = (self.systems.n_steps - 1) * self.systems.n_columns
        small = self.resources.rates.seconds(small_matrix_cost(p.n, self.rank, slots))
        seconds = factor_seconds(p, self.resources, slots, self.rank) + others * small
        seconds += np.dtype(FACTOR_DTYPE).itemsize * p.n * self.rank / self.resources.rates.fresh_bytes / slots
        return Stage("preconditioner", seconds, peak_bytes=peak_bytes)

    def _first_pass(self, products: TileProducts, peak_bytes: int) -> Stage:
        """Forming the tiles that are kept, in new memory."""
        kept = products.kept_fraction(self.place.slots)
        seconds = self.pass_seconds(products.precision, 1, 0.0) * kept
        entries = float(products.all_tiles) * min(products.tile, self.problem.n) ** 2
        seconds += kept * entries * products.itemsize / self.resources.rates.fresh_bytes
        return Stage("Gram matrix", seconds / self.place.slots, peak_bytes=peak_bytes)

    def _iterating(self, products: TileProducts, peak_bytes: int) -> Stage:
        """All iterations, and products in float64 for true residuals."""
        p, place, m, slots = self.problem, self.place, self.systems.n_active, self.place.slots
        iterations, n_products = self.counts(products.precision)
        kept = products.kept_fraction(slots)
        one = self.pass_seconds(products.precision, m, kept)
        one = (one + SECONDS_PER_TILE * (1.0 - kept) * products.all_tiles) / slots
        check = (
            self.pass_seconds("float64", self.systems.n_columns, 0.0) / slots
            if products.precision == "float32"
            else one
        )
        apply = partial_apply_seconds(p.n, self.rank, m, slots, products.precision)
        trips = self._trip_seconds(products) if place.execution == "dask" else 0.0
        seconds, x_read = iterations * (one + apply + trips) + n_products * check, 0.0
        if not products.keeps_rows and not is_held(p, place):
            x_read = (iterations + n_products) * (p.stored_bytes * (products.n_tiles + 1) / 2)
            seconds += x_read * reading_seconds(p, self.resources, place, peak_bytes)
        return Stage("conjugate gradient", seconds, x_read, peak_bytes=peak_bytes)

    def _trip_seconds(self, products: TileProducts) -> float:
        """Time in which vectors and sums of one iteration travel between the workers."""
        rates, slots = self.resources.rates, self.place.slots
        # Workers get the vectors from each other; sums are added in a tree, whose nodes receive FAN_IN of them.
        hops = log2(max(slots, 2)) + FAN_IN * ceil(log(max(GROUPS_PER_PLACE * slots, 2), FAN_IN))
        longer = max(0.0, products.itemsize * self.problem.n * self.systems.n_columns - ROUND_TRIP_BYTES)
        return ROUND_TRIPS_PER_ITERATION * rates.round_trip_seconds + hops * longer / rates.network_bytes

    def pass_seconds(self, precision: Precision, m: int, kept: float) -> float:
        """Time of one slot to multiply all of K by m vectors, a fraction of its tiles in memory."""
        entry = self.problem.entry(self.resources.rates, precision)
        return self.resources.rates.seconds(pass_cost(entry, self.problem.n**2 / 2, m, precision, kept))
