"""Products on a GPU: right answers, rates, and fits beside what was projected; CPU scaling on the same machine.

One command, one line of JSON on stdout for each measurement and one table on stderr, in at most ``--seconds``::

    python -m benchmarks.device run

Every part has its own process. ``--only PART`` names some of them. A part that does not fit into the time ends with
what it has measured, and says so. ``--numpy`` runs them small, with this process's memory in place of a GPU: it tests
this script.

``rates``
    What plans are made with: two products of matrices and an elementwise pass.
``kernels``
    Largest error of an entry of each kernel over its largest entry, against float64 on the CPU; time of an entry.
``fits``
    A fit, a search, standard deviations, predictions and a classification, each beside the same on the CPU: the largest
    difference over the largest value.
``memory``
    The highest use of the GPU's memory beside the projected one, and a product where most blocks have no room.
``resume``
    A fit is killed (SIGKILL) after its first checkpoint, and the same call ends it.
``molecules``
    QM9 with all columns, to a residual of 1e-6; without the package that has the molecules, rows of that shape.
``million``
    10⁶ rows of ten columns and ten targets, λ = 1, for as many iterations as have time: seconds of an iteration, times
    those that the residuals so far promise.
``peers``
    The same molecules by a loop of products in CuPy alone, without preconditioner, and by GPyTorch, where installed.
``cores``
    Only with ``--cores``, and then alone: a factorisation in memory, tiles on workers and conjugate gradient, on 16, 4,
    1, 8 and 2 cores.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import click
import dask
import numpy as np
import psutil
from rich import box
from rich.markup import escape
from rich.table import Table

import dkrr
from benchmarks import qm9
from benchmarks.cases import run_to_end
from benchmarks.machine import stamped
from benchmarks.peers import SEED, Floats
from benchmarks.solve import table_console, write_line
from dkrr import kernels
from dkrr.errors import ConvergenceWarning, InputError
from dkrr.kernels.device import Device, DeviceKernel
from dkrr.linalg.device_products import STRIP_ROWS, DeviceExecutor
from dkrr.machine import gpu
from dkrr.solvers import ConjugateGradient
from dkrr.text import format_bytes, format_seconds

Record = dict[str, Any]

ALPHA, TOL = 1e-2, 1e-6
DEVICES: tuple[Literal["cuda", "cpu"], ...] = ("cuda", "cpu")
WATCH_SECONDS = 0.005


@dataclass(frozen=True)
class Sizes:
    """Rows of all parts."""

    entries: int = 3000
    timed: int = 8192
    fit: int = 20_000
    memory: int = 50_000
    molecules: int = 100_000
    million: int = 1_000_000
    iterations: int = 40
    """Iterations of the million rows."""
    factored: int = 16_384
    tiled: int = 32_768
    iterated: int = 30_000


SMALL = Sizes(300, 512, 800, 1500, 2000, 3000, 5, 1024, 1536, 2000)


class HostDevice(Device):
    """Memory of this process in place of a GPU."""

    def memory(self) -> tuple[int, int]:
        found = psutil.virtual_memory()
        return found.available // 4, found.total


def opened(*, by_numpy: bool) -> gpu.OpenedGpu:
    """The GPU, or this process."""
    if by_numpy:
        device = HostDevice(np)
        gpu._found = gpu.OpenedGpu(device, gpu.measured(device, "this process, NumPy", 512, 2**20))
    return gpu.open_gpu()


def rows_of(n: int, d: int, n_targets: int = 1) -> tuple[Floats, Floats]:
    """Standard normal rows, and smooth targets with noise."""
    rng = np.random.default_rng(SEED)
    X = rng.standard_normal((n, d))
    y = np.sin(X[:, : min(n_targets, d)]) + 0.1 * rng.standard_normal((n, min(n_targets, d)))
    return X, y if n_targets > 1 else y[:, 0]


def molecules(n: int) -> tuple[Floats, Floats, str]:
    """QM9, or rows of its shape; and which."""
    if find_spec("qm9pack") is None:
        return *rows_of(n, qm9.N_FEATURES), "made-up rows"
    found = qm9.load(n, cache=Path("output/cache"))
    X, y = found.descriptors, found.target
    return (X - X.mean(0)) / np.where(X.std(0) > 0, X.std(0), 1.0), y - y.mean(), "QM9"


@contextmanager
def most_used(device: Device) -> Iterator[list[int]]:
    """The most memory of the GPU that was in use inside the block besides what was before: the list's only element.

    What CuPy's pool has got from the driver counts: it gives nothing back before a fit ends.
    """
    device.release()
    before, ended, used = _driver_free(device), threading.Event(), [0]

    def watch() -> None:
        while not ended.wait(WATCH_SECONDS):
            used[0] = max(used[0], before - _driver_free(device))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield used
    finally:
        ended.set()
        thread.join()


def _driver_free(device: Device) -> int:
    return int(device.memory()[0] if isinstance(device, HostDevice) else device.xp.cuda.runtime.memGetInfo()[0])


def difference(found: Any, expected: Any) -> float:
    """Largest difference over the largest value."""
    found, expected = np.asarray(found, float), np.asarray(expected, float)
    return float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-300))


def fitted(what: str, X: Floats, y: Floats, **settings: Any) -> tuple[Any, Record]:
    """A model that was fitted on the GPU, and a line about it."""
    device = gpu.open_gpu().device
    settings = {"alpha": ALPHA, "kernel": "rbf", "gamma": 1 / X.shape[1], "tol": TOL, "progress": False} | settings
    model = dkrr.KernelRidge(**settings, device="cuda")
    with most_used(device) as used:
        begun = perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a run may end by its number of iterations
            model.fit(X, y)
        seconds = perf_counter() - begun
    result, plan = model.solve_result_, model.plan_
    return model, {
        "what": what,
        "seconds": seconds,
        "projected_seconds": plan.seconds,
        "iterations": result.iterations,
        "residual": float(result.residual),
        "device_bytes": used[0],
        "projected_device_bytes": plan.chosen.details.products.device_bytes,
        "note": f"{plan.chosen.summary()}; rank {result.rank}",
    }


# Parts


def rates(_: Sizes) -> Iterator[Record]:
    """Measured rates."""
    found = gpu.open_gpu().now
    each = {"float32": found.float32_flops / 1e12, "float64": found.float64_flops / 1e12}
    for name, value in each.items():
        yield {"what": f"products in {name}", "note": f"{value:.3g} TFLOP/s"}
    yield {"what": "elementwise pass", "note": f"{found.pass_bytes / 1e9:.4g} GB/s"}
    free = f"{format_bytes(found.free_bytes)} of {format_bytes(found.total_bytes)} free"
    yield {"what": found.name, "note": free}


KERNELS = (
    kernels.Linear(),
    kernels.Polynomial(degree=3),
    kernels.Cosine(),
    kernels.Sigmoid(gamma=0.01),
    kernels.RBF(),
    kernels.RBF(gamma=tuple(np.linspace(0.01, 0.1, 20))),
    kernels.RBF(gamma=1e3),
    kernels.Matern(nu=0.5, length_scale=3.0),
    kernels.Matern(nu=1.5, length_scale=3.0),
    kernels.Matern(nu=2.5, length_scale=3.0),
    kernels.RBF() + 0.1 * kernels.Linear(),
)


def entries(sizes: Sizes) -> Iterator[Record]:
    """Errors and times of the entries of every kernel."""
    device, (X, _) = gpu.open_gpu().device, rows_of(max(sizes.entries, sizes.timed), 20)
    X[5] = X[7]
    for kernel in KERNELS:
        one = DeviceKernel(kernel.resolved(20), device, X.mean(axis=0))
        some, expected = X[: sizes.entries], kernel(X[: sizes.entries])
        for precision in ("float64", "float32"):
            rows = one.rows(some, precision)
            found = device.host(one.block(rows, rows, precision, same=True))
            rows = one.rows(X[: sizes.timed], precision)
            seconds = []
            for _ in range(4):
                device.synchronize()
                begun = perf_counter()
                one.block(rows, rows, precision)
                device.synchronize()
                seconds.append(perf_counter() - begun)
            yield {
                "what": f"{type(kernel).__name__} {precision}",
                "error": difference(found, expected),
                "note": f"{min(seconds[1:]) / sizes.timed**2 * 1e12:.3g} ps an entry; {kernel!r:.60}",
            }


def fits(sizes: Sizes) -> Iterator[Record]:
    """Models beside those of the CPU."""
    X, y = rows_of(sizes.fit, 20, 2)
    new = rows_of(4096, 20)[0] + 0.1
    common: Record = {"alpha": ALPHA, "kernel": "rbf", "gamma": 0.05, "progress": False}
    models = {}
    for precision in ("mixed", "float64"):
        solver = ConjugateGradient(precision=precision)
        models[precision], line = fitted(f"fit, {precision}", X, y, gamma=0.05, solver=solver, tol=1e-8)
        yield line
    begun = perf_counter()
    cpu = dkrr.KernelRidge(**common, device="cpu", solver="cg", tol=1e-8).fit(X, y)
    yield {"what": "fit, CPU", "seconds": perf_counter() - begun, "residual": float(cpu.solve_result_.residual)}
    for name, model in (*models.items(), ("CPU", cpu)):
        begun = perf_counter()
        found = model.predict(new)
        seconds = perf_counter() - begun
        yield {"what": f"predictions, {name}", "seconds": seconds, "error": difference(found, cpu.predict(new))}
    stds = {}
    for name, model in (("mixed", models["mixed"]), ("CPU", cpu)):
        begun = perf_counter()
        stds[name] = model.predict(new[:64], return_std=True)[1]
        seconds = perf_counter() - begun
        yield {"what": f"64 deviations, {name}", "seconds": seconds, "error": difference(stds[name], stds["mixed"])}
    scores = {}
    for device in DEVICES:
        search = dkrr.KernelRidgeCV(np.geomspace(1e-3, 10.0, 8), kernel="rbf", gamma=0.05, cv=5, device=device)
        begun = perf_counter()
        search.fit(X, y)
        scores[device] = search.best_score_
        line = {
            "what": f"search of 8 λ, {device}",
            "seconds": perf_counter() - begun,
            "note": f"λ = {search.alpha_:.3g}",
        }
        yield line | {"error": difference(search.best_score_, scores["cuda"])}
    codes, chances = (y[:, 0] > 0).astype(int), {}
    for device in DEVICES:
        begun = perf_counter()
        model = dkrr.KernelLogisticRegression(alpha=1.0, kernel="rbf", gamma=0.05, device=device, solver="cg")
        chances[device] = model.fit(X, codes).predict_proba(X[:4096])
        line = {"what": f"two classes, {device}", "seconds": perf_counter() - begun}
        yield line | {"error": difference(chances[device], chances["cuda"])}


def memory(sizes: Sizes) -> Iterator[Record]:
    """Memory of the GPU, and products where it has little."""
    X, y = rows_of(sizes.memory, 40)
    yield fitted("memory of a fit", X, y)[1]
    opened_gpu = gpu.open_gpu()
    device, side = opened_gpu.device, min(8192, sizes.memory)
    whole, V = DeviceExecutor(device, side, 1e12), np.random.default_rng(1).standard_normal((sizes.memory, 2))
    expected = multiplied(whole, X, V)
    whole.close()
    most = 8 * 4 * (side // 3) * min(side // 3, STRIP_ROWS) + 20 * sizes.memory * 40
    executor = DeviceExecutor(device, side, 1e12)
    with no_more_than(device, most):
        found = multiplied(executor, X, V)
    note = (
        f"blocks of at most {executor._side} rows instead of {side}, since no more than {format_bytes(most)} are given"
    )
    executor.close()
    yield {"what": "no room for blocks", "error": difference(found, expected), "note": note}


def multiplied(executor: DeviceExecutor, X: Floats, V: Floats) -> Floats:
    """K V of an RBF kernel in float64."""
    from dkrr.data import MemoryRows
    from dkrr.linalg.gram_products import TiledOperator
    from dkrr.linalg.sources import GramTiles
    from dkrr.store import TileGrid

    source = GramTiles(kernels.RBF(gamma=1 / X.shape[1]), MemoryRows(X))
    side = executor._height
    return TiledOperator(source, TileGrid(len(X), side, side), executor, "benchmark").multiply(V)


@contextmanager
def no_more_than(device: Device, n_bytes: int) -> Iterator[None]:
    """Limit of CuPy's pool; of NumPy's arrays, that of a block."""
    if not isinstance(device, HostDevice):
        pool = device.xp.get_default_memory_pool()
        pool.free_all_blocks()
        pool.set_limit(size=n_bytes)
        try:
            yield
        finally:
            pool.set_limit(size=0)
        return
    block = DeviceKernel.block

    def limited(self: DeviceKernel, left: Any, right: Any, dtype: str, *, same: bool = False) -> Any:
        if 4 * 8 * left.n * right.n > n_bytes:
            raise MemoryError
        return block(self, left, right, dtype, same=same)

    DeviceKernel.block = limited  # type: ignore[method-assign]
    try:
        yield
    finally:
        DeviceKernel.block = block  # type: ignore[method-assign]


def resume(sizes: Sizes) -> Iterator[Record]:
    """A fit that is killed, and ends after the same call."""
    with tempfile.TemporaryDirectory() as folder:
        whole, _ = _stored(sizes, f"{folder}/whole.zarr")
        command = [*_this(), "stored", f"{folder}/killed.zarr", *_flags(sizes)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            begun, killed = time.monotonic(), False
            while process.poll() is None and time.monotonic() - begun < 120:
                killed = any(Path(folder).glob("killed.zarr/**/*checkpoint*"))
                if killed:
                    process.send_signal(signal.SIGKILL)
                    break
                time.sleep(0.02)
            process.wait()
        begun = perf_counter()
        again, iterations = _stored(sizes, f"{folder}/killed.zarr")
        yield {
            "what": "resume after SIGKILL",
            "seconds": perf_counter() - begun,
            "iterations": iterations,
            "error": difference(again, whole),
            "note": "killed after its first checkpoint" if killed else "it had ended before it was killed",
        }


def _stored(sizes: Sizes, store: str) -> tuple[Floats, int]:
    X, y = rows_of(sizes.fit, 8)
    solver = ConjugateGradient(dkrr.solvers.RPCholesky(50))
    with dask.config.set({"dkrr.checkpoint-seconds": 0}):
        model, _ = fitted("stored", X, y, tol=1e-9, store=store, solver=solver)
    return model.dual_coef_, model.solve_result_.iterations


def of_molecules(sizes: Sizes) -> Iterator[Record]:
    """The molecules, to a residual of 1e-6."""
    X, y, name = molecules(sizes.molecules)
    for again in ("first", "again"):
        yield fitted(f"{name}, n = {len(X):,}, {again}", X, y)[1]


def million(sizes: Sizes) -> Iterator[Record]:
    """Many rows, for some iterations."""
    X, y = rows_of(sizes.million, 10, 10)
    _, line = fitted(
        f"n = {len(X):,} × 10, λ = 1", X, y, alpha=1.0, solver=ConjugateGradient(max_iter=sizes.iterations)
    )
    stages = line["seconds"] / max(line["iterations"], 1)
    yield line | {"note": f"{format_seconds(stages)} an iteration with all; {line['note']}"}


def peers(sizes: Sizes) -> Iterator[Record]:
    """Other ways to the same residual."""
    X, y, name = molecules(sizes.molecules)
    gamma = 1 / X.shape[1]
    for one in (_plain_loop, _gpytorch):
        begun = perf_counter()
        found = one(X, y, gamma)
        if isinstance(found, str):
            yield {"what": one.__name__.strip("_"), "note": found}
            continue
        seconds = perf_counter() - begun
        device = gpu.open_gpu().device
        with DeviceExecutor(device, min(8192, len(X)), 1e12) as executor:
            left = y[:, None] - multiplied(executor, X, found[:, None]) - ALPHA * found[:, None]
        residual = float(np.linalg.norm(left) / np.linalg.norm(y))
        yield {"what": f"{one.__name__.strip('_')}, {name}", "seconds": seconds, "residual": residual}


def _plain_loop(X: Floats, y: Floats, gamma: float, seconds: float = 60.0) -> Floats:
    """Conjugate gradient in float32 with one block row after another, in the device's namespace alone."""
    device = gpu.open_gpu().device
    xp, height = device.xp, 8192
    rows = device.array((X - X.mean(0)).astype(np.float32))
    norms = xp.sum(rows * rows, axis=1)

    def multiply(v: Floats) -> Floats:
        on_device, out = device.array(v.astype(np.float32)), np.empty(len(v))
        for start in range(0, len(v), height):
            some = slice(start, min(start + height, len(v)))
            squares = norms[some, None] + norms[None, :] - 2.0 * (rows[some, :] @ rows.T)
            out[some] = device.host(xp.exp(-gamma * xp.maximum(squares, 0.0)) @ on_device)
        return out + ALPHA * v

    x, r = np.zeros(len(y)), y.copy()
    p, rr, begun = r.copy(), float(r @ r), perf_counter()
    while np.sqrt(rr) > TOL * np.linalg.norm(y) and perf_counter() - begun < seconds:
        q = multiply(p)
        step = rr / float(p @ q)
        x, r = x + step * p, r - step * q
        rr, before = float(r @ r), rr
        p = r + rr / before * p
    return x


def _gpytorch(X: Floats, y: Floats, gamma: float) -> Floats | str:
    if find_spec("gpytorch") is None:
        return "not installed"
    import gpytorch
    import torch

    where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows, right = (torch.tensor(a, dtype=torch.float32, device=where) for a in (X, y[:, None]))
    kernel = gpytorch.kernels.RBFKernel().to(where)
    kernel.lengthscale = float(np.sqrt(0.5 / gamma))
    settings = gpytorch.settings
    with (
        torch.no_grad(),
        settings.max_cholesky_size(0),
        settings.cg_tolerance(TOL),
        settings.eval_cg_tolerance(TOL),
        settings.max_cg_iterations(1000),
        settings.max_preconditioner_size(100),
    ):
        matrix = kernel(rows).add_diagonal(torch.full((len(X),), ALPHA, device=where))
        found: Floats = matrix.solve(right)[:, 0].double().cpu().numpy()
    return found


def cores(sizes: Sizes, counts: Sequence[int] = (16, 4, 1, 8, 2)) -> Iterator[Record]:
    """CPU scaling: the same three fits with some of the cores."""
    usable = len(os.sched_getaffinity(0))
    for count in counts:
        if count <= usable:
            subprocess.run([*_this(), "scaled", str(count), *_flags(sizes)], check=True)
    yield {"what": "cores", "note": f"{usable} cores in all"}


PARTS: dict[str, Callable[[Sizes], Iterator[Record]]] = {
    "rates": rates,
    "kernels": entries,
    "fits": fits,
    "memory": memory,
    "resume": resume,
    "molecules": of_molecules,
    "million": million,
    "peers": peers,
    "cores": cores,
}
SHARES = {"fits": 0.25, "million": 0.35, "peers": 0.25}
"""Largest fraction of the time that a part may take; others 0.15."""
LINES = "DKRR_BENCHMARK_LINES"
"""Variable of the file that a part appends its lines to: those before it was ended count."""


def _this() -> list[str]:
    return [sys.executable, "-m", "benchmarks.device"]


def _flags(sizes: Sizes) -> list[str]:
    return ["--numpy"] if sizes == SMALL else []


def _sizes(*, by_numpy: bool) -> Sizes:
    return SMALL if by_numpy else Sizes()


by_numpy_option = click.option("--numpy", "by_numpy", is_flag=True, help="Small, with NumPy in place of a GPU.")


@click.group()
def main() -> None:
    """Measure a GPU, and the cores beside it."""


@main.command()
@click.option("--only", multiple=True, type=click.Choice(list(PARTS)), help="A part; may be repeated.")
@click.option("--cores", "is_scaling", is_flag=True, help="CPU scaling alone.")
@click.option("--seconds", type=float, default=360.0, show_default=True, help="Most time of all parts.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="File that lines are appended to.")
@by_numpy_option
def run(only: tuple[str, ...], is_scaling: bool, seconds: float, out: Path | None, by_numpy: bool) -> None:
    """Measure all parts, or some, and print one table."""
    begun, lines = perf_counter(), list[Record]()
    parts = ("cores",) if is_scaling else only or tuple(name for name in PARTS if name != "cores")
    for name in parts:
        most = seconds - (perf_counter() - begun)
        if len(parts) > 1:
            most = min(most, seconds * SHARES.get(name, 0.15))
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "lines.jsonl"
            os.environ[LINES] = str(file)
            command = [*_this(), "part", name, *(["--numpy"] if by_numpy else [])]
            done = run_to_end(command, max(most, 0.1))
            lines += [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        if "stdout" not in done:
            why = "no time was left" if "timed_out" in done else str(done.get("failed", done))
            lines.append({"part": name, "what": name, "note": f"did not end: {why}"})
    for line in lines:
        write_line(stamped(line), out)
    _print_table(lines)


def _tell(name: str, line: Record) -> None:
    """Append a line of a part to the file of all."""
    with Path(os.environ.get(LINES, os.devnull)).open("a") as file:
        file.write(json.dumps({"part": name, **line}, default=float) + "\n")


@main.command()
@click.argument("name", type=click.Choice(list(PARTS)))
@by_numpy_option
def part(name: str, by_numpy: bool) -> None:
    """Measure one part in this process."""
    if name != "cores":
        opened(by_numpy=by_numpy)
    for line in PARTS[name](_sizes(by_numpy=by_numpy)):
        _tell(name, line)


@main.command()
@click.argument("store")
@by_numpy_option
def stored(store: str, by_numpy: bool) -> None:
    """Fit with a store, to be killed."""
    opened(by_numpy=by_numpy)
    _stored(_sizes(by_numpy=by_numpy), store)


@main.command()
@click.argument("count", type=int)
@by_numpy_option
def scaled(count: int, by_numpy: bool) -> None:
    """Fits on some cores of this machine."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
    sizes = _sizes(by_numpy=by_numpy)
    settings: Record = {"alpha": ALPHA, "kernel": "rbf", "gamma": 1 / 16, "device": "cpu", "progress": False}
    every: list[tuple[str, int, Record]] = [
        ("factor in memory", sizes.factored, {"solver": "cholesky"}),
        ("factor in tiles", sizes.tiled, {"solver": "cholesky", "tile": min(2048, sizes.tiled // 8)}),
        ("conjugate gradient", sizes.iterated, {"solver": "cg", "tol": TOL}),
    ]
    for name, n, more in every:
        X, y = rows_of(n, 16)
        dkrr.KernelRidge(**settings, **{**more, "tile": None}).fit(X[:300], y[:300])
        begun = perf_counter()
        model = dkrr.KernelRidge(**settings, **more).fit(X, y)
        line = {
            "what": f"{name}, n = {n:,}, {count} cores",
            "seconds": perf_counter() - begun,
            "projected_seconds": model.plan_.seconds,
            "residual": float(model.solve_result_.residual),
        }
        _tell("cores", line)


def _print_table(lines: Sequence[Record]) -> None:
    table = Table(box=box.SIMPLE)
    table.add_column("what")
    for heading in ("time", "projected", "iterations", "residual", "error", "GPU memory", "projected"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for line in lines:
        styles: list[tuple[str, Callable[[Any], str]]] = [
            ("seconds", format_seconds),
            ("projected_seconds", format_seconds),
            ("iterations", str),
            ("residual", "{:.1e}".format),
            ("error", "{:.1e}".format),
            ("device_bytes", format_bytes),
            ("projected_device_bytes", format_bytes),
        ]
        values = [style(line[name]) if line.get(name) is not None else "" for name, style in styles]
        table.add_row(*map(escape, [line["what"], *values, line.get("note", "")]))
    table_console().print(table)


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(str(error))
