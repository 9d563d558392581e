"""Two factorisations compared: with the tiles in a folder of this machine, and in a bucket.

One command starts a server of the S3 interface on this machine (moto's, in its own process, on the loopback
interface), calibrates the machine and the folder's disk, and fits the same rows with a store in each; one
line of JSON on stdout for each run, and a table on stderr::

    python -m benchmarks.factor_stores [--n 6144] [--tile 1024] [--workers 2] [--repeat 1] [--no-calibrate]

Workers keep no tiles in memory: all of the factor goes through the store. The server is written in Python and works
on the same cores as the workers, so the share is a lower bound of that with a server elsewhere that is as near.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import dask
import numpy as np
from rich import box
from rich.table import Table

import dkrr
from benchmarks.local_client import local_client
from benchmarks.machine import LoadMeter, count_cores, describe_machine
from benchmarks.object_stores import BUCKET, s3_server
from benchmarks.solve import table_console, write_line
from dkrr.checks import parse_bytes
from dkrr.linalg import TASK_MODULES
from dkrr.solvers import Cholesky
from dkrr.text import format_bytes

D, ALPHA = 16, 1e-2
STAGES = ("factorisation", "substitution")
KINDS = ("read", "write")
MOVED = {"read_bytes": "read", "written_bytes": "written"}


def rows(n: int) -> tuple[Any, Any]:
    """Standard normal rows, and targets of a function of the first column."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, D))
    return X, np.sin(X[:, 0]) + 0.1 * rng.standard_normal(n)


@contextmanager
def environment(endpoint: str) -> Iterator[None]:
    """The server in this process's environment, which that of workers follows."""
    values = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
    values |= {"AWS_ENDPOINT_URL": endpoint, "NO_PROXY": "127.0.0.1"}
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def measure(where: str, store: str, n: int, tile: int | None, workers: int, memory: int) -> dict[str, Any]:
    """Measure a fit with new workers that run already: planned and measured seconds, and waiting times of its tasks."""
    X, y = rows(n)
    model = dkrr.KernelRidge(
        alpha=ALPHA, kernel="rbf", gamma=1 / D, solver=Cholesky(), form="dual", tile=tile, store=store
    )
    with (
        tempfile.TemporaryDirectory(prefix="dkrr-benchmark-") as scratch,
        local_client(workers, memory // workers, scratch, TASK_MODULES) as client,
        client.as_current(),
    ):
        meter = LoadMeter()
        model.fit(X, y)
        load = meter.stop()
    plan, result = model.plan_, model.solve_result_
    tasks = result.record.tasks
    planned = {s.name: s.seconds for s in plan.chosen.stages}
    measured = {s.name: s.seconds for s in result.stages}
    return {
        "case": "factor-stores",
        "where": where,
        "n": n,
        "plan": plan.chosen.summary(),
        "layout": plan.chosen.layout(),
        "because": list(plan.resources.storage_reasons),
        "planned": {name: planned[name] for name in STAGES} | {"fit": plan.seconds},
        "measured": {name: measured[name] for name in STAGES} | {"fit": result.seconds},
        "busy_seconds": sum(t.seconds for t in tasks),
        "waited": {kind: sum(t.seconds_by_kind.get(kind, 0.0) for t in tasks) for kind in KINDS},
        "peak_bytes": result.peak_bytes,
        "planned_peak_bytes": plan.peak_bytes,
        "read_bytes": result.bytes_read,
        "written_bytes": result.bytes_written,
        "residual": float(result.residual),
        "load": load.to_dict(),
        "machine": describe_machine(),
    }


def table(found: list[dict[str, Any]]) -> Table:
    """Runs beside each other; the share is the folder's time over the bucket's."""
    columns = (
        "store",
        "tiles",
        "factorisation",
        "planned",
        "substitution",
        "planned",
        "waiting to read",
        "to write",
        "share",
    )
    shown = Table(*columns, box=box.SIMPLE)
    folder = min(f["measured"]["factorisation"] for f in found if f["where"] == "folder")
    for f in found:
        times = [f"{f[kind][name]:.1f} s" for name in STAGES for kind in ("measured", "planned")]
        waited = [f"{100 * f['waited'][kind] / f['busy_seconds']:.0f} %" for kind in KINDS]
        share = f"{folder / f['measured']['factorisation']:.2f}"
        where = f["where"] + (" (noisy)" if f["load"]["noisy"] else "")
        shown.add_row(where, f"{f['layout']['tile']:,}", *times, *waited, share)
    moved = ", ".join(f"{format_bytes(max(f[name] for f in found))} {what}" for name, what in MOVED.items())
    shown.caption = f"{found[0]['n']:,} rows; at most {moved}"
    return shown


@click.command()
@click.option("--n", default=6144, show_default=True, help="Rows.")
@click.option("--tile", type=int, default=1024, show_default=True, help="Rows of a tile; 0: the planner's choice.")
@click.option("--workers", type=int, default=count_cores, show_default="all cores", help="Worker processes.")
@click.option("--memory-limit", default="2GiB", show_default=True, help="Memory of all workers.")
@click.option("--repeat", default=1, show_default=True, help="Runs with each store.")
@click.option("--calibrate/--no-calibrate", default=True, help="Measure the machine first, or use defaults.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Append the lines here too.")
def main(
    n: int, tile: int, workers: int, memory_limit: str, repeat: int, calibrate: bool, json_path: Path | None
) -> None:
    """Factor the same matrix with a store in a folder and in a bucket."""
    memory, found = parse_bytes(memory_limit), []
    with tempfile.TemporaryDirectory(prefix="dkrr-benchmark-") as folder, s3_server() as url, environment(url):
        settings = {"dkrr.profile-directory": f"{folder}/profiles", "dkrr.local.workers": workers}
        with dask.config.set({**settings, "dkrr.quick-measurement": False}):
            if calibrate:
                dkrr.calibrate()
            for k in range(repeat):
                for where, store in (("folder", f"{folder}/run-{k}.zarr"), ("bucket", f"s3://{BUCKET}/run-{k}.zarr")):
                    facts = measure(where, store, n, tile or None, workers, memory)
                    write_line(facts, json_path)
                    found.append(facts)
    table_console().print(table(found))


if __name__ == "__main__":
    main()
