"""What the methods of dkrr have in common: words of a strategy, and the size of a model that is saved."""

from collections.abc import Iterable, Sequence
from math import prod
from typing import ClassVar

import numpy as np

from dkrr.kernels.kernel_features import arrays_of
from dkrr.linalg.cholesky import n_tasks
from dkrr.linalg.triangle import kept_shape
from dkrr.planning import Plan
from dkrr.planning.explain import NOT_ENOUGH_MEMORY
from dkrr.planning.problem import Problem
from dkrr.planning.strategy import Method, Strategy
from dkrr.store import ChunkedArray, TileGrid
from dkrr.text import Reason, format_bytes, plural

PLACES = {"memory": "in memory", "serial": "on disk, one process"}
SECOND_PASS = Reason(
    "second-pass",
    "no factor is kept: standard deviations take a second pass over the rows when they are first asked for",
)


class SolvingMethod(Method):
    """Words of dkrr's own methods, and the bytes of their models."""

    keeps_tiles: ClassVar[bool] = True
    """Its matrix is in tiles on disk where it is not in memory."""

    def summary(self, c: Strategy) -> str:
        tiles = f", tiles of {c.tile:,}" if not c.place.is_memory else ""
        return f"{c.form}, {self.factor_words()}, {place_words(c)}{tiles}"

    def factor_words(self) -> str:
        """Words for what factors the matrix."""
        return "Cholesky"

    def facts(self, c: Strategy, p: Problem) -> list[tuple[str, str]]:
        alphas = f", {len(p.alphas)} values of alpha" if len(p.alphas) > 1 else ""
        if c.n_steps:
            steps = plural(c.n_steps, "step")
            by = self.newton_words(c)
            solver = f"Newton to a relative gradient of {p.tol:.0e}, by {by[0]}; about {steps}{by[1]} (an estimate)"
        else:
            solver = "Cholesky, of sums over the rows" if p.grows else self.solver_words(c, p)
        return [("solver", solver + alphas), ("where", self._where(c)), *self.more_facts(c, p)]

    def solver_words(self, c: Strategy, p: Problem) -> str:  # noqa: ARG002
        """Words for what solves the systems of a regression."""
        return "tiled Cholesky"

    def newton_words(self, c: Strategy) -> tuple[str, str]:  # noqa: ARG002
        """Words for what solves the systems of Newton's method, and for its iterations in all."""
        return "Cholesky", ""

    def more_facts(self, c: Strategy, p: Problem) -> list[tuple[str, str]]:
        """Lines about how the matrix is stored."""
        return [] if c.place.is_memory or not self.keeps_tiles else [("tiles", _tiles(c, p))]

    def _where(self, c: Strategy) -> str:
        if c.execution == "dask":
            threads = f" of {c.place.threads} threads" if c.place.threads > 1 else ""
            disk = ", tiles on disk" if self.keeps_tiles else ""
            return f"on Dask workers{disk} ({plural(c.n_workers, 'process', 'es')}{threads})"
        if not self.keeps_tiles:
            return "in the calling process"
        return f"in the calling process, {'in memory' if c.place.is_memory else 'tiles on disk'}"

    def why_kept(self, c: Strategy, p: Problem, candidates: Sequence[Strategy]) -> Reason:  # noqa: ARG002
        """In the primal form."""
        if min(p.alphas) > 0 and c.keeps_factors:
            what = "the sums over the rows are" if self.is_of_grids else "the factor is"
            size = format_bytes(8 * len(p.alphas) * p.matrix_size("primal") ** 2)
            return Reason("factor-kept", f"{what} kept for standard deviations: {size} in memory after the fit")
        return SECOND_PASS

    # Results

    def saved_bytes(self, plan: Plan) -> int:
        p = plan.priced
        coefficients = [(p.dimension or 0, p.n_targets)] if plan.prediction == "primal" else []
        if plan.form == "dual" or (p.loss == "squared" and min(p.alphas) > 0 and not p.grows):
            coefficients.append((p.n, p.n_targets))
        drawn = [array.shape for array in arrays_of(p.kernel).values()]
        rows = 0 if plan.prediction == "primal" or p.kernel.is_precomputed else _bytes_of_rows(p)
        return rows + sum(map(bytes_of, [*coefficients, (p.n_targets, 1), *drawn]))

    def uncertainty_bytes(self, plan: Plan) -> int | None:
        p = plan.priced
        if p.loss != "squared" or p.grows:
            return None
        total = bytes_of((p.n, p.n_targets)) + (0 if p.n_positive_weights is None else bytes_of((p.n, 1)))
        total += _bytes_of_rows(p) if plan.prediction == "primal" or p.kernel.is_precomputed else 0
        for alpha in p.alphas:
            if plan.has_primal_factor and alpha > 0:
                side = (p.dimension or 0) + (1 if p.fit_intercept else 0)
                total += bytes_of((side, side)) + bytes_of((side, p.n_targets // len(p.alphas)))
                total += self.bytes_beside_factor(plan, side)
            elif self.is_direct:
                tiling = plan.chosen.tiling
                total += bytes_of(kept_shape(TileGrid(p.n, tiling.tile, tiling.panel))) + bytes_of((p.n, 1))
        return total

    def bytes_beside_factor(self, plan: Plan, side: int) -> int:
        """Size of what a model saves beside a factor of the normal matrix: the means of the features."""
        return bytes_of((side, 1)) * plan.problem.fit_intercept


def place_words(c: Strategy) -> str:
    """Words for the place."""
    return PLACES.get(c.execution) or plural(c.n_workers, "worker")


def _tiles(c: Strategy, p: Problem) -> str:
    tiling, n_tiles = c.tiling, -(-p.matrix_size(c.form) // c.tile)
    columns = f", {tiling.columns_per_task} tile columns per task" if tiling.columns_per_task else ""
    return (
        f"{tiling.tile:,} × {tiling.tile:,} in panels of {tiling.panel}{columns}; {n_tiles} per side, "
        f"{n_tasks(n_tiles, tiling.columns_per_task):,} tasks"
    )


def why_place(c: Strategy, p: Problem, candidates: Iterable[Strategy]) -> list[Reason]:
    """Why a factorisation in float64 is in memory, or in tiles on disk."""
    if c.place.is_memory:
        text = "in the calling process, since everything fits in memory and that is fastest"
        return [Reason("fits-in-memory", text)]
    whole = next((o for o in candidates if o.place.is_memory and o.form == c.form), None)
    if p.keeps_store:
        why = [Reason("store-requested", "tiles on disk, since store= asks for a run that can be resumed")]
    elif whole is None:
        why = []
    elif whole.refused == NOT_ENOUGH_MEMORY:
        needed = f"{format_bytes(whole.peak_bytes)} of {format_bytes(whole.limit_bytes)}"
        why = [Reason("exceeds-memory", f"tiles on disk, since in memory one process would need {needed}")]
    else:
        code = whole.refused.code or "faster-on-workers"
        why = [Reason(code, f"on Dask, since {whole.refused or 'that is faster'}")]
    return why + why_tiles(p)


def why_tiles(p: Problem) -> list[Reason]:
    """Why tiles have their size."""
    if p.layout is not None:
        return []
    if p.tile is not None:
        return [Reason("tile-requested", f"tile={p.tile} was requested")]
    text = "larger tiles read less, smaller ones divide the work more evenly: this size is the fastest"
    return [Reason("tile-is-fastest", text)]


def why_streamed(c: Strategy, p: Problem) -> list[Reason]:
    """Reasons of Newton's method with streamed rows."""
    text = "the curvature is a matrix in the calling process; the rows are streamed, a pass for each step"
    return [Reason("rows-streamed", text), *([] if c.place.is_memory else why_tiles(p))]


def _bytes_of_rows(p: Problem) -> int:
    """Size of the training rows."""
    if p.is_sparse or p.x_bytes is None:
        return p.stored_bytes
    return bytes_of((p.n, p.d), f"u{p.x_bytes // (p.n * p.d)}")


def bytes_of(shape: tuple[int, ...], dtype: str = "f8") -> int:
    """Bytes of a stored array in whole chunks."""
    array = ChunkedArray.of_rows("", shape, np.dtype(dtype))
    return prod(array.grid) * array.chunk_bytes
