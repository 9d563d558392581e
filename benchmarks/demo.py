"""The main job of the library on real data: energies of QM9 molecules within a small memory limit.

Run by ``make demo``, or by hand::

    python -m benchmarks.demo --n 20000 --memory-limit 1GiB --out output

It fits exact kernel ridge regression to ``n`` molecules, whose Gram matrix of 8n² bytes is larger than the
memory limit, by the solver that the planner chooses and by the other one, which must agree; predicts held-out
molecules beside a linear model, saves and reloads the model, and leaves a table on the terminal and ``demo.png``
in the output folder. The data and their sources are those of
:mod:`benchmarks.qm9`.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import click
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

import dkrr
from benchmarks import qm9
from benchmarks.qm9 import Floats
from dkrr.checks import parse_bytes
from dkrr.errors import DkrrError
from dkrr.kernels import RBF
from dkrr.text import format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Matplotlib and scikit-learn's linear models are imported where they are used: the worker processes import
# this module when they start, and must not pay for them in memory.

ALPHA = 1e-2
GAMMA = 1 / qm9.N_FEATURES
KERNEL_MODEL = "kernel ridge (dkrr)"
LINEAR_MODEL = "linear ridge"
# How far a saved model's predictions may lie from the fitted model's, relative to the largest of them.
SAVED_TOLERANCE = 1e-10

_INK = "#1f2933"
_TEXT = "#52606d"
_QUIET = "#8a94a0"
_GRID = "#e6e9ed"
_DASHES = (0, (4, 3))
_COLOURS = {KERNEL_MODEL: "#1763a6", LINEAR_MODEL: "#e8963a"}


@dataclass(frozen=True)
class Split:
    """Training and held-out rows, columns standardised by the mean and deviation of the training rows."""

    X_train: Floats
    """(n, 79)."""
    X_test: Floats
    """(n_test, 79)."""
    y_train: Floats
    """(n,), kcal/mol."""
    y_test: Floats
    """(n_test,), kcal/mol."""


@dataclass(frozen=True)
class Scores:
    """Scores of a model at the held-out rows."""

    r2: float
    """Coefficient of determination."""
    mae: float
    """Mean absolute error, kcal/mol."""


@dataclass(frozen=True)
class Run:
    """Measurements of one fit, for the table."""

    n_train: int
    n_test: int
    fit_seconds: float
    predict_seconds: float
    status: str
    """The outcome that the solver reports."""
    residual: float
    """True relative residual of the linear system."""
    memory_limit: int
    """Bytes that the whole fit was allowed."""
    projected_peak_bytes: int
    """The plan's promise for each process."""
    measured_peak_bytes: int
    """The most that any process held that did the work."""
    solver: str
    """"cg" or "cholesky", with what it took."""
    other: str
    """Name and measurements of the other solver."""
    disagreement: float
    """Largest difference between the predictions of the two, relative to the largest prediction."""

    @property
    def gram_bytes(self) -> int:
        """Size of the Gram matrix in float64, had it been held whole."""
        return 8 * self.n_train**2


def split(molecules: qm9.Molecules, n_train: int) -> Split:
    """Take the first ``n_train`` molecules for training, the others to be held out, and standardise.

    A column that is constant over the training rows is only centred.
    """
    train, test = molecules.descriptors[:n_train], molecules.descriptors[n_train:]
    mean = train.mean(axis=0)
    scale = np.where(np.ptp(train, axis=0) > 0, train.std(axis=0), 1.0)
    return Split(
        X_train=(train - mean) / scale,
        X_test=(test - mean) / scale,
        y_train=molecules.target[:n_train],
        y_test=molecules.target[n_train:],
    )


def predict_linear(data: Split) -> Floats:
    """Predict the held-out rows with ordinary ridge regression, (n_test,): what the kernel has to beat."""
    from sklearn.linear_model import Ridge

    model = Ridge(alpha=ALPHA).fit(data.X_train, data.y_train)
    return np.asarray(model.predict(data.X_test), dtype=np.float64)


def score(true: Floats, predicted: Floats) -> Scores:
    """Compare predictions with the truth, both (n_test,) in kcal/mol."""
    error = predicted - true
    spread = true - true.mean()
    return Scores(r2=float(1 - (error @ error) / (spread @ spread)), mae=float(np.abs(error).mean()))


def check_saved(model: dkrr.KernelRidge, X: Floats, predicted: Floats, path: Path) -> float:
    """Save the model, load it again and compare the predictions of the two.

    Parameters
    ----------
    model : KernelRidge
        A fitted model.
    X : ndarray of shape (n_test, 79)
        The rows to predict.
    predicted : ndarray of shape (n_test,)
        What the fitted model predicts for them.
    path : Path
        Where to save. A model left there by an earlier run is replaced.

    Returns
    -------
    float
        The largest difference, relative to the largest prediction.

    Raises
    ------
    SystemExit
        If the difference is more than 1e-10.
    """
    if path.exists():
        shutil.rmtree(path)
    dkrr.save(model, path)
    again = np.asarray(dkrr.load(path).predict(X), dtype=np.float64)
    difference = float(np.abs(again - predicted).max() / max(np.abs(predicted).max(), 1.0))
    if not difference <= SAVED_TOLERANCE:
        raise SystemExit(
            f"the model saved in {path} predicts otherwise than the fitted one: relative difference "
            f"{difference:.1e}, allowed {SAVED_TOLERANCE:.0e}"
        )
    return difference


def result_table(run: Run, scores: Mapping[str, Scores]) -> Table:
    """Lay out the run and the scores of each model for the terminal."""
    ratio = run.gram_bytes / run.memory_limit
    held = ": never held in memory" if ratio > 1 else ""
    table = Table(title="QM9 energies: result", box=box.SIMPLE_HEAD, title_style="bold", show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    table.add_row("molecules", f"{run.n_train:,} to train, {run.n_test:,} held out")
    table.add_row("time", f"{format_seconds(run.fit_seconds)} to fit, {format_seconds(run.predict_seconds)} to predict")
    table.add_row("solver", run.solver)
    table.add_row("other solver", f"{run.other}; predictions differ by {run.disagreement:.0e}")
    table.add_row("outcome", f"{run.status}, relative residual {run.residual:.1e}")
    table.add_row("Gram matrix", f"{format_bytes(run.gram_bytes)}, {ratio:.1f} × the memory limit{held}")
    table.add_row("memory limit", format_bytes(run.memory_limit))
    table.add_row(
        "peak of a process",
        f"{format_bytes(run.projected_peak_bytes)} projected, {format_bytes(run.measured_peak_bytes)} measured",
    )
    table.add_section()
    for name, figures in scores.items():
        table.add_row(name, f"R² {figures.r2:.4f}, MAE {figures.mae:.2f} kcal/mol")
    return table


def draw(path: Path, true: Floats, predictions: Mapping[str, Floats], run: Run) -> None:
    """Draw predictions against the truth and the distribution of the errors, as a PNG.

    Parameters
    ----------
    path : Path
        The file to write; its folder is made if need be.
    true : ndarray of shape (n_test,)
        kcal/mol.
    predictions : mapping of str to ndarray of shape (n_test,)
        The kernel model's and the linear model's, by name; the first is drawn on top.
    run : Run
        For the heading.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Agg by name rather than through pyplot: no display, no state shared with the caller's own figures.
    figure = Figure(figsize=(11.5, 5.4), dpi=160, facecolor="white")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.15])
    figure.subplots_adjust(left=0.07, right=0.975, bottom=0.12, top=0.79, wspace=0.2)
    _draw_predictions(left, true, predictions)
    _draw_errors(right, true, predictions)
    for axes in (left, right):
        _tidy(axes)

    heading = f"Exact kernel ridge regression on {run.n_train:,} QM9 molecules"
    details = (
        f"Gram matrix {format_bytes(run.gram_bytes)}, memory limit {format_bytes(run.memory_limit)}, "
        f"fitted in {format_seconds(run.fit_seconds)}, scored on {run.n_test:,} held-out molecules"
    )
    figure.text(0.07, 0.935, heading, fontsize=15, fontweight="bold", color=_INK)
    figure.text(0.07, 0.882, details, fontsize=10, color=_TEXT)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _draw_predictions(axes: "Axes", true: Floats, predictions: Mapping[str, Floats]) -> None:
    """Draw the left panel: one dot a molecule and model."""
    # One scale for both axes. The few molecules beyond it would push the other thousands into a corner.
    low, high = np.percentile(true, [0.1, 99.9])
    margin = 0.08 * (high - low)
    limits = (float(low - margin), float(high + margin))
    for depth, (name, predicted) in enumerate(predictions.items()):
        label = f"{name}: R² = {score(true, predicted).r2:.3f}"
        colour = _COLOURS[name]
        axes.scatter(true, predicted, s=6, color=colour, alpha=0.45, linewidths=0, zorder=3 - depth, label=label)
    axes.plot(limits, limits, color=_INK, linewidth=1, linestyle=_DASHES, zorder=4)
    axes.set(xlim=limits, ylim=limits, xlabel="true (kcal/mol)", ylabel="predicted (kcal/mol)")
    axes.set_title("Internal energy at 0 K, less its fit on composition", loc="left", fontsize=11, color=_INK)


def _draw_errors(axes: "Axes", true: Floats, predictions: Mapping[str, Floats]) -> None:
    """Draw the right panel: the histogram of each model's errors, without the largest one in a hundred."""
    errors = {name: predicted - true for name, predicted in predictions.items()}
    reach = float(np.percentile(np.abs(np.concatenate(list(errors.values()))), 99))
    edges = np.linspace(-reach, reach, 62)  # 61 bins, so that one is centred on zero
    for depth, (name, error) in enumerate(errors.items()):
        label = f"{name}: MAE = {score(true, predictions[name]).mae:.2f} kcal/mol"
        counts = np.histogram(error, edges)[0]
        colour = _COLOURS[name]
        axes.stairs(counts, edges, fill=True, color=colour, alpha=0.4, zorder=3 - depth)
        axes.stairs(counts, edges, color=colour, linewidth=1.6, zorder=5 - depth, label=label)
    # Room for the legend above the peak, and the line at zero not through its text.
    axes.set(xlim=(-reach, reach), ylim=(0, 1.25 * axes.get_ylim()[1]))
    axes.axvline(0, ymax=0.8, color=_INK, linewidth=1, linestyle=_DASHES, zorder=6)
    axes.set(xlabel="predicted − true (kcal/mol)", ylabel="molecules")
    axes.set_title("Error of the prediction", loc="left", fontsize=11, color=_INK)


def _tidy(axes: "Axes") -> None:
    """Give a panel the quiet frame, grid and legend that both share."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_QUIET)
    axes.xaxis.label.set_color(_INK)
    axes.yaxis.label.set_color(_INK)
    axes.tick_params(colors=_QUIET, labelcolor=_INK, labelsize=9)
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    legend = axes.legend(frameon=False, loc="upper left", fontsize=9.5, handletextpad=0.5, markerscale=2.5)
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1)


def run_demo(console: Console, n_train: int, n_test: int, memory_limit: str, out: Path) -> None:
    """Load, plan, fit, predict, save, reload and report."""
    limit_bytes = parse_bytes(memory_limit)
    started = perf_counter()
    data = split(qm9.load(n_train + n_test), n_train)
    console.print(
        f"{n_train + n_test:,} QM9 molecules, {qm9.N_FEATURES} descriptors each, "
        f"read in {format_seconds(perf_counter() - started)}"
    )

    plan = dkrr.plan(
        data.X_train,
        data.y_train,
        kernel=RBF(gamma=GAMMA),
        alpha=ALPHA,
        fit_intercept=True,
        memory_limit=memory_limit,
    )
    console.print(str(plan), markup=False, highlight=False, soft_wrap=True)

    model = dkrr.KernelRidge(
        alpha=ALPHA, kernel="rbf", gamma=GAMMA, fit_intercept=True, memory_limit=memory_limit, progress=True
    )
    started = perf_counter()
    model.fit(data.X_train, data.y_train)
    fit_seconds = perf_counter() - started

    started = perf_counter()
    predicted = np.asarray(model.predict(data.X_test), dtype=np.float64)
    predict_seconds = perf_counter() - started

    path = out / "qm9-model.zarr"
    out.mkdir(parents=True, exist_ok=True)
    difference = check_saved(model, data.X_test, predicted, path)
    console.print(f"saved and read back: {path} (largest relative difference {difference:.1e})")

    other_name = "cholesky" if model.plan_.solver == "cg" else "cg"
    other = dkrr.KernelRidge(**{**model.get_params(), "solver": other_name})
    started = perf_counter()
    other.fit(data.X_train, data.y_train)
    other_seconds = perf_counter() - started
    other_residual = other.solve_result_.residual
    differences = np.abs(np.asarray(other.predict(data.X_test)) - predicted)

    run = Run(
        solver=model.plan_.chosen.summary(),
        other=f"{other.plan_.chosen.summary()}: {format_seconds(other_seconds)}, residual {other_residual:.1e}",
        disagreement=float(differences.max() / np.abs(predicted).max()),
        n_train=n_train,
        n_test=n_test,
        fit_seconds=fit_seconds,
        predict_seconds=predict_seconds,
        status=model.solve_result_.status.name.lower(),
        residual=float(model.solve_result_.residual),
        memory_limit=limit_bytes,
        projected_peak_bytes=model.plan_.peak_bytes,
        measured_peak_bytes=model.solve_result_.peak_bytes,
    )
    predictions = {KERNEL_MODEL: predicted, LINEAR_MODEL: predict_linear(data)}
    console.print(result_table(run, {name: score(data.y_test, values) for name, values in predictions.items()}))
    picture = out / "demo.png"
    draw(picture, data.y_test, predictions, run)
    console.print(f"picture: {picture}")


@click.command()
@click.option(
    "--n", "n_train", type=click.IntRange(min=10), default=20_000, show_default=True, help="Molecules to train on."
)
@click.option("--n-test", type=click.IntRange(min=2), default=5_000, show_default=True, help="Molecules held out.")
@click.option("--memory-limit", default="1GiB", show_default=True, help="Memory for the whole fit.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("output"),
    show_default=True,
    help="Folder for the saved model and the picture.",
)
def main(n_train: int, n_test: int, memory_limit: str, out: Path) -> None:
    """Fit, predict and save exact kernel ridge regression on QM9 within a memory limit."""
    if n_train + n_test > qm9.TOTAL_MOLECULES:
        raise click.UsageError(f"--n and --n-test ask for more than QM9's {qm9.TOTAL_MOLECULES:,} molecules")
    try:
        run_demo(Console(), n_train, n_test, memory_limit, out)
    except (DkrrError, ModuleNotFoundError) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
