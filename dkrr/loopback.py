"""Preload of the workers that dkrr starts itself: it closes their HTTP server, which would answer without credentials.

Not in `dkrr.cluster`, whose libraries a worker imports once it has started.
"""

from typing import Any


def dask_setup(worker: Any) -> None:
    """Called by Dask in each new worker, before the scheduler knows of it."""
    worker.http_server.stop()
