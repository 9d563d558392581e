"""Cost of checksums and checkpoints: the same work with and without them, in turns.

One command for each, one line of JSON on stdout and a table on stderr::

    python -m benchmarks.integrity fit [--n 16384]
    python -m benchmarks.integrity model [--n 100000]

"Without" computes no checksum, neither at writing nor at reading, and writes no checkpoint; the bytes on the disk are
otherwise the same. The goal is at most 3 % of a fit with a store, and 5 % of loading a model and predicting with it.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Literal

import click
import dask
import numpy as np
from distributed import Client, LocalCluster
from rich import box
from rich.table import Table

import dkrr
from benchmarks.machine import LoadMeter, count_cores, describe_machine
from benchmarks.solve import table_console, write_line
from dkrr.cluster.process import ambient_client
from dkrr.data import as_rows
from dkrr.fitting.fitted_function import FittedFunction
from dkrr.store import ChunkedArray

GOALS = {"fit": 0.03, "model": 0.05}
NO_CHECKPOINT_SECONDS = 1e9


def _check(*, checks: bool) -> None:
    """Compute checksums in this process, or put zeros in their place."""
    array: Any = ChunkedArray
    if checks:
        array._tail = array._tail_that_checks
    else:
        array._tail_that_checks, array._tail = array._tail, lambda *_: bytes(8)


@contextmanager
def without_checks() -> Iterator[None]:
    """No checksum is computed, and no checkpoint written, in this process and on the workers of its client."""
    _check_everywhere(checks=False)
    try:
        with dask.config.set({"dkrr.checkpoint-seconds": NO_CHECKPOINT_SECONDS}):
            yield
    finally:
        _check_everywhere(checks=True)


def _check_everywhere(*, checks: bool) -> None:
    _check(checks=checks)
    client = ambient_client()
    if client is not None:
        client.run(_check, checks=checks)


def in_turns(work: Callable[[Path], float], repetitions: int, folder: str | None) -> tuple[list[float], list[float]]:
    """Seconds with and without checks, of repetitions that take turns in their own folders."""
    with_checks, without = list[float](), list[float]()
    for number in range(-1, 2 * repetitions):
        with tempfile.TemporaryDirectory(prefix="dkrr-integrity-", dir=folder) as place:
            if number < 0:
                work(Path(place))  # libraries are loaded, pages are there
            elif number % 2 == 0:
                with_checks.append(work(Path(place)))
            else:
                with without_checks():
                    without.append(work(Path(place)))
    return with_checks, without


def report(what: str, n: int, times: dict[str, tuple[list[float], list[float]]], load: LoadMeter) -> None:
    """Write a line and a table."""
    table = Table("work", "with", "without", "share", "goal", box=box.SIMPLE)
    record: dict[str, Any] = {"what": f"integrity-{what}", "n": n, "goal": GOALS[what], "rows": {}}
    for name, (checked, plain) in times.items():
        share = median(checked) / median(plain) - 1
        record["rows"][name] = {"with": checked, "without": plain, "share": share}
        table.add_row(name, f"{median(checked):.3f} s", f"{median(plain):.3f} s", f"{share:+.1%}", f"{GOALS[what]:.0%}")
    record |= {"machine": describe_machine(), "date": datetime.now(UTC).isoformat(), "load": asdict(load.stop())}
    write_line(record, None)
    table_console().print(table)


@click.group(help=__doc__)
def main() -> None:
    """See the module."""


_folder = click.option("--folder", help="Where stores are made.  [default: the temporary folder]")
_repetitions = click.option("--repetitions", default=3, show_default=True, help="Pairs that take turns.")


@main.command()
@click.option("--n", default=16384, show_default=True)
@_repetitions
@_folder
def fit(n: int, repetitions: int, folder: str | None) -> None:
    """Fit with a store: Cholesky on tiles by workers and in this process, conjugate gradient with checkpoints."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 16))
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(n)
    load, times = LoadMeter(), {}
    solver: Literal["cholesky", "cg"]
    for name, solver, workers in (
        ("Cholesky, a worker for each core", "cholesky", count_cores()),
        ("Cholesky, one process", "cholesky", 0),
        ("conjugate gradient, one process", "cg", 0),
    ):

        def work(place: Path, solver: Literal["cholesky", "cg"] = solver) -> float:
            model = dkrr.KernelRidge(1e-2, kernel="rbf", gamma=1 / 16, solver=solver, tile=min(2048, n // 8))
            model.set_params(store=str(place / "run.zarr"), memory_limit="2GiB", progress=False)
            start = perf_counter()
            model.fit(X, y)
            return perf_counter() - start

        with ExitStack() as stack:
            if workers:
                cluster = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)
                stack.enter_context(cluster)
                stack.enter_context(Client(cluster))
            else:
                stack.enter_context(dask.config.set({"dkrr.local.workers": 1}))
            times[name] = in_turns(work, repetitions, folder)
    report("fit", n, times, load)


@main.command()
@click.option("--n", default=100_000, show_default=True)
@_repetitions
@_folder
def model(n: int, repetitions: int, folder: str | None) -> None:
    """Load a model and predict: of rows that it holds in memory, and of rows that every prediction reads."""
    rng = np.random.default_rng(0)
    load, times = LoadMeter(), {}
    for d, n_new in ((16, 1000), (400, 1000), (400, 10)):
        X = rng.standard_normal((n, d))
        fitted = dkrr.KernelRidge(kernel="rbf", form="dual", solver="cg", tol=0.9).fit(X[:1000], X[:1000, 0])
        coefficients = rng.standard_normal((n, 1))
        fitted._model = FittedFunction(
            kernel=fitted._model.kernel,
            n_features=d,
            coef=None,
            feature_map=None,
            dual_coef=coefficients,
            rows=as_rows(X),
            intercept=np.zeros(1),
        )
        fitted.dual_coef_ = coefficients[:, 0]

        def work(place: Path, fitted: Any = fitted, X: Any = X, n_new: int = n_new) -> float:
            dkrr.save(fitted, place / "m.zarr")
            dkrr.load(place / "m.zarr").predict(X[:n_new])  # files are in the system's cache, libraries are loaded
            start = perf_counter()
            dkrr.load(place / "m.zarr").predict(X[:n_new])
            seconds = perf_counter() - start
            shutil.rmtree(place / "m.zarr")
            return seconds

        size = f"{8 * n * d / 2**20:.0f} MiB of rows"
        times[f"{size}, {n_new} predictions"] = in_turns(work, repetitions, folder)
    report("model", n, times, load)


if __name__ == "__main__":
    main()
