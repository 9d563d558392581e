"""Progress of long work, weighted by flops: the time of every stage, its displays, and messages through logging.

A display is a live bar on a terminal, one output of a notebook's cell, or lines through Python's logging: a line for
every tenth of the work, at most one in `LOG_SECONDS[0]` and at least one in `LOG_SECONDS[1]`.

Every module logs under its own name, below ``dkrr``; the lines of progress are those of ``dkrr.progress``. dkrr sets up
no logging by itself: a program does, or the command line (`logged_to_stderr`), with a handler on stderr.
"""

import contextvars
import html
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from dkrr.cost import Stage
from dkrr.plain_text import one_line, printable, safe_message
from dkrr.units import format_seconds


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


FORMAT = "dkrr %(asctime)s %(message)s"
DATES = "%Y-%m-%d %H:%M:%S"

package_logger = logging.getLogger("dkrr")
progress_logger = logging.getLogger("dkrr.progress")


class LineFormatter(logging.Formatter):
    """One line with date and time; what is more than information says so."""

    def __init__(self) -> None:
        super().__init__(FORMAT, DATES)

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


LOG_SECONDS = (2.0, 30.0)
REFRESH_SECONDS = 0.5
"""Seconds between two updates of a display in a notebook."""
MAX_PASSED = 0.95
"""Fraction of a part of a whole that is shown at most before it has ended, however long it takes."""
MAX_NOTES = 20
"""Messages that a display in a notebook keeps; the last ones."""


class LiveProgress(Progress):
    """A bar on a terminal (stderr)."""

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
        self._bar.add_task(escape(printable(name)), total=total, completed=int(done))

    def advance(self, flops: float) -> None:
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0], flops)

    def end(self, *, failed: bool) -> None:
        if self._bar is not None:
            if failed:
                self._bar.update(self._bar.task_ids[0], description="[red]stopped[/red]")
            self._bar.stop()
            self._bar = None

    def note(self, message: str) -> None:
        self._console.print(printable(message), highlight=False, markup=False)


class LogProgress(Progress):
    """Lines through the logger ``dkrr.progress``.

    Parameters
    ----------
    on_stderr : bool, default=False
        Write them to stderr where no handler takes them.
    """

    def __init__(self, *, on_stderr: bool = False) -> None:
        super().__init__()
        self._own = StderrHandler() if on_stderr else None

    def begin(self, name: str, total: float, done: float) -> None:
        self._stage = OpenStage(name, total, done)
        self._shown, self._shown_at = self._stage.fraction, self._stage.started
        if done:
            self.note(f"{name}: {self._stage.fraction:.0%} done by an earlier run")

    def advance(self, flops: float) -> None:
        stage = self._stage
        stage.done += flops
        now = time.monotonic()
        since = now - self._shown_at
        if since < LOG_SECONDS[0] or (stage.fraction < self._shown + 0.1 and since < LOG_SECONDS[1]):
            return
        self._shown, self._shown_at = stage.fraction, now
        left = f", {format_seconds(stage.left)} left" if stage.left >= 0 else ""
        self.note(f"{stage.name}: {stage.fraction:4.0%}, {format_seconds(stage.elapsed)} gone{left}")

    def end(self, *, failed: bool) -> None:
        how = "stopped after" if failed else "done in"
        self.note(f"{self._stage.name}: {how} {format_seconds(self._stage.elapsed)}")

    def note(self, message: str) -> None:
        if self._own is None or handlers_of(progress_logger):
            progress_logger.info("%s", message)
        else:  # asked for, where no logging is set up
            self._own.handle(
                progress_logger.makeRecord(progress_logger.name, logging.INFO, "", 0, "%s", (message,), None)
            )


class NotebookProgress(Progress):
    """One output of a cell, updated in place: a bar while a stage runs, a line of text for each that has ended.

    Stages of one name have one line, with their number. A saved notebook keeps the lines.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ended: dict[str, tuple[int, float, bool]] = {}
        """Number, seconds and failure of the stages that have ended, by name."""
        self._notes: list[str] = []
        self._stage: OpenStage | None = None
        self._handle: Any = None
        self._lock, self._stop = threading.Lock(), threading.Event()

    def begin(self, name: str, total: float, done: float) -> None:
        self._stage, self._stop = OpenStage(name, total, done), threading.Event()
        # Tasks may take minutes, and end in threads: the time that has passed is updated from a thread of its own, in
        # this cell's context, to which the kernel sends what it shows.
        context, stop = contextvars.copy_context(), self._stop
        threading.Thread(target=context.run, args=(self._refresh, stop), name="dkrr-progress", daemon=True).start()

    def advance(self, flops: float) -> None:
        if self._stage is not None:
            self._stage.done += flops

    def end(self, *, failed: bool) -> None:
        stage, self._stage = self._stage, None
        self._stop.set()
        if stage is not None:
            name = stage.name.split(", ")[0]  # without what the display says of one of several
            number, seconds, has_failed = self._ended.get(name, (0, 0.0, False))
            self._ended[name] = (number + 1, seconds + stage.elapsed, failed or has_failed)
        self._show()

    def note(self, message: str) -> None:
        self._notes = [*self._notes, printable(message)][-MAX_NOTES:]
        self._show()

    def lines(self) -> list[str]:
        """Text of what has ended, and of messages."""
        width = max(map(len, self._ended), default=0)
        ended = [
            f"{name:<{width}}  {'stopped after' if failed else 'done in'} {format_seconds(seconds)}"
            + (f" ({number} times)" if number > 1 else "")
            for name, (number, seconds, failed) in self._ended.items()
        ]
        return [*ended, *self._notes]

    def _refresh(self, stop: threading.Event) -> None:
        while not stop.wait(REFRESH_SECONDS):
            self._show()

    def _show(self) -> None:
        from IPython.display import display

        with self._lock:
            stage, text = self._stage, "\n".join(self.lines())
            page = f'<pre style="margin:0;white-space:pre-wrap">{html.escape(text)}</pre>' if text else ""
            if stage is not None:
                page, text = page + _bar(stage), f"{text}\n{_words(stage)}".lstrip()
            shown = {"text/plain": text, "text/html": page}
            if self._handle is None:
                self._handle = display(shown, raw=True, display_id=True)
            else:
                self._handle.update(shown, raw=True)


def _words(stage: OpenStage) -> str:
    left = f", {format_seconds(stage.left)} left" if stage.left >= 0 else ""
    return f"{stage.name}  {stage.fraction:.0%}, {format_seconds(stage.elapsed)} gone{left}"


def _bar(stage: OpenStage) -> str:
    return (
        '<div style="display:flex;align-items:center;gap:0.8em;font-family:monospace">'
        '<div style="flex:none;width:16em;height:0.5em;border-radius:0.25em;background:rgba(127,127,127,0.3)">'
        f'<div style="width:{stage.fraction:.1%};height:100%;border-radius:0.25em;background:#3182ce"></div></div>'
        f"<div>{html.escape(_words(stage))}</div></div>"
    )


class Several(Progress):
    """Passes on what it shows to several displays; the time of stages is that of the first."""

    def __init__(self, *displays: Progress) -> None:
        super().__init__()
        self._displays = displays
        self._seconds = displays[0]._seconds

    def begin(self, name: str, total: float, done: float) -> None:
        for display in self._displays:
            display.begin(name, total, done)

    def advance(self, flops: float) -> None:
        for display in self._displays:
            display.advance(flops)

    def end(self, *, failed: bool) -> None:
        for display in self._displays:
            display.end(failed=failed)

    def note(self, message: str) -> None:
        for display in self._displays:
            display.note(message)


class Whole:
    """One display of work that is made of several parts, such as a search: its parts show nothing of their own.

    Parameters
    ----------
    name : str
    n_parts : int
    show : bool or None
        As in `make_progress`; None shows nothing where all parts together should take less than `quiet_seconds`.
    quiet_seconds : float
    """

    def __init__(self, name: str, n_parts: int, show: bool | None, quiet_seconds: float) -> None:
        self._name, self._n_parts, self._show, self._quiet_seconds = name, n_parts, show, quiet_seconds
        self._display: Progress | None = None
        self._is_open, self._seconds, self._done, self._passed, self._started = False, 0.0, 0.0, 0, 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: Any) -> None:
        if self._display is not None:
            self._display.__exit__(*failure)

    @contextmanager
    def part(self) -> Iterator[None]:
        """Work on one part, whose displays are this one."""
        self._seconds, self._done, self._started = 0.0, 0.0, time.monotonic()
        token = _WHOLE.set(self)
        try:
            yield
        finally:
            _WHOLE.reset(token)
        self._open(time.monotonic() - self._started)
        self._passed += 1
        self._advance(1.0)

    def expect(self, seconds: float) -> None:
        """Say how long the part that was begun should take."""
        self._seconds = seconds
        self._open(seconds)

    def tick(self) -> None:
        """Show how much of the time of this part has passed."""
        if self._seconds > 0:
            self._advance(min(MAX_PASSED, (time.monotonic() - self._started) / self._seconds))

    def note(self, message: str) -> None:
        """Display a message, if anything is displayed."""
        if self._display is not None:
            self._display.note(message)

    def _open(self, seconds: float) -> None:
        if self._display is None and (self._show is not None or seconds * self._n_parts >= self._quiet_seconds):
            token = _WHOLE.set(None)  # a display of its own, also within a part
            self._display = make_progress(self._show).stage(self._name, self._n_parts, self._passed)
            _WHOLE.reset(token)

    def _advance(self, done: float) -> None:
        if self._display is not None and done > self._done:
            self._display.advance(done - self._done)
            self._done = done


class Part(Progress):
    """Shows nothing of its own stages, but that time passes in the part of a whole."""

    def __init__(self, whole: Whole) -> None:
        super().__init__()
        self._whole = whole

    def advance(self, flops: float) -> None:  # noqa: ARG002
        self._whole.tick()

    def end(self, *, failed: bool) -> None:  # noqa: ARG002
        self._whole.tick()

    def note(self, message: str) -> None:
        self._whole.note(message)


_WHOLE: contextvars.ContextVar[Whole | None] = contextvars.ContextVar("dkrr_whole", default=None)


def make_progress(show: bool | None) -> Progress:
    """Display that suits where this process runs.

    Parameters
    ----------
    show : bool or None
        None shows a bar on a terminal or in a notebook, and logs lines where a handler takes those of
        ``dkrr.progress``; True shows lines elsewhere too. A handler that writes to the screen replaces the bar.
        Within a part of a `Whole` its display is used.
    """
    whole = _WHOLE.get()
    if whole is not None:
        return Part(whole)
    if show is False:
        return Progress()
    handlers = handlers_of(progress_logger)
    live = None if any(map(is_screen, handlers)) else _live()
    logged = LogProgress(on_stderr=show is True) if handlers or (show and live is None) else None
    if live is not None and logged is not None:
        return Several(live, logged)
    return live or logged or Progress()


def _live() -> Progress | None:
    if is_notebook():
        return NotebookProgress()
    console = Console(stderr=True, force_jupyter=False)
    return LiveProgress(console) if console.is_terminal else None


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")
