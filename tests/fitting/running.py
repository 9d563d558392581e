"""Start, kill and read the program of `scripts`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.fitting.scripts import fit

ROOT = Path(__file__).parents[2]


def start(n: int, d: int, store: Path, **settings: Any) -> subprocess.Popen[bytes]:
    """Start a fit in a process group of its own."""
    return subprocess.Popen(_command(case(n, d, store, **settings)), cwd=ROOT, start_new_session=True)


def fit_in_forks(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Facts of fits, each in a process of its own; those are forks of one, which imports the libraries only once."""
    done = subprocess.run(_command(cases), cwd=ROOT, stdout=subprocess.PIPE, timeout=280, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def case(n: int, d: int, store: Path | None, **settings: Any) -> dict[str, Any]:
    """Arguments of a fit in another process."""
    return {"n": n, "d": d, "store": None if store is None else str(store), "settings": settings}


def _command(arguments: Any) -> list[str]:
    return [sys.executable, "-m", "tests.fitting.scripts", json.dumps(arguments)]


def fit_here(n: int, d: int, store: Path | None, **settings: Any) -> tuple[Any, dict[str, Any]]:
    """Do the same in this process, which has the libraries already."""
    return fit(n, d, None if store is None else str(store), settings)


def kill_everything(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the process and all it has started."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tiles(store: Path) -> dict[str, int]:
    """Existing chunks of the factor, with their times of writing."""
    folder = store / "system-0" / "factor"
    if not folder.exists():
        return {}
    return {p.name: p.stat().st_mtime_ns for p in folder.glob("c.*") if not p.name.endswith(".partial")}


def iteration(store: Path) -> int:
    """Iteration (of conjugate gradient, or Newton's step) of the last checkpoint; −1 without one."""
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
    for _ in range(12_000):
        if len(tiles(store)) >= count:
            return
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.005)
    raise AssertionError("no tiles appeared")
