"""Millions of rows in one to three columns: the Fourier form, beside peers, with what follows from it, and its choice.

``python -m benchmarks.fourier fit`` fits the RBF kernel to random rows of a unit box, in memory or in Zarr, and
measures time, memory and the true residual of the dual system. With ``--peers`` the same data go to scikit-learn,
GPyTorch (KISS-GP) and, of one column, celerite2, each with as many rows as it is given; ``--python``, or
DKRR_PEER_PYTHON in the environment, names an interpreter that has them (``pip install gpytorch celerite2``).
``follow`` searches λ and predicts standard deviations and classes beside one fit; ``choice`` times the planner's
choice and the other form around the border between them.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import click
import numpy as np
import zarr
from numpy.typing import NDArray

from benchmarks.machine import LoadMeter, stamped
from benchmarks.peers import run_command
from benchmarks.solve import write_line
from dkrr import KernelLogisticRegression, KernelRidge, KernelRidgeCV
from dkrr.limits import peak_resident_bytes, reset_peak

Floats = NDArray[np.float64]

CHUNK_ROWS = 2**20
NOISE = 0.1
N_NEW = 1000


@click.group()
def main() -> None:
    """Measure the Fourier form."""


def truth(X: Floats) -> Floats:
    """A smooth function of the rows."""
    return np.asarray(np.sin(7 * X[:, 0]) * np.cos(5 * X[:, -1]))


def blocks(n: int, d: int) -> Iterator[tuple[slice, Floats, Floats]]:
    """Random rows of the unit box and their targets, a chunk at a time."""
    rng = np.random.default_rng(0)
    for start in range(0, n, CHUNK_ROWS):
        where = slice(start, min(start + CHUNK_ROWS, n))
        X = rng.random((where.stop - start, d))
        yield where, X, truth(X) + NOISE * rng.standard_normal(len(X))


@contextmanager
def problem(n: int, d: int, where: str) -> Iterator[tuple[Any, Any]]:
    """Rows and targets, as arrays in memory or in Zarr."""
    if where == "memory":
        parts = list(blocks(n, d))
        yield np.concatenate([X for _, X, _ in parts]), np.concatenate([y for *_, y in parts])
        return
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = {"dtype": "f8", "compressors": None}
        X = zarr.create_array(f"{folder}/X.zarr", shape=(n, d), chunks=(CHUNK_ROWS, d), **settings)
        y = zarr.create_array(f"{folder}/y.zarr", shape=(n,), chunks=(CHUNK_ROWS,), **settings)
        for rows, x, values in blocks(n, d):
            X[rows], y[rows] = x, values
        yield X, y


@main.command()
@click.option("--n", default=10**6, show_default=True, help="Rows.")
@click.option("--d", default=2, show_default=True, help="Columns.")
@click.option("--gamma", default=50.0, show_default=True, help="γ of the RBF kernel, for a box of length 1.")
@click.option("--alpha", default=0.01, show_default=True, help="λ.")
@click.option("--where", type=click.Choice(["memory", "zarr"]), default="memory", show_default=True)
@click.option("--memory-limit", default=None, help="Of the fit.")
@click.option("--repeat", default=1, show_default=True, help="Fits, of which each has a line.")
@click.option("--peers", default="", help="Names and rows, as sklearn:6000,gpytorch:100000,celerite2:1000000.")
@click.option("--python", default=sys.executable, envvar="DKRR_PEER_PYTHON", help="Interpreter of the peers.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), default=None)
def fit(
    n: int,
    d: int,
    gamma: float,
    alpha: float,
    where: str,
    memory_limit: str | None,
    repeat: int,
    peers: str,
    python: str,
    json_path: Path | None,
) -> None:
    """Fit, and peers on the first rows."""
    settings = {"n": n, "d": d, "gamma": gamma, "alpha": alpha, "where": where, "memory_limit": memory_limit}
    with problem(n, d, where) as (X, y):
        for _ in range(repeat):
            meter = LoadMeter()
            reset_peak()
            model = KernelRidge(kernel="rbf", gamma=gamma, alpha=alpha, memory_limit=memory_limit, progress=False)
            start = perf_counter()
            model.fit(X, y)
            seconds, peak, load = perf_counter() - start, peak_resident_bytes(), meter.stop()
            record = settings | {
                "seconds": seconds,
                "projected_seconds": model.plan_.seconds,
                "seconds_by_million_rows": 1e6 * seconds / n,
                "plan": model.plan_.chosen.summary(),
                "features": model.plan_.dimension,
                "residual": model.solve_result_.residual,
                "peak_bytes": peak,
                "projected_bytes": model.plan_.peak_bytes,
                "load": load.to_dict(),
            }
            write_line(stamped(record), json_path)
        for name, count in (pair.split(":") for pair in peers.split(",") if pair):
            record = beside(name, X[: int(count)], y[: int(count)], gamma, alpha, python)
            write_line(stamped(settings | {"peer": name} | record), json_path)


def beside(name: str, X: Floats, y: Floats, gamma: float, alpha: float, python: str) -> dict[str, Any]:
    """A peer and dkrr on the same rows, and by how much their predictions differ."""
    new = np.random.default_rng(1).random((N_NEW, X.shape[1]))
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/data.npz"
        np.savez(file, X=X, y=y, new=new)
        script = str(Path(__file__).with_name("fourier_peers.py"))
        found = run_command([python, script, name, file, str(gamma), str(alpha)])
        if "seconds" not in found:
            return {"error": str(found)}
        theirs = np.load(f"{file}-{name}.npy")
    start = perf_counter()
    model = KernelRidge(kernel="rbf", gamma=gamma, alpha=alpha, progress=False).fit(X, y)
    predicted = model.predict(new)
    seconds = perf_counter() - start
    difference = float(np.abs(predicted - theirs).max())
    rms = [float(np.sqrt(np.mean((values - truth(new)) ** 2))) for values in (predicted, theirs)]
    ours = {"dkrr_seconds": seconds, "ratio": seconds / found["seconds"], "difference": difference}
    return found | ours | {"rms_error": rms[1], "dkrr_rms_error": rms[0]}


@main.command()
@click.option("--n", default=10**6, show_default=True, help="Rows.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), default=None)
def follow(n: int, json_path: Path | None) -> None:
    """Search λ, standard deviations and a classification, beside one fit."""
    with problem(n, 2, "memory") as (X, y):
        meter, start = LoadMeter(), perf_counter()
        model = KernelRidge(kernel="rbf", gamma=50.0, alpha=0.01, progress=False).fit(X, y)
        fitted = perf_counter()
        search = KernelRidgeCV(np.geomspace(1e-2, 1e2, 20), kernel="rbf", gamma=50.0, cv=5, progress=False).fit(X, y)
        searched = perf_counter()
        model.predict(X, return_std=True)
        deviated = perf_counter()
        assert model.loo_residuals().shape == y.shape
        left_out = perf_counter()
        labels = (y > 0.2).astype(int)
        classes = KernelLogisticRegression(kernel="rbf", gamma=50.0, alpha=0.1, progress=False).fit(X, labels)
        classified = perf_counter()
    one = fitted - start
    assert search.selection_plan_ is not None
    record = {
        "n": n,
        "fit_seconds": one,
        "search_seconds": searched - fitted,
        "search_over_fit": (searched - fitted) / one,
        "search_projected_seconds": search.selection_plan_.seconds,
        "deviations_seconds": deviated - searched,
        "loo_seconds": left_out - deviated,
        "classification_seconds": classified - left_out,
        "classification_steps": classes.solve_result_.iterations,
        "load": meter.stop().to_dict(),
    }
    write_line(stamped(record), json_path)


CHOICES = [
    *((n, 1, gamma, 0.01, 1.0) for n in (1500, 3000, 6000) for gamma in (50.0, 1e5)),
    *((n, 2, gamma, alpha, 1.0) for n in (2000, 4000, 8000) for gamma, alpha in ((50.0, 0.01), (1000.0, 1.0))),
    *((n, 3, gamma, 0.1, 1.0) for n in (3000, 6000, 12000) for gamma in (1.0, 10.0)),
    (6000, 2, 50.0, 0.01, 5.0),
    (6000, 2, 50.0, 0.01, 15.0),
]
"""Rows, columns, γ, λ, and how far the outlier is, around where both forms take as long."""


@main.command()
@click.option("--repeat", default=3, show_default=True, help="Fits of each form, in turns; the median counts.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), default=None)
def choice(repeat: int, json_path: Path | None) -> None:
    """Time of the planner's form over the faster one, around the border."""
    for n, d, gamma, alpha, outlier in CHOICES:
        with problem(n, d, "memory") as (X, y):
            X[0] = outlier
            settings: dict[str, Any] = {"kernel": "rbf", "gamma": gamma, "alpha": alpha, "progress": False}
            chosen, times = KernelRidge(**settings).fit(X, y).plan_, dict[str, list[float]]()
            for turn in range(repeat):
                forms: list[Literal["primal", "dual"]] = ["primal", "dual"]
                for form in forms[:: 1 if turn % 2 else -1]:
                    start = perf_counter()
                    KernelRidge(form=form, **settings).fit(X, y)
                    times.setdefault(form, []).append(perf_counter() - start)
        seconds = {form: float(np.median(values)) for form, values in times.items()}
        record = {"n": n, "d": d, "gamma": gamma, "alpha": alpha, "outlier": outlier, "form": chosen.form}
        regret = seconds[chosen.form] / min(seconds.values())
        write_line(stamped(record | {"seconds": seconds, "regret": regret}), json_path)


if __name__ == "__main__":
    main()
