"""Paths of kernel logistic regression: solutions for several λ, each from the one before, and their checkpoints."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.fitting.checkpoint import Checkpoints
from dkrr.solvers import Status
from dkrr.solvers.newton import PROBABILITY_POWER, NewtonOutcome, NewtonState
from dkrr.solvers.objective import Point

Array = NDArray[np.float64]


@dataclass(frozen=True)
class PathPoint:
    """Solution for one λ."""

    point: Point
    outcome: NewtonOutcome
    seconds: float

    @property
    def inner_iterations(self) -> int:
        """Iterations of conjugate gradient, over all steps."""
        return sum(step.inner_iterations for step in self.outcome.state.history)

    def is_finished(self, tol: float, max_iter: int) -> bool:
        """Whether a run with these settings would have ended here, too."""
        o = self.outcome
        if o.status is Status.MAX_ITERATIONS:
            return o.state.step >= max_iter
        within = o.gradient <= tol and o.decrement <= tol and o.probability_change <= tol**PROBABILITY_POWER
        return o.status is not Status.CONVERGED or within

    def to_plain(self) -> dict[str, Any]:
        """All but the point, as JSON takes it."""
        return {"outcome": self.outcome.to_plain(), "seconds": self.seconds}

    @classmethod
    def from_plain(cls, point: Point, plain: dict[str, Any]) -> "PathPoint":
        """Undo `to_plain`."""
        return cls(point, NewtonOutcome.from_plain(plain["outcome"]), plain["seconds"])


@dataclass(frozen=True)
class PathState:
    """How far a path has come."""

    done: tuple[PathPoint, ...] = ()
    point: Point | None = None
    """Where the next step, or the next λ, begins; None: at the start that was given."""
    newton: NewtonState | None = None
    """State of the run for the λ after those that are done; None: it has not begun."""
    references: Array | None = None
    """Norms of the gradient at zero, of shape (n_systems,), the same for every λ."""

    def save(self, checkpoints: Checkpoints | None) -> None:
        """Write a checkpoint: after a step, or after the last one of a λ (without `newton`)."""
        if checkpoints is None:
            return
        assert self.references is not None
        arrays = {"references": self.references[None, :]}
        if self.newton is None:
            checkpoints.keep(f"model-{len(self.done) - 1}", self.done[-1].point.arrays())
        else:
            assert self.point is not None
            arrays |= self.point.arrays()
        state = None if self.newton is None else asdict(self.newton)
        checkpoints.write(arrays, {"state": state, "done": [one.to_plain() for one in self.done]})

    @classmethod
    def resumed(cls, checkpoints: Checkpoints | None, tol: float, max_iter: int) -> "PathState":
        """Read the last checkpoint, for a run with these settings; what is damaged is computed again."""
        if checkpoints is None:
            return cls()
        found = checkpoints.read(lambda arrays, plain: cls._of(checkpoints, arrays, plain, tol, max_iter))
        return cls(newton=_told_of(checkpoints.damage)) if found is None else found

    @classmethod
    def _of(
        cls, checkpoints: Checkpoints, arrays: dict[str, Array], plain: dict[str, Any], tol: float, max_iter: int
    ) -> "PathState":
        done = _read_done(checkpoints, plain["done"])
        references = arrays["references"][0]
        for k, one in enumerate(done):
            if not one.is_finished(tol, max_iter):  # a larger max_iter or a smaller tol is wanted now
                newton = replace(one.outcome.state, useless=0, recompute=False, least=None)
                return cls(done[:k], one.point, newton, references)
        if plain["state"] is None or len(done) < len(plain["done"]):
            return cls(done, done[-1].point if done else None, _told_of(checkpoints.damage), references)
        return cls(done, Point.from_arrays(arrays), NewtonState.from_plain(plain["state"]), references)


def _read_done(checkpoints: Checkpoints, plain: Sequence[dict[str, Any]]) -> tuple[PathPoint, ...]:
    """Solutions up to the first that cannot be read."""
    done: list[PathPoint] = []
    for k, one in enumerate(plain):
        arrays = checkpoints.kept(f"model-{k}")
        if arrays is None:
            break
        done.append(PathPoint.from_plain(Point.from_arrays(arrays), one))
    return tuple(done)


def _told_of(damage: str) -> NewtonState | None:
    """State of a run that begins with this message; None if it is empty."""
    return NewtonState(messages=[damage]) if damage else None
