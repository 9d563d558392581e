"""Pictures of a fit: its stages, memory, convergence, scores and tiles."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dkrr.dashboard.svg import (
    BOTTOM,
    CHARACTER,
    HEIGHT,
    LEFT,
    N_COLOURS,
    RIGHT,
    TOP,
    WIDTH,
    Picture,
    Scale,
    linear,
    logarithmic,
    plain,
    rows_of_bars,
)
from dkrr.markup import escape
from dkrr.units import format_bytes, format_seconds

X_RANGE, Y_RANGE = (LEFT, WIDTH - RIGHT), (HEIGHT - BOTTOM, TOP)
WIDE = 2 * WIDTH
LANE = 16
"""Pixels of a lane of the time line."""
MAX_KERNELS = 12
"""Lines in a picture of scores; the best kernels."""
MAP_PIXELS = 420
"""Side of a map of tiles."""
MAX_CELLS = 84
"""Cells on a side of a map; one stands for several tiles beyond."""


@dataclass(frozen=True)
class TileMap:
    """Which tiles of an array of a run are written."""

    name: str
    n_rows: int
    """Rows of tiles."""
    n_columns: int
    present: dict[tuple[int, int], int]
    """Chunks that are there, by row and column of their tile."""
    expected: dict[tuple[int, int], int]
    """Chunks of the complete array; of a triangle those on and below the diagonal."""


def stage_times(planned: dict[str, float], measured: dict[str, float]) -> str:
    """Planned beside measured seconds of every stage."""
    names = [name for name in [*planned, *measured] if planned.get(name, 0.0) or measured.get(name, 0.0)]
    if not names:
        return ""
    rows = []
    for name in dict.fromkeys(names):
        bars = [(planned.get(name, 0.0), 0), (measured.get(name, 0.0), 1)]
        rows.append((name, [(seconds, colour, format_seconds(seconds)) for seconds, colour in bars]))
    return rows_of_bars(rows, "wall time", format_seconds, ("planned", "measured"))


def memory(peaks: Sequence[tuple[str, int]], planned: int | None, limit: int | None) -> str:
    """Highest memory of every process, with the plan's and the limit."""
    found = [("planned, at most", planned, 0)] if planned else []
    found += [(name, peak, 1) for name, peak in peaks]
    most = max((n_bytes for _, n_bytes, _ in found), default=0)
    if limit and limit < 4 * most:  # a limit far above would leave nothing to see of the rest
        found.append(("limit of a process", limit, 7))
    unit, size = ("GiB", 2**30) if most >= 2**30 else ("MiB", 2**20)
    rows = [(name, [(n_bytes / size, colour, format_bytes(n_bytes))]) for name, n_bytes, colour in found]
    return rows_of_bars(rows, f"highest resident memory of a process ({unit})", plain, ())


def time_line(line: dict[str, Any]) -> str:
    """Bars of the stages, and of every worker's threads, over time; pale where a bar has pauses."""
    lanes, stages, seconds = line["lanes"], line["stages"], float(line["seconds"]) or 1e-9
    labels = [name and f"process {name}" for name in lanes]
    labels[0] = "stages"
    left = 14 + round(max(map(len, labels)) * CHARACTER)
    height = TOP + LANE * len(lanes) + 40
    x, bottom = Scale(0.0, seconds, left, WIDE - 16), height - 38
    parts = [f'<svg viewBox="0 0 {WIDE} {height}" width="{WIDE}" role="img"><title>time line</title>']
    for tick in x.ticks(10):
        label = escape(format_seconds(tick))
        parts.append(f'<path class="grid" d="M{x(tick):.1f} {TOP}V{bottom}"/>')
        parts.append(f'<text class="tick" x="{x(tick):.1f}" y="{bottom + 15}" text-anchor="middle">{label}</text>')
    for k, label in enumerate(labels):
        y = TOP + LANE * k + LANE - 4
        parts.append(f'<text class="tick" x="{left - 8}" y="{y}" text-anchor="end">{escape(label)}</text>')
    drawn: dict[tuple[int, int], list[str]] = defaultdict(list)
    for lane, start, end, stage, busy in line["bars"]:
        share = 4 if lane == 0 else max(1, min(4, round(4 * busy / max(end - start, 1e-9))))
        a, b, y = x(start), x(end), TOP + LANE * int(lane) + 2
        drawn[int(stage), share].append(f"M{a:.1f} {y}H{max(b, a + 0.6):.1f}v{LANE - 4}H{a:.1f}Z")
    for (stage, share), paths in sorted(drawn.items()):
        look = f'class="f{stage % N_COLOURS}" opacity="{share / 4}"'
        parts.append(f'<path {look} d="{"".join(paths)}"><title>{escape(stages[stage])}</title></path>')
    parts.append("</svg>")
    legend = "".join(f'<span><i class="f{k % N_COLOURS}"></i>{escape(name)}</span>' for k, name in enumerate(stages))
    return f"<figure><div class=legend>{legend}</div>{''.join(parts)}</figure>"


def convergence(history: Sequence[Sequence[Any]], tol: float | None, label: str = "relative residual") -> str:
    """Residual by iteration, with the true ones."""
    lines = [(float(h[0]), float(h[2]), bool(h[3])) for h in history if h[2]]
    if not lines:
        return ""
    values = [residual for _, residual, _ in lines] + ([tol] if tol else [])
    picture = Picture(
        linear([iteration for iteration, _, _ in lines], *X_RANGE),
        logarithmic(values, *Y_RANGE),
        "iteration of conjugate gradient",
        label,
        title="Convergence",
    )
    picture.line([h[0] for h in lines], [h[1] for h in lines], 0, "by the recurrence")
    true = [h for h in lines if h[2]]
    picture.points([h[0] for h in true], [h[1] for h in true], 1, "true, in float64", size=7)
    if tol:
        picture.level(tol, f"tol {tol:.0e}")
    return picture.svg()


def newton(steps: Sequence[Sequence[Any]]) -> str:
    """Gradient and objective by step of Newton's method."""
    gradients = [(float(s[0]), float(s[3])) for s in steps if s[3]]
    objectives = [(float(s[0]), float(s[2])) for s in steps if s[2] is not None]
    pictures = []
    for title, label, points, scale in (
        ("Convergence", "relative gradient", gradients, logarithmic),
        ("Objective", "penalised negative log likelihood", objectives, linear),
    ):
        if points:
            xs, ys = [p[0] for p in points], [p[1] for p in points]
            picture = Picture(linear(xs, *X_RANGE), scale(ys, *Y_RANGE), "step of Newton's method", label, title)
            picture.line(xs, ys, 0)
            picture.points(xs, ys, 0, size=7)
            pictures.append(picture.svg())
    return "".join(pictures)


def residuals(found: dict[str, Any], name: str) -> str:
    """Residuals over predictions, and their histogram."""
    points, edge = found["points"], float(found["edge"])
    pictures = ""
    if points:
        xs, ys = [float(p[0]) for p in points], [float(p[1]) for p in points]
        scatter = Picture(
            linear(xs, *X_RANGE), linear([*ys, 0.0], *Y_RANGE), f"prediction of {name}", "residual", "Residuals"
        )
        scatter.points(xs, ys, 0, size=4, opacity=0.55)
        scatter.level(0.0, "")
        pictures += scatter.svg()
    counts = [float(c) for c in found["counts"]]
    width = 2 * edge / len(counts)
    histogram = Picture(
        Scale(-edge, edge, *X_RANGE), linear(counts, *Y_RANGE, from_zero=True), "residual", "rows", "Their distribution"
    )
    boxes = [(-edge + k * width, 0.0, -edge + (k + 1) * width, count) for k, count in enumerate(counts) if count]
    histogram.boxes(boxes, 0)
    return pictures + histogram.svg()


def scores(candidates: Sequence[dict[str, Any]]) -> str:
    """Mean score over λ with the spread over the folds, a line for every kernel, and the choice."""
    lines: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for one in candidates:
        if one["score"] is not None and one["alpha"] > 0:
            lines[", ".join(f"{k}={v}" for k, v in one["kernel"].items()) or "score"].append(one)
    if not lines:
        return ""
    ranked = sorted(lines, key=lambda name: -max(c["score"] for c in lines[name]))[:MAX_KERNELS]
    shown = [c for name in ranked for c in lines[name]]
    picture = Picture(
        logarithmic([c["alpha"] for c in shown], *X_RANGE),
        linear(_near_the_best([c["score"] for c in shown]), *Y_RANGE),
        "λ",
        "score of the rows left out",
        "Candidates: mean and spread of the folds",
    )
    for k, name in enumerate(ranked):
        row = sorted(lines[name], key=lambda c: c["alpha"])
        xs, ys = [c["alpha"] for c in row], [c["score"] for c in row]
        spread = [c["spread"] or 0.0 for c in row]
        low, high = ([y + sign * s for y, s in zip(ys, spread, strict=True)] for sign in (-1.0, 1.0))
        picture.band(xs, low, high, k)
        picture.line(xs, ys, k, name if len(ranked) > 1 else "")
        picture.points(xs, ys, k, size=5)
    chosen = [c for c in shown if c["best"]]
    picture.points([c["alpha"] for c in chosen], [c["score"] for c in chosen], 9, "chosen", size=11)
    return picture.svg()


def _near_the_best(values: Sequence[float]) -> tuple[float, float]:
    """Range of scores without those that are far worse, which would press the others together."""
    best, middle = max(values), sorted(values)[len(values) // 4]
    return (max(min(values), best - 4 * (best - middle)) if best > middle else min(values)), best


def learning_curve(curve: dict[str, Any]) -> str:
    """Score over the number of training rows."""
    xs, ys, spread = ([float(v) for v in curve[name]] for name in ("sizes", "scores", "spreads"))
    low, high = [y - s for y, s in zip(ys, spread, strict=True)], [y + s for y, s in zip(ys, spread, strict=True)]
    picture = Picture(
        logarithmic(xs, *X_RANGE), linear([*low, *high], *Y_RANGE), "training rows", "score", "Learning curve"
    )
    picture.band(xs, low, high, 0)
    picture.line(xs, ys, 0)
    picture.points(xs, ys, 0, size=7)
    return picture.svg()


def optimum(path: dict[str, Any]) -> str:
    """Score by evaluation of the search with gradients."""
    ys = [float(s) for s in path["scores"] if s is not None]
    if not ys:
        return ""
    xs = [float(k + 1) for k in range(len(ys))]
    x, y = linear(xs, *X_RANGE), linear(_near_the_best(ys), *Y_RANGE)
    picture = Picture(x, y, "evaluation", "score of the rows left out", "Search by gradients")
    picture.line(xs, ys, 0)
    picture.points(xs, ys, 0, size=7)
    return picture.svg()


def tile_map(found: TileMap) -> str:
    """Map of the tiles of an array: written, partly written, missing.

    One cell stands for several tiles where there are many, and is the paler the more of them are missing.
    """
    step = -(-max(found.n_rows, found.n_columns) // MAX_CELLS)
    wanted, there = dict[tuple[int, int], int](), dict[tuple[int, int], int]()
    for cells, counts in ((wanted, found.expected), (there, found.present)):
        for (i, j), count in counts.items():
            cells[i // step, j // step] = cells.get((i // step, j // step), 0) + count
    n_rows, n_columns = -(-found.n_rows // step), -(-found.n_columns // step)
    drawn: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for cell, count in wanted.items():
        share = min(4, -(-4 * there.get(cell, 0) // count))
        drawn[min(share, 3) if there.get(cell, 0) < count else share].append(cell)
    looks = {0: 'class="missing"', **{k: f'class="f2" opacity="{k / 4}"' for k in range(1, 5)}}
    n_there, n_wanted = sum(found.present.values()), sum(found.expected.values())
    of_tiles = f"; a cell is {step} × {step} tiles" if step > 1 else ""
    caption = f"{found.name}: {n_there:,} of {n_wanted:,} chunks{of_tiles}"
    return cell_map(caption, n_rows, n_columns, [(looks[share], cells) for share, cells in sorted(drawn.items())])


def cell_map(
    caption: str,
    n_rows: int,
    n_columns: int,
    cells: Sequence[tuple[str, Sequence[tuple[int, int]]]],
    pixels: int = MAP_PIXELS,
    legend: Sequence[tuple[str, str]] = (),
) -> str:
    """Map of cells in rows and columns.

    Parameters
    ----------
    caption : str
    n_rows, n_columns : int
    cells : sequence of (str, sequence of (int, int))
        Attributes of SVG with the look of some cells, and their rows and columns.
    pixels : int
        Longest side of the map.
    legend : sequence of (str, str)
        Classes and what they mean.
    """
    side = min(24.0, pixels / max(n_rows, n_columns, 1))
    edge = side - (1.0 if side > 4 else 0.0)
    paths = ""
    for look, places in cells:
        drawn = "".join(f"M{j * side:.1f} {i * side:.1f}h{edge:.1f}v{edge:.1f}h-{edge:.1f}Z" for i, j in places)
        paths += f'<path {look} d="{drawn}"/>'
    width, height = max(1.0, n_columns * side), max(1.0, n_rows * side)
    named = "".join(f'<span><i class="{look}"></i>{escape(name)}</span>' for look, name in legend)
    return (
        f"<figure><figcaption>{escape(caption)}</figcaption>{f'<div class=legend>{named}</div>' if named else ''}"
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" role="img"><title>tiles</title>{paths}</svg>'
        "</figure>"
    )
