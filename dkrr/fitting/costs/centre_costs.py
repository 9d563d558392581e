"""The price of Nyström centres, which the calling process draws before the work of a plan."""

from dataclasses import replace

from dkrr.cost import Work
from dkrr.kernels.kernel_features import is_drawn, parts_of
from dkrr.kernels.nystroem import Nystroem, whitened_bytes, whitened_flops
from dkrr.linalg.pivoted_cholesky import choice_bytes, choice_work, n_candidates
from dkrr.planning.drawing import Drawing
from dkrr.planning.problem import Problem
from dkrr.planning.resources import Resources
from dkrr.planning.work import CostModel, Step

DRAWING = "drawing centres"
"""Stage of a fit."""
ROW_COPIES = 3
"""Copies of rows that are taken from a file or a store."""


def drawing_of(p: Problem, r: Resources) -> Drawing | None:
    """Price of the centres of a kernel; None: it has none that are drawn."""
    maps = list[Nystroem]()
    for part in parts_of(p.kernel if p.undrawn is None else p.undrawn):
        if isinstance(part, Nystroem):
            maps.append(part)
    if not maps:
        return None
    site = CostModel(replace(p, batch=0), r, r.in_caller("memory", 1, r.local_threads))
    work, most, held = Work(), 0, 0
    for phi in maps:
        base, m = phi.base.resolved(p.d), phi.n_components
        most = max(most, held + whitened_bytes(base, m, p.d, p.csr_bytes(m)))
        work += Work(gemm_flops=whitened_flops(m), element_seconds=base.nominal_seconds(p.d) * m**2)
        if phi.pivots == "rpcholesky":
            n = n_candidates(p.n, m)
            rows = p.largest_rows_bytes(n) if n < p.n or not p.x_in_memory else 0
            taken = rows * (1 if p.x_in_memory else ROW_COPIES) + p.read_overhead_bytes + 16 * p.n
            chosen = choice_bytes(base, n, m, p.d, p.csr_bytes(n))
            most = max(most, held + max(taken, rows + 16 * p.n + p.largest_rows_bytes(m) + chosen))
            work += choice_work(n, m, base.nominal_seconds(p.d))
            work += Work(row_bytes=0.0 if p.x_in_memory else p.stored_bytes)
        held += 8 * m**2 + 2 * p.largest_rows_bytes(m)  # a map that is ready stays while the next one is drawn
    (stage,) = site.price([Step(DRAWING, work, 1, "blas")], site.peak(most, 0))
    is_uniform = all(phi.pivots == "uniform" for phi in maps)
    return Drawing(stage, sum(phi.n_components for phi in maps), is_uniform, is_done=not is_drawn(p.kernel))
