"""Progress of a fit on a user's cluster, which sends its state to the page on the scheduler (`dkrr.dashboard`).

A coroutine in the client's event loop sends the last state, once in `SEND_SECONDS` at most, so that the fit itself
never waits for the scheduler, but for a moment at its end.
"""

import asyncio
import logging
import math
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from dkrr.dashboard.maps import Points, TilesInMemory, TilesOfWork, TileStates
from dkrr.dashboard.page import PATH, add_page
from dkrr.dashboard.states import (
    COMPLETE,
    FAILED,
    MAX_CURVES,
    MAX_LINES,
    MAX_NOTES,
    MAX_TEXT,
    RUNNING_FIT,
    TOPIC,
    Curve,
    FitState,
)
from dkrr.errors import ClusterError
from dkrr.runtime.dask_watch import Watch
from dkrr.runtime.progress import OpenStage, Progress
from dkrr.tiles.owner import this_owner

logger = logging.getLogger(__name__)

SEND_SECONDS = 1.0
"""Shortest time between two states."""
REPEAT_SECONDS = 30.0
"""Longest time: the scheduler forgets old events where other fits send many."""
LAST_SECONDS = 2.0
"""Longest time that the end of a fit waits until its last state has been sent."""

Tile = tuple[int, int]

_pages: WeakKeyDictionary[Any, str | None] = WeakKeyDictionary()
"""Address of the page of each client's scheduler; None if it has none."""


class Outline(NamedTuple):
    """What is known of a fit before it begins."""

    title: str
    how: str
    planned: Mapping[str, float]
    """Seconds of every stage."""


@contextmanager
def followed(shown: Progress, client: Any, outline: Outline) -> Iterator[Progress]:
    """Display that shows the same, and sends it to the page on the client's scheduler, if there can be one.

    Parameters
    ----------
    shown : Progress
    client : distributed.Client
    outline : Outline
    """
    address = page_of(client)
    if address is None:
        yield shown
        return
    shown.note(f"Dask's dashboard: {address}")
    progress = FollowedProgress(shown, client.id, outline)
    sender = _Sender(client, progress)
    try:
        yield progress
    except BaseException as error:
        progress.finish(f"{type(error).__name__}: {error}")
        raise
    else:
        progress.finish("")
    finally:
        sender.close()


def page_of(client: Any) -> str | None:
    """Address of the page on a client's scheduler, which is added to it; None where that is impossible."""
    if client not in _pages:
        _pages[client] = _added_page(client)
    return _pages[client]


def _added_page(client: Any) -> str | None:
    try:
        has_page = Watch(client).call(client.run_on_scheduler, add_page)
    except ClusterError:
        raise
    except Exception as error:
        # The scheduler may have another environment, or refuse functions: nothing that a fit depends on.
        logger.info(
            "no page of dkrr on Dask's dashboard: the scheduler cannot add it (%s: %s)", type(error).__name__, error
        )
        return None
    link = client.dashboard_link
    if not has_page or link is None:
        logger.info("no page of dkrr on Dask's dashboard: the scheduler's HTTP pages are off")
        return None
    return f"{str(link).removesuffix('/').removesuffix('/status')}{PATH}"


class FollowedProgress(Progress):
    """Display that passes on what it shows, and keeps what the page shows.

    Parameters
    ----------
    shown : Progress
        Display of the calling process.
    client : str
        Dask's name of the client.
    outline : Outline
    """

    def __init__(self, shown: Progress, client: str, outline: Outline) -> None:
        super().__init__()
        self._shown, self._client, self._outline = shown, client, outline
        self._seconds = shown._seconds  # one account of the time
        self._fit, self._began, self._lock = uuid.uuid4().hex, time.monotonic(), Lock()
        owner = this_owner()
        self._who = f"{owner.user}@{owner.host}"
        self._status, self._message, self._ended = RUNNING_FIT, "", math.nan
        self._stage: OpenStage | None = None
        self._last = ("", 0.0)
        self._map: TileStates | None = None
        self._curves: dict[str, Points] = {}
        self._notes: list[str] = []
        self.n_changes = 0

    def begin(self, name: str, total: float, done: float) -> None:
        self._shown.begin(name, total, done)
        self._stage = OpenStage(name, total, done)
        self.n_changes += 1

    def advance(self, flops: float) -> None:
        self._shown.advance(flops)
        if self._stage is not None:
            self._stage.done += flops
        self.n_changes += 1

    def end(self, *, failed: bool) -> None:
        self._shown.end(failed=failed)
        if self._stage is not None:
            self._last = (self._stage.name, self._stage.fraction if failed else 1.0)
        self._stage = None
        self.n_changes += 1

    def note(self, message: str) -> None:
        self._shown.note(message)
        self._notes = [*self._notes, message[:MAX_TEXT]][-MAX_NOTES:]
        self.n_changes += 1

    def tiles(self, n_tasks: Mapping[Tile, int]) -> None:
        self._shown.tiles(n_tasks)
        if n_tasks:
            name = self._stage.name if self._stage is not None else ""
            with self._lock:
                self._map = TilesOfWork(name, n_tasks)

    def tile(self, tile: Tile, *, is_done: bool) -> None:
        self._shown.tile(tile, is_done=is_done)
        with self._lock:
            if isinstance(self._map, TilesOfWork):
                self._map.note(tile, is_done=is_done)
        self.n_changes += 1

    def kept(self, places: Mapping[Tile, int | None]) -> None:
        self._shown.kept(places)
        with self._lock:
            self._map = TilesInMemory(places)
        self.n_changes += 1

    def iterated(self, method: str, step: int, value: float, tol: float, *, is_true: bool = True) -> None:
        self._shown.iterated(method, step, value, tol, is_true=is_true)
        if math.isfinite(value) and value > 0:
            with self._lock:
                if method not in self._curves and len(self._curves) < MAX_CURVES:
                    self._curves[method] = Points(tol)
                if method in self._curves:
                    self._curves[method].add(step, value, tol, is_true=is_true)
        self.n_changes += 1

    def finish(self, error: str) -> None:
        """Note that the fit has ended, by an error unless it is empty."""
        self._status, self._message = (FAILED if error else COMPLETE), error[:MAX_TEXT]
        self._ended = time.monotonic()
        with self._lock:
            if isinstance(self._map, TilesOfWork):
                self._map.stop()
        self.n_changes += 1

    def state(self) -> FitState:
        """State now; called in another thread than the fit's."""
        stage, seconds = self._stage, dict(self._seconds)
        name, share = self._last if stage is None else (stage.name, stage.fraction)
        left = -1.0 if stage is None or math.isnan(stage.left) else stage.left
        if stage is not None:
            plain = name.split(", ")[0]
            seconds[plain] = seconds.get(plain, 0.0) + stage.elapsed
        planned = self._outline.planned
        with self._lock:
            tiles = None if self._map is None else self._map.tiles()
            curves = [Curve(method, one.tol, one.thinned()) for method, one in self._curves.items()]
        now = time.monotonic() if math.isnan(self._ended) else self._ended
        return FitState(
            fit=self._fit,
            client=self._client,
            who=self._who,
            title=self._outline.title[:MAX_TEXT],
            how=self._outline.how[:MAX_TEXT],
            status=self._status,
            message=self._message,
            seconds=now - self._began,
            planned=sum(planned.values()),
            stage=name,
            share=share,
            left=left,
            stages=[
                [k, planned.get(k, 0.0), seconds.get(k, 0.0)] for k in [*planned, *(seconds.keys() - planned.keys())]
            ][:MAX_LINES],
            tiles=tiles,
            curves=curves,
            notes=self._notes,
        )


class _Sender:
    """Sends the states of a fit from the client's event loop, until it is closed.

    Parameters
    ----------
    client : distributed.Client
    progress : FollowedProgress
    """

    def __init__(self, client: Any, progress: FollowedProgress) -> None:
        self._client, self._progress, self._ending = client, progress, asyncio.Event()
        self._loop = client.loop.asyncio_loop
        self._sending = asyncio.run_coroutine_threadsafe(self._send(), self._loop)

    def close(self) -> None:
        """Send the last state, and end."""
        with suppress(RuntimeError):  # the loop is closed: the client was
            self._loop.call_soon_threadsafe(self._ending.set)
        try:
            self._sending.result(LAST_SECONDS)
        except Exception as error:
            # The fit has its own errors for a lost scheduler; the page is only a view.
            logger.debug("the last state was not sent to Dask's dashboard: %s: %s", type(error).__name__, error)
            self._sending.cancel()

    async def _send(self) -> None:
        sent, sent_at = -1, 0.0
        while True:
            is_last, n_changes, now = self._ending.is_set(), self._progress.n_changes, time.monotonic()
            if is_last or n_changes != sent or now > sent_at + REPEAT_SECONDS:
                sent, sent_at = n_changes, now
                await self._client.scheduler.log_event(topic=TOPIC, msg=self._progress.state().plain())
            if is_last:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), SEND_SECONDS)
