"""Main function of the process that starts workers: a scheduler and workers, until its parent says stop or ends.

It is run by path, and imports nothing of dkrr, NumPy or SciPy: the process needs none of them, and the fit waits.
"""

import os
import pickle
import select
import sys
from contextlib import suppress


def serve(writer: int) -> None:
    """Start a scheduler and then workers.

    Parameters
    ----------
    writer : int
        Descriptor of the pipe that the scheduler's address is written to, once it has started.
    """
    parent, stdin = os.getppid(), sys.stdin.buffer
    os.set_inheritable(writer, False)
    try:
        n_workers, options, config = pickle.load(stdin)
    except (EOFError, pickle.UnpicklingError):
        return  # the parent died
    import dask
    from distributed import LocalCluster

    # Into the defaults of distributed, which the parent may not have imported: its settings are then a part of them.
    dask.config.update(dask.config.config, config)
    with LocalCluster(
        n_workers=0,
        threads_per_worker=1,
        processes=True,
        # The scheduler has an HTTP server in any case; the default port may be taken, by another fit for one.
        dashboard_address="127.0.0.1:0",
        scheduler_kwargs={"dashboard": False},
        silence_logs=50,
        **options,
    ) as cluster:
        # The parent imports and connects while the workers start.
        with suppress(BrokenPipeError):  # the parent no longer waits
            os.write(writer, f"{cluster.scheduler_address}\n".encode())
        os.close(writer)
        cluster.scale(n_workers)
        cluster.sync(cluster._correct_state)  # raises what keeps a worker from starting
        while not select.select([stdin], [], [], 1.0)[0] and os.getppid() == parent:
            pass
