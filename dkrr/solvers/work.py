"""What a run did, in a size that does not grow with it: time and bytes by stage, and a time line of the workers."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dkrr.cost import STAGE_NAMES, Span
from dkrr.runtime import TaskRecord
from dkrr.solvers.result import SolveResult

MAX_BARS = 1500
"""Bars of a time line; those of shorter tasks are merged."""
MAX_LANES = 64
"""Worker threads of a time line; the busiest ones."""
MAX_LINES = 500
"""Lines of histories and messages."""
MAX_DEPTH = 16
"""Stages within each other."""


@dataclass
class Bar:
    """Time in which a thread worked for one stage, nearly without a pause."""

    start: float
    end: float
    stage: str
    busy: float
    """Seconds of work in it."""


def measured_work(result: SolveResult) -> dict[str, Any]:
    """Result of a fit as values of JSON, with a bounded number of lines and bars."""
    stages = _Stages(result.spans)
    seconds = {stage.name: stage.seconds for stage in result.stages}
    moved: dict[str, list[int]] = {}
    for task in result.record.tasks:
        found = moved.setdefault(stages.at(task), [0, 0, 0, 0])
        found[0] += task.bytes_read
        found[1] += task.bytes_written
        found[2] = max(found[2], task.peak_bytes)
        found[3] += 1
    names = [name for name in STAGE_NAMES if name in seconds or name in moved]
    return {
        "text": str(result),
        "status": result.status.name,
        "residual": number(result.residual),
        "seconds": number(result.seconds),
        "peak_bytes": result.peak_bytes,
        "stages": [[name, number(seconds.get(name, 0.0)), *moved.get(name, [0, 0, 0, 0])] for name in names],
        "kinds": {name: number(value) for name, value in result.seconds_by_kind.items()},
        "peaks": [[name, peak] for name, peak in sorted(_peaks(result).items())][:MAX_LANES],
        "history": [[h.iteration, number(h.seconds), number(h.largest), h.is_true] for h in thinned(result.history)],
        "steps": [[s.step, number(s.seconds), number(s.objective), number(s.gradient)] for s in thinned(result.steps)],
        "line": _time_line(result, stages),
    }


def number(value: float, digits: int = 6) -> float | None:
    """Number of JSON with so many digits; None where it is not finite."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def thinned(values: Sequence[Any]) -> list[Any]:
    """At most MAX_LINES of the values, the last one among them."""
    step = -(-len(values) // MAX_LINES) or 1
    return list(values[::-1][::step])[::-1]


class _Stages:
    """The stage at any time: of those within each other the innermost."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = sorted(spans, key=lambda span: span.start)
        self._starts = [span.start for span in self._spans]

    def at(self, task: TaskRecord) -> str:
        """Stage in which a task ran; the last one that had begun, if clocks of machines differ."""
        middle = task.start + task.seconds / 2
        k = bisect_right(self._starts, middle)
        for span in reversed(self._spans[max(0, k - MAX_DEPTH) : k]):
            if span.start + span.seconds >= middle:
                return span.name
        return self._spans[max(0, k - 1)].name if self._spans else ""


def _peaks(result: SolveResult) -> dict[str, int]:
    """Highest memory of every worker process."""
    return {name: peak for name, peak in result.record.peak_bytes_by_worker.items() if peak}


def _time_line(result: SolveResult, stages: _Stages) -> dict[str, Any]:
    """Bars of the stages, and of every thread of the workers, in seconds since the first."""
    tasks = result.record.tasks
    starts = [span.start for span in result.spans] + [task.start for task in tasks]
    if not starts:
        return {"lanes": [], "bars": [], "n_tasks": 0, "n_lanes": 0, "seconds": 0.0}
    first = min(starts)
    outermost = [Bar(s.start, s.start + s.seconds, s.name, s.seconds) for s in result.spans]
    lanes: dict[tuple[str, int], list[Bar]] = {}
    for task in sorted(tasks, key=lambda task: task.start):
        bar = Bar(task.start, task.start + task.seconds, stages.at(task), task.seconds)
        lane = 0  # the first thread of its process that is free: clocks and records are exact to less than a task
        while (task.worker, lane) in lanes and lanes[task.worker, lane][-1].end > bar.start + 1e-3:
            lane += 1
        lanes.setdefault((task.worker, lane), []).append(bar)
    busiest = sorted(lanes, key=lambda lane: -sum(bar.busy for bar in lanes[lane]))[:MAX_LANES]
    shown = {"": sorted(outermost, key=lambda bar: bar.start)}
    shown |= {f"{worker}{f' thread {k + 1}' if k else ''}": lanes[worker, k] for worker, k in sorted(busiest)}
    bars = merged(list(shown.values()), MAX_BARS)
    names = list(dict.fromkeys(bar.stage for lane in bars for bar in lane))
    return {
        "lanes": list(shown),
        "stages": names,
        "bars": [
            [k, round(bar.start - first, 4), round(bar.end - first, 4), names.index(bar.stage), round(bar.busy, 4)]
            for k, lane in enumerate(bars)
            for bar in lane
        ],
        "n_tasks": len(tasks),
        "n_lanes": len(lanes),
        "seconds": round(max(bar.end for lane in bars for bar in lane) - first, 4),
    }


def merged(lanes: list[list[Bar]], limit: int) -> list[list[Bar]]:
    """Bars of every lane, in which those near each other are one, until there are at most `limit` in all.

    Bars of one stage are merged first; where that does not suffice also those of different ones, which then have the
    stage of the longer.
    """
    every = [bar for lane in lanes for bar in lane]
    if len(every) <= limit:
        return lanes
    total = max(bar.end for bar in every) - min(bar.start for bar in every)
    gap, any_stage = total / limit / 8, False
    while sum(map(len, lanes)) > max(limit, len(lanes)):
        lanes = [_joined(lane, gap, any_stage=any_stage) for lane in lanes]
        gap, any_stage = 2 * gap, gap > total / 100
    return lanes


def _joined(lane: list[Bar], gap: float, *, any_stage: bool) -> list[Bar]:
    found: list[Bar] = []
    for bar in lane:
        last = found[-1] if found else None
        if last is None or bar.start - last.end > gap or not (any_stage or bar.stage == last.stage):
            found.append(bar)
            continue
        stage = bar.stage if bar.busy > last.busy else last.stage
        found[-1] = Bar(last.start, max(last.end, bar.end), stage, last.busy + bar.busy)
    return found
