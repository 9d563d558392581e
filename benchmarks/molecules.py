"""λ and kernel for molecules, and the coverage of error bars: pictures of docs/how-to/choose.md and error-bars.md.

``python -m benchmarks.molecules --out docs/images --cache output/cache`` draws them and prints the numbers.
"""

from pathlib import Path
from typing import Any

import click
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold, KFold

from benchmarks import qm9
from benchmarks.guide import BLUE, GREY, INK, ORANGE
from dkrr import KernelRidgeCV
from dkrr.typing import KernelName

Floats = NDArray[np.float64]
Integers = NDArray[np.intp]

SAMPLE = 20_000
"""Molecules that are drawn; the first ones are trained on."""
KERNELS: dict[KernelName, str] = {"rbf": BLUE, "laplacian": ORANGE}
ALPHAS = np.geomspace(1e-6, 1.0, 10)
SIZES = (1 / 16, 1 / 8, 1 / 4, 1 / 2)
COVERAGE = 0.9
NORMAL_QUANTILE = 1.645
"""Standard deviations around the mean that hold 90 % of a normal distribution."""
NITROGEN = 2
"""Column of the counts of atoms."""


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("docs/images"), show_default=True)
@click.option("--cache", type=click.Path(path_type=Path), default=Path("output/cache"), show_default=True)
@click.option("--n", default=2400, show_default=True, help="Molecules of the fits.")
def main(out: Path, cache: Path, n: int) -> None:
    """Scores over λ, learning curves, and the coverage of intervals for familiar and for new molecules."""
    sample = qm9.load(SAMPLE, cache=cache)
    counts = np.rint(sample.descriptors[:, qm9.COUNTS]).astype(int)
    choice, intervals = Figure(figsize=(9.5, 4.2), layout="constrained"), Figure(figsize=(6.5, 4), layout="constrained")
    over_alpha, over_rows = choice.subplots(1, 2)
    coverage = intervals.subplots()
    for axes in (over_alpha, over_rows, coverage):
        axes.spines[["top", "right"]].set_visible(False)
    rows = np.arange(n)
    formulas = np.unique(counts[rows], axis=0, return_inverse=True)[1].ravel()
    by_row = _searched(sample, rows, KFold(5, shuffle=True, random_state=0))
    by_formula = _searched(sample, rows, GroupKFold(5), formulas)
    _draw_alphas(over_alpha, by_row)
    _draw_curves(over_rows, by_row, by_formula)
    _draw_coverage(coverage, _coverages(sample, counts, n))
    for name, figure in (("selection", choice), ("intervals", intervals)):
        path = out / f"{name}-molecules.png"
        figure.savefig(path, dpi=120)
        click.echo(path)


def _standardised(sample: qm9.Molecules, rows: Integers) -> tuple[Floats, Floats]:
    """All descriptors and targets, standardised by some rows."""
    X, y = sample.descriptors, sample.target
    scale = np.where(np.ptp(X[rows], axis=0) > 0, X[rows].std(axis=0), 1.0)
    return (X - X[rows].mean(axis=0)) / scale, y - y[rows].mean()


def _searched(sample: qm9.Molecules, rows: Integers, cv: Any, groups: Integers | None = None) -> KernelRidgeCV:
    X, y = _standardised(sample, rows)
    search = KernelRidgeCV(ALPHAS, kernel=list(KERNELS), gamma=1 / X.shape[1], cv=cv, train_sizes=SIZES, refit=False)
    search.fit(X[rows], y[rows], groups=groups)
    curve = search.learning_curve_
    click.echo(f"{type(cv).__name__}: {search.best_params_}, error {(-search.best_score_) ** 0.5:.2f} kcal/mol")
    for k, parameters in enumerate(curve["params"]):
        click.echo(f"  {parameters}: {np.sqrt(-curve['mean_test_score_of_kernels'][k]).round(2)}")
    click.echo(f"  alpha {curve['alpha']}; {curve['conclusion']}")
    return search


def _draw_alphas(axes: Any, search: KernelRidgeCV) -> None:
    results = search.cv_results_
    for kernel, colour in KERNELS.items():
        here = [k for k, p in enumerate(results["params"]) if p["kernel"] == kernel]
        alphas, means = [results["params"][k]["alpha"] for k in here], results["mean_test_score"][here]
        errors = results["std_test_score"][here] / (search.n_splits_ - 1) ** 0.5
        axes.loglog(alphas, np.sqrt(-means), "o-", color=colour, markersize=3, label=kernel)
        low, high = np.sqrt(-means - errors), np.sqrt(-means + errors)
        axes.fill_between(alphas, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.plot(search.alpha_, (-search.best_score_) ** 0.5, "*", color=INK, markersize=12)
    axes.set(xlabel="λ", ylabel="error of molecules left out, kcal/mol", title="λ and kernel")
    _plain_ticks(axes.yaxis, (12, 14, 16))
    axes.legend(frameon=False)


def _draw_curves(axes: Any, by_row: KernelRidgeCV, by_formula: KernelRidgeCV) -> None:
    for search, style, what in ((by_row, "o-", ""), (by_formula, "s--", ", new formulas")):
        curve = search.learning_curve_
        for k, (kernel, colour) in enumerate(KERNELS.items()):
            means = np.sqrt(-curve["mean_test_score_of_kernels"][k])
            axes.loglog(curve["train_sizes"], means, style, color=colour, markersize=3, label=kernel + what)
    sizes = by_row.learning_curve_["train_sizes"]
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    _plain_ticks(axes.yaxis, (12, 15, 20))
    axes.set(xlabel="molecules trained on", title="learning curves")
    axes.legend(frameon=False, fontsize=8)


def _plain_ticks(axis: Any, values: tuple[int, ...]) -> None:
    axis.set_ticks(values, [str(value) for value in values])
    axis.set_ticks([], minor=True)


def _coverages(sample: qm9.Molecules, counts: Integers, n: int) -> list[tuple[str, float, float]]:
    """Fractions of targets within 90 % intervals by CV+ and within f ± 1.645 std: of alike molecules, and of others."""
    found = list[tuple[str, float, float]]()
    nitrogens = counts[:, NITROGEN]
    without = np.flatnonzero(nitrogens == 0)
    for name, rows, tests in (
        ("any", np.arange(n), {"any": np.arange(n, n + 2000)}),
        ("no N", without[:n], {"no N": without[n:], **{f"{k} N": np.flatnonzero(nitrogens == k) for k in (1, 2, 3)}}),
    ):
        X, y = _standardised(sample, rows)
        search = KernelRidgeCV(ALPHAS, kernel="laplacian", gamma=1 / X.shape[1], cv=KFold(5)).fit(X[rows], y[rows])
        for what, test in tests.items():
            new = test[:2000]
            mean, std = search.predict(X[new], return_std=True)
            lower, upper = search.predict_interval(X[new], coverage=COVERAGE)
            by_folds = float(np.mean((lower <= y[new]) & (y[new] <= upper)))
            by_std = float(np.mean(np.abs(mean - y[new]) <= NORMAL_QUANTILE * std))
            error = float(np.sqrt(np.mean((mean - y[new]) ** 2)))
            click.echo(
                f"trained on {name}, new {what}: error {error:.1f}, by folds {(-search.best_score_) ** 0.5:.1f}; "
                f"in the interval {by_folds:.3f} (width {np.mean(upper - lower):.0f}), "
                f"in f ± {NORMAL_QUANTILE} std {by_std:.3f} (std {std.mean():.1f})"
            )
            found.append((f"{name} → {what}", by_folds, by_std))
    return found


def _draw_coverage(axes: Any, coverages: list[tuple[str, float, float]]) -> None:
    names = [name for name, _, _ in coverages]
    places = np.arange(len(names))
    axes.bar(places - 0.2, [a for _, a, _ in coverages], 0.4, color=BLUE, label="predict_interval (CV+)")
    axes.bar(places + 0.2, [b for _, _, b in coverages], 0.4, color=ORANGE, label=f"f ± {NORMAL_QUANTILE} std")
    axes.axhline(COVERAGE, color=GREY, linestyle="--", linewidth=1)
    axes.set_xticks(places, [name.replace(" → ", "\n→ ") for name in names])
    axes.set(ylim=(0, 1.18), xlabel="trained on → predicted", title="targets within intervals of 90 %")
    axes.legend(frameon=False, fontsize=8, loc="upper right")


if __name__ == "__main__":
    main()
