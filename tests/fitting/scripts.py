"""Program that tests run in a process of its own, to be killed or measured."""

import copy
import json
import os
import sys
import traceback
from contextlib import ExitStack
from typing import Any
from unittest import mock

import numpy as np


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
    from dkrr.solvers import ConjugateGradient, RPCholesky

    X, y = problem(n, d)
    settings = copy.deepcopy(settings)
    n_targets = settings.pop("targets", None)
    if n_targets is not None:
        y = y[:, :1] * np.linspace(0.5, 2.0, n_targets) + 1.0
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
        if workers is not None:
            # Plans of small fits use workers if these start in no time and BLAS's threads add nothing to one task.
            stack.enter_context(mock.patch("dkrr.planning.tilings.THREAD_EFFICIENCY", 0.0))
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


def fit_in_forks(cases: list[dict[str, Any]]) -> None:
    """Fit every case in a fork of its own, which has its own peak of memory, and the libraries from this process.

    dkrr is imported in the fork: imported here, it would recognise a fork, and plan for one.
    """
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


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    if isinstance(arguments, list):
        fit_in_forks(arguments)
    else:
        fit(**arguments)
