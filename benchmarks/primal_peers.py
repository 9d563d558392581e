"""Ridge regression on the rows of a Zarr array (or of a CSR file) by others, each in its own process.

Run by :mod:`benchmarks.primal`, or by hand::

    python -m benchmarks.primal_peers dask FOLDER --threads 2

prints one line of JSON. Nothing of dkrr is imported, so that an environment without it can run a peer: dask-ml is
often not installable beside today's Dask.
"""

import json
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from math import factorial, prod, sqrt
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, get_args

import click
import numpy as np
from numpy.typing import NDArray

# scikit-learn, Dask and Zarr are imported where they are used: the memory of each peer is then its own.

Floats = NDArray[np.float64]
PeerName = Literal["sklearn", "dask", "dask-ml"]
PEERS: tuple[PeerName, ...] = get_args(PeerName)
TOL = 1e-10
"""Tolerance of iterative peers: their coefficients should agree with those of a direct solver to several digits."""


def peak_bytes() -> int:
    """Highest resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def ridge_sklearn(folder: Path, alpha: float, degree: int, threads: int) -> tuple[Floats, dict[str, Any]]:
    """scikit-learn's Ridge with all of X (or of its features) in memory; sparse rows by its conjugate gradient."""
    import scipy.sparse as sp
    import zarr
    from sklearn.linear_model import Ridge
    from threadpoolctl import threadpool_limits

    start = perf_counter()
    is_sparse = (folder / "x.npz").exists()
    X: Any = sp.load_npz(folder / "x.npz") if is_sparse else zarr.open_array(folder / "x", mode="r")[:]
    y = zarr.open_array(folder / "y", mode="r")[:]
    loaded = perf_counter()
    with threadpool_limits(threads, user_api="blas"):
        if degree > 1:
            X = monomials(X, degree)
        formed = perf_counter()
        solver, tol = ("sparse_cg", TOL) if is_sparse else ("cholesky", 1e-4)
        model = Ridge(alpha=alpha, solver=solver, tol=tol, fit_intercept=False).fit(X, y)
        end = perf_counter()
    return model.coef_, {
        "seconds": end - loaded,
        "load_seconds": loaded - start,
        "feature_seconds": formed - loaded,
        "peak_bytes": peak_bytes(),
        "solver": solver,
        "blas_threads": threads,
    }


def monomials(X: Floats, degree: int) -> Floats:
    """Features of the kernel (xᵀz / d + 1)ᵖ, in the order of dkrr and scikit-learn; shape (n, C(d + p, p))."""
    from sklearn.preprocessing import PolynomialFeatures

    expansion = PolynomialFeatures(degree)
    features: Floats = expansion.fit_transform(X)
    gamma = 1 / X.shape[1]
    for k, powers in enumerate(expansion.powers_):
        total = int(powers.sum())
        count = factorial(degree) / prod(factorial(int(p)) for p in powers) / factorial(degree - total)
        features[:, k] *= sqrt(count * gamma**total)
    return features


def ridge_dask(folder: Path, alpha: float, degree: int, threads: int) -> tuple[Floats, dict[str, Any]]:  # noqa: ARG001
    """(XᵀX + λI) w = Xᵀy, both products by dask.array on single-threaded workers."""
    import dask
    import dask.array as da

    with _cluster(threads) as (client, startup):
        start = perf_counter()
        X, y = da.from_zarr(str(folder / "x")), da.from_zarr(str(folder / "y"))
        matrix, moments = dask.compute(X.T @ X, X.T @ y)
        coef = np.linalg.solve(matrix + alpha * np.eye(len(matrix)), moments)
        seconds = perf_counter() - start
        return coef, {"seconds": seconds, "startup_seconds": startup, **_memory(client)}


def ridge_dask_ml(folder: Path, alpha: float, degree: int, threads: int) -> tuple[Floats, dict[str, Any]]:  # noqa: ARG001
    """dask-ml's LinearRegression, which has iterative solvers only; the rows are read at every iteration."""
    import dask.array as da
    from dask_ml.linear_model import LinearRegression  # type: ignore[import-not-found,unused-ignore]

    with _cluster(threads) as (client, startup):
        start = perf_counter()
        X, y = da.from_zarr(str(folder / "x")), da.from_zarr(str(folder / "y"))
        # Its objective is ‖Xw − y‖² + ‖w‖² / 2C.
        model = LinearRegression(penalty="l2", C=1 / (2 * alpha), solver="lbfgs", fit_intercept=False, tol=TOL)
        model.fit(X, y)
        seconds = perf_counter() - start
        record = {"seconds": seconds, "startup_seconds": startup, "solver": "lbfgs", **_memory(client)}
        return np.asarray(model.coef_), record


@contextmanager
def _cluster(n_workers: int) -> Iterator[tuple[Any, float]]:
    """Single-threaded workers without a memory limit, and the seconds that they took to start."""
    from distributed import Client, LocalCluster

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
        yield client, perf_counter() - started


def _memory(client: Any) -> dict[str, int]:
    peaks = list(client.run(peak_bytes).values())
    return {
        "peak_bytes": max(peaks),
        "peak_bytes_of_all_workers": sum(peaks),
        "caller_peak_bytes": peak_bytes(),
        "n_workers": len(peaks),
    }


@click.command()
@click.argument("name", type=click.Choice(PEERS))
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--alpha", type=float, default=1.0, show_default=True)
@click.option("--degree", type=click.IntRange(min=1), default=1, show_default=True, help="Of polynomial features.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="BLAS threads, or workers.")
@click.option("--coef", type=click.Path(path_type=Path), help="Save the coefficients here (.npy).")
def main(name: PeerName, folder: Path, alpha: float, degree: int, threads: int, coef: Path | None) -> None:
    """Solve one problem with one peer and print a line of JSON."""
    solve = {"sklearn": ridge_sklearn, "dask": ridge_dask, "dask-ml": ridge_dask_ml}[name]
    w, record = solve(folder, alpha, degree, threads)
    if coef is not None:
        np.save(coef, w)
    click.echo(json.dumps({**record, "coef_norm": float(np.linalg.norm(w))}))


if __name__ == "__main__":
    main()
