"""Pictures of a fit, drawn with matplotlib: for reports, and files that commands write."""

import base64
import io
import os
import textwrap
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dkrr.checks import location, shown
from dkrr.cli.command import named
from dkrr.errors import InputError
from dkrr.store.status_and_damage import TileMap
from dkrr.text import plural

Draw = Callable[[Any], None]
"""Draws on the axes of matplotlib that it is given."""

COLOURS = ("#1763a6", "#d9730d", "#2a9d6f", "#8250b5", "#b93a4b", "#0f8b8d", "#a07800", "#6b705c")
GREY = "#8a94a0"
MAX_KERNELS = len(COLOURS)
"""Lines in a picture of scores; the best kernels."""
ADVICE_WIDTH = 70
"""Characters of a line of advice."""
MAX_LABEL = 60
"""Characters of a label."""


def figure(*draws: Draw, width: float = 5.2, height: float = 3.6) -> Any:
    """Figure with a picture for each function, side by side.

    Raises
    ------
    InputError
        If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("pictures need matplotlib, which is not installed: pip install 'dkrr[report]'") from error
    made = Figure(figsize=(width * len(draws), height), layout="constrained")
    for k, draw in enumerate(draws):
        axes = made.add_subplot(1, len(draws), k + 1)
        axes.spines[["top", "right"]].set_visible(False)
        draw(axes)
    return made


def embedded(*draws: Draw, **size: float) -> str:
    """Address of a picture that holds the picture itself."""
    file, made = io.BytesIO(), figure(*draws, **size)
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "dkrr"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # names may have characters that no font here has
        made.savefig(file, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def check_path(path: str, *, overwrite: bool) -> None:
    """Refuse a path for --out that a picture could not be written to, before what it shows is computed."""
    from dkrr.store.places import check_free

    location(path, "--out", "the path of a picture")
    kinds = sorted(figure().canvas.get_supported_filetypes())
    if Path(path).suffix.removeprefix(".") not in kinds:
        raise InputError(f"--out is {shown(path)}; expected a path that ends in one of {', '.join(kinds)}")
    with named("--out"):
        check_free(path, overwrite=overwrite, what="a file", is_one=os.path.isfile, listed=None, name="--out")


def write(path: str, *draws: Draw, overwrite: bool) -> None:
    """Write pictures side by side to one file."""
    from dkrr.store.places import written_aside

    with written_aside(path, overwrite=overwrite, listed=None) as place:
        figure(*draws).savefig(place, dpi=150)


def of_search(found: Mapping[str, Any]) -> list[Draw]:
    """Scores and, if there is one, the learning curve of a search, from its summary."""
    curve = [learning_curve(found["curve"])] if found["curve"] else []
    return [scores(found["candidates"], found.get("score_name", "score"), found.get("advice", [])), *curve]


def convergence(history: Sequence[Sequence[Any]], tol: float | None) -> Draw:
    """Residual at every iteration of conjugate gradient: (iteration, seconds, residual, whether it is the true one)."""

    def draw(axes: Any) -> None:
        lines = [h for h in history if h[2]]
        true = [h for h in lines if h[3]]
        axes.semilogy([h[0] for h in lines], [h[2] for h in lines], color=COLOURS[0], label="by the recurrence")
        axes.semilogy([h[0] for h in true], [h[2] for h in true], "o", color=COLOURS[1], label="true, in float64")
        if tol:
            axes.axhline(tol, color=GREY, linestyle="--", linewidth=1, label=f"tol {tol:.0e}")
        axes.set(xlabel="iteration of conjugate gradient", ylabel="relative residual")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(frameon=False)

    return draw


def newton_steps(steps: Sequence[Mapping[str, Any]]) -> Draw:
    """Gradient after every step of Newton's method."""

    def draw(axes: Any) -> None:
        lines = [s for s in steps if s["gradient"]]
        axes.semilogy([s["step"] for s in lines], [s["gradient"] for s in lines], "o-", color=COLOURS[0])
        axes.set(xlabel="step of Newton's method", ylabel="relative gradient")
        axes.xaxis.get_major_locator().set_params(integer=True)

    return draw


def scores(candidates: Sequence[Sequence[Any]], score: str = "score", advice: Sequence[str] = ()) -> Draw:
    """Mean score over λ with the spread of the folds, a line for every kernel, and the choice.

    Parameters
    ----------
    candidates : sequence of (kernel, λ, score, spread, whether it was chosen)
    score : str
        Its name.
    advice : sequence of str
        What the search advises.
    """

    def draw(axes: Any) -> None:
        kernels: dict[str, list[Sequence[Any]]] = defaultdict(list)
        for one in candidates:
            kernels[one[0]].append(one)
        ranked = sorted(kernels, key=lambda name: -max(c[2] for c in kernels[name]))[:MAX_KERNELS]
        for name, colour in zip(ranked, COLOURS, strict=False):
            rows = sorted(kernels[name], key=lambda c: c[1])
            alphas, means, spreads = (np.array([c[k] for c in rows], np.float64) for k in (1, 2, 3))
            axes.plot(alphas, means, "o-", color=colour, markersize=4, label=_label(name))
            axes.fill_between(alphas, means - spreads, means + spreads, color=colour, alpha=0.15, linewidth=0)
        chosen = [c for c in candidates if c[4]]
        axes.plot([c[1] for c in chosen], [c[2] for c in chosen], "k*", markersize=12, label="chosen")
        axes.set_xscale("log")
        axes.set(xlabel="λ", ylabel=f"{_label(score)} of the rows left out")
        lines = [line for text in advice for line in textwrap.wrap(text.replace("$", r"\$"), ADVICE_WIDTH)]
        axes.set_title("\n".join(["mean and spread of the folds", *lines]), fontsize=8 if advice else 10)
        axes.legend(frameon=False, fontsize=8)

    return draw


def learning_curve(curve: Mapping[str, Any]) -> Draw:
    """Mean score of the best kernel over the number of training rows, with the spread of the folds."""

    def draw(axes: Any) -> None:
        sizes, means, spreads = (np.asarray(curve[name], np.float64) for name in ("sizes", "scores", "spreads"))
        axes.plot(sizes, means, "o-", color=COLOURS[0], markersize=4)
        axes.fill_between(sizes, means - spreads, means + spreads, color=COLOURS[0], alpha=0.15, linewidth=0)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [f"{size:,.0f}" for size in sizes])
        axes.set(xlabel="training rows", ylabel="score of the rows left out")
        axes.set_title("learning curve", fontsize=10)

    return draw


def residuals(found: Mapping[str, Any]) -> Draw:
    """Histogram of residuals."""

    def draw(axes: Any) -> None:
        edges = np.linspace(-found["edge"], found["edge"], len(found["counts"]) + 1)
        axes.stairs(found["counts"], edges, fill=True, color=COLOURS[0], alpha=0.8)
        axes.set(xlabel="residual", ylabel="rows")

    return draw


def tiles(found: TileMap) -> Draw:
    """Map of the tiles of an array: the paler a cell, the more of its tiles are missing."""

    def draw(axes: Any) -> None:
        axes.imshow(found.shares, cmap="Blues", vmin=-0.25, vmax=1.25, aspect="equal", interpolation="nearest")
        axes.set_title(f"{_label(found.name)}: {found.present:,} of {plural(found.expected, 'chunk')}", fontsize=10)
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)

    return draw


def _label(text: str) -> str | None:
    """Text as a label of a bounded length in which matplotlib finds no formulas; None: without a label."""
    shown = text if len(text) <= MAX_LABEL else f"{text[:MAX_LABEL]}..."
    return shown.replace("$", r"\$") or None
