"""Progress of long work, weighted by flops: the time of every stage, its displays, and messages through logging.

A display is bars that rich draws, on a terminal or in an output of a notebook's cell, or lines through Python's
logging: one for every tenth of the work, at most one in `LOG_SECONDS[0]` and at least one in `LOG_SECONDS[1]`.

Every module logs under its own name, below ``dkrr``; the lines of progress are those of ``dkrr.progress``. dkrr does
not set up logging: a program does, or the command line (`logged_to_stderr`), with a handler on stderr.
"""

import contextvars
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self, TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from dkrr.cost import Stage
from dkrr.text import format_seconds, one_line, printable, safe_message

LOG_SECONDS = (2.0, 30.0)
REFRESH_SECONDS = 0.5
"""Seconds between two updates of a display in a notebook."""
MAX_BARS = 20
"""Bars of a display in a notebook; those of the last stages are kept."""
TOTAL_UNITS = 1000.0
"""Work of a whole, for its display."""
ON_TIME = 0.75
"""Fraction of its expected time up to which a part of a whole is shown to be on time."""


class Progress:
    """Measures the time of every stage, and passes on what is done to displays; the base of those below.

    Used as a context manager: ``with progress.stage("factorisation", flops): ... progress.advance(flops)``.

    Parameters
    ----------
    *displays : Progress
        Without one nothing is shown.
    """

    def __init__(self, *displays: "Progress") -> None:
        self._displays = displays
        self._seconds: dict[str, float] = {}

    def shown_also(self, display: "Progress") -> "Progress":
        """Progress with the same stages that also reports to another display."""
        both = Progress(self, display)
        both._seconds = self._seconds
        return both

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
        self._seconds.clear()  # not another dictionary: `shown_also` shares it
        return tuple(map(Stage, taken.keys(), taken.values()))

    def begin(self, name: str, total: float, done: float) -> None:
        """Display the start of a stage."""
        for display in self._displays:
            display.begin(name, total, done)

    def advance(self, flops: float) -> None:
        """Display that work was done."""
        for display in self._displays:
            display.advance(flops)

    def end(self, *, failed: bool) -> None:
        """Display the end of a stage."""
        for display in self._displays:
            display.end(failed=failed)

    def note(self, message: str) -> None:
        """Display a message between stages."""
        for display in self._displays:
            display.note(message)

    def detail(self, message: str) -> None:
        """Display a message of how far one fit is, which the display of a whole leaves out."""
        for display in self._displays:
            display.detail(message)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        self._measuring.__exit__(None, None, None)
        self.end(failed=kind is not None)


class Share(Progress):
    """Passes on the work of tasks as a fraction of the stage of another display; it has no stages.

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


LOG_FORMAT = "dkrr %(asctime)s %(message)s"
DATES = "%Y-%m-%d %H:%M:%S"

package_logger = logging.getLogger("dkrr")
progress_logger = logging.getLogger("dkrr.progress")


class LineFormatter(logging.Formatter):
    """Formatter of a line with date and time, and with the level if it is above INFO."""

    def __init__(self) -> None:
        super().__init__(LOG_FORMAT, DATES)

    def format(self, record: logging.LogRecord) -> str:
        """Text of a record and its traceback, without control characters."""
        return safe_message(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        """Line of a record, with its level if that is above information."""
        record.message = one_line(record.message)
        if record.levelno > logging.INFO:
            record.message = f"{record.levelname.lower()}: {record.message}"
        return super().formatMessage(record)


class StderrHandler(logging.StreamHandler[TextIO]):
    """Writes lines to what sys.stderr is at that time: a live bar takes its place, and notebooks and tests do."""

    def __init__(self, level: int = logging.NOTSET) -> None:
        logging.Handler.__init__(self, level)
        self.setFormatter(LineFormatter())

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """Stream for errors of the process."""
        return sys.stderr


stderr_logger = logging.Logger("dkrr.progress")
"""For lines that are asked for where no logging is set up; no other logger passes records to it."""
stderr_logger.addHandler(StderrHandler())


def handlers_of(logger: logging.Logger, level: int = logging.INFO) -> list[logging.Handler]:
    """Handlers that take records of this level from a logger."""
    found: list[logging.Handler] = []
    one: logging.Logger | None = logger if logger.isEnabledFor(level) else None
    while one is not None:
        found += [h for h in one.handlers if h.level <= level and not isinstance(h, logging.NullHandler)]
        one = one.parent if one.propagate else None
    return found


def is_screen(handler: logging.Handler) -> bool:
    """Whether a handler writes to standard output or error, where a live display would be torn by it."""
    stream = getattr(handler, "stream", None)
    return stream is not None and stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)


@contextmanager
def logged_to_stderr() -> Iterator[logging.Handler | None]:
    """Write dkrr's messages to stderr, unless the program has set up its own handlers.

    On a terminal they are warnings only, since a live bar shows the rest.

    Yields
    ------
    logging.Handler or None
        Handler that was added for this time.
    """
    if handlers_of(package_logger, logging.WARNING):
        yield None
        return
    earlier = package_logger.level
    handler = StderrHandler(logging.WARNING if Console(stderr=True).is_terminal else logging.INFO)
    package_logger.addHandler(handler)
    package_logger.setLevel(min(earlier or logging.INFO, logging.INFO))
    try:
        yield handler
    finally:
        package_logger.removeHandler(handler)
        package_logger.setLevel(earlier)


class CellBars(RichProgress):
    """Bars in one output of a notebook's cell, which is replaced; rich's own way needs ipywidgets."""

    _output: Any = None

    def start(self) -> None:
        """Show the bars, and update them while a stage runs, however long its tasks take."""
        from IPython.display import display

        if self._output is None:
            self._output = display(self, display_id=True)
        self._ended = threading.Event()
        threading.Thread(target=self._update, args=(self._ended,), name="dkrr-progress", daemon=True).start()

    def stop(self) -> None:
        """Show them a last time."""
        self._ended.set()
        self._output.update(self)

    def _update(self, ended: threading.Event) -> None:
        while not ended.wait(REFRESH_SECONDS):
            self._output.update(self)


class LiveProgress(Progress):
    """A bar for each stage, on a terminal (stderr) or in a notebook."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._bars: RichProgress | None = None
        self._task = TaskID(0)

    def begin(self, name: str, total: float, done: float) -> None:
        if self._bars is None or not self._console.is_jupyter:  # what a terminal shows of earlier stages stays there
            self._bars = (CellBars if self._console.is_jupyter else RichProgress)(
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
        name = escape(printable(name))
        for task in self._bars.tasks:  # a notebook keeps those of the last stages, of one that is repeated the last
            if task.description == name or task.id <= self._task + 1 - MAX_BARS:
                self._bars.remove_task(task.id)
        self._task = self._bars.add_task(name, total=total, completed=int(done))
        self._bars.start()

    def advance(self, flops: float) -> None:
        if self._bars is not None:
            self._bars.advance(self._task, flops)

    def end(self, *, failed: bool) -> None:
        if self._bars is not None:
            task = self._bars.tasks[-1]
            if failed:
                self._bars.update(task.id, description=f"{task.description} [red]stopped[/red]")
            else:
                self._bars.update(task.id, completed=task.total)
            self._bars.stop()

    def note(self, message: str) -> None:
        self._console.print(printable(message), highlight=False, markup=False)

    detail = note


class LogProgress(Progress):
    """Lines through a logger: `progress_logger`, or `stderr_logger` where no handler takes those of that one."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self._logger = logger

    def begin(self, name: str, total: float, done: float) -> None:
        self._name, self._total, self._done, self._before = name, total, done, done
        self._began = self._shown_at = time.monotonic()
        self._shown = min(done / total, 1.0)
        if done:
            self.note(f"{name}: {self._shown:.0%} of its work done by an earlier run")

    def advance(self, flops: float) -> None:
        self._done += flops
        now, fraction = time.monotonic(), min(self._done / self._total, 1.0)
        since = now - self._shown_at
        if since < LOG_SECONDS[0] or (fraction < self._shown + 0.1 and since < LOG_SECONDS[1]):
            return
        self._shown, self._shown_at = fraction, now
        gone, of_this_run = now - self._began, self._done - self._before
        left = max(gone * (self._total - self._done) / of_this_run, 0.0) if of_this_run else None
        self.note(
            f"{self._name}: {fraction:4.0%}, {format_seconds(gone)} gone"
            + ("" if left is None else f", {format_seconds(left)} left")
        )

    def end(self, *, failed: bool) -> None:
        how = "stopped after" if failed else "done in"
        self.note(f"{self._name}: {how} {format_seconds(time.monotonic() - self._began)}")

    def note(self, message: str) -> None:
        self._logger.info("%s", message)

    detail = note


class CombinedProgress(Progress):
    """Display of work that consists of several parts, such as a search.

    It is the display of its parts as well: their stages show only that time passes in the part. The share that is
    shown is that of the seconds that all parts should take, and never becomes smaller.

    Parameters
    ----------
    name : str
    seconds : float
        What all parts together should take.
    show : bool or None
        As in `make_progress`.
    beginning : str
        What is shown first: the plan.
    """

    def __init__(self, name: str, seconds: float, show: bool | None, beginning: str = "") -> None:
        super().__init__()
        self._name, self._total, self._beginning = name, max(seconds, 1e-9), beginning
        self._display = _displayed(show)
        self._passed, self._done = 0.0, 0.0

    def __enter__(self) -> Self:
        for line in self._beginning.splitlines():
            self._display.note(line)
        self._display.stage(self._name, TOTAL_UNITS)
        return self

    def __exit__(self, kind: type[BaseException] | None, *others: Any) -> None:
        if kind is None:
            self._reach(self._total)
        self._display.__exit__(kind, *others)

    @contextmanager
    def part(self, seconds: float) -> Iterator[None]:
        """Context of the work on one part, which should take `seconds` and is displayed here."""
        self._expected, self._started = seconds, time.monotonic()
        token = _WHOLE.set(self)
        try:
            yield
        finally:
            _WHOLE.reset(token)
        self._passed += seconds
        self._reach(self._passed)

    def advance(self, flops: float) -> None:  # noqa: ARG002
        """Show how much of the time of this part has passed."""
        if self._expected > 0:
            self._reach(self._passed + self._expected * passed((time.monotonic() - self._started) / self._expected))

    def end(self, *, failed: bool) -> None:  # noqa: ARG002
        self.advance(0.0)

    def note(self, message: str) -> None:
        self._display.note(message)

    def detail(self, message: str) -> None:
        pass

    def _reach(self, seconds: float) -> None:
        done = min(1.0, seconds / self._total)
        if done > self._done:
            self._display.advance(TOTAL_UNITS * (done - self._done))
            self._done = done


def passed(time_over_expected: float) -> float:
    """Share of a part that is shown after a time: that of the time at first, and ever less where it takes longer."""
    if time_over_expected <= ON_TIME:
        return time_over_expected
    return 1.0 - (1.0 - ON_TIME) * ON_TIME / time_over_expected


_WHOLE: contextvars.ContextVar[CombinedProgress | None] = contextvars.ContextVar("dkrr_whole", default=None)


def make_progress(show: bool | None) -> Progress:
    """Display that suits where this process runs.

    Parameters
    ----------
    show : bool or None
        None shows a bar on a terminal or in a notebook, and logs lines where a handler takes those of
        ``dkrr.progress``; True shows lines elsewhere too. A handler that writes to the screen replaces the bar.
        Within a part of a `CombinedProgress` its display is used.
    """
    whole = _WHOLE.get()
    if whole is not None:
        return Progress(whole)
    return Progress() if show is False else _displayed(show)


def _displayed(show: bool | None) -> Progress:
    handlers, console = handlers_of(progress_logger), Console(stderr=True)
    displays: list[Progress] = []
    if (console.is_terminal or console.is_jupyter) and not any(map(is_screen, handlers)):
        displays.append(LiveProgress(console))
    if handlers or (show and not displays):
        displays.append(LogProgress(progress_logger if handlers else stderr_logger))
    return Progress(*displays)
