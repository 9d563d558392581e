"""Random-walk kernel of molecules: dkrr beside GraKeL, time for a pair of graphs.

Lines of JSON on stdout and a table on stderr::

    python -m benchmarks.graphs pairs
    python -m benchmarks.graphs fit      # the kernel in a regression of 1,500 molecules, in tiles on disk

The graphs are molecules of QM9: an atom is a node with its element as label, and two atoms are joined that are less
than 1.3 times the sum of their covalent radii apart. Both compute the upper triangle of one Gram matrix from the graphs
as they come, on one core, in turns; the medians are compared. dkrr has to be at least five times as fast.

GraKeL (``pip install grakel``) is optional. It stops its conjugate gradients at a relative residual of 1e-6, or after
20 steps; dkrr stops where a bound of the relative error of an entry is 1e-14. GraKeL counts pairs of nodes with
different labels too, as walks of length 0: these are taken off before entries are compared.

With labels GraKeL has two methods. Its default, "fast", does not compute the kernel that is defined: GraKeL 0.1.11
multiplies by the block of H's adjacency from label a to label b where it has to be that from b to a, and is off by
percents. Its "baseline" inverts a dense matrix of all pairs of nodes, as do its kernels of few steps; dkrr agrees with
these to rounding. Both are timed.
"""

import gc
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import click
import numpy as np
import threadpoolctl
from rich import box
from rich.table import Table

from benchmarks import qm9
from benchmarks.machine import LoadMeter, describe_machine
from benchmarks.solve import table_console, write_line
from dkrr import KernelRidge
from dkrr.kernels import Graph, RandomWalk
from dkrr.text import format_bytes, format_seconds

N_GRAPHS = 60
N_MORE = 600
"""Graphs of dkrr alone: what each graph costs once counts less there."""
DECAY = 0.05
REPETITIONS = 3
MIN_SPEEDUP = 5.0
SEED = 0

# Ångström, Cordero et al. (2008), Covalent radii revisited, Dalton Transactions; in the order of qm9.SYMBOLS.
RADII = np.array([0.31, 0.76, 0.71, 0.66, 0.57])
BOND_FACTOR = 1.3


@dataclass(frozen=True)
class Case:
    """A kernel that both have."""

    name: str
    labelled: bool
    steps: int | None = None
    method: str = "fast"
    """GraKeL's."""

    @property
    def is_dense(self) -> bool:
        """Whether GraKeL takes dense matrices of all pairs of nodes: about 10 ms a pair of graphs."""
        return self.labelled and (self.steps is not None or self.method == "baseline")


CASES = (
    Case("labelled", True),
    Case("labelled, GraKeL baseline", True, method="baseline"),
    Case("labelled, 4 steps", True, 4),
    Case("unlabelled", False),
)
MAX_DENSE = 12
"""Graphs where GraKeL takes dense matrices."""


def molecules(n: int, seed: int = SEED) -> list[Graph]:
    """Draw molecules from QM9 as graphs.

    Parameters
    ----------
    n : int
    seed : int

    Returns
    -------
    list of Graph
        Labels are symbols of elements.
    """
    import pandas as pd

    text = {"Elements": object, "XYZ_Ang": object}
    columns = ["Index", "N_atoms", "Elements", "XYZ_Ang"]
    parts = [pd.read_csv(qm9.data_folder() / name, usecols=columns, dtype=text) for name in qm9.FILES]
    rows = np.random.default_rng(seed).permutation(qm9.TOTAL_MOLECULES)[:n]
    table = pd.concat(parts, ignore_index=True).iloc[rows]
    sizes, index = (table[name].to_numpy(dtype=np.int64) for name in ("N_atoms", "Index"))
    places = np.split(qm9.flat_positions(table["XYZ_Ang"].tolist(), sizes, index), np.cumsum(sizes)[:-1])
    return [
        molecule(np.array(qm9.element_codes(elements, int(size), int(number))), positions)
        for elements, size, number, positions in zip(table["Elements"], sizes, index, places, strict=True)
    ]


def molecule(codes: qm9.Integers, positions: qm9.Floats) -> Graph:
    """Join the atoms that are close to each other.

    Parameters
    ----------
    codes : ndarray of shape (n_atoms,)
        Places in ``qm9.SYMBOLS``.
    positions : ndarray of shape (n_atoms, 3)
        In ångström.
    """
    distance = np.linalg.norm(positions[:, np.newaxis] - positions, axis=2)
    close = distance < BOND_FACTOR * np.add.outer(RADII[codes], RADII[codes])
    return Graph(len(codes), np.argwhere(np.triu(close, 1)), [qm9.SYMBOLS[code] for code in codes])


def dkrr_gram(graphs: list[Graph], case: Case, decay: float) -> qm9.Floats:
    """Gram matrix by dkrr, not normalized, from the graphs."""
    kernel = RandomWalk(decay, case.steps, normalized=False)
    return np.asarray(kernel(graphs if case.labelled else [Graph(g.n_nodes, g.edges) for g in graphs]))


def grakel_gram(graphs: list[tuple[Any, dict[int, str]]], case: Case, decay: float) -> qm9.Floats:
    """Gram matrix by GraKeL from adjacency matrices and labels."""
    module: Any = import_module("grakel.kernels.random_walk")
    made = (module.RandomWalkLabeled if case.labelled else module.RandomWalk)(
        lamda=decay, p=case.steps, method_type=case.method
    )
    return np.asarray(made.fit_transform(graphs), dtype=np.float64)


def grakel_graphs(graphs: list[Graph]) -> list[tuple[Any, dict[int, str]]]:
    """Return adjacency matrices and labels as GraKeL takes them."""
    found = []
    for graph in graphs:
        adjacency = np.zeros((graph.n_nodes, graph.n_nodes))
        ends = np.array(graph.edges, dtype=np.int64).reshape(-1, 2)
        adjacency[ends[:, 0], ends[:, 1]] = adjacency[ends[:, 1], ends[:, 0]] = 1
        found.append((adjacency, dict(enumerate(graph.labels))))
    return found


def unmatched_pairs(graphs: list[Graph]) -> qm9.Floats:
    """Pairs of nodes with different labels in each pair of graphs."""
    counts = [Counter(graph.labels) for graph in graphs]
    alike = np.array([[sum(a[label] * b[label] for label in a) for b in counts] for a in counts], dtype=np.float64)
    sizes = np.array([graph.n_nodes for graph in graphs], dtype=np.float64)
    return np.asarray(np.outer(sizes, sizes) - alike)


def compare(case: Case, graphs: list[Graph], more: list[Graph], decay: float, repetitions: int) -> dict[str, Any]:
    """Measure both, in turns, and dkrr with more graphs.

    Parameters
    ----------
    case : Case
    graphs : list of Graph
        For both.
    more : list of Graph
        For dkrr alone.
    decay : float
    repetitions : int

    Returns
    -------
    dict
        Values of JSON, times in seconds a pair; "ratio" is GraKeL's time over dkrr's, None without GraKeL.
    """
    theirs = grakel_graphs(graphs)
    runs: dict[str, Callable[[], qm9.Floats]] = {"dkrr": lambda: dkrr_gram(graphs, case, decay)}
    if find_spec("grakel") is not None:
        runs["grakel"] = lambda: grakel_gram(theirs, case, decay)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    grams: dict[str, qm9.Floats] = {}
    with threadpoolctl.threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # GraKeL's own
        dkrr_gram(graphs[:3], case, decay)
        meter = LoadMeter()
        for turn in range(repetitions):
            for name in sorted(runs, reverse=bool(turn % 2)):
                gc.collect()
                start = perf_counter()
                grams[name] = runs[name]()
                seconds[name].append((perf_counter() - start) / _pairs(graphs))
        start = perf_counter()
        dkrr_gram(more, case, decay)
        more_seconds = (perf_counter() - start) / _pairs(more)
        load = meter.stop()
    record: dict[str, Any] = {
        "benchmark": "graphs",
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "case": case.name,
        "n": len(graphs),
        "mean_nodes": float(np.mean([graph.n_nodes for graph in graphs])),
        "decay": decay,
        "repetitions": repetitions,
        "machine": describe_machine(),
        "load": load.to_dict(),
        "dkrr": {"seconds": median(seconds["dkrr"]), "more_n": len(more), "more_seconds": more_seconds},
        "grakel": None,
        "ratio": None,
        "largest_difference": None,
        "goal": MIN_SPEEDUP,
    }
    if "grakel" in runs:
        other = grams["grakel"] - (unmatched_pairs(graphs) if case.labelled else 0.0)
        record["grakel"] = {"seconds": median(seconds["grakel"])}
        record["ratio"] = median(seconds["grakel"]) / median(seconds["dkrr"])
        record["largest_difference"] = float(np.max(np.abs(other / grams["dkrr"] - 1)))
    return record


def _pairs(graphs: list[Graph]) -> int:
    return len(graphs) * (len(graphs) + 1) // 2


def result_table(records: list[dict[str, Any]]) -> Table:
    """Lay out the records for the terminal."""
    table = Table(title="random walks, a pair of graphs", box=box.SIMPLE_HEAD, title_style="bold")
    for heading in ("kernel", "graphs", "dkrr", "GraKeL", "ratio", "difference", "dkrr, more graphs", ""):
        table.add_column(heading, justify="right")
    for record in records:
        peer, ours = record["grakel"], record["dkrr"]
        theirs = ("-", "-", "-")
        if peer is not None:
            theirs = (
                f"{peer['seconds'] * 1e6:.0f} µs",
                f"{record['ratio']:.0f}",
                f"{record['largest_difference']:.1e}",
            )
        remark = "" if peer is None or record["ratio"] >= MIN_SPEEDUP else f"below {MIN_SPEEDUP:g}"
        remark += " NOISY, do not quote" if record["load"]["noisy"] else ""
        table.add_row(
            record["case"],
            str(record["n"]),
            f"{ours['seconds'] * 1e6:.1f} µs",
            *theirs,
            f"{ours['more_seconds'] * 1e6:.1f} µs ({ours['more_n']})",
            remark.strip(),
        )
    return table


@click.group()
def main() -> None:
    """Random walks on molecules."""


@main.command()
@click.option("--n", type=click.IntRange(min=10), default=1500, show_default=True, help="Molecules to fit.")
@click.option("--n-test", type=click.IntRange(min=2), default=500, show_default=True, help="Molecules to judge by.")
@click.option("--tile", type=click.IntRange(min=2), default=300, show_default=True, help="Rows in a tile on disk.")
@click.option("--alpha", type=float, default=1e-4, show_default=True)
@click.option("--decay", type=click.FloatRange(min=0, min_open=True), default=DECAY, show_default=True)
@click.option("--memory-limit", default="1GiB", show_default=True)
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Append the line here too.")
def fit(n: int, n_test: int, tile: int, alpha: float, decay: float, memory_limit: str, json_path: Path | None) -> None:
    """Fit the energy of molecules out of core: kernel ridge regression whose rows are graphs."""
    graphs, target = molecules(n + n_test), qm9.load(n + n_test).target
    kernel = RandomWalk(decay=decay)
    model = KernelRidge(alpha=alpha, kernel=kernel, fit_intercept=True, tile=tile, memory_limit=memory_limit)
    model.fit(graphs[:n], target[:n])
    start = perf_counter()
    errors = target[n:] - model.predict(graphs[n:])
    result, seconds = model.solve_result_, perf_counter() - start
    record = {
        "benchmark": "graphs fit",
        "machine": describe_machine(),
        "n": n,
        "n_test": n_test,
        "decay": decay,
        "alpha": alpha,
        "r2": 1.0 - float((errors**2).sum() / ((target[n:] - target[n:].mean()) ** 2).sum()),
        "mae_kcal_per_mol": float(np.abs(errors).mean()),
        "seconds": result.seconds,
        "predict_seconds": seconds,
        "residual": result.residual,
        "execution": model.plan_.execution,
        "tiles": model.plan_.chosen.layout()["tile"],
        "peak_bytes": result.peak_bytes,
        "projected_bytes": model.plan_.peak_bytes,
        "bytes_written": result.bytes_written,
    }
    write_line(record, json_path)
    table = Table(
        "molecules", "R²", "MAE, kcal/mol", "fit", "predict", "memory", "projected", "on disk", box=box.SIMPLE_HEAVY
    )
    table.add_row(
        f"{n:,} + {n_test:,}",
        f"{record['r2']:.3f}",
        f"{record['mae_kcal_per_mol']:.2f}",
        format_seconds(result.seconds),
        format_seconds(seconds),
        format_bytes(result.peak_bytes),
        format_bytes(model.plan_.peak_bytes),
        format_bytes(result.bytes_written),
    )
    table_console().print(table)


@main.command()
@click.option("--n", type=click.IntRange(min=2), default=N_GRAPHS, show_default=True, help="Molecules for both.")
@click.option("--more", type=click.IntRange(min=2), default=N_MORE, show_default=True, help="Molecules for dkrr alone.")
@click.option("--decay", type=click.FloatRange(min=0, min_open=True), default=DECAY, show_default=True)
@click.option("--repeat", type=click.IntRange(min=1), default=REPETITIONS, show_default=True, help="Turns of each.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Append the lines here too.")
def pairs(n: int, more: int, decay: float, repeat: int, json_path: Path | None) -> None:
    """Measure random-walk kernels beside GraKeL's; a JSON line a kernel on stdout, a table on stderr."""
    drawn = molecules(max(n, more))
    records = []
    for case in CASES:
        count = min(n, MAX_DENSE) if case.is_dense else n
        records.append(compare(case, drawn[:count], drawn[:more], decay, repeat))
        write_line(records[-1], json_path)
    table_console().print(result_table(records))


if __name__ == "__main__":
    main()
