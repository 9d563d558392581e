"""Main function of the process that starts workers: a scheduler and workers, until its parent says stop or ends.

It is run by path, and imports nothing of dkrr, NumPy or SciPy: the process needs none of them, and the fit waits. The
workers import it by path too, under this name, which must not hide a module of the user's.
"""

import os
import pickle
import select
import shutil
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from typing import Any

MAX_STARTS = 4
"""Times that one worker is started before it has once run; a worker that the system kills then may yet start."""
NOT_STARTED = 3
"""Exit status if a worker did not start."""


def serve(writer: int) -> None:
    """Start a scheduler and then workers.

    Parameters
    ----------
    writer : int
        Descriptor of the pipe that the scheduler's address is written to, once it has started.
    """
    parent, stdin = os.getppid(), sys.stdin.buffer
    os.set_inheritable(writer, False)
    import dask
    from distributed import LocalCluster

    # Read after the imports, during which the parent makes the credentials.
    try:
        n_workers, options, security, config = pickle.load(stdin)
    except (EOFError, pickle.UnpicklingError):
        return  # the parent died

    # Scheduler and workers write the key to a file for a moment: what killed ones leave goes with this folder.
    os.environ["TMPDIR"] = tempfile.tempdir = options["local_directory"]
    # Into the defaults of distributed, which the parent may not have imported: its settings are then a part of them.
    dask.config.update(dask.config.config, config)
    with LocalCluster(
        n_workers=0,
        threads_per_worker=1,
        processes=True,
        host="127.0.0.1",
        protocol="tls://",
        security=security,
        # The scheduler starts an HTTP server in any case; the default port may be taken, by another fit for one.
        dashboard_address="127.0.0.1:0",
        scheduler_kwargs={"dashboard": False},
        silence_logs=50,
        **options,
    ) as cluster:
        cluster.scheduler.http_server.stop()  # it would answer without credentials
        # The parent imports and connects while the workers start.
        with suppress(BrokenPipeError):  # the parent no longer waits
            os.write(writer, cluster.scheduler_address.encode())
        os.close(writer)
        cluster.scale(n_workers)
        failures = Counter[Any]()
        start_workers(cluster, failures)
        while not select.select([stdin], [], [], 1.0)[0] and os.getppid() == parent:
            start_workers(cluster, failures)
    if os.getppid() != parent:  # it can no longer delete what it has made
        shutil.rmtree(options["local_directory"], ignore_errors=True)


def dask_setup(worker: Any) -> None:
    """Close the HTTP server of a new worker, which would answer without credentials; called by Dask (as a preload)."""
    worker.http_server.stop()


def start_workers(cluster: Any, failures: "Counter[Any]") -> None:
    """Start the workers that do not run, also those that died while they started, which Dask gives up.

    Dask itself starts those again that die later.

    Parameters
    ----------
    cluster : distributed.LocalCluster
    failures : collections.Counter
        Failed starts of each worker so far.

    Raises
    ------
    SystemExit
        If one fails `MAX_STARTS` times.
    """
    while True:
        for name, nanny in list(cluster.workers.items()):
            if nanny.status.name in ("closed", "failed"):
                del cluster.workers[name]
        missing = set(cluster.worker_spec) - set(cluster.workers)
        if not missing:
            return
        try:
            cluster.sync(cluster._correct_state)
        except Exception as error:
            for name in missing:
                nanny = cluster.workers.get(name)
                failures[name] += nanny is None or nanny.status.name in ("closed", "failed")
            if max(failures.values()) >= MAX_STARTS:
                cause: BaseException | None = error
                while cause is not None:
                    print(f"dkrr: a worker did not start: {type(cause).__name__}: {cause}", file=sys.stderr)
                    cause = cause.__cause__
                sys.exit(NOT_STARTED)
