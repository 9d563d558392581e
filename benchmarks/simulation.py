"""Tasks on a cluster, event by event: which slot runs which task, and when.

The tasks, what they wait for and their priorities are those of the real graph (``tile_steps``); the driver is that of
``cluster.dask_executor``: a window of tasks on the scheduler, filled from a ready queue whenever the client hears that
a task is done. The closed formula of `fitting.costs.tile_costs` is compared with it; ``benchmarks.clusters`` adds what
wide clusters have besides: a shared store, stragglers, lost workers.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol, Self

from dkrr.fitting.costs.tile_costs import SCHEDULER_SECONDS, WINDOW_PER_SLOT, factorisation_seconds
from dkrr.linalg.cholesky import TileStep, tile_steps
from dkrr.planning.resources import Rates
from dkrr.store import TileGrid

Queue = Literal["submission", "priority"]
"""Order of the tasks on the scheduler: Dask's own rule for equal priorities, or our priorities."""


class Step(Protocol):
    """Attributes of a task that a simulation reads; `linalg.cholesky.TileStep` and `runtime.Task` have it."""

    @property
    def key(self) -> str:
        """Name of the task."""

    @property
    def depends(self) -> tuple[str, ...]:
        """Names of the tasks before it."""

    @property
    def priority(self) -> tuple[int, ...]:
        """Order among the tasks that are ready: the smallest starts first."""


@dataclass(frozen=True)
class TaskGraph:
    """Tasks by number."""

    followers: tuple[tuple[int, ...], ...]
    """Tasks that wait for each task."""
    n_before: tuple[int, ...]
    """Number of tasks that each task waits for."""
    rank: tuple[int, ...]
    """Place of each task in the order of priority, and of the list where priorities are equal."""

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Self:
        """Graph of these tasks; names that none of them has count as done, as for an executor."""
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
class TaskCosts:
    """Rates of one worker for each part of a task."""

    gemm_flops: float
    """Floating-point operations per second."""
    syrk_flops: float
    trsm_flops: float
    """Rate of the triangular solve with the panels on the diagonal of L_jj; the rest of the division is a product."""
    potrf_flops: float
    read_bytes: float
    """Bytes per second of reading that delays the products."""
    write_bytes: float
    entry_seconds: float
    """To form one entry of the matrix."""
    task_seconds: float
    """Overhead of every task: from the end of the one before to its first product, and all not counted elsewhere."""

    @classmethod
    def of_rates(cls, rates: Rates, entry_seconds: float) -> Self:
        """Costs that correspond to the planner's rates."""
        return cls(
            gemm_flops=rates.gemm_flops,
            syrk_flops=rates.syrk_flops,
            trsm_flops=rates.trsm_flops,
            potrf_flops=rates.potrf_flops,
            read_bytes=rates.read_bytes,
            write_bytes=rates.write_bytes,
            entry_seconds=entry_seconds,
            task_seconds=rates.task_seconds,
        )

    def seconds(self, step: TileStep, grid: TileGrid) -> float:
        """Time of one task: nothing overlaps, since the thread that reads ahead has no core for itself."""
        gemm, syrk, trsm, potrf = step_flops(step, grid)
        read, written = step_bytes(step, grid)
        return (
            gemm / self.gemm_flops
            + syrk / self.syrk_flops
            + trsm / self.trsm_flops
            + potrf / self.potrf_flops
            + read / self.read_bytes
            + written / self.write_bytes
            + formed_entries(step, grid) * self.entry_seconds
            + self.task_seconds
        )

    def rates(self, round_trip_seconds: float) -> Rates:
        """The planner's rates that correspond to them."""
        values = {name: value for name, value in asdict(self).items() if name != "entry_seconds"}
        return Rates(**values, chain_seconds=round_trip_seconds)


def step_flops(step: TileStep, grid: TileGrid) -> tuple[float, float, float, float]:
    """Operations of GEMM, SYRK, TRSM and POTRF; their sum is ``TileStep.flops``."""
    rows, columns = grid.height(step.i), grid.height(step.j)
    before = float(len(step.columns) * grid.tile)
    if step.i == step.j:
        return 0.0, rows * rows * before, 0.0, rows**3 / 3 if step.is_last else 0.0
    gemm = 2 * rows * columns * before
    if not step.is_last:
        return gemm, 0.0, 0.0, 0.0
    panels, rest = divmod(columns, grid.panel)
    triangles = float(rows * (panels * grid.panel**2 + rest**2))
    return gemm + rows * columns * columns - triangles, 0.0, triangles, 0.0


def step_bytes(step: TileStep, grid: TileGrid) -> tuple[float, float]:
    """Bytes of tiles that a task reads and writes."""
    on_diagonal = step.i == step.j
    tile = 8.0 * grid.tile * grid.height(step.j)
    read = 8.0 * grid.tile**2 * len(step.columns) * (1 if on_diagonal else 2)
    return read + tile * ((step.update > 0) + (step.is_last and not on_diagonal)), tile


def formed_entries(step: TileStep, grid: TileGrid) -> float:
    """Entries of the matrix that a task forms: the first of a tile forms it, on the diagonal half of it."""
    if step.update:
        return 0.0
    return (0.5 if step.i == step.j else 1.0) * grid.height(step.i) * grid.height(step.j)


@dataclass(frozen=True)
class SimulatedCluster:
    """Workers of one thread each, the driver that sends them tasks, and the order in which a scheduler serves them."""

    slots: int
    """Tasks that run at once."""
    window_per_slot: int = WINDOW_PER_SLOT
    round_trip_seconds: float = 0.010
    """Time from the end of a task to the submission of those it made ready: the client sends every 10 ms."""
    scheduler_seconds: float = SCHEDULER_SECONDS
    queue: Queue = "submission"
    """Order of the tasks on the scheduler."""

    @classmethod
    def ideal(cls, slots: int) -> Self:
        """List scheduling: a free slot takes the best of the tasks that are ready, at once."""
        return cls(slots, window_per_slot=1, round_trip_seconds=0.0, scheduler_seconds=0.0)


@dataclass(frozen=True)
class Schedule:
    """When each task starts and ends."""

    starts: tuple[float, ...]
    ends: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """Wall time until the last task is done."""
        return max(self.ends, default=0.0)


def simulate(graph: TaskGraph, seconds: Sequence[float], cluster: SimulatedCluster) -> Schedule:
    """Schedule of tasks that take `seconds` each."""
    return Simulation(graph, seconds, cluster).run()


def simulate_factorisation(
    grid: TileGrid, columns_per_task: int, costs: TaskCosts, cluster: SimulatedCluster
) -> Schedule:
    """Schedule of the real graph of tasks on a cluster that exists on paper."""
    steps, graph = factorisation_graph(grid.n_tiles, columns_per_task)
    return simulate(graph, [costs.seconds(step, grid) for step in steps], cluster)


def planned_seconds(grid: TileGrid, columns_per_task: int, costs: TaskCosts, cluster: SimulatedCluster) -> float:
    """Time of the same by the planner's closed formula."""
    rates = costs.rates(cluster.round_trip_seconds + cluster.scheduler_seconds)
    return factorisation_seconds(grid, columns_per_task, cluster.slots, rates, costs.entry_seconds * grid.tile**2)


@lru_cache(maxsize=4)
def factorisation_graph(n_tiles: int, columns_per_task: int) -> tuple[tuple[TileStep, ...], TaskGraph]:
    """Tasks of a factorisation and what they wait for."""
    steps = tuple(tile_steps(n_tiles, columns_per_task))
    return steps, TaskGraph.of(steps)


class Simulation:
    """State of one simulation."""

    def __init__(self, graph: TaskGraph, seconds: Sequence[float], cluster: SimulatedCluster) -> None:
        self.graph, self.seconds, self.cluster = graph, seconds, cluster
        n = self.unfinished = len(seconds)
        self.by_rank = [0] * n
        for k, place in enumerate(graph.rank):
            self.by_rank[place] = k
        self.waiting = list(graph.n_before)
        self.ready = sorted(graph.rank[k] for k in range(n) if not self.waiting[k])
        self.submitted, self.slots_up = 0, 0
        self.starts, self.ends = [0.0] * n, [0.0] * n
        self.now, self.scheduler_free = 0.0, 0.0
        self.events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self.n_events, self.n_queued = 0, 0
        self.queued: list[tuple[int, int]] = []
        self.idle: deque[int] = deque()
        self.task: list[int | None] = [None] * cluster.slots

    def run(self) -> Schedule:
        """Run to the end."""
        self.start_workers()
        while self.unfinished:
            self.take_next_event()
        return Schedule(tuple(self.starts), tuple(self.ends))

    def start_workers(self) -> None:
        """All of them start at once."""
        for slot in range(self.cluster.slots):
            self.add_worker(slot)

    def add_worker(self, slot: int) -> None:
        """Give a new worker tasks."""
        self.slots_up += 1
        self.idle.append(slot)
        self.dispatch()
        self._submit()

    def take_next_event(self) -> None:
        """Advance the time to what happens next."""
        self.now, _, happen, argument = heapq.heappop(self.events)
        happen(argument)

    def schedule(self, time: float, happen: Callable[[Any], None], argument: Any) -> None:
        """Add an event."""
        self.n_events += 1
        heapq.heappush(self.events, (time, self.n_events, happen, argument))

    def schedule_or_call(self, time: float, happen: Callable[[Any], None], argument: Any) -> None:
        """Add an event, or call it at once if its time has come."""
        if time <= self.now:
            happen(argument)
        else:
            self.schedule(time, happen, argument)

    def _submit(self) -> None:
        window = self.cluster.window_per_slot * self.slots_up
        while self.ready and self.submitted < window:
            self.submitted += 1
            k = self.by_rank[heapq.heappop(self.ready)]
            self.scheduler_free = max(self.now, self.scheduler_free) + self.cluster.scheduler_seconds
            self.schedule_or_call(self.scheduler_free, self._queue, k)

    def _queue(self, k: int) -> None:
        # One queue for all: Dask assigns tasks to workers, but lets idle ones steal.
        self.n_queued += 1
        order = self.graph.rank[k] if self.cluster.queue == "priority" else self.n_queued
        heapq.heappush(self.queued, (order, k))
        self.dispatch()

    def dispatch(self) -> None:
        """Start tasks on idle slots."""
        while self.queued and self.idle:
            self.start(heapq.heappop(self.queued)[1], self.idle.popleft())

    def start(self, k: int, slot: int) -> None:
        """Start a task."""
        self.task[slot] = k
        self.starts[k] = self.now
        # An event even if it takes no time, as a chain of empty tasks would be a recursion.
        self.schedule(self.now + self.seconds[k], self.finish, slot)

    def finish(self, slot: int) -> None:
        """End a task."""
        k = self.task[slot]
        assert k is not None
        self.task[slot] = None
        self.ends[k] = self.now
        self.unfinished -= 1
        self.idle.append(slot)
        if self.queued:
            self.dispatch()
        self.schedule_or_call(self.now + self.cluster.round_trip_seconds, self._tell_client, k)

    def _tell_client(self, k: int) -> None:
        self.submitted -= 1
        for follower in self.graph.followers[k]:
            self.waiting[follower] -= 1
            if not self.waiting[follower]:
                heapq.heappush(self.ready, self.graph.rank[follower])
        self._submit()
