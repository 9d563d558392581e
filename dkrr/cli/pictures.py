"""Pictures that commands draw."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from dkrr.errors import InputError
from dkrr.values import location, shown


def _axes(count: int = 1) -> tuple[Any, ...]:
    """A figure, and its axes, side by side."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("--out needs matplotlib: pip install matplotlib") from error
    figure = Figure(figsize=(7 if count == 1 else 11, 4), layout="constrained")
    panels = [figure.add_subplot(1, count, 1 + k) for k in range(count)]
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, *panels


def _save(figure: Any, path: str, *, overwrite: bool) -> None:
    from dkrr.tiles.replacing import written_aside

    with written_aside(path, overwrite=overwrite, listed=None) as place:
        figure.savefig(place, dpi=150)


def check_picture_path(path: str, *, overwrite: bool) -> None:
    """Refuse a path that a picture could not be written to, before what it shows is computed."""
    from dkrr.tiles.replacing import check_free

    location(path, "--out", "the path of a picture")
    figure, *_ = _axes()
    kinds = sorted(figure.canvas.get_supported_filetypes())
    if Path(path).suffix.removeprefix(".") not in kinds:
        raise InputError(f"--out is {shown(path)}; expected a path that ends in one of {', '.join(kinds)}")
    if not Path(path).absolute().parent.is_dir():
        raise InputError(f"--out is {shown(path)}; expected a path in an existing folder: create it first")
    check_free(path, overwrite=overwrite, what="a file", is_one=lambda found: Path(found).is_file(), listed=None)


def draw_selection(search: Any, path: str, *, overwrite: bool) -> None:
    """Draw the mean scores over λ with their spread over the folds, a line for every kernel, and the choice.

    Beside them the learning curve, if there is one.

    Raises
    ------
    InputError
        If matplotlib is not installed.
    """
    figure, axes, *more = _axes(1 if search.train_sizes is None else 2)
    results = search.cv_results_
    kernels = [tuple((n, v) for n, v in p.items() if n != "alpha") for p in results["params"]]
    alphas = np.array([p["alpha"] for p in results["params"]])
    means, spreads = results["mean_test_score"], np.nan_to_num(results["std_test_score"])
    for kernel in dict.fromkeys(kernels):
        here = np.flatnonzero([k == kernel for k in kernels])
        here = here[np.argsort(alphas[here])]
        (line,) = axes.plot(alphas[here], means[here], marker="o", markersize=4, label=_label(dict(kernel)))
        low, high = means[here] - spreads[here], means[here] + spreads[here]
        axes.fill_between(alphas[here], low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    best = np.atleast_1d(search.best_index_)
    axes.plot(alphas[best], means[best], "k*", markersize=13, label="chosen")
    axes.set_xscale("log")
    axes.set_xlabel("λ")
    axes.set_ylabel("score of the rows left out")
    axes.set_title("mean and spread of the folds", fontsize=10)
    axes.legend(frameon=False)
    if more:
        draw_curve(search.learning_curve_, more[0], search.best_params_)
    _save(figure, path, overwrite=overwrite)


def draw_curve(curve: dict[str, Any], axes: Any, best: dict[str, Any]) -> None:
    """Draw the mean scores over the number of training rows, a line for every kernel; of the best one every fold."""
    sizes = curve["train_sizes"]
    for parameters, means in zip(curve["params"], curve["mean_test_score_of_kernels"], strict=True):
        is_best = all(best[name] == value for name, value in parameters.items())
        (line,) = axes.plot(sizes, means, marker="o", markersize=4, label=_label(parameters))
        if is_best:
            colour = line.get_color()
            axes.plot(curve["split_train_sizes"], curve["test_scores"], color=colour, alpha=0.35, linewidth=0.8)
            low, high = (means + sign * curve["std_test_score"] for sign in (-1, 1))
            axes.fill_between(sizes, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.set_xlabel("training rows")
    margin = "" if math.isnan(curve["gain_margin"]) else f" ± {curve['gain_margin']:.2g} (95 %)"
    axes.set_title(f"{curve['gain_per_doubling']:+.3g}{margin} by the last doubling", fontsize=10)
    if len(curve["params"]) > 1:
        axes.legend(frameon=False)


def _label(parameters: dict[str, Any]) -> str | None:
    """Parameters of a kernel for a legend."""
    return ", ".join(f"{n}={v:.4g}" if isinstance(v, float) else f"{n}={v}" for n, v in parameters.items()) or None
