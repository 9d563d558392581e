"""Messages through Python's logging: who takes them, and a handler on stderr for programs that have set up none.

Every module logs under its own name, below ``dkrr``; the lines of progress are those of ``dkrr.progress``. dkrr sets up
no logging by itself: a program does, or the command line (`logged_to_stderr`).
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console

from dkrr.plain_text import one_line, safe_message

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
