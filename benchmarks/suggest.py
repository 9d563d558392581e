"""Which molecules to compute next: random ones, those of the largest standard deviation, or those of `dkrr.suggest`.

``python -m benchmarks.suggest --out docs/images --cache output/cache`` begins with 300 molecules of QM9, takes 200 more
out of a pool four times, and measures the errors of held-out molecules each time. Each seed draws another start,
another pool and other held-out molecules. The three ways share them, so that their differences are paired. λ and γ are
chosen by the first molecules, and stay; descriptors are standardised by the pool, which takes
no targets. One line of JSON for each seed and way on stdout; a table on stderr; a picture.
"""

import json
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

import dkrr
from benchmarks import qm9
from benchmarks.guide import BLUE, GREY, ORANGE
from dkrr import KernelRidge, KernelRidgeCV
from dkrr.typing import KernelName

Floats = NDArray[np.float64]
Integers = NDArray[np.intp]

ALPHAS = np.geomspace(1e-6, 1e-1, 11)
GAMMAS = np.array([0.015, 0.03, 0.06, 0.125, 0.25, 0.5]) / qm9.N_FEATURES


def _random(model: KernelRidge, pool: Floats, k: int, seed: int) -> Integers:  # noqa: ARG001
    return np.random.default_rng(seed).choice(len(pool), k, replace=False)


def _largest_deviation(model: KernelRidge, pool: Floats, k: int, seed: int) -> Integers:  # noqa: ARG001
    _, std = model.predict(pool, return_std=True)
    return np.argsort(-std, kind="stable")[:k]


def _suggested(model: KernelRidge, pool: Floats, k: int, seed: int) -> Integers:
    return dkrr.suggest(model, pool, k, random_state=seed).rows


Way = Callable[[KernelRidge, Floats, int, int], Integers]
WAYS: dict[str, tuple[Way, str]] = {
    "random": (_random, GREY),
    "largest std": (_largest_deviation, ORANGE),
    "dkrr.suggest": (_suggested, BLUE),
}


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("docs/images"), show_default=True)
@click.option("--cache", type=click.Path(path_type=Path), default=Path("output/cache"), show_default=True)
@click.option("--n-molecules", default=25_000, show_default=True, help="Molecules that seeds draw from.")
@click.option("--n-test", default=4000, show_default=True, help="Molecules that are held out.")
@click.option("--start", default=300, show_default=True, help="Molecules of the first fit.")
@click.option("--batch", default=200, show_default=True, help="Molecules that are added at once.")
@click.option("--rounds", default=4, show_default=True, help="Times that some are added.")
@click.option("--seeds", default=5, show_default=True)
@click.option("--kernel", type=click.Choice(["rbf", "laplacian"]), default="rbf", show_default=True)
def main(
    out: Path,
    cache: Path,
    n_molecules: int,
    n_test: int,
    start: int,
    batch: int,
    rounds: int,
    seeds: int,
    kernel: KernelName,
) -> None:
    """Compare three ways to choose the molecules of the next fit."""
    sample = qm9.load(n_molecules, cache=cache)
    sizes = [start + batch * k for k in range(rounds + 1)]
    errors: dict[str, list[list[dict[str, float]]]] = {name: [] for name in WAYS}
    for seed in range(seeds):
        order = np.random.default_rng(seed).permutation(n_molecules)
        test, rest = order[:n_test], order[n_test:]
        X, y = _standardised(sample, rest)
        search = KernelRidgeCV(ALPHAS, kernel=kernel, gamma=GAMMAS.tolist(), cv=5, refit=False)
        best = search.fit(X[rest[:start]], y[rest[:start]]).best_params_
        gamma = float(best["gamma"])
        model = KernelRidge(search.alpha_, kernel=kernel, gamma=gamma, fit_intercept=True, uncertainty=True)
        for name, (choose, _) in WAYS.items():
            found = _run(model, choose, X, y, rest, test, sizes, seed)
            errors[name].append(found)
            click.echo(
                json.dumps(
                    {
                        "way": name,
                        "seed": seed,
                        "kernel": kernel,
                        "alpha": search.alpha_,
                        "gamma": gamma,
                        "errors": found,
                    }
                )
            )
    click.echo(_table(errors, sizes), err=True)
    path = out / "suggest-molecules.png"
    out.mkdir(parents=True, exist_ok=True)
    _draw(errors, sizes).savefig(path, dpi=120)
    click.echo(path, err=True)


def _standardised(sample: qm9.Molecules, rows: Integers) -> tuple[Floats, Floats]:
    """All descriptors, standardised by some rows, and targets; what does not vary among these is only moved."""
    X = sample.descriptors
    scale = np.where(np.ptp(X[rows], axis=0) > 0, X[rows].std(axis=0), 1.0)
    return (X - X[rows].mean(axis=0)) / scale, sample.target


def _run(
    model: KernelRidge,
    choose: Way,
    X: Floats,
    y: Floats,
    rest: Integers,
    test: Integers,
    sizes: list[int],
    seed: int,
) -> list[dict[str, float]]:
    """Mean absolute error and root of the mean squared error, in kcal/mol, at each size."""
    known, pool, found = rest[: sizes[0]], rest[sizes[0] :], []
    for size, following in zip(sizes, [*sizes[1:], None], strict=True):
        model.fit(X[known], y[known])
        off = model.predict(X[test]) - y[test]
        found.append({"n": size, "mae": float(np.abs(off).mean()), "rmse": float(np.sqrt((off**2).mean()))})
        if following is not None:
            chosen = choose(model, X[pool], following - size, 1000 * seed + size)
            known, pool = np.concatenate([known, pool[chosen]]), np.delete(pool, chosen)
    return found


def _values(errors: dict[str, list[list[dict[str, float]]]], name: str, measure: str) -> Floats:
    """Errors of one way, of shape (seeds, sizes)."""
    return np.array([[one[measure] for one in of_seed] for of_seed in errors[name]])


def _table(errors: dict[str, list[list[dict[str, float]]]], sizes: list[int]) -> str:
    """Means over the seeds ± standard deviations, and errors over those of random molecules, seed by seed."""
    lines = []
    for measure, title in (("mae", "mean absolute error"), ("rmse", "root of the mean squared error")):
        lines.append(f"{title}, kcal/mol: mean ± standard deviation over {len(errors['random'])} seeds")
        lines.append("".join([f"{'molecules':>22}", *(f"{size:>16,}" for size in sizes)]))
        random = _values(errors, "random", measure)
        for name in WAYS:
            values = _values(errors, name, measure)
            lines.append(f"{name:>22}" + _cells(values, 2))
            if name != "random":
                lines.append(f"{'over random':>22}" + _cells(values / random, 3))
    return "\n".join(lines)


def _cells(values: Floats, digits: int) -> str:
    spread = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])
    return "".join(
        f"{f'{mean:.{digits}f} ± {std:.{digits}f}':>16}" for mean, std in zip(values.mean(axis=0), spread, strict=True)
    )


def _draw(errors: dict[str, list[list[dict[str, float]]]], sizes: list[int]) -> Figure:
    figure = Figure(figsize=(9.5, 4.2), layout="constrained")
    for axes, (measure, title) in zip(
        figure.subplots(1, 2), (("mae", "mean absolute error"), ("rmse", "root of the mean squared error")), strict=True
    ):
        for name, (_, colour) in WAYS.items():
            values = _values(errors, name, measure)
            axes.plot(sizes, values.mean(axis=0), "o-", color=colour, markersize=4, label=name)
            axes.fill_between(sizes, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.set(xlabel="molecules trained on", ylabel="kcal/mol", title=title)
        axes.legend(frameon=False)
    return figure


if __name__ == "__main__":
    main()
