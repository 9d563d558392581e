"""Recipes and their price: a strategy is a list of primitives with counts, and one formula makes seconds of it.

A primitive states its work beside its algorithm (`..._work` in `linalg`); methods put them together.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from dkrr.cost import Stage, Work
from dkrr.planning.problem import Problem
from dkrr.planning.resources import PROCESS_MARGIN_BYTES, Rates, Resources, Workplace, cold_fraction

BATCH_VECTORS = 14
"""Arrays of the size of a batch of targets that the calling process holds at most."""
BATCH_ARRAYS = 2
"""Arrays of the size of a batch that are added to those of one fit: its targets, and its coefficients."""


NO_WORK = Work()


class Step(NamedTuple):
    """A unit of work and how often a recipe repeats it."""

    stage: str
    """Stage of the fit that it belongs to, one of `dkrr.cost.STAGE_NAMES`."""
    work: Work = NO_WORK
    times: float = 1.0
    by: Literal["tasks", "blas", "caller"] = "tasks"
    """Who shares it: all tasks that run at once; the threads of BLAS; or the calling process alone."""
    seconds: float | None = None
    """Time of it, where it is not that of the work: waiting, a schedule of tasks, another store."""


Recipe = Iterable[Step]
COMPARED = (Step("checking symmetry"),)
"""A precomputed matrix is compared with its mirror image, which takes next to no time."""


@dataclass(frozen=True)
class CostModel:
    """Cost model of a problem in one place, with the rates there."""

    problem: Problem
    resources: Resources
    place: Workplace

    @property
    def rates(self) -> Rates:
        """Rates with the store of the run."""
        return self.resources.rates

    @property
    def holds_rows(self) -> bool:
        """Whether X is in the memory of the process that works already."""
        return self.problem.x_in_memory and self.place.is_memory

    def peak(self, held: int, each: int, margin: int = PROCESS_MARGIN_BYTES) -> int:
        """Peak bytes of a process that holds `held` bytes, plus `each` bytes for every thread."""
        batch = self._batch_bytes() if self.problem.batch else 0
        return self.place.baseline_bytes + margin + held + self.place.threads * each + batch

    def _batch_bytes(self) -> int:
        """Bytes per process that one of many batches of targets adds to a fit of the targets of a batch."""
        p, place = self.problem, self.place
        if p.n_targets > p.batch:
            return 0
        if place.execution != "dask":
            return BATCH_ARRAYS * 8 * p.n * p.batch
        # Of a client's workers the calling process is another machine, or has its own share.
        return 0 if self.resources.cluster_is_running else BATCH_VECTORS * 8 * p.n * p.batch // place.n_workers

    def cache_bytes(self, peak: float) -> float:
        """Memory that is left for the system's cache of files."""
        return self.resources.cache_bytes(self.place.n_workers, peak, on_workers=self.place.execution == "dask")

    def row_rates(self, peak: float) -> Rates:
        """Rates with which X is read where it is stored, which may be larger than the system's cache of files."""
        p, r = self.problem, self.resources
        # Else X is copied to the run's store, and read from there.
        rates = r.rates_of_rows if p.x_is_shared or self.place.is_memory else r.rates
        return rates.reading(cold_fraction(p.stored_bytes, self.cache_bytes(peak)))

    def price(self, recipe: Recipe, peak: int) -> tuple[Stage, ...]:
        """Stages in the order of their first step, of processes that hold at most `peak` bytes."""
        slots, rates, sums = self.place.slots, self.resources.rates, dict[str, list[Any]]()
        threads = {"tasks": 1, "blas": self.resources.local_threads, "caller": 1}
        for name, work, times, by, seconds in recipe:
            total = sums.setdefault(name, [0.0, 0.0, 0.0, 0])
            if (work is NO_WORK and seconds is None) or not times:  # a fit of a few rows notices the time of its plan
                continue
            if seconds is None:
                seconds = rates.seconds(work, threads[by])
                if work.row_bytes:
                    seconds += work.row_bytes / self.row_rates(peak).read_bytes
                seconds /= slots if by == "tasks" else 1
            total[0] += times * seconds
            total[1] += times * (work.read_bytes + work.row_bytes)
            total[2] += times * work.written_bytes
            total[3] += work.disk_bytes
        stages = list[Stage]()
        for name, (seconds, read, written, disk) in sums.items():
            stages.append(Stage(name, seconds, read, written, disk, peak))
        return tuple(stages)

    def seconds(self, recipe: Recipe, peak: int) -> float:
        """Time of all steps."""
        return sum(stage.seconds for stage in self.price(recipe, peak))

    # What comes before the work, and beside it

    def shared(self) -> list[Step]:
        """Workers start, and X is checked, and copied unless they can read it."""
        p = self.problem
        staged = 0 if self.place.is_memory or p.x_is_shared else p.stored_bytes
        checked = 0 if self.place.is_memory or p.x_in_memory else p.stored_bytes
        return [
            Step("starting workers", seconds=self.place.start_seconds),
            Step("checking X", Work(row_bytes=checked)),
            # It is read where it was, and written.
            Step("copying X", written(staged), seconds=2 * staged / self.rates.write_bytes),
            *(COMPARED if p.kernel.is_precomputed else ()),
        ]


def written(n_bytes: int, read: float = 0.0) -> Work:
    """Bytes that are written and stay, and others that are read."""
    return Work(read_bytes=read, written_bytes=n_bytes, disk_bytes=n_bytes)
