"""Tasks on a cluster, event by event: who runs what when, what the store must deliver, what a lost worker costs.

The tasks, what they wait for and their priorities are those of the real graph (``tile_steps``); the driver is that of
``runtime.dask_executor``: a window of tasks on the scheduler, filled from a ready queue whenever the client hears that
a task is done. A task holds one core for its own time, and no shorter than the store takes to move its bytes, which
are read ahead and written behind. The store serves all transfers alike (processor sharing). What is finished lies in
the store, so a lost worker takes with it only what it was doing.
"""

import heapq
import math
import random
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, Self

from dkrr.errors import PlanError

Queue = Literal["submission", "priority"]
"""Order of the tasks on the scheduler: Dask's own rule among equals, or our priorities."""
PEAK_FRACTION = 100
"""The peak bandwidth is the mean over the busiest one in this many equal parts of the time."""


class Step(Protocol):
    """What a simulation reads of a task; `linalg.cholesky.TileStep` and `runtime.Task` have it."""

    @property
    def key(self) -> str:
        """Name of the task."""

    @property
    def depends(self) -> tuple[str, ...]:
        """Names of the tasks before it."""

    @property
    def priority(self) -> tuple[int, ...]:
        """Of the tasks that are ready, the smallest goes first."""


@dataclass(frozen=True, slots=True)
class TaskWork:
    """What one task takes on a core that waits for nobody."""

    seconds: float
    read_bytes: float = 0.0
    written_bytes: float = 0.0


@dataclass(frozen=True)
class TaskGraph:
    """Tasks by number."""

    followers: tuple[tuple[int, ...], ...]
    """Of each task: those that wait for it."""
    n_before: tuple[int, ...]
    """Of each task: how many it waits for."""
    rank: tuple[int, ...]
    """Of each task: its place in the order of priority, and of the list where priorities are equal."""

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Self:
        """Graph of these tasks; what none of them is called counts as done, as for an executor."""
        number = {step.key: k for k, step in enumerate(steps)}
        followers: list[list[int]] = [[] for _ in steps]
        n_before = []
        for k, step in enumerate(steps):
            before = [number[key] for key in dict.fromkeys(step.depends) if key in number]
            n_before.append(len(before))
            for b in before:
                followers[b].append(k)
        priorities = [step.priority for step in steps]
        rank = [0] * len(priorities)
        for place, k in enumerate(sorted(range(len(priorities)), key=priorities.__getitem__)):
            rank[k] = place
        return cls(tuple(map(tuple, followers)), tuple(n_before), tuple(rank))


@dataclass(frozen=True)
class Cluster:
    """Workers, the driver that feeds them, and the store that they share."""

    workers: int
    """Processes."""
    threads: int = 1
    """Tasks that run at once in one process."""
    window_per_thread: int = 2
    """Tasks on the scheduler for each thread (``dask_executor.WINDOW_PER_THREAD``)."""
    queue: Queue = "submission"
    """Which of the tasks on the scheduler goes first."""
    round_trip_seconds: float = 0.010
    """From the end of a task to the submission of those it made ready: the client sends every 10 ms."""
    scheduler_seconds: float = 0.001
    """Of the scheduler for each task; it serves one after another (Dask's own figure: about 1 ms)."""
    store_read_bytes: float = math.inf
    """Bytes per second that the store delivers to all workers together."""
    store_write_bytes: float = math.inf
    worker_read_bytes: float = math.inf
    """Bytes per second that one thread gets at most from the store beside its computing (a network)."""
    worker_write_bytes: float = math.inf
    straggler_sigma: float = 0.0
    """A task takes exp(σ|z|) times its work, z standard normal: the slow half of a lognormal distribution."""
    slow_share: float = 0.0
    """Probability that a worker is a slow one."""
    slow_factor: float = 1.0
    """Time of a task on a slow worker over that on another."""
    losses_per_worker_hour: float = 0.0
    """Rate of the Poisson process that takes workers away."""
    replacement_seconds: float | None = None
    """From the loss of a worker to its successor; None: it has none."""
    start_seconds: float = 0.0
    """Until the first worker is there."""
    start_spread_seconds: float = 0.0
    """From the first worker to the last; they come evenly."""
    random_state: int = 0

    @classmethod
    def ideal(cls, slots: int) -> Self:
        """List scheduling: whoever is free takes the best of the tasks that are ready, at once."""
        return cls(slots, window_per_thread=1, round_trip_seconds=0.0, scheduler_seconds=0.0)

    @property
    def slots(self) -> int:
        """Tasks that run at once."""
        return self.workers * self.threads


@dataclass(frozen=True)
class SimulatedRun:
    """What a simulated run came to."""

    seconds: float
    """Wall time until the last task was done, the start of the workers included."""
    slots: int
    busy_seconds: float
    """Core-seconds that tasks held, waiting for the store and what was lost included."""
    lost_tasks: int
    """Attempts that ended with their worker."""
    lost_seconds: float
    """Core-seconds of those."""
    work: tuple[TaskWork, ...]
    starts: tuple[float, ...]
    """Of each task's successful attempt."""
    ends: tuple[float, ...]

    @property
    def work_seconds(self) -> float:
        """Core-seconds that the tasks need on cores that wait for nobody."""
        return math.fsum(w.seconds for w in self.work)

    @property
    def idle_seconds(self) -> float:
        """Core-seconds without a task."""
        return self.slots * self.seconds - self.busy_seconds

    @property
    def efficiency(self) -> float:
        """Parallel efficiency: work over cores × time."""
        return self.work_seconds / (self.slots * self.seconds) if self.seconds else 1.0

    @property
    def read_bytes(self) -> float:
        """Bytes that the finished tasks read."""
        return math.fsum(w.read_bytes for w in self.work)

    @property
    def written_bytes(self) -> float:
        """Bytes that the finished tasks wrote."""
        return math.fsum(w.written_bytes for w in self.work)

    @property
    def mean_read_rate(self) -> float:
        """Bytes per second."""
        return self.read_bytes / self.seconds if self.seconds else 0.0

    @property
    def mean_write_rate(self) -> float:
        """Bytes per second."""
        return self.written_bytes / self.seconds if self.seconds else 0.0

    @cached_property
    def peak_read_rate(self) -> float:
        """Bytes per second in the busiest part of the time (`PEAK_FRACTION`)."""
        return self._peak([w.read_bytes for w in self.work])

    @cached_property
    def peak_write_rate(self) -> float:
        """Bytes per second in the busiest part of the time (`PEAK_FRACTION`)."""
        return self._peak([w.written_bytes for w in self.work])

    def _peak(self, moved: list[float]) -> float:
        """Largest mean rate in a part of the time, each task moving its bytes evenly from start to end."""
        edges = [self.seconds * k / PEAK_FRACTION for k in range(1, PEAK_FRACTION + 1)]
        parts = [0.0] * PEAK_FRACTION
        for n_bytes, start, end in zip(moved, self.starts, self.ends, strict=True):
            first = min(bisect_left(edges, start), PEAK_FRACTION - 1)
            last = min(bisect_left(edges, end), PEAK_FRACTION - 1)
            if first == last:
                parts[first] += n_bytes
                continue
            rate = n_bytes / (end - start)
            parts[first] += rate * (edges[first] - start)
            for k in range(first + 1, last):
                parts[k] += rate * (edges[k] - edges[k - 1])
            parts[last] += rate * (end - edges[last - 1])
        return max(parts) * PEAK_FRACTION / self.seconds if self.seconds else 0.0


def simulate(graph: TaskGraph, work: Sequence[TaskWork], cluster: Cluster) -> SimulatedRun:
    """Run tasks on a cluster that exists on paper.

    Parameters
    ----------
    graph : TaskGraph
    work : sequence of TaskWork
        Of each task of the graph.
    cluster : Cluster

    Raises
    ------
    PlanError
        If all workers are lost before the end and none is replaced.
    """
    return _Run(graph, work, cluster).outcome()


class _Link:
    """Transfers that share one direction of the store; each goes on at the same rate."""

    def __init__(self, total: float, each: float) -> None:
        self.total, self.each = total, each
        self.active = 0
        # Bytes that a transfer has moved which was there from the start: each one's end, in these bytes, is fixed.
        self.moved, self.since = 0.0, 0.0
        self.ends: list[tuple[float, int, int]] = []

    def _rate(self) -> float:
        return min(self.each, self.total / self.active) if self.active else 0.0

    def advance(self, now: float) -> None:
        """Move bytes until now; before anything changes."""
        self.moved += self._rate() * (now - self.since)
        self.since = now

    def add(self, now: float, n_bytes: float, slot: int, attempt: int) -> None:
        """Begin a transfer."""
        self.advance(now)
        self.active += 1
        heapq.heappush(self.ends, (self.moved + n_bytes, slot, attempt))

    def drop(self, now: float, slot: int, attempt: int) -> None:
        """End a transfer that is not complete."""
        self.advance(now)
        before = len(self.ends)
        self.ends = [e for e in self.ends if e[1:] != (slot, attempt)]
        heapq.heapify(self.ends)
        self.active -= before - len(self.ends)

    def next_end(self) -> float:
        """When the next transfer is complete, if nothing changes."""
        return self.since + max(0.0, self.ends[0][0] - self.moved) / self._rate() if self.ends else math.inf

    def pop(self, now: float) -> int:
        """Slot of the transfer that is complete now."""
        self.since = now
        self.moved, slot, _ = heapq.heappop(self.ends)
        self.active -= 1
        return slot


class _Run:
    """State of one simulation; what happens next is in two places: `events` and the ends of the transfers."""

    def __init__(self, graph: TaskGraph, work: Sequence[TaskWork], cluster: Cluster) -> None:
        self.graph, self.work, self.cluster = graph, tuple(work), cluster
        n, c = len(self.work), cluster
        self.by_rank = [0] * n
        for k, place in enumerate(graph.rank):
            self.by_rank[place] = k
        self.waiting = list(graph.n_before)
        self.ready = sorted(graph.rank[k] for k in range(n) if not self.waiting[k])
        self.unfinished, self.submitted, self.slots_up = n, 0, 0
        self.starts, self.ends = [0.0] * n, [0.0] * n
        self.now, self.scheduler_free = 0.0, 0.0
        self.events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self.n_events, self.n_queued = 0, 0
        self.queued: list[tuple[int, int]] = []
        self.idle: deque[int] = deque()
        self.task: list[int | None] = [None] * c.slots
        self.attempt, self.parts = [0] * c.slots, [0] * c.slots
        self.busy, self.lost_tasks, self.lost = 0.0, 0, 0.0
        self.reading, self.writing = (
            None if math.isinf(total) and math.isinf(each) else _Link(total, each)
            for total, each in (
                (c.store_read_bytes, c.worker_read_bytes),
                (c.store_write_bytes, c.worker_write_bytes),
            )
        )
        self.links = [link for link in (self.reading, self.writing) if link is not None]
        # Streams of their own, so that one kind of misfortune does not change the others.
        tasks, workers, self.losses = (
            random.Random(f"{kind} {c.random_state}") for kind in ("tasks", "workers", "losses")
        )
        sigma = c.straggler_sigma
        self.seconds = [w.seconds * (math.exp(sigma * abs(tasks.gauss(0, 1))) if sigma else 1.0) for w in self.work]
        self.speed = [c.slow_factor if workers.random() < c.slow_share else 1.0 for _ in range(c.workers)]

    def outcome(self) -> SimulatedRun:
        """Run to the end."""
        c = self.cluster
        for worker in range(c.workers):
            delay = c.start_spread_seconds * worker / max(1, c.workers - 1)
            self._at(c.start_seconds + delay, self._worker_is_up, worker)
        while self.unfinished:
            self._next()
        return SimulatedRun(
            seconds=max(self.ends, default=0.0),
            slots=c.slots,
            busy_seconds=self.busy,
            lost_tasks=self.lost_tasks,
            lost_seconds=self.lost,
            work=self.work,
            starts=tuple(self.starts),
            ends=tuple(self.ends),
        )

    def _next(self) -> None:
        time = self.events[0][0] if self.events else math.inf
        if self.links:
            end, which = min((link.next_end(), k) for k, link in enumerate(self.links))
            if end <= time and end < math.inf:
                self.now = end
                self._part_is_done(self.links[which].pop(end))
                return
        if not self.events:
            raise PlanError("all workers were lost before the end, and none is replaced")
        self.now, _, happen, argument = heapq.heappop(self.events)
        happen(argument)

    def _at(self, time: float, happen: Callable[[Any], None], argument: Any) -> None:
        """Let something happen later, or at once."""
        if time <= self.now:
            happen(argument)
            return
        self.n_events += 1
        heapq.heappush(self.events, (time, self.n_events, happen, argument))

    # The driver and the scheduler.

    def _submit(self) -> None:
        window = self.cluster.window_per_thread * self.slots_up
        while self.ready and self.submitted < window:
            self.submitted += 1
            k = self.by_rank[heapq.heappop(self.ready)]
            self.scheduler_free = max(self.now, self.scheduler_free) + self.cluster.scheduler_seconds
            self._at(self.scheduler_free, self._queue, k)

    def _queue(self, k: int) -> None:
        # One queue for all: Dask assigns tasks to workers, but lets idle ones steal.
        self.n_queued += 1
        order = self.graph.rank[k] if self.cluster.queue == "priority" else self.n_queued
        heapq.heappush(self.queued, (order, k))
        self._dispatch()

    def _client_hears(self, k: int) -> None:
        self.submitted -= 1
        for follower in self.graph.followers[k]:
            self.waiting[follower] -= 1
            if not self.waiting[follower]:
                heapq.heappush(self.ready, self.graph.rank[follower])
        self._submit()

    # The workers.

    def _dispatch(self) -> None:
        while self.queued and self.idle:
            self._start(heapq.heappop(self.queued)[1], self.idle.popleft())

    def _start(self, k: int, slot: int) -> None:
        self.task[slot] = k
        self.starts[k] = self.now
        self.attempt[slot] += 1
        attempt, work = self.attempt[slot], self.work[k]
        self.parts[slot] = 1
        for link, n_bytes in ((self.reading, work.read_bytes), (self.writing, work.written_bytes)):
            if link is not None and n_bytes:
                self.parts[slot] += 1
                link.add(self.now, n_bytes, slot, attempt)
        seconds = self.seconds[k] * self.speed[slot // self.cluster.threads]
        self.n_events += 1  # never at once, as a chain of empty tasks would be a recursion
        heapq.heappush(self.events, (self.now + seconds, self.n_events, self._has_computed, (slot, attempt)))

    def _has_computed(self, which: tuple[int, int]) -> None:
        slot, attempt = which
        if self.attempt[slot] == attempt and self.task[slot] is not None:
            self._part_is_done(slot)

    def _part_is_done(self, slot: int) -> None:
        """Of a task's computing, reading and writing, one is complete."""
        self.parts[slot] -= 1
        if self.parts[slot]:
            return
        k = self.task[slot]
        assert k is not None
        self.task[slot] = None
        self.ends[k] = self.now
        self.busy += self.now - self.starts[k]
        self.unfinished -= 1
        self.idle.append(slot)
        if self.queued:
            self._dispatch()
        self._at(self.now + self.cluster.round_trip_seconds, self._client_hears, k)

    def _slots_of(self, worker: int) -> range:
        return range(worker * self.cluster.threads, (worker + 1) * self.cluster.threads)

    def _worker_is_up(self, worker: int) -> None:
        self.slots_up += self.cluster.threads
        self.idle.extend(self._slots_of(worker))
        if self.cluster.losses_per_worker_hour:
            life = self.losses.expovariate(self.cluster.losses_per_worker_hour / 3600)
            self._at(self.now + life, self._worker_is_lost, worker)
        self._dispatch()
        self._submit()

    def _worker_is_lost(self, worker: int) -> None:
        self.slots_up -= self.cluster.threads
        for slot in self._slots_of(worker):
            k = self.task[slot]
            if k is None:
                self.idle.remove(slot)
                continue
            for link in self.links:
                link.drop(self.now, slot, self.attempt[slot])
            self.task[slot] = None
            self.lost_tasks += 1
            self.lost += self.now - self.starts[k]
            self.busy += self.now - self.starts[k]
            heapq.heappush(self.queued, (-1, k))
        if self.cluster.replacement_seconds is not None:
            self._at(self.now + self.cluster.replacement_seconds, self._worker_is_up, worker)
        self._dispatch()
