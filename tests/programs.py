"""Fits in processes of their own, to be killed or measured: the program that does one, and what starts and reads it.

dkrr is imported where a fit begins: a process that had it already would be recognised as a fork, and plan for one.
"""

import copy
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

ROOT = Path(__file__).parents[1]
ON_WORKERS = {"workers": 2, "config": {"dkrr.rates.gemm-gflops": 1e-3}}
"""Settings of a fit that starts two workers: on so slow a machine they pay."""


def problem(n: int, d: int) -> tuple[Any, Any]:
    """The same problem in every process."""
    rng = np.random.default_rng(7)
    X = rng.normal(size=(n, d))
    return X, np.column_stack([np.sin(X[:, 0]), X[:, -1] ** 2])


def labels(y: Any, n_classes: int) -> Any:
    """Classes of about as many rows each."""
    score = y.sum(axis=1) + np.random.default_rng(8).normal(scale=0.2, size=len(y))
    return np.digitize(score, np.quantile(score, np.arange(1, n_classes) / n_classes))


def fit(n: int, d: int, store: str | None, settings: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Fit in this process (workers as planned); coefficients, and what was measured."""
    import dask

    from dkrr import KernelLogisticRegression, KernelRidge
    from dkrr.features import Nystroem
    from dkrr.kernels import RBF
    from dkrr.solvers import ConjugateGradient, RPCholesky

    X, y = problem(n, d)
    settings = copy.deepcopy(settings)
    n_targets = settings.pop("targets", None)
    if n_targets is not None:
        y = y[:, :1] * np.linspace(0.5, 2.0, n_targets) + 1.0
    centres = settings.pop("centres", None)
    if centres is not None:
        settings["kernel"] = Nystroem(RBF(gamma=settings.pop("gamma")), centres)
    workers = settings.pop("workers", None)
    start = {} if workers is None else {"dkrr.local.workers": workers, "dkrr.rates.cluster-start-seconds": 0.0}
    start |= settings.pop("config", {})
    if "cg" in settings:
        more = settings.pop("cg")
        rank = more.pop("rank", "auto")
        preconditioner = RPCholesky(rank) if isinstance(rank, int) else rank
        settings["solver"] = ConjugateGradient(preconditioner, **more)
    classes = settings.pop("classes", None)
    estimator = KernelRidge if classes is None else KernelLogisticRegression
    targets = y if classes is None else labels(y, classes)
    with ExitStack() as stack:
        stack.enter_context(dask.config.set(start))
        if centres is not None:  # their memory is that of the process, too
            stack.enter_context(mock.patch("dkrr.fitting.context.reset_peak"))
        if workers is not None:
            # Plans of small fits use workers if these start in no time and BLAS's threads add nothing to one task.
            stack.enter_context(mock.patch("dkrr.fitting.costs.tile_costs.THREAD_EFFICIENCY", 0.0))
        model = estimator(store=store, progress=False, **settings).fit(X, targets)
    result, plan = model.solve_result_, model.plan_
    return getattr(model, "dual_coef_", np.zeros(0)), {
        "execution": plan.execution,
        "tile": plan.chosen.layout()["tile"],
        "solver": plan.solver,
        "residual": result.residual,
        "peaks": result.record.peak_bytes_by_worker,
        "peak": result.peak_bytes,
        "projected": plan.peak_bytes,
        "limit": plan.chosen.limit_bytes,
        "written": result.bytes_written,
        "planned_written": plan.chosen.written_bytes,
        "tasks": [t.key for t in result.record.tasks],
        "iterations": result.iterations,
        "objectives": [step.objective for step in result.steps],
        "history": [(h.iteration, h.largest, h.is_true) for h in result.history],
        "status": result.status.name,
    }


def _fork_for_each(cases: list[dict[str, Any]]) -> None:
    """Fit every case in a fork of its own, which has its own peak of memory, and the libraries from this process."""
    import distributed  # noqa: F401
    import scipy.linalg  # noqa: F401
    import sklearn.base  # noqa: F401
    import zarr  # noqa: F401

    assert not any(name.startswith("dkrr") for name in sys.modules)
    for case in cases:
        child = os.fork()
        if child == 0:
            try:
                print(json.dumps(fit(**case)[1]), flush=True)
                os._exit(0)
            finally:
                traceback.print_exc()
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, case


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
    return [sys.executable, "-m", "tests.programs", json.dumps(arguments)]


def fit_here(n: int, d: int, store: Path | None, **settings: Any) -> tuple[Any, dict[str, Any]]:
    """Do the same in this process, which has the libraries already."""
    return fit(n, d, None if store is None else str(store), settings)


def kill_everything(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the process and all it has started."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tiles(store: Path) -> dict[str, int]:
    """Existing chunks of the factor, with their times of writing; `store` may also be a folder of temporary ones."""
    try:
        found = [p for p in store.glob("**/system-0/factor/c.*") if not p.name.endswith(".partial")]
        return {p.name: p.stat().st_mtime_ns for p in found}
    except FileNotFoundError:  # of a temporary folder that a worker has just deleted
        return {}


def iteration(store: Path) -> int:
    """Iteration (of conjugate gradient, or Newton's step) of the last checkpoint; −1 without one."""
    try:
        notes = json.loads((store / "zarr.json").read_text())["attributes"]["dkrr"]["notes"]
        plain = notes["checkpoint"]["plain"]
        return int(plain["iteration"] if "iteration" in plain else plain["state"]["step"])
    except (FileNotFoundError, KeyError, TypeError, json.JSONDecodeError):  # also while it is written
        return -1


def wait_for_iteration(process: subprocess.Popen[bytes], store: Path, count: int) -> int:
    """Wait until a run has a checkpoint of this iteration, or a later one."""
    return _wait(process, lambda: iteration(store), count)


def wait_for_tiles(process: subprocess.Popen[bytes], store: Path, count: int) -> None:
    """Wait until a run has written so many chunks."""
    _wait(process, lambda: len(tiles(store)), count)


def _wait(process: subprocess.Popen[bytes], reached: Callable[[], int], count: int) -> int:
    for _ in range(12_000):
        if (found := reached()) >= count:
            return found
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.005)
    raise AssertionError("the run did not come so far")


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    if isinstance(arguments, list):
        _fork_for_each(arguments)
    else:
        fit(**arguments)
