"""Preload of Dask's workers that run dkrr: ``--preload dkrr.preload``, or ``distributed.worker.preload``.

It sets what dkrr's tasks depend on, whatever Dask's configuration on the worker's machine says: BLAS on one thread for
each task, and WORKER_SETTINGS of `dkrr.cluster.worker_settings`: no spilling and no pausing, fewer interruptions. It
imports what tasks need, so that a worker reports before its first task the memory that the planner must allow for.
What a worker cannot change itself it writes to its log.
"""

import logging
from typing import Any

import dask
import threadpoolctl
from dask.utils import parse_timedelta

import dkrr.fitting.run  # noqa: F401  (what tasks need)
from dkrr.cluster.worker_settings import WORKER_SETTINGS, problems, report

logger = logging.getLogger(__name__)

dask.config.set(WORKER_SETTINGS)  # a worker imports its preloads before it reads them, but for its clocks
CLOCKS = {"tick": "distributed.admin.tick.interval", "monitor": "distributed.admin.system-monitor.interval"}


async def dask_setup(worker: Any) -> None:
    """Called by Dask in each new worker, before its first task."""
    if not hasattr(worker, "memory_manager") or not hasattr(worker, "state"):
        raise TypeError(f"dkrr.preload is given to a {type(worker).__name__}; expected a worker: dask worker --preload")
    # Not a context manager: it holds for as long as the worker lives.
    threadpoolctl.threadpool_limits(limits=1)
    for name, setting in CLOCKS.items():
        worker.periodic_callbacks[name].callback_time = 1000 * parse_timedelta(WORKER_SETTINGS[setting])
    for problem in problems({worker.address: await report(worker)}):
        logger.warning("dkrr worker %s: %s", worker.name, problem)
