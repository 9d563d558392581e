"""Preload of Dask workers that run dkrr: ``dask worker --preload dkrr.preload``, or ``distributed.worker.preload``.

It imports what tasks need, so that a worker reports before its first task the memory that the planner must allow for;
it keeps BLAS on one thread; and it warns of settings with which a worker may exceed the memory of a plan.
"""

import logging
from typing import Any

import threadpoolctl

import dkrr.fitting  # noqa: F401  (what tasks need)

logger = logging.getLogger(__name__)


def dask_setup(worker: Any) -> None:
    """Called by Dask in each new worker."""
    # Not a context manager: it holds for as long as the worker lives.
    threadpoolctl.threadpool_limits(limits=1)
    for problem in problems(worker):
        logger.warning("dkrr worker %s: %s", worker.name, problem)


def problems(worker: Any) -> list[str]:
    """Faults of a worker's settings, each with its remedy."""
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
            "spilling is on, which frees no memory of dkrr's and costs time; set distributed.worker.memory.target and "
            "distributed.worker.memory.spill to false"
        )
    return found
