"""Plans of searches against reality: 50 small varied ones, and whether the time lies in the range of the plan.

One command, a line of JSON for each search on stdout and a table on stderr; about five minutes on two idle cores::

    python -m benchmarks.searches run --json output/searches.jsonl

Every search runs in its own process, with another mix of data, kernels, λ, folds, targets, weights and memory. The
time is that of the whole call of ``fit``: what it reads, checks and plans, all scores, the learning curve and the last
fit. The goal is that the range of the plan has it in nine of ten.
"""

import json
import subprocess
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.machine import LoadMeter, stamped
from dkrr import KernelLogisticRegressionCV, KernelRidgeCV
from dkrr.errors import MemoryLimitError
from dkrr.text import format_seconds

Floats = NDArray[np.float64]

SEED = 20
N_SEARCHES = 50
REAL = ("diabetes", "digits", "cancer", "linnerud")
"""Data that scikit-learn brings along."""
COVERED = 0.9
"""Goal: fraction of the searches whose time lies within the range of the plan."""
TIMEOUT = 120.0
"""Seconds after which a search is stopped."""
KERNELS = ("rbf", "laplacian", "linear", "polynomial", "matern")
KERNEL_ODDS = (0.4, 0.2, 0.15, 0.1, 0.15)


@dataclass(frozen=True)
class Case:
    """Settings of a search."""

    data: str
    n: int
    d: int
    t: int = 1
    kernels: tuple[str, ...] = ("rbf",)
    gammas: tuple[float, ...] = (1.0,)
    """γ over 1 / d."""
    n_alphas: int = 5
    smallest: float = 1e-4
    """Smallest λ; the largest is 10."""
    cv: int | str = 5
    fit_intercept: bool = False
    weights: bool = False
    memory_limit: str | None = None
    solver: str = "auto"
    logistic: bool = False
    train_sizes: tuple[float, ...] = ()
    refit: bool = True
    per_target: bool = False
    early_stopping: bool = True
    optimize: str | None = None

    @property
    def name(self) -> str:
        """Description in a line."""
        size = f"{self.data} {self.n} × {self.d}" + (f" × {self.t}" if self.t > 1 else "")
        grid = f"{'+'.join(self.kernels)}, {len(self.gammas)} γ, {self.n_alphas} λ, cv {self.cv}"
        flags = ["logistic"] * self.logistic + ["weights"] * self.weights + ["intercept"] * self.fit_intercept
        flags += [self.memory_limit or ""] * bool(self.memory_limit)
        flags += [] if self.solver == "auto" else [self.solver]
        flags += ["curve"] * bool(self.train_sizes) + [self.optimize or ""] * bool(self.optimize)
        return ", ".join([size, grid, *map(str, flags)])

    def rows(self) -> tuple[Floats, Any, Floats | None]:
        """X, targets or labels, and weights."""
        rng = np.random.default_rng([SEED, self.n, self.d])
        X, y = _real(self.data, self.n) if self.data in REAL else _made_up(self, rng)
        weights = rng.uniform(0.2, 2.0, len(X)) if self.weights else None
        if self.logistic:
            first = y if y.ndim == 1 else y[:, 0]
            levels = np.quantile(first, np.arange(1, max(2, self.t)) / max(2, self.t))
            return X, np.digitize(first, levels), weights
        return X, y, weights

    def settings(self, X: Floats) -> dict[str, Any]:
        """Arguments of the estimator."""
        d = X.shape[1]
        kernels = [*self.kernels]
        takes_gamma = any(kernel in ("rbf", "laplacian", "polynomial") for kernel in kernels)
        found: dict[str, Any] = {
            "alphas": np.geomspace(self.smallest, 10.0, self.n_alphas).tolist(),
            "kernel": kernels if len(kernels) > 1 else kernels[0],
            "cv": self.cv,
            "fit_intercept": self.fit_intercept,
            "memory_limit": self.memory_limit,
            "solver": self.solver,
            "refit": self.refit,
            "train_sizes": self.train_sizes or None,
        }
        if takes_gamma:
            found["gamma"] = [gamma / d for gamma in self.gammas]
        if not self.logistic:
            found |= {
                "alpha_per_target": self.per_target,
                "early_stopping": self.early_stopping,
                "optimize": self.optimize,
                "max_evaluations": 15,
            }
        return found

    def search(self, X: Floats) -> Any:
        """The estimator."""
        estimator = KernelLogisticRegressionCV if self.logistic else KernelRidgeCV
        return estimator(**self.settings(X), progress=False)


def _real(name: str, n: int) -> tuple[Floats, Floats]:
    from sklearn import datasets

    load = {"diabetes": "load_diabetes", "digits": "load_digits", "cancer": "load_breast_cancer"}
    X, y = getattr(datasets, load.get(name, "load_linnerud"))(return_X_y=True)
    order = np.random.default_rng(SEED).permutation(len(X))[:n]
    X = np.ascontiguousarray(X[order], np.float64)
    scale = X.std(axis=0)
    return (X - X.mean(axis=0)) / np.where(scale > 0, scale, 1.0), np.asarray(y[order], np.float64)


def _made_up(case: Case, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Columns that are independent (`normal`), correlated (`correlated`), uniform or in clusters."""
    n, d = case.n, case.d
    X = rng.standard_normal((n, d))
    if case.data == "correlated":
        X = X @ (rng.standard_normal((d, d)) * (1.0 + np.arange(d)) ** -1.0)
        X /= X.std(axis=0)
    elif case.data == "uniform":
        X = rng.uniform(-1.0, 1.0, (n, d))
    elif case.data == "clusters":
        X = 0.2 * X + rng.standard_normal((10, d))[rng.integers(10, size=n)]
    noise = 10.0 ** rng.uniform(-2, 0)
    Y = np.sin(X @ rng.standard_normal((d, case.t)) / d**0.5) + noise * rng.standard_normal((n, case.t))
    return X, Y[:, 0] if case.t == 1 else Y


def cases(seed: int = SEED) -> list[Case]:
    """The searches, drawn once and for all."""
    rng, found = np.random.default_rng(seed), list[Case]()
    for k in range(N_SEARCHES):
        real = k % 4 == 0
        data = str(rng.choice(REAL[:3] if real else ("normal", "correlated", "uniform", "clusters")))
        n = int({"diabetes": 442, "cancer": 569}.get(data, round(200 * 20 ** rng.uniform(0, 1))))
        n, d = (min(n, 1797), 64) if data == "digits" else (n, {"diabetes": 10, "cancer": 30}.get(data, 0))
        d = d or round(2 * 40 ** rng.uniform(0, 1))
        kernels = tuple(str(name) for name in rng.choice(KERNELS, 1 + (rng.random() < 0.3), False, KERNEL_ODDS))
        case = Case(
            data,
            n,
            d,
            1 if real else int(rng.choice((1, 1, 1, 2, 5))),
            kernels,
            tuple(4.0**e for e in range(int(rng.integers(1, 5)))),
            int(rng.choice((1, 2, 3, 5, 8, 12))),
            float(10.0 ** -rng.integers(2, 7)),
            [2, 3, 5, 5, 10, "loo"][rng.integers(6)],  # type: ignore[arg-type]
            bool(rng.random() < 0.4),
            bool(rng.random() < 0.25),
        )
        found.append(_varied(case, k, rng))
    return found


def _varied(case: Case, k: int, rng: np.random.Generator) -> Case:
    """Case with settings that only some searches have."""
    folds = case.cv if case.cv != "loo" else 5
    if k % 10 == 3:
        classes = 3 if case.data != "cancer" and rng.random() < 0.4 else 2
        n, gammas = min(case.n, 1200), case.gammas[:2]
        logistic = replace(case, n=n, t=classes, gammas=gammas, cv=folds, logistic=True, weights=False)
        return replace(logistic, n_alphas=min(case.n_alphas, 5), smallest=max(case.smallest, 1e-3), fit_intercept=True)
    if k % 10 == 5:
        return replace(case, n=max(case.n, 3000), memory_limit="400MiB", gammas=case.gammas[:2], cv=folds)
    if k % 10 == 7:
        return replace(case, n=min(case.n, 2500), solver="cg", cv=folds, gammas=case.gammas[:2])
    if k % 10 == 9:
        return replace(case, n=min(case.n, 2000), train_sizes=(0.25, 0.5), cv=folds, gammas=case.gammas[:2])
    if k == 12 or k == 36:
        return replace(case, kernels=("rbf",), cv=folds, t=1, optimize="alpha" if k == 12 else "isotropic", n=1500)
    if k % 10 == 1:
        return replace(case, early_stopping=False, per_target=case.t > 1, refit=bool(rng.random() < 0.5))
    return case


def measure(number: int, case: Case) -> dict[str, Any]:
    """Plan of a search, and what it took."""
    X, y, weights = case.rows()
    search = case.search(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # λ without a score are part of the game
        meter, start = LoadMeter(), perf_counter()
        search.fit(X, y, sample_weight=weights)
        seconds = perf_counter() - start
    plan = search.selection_plan_
    low, high = plan.seconds_range
    return {
        "number": number,
        "case": case.name,
        "settings": asdict(case),
        "method": plan.method,
        "planned": plan.summary(),
        "projected_seconds": plan.seconds,
        "seconds_range": [low, high],
        "seconds": seconds,
        "is_inside": low <= seconds <= high,
        "load": meter.stop().to_dict(),
    }


def summary(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Share of the searches within their ranges, and how wide these are."""
    widths = [high / low for low, high in (r["seconds_range"] for r in records)]
    return {
        "searches": len(records),
        "inside": sum(r["is_inside"] for r in records) / len(records),
        "goal": COVERED,
        "high_over_low": {"median": float(np.median(widths)), "largest": max(widths)},
        "measured_over_projected": float(np.median([r["seconds"] / r["projected_seconds"] for r in records])),
        "noisy": sum(r["load"]["noisy"] for r in records),
    }


@click.group()
def main() -> None:
    """Times of searches and the ranges of their plans."""


@main.command("run")
@click.option("--only", help="Numbers of searches, with commas between.")
@click.option("--seed", default=SEED, show_default=True, help="Of the searches; the constants of plans know the first.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="File to which lines are added.")
def run(only: str | None, seed: int, json_path: Path | None) -> None:
    """Every search in its own process, beside its plan; one that its limit of memory refuses does not count."""
    records = list[dict[str, Any]]()
    for number in range(N_SEARCHES) if only is None else map(int, only.split(",")):
        command = [sys.executable, "-m", "benchmarks.searches", "one", str(number), "--seed", str(seed)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=True)
        found = json.loads(done.stdout)
        _write(found, json_path)
        records += [] if "refused" in found else [found]
    _write(stamped({"benchmark": "searches", "summary": summary(records)}), json_path)
    table = Table(title="searches: measured time, and the range of the plan", box=box.SIMPLE_HEAD)
    for name in ("", "search", "way", "low", "projected", "high", "measured", ""):
        table.add_column(name, justify="left" if name in ("", "search", "way") else "right")
    for r in records:
        times = [r["seconds_range"][0], r["projected_seconds"], r["seconds_range"][1], r["seconds"]]
        remarks = ["OUTSIDE"] * (not r["is_inside"]) + ["NOISY"] * r["load"]["noisy"]
        table.add_row(str(r["number"]), r["case"], r["method"], *map(format_seconds, times), " ".join(remarks))
    console, totals = Console(stderr=True, width=170), summary(records)
    console.print(table)
    console.print(
        f"{totals['inside']:.0%} inside (goal {COVERED:.0%}); high over low {totals['high_over_low']['median']:.1f} in "
        f"the median, {totals['high_over_low']['largest']:.1f} at most; measured over projected "
        f"{totals['measured_over_projected']:.2f} in the median; {totals['noisy']} noisy"
    )


def _write(record: dict[str, Any], path: Path | None) -> None:
    line = json.dumps(record)
    click.echo(line)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(f"{line}\n")


@main.command("one", hidden=True)
@click.argument("number", type=int)
@click.option("--seed", default=SEED)
def one(number: int, seed: int) -> None:
    """Run one search in this process and print a line of JSON."""
    case = cases(seed)[number]
    try:
        found = measure(number, case)
    except MemoryLimitError as error:  # the limits of the searches are drawn, too
        found = {"number": number, "case": case.name, "refused": str(error)}
    click.echo(json.dumps(found))


if __name__ == "__main__":
    main()
