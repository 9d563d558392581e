"""Outcomes of trials, and the judgement of errors."""

import re
import traceback
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dkrr.errors import DkrrError

MAX_DETAIL = 300
"""Characters of a message that are recorded; tracebacks of failures are recorded whole."""

_RAW = re.compile(r"Traceback|'NoneType'|has no attribute|object is not|unsupported operand|not subscriptable")
"""Words of Python's own errors, which say nothing to a user, in the message of an error of dkrr."""


class Outcome(StrEnum):
    """How a trial ended."""

    HARMLESS = "harmless"
    """The result is the undisturbed one."""
    REPAIRED = "repaired"
    """The result is the undisturbed one, and a message says what was found and done."""
    DETECTED = "detected"
    """An error of dkrr, which names the store or the argument."""
    WRONG = "wrong"
    """Another result."""
    RAW = "raw error"
    """An error that is not of dkrr, or in the words of Python."""
    MISLED = "misleading error"
    """An error of dkrr about something else than what was damaged or wrong."""
    CRASH = "crash"
    """The interpreter died."""
    HANG = "hang"
    """No end within the time limit."""
    LARGE = "memory"
    """More memory was taken than the bytes of a file explain."""
    LOST = "lost"
    """The run could not be resumed."""
    ORPHAN = "orphan"
    """A process was left behind."""
    LITTER = "litter"
    """Files were left by a process that could tidy up, or by a call that was refused."""
    REDONE = "redone"
    """More work was repeated than one task for each killed thread."""
    ACCEPTED = "accepted"
    """A wrong input was used without a word."""
    DECLINED = "declined"
    """An input that means something was refused."""
    LATE = "late"
    """A wrong input was refused after work had started."""


GOOD = (Outcome.HARMLESS, Outcome.REPAIRED, Outcome.DETECTED)
"""Outcomes that are as promised."""


@dataclass(frozen=True)
class Observation:
    """One trial and its outcome."""

    part: str
    """kills, models, runs or inputs."""
    row: str
    """Line of the table that counts it."""
    outcome: str
    seed: int = 0
    number: int = 0
    """Seed and number repeat a trial."""
    count: int = 1
    """Kills in this trial."""
    group: str = ""
    """Kind of model, or way to solve."""
    what: str = ""
    """What was damaged, or killed, and how."""
    detail: str = ""
    """Words of the error or of the message; the traceback of a failure."""

    @property
    def is_failure(self) -> bool:
        """Whether a promise was broken."""
        return self.outcome not in GOOD


def of_error(error: BaseException, named: str = "") -> tuple[Outcome, str]:
    """Outcome of a trial that ended with an error, and what to record of it.

    Parameters
    ----------
    error : BaseException
    named : str
        Text that the message must contain: the path of what was damaged.
    """
    trace = "".join(traceback.format_exception(error))
    if not isinstance(error, DkrrError) or _RAW.search(str(error)):
        return Outcome.RAW, trace
    if named not in str(error):
        return Outcome.MISLED, trace
    return Outcome.DETECTED, f"{type(error).__name__}: {error}"[:MAX_DETAIL]


def words(values: Any) -> str:
    """Messages, warnings or lines as one line of bounded length."""
    return " | ".join(str(value) for value in values)[:MAX_DETAIL]
