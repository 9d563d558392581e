"""Several kernels in one run: what forming their tiles together saves, beside one kernel after another.

One command, lines of JSON on stdout and a table on stderr::

    python -m benchmarks.several_kernels products --n 10000
    python -m benchmarks.several_kernels search --n 12000 --kernel laplacian --memory-limit 600MiB

`products` times one pass over tiles that are formed each time, for every kernel with vectors of its own, by processor
time (least of several). `search` chooses among four γ, λ and folds of QM9 in one search, and in four searches of one γ
each, whose runs share nothing.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

import dkrr
from benchmarks.iterative import data
from benchmarks.machine import LoadMeter, stamped
from dkrr.kernels import RBF, Columns, Kernel, Laplacian, weighted_sums
from dkrr.kernels.families import KernelFamily
from dkrr.linalg.family_operator import FamilyOperator, FamilyTiles
from dkrr.linalg.sources import GramTiles
from dkrr.linalg.tiled_operator import TiledOperator
from dkrr.rows import MemoryRows
from dkrr.runtime import ThreadExecutor
from dkrr.runtime.task import peak_resident_bytes
from dkrr.tiles import TileGrid

FACTORS = (0.25, 0.5, 1.0, 2.0)
"""γ times the number of columns."""
N_BANDS = 4
"""Groups of columns of the weighted sums."""
N_SUMS = 8
TILE = 1000


def families_of(d: int) -> dict[str, list[Kernel]]:
    """Kernels by the name of what they share."""
    width = d // N_BANDS
    bands = [Columns(RBF(1.0 / width), list(range(k * width, (k + 1) * width))) for k in range(N_BANDS)]
    return {
        "rbf": [RBF(factor / d) for factor in FACTORS],
        "laplacian": [Laplacian(factor / d) for factor in FACTORS],
        "sums": weighted_sums(bands, N_SUMS),
    }


def least(work: Callable[[], Any], other: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Least processor time of two ways, in turn."""
    found = [np.inf, np.inf]
    for _ in range(repeats):
        for k, one in enumerate((work, other)):
            start = time.process_time()
            one()
            found[k] = min(found[k], time.process_time() - start)
    return found[0], found[1]


@click.group()
def main() -> None:
    """Several kernels in one run."""


@main.command("products")
@click.option("--n", type=int, default=10_000, show_default=True)
@click.option("--d", type=int, default=79, show_default=True)
@click.option("--columns", type=int, multiple=True, default=(10, 50), show_default=True, help="Vectors of each kernel.")
@click.option("--repeats", type=int, default=3, show_default=True)
def products(n: int, d: int, columns: tuple[int, ...], repeats: int) -> None:
    """One pass over the tiles of every kernel, together and one by one."""
    rng = np.random.default_rng(0)
    X, cores = rng.standard_normal((n, d)), len(os.sched_getaffinity(0))
    rows, grid = MemoryRows(X), TileGrid(n, min(n, TILE), min(n, TILE))
    table = Table(title=f"Products with the matrices of several kernels, n = {n:,}, d = {d}: processor time")
    for name in ("kernels", "precision", "vectors", "one by one", "together", "gain"):
        table.add_column(name, justify="left" if name == "kernels" else "right")
    with ThreadExecutor(cores) as executor:
        for name, kernels in families_of(d).items():
            family = FamilyOperator(FamilyTiles(KernelFamily(tuple(kernels)), rows), grid, cores)
            singles = [TiledOperator(GramTiles(k, rows), grid, executor, "benchmark", slots=cores) for k in kernels]
            for precision in ("float64", "float32"):
                for m in columns:
                    V = rng.standard_normal((n, m))

                    def one_by_one() -> None:
                        for operator in singles:  # noqa: B023
                            operator.multiply(V, precision)  # noqa: B023

                    def together() -> None:
                        family.multiply(executor, dict.fromkeys(range(len(kernels)), V), precision)  # noqa: B023

                    load = LoadMeter()
                    apart, joint = least(one_by_one, together, repeats)
                    record = {
                        "benchmark": "several_kernels products",
                        "kernels": name,
                        "n_kernels": len(kernels),
                        "n": n,
                        "d": d,
                        "precision": precision,
                        "vectors": m,
                        "one_by_one_cpu_seconds": apart,
                        "together_cpu_seconds": joint,
                        "gain": apart / joint,
                    }
                    click.echo(json.dumps(stamped(record | {"load": load.stop().to_dict()})))
                    what = f"{len(kernels)} {name}"
                    table.add_row(what, precision, str(m), f"{apart:.2f} s", f"{joint:.2f} s", f"{apart / joint:.2f} ×")
    Console(stderr=True, width=120).print(table)


@main.command("search")
@click.option("--n", type=int, default=12_000, show_default=True)
@click.option("--kernel", type=click.Choice(["rbf", "laplacian"]), default="laplacian", show_default=True)
@click.option("--n-alphas", type=int, default=6, show_default=True)
@click.option("--folds", type=int, default=5, show_default=True)
@click.option("--memory-limit", default="600MiB", show_default=True)
@click.option("--cache", type=click.Path(path_type=Path), default=Path("output/cache"), show_default=True)
def search(n: int, kernel: str, n_alphas: int, folds: int, memory_limit: str, cache: Path) -> None:
    """Four γ in one search, and in four of one γ each, with memory for few tiles."""
    X, y, _, _ = data("qm9", n, 0, cache)
    gammas = [factor / X.shape[1] for factor in FACTORS]
    settings: dict[str, Any] = {
        "kernel": kernel,
        "cv": folds,
        "solver": "cg",
        "refit": False,
        "memory_limit": memory_limit,
        "progress": sys.stderr.isatty(),
    }
    alphas, load, start = np.geomspace(1e-3, 10.0, n_alphas), LoadMeter(), time.process_time()
    one = dkrr.KernelRidgeCV(alphas, gamma=gammas, **settings).fit(X, y)
    together, begun = time.process_time() - start, time.process_time()
    several = [dkrr.KernelRidgeCV(alphas, gamma=gamma, **settings).fit(X, y) for gamma in gammas]
    apart = time.process_time() - begun
    best = max(several, key=lambda found: found.best_score_)
    record = {
        "benchmark": "several_kernels search",
        "n": n,
        "kernel": kernel,
        "memory_limit": memory_limit,
        "planned": one.selection_plan_.summary() if one.selection_plan_ else "",
        "together_cpu_seconds": together,
        "one_by_one_cpu_seconds": apart,
        "gain": apart / together,
        "best": [one.best_params_, one.best_score_],
        "best_one_by_one": [best.best_params_ | {"gamma": best.gamma}, best.best_score_],
        "iterations": one.cv_results_["iterations"].reshape(len(gammas), -1).max(axis=1).tolist(),
        "iterations_one_by_one": [int(found.cv_results_["iterations"].max()) for found in several],
        "peak_bytes": peak_resident_bytes(),
    }
    click.echo(json.dumps(stamped(record | {"load": load.stop().to_dict()})))
    Console(stderr=True, width=140).print(
        f"{one.selection_plan_}\nprocessor time {together:.1f} s, one by one {apart:.1f} s"
    )


if __name__ == "__main__":
    main()
