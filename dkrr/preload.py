"""Preload of Dask workers that run dkrr: ``dask worker --preload dkrr.preload``, or ``distributed.worker.preload``.

It imports what tasks need, so that the memory a worker reports before its first task, from which the planner starts,
is the true one; it keeps BLAS on one thread; and it warns of settings with which a plan cannot keep its promise.
"""

import logging
from typing import Any

import threadpoolctl

import dkrr.fitting  # noqa: F401  (what tasks need)

logger = logging.getLogger(__name__)


def dask_setup(worker: Any) -> None:
    """Called by Dask in each new worker.

    Parameters
    ----------
    worker : distributed.Worker
    """
    # Not a context manager: it holds for as long as the worker lives.
    threadpoolctl.threadpool_limits(limits=1)
    for problem in problems(worker):
        logger.warning("dkrr worker %s: %s", worker.name, problem)


def problems(worker: Any) -> list[str]:
    """What is wrong with a worker's settings, each with its remedy.

    Parameters
    ----------
    worker : distributed.Worker
    """
    found, memory = [], worker.memory_manager
    if not memory.memory_limit:
        found.append("no memory limit, so the planner only guesses one; start it with --memory-limit")
    if worker.state.nthreads > 1:
        found.append(
            f"{worker.state.nthreads} threads, whose tasks share the memory of one process; start it with --nthreads 1 "
            f"and more workers"
        )
    if memory.memory_target_fraction or memory.memory_spill_fraction:
        found.append(
            "spilling is on, which moves no memory of dkrr's and costs time; set distributed.worker.memory.target and "
            "distributed.worker.memory.spill to false"
        )
    return found
