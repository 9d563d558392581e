"""Clients of Dask: what their workers have, hold and see, and waiting for them, but not forever.

Dask's client says neither that its scheduler is lost nor that all workers are: futures are cancelled without a reason
when the scheduler is lost, and wait until there are workers again. Workers do come back where the cluster replaces them
(adaptive clusters, `--lifetime` with `--lifetime-restart`, spot instances), so dkrr says that it waits, and waits for a
time that users may set.
"""

import asyncio
import importlib
import inspect
import logging
import os
import threading
import time
import uuid
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError as FutureOfLoopCancelledError
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from pathlib import Path
from platform import node
from typing import Any

import dask
import psutil
from distributed import Client
from distributed.client import FutureCancelledError
from distributed.comm import resolve_address
from distributed.protocol.pickle import dumps, loads
from distributed.security import Security

from dkrr.cluster.local_workers import how_it_ended
from dkrr.cluster.process import current_client
from dkrr.cluster.progress import Progress
from dkrr.cluster.worker_settings import WorkerReport, report
from dkrr.config import setting
from dkrr.errors import ClusterError, DkrrError, InputError, StoreError, UnreachableStoreError
from dkrr.store.paths import faults_of
from dkrr.store.replacing import delete_file
from dkrr.store.zarr_arrays import zarr_store
from dkrr.text import format_seconds

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""Seconds between two questions for the scheduler and the workers."""
NOTICE_SECONDS = 1.0
"""Seconds within which a client notices that the connection to its scheduler was lost."""
MAX_SUBMISSIONS = 4
"""Times that a function or a pass of tasks is sent to all workers when some are lost."""

LOST_SCHEDULER_ERRORS = (CancelledError, FutureCancelledError, FutureOfLoopCancelledError)
"""Errors of waiting for a future that the scheduler cancels, or whose scheduler is lost."""

LOST = (*LOST_SCHEDULER_ERRORS, OSError, RuntimeError, AttributeError)
"""Errors of a client whose scheduler is lost; AttributeError, since it has None in place of the scheduler."""

CONFIGURED = "(dkrr.wait-for-workers-seconds in Dask's configuration)"
WORK_IS_KEPT = "What is finished is kept in a given store"
RESUME_ADVICE = (
    f"{WORK_IS_KEPT}: run again with the same store= once there are workers, with larger ones if memory was short"
)


class SchedulerWatch:
    """Scheduler and workers of a client, looked at while this process waits for them.

    Parameters
    ----------
    client : distributed.Client
    ended : callable, optional
        Returns the exit status of the process with the scheduler; None if it still runs after that time.
    known_of_memory : callable, optional
        Returns words for the workers' memory, in brackets, for errors.
    begins : bool, default=False
        Whether no work has begun: a cluster without workers has not lost them, but may not have started any yet.
    """

    def __init__(
        self,
        client: Client,
        ended: Callable[[float], int | None] | None = None,
        known_of_memory: Callable[[], str] = str,
        *,
        begins: bool = False,
    ) -> None:
        self.client, self._ended, self._known_of_memory, self._begins = client, ended, known_of_memory, begins
        self._address = getattr(client.scheduler, "address", None) or "its address"  # none once it is lost
        self._without_since: float | None = None
        self._waiting: Any = None
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End the waiting of another thread, with CancelledError there."""
        self._stopped.set()

    def call(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Result of a method of the client.

        Raises
        ------
        ClusterError
            If the scheduler is lost, or all workers are for too long.
        """

        async def awaited() -> Any:
            found = method(*arguments, **options)  # in the client's event loop, where it does not wait
            return await found if inspect.isawaitable(found) else found

        with self.noticing_a_lost_scheduler():
            result = asyncio.run_coroutine_threadsafe(awaited(), self.client.loop.asyncio_loop)
            try:
                while not wait([result], POLL_SECONDS).done:
                    self.look()
                if self._without_since is not None and self.client.nthreads():
                    self.look()  # there were none when they were last looked at
                return result.result()
            finally:
                result.cancel()

    @contextmanager
    def noticing_a_lost_scheduler(self) -> Iterator[None]:
        """Say that the scheduler is lost where Dask raises something else in a block."""
        try:
            yield
        except LOST:
            self.refuse_a_lost_scheduler()
            raise

    def on_all_workers(self, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        """Results of a function that is run beside the tasks of all workers, by address; there is at least one.

        It is called again on all of them if one is lost meanwhile.
        """
        for attempt in range(MAX_SUBMISSIONS):
            self.wait_for_workers()
            try:
                results: dict[str, Any] = self.call(self.client.run, function, *arguments)
            except OSError as error:
                if isinstance(error, DkrrError) or attempt == MAX_SUBMISSIONS - 1:
                    raise
                time.sleep(0.5)  # its loss becomes known
                continue
            if results:
                return results
        raise ClusterError(f"workers were lost {MAX_SUBMISSIONS} times while they were asked. {RESUME_ADVICE}")

    def wait_for_workers(self) -> dict[str, int]:
        """Threads of every worker, once there is one."""
        while True:
            threads = self.look()
            if threads:
                return threads
            self._stopped.wait(0.2)

    def look(self) -> dict[str, int]:
        """Threads of every worker; raises as `call` does."""
        if self._stopped.is_set():
            raise CancelledError
        self.refuse_a_lost_scheduler(0.0)  # the client would try to connect to it for its whole timeout
        with self.noticing_a_lost_scheduler():
            threads: dict[str, int] = self.client.nthreads()
        if not threads:
            self._wait_without_workers()
        elif self._without_since is not None:
            again, passed = "" if self._begins else " again", format_seconds(time.monotonic() - self._without_since)
            logger.warning("the Dask cluster has workers%s, after %s", again, passed)
            self._without_since = self._waiting = None
        return threads

    def _wait_without_workers(self) -> None:
        seconds = setting("wait-for-workers-seconds")
        if self._without_since is None:
            self._without_since = time.monotonic()
            # An adaptive cluster without workers starts some only if a task waits.
            self._waiting = self.client.submit(int, key=f"dkrr-wait-{uuid.uuid4().hex}", pure=False)
            limit = "without a limit" if seconds is None else f"{seconds:g} s"
            said = (
                f"has no workers yet; dkrr waits {limit} for the first"
                if self._begins
                else f"has lost all workers; the fit waits {limit} for new ones"
            )
            logger.warning("the Dask cluster %s %s", said, CONFIGURED)
        if seconds is None or time.monotonic() - self._without_since <= seconds:
            return
        within = f"within {seconds:g} s {CONFIGURED}"
        if self._begins:
            raise ClusterError(
                f"the Dask cluster has no workers, and none started {within}; expected at least 1: start workers "
                f"(cluster.scale, dask worker), or close the client and work on this machine. Nothing was computed"
            )
        raise ClusterError(
            f"all workers of the Dask cluster were lost, and none came back {within}{self._known_of_memory()}. "
            f"{RESUME_ADVICE}"
        )

    def refuse_a_lost_scheduler(self, seconds: float = NOTICE_SECONDS) -> None:
        """Raise ClusterError if the scheduler is lost: then nothing comes back, whatever the workers do.

        Parameters
        ----------
        seconds : float, optional
            Time given to its end, or to the end of the connection, to be noticed.
        """
        if self._ended is not None:
            status = self._ended(seconds)
            if status is not None:
                raise ClusterError(
                    f"{how_it_ended(status)}{self._known_of_memory()}. {WORK_IS_KEPT}: run again with the same store=, "
                    f"with another memory_limit or fewer workers if memory was short"
                )
        elif self._is_disconnected(seconds):
            raise ClusterError(
                f"the Dask scheduler at {self._address} is lost: it ended, or the connection to it did. "
                f"{WORK_IS_KEPT}: start the cluster again, and run again with the same store= and a new client"
            )

    def _is_disconnected(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.client.status == "running":
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


TOPIC = "dkrr"
"""Topic of the events of stages on Dask's scheduler."""


def connect(address: str, timeout: str = "10s") -> Client:
    """Connect to a running scheduler; the client becomes the ambient one.

    Raises
    ------
    ClusterError
        If no scheduler answers within `timeout`.
    InputError
        If the address is not that of a scheduler, or certificates or encryption are missing.
    """
    needed = [dask.config.get(f"distributed.comm.tls.{name}", None) for name in ("ca-file", "client.cert")]
    if address.startswith("tls://") and not all(needed):
        raise InputError(
            f"the Dask scheduler at {address} asks for certificates, and there are no certificates of a client; "
            f"expected files of them in Dask's configuration, under distributed.comm.tls: ca-file, client.cert and "
            f"client.key"
        )
    scheme, _, place = address.rpartition("://")
    if scheme in ("", "tcp") and dask.config.get("distributed.comm.require-encryption", None):
        raise InputError(
            f"the scheduler's address is {address}, but Dask's configuration asks for encryption "
            f"(distributed.comm.require-encryption); expected tls://{place}"
        )
    try:
        Security().get_connection_args("client")
    except OSError as error:  # as those of SSL are
        raise InputError(
            f"the certificates of a client cannot be read: {error}; expected files of them in Dask's configuration, "
            f"under distributed.comm.tls: ca-file, client.cert and client.key"
        ) from error
    before = current_client()
    try:
        resolve_address(address)  # a client that fails at this stays the ambient one
        return Client(address, timeout=timeout)
    except (OSError, ValueError, MemoryError) as error:  # what is not a scheduler may answer with any length
        failed = current_client()
        if failed is not None and failed is not before:
            failed.close(timeout=1)
        kind = ClusterError if isinstance(error, OSError) else InputError
        raise kind(
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

    def begin(self, name: str, total: float, done: float) -> None:  # noqa: ARG002
        self._stage, self._began = name, time.monotonic()

    def end(self, *, failed: bool) -> None:
        event = {**self._what, "stage": self._stage, "seconds": time.monotonic() - self._began, "failed": failed}
        self._client.loop.add_callback(self._send, event)

    async def _send(self, event: dict[str, Any]) -> None:
        with suppress(*LOST):  # the fit has its own error for a lost scheduler
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


def workers_without(client: Client, path: Path) -> list[str]:
    """Addresses of the workers that do not see a path that this process sees."""
    seen = SchedulerWatch(client).on_all_workers(os.path.exists, str(path))
    return [address for address, sees in seen.items() if not sees]


def check_path_is_shared(client: Client, path: Path, what: str) -> None:
    """Refuse before work starts if a worker cannot reach a path that this process reaches.

    Raises
    ------
    StoreError
        Naming the workers.
    """
    blind = workers_without(client, path)
    if blind:
        raise StoreError(
            f"the workers {', '.join(blind)} cannot reach {what}. Every worker must reach X and the store: put them on "
            f"a shared file system or an object store (store=, or dkrr.temporary-directory in Dask's configuration)"
        )


async def in_a_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Result of a function that may take long, beside a worker's tasks: its event loop is not blocked."""
    return await asyncio.to_thread(function, *arguments)


def on_every_worker(client: Client, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run a function in a thread of every worker, all at the same time; results in the order of their addresses."""
    found = SchedulerWatch(client).on_all_workers(in_a_thread, function, *arguments)
    return [found[address] for address in sorted(found)]


def worker_reports(client: Client) -> list[WorkerReport]:
    """Report of every worker; waits for the first of a cluster that has none yet."""
    return list(SchedulerWatch(client, begins=True).on_all_workers(report).values())


def worker_baseline_bytes(watch: SchedulerWatch, kernel: Any, urls: Sequence[str], modules: Sequence[str]) -> int:
    """Let every worker import what its tasks need; the most that one then holds before its first task, in bytes.

    Parameters
    ----------
    watch : SchedulerWatch
        Of the client.
    kernel : Kernel
        A user's own may import a library.
    urls : sequence of str
        Stores that tasks will open; those of another machine need their own libraries.
    modules : sequence of str
        Modules that tasks will need.
    """
    # As bytes, which the thread turns into a kernel: that may import for long.
    held = watch.on_all_workers(in_a_thread, _prepare, dumps(kernel), list(urls), list(modules))
    return int(max(held.values()))


def _prepare(kernel: bytes, urls: list[str], modules: list[str]) -> int:
    for name in modules:
        importlib.import_module(name)
    loads(kernel)
    for url in urls:
        try:
            zarr_store(url)
        except UnreachableStoreError as error:  # by the environment or the network there: those here are different
            raise UnreachableStoreError(f"a worker on {node()} {error}", is_transient=error.is_transient) from error
    return int(psutil.Process().memory_info().rss)
