"""Workers as dkrr starts them, with the modules of its tasks imported: for tests and benchmarks."""

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dkrr.cluster.local_workers import LocalWorkers


@contextmanager
def local_client(n_workers: int, memory_bytes: int, scratch: str, modules: Sequence[str]) -> Iterator[Any]:
    """Client of `LocalWorkers` that have imported the modules that tasks need; not the ambient one.

    So what is timed on them does not include imports.
    """
    with LocalWorkers(n_workers, memory_bytes, scratch) as workers, workers.client() as client:
        client.run(_import, list(modules))
        yield client


def _import(modules: list[str]) -> None:
    for name in modules:
        importlib.import_module(name)
