"""Pictures of small examples for docs/explanation and docs/how-to: ``python -m benchmarks.guide --out docs/images``."""

from pathlib import Path
from typing import Any

import click
import numpy as np
from matplotlib.figure import Figure

from dkrr import KernelLogisticRegression, KernelRidge, KernelRidgeCV
from dkrr.kernels import RBF
from dkrr.store import TileGrid

INK, BLUE, ORANGE, GREY = "#1f2933", "#1763a6", "#e8963a", "#8a94a0"
GAMMAS = (50.0, 2.0, 0.05)
LAMBDAS = (1e-6, 1e-1, 10.0)


@click.command()
@click.option("--out", default="docs/images", show_default=True, help="Folder of the pictures.")
@click.option("--n", default=40, show_default=True, help="Rows of the fits.")
def main(out: str, n: int) -> None:
    """Draw fits in one dimension, tiles of a Gram matrix, probabilities of two rings, scores, and errors of a fit."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in (("fits", fits), ("gram", gram), ("rings", rings), ("scores", scores), ("errors", errors)):
        path = folder / f"guide-{name}.png"
        draw(n).savefig(path, dpi=120)
        click.echo(path)


def _plain(axes: Any) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_color(GREY)


def fits(n: int) -> Figure:
    """Kernel ridge regression of a noisy wave, for several λ (down) and γ (across)."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(-3, 3, n))
    y = np.sin(2 * x) + 0.3 * x + 0.25 * rng.normal(size=n)
    grid = np.linspace(-3.3, 3.3, 600)
    figure = Figure(figsize=(9, 6), layout="constrained")
    panels = figure.subplots(len(LAMBDAS), len(GAMMAS), sharex=True, sharey=True)
    for line, alpha in zip(panels, LAMBDAS, strict=True):
        for axes, gamma in zip(line, GAMMAS, strict=True):
            model = KernelRidge(alpha=alpha, kernel=RBF(gamma=gamma)).fit(x[:, None], y)
            axes.plot(x, y, ".", color=GREY, markersize=4)
            axes.plot(grid, np.sin(2 * grid) + 0.3 * grid, color=ORANGE, linewidth=1)
            axes.plot(grid, model.predict(grid[:, None]), color=BLUE, linewidth=1.6)
            axes.set_ylim(-2.6, 2.6)
            axes.set_title(f"λ = {alpha:g}, γ = {gamma:g}", fontsize=9, color=INK)
            _plain(axes)
    return figure


def scores(n: int) -> Figure:  # noqa: ARG001
    """Diabetes after a year from ten measurements: the error of rows left out over λ, for several γ."""
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True, scaled=False)
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes = figure.subplots()
    folds, gammas = 10, (0.00625, 0.025, 0.1)
    search = KernelRidgeCV(
        np.geomspace(0.01, 100, 9),
        gamma=list(gammas),
        cv=folds,
        transformer="standardize",
        fit_intercept=True,
        early_stopping=False,
    )
    search.fit(X, y)
    results = search.cv_results_
    for gamma, colour in zip(gammas, (BLUE, ORANGE, GREY), strict=True):
        here = [k for k, p in enumerate(results["params"]) if p["gamma"] == gamma]
        alphas = [results["params"][k]["alpha"] for k in here]
        means, spread = (results[f"{name}_test_score"][here] for name in ("mean", "std"))
        axes.semilogx(alphas, np.sqrt(-means), "o-", color=colour, markersize=3, label=f"γ = {gamma:g}")
        low, high = (np.sqrt(-means + sign * spread / (folds - 1) ** 0.5) for sign in (-1, 1))
        axes.fill_between(alphas, low, high, color=colour, alpha=0.12, linewidth=0)
    best = search.best_index_
    axes.plot(search.alpha_, (-results["mean_test_score"][best]) ** 0.5, "k*", markersize=12, label="best")
    axes.set(xlabel="λ", ylabel="error of rows left out (root mean square)", title="442 patients, 10 columns")
    axes.legend(frameon=False)
    return figure


def errors(n: int) -> Figure:  # noqa: ARG001
    """Diabetes after a year over the body mass index: a model with both kinds of error bars."""
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True, scaled=False)
    bmi = X[:, [2]]
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes = figure.subplots()
    model = KernelRidge(alpha=0.3, kernel=RBF(gamma=0.01), fit_intercept=True).fit(bmi, y)
    grid = np.linspace(15, 50, 300)[:, None]
    mean, std = model.predict(grid, return_std=True)
    lower, upper = model.predict_interval(grid, coverage=0.9)
    axes.plot(bmi, y, ".", color=GREY, markersize=3)
    axes.plot(grid, mean, color=BLUE, label="f")
    axes.fill_between(
        grid[:, 0], mean - 2 * std, mean + 2 * std, color=BLUE, alpha=0.25, linewidth=0, label="f ± 2 std"
    )
    axes.plot(grid, lower, "--", color=ORANGE, linewidth=1, label="90 % of new targets (CV+)")
    axes.plot(grid, upper, "--", color=ORANGE, linewidth=1)
    axes.set(
        xlabel="body mass index", ylabel="progress of the disease", title="442 patients, one column", ylim=(-60, 400)
    )
    axes.legend(frameon=False, fontsize=8)
    return figure


def gram(n: int) -> Figure:
    """Gram matrix of clustered rows, in the tiles of a factorisation: what is stored and what is the mirror image."""
    rng = np.random.default_rng(1)
    centres = rng.normal(scale=2.0, size=(5, 2))
    X = np.vstack([c + 0.6 * rng.normal(size=(2 * n, 2)) for c in centres])
    K = RBF(gamma=0.3)(X)
    grid = TileGrid(len(X), -(-len(X) // 6), -(-len(X) // 6))
    figure = Figure(figsize=(5, 4.4), layout="constrained")
    axes = figure.subplots()
    shown = np.where(np.tril(np.ones_like(K)) > 0, K, 0.35 * K)
    picture = axes.imshow(shown, cmap="Blues", vmin=0, vmax=1)
    for k in range(grid.n_tiles):
        edge = grid.rows(k).start - 0.5
        axes.axhline(edge, color=ORANGE, linewidth=0.8)
        axes.axvline(edge, color=ORANGE, linewidth=0.8)
    axes.set_title(f"k(xᵢ, xⱼ), {len(X)} rows in {grid.n_tiles} × {grid.n_tiles} tiles; above, the mirror", fontsize=9)
    figure.colorbar(picture, ax=axes, shrink=0.8)
    _plain(axes)
    return figure


def rings(n: int) -> Figure:
    """Probabilities of kernel logistic regression between two noisy rings."""
    rng = np.random.default_rng(2)
    labels = np.repeat([0, 1], 4 * n)
    angle = rng.uniform(0, 2 * np.pi, len(labels))
    X = np.where(labels, 0.8, 1.0)[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
    X += 0.1 * rng.normal(size=X.shape)
    model = KernelLogisticRegression(alpha=0.01, kernel=RBF(gamma=2.0)).fit(X, labels)
    side = np.linspace(-1.5, 1.5, 160)
    points = np.column_stack([a.ravel() for a in np.meshgrid(side, side)])
    p = model.predict_proba(points)[:, 1].reshape(160, 160)
    figure = Figure(figsize=(5, 4.4), layout="constrained")
    axes = figure.subplots()
    picture = axes.contourf(side, side, p, levels=np.linspace(0, 1, 11), cmap="PuOr_r")
    axes.contour(side, side, p, levels=[0.5], colors=INK, linewidths=1)
    for value, colour in ((0, "#d9c8f0"), (1, INK)):
        axes.plot(*X[labels == value].T, ".", color=colour, markersize=2)
    axes.set_aspect("equal")
    axes.set_title("probability of the inner ring", fontsize=9)
    figure.colorbar(picture, ax=axes, shrink=0.8)
    _plain(axes)
    return figure


if __name__ == "__main__":
    main()
