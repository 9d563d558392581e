"""Models that grow: more rows, other targets and rows that are left out, each beside a fit of all rows.

One command, one line of JSON on stdout for each case and a table on stderr::

    python -m benchmarks.growing run

Every measurement has its own process, and begins after a small fit that loads the libraries. ``ratio`` is the median
time of growing over that of a refit of the same rows.

``more rows`` … ``left out``
    A run in a store, which an earlier process fitted, is copied, and the call with the other rows, targets or weights
    is timed. The refit is the same call with an empty store.
``active learning``
    ``partial_fit`` of a batch, and standard deviations of the next batch, until there are ``--rows`` rows. The refit
    is ``KernelRidge(uncertainty=True).fit`` of all rows so far with the same standard deviations, in rounds of equal
    distance (``rounds``); nothing is extrapolated: the ratio is of these rounds. ``refit_twice_seconds`` is the time
    of a ``fit`` without ``uncertainty=True``, where standard deviations factor again.
``residual …``
    The true residual after many small growths over that of a refit, in place of times. A run in a store has fewer
    growths, each of which takes a fit. ``updated_inverse_residual`` is that of an explicit inverse that grows.
"""

import json
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Literal

import click
import numpy as np
from rich import box
from rich.table import Table

import dkrr
from benchmarks.cases import run_to_end
from benchmarks.machine import LoadMeter, stamped
from benchmarks.peers import ALPHA, SEED, Floats
from benchmarks.solve import table_console, write_line
from dkrr.kernels import RBF
from dkrr.limits import peak_resident_bytes, reset_peak
from dkrr.text import format_bytes, format_seconds

Record = dict[str, Any]

N_COLUMNS = 3
"""Columns where residuals are compared: of few columns K has eigenvalues far below λ."""
N_ROUNDS = 10
"""Rounds of active learning whose refits are measured."""
GOALS = {
    "more rows": 0.2,
    "few rows": 0.06,
    "new targets": 0.03,
    "left out": 0.05,
    "active learning": 1 / 15,
    "residual": 2.0,
    "residual, small alpha": 2.0,
    "residual, store": 2.0,
}
"""Ratio to a refit that each case should not exceed."""


@dataclass(frozen=True)
class Settings:
    """Sizes of all cases."""

    n: int = 20_000
    """Rows of the run in a store."""
    rows: int = 10_000
    """Last number of rows of active learning."""
    batch: int = 100
    growths: int = 100
    """Growths before the residual is compared."""
    store_growths: int = 20
    d: int = 16
    solver: Literal["auto", "cholesky"] = "cholesky"
    memory_limit: str = "4GiB"
    repeat: int = 3

    @property
    def base(self) -> "Fit":
        """Fit that all cases in a store begin with."""
        return Fit(self.n, self.d, self.solver, self.memory_limit)

    @property
    def others(self) -> dict[str, "Fit"]:
        """The call of each case in a store."""
        same = partial(Fit, d=self.d, solver=self.solver, memory_limit=self.memory_limit)
        return {
            "more rows": same(self.n + self.n // 20),
            "few rows": same(self.n + max(1, self.n // 200)),
            "new targets": same(self.n, target=1),
            "left out": same(self.n, left_out=max(1, self.n // 1000)),
        }


@dataclass(frozen=True)
class Fit:
    """Call of ``fit`` with a store."""

    n: int
    d: int
    solver: Literal["auto", "cholesky"]
    memory_limit: str
    target: int = 0
    """Column of X that the targets follow."""
    left_out: int = 0
    """Rows whose weight is 0."""

    def run(self, store: Path, coefficients: Path) -> Record:
        """Fit in this process; the dual coefficients are written to a file."""
        X, y = rows_and_targets(self.n, self.d, self.target)
        weights = None
        if self.left_out:
            weights = np.ones(self.n)
            weights[np.random.default_rng(SEED).choice(self.n, self.left_out, replace=False)] = 0.0
        parameters = parameters_of(self.d) | {"solver": self.solver, "memory_limit": self.memory_limit}
        warm_up(parameters)
        model = dkrr.KernelRidge(**parameters, store=str(store))
        meter = LoadMeter()
        reset_peak()
        start = perf_counter()
        model.fit(X, y, sample_weight=weights)
        seconds = perf_counter() - start
        load = meter.stop().to_dict()
        np.save(coefficients, model.dual_coef_)
        result, plan = model.solve_result_, model.plan_
        return {
            "seconds": seconds,
            "projected_seconds": plan.seconds,
            "residual": float(result.residual),
            "peak_bytes": max(result.peak_bytes, peak_resident_bytes()),
            "planned": plan.chosen.summary(),
            "grows": next((str(reason) for reason in plan.reasons if reason.code == "grows"), ""),
            "load": load,
        }


def rows_and_targets(n: int, d: int, target: int = 0) -> tuple[Floats, Floats]:
    """X of shape (n, d), standard normal, of which fewer rows are the first ones, and y = sin xₖ + noise."""
    X = np.random.default_rng(SEED).standard_normal((n, d))
    noise = np.random.default_rng([SEED, target]).standard_normal(n)
    return X, np.sin(X[:, target % d]) + 0.1 * noise


def parameters_of(d: int, alpha: float = ALPHA) -> dict[str, Any]:
    """Arguments of every estimator here."""
    return {"alpha": alpha, "kernel": "rbf", "gamma": 1 / d, "form": "dual", "progress": False}


def warm_up(parameters: Mapping[str, Any]) -> None:
    """Load the libraries by a small fit."""
    X, y = rows_and_targets(200, 4)
    dkrr.KernelRidge(**{**parameters, "gamma": 0.25}).fit(X, y).predict(X, return_std=True)


def learn(settings: Settings, way: Literal["grown", "refit", "twice"]) -> Record:
    """Seconds of rounds of active learning: fit a batch more, and the standard deviations of the next batch.

    Parameters
    ----------
    settings : Settings
    way : {"grown", "refit", "twice"}
        All rounds by ``partial_fit``, or some by ``fit`` with ``uncertainty=True`` or without it.

    Returns
    -------
    dict
        "rounds" has the seconds by the number of rows.
    """
    batch, last = settings.batch, settings.rows
    X, y = rows_and_targets(last + batch, settings.d)
    parameters = parameters_of(settings.d) | {"memory_limit": settings.memory_limit}
    warm_up(parameters)
    sizes = range(batch, last + 1, batch) if way == "grown" else measured_rounds(settings)
    model = dkrr.KernelRidge(**parameters, uncertainty=way == "refit")
    rounds, std = dict[int, float](), np.empty(0)
    meter = LoadMeter()
    reset_peak()
    for n in sizes:
        start = perf_counter()
        if way == "grown":
            model.partial_fit(X[n - batch : n], y[n - batch : n])
        else:
            model.fit(X[:n], y[:n])
        std = model.predict(X[n : n + batch], return_std=True)[1]
        rounds[n] = perf_counter() - start
    return {
        "rounds": rounds,
        "residual": float(model.solve_result_.residual),
        "peak_bytes": peak_resident_bytes(),
        "planned": model.plan_.chosen.summary(),
        "load": meter.stop().to_dict(),
        "std": std.tolist(),
    }


def measured_rounds(settings: Settings) -> list[int]:
    """Rows of the rounds whose refits are measured, at equal distances up to the last."""
    rounds = settings.rows // settings.batch
    step = max(1, rounds // N_ROUNDS)
    return [settings.batch * k for k in range(step, rounds + 1, step)]


def residuals(settings: Settings, alpha: float, store: Path | None) -> Record:
    """True residual after growths of 10 rows, and that of a refit."""
    growths = settings.growths if store is None else settings.store_growths
    n = 10 * growths
    X, y = rows_and_targets(2 * n, N_COLUMNS)
    parameters = parameters_of(N_COLUMNS, alpha) | {"solver": "cholesky", "memory_limit": settings.memory_limit}
    grown, refit = dkrr.KernelRidge(**parameters), dkrr.KernelRidge(**parameters)
    meter = LoadMeter()
    if store is None:
        grown.fit(X[:n], y[:n])
        for stop in range(n + 10, 2 * n + 1, 10):
            grown.partial_fit(X[stop - 10 : stop], y[stop - 10 : stop])
    else:
        grown.set_params(store=str(store))
        for stop in range(n, 2 * n + 1, 10):
            grown.fit(X[:stop], y[:stop])
    refit.fit(X, y)
    load = meter.stop().to_dict()
    return {
        "n": 2 * n,
        "growths": growths,
        "alpha": alpha,
        "residual": float(grown.solve_result_.residual),
        "refit_residual": float(refit.solve_result_.residual),
        "updated_inverse_residual": updated_inverse_residual(X, y, n, 10, alpha),
        "difference": difference(np.asarray(grown.dual_coef_), np.asarray(refit.dual_coef_)),
        "load": load,
    }


def updated_inverse_residual(X: Floats, y: Floats, first: int, step: int, alpha: float) -> float:
    """Residual of a solution by an explicit inverse that grows with the rows, which dkrr does not do.

    Parameters
    ----------
    X : ndarray of shape (n, d)
    y : ndarray of shape (n,)
    first : int
        Rows whose inverse is computed.
    step : int
        Rows of each update, by the inverse of a matrix of blocks.
    alpha : float

    Returns
    -------
    float
    """
    A = RBF(gamma=1 / X.shape[1])(X)
    A[np.diag_indices_from(A)] += alpha
    inverse = np.linalg.inv(A[:first, :first])
    for n in range(first, len(X), step):
        old, new = slice(n), slice(n, n + step)
        B = inverse @ A[old, new]
        S = np.linalg.inv(A[new, new] - A[new, old] @ B)
        inverse = np.block([[inverse + B @ S @ B.T, -B @ S], [-S @ B.T, S]])
        inverse = (inverse + inverse.T) / 2  # without this it diverges
    return float(np.linalg.norm(y - A @ (inverse @ y)) / np.linalg.norm(y))


def difference(found: Floats, expected: Floats) -> float:
    """Largest difference, relative to the largest value."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def alone(task: str, settings: Settings, **options: Any) -> Record:
    """Run a task in a new process; raises RuntimeError with the last line of its error."""
    words = json.dumps({"settings": asdict(settings), **options}, default=str)
    done = run_to_end([sys.executable, "-m", "benchmarks.growing", "one", task, words], None)
    if "stdout" not in done:
        raise RuntimeError(f"{task} {options}: {done.get('failed') or done}")
    record: Record = json.loads(done["stdout"].strip().splitlines()[-1])
    return record


def compare_in_store(case: str, settings: Settings, base: Path, folder: Path) -> Record:
    """Growth of a copied run, and its refit, in turns; medians of both."""
    grown, refits = list[Record](), list[Record]()
    for k in range(settings.repeat):
        for way, several in (("grown", grown), ("refit", refits)):
            store = folder / f"{way}-{k}.zarr"
            if way == "grown":
                shutil.copytree(base, store)
                os.sync()  # what the copy still has to write is not part of the measurement
            several.append(alone("fit", settings, case=case, store=store, coefficients=folder / f"{way}.npy"))
            shutil.rmtree(store)
    call, first, refit = settings.others[case], grown[0], refits[0]
    return {
        "n": settings.n,
        "new": call.n - settings.n or call.left_out,
        "seconds": median(one["seconds"] for one in grown),
        "refit_seconds": median(one["seconds"] for one in refits),
        "projected_seconds": first["projected_seconds"],
        "refit_projected_seconds": refit["projected_seconds"],
        **figures(first, refit),
        "difference": difference(np.load(folder / "grown.npy"), np.load(folder / "refit.npy")),
        "load": largest_load([*grown, *refits]),
    }


def figures(grown: Record, refit: Record) -> Record:
    """Figures that both have."""
    names = ("residual", "peak_bytes", "planned", "grows")
    found = {name: grown[name] for name in names if name in grown}
    return found | {f"refit_{name}": refit[name] for name in names if name in refit and name != "grows"}


def largest_load(records: Sequence[Record]) -> Record:
    """Other load of the noisiest of several measurements."""
    found: Record = max((one["load"] for one in records), key=lambda load: max(map(float, load.values())))
    return found


def compare_rounds(settings: Settings) -> Record:
    """Active learning by growing a model, and by fitting another one in every round."""
    ways = {way: alone("learn", settings, way=way) for way in ("grown", "refit", "twice")}
    measured = [str(n) for n in measured_rounds(settings)]
    seconds = {way: sum(one["rounds"][n] for n in measured) for way, one in ways.items()}
    return {
        "n": settings.rows,
        "new": settings.batch,
        "rounds": [int(n) for n in measured],
        "seconds": seconds["grown"],
        "refit_seconds": seconds["refit"],
        "refit_twice_seconds": seconds["twice"],
        "ratio_to_twice": seconds["grown"] / seconds["twice"],
        "last_ratio": ways["grown"]["rounds"][measured[-1]] / ways["refit"]["rounds"][measured[-1]],
        "all_rounds_seconds": sum(ways["grown"]["rounds"].values()),
        "seconds_by_round": {way: {n: one["rounds"][n] for n in measured} for way, one in ways.items()},
        **figures(ways["grown"], ways["refit"]),
        "difference": difference(np.array(ways["grown"]["std"]), np.array(ways["refit"]["std"])),
        "load": largest_load([*ways.values()]),
    }


def compare_residuals(case: str, settings: Settings, folder: Path) -> Record:
    """True residuals instead of seconds."""
    alpha = 1e-8 if "small" in case else 1e-3
    found = alone("residuals", settings, alpha=alpha, store=folder / "residual.zarr" if "store" in case else None)
    return found | {"new": 10, "ratio": found["residual"] / found["refit_residual"]}


def measure(case: str, settings: Settings, base: Path, folder: Path) -> Record:
    """One case; an error is its outcome, so that the others run."""
    try:
        if case in settings.others:
            if not base.exists():
                alone("fit", settings, case="", store=base, coefficients=folder / "base.npy")
            found = compare_in_store(case, settings, base, folder)
        elif case == "active learning":
            found = compare_rounds(settings)
        else:
            found = compare_residuals(case, settings, folder)
    except RuntimeError as error:
        return {"failed": str(error)}
    return {"ratio": found["seconds"] / found["refit_seconds"]} | found if "seconds" in found else found


def result_table(records: Sequence[Record]) -> Table:
    """Lay out the cases for the terminal."""
    table = Table(title="growing a model / fitting all rows again = ratio", box=box.SIMPLE_HEAD, title_style="bold")
    for name in ("case", "rows", "new", "grown", "refit", "ratio", "goal", "differ by", "residual", "peak", ""):
        table.add_column(name, justify="left" if name in ("case", "") else "right")
    for r in records:
        if "failed" in r:
            table.add_row(r["case"], *[""] * 9, r["failed"])
            continue
        times = [format_seconds(r[name]) if name in r else "" for name in ("seconds", "refit_seconds")]
        pairs = [
            f"{show(r[name])} / {show(r[f'refit_{name}'])}" if name in r else ""
            for name, show in (("residual", "{:.1e}".format), ("peak_bytes", format_bytes))
        ]
        remarks = ["above the goal"] * (r["ratio"] > r["goal"]) + ["NOISY, do not quote"] * r["load"]["noisy"]
        cells = [f"{r['n']:,}", f"{r['new']:,}", *times, f"{r['ratio']:.3f}", f"{r['goal']:.3f}"]
        table.add_row(r["case"], *cells, f"{r['difference']:.1e}", *pairs, ", ".join(remarks))
    return table


@click.group()
def main() -> None:
    """Models that grow, beside fits of all rows."""


@main.command("run")
@click.option("--n", type=click.IntRange(min=40), default=Settings.n, show_default=True, help="Rows of the run.")
@click.option("--rows", type=click.IntRange(min=2), default=Settings.rows, show_default=True, help="Active learning.")
@click.option("--batch", type=click.IntRange(min=1), default=Settings.batch, show_default=True)
@click.option("--growths", type=click.IntRange(min=1), default=Settings.growths, show_default=True)
@click.option("--store-growths", type=click.IntRange(min=1), default=Settings.store_growths, show_default=True)
@click.option("--d", type=click.IntRange(min=2), default=Settings.d, show_default=True, help="Columns.")
@click.option("--solver", type=click.Choice(["auto", "cholesky"]), default=Settings.solver, show_default=True)
@click.option("--memory-limit", default=Settings.memory_limit, show_default=True)
@click.option("--repeat", type=click.IntRange(min=1), default=Settings.repeat, show_default=True, help="In stores.")
@click.option("--case", "cases", type=click.Choice([*GOALS]), multiple=True, default=[*GOALS], help="Repeat; or all.")
@click.option("--folder", type=click.Path(file_okay=False), help="Where stores are made.  [default: temporary]")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Append the lines here too.")
def run(cases: tuple[str, ...], folder: str | None, json_path: Path | None, **sizes: Any) -> None:
    """Measure all cases; a JSON line for each on stdout, a table on stderr."""
    settings, records = Settings(**sizes), list[Record]()
    with tempfile.TemporaryDirectory(prefix="dkrr-growing-", dir=folder) as place:
        for case in cases:
            found = measure(case, settings, Path(place) / "base.zarr", Path(place))
            head = {"benchmark": "growing", "case": case, "time": datetime.now(UTC).isoformat(timespec="seconds")}
            record = stamped({**head, "settings": asdict(settings), "goal": GOALS[case], **found})
            records.append(record)
            write_line(record, json_path)
    table_console().print(result_table(records))
    if failed := [record["case"] for record in records if "failed" in record]:
        raise click.ClickException(f"failed: {', '.join(failed)}")


TASKS: Mapping[str, Callable[..., Record]] = {
    "fit": lambda settings, case, store, coefficients: (settings.others | {"": settings.base})[case].run(
        Path(store), Path(coefficients)
    ),
    "learn": learn,
    "residuals": lambda settings, alpha, store: residuals(settings, alpha, None if store is None else Path(store)),
}


@main.command("one", hidden=True)
@click.argument("task", type=click.Choice([*TASKS]))
@click.argument("options")
def one(task: str, options: str) -> None:
    """Run a task in this process and print a line of JSON."""
    values = json.loads(options)
    settings = Settings(**values.pop("settings"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # residuals are printed
        click.echo(json.dumps(TASKS[task](settings, **values)))


if __name__ == "__main__":
    main()
