"""Models of a job one after the other: each is fitted, skipped because it is complete, or fails without the others."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

from dkrr.errors import ClusterError, DkrrError
from dkrr.jobs.batch import INTERRUPTED
from dkrr.jobs.entries import Entry
from dkrr.jobs.logs import about
from dkrr.runtime.signals import EndedBySignal
from dkrr.units import format_seconds

logger = logging.getLogger(__name__)

MAX_NAMED = 5
"""Failed models that the last line of the log names."""


class Outcome(Enum):
    """What became of a model."""

    DONE = "done"
    SKIPPED = "skipped"
    """It is complete from an earlier run."""
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    """The job was ended while it was fitted."""
    NOT_STARTED = "not started"


@dataclass(frozen=True)
class Record:
    """What became of a model, as one line of JSON."""

    name: str
    outcome: Outcome
    seconds: float = 0.0
    error: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """What the command says about the model."""

    def to_dict(self) -> dict[str, Any]:
        """Values of JSON."""
        own = asdict(replace(self, facts={})) | {"outcome": self.outcome.value}
        del own["facts"]
        return {**own, "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **self.facts}


def run_models(
    entries: Sequence[Entry],
    skipped: Collection[str],
    work: Callable[[Entry], dict[str, Any]],
    report: Callable[[Record], None],
    *,
    fail_fast: bool,
) -> int:
    """Carry out the models of a job.

    Parameters
    ----------
    entries : sequence of Entry
        The models, in order.
    skipped : collection of str
        Names of those that are complete.
    work : callable
        Fits and saves a model, and returns what there is to say about it.
    report : callable
        Takes the record of every model, as soon as it is known.
    fail_fast : bool
        Whether no model is started after one has failed.

    Returns
    -------
    int
        Exit status: 0, or 1 if a model failed, or 130 after Ctrl-C.

    Raises
    ------
    EndedBySignal
        After SIGTERM or SIGHUP, once all models are reported.
    """
    began, counts, status = time.monotonic(), Counter[Outcome](), 0
    ended: EndedBySignal | None = None
    why, failed = "", list[str]()
    for number, entry in enumerate(entries, 1):
        with about(entry.name):
            if entry.name in skipped:
                record = Record(entry.name, Outcome.SKIPPED)
                logger.info("model %d of %d is complete from an earlier run: skipped", number, len(entries))
            elif why:
                record = Record(entry.name, Outcome.NOT_STARTED, error=why)
            else:
                logger.info("model %d of %d: %s", number, len(entries), _described(entry))
                try:
                    record, lost = _carried_out(entry, work)
                    status = max(status, int(record.outcome is Outcome.FAILED))
                    if lost or (record.outcome is Outcome.FAILED and fail_fast):
                        why = f"{entry.name} failed" if fail_fast else f"the cluster was lost with {entry.name}"
                except (KeyboardInterrupt, EndedBySignal) as error:
                    ended = error if isinstance(error, EndedBySignal) else None
                    status = INTERRUPTED
                    why = "interrupted" if ended is None else f"ended by signal {int(ended.code or 0) - 128}"
                    record = Record(entry.name, Outcome.INTERRUPTED, error=why)
                    logger.error("%s; the same command with --resume continues", why)
            counts[record.outcome] += 1
            failed += [entry.name] if record.outcome is Outcome.FAILED else []
            report(record)
    parts = [f"{counts[outcome]} {outcome.value}" for outcome in Outcome if counts[outcome]]
    found = ", ".join(parts)
    if failed:
        found += f" (failed: {', '.join(failed[:MAX_NAMED])}{' ...' if len(failed) > MAX_NAMED else ''})"
    level = logging.INFO if not status else logging.ERROR
    logger.log(level, "end of the job: %s; %s", found or "no models", format_seconds(time.monotonic() - began))
    if ended is not None:
        raise ended
    return status


def _carried_out(entry: Entry, work: Callable[[Entry], dict[str, Any]]) -> tuple[Record, bool]:
    """Record of a model, and whether no other can be fitted after it."""
    began = time.monotonic()
    facts: dict[str, Any] = {}
    try:
        facts = work(entry)
    except (DkrrError, OSError, MemoryError) as error:
        facts = getattr(error, "facts", {})
        text = str(error) if isinstance(error, DkrrError) else f"{type(error).__name__}: {error}"
        logger.error("failed after %s: %s", format_seconds(time.monotonic() - began), text)
        record = Record(entry.name, Outcome.FAILED, time.monotonic() - began, text, facts)
        return record, isinstance(error, ClusterError)
    except Exception as error:  # a fault of dkrr or of a library must not end the night
        logger.exception("failed after %s, unexpectedly", format_seconds(time.monotonic() - began))
        text = f"{type(error).__name__}: {error}"
        return Record(entry.name, Outcome.FAILED, time.monotonic() - began, text), False
    seconds = time.monotonic() - began
    logger.info("done in %s%s", format_seconds(seconds), _result(facts))
    return Record(entry.name, Outcome.DONE, seconds, None, facts), False


def _described(entry: Entry) -> str:
    """Options of a model in a line."""
    return ", ".join(f"{key}={value}" for key, value in entry.values.items() if key not in ("model", "store"))


def _result(facts: dict[str, Any]) -> str:
    """What a command says about a model, in a line."""
    residual, path = facts.get("residual"), facts.get("model")
    parts = [f"residual {residual:.1e}" if residual is not None else "", f"saved in {path}" if path else ""]
    return "".join(f", {part}" for part in parts if part)
