"""Rates of the dense building blocks on this machine, beside LAPACK's: ``python -m benchmarks.blas --n 2048``.

Run it with one BLAS thread (``OPENBLAS_NUM_THREADS=1``) for the rate of a worker process.
"""

import json
import time
from collections.abc import Callable

import click
import numpy as np
import scipy.linalg
import threadpoolctl

from benchmarks.machine import stamped
from dkrr import blas


def best_seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """Shortest of several times."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def rates(n: int) -> dict[str, float]:
    """Floating-point operations per second, in units of 10⁹, of products, solves and factorisations of size n."""
    rng = np.random.default_rng(0)
    a, b, c = rng.normal(size=(n, n)), rng.normal(size=(n, n)), np.zeros((n, n))
    spd = a @ a.T + n * np.eye(n)
    factor = np.tril(scipy.linalg.cholesky(spd, lower=True))

    def own_cholesky() -> None:
        np.copyto(c, spd)
        blas.cholesky_in_place(c)

    def lapack_cholesky() -> None:
        # The transpose has the order in which LAPACK overwrites; the lower variant works with threads at any size.
        np.copyto(c, spd)
        scipy.linalg.cholesky(c.T, lower=True, overwrite_a=True, check_finite=False)

    work: dict[str, tuple[float, Callable[[], object]]] = {
        "gemm": (2.0 * n**3, lambda: blas.gemm(c, a, b, transpose_b=True)),
        "syrk": (1.0 * n**3, lambda: blas.syrk(c, a)),
        "trsm": (1.0 * n**3, lambda: blas.solve_lower_right(factor, b)),
        "cholesky": (n**3 / 3, own_cholesky),
        "cholesky_lapack": (n**3 / 3, lapack_cholesky),
    }
    return {name: flops / best_seconds(function) / 1e9 for name, (flops, function) in work.items()}


@click.command()
@click.option("--n", default=2048, show_default=True, help="Size.")
def main(n: int) -> None:
    """Print one JSON line."""
    threads = max(pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas")
    found = rates(n)
    ratio = found["cholesky"] / found["cholesky_lapack"]
    record = {"n": n, "threads": threads, "gflops": found, "own_over_lapack": ratio}
    click.echo(json.dumps(stamped(record)))


if __name__ == "__main__":
    main()
