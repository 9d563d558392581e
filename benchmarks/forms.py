"""Which form and which solver, by the planner and by the clock: a picture over (n, d), and measured crossovers.

``python -m benchmarks.forms measure --json FILE`` fits in both forms (and by both solvers) at sizes around the
crossover that the planner expects and finds where the times really cross. ``python -m benchmarks.forms draw --out PNG
--measured FILE`` draws what the planner picks for every n and d, and those crossovers on it.
"""

import json
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from math import exp, log, prod, sqrt
from pathlib import Path
from time import perf_counter
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console

import dkrr
from benchmarks.machine import LoadMeter, describe_machine
from benchmarks.solve import write_line
from dkrr.errors import DiskSpaceError, MemoryLimitError, PlanError

ALPHA = 1e-2
"""λ of everything here: the iterations of conjugate gradient depend on it."""
SEED = 0
N_DECADES, D_DECADES = (2, 7), (0, 4)
COARSE = 8
"""Steps of the grid from which the regions are refined where the corners of a cell differ."""
FACTOR = sqrt(2)
"""Between the sizes that are timed."""
STEPS = 2
"""Sizes on either side of the expected crossover."""
MAX_SIZES = 9
MAX_N = 16_000
"""Rows beyond which no crossover of the solvers is looked for: a factorisation takes 20 s on two cores."""
SHORT_SECONDS, REPEATS = 0.5, 5
"""Seconds below which a measurement is repeated, and how often; the shortest time counts."""


@dataclass(frozen=True)
class Case:
    """Data of one panel of the picture."""

    title: str
    kernel: str
    degree: int = 1
    """0: no finite feature map."""
    widths: tuple[int, ...] = ()
    """Columns for which the crossover of the forms is measured."""

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of KernelRidge and of plan."""
        return {"kernel": self.kernel, "alpha": ALPHA} | ({"degree": self.degree} if self.degree > 1 else {})

    def features(self, d: float) -> float:
        """D, also between whole numbers: d, or C(d + p, p)."""
        if self.degree == 1:
            return d
        return prod((d + k) / k for k in range(1, self.degree + 1))


CASES = {
    "linear": Case("linear", "linear", widths=(256, 1024, 3072)),
    "polynomial-2": Case("polynomial, degree 2", "polynomial", 2, (22, 45, 75)),
    "polynomial-3": Case("polynomial, degree 3", "polynomial", 3, (10, 16, 24)),
    "rbf": Case("RBF", "rbf", 0),
}
SOLVER_CASES = {"rbf": (8, 64), "polynomial-3": (40,)}
"""Columns for which the crossover of the solvers is measured, in the dual form."""

Pick = tuple[str, str, str]
"""Form, solver and place ("memory" or "disk"); or "refused" and why."""

COLOURS = {
    ("primal", "cholesky"): "#2f6db3",
    ("primal", "cg"): "#4fa896",
    ("dual", "cholesky"): "#e39a3b",
    ("dual", "cg"): "#c2574f",
    ("refused", ""): "#d5d9de",
}
NAMES = {
    ("primal", "cholesky"): "primal, Cholesky",
    ("primal", "cg"): "primal, conjugate gradient",
    ("dual", "cholesky"): "dual, Cholesky",
    ("dual", "cg"): "dual, conjugate gradient",
    ("refused", ""): "refused",
}
REFUSALS = {"memory": "needs more memory", "disk": "needs more disk", "size": "too large to factor"}
_INK, _QUIET = "#1f2933", "#66717e"
_LIGHTER = 0.45
"""White in the colours of what works on disk."""


def pick(case: Case, n: int, d: int, memory_limit: str, workers: int) -> Pick:
    """Choice of the planner for n rows of d columns."""
    try:
        chosen = dkrr.plan(
            n_samples=n, n_features=d, memory_limit=memory_limit, workers=workers, **case.settings
        ).chosen
    except PlanError as error:
        kinds = {MemoryLimitError: "memory", DiskSpaceError: "disk"}
        return ("refused", "", next((why for kind, why in kinds.items() if isinstance(error, kind)), "size"))
    return (chosen.form, chosen.solver, "memory" if chosen.execution == "memory" else "disk")


def region_map(choose: Callable[[int, int], Pick], n_columns: int, n_rows: int, step: int = COARSE) -> list[list[Pick]]:
    """Choices at all points of a grid; cells whose corners agree are filled without asking.

    Parameters
    ----------
    choose : callable
        Of column and row.
    n_columns, n_rows : int
        Points along each axis, one more than a multiple of `step`.
    step : int
        Points between corners to begin with, a power of two.

    Returns
    -------
    list of `n_rows` lists of `n_columns` choices
    """
    found: dict[tuple[int, int], Pick] = {}

    def at(i: int, j: int) -> Pick:
        if (i, j) not in found:
            found[i, j] = choose(i, j)
        return found[i, j]

    def fill(left: int, bottom: int, side: int) -> None:
        corners = {at(i, j) for i in (left, left + side) for j in (bottom, bottom + side)}
        if len(corners) == 1:
            (one,) = corners
            for i in range(left, left + side + 1):
                for j in range(bottom, bottom + side + 1):
                    found.setdefault((i, j), one)
        elif side > 1:
            half = side // 2
            for i in (left, left + half):
                for j in (bottom, bottom + half):
                    fill(i, j, half)

    for left in range(0, n_columns - 1, step):
        for bottom in range(0, n_rows - 1, step):
            fill(left, bottom, step)
    return [[found[i, j] for i in range(n_columns)] for j in range(n_rows)]


def grid_points(decades: tuple[int, int], per_decade: int) -> list[int]:
    """Whole numbers at even distances on a logarithmic axis; small ones repeat."""
    first, last = decades
    return [round(10 ** (first + k / per_decade)) for k in range((last - first) * per_decade + 1)]


def regions(name: str, memory_limit: str, workers: int, per_decade: int) -> list[list[Pick]]:
    """Choices for one kernel over the picture; rows are columns of X."""
    sizes, widths = grid_points(N_DECADES, per_decade), grid_points(D_DECADES, per_decade)
    choose = cache(lambda n, d: pick(CASES[name], n, d, memory_limit, workers))
    return region_map(lambda i, j: choose(sizes[i], widths[j]), len(sizes), len(widths))


@click.group()
def main() -> None:
    """Primal or dual, direct or iterative: the planner's choices and the measured crossovers."""


@main.command()
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="PNG to write.")
@click.option("--memory-limit", default="8GiB", show_default=True)
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--per-decade", type=click.IntRange(min=COARSE), default=32, show_default=True, help="Multiple of 8.")
@click.option("--processes", type=click.IntRange(min=1), default=2, show_default=True, help="That plan.")
@click.option("--measured", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Lines of `measure`.")
def draw(out: Path, memory_limit: str, workers: int, per_decade: int, processes: int, measured: Path | None) -> None:
    """Draw what the planner picks over n and d for four kernels (minutes: a few thousand plans)."""
    if per_decade % COARSE:
        raise click.BadParameter(f"--per-decade must be a multiple of {COARSE}")
    work = partial(regions, memory_limit=memory_limit, workers=workers, per_decade=per_decade)
    # Spawned: a fork would inherit the locks of BLAS's threads.
    with ProcessPoolExecutor(min(processes, len(CASES)), multiprocessing.get_context("spawn")) as pool:
        maps = dict(zip(CASES, pool.map(work, CASES), strict=True))
    lines = [] if measured is None else [json.loads(line) for line in measured.read_text().splitlines() if line]
    crossings = [line for line in lines if line.get("benchmark") == "forms"]
    draw_regions(out, maps, crossings, f"the planner's choice within {memory_limit}, {workers} workers, λ = {ALPHA:g}")
    Console(stderr=True).print(f"picture: {out}")
    if crossings:
        click.echo(crossover_table(crossings))


def draw_regions(out: Path, maps: dict[str, list[list[Pick]]], crossings: list[dict[str, Any]], title: str) -> None:
    """Draw the panels of the picture.

    Parameters
    ----------
    out : Path
        PNG to write; its folder is made if need be.
    maps : dict
        Choices by the name of the case, on grids as `regions` makes them.
    crossings : list of dict
        Records of `measure`.
    title : str
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.5, 9.4), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    figure.subplots_adjust(left=0.075, right=0.985, top=0.865, bottom=0.125, wspace=0.06, hspace=0.13)
    for axes, (name, picks) in zip(panels.flat, maps.items(), strict=True):
        _draw_panel(axes, picks)
        if CASES[name].degree:
            widths = [10 ** (D_DECADES[0] + k / 50) for k in range(50 * (D_DECADES[1] - D_DECADES[0]) + 1)]
            axes.plot([CASES[name].features(d) for d in widths], widths, **_DIAGONAL)
        _draw_crossings(axes, [c for c in crossings if c["case"] == name])
        axes.set_title(CASES[name].title, loc="left", fontsize=11.5, fontweight="bold", color=_INK, pad=6)
    for axes in panels[-1]:
        axes.set_xlabel("rows n", color=_INK)
    for axes in panels[:, 0]:
        axes.set_ylabel("columns d", color=_INK)
    used = {cell for picks in maps.values() for row in picks for cell in row}
    handles = _legend_handles(used, crossings)
    figure.legend(handles=handles, loc="lower center", ncols=4, frameon=False, fontsize=9.5, labelcolor=_INK)
    figure.suptitle(
        "Primal or dual, direct or iterative", x=0.075, ha="left", fontsize=15, fontweight="bold", color=_INK
    )
    figure.text(0.075, 0.925, title, fontsize=10, color=_QUIET)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out)


def _colour(pick: Pick) -> tuple[float, float, float]:
    from matplotlib.colors import to_rgb

    base = np.array(to_rgb(COLOURS[pick[:2]]))
    lighter = _LIGHTER if pick[2] == "disk" and pick[0] != "refused" else 0.0
    r, g, b = base * (1 - lighter) + lighter
    return float(r), float(g), float(b)


def _draw_panel(axes: Any, picks: list[list[Pick]]) -> None:
    per_decade = (len(picks[0]) - 1) // (N_DECADES[1] - N_DECADES[0])
    x = N_DECADES[0] + np.arange(len(picks[0])) / per_decade
    y = D_DECADES[0] + np.arange(len(picks)) / per_decade
    image = np.array([[_colour(p) for p in row] for row in picks])
    axes.pcolormesh(10**x, 10**y, image, shading="nearest", rasterized=True)
    kinds = sorted({p for row in picks for p in row})
    codes = np.array([[kinds.index(p) for p in row] for row in picks])
    for k, kind in enumerate(kinds):
        here = (codes == k).astype(float)
        if here.all():
            continue
        axes.contour(10**x, 10**y, here, levels=[0.5], colors="white", linewidths=1.1)
        if kind[2] == "disk" or kind[0] == "refused":
            hatches = [None, "...." if kind[0] == "refused" else "////"]
            with_hatch = axes.contourf(10**x, 10**y, here, levels=[-0.5, 0.5, 1.5], colors="none", hatches=hatches)
            with_hatch.set_edgecolor("white")
            with_hatch.set_linewidth(0.0)
    axes.set(xscale="log", yscale="log", xlim=(10 ** x[0], 10 ** x[-1]), ylim=(10 ** y[0], 10 ** y[-1]))
    axes.tick_params(colors=_QUIET, labelsize=9)
    axes.minorticks_off()
    axes.spines[:].set_visible(False)


def _draw_crossings(axes: Any, crossings: list[dict[str, Any]]) -> None:
    for kind, style in _MARKS.items():
        found = sorted((c["d"], c["measured"]) for c in crossings if c["kind"] == kind and c["measured"])
        if found:
            widths, sizes = zip(*found, strict=True)
            axes.plot(sizes, widths, color=_INK, linewidth=1.4, markersize=8, markeredgewidth=1.3, **style)


_MARKS: dict[str, dict[str, Any]] = {
    "form": {"marker": "o", "markerfacecolor": "white", "markeredgecolor": _INK},
    "solver": {"marker": "D", "markerfacecolor": "#f6d96b", "markeredgecolor": _INK, "linestyle": "--"},
}
_DIAGONAL: dict[str, Any] = {
    "color": _INK,
    "linewidth": 0.9,
    "linestyle": (0, (1, 2.5)),
    "scalex": False,
    "scaley": False,
}
_MARK_NAMES = {"form": "measured: primal as fast as dual", "solver": "measured: Cholesky as fast as CG"}


def _legend_handles(used: set[Pick], crossings: list[dict[str, Any]]) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = []
    for kind, name in NAMES.items():
        if kind[0] == "refused":
            handles += [
                Patch(facecolor=COLOURS[kind], hatch="....", edgecolor="white", linewidth=0, label=f"refused: {why}")
                for reason, why in REFUSALS.items()
                if (*kind, reason) in used
            ]
            continue
        for place, where in (("memory", "in memory"), ("disk", "on disk")):
            if (*kind, place) in used:
                hatch = {"disk": "////"}.get(place)
                label = f"{name}, {where}"
                face = _colour((*kind, place))
                handles.append(Patch(facecolor=face, hatch=hatch, edgecolor="white", linewidth=0, label=label))
    line = {name: value for name, value in _DIAGONAL.items() if not name.startswith("scale")}
    handles.append(Line2D([], [], label="n = D", **line))
    for kind_of_crossing, style in _MARKS.items():
        if any(c["kind"] == kind_of_crossing and c["measured"] for c in crossings):
            handles.append(Line2D([], [], color=_INK, linewidth=1.4, label=_MARK_NAMES[kind_of_crossing], **style))
    return handles


@main.command()
@click.option("--case", "names", type=click.Choice(list(CASES)), multiple=True, default=list(CASES), show_default=True)
@click.option("--d", "widths", type=click.IntRange(min=1), multiple=True, help="Columns, instead of the default ones.")
@click.option(
    "--n", "sizes", type=click.IntRange(min=2), multiple=True, help="Rows, instead of those around a crossover."
)
@click.option("--kind", "kinds", type=click.Choice(["form", "solver"]), multiple=True, default=["form", "solver"])
@click.option("--most-n", type=click.IntRange(min=2), default=MAX_N, show_default=True, help="For the solvers.")
@click.option("--memory-limit", default="8GiB", show_default=True)
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Append the lines here too.")
def measure(
    names: tuple[str, ...],
    widths: tuple[int, ...],
    sizes: tuple[int, ...],
    kinds: tuple[str, ...],
    most_n: int,
    memory_limit: str,
    json_path: Path | None,
) -> None:
    """Time both forms, and both solvers, around the crossover, and find it (about five minutes on two cores)."""
    found = []
    for kind in kinds:
        for name in names:
            default = CASES[name].widths if kind == "form" else SOLVER_CASES.get(name, ())
            for d in widths if widths and default else default:
                race = EarlyStopping(CASES[name], d, kind, memory_limit)
                load = LoadMeter()
                record = {"benchmark": "forms", "case": name, "kind": kind, "d": d, "alpha": ALPHA}
                record |= race.run(sizes, most_n if kind == "solver" else None)
                record |= {"load": load.stop().to_dict(), "machine": describe_machine()}
                write_line(record, json_path)
                found.append(record)
    Console(stderr=True, width=140).print(crossover_table(found), highlight=False, markup=False)


@dataclass(frozen=True)
class EarlyStopping:
    """Two ways to the same solution, timed at one n after another."""

    case: Case
    d: int
    kind: str
    """"form": primal and dual; "solver": Cholesky and conjugate gradient, in the dual form."""
    memory_limit: str

    @property
    def ways(self) -> dict[str, dict[str, Any]]:
        """Arguments of KernelRidge for each; the second is faster below the crossover of forms."""
        if self.kind == "form":
            return {form: {"form": form, "solver": "cholesky"} for form in ("primal", "dual")}
        return {solver: {"form": "dual", "solver": solver} for solver in ("cg", "cholesky")}

    @property
    def dimension(self) -> int | None:
        """D."""
        plan: Any = dkrr.plan(n_samples=2, n_features=self.d, **self.case.settings)
        dimension: int | None = plan.dimension
        return dimension

    def run(self, sizes: Sequence[int], most_n: int | None) -> dict[str, Any]:
        """Times at the given sizes, or around the crossover that is expected, and where they cross."""
        expected = self.predicted()
        runs: dict[int, dict[str, Any]] = {}
        if sizes:
            runs = {n: self.at(n) for n in sorted(sizes)}
        else:
            centre = min(expected or most_n or MAX_N, (most_n or MAX_N) / FACTOR**STEPS)
            for k in range(-STEPS, STEPS + 1):
                n = round(centre * FACTOR**k)
                runs[n] = self.at(n)
            while crossing(runs.values(), *self.ways) is None and len(runs) < MAX_SIZES:
                n = self._next(runs)
                if n < 16 or (most_n is not None and n > most_n):
                    break
                runs[n] = self.at(n)
        ordered = [runs[n] for n in sorted(runs)]
        return {
            "dimension": self.dimension,
            "predicted": expected,
            "measured": crossing(ordered, *self.ways),
            "switches": self.switches(),
            "difference": max(r["difference"] for r in ordered),
            "sizes": ordered,
        }

    def _next(self, runs: dict[int, dict[str, Any]]) -> int:
        """A size further on the side where the crossing must be: the first way gains as n grows."""
        first, second = self.ways
        n = max(runs)
        if runs[n]["seconds"][first] < runs[n]["seconds"][second]:
            return round(min(runs) / FACTOR)
        return round(n * FACTOR)

    def at(self, n: int) -> dict[str, Any]:
        """Fit in both ways: seconds, what was projected, and how far the predictions differ."""
        rng = np.random.default_rng([SEED, n, self.d])
        X = rng.standard_normal((n, self.d))
        y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(n)
        seconds, projected, values = dict[str, float](), dict[str, float](), list[NDArray[np.float64]]()
        for name, way in self.ways.items():
            model = dkrr.KernelRidge(**self.case.settings, **way, memory_limit=self.memory_limit, progress=False)
            seconds[name] = best_seconds(lambda model=model: model.fit(X, y))  # type: ignore[misc]
            projected[name] = model.plan_.seconds
            values.append(np.asarray(model.predict(X[:100])))
        difference = np.abs(values[0] - values[1]).max() / np.abs(values[1]).max()
        return {"n": n, "seconds": seconds, "projected": projected, "difference": float(difference)}

    def _planned_seconds(self, n: int, way: dict[str, Any]) -> float:
        try:
            plan: Any = dkrr.plan(
                n_samples=n, n_features=self.d, memory_limit=self.memory_limit, **self.case.settings, **way
            )
            return float(plan.seconds)
        except PlanError:
            return float("inf")

    def predicted(self) -> float | None:
        """Rows at which the planner expects both ways to take as long; None if it does not, up to 10⁶ rows."""
        first, second = self.ways.values()
        return first_true(lambda n: self._planned_seconds(n, first) <= self._planned_seconds(n, second))

    def switches(self) -> float | None:
        """Rows from which the planner chooses the first way (between solvers, only by a margin)."""
        name = next(iter(self.ways))
        free: dict[str, Any] = {"form": "auto"} if self.kind == "form" else {"form": "dual"}

        def taken(n: int) -> bool:
            try:
                plan = dkrr.plan(
                    n_samples=n, n_features=self.d, memory_limit=self.memory_limit, **self.case.settings, **free
                )
            except PlanError:
                return True
            return name in (plan.form, plan.solver)

        return first_true(taken)


def first_true(condition: Callable[[int], bool], least: int = 16, most: int = 10**6) -> float | None:
    """Least whole number from which a condition holds (it changes once), to 1 %; None if it does not hold at `most`."""
    if condition(least):
        return float(least)
    if not condition(most):
        return None
    low, high = float(least), float(most)
    while high / low > 1.01:
        middle = sqrt(low * high)
        low, high = (low, middle) if condition(round(middle)) else (middle, high)
    return round(high)


def best_seconds(work: Callable[[], object]) -> float:
    """Time of a run; the shortest of some if it is short."""
    times: list[float] = []
    while not times or (len(times) < REPEATS and min(times) < SHORT_SECONDS):
        start = perf_counter()
        work()
        times.append(perf_counter() - start)
    return min(times)


def crossing(runs: Iterable[dict[str, Any]], first: str, second: str) -> float | None:
    """Size at which two times are equal, between the last that says otherwise: linear in log n and log time.

    Parameters
    ----------
    runs : iterable of dict
        With "n" and "seconds" of both.
    first, second : str
        Names of the ways; the first is slower below the crossing.

    Returns
    -------
    float or None
        None if one of them is faster everywhere.
    """
    points = sorted((r["n"], log(r["seconds"][first] / r["seconds"][second])) for r in runs)
    for (n, before), (m, after) in reversed(list(pairwise(points))):
        if before > 0 >= after:
            part = before / (before - after)
            return float(round(exp(log(n) + part * (log(m) - log(n)))))
    return None


def crossover_table(crossings: Iterable[dict[str, Any]]) -> str:
    """Lay the crossovers out as Markdown."""
    lines = [
        "| kernel | d | D | equal times of | n predicted | n measured | planner switches at n |",
        "|---|---|---|---|---|---|---|",
    ]
    ways = {"form": "primal, dual", "solver": "conjugate gradient, Cholesky (dual)"}
    for c in crossings:
        dimension = "∞" if c["dimension"] is None else f"{c['dimension']:,}"
        values = [f"{c[k]:,.0f}" if c[k] else "–" for k in ("predicted", "measured", "switches")]
        noisy = " (noisy)" if c["load"]["noisy"] else ""
        lines.append(
            f"| {CASES[c['case']].title} | {c['d']:,} | {dimension} | {ways[c['kind']]} | {values[0]} | "
            f"{values[1]}{noisy} | {values[2]} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
