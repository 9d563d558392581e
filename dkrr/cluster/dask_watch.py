"""Waiting for a Dask cluster, without waiting for ever: its scheduler may be lost, and all its workers.

Dask's client is silent about both: futures are cancelled without a reason when the scheduler is lost, and wait until
there are workers again. Workers do come back where the cluster replaces them (adaptive clusters, `--lifetime` with
`--lifetime-restart`, spot instances), so dkrr says that it waits, and waits for a time that users may set.
"""

import asyncio
import inspect
import logging
import threading
import time
import uuid
from asyncio import CancelledError
from collections.abc import Callable, Collection
from concurrent.futures import CancelledError as FutureOfLoopCancelledError
from typing import Any

from distributed import Client
from distributed.client import FutureCancelledError

from dkrr.cluster.local_workers import how_it_ended
from dkrr.config import setting
from dkrr.errors import ClusterError, DkrrError
from dkrr.units import format_seconds

logger = logging.getLogger(__name__)

ASK_SECONDS = 1.0
"""Seconds of waiting between two questions for the scheduler and the workers."""
NOTICE_SECONDS = 1.0
"""Seconds within which a client notices that the connection to its scheduler was lost."""
MAX_ATTEMPTS = 4
"""Times that a function is sent to all workers when some are lost."""

CANCELLED = (CancelledError, FutureCancelledError, FutureOfLoopCancelledError)
"""What waiting raises if the scheduler cancels what is waited for, or is lost."""

KEPT = "What is finished is kept in a given store"


def nothing() -> None:
    """Task: nothing. An adaptive cluster without workers starts some only if a task waits."""


class Watch:
    """Scheduler and workers of a client, looked at while this process waits for them.

    Parameters
    ----------
    client : distributed.Client
    ended : callable, optional
        Returns the exit status of the process with the scheduler; None if it still runs after so many seconds.
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
        self._without_since: float | None = None
        self._waiting: Any = None
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End the waiting of another thread, with CancelledError there."""
        self._stopped.set()

    def call(self, method: Callable[..., Any], *arguments: Any, needs: Collection[str] = (), **options: Any) -> Any:
        """Result of a method of the client.

        Parameters
        ----------
        method : callable
        *arguments, **options
        needs : collection of str, optional
            Addresses of the workers without which there would be no result.

        Raises
        ------
        ClusterError
            If the scheduler, or a worker that is needed, is lost, or all workers are lost for too long.
        """

        async def awaited() -> Any:
            found = method(*arguments, **options)  # in the client's event loop, where it does not wait
            return await found if inspect.isawaitable(found) else found

        try:
            result = asyncio.run_coroutine_threadsafe(awaited(), self.client.loop.asyncio_loop)
            try:
                while True:
                    try:
                        value = result.result(ASK_SECONDS)
                    except TimeoutError:
                        if result.done():
                            raise
                        self.look(needs)
                    else:
                        self._look_again()
                        return value
            finally:
                result.cancel()
        except (*CANCELLED, OSError, RuntimeError, AttributeError):
            # A client that has lost its scheduler has None in its place, and raises AttributeError.
            self.refuse_a_lost_scheduler()
            raise

    def next(self, completed: Any) -> tuple[Any, Any]:
        """Next future and its result of `distributed.as_completed`; raises as `call` does."""
        asked_at = time.monotonic()
        while not completed.has_ready():
            with completed.thread_condition:
                completed.thread_condition.wait(0.1)
            if time.monotonic() > asked_at + ASK_SECONDS:
                self.look()
                asked_at = time.monotonic()
        found: tuple[Any, Any] = next(completed)
        self._look_again()
        return found

    def on_all_workers(self, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        """Results of a function that is run beside the tasks of all workers, by address; there is at least one.

        It is called again on all of them if one is lost meanwhile.
        """
        for attempt in range(MAX_ATTEMPTS):
            self.wait_for_workers()
            try:
                results: dict[str, Any] = self.call(self.client.run, function, *arguments)
            except OSError as error:
                if isinstance(error, DkrrError) or attempt == MAX_ATTEMPTS - 1:
                    raise
                time.sleep(0.5)  # its loss becomes known
                continue
            if results:
                return results
        raise ClusterError(f"workers were lost {MAX_ATTEMPTS} times while they were asked. {self._advice()}")

    def wait_for_workers(self) -> dict[str, int]:
        """Threads of every worker, once there is one."""
        while True:
            threads = self.look()
            if threads:
                return threads
            self._stopped.wait(0.2)

    def look(self, needs: Collection[str] = ()) -> dict[str, int]:
        """Threads of every worker; raises as `call` does."""
        if self._stopped.is_set():
            raise CancelledError
        self.refuse_a_lost_scheduler(0.0)  # the client would try to connect to it for its whole timeout
        try:
            threads: dict[str, int] = self.client.nthreads()
        except (*CANCELLED, OSError, RuntimeError, AttributeError):
            self.refuse_a_lost_scheduler()
            raise
        lost = sorted(set(needs) - set(threads))
        if lost:
            raise ClusterError(f"the workers {', '.join(lost)} were lost while dkrr waited for them. {self._advice()}")
        if threads:
            self._found_workers()
        else:
            self._found_none()
        return threads

    def _look_again(self) -> None:
        """Note that workers are back, where there were none when they were last looked at."""
        if self._without_since is not None and self.client.nthreads():
            self._found_workers()

    def _found_workers(self) -> None:
        if self._without_since is not None:
            again = "" if self._begins else " again"
            logger.warning("the Dask cluster has workers%s, after %s", again, format_seconds(self._without()))
        self._without_since = self._waiting = None

    def _found_none(self) -> None:
        seconds = setting("wait-for-workers-seconds")
        if self._without_since is None:
            self._without_since = time.monotonic()
            self._waiting = self.client.submit(nothing, key=f"dkrr-wait-{uuid.uuid4().hex}", pure=False)
            logger.warning(
                "the Dask cluster %s (dkrr.wait-for-workers-seconds in Dask's configuration)",
                (
                    "has no workers yet; dkrr waits {} for the first"
                    if self._begins
                    else "has lost all workers; the fit waits {} for new ones"
                ).format("without a limit" if seconds is None else f"{seconds:g} s"),
            )
        if seconds is None or self._without() <= seconds:
            return
        within = f"within {seconds:g} s (dkrr.wait-for-workers-seconds in Dask's configuration)"
        if self._begins:
            raise ClusterError(
                f"the Dask cluster has no workers, and none started {within}; expected at least 1: start workers "
                f"(cluster.scale, dask worker), or close the client and work on this machine. Nothing was computed"
            )
        raise ClusterError(
            f"all workers of the Dask cluster were lost, and none came back {within}{self._known_of_memory()}. "
            f"{self._advice()}"
        )

    def _without(self) -> float:
        return 0.0 if self._without_since is None else time.monotonic() - self._without_since

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
                    f"{how_it_ended(status)}{self._known_of_memory()}. {KEPT}: run again with the same store=, with "
                    f"another memory_limit or fewer workers if memory was short"
                )
        elif self._is_disconnected(seconds):
            raise ClusterError(
                f"the Dask scheduler at {self._address()} is lost: it ended, or the connection to it did. {KEPT}: "
                f"start the cluster again, and run again with the same store= and a new client"
            )

    def _is_disconnected(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.client.status == "running":
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def _address(self) -> str:
        return str(getattr(self.client, "_start_arg", None) or "its address")

    def _advice(self) -> str:
        return f"{KEPT}: run again with the same store= once there are workers, with larger ones if memory was short"
