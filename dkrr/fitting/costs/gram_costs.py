"""Costs of a Gram matrix and of targets in one place: its primitives, and the models that leave out folds."""

from dataclasses import dataclass

from dkrr.cost import Stage, Work
from dkrr.linalg.gram_products import Precision, multiply_bytes, pass_work
from dkrr.linalg.held_out import columns_at_once, folds_flops, stored_bytes, stored_work
from dkrr.linalg.normal import TARGET_PASSES
from dkrr.linalg.sources import KERNEL_BLOCK
from dkrr.linalg.square import gram_workspace_bytes
from dkrr.planning.resources import cold_fraction
from dkrr.planning.work import CostModel, Step, written
from dkrr.store import TileGrid


@dataclass(frozen=True)
class GramCosts(CostModel):
    """Cost model with the primitives of dkrr's methods."""

    def forming(self, n_entries: float, precision: Precision = "float64") -> Work:
        """Work of forming `n_entries` entries of K."""
        return Work(element_seconds=self.problem.entry_time(precision) * n_entries)

    def forming_bytes(self, tile: int) -> int:
        """Memory of a task that forms a tile, besides the tile."""
        p = self.problem
        blocks = p.csr_bytes(min(tile, KERNEL_BLOCK))
        return gram_workspace_bytes(p.kernel, tile, p.row_bytes_in_strips(tile), p.d, blocks)

    def product(self, m: int, precision: Precision = "float64", kept: float = 0.0, *, is_mirrored: bool = True) -> Work:
        """Work of a product of K with m vectors, the fraction `kept` of its tiles in memory."""
        p = self.problem
        return pass_work(p.entry_time(precision), p.n, m, precision, kept, 2 if is_mirrored else 1)

    def product_bytes(self, tile: int, m: int) -> int:
        """Memory of a task of such a product, besides tiles that are kept."""
        p = self.problem
        return multiply_bytes(p.kernel, p.n, tile, p.d, p.row_bytes_in_strips(tile), m, is_sparse=p.is_sparse)

    def targets(self, peak: int) -> Step:
        """Passes over targets in a mapped file on this machine's disk, and over the dual coefficients in another."""
        p, r = self.problem, self.resources
        if not p.y_is_mapped:
            return Step("targets")
        rates = r.rates_of_disk.reading(cold_fraction(2 * p.y_bytes, self.cache_bytes(peak)))
        read = float(TARGET_PASSES * p.y_bytes)
        seconds = read / rates.read_bytes + p.y_bytes / rates.write_bytes
        return Step("targets", written(p.y_bytes, read), seconds=seconds)

    def held_out(self, peak: int, grid: TileGrid) -> tuple[Stage, ...]:
        """Models that leave out the folds of intervals, from a factor of every λ; nothing without folds.

        In memory where the columns of L⁻¹ of a fold fit beside the factor, else in tiles of a store.
        """
        p, k = self.problem, self.problem.interval_folds
        if not k or p.folds_are_fitted:
            return ()
        models = 8 * p.n * (2 + k) * p.n_right_sides
        whole = peak + models + 8 * p.n * columns_at_once(p.n, k)
        if self.place.is_memory and whole <= self.place.usable_bytes:
            work = Work(gemm_flops=folds_flops(p.n, k) + 4.0 * k * p.n_targets * float(p.n) ** 2)
            return self.price([Step("held-out models", work, len(p.alphas), "blas")], whole)
        shared = stored_bytes(grid, k, 0)
        each = stored_bytes(grid, k, 1) - shared
        if self.place.is_memory:
            peak += models + shared + self.place.threads * each
        else:  # of a cluster the calling process is not counted
            peak = max(peak, self.peak(0 if self.place.execution == "dask" else models + shared, each))
        work = stored_work(grid, k, p.n_right_sides)
        return self.price([Step("held-out models", work, len(p.alphas), "tasks")], peak)
