"""The primal form measured: rows streamed from Zarr, features expanded on the fly, sparse rows that stay sparse.

``python -m benchmarks.primal linear`` (and ``polynomial``, ``sparse``) writes the rows to a folder, fits in a fresh
process with cold and warm caches, measures in that process how fast the cores multiply and the store is read, runs the
peers in their own processes, and compares the coefficients of all. One line of JSON a fit or peer on stdout, a
table on stderr.
"""

import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import click
import numpy as np
import scipy.sparse as sp
import zarr
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

import dkrr
from benchmarks.local_client import local_client
from benchmarks.machine import LoadMeter, describe_machine, measure_gemm_here, measure_gemm_on_workers
from benchmarks.peers import run_command
from benchmarks.solve import write_line
from dkrr import blas
from dkrr.checks import parse_bytes
from dkrr.config import setting
from dkrr.limits import peak_resident_bytes, reset_peak
from dkrr.linalg import TASK_MODULES
from dkrr.linalg.passes import FEATURE_STRIP_BYTES, MIN_STRIP_ROWS
from dkrr.text import format_bytes, format_seconds

Floats = NDArray[np.float64]

ALPHA = 1.0
SEED = 0
NOISE = 0.1
CHUNK_ROWS = 50_000
"""Rows of a chunk, as a user may have them: 40 MB at 100 columns."""
READ_BYTES = 4 * 2**20
"""Bytes that are read at once to measure the store."""
STAGES = {
    "scan": "check",
    "normal_part": "normal matrix",
    "normal": "normal matrix",
    "primal_residual": "training errors",
    "error": "training errors",
}
"""Stage of a task by the first word of its key."""
WIDTH = 170
"""Columns of the tables."""
SPARSE_SECONDS = 120.0
"""The plan of solver="auto" for sparse rows is carried out if it should take no longer."""


@dataclass(frozen=True)
class Data:
    """Rows and targets in a folder: ``x`` and ``y`` are Zarr arrays; sparse rows are ``x.npz``."""

    folder: Path
    n: int
    d: int
    density: float = 1.0
    chunk_rows: int = CHUNK_ROWS
    compressed: bool = False

    @property
    def path(self) -> Path:
        """Path that dkrr receives as X."""
        return self.folder / ("x.npz" if self.density < 1 else "x")

    def write(self) -> None:
        """Write it block by block, if these very rows are not there yet: y = X w + noise, w and X standard normal."""
        done, wanted = self.folder / "done.json", json.dumps(asdict(self) | {"folder": "", "seed": SEED})
        if done.exists() and done.read_text() == wanted:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        done.unlink(missing_ok=True)
        (self._write_sparse if self.density < 1 else self._write_dense)()
        done.write_text(wanted)

    def _coef(self) -> Floats:
        return np.random.default_rng([SEED, 0]).standard_normal(self.d)

    def _array(self, name: str, shape: tuple[int, ...]) -> Any:
        codecs: dict[str, Any] = {} if self.compressed else {"compressors": None}
        chunks = (min(self.chunk_rows, self.n), *shape[1:])
        return zarr.create_array(
            self.folder / name, shape=shape, chunks=chunks, dtype="float64", overwrite=True, **codecs
        )

    def _write_dense(self) -> None:
        X, y, coef = self._array("x", (self.n, self.d)), self._array("y", (self.n,)), self._coef()
        for block, start in enumerate(range(0, self.n, self.chunk_rows)):
            rng, stop = np.random.default_rng([SEED, 1, block]), min(start + self.chunk_rows, self.n)
            rows = rng.standard_normal((stop - start, self.d))
            X[start:stop] = rows
            y[start:stop] = rows @ coef + NOISE * rng.standard_normal(stop - start)

    def _write_sparse(self) -> None:
        rng, each = np.random.default_rng([SEED, 1]), max(1, round(self.density * self.d))
        columns = rng.integers(0, self.d, self.n * each)
        pointers = np.arange(0, self.n * each + 1, each)
        X = sp.csr_array((rng.standard_normal(self.n * each), columns, pointers), shape=(self.n, self.d))
        X.sum_duplicates()
        sp.save_npz(self.folder / "x.npz", X, compressed=False)
        self._array("y", (self.n,))[:] = X @ self._coef() + NOISE * rng.standard_normal(self.n)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the files of X."""
        return sum(file.stat().st_size for file in self.files())

    def files(self) -> list[Path]:
        """Files that hold X."""
        return [self.path] if self.path.is_file() else sorted(f for f in (self.path / "c").rglob("*") if f.is_file())


def forget_files(files: list[Path]) -> None:
    """Have the system drop files from its page cache, where it can, so that the next read is cold."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # what is not on disk yet stays
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def read_rate(data: Data, threads: int, *, cold: bool) -> dict[str, float]:
    """Bytes of rows a second when the chunks are read and nothing else is done, by several threads at once.

    Returns
    -------
    dict
        "zarr": whole chunks through Zarr's array interface; "files": the bytes of the files alone. Both count the bytes
        of the decoded rows, so that they compare with each other and with the fit.
    """
    rates, decoded = {}, 8.0 * data.n * data.d
    array = zarr.open_array(data.path, mode="r")
    starts = range(0, data.n, data.chunk_rows)
    work: dict[str, tuple[Any, Any]] = {
        "zarr": (lambda start: array[start : start + data.chunk_rows], starts),
        "files": (_read_file, data.files()),
    }
    for name, (read, items) in work.items():
        if cold:
            forget_files(data.files())
        with ThreadPoolExecutor(threads) as pool:
            start = perf_counter()
            for _ in pool.map(lambda item, read=read: read(item) is None, items):
                pass
            rates[name] = decoded / (perf_counter() - start)
    return rates


def _read_file(path: Path) -> None:
    buffer = bytearray(READ_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def syrk_rate(width: int, seconds: float) -> float:
    """Rate of AᵀA on one BLAS thread, in panels as dkrr cuts them; 10⁹ flop/s, width² for each row."""
    rows = max(MIN_STRIP_ROWS, FEATURE_STRIP_BYTES // (8 * width))
    a, c = np.random.default_rng(0).standard_normal((rows, width)), np.zeros((width, width))
    with blas.one_thread():
        blas.syrk(c, a, transpose=True, beta=1.0)
        start, count, passed = perf_counter(), 0, 0.0
        while passed < seconds:
            blas.syrk(c, a, transpose=True, beta=1.0)
            count, passed = count + 1, perf_counter() - start
    return count * rows * width**2 / passed / 1e9


def syrk_rate_here(width: int, seconds: float) -> float:
    """Total rate of `syrk_rate` in one thread for each core."""
    threads = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(lambda _: syrk_rate(width, seconds), range(threads)))


@contextmanager
def _workers(n_workers: int, limit_bytes: int) -> Iterator[Any]:
    """Workers as dkrr starts them for itself."""
    with (
        tempfile.TemporaryDirectory(prefix="dkrr-benchmark-", dir=setting("temporary-directory")) as scratch,
        local_client(n_workers, limit_bytes, scratch, TASK_MODULES) as client,
    ):
        yield client


def core_rates(plan: Any, width: int, seconds: float) -> dict[str, Any]:
    """GEMM, and SYRK of this width, in the processes that fitted (in others like them, if those were dkrr's own)."""
    c = plan.chosen
    if c.execution != "dask":
        return {"gemm_gflops": measure_gemm_here(seconds=seconds).gflops, "syrk_gflops": syrk_rate_here(width, seconds)}
    with _workers(c.n_workers, c.limit_bytes) as client:
        gemm = measure_gemm_on_workers(client, c.limit_bytes, seconds).gflops
        return {"gemm_gflops": gemm, "syrk_gflops": sum(client.run(syrk_rate, width, seconds).values())}


def stage_seconds(tasks: list[Any], solver: str) -> dict[str, float]:
    """Wall time from the first to the last task of each stage; conjugate gradient's passes are one."""
    ends: dict[str, tuple[float, float]] = {}
    for t in tasks:
        stage = STAGES.get(t.key.split("-", 1)[0], "solve") if solver == "cholesky" else "passes"
        start, end = ends.get(stage, (t.start, t.start))
        ends[stage] = (min(start, t.start), max(end, t.start + t.seconds))
    return {stage: end - start for stage, (start, end) in ends.items()}


@click.group()
def main() -> None:
    """Measure the primal form."""


@main.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--degree", type=click.IntRange(min=1), default=1, show_default=True, help="1: linear kernel.")
@click.option("--solver", type=click.Choice(["auto", "cholesky", "cg"]), default="auto", show_default=True)
@click.option("--form", type=click.Choice(["auto", "primal", "dual"]), default="auto", show_default=True)
@click.option("--intercept", is_flag=True, help="With an intercept.")
@click.option("--memory-limit")
@click.option("--cold", is_flag=True, help="Drop the rows from the system's page cache first.")
@click.option("--rate-seconds", type=float, default=2.0, show_default=True, help="For each reference rate; 0: none.")
@click.option("--coef", type=click.Path(path_type=Path), help="Save the coefficients here (.npy).")
def fit(
    folder: Path,
    degree: int,
    solver: Literal["auto", "cholesky", "cg"],
    form: Literal["auto", "primal", "dual"],
    intercept: bool,
    memory_limit: str | None,
    cold: bool,
    rate_seconds: float,
    coef: Path | None,
) -> None:
    """Fit once to the rows in a folder, measure cores and store in the same process, and print a line of JSON."""
    data = Data(**json.loads((folder / "done.json").read_text(), object_hook=_without_seed) | {"folder": folder})
    kernel: dict[str, Any] = {"kernel": "polynomial", "degree": degree} if degree > 1 else {"kernel": "linear"}
    settings: dict[str, Any] = {"solver": solver, "form": form, "fit_intercept": intercept}
    model = dkrr.KernelRidge(ALPHA, **kernel, **settings, memory_limit=memory_limit)
    if cold:
        forget_files(data.files())
    load = LoadMeter()
    reset_peak()
    before, start = peak_resident_bytes(), perf_counter()
    model.fit(data.path, folder / "y")
    seconds = perf_counter() - start
    result, plan = model.solve_result_, model.plan_
    width = plan.dimension or 0
    stages = stage_seconds(result.record.tasks, plan.solver)
    record: dict[str, Any] = {
        "benchmark": "primal",
        "n": data.n,
        "d": data.d,
        "dimension": width,
        "density": data.density,
        "compressed": data.compressed,
        "cold": cold,
        "intercept": intercept,
        "solver": solver,
        "planned": plan.chosen.summary(),
        "form": plan.form,
        "seconds": seconds,
        "projected_seconds": plan.seconds,
        "iterations": result.iterations,
        "status": result.status.name,
        "residual": float(result.residual),
        "peak_bytes": result.peak_bytes,
        "projected_peak_bytes": plan.peak_bytes,
        "memory_limit_bytes": None if memory_limit is None else parse_bytes(memory_limit),
        "caller_before_bytes": before,
        "caller_peak_bytes": peak_resident_bytes(),
        "peak_bytes_by_process": result.record.peak_bytes_by_worker,
        "dense_bytes": 8 * data.n * width,
        "stored_bytes": data.stored_bytes,
        "read_bytes": result.bytes_read,
        "projected_read_bytes": plan.chosen.read_bytes,
        "written_bytes": result.bytes_written,
        "stages": stages,
        "seconds_by_kind": result.seconds_by_kind,
        "load": load.stop().to_dict(),
    }
    if rate_seconds and data.density == 1:
        record |= _limits(data, plan, width, seconds, stages.get("normal matrix"), rate_seconds, cold=cold)
    if coef is not None:
        np.save(coef, model.coef_)
    click.echo(json.dumps(record, default=float))


def _without_seed(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != "seed"}


def _limits(
    data: Data, plan: Any, width: int, seconds: float, forming: float | None, rate_seconds: float, *, cold: bool
) -> dict[str, Any]:
    """Limits of the cores and the store for one pass over the rows, and how near to them the fit came."""
    rates = core_rates(plan, width, rate_seconds)
    threads = len(os.sched_getaffinity(0))
    warm = read_rate(data, threads, cold=False)
    store = {"warm": warm} | ({"cold": read_rate(data, threads, cold=True)} if cold else {})
    # Compressed chunks cannot be had without decoding them.
    reading = store["cold" if cold else "warm"]
    bytes_a_second = reading["zarr"] if data.compressed else max(reading.values())
    flops = float(data.n) * width**2
    needs = {"cores": flops / rates["syrk_gflops"] / 1e9, "store": 8.0 * data.n * data.d / bytes_a_second}
    binds = max(needs, key=lambda name: needs[name])
    limit_seconds = needs[binds]
    return {
        **rates,
        "store_bytes_a_second": store,
        "pass_seconds": needs,
        "binds": binds,
        "ratios": {"fit": limit_seconds / seconds, "gemm": flops / seconds / rates["gemm_gflops"] / 1e9}
        | ({} if forming is None else {"normal_matrix": limit_seconds / forming}),
    }


def measure(
    data: Data, fits: dict[str, list[str]], peers: tuple[str, ...], options: dict[str, Any]
) -> list[tuple[str, dict[str, Any]]]:
    """Fit in every way and run the peers, one process each; coefficients are compared with those of the first fit."""
    data.write()
    rows, degree = [], ["--degree", str(options["degree"])]
    with tempfile.TemporaryDirectory(prefix="dkrr-benchmark-") as scratch:
        for k, (name, arguments) in enumerate({**fits, **{peer: [] for peer in peers}}.items()):
            coef = Path(scratch) / f"{k}.npy"
            if name in peers:
                command = [options["dask_ml_python"] if name == "dask-ml" else sys.executable]
                command += ["-m", "benchmarks.primal_peers", name, str(data.folder), "--alpha", str(ALPHA), *degree]
                command += ["--threads", str(len(os.sched_getaffinity(0))), "--coef", str(coef)]
            else:
                command = [sys.executable, "-m", "benchmarks.primal", "fit", str(data.folder), "--coef", str(coef)]
                command += ["--memory-limit", options["memory_limit"], *degree, *arguments]
                command += ["--rate-seconds", str(options["rate_seconds"])]
            if name == "dask-ml" and not _has_dask_ml(options["dask_ml_python"]):
                record: dict[str, Any] = {"missing": "dask-ml is not installed; see --dask-ml-python"}
            else:
                record = run_command(command, options["peer_timeout"])
            first = Path(scratch) / "0.npy"
            if coef.exists() and first.exists():
                w = np.load(first)
                record["coef_difference"] = float(np.abs(np.load(coef) - w).max() / np.abs(w).max())
            write_line({"what": name, **record, "machine": describe_machine()}, options["json_path"])
            rows.append((name, record))
    return rows


def _has_dask_ml(python: str) -> bool:
    return python != sys.executable or importlib.util.find_spec("dask_ml") is not None


def show(title: str, rows: list[tuple[str, dict[str, Any]]]) -> None:
    """Lay records out as tables on stderr."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_style="bold")
    headings = ("", "time", "peak of a process", "Δ coefficients", "of one pass", "of the limit: ΦᵀΦ", "all", "")
    for heading in headings:
        table.add_column(heading, justify="right" if heading else "left")
    for name, r in rows:
        if "seconds" not in r:
            table.add_row(name, *[""] * 6, ", ".join(f"{k}: {v}" for k, v in r.items()))
            continue
        ratios, note = r.get("ratios", {}), _note(r)
        table.add_row(
            name,
            format_seconds(r["seconds"]),
            format_bytes(r["peak_bytes"]),
            f"{r['coef_difference']:.1e}" if "coef_difference" in r else "",
            f"{r['binds']}: {format_seconds(r['pass_seconds'][r['binds']])}" if "binds" in r else "",
            f"{ratios['normal_matrix']:.2f}" if "normal_matrix" in ratios else "",
            f"{ratios['fit']:.2f}" if ratios else "",
            note,
        )
    Console(stderr=True, width=WIDTH).print(table)


def _note(r: dict[str, Any]) -> str:
    if "planned" not in r:
        notes = [f"loading before: {format_seconds(r['load_seconds'])}"] if "load_seconds" in r else []
        return "; ".join([*notes, *([f"by {r['solver']}"] if "solver" in r else [])])
    stages = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in r["stages"].items())
    plan = f"{r['planned']}; projected {format_seconds(r['projected_seconds'])}, "
    plan += format_bytes(r["projected_peak_bytes"])
    return "; ".join(part for part in (plan, stages, "NOISY" if r["load"]["noisy"] else "") if part)


def _shared(command: Any) -> Any:
    """Options of every case."""
    for option in (
        click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Append lines here."),
        click.option("--peer-timeout", type=click.FloatRange(min=1), help="Seconds after which a process is stopped."),
        click.option("--dask-ml-python", default=sys.executable, help="An interpreter that has dask-ml."),
        click.option("--peers", default=None, help="sklearn,dask,dask-ml; '' for none.  [default: all that apply]"),
        click.option("--rate-seconds", type=float, default=2.0, show_default=True, help="For each reference rate."),
        click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="Keep the rows here for reuse."),
        click.option("--memory-limit", default="1GiB", show_default=True),
    ):
        command = option(command)
    return command


@contextmanager
def _folder(data: Path | None) -> Iterator[Path]:
    if data is not None:
        yield data
        return
    with tempfile.TemporaryDirectory(prefix="dkrr-rows-", dir=setting("temporary-directory")) as folder:
        yield Path(folder)


def _peers(text: str | None, possible: tuple[str, ...]) -> tuple[str, ...]:
    names = possible if text is None else tuple(name for name in text.split(",") if name)
    if unknown := set(names) - set(possible):
        raise click.BadParameter(f"{min(unknown)!r} is not one of {', '.join(possible)}")
    return names


@main.command()
@click.option("--n", type=click.IntRange(min=1), default=5_000_000, show_default=True)
@click.option("--d", type=click.IntRange(min=1), default=100, show_default=True)
@click.option("--chunk-rows", type=click.IntRange(min=1), default=CHUNK_ROWS, show_default=True)
@click.option("--compressed", is_flag=True, help="Zarr's default compression instead of none.")
@click.option("--intercept", is_flag=True, help="With an intercept, and without peers.")
@_shared
def linear(
    n: int,
    d: int,
    chunk_rows: int,
    compressed: bool,
    intercept: bool,
    data: Path | None,
    peers: str | None,
    **options: Any,
) -> None:
    """Linear kernel on rows from Zarr, with cold and warm page cache; scikit-learn, Dask and dask-ml."""
    with _folder(data) as folder:
        rows = Data(folder / f"{n}x{d}{'-zstd' if compressed else ''}", n, d, 1.0, chunk_rows, compressed)
        more = ["--intercept"] * intercept
        fits = {"dkrr, cold": ["--cold", *more], "dkrr, warm": more}
        possible = () if intercept else ("sklearn", "dask", "dask-ml")
        found = measure(rows, fits, _peers(peers, possible), options | {"degree": 1})
    show(f"linear kernel, n = {n:,}, d = {d}, {options['memory_limit']}", found)


@main.command()
@click.option(
    "--size", "sizes", type=(int, int), multiple=True, default=((500_000, 30), (200_000, 60)), show_default=True,
    help="Rows and columns.",
)  # fmt: skip
@click.option("--degree", type=click.IntRange(min=2), default=2, show_default=True)
@_shared
def polynomial(
    sizes: tuple[tuple[int, int], ...], degree: int, data: Path | None, peers: str | None, **options: Any
) -> None:
    """Polynomial kernel, its features expanded block by block; scikit-learn with all features in memory."""
    for n, d in sizes:
        with _folder(data) as folder:
            rows = Data(folder / f"{n}x{d}", n, d)
            found = measure(rows, {"dkrr": []}, _peers(peers, ("sklearn",)), options | {"degree": degree})
        show(f"polynomial kernel of degree {degree}, n = {n:,}, d = {d}, {options['memory_limit']}", found)


@main.command()
@click.option("--n", type=click.IntRange(min=1), default=200_000, show_default=True)
@click.option("--d", type=click.IntRange(min=1), default=20_000, show_default=True)
@click.option("--density", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=1e-3, show_default=True)
@click.option("--auto-seconds", type=float, default=SPARSE_SECONDS, show_default=True, help="See SPARSE_SECONDS.")
@_shared
def sparse(
    n: int, d: int, density: float, auto_seconds: float, data: Path | None, peers: str | None, **options: Any
) -> None:
    """Linear kernel on CSR rows of which nothing is made dense; scikit-learn's sparse conjugate gradient."""
    with _folder(data) as folder:
        rows = Data(folder / f"{n}x{d}-{density:g}", n, d, density)
        rows.write()
        plan = dkrr.plan(rows.path, kernel="linear", memory_limit=options["memory_limit"])
        fits = {"dkrr, cg": ["--solver", "cg", "--form", "primal"]}
        if plan.seconds <= auto_seconds:
            fits["dkrr, auto"] = []
        else:
            seconds = format_seconds(plan.seconds)
            Console(stderr=True, width=WIDTH).print(
                f"solver='auto' would take {seconds} ({plan.chosen.summary()}): left out"
            )
        found = measure(rows, fits, _peers(peers, ("sklearn",)), options | {"degree": 1})
    dense = format_bytes(8 * n * d)
    show(f"CSR rows, n = {n:,}, D = {d:,}, density {density:g}, {options['memory_limit']}; dense: {dense}", found)


if __name__ == "__main__":
    main()
