"""Progress of long work, weighted by flops: what displays of it share, and the time of every stage.

The displays are in `dkrr.cluster.displays`.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from dkrr.cost import Stage


class Progress:
    """Shows nothing, and measures the time of every stage; the base of the displays below.

    Used as a context manager: ``with progress.stage("factorisation", flops): ... progress.advance(flops)``.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def stage(self, name: str, total_flops: float, done_flops: float = 0.0, detail: str = "") -> Self:
        """Begin a stage of work.

        Parameters
        ----------
        name : str
            One of `dkrr.cost.STAGE_NAMES`.
        total_flops, done_flops : float
            Work of the whole stage, and the part that an earlier run has done.
        detail : str
            Which part of the stage this is, for the display.
        """
        self._measuring = self.measured(name)
        self._measuring.__enter__()
        self.begin(f"{name}, {detail}" if detail else name, max(total_flops, 1.0), done_flops)
        return self

    @contextmanager
    def measured(self, name: str) -> Iterator[None]:
        """Measure a stage that is not displayed; stages within it are not counted twice."""
        within, began = sum(self._seconds.values()), time.monotonic()
        try:
            yield
        finally:
            inside, passed = sum(self._seconds.values()) - within, time.monotonic() - began
            self._seconds[name] = self._seconds.get(name, 0.0) + passed - inside

    def take_stages(self) -> tuple[Stage, ...]:
        """Stages that ended since the last call, with the time that each took in all; they are forgotten."""
        taken = dict(self._seconds)
        self._seconds.clear()  # other displays of the same work may count here
        return tuple(Stage(name, seconds) for name, seconds in taken.items())

    def begin(self, name: str, total: float, done: float) -> None:
        """Display the start of a stage."""

    def advance(self, flops: float) -> None:
        """Display that work was done."""

    def end(self, *, failed: bool) -> None:
        """Display the end of a stage."""

    def note(self, message: str) -> None:
        """Display a message between stages."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._measuring.__exit__(None, None, None)
        self.end(failed=error is not None)


class OpenStage:
    """What is shown of one stage while it runs."""

    def __init__(self, name: str, total: float, done: float) -> None:
        self.name, self.total, self.done, self.at_start = name, total, done, done
        self.started = time.monotonic()

    @property
    def fraction(self) -> float:
        """Part of the work that is done."""
        return min(self.done / self.total, 1.0)

    @property
    def elapsed(self) -> float:
        """Seconds since the stage began in this run."""
        return time.monotonic() - self.started

    @property
    def left(self) -> float:
        """Seconds until its end, at the rate of this run; nan before any work is done."""
        done = self.done - self.at_start
        return max(self.elapsed * (self.total - self.done) / done, 0.0) if done > 0 else float("nan")


class Share(Progress):
    """Passes on the work of tasks as a fraction of the stage of another display; it has no stages of its own.

    Parameters
    ----------
    whole : Progress
        Display whose stage is open.
    total_flops : float
        Work of the tasks.
    amount : float
        What all of them advance that stage by.
    """

    def __init__(self, whole: Progress, total_flops: float, amount: float = 1.0) -> None:
        super().__init__()
        self._whole, self._each = whole, amount / max(total_flops, 1.0)

    def advance(self, flops: float) -> None:
        self._whole.advance(flops * self._each)
