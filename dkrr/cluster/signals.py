"""SIGTERM and SIGHUP: where they would end the process at once, they first end the run as Ctrl-C does.

Batch systems, `timeout`, containers and closed notebooks send SIGTERM, closed terminals SIGHUP. Python's default leaves
temporary folders and worker processes behind.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that ask a process to end."""
PATIENCE_SECONDS = 30.0
"""Seconds after the first signal from which another one ends the process at once."""


class EndedBySignal(SystemExit):
    """Raised in the main thread by a signal that asks the process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Leave the block by an exception when the process is asked to end, and end it by that signal afterwards.

    Only in the main thread, where Python runs handlers, and only for signals that nobody else handles or ignores.
    """
    free: list[int] = []
    if threading.current_thread() is threading.main_thread():
        free = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]
    received: list[tuple[int, float]] = []

    def end(number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if not received:
            received.append((number, now))
            raise EndedBySignal(number)
        # The same request often comes twice, to the process and to its group: what ends in order goes on.
        if now > received[0][1] + PATIENCE_SECONDS:
            _end_now(number)

    for number in free:
        signal.signal(number, end)
    try:
        yield
    finally:
        if received:
            _end_now(received[0][0])
        for number in free:
            if signal.getsignal(number) is end:
                signal.signal(number, signal.SIG_DFL)


def _end_now(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
