"""Starting, killing and reading the programs of `scripts`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.fitting.scripts import fit

ROOT = Path(__file__).parents[2]


def start(n: int, d: int, store: Path | None, out: Path, **settings: Any) -> subprocess.Popen[bytes]:
    """Start a fit in a process group of its own."""
    arguments = {"n": n, "d": d, "store": None if store is None else str(store), "out": str(out), "settings": settings}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.fitting.scripts", json.dumps(arguments)], cwd=ROOT, start_new_session=True
    )


def finish(process: subprocess.Popen[bytes], out: Path) -> tuple[Any, dict[str, Any]]:
    """Wait for a fit; its coefficients and facts."""
    assert process.wait(timeout=280) == 0
    with np.load(out) as found:
        return found["dual_coef"], json.loads(str(found["facts"]))


def fit_here(n: int, d: int, store: Path | None, **settings: Any) -> tuple[Any, dict[str, Any]]:
    """Do the same in this process, which has the libraries already."""
    return fit(n, d, None if store is None else str(store), settings)


def kill_everything(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the process and all it has started."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tiles(store: Path) -> dict[str, int]:
    """Chunks of the factor that are there, with their times of writing."""
    folder = store / "system-0" / "factor"
    if not folder.exists():
        return {}
    return {p.name: p.stat().st_mtime_ns for p in folder.glob("c.*") if not p.name.endswith(".partial")}


def iteration(store: Path) -> int:
    """Iteration (of conjugate gradient, or Newton's step) of the last checkpoint; −1 if there is none."""
    try:
        notes = json.loads((store / "zarr.json").read_text())["attributes"]["dkrr"]["notes"]
        plain = json.loads(notes["checkpoint"]["plain"])
        return int(plain["iteration"] if "iteration" in plain else plain["state"]["step"])
    except (FileNotFoundError, KeyError, TypeError, json.JSONDecodeError):  # also while it is written
        return -1


def wait_for_iteration(process: subprocess.Popen[bytes], store: Path, count: int) -> int:
    """Wait until a run has a checkpoint of this iteration, or a later one."""
    for _ in range(12_000):
        if (found := iteration(store)) >= count:
            return found
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.005)
    raise AssertionError("no checkpoint appeared")


def wait_for_tiles(process: subprocess.Popen[bytes], store: Path, count: int) -> None:
    """Wait until a run has written so many chunks."""
    for _ in range(3000):
        if len(tiles(store)) >= count:
            return
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.02)
    raise AssertionError("no tiles appeared")
