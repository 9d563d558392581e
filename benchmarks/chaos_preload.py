"""Preload of the workers of `benchmarks.chaos_kills`: each says which process it is."""

import os
from pathlib import Path
from typing import Any

FOLDER = "CHAOS_WORKERS"
"""Variable of the environment with the folder for their numbers."""


def dask_setup(worker: Any) -> None:  # noqa: ARG001
    """Called by Dask in each new worker."""
    Path(os.environ[FOLDER], str(os.getpid())).touch()
