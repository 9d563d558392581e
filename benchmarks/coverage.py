"""Coverage of intervals of new targets: CV+ and the Gaussian process, on three real data sets.

One command, one line of JSON on stdout for every data set and kind of interval, and a table on stderr::

    python -m benchmarks.coverage

Each random split draws training and held-out rows, chooses λ and γ by ten folds of the former, and counts which of the
held-out targets lie in their intervals: those of `predict_interval` (CV+), which assume nothing about the noise, and
mean ± z times the deviation of a new target under the Gaussian process, √(std² + s² λ), which assume that it is
normal and the same everywhere. The delays of flights are neither.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from time import perf_counter
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Table

import dkrr
from benchmarks import flights, qm9
from benchmarks.machine import LoadMeter, describe_machine
from benchmarks.solve import table_console, write_line

Floats = NDArray[np.float64]

FOLDS = 10
GAMMAS = (0.03, 0.1, 0.3, 1.0)
"""Candidates of γ, times 1 / columns."""
ALPHAS = (1e-3, 1e2)
"""Smallest and largest candidate of λ, of eight."""
KINDS = ("CV+", "Gaussian process")


@dataclass(frozen=True)
class Dataset:
    """Rows from which splits are drawn."""

    name: str
    unit: str
    X: Floats
    y: Floats
    n_train: int
    n_test: int


@dataclass(frozen=True)
class Intervals:
    """Coverage and width of the intervals of one split."""

    coverage: float
    width: float
    """Mean."""


def _molecules(n: int, cache: Path | None) -> Dataset:
    molecules = qm9.load(4 * n, cache=cache)
    return Dataset("QM9 energies", "kcal/mol", molecules.descriptors, molecules.target, n, n)


def _delays(n: int, cache: Path | None) -> Dataset:  # noqa: ARG001
    table = flights.load()
    rows = np.random.default_rng(0).choice(table.n, 4 * n, replace=False)
    X = flights.Encoder.of(table, flights.COLUMNS["few"], rows).encode(rows)
    return Dataset("delays of flights", "minutes", X, table.delay[rows], n, n)


def _diabetes(n: int, cache: Path | None) -> Dataset:  # noqa: ARG001
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True)
    n_train = min(n, 342)
    return Dataset("progress of diabetes", "points", X, y, n_train, len(y) - n_train)


DATASETS: Mapping[str, Callable[[int, Path | None], Dataset]] = {
    "qm9": _molecules,
    "flights": _delays,
    "diabetes": _diabetes,
}


def split(data: Dataset, seed: int) -> tuple[Floats, Floats, Floats, Floats]:
    """Training rows and targets, and held-out ones; columns standardised by the former, constant ones left out."""
    order = np.random.default_rng(seed).permutation(len(data.y))[: data.n_train + data.n_test]
    train, test = order[: data.n_train], order[data.n_train :]
    varies = np.ptp(data.X[train], axis=0) > 0
    X = data.X[:, varies]
    mean, scale = X[train].mean(axis=0), X[train].std(axis=0)
    return (X[train] - mean) / scale, data.y[train], (X[test] - mean) / scale, data.y[test]


def judge(data: Dataset, seed: int, nominal: float) -> dict[str, Intervals]:
    """Coverage and width of both kinds of intervals on one split."""
    X, y, X_test, y_test = split(data, seed)
    model = dkrr.KernelRidgeCV(
        np.geomspace(*ALPHAS, 8),
        gamma=[gamma / X.shape[1] for gamma in GAMMAS],
        cv=FOLDS,
        fit_intercept=True,
        progress=False,
    ).fit(X, y)
    mean, std = model.predict(X_test, return_std=True)
    _, unscaled = model.predict(X_test[:1], return_std=True, variance_scale=1.0)
    variance = (std[0] / unscaled[0]) ** 2  # s²
    half = NormalDist().inv_cdf((1 + nominal) / 2) * np.sqrt(std**2 + variance * model.alpha_)
    bounds = (model.predict_interval(X_test, coverage=nominal), (mean - half, mean + half))
    return {
        kind: Intervals(float(np.mean((lower <= y_test) & (y_test <= upper))), float(np.mean(upper - lower)))
        for kind, (lower, upper) in zip(KINDS, bounds, strict=True)
    }


def compare(name: str, n: int, splits: int, nominal: float, cache: Path | None) -> list[dict[str, Any]]:
    """Records of both kinds of intervals, over several splits."""
    data, load, start = DATASETS[name](n, cache), LoadMeter(), perf_counter()
    found = [judge(data, seed, nominal) for seed in range(splits)]
    seconds, watched = perf_counter() - start, load.stop().to_dict()
    shared = {
        "data": data.name,
        "n": data.n_train,
        "n_judged": data.n_test,
        "splits": splits,
        "nominal": nominal,
        "unit": data.unit,
        "deviation_of_targets": float(data.y.std()),
        "seconds_per_split": seconds / splits,
    }
    records = []
    for kind in KINDS:
        each = [asdict(one[kind]) for one in found]
        coverages = [one["coverage"] for one in each]
        figures = {
            "coverage": float(np.mean(coverages)),
            "least_coverage": min(coverages),
            "largest_coverage": max(coverages),
            "width": float(np.mean([one["width"] for one in each])),
        }
        records.append(shared | {"what": kind} | figures | {"load": watched, "machine": describe_machine()})
    return records


def result_table(records: list[dict[str, Any]]) -> Table:
    """Lay out the records for the terminal."""
    table = Table(title=f"Intervals for {records[0]['nominal']:.0%}", box=box.SIMPLE_HEAD, title_style="bold")
    for heading in ("", "intervals", "rows", "coverage", "of splits", "mean width", "deviation of targets"):
        table.add_column(heading, justify="left" if heading in ("", "intervals") else "right")
    for r in records:
        spread = f"{r['least_coverage']:.3f} – {r['largest_coverage']:.3f}"
        width, deviation = (f"{r[key]:.4g} {r['unit']}" for key in ("width", "deviation_of_targets"))
        table.add_row(r["data"], r["what"], f"{r['n']:,}", f"{r['coverage']:.3f}", spread, width, deviation)
    return table


@click.command()
@click.option("--data", "names", type=click.Choice(list(DATASETS)), multiple=True, help="Default: all.")
@click.option("--n", type=click.IntRange(min=20), default=2000, show_default=True, help="Training rows, at most.")
@click.option("--splits", type=click.IntRange(min=1), default=10, show_default=True)
@click.option("--nominal", type=float, default=0.9, show_default=True)
@click.option("--cache", type=click.Path(path_type=Path), help="Folder for QM9's descriptors.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Append the lines here too.")
def main(
    names: tuple[str, ...], n: int, splits: int, nominal: float, cache: Path | None, json_path: Path | None
) -> None:
    """Coverage of intervals on real data; a JSON line a kind on stdout, a table on stderr."""
    records = []
    for name in names or DATASETS:
        for record in compare(name, n, splits, nominal, cache):
            write_line(record, json_path)
            records.append(record)
    table_console().print(result_table(records))


if __name__ == "__main__":
    main()
