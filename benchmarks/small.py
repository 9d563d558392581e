"""Small problems: dkrr beside scikit-learn's KernelRidge in one process: fit, predict many rows, predict one row.

One command, one line of JSON on stdout for each size and a table on stderr::

    python -m benchmarks.small

A fit and one predicted row must not take more than 1.2 times as long as with scikit-learn, and from 1,000 rows on not
more than 0.6 times; one row that a fitted model predicts not more than 1.2 times. The two take turns, so that both see
the same machine, and the medians are compared.
"""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import click
import numpy as np
from rich import box
from rich.table import Table

import dkrr
from benchmarks.machine import LoadMeter, describe_machine
from benchmarks.peers import ALPHA, Floats, Problem
from benchmarks.solve import table_console, write_line

SIZES = (100, 500, 1000, 2000, 5000)
N_FEATURES = 10
N_PREDICTED = 500
REPETITIONS = 9
"""The fewest that the goal is judged by."""
ONE_ROW_CALLS = 20
"""Predictions of one row in each repetition, of which the median counts."""
MAX_TIME_RATIO = 1.2
LARGER_GOAL = (1000, 0.6)
"""Rows from which a fit must be faster, and the goal there."""


@dataclass(frozen=True)
class Times:
    """Seconds of one repetition."""

    fit: float
    predict: float
    """N_PREDICTED rows."""
    one_row: float

    @property
    def total(self) -> float:
        """Fit, and predict one row."""
        return self.fit + self.one_row


def time_once(make: Callable[[], Any], X: Floats, y: Floats, X_new: Floats) -> tuple[Times, Floats]:
    """Fit, predict all new rows, and predict one of them after the other, with a new estimator.

    Parameters
    ----------
    make : callable
        Gives the estimator.
    X : ndarray of shape (n, d)
    y : ndarray of shape (n,)
    X_new : ndarray of shape (n_predicted, d)

    Returns
    -------
    times : Times
    predicted : ndarray of shape (n_predicted,)
    """
    model = make()
    gc.collect()  # the last repetition's waste is not this one's
    start = perf_counter()
    model.fit(X, y)
    fitted = perf_counter()
    predicted = model.predict(X_new)
    ended, singles = perf_counter(), list[float]()
    for k in range(ONE_ROW_CALLS):
        began = perf_counter()
        model.predict(X_new[k : k + 1])
        singles.append(perf_counter() - began)
    return Times(fitted - start, ended - fitted, median(singles)), np.asarray(predicted, dtype=np.float64)


def compare(n: int, repetitions: int = REPETITIONS) -> dict[str, Any]:
    """Measure both at one size, in turns.

    Parameters
    ----------
    n : int
        Rows to fit.
    repetitions : int

    Returns
    -------
    dict
        Values of JSON; "ratio" is dkrr's median time over scikit-learn's for a fit and one predicted row,
        "one_row_ratio" for that row alone, "largest_difference" that between the predictions, relative to the largest
        of them.
    """
    from sklearn.kernel_ridge import KernelRidge

    problem = Problem(n + N_PREDICTED, N_FEATURES)
    X, y = problem.data()
    settings: dict[str, Any] = {"alpha": ALPHA, "kernel": "rbf", "gamma": problem.gamma}
    makers = {"dkrr": lambda: dkrr.KernelRidge(**settings), "sklearn": lambda: KernelRidge(**settings)}
    times: dict[str, list[Times]] = {name: [] for name in makers}
    predicted: dict[str, Floats] = {}
    for make in makers.values():  # imports and pages, once
        time_once(make, X[:n], y[:n], X[n:])
    meter = LoadMeter()
    for turn in range(repetitions):
        for name in sorted(makers, reverse=bool(turn % 2)):
            one, predicted[name] = time_once(makers[name], X[:n], y[:n], X[n:])
            times[name].append(one)
    load = meter.stop()
    medians = {name: median(one.total for one in several) for name, several in times.items()}
    singles = {name: median(one.one_row for one in several) for name, several in times.items()}
    difference = np.abs(predicted["dkrr"] - predicted["sklearn"]).max() / np.abs(predicted["sklearn"]).max()
    return {
        "benchmark": "small",
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "n": n,
        "d": N_FEATURES,
        "n_predicted": N_PREDICTED,
        "repetitions": repetitions,
        "machine": describe_machine(),
        "load": load.to_dict(),
        **{
            name: {
                "seconds": medians[name],
                "fit_seconds": median(one.fit for one in several),
                "predict_seconds": median(one.predict for one in several),
                "one_row_seconds": singles[name],
                "least_seconds": min(one.total for one in several),
            }
            for name, several in times.items()
        },
        "largest_difference": float(difference),
        "ratio": medians["dkrr"] / medians["sklearn"],
        "goal": LARGER_GOAL[1] if n >= LARGER_GOAL[0] else MAX_TIME_RATIO,
        "one_row_ratio": singles["dkrr"] / singles["sklearn"],
        "one_row_goal": MAX_TIME_RATIO,
    }


def result_table(records: list[dict[str, Any]]) -> Table:
    """Lay out the records of all sizes for the terminal."""
    table = Table(title="medians: dkrr / scikit-learn = ratio", box=box.SIMPLE_HEAD, title_style="bold")
    for heading in ("n", "fit + one row", "fit", f"predict {N_PREDICTED}", "predict one row", ""):
        table.add_column(heading, justify="right")
    for record in records:
        ours, theirs = record["dkrr"], record["sklearn"]
        cells = [
            f"{ours[key] * 1e3:.2f} / {theirs[key] * 1e3:.2f} ms = {ours[key] / theirs[key]:.2f}"
            for key in ("seconds", "fit_seconds", "predict_seconds", "one_row_seconds")
        ]
        above = [
            f"{what} above {record[goal]}"
            for what, ratio, goal in (("ratio", "ratio", "goal"), ("one row", "one_row_ratio", "one_row_goal"))
            if record[ratio] > record[goal]
        ]
        noise = ["NOISY, do not quote"] if record["load"]["noisy"] else []
        table.add_row(f"{record['n']:,}", *cells, ", ".join(above + noise))
    return table


@click.command()
@click.option(
    "--n", "sizes", type=click.IntRange(min=2), multiple=True, default=SIZES, show_default=True, help="Rows; repeat."
)
@click.option(
    "--repeat", type=click.IntRange(min=1), default=REPETITIONS, show_default=True, help="Turns of each; 9 or more."
)
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Append the lines here too.")
def main(sizes: tuple[int, ...], repeat: int, json_path: Path | None) -> None:
    """Measure small fits beside scikit-learn's; a JSON line a size on stdout, a table on stderr."""
    records = []
    for n in sizes:
        records.append(compare(n, repeat))
        write_line(records[-1], json_path)
    table_console().print(result_table(records))


if __name__ == "__main__":
    main()
