"""Preload of Dask's workers that run dkrr: ``--preload dkrr.preload``, or ``distributed.worker.preload``.

It sets what dkrr's tasks depend on, whatever Dask's configuration on the worker's machine says: BLAS on one thread for
each task, no spilling and no pausing, fewer interruptions. It imports what tasks need, so that a worker reports before
its first task the memory that the planner must allow for. What a worker cannot change itself it writes to its log.
"""

import logging
from typing import Any

import threadpoolctl

import dkrr.fitting  # noqa: F401  (what tasks need)
from dkrr.cluster.worker_settings import interrupt_less, keep_memory, problems, settings_of

logger = logging.getLogger(__name__)


def dask_setup(worker: Any) -> None:
    """Called by Dask in each new worker, before its first task."""
    if not hasattr(worker, "memory_manager") or not hasattr(worker, "state"):
        raise TypeError(f"dkrr.preload is given to a {type(worker).__name__}; expected a worker: dask worker --preload")
    # Not a context manager: it holds for as long as the worker lives.
    threadpoolctl.threadpool_limits(limits=1)
    keep_memory(worker)
    interrupt_less(worker)
    for problem in problems({worker.address: settings_of(worker)}):
        logger.warning("dkrr worker %s: %s", worker.name, problem)
