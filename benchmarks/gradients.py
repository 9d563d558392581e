"""A length for each column by gradients of the cross-validated error: what an evaluation costs, and what it brings.

One command, lines of JSON on stdout and a table on stderr::

    python -m benchmarks.gradients cost --n 20000
    python -m benchmarks.gradients lengths --n 20000 --evaluations 20

`cost` is one value of the five-fold error of molecules (QM9) with its derivatives by λ and by all 79 lengths, beside
the five-fold error alone, at the same λ. `lengths` chooses λ from ten with one γ, and then λ and 79 lengths from there;
the errors are those of molecules that neither has seen.
"""

import json
import sys
import warnings
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Literal

import click
import numpy as np
from rich.console import Console
from rich.table import Table

import dkrr
from benchmarks.iterative import data
from benchmarks.machine import LoadMeter, stamped
from dkrr.errors import ConvergenceWarning
from dkrr.limits import peak_resident_bytes
from dkrr.text import format_seconds

FOLDS = 5
ALPHAS = (1e-4, 10.0)
"""Smallest and largest λ of `lengths`."""


@click.group()
def main() -> None:
    """Gradients of the cross-validated error."""


@main.command("cost")
@click.option("--n", type=int, default=20_000, show_default=True)
@click.option("--alpha", type=float, default=0.01, show_default=True)
@click.option("--memory-limit", default="4GiB", show_default=True)
@click.option("--cache", type=click.Path(path_type=Path), default=Path("output/cache"), show_default=True)
def cost(n: int, alpha: float, memory_limit: str, cache: Path) -> None:
    """Measure one evaluation of the gradient beside the folds alone."""
    X, y, _, _ = data("qm9", n, 0, cache)
    load, begun, cpu = LoadMeter(), perf_counter(), process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # one evaluation does not converge
        search = dkrr.KernelRidgeCV(
            [alpha],
            solver="cg",
            cv=FOLDS,
            optimize="ard",
            max_evaluations=1,
            refit=False,
            memory_limit=memory_limit,
            progress=sys.stderr.isatty(),
        ).fit(X, y)
    both, cpu = perf_counter() - begun, process_time() - cpu
    alone, optimum = float(search.cv_results_["seconds"][0]), search.optimum_
    record: dict[str, Any] = {
        "n": n,
        "d": X.shape[1],
        "folds": FOLDS,
        "alpha": alpha,
        "memory_limit": memory_limit,
        "planned": optimum.plan.plan.chosen.summary(),
        "projected_seconds": optimum.plan.seconds,
        "folds_seconds": alone,
        "evaluation_seconds": both - alone,
        "cpu_seconds": cpu,
        "ratio": (both - alone) / alone,
        "stages": {stage.name: stage.seconds for stage in optimum.stages},
        "score": search.best_score_,
        "score_of_folds": float(search.cv_results_["mean_test_score"][0]),
        "peak_bytes": peak_resident_bytes(),
    }
    click.echo(json.dumps(stamped(record | {"load": load.stop().to_dict()})))
    table = Table(title=f"QM9, n = {n:,}, {FOLDS} folds at λ = {alpha:g}")
    for name in ("", "time"):
        table.add_column(name, justify="right" if name else "left")
    table.add_row("the error alone, residuals of 1e-3", format_seconds(alone))
    table.add_row(f"the error and {1 + X.shape[1]} derivatives, residuals of 1e-4", format_seconds(both - alone))
    Console(stderr=True, width=140).print(table)


@main.command("lengths")
@click.option("--n", type=int, default=20_000, show_default=True)
@click.option("--n-test", type=int, default=5_000, show_default=True)
@click.option("--n-search", type=int, default=None, help="Rows on which lengths are sought; all by default.")
@click.option("--evaluations", type=int, default=20, show_default=True)
@click.option("--memory-limit", default="4GiB", show_default=True)
@click.option("--cache", type=click.Path(path_type=Path), default=Path("output/cache"), show_default=True)
def lengths(n: int, n_test: int, n_search: int | None, evaluations: int, memory_limit: str, cache: Path) -> None:
    """Errors with one length and with one for each column."""
    X, y, X_test, y_test = data("qm9", n, n_test, cache)
    some = slice(None) if n_search is None else slice(0, n_search)
    alphas = np.geomspace(*ALPHAS, 10)
    settings: dict[str, Any] = {"memory_limit": memory_limit, "progress": sys.stderr.isatty()}
    record: dict[str, Any] = {"n": n, "n_test": n_test, "n_search": n_search, "evaluations": evaluations}
    load = LoadMeter()
    what: Literal["isotropic", "ard"]
    for what in ("isotropic", "ard"):
        begun = perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            search = dkrr.KernelRidgeCV(
                alphas,
                cv=FOLDS,
                optimize=what,
                max_evaluations=evaluations,
                refit=False,
                **settings,
            ).fit(X[some], y[some])
        seconds = perf_counter() - begun
        model = dkrr.KernelRidge(**search.best_params_, tol=1e-6, **settings).fit(X, y)
        errors = model.predict(X_test) - y_test
        record[what] = {
            "seconds": seconds,
            "evaluations": search.optimum_.n_evaluations,
            "message": search.optimum_.message,
            "alpha": search.alpha_,
            "scores": search.optimum_.scores.tolist(),
            "root_mean_square": float(np.sqrt(np.mean(errors**2))),
            "mean_absolute": float(np.mean(np.abs(errors))),
        }
    click.echo(json.dumps(stamped(record | {"load": load.stop().to_dict()})))
    table = Table(title=f"QM9, n = {n:,}: errors of {n_test:,} other molecules")
    for name in ("", "mean absolute", "root mean square", "search"):
        table.add_column(name, justify="right" if name else "left")
    for what, title in (("isotropic", "one length"), ("ard", "a length for each column")):
        found = record[what]
        table.add_row(
            title,
            f"{found['mean_absolute']:.4g}",
            f"{found['root_mean_square']:.4g}",
            f"{found['evaluations']} evaluations, {format_seconds(found['seconds'])}",
        )
    Console(stderr=True, width=140).print(table)


if __name__ == "__main__":
    main()
