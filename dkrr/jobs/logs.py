"""Logs of a job that are read the morning after: time, level, model and message on every line."""

import logging
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from dkrr.plain_text import safe_message

MAX_WIDTH = 40
"""Characters of a model's name beyond which the messages are not in one column."""

_model: ContextVar[str] = ContextVar("dkrr_model", default="")


@contextmanager
def about(name: str) -> Iterator[None]:
    """Name the model in all lines that are logged in the block."""
    before = _model.set(name)
    try:
        yield
    finally:
        _model.reset(before)


class Formatter(logging.Formatter):
    """Every line of a message begins with the time, the level and the model, so that `grep` finds it."""

    def __init__(self, width: int) -> None:
        super().__init__("%(message)s")
        self._width = min(width, MAX_WIDTH)

    def format(self, record: logging.LogRecord) -> str:
        """Lines of a record; one with its traceback has several."""
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        head = f"{moment} {record.levelname:<7} {_model.get() or '-':<{self._width}}  "
        return "\n".join(f"{head}{line}".rstrip() for line in safe_message(super().format(record)).splitlines() or [""])


@contextmanager
def logging_of_job(handler: logging.Handler | None, names: list[str], *, quiet: bool) -> Iterator[None]:
    """Log warnings, too, in the block, and write all messages in the form of this module.

    Parameters
    ----------
    handler : logging.Handler, optional
        That of the command line; None: the program has its own, whose form is kept.
    names : list of str
        Names of the models.
    quiet : bool
        Whether only warnings and errors are shown.
    """
    of_warnings = logging.getLogger("py.warnings")
    before = warnings.formatwarning
    if handler is not None:
        form, level = handler.formatter, handler.level
        handler.setFormatter(Formatter(max(map(len, names), default=1)))
        handler.setLevel(logging.WARNING if quiet else logging.INFO)
        of_warnings.addHandler(handler)
    logging.captureWarnings(capture=True)
    warnings.formatwarning = _one_line
    try:
        yield
    finally:
        warnings.formatwarning = before
        logging.captureWarnings(capture=False)
        if handler is not None:
            of_warnings.removeHandler(handler)
            handler.setFormatter(form)
            handler.setLevel(level)


def _one_line(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> str:
    """A warning without the line of code that it is about."""
    return f"{category.__name__}: {message}"
