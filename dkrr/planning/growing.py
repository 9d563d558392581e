"""Plans of fits that keep the factor of their first rows: what that saves, beside fits that keep nothing."""

from collections.abc import Sequence
from dataclasses import replace

from dkrr.planning.problem import Problem
from dkrr.planning.strategy import Strategy
from dkrr.text import Reason, format_seconds, plural

KEEPS_NOTHING = Reason("keeps-nothing", "keeps nothing of the first rows")


def as_if_new(problem: Problem) -> Problem:
    """Problem of a fit that keeps nothing, to compare with."""
    return replace(problem, kept_rows=0, layout=None)


def instead_of_growing(chosen: Strategy, new_fits: Sequence[Strategy]) -> tuple[Strategy, ...]:
    """Best candidates of a fit that keeps nothing, with and without a complete factor."""
    best = dict[bool, Strategy]()
    for c in sorted(new_fits, key=lambda c: c.seconds):
        if not c.refused:
            best.setdefault(c.is_direct, c)
    others = sorted(best.values(), key=lambda c: c.seconds)
    return tuple(replace(c, refused=_why_not(c, chosen)) for c in others)


def _why_not(c: Strategy, chosen: Strategy) -> Reason:
    ratio = c.seconds / max(chosen.seconds, 1e-9)
    return Reason(KEEPS_NOTHING.code, f"{KEEPS_NOTHING}, {ratio:.2g} × the time") if ratio > 1.0 else KEEPS_NOTHING


def growth_reason(problem: Problem, chosen: Strategy, new_fits: Sequence[Strategy]) -> Reason:
    """What is kept, and what that saves."""
    n, kept = problem.n, problem.n_kept_rows
    if kept >= n:
        text = f"the factor of all {n:,} rows is kept"
    else:
        share = 1.0 - (kept / n) ** 3
        text = f"{plural(kept, 'row')} kept, {n - kept:,} new: {share:.2g} of the operations of a new fit"
    seconds = min((c.seconds for c in new_fits if c.is_direct and not c.refused), default=None)
    if seconds is not None:
        text += f", about {format_seconds(chosen.seconds)} instead of {format_seconds(seconds)}"
    return Reason("grows", text)
