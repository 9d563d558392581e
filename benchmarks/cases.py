"""One fit, planned and measured: what `benchmarks.plans` runs, each in a process of its own.

``python -m benchmarks.cases fit '{"name": "one", "n": 3000}'`` prints one line of JSON: what the plan promised, what
happened, and the ratios of the two. ``ways`` in place of ``fit`` prints how the planner could have solved the problem.
"""

import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest import mock

import click
import dask
import numpy as np
import psutil

import dkrr
from benchmarks import machine
from benchmarks.local_client import local_client
from benchmarks.machine import LoadMeter, describe_machine
from benchmarks.peers import SEED, Floats
from dkrr.checks import parse_bytes
from dkrr.cluster.tasks import peak_resident_bytes, reset_peak
from dkrr.kernels import Matern
from dkrr.linalg import TASK_MODULES
from dkrr.planning import Float32Factor, Iterative, Plan, Problem, Strategy, make_plan
from dkrr.planning.resources import Resources
from dkrr.planning.strategy import RowPasses, TileProducts
from dkrr.solvers import ConjugateGradient, Float32Cholesky, RPCholesky
from dkrr.solvers.result import SolveResult
from dkrr.store.arrays import create_array

FIGURES = ("seconds", "read_bytes", "written_bytes", "peak_bytes")
"""What a plan promises and a fit shows."""
MIN_BYTES = 2**20
"""Traffic below which nothing is compared: vectors, which no plan counts, are most of it."""
_ROWS_AT_ONCE = 2**15


@dataclass(frozen=True)
class Case:
    """One fit of standard normal rows."""

    name: str
    n: int
    d: int = 16
    kernel: str = "rbf"
    """Name; γ = 1/d, polynomials are of degree 2, and Matérn's length scale is √d."""
    form: str = "auto"
    solver: str = "cholesky"
    """auto, cholesky, cg, cg-none (no preconditioner) or float32 (a complete factor as preconditioner)."""
    rank: int | None = None
    """Rank of the preconditioner; None: found while it is built."""
    precision: str = "auto"
    alphas: tuple[float, ...] = (1e-2,)
    """λ of each target, or one of all."""
    n_targets: int = 1
    fit_intercept: bool = False
    tol: float = 1e-6
    memory_limit: str = "4GiB"
    tile: int | None = None
    keeps_store: bool = False
    workers: int = 2
    client: bool = False
    """The workers run before the fit."""
    x_in_store: bool = False
    """X is a Zarr array."""
    decay: float = 0.0
    """Column k of X (from 0) has standard deviation (k + 1)^−decay: the eigenvalues of K fall faster."""
    force: Mapping[str, Any] = field(default_factory=dict)
    """Entries of `kind` that the candidate must have, where no public setting leads to it."""

    @property
    def wanted(self) -> dict[str, Any]:
        """Entries of `kind` that are forced; on workers, all of them work unless it says otherwise."""
        workers = {"n_workers": self.workers} if self.force.get("execution") == "dask" else {}
        return workers | dict(self.force)

    def data(self, folder: Path) -> tuple[Any, Floats]:
        """X, an array or the path of one, and y = sin x₀ + noise of shape (n,) or (n, n_targets)."""
        rng = np.random.default_rng(SEED)
        scale = (1.0 + np.arange(self.d)) ** -self.decay
        path = str(folder / "X.zarr")
        X = create_array(path, (self.n, self.d), np.float64) if self.x_in_store else np.empty((self.n, self.d))
        y = 0.1 * rng.standard_normal((self.n, self.n_targets))
        for start in range(0, self.n, _ROWS_AT_ONCE):
            rows = slice(start, min(start + _ROWS_AT_ONCE, self.n))
            block = rng.standard_normal((rows.stop - rows.start, self.d)) * scale
            X[rows] = block
            y[rows] += np.sin(block[:, :1])
        return path if self.x_in_store else X, y[:, 0] if self.n_targets == 1 else y

    def model(self, folder: Path) -> dkrr.KernelRidge:
        """The estimator."""
        return dkrr.KernelRidge(
            alpha=self.alphas[0] if len(self.alphas) == 1 else list(self.alphas),
            kernel=Matern(length_scale=self.d**0.5) if self.kernel == "matern" else self.kernel,
            gamma=None if self.kernel in ("linear", "matern") else 1 / self.d,
            degree=2 if self.kernel == "polynomial" else 3,
            fit_intercept=self.fit_intercept,
            form=self.form,
            solver=self.solver_value(),
            tol=self.tol,
            memory_limit=self.memory_limit,
            tile=self.tile,
            store=str(folder / "run.zarr") if self.keeps_store else None,
            progress=False,
        )

    def solver_value(self) -> Any:
        """Value of KernelRidge's argument."""
        if self.solver in ("auto", "cholesky"):
            return self.solver
        kinds: dict[str, Any] = {"cg": "auto", "cg-none": None, "float32": Float32Cholesky()}
        wanted = kinds[self.solver] if self.rank is None else RPCholesky(self.rank)
        return ConjugateGradient(wanted, precision=self.precision)  # type: ignore[arg-type]


def tier(c: Strategy) -> str:
    """Where the matrix is while it is used."""
    how = c.how
    if not isinstance(how, Iterative):
        return "in memory" if c.place.is_memory else "tiles on disk"
    if isinstance(how.products, RowPasses):
        return "rows streamed"
    kept = how.products.kept_fraction(c.place.slots)
    return "in memory" if kept == 1 else "partly in memory" if kept else "formed at every pass"


def precision(c: Strategy) -> str:
    """Precision of the products, or of the factor."""
    how = c.how
    if isinstance(how, Iterative) and isinstance(how.products, TileProducts):
        return how.products.precision
    return "float32" if isinstance(c.how, Float32Factor) else "float64"


def tile(c: Strategy) -> int:
    """Rows of a tile."""
    return int(c.layout()["tile"])


def kept_tiles(c: Strategy) -> int:
    """Tiles that every place keeps in memory."""
    how = c.how
    return how.products.kept_tiles if isinstance(how, Iterative) and isinstance(how.products, TileProducts) else 0


def rank_of(c: Strategy) -> int:
    """Columns of the preconditioner's factor."""
    return c.how.rank if isinstance(c.how, Iterative) else 0


def kind(c: Strategy) -> dict[str, Any]:
    """What tells candidates apart that are really different; the rest is detail."""
    on_tiles = c.execution != "memory" and (c.solver == "cholesky" or isinstance(c.how, Float32Factor))
    return {
        "form": c.form,
        "solver": "float32" if isinstance(c.how, Float32Factor) else c.solver,
        "execution": c.execution,
        "n_workers": c.n_workers,
        "precision": precision(c),
        "tier": tier(c),
        "tile": tile(c) if on_tiles else 0,
    }


def matches(c: Strategy, wanted: Mapping[str, Any]) -> bool:
    """Whether a candidate has all of some entries of `kind`."""
    found = kind(c)
    return all(found[name] == value for name, value in wanted.items())


@contextmanager
def choosing(among: Callable[[list[Strategy]], list[Strategy]]) -> Iterator[None]:
    """The planner chooses among fewer of the candidates that it may choose."""
    from dkrr.planning import planner

    original = planner._cheapest

    def cheapest(fitting: list[Strategy]) -> Strategy:
        chosen = among(fitting)
        if not chosen:
            raise LookupError(f"no such candidate among {len(fitting)}: {sorted({c.summary() for c in fitting})}")
        return original(chosen)

    with mock.patch.object(planner, "_cheapest", cheapest):
        yield


def admissible(problem: Problem, resources: Resources) -> list[Strategy]:
    """Every candidate that the planner may choose, as it prices them."""
    found: list[Strategy] = []

    def note(fitting: list[Strategy]) -> list[Strategy]:
        found.extend(fitting)
        return fitting

    with choosing(note), every_candidate():
        make_plan(problem, resources)
    return found


@contextmanager
def every_candidate() -> Iterator[None]:
    """Price also what the planner leaves out where a short fit in memory is possible."""
    with ExitStack() as stack:
        for name in ("TINY_SECONDS", "SHORT_SECONDS"):
            stack.enter_context(mock.patch(f"dkrr.planning.planner.{name}", 0.0))
        yield


@contextmanager
def surroundings(case: Case, folder: Path) -> Iterator[None]:
    """Workers, configuration and the forced choice of a case."""
    settings = {"dkrr.local.workers": case.workers, "dkrr.temporary-directory": str(folder)}
    with ExitStack() as stack:
        stack.enter_context(dask.config.set(settings))
        if case.client:
            limit = parse_bytes(case.memory_limit) // case.workers
            client = stack.enter_context(local_client(case.workers, limit, str(folder), TASK_MODULES))
            stack.enter_context(client.as_current())
        if case.force:
            stack.enter_context(every_candidate())
            stack.enter_context(choosing(lambda fitting: [c for c in fitting if matches(c, case.wanted)]))
        yield


def measure(case: Case, folder: Path) -> dict[str, Any]:
    """Fit once and compare with the plan.

    Parameters
    ----------
    case : Case
    folder : Path
        For X, the store, and what else lies on disk.

    Returns
    -------
    dict
        Values of JSON.
    """
    X, y = case.data(folder)
    model = case.model(folder)
    with surroundings(case, folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the status says it
        meter = LoadMeter()
        reset_peak()
        start = perf_counter()
        model.fit(X, y)
        seconds = perf_counter() - start
        caller_peak, load = peak_resident_bytes(), meter.stop()
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "case": case.name,
        "settings": asdict(case),
        **compare(model.plan_, model.solve_result_, seconds, caller_peak),
        "load": load.to_dict(),
        "machine": describe_machine(),
    }


def compare(plan: Plan, result: SolveResult, seconds: float, caller_peak: int) -> dict[str, Any]:
    """What was promised beside what happened; ratios are predicted / measured."""
    c = plan.chosen
    # Work in the calling process: the peak of all of it, to the end of the fit.
    peak = result.peak_bytes if c.execution == "dask" else max(result.peak_bytes, caller_peak)
    measured = {
        "seconds": seconds,
        "read_bytes": result.bytes_read,
        "written_bytes": result.bytes_written,
        "peak_bytes": peak,
        "iterations": result.iterations,
        "rank": result.rank,
    }
    known = known_iterations(plan, result)
    return {
        "group": f"{kind(c)['solver']}, {c.form}, {tier(c)}",
        "planned": c.summary(),
        "kind": kind(c),
        "status": result.status.name.lower(),
        "residual": float(result.residual),
        "predicted": promises(c),
        "predicted_at_iterations": promises(known),
        "seconds_range": list(plan.seconds_range),
        "rates_from": plan.resources.rates_from,
        "measured": measured,
        "ratios": ratios(promises(c), measured),
        "ratios_at_iterations": ratios(promises(known), measured),
        "seconds_by_kind": {name: round(value, 3) for name, value in result.seconds_by_kind.items()},
        "rates": asdict(plan.resources.rates),
    }


def promises(c: Strategy) -> dict[str, float]:
    """Figures of a candidate."""
    figures = {name: getattr(c, name) for name in (*FIGURES, "disk_bytes", "limit_bytes")}
    return figures | {name: getattr(c.how, name, 0) for name in ("iterations", "rank")}


def ratios(predicted: Mapping[str, float], measured: Mapping[str, float]) -> dict[str, float | None]:
    """Predicted / measured; None where there was, and should have been, next to nothing to move."""
    found: dict[str, float | None] = {}
    for name in FIGURES:
        little = name in ("read_bytes", "written_bytes") and max(predicted[name], measured[name]) < MIN_BYTES
        found[name] = None if little else predicted[name] / max(measured[name], 1e-9 if name == "seconds" else 1)
    if measured["iterations"]:
        found["iterations"] = predicted["iterations"] / measured["iterations"]
    return found


def known_iterations(plan: Plan, result: SolveResult) -> Strategy:
    """The chosen candidate, priced with the iterations and the rank that the spectrum turned out to need.

    What is left between this and the measurement is the cost model's error.
    """
    c = plan.chosen
    if c.solver == "cholesky" or not result.iterations:
        return c
    groups = len(plan.problem.alphas) if isinstance(c.how, Float32Factor) else 1
    with ExitStack() as stack:
        for name, value in {
            "multiplied.iterations_expected": lambda *_: result.iterations,
            "multiplied.MIXED_ITERATION_FACTOR": 1.0,
            "multiplied.priced_ranks": lambda *_: [result.rank],
            "primal.iterations_of": lambda *_: result.iterations,
            "dual.refining_iterations": lambda *_: result.iterations // groups,
        }.items():
            stack.enter_context(mock.patch(f"dkrr.planning.{name}", value))
        wanted = {name: value for name, value in kind(c).items() if name != "tier"}
        priced = [p for p in admissible(plan.problem, plan.resources) if matches(p, wanted)]
    # The same tiles are kept: how many fit depends on the rank, and the run kept what was planned.
    return min(priced, key=lambda p: (abs(kept_tiles(p) - kept_tiles(c)), p.seconds), default=c)


@dataclass(frozen=True)
class Way:
    """One way to solve the problem of a case, and the case that takes it."""

    label: str
    case: Case
    predicted_seconds: float
    is_chosen: bool
    is_gamble: bool
    """The planner does not take it unasked."""


NEAR = 4.0
"""Times of the chosen plan's promise up to which another way is tried: plans should be no further off than 2."""
OTHER_TILES = 1.4
"""Factor by which the size of a tile must differ to be another way."""
MAX_WAYS = 7
MAX_GAMBLES = 2
"""Ways tried of each solver that is not taken unasked."""


def ways(case: Case, folder: Path) -> list[Way]:
    """The chosen way, then others that may be as fast: the best of each kind, and half and twice the rank."""
    X, y = case.data(folder)
    model = case.model(folder)
    with surroundings(case, folder):
        plan = dkrr.plan(X, y, **{name: value for name, value in model.get_params().items() if name != "progress"})
    free = admissible(plan.problem, plan.resources)
    found = [_way(case, c, plan.chosen, is_gamble=False) for c in best_of_kinds(free)]
    taken = [kind(c) for c in free]
    for solver in ("cg", "float32"):
        asked = replace(case, solver=solver)
        problem = replace(plan.problem, solver=asked.solver_value())
        with suppress(dkrr.errors.DkrrError):  # no such way exists
            gambles = [c for c in admissible(problem, plan.resources) if kind(c) not in taken]
            found += [_way(asked, c, plan.chosen, is_gamble=True) for c in best_of_kinds(gambles)[:MAX_GAMBLES]]
    iterative = [c for c in best_of_kinds(free) if rank_of(c)]
    for c in iterative[:1]:
        for rank in (rank_of(c) // 2, 2 * rank_of(c)):
            asked = replace(case, solver="cg", rank=rank)
            problem = replace(plan.problem, solver=asked.solver_value())
            same = {name: kind(c)[name] for name in ("form", "solver", "execution", "n_workers", "precision")}
            priced = [p for p in admissible(problem, plan.resources) if matches(p, same)] if rank else []
            found += [_way(asked, p, plan.chosen, is_gamble=False) for p in sorted(priced, key=_seconds)[:1]]
    near = sorted(
        (w for w in found if w.predicted_seconds <= NEAR * plan.seconds or w.is_chosen),
        key=lambda w: (not w.is_chosen, w.is_gamble, w.predicted_seconds),
    )
    return near[:MAX_WAYS]


def _seconds(c: Strategy) -> float:
    return c.seconds


def _way(case: Case, c: Strategy, chosen: Strategy, *, is_gamble: bool) -> Way:
    label = c.summary() + (f", rank {case.rank or 'found'}" if isinstance(c.how, Iterative) else "")
    return Way(label, replace(case, force=kind(c)), c.seconds, c is chosen or c == chosen, is_gamble)


def best_of_kinds(candidates: Sequence[Strategy]) -> list[Strategy]:
    """Fastest of each kind, and of tiles on disk those whose sizes really differ."""
    kept: list[Strategy] = []
    for c in sorted(candidates, key=lambda c: c.seconds):
        same = [k for k in kept if kind(k) | {"tile": 0} == kind(c) | {"tile": 0}]
        differs = all(max(tile(c), tile(k)) > OTHER_TILES * min(tile(c), tile(k)) for k in same)
        if differs and (not same or kind(c)["tile"]):
            kept.append(c)
    return kept


def run_alone(what: str, case: Case, timeout: float, watch_seconds: float) -> dict[str, Any]:
    """Run a case in a fresh process.

    Parameters
    ----------
    what : {"fit", "ways"}
    case : Case
    timeout : float
        Seconds after which the process and its workers are killed.
    watch_seconds : float
        For how long the other load is watched before.

    Returns
    -------
    dict
        What it printed; or {"crashed": signal}, {"failed": last line of the error}, {"timed_out": seconds}.
    """
    # A killed process leaves its tiles: the folder is ours, and goes in any case.
    with tempfile.TemporaryDirectory(prefix="dkrr-case-", ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-m", "benchmarks.cases", what, json.dumps(asdict(case))]
        command += ["--folder", folder, "--watch-seconds", str(watch_seconds)]
        done = run_to_end(command, timeout)
    if "stdout" not in done:
        return done
    try:
        record: dict[str, Any] = json.loads(done["stdout"].strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {"failed": f"printed no line of JSON: {done['stdout'][-200:]!r}"}
    return record


def run_to_end(command: Sequence[str], timeout: float | None) -> dict[str, Any]:
    """Run a command; {"stdout": text} if it succeeds, else how it ended, and then its processes are gone, too."""
    root = Path(__file__).parents[1]
    with psutil.Popen(list(command), cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            return {"timed_out": timeout}
        finally:
            end_tree(process)
    if process.returncode < 0:
        return {"crashed": f"signal {-process.returncode}"}
    if process.returncode:
        lines = stderr.strip().splitlines()
        return {
            "failed": lines[-1] if lines else f"exit status {process.returncode}, nothing said",
            "stdout_part": stdout,
        }
    return {"stdout": stdout}


def end_tree(process: psutil.Popen) -> None:
    """Kill a process that has not ended, with its workers."""
    with suppress(psutil.NoSuchProcess):
        for one in [process, *process.children(recursive=True)]:  # the parent first: it would start others
            with suppress(psutil.NoSuchProcess):
                one.kill()
    process.wait()


@click.command()
@click.argument("what", type=click.Choice(["fit", "ways"]))
@click.argument("settings")
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), help="For data; default a temporary one.")
@click.option("--watch-seconds", type=click.FloatRange(min=0.01), default=machine.SECONDS_BEFORE, show_default=True)
def main(what: str, settings: str, folder: Path | None, watch_seconds: float) -> None:
    """Run the case that SETTINGS (JSON, fields of Case) describes and print a line of JSON."""
    values = json.loads(settings)
    case = Case(**values | {"alphas": tuple(values.get("alphas", (1e-2,)))})
    with (
        tempfile.TemporaryDirectory(prefix="dkrr-case-", dir=folder) as scratch,
        mock.patch.object(machine, "SECONDS_BEFORE", watch_seconds),
    ):
        if what == "fit":
            record = measure(case, Path(scratch))
        else:
            record = {"ways": [asdict(way) for way in ways(case, Path(scratch))]}
    click.echo(json.dumps(record, default=float))


if __name__ == "__main__":
    main()
