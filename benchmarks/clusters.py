"""Wide clusters on paper: the simulation of a factorisation, with a shared store, stragglers and lost workers.

A task holds one core for its own time, and no shorter than the store takes to move its bytes, which are read ahead and
written behind. The store serves all transfers alike (processor sharing). What is finished lies in the store, so a lost
worker loses only the task that it was running.
"""

import heapq
import math
import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from benchmarks.simulation import (
    SimulatedCluster,
    Simulation,
    TaskCosts,
    TaskGraph,
    factorisation_graph,
    planned_seconds,
    step_bytes,
)
from dkrr.errors import PlanError
from dkrr.linalg.cholesky import cholesky_work
from dkrr.store import TileGrid

PEAK_INTERVALS = 100
"""The peak bandwidth is the mean over the busiest of this many equal intervals of the time."""


@dataclass(frozen=True, slots=True)
class TaskWork:
    """Work of a task on a core that waits for nothing."""

    seconds: float
    read_bytes: float = 0.0
    written_bytes: float = 0.0


@dataclass(frozen=True)
class WideCluster(SimulatedCluster):
    """Workers of one core, the driver that sends them tasks, and the store that they share."""

    store_read_bytes: float = math.inf
    """Bytes per second that the store delivers to all workers together."""
    store_write_bytes: float = math.inf
    worker_read_bytes: float = math.inf
    """Bytes per second that one worker gets at most from the store beside its computing (a network)."""
    worker_write_bytes: float = math.inf
    straggler_sigma: float = 0.0
    """A task takes exp(σ|z|) times its work, z standard normal: the slow half of a lognormal distribution."""
    slow_share: float = 0.0
    """Probability that a worker is a slow one."""
    slow_factor: float = 1.0
    """Time of a task on a slow worker over that on another."""
    losses_per_worker_hour: float = 0.0
    """Rate of the Poisson process that removes workers."""
    replacement_seconds: float | None = None
    """Time from the loss of a worker to its successor; None: it has none."""
    start_seconds: float = 0.0
    """Until the first worker has started."""
    start_spread_seconds: float = 0.0
    """Time from the start of the first worker to that of the last; they start at equal intervals."""
    random_state: int = 0


@dataclass(frozen=True)
class SimulatedRun:
    """Result of a simulated run."""

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
    """Start of each task's successful attempt."""
    ends: tuple[float, ...]

    @property
    def work_seconds(self) -> float:
        """Core-seconds that the tasks need on cores that wait for nothing."""
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
        """Bytes per second in the busiest interval (`PEAK_INTERVALS`)."""
        return self._peak([w.read_bytes for w in self.work])

    @cached_property
    def peak_write_rate(self) -> float:
        """Bytes per second in the busiest interval (`PEAK_INTERVALS`)."""
        return self._peak([w.written_bytes for w in self.work])

    def _peak(self, moved: list[float]) -> float:
        """Largest mean rate in an interval, each task moving its bytes evenly from start to end."""
        edges = [self.seconds * k / PEAK_INTERVALS for k in range(1, PEAK_INTERVALS + 1)]
        sums = [0.0] * PEAK_INTERVALS
        for n_bytes, start, end in zip(moved, self.starts, self.ends, strict=True):
            first = min(bisect_left(edges, start), PEAK_INTERVALS - 1)
            last = min(bisect_left(edges, end), PEAK_INTERVALS - 1)
            if first == last:
                sums[first] += n_bytes
                continue
            rate = n_bytes / (end - start)
            sums[first] += rate * (edges[first] - start)
            for k in range(first + 1, last):
                sums[k] += rate * (edges[k] - edges[k - 1])
            sums[last] += rate * (end - edges[last - 1])
        return max(sums) * PEAK_INTERVALS / self.seconds if self.seconds else 0.0


def simulate_factorisation(
    grid: TileGrid, columns_per_task: int, costs: TaskCosts, cluster: WideCluster
) -> SimulatedRun:
    """Run the real graph of tasks on a cluster that exists on paper."""
    steps, graph = factorisation_graph(grid.n_tiles, columns_per_task)
    return simulate(graph, [TaskWork(costs.seconds(step, grid), *step_bytes(step, grid)) for step in steps], cluster)


def promised_seconds(grid: TileGrid, columns_per_task: int, costs: TaskCosts, cluster: WideCluster) -> float:
    """Estimate of the same without a simulation; stragglers, losses and a queue by submission are left out."""
    cost = cholesky_work(grid, columns_per_task)
    reading, writing = cost.read_bytes / cluster.store_read_bytes, cost.written_bytes / cluster.store_write_bytes
    return max(planned_seconds(grid, columns_per_task, costs, cluster), reading, writing)


def simulate(graph: TaskGraph, work: Sequence[TaskWork], cluster: WideCluster) -> SimulatedRun:
    """Run tasks on a cluster that exists on paper.

    Raises
    ------
    PlanError
        If all workers are lost before the end and none is replaced.
    """
    return _WideSimulation(graph, work, cluster).outcome()


class _Link:
    """Transfers that share one direction of the store; all have the same rate."""

    def __init__(self, total: float, each: float) -> None:
        self.total, self.each = total, each
        self.active = 0
        # Bytes that a transfer active from the start would have moved: the end of each one, in these bytes, is fixed.
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


class _WideSimulation(Simulation):
    """State of one simulation; the next event is in one of two places: `events` and the ends of the transfers."""

    cluster: WideCluster

    def __init__(self, graph: TaskGraph, work: Sequence[TaskWork], cluster: WideCluster) -> None:
        c = cluster
        # Separate streams, so that one kind of trouble does not change the others.
        tasks, workers, self.losses = (
            random.Random(f"{kind} {c.random_state}") for kind in ("tasks", "workers", "losses")
        )
        sigma = c.straggler_sigma
        seconds = [w.seconds * (math.exp(sigma * abs(tasks.gauss(0, 1))) if sigma else 1.0) for w in work]
        super().__init__(graph, seconds, cluster)
        self.work = tuple(work)
        self.slowness = [c.slow_factor if workers.random() < c.slow_share else 1.0 for _ in range(c.slots)]
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

    def outcome(self) -> SimulatedRun:
        """Run to the end."""
        schedule = self.run()
        return SimulatedRun(
            seconds=schedule.seconds,
            slots=self.cluster.slots,
            busy_seconds=self.busy,
            lost_tasks=self.lost_tasks,
            lost_seconds=self.lost,
            work=self.work,
            starts=schedule.starts,
            ends=schedule.ends,
        )

    def start_workers(self) -> None:
        """Start one after the other."""
        c = self.cluster
        for worker in range(c.slots):
            delay = c.start_spread_seconds * worker / max(1, c.slots - 1)
            self.schedule_or_call(c.start_seconds + delay, self.add_worker, worker)

    def add_worker(self, slot: int) -> None:
        """Give a new worker tasks, and decide when it is lost."""
        if self.cluster.losses_per_worker_hour:
            life = self.losses.expovariate(self.cluster.losses_per_worker_hour / 3600)
            self.schedule_or_call(self.now + life, self._lose_worker, slot)
        super().add_worker(slot)

    def take_next_event(self) -> None:
        """Advance the time to the next event or the next end of a transfer."""
        time = self.events[0][0] if self.events else math.inf
        if self.links:
            end, which = min((link.next_end(), k) for k, link in enumerate(self.links))
            if end <= time and end < math.inf:
                self.now = end
                self._finish_part(self.links[which].pop(end))
                return
        if not self.events:
            raise PlanError("all workers were lost before the end, and none is replaced")
        super().take_next_event()

    def start(self, k: int, slot: int) -> None:
        """Start a task's computing and its transfers."""
        self.task[slot] = k
        self.starts[k] = self.now
        self.attempt[slot] += 1
        attempt, work = self.attempt[slot], self.work[k]
        self.parts[slot] = 1
        for link, n_bytes in ((self.reading, work.read_bytes), (self.writing, work.written_bytes)):
            if link is not None and n_bytes:
                self.parts[slot] += 1
                link.add(self.now, n_bytes, slot, attempt)
        self.schedule(self.now + self.seconds[k] * self.slowness[slot], self._finish_computing, (slot, attempt))

    def _finish_computing(self, which: tuple[int, int]) -> None:
        slot, attempt = which
        if self.attempt[slot] == attempt and self.task[slot] is not None:
            self._finish_part(slot)

    def _finish_part(self, slot: int) -> None:
        """End a task's computing, reading or writing."""
        self.parts[slot] -= 1
        if not self.parts[slot]:
            self.finish(slot)

    def finish(self, slot: int) -> None:
        """End a task."""
        k = self.task[slot]
        assert k is not None
        self.busy += self.now - self.starts[k]
        super().finish(slot)

    def _lose_worker(self, slot: int) -> None:
        self.slots_up -= 1
        k = self.task[slot]
        if k is None:
            self.idle.remove(slot)
        else:
            for link in self.links:
                link.drop(self.now, slot, self.attempt[slot])
            self.task[slot] = None
            self.lost_tasks += 1
            self.lost += self.now - self.starts[k]
            self.busy += self.now - self.starts[k]
            heapq.heappush(self.queued, (-1, k))
        if self.cluster.replacement_seconds is not None:
            self.schedule_or_call(self.now + self.cluster.replacement_seconds, self.add_worker, slot)
        self.dispatch()
