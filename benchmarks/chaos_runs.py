"""Damage to the stores of runs between a kill and the next call, which is made in a process kept warm."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.chaos_child import ENVIRONMENT, ROOT
from benchmarks.chaos_damage import OPERATIONS, Scene, damage, open_again
from benchmarks.chaos_fits import FITS, Fitted, fitted, same
from benchmarks.chaos_trials import Outcome, of_error, words

N_SNAPSHOTS = 6
"""States of one run that are kept, besides the finished one."""
ON_WORKERS = 5
"""One trial of so many is resumed on workers."""
WORKER_BYTES = 2**30
N_WORKERS = 2


@cache
def _folder() -> Path:
    """Folder of this process for its runs."""
    return Path(tempfile.mkdtemp(prefix="runs-"))


@cache
def reference(name: str) -> Fitted:
    """What the undisturbed run gives."""
    with tempfile.TemporaryDirectory(dir=_folder()) as folder:
        return fitted(name, f"{folder}/run.zarr")


@cache
def another(name: str) -> Path:
    """Store of a finished run with other data."""
    store = _folder() / f"{list(FITS).index(name)}-of-others" / "run.zarr"
    store.parent.mkdir()
    fitted(name, str(store), version=1)
    return store


@cache
def snapshots(name: str) -> tuple[Path, ...]:
    """Stores of a run as a kill leaves them at several moments, and when it is finished.

    The process is stopped at each of them, its store copied, and the process continued.
    """
    folder = _folder() / f"{list(FITS).index(name)}"
    store, seconds = folder / "run.zarr", reference(name).seconds
    folder.mkdir()
    arguments = json.dumps({"name": name, "store": str(store)})
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.chaos_fits", arguments], cwd=ROOT, env=os.environ | ENVIRONMENT
    )
    found: list[Path] = []
    while process.poll() is None:
        time.sleep(seconds / (N_SNAPSHOTS + 1) if store.exists() else 0.001)
        process.send_signal(signal.SIGSTOP)
        with suppress(ChildProcessError):  # it has ended
            os.waitid(
                os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT
            )  # until all its threads have stopped
        has_files = any(path.is_file() for path in store.rglob("*"))
        if has_files and process.poll() is None and len(found) < 2 * N_SNAPSHOTS:
            found.append(folder / f"at-{len(found)}.zarr")
            shutil.copytree(store, found[-1])
        process.send_signal(signal.SIGCONT)
    if process.returncode:
        raise RuntimeError(f"the undisturbed fit failed: status {process.returncode}")
    return (*found, store)


class _Workers:
    """Workers that are kept between trials."""

    def __init__(self) -> None:
        self._stack: ExitStack | None = None
        self.client: Any = None

    def started(self) -> Any:
        """Client of them."""
        if self.client is None:
            from benchmarks.local_client import local_client
            from dkrr.linalg import TASK_MODULES

            self._stack = ExitStack()
            self.client = self._stack.enter_context(local_client(N_WORKERS, WORKER_BYTES, str(_folder()), TASK_MODULES))
        self.client.wait_for_workers(N_WORKERS, timeout=60)  # one that has died is started again
        return self.client

    def processes(self) -> list[int]:
        """Their numbers."""
        return sorted(self.client.run(os.getpid).values())

    def stop(self) -> None:
        """Start others next time."""
        if self._stack is not None:
            self._stack.close()
        self.client = self._stack = None


_workers = _Workers()


def trial(seed: int, number: int, only: list[str], places: list[str]) -> dict[str, Any]:
    """Damage the store of a run that was killed, and resume it.

    Parameters
    ----------
    seed, number : int
    only : list of str
        Fits to choose from; empty: all.
    places : list of str
        Places to choose from: here, cluster.
    """
    rng = np.random.default_rng([seed, number])
    operations, names = list(OPERATIONS), only or list(FITS)
    operation, name = operations[number % len(operations)], names[int(rng.integers(len(names)))]
    place = "cluster" if rng.integers(ON_WORKERS) == 0 else "here"
    place = place if place in places else places[0]
    states = snapshots(name)
    moment = int(rng.integers(operation == "file of an older version", len(states)))
    older = states[:moment]
    other = names[int(rng.integers(len(names)))]
    foreign = [another(name), another(other)]
    about = f"{name}, {place}, state {moment} of {len(states)}"
    folder = Path(tempfile.mkdtemp(prefix=f"trial-{number}-", dir=_folder()))
    store, copy = folder / "run.zarr", folder / "as-damaged.zarr"
    outcome, detail, done = Outcome.RAW, "", None
    try:
        shutil.copytree(states[moment], store)
        done = damage(Scene(store, older, foreign), rng, operation)
        if done is None:
            return {"row": operation, "group": name, "outcome": Outcome.HARMLESS, "what": "nothing", "count": 0}
        if store.exists() and operation not in ("folder closed", "file not readable"):
            shutil.copytree(store, copy)
        outcome, detail = _judged(name, store, place)
        if outcome in (Outcome.HARMLESS, Outcome.REPAIRED, Outcome.DETECTED):
            shutil.rmtree(copy, ignore_errors=True)
        else:
            about += f"; {copy}"
    finally:
        open_again(folder)
        if not copy.exists():
            shutil.rmtree(folder)
    return {"row": operation, "group": name, "outcome": outcome, "what": f"{about}; {done}", "detail": detail}


def _judged(name: str, store: Path, place: str) -> tuple[Outcome, str]:
    expected = reference(name)
    with ExitStack() as stack:
        before: list[int] = []
        if place == "cluster":
            stack.enter_context(_workers.started().as_current())
            before = _workers.processes()
        try:
            found = fitted(name, str(store), place)
        except Exception as error:
            outcome, detail = of_error(error, str(store))
        else:
            news = [text for text in found.said if _without_numbers(text) not in map(_without_numbers, expected.said)]
            outcome, detail = (Outcome.REPAIRED if news else Outcome.HARMLESS), words(news)
            if not same(name, found, expected):
                outcome = Outcome.WRONG
        if before and before != _workers.processes():
            outcome, detail = Outcome.CRASH, f"a worker died; {detail}"
    if outcome == Outcome.CRASH:
        _workers.stop()
    return outcome, detail


def _without_numbers(text: str) -> str:
    return re.sub(r"[\d.]+(e[+-]\d+)?", "0", text)
