"""Complete factorisations that precondition conjugate gradient."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dkrr.errors import NotPositiveDefiniteError
from dkrr.fitting.workspace import Workspace
from dkrr.linalg.cholesky import PartialSums, TiledSystem, cholesky_tasks, n_segments, tile_steps
from dkrr.linalg.condition import worst
from dkrr.linalg.factored import LocalFactor, SharedFactor
from dkrr.linalg.operator import TiledOperator
from dkrr.linalg.preconditioner import Preconditioner
from dkrr.linalg.sources import TileSource
from dkrr.planning import Plan
from dkrr.runtime import RunRecord
from dkrr.solvers import ConjugateGradient, Status
from dkrr.solvers.conjugate_gradient import Iteration, Outcome
from dkrr.tiles import TileGrid

Array = NDArray[np.float64]

BROKE_DOWN = (
    "the factorisation in float32 broke down at row {row}, since λ is below its rounding or entries are outside of its "
    "range: factoring in float64 instead, which takes twice the time and disk"
)


@dataclass
class CompleteFactor(Preconditioner):
    """(L Lᵀ)⁻¹ with a stored factor."""

    factor: LocalFactor | SharedFactor
    captures_constant = True

    def apply(self, residuals: Array, columns: NDArray[np.intp]) -> Array:  # noqa: ARG002
        """See base class."""
        return self.factor.apply(residuals)

    @property
    def record(self) -> RunRecord:
        """See base class."""
        return self.factor.record


@dataclass
class Outcomes:
    """Outcomes of several systems, as one."""

    parts: list[Outcome] = field(default_factory=list)

    def merged(self) -> Outcome | None:
        """Worst status, all residuals, sum of the iterations; None if there is none."""
        if not self.parts:
            return None
        bad = [p.status for p in self.parts if p.status is not Status.CONVERGED]
        return Outcome(
            x=self.parts[-1].x,
            residuals=np.concatenate([p.residuals for p in self.parts]),
            status=bad[0] if bad else Status.CONVERGED,
            iterations=sum(p.iterations for p in self.parts),
            rank=0,
            history=tuple(h for p in self.parts for h in p.history),
            messages=tuple(m for p in self.parts for m in p.messages),
            condition=worst([p.condition for p in self.parts]),
        )


def solve_factored(
    work: Workspace,
    plan: Plan,
    g: int,
    source: TileSource,
    plain: TileSource,
    scale: Array | None,
    shift: Array,
    right_sides: Array,
    run: Callable[[Iteration], Outcome],
) -> Outcome:
    """Solve (C A C + diag(s)) X = B to the tolerance; with a factor in float64 where float32 does not hold it.

    Parameters
    ----------
    work : Workspace
    plan : Plan
    g : int
        Number of the system, for its place in the store.
    source : TileSource
        Tiles of C A C.
    plain : TileSource
        Tiles of A, for the products.
    scale : ndarray of shape (n,), optional
        c.
    shift : ndarray of shape (n,)
        s.
    right_sides : ndarray of shape (n, m)
    run : callable
        Runs the iteration.

    Raises
    ------
    NotPositiveDefiniteError
        If a pivot is not positive in float64 either.
    """
    c, group = plan.chosen, f"factored-{g}"
    broken, note = work.store.note(f"{group}-broken"), ""  # by an earlier run
    if broken is None:
        try:
            factor = complete_factor(work, plan, group, source, shift, "float32")
        except NotPositiveDefiniteError as error:
            broken = error.row
            work.store.set_note(f"{group}-broken", broken)
    if broken is not None:
        note = BROKE_DOWN.format(row=broken)
        work.progress.note(note)
        factor = complete_factor(work, plan, group, source, shift, "float64")
    operator = TiledOperator(
        source=plain,
        grid=TileGrid(len(right_sides), c.tile, c.tile),
        executor=work.executor,
        run=group,
        slots=c.slots,
        scale=scale,
    )
    solver = plan.problem.solver
    iteration = Iteration(
        operator=operator,
        shift=shift[:, None],
        right_sides=right_sides,
        preconditioner=CompleteFactor(factor),
        tol=plan.problem.tol,
        max_iterations=solver.max_iterations if isinstance(solver, ConjugateGradient) else 1000,
        progress=work.progress,
    )
    outcome = run(iteration)
    work.record.add(operator.record)
    work.record.add(factor.record)
    if not work.keeps:
        work.store.delete(group)
    messages = (note, *outcome.messages) if note else outcome.messages
    return replace(outcome, messages=messages)


def complete_factor(
    work: Workspace,
    plan: Plan,
    group: str,
    source: TileSource,
    shift: Array,
    dtype: Literal["float64", "float32"],
    detail: str = "",
) -> LocalFactor | SharedFactor:
    """Factor A + diag(s) out of core, to be applied again and again.

    Parameters
    ----------
    work : Workspace
    plan : Plan
    group : str
        Place in the store; what an earlier run has finished there is kept.
    source : TileSource
        Tiles of A.
    shift : ndarray of shape (n,)
        s.
    dtype : {"float64", "float32"}
        Of the factor.
    detail : str
        For the display of the progress.

    Raises
    ------
    NotPositiveDefiniteError
        If a pivot is not positive; what there is of the factor is deleted.
    """
    c = plan.chosen
    grid = TileGrid(len(shift), c.tile, c.panel)
    work.store.create_group(group)
    system = TiledSystem(
        source=source,
        shift=work.vectors(group, "shift", grid, 1, shift),
        factor=work.matrix(group, "factor", grid, dtype),
        segment=c.segment,
        partial=tuple(
            PartialSums(work.matrix(group, f"sum-{k}", grid, dtype))
            for k in range(n_segments(grid.n_tiles - 1, c.segment) - 1)
        ),
    )
    tasks = cholesky_tasks(system)
    total = sum(step.flops(grid) for step in tile_steps(grid.n_tiles, c.segment))
    detail = ", ".join(part for part in (detail, "" if dtype == "float64" else dtype) if part)
    try:
        with work.progress.stage("factorisation", total, total - sum(t.flops for t in tasks), detail):
            work.record.add(work.executor.run(tasks, work.progress))
    except NotPositiveDefiniteError:
        work.store.delete(group)
        raise
    for k in range(len(system.partial)):
        work.store.delete(f"{group}/sum-{k}")
    if plan.resources.cluster_is_running:
        return SharedFactor(system.factor, work.executor, work.store, group, c.slots)
    return LocalFactor(system.factor, plan.resources.local_threads)
