"""Cholesky factorisations, in memory or in tiles on disk, and what they cost."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from dkrr.blas import BYTES_PER_THREAD, THREAD_EFFICIENCY
from dkrr.cost import Stage
from dkrr.errors import InputError
from dkrr.linalg.cholesky import cholesky_cost, cholesky_task_bytes, cold_cholesky_bytes, factor_bytes, partial_bytes
from dkrr.linalg.memory import ONE_TILE, TILE_BUFFER_BYTES, memory_bytes, memory_cost, memory_grid
from dkrr.linalg.normal import PARALLEL_FEATURES, PARALLEL_FLOPS, TARGET_COPIES, TARGET_PASSES, normal_cost, row_block
from dkrr.linalg.residual import uses_symmetry
from dkrr.linalg.sources import KERNEL_BLOCK, gram_cost, gram_workspace_bytes
from dkrr.linalg.substitution import substitution_cost
from dkrr.linalg.tile_steps import MAX_TASKS, MAX_TILES_PER_SIDE, PANEL_COLUMNS, TASK_COLUMNS, TILE_SIZES, tile_steps
from dkrr.linalg.tiled_operator import multiply_bytes, pass_cost
from dkrr.planning.limits import PROCESS_MARGIN_BYTES
from dkrr.planning.problem import Form, Problem
from dkrr.planning.resources import Place, Rates, Resources, cold_fraction
from dkrr.planning.schedule import factorisation_seconds
from dkrr.planning.strategy import NOT_ENOUGH_MEMORY, Settings, Strategy, Systems, Tiling, of_processes
from dkrr.solvers import Cholesky
from dkrr.tiles import TileGrid
from dkrr.units import format_bytes

KEPT_TIME_FRACTION = 0.95
"""Part of the time below which a second triangle in memory pays."""


@dataclass(frozen=True, kw_only=True)
class Direct(Strategy):
    """Factorisation and substitution, exact to rounding."""

    tiling: Tiling
    row_parts: int = 1
    """Parts of the rows whose normal matrices are formed separately (primal)."""
    row_block: int = 0
    """Rows of X that are in memory at once (primal)."""
    keeps_matrix: bool = False
    """The matrix stays in memory beside its factor; otherwise its tiles are formed again for the residual."""

    linear_solver: ClassVar = "cholesky"
    keeps_rows: ClassVar = False

    @classmethod
    def serves(cls, settings: Settings) -> bool:
        return settings is None or isinstance(settings, Cholesky)

    @classmethod
    def candidates(cls, problem: Problem, resources: Resources, form: Form) -> Iterator["Direct"]:
        if not problem.wants_tiles:
            yield (dual_in_memory if form == "dual" else primal_in_memory)(problem, resources)
        systems, tiled = Systems.of_ridge(problem), dual_tiled if form == "dual" else primal_tiled
        for choice in tile_choices(problem, resources, form):
            yield tiled(problem, systems, choice)

    @property
    def is_whole(self) -> bool:
        return self.place.execution == "memory"

    @property
    def task_threads(self) -> int:
        return self.row_parts if self.is_whole else 1

    def summary(self) -> str:
        tiles = "" if self.is_whole else f", tiles of {self.tiling.tile:,}"
        return f"{self.form}, Cholesky, {on_tiles(self.place)}{tiles}"

    def lines(self, problem: Problem) -> list[str]:
        tiles = [] if self.is_whole else [tiles_line(self.tiling, self.form, problem)]
        return ["  solver      tiled Cholesky", where_line(self.place), *tiles]

    def reasons(self, problem: Problem, priced: Strategy, others: Sequence[Strategy]) -> list[str]:
        if self.is_whole:
            return ["in the calling process, since everything fits in memory and that is fastest"]
        whole = next((c for c in others if c.place.is_memory and c.form == priced.form), None)
        if problem.keeps_store:
            why = ["tiles on disk, since store= asks for a run that can be resumed"]
        elif whole is None:
            why = []
        elif whole.refused == NOT_ENOUGH_MEMORY:
            needed = f"{format_bytes(whole.peak_bytes)} of {format_bytes(whole.limit_bytes)}"
            why = [f"tiles on disk, since in memory one process would need {needed}"]
        else:
            why = [f"on Dask, since {whole.refused or 'that is faster'}"]
        return why + tile_reasons(problem)

    def layout(self) -> dict[str, Any]:
        return layout_of(self, self.tiling, self.row_parts)


def layout_of(strategy: Strategy, tiling: Tiling, row_parts: int = 1) -> dict[str, Any]:
    """Fields of Layout."""
    return {
        "form": strategy.form,
        "tile": tiling.tile,
        "panel": tiling.panel,
        "columns_per_task": tiling.columns_per_task,
        "row_parts": row_parts,
        "solver": strategy.solver,
    }


def on_tiles(place: Place) -> str:
    """Place of a factorisation in a few words."""
    where = {"memory": "in memory", "serial": "on disk, one process", "dask": f"{place.n_workers} workers"}
    return where[place.execution]


def where_line(place: Place) -> str:
    """Place of a factorisation."""
    where = {
        "memory": "in the calling process, in memory",
        "serial": "in the calling process, tiles on disk",
        "dask": "on Dask workers, tiles on disk",
    }
    return f"  where       {where[place.execution]}{of_processes(place)}"


def tiles_line(tiling: Tiling, form: Form, problem: Problem) -> str:
    """Tiles of a factorisation and its tasks."""
    n_tiles = -(-problem.side(form) // tiling.tile)
    by = f", {tiling.columns_per_task} tile columns a task" if tiling.columns_per_task else ""
    n_tasks = sum(1 for _ in tile_steps(n_tiles, tiling.columns_per_task))
    return (
        f"  tiles       {tiling.tile:,} × {tiling.tile:,} in panels of {tiling.panel}{by}; "
        f"{n_tiles} a side, {n_tasks} tasks"
    )


def tile_reasons(problem: Problem) -> list[str]:
    """Why the tiles on disk have their size."""
    if problem.layout is not None:
        return []
    if problem.tile is not None:
        return [f"tile={problem.tile} was asked for"]
    return ["larger tiles read less, smaller ones keep the workers evenly busy: this size is fastest of both"]


def _check_tile(problem: Problem) -> None:
    """Refuse tiles so small that the scheduler would drown in tasks, in the form that has fewer of them.

    Raises
    ------
    InputError
        Naming the smallest tile that is possible.
    """
    sides: dict[Form, int] = {"dual": problem.n, "primal": problem.dimension or problem.n}
    n = min(sides.values()) if problem.form is None else sides[problem.form]
    if problem.tile is not None and -(-n // problem.tile) > MAX_TILES_PER_SIDE:
        raise InputError(
            f"tile={problem.tile} would cut a matrix of {n:,} rows into {-(-n // problem.tile):,} tiles a side; the "
            f"most is {MAX_TILES_PER_SIDE}. Give tile={-(-n // MAX_TILES_PER_SIDE)} or more, or None. Nothing was "
            f"computed"
        )


class TileChoice(NamedTuple):
    """A place, the rates there, and how the matrix is cut."""

    resources: Resources
    place: Place
    grid: TileGrid
    columns_per_task: int

    @property
    def tiling(self) -> Tiling:
        """Cut of the matrix."""
        return Tiling(self.grid.tile, self.grid.panel, self.columns_per_task)


def tile_choices(problem: Problem, resources: Resources, form: Form) -> list[TileChoice]:
    """Places times tile sizes times tile columns per task."""
    p, r = problem, resources
    _check_tile(p)
    places = [] if r.confined else [r.on_workers()]
    if not r.cluster_is_running and not r.confined:
        places += [r.on_workers(w) for w in range(r.n_workers - 1, 0, -1)]
    # One task at a time, with all of BLAS's threads.
    serial = replace(r, rates=r.rates.faster(1.0 + THREAD_EFFICIENCY * (r.local_threads - 1)))
    if r.confined or (p.wants_tiles and not r.cluster_is_running):
        here = r.in_caller("serial", 1)
        places.append(replace(here, baseline_bytes=here.baseline_bytes + r.local_threads * BYTES_PER_THREAD))
    return [
        TileChoice(serial if place.execution == "serial" else r, place, grid, columns)
        for place in places
        for grid in _grids(p, p.side(form))
        for columns in _columns_per_task(p, place, grid)
    ]


def tile_grid(n: int, tile: int) -> TileGrid:
    """Grid of about this tile size that cuts n evenly, in panels of about PANEL_COLUMNS."""
    n_tiles = -(-n // min(tile, n))
    rows = -(-n // n_tiles)
    panels = max(1, round(rows / PANEL_COLUMNS))
    panel = -(-rows // panels)
    if panel > 8:
        panel = -(-panel // 8) * 8
    return TileGrid(n, panel * panels, panel)


def fixed_grid(n: int, tile: int) -> TileGrid:
    """Grid of exactly this tile size; panels of the largest divisor up to PANEL_COLUMNS, if that is not tiny."""
    tile = min(tile, n)
    panel = max((p for p in range(1, min(tile, PANEL_COLUMNS) + 1) if tile % p == 0), default=tile)
    return TileGrid(n, tile, panel if panel >= min(tile, 64) else tile)


def _grids(problem: Problem, n: int) -> list[TileGrid]:
    if problem.layout is not None:
        return [TileGrid(n, problem.layout.tile, problem.layout.panel)]
    if problem.tile is not None:
        return [fixed_grid(n, problem.tile)]
    grids = {tile_grid(n, tile) for tile in TILE_SIZES}
    return sorted((g for g in grids if g.n_tiles <= MAX_TILES_PER_SIDE), key=lambda g: g.tile)


def _columns_per_task(problem: Problem, place: Place, grid: TileGrid) -> list[int]:
    if problem.layout is not None:
        return [problem.layout.columns_per_task]
    if place.slots == 1:
        return [0]
    n_tiles = grid.n_tiles
    return [0] + [s for s in TASK_COLUMNS if s < n_tiles - 1 and n_tiles**3 / 6 <= s * MAX_TASKS]


def dual_in_memory(p: Problem, resources: Resources) -> Direct:
    """Lower triangle of the Gram matrix in the calling process; beside its factor where forming it again takes long."""
    kept = _dual_in_memory(p, resources, keeps=True)
    if p.n <= ONE_TILE:
        return kept
    again = _dual_in_memory(p, resources, keeps=False)
    pays = kept.seconds < KEPT_TIME_FRACTION * again.seconds and kept.peak_bytes <= kept.limit_bytes
    return kept if pays else again


def _dual_in_memory(p: Problem, resources: Resources, *, keeps: bool) -> Direct:
    # One right-hand side more is the probe of the condition number.
    grid, m, threads = memory_grid(p.n), p.n_right_sides + 1, resources.local_threads
    peak = gram_in_memory_bytes(p, resources, keeps=keeps)
    solving = resources.rates.seconds(memory_cost(grid, m, len(p.alphas), keeps=keeps), threads)
    return Direct(
        form="dual",
        place=resources.in_caller("memory", threads),
        stages=(
            *gram_in_memory_stages(p, resources, peak, 1 if keeps else 1 + len(p.alphas)),
            Stage("factorisation", solving, peak_bytes=peak),
            Stage("true residual", 0.0),
        ),
        tiling=Tiling(grid.tile, grid.panel),
        row_block=p.n,
        keeps_matrix=keeps,
    )


def gram_in_memory_bytes(p: Problem, resources: Resources, *, keeps: bool) -> int:
    """Memory of the calling process with a factor of the Gram matrix in it, and perhaps the matrix beside it."""
    grid, m, threads = memory_grid(p.n), p.n_right_sides + 1, resources.local_threads
    is_one = grid.n_tiles == 1
    return (
        resources.local_baseline_bytes
        + _loaded_bytes(p)
        + memory_bytes(grid, keeps=keeps)
        + 5 * 8 * p.n * m
        + (1 if is_one else threads) * _memory_task_bytes(p, grid, m, keeps=keeps)
        + threads * (BYTES_PER_THREAD if is_one else min(BYTES_PER_THREAD, TILE_BUFFER_BYTES + 4096 * m))
        + PROCESS_MARGIN_BYTES
    )


def _memory_task_bytes(p: Problem, grid: TileGrid, m: int, *, keeps: bool) -> int:
    """Most memory of one thread besides tiles that stay: to form one, or to multiply by it at the check."""
    part, csr_bytes = p.bytes_of_part(grid.tile), p.csr_bytes(min(grid.tile, KERNEL_BLOCK))
    form = gram_workspace_bytes(p.kernel, grid.tile, part, p.d, csr_bytes)
    if keeps:
        return form
    if uses_symmetry(grid, m):
        # Each group has a sum, which waits to be added.
        return max(form, multiply_bytes(p.kernel, p.n, grid.tile, p.d, part, m, is_sparse=p.is_sparse))
    return form + 8 * grid.tile**2 + 8 * 8 * grid.tile * m


def gram_in_memory_stages(p: Problem, resources: Resources, peak_bytes: int, n_times: int) -> tuple[Stage, ...]:
    """Reading X into memory, and forming the Gram matrix there so many times."""
    reading, threads = rates_of_rows(p, resources, 1, peak_bytes, on_workers=False), resources.local_threads
    formed = gram_cost(p.entry(resources.rates), p.n * (p.n + 1) / 2 * n_times)
    if memory_grid(p.n).n_tiles > 1:  # by threads
        formed = replace(formed, element_seconds=formed.element_seconds / threads)
    return (
        Stage("reading X", _loaded_bytes(p) / reading.read_bytes, checked_bytes(p)),
        Stage("Gram matrix", resources.rates.seconds(formed, threads), peak_bytes=peak_bytes),
        *symmetry_stages(p),
    )


def _loaded_bytes(p: Problem) -> int:
    return 0 if p.x_in_memory else p.stored_bytes + p.read_overhead_bytes


def primal_in_memory(p: Problem, resources: Resources) -> Direct:
    """The whole normal matrix in the calling process, the rows streamed through it."""
    dimension, threads = p.side("primal"), resources.local_threads
    block = rows_at_once(p, dimension)
    large = float(p.n) * dimension**2 >= PARALLEL_FLOPS
    parts = min(threads, p.n) if large and dimension <= PARALLEL_FEATURES else 1
    cost = normal_cost(p.n, p.bytes_of_row, dimension, p.n_targets, 1, feature_seconds(p), centred=p.fit_intercept)
    # No tasks here, and nothing to read if the rows are in memory already.
    cost = replace(cost, n_tasks=0, read_bytes=0.0 if p.x_in_memory else cost.read_bytes)
    peak = _whole_normal_bytes(p, resources, parts, block)
    rates = rates_of_rows(p, resources, 1, peak, on_workers=False)
    # Parts of the rows share everything among the cores, BLAS's threads the products only.
    forming = rates.seconds(cost) / parts if parts > 1 else rates.seconds(cost, threads)
    grid = memory_grid(dimension)
    solving = rates.seconds(memory_cost(grid, p.n_targets + 1, len(p.alphas), keeps=True), threads)
    targets = mapped_target_stage(p, resources, 1, peak)
    if not p.y_is_mapped:
        targets = targets.plus(p.y_bytes / rates.fresh_bytes)
    return Direct(
        form="primal",
        place=resources.in_caller("memory", threads),
        stages=(
            Stage("normal matrix", forming, cost.read_bytes, peak_bytes=peak),
            targets,
            Stage("factorisation", solving, peak_bytes=peak),
            *unpriced_stages(p),
        ),
        tiling=Tiling(grid.tile, grid.panel),
        row_parts=parts,
        row_block=block,
        keeps_matrix=True,
    )


def _whole_normal_bytes(p: Problem, resources: Resources, parts: int, block: int) -> int:
    """Memory of the calling process with the normal matrix in it, and one more for every other part of the rows."""
    dimension = p.side("primal")
    rows = parts * block * (2 * 8 * dimension + 2 * p.most_bytes_of_row + TARGET_COPIES * 8 * p.n_targets)
    grid = memory_grid(dimension)
    one = memory_bytes(grid, keeps=False) + 8 * dimension * p.n_targets
    rows += (parts - 1) * (one + p.read_overhead_bytes + feature_bytes(p))
    return (
        resources.local_baseline_bytes
        + memory_bytes(grid, keeps=True)
        + 5 * 8 * dimension * (p.n_targets + 1)
        + rows
        + feature_bytes(p)
        + p.y_bytes_to_come
        + p.read_overhead_bytes
        + resources.local_threads * BYTES_PER_THREAD
        + PROCESS_MARGIN_BYTES
    )


def dual_tiled(p: Problem, systems: Systems, choice: TileChoice) -> Direct:
    """Tiled Cholesky of K + λW⁻¹; K is computed tile by tile where it is used."""
    resources, place, grid, columns = choice
    rates, m = resources.rates, systems.n_right_sides + 1  # one more is the probe of the condition number
    entry = p.entry(rates)
    peak = dual_tiled_bytes(p, place, grid, m)
    form_seconds = rates.seconds(gram_cost(entry, float(grid.tile**2)))
    factor, solve = system_seconds(choice, m, peak, form_seconds)
    # The substitution reads L once, two tasks at a time; the residual forms K once more.
    back = solve / min(2, place.slots) + grid.n_tiles * rates.chain_seconds
    mirrored = uses_symmetry(grid, m)
    check = rates.seconds(pass_cost(entry, p.n**2 / (2 if mirrored else 1), m, "float64", 0.0))
    check /= min(place.slots, grid.n_tiles)
    # Every tile reads the rows of X of its row and its column (once on the diagonal), at the residual once more, or
    # twice.
    block = grid.tile * p.stored_bytes / p.n
    formed, formed_again = grid.n_tiles**2, grid.n_tiles**2 if mirrored else 2 * grid.n_tiles**2 - grid.n_tiles
    kept = systems.n_stored * (factor_bytes(grid) + 8 * p.n * (4 * m + 2)) + partial_bytes(grid, m, columns)
    one, sides = cholesky_cost(grid, m, columns), substitution_cost(grid, m)
    per_system = (
        Stage("factorisation", factor, one.read_bytes + block * formed, one.written_bytes, kept),
        Stage("substitution", back, sides.read_bytes, sides.written_bytes),
        Stage("true residual", check, block * formed_again),
    )
    return Direct(
        form="dual",
        place=place,
        stages=(
            *sharing_stages(p, place, rates),
            *symmetry_stages(p),
            *(s.times(systems.n_factors, peak) for s in per_system),
        ),
        tiling=choice.tiling,
        row_block=grid.tile,
    )


def dual_tiled_bytes(p: Problem, place: Place, grid: TileGrid, m: int) -> int:
    """Memory of a process that factors K in tiles, with m right-hand sides."""
    row_bytes, csr_bytes = p.bytes_of_part(grid.tile), p.csr_bytes(min(grid.tile, KERNEL_BLOCK))
    form_bytes = gram_workspace_bytes(p.kernel, grid.tile, row_bytes, p.d, csr_bytes) + 2 * p.read_overhead_bytes
    task_bytes = cholesky_task_bytes(grid, m, form_bytes)
    if p.is_sparse and uses_symmetry(grid, m):
        # The residual forms no tile, but keeps a transposed panel for every square on the diagonal.
        product = multiply_bytes(p.kernel, p.n, grid.tile, p.d, row_bytes, m, is_sparse=True)
        task_bytes = max(task_bytes, product + 2 * p.read_overhead_bytes)
    return place.baseline_bytes + place.threads * task_bytes + PROCESS_MARGIN_BYTES


def primal_tiled(p: Problem, systems: Systems, choice: TileChoice) -> Direct:
    """Normal matrix in tiles, formed by segments of rows, then the tiled Cholesky of it."""
    resources, place, grid, columns = choice
    rates, t = resources.rates, p.n_targets + 1  # with the probe of the condition number
    row_parts, block = _row_parts(p, place, grid), rows_at_once(p, min(grid.tile, grid.n))
    forming = normal_cost(p.n, p.bytes_of_row, grid.n, t, grid.n_tiles, feature_seconds(p), centred=p.fit_intercept)
    peak = _primal_tiled_bytes(p, place, grid, t, row_parts, block)
    reading = rates_of_rows(p, resources, place.n_workers, peak, on_workers=place.execution == "dask")
    one = factor_bytes(grid)
    sum_seconds = 8.0 * grid.tile**2 * row_parts / rates.read_bytes
    factor, solve = system_seconds(choice, t, peak, sum_seconds)
    peak += p.y_bytes_to_come if place.execution != "dask" else 0
    mapped = mapped_target_stage(p, resources, place.n_workers, peak)
    # Targets are copied to the store and read by every tile of the diagonal and at the check, errors go there and back.
    read, written, summed = p.y_bytes * (grid.n_tiles + 2), 2 * p.y_bytes, row_parts * one
    targets = mapped.plus(read / rates.read_bytes + written / rates.write_bytes, read, written, written)
    form = reading.seconds(forming) / place.slots
    cost, sides = cholesky_cost(grid, t, columns), substitution_cost(grid, t)
    kept = systems.n_stored * (one + 8 * grid.n * (4 * t + 2)) + partial_bytes(grid, t, columns)
    factored = Stage("factorisation", factor, cost.read_bytes + summed, cost.written_bytes, kept)
    substituted = Stage("substitution", solve, sides.read_bytes, sides.written_bytes)
    return Direct(
        form="primal",
        place=place,
        stages=(
            *sharing_stages(p, place, rates),
            targets,
            Stage("normal matrix", form, forming.read_bytes, summed, summed + 8 * p.n, peak),
            factored.times(systems.n_factors, peak),
            substituted.times(systems.n_factors, peak),
            Stage("diagonal", 0.0),
            *unpriced_stages(p),
        ),
        tiling=choice.tiling,
        row_parts=row_parts,
        row_block=block,
    )


def _row_parts(p: Problem, place: Place, grid: TileGrid) -> int:
    """As many parts of the rows as keep every worker busy; several tiles do that already."""
    if p.layout is not None:
        return p.layout.row_parts
    n_lower = grid.n_tiles * (grid.n_tiles + 1) // 2
    return max(1, min(place.slots * 2 // n_lower if n_lower < 2 * place.slots else 1, p.n))


def _primal_tiled_bytes(p: Problem, place: Place, grid: TileGrid, t: int, row_parts: int, block: int) -> int:
    """Memory of a process that forms and factors a normal matrix in tiles, without targets that it holds."""
    rows = block * (4 * 8 * grid.tile + 2 * p.most_bytes_of_row + TARGET_COPIES * 8 * t) + 8 * grid.tile * t
    # The check of the residual holds all of Φ for a block of rows, and the coefficients and their gradient.
    check = block * (2 * 8 * grid.n + p.most_bytes_of_row + TARGET_COPIES * 8 * t) + 3 * 8 * grid.n * t
    forming = 8 * grid.tile**2 + max(rows, check) + p.read_overhead_bytes + 8 * grid.tile * grid.panel
    extra_tile = 8 * grid.tile**2 if row_parts > 1 else 0
    solving = cholesky_task_bytes(grid, t, extra_tile + 8 * grid.tile * grid.panel)
    return place.baseline_bytes + place.threads * (max(forming, solving) + feature_bytes(p)) + PROCESS_MARGIN_BYTES


def sharing_stages(p: Problem, place: Place, rates: Rates) -> tuple[Stage, Stage, Stage]:
    """What comes before the work: workers start, X is checked, and copied unless they can read it."""
    staged = 0 if place.is_memory or p.x_is_shared else p.stored_bytes
    return (
        Stage("starting workers", place.start_seconds),
        Stage("checking X", 0.0, 0 if place.is_memory else checked_bytes(p)),
        Stage("copying X", 2 * staged / rates.write_bytes, 0.0, staged, staged),
    )


def symmetry_stages(p: Problem) -> tuple[Stage, ...]:
    """Comparing a precomputed matrix with its mirror image, next to whose other work that takes no time."""
    return (Stage("checking symmetry", 0.0),) if p.kernel.is_precomputed else ()


def unpriced_stages(p: Problem) -> tuple[Stage, ...]:
    """Passes over the rows that take no time next to those which form the normal matrix."""
    means = (Stage("feature means", 0.0),) if p.fit_intercept else ()
    return (*means, Stage("training errors", 0.0))


def system_seconds(choice: TileChoice, m: int, peak_bytes: float, form_seconds: float) -> tuple[float, float]:
    """Time of the tiled factorisation of one system, and that of one substitution with its factor.

    Parameters
    ----------
    choice : TileChoice
    m : int
        Right-hand sides.
    peak_bytes : float
        Memory of every process, which the system's cache of files does not have.
    form_seconds : float
        Time to form one full tile of the matrix.
    """
    resources, place, grid, columns = choice
    rates, cache = resources.rates, cache_bytes(resources, place, peak_bytes)
    read = cholesky_cost(grid, m, columns).read_bytes
    cold = cold_cholesky_bytes(grid, cache, columns) / read if read else 0.0
    factor = factorisation_seconds(grid, columns, place.slots, rates.reading(cold), form_seconds)
    reading = rates.reading(cold_fraction(factor_bytes(grid), cache))
    return factor, reading.seconds(substitution_cost(grid, m))


def mapped_target_stage(p: Problem, resources: Resources, n_workers: int, peak_bytes: float) -> Stage:
    """Passes over targets in a mapped file, and over the dual coefficients in another.

    Parameters
    ----------
    p : Problem
    resources : Resources
    n_workers : int
    peak_bytes : float
        Memory of every process, which the system's cache of files does not have.
    """
    if not p.y_is_mapped:
        return Stage("targets", 0.0)
    cache = resources.cache_bytes(n_workers, peak_bytes, on_workers=n_workers > 1)
    rates = resources.rates.reading(cold_fraction(2 * p.y_bytes, cache))
    read = float(TARGET_PASSES * p.y_bytes)
    return Stage("targets", read / rates.read_bytes + p.y_bytes / rates.write_bytes, read, p.y_bytes, p.y_bytes)


def cache_bytes(resources: Resources, place: Place, peak_bytes: float) -> float:
    """Memory that is left for the system's cache of files while work is done in a place."""
    return resources.cache_bytes(place.n_workers, peak_bytes, on_workers=place.execution == "dask")


def rates_of_rows(p: Problem, resources: Resources, n_workers: int, peak_bytes: float, *, on_workers: bool) -> Rates:
    """Rates with which X is read where it is stored, which may be larger than the system's cache of files."""
    cache = resources.cache_bytes(n_workers, peak_bytes, on_workers=on_workers)
    return resources.rates.reading(cold_fraction(p.stored_bytes, cache))


def checked_bytes(problem: Problem) -> int:
    """Bytes that the check for NaN reads before the work, where X is in a store."""
    return 0 if problem.x_in_memory else problem.stored_bytes


def rows_at_once(p: Problem, n_columns: int) -> int:
    """Rows of Φ in memory at once, for tasks that use so many of its columns."""
    return row_block(p.n, p.most_bytes_of_row, p.n_targets, n_columns)


def feature_bytes(problem: Problem) -> int:
    """Arrays of the feature map and temporaries of its calls."""
    return 0 if problem.feature_map is None else problem.feature_map.held_bytes(problem.d)


def feature_seconds(problem: Problem) -> float:
    """Elementwise work of the feature map for one entry of Φ."""
    return 0.0 if problem.feature_map is None else problem.feature_map.entry_seconds(problem.d)
