"""The tiled Cholesky on more workers than there are here: a simulation, checked against real runs.

``python -m benchmarks.wide --help`` lists the commands. Every command prints lines of JSON on stdout and tables on
stderr. What the simulation leaves out is said in ``docs/results/wide-clusters.md``.
"""

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Self
from unittest import mock

import click
from rich.console import Console
from rich.table import Table

from benchmarks.clusters import SimulatedRun, WideCluster, promised_seconds, simulate_factorisation
from benchmarks.machine import describe_machine
from benchmarks.simulation import Queue, TaskCosts, formed_entries, step_bytes, step_flops
from benchmarks.solve import Settings, fit_dkrr, stage_times, write_line
from dkrr.checks import parse_bytes
from dkrr.cluster import TaskRecord
from dkrr.errors import DkrrError
from dkrr.fitting.costs.tile_costs import tile_grid
from dkrr.kernels import RBF
from dkrr.linalg.cholesky import cholesky_task_bytes, cholesky_work, factor_bytes, partial_bytes, tile_steps
from dkrr.linalg.square import gram_workspace_bytes
from dkrr.linalg.substitution import substitution_places
from dkrr.planning.explain import EQUAL_TIME
from dkrr.planning.resources import PROCESS_MARGIN_BYTES, WORKER_BASELINE_BYTES, Rates
from dkrr.store import TileGrid
from dkrr.text import format_bytes, format_seconds

D = 16
"""Columns of X: as in the other benchmarks. They weigh little beside n³."""
TILES = (256, 384, 512, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 8192, 10240, 12288, 16384, 20480)
"""Tile sizes that `answer` compares."""
TASK_COLUMNS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24)
"""Tile columns to a task that it compares; 0 means all."""
SHORTLIST = 4
"""Pairs of the two that it simulates, of those whose closed formula promises most."""
USABLE_FRACTION = 0.70
"""Fraction of the memory of a user's worker that a plan may use (Dask pauses a worker at 0.80)."""
MAX_TASKS = 250_000
"""In one factorisation: four minutes of Dask's scheduler, and some 500 MB of the driver's memory."""
STORE_ROWS = 3
"""Numbers of workers, the largest ones, for which stores are compared."""
TROUBLE: dict[str, Any] = {
    "straggler_sigma": 0.2,
    "slow_share": 0.02,
    "slow_factor": 1.5,
    "losses_per_worker_hour": 0.01,
    "replacement_seconds": 120.0,
}
"""Settings of "trouble": tasks 18 % longer on average, one worker in fifty taking 1.5 times as long, each worker lost
once in 100 hours and replaced after two minutes. Assumptions, not measurements."""
WEAK_RULES = {"n³ / workers": 1 / 3, "n² / workers": 1 / 2, "n / workers": 1.0}
"""Quantity that stays constant in weak scaling, and the power of the number of workers with which n then grows."""
_COLOURS = ("#1763a6", "#e8963a", "#3a9e6d", "#8a6fb3", "#c0504d")
_INK, _TEXT, _QUIET, _GRID = "#1f2933", "#52606d", "#8a94a0", "#e6e9ed"


@click.group()
def main() -> None:
    """Simulate the factorisation on wide clusters."""


_json_option = click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Append the lines here too."
)


# Real runs and what their tasks cost.


@main.command()
@click.option("--n", "sizes", type=int, multiple=True, default=(8192, 16384), show_default=True)
@click.option("--d", type=int, default=D, show_default=True)
@click.option("--workers", type=int, multiple=True, default=(1, 2), show_default=True)
@click.option("--tile", type=int, help="Default: what the planner chooses for the most workers.")
@click.option(
    "--columns-per-task", type=click.IntRange(min=0), help="Tile columns to a task, 0 for all. Default as for --tile."
)
@click.option("--memory-limit", default="1GiB", show_default=True, help="Of each worker.")
@click.option("--repeat", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--costs", "costs_path", type=click.Path(dir_okay=False, path_type=Path), help="Save what was fitted.")
@_json_option
def reproduce(
    sizes: tuple[int, ...],
    d: int,
    workers: tuple[int, ...],
    tile: int | None,
    columns_per_task: int | None,
    memory_limit: str,
    repeat: int,
    costs_path: Path | None,
    json_path: Path | None,
) -> None:
    """Fit for real, then simulate with the costs of the one-worker run, and with those of the same run."""
    if costs_path is not None and 1 not in workers:
        raise click.ClickException("costs are those of a run with one worker: add --workers 1")
    table = _table(
        "simulated / measured",
        (
            "n",
            "workers",
            "tile, columns_per_task",
            "factorisation",
            "by 1 worker's costs",
            "by its own",
            "whole fit",
            "ratio",
            "",
        ),
    )
    costs: TaskCosts | None = None
    for n in sizes:
        layout = tile, columns_per_task
        for _ in range(repeat):
            runs: list[Run] = []
            # The most workers first: their plan is the hardest to change.
            for k in sorted(set(workers), reverse=True):
                runs.append(measured_run(n, d, k, layout, memory_limit))
                layout = runs[-1].grid.tile, runs[-1].columns_per_task
            one = runs[-1] if runs[-1].workers == 1 else None
            costs = costs if one is None else one.costs
            for run in reversed(runs):
                record = compare(run, one)
                write_line({"benchmark": "wide.reproduce", **record, "machine": describe_machine()}, json_path)
                table.add_row(*_comparison_row(record))
    _console().print(table)
    if costs_path is not None and costs is not None:
        costs_path.parent.mkdir(parents=True, exist_ok=True)
        known = {"costs": asdict(costs), "n": sizes[-1], "d": d, "machine": describe_machine()}
        costs_path.write_text(json.dumps(known, indent=2) + "\n")


@dataclass(frozen=True)
class Run:
    """Real fit, as far as it is simulated."""

    n: int
    workers: int
    grid: TileGrid
    columns_per_task: int
    seconds: float
    stages: dict[str, dict[str, float]]
    costs: TaskCosts
    noisy: bool


def measured_run(n: int, d: int, workers: int, layout: tuple[int | None, int | None], memory_limit: str) -> Run:
    """Fit on running workers with one thread each; `layout`: tile and tile columns per task, None for the planner's."""
    tile, columns_per_task = layout
    settings = Settings(
        n=n,
        d=d,
        tile=tile,
        workers=workers,
        memory_limit=str(parse_bytes(memory_limit) * workers),
        client=True,
        force_workers=True,
        peers=(),
    )
    fixed = mock.patch("dkrr.fitting.costs.tile_costs.task_columns", return_value=[columns_per_task])
    try:
        with nullcontext() if columns_per_task is None else fixed:
            fit, _ = fit_dkrr(settings)
    except DkrrError as error:
        raise click.ClickException(str(error)) from error
    cut = fit.plan.chosen.layout()
    grid = TileGrid(n, cut["tile"], cut["panel"])
    stages = stage_times(fit.tasks, workers, fit.started)
    costs = fitted_costs(fit.tasks, grid, cut["columns_per_task"])
    return Run(n, workers, grid, cut["columns_per_task"], fit.seconds, stages, costs, fit.load.noisy)


def fitted_costs(tasks: Sequence[TaskRecord], grid: TileGrid, columns_per_task: int) -> TaskCosts:
    """Rates at which the tasks of a run did each kind of work.

    Parameters
    ----------
    tasks : sequence of TaskRecord
        Others than those of the factorisation are passed over.
    grid : TileGrid
    columns_per_task : int
    """
    steps = {step.key: step for step in tile_steps(grid.n_tiles, columns_per_task)}
    done = [task for task in tasks if task.key in steps]
    if grid.n_tiles < 3:
        raise click.ClickException("a matrix of less than three tiles a side does not show what every kind costs")
    spent: dict[str, float] = defaultdict(float)
    for task in done:
        for kind, seconds in task.seconds_by_kind.items():
            spent[kind] += seconds
    kinds = ("gemm", "syrk", "trsm", "potrf", "read", "write", "gram")
    rest = sum(task.seconds for task in done) - sum(spent[kind] for kind in kinds)
    flops = [sum(column) for column in zip(*(step_flops(steps[t.key], grid) for t in done), strict=True)]
    moved = [sum(column) for column in zip(*(step_bytes(steps[t.key], grid) for t in done), strict=True)]
    gemm, syrk, trsm, potrf, read, write = (
        amount / max(spent[kind], 1e-9) for amount, kind in zip([*flops, *moved], kinds, strict=False)
    )
    return TaskCosts(
        gemm_flops=gemm,
        syrk_flops=syrk,
        trsm_flops=trsm,
        potrf_flops=potrf,
        read_bytes=read,
        write_bytes=write,
        entry_seconds=spent["gram"] / sum(formed_entries(steps[t.key], grid) for t in done),
        task_seconds=max(0.0, rest) / len(done) + _gap_seconds(done),
    )


def _gap_seconds(tasks: Iterable[TaskRecord]) -> float:
    """Median time between two tasks of a worker: the few gaps that are waits for another task do not count."""
    by_worker: dict[str, list[TaskRecord]] = defaultdict(list)
    for task in tasks:
        by_worker[task.worker].append(task)
    gaps = []
    for members in by_worker.values():
        members.sort(key=lambda t: t.start)
        gaps += [after.start - before.start - before.seconds for before, after in pairwise(members)]
    return max(0.0, statistics.median(gaps)) if gaps else 0.0


def compare(run: Run, one: Run | None) -> dict[str, Any]:
    """Simulated beside measured seconds: with the costs of a one-worker run (if there is one) and of the run itself.

    What is not factorisation is not simulated: the busy time of those stages with one worker is divided by the workers
    (the substitution by those that its chain can use), and the time between stages is taken as it was there.
    """
    cluster = WideCluster(run.workers)
    own = simulate_factorisation(run.grid, run.columns_per_task, run.costs, cluster)
    measured = run.stages["factorisation"]["seconds"]
    record: dict[str, Any] = {
        "n": run.n,
        "workers": run.workers,
        "tile": run.grid.tile,
        "columns_per_task": run.columns_per_task,
        "tasks": len(own.work),
        "factorisation_seconds": measured,
        "seconds": run.seconds,
        "busy_seconds": run.stages["factorisation"]["busy"],
        "own_costs": {"seconds": own.seconds, "ratio": own.seconds / measured, "busy_seconds": own.busy_seconds},
        "costs": asdict(run.costs),
        "noisy": run.noisy,
    }
    if one is not None:
        other = simulate_factorisation(run.grid, run.columns_per_task, one.costs, cluster)
        rest = one.seconds
        for stage, times in one.stages.items():
            rest -= times["seconds"]
            if stage != "factorisation":
                in_chain = substitution_places(one.grid)
                rest += times["busy"] / (min(in_chain, run.workers) if stage == "substitution" else run.workers)
        record["one_worker_costs"] = {
            "seconds": other.seconds,
            "ratio": other.seconds / measured,
            "whole_seconds": other.seconds + rest,
            "whole_ratio": (other.seconds + rest) / run.seconds,
        }
    return record


def _comparison_row(record: dict[str, Any]) -> list[str]:
    one = record.get("one_worker_costs")
    return [
        f"{record['n']:,}",
        str(record["workers"]),
        f"{record['tile']:,}, {record['columns_per_task'] or 'all'}",
        format_seconds(record["factorisation_seconds"]),
        f"{one['ratio']:.2f}" if one else "–",
        f"{record['own_costs']['ratio']:.2f}",
        format_seconds(record["seconds"]),
        f"{one['whole_ratio']:.2f}" if one else "–",
        "NOISY" if record["noisy"] else "",
    ]


# What a wide cluster would do.


@dataclass(frozen=True)
class Setting:
    """A cluster and what its tasks cost."""

    costs: TaskCosts
    worker_bytes: int
    max_tasks: int
    queue: Queue = WideCluster.queue
    store_read_bytes: float = math.inf
    store_write_bytes: float = math.inf

    def cluster(self, workers: int) -> WideCluster:
        """Workers of one core on this store, without trouble."""
        return WideCluster(
            workers,
            queue=self.queue,
            store_read_bytes=self.store_read_bytes,
            store_write_bytes=self.store_write_bytes,
        )


@dataclass(frozen=True)
class Best:
    """Partition of the matrix and its simulated result, without the times of single tasks, of 50 MB and more."""

    grid: TileGrid
    columns_per_task: int
    cluster: WideCluster
    seconds: float
    efficiency: float
    tasks: int
    read_bytes: float
    written_bytes: float
    read_rate: float
    peak_read_rate: float
    write_rate: float
    peak_write_rate: float

    @classmethod
    def of(cls, grid: TileGrid, columns_per_task: int, costs: TaskCosts, cluster: WideCluster) -> Self:
        """Simulate it."""
        o = simulate_factorisation(grid, columns_per_task, costs, cluster)
        return cls(
            grid,
            columns_per_task,
            cluster,
            seconds=o.seconds,
            efficiency=o.efficiency,
            tasks=len(o.work),
            read_bytes=o.read_bytes,
            written_bytes=o.written_bytes,
            read_rate=o.mean_read_rate,
            peak_read_rate=o.peak_read_rate,
            write_rate=o.mean_write_rate,
            peak_write_rate=o.peak_write_rate,
        )

    @property
    def core_hours(self) -> float:
        """Hours of all cores, busy or idle, over the whole run."""
        return self.cluster.slots * self.seconds / 3600

    @property
    def disk_bytes(self) -> int:
        """Bytes of the factor and of the sums between parts, which are kept until the end."""
        return factor_bytes(self.grid) + partial_bytes(self.grid, self.columns_per_task)

    def in_trouble(self, costs: TaskCosts) -> SimulatedRun:
        """Simulate the same with stragglers and lost workers."""
        return simulate_factorisation(self.grid, self.columns_per_task, costs, replace(self.cluster, **TROUBLE))


def task_peak_bytes(grid: TileGrid) -> int:
    """Memory of a worker with one thread, by the planner's formula."""
    form = gram_workspace_bytes(RBF(gamma=1 / D), grid.tile, 8 * D, D)
    return WORKER_BASELINE_BYTES + PROCESS_MARGIN_BYTES + cholesky_task_bytes(grid, 1, form)


def layouts(n: int, setting: Setting, parts: Sequence[int]) -> list[tuple[TileGrid, int]]:
    usable = int(USABLE_FRACTION * setting.worker_bytes)
    grids = {tile_grid(n, tile) for tile in TILES}
    return [
        (grid, columns_per_task)
        for grid in sorted(grids, key=lambda g: g.tile)
        if task_peak_bytes(grid) <= usable
        # Before the exact number is counted: the parts alone are about N³ / 6s tasks.
        and grid.n_tiles**2 / 2 <= setting.max_tasks
        for columns_per_task in parts
        if columns_per_task < max(1, grid.n_tiles - 1)
        and cholesky_work(grid, columns_per_task).n_tasks <= setting.max_tasks
    ]


@lru_cache(maxsize=4096)
def best(n: int, workers: int, setting: Setting, parts: tuple[int, ...] = TASK_COLUMNS) -> Best:
    """Best of the tile sizes and parts: a closed formula makes the shortlist, the simulation decides."""
    cluster = setting.cluster(workers)

    def promise(layout: tuple[TileGrid, int]) -> float:
        return promised_seconds(*layout, setting.costs, cluster)

    shortlist = sorted(layouts(n, setting, parts), key=promise)[:SHORTLIST]
    if not shortlist:
        raise click.ClickException(f"n = {n:,} has no tile that fits in {format_bytes(setting.worker_bytes)} a worker")
    found = [Best.of(g, s, setting.costs, cluster) for g, s in shortlist]
    fastest = min(b.seconds for b in found)
    # The planner's rule: of those about as fast the one that needs least disk.
    return min((b for b in found if b.seconds <= EQUAL_TIME * fastest), key=lambda b: b.disk_bytes)


def describe(n: int, workers: int, setting: Setting, price: float) -> dict[str, Any]:
    """Values of JSON for the best way with and without parts, and the former in trouble."""
    found, whole = best(n, workers, setting), best(n, workers, setting, (0,))
    trouble = found.in_trouble(setting.costs)
    layout = {"tile": found.grid.tile, "n_tiles": found.grid.n_tiles, "columns_per_task": found.columns_per_task}
    simulated = {
        name: value for name, value in asdict(found).items() if name not in ("grid", "columns_per_task", "cluster")
    }
    return {"n": n, "workers": workers, **layout, **simulated} | {
        "ideal_efficiency": n**3 / 3 / setting.costs.gemm_flops / (workers * found.seconds),
        "disk_bytes": found.disk_bytes,
        "peak_bytes": task_peak_bytes(found.grid),
        "core_hours": found.core_hours,
        "cost": found.core_hours * price,
        "trouble": {
            "seconds": trouble.seconds,
            "efficiency": trouble.efficiency,
            "lost_tasks": trouble.lost_tasks,
            "core_hours": trouble.slots * trouble.seconds / 3600,
        },
        "one_task_per_tile": {
            "tile": whole.grid.tile,
            "seconds": whole.seconds,
            "efficiency": whole.efficiency,
        },
        "parts_pay": whole.seconds / found.seconds,
    }


def _setting_options(command: Any) -> Any:
    for option in (
        click.option("--costs", "costs_path", type=click.Path(exists=True, path_type=Path), help="From `reproduce`."),
        click.option("--worker-memory", default="4GiB", show_default=True, help="Of each worker, which has one core."),
        click.option(
            "--queue",
            type=click.Choice(["submission", "priority"]),
            default=WideCluster.queue,
            show_default=True,
            help="Which of the tasks on Dask's scheduler goes first.",
        ),
        click.option("--max-tasks", type=int, default=MAX_TASKS, show_default=True, help="In one factorisation."),
        _json_option,
    ):
        command = option(command)
    return command


def load_costs(path: Path | None) -> TaskCosts:
    """Costs that `reproduce` saved, or those of the planner's default rates."""
    if path is not None:
        return TaskCosts(**json.loads(path.read_text())["costs"])
    return TaskCosts.of_rates(Rates(), RBF(gamma=1 / D).nominal_seconds(D))


@main.command()
@click.option("--n", "sizes", type=int, multiple=True, default=(100_000, 300_000, 1_000_000), show_default=True)
@click.option("--workers", type=int, multiple=True, default=(8, 16, 32, 64, 128, 256, 512, 1024), show_default=True)
@click.option("--store", "stores", multiple=True, default=("100GB", "50GB", "20GB", "10GB"), show_default=True)
@click.option("--cores-per-store", type=int, help="Number of cores that share one --store; default: all of them.")
@click.option("--write-part", type=float, default=0.5, show_default=True, help="A store's writing over its reading.")
@click.option(
    "--weak-n", type=int, default=200_000, show_default=True, help="Rows at the least workers of weak scaling."
)
@click.option("--weak", type=int, nargs=2, default=(96, 1536), show_default=True, help="Least and most workers there.")
@click.option("--core-hour-price", type=float, default=0.05, show_default=True, help="An assumption, in any currency.")
@_setting_options
def answer(
    sizes: tuple[int, ...],
    workers: tuple[int, ...],
    stores: tuple[str, ...],
    cores_per_store: int | None,
    write_part: float,
    weak_n: int,
    weak: tuple[int, int],
    core_hour_price: float,
    costs_path: Path | None,
    worker_memory: str,
    max_tasks: int,
    queue: Queue,
    json_path: Path | None,
) -> None:
    """Time, efficiency, store bandwidth and cost on wide clusters, with the best tile and columns_per_task of each."""
    setting = Setting(load_costs(costs_path), parse_bytes(worker_memory), max_tasks, queue)
    console = _console()
    for n in sizes:
        table = _table(f"n = {n:,}", _ANSWER_COLUMNS)
        for k in workers:
            record = describe(n, k, setting, core_hour_price)
            write_line({"benchmark": "wide.answer", **record}, json_path)
            table.add_row(*_answer_row(record))
        table.caption = (
            f"GB/s: mean (peak). A core-hour costs {core_hour_price:g} by assumption. "
            f"Over the time in the table: with stragglers and lost workers; with one task a tile"
        )
        console.print(table)
    console.print(_store_table(max(sizes), workers, setting, (stores, cores_per_store, write_part), json_path))
    console.print(_weak_table(weak_n, weak, setting, json_path))


_ANSWER_COLUMNS = (
    "workers",
    "tile",
    "seg.",
    "tasks",
    "time",
    "eff.",
    "GB/s read",
    "written",
    "read",
    "disk",
    "core-h",
    "cost",
    "trouble",
    "lost",
    "a tile",
)


def _answer_row(r: dict[str, Any]) -> list[str]:
    trouble = r["trouble"]
    return [
        f"{r['workers']:,}",
        f"{r['tile']:,}",
        str(r["columns_per_task"] or "all"),
        f"{r['tasks']:,}",
        format_seconds(r["seconds"]),
        f"{r['efficiency']:.2f}",
        f"{r['read_rate'] / 1e9:.1f} ({r['peak_read_rate'] / 1e9:.1f})",
        f"{r['write_rate'] / 1e9:.2f} ({r['peak_write_rate'] / 1e9:.1f})",
        format_bytes(r["read_bytes"]),
        format_bytes(r["disk_bytes"]),
        f"{r['core_hours']:,.1f}",
        f"{r['cost']:,.2f}",
        f"{trouble['seconds'] / r['seconds']:.2f} ×",
        str(trouble["lost_tasks"]),
        f"{r['parts_pay']:.2f} ×",
    ]


def _store_table(
    n: int,
    workers: Sequence[int],
    setting: Setting,
    stores: tuple[tuple[str, ...], int | None, float],
    path: Path | None,
) -> Table:
    """Table of the times with stores of given rates, each with the best layout for it."""
    names, cores, write_part = stores
    table = _table(
        f"n = {n:,}: time over that with an unlimited store (and layout); writing at {write_part:g} of it",
        ("workers", "unlimited", *(f"{name}/s" + (f" for {cores:,} cores" if cores else "") for name in names)),
    )
    for k in sorted(workers)[-STORE_ROWS:]:
        free, row = best(n, k, setting).seconds, list[str]()
        for name in names:
            rate = parse_bytes(name, "store") * (k / cores if cores else 1.0)
            b = best(n, k, replace(setting, store_read_bytes=rate, store_write_bytes=write_part * rate))
            record = {"n": n, "workers": k, "store_read_bytes": rate, "seconds": b.seconds}
            record |= {"tile": b.grid.tile, "columns_per_task": b.columns_per_task, "efficiency": b.efficiency}
            write_line({"benchmark": "wide.store", **record}, path)
            row.append(f"{b.seconds / free:.2f} ({b.grid.tile:,}, {b.columns_per_task or 'all'})")
        table.add_row(f"{k:,}", format_seconds(free), *row)
    return table


def _weak_table(n_first: int, weak: tuple[int, int], setting: Setting, path: Path | None) -> Table:
    """Weak scaling by three rules; You and others (2018) keep n / workers and give T(96) / T(1536) = 0.32 %."""
    first, last = weak
    table = _table(
        f"weak scaling from {first:,} workers",
        ("kept", "workers", "n", "time", "T₀ / T", "the most that n³ allows", "parallel efficiency"),
    )
    start = best(n_first, first, setting)
    for kept, power in WEAK_RULES.items():
        for doubling in range(int(math.log2(last / first)) + 1):
            k = first * 2**doubling
            n = round(n_first * (k / first) ** power)
            o = best(n, k, setting)
            ceiling = (n_first / n) ** 3 * k / first
            record = {
                "kept": kept,
                "workers": k,
                "n": n,
                "seconds": o.seconds,
                "weak_efficiency": start.seconds / o.seconds,
            }
            record |= {"ceiling": ceiling, "efficiency": o.efficiency}
            write_line({"benchmark": "wide.weak", **record}, path)
            shares = (start.seconds / o.seconds, min(1.0, ceiling), o.efficiency)
            table.add_row(
                kept if not doubling else "",
                f"{k:,}",
                f"{n:,}",
                format_seconds(o.seconds),
                *(f"{s:.2%}" for s in shares),
            )
        table.add_section()
    return table


@main.command()
@click.option("--n", "sizes", type=int, multiple=True, default=(100_000, 300_000, 1_000_000), show_default=True)
@click.option("--workers", type=int, multiple=True, default=tuple(2**k for k in range(1, 11)), show_default=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True)
@_setting_options
def draw(
    sizes: tuple[int, ...],
    workers: tuple[int, ...],
    out: Path,
    costs_path: Path | None,
    worker_memory: str,
    max_tasks: int,
    queue: Queue,
    json_path: Path | None,
) -> None:
    """Draw the efficiency over the number of workers, with the best parts and with one task a tile."""
    setting = Setting(load_costs(costs_path), parse_bytes(worker_memory), max_tasks, queue)
    curves = {}
    for n in sizes:
        for name, parts in (("parts", TASK_COLUMNS), ("one task a tile", (0,))):
            values = [best(n, k, setting, parts).efficiency for k in workers]
            curves[n, name] = values
            record = {"n": n, "tasks": name, "workers": workers, "efficiency": values}
            write_line({"benchmark": "wide.draw", **record}, json_path)
    draw_curves(out, workers, curves)
    _console().print(f"picture: {out}")


def draw_curves(path: Path, workers: Sequence[int], curves: dict[tuple[int, str], list[float]]) -> None:
    """Draw a line for every n: solid with parts, dashed without."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), dpi=160, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    sizes = list(dict.fromkeys(n for n, _ in curves))
    for (n, name), values in curves.items():
        axes.plot(
            workers,
            values,
            color=_COLOURS[sizes.index(n) % len(_COLOURS)],
            linestyle="-" if name == "parts" else (0, (3, 2)),
            linewidth=2.2 if name == "parts" else 1.4,
            marker="o",
            markersize=3.5,
            label=f"n = {n:,}, {name}",
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(workers, [f"{k:,}" for k in workers])
    axes.set(ylim=(0, 1.02), xlabel="workers of one core", ylabel="parallel efficiency")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["bottom", "left"]].set_color(_QUIET)
    axes.tick_params(colors=_QUIET, labelcolor=_INK, labelsize=9)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    title = "Tiled Cholesky, simulated: parts keep wide clusters busy"
    axes.set_title(title, loc="left", fontsize=13, fontweight="bold", color=_INK)
    axes.legend(frameon=False, fontsize=9, labelcolor=_TEXT, loc="lower left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _console() -> Console:
    """Terminal for tables; a log file is as wide as they need."""
    console = Console(stderr=True)
    return console if console.is_terminal else Console(stderr=True, width=150)


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


if __name__ == "__main__":
    main()
