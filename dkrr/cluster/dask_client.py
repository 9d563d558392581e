"""Clients of Dask, and what their workers have, hold and see."""

import asyncio
import importlib
import os
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import psutil
from distributed import Client
from distributed.comm import resolve_address
from distributed.protocol.pickle import dumps, loads

from dkrr.cluster import process
from dkrr.cluster.dask_watch import CANCELLED, Watch
from dkrr.cluster.progress import OpenStage, Progress
from dkrr.errors import InputError, StoreError
from dkrr.store.arrays import zarr_store
from dkrr.store.faults import faults_of
from dkrr.store.replacing import delete_file

TOPIC = "dkrr"
"""Topic of the events of stages on Dask's scheduler."""


def ambient_client() -> Client | None:
    """Client that the user has made, if its cluster would do the work (`process.may_use`).

    Raises
    ------
    InputError
        If the client is asynchronous and this thread runs its event loop, which waiting would block for ever.
    """
    client = default_client_or_none()
    if client is None or not process.may_use(client):
        return None
    if client.asynchronous:
        raise InputError(
            "the Dask client is asynchronous, and dkrr would wait for it in the thread of its event loop, for ever; "
            "expected a synchronous client, or another thread: await asyncio.to_thread(model.fit, X, y)"
        )
    return client


def default_client_or_none() -> Client | None:
    """Client that Dask would use, in whatever state it is."""
    try:
        return Client.current()
    except ValueError:
        return None


def connect(address: str, timeout: str = "10s") -> Client:
    """Connect to a running scheduler; the client becomes the ambient one.

    Raises
    ------
    InputError
        If no scheduler answers within `timeout`, or certificates are missing.
    """
    needed = [dask.config.get(f"distributed.comm.tls.{name}", None) for name in ("ca-file", "client.cert")]
    if address.startswith("tls://") and not all(needed):
        raise InputError(
            f"the Dask scheduler at {address} asks for certificates, and there are no certificates of a client; "
            f"expected files of them in Dask's configuration, under distributed.comm.tls: ca-file, client.cert and "
            f"client.key"
        )
    before = default_client_or_none()
    try:
        resolve_address(address)  # a client that fails at this stays the ambient one
        return Client(address, timeout=timeout)
    except (OSError, ValueError, MemoryError) as error:  # what is not a scheduler may answer with any length
        failed = default_client_or_none()
        if failed is not None and failed is not before:
            failed.close(timeout=1)
        raise InputError(
            f"no Dask scheduler answers at {address}: {error}; expected the address of a running one: start it, or "
            f"give another"
        ) from error


class StageEvents(Progress):
    """Tells a client's scheduler of every stage that has ended, by an event of the topic ``dkrr``.

    ``client.get_events("dkrr")`` has them, each a dict with ``fit`` (the same for all stages of a fit), ``problem``,
    ``stage``, ``seconds`` and ``failed``. A fit does not wait for them, and does not depend on them.

    Parameters
    ----------
    client : distributed.Client
    problem : str
        What is fitted, in words.
    """

    def __init__(self, client: Client, problem: str) -> None:
        super().__init__()
        self._client, self._what = client, {"fit": uuid.uuid4().hex, "problem": problem}

    def begin(self, name: str, total: float, done: float) -> None:
        self._stage = OpenStage(name, total, done)

    def end(self, *, failed: bool) -> None:
        event = {**self._what, "stage": self._stage.name, "seconds": self._stage.elapsed, "failed": failed}
        self._client.loop.add_callback(self._send, event)

    async def _send(self, event: dict[str, Any]) -> None:
        # The fit has an error of its own for a lost scheduler, whose client has None in its place.
        with suppress(*CANCELLED, OSError, RuntimeError, AttributeError):
            await self._client.scheduler.log_event(topic=TOPIC, msg=event)


def check_folder_is_shared(client: Client, folder: Path) -> None:
    """Refuse before work starts if some worker does not see what this process has just written to a folder.

    Raises
    ------
    StoreError
        Naming the workers; or if nothing can be written there.
    """
    probe = folder / f".dkrr-{uuid.uuid4().hex}"
    with faults_of(f"write to {folder}"):
        probe.touch(exist_ok=False)
        try:
            check_path_is_shared(client, probe, f"the store's folder {folder}")
        finally:
            delete_file(probe)


def check_path_is_shared(client: Client, path: Path, what: str) -> None:
    """Refuse before work starts if some worker does not see a path that this process sees.

    Raises
    ------
    StoreError
        Naming the workers.
    """
    seen = Watch(client).on_all_workers(os.path.exists, str(path))
    blind = [address for address, sees in seen.items() if not sees]
    if blind:
        raise StoreError(
            f"the workers {', '.join(blind)} do not see {what}. Every worker must reach X and the store: put them on a "
            f"shared file system or an object store (store=, or dkrr.temporary-directory in Dask's configuration)"
        )


def on_every_worker(client: Client, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run a function on a thread of every worker, all at the same time; results in the order of their addresses."""
    addresses = _addresses(client)
    futures = [client.submit(function, *arguments, workers=[address], pure=False) for address in addresses]
    return list(Watch(client).call(client.gather, futures, needs=addresses))


def _addresses(client: Client) -> list[str]:
    return sorted(_workers(client))


def _workers(client: Client) -> dict[str, Any]:
    """Scheduler's reports of all workers, by address; waits for the first of a cluster that has none yet."""
    watch = Watch(client, begins=True)
    try:
        # An adaptive cluster may have started one and stopped it again.
        while not (found := client.scheduler_info(n_workers=-1)["workers"]):
            watch.wait_for_workers()
    except (*CANCELLED, OSError, RuntimeError, AttributeError, KeyError):
        watch.refuse_a_lost_scheduler()
        raise
    return dict(found)


@dataclass(frozen=True)
class Held:
    """Most that a worker holds before its first task, in bytes."""

    environment: int
    """Bytes with the libraries that every fit needs."""
    ready: int
    """Bytes with those of the fit's kernel and store as well."""


def held_when_ready(watch: Watch, kernel: Any, urls: Sequence[str], modules: Sequence[str]) -> Held:
    """Let every worker import what its tasks need, and ask what it holds then.

    Parameters
    ----------
    watch : Watch
        Of the client.
    kernel : Kernel
        A user's own may import a library.
    urls : sequence of str
        Stores that tasks will open; those of another machine need libraries of their own.
    modules : sequence of str
        Modules that tasks will need.
    """
    # As bytes, which the worker turns into a kernel after it has measured itself.
    held = watch.on_all_workers(_prepare, dumps(kernel), list(urls), list(modules))
    environments, ready = zip(*held.values(), strict=True)
    return Held(max(environments), max(ready))


async def _prepare(kernel: bytes, urls: list[str], modules: list[str]) -> tuple[int, int]:
    return await asyncio.to_thread(_held, kernel, urls, modules)  # the worker's event loop is not blocked


def _held(kernel: bytes, urls: list[str], modules: list[str]) -> tuple[int, int]:
    for name in modules:
        importlib.import_module(name)
    this = psutil.Process()
    environment = this.memory_info().rss
    loads(kernel)
    for url in urls:
        zarr_store(url)
    return environment, this.memory_info().rss


@dataclass(frozen=True)
class WorkerInfo:
    """Report of a worker of a running cluster."""

    host: str
    n_threads: int
    memory_limit: int
    """Bytes; 0: no limit."""
    resident_bytes: int
    """Memory that its process holds now."""


def worker_resources(client: Client) -> list[WorkerInfo]:
    """Report of every worker; waits for the first of a cluster that has none yet."""
    workers = _workers(client)
    # The scheduler knows what a worker held some seconds ago.
    held = Watch(client).on_all_workers(_resident)
    return [
        WorkerInfo(
            w["host"], w["nthreads"], w["memory_limit"] or 0, held.get(address, int(w["metrics"].get("memory", 0)))
        )
        for address, w in workers.items()
    ]


async def _resident() -> int:
    """Memory of a worker, asked in its event loop: its threads may be busy for long."""
    return int(psutil.Process().memory_info().rss)
