"""Rows to measure next: a posterior covariance of candidates, whose memory is planned first, and the greedy choice."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dkrr.cluster.process import usable_threads
from dkrr.cost import Work
from dkrr.data import Rows
from dkrr.data.rows import Block, check_finite
from dkrr.errors import InputError, MemoryLimitError
from dkrr.fitting.context import progress_of
from dkrr.fitting.posteriors import Posteriors
from dkrr.fitting.prediction_costs import room_for
from dkrr.limits import resident_bytes
from dkrr.linalg.posterior import covariance_flops
from dkrr.linalg.suggestions import choice_flops, greedy_choices
from dkrr.machine.detection import detect
from dkrr.planning.resources import Resources
from dkrr.text import format_bytes, plural

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]


def suggested(
    posteriors: Posteriors, rows: Rows, candidates: Numbers, n_chosen: int, show: bool | None
) -> tuple[Numbers, Array]:
    """Choose among candidate rows by the fall of the summed variance.

    Parameters
    ----------
    posteriors : Posteriors
        Of targets that share one λ.
    rows : Rows
        New rows.
    candidates : ndarray of intp
        Numbers of the rows that may be chosen, ascending.
    n_chosen : int
    show : bool, optional
        Whether progress is shown.

    Returns
    -------
    chosen : ndarray of shape (n_chosen,)
        Numbers of rows, in the order of choice.
    gain : ndarray of shape (n_chosen,)
        Fall of the summed variance of the candidates by each, as a fraction of the sum before all of them.

    Raises
    ------
    MemoryLimitError
        If the covariance does not fit in memory; before work.
    InputError
        If a candidate is not finite.
    """
    resources = detect(posteriors.request.settings.memory_limit, None)
    size = _Size.of(posteriors, rows, len(candidates), resources)
    size.check(n_chosen, room_for(resources, resident_bytes()))
    block = _finite(rows.take(candidates), candidates)
    ((_, posterior),) = posteriors.factored()
    # Once more beside the factor, whose size is not known before where it is made only for this.
    side = posterior.factor_size.side
    _Size(side, len(candidates), size.row_bytes).check(n_chosen, room_for(resources, resident_bytes()))
    flops, choice = covariance_flops(side, len(candidates)), choice_flops(len(candidates), n_chosen)
    threads = usable_threads()
    progress = progress_of(show, resources.rates.seconds(Work(gemm_flops=flops + choice), threads))
    with progress.stage("suggestions", flops + choice, detail=plural(len(candidates), "candidate")):
        covariance, rounding, swept = posterior.covariance(block, progress)
        total = float(np.trace(covariance))
        chosen, falls = greedy_choices(covariance, rounding, posterior.alpha, n_chosen, threads, progress.advance)
    posterior.keep(block[chosen], None if swept is None else swept[:, chosen])
    return candidates[chosen], falls / total if total > 0 else np.zeros(n_chosen)


@dataclass(frozen=True)
class _Size:
    """Sizes that the memory of a posterior covariance depends on."""

    side: int
    """Rows of the factor."""
    n_candidates: int
    row_bytes: int
    """Bytes of a candidate."""
    factor_bytes: int = 0
    """Memory of a factor that is still to be made or loaded, and to read it."""

    @classmethod
    def of(cls, posteriors: Posteriors, rows: Rows, n_candidates: int, resources: Resources) -> "_Size":
        (planned,) = posteriors.planned_deviations(n_candidates, resources, in_stores=False)
        # The entries of sparse rows after a transformer are only known after a pass over all rows.
        row_bytes = 0 if rows.is_sparse and rows.is_computed else rows.row_bytes
        if planned.size is None:  # a factor that standard deviations do without, and this does not
            return cls(len(posteriors.targets), n_candidates, row_bytes)
        size = planned.size
        return cls(size.side, n_candidates, row_bytes, size.fixed_bytes + size.loaded_bytes)

    def check(self, n_chosen: int, room: float) -> None:
        """Refuse what would take more memory than there is room for; raises MemoryLimitError."""
        c, n = self.n_candidates, self.side
        beside, own = 8 * c * n, 8 * c * c
        needed = beside + own + c * self.row_bytes + self.factor_bytes
        if needed <= room:
            return
        left = room - self.factor_bytes
        width = n + self.row_bytes / 8
        most = int((math.sqrt(width**2 + left / 2) - width) / 2) if left > 0 else 0  # 8 m (m + width) ≤ left
        fewer = f", or at most {most:,} candidates (n_candidates, --n-candidates)" if most >= n_chosen else ""
        factor = f", and {format_bytes(self.factor_bytes)} for the factor" if self.factor_bytes else ""
        raise MemoryLimitError(
            f"suggestions among {plural(c, 'candidate')} take {format_bytes(needed)}: {c:,} × {n:,} numbers are "
            f"{format_bytes(beside)}, and {c:,} × {c:,} are {format_bytes(own)}{factor}; memory_limit (--memory-limit) "
            f"leaves {format_bytes(max(room, 0))}; expected {format_bytes(1.01 * (needed - room))} more{fewer}"
        )


def _finite(block: Block, numbers: Numbers) -> Block:
    """Block of rows with some numbers, of which all values are finite; raises InputError naming the row."""
    try:
        check_finite(block, "X")
    except InputError:  # which counts the rows of the block
        for k, number in enumerate(numbers.tolist()):
            check_finite(block[k : k + 1], "X", number)
        raise
    return np.ascontiguousarray(block) if isinstance(block, np.ndarray) else block
