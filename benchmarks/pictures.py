"""Pictures of recorded results: errors on molecules against rows and against time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import Record, look
from dkrr.text import format_seconds

_EXACT, _FEW, _MANY, _PEER = "#1763a6", "#d9822b", "#a4501c", "#5f6b76"
_INK, _QUIET, _GRID, _SHADE = "#1f2933", "#52606d", "#e6e9ed", "#f1f3f5"
_WIDTH, _HEIGHT, _DPI = 7.2, 4.4, 100
"""720 × 440 pixels."""
_ROWS = (500, 220_000)
"""Limits of the axis of training rows."""


def curves(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Fits of step ``iterative-headline`` by how they were made, each curve in order of its rows.

    Of Nyström approximations with as many centres of the same rows, drawn in several ways, the best is taken.
    """
    found: dict[str, dict[int, Record]] = {}
    for record in records:
        if "mae" not in record:
            continue
        name = "scikit-learn" if "peer" in record else str(record.get("centres") or "exact")
        best = found.setdefault(name, {})
        n = record["n"]
        if n not in best or record["mae"] < best[n]["mae"]:
            best[n] = record
    return {name: [by_rows[n] for n in sorted(by_rows)] for name, by_rows in found.items()}


def crash_rows(records: Sequence[Record]) -> int | None:
    """Fewest rows at which scikit-learn crashed in lines of ``iterative-headline`` and of `benchmarks.solve`."""
    sizes = [r["n"] for r in records if "peer" in r and "crashed" in r]
    sizes += [r["settings"]["n"] for r in records if look(r, "peers.sklearn.crashed") is not None]
    return min(sizes, default=None)


def draw_errors_by_rows(records: Sequence[Record], path: Path, crashes_at: int | None) -> None:
    """Mean absolute error of energies of molecules against training rows, for the README.

    Parameters
    ----------
    records : sequence of dict
        Lines of step ``iterative-headline``.
    path : Path
        PNG to write.
    crashes_at : int or None
        Rows from which scikit-learn crashes.
    """
    figure, axes = _axes()
    by_name = curves(records)
    exact = by_name.pop("exact")
    axes.set_xlim(*_ROWS)
    if crashes_at is not None:
        axes.axvspan(crashes_at, _ROWS[1], color=_SHADE, linewidth=0, zorder=0)
        axes.axvline(crashes_at, color=_PEER, linewidth=1.2, linestyle=(0, (4, 3)))
        axes.annotate(
            f"scikit-learn with two threads\ncrashes from {crashes_at:,} rows on",
            (crashes_at, 1),
            xycoords=("data", "axes fraction"),
            xytext=(6, -6),
            textcoords="offset points",
            va="top",
            fontsize=10,
            color=_QUIET,
        )
    for name, colour, marker in zip(
        sorted(by_name.keys() - {"scikit-learn"}, key=int), (_FEW, _MANY), "sD", strict=False
    ):
        points = by_name[name]
        _line(axes, points, "n", colour, marker)
        last = points[-1]
        label = f"Nyström, {int(name):,} centres\n{format_seconds(last['seconds'])}"
        _note(axes, last["n"], last["mae"], label, (8, 0), colour, va="center")
    _line(axes, exact, "n", _EXACT, "o")
    for point in exact[:-1]:
        _below(axes, point["n"], point, format_seconds(point["seconds"]), _EXACT)
    last = exact[-1]
    _note(axes, last["n"], last["mae"], f"dkrr, exact\n{format_seconds(last['seconds'])}", (8, 0), _EXACT, va="center")
    axes.set_xlabel("training molecules")
    _finish(figure, axes, path)


def draw_errors_by_time(records: Sequence[Record], path: Path) -> None:
    """Mean absolute error of energies of molecules against the time of the fit, for the page on speed.

    Parameters
    ----------
    records : sequence of dict
        Lines of step ``iterative-headline``.
    path : Path
        PNG to write.
    """
    figure, axes = _axes()
    by_name = curves(records)
    styles = {"exact": ("dkrr, exact", _EXACT, "o"), "scikit-learn": ("scikit-learn", _PEER, "^")}
    for name, colour, marker in zip(sorted(by_name.keys() - styles.keys(), key=int), (_FEW, _MANY), "sD", strict=False):
        sizes = ", ".join(f"{p['n'] // 1000}" for p in by_name[name])
        styles[name] = (f"Nyström, {int(name):,} centres ({sizes} thousand molecules)", colour, marker)
    for name, (label, colour, marker) in styles.items():
        points = by_name.get(name, [])
        _line(axes, points, "seconds", colour, marker, label)
        for point in points if name == "exact" else ():
            _below(axes, point["seconds"], point, f"{point['n']:,}", colour)
    axes.legend(frameon=False, fontsize=10, labelcolor=_INK, loc="upper right")
    axes.set_xlabel("time of the fit, seconds (numbers: training molecules)")
    _finish(figure, axes, path)


def _axes() -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, _HEIGHT), dpi=_DPI, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.set_yscale("log")
    return figure, axes


def _line(axes: Any, points: Sequence[Record], path: str, colour: str, marker: str, label: str | None = None) -> None:
    x, y = [look(p, path) for p in points], [p["mae"] for p in points]
    axes.plot(x, y, color=colour, marker=marker, markersize=6, linewidth=2, label=label)


def _below(axes: Any, x: float, point: Record, text: str, colour: str) -> None:
    """Text to the lower left of a point of a falling curve, where the curve is not."""
    _note(axes, x, point["mae"], text, (-4, -4), colour, ha="right", va="top")


def _note(axes: Any, x: float, y: float, text: str, offset: tuple[float, float], colour: str, **more: Any) -> None:
    from matplotlib.patheffects import withStroke

    halo = [withStroke(linewidth=3, foreground="white")]  # over lines and shades
    place: dict[str, Any] = {"xytext": offset, "textcoords": "offset points", "path_effects": halo}
    axes.annotate(text, (x, y), fontsize=10, color=colour, **place, **more)


def _finish(figure: Any, axes: Any, path: Path) -> None:
    """Label the errors and write the file."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes.set_ylabel("mean absolute error, kcal/mol")
    axes.margins(x=0.1, y=0.1)
    low, high = axes.get_ylim()
    axes.set_yticks([t for t in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 30, 50, 100) if low <= t <= high])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,g}"))
    axes.tick_params(colors=_QUIET, labelcolor=_INK, labelsize=10)
    axes.xaxis.label.set_color(_INK)
    axes.yaxis.label.set_color(_INK)
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_QUIET)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
