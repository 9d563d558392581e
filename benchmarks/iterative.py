"""Conjugate gradient measured: beside direct solvers, by preconditioner, against the rate of the kernel, and at size.

Every fit runs in a fresh process, so that its memory is its own; every command prints one line of JSON a fit on
stdout and a table on stderr. ``python -m benchmarks.iterative --help`` lists the commands.
"""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import click
import numpy as np
from rich.console import Console
from rich.table import Table

import dkrr
from benchmarks import peers, qm9
from benchmarks.machine import LoadMeter, count_cores, stamped
from benchmarks.peers import Floats
from dkrr import blas
from dkrr.cluster import ThreadExecutor
from dkrr.data import MemoryRows
from dkrr.features import Nystroem
from dkrr.fitting.costs.dual_cg_costs import cg_tile
from dkrr.kernels import RBF, Laplacian
from dkrr.limits import peak_resident_bytes
from dkrr.linalg.gram_products import TiledOperator
from dkrr.linalg.sources import KERNEL_BLOCK, GramTiles
from dkrr.solvers import ConjugateGradient, Float32Cholesky, RPCholesky
from dkrr.store import TileGrid
from dkrr.text import format_bytes, format_seconds

ALPHA = 1e-2
N_TEST = 5_000
PRECONDITIONERS: dict[str, Any] = {
    "auto": "auto",
    "none": None,
    "rpcholesky": RPCholesky,
    "float32": Float32Cholesky,
}
SIZES = (1_000, 5_000, 10_000, 20_000, 50_000, 100_000)
"""Training rows of the curve of errors."""
NYSTROEM = ((1_500, "rpcholesky"), (6_000, "rpcholesky"), (6_000, "uniform"))
"""Nyström approximations that exact fits are compared with: the number of centres, and how they are drawn."""
NYSTROEM_FROM = 20_000
"""Fewest rows of the curve on which they are fitted."""
SKLEARN_TO = 20_000
"""Most rows of the curve on which scikit-learn is run: it needs three Gram matrices."""
STRIP_SECONDS = 1.0


def data(name: str, n: int, n_test: int, cache: Path | None) -> tuple[Floats, Floats, Floats, Floats]:
    """Training and held-out rows, standardised by the former, and targets less the mean of the former."""
    if name == "normal":
        X, y = peers.Problem(n + n_test, 16).data()
        return X[:n], y[:n], X[n:], y[n:]
    molecules = qm9.load(n + n_test, cache=cache)
    X, y = molecules.descriptors, molecules.target
    mean, scale = X[:n].mean(axis=0), np.where(np.ptp(X[:n], axis=0) > 0, X[:n].std(axis=0), 1.0)
    X, y = (X - mean) / scale, y - y[:n].mean()
    return X[:n], y[:n], X[n:], y[n:]


def solver(name: str, rank: int | None, precision: str, most: int) -> Any:
    """Value of KernelRidge's argument."""
    if name in ("auto", "cholesky"):
        return name
    kind = PRECONDITIONERS[name.removeprefix("cg-")]
    value = kind if kind in ("auto", None) else kind() if kind is Float32Cholesky else kind(rank=rank)
    return ConjugateGradient(preconditioner=value, precision=precision, max_iter=most)  # type: ignore[arg-type]


@click.group()
def main() -> None:
    """Measure conjugate gradient."""


_cache = click.option("--cache", type=click.Path(path_type=Path), help="Folder for the descriptors, made if need be.")


@main.command()
@click.option("--data", "data_name", type=click.Choice(["normal", "qm9"]), default="qm9", show_default=True)
@click.option("--n", type=int, required=True)
@click.option("--n-test", type=int, default=0, help="Held-out rows.")
@click.option("--kernel", type=click.Choice(["rbf", "laplacian", "nystroem"]), default="rbf", show_default=True)
@click.option("--centres", type=int, default=1_500, show_default=True, help="Of the Nyström approximation.")
@click.option("--pivots", type=click.Choice(["rpcholesky", "uniform"]), default="rpcholesky", show_default=True)
@click.option("--gamma", type=float, help="Default 1 / columns.")
@click.option("--alpha", type=float, default=ALPHA, show_default=True)
@click.option("--solver", "solver_name", default="auto", show_default=True, help="auto, cholesky, cg-rpcholesky ...")
@click.option("--rank", type=int)
@click.option("--precision", default="auto", show_default=True)
@click.option("--max-iter", type=int, default=1000, show_default=True)
@click.option("--tol", type=float, default=1e-6, show_default=True)
@click.option("--memory-limit")
@_cache
def fit(
    data_name: str,
    n: int,
    n_test: int,
    kernel: str,
    centres: int,
    pivots: Literal["rpcholesky", "uniform"],
    gamma: float | None,
    alpha: float,
    solver_name: str,
    rank: int | None,
    precision: str,
    max_iter: int,
    tol: float,
    memory_limit: str | None,
    cache: Path | None,
) -> None:
    """Fit once and print a line of JSON."""
    import warnings

    X, y, X_test, y_test = data(data_name, n, n_test, cache)
    before = peak_resident_bytes()
    gamma = 1 / X.shape[1] if gamma is None else gamma
    value: Any = Laplacian(gamma=gamma) if kernel == "laplacian" else RBF(gamma=gamma)
    if kernel == "nystroem":
        value = Nystroem(value, centres, pivots)
    model = dkrr.KernelRidge(
        alpha=alpha,
        kernel=value,
        solver=solver(solver_name, rank, precision, max_iter),
        tol=tol,
        memory_limit=memory_limit,
        progress=sys.stderr.isatty(),
    )
    load = LoadMeter()
    start = perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the status says it
        model.fit(X, y)
    seconds = perf_counter() - start
    result, plan = model.solve_result_, model.plan_
    record: dict[str, Any] = {
        "data": data_name,
        "n": n,
        "kernel": kernel,
        "centres": centres if kernel == "nystroem" else None,
        "pivots": pivots if kernel == "nystroem" else None,
        "alpha": alpha,
        "tol": tol,
        "solver": solver_name,
        "memory_limit": memory_limit,
        "planned": plan.chosen.summary(),
        "seconds": seconds,
        "projected_seconds": plan.seconds,
        "status": result.status.name,
        "residual": result.residual,
        "iterations": result.iterations,
        "rank": result.rank,
        "messages": list(result.messages),
        "peak_bytes": result.peak_bytes,
        "projected_peak_bytes": plan.peak_bytes,
        "n_workers": plan.chosen.n_workers,
        "process_peak_bytes": peak_resident_bytes(),
        "process_bytes_before": before,
        "written_bytes": result.bytes_written,
        "disk_bytes": plan.disk_bytes,
        "seconds_by_kind": {k: round(v, 2) for k, v in result.seconds_by_kind.items()},
        "history": [[h.iteration, round(h.seconds, 2), h.largest] for h in result.history if h.is_true],
        "residual_at_100": next((h.largest for h in result.history if h.iteration == 100), None),
        "coef_norm": float(np.linalg.norm(model.dual_coef_)),
        "load": load.stop().to_dict(),
    }
    if n_test:
        record |= _errors(model, X_test, y_test)
    click.echo(json.dumps(stamped(record)))


def _errors(model: Any, X_test: Floats, y_test: Floats) -> dict[str, float]:
    """R² and mean absolute error of predictions of held-out rows."""
    start = perf_counter()
    error = np.asarray(model.predict(X_test)) - y_test
    spread = y_test - y_test.mean()
    return {
        "r2": float(1 - error @ error / (spread @ spread)),
        "mae": float(np.abs(error).mean()),
        "predict_seconds": perf_counter() - start,
    }


@main.command("sklearn")
@click.option("--n", type=int, required=True)
@click.option("--n-test", type=int, default=0, help="Held-out rows.")
@_cache
def sklearn_fit(n: int, n_test: int, cache: Path | None) -> None:
    """Fit scikit-learn's KernelRidge to molecules, with all threads, and print a line of JSON."""
    from sklearn.kernel_ridge import KernelRidge

    X, y, X_test, y_test = data("qm9", n, n_test, cache)
    model = KernelRidge(alpha=ALPHA, kernel="rbf", gamma=1 / X.shape[1])
    load = LoadMeter()
    start = perf_counter()
    model.fit(X, y)
    record = {"peer": "scikit-learn", "data": "qm9", "n": n, "kernel": "rbf", "seconds": perf_counter() - start}
    record |= {"peak_bytes": peak_resident_bytes(), "load": load.stop().to_dict()}
    click.echo(json.dumps(stamped(record | (_errors(model, X_test, y_test) if n_test else {}))))


def run_fit(command_name: str = "fit", **options: Any) -> dict[str, Any]:
    """Fit in a fresh process; of one that crashed, how and what it was to fit."""
    command = [sys.executable, "-m", "benchmarks.iterative", command_name]
    for name, value in options.items():
        if value is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    record = peers.run_command(command)
    if "seconds" not in record:
        record |= {"n": options["n"]} | ({} if command_name == "fit" else {"peer": "scikit-learn"})
    click.echo(json.dumps(record))
    return record


def show(title: str, records: Iterable[tuple[str, dict[str, Any]]]) -> None:
    """Lay records out as a table on stderr."""
    table = Table(title=title)
    for name in ("", "time", "iterations", "rank", "residual", "peak of a process", "projected", "R²", "MAE", "load"):
        table.add_column(name, justify="left" if not name else "right")
    for name, r in records:
        if "seconds" not in r:
            table.add_row(name, json.dumps(r))
            continue
        load = r.get("load", {})
        table.add_row(
            name,
            format_seconds(r["seconds"]),
            str(r.get("iterations", "")),
            str(r.get("rank", "")),
            f"{r['residual']:.1e}" if "residual" in r else "",
            format_bytes(r["peak_bytes"]),
            format_bytes(r["projected_peak_bytes"]) if "projected_peak_bytes" in r else "",
            f"{r['r2']:.4f}" if "r2" in r else "",
            f"{r['mae']:.2f}" if "mae" in r else "",
            "noisy" if load.get("noisy") else "idle" if load else "",
        )
    Console(stderr=True, width=140).print(table)


@main.command("beside")
@click.option("--n", type=int, default=10_000, show_default=True)
@click.option("--memory-limit", default="500MB", show_default=True)
def beside_direct(n: int, memory_limit: str) -> None:
    """Standard normal rows of 16 columns: dkrr within a limit, by conjugate gradient and by Cholesky, and the peers."""
    rows = [
        (
            f"dkrr, {solver_name}, {limit or 'no limit'}",
            run_fit(data="normal", n=n, solver=solver_name, memory_limit=limit),
        )
        for solver_name, limit in (
            ("auto", memory_limit),
            ("cg-auto", memory_limit),
            ("cg-auto", None),
            ("cholesky", None),
        )
    ]
    for name, record in peers.run_peers(("scipy", "sklearn"), peers.Problem(n, 16), count_cores()).items():
        click.echo(json.dumps({"peer": name, **record}))
        rows.append((name, record))
    show(f"n = {n:,}, d = 16, γ = 1/16, λ = 0.01, true residual 1e-6", rows)
    within = rows[0][1]
    ratios = {
        name: {key: within[key] / record[key] for key in ("seconds", "peak_bytes")}
        for name, record in rows[4:]
        if "seconds" in record and "seconds" in within
    }
    click.echo(json.dumps(stamped({"memory_limit": memory_limit, "ratios": ratios})))


@main.command("ranks")
@click.option("--n", "sizes", type=int, multiple=True, default=(10_000, 20_000, 30_000), show_default=True)
@_cache
def by_rank(sizes: tuple[int, ...], cache: Path | None) -> None:
    """QM9: the rank that dkrr finds beside fixed ones."""
    rows = []
    for n in sizes:
        for rank in (None, 1000, 3000):
            kind = "cg-rpcholesky" if rank else "cg-auto"
            record = run_fit(n=n, n_test=N_TEST, solver=kind, rank=rank, cache=cache)
            rows.append((f"n = {n:,}, rank {rank or 'found'}", record))
    show("QM9, 79 columns, γ = 1/79, λ = 0.01, true residual 1e-6", rows)


@main.command("panel")
@click.option("--n", type=int, default=10_000, show_default=True)
@_cache
def panel(n: int, cache: Path | None) -> None:
    """QM9, L1 Laplace kernel, λ = n 1e-8, 100 iterations: residuals by preconditioner (Chen and others 2024)."""
    rank, rows = min(n // 10, 1000), []
    for name in ("rpcholesky", "none"):
        record = run_fit(
            n=n,
            kernel="laplacian",
            alpha=n * 1e-8,
            solver=f"cg-{name}",
            rank=None if name == "none" else rank,
            precision="float64",
            max_iter=100,
            tol=1e-12,
            cache=cache,
        )
        rows.append((name, record))
    show(f"n = {n:,}, L1 Laplace, λ = n 1e-8, rank {rank:,}, after 100 iterations", rows)


@main.command("factor")
@click.option("--n", type=int, default=32_768, show_default=True)
@click.option("--memory-limit", default="3GiB", show_default=True)
def mixed_factor(n: int, memory_limit: str) -> None:
    """A float32 factor as preconditioner, to a residual of 1e-10, beside the float64 factorisation."""
    rows = [
        (name, run_fit(data="normal", n=n, solver=kind, tol=1e-10, memory_limit=memory_limit))
        for name, kind in (("float32 factor + cg", "cg-float32"), ("float64 Cholesky", "cholesky"))
    ]
    show(f"n = {n:,}, d = 16, true residual 1e-10, {memory_limit}", rows)
    low, high = (r for _, r in rows)
    if "seconds" in low and "seconds" in high:
        ratios = {"time": low["seconds"] / high["seconds"], "disk": low["disk_bytes"] / high["disk_bytes"]}
        click.echo(json.dumps(stamped({"ratios": ratios})))


@main.command("headline")
@click.option("--n", "sizes", type=int, multiple=True, default=SIZES, show_default=True)
@click.option("--memory-limit", default="4GiB", show_default=True)
@click.option("--compare/--no-compare", default=True, show_default=True, help="With scikit-learn, and with Nyström.")
@_cache
def headline(sizes: tuple[int, ...], memory_limit: str, compare: bool, cache: Path | None) -> None:
    """QM9: exact fits of more and more rows without a Gram matrix on disk; scikit-learn's and Nyström's beside them."""
    test = min(N_TEST, qm9.TOTAL_MOLECULES - max(sizes))
    same: dict[str, Any] = {"n_test": test, "cache": cache}
    rows = [(f"exact, n = {n:,}", run_fit(n=n, memory_limit=memory_limit, **same)) for n in sizes]
    if compare:
        for n in (n for n in sizes if n <= SKLEARN_TO):
            rows.append((f"scikit-learn, n = {n:,}", run_fit("sklearn", n=n, **same)))
        for n in (n for n in sizes if n >= NYSTROEM_FROM):
            for m, pivots in NYSTROEM:
                found = run_fit(n=n, kernel="nystroem", centres=m, pivots=pivots, memory_limit=memory_limit, **same)
                rows.append((f"Nyström, {m:,} centres ({pivots}), n = {n:,}", found))
    show(f"QM9 within {memory_limit}", rows)


@main.command("rate")
@click.option("--n", type=int, default=20_000, show_default=True)
@click.option("--d", "widths", type=int, multiple=True, default=(16, 79), show_default=True)
@click.option("--threads", type=int, default=2, show_default=True)
def rate(n: int, widths: tuple[int, ...], threads: int) -> None:
    """Kernel entries a second in a product with the matrix, beside what the kernel alone makes on every core."""
    table = Table(title=f"RBF, n = {n:,}, {threads} threads: 10⁹ entries a second")
    for name in ("d", "precision", "one core, kernel alone", "product, all cores", "part of the limit"):
        table.add_column(name, justify="right")
    load = LoadMeter()
    for d in widths:
        X = np.random.default_rng(0).standard_normal((n, d))
        for precision in ("float64", "float32"):
            alone = _kernel_rate(X, precision)
            with ThreadExecutor(threads) as executor, blas.one_thread():
                kernel = RBF(gamma=1 / d)
                tile = cg_tile(dkrr.plan(n_samples=n, n_features=d, kernel=kernel).problem, 2**32, threads)
                grid = TileGrid(n, tile, tile)
                operator = TiledOperator(GramTiles(kernel, MemoryRows(X)), grid, executor, "rate", threads)
                p = np.random.default_rng(1).standard_normal((n, 1))
                operator.multiply(p, precision)
                start = perf_counter()
                operator.multiply(p, precision)
                product = n * (n + 1) / 2 / (perf_counter() - start)
            part = product / (threads * alone)
            table.add_row(str(d), precision, f"{alone / 1e9:.3f}", f"{product / 1e9:.3f}", f"{part:.2f}")
            line = {"d": d, "precision": precision, "kernel_rate": alone, "product_rate": product, "part": part}
            click.echo(json.dumps(stamped(line)))
    Console(stderr=True).print(table)
    click.echo(json.dumps(stamped({"load": load.stop().to_dict()})))


@main.command("loop")
@click.option("--n", type=int, default=30_000, show_default=True)
@click.option("--memory-limit", default="1GiB", show_default=True)
@_cache
def beside_its_loop(n: int, memory_limit: str, cache: Path | None) -> None:
    """Time of a fit over that of its products alone, and of these over a plain loop of NumPy and BLAS."""
    X, y, _, _ = data("qm9", n, 0, cache)
    gamma, load = 1 / X.shape[1], LoadMeter()
    model = dkrr.KernelRidge(ALPHA, kernel="rbf", gamma=gamma, solver="cg", tol=1e-6, memory_limit=memory_limit)
    start = perf_counter()
    model.fit(X, y)
    seconds = perf_counter() - start
    result, plan = model.solve_result_, model.plan_
    products, threads = plan.chosen.details.tile_products, plan.resources.local_threads
    grid, source = TileGrid(n, products.tile, products.tile), GramTiles(RBF(gamma=gamma), MemoryRows(X))
    passes = {}
    with ThreadExecutor(threads) as executor, blas.one_thread():
        own = TiledOperator(
            source, grid, executor, "loop", threads, threads, kept_tiles=products.kept_tiles, keeps=products.precision
        )
        v = np.random.default_rng(0).standard_normal((n, 1))
        for precision in dict.fromkeys((products.precision, "float64")):
            own.multiply(v, precision)  # tiles that are kept are formed
            passes[precision] = _seconds(own.multiply, v, precision)
        own.close()
        plain = _seconds(_plain_pass, X.astype(products.precision), gamma, threads)
    n_true = sum(h.is_true for h in result.history) if products.precision == "float32" else 1
    loop = result.iterations * passes[products.precision] + n_true * passes["float64"]
    preparing = sum(stage.seconds for stage in result.stages if stage.name in ("preconditioner", "Gram matrix"))
    line = {
        "n": n,
        "memory_limit": memory_limit,
        "planned": plan.chosen.summary(),
        "seconds": seconds,
        "projected_seconds": plan.seconds,
        "iterations": result.iterations,
        "rank": result.rank,
        "residual": result.residual,
        "preparing_seconds": preparing,
        "true_residuals": n_true,
        "pass_seconds": passes[products.precision],
        "true_residual_seconds": passes["float64"],
        "plain_pass_seconds": plain,
        "ratio": seconds / loop,
        "ratio_iterating": (seconds - preparing) / loop,
        "ratio_plain": passes[products.precision] / plain,
        "load": load.stop().to_dict(),
    }
    Console(stderr=True).print(line)
    click.echo(json.dumps(stamped(line)))


def _seconds(work: Callable[..., Any], *arguments: Any) -> float:
    """Mean of several times, as a fit has it: the shortest would be that of the machine's best moment."""
    start = perf_counter()
    for _ in range(LOOP_PASSES):
        work(*arguments)
    return (perf_counter() - start) / LOOP_PASSES


LOOP_PASSES = 5
"""Passes whose mean is the time of one."""
PLAIN_BLOCK = (512, 2048)
"""Rows and columns of a block that stays in the cache (of several tried the fastest)."""


def _plain_pass(X: Floats, gamma: float, threads: int) -> Floats:
    """Product of an RBF kernel's matrix with a vector: products of rows, distances, exp, and two thin products."""
    (height, width), n = PLAIN_BLOCK, len(X)
    squares = gamma * (X**2).sum(axis=1)
    vector = np.random.default_rng(0).standard_normal((n, 1)).astype(X.dtype)
    strips = [(a, c) for a in range(0, n, height) for c in range(0, min(a + height, n), width)]

    def some(strips: Sequence[tuple[int, int]]) -> Floats:
        buffer, total = np.empty(PLAIN_BLOCK, X.dtype), np.zeros((n, 1))
        for a, c in strips:
            b = min(a + height, n)
            d = min(c + width, b)
            block, up, down = buffer[: b - a, : d - c], np.empty((b - a, 1), X.dtype), np.empty((d - c, 1), X.dtype)
            blas.gemm(block, X[a:b], X[c:d], transpose_b=True, alpha=2 * gamma)
            block -= squares[a:b, None]
            block -= squares[c:d]
            np.minimum(block, 0, out=block)
            np.exp(block, out=block)
            blas.gemm(up, block, vector[c:d])
            blas.gemm(down, block, vector[a:b], transpose_a=True)
            total[a:b] += up
            total[c:d] += down
        return total

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(some, [strips[k::threads] for k in range(threads)]), np.zeros((n, 1)))


def _kernel_rate(X: Floats, precision: str) -> float:
    """Entries a second of the kernel on one core, in the blocks in which it fills a Gram matrix."""
    kernel, rows = RBF(gamma=1 / X.shape[1]), X[: 2 * KERNEL_BLOCK]
    out = np.empty((KERNEL_BLOCK, KERNEL_BLOCK), precision)
    with blas.one_thread():
        kernel(rows[:KERNEL_BLOCK], rows[KERNEL_BLOCK:], out=out)
        count, start = 0, perf_counter()
        while perf_counter() - start < STRIP_SECONDS:
            kernel(rows[:KERNEL_BLOCK], rows[KERNEL_BLOCK:], out=out)
            count += out.size
        return count / (perf_counter() - start)


if __name__ == "__main__":
    main()
