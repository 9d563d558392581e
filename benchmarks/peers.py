"""The problem of `benchmarks.solve` solved by other libraries, each in its own process.

Run by :mod:`benchmarks.solve`, or by hand::

    python -m benchmarks.peers scipy --n 8192 --d 16 --threads 2

prints one line of JSON: seconds, peak memory and what was run.
"""

import json
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, get_args

import click
import numpy as np
from numpy.typing import NDArray

from dkrr.limits import peak_resident_bytes
from dkrr.typing import KernelName

# SciPy, scikit-learn and Dask are imported where they are used: the memory of each peer is then its own.

Floats = NDArray[np.float64]
PeerName = Literal["scipy", "sklearn", "dask"]
PEERS: tuple[PeerName, ...] = get_args(PeerName)
KERNELS = ("rbf", "laplacian")
ALPHA = 1e-2
SEED = 0
ONE_THREAD = "one_thread"
"""Suffix of the name of a second run, of a peer that crashed with all threads."""


@dataclass(frozen=True)
class Problem:
    """Problem that all of them solve: (K + λI) α = y."""

    n: int
    d: int
    kernel: KernelName = "rbf"

    @property
    def gamma(self) -> float:
        """γ of the kernel."""
        return 1 / self.d

    @property
    def flops(self) -> float:
        """n³/3, the factorisation alone: what every rate is counted by, whatever else was done in that time."""
        return self.n**3 / 3

    def data(self) -> tuple[Floats, Floats]:
        """X of shape (n, d), standard normal, and y = sin x₀ + noise of shape (n,)."""
        rng = np.random.default_rng(SEED)
        X = rng.standard_normal((self.n, self.d))
        return X, np.sin(X[:, 0]) + 0.1 * rng.standard_normal(self.n)


def run_peers(
    names: Iterable[str], problem: Problem, n_processes: int, block: int | None = None, timeout: float | None = None
) -> dict[str, dict[str, Any]]:
    """Solve with several peers, one by one; one that crashes with all BLAS threads runs again with one.

    Parameters
    ----------
    names : iterable of {"scipy", "sklearn", "dask"}
    problem, n_processes, block, timeout
        As in `run_peer`.

    Returns
    -------
    dict
        Records by name; the crash stays under the peer's name, and that of the second run is "NAME_one_thread".
    """
    records = {}
    for name in names:
        records[name] = run_peer(name, problem, n_processes, block, timeout)
        if name != "dask" and n_processes > 1 and "crashed" in records[name]:
            records[f"{name}_{ONE_THREAD}"] = run_peer(name, problem, 1, timeout=timeout)
    return records


def run_peer(
    name: str, problem: Problem, n_processes: int, block: int | None = None, timeout: float | None = None
) -> dict[str, Any]:
    """Solve with a peer in a fresh process.

    Parameters
    ----------
    name : {"scipy", "sklearn", "dask"}
    problem : Problem
    n_processes : int
        BLAS threads, or Dask's workers.
    block : int, optional
        Side of Dask's blocks.
    timeout : float, optional
        Seconds after which the peer is stopped.

    Returns
    -------
    dict
        What the peer printed; or {"crashed": signal}, {"failed": last line of the error}, {"timed_out": seconds}, with
        the number of threads and the outcome in words.
    """
    command = [sys.executable, "-m", "benchmarks.peers", name, "--n", str(problem.n), "--d", str(problem.d)]
    command += ["--kernel", problem.kernel, "--threads", str(n_processes)]
    record = run_command(command if block is None else [*command, "--block", str(block)], timeout)
    if "seconds" in record:
        return record
    on = f"{n_processes} {'workers' if name == 'dask' else 'threads' if n_processes > 1 else 'thread'}"
    words = {"crashed": "crashed ({})", "failed": "failed: {}", "timed_out": "stopped after {} s"}
    outcome = "; ".join(words[key].format(value) for key, value in record.items() if key in words)
    return record | {"threads": n_processes, "outcome": f"{outcome} with {on}"}


def run_command(command: list[str], timeout: float | None = None) -> dict[str, Any]:
    """Run a command that prints a line of JSON; however it ends, there is a record."""
    root = Path(__file__).parents[1]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return {"timed_out": timeout}
    if done.returncode < 0:
        return {"crashed": signal.Signals(-done.returncode).name}
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    if done.returncode or not lines:
        return {"failed": lines[-1] if lines else f"exit status {done.returncode}, nothing printed"}
    record: dict[str, Any] = json.loads(lines[-1])
    return record


def solve_scipy(problem: Problem, threads: int) -> dict[str, Any]:
    """Gram matrix by NumPy, scipy.linalg.cholesky in place, cho_solve."""
    from scipy.linalg import cho_solve, cholesky
    from threadpoolctl import threadpool_limits

    X, y = problem.data()
    with threadpool_limits(threads, user_api="blas"):
        start = perf_counter()
        K = _gram(X, problem)
        K[np.diag_indices_from(K)] += ALPHA
        formed = perf_counter()
        # K is symmetric: its transpose is the Fortran order in which LAPACK can really overwrite it. The lower variant:
        # the upper one, which scipy.linalg.solve calls, crashes with several threads from 16,000 rows on (OpenBLAS
        # 0.3.30 and 0.3.31).
        L = cholesky(K.T, lower=True, overwrite_a=True, check_finite=False)
        factored = perf_counter()
        coef = cho_solve((L, True), y, check_finite=False)
        end = perf_counter()
    return {
        "seconds": end - start,
        "gram_seconds": formed - start,
        "cholesky_seconds": factored - formed,
        "cholesky_gflops": problem.flops / (factored - formed) / 1e9,
        "solve_seconds": end - factored,
        "peak_bytes": peak_resident_bytes(),
        "blas_threads": threads,
        "coef_norm": float(np.linalg.norm(coef)),
    }


def _gram(X: Floats, problem: Problem) -> Floats:
    """K of shape (n, n): exp(−γ(‖x‖² + ‖z‖² − 2xᵀz)) by NumPy in place, other kernels as scikit-learn forms them."""
    if problem.kernel != "rbf":
        from sklearn.metrics.pairwise import pairwise_kernels

        return np.asarray(pairwise_kernels(X, metric=problem.kernel, gamma=problem.gamma))
    squares = np.einsum("ij,ij->i", X, X)
    K: Floats = X @ X.T
    K *= -2
    K += squares[:, None]
    K += squares
    K *= -problem.gamma
    np.exp(K, out=K)
    return K


def solve_sklearn(problem: Problem, threads: int) -> dict[str, Any]:
    """scikit-learn's own KernelRidge."""
    from sklearn.kernel_ridge import KernelRidge
    from threadpoolctl import threadpool_limits

    X, y = problem.data()
    model = KernelRidge(alpha=ALPHA, kernel=problem.kernel, gamma=problem.gamma)
    with threadpool_limits(threads, user_api="blas"):
        start = perf_counter()
        model.fit(X, y)
        seconds = perf_counter() - start
    return {
        "seconds": seconds,
        "peak_bytes": peak_resident_bytes(),
        "blas_threads": threads,
        "coef_norm": float(np.linalg.norm(model.dual_coef_)),
    }


def solve_dask(problem: Problem, n_workers: int, block: int) -> dict[str, Any]:
    """dask.array.linalg.cholesky of a Dask Gram matrix on single-threaded workers without a memory limit.

    It needs equal square blocks: n is rounded down to whole ones, and the record says to what.
    """
    import dask.array as da
    from distributed import Client, LocalCluster, wait

    import dkrr

    block = min(block, problem.n)
    n = problem.n // block * block
    X, y = (array[:n] for array in problem.data())
    started = perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="dkrr-peer-") as scratch,
        LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            memory_limit=0,
            dashboard_address="127.0.0.1:0",  # a free port: the default one may be taken, which warns
            scheduler_kwargs={"dashboard": False},
            local_directory=scratch,
            silence_logs=50,
        ) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(n_workers, timeout=60)
        start = perf_counter()
        K = dkrr.gram(X, kernel=problem.kernel, gamma=problem.gamma, chunks=block)
        # It stays in the workers' memory, for the backward substitution needs all of it.
        L = client.persist(da.linalg.cholesky(K + ALPHA * da.eye(n, chunks=block), lower=True))
        wait(L)
        factored = perf_counter()
        z = da.linalg.solve_triangular(L, da.from_array(y, chunks=block), lower=True)
        coef = np.asarray(da.linalg.solve_triangular(L.T, z, lower=False).compute())
        end = perf_counter()
        peaks = list(client.run(peak_resident_bytes).values())
    return {
        "n": n,
        "block": block,
        "seconds": end - start,
        "cholesky_seconds": factored - start,
        "solve_seconds": end - factored,
        "startup_seconds": start - started,
        "peak_bytes": max(peaks),
        "peak_bytes_of_all_workers": sum(peaks),
        "caller_peak_bytes": peak_resident_bytes(),
        "n_workers": n_workers,
        "coef_norm": float(np.linalg.norm(coef)),
    }


def dask_block(n: int) -> int:
    """Side of Dask's blocks: 2,048 or 1,024 as soon as that makes several a side."""
    return next((block for block in (2048, 1024) if n >= 6 * block), max(1, n // 6))


@click.command()
@click.argument("name", type=click.Choice(PEERS))
@click.option("--n", type=click.IntRange(min=2), required=True, help="Rows.")
@click.option("--d", type=click.IntRange(min=1), default=16, show_default=True, help="Columns.")
@click.option("--kernel", type=click.Choice(KERNELS), default="rbf", show_default=True)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="BLAS threads, or workers.")
@click.option("--block", type=click.IntRange(min=1), help="Side of Dask's blocks; default 1024 or 2048.")
def main(name: PeerName, n: int, d: int, kernel: KernelName, threads: int, block: int | None) -> None:
    """Solve one problem with one peer and print a line of JSON."""
    # A peer that crashes would write gigabytes of memory to the folder that it runs in, and take long.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    problem = Problem(n, d, kernel)
    if name == "dask":
        record = solve_dask(problem, threads, block or dask_block(n))
    else:
        record = {"n": n, **(solve_scipy if name == "scipy" else solve_sklearn)(problem, threads)}
    record["gflops"] = Problem(record["n"], d).flops / record["seconds"] / 1e9

    from benchmarks.machine import stamped  # after the peak was read: its imports are not the peer's memory

    click.echo(json.dumps(stamped(record)))


if __name__ == "__main__":
    main()
