"""Kernel logistic regression measured: what it predicts, how long it takes, and what a Newton step costs.

``python -m benchmarks.logistic small`` (and ``flights``, ``core``, ``path``) prints one line of JSON a fit on stdout
and a table on stderr. Every fit of ``flights`` and ``core`` runs in a fresh process, so that its peak memory is its
own; the rows (see :mod:`benchmarks.flights`) lie in a temporary folder meanwhile. ``peak_bytes`` is the largest peak of
the processes that did the work, ``process_peak_bytes`` that of the calling process.

``step_over_ridge`` of ``core`` is the mean time of a Newton step over the time of a ridge regression of the same rows,
solver and limit, with λ' = 8 λ: at p = ½ that is the shift of a Newton system. γ and λ of ``core`` and ``path`` are the
best of a coarse grid at 3,000 rows; those of ``small`` are not tuned. ``probability_difference`` of ``flights`` is the
largest difference from scikit-learn's ``LogisticRegression(C=1)``, most of which is its tolerance.
"""

import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest import mock

import click
import dask
import numpy as np
import zarr
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

import dkrr
from benchmarks import flights, machine
from benchmarks.candidates import choosing
from benchmarks.flights import Stored
from benchmarks.local_client import local_client
from benchmarks.machine import LoadMeter, describe_machine
from benchmarks.peers import run_command
from benchmarks.solve import write_line
from dkrr.checks import parse_bytes
from dkrr.config import setting
from dkrr.limits import peak_resident_bytes
from dkrr.linalg import TASK_MODULES
from dkrr.linalg.result import NewtonStep
from dkrr.text import format_bytes, format_seconds

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
Record = dict[str, Any]

SPLIT_SEED = 0
TEST_FRACTION = 0.25
LINEAR_ALPHA = 0.5
"""λ of the linear model: the very model of scikit-learn's C = 1."""
CURVATURE = 8.0
"""A ridge regression with λ' = 8 λ has the shift of a Newton system at p = ½ (where p (1 − p) = ¼): 2 λ / ¼."""
RBF_SCALE = 0.3
"""γ × columns of the RBF models of flights, and their λ: the best of a coarse grid at 3,000 rows."""
RBF_ALPHA = 0.3
MAX_STEP_RATIO = 1.3
"""A Newton step over a ridge regression, at most."""
WIDTH = 170
"""Columns of the tables."""


@dataclass(frozen=True)
class Dataset:
    """A small problem and the settings of the kernel model for it."""

    name: str
    load: Callable[[int | None], tuple[Floats, Floats, Labels, Labels]]
    """Function of the most rows that returns training rows, held-out rows, and their labels."""
    alpha: float
    gamma: float | None = None
    """None: 1 / columns."""
    one_vs_rest: tuple[bool, ...] = (False,)


def _of_sklearn(name: str, most: int | None) -> tuple[Floats, Floats, Labels, Labels]:
    """Standardised by the training rows."""
    from sklearn import datasets
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import StandardScaler

    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=TEST_FRACTION, random_state=SPLIT_SEED, stratify=y)
    X, y = X[:most], y[:most]
    scaler = StandardScaler().fit(X)
    return scaler.transform(X), scaler.transform(X_test), y, y_test


def _circles(most: int | None) -> tuple[Floats, Floats, Labels, Labels]:
    """Two noisy rings of 5,000 points each, as published: the best rule errs on about 17 %."""
    from sklearn.datasets import make_circles
    from sklearn.model_selection import train_test_split

    X, y = make_circles(10_000, shuffle=False, noise=0.1, random_state=122)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.2, random_state=10)
    return X[:most], X_test, y[:most], y_test


DATASETS: Mapping[str, Dataset] = {
    d.name: d
    for d in (
        Dataset("breast_cancer", lambda most: _of_sklearn("breast_cancer", most), alpha=1e-2),
        Dataset("digits", lambda most: _of_sklearn("digits", most), alpha=1e-2, one_vs_rest=(False, True)),
        # k = exp(−‖x − z‖² / (2 σ²)) with σ = 1
        Dataset("circles", _circles, alpha=1e-2, gamma=0.5),
    )
}


def figures(y: Labels, probabilities: Floats) -> dict[str, Any]:
    """Accuracy, area under the ROC curve (mean of one-vs-rest) and log loss.

    Parameters
    ----------
    y : ndarray of shape (n,)
        Labels 0, 1, ...
    probabilities : ndarray of shape (n, n_classes)

    Returns
    -------
    dict
        "auc" is None where a class has no rows.
    """
    from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

    classes, areas = np.arange(probabilities.shape[1]), {}
    scores = probabilities[:, 1] if len(classes) == 2 else probabilities
    if len(classes) > 2:
        areas = {"multi_class": "ovr", "average": "macro", "labels": classes}
    return {
        "accuracy": float(accuracy_score(y, probabilities.argmax(axis=1))),
        "auc": float(roc_auc_score(y, scores, **areas)) if len(np.unique(y)) == len(classes) else None,
        "log_loss": float(log_loss(y, probabilities, labels=classes)),
    }


def seconds_of(steps: Sequence[NewtonStep]) -> list[float]:
    """Seconds that each Newton step took."""
    return [float(s) for s in np.diff([0.0, *(step.seconds for step in steps)])]


def described(model: Any) -> Record:
    """Plan and result of a fit by dkrr, as values of JSON."""
    result, plan = model.solve_result_, model.plan_
    c = plan.chosen
    record: Record = {
        "planned": c.summary(),
        "form": plan.form,
        "execution": c.execution,
        "n_workers": c.n_workers,
        "tile": c.layout()["tile"],
        "dimension": plan.dimension,
        "projected_seconds": plan.seconds,
        "status": result.status.name,
        "residual": float(result.residual),
        "iterations": result.iterations,
        "rank": result.rank,
        "messages": list(result.messages),
        "peak_bytes": result.peak_bytes,
        "projected_peak_bytes": plan.peak_bytes,
        "read_bytes": result.bytes_read,
        "projected_read_bytes": c.read_bytes,
        "written_bytes": result.bytes_written,
        "seconds_by_kind": {kind: round(value, 3) for kind, value in result.seconds_by_kind.items()},
    }
    if result.steps:
        each = seconds_of(result.steps)
        record |= {
            "newton_steps": result.iterations,
            "inner_iterations": result.inner_iterations,
            "step_seconds": each,
            "mean_step_seconds": float(np.mean(each)),
            "gradients": [step.gradient for step in result.steps],
            "lengths": [step.length for step in result.steps],
        }
    return record


@dataclass(frozen=True)
class Fit:
    """Fit to the flights of a folder."""

    what: str
    """Its name in tables."""
    estimator: str
    """logistic or ridge (dkrr's), linear or boosting (scikit-learn's)."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the estimator."""
    workers: int = 0
    """Dask workers that run before the fit; 0: none, and dkrr may start its own."""
    force_workers: bool = False
    """Only plans on workers; for problems that are too small for them."""
    is_streamed: bool = False
    """X is handed over as a path."""
    test_name: str = "probabilities"
    """File for the probabilities of the held-out rows, in the folder."""


@contextmanager
def _surroundings(fit: Fit) -> Iterator[None]:
    """Workers, and a planner that keeps to them where it should."""
    with ExitStack() as stack:
        if fit.workers:
            limit = parse_bytes(fit.settings["memory_limit"]) // fit.workers
            scratch = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="dkrr-benchmark-", dir=setting("temporary-directory"))
            )
            stack.enter_context(dask.config.set({"dkrr.local.workers": fit.workers}))
            client = stack.enter_context(local_client(fit.workers, limit, scratch, TASK_MODULES))
            stack.enter_context(client.as_current())
        if fit.force_workers:
            stack.enter_context(mock.patch("dkrr.planning.planner.SMALL_SECONDS", 0.0))
            stack.enter_context(mock.patch("dkrr.planning.planner.is_soon_done", return_value=False))
            stack.enter_context(mock.patch("dkrr.planning.planner.TINY_SECONDS", 0.0))
            stack.enter_context(choosing(lambda ways: [c for c in ways if c.execution == "dask"]))
        yield


def estimator_of(fit: Fit) -> Any:
    """The estimator of a fit."""
    if fit.estimator in ("logistic", "ridge"):
        kind = dkrr.KernelLogisticRegression if fit.estimator == "logistic" else dkrr.KernelRidge
        return kind(**fit.settings, progress=False)
    return peer(fit.estimator, **fit.settings)


def peer(name: str, **settings: Any) -> Any:
    """scikit-learn's classifier, with its defaults but for what is given."""
    if name == "linear":
        from sklearn.linear_model import LogisticRegression

        return LogisticRegression(**({"max_iter": 1000} | settings))
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(**({"random_state": 0} | settings))


def fit_once(data: Stored, fit: Fit) -> Record:
    """Fit in this process and predict the held-out rows.

    Parameters
    ----------
    data : Stored
    fit : Fit

    Returns
    -------
    dict
        Values of JSON. "process_peak_bytes" is that of this process until the end of the fit, whatever it holds
        counted; "peak_bytes" of a fit by dkrr that of the processes that worked.
    """
    model, is_ours = estimator_of(fit), fit.estimator in ("logistic", "ridge")
    y: Any = zarr.open_array(data.y, mode="r")[:]
    if fit.estimator == "ridge":
        y = 2.0 * y - 1.0
    with _surroundings(fit), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the status says it
        X: Any = data.x if fit.is_streamed else zarr.open_array(data.x, mode="r")[:]
        load, before, start = LoadMeter(), peak_resident_bytes(), perf_counter()
        model.fit(X, y)
        seconds, process_peak = perf_counter() - start, peak_resident_bytes()
        record: Record = {
            "what": fit.what,
            "estimator": fit.estimator,
            "settings": dict(fit.settings),
            "n": data.n,
            "d": data.d,
            "seconds": seconds,
            "process_bytes_before": before,
            "process_peak_bytes": process_peak,
            **(described(model) if is_ours else {"iterations": int(np.max(model.n_iter_))}),
            "load": load.stop().to_dict(),
        }
    if fit.estimator == "ridge":
        return record
    start = perf_counter()
    X_test: Any = zarr.open_array(data.x_test, mode="r")
    probabilities = np.asarray(model.predict_proba(X_test if is_ours and fit.is_streamed else X_test[:]))
    record["predict_seconds"] = perf_counter() - start
    np.save(data.folder / f"{fit.test_name}.npy", probabilities)
    y_test = zarr.open_array(data.y_test, mode="r")[:]
    return record | {"n_test": data.n_test} | figures(np.asarray(y_test), probabilities)


def run_fit(data: Stored, fit: Fit, timeout: float | None) -> Record:
    """Fit in a fresh process; however it ends, there is a record."""
    command = [sys.executable, "-m", "benchmarks.logistic", "fit", str(data.folder), json.dumps(asdict(fit))]
    command += ["--watch-seconds", str(machine.SECONDS_BEFORE)]
    return {"what": fit.what, "n": data.n} | run_command(command, timeout)


@dataclass(frozen=True)
class Column:
    """Column of a table on the terminal."""

    heading: str
    name: str
    style: Callable[[Any], str] = str


_FIGURES = (
    Column("accuracy", "accuracy", lambda v: f"{v:.4f}"),
    Column("AUC", "auc", lambda v: f"{v:.4f}"),
    Column("log loss", "log_loss", lambda v: f"{v:.4f}"),
)
_NEWTON = (
    Column("steps", "newton_steps"),
    Column("inner", "inner_iterations"),
    Column("gradient", "residual", lambda v: f"{v:.1e}"),
)


def show(title: str, records: Sequence[Record], columns: Sequence[Column]) -> None:
    """Lay records out as a table on stderr; the last column says what was planned, what failed, and what is noisy."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_style="bold")
    for k, column in enumerate(columns):
        table.add_column(column.heading, justify="right" if k else "left", no_wrap=True)
    table.add_column("")
    for record in records:
        texts = [c.style(record[c.name]) if record.get(c.name) is not None else "" for c in columns]
        notes = [str(record[name]) for name in ("planned", "remark") if record.get(name)]
        notes += [f"{name}: {record[name]}" for name in ("failed", "crashed", "timed_out") if name in record]
        notes += [record["status"]] if record.get("status", "CONVERGED") not in ("CONVERGED", "SOLVED") else []
        notes += ["NOISY"] if record.get("load", {}).get("noisy") else []
        table.add_row(*texts, "; ".join(notes))
    Console(stderr=True, width=WIDTH).print(table)


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dkrr-flights-", dir=setting("temporary-directory")) as folder:
        yield Path(folder)


def _say(benchmark: str, record: Record, path: Path | None) -> Record:
    write_line({"benchmark": f"logistic.{benchmark}", **record, "machine": describe_machine()}, path)
    return record


_json = click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Append the lines here too."
)
_timeout = click.option("--timeout", type=click.FloatRange(min=1), help="Seconds after which a fit is stopped.")


@click.group()
def main() -> None:
    """Measure kernel logistic regression."""


@main.command()
@click.option(
    "--data", "names", type=click.Choice(list(DATASETS)), multiple=True, default=list(DATASETS), show_default=True
)
@click.option("--most-rows", type=click.IntRange(min=20), help="Rows to fit to, at most; default: all.")
@click.option("--alpha", type=click.FloatRange(min=0, min_open=True), help="Default: 0.01.")
@click.option("--solver", default="auto", show_default=True, help="auto, cholesky or cg.")
@_json
def small(
    names: Sequence[str], most_rows: int | None, alpha: float | None, solver: str, json_path: Path | None
) -> None:
    """Data sets of scikit-learn: RBF model beside scikit-learn's LogisticRegression and gradient boosting."""
    for name in names:
        data, records = DATASETS[name], []
        X, X_test, y, y_test = data.load(most_rows)
        λ = data.alpha if alpha is None else alpha
        γ = 1 / X.shape[1] if data.gamma is None else data.gamma
        settings: dict[str, Any] = {"alpha": λ, "kernel": "rbf", "gamma": γ, "solver": solver}
        fits = [
            Fit(
                f"dkrr, {'one-vs-rest' if one_vs_rest else 'softmax'}" if len(data.one_vs_rest) > 1 else "dkrr",
                "logistic",
                settings | {"one_vs_rest": one_vs_rest},
            )
            for one_vs_rest in data.one_vs_rest
        ]
        for fit in [*fits, Fit("LogisticRegression", "linear"), Fit("HistGradientBoosting", "boosting")]:
            record = _fit_small(fit, X, X_test, y, y_test) | {"data": name}
            records.append(_say("small", record, json_path))
        columns = (Column("", "what"), *_FIGURES, Column("time", "seconds", format_seconds), *_NEWTON)
        show(f"{name}, n = {len(X):,}, d = {X.shape[1]}, λ = {λ:g}, γ = {γ:.3g}", records, columns)


def _fit_small(fit: Fit, X: Floats, X_test: Floats, y: Labels, y_test: Labels) -> Record:
    model = estimator_of(fit)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the status says it
        load, start = LoadMeter(), perf_counter()
        model.fit(X, y)
        seconds = perf_counter() - start
        noise = load.stop().to_dict()
        probabilities = model.predict_proba(X_test)
    found = figures(y_test, probabilities)
    return {
        "what": fit.what,
        "estimator": fit.estimator,
        "n": len(X),
        "d": X.shape[1],
        "n_test": len(X_test),
        "settings": dict(fit.settings),
        "seconds": seconds,
        **found,
        "error": 1 - found["accuracy"],
        **(described(model) if fit.estimator == "logistic" else {"iterations": int(np.max(model.n_iter_))}),
        "load": noise,
    }


@main.command("flights")
@click.option("--n", type=click.IntRange(min=20), help="Rows to fit to; default: three quarters of all, 245,510.")
@click.option("--n-test", type=click.IntRange(min=20), help="Held-out rows; default: the last quarter, 81,836.")
@click.option("--memory-limit", default="1GiB", show_default=True)
@click.option(
    "--kernel", "kernels", type=click.Choice(["linear", "polynomial"]), multiple=True,
    default=["linear", "polynomial"], show_default=True,
)  # fmt: skip
@click.option("--polynomial-alpha", type=click.FloatRange(min=0, min_open=True), default=1e-2, show_default=True)
@click.option("--peers/--no-peers", "with_peers", default=True, show_default=True)
@_timeout
@_json
def late_flights(
    n: int | None,
    n_test: int | None,
    memory_limit: str,
    kernels: Sequence[str],
    polynomial_alpha: float,
    with_peers: bool,
    timeout: float | None,
    json_path: Path | None,
) -> None:
    """Late arrivals in primal form, from Zarr: linear with all columns, polynomial of degree 2 with few."""
    table = flights.load()
    shared = {"form": "primal", "memory_limit": memory_limit}
    ours: dict[str, tuple[str, dict[str, Any]]] = {
        "linear": ("all", {"alpha": LINEAR_ALPHA, "kernel": "linear"}),
        "polynomial": ("few", {"alpha": polynomial_alpha, "kernel": "polynomial", "degree": 2}),
    }
    peers = [
        Fit("LogisticRegression", "linear", {"C": 1 / (2 * LINEAR_ALPHA)}, test_name="linear"),
        Fit("HistGradientBoosting", "boosting", test_name="boosting"),
    ]
    for kernel in dict.fromkeys(kernels):
        columns, settings = ours[kernel]
        with _folder() as folder:
            data = flights.write(folder, columns, n, n_test, table)
            first = Fit(f"dkrr, {kernel}", "logistic", settings | shared, is_streamed=True, test_name="dkrr")
            records = []
            for fit in [first, *(peers if with_peers else ())]:
                record = run_fit(data, fit, timeout) | {"columns": columns}
                if fit.estimator == "linear" and kernel == "linear":
                    record |= _difference(folder / "dkrr.npy", folder / "linear.npy")
                records.append(_say("flights", record, json_path))
        late = f"{table.is_late.mean():.1%} late" if n is None else f"of {table.n:,}"
        show(
            f"flights, {late}, n = {data.n:,}, d = {data.d}, held out {data.n_test:,}, {memory_limit}",
            records,
            (
                Column("", "what"),
                *_FIGURES,
                Column("D", "dimension", lambda v: f"{v:,}"),
                Column("time", "seconds", format_seconds),
                *_NEWTON,
                Column("VmHWM", "process_peak_bytes", format_bytes),
                Column("projected", "projected_peak_bytes", format_bytes),
                Column("read", "read_bytes", format_bytes),
                Column("Δp", "probability_difference", lambda v: f"{v:.0e}"),
            ),
        )


def _difference(first: Path, second: Path) -> dict[str, float]:
    """Largest difference of the probabilities in two files; nothing if one of them is not there."""
    if not (first.exists() and second.exists()):
        return {}
    return {"probability_difference": float(np.abs(np.load(first) - np.load(second)).max())}


@main.command()
@click.option("--n", type=click.IntRange(min=20), default=20_000, show_default=True, help="Rows to fit to.")
@click.option("--n-test", type=click.IntRange(min=20), default=20_000, show_default=True, help="Held-out rows.")
@click.option("--memory-limit", default="2GiB", show_default=True, help="Of all workers together.")
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True)
@click.option(
    "--solver", "solvers", type=click.Choice(["cholesky", "cg", "auto"]), multiple=True, default=["cholesky", "cg"],
    show_default=True,
)  # fmt: skip
@click.option("--alpha", type=click.FloatRange(min=0, min_open=True), default=RBF_ALPHA, show_default=True)
@click.option("--gamma", type=click.FloatRange(min=0, min_open=True), help="Default: 0.3 / columns.")
@click.option("--tile", type=click.IntRange(min=1), help="Rows of a tile; default: the planner's.")
@click.option("--force-workers", is_flag=True, help="Only plans on workers, however small the problem.")
@click.option("--ridge/--no-ridge", default=True, show_default=True, help="A ridge regression beside each.")
@click.option("--peers/--no-peers", "with_peers", default=True, show_default=True)
@_timeout
@_json
def core(
    n: int,
    n_test: int,
    memory_limit: str,
    workers: int,
    solvers: Sequence[str],
    alpha: float,
    gamma: float | None,
    tile: int | None,
    force_workers: bool,
    ridge: bool,
    with_peers: bool,
    timeout: float | None,
    json_path: Path | None,
) -> None:
    """RBF kernel out of core on workers: a Newton step over a ridge regression of the same rows.

    The workers run before either fit. A ridge regression with conjugate gradient has λ' = 8 λ, the shift of a Newton
    system; `step_over_ridge` is the mean time of a step over the time of that whole fit.
    """
    records = []
    with _folder() as folder:
        data = flights.write(folder, "few", n, n_test)
        shared: dict[str, Any] = {"kernel": "rbf", "gamma": RBF_SCALE / data.d if gamma is None else gamma}
        shared |= {"fit_intercept": True, "form": "dual"}
        shared |= {"memory_limit": memory_limit} | ({} if tile is None else {"tile": tile})
        for solver in dict.fromkeys(solvers):
            here: dict[str, Any] = {"workers": workers, "force_workers": force_workers}
            beside: Record = {}
            if ridge:
                settings = shared | {"solver": solver, "alpha": CURVATURE * alpha}
                beside = run_fit(data, Fit(f"KernelRidge, {solver}", "ridge", settings, **here), timeout)
                records.append(_say("core", beside | {"solver": solver}, json_path))
            settings = shared | {"solver": solver, "alpha": alpha}
            ours = run_fit(data, Fit(f"dkrr, {solver}", "logistic", settings, **here), timeout) | {"solver": solver}
            if "mean_step_seconds" in ours and "seconds" in beside:
                ours["step_over_ridge"] = ours["mean_step_seconds"] / beside["seconds"]
                ours["median_step_over_ridge"] = float(np.median(ours["step_seconds"])) / beside["seconds"]
                ours["fit_over_ridges"] = ours["seconds"] / ours["newton_steps"] / beside["seconds"]
                ours["remark"] = "" if ours["step_over_ridge"] <= MAX_STEP_RATIO else f"above {MAX_STEP_RATIO}"
            if "peak_bytes" in ours:
                ours["peak_over_projected"] = ours["peak_bytes"] / ours["projected_peak_bytes"]
            records.append(_say("core", ours, json_path))
        for fit in [Fit("LogisticRegression", "linear"), Fit("HistGradientBoosting", "boosting")] if with_peers else ():
            records.append(_say("core", run_fit(data, fit, timeout), json_path))
    show(
        f"flights, RBF, n = {n:,}, d = {data.d}, λ = {alpha:g}, {workers} workers within {memory_limit}",
        records,
        (
            Column("", "what"),
            *_FIGURES,
            Column("time", "seconds", format_seconds),
            *_NEWTON,
            Column("a step", "mean_step_seconds", format_seconds),
            Column("over ridge", "step_over_ridge", lambda v: f"{v:.2f}"),
            Column("peak", "peak_bytes", format_bytes),
            Column("projected", "projected_peak_bytes", format_bytes),
        ),
    )


@main.command()
@click.option("--n", type=click.IntRange(min=20), default=3_000, show_default=True, help="Rows to fit to.")
@click.option("--n-test", type=click.IntRange(min=20), default=5_000, show_default=True, help="Held-out rows.")
@click.option("--most", type=float, default=10.0, show_default=True, help="Largest λ.")
@click.option("--least", type=float, default=0.01, show_default=True, help="Smallest λ.")
@click.option("--values", type=click.IntRange(min=2), default=10, show_default=True, help="Of λ, from most to least.")
@click.option("--solver", type=click.Choice(["auto", "cholesky", "cg"]), default="auto", show_default=True)
@click.option("--memory-limit")
@_json
def path(
    n: int,
    n_test: int,
    most: float,
    least: float,
    values: int,
    solver: str,
    memory_limit: str | None,
    json_path: Path | None,
) -> None:
    """RBF kernel on flights: one fit_path over several λ against as many separate fits."""
    with _folder() as folder:
        data = flights.write(folder, "few", n, n_test)
        X, y, X_test, y_test = (
            np.asarray(zarr.open_array(p, mode="r")[:]) for p in (data.x, data.y, data.x_test, data.y_test)
        )
    settings: dict[str, Any] = {
        "kernel": "rbf",
        "gamma": RBF_SCALE / data.d,
        "solver": solver,
        "memory_limit": memory_limit,
    }
    alphas = [float(alpha) for alpha in np.geomspace(most, least, values)]
    load = LoadMeter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the status says it
        start = perf_counter()
        together = dkrr.KernelLogisticRegression(alphas[0], **settings, progress=False).fit_path(X, y, alphas)
        seconds, alone, times = perf_counter() - start, [], []
        for alpha in alphas:
            start = perf_counter()
            alone.append(dkrr.KernelLogisticRegression(alpha, **settings, progress=False).fit(X, y))
            times.append(perf_counter() - start)
    noise, records = load.stop().to_dict(), []
    for model, other, one in zip(together, alone, times, strict=True):
        probabilities = model.predict_proba(X_test)
        record: Record = {
            "what": f"λ = {model.alpha:.3g}",
            "alpha": model.alpha,
            "n": n,
            "seconds": model.solve_result_.seconds,
            "alone": {"seconds": one} | described(other),
            "alone_seconds": one,
            "alone_steps": other.solve_result_.iterations,
            "alone_inner": other.solve_result_.inner_iterations,
            "probability_difference": float(np.abs(probabilities - other.predict_proba(X_test)).max()),
            **figures(np.asarray(y_test), probabilities),
            **described(model),
            "load": noise,
        }
        records.append(_say("path", record, json_path))
    summary: Record = {
        "what": "all",
        "n": n,
        "values": values,
        "solver": solver,
        "planned": together[0].plan_.chosen.summary(),
        "seconds": seconds,
        "alone_seconds": sum(times),
        "newton_steps": sum(r["newton_steps"] for r in records),
        "inner_iterations": sum(r["inner_iterations"] for r in records),
        "alone_steps": sum(r["alone_steps"] for r in records),
        "alone_inner": sum(r["alone_inner"] for r in records),
        "probability_difference": max(r["probability_difference"] for r in records),
        "ratio": seconds / sum(times),
        "load": noise,
    }
    records.append(_say("path", summary, json_path))
    title = f"flights, RBF, n = {n:,}, d = {data.d}: fit_path of {values} λ over separate fits: {summary['ratio']:.2f}"
    show(
        f"{title}\n{summary['planned']}",
        [record | {"planned": ""} for record in records],
        (
            Column("", "what"),
            *_FIGURES,
            Column("time", "seconds", format_seconds),
            *_NEWTON,
            Column("alone: time", "alone_seconds", format_seconds),
            Column("steps", "alone_steps"),
            Column("inner", "alone_inner"),
            Column("Δp", "probability_difference", lambda v: f"{v:.0e}"),
        ),
    )


@main.command("fit")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("settings")
@click.option("--watch-seconds", type=click.FloatRange(min=0.01), default=machine.SECONDS_BEFORE, show_default=True)
def one_fit(folder: Path, settings: str, watch_seconds: float) -> None:
    """Fit once to the flights in FOLDER as SETTINGS (JSON, fields of Fit) say, and print a line of JSON."""
    with mock.patch.object(machine, "SECONDS_BEFORE", watch_seconds):
        record = fit_once(Stored.open(folder), Fit(**json.loads(settings)))
    click.echo(json.dumps(record, default=float))


if __name__ == "__main__":
    main()
