"""Conjugate gradient first, and watched: where its iterations begin, and the factorisation that takes over.

Their number is an estimate, which may be too small or too large by a factor of several, while the time of a
factorisation is about known. A fit that begins with iterations sees from their residuals what they will take, and loses
a third of the factorisation's time at most (`dkrr.linalg.giving_up`). So it begins with them where they promise to be
somewhat faster, and not only where they surely are. Where nothing can take over, they are chosen only if they surely
are, or if nothing else is possible.
"""

from collections.abc import Sequence
from dataclasses import replace

from dkrr.cost import Stage
from dkrr.linalg.giving_up import MOST_LOST
from dkrr.planning.facts import TYPICAL
from dkrr.planning.problem import Problem
from dkrr.planning.strategy import Strategy
from dkrr.text import NO_REASON, Reason, format_seconds

SOON_SECONDS = 0.5
"""Work of a direct solver below which it is not compared with iterations: a sample of the spectrum and prices take 20
to 60 ms."""
SOON_SECONDS_IN_TILES = 3.0
"""The same where the user has cut the matrix of a factorisation, and nothing takes over from iterations."""
PROMISED = 0.8
"""Fraction of the direct solver's time that iterations must promise to take less than, to begin with them."""
SURE_SPEEDUP = 3.0
"""By how much conjugate gradient must beat the direct solver where it is not watched: its time is an estimate."""

MANY_ITERATIONS = 2000
"""Iterations that the primal form may take, where the spectrum is not known."""
FEW_ITERATIONS = 5
"""Iterations of the primal form with uncorrelated columns."""
DOUBT_OF_ESTIMATE = (0.3, 1.3)
"""Smallest and largest number of iterations over the expected one, of fits whose spectrum was estimated on a sample
(normal, uniform, heavy-tailed, clustered and nearly singular rows; 4, 16 and 64 columns)."""
DOUBT_OF_TYPICAL = (0.1, 2.0)
"""Smallest and largest number of iterations over the expected one, where a typical spectrum was assumed."""
GIVEN_UP = "iterations-given-up"
"""Code of the reason for a factorisation that took over."""
DIRECT_IS_SOON_DONE = Reason(
    "direct-is-soon-done",
    "a factorisation takes so little time that comparing it with iterations would not pay",
)
NOT_MUCH_FASTER = Reason(
    "not-much-faster", f"promises more than {PROMISED:g} of the factorisation's time, by an estimate of its iterations"
)
NOT_SURELY_FASTER = Reason(
    "not-surely-faster",
    f"not {SURE_SPEEDUP:g} × faster, and the estimate of its iterations may be wrong by that factor",
)
SPECTRUM_UNKNOWN = Reason(
    "spectrum-unknown", "its iterations cannot be estimated before the fit; give solver='cg' to use it"
)


def is_soon_done(p: Problem, seconds: float) -> bool:
    """Whether a direct solver is so fast that it is not compared with one whose time is only an estimate."""
    return seconds <= (SOON_SECONDS if p.tile is None else SOON_SECONDS_IN_TILES)


def is_watched(p: Problem, c: Strategy) -> bool:
    """Whether a factorisation may take over from iterations.

    Not with batches of targets, of which some are solved; nor where the user has cut the matrix of a factorisation.
    """
    return p.solver is None and p.tile is None and not (p.batch and c.form == "dual")


def doubt(p: Problem, c: Strategy, direct_seconds: float) -> Reason:
    """Why `solver="auto"` must not begin with iterations where a direct solver takes a given time; empty if it may."""
    if is_soon_done(p, direct_seconds):
        return DIRECT_IS_SOON_DONE
    if min(p.alphas) <= 0 or (c.form == "dual" and not p.kernel.has_unit_diagonal):
        return SPECTRUM_UNKNOWN
    if is_watched(p, c):
        return NO_REASON if c.seconds < PROMISED * direct_seconds else NOT_MUCH_FASTER
    return NO_REASON if is_surely_faster(p, c, direct_seconds) else NOT_SURELY_FASTER


def is_surely_faster(p: Problem, c: Strategy, direct_seconds: float) -> bool:
    """Whether iterations are faster than a direct solver though their estimate may be wrong."""
    return max(SURE_SPEEDUP, iteration_doubt(p, c)[1]) * c.seconds < direct_seconds


def watched(p: Problem, chosen: Strategy, candidates: Sequence[Strategy]) -> Strategy:
    """Chosen iterations, with the direct strategy that may take over, whose memory and disk are in the plan."""
    if not is_watched(p, chosen):
        return chosen
    direct = min((c for c in candidates if c.is_direct and not c.refused), key=lambda c: c.seconds, default=None)
    if direct is None or (direct.disk_bytes > chosen.disk_bytes and is_surely_faster(p, chosen, direct.seconds)):
        return chosen
    # Workers and the calling process have separate limits, within which the direct one stays.
    peak = 0 if chosen.execution == "dask" != direct.execution else direct.peak_bytes
    more = Stage("factorisation", 0.0, disk_bytes=max(0, direct.disk_bytes - chosen.disk_bytes), peak_bytes=peak)
    return replace(chosen, stages=(*chosen.stages, more), otherwise=direct)


def why_watched(what: str, how: str, seconds: float) -> Reason:
    """What happens if the iterations turn out to be slower."""
    return Reason(
        "watched",
        f"watched: changes to {what} ({how}, about {format_seconds(seconds)}) if its residuals show that this takes "
        f"less than what is left of the iterations",
    )


def most_seconds(chosen: Strategy, most: float) -> float:
    """Longest time of a strategy whose iterations may take as long as `most`, where a direct one may take over."""
    if chosen.otherwise is None:
        return most
    return max(chosen.seconds, min(most, (1 + MOST_LOST) * chosen.otherwise.seconds))


def iteration_doubt(p: Problem, c: Strategy) -> tuple[float, float]:
    """Smallest and largest number of iterations over the expected one, where an estimate says no more."""
    if c.is_direct:
        return 1.0, 1.0
    if c.form == "primal":
        most = min(MANY_ITERATIONS, c.tile + 1)
        return FEW_ITERATIONS / max(c.iterations, FEW_ITERATIONS), max(1.0, most / c.iterations)
    return DOUBT_OF_TYPICAL if p.facts.spectrum == TYPICAL else DOUBT_OF_ESTIMATE
