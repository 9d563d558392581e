"""Conjugate gradient on a GPU: blocks of K are formed there for every product; its time from three measured rates."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import ceil

from dkrr.cost import Work
from dkrr.errors import InputError, MemoryLimitError
from dkrr.fitting.costs.details import Iterative, TileProducts
from dkrr.fitting.costs.dual_cg_costs import (
    PRECISIONS,
    SMALL_RANKS,
    IterativeDual,
    is_worth_keeping,
    priced_ranks,
    squares_of_factor,
)
from dkrr.fitting.costs.dual_costs import newton_steps
from dkrr.fitting.costs.gram_costs import GramCosts
from dkrr.kernels.device import PAIRS_AT_ONCE, n_leaves, refusal
from dkrr.linalg.device_products import STRIP_ROWS
from dkrr.linalg.fold_preconditioner import CAPACITANCE_FLOPS
from dkrr.linalg.gram_products import GROUPS_PER_PLACE, Precision
from dkrr.linalg.pivoted_cholesky import BLOCKS_TO_RANK, FACTOR_BYTES, MIN_BLOCK, factor_bytes
from dkrr.planning.problem import Problem
from dkrr.planning.resources import TRANSFER_BYTES, Gpu, Resources
from dkrr.planning.strategy import Method, Strategy
from dkrr.planning.work import Step
from dkrr.text import Reason, format_bytes

SIDES = (16384, 8192, 4096, 2048, 1024)
"""Rows of blocks: larger ones gain nothing, since one takes milliseconds."""
USABLE_FRACTION = 0.9
"""Fraction of the GPU's free memory that a plan may use: CuPy's pool keeps arrays of other sizes, cuBLAS has some."""
BLOCK_FRACTION = 1 / 4
"""Largest fraction of that for the arrays of one block."""
BUFFERS = 6
"""Arrays in float64 as large as a block that exist at a time, where most of its entries are computed again: products,
distances, a mask and its positions, distances of pairs, the result."""
PAIRS_BYTES = 4 * 8 * PAIRS_AT_ONCE
"""Memory of the differences of rows."""
BLOCK_SECONDS = 3e-4
"""Time to start the kernels of a block, an assumption: some tens, about 10 µs each."""
VECTOR_PASSES = 20
"""Times that an iteration reads or writes its vectors on the host."""
ITERATION_SECONDS = 1e-3
"""Time of an iteration besides, an assumption: tasks, vectors that wait for the GPU."""


@dataclass(frozen=True)
class DeviceProducts(TileProducts):
    """Products with K on a GPU."""

    gpu: str = ""
    """Name of the GPU."""
    rows_bytes: int = 0
    """Memory of the GPU for rows."""
    device_bytes: int = 0
    """Memory of the GPU in all."""
    float64_slowdown: float = 1.0
    """Time of a product in float64 over one in float32."""


@dataclass(frozen=True, kw_only=True)
class DeviceIterative(Iterative):
    """Conjugate gradient whose products are computed on a GPU."""


@dataclass(frozen=True)
class DeviceDual(IterativeDual):
    """Systems with K on the GPU of the calling process, with a preconditioner of one rank."""

    @property
    def gpu(self) -> Gpu:
        """GPU."""
        gpu = self.site.resources.gpu
        assert gpu is not None
        return gpu

    # Memory

    @property
    def usable_bytes(self) -> int:
        """Memory of the GPU that a plan may use."""
        return int(USABLE_FRACTION * self.gpu.free_bytes)

    def _side(self) -> int:
        """Rows of a block: those asked for, or as many as have room."""
        p = self.problem
        wanted = p.tile if p.layout is None else p.layout.tile
        if wanted is None:
            most = BLOCK_FRACTION * self.usable_bytes
            side = next((side for side in SIDES if self._block_bytes(side) <= most), SIDES[-1])
            wanted = ceil(p.n / ceil(p.n / side))
        return min(wanted, p.n)

    def _block_bytes(self, side: int) -> int:
        blocks = (BUFFERS + n_leaves(self.problem.kernel) - 1) * 8 * side * min(side, STRIP_ROWS)
        return blocks + PAIRS_BYTES

    @property
    def _all_row_bytes(self) -> int:
        """Bytes of all rows on the GPU, in both types."""
        p = self.problem
        return n_leaves(p.kernel) * (4 + 2 * 8) * p.n * (p.d + 1)  # at most, of distances also as given

    def _rows_bytes(self) -> int:
        """Memory of the GPU for rows: all, or half of it, but no less than two ranges."""
        p = self.problem
        each = n_leaves(p.kernel) * 2 * 8 * self._side() * (p.d + 1)
        return min(self._all_row_bytes, max(self.usable_bytes // 2, 2 * each)) + each

    def device_bytes(self, rank: int) -> int:
        """Memory of the GPU with a factor of this rank: rows, a block, vectors, and the factor while it grows."""
        p, m, side = self.problem, self.systems.n_columns, self._side()
        height = min(p.n, STRIP_ROWS)
        vectors = 4 * 8 * p.n * m + 4 * 8 * side * m
        # Strips of F that are joined or converted, columns from all pivots, and what small matrices are summed in.
        factor = factor_bytes(p.n + height, rank) + 24 * height * rank + 28 * rank**2
        factor += BUFFERS * 8 * height * rank + 8 * n_leaves(p.kernel) * rank * (p.d + 1)
        # Blocks and the growth of the factor are not at the same time, but the pool keeps arrays of both.
        return self._rows_bytes() + self._block_bytes(side) + vectors + (factor if rank else 0)

    def factor_bytes(self, rank: int) -> int:
        """Memory of the host for the small matrices of a factor."""
        if rank == 0:
            return 0
        n_threads = 1 if self.problem.n_folds == 1 else self.site.resources.local_threads
        return 8 * rank**2 * squares_of_factor(self.problem, n_threads) + self.problem.largest_rows_bytes(rank)

    def _needed_bytes(self, tile: int, *, keeps_rows: bool) -> int:
        p, m = self.problem, self.systems.n_columns
        # Also vectors in pinned memory, rounded up to a power of two, and the products of a task.
        vectors = (self.systems.n_vectors + 6) * 8 * p.n * m
        held = (p.n * p.bytes_of_row if keeps_rows else 0) + vectors + self.factor_bytes(self.rank)
        prepared = 3 * 8 * tile * (p.d + 1)
        return self.site.peak(held, prepared + p.read_overhead_bytes)

    def tiles_kept(self, precision: Precision, fraction: float) -> tuple[TileProducts, int]:  # noqa: ARG002
        """Products, with no tiles that are kept, and what this process holds."""
        p, tile, gpu = self.problem, self._side(), self.gpu
        loads = not p.x_in_memory and self.site.place.is_memory
        products = DeviceProducts(
            tile,
            ceil(p.n / tile),
            precision,
            0,
            keeps_rows=False,
            gpu=gpu.name,
            rows_bytes=self._rows_bytes(),
            device_bytes=self.device_bytes(self.rank),
            float64_slowdown=self._entry_seconds("float64") / self._entry_seconds("float32"),
        )
        return products, self._needed_bytes(tile, keeps_rows=loads)

    def largest_rank(self, free: int) -> int:
        """Up to twice the rank that is expected to suffice, if memory here and on the GPU allows it."""
        most = super().largest_rank(free)
        least = min(self.rank, most)
        while least < most:
            middle = (least + most + 1) // 2
            if self.device_bytes(middle) <= self.usable_bytes:
                least = middle
            else:
                most = middle - 1
        return least

    def strategy(self, method: Method, precision: Precision, fraction: float) -> Strategy:
        found = super().strategy(method, precision, fraction)
        needed, usable = self.device_bytes(found.details.rank_limit), self.usable_bytes
        products = replace(found.details.products, device_bytes=needed)
        details = DeviceIterative(
            products=products,
            iterations=found.details.iterations,
            rank=found.details.rank,
            rank_limit=found.details.rank_limit,
        )
        refused = found.refused
        if needed > usable:
            gpu = self.gpu
            text = (
                f"needs {format_bytes(needed)} of the GPU's memory, of which {format_bytes(usable)} may be used: "
                f"{format_bytes(gpu.free_bytes)} of {format_bytes(gpu.total_bytes)} are free"
            )
            refused = Reason("gpu-memory", text)
        return replace(found, details=details, refused=refused)

    # Time

    def _entry_seconds(self, precision: Precision, m: int = 0) -> float:
        """Time of an entry, with both of its products with m vectors."""
        p = self.problem
        return self.gpu.entry_seconds(precision, p.d, 2.0 * m, n_leaves(p.kernel))

    def _product_seconds(self, m: int, precision: Precision, products: TileProducts) -> float:
        """Time of one product with m vectors: half of the entries, each used twice."""
        p, n_blocks = self.problem, products.all_tiles
        n_entries = p.n * (p.n + min(p.n, STRIP_ROWS)) / 2  # those on the diagonal are squares
        seconds = self._entry_seconds(precision, m) * n_entries
        seconds += BLOCK_SECONDS * n_blocks * max(1.0, products.tile / STRIP_ROWS)
        seconds += GROUPS_PER_PLACE * 2 * 8.0 * p.n * m / TRANSFER_BYTES
        if self._all_row_bytes > self.usable_bytes // 2:  # rows of the other side come again for every block
            seconds += n_blocks * products.tile * (p.d + 1) * 8.0 / TRANSFER_BYTES
        return seconds

    def _apply_seconds(self, rank: int, m: int, precision: Precision) -> float:
        """Time of multiplying a factor and its transpose by vectors."""
        n, gpu = self.problem.n, self.gpu
        # For products in float64 the factor is converted.
        passes = 2 * FACTOR_BYTES if precision == "float32" else 2 * (FACTOR_BYTES + 2 * 8)
        return n * rank * (4.0 * m / gpu.flops(precision) + passes / gpu.pass_bytes) + (
            2 * 8.0 * n * m / TRANSFER_BYTES if rank else 0.0
        )

    def _factor_seconds(self, rank: int) -> float:
        """Time of a factor: its columns in float64, and products in float32 or float64."""
        n, gpu = self.problem.n, self.gpu
        new = max(MIN_BLOCK, rank / BLOCKS_TO_RANK)
        growing = n * rank * (rank / gpu.flops("float32") + 2.0 * new / gpu.flops("float64"))
        return self._entry_seconds("float64") * n * rank + growing + self.gpu.upload_seconds(n, self.problem.d)

    def _small_seconds(self, rank: int, precision: Precision) -> float:
        """Time of Fᵀ diag(v) F on the GPU."""
        return 2.0 * self.problem.n * float(rank) ** 2 / self.gpu.flops(precision) + 8.0 * rank**2 / TRANSFER_BYTES

    def recipe(self, products: TileProducts) -> list[Step]:
        p, s, site, precision = self.problem, self.systems, self.site, products.precision
        (iterations, n_products), rank = self.counts(precision), self.rank
        loaded = 0 if site.holds_rows else p.stored_bytes
        checkpoint = 5 * 8 * p.n * s.n_columns if p.keeps_store and p.loss == "squared" else 0
        factor_seconds, columns = self._factor_seconds(rank), factor_bytes(p.n, rank)
        if not p.keeps_store or not is_worth_keeping(factor_seconds, columns / site.rates.write_bytes):
            columns = 0
        active = self._product_seconds(s.n_active, precision, products)
        whole = self._product_seconds(s.n_columns, "float64", products)
        small = self._small_matrices
        host = Work(memory_bytes=VECTOR_PASSES * 8.0 * p.n * s.n_active)
        return [
            *site.shared(),
            Step("reading X", Work(row_bytes=loaded)),
            Step("preconditioner", seconds=factor_seconds),
            Step("preconditioner", self._middles(rank), by="blas"),
            Step("preconditioner", Work(written_bytes=columns, disk_bytes=columns), seconds=0.0),
            Step("preconditioner", times=small, seconds=self._small_seconds(rank, precision)),
            Step("preconditioner", Work(gemm_flops=float(rank) ** 3 / 3), small, "blas"),
            Step("conjugate gradient", times=iterations, seconds=active + ITERATION_SECONDS),
            Step("conjugate gradient", times=iterations, seconds=self._apply_seconds(rank, s.n_active, precision)),
            Step("conjugate gradient", host, iterations, "caller"),
            Step("conjugate gradient", times=n_products, seconds=whole),
            Step("conjugate gradient", Work(written_bytes=checkpoint, disk_bytes=2 * checkpoint), seconds=0.0),
            *(newton_steps(site) if p.loss == "logistic" else ()),
        ]

    def _middles(self, rank: int) -> Work:
        """Small matrices of the training sets of folds, on the host."""
        n_folds = self.problem.n_folds
        return Work(gemm_flops=CAPACITANCE_FLOPS * n_folds * float(rank) ** 3) if n_folds > 1 else Work()

    def growth_seconds(self, products: TileProducts, iterations: int) -> tuple[float, Callable[[int], float]]:
        p, site, m = self.problem, self.site, self.problem.n_right_sides * self.problem.n_folds
        rates, threads, precision = site.rates, site.resources.local_threads, products.precision
        apply = self._apply_seconds(1, m, precision) - 2 * 8.0 * p.n * m / TRANSFER_BYTES

        def build(rank: int) -> float:
            small = self._small_seconds(rank, precision)
            small += rates.seconds(Work(gemm_flops=float(rank) ** 3 / 3), threads)
            middles = rates.seconds(self._middles(rank), threads)
            return self._factor_seconds(rank) + self._small_matrices * small + middles

        def pivot_seconds(rank: int) -> float:
            step = max(1, rank // 50)
            return (build(rank + step) - build(rank)) / step + iterations * apply

        return self._product_seconds(m, precision, products), pivot_seconds


def multiplied_on_device(p: Problem, r: Resources, method: Method) -> Iterator[Strategy]:
    """Conjugate gradient on K + λW⁻¹ with the GPU of the calling process: times precisions, times ranks.

    Raises
    ------
    InputError
        If a GPU was requested that this problem cannot use.
    MemoryLimitError
        If one was requested that has not memory enough.
    """
    if reason := why_not(p, r):
        if p.device == "cuda":
            raise InputError(f"device is 'cuda', and {reason}; expected device='auto' or 'cpu'")
        return
    place = r.in_caller("serial" if p.wants_tiles else "memory", 1, r.local_threads)
    site, settings, ranks = GramCosts(p, r, place), p.iteration_settings, priced_ranks(p)
    if settings.rank is None and ranks[0]:
        ranks = [*reversed([rank for rank in SMALL_RANKS if rank < ranks[0]]), *ranks]
    found = [
        DeviceDual(site, p.systems, rank).strategy(method, precision, 0.0)
        for precision, rank in product(PRECISIONS[settings.precision], ranks)
    ]
    fitting = [c for c in found if not c.refused]
    if not fitting and p.device == "cuda":
        least = min(found, key=lambda c: c.details.products.device_bytes)
        raise MemoryLimitError(
            f"device is 'cuda', and conjugate gradient there {least.refused}; expected more free memory, "
            f"{'fewer targets at a time, ' if p.n_targets > 1 else ''}or device='cpu'. Nothing was computed"
        )
    yield from fitting or found[:1]


def why_not(p: Problem, r: Resources) -> str:
    """Why a problem cannot use the GPU of the calling process; empty where it can."""
    if r.cluster_is_running:
        return "the work is for the workers of a Dask client, which do not use GPUs yet"
    if r.gpu is None:
        return "no GPU is known to this process"
    if p.is_sparse:
        return "rows on a GPU are dense, and X is sparse"
    return refusal(p.kernel)
