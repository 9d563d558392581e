"""Choosing λ: what a whole grid of λ and folds costs beside one fit, and beside GridSearchCV and himalaya.

One command, lines of JSON on stdout and a table on stderr::

    python -m benchmarks.selection grid --n 20000 --memory-limit 4GiB
    python -m benchmarks.selection loo --n 16384
    python -m benchmarks.selection primal --n 5000000
    python -m benchmarks.selection targets --n 10000 --targets 1000

`grid` chooses among ten λ over five decades by five folds of QM9, and fits all rows; beside it one fit at the λ that
was chosen, to a residual of 1e-6, and GridSearchCV: its fits are timed on fewer rows, as many as scikit-learn's
factorisation takes without a crash, and extrapolated by n³. `targets` chooses a λ for each target, beside himalaya.
"""

import json
import subprocess
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.iterative import data
from benchmarks.machine import LoadMeter, stamped
from benchmarks.peers import run_command
from benchmarks.selection_peers import Floats, Found, Problem, measured
from dkrr import KernelRidge, KernelRidgeCV
from dkrr.limits import peak_resident_bytes
from dkrr.planning.searches import SelectionPlan
from dkrr.text import format_bytes, format_seconds

ALPHAS = (1e-4, 10.0)
"""Smallest and largest λ of `grid`."""
PEER_ROWS = 8000
"""Most rows of a fit by scikit-learn: some threaded factorisations of larger matrices crash."""
SMALL_FOLDS = 5


def planned(search: KernelRidgeCV) -> SelectionPlan:
    """Plan of a search."""
    assert search.selection_plan_ is not None
    return search.selection_plan_


def projected(plan: SelectionPlan) -> float:
    """Time to the scores, without the last fit."""
    return sum(seconds.expected for step, seconds in plan.steps() if step == "scores")


def beside_one_fit(search: KernelRidgeCV, seconds: float, alone: float) -> dict[str, Any]:
    """Plan and time of a search, and over the time of one fit."""
    return {
        "planned": planned(search).summary(),
        "projected_seconds": projected(planned(search)),
        "selection_seconds": float(search.cv_results_["seconds"][0]),
        "seconds": seconds,
        "one_fit_seconds": alone,
        "ratio": seconds / alone,
    }


@click.group()
def main() -> None:
    """Choosing λ beside one fit."""


@main.command("grid")
@click.option("--n", type=int, default=20_000, show_default=True)
@click.option("--n-alphas", type=int, default=10, show_default=True)
@click.option("--folds", type=int, default=SMALL_FOLDS, show_default=True)
@click.option("--memory-limit", default="4GiB", show_default=True)
@click.option("--peer/--no-peer", default=True, show_default=True)
@click.option("--cache", type=click.Path(path_type=Path), default=Path("output/cache"), show_default=True)
def grid(n: int, n_alphas: int, folds: int, memory_limit: str, peer: bool, cache: Path) -> None:
    """λ × folds of QM9 beside one fit at the λ that was chosen."""
    X, y, _, _ = data("qm9", n, 0, cache)
    alphas, gamma = np.geomspace(*ALPHAS, n_alphas), 1 / X.shape[1]
    load = LoadMeter()
    start = perf_counter()
    search = KernelRidgeCV(
        alphas, gamma=gamma, cv=folds, tol=1e-6, memory_limit=memory_limit, progress=sys.stderr.isatty()
    ).fit(X, y)
    seconds, results = perf_counter() - start, search.cv_results_
    one_begun = perf_counter()
    one = KernelRidge(
        alpha=search.alpha_, kernel="rbf", gamma=gamma, solver="cg", tol=1e-6, memory_limit=memory_limit
    ).fit(X, y)
    alone = perf_counter() - one_begun
    record: dict[str, Any] = {
        "n": n,
        "n_alphas": n_alphas,
        "folds": folds,
        "memory_limit": memory_limit,
        "planned": planned(search).summary(),
        "projected_seconds": projected(planned(search)),
        "selection_seconds": float(results["seconds"][0]),
        "seconds": seconds,
        "one_fit_seconds": alone,
        "one_fit_iterations": one.solve_result_.iterations,
        "alpha": search.alpha_,
        "score": search.best_score_,
        "iterations": results["iterations"].tolist(),
        "stopped": int(results["stopped"].sum()),
        "residual": float(np.nanmax(results["residual"])),
        "peak_bytes": peak_resident_bytes(),
        "ratio": seconds / alone,
    }
    if peer:
        record["peer_seconds"] = _grid_search_seconds(X, y, float(search.alpha_), gamma, n_alphas, folds)
        record["ratio_to_peer"] = seconds / record["peer_seconds"]
    click.echo(json.dumps(stamped(record | {"load": load.stop().to_dict()})))
    table = Table(title=f"QM9, n = {n:,}, {n_alphas} λ × {folds} folds and the last fit")
    for name in ("", "time", "over one fit"):
        table.add_column(name, justify="left" if not name else "right")
    table.add_row("KernelRidgeCV", format_seconds(seconds), f"{seconds / alone:.2f}")
    table.add_row("one fit to 1e-6", format_seconds(alone), "1")
    if peer:
        peer_seconds = record["peer_seconds"]
        table.add_row("GridSearchCV, extrapolated", format_seconds(peer_seconds), f"{peer_seconds / alone:.1f}")
    table.caption = f"peak {format_bytes(record['peak_bytes'])}; {record['planned']}; {record['stopped']} λ stopped"
    Console(stderr=True, width=140).print(table)


def _grid_search_seconds(X: Any, y: Any, alpha: float, gamma: float, n_alphas: int, folds: int) -> float:
    """Time of GridSearchCV with scikit-learn's KernelRidge: of one fit and prediction, times their number, by n³."""
    from sklearn.kernel_ridge import KernelRidge

    n, training = len(X), len(X) - len(X) // folds
    rows, held_out = min(training, PEER_ROWS), min(n // folds, PEER_ROWS // (folds - 1))
    start = perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = KernelRidge(alpha=alpha, kernel="rbf", gamma=gamma).fit(X[:rows], y[:rows])
    model.predict(X[-held_out:])
    one = perf_counter() - start
    return one * (n_alphas * folds * (training / rows) ** 3 + (n / rows) ** 3)


@main.command("loo")
@click.option("--n", type=int, default=16_384, show_default=True)
@click.option("--d", type=int, default=16, show_default=True)
def leave_one_out(n: int, d: int) -> None:
    """Leave-one-out of one λ beside one fit by a float64 factorisation."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(n)
    load, start = LoadMeter(), perf_counter()
    KernelRidge(alpha=0.01, kernel="rbf", gamma=1 / d, solver="cholesky", progress=False).fit(X, y)
    alone = perf_counter() - start
    start = perf_counter()
    search = KernelRidgeCV(
        [0.01], gamma=1 / d, cv="loo", solver="cholesky", refit=False, progress=sys.stderr.isatty()
    ).fit(X, y)
    seconds = perf_counter() - start
    record = {
        "n": n,
        **beside_one_fit(search, seconds, alone),
        "score": search.best_score_,
        "peak_bytes": peak_resident_bytes(),
    }
    click.echo(json.dumps(stamped(record | {"load": load.stop().to_dict()})))


@main.command("primal")
@click.option("--n", type=int, default=5_000_000, show_default=True)
@click.option("--d", type=int, default=100, show_default=True)
@click.option("--n-alphas", type=int, default=10, show_default=True)
@click.option("--folds", type=int, default=SMALL_FOLDS, show_default=True)
def primal(n: int, d: int, n_alphas: int, folds: int) -> None:
    """λ × folds of a linear kernel beside one fit, and beside the pass over the rows that it makes.

    Both are done twice, in turns, and the shorter times count: the first fit of a process also loads libraries.
    """
    rng = np.random.default_rng(0)
    X = np.empty((n, d))
    for begin in range(0, n, 100_000):
        X[begin : begin + 100_000] = rng.standard_normal((min(100_000, n - begin), d))
    y = X @ rng.standard_normal(d) + rng.standard_normal(n)
    load, fits, searches, passes = LoadMeter(), list[float](), list[float](), list[float]()
    for _ in range(2):
        start = perf_counter()
        one = KernelRidge(alpha=1.0, kernel="linear", progress=False).fit(X, y)
        fits.append(perf_counter() - start)
        passes.append(next(s.seconds for s in one.solve_result_.stages if s.name == "normal matrix"))
        start = perf_counter()
        search = KernelRidgeCV(
            np.geomspace(1e-2, 1e6, n_alphas), kernel="linear", cv=folds, refit=False, progress=sys.stderr.isatty()
        ).fit(X, y)
        searches.append(perf_counter() - start)
    record = {
        "n": n,
        "d": d,
        "n_alphas": n_alphas,
        "folds": folds,
        **beside_one_fit(search, min(searches), min(fits)),
        "pass_seconds": min(passes),
        "ratio_to_pass": min(searches) / min(passes),
        "alpha": search.alpha_,
        "peak_bytes": peak_resident_bytes(),
    }
    click.echo(json.dumps(stamped(record | {"load": load.stop().to_dict()})))


@main.command("targets")
@click.option("--n", type=int, default=10_000, show_default=True)
@click.option("--d", type=int, default=16, show_default=True)
@click.option("--targets", "n_targets", type=int, default=1000, show_default=True)
@click.option("--n-alphas", type=int, default=10, show_default=True)
@click.option("--folds", type=int, default=SMALL_FOLDS, show_default=True)
@click.option("--himalaya-python", default=sys.executable, help="An interpreter that has himalaya.")
@click.option("--peer-timeout", type=click.FloatRange(min=1), help="Seconds after which a process is stopped.")
def targets(
    n: int, d: int, n_targets: int, n_alphas: int, folds: int, himalaya_python: str, peer_timeout: float | None
) -> None:
    """A λ for each of many targets, beside himalaya: one line, each in its own process with all cores."""
    problem = Problem(n, d, n_targets, tuple(np.geomspace(1e-3, 1e2, n_alphas).tolist()), folds)
    load, has_peer = LoadMeter(), _has_himalaya(himalaya_python)
    with TemporaryDirectory(prefix="dkrr-benchmark-") as scratch:
        file = Path(scratch) / "problem.json"
        file.write_text(json.dumps(asdict(problem)))
        own, peer = (Path(scratch) / f"{name}.npz" for name in ("dkrr", "himalaya"))
        command = [sys.executable, "-m", "benchmarks.selection", "targets-fit", str(file), "--found", str(own)]
        record: dict[str, Any] = asdict(problem) | {"dkrr": run_command(command, peer_timeout)}
        record["load"] = load.stop().to_dict()
        if has_peer:
            command = [himalaya_python, "-m", "benchmarks.selection_peers", "himalaya", str(file)]
            record["himalaya"] = run_command([*command, "--found", str(peer)], peer_timeout)
        else:
            record["himalaya"] = {"missing": "himalaya is not installed: pip install 'dkrr[benchmarks]'"}
        if own.exists() and peer.exists():
            record["ratios"] = {
                key: record["dkrr"][key] / record["himalaya"][key] for key in ("seconds", "peak_bytes")
            } | _agreement(own, peer)
    click.echo(json.dumps(stamped(record)))


def _agreement(own: Path, peer: Path) -> dict[str, float]:
    """Fraction of the targets for which both chose one λ, and the largest relative difference of their scores."""
    with np.load(own) as a, np.load(peer) as b:
        return {
            "same_alpha": float(np.isclose(a["alphas"], b["alphas"]).mean()),
            "score_difference": float(np.abs(a["scores"] / b["scores"] - 1).max()),
        }


def _has_himalaya(python: str) -> bool:
    return subprocess.run([python, "-c", "import himalaya"], capture_output=True, check=False).returncode == 0


@main.command("targets-fit")
@click.argument("problem", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--found", type=click.Path(path_type=Path), required=True, help="File for what was chosen (.npz).")
def targets_fit(problem: Path, found: Path) -> None:
    """Choose λ for every target and print a line of JSON."""
    searches = list[KernelRidgeCV]()

    def solve(problem: Problem, X: Floats, Y: Floats) -> Found:
        search = KernelRidgeCV(
            problem.alphas, gamma=problem.gamma, cv=problem.folds, alpha_per_target=True, progress=False
        )
        searches.append(search.fit(X, Y))
        return np.asarray(search.alpha_), np.asarray(search.best_score_)

    record = measured(Problem(**json.loads(problem.read_text())), solve, found)
    plan = planned(searches[0])
    record |= {"planned": plan.summary(), "projected_seconds": projected(plan), "projected_peak_bytes": plan.peak_bytes}
    record["selection_seconds"] = float(searches[0].cv_results_["seconds"][0])
    click.echo(json.dumps(record))


if __name__ == "__main__":
    main()
