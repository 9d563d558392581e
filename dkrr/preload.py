"""Preload of Dask's workers and scheduler that run dkrr: ``--preload dkrr.preload``, or ``distributed.worker.preload``.

On a scheduler it adds the page ``/dkrr`` with the fits of the cluster to Dask's dashboard. The rest is for workers.

It sets what dkrr's tasks depend on, whatever Dask's configuration on the worker's machine says: BLAS on one thread for
each task, no spilling and no pausing, fewer interruptions. It imports what tasks need, so that a worker reports before
its first task the memory that the planner must allow for. What a worker cannot change itself it writes to its log.
"""

import logging
from typing import Any

import threadpoolctl

import dkrr.fitting  # noqa: F401  (what tasks need)
from dkrr.dashboard.page import add_page
from dkrr.machine.worker_settings import interrupt_less, keep_memory, problems, settings_of

logger = logging.getLogger(__name__)


def dask_setup(worker: Any) -> None:
    """Called by Dask in each new worker, before its first task, and in a scheduler."""
    if hasattr(worker, "http_application") and hasattr(worker, "workers"):
        add_page(worker)
        return
    if not hasattr(worker, "memory_manager") or not hasattr(worker, "state"):
        raise TypeError("dkrr.preload is given to a nanny; expected a worker or a scheduler: dask worker --preload")
    # Not a context manager: it holds for as long as the worker lives.
    threadpoolctl.threadpool_limits(limits=1)
    keep_memory(worker)
    interrupt_less(worker)
    for problem in problems({worker.address: settings_of(worker)}):
        logger.warning("dkrr worker %s: %s", worker.name, problem)
