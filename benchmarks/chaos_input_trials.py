"""The cases of `benchmarks.chaos_inputs` by number, in a process kept warm."""

from functools import cache
from importlib import import_module
from typing import Any

from benchmarks.chaos_trials import Outcome

VERDICTS = {
    "refused": Outcome.DETECTED,
    "declined": Outcome.DECLINED,
    "accepted": Outcome.HARMLESS,
    "taken": Outcome.ACCEPTED,
    "raw": Outcome.RAW,
    "unnamed": Outcome.MISLED,
    "late": Outcome.LATE,
    "wrote": Outcome.LITTER,
    "slow": Outcome.HANG,
}
"""Outcomes of this suite for the verdicts of that module."""


@cache
def _cases() -> list[Any]:
    return list(import_module("benchmarks.chaos_inputs").cases())


def count() -> dict[str, Any]:
    """Return the number of cases."""
    return {"count": len(_cases())}


def trial(number: int) -> dict[str, Any]:
    """Carry out a case."""
    case = _cases()[number]
    found = import_module("benchmarks.chaos_inputs").trial(case)
    row = case.name.split("(")[0]
    return {"row": row, "outcome": VERDICTS[found.verdict], "what": case.name, "detail": found.message[:300]}
