"""What checksums and checkpoints cost: the same work with and without them, in turns in one process.

One command for each, one line of JSON on stdout and a table on stderr::

    python -m benchmarks.integrity fit [--n 16384]
    python -m benchmarks.integrity model [--n 100000]

"Without" computes no checksum, neither at writing nor at reading, and writes no checkpoint; the bytes on the disk are
otherwise the same. The goal is at most 3 % of a fit with a store, and 5 % of loading a model and predicting with it.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import click
import dask
import numpy as np
from rich import box
from rich.table import Table

import dkrr
from benchmarks.machine import LoadMeter, describe_machine
from benchmarks.solve import table_console, write_line
from dkrr.model import FittedFunction
from dkrr.rows import as_rows
from dkrr.tiles import ChunkedArray

GOALS = {"fit": 0.03, "model": 0.05}
NO_CHECKPOINT_SECONDS = 1e9


@contextmanager
def without_checks() -> Iterator[None]:
    """No checksum is computed, and no checkpoint written, in this process."""
    original = ChunkedArray._tail
    ChunkedArray._tail = lambda self, key, block, data: bytes(8)  # type: ignore[method-assign]  # noqa: ARG005
    try:
        with dask.config.set({"dkrr.checkpoint-seconds": NO_CHECKPOINT_SECONDS}):
            yield
    finally:
        ChunkedArray._tail = original  # type: ignore[method-assign]


def in_turns(work: Callable[[Path], float], repetitions: int, folder: str | None) -> tuple[list[float], list[float]]:
    """Seconds with and without checks, of repetitions that take turns in folders of their own."""
    with_checks, without = list[float](), list[float]()
    for number in range(2 * repetitions):
        with tempfile.TemporaryDirectory(prefix="dkrr-integrity-", dir=folder) as place:
            if number % 2 == 0:
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
    """Fit with a store in this process: Cholesky on tiles, and conjugate gradient with checkpoints."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 16))
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(n)
    load, times = LoadMeter(), {}
    for solver in ("cholesky", "cg"):

        def work(place: Path, solver: str = solver) -> float:
            model = dkrr.KernelRidge(1e-2, kernel="rbf", gamma=1 / 16, solver=solver, tile=2048)
            model.set_params(store=str(place / "run.zarr"), memory_limit="4GiB")
            start = perf_counter()
            with dask.config.set({"dkrr.local.workers": 1}):
                model.fit(X, y)
            return perf_counter() - start

        times[solver] = in_turns(work, repetitions, folder)
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
