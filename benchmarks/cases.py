"""A fit, planned and measured; `benchmarks.plans` runs each in its own process.

``python -m benchmarks.cases '{"name": "one", "n": 3000}'`` prints one line of JSON: what the plan promised, what
happened, and the ratios of the two. `benchmarks.ways` prints how the planner could have solved the problem.
"""

import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Literal
from unittest import mock

import click
import dask
import numpy as np
import psutil
import scipy.sparse

import dkrr
from benchmarks import machine, qm9
from benchmarks.candidates import choosing, every_candidate, kind, kind_of_plan, known_iterations, matches, tier
from benchmarks.flights import COLUMNS, Encoder
from benchmarks.flights import load as load_flights
from benchmarks.local_client import local_client
from benchmarks.machine import LoadMeter, describe_machine
from benchmarks.peers import SEED, Floats
from dkrr import limits
from dkrr.checks import parse_bytes
from dkrr.fitting import run
from dkrr.kernels import Matern
from dkrr.limits import peak_resident_bytes, reset_peak
from dkrr.linalg import TASK_MODULES
from dkrr.linalg.result import SolveResult
from dkrr.machine import detection
from dkrr.planning import Plan, Strategy
from dkrr.planning.iterations_first import GIVEN_UP
from dkrr.planning.searches import SelectionPlan
from dkrr.selection import candidates
from dkrr.solvers import ConjugateGradient, Float32Cholesky, RPCholesky
from dkrr.store.zarr_arrays import create_array

FIGURES = ("seconds", "read_bytes", "written_bytes", "peak_bytes")
"""Figures that a plan projects and a fit measures."""
MIN_BYTES = 2**20
"""Traffic below which nothing is compared: vectors, which no plan counts, are most of it."""
SHORT_SECONDS = 1.0
"""A fit that takes less is repeated in its process, and the median of the others counts: the first loads libraries."""
REPEATS = 3
_ROWS_AT_ONCE = 2**15
CACHE = Path("output/cache")
"""Descriptions of molecules, which take a minute."""


@dataclass(frozen=True)
class Case:
    """Fit of standard normal rows, or search over λ."""

    name: str
    n: int
    d: int = 16
    kernel: str = "rbf"
    """Name; γ = 1 / entries of a row, polynomials are of degree 2, and Matérn's length scale is √d."""
    form: str = "auto"
    solver: str = "cholesky"
    """auto, cholesky, cg, cg-none (no preconditioner) or float32 (a complete factor as preconditioner)."""
    rank: int | None = None
    """Rank of the preconditioner; None: found while it is built."""
    precision: str = "auto"
    alphas: tuple[float, ...] = (1e-2,)
    """λ of each target, or one of all; of a search those that it chooses among."""
    n_targets: int = 1
    """Or classes of a softmax."""
    loss: Literal["squared", "logistic"] = "squared"
    """squared or logistic."""
    folds: int = 0
    """Folds of a search, without the fit with the chosen λ; 0: a fit."""
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
    row_entries: int = 0
    """Stored entries of every row of sparse X; 0: dense rows."""
    source: Literal["normal", "higgs", "qm9", "flights"] = "normal"
    """Rows: standard normal ones; those with classes that products of columns decide, and noise as much, as of particle
    collisions; molecules (79 columns); flights (162 columns). The last two come with packages of dkrr[demo]."""
    force: Mapping[str, Any] = field(default_factory=dict)
    """Entries of `kind` that the candidate must have, where no public setting leads to it."""

    @property
    def wanted(self) -> dict[str, Any]:
        """Entries of `kind` that are forced; on workers, all of them work unless it says otherwise."""
        workers = {"n_workers": self.workers} if self.force.get("execution") == "dask" else {}
        return workers | dict(self.force)

    def data(self, folder: Path) -> tuple[Any, Any]:
        """X, an array or the path of one, and y = sin x₀ + noise of shape (n,) or (n, n_targets), or labels of it.

        Where X is sparse, a sum of all columns takes the place of x₀.
        """
        if self.source != "normal":
            return self._of_source()
        rng = np.random.default_rng(SEED)
        y = 0.1 * rng.standard_normal((self.n, self.n_targets))
        X = self._sparse(rng, y) if self.row_entries else self._dense(rng, y, folder)
        if self.loss == "logistic":
            n_classes = max(2, self.n_targets)
            return X, np.digitize(y[:, 0], np.quantile(y[:, 0], np.arange(1, n_classes) / n_classes))
        return X, y[:, 0] if self.n_targets == 1 else y

    def _of_source(self) -> tuple[Floats, Any]:
        """Standardised columns and targets, or labels, of a source."""
        X: Floats
        if self.source == "flights":
            flights = load_flights()
            rows = np.random.default_rng(SEED).permutation(flights.n)[: self.n]
            X, y = Encoder.of(flights, COLUMNS["all"], rows).encode(rows), flights.delay[rows]
            labels = flights.is_late[rows]
        elif self.source == "qm9":
            sample = qm9.load(self.n, seed=SEED, cache=CACHE)
            X, y = sample.descriptors - sample.descriptors.mean(axis=0), sample.target
            scale = X.std(axis=0)
            X = np.asarray(X / np.where(scale > 0, scale, 1.0), np.float64)
            labels = (y > np.median(y)).astype(int)
        else:
            rng = np.random.default_rng(SEED)
            X = rng.standard_normal((self.n, self.d))
            labels = (X[:, 0] * X[:, 1] + X[:, 2] + rng.standard_normal(self.n) > 0).astype(int)
            y = np.where(labels > 0, 1.0, -1.0)
        if X.shape[1] != self.d:
            raise ValueError(f"{self.name}: {X.shape[1]} columns, not {self.d}")
        return X, labels if self.loss == "logistic" else (y - y.mean()) / y.std()

    def _dense(self, rng: np.random.Generator, y: Floats, folder: Path) -> Any:
        scale = (1.0 + np.arange(self.d)) ** -self.decay
        path = str(folder / "X.zarr")
        X = create_array(path, (self.n, self.d), np.float64) if self.x_in_store else np.empty((self.n, self.d))
        for start in range(0, self.n, _ROWS_AT_ONCE):
            rows = slice(start, min(start + _ROWS_AT_ONCE, self.n))
            block = rng.standard_normal((rows.stop - rows.start, self.d)) * scale
            X[rows] = block
            y[rows] += np.sin(block[:, :1])
        return path if self.x_in_store else X

    def _sparse(self, rng: np.random.Generator, y: Floats) -> Any:
        k = self.row_entries
        columns, values = rng.integers(self.d, size=(self.n, k)), rng.standard_normal((self.n, k))
        X = scipy.sparse.csr_array((values.ravel(), columns.ravel(), k * np.arange(self.n + 1)), (self.n, self.d))
        X.sum_duplicates()
        y += np.sin(X @ rng.standard_normal((self.d, 1)) / k**0.5)
        return X

    def settings(self) -> dict[str, Any]:
        """Arguments of the estimator and of `dkrr.plan`."""
        alphas: Any = list(self.alphas) if self.folds or len(self.alphas) > 1 else self.alphas[0]
        return ({"alphas": alphas, "cv": self.folds} if self.folds else {"alpha": alphas}) | {
            "kernel": Matern(length_scale=self.d**0.5) if self.kernel == "matern" else self.kernel,
            "gamma": None if self.kernel in ("linear", "matern") else 1 / (self.row_entries or self.d),
            "degree": 2 if self.kernel == "polynomial" else 3,
            "fit_intercept": self.fit_intercept,
            "form": self.form,
            "solver": self.solver_value(),
            "tol": self.tol,
            "memory_limit": self.memory_limit,
            "tile": self.tile,
        }

    def plan(self, X: Any, y: Any) -> Plan | SelectionPlan:
        """Plan of the estimator."""
        found: Plan | SelectionPlan = dkrr.plan(X, y, loss=self.loss, **self.settings())
        return found

    def model(self, folder: Path) -> Any:
        """The estimator."""
        if self.folds:
            return dkrr.KernelRidgeCV(**self.settings(), refit=False, progress=False)
        estimator = dkrr.KernelRidge if self.loss == "squared" else dkrr.KernelLogisticRegression
        store = str(folder / "run.zarr") if self.keeps_store else None
        return estimator(**self.settings(), store=store, progress=False)

    def solver_value(self) -> Any:
        """Value of KernelRidge's argument."""
        if self.solver in ("auto", "cholesky"):
            return self.solver
        kinds: dict[str, Any] = {"cg": "auto", "cg-none": None, "float32": Float32Cholesky()}
        wanted = kinds[self.solver] if self.rank is None else RPCholesky(self.rank)
        return ConjugateGradient(wanted, precision=self.precision)  # type: ignore[arg-type]


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


@contextmanager
def memory_of_first_plan() -> Iterator[None]:
    """All plans of this process count the memory that it held before the first one, as every one leaves some behind."""
    original, first = limits.resident_bytes, list[int]()

    def resident_bytes() -> int:
        if not first:
            first.append(original())
        return first[0]

    with mock.patch.object(detection, "resident_bytes", resident_bytes):
        yield


@contextmanager
def planning_clock() -> Iterator[list[float]]:
    """Seconds that fits spend on plans, and on the samples for them, one entry for each call."""
    spent = list[float]()

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **settings: Any) -> Any:
            start = perf_counter()
            try:
                return function(*arguments, **settings)
            finally:
                spent.append(perf_counter() - start)

        return call

    with ExitStack() as stack:
        for module, name in ((run, "plan_of"), (candidates, "planned")):
            stack.enter_context(mock.patch.object(module, name, timed(getattr(module, name))))
        yield spent


def measure(case: Case, folder: Path) -> dict[str, Any]:
    """Fit and compare with the plan.

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
    models, peaks, times, planning = list[Any](), list[int](), list[float](), list[float]()
    with surroundings(case, folder), warnings.catch_warnings(), memory_of_first_plan(), planning_clock() as spent:
        warnings.simplefilter("ignore")  # the status says it
        meter = LoadMeter()
        while not times or (times[0] < SHORT_SECONDS and len(times) <= REPEATS and not case.keeps_store):
            model = case.model(folder)
            spent.clear()
            reset_peak()
            start = perf_counter()
            model.fit(X, y)
            times.append(perf_counter() - start)
            planning.append(sum(spent))
            models, peaks = [*models, model][:1], [*peaks, peak_resident_bytes()]
        load = meter.stop()
    counted = slice(1, None) if len(times) > 1 else slice(None)
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "case": case.name,
        "settings": asdict(case),
        **compare(models[0], median(times[counted]), median(planning[counted]), peaks[0]),
        "load": load.to_dict(),
        "machine": describe_machine(),
    }


def compare(model: Any, seconds: float, planning_seconds: float, caller_peak: int) -> dict[str, Any]:
    """Projected and measured figures; ratios are predicted / measured."""
    search: SelectionPlan | None = getattr(model, "selection_plan_", None)
    plan: Plan = model.plan_ if search is None else search.plan
    record = {
        "planned": (search or plan.chosen).summary(),
        "kind": kind_of_plan(search or plan),
        "rates_from": plan.resources.rates_from,
        "rates": asdict(plan.resources.rates),
    }
    measured: dict[str, Any] = {"seconds": seconds, "planning_seconds": planning_seconds}
    if search is None:
        return record | _compare_fit(plan, model.solve_result_, measured, caller_peak)
    # The workers of a search do not say what they held.
    measured["peak_bytes"] = None if plan.execution == "dask" else caller_peak
    predicted = {"seconds": search.seconds, "peak_bytes": search.peak_bytes}
    return record | {"predicted": predicted, "measured": measured, "status": "scored"}


def _compare_fit(plan: Plan, result: SolveResult, measured: dict[str, Any], caller_peak: int) -> dict[str, Any]:
    c = plan.chosen
    # Work in the calling process: the peak of all of it, to the end of the fit.
    peak = result.peak_bytes if c.execution == "dask" else max(result.peak_bytes, caller_peak)
    measured = measured | {
        "read_bytes": result.bytes_read,
        "written_bytes": result.bytes_written,
        "peak_bytes": peak,
        "iterations": result.iterations if plan.problem.loss == "squared" else result.inner_iterations,
        "rank": result.rank,
    }
    known = known_iterations(plan, result)
    return {
        "group": f"{kind(c)['solver']}, {c.form}, {tier(c)}",
        "status": result.status.name.lower(),
        **lost(plan, result),
        "residual": float(result.residual),
        "predicted": promises(c),
        "predicted_at_iterations": promises(known),
        "seconds_range": list(plan.seconds_range),
        "measured": measured,
        "ratios": ratios(promises(c), measured),
        "ratios_at_iterations": ratios(promises(known), measured),
        "seconds_by_kind": {name: round(value, 3) for name, value in result.seconds_by_kind.items()},
    }


def lost(plan: Plan, result: SolveResult) -> dict[str, Any]:
    """Whether iterations were given up, and the seconds that they took (with those of a refinement, if one follows)."""
    given_up = any(reason.code == GIVEN_UP for reason in plan.reasons)
    seconds = sum(s.seconds for s in result.stages if s.name in ("preconditioner", "conjugate gradient"))
    return {"given_up": given_up, "lost_seconds": seconds if given_up else 0.0}


def promises(c: Strategy) -> dict[str, float]:
    """Figures of a candidate."""
    figures = {name: getattr(c, name) for name in (*FIGURES, "disk_bytes", "limit_bytes")}
    return figures | {name: getattr(c.details, name, 0) for name in ("iterations", "rank")}


def ratios(predicted: Mapping[str, float], measured: Mapping[str, float]) -> dict[str, float | None]:
    """Predicted / measured; None where there was, and should have been, next to nothing to move."""
    found: dict[str, float | None] = {}
    for name in FIGURES:
        little = name in ("read_bytes", "written_bytes") and max(predicted[name], measured[name]) < MIN_BYTES
        found[name] = None if little else predicted[name] / max(measured[name], 1e-9 if name == "seconds" else 1)
    if measured["iterations"]:
        found["iterations"] = predicted["iterations"] / measured["iterations"]
    return found


def run_alone(module: str, case: Case, timeout: float, watch_seconds: float) -> dict[str, Any]:
    """Run a case in a fresh process.

    Parameters
    ----------
    module : {"cases", "ways"}
        Whose command is run.
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
        command = [sys.executable, "-m", f"benchmarks.{module}", json.dumps(asdict(case))]
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


def command(function: Callable[[Case, Path], dict[str, Any]]) -> click.Command:
    """Command that prints what a function makes of a case and a folder, as a line of JSON."""

    @click.command()
    @click.argument("settings")
    @click.option("--folder", type=click.Path(file_okay=False, path_type=Path), help="For data; default: temporary.")
    @click.option("--watch-seconds", type=click.FloatRange(min=0.01), default=machine.SECONDS_BEFORE, show_default=True)
    def main(settings: str, folder: Path | None, watch_seconds: float) -> None:
        """Take the case that SETTINGS (JSON, fields of Case) describes, and print a line of JSON."""
        case = case_of(json.loads(settings))
        with (
            tempfile.TemporaryDirectory(prefix="dkrr-case-", dir=folder) as scratch,
            mock.patch.object(machine, "SECONDS_BEFORE", watch_seconds),
        ):
            click.echo(json.dumps(function(case, Path(scratch)), default=float))

    return main


def case_of(values: Mapping[str, Any]) -> Case:
    """Case with these fields, values of JSON."""
    return Case(**{**values, "alphas": tuple(values.get("alphas", (1e-2,)))})


main = command(measure)

if __name__ == "__main__":
    main()
