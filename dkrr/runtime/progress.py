"""Progress of long work, weighted by flops, with an estimate of the time left.

On a terminal and in a notebook it is a live bar (rich). Elsewhere (a log file, a batch job) it is a line for every
tenth of the work, at most one in `LOG_SECONDS[0]` and at least one in `LOG_SECONDS[1]`.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from dkrr.cost import Stage
from dkrr.units import format_seconds

LOG_SECONDS = (2.0, 30.0)


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
            inside = sum(self._seconds.values()) - within
            self._seconds[name] = self._seconds.get(name, 0.0) + time.monotonic() - began - inside

    def take_stages(self) -> tuple[Stage, ...]:
        """Stages that ended since the last call, with the time that each took in all; they are forgotten."""
        taken, self._seconds = self._seconds, {}
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


class LiveProgress(Progress):
    """A bar on a terminal (stderr) or in a notebook."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._bar: RichProgress | None = None

    def begin(self, name: str, total: float, done: float) -> None:
        self._bar = RichProgress(
            TextColumn("{task.description:<24}"),
            BarColumn(bar_width=30),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            # A task may take minutes; the default window would forget the last one and show no estimate.
            speed_estimate_period=3600,
            refresh_per_second=4,
        )
        self._bar.start()
        self._bar.add_task(name, total=total, completed=int(done))

    def advance(self, flops: float) -> None:
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0], flops)

    def end(self, *, failed: bool) -> None:
        if self._bar is not None:
            if failed:
                self._bar.update(self._bar.task_ids[0], description="[red]failed[/red]")
            self._bar.stop()
            self._bar = None

    def note(self, message: str) -> None:
        self._console.print(message, highlight=False)


class LogProgress(Progress):
    """Lines on stderr, for log files."""

    def begin(self, name: str, total: float, done: float) -> None:
        self._name, self._total, self._done, self._at_start = name, total, done, done
        self._started = self._shown_at = time.monotonic()
        self._shown = done / total
        if done:
            self.note(f"{name}: {done / total:.0%} done by an earlier run")

    def advance(self, flops: float) -> None:
        self._done += flops
        now, part = time.monotonic(), self._done / self._total
        since = now - self._shown_at
        if since < LOG_SECONDS[0] or (part < self._shown + 0.1 and since < LOG_SECONDS[1]):
            return
        self._shown, self._shown_at = part, now
        elapsed = now - self._started
        left = elapsed * (self._total - self._done) / max(self._done - self._at_start, 1e-300)
        self.note(
            f"{self._name}: {min(part, 1):4.0%}, {format_seconds(elapsed)} gone, {format_seconds(max(left, 0))} left"
        )

    def end(self, *, failed: bool) -> None:
        self.note(
            f"{self._name}: {'failed after' if failed else 'done in'} "
            f"{format_seconds(time.monotonic() - self._started)}"
        )

    def note(self, message: str) -> None:
        print(f"dkrr {time.strftime('%H:%M:%S')} {message}", file=sys.stderr, flush=True)


def make_progress(show: bool | None) -> Progress:
    """Display that suits where this process runs.

    Parameters
    ----------
    show : bool or None
        None shows a bar on a terminal or in a notebook and nothing elsewhere; True shows lines elsewhere.
    """
    if show is False:
        return Progress()
    console = Console(stderr=True)
    if console.is_terminal or console.is_jupyter:
        return LiveProgress(console)
    return LogProgress() if show else Progress()
