"""Speed of forming, factoring and solving a system, beside GEMM, SciPy, scikit-learn and Dask on the same machine.

One command, one line of JSON on stdout for each repetition and a table on stderr::

    python -m benchmarks.solve --n 16384 --d 16 --memory-limit 2GiB --client --timeline output/timeline.png

It fits ``KernelRidge(alpha=1e-2, kernel="rbf", gamma=1/d, form="dual")`` to standard normal rows and y = sin x₀ +
noise, always the same. Every rate counts n³/3 operations, the factorisation's, though the time is that of everything:
Gram matrix, factorisation, substitution, true residual, and all the disk traffic.

Entries of a line, in bytes and seconds:

``ratios``
    Rate of dkrr over a peer's: above 1, dkrr is faster. ``gemm_factorisation_only``: the same for the time from the
    first to the last task of the factorisation, which forms the tiles of the Gram matrix too.
``gemm``
    Sum of the rates of 2048³ float64 products (1024³ where a worker has less than 512 MiB), all workers at once, by the
    routine that dkrr calls. With ``--client`` in the very processes that fitted; else in others like them, right after.
``dkrr.memory``
    Highest resident memory of each process that worked ("caller" for a fit in memory), and of the calling process
    before and during the fit, with the data and the libraries.
``dkrr.store``
    Bytes of tiles read and written, as the tasks counted them; ``_model``: by the formulas of the algorithm; ``_plan``:
    with the rows of X, which the tasks do not count.
``dkrr.stages``
    When each stage began and ended after the start of the fit; busy worker-seconds; idle = seconds × workers − busy.
``dkrr.seconds_by_kind``
    Worker-seconds of each stage: ``read`` is waiting for tiles, ``gram`` the kernel, ``write`` waiting for writes,
    ``other`` the rest of the tasks, ``idle`` between tasks.
``coef_norm``
    ‖α‖₂ of dkrr and of each peer: equal to rounding if all solved the same problem.

With ``--client`` the planner uses 0.70 of the memory of the client's workers, against 0.92 of the memory of its
own process: a tight limit may give another tile; ``--tile`` fixes it. scikit-learn calls the upper variant of POTRF,
which crashes in threaded OpenBLAS 0.3.30 and 0.3.31 from about 16,000 rows on; after a crash it runs again on one
thread. Blocks of the Dask peer are equal: its ``n`` is rounded down to whole ones.
"""

import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import click
import dask
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

import dkrr
from benchmarks.local_client import local_client
from benchmarks.machine import (
    GEMM_SECONDS,
    GemmRate,
    Load,
    LoadMeter,
    count_cores,
    describe_machine,
    measure_gemm_here,
    measure_gemm_on_workers,
)
from benchmarks.peers import ALPHA, KERNELS, PEERS, Problem, run_peers
from dkrr.checks import parse_bytes
from dkrr.cluster import TaskRecord
from dkrr.config import setting
from dkrr.errors import DkrrError
from dkrr.limits import peak_resident_bytes, reset_peak
from dkrr.linalg import TASK_MODULES
from dkrr.planning import Plan
from dkrr.solvers import ConjugateGradient, Float32Cholesky
from dkrr.store import TileGrid
from dkrr.text import format_bytes, format_seconds
from dkrr.typing import KernelName

SOLVERS: dict[str, Literal["auto", "cholesky", "cg"] | ConjugateGradient] = {
    "cholesky": "cholesky",
    "auto": "auto",
    "cg": "cg",
    "float32": ConjugateGradient(Float32Cholesky()),
}
"""KernelRidge's solvers by the name of the option."""
STAGES = {
    "scan": "scan",
    "L": "factorisation",
    "S": "factorisation",
    "forward": "substitution",
    "backward": "substitution",
    "residual": "residual",
    "multiply": "residual",
}
"""Stage of a task by the first word of its key."""

_COLOURS = {
    "diagonal tile": "#e8963a",
    "other tile": "#1763a6",
    "part of a sum": "#7fb2dd",
    "substitution": "#3a9e6d",
    "residual": "#8a6fb3",
    "other": "#8a94a0",
}
_INK, _TEXT, _QUIET, _GRID = "#1f2933", "#52606d", "#8a94a0", "#e6e9ed"


@dataclass(frozen=True)
class Settings:
    """Settings of a measurement."""

    n: int
    d: int = 16
    solver: str = "cholesky"
    """Name in SOLVERS; "auto": the planner chooses, and the record has the true residual."""
    tile: int | None = None
    """None: the planner chooses."""
    workers: int = 2
    """dkrr's worker processes, Dask's, and the BLAS threads of SciPy and scikit-learn."""
    memory_limit: str = "2GiB"
    """Limit of the whole fit, over all workers."""
    kernel: KernelName = "rbf"
    client: bool = False
    """The fit finds running workers; otherwise it starts and stops its own, and the time includes that."""
    force_workers: bool = False
    """Use workers also where the planner would find the problem too small for them."""
    peers: tuple[str, ...] = ("gemm", *PEERS)
    gemm_seconds: float = GEMM_SECONDS
    dask_block: int | None = None
    peer_timeout: float | None = None

    @property
    def problem(self) -> Problem:
        """Problem that all of them solve."""
        return Problem(self.n, self.d, self.kernel)

    @property
    def worker_limit_bytes(self) -> int:
        """Each worker's share of the limit."""
        return parse_bytes(self.memory_limit) // self.workers


@dataclass(frozen=True)
class Fit:
    """Fit by dkrr, measured from outside."""

    model: dkrr.KernelRidge
    started: float
    """Seconds since the epoch."""
    seconds: float
    """Wall time of fit."""
    caller_before_bytes: int
    """Memory of the calling process before the fit, the data included."""
    caller_peak_bytes: int
    load: Load

    @property
    def plan(self) -> Plan:
        """Plan of the fit."""
        plan: Plan = self.model.plan_
        return plan

    @property
    def tasks(self) -> list[TaskRecord]:
        """Tasks in the order of their start; none for a fit in memory."""
        return sorted(self.model.solve_result_.record.tasks, key=lambda task: task.start)

    @property
    def slots(self) -> int:
        """Tasks that could run at once."""
        return self.plan.chosen.n_workers if self.plan.execution == "dask" else 1


def measure(settings: Settings, peers: dict[str, dict[str, Any]] | None = None) -> tuple[dict[str, Any], Fit]:
    """Fit with dkrr, measure GEMM in the same processes, then run the peers.

    Parameters
    ----------
    settings : Settings
    peers : dict, optional
        Records of peers that have run already, on the same problem; they are not run again.

    Returns
    -------
    record : dict
        Values of JSON.
    fit : Fit
    """
    fit, gemm = fit_dkrr(settings)
    gflops = settings.problem.flops / fit.seconds / 1e9
    report: dict[str, Any] = {"gflops": gflops} | describe_fit(fit, settings)
    factorisation = report["stages"].get("factorisation")
    ratios: dict[str, float] = {}
    if gemm is not None:
        ratios["gemm"] = gflops / gemm.gflops
        if factorisation:
            rate = settings.problem.flops / factorisation["seconds"] / 1e9
            ratios["gemm_factorisation_only"] = rate / gemm.gflops
    if peers is None:
        names = [name for name in settings.peers if name != "gemm"]
        peers = run_peers(names, settings.problem, settings.workers, settings.dask_block, settings.peer_timeout)
    ratios |= {name: gflops / peer["gflops"] for name, peer in peers.items() if "gflops" in peer}
    return {
        "benchmark": "solve",
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": asdict(settings),
        "machine": describe_machine(),
        "load": fit.load.to_dict(),
        "dkrr": report,
        "gemm": None if gemm is None else asdict(gemm),
        "peers": peers,
        "ratios": ratios,
    }, fit


def measure_solvers(settings: Settings, solvers: Sequence[str]) -> Iterator[tuple[dict[str, Any], Fit]]:
    """Measure several solvers on one problem, and each peer once: their records have the same figures of the peers."""
    peers = None
    for solver in solvers:
        record, fit = measure(replace(settings, solver=solver), peers)
        peers = record["peers"]
        yield record, fit


def fit_dkrr(settings: Settings) -> tuple[Fit, GemmRate | None]:
    """Fit, and measure GEMM in the same processes (with workers of the fit's own: in others like them, right after)."""
    X, y = settings.problem.data()
    model = dkrr.KernelRidge(
        alpha=ALPHA,
        kernel=settings.kernel,
        gamma=settings.problem.gamma,
        form="dual",
        solver=SOLVERS[settings.solver],
        memory_limit=settings.memory_limit,
        tile=settings.tile,
    )
    with_workers = _workers(settings)
    with with_workers if settings.client else nullcontext() as client:
        with client.as_current() if client else nullcontext(), _planner(settings):
            meter = LoadMeter()
            reset_peak()
            before, started, clock = peak_resident_bytes(), time.time(), time.perf_counter()
            model.fit(X, y)
            seconds = time.perf_counter() - clock
        fit = Fit(model, started, seconds, before, peak_resident_bytes(), meter.stop())
        if "gemm" not in settings.peers:
            return fit, None
        if fit.plan.execution != "dask":
            return fit, measure_gemm_here(seconds=settings.gemm_seconds)
        with nullcontext(client) if client else with_workers as ready:
            return fit, measure_gemm_on_workers(ready, settings.worker_limit_bytes, settings.gemm_seconds)


@contextmanager
def _workers(settings: Settings) -> Iterator[Any]:
    """Workers as dkrr starts them for itself."""
    with (
        tempfile.TemporaryDirectory(prefix="dkrr-benchmark-", dir=setting("temporary-directory")) as scratch,
        local_client(settings.workers, settings.worker_limit_bytes, scratch, TASK_MODULES) as client,
    ):
        yield client


@contextmanager
def _planner(settings: Settings) -> Iterator[None]:
    """The planner with the number of workers set, and perhaps with nothing too small for them."""
    values: dict[str, Any] = {"dkrr.local.workers": settings.workers}
    with ExitStack() as stack:
        if settings.force_workers:
            values["dkrr.rates.cluster-start-seconds"] = 0.0
            stack.enter_context(mock.patch("dkrr.planning.planner.SMALL_SECONDS", 0.0))
            stack.enter_context(mock.patch("dkrr.planning.planner.is_soon_done", return_value=False))
            stack.enter_context(mock.patch("dkrr.fitting.costs.tile_costs.THREAD_EFFICIENCY", 0.0))
        stack.enter_context(dask.config.set(values))
        yield


def describe_fit(fit: Fit, settings: Settings) -> dict[str, Any]:
    """Everything that a fit says about itself, as values of JSON."""
    chosen, result, tasks = fit.plan.chosen, fit.model.solve_result_, fit.tasks
    stages = stage_times(tasks, fit.slots, fit.started)
    first = min((task.start for task in tasks), default=fit.started)
    last = max((task.start + task.seconds for task in tasks), default=fit.started)
    on_tiles = chosen.execution != "memory"
    layout = chosen.layout()
    grid = TileGrid(settings.n, layout["tile"], layout["panel"])
    peaks = result.record.peak_bytes_by_worker if on_tiles else {"caller": result.peak_bytes}
    return {
        "seconds": fit.seconds,
        "projected_seconds": chosen.seconds,
        "status": result.status.name.lower(),
        "residual": float(result.residual),
        "iterations": result.iterations,
        "rank": result.rank,
        "coef_norm": float(np.linalg.norm(fit.model.dual_coef_)),
        "plan": {
            "summary": chosen.summary(),
            "solver": chosen.solver,
            "execution": chosen.execution,
            "n_workers": chosen.n_workers,
            "tile": layout["tile"],
            "panel": layout["panel"],
            "columns_per_task": layout["columns_per_task"],
            "tiles_per_side": grid.n_tiles if on_tiles else 1,
        },
        "memory": {
            "limit_bytes": parse_bytes(settings.memory_limit),
            "limit_bytes_of_process": chosen.limit_bytes,
            "projected_peak_bytes": chosen.peak_bytes,
            "peak_bytes_by_process": peaks,
            "largest_over_projected": max(peaks.values()) / chosen.peak_bytes,
            "caller_before_bytes": fit.caller_before_bytes,
            "caller_peak_bytes": fit.caller_peak_bytes,
        },
        "store": {
            "read_bytes": result.bytes_read,
            "read_bytes_model": chosen.read_bytes,
            "written_bytes": result.bytes_written,
            "written_bytes_model": chosen.written_bytes,
            "written_bytes_plan": chosen.written_bytes,
        },
        "before_first_task_seconds": first - fit.started,
        "after_last_task_seconds": fit.started + fit.seconds - last,
        "stages": stages,
        "seconds_by_kind": seconds_by_kind(tasks, stages),
        "workers": worker_times(tasks),
    }


def stage_times(tasks: Sequence[TaskRecord], slots: int, started: float) -> dict[str, dict[str, float]]:
    """When each stage ran and how busy it kept the workers.

    Parameters
    ----------
    tasks : sequence of TaskRecord
    slots : int
        Tasks that could run at once.
    started : float
        When the fit began, seconds since the epoch.

    Returns
    -------
    dict
        By stage, in the order of their start: start and end after the beginning of the fit; seconds = end − start;
        busy in worker-seconds; idle = seconds × slots − busy; and the number of tasks.
    """
    by_stage: dict[str, list[TaskRecord]] = {}
    for task in sorted(tasks, key=lambda task: task.start):
        by_stage.setdefault(_stage(task), []).append(task)
    times = {}
    for stage, members in by_stage.items():
        start, end = min(t.start for t in members), max(t.start + t.seconds for t in members)
        busy = sum(t.seconds for t in members)
        times[stage] = {
            "start": start - started,
            "end": end - started,
            "seconds": end - start,
            "busy": busy,
            "idle": max(0.0, (end - start) * slots - busy),
            "tasks": len(members),
        }
    return times


def _stage(task: TaskRecord) -> str:
    return STAGES.get(task.key.split("-", 1)[0], "other")


def seconds_by_kind(tasks: Iterable[TaskRecord], stages: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Worker-seconds by stage and kind of work; "other" is inside tasks, "idle" between those of one stage.

    Returns
    -------
    dict
        By stage, and their sums under "total".
    """
    kinds: dict[str, dict[str, float]] = {stage: {} for stage in stages}
    for task in tasks:
        spent = kinds[_stage(task)]
        for kind, seconds in task.seconds_by_kind.items():
            spent[kind] = spent.get(kind, 0.0) + seconds
    for stage, spent in kinds.items():
        spent["other"] = max(0.0, stages[stage]["busy"] - sum(spent.values()))
        spent["idle"] = stages[stage]["idle"]
    names = list(dict.fromkeys(kind for spent in kinds.values() for kind in spent))
    return kinds | {"total": {kind: sum(spent.get(kind, 0.0) for spent in kinds.values()) for kind in names}}


def worker_times(tasks: Sequence[TaskRecord]) -> dict[str, dict[str, float]]:
    """Busy and idle seconds of each worker between the first and the last task of all."""
    if not tasks:
        return {}
    wall = max(t.start + t.seconds for t in tasks) - min(t.start for t in tasks)
    busy: dict[str, list[float]] = {}
    for task in tasks:
        busy.setdefault(task.worker, []).append(task.seconds)
    return {
        worker: {"busy": sum(times), "idle": max(0.0, wall - sum(times)), "tasks": len(times)}
        for worker, times in sorted(busy.items())
    }


def draw_timeline(path: Path, fit: Fit) -> None:
    """Draw what each worker did when, as a PNG.

    Parameters
    ----------
    path : Path
        The file to write; its folder is made if need be.
    fit : Fit
        On tiles: a fit in memory has no tasks.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    tasks = fit.tasks
    workers = sorted({task.worker for task in tasks})
    figure = Figure(figsize=(13, 2.3 + 0.55 * len(workers)), dpi=160, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for kind, colour in _COLOURS.items():
        for row, worker in enumerate(workers):
            bars = [(t.start - fit.started, t.seconds) for t in tasks if t.worker == worker and _kind(t) == kind]
            # A white edge keeps neighbours apart; it must not swallow the short ones.
            axes.broken_barh(bars, (row - 0.38, 0.76), color=colour, edgecolor="white", linewidth=0.25)
        if any(_kind(t) == kind for t in tasks):
            axes.plot([], [], color=colour, linewidth=7, label=kind)
    axes.set_yticks(range(len(workers)), [f"worker {k + 1}" for k in range(len(workers))])
    axes.set(xlim=(0, fit.seconds), ylim=(len(workers) - 0.4, -0.6), xlabel="seconds after the start of the fit")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_QUIET)
    axes.tick_params(colors=_QUIET, labelcolor=_INK, labelsize=9)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.label.set_color(_INK)
    axes.grid(axis="x", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    tile = fit.plan.chosen.layout()["tile"]
    title = f"{fit.plan.problem.n:,} rows in tiles of {tile:,}: {format_seconds(fit.seconds)}"
    axes.set_title(title, loc="left", fontsize=13, fontweight="bold", color=_INK, pad=28)
    axes.legend(
        frameon=False,
        loc="lower left",
        bbox_to_anchor=(-0.005, 1.0),
        ncols=len(_COLOURS),
        fontsize=9.5,
        labelcolor=_TEXT,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _kind(task: TaskRecord) -> str:
    stage = _stage(task)
    if stage == "factorisation":
        step, i, j = task.key.split("-")[:3]
        if step == "S":
            return "part of a sum"
        return "diagonal tile" if i == j else "other tile"
    return stage if stage in _COLOURS else "other"


def result_table(record: dict[str, Any]) -> Table:
    """Lay out a record for the terminal."""
    settings, ours, load = record["settings"], record["dkrr"], record["load"]
    plan, memory, store = ours["plan"], ours["memory"], ours["store"]
    title = f"n = {settings['n']:,}, d = {settings['d']}, solver={settings['solver']}"
    table = Table(title=title, box=box.SIMPLE_HEAD, title_style="bold")
    for heading in ("", "time", "GFLOP/s", "dkrr / it", "peak memory", ""):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=bool(heading))
    peak = max(memory["peak_bytes_by_process"].values())
    projected = format_bytes(memory["projected_peak_bytes"])
    note = f"{plan['summary']}; {memory['largest_over_projected']:.2f} × the projected {projected}"
    table.add_row("dkrr", format_seconds(ours["seconds"]), f"{ours['gflops']:.1f}", "", format_bytes(peak), note)
    if record["gemm"]:
        note = f"factorisation alone: {_ratio(record, 'gemm_factorisation_only')}"
        table.add_row("GEMM", "", f"{record['gemm']['gflops']:.1f}", _ratio(record, "gemm"), "", note)
    for name, peer in record["peers"].items():
        if "gflops" not in peer:
            table.add_row(name, "", "", "", "", peer["outcome"])
            continue
        note = f"{peer['blas_threads']} BLAS threads" if "blas_threads" in peer else f"blocks of {peer['block']:,}"
        note += f", n = {peer['n']:,}" if peer["n"] != settings["n"] else ""
        times = (format_seconds(peer["seconds"]), f"{peer['gflops']:.1f}", _ratio(record, name))
        table.add_row(name, *times, format_bytes(peer["peak_bytes"]), note)
    if store["read_bytes_model"]:
        moved = f"{store['read_bytes'] / store['read_bytes_model']:.3f} × the model"
        table.add_section()
        table.add_row("tiles read", "", "", "", format_bytes(store["read_bytes"]), moved)
    for stage, spent in ours["seconds_by_kind"].items() if ours["stages"] else ():
        whole = sum(spent.values()) or 1.0
        shares = sorted(((seconds / whole, kind) for kind, seconds in spent.items()), reverse=True)
        where = ", ".join(f"{kind} {share:.0%}" for share, kind in shares if share >= 0.005)
        wall = ours["stages"].get(stage, {}).get("seconds")
        table.add_row(stage, "" if wall is None else format_seconds(wall), "", "", "", where)
    busy = (
        f"{load['other_cores_busy_before']:.2f} cores before the fit, {load['other_cores_busy_during']:.2f} during it"
    )
    table.caption = f"busy with other work: {busy}" + (": NOISY, do not quote" if load["noisy"] else "")
    return table


def _ratio(record: dict[str, Any], name: str) -> str:
    return f"{record['ratios'][name]:.2f}" if name in record["ratios"] else "–"


def table_console() -> Console:
    """Terminal for tables; a log file is as wide as they need."""
    console = Console(stderr=True)
    return console if console.is_terminal else Console(stderr=True, width=120)


def _parse_peers(context: click.Context, option: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(name for name in value.split(",") if name)
    unknown = set(names).difference(("gemm", *PEERS))
    if unknown:
        raise click.BadParameter(f"{min(unknown)!r} is not one of gemm, {', '.join(PEERS)}", context, option)
    return names


def write_line(record: dict[str, Any], path: Path | None) -> None:
    """Print a record as one line of JSON, and append it to a file."""
    line = json.dumps(record, default=float)
    click.echo(line)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(line + "\n")


@click.command()
@click.option("--n", type=click.IntRange(min=2), required=True, help="Rows.")
@click.option("--d", type=click.IntRange(min=1), default=16, show_default=True, help="Columns.")
@click.option(
    "--solver",
    "solvers",
    type=click.Choice(list(SOLVERS)),
    multiple=True,
    default=("cholesky",),
    show_default=True,
    help="Repeat it to measure several beside the same run of the peers.",
)
@click.option("--tile", type=click.IntRange(min=1), help="Rows of a tile; default: the planner's choice.")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=count_cores,
    show_default="all cores",
    help="Worker processes; also the peers' threads.",
)
@click.option("--memory-limit", default="2GiB", show_default=True, help="Memory of the whole fit.")
@click.option("--kernel", type=click.Choice(KERNELS), default="rbf", show_default=True)
@click.option("--client", is_flag=True, help="Start the workers before the fit, so that its time is without that.")
@click.option("--force-workers", is_flag=True, help="Use workers however small the problem is.")
@click.option(
    "--peers", default=",".join(("gemm", *PEERS)), show_default=True, callback=_parse_peers, help="'' for none."
)
@click.option("--gemm-seconds", type=click.FloatRange(min=0.01), default=GEMM_SECONDS, show_default=True)
@click.option("--dask-block", type=click.IntRange(min=1), help="Side of the Dask peer's blocks; default 1024 or 2048.")
@click.option("--peer-timeout", type=click.FloatRange(min=1), help="Seconds after which a peer is stopped.")
@click.option("--repeat", type=click.IntRange(min=1), default=1, show_default=True, help="Runs, peers included.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Append the lines here too.")
@click.option(
    "--timeline", type=click.Path(dir_okay=False, path_type=Path), help="Draw the first solver's last run as a PNG."
)
def main(repeat: int, json_path: Path | None, timeline: Path | None, solvers: tuple[str, ...], **options: Any) -> None:
    """Measure dkrr beside GEMM, SciPy, scikit-learn and Dask.

    A JSON line for each run and solver on stdout, a table on stderr.
    """
    settings, console, fits = Settings(**options), table_console(), list[Fit]()
    for repetition in range(repeat):
        try:
            for record, fit in measure_solvers(settings, solvers):
                write_line(record | {"repetition": repetition}, json_path)
                console.print(result_table(record))
                if fit.tasks and (not fits or record["settings"]["solver"] == solvers[0]):
                    fits = [fit]
        except DkrrError as error:
            raise click.ClickException(str(error)) from error
    if timeline is not None:
        if not fits:
            raise click.ClickException("the fits were done in memory and have no tasks to draw; use --force-workers")
        draw_timeline(timeline, *fits)
        console.print(f"picture: {timeline}")


if __name__ == "__main__":
    main()
