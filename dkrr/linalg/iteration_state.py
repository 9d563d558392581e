"""State of conjugate gradient, as a checkpoint holds it, and its outcome."""

from dataclasses import dataclass, field
from math import inf, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.linalg.gram_products import Precision
from dkrr.linalg.result import Residuals, Status
from dkrr.linalg.ritz import ritz_values

Array = NDArray[np.float64]


@dataclass
class State:
    """Everything that the iteration resumes from, and a checkpoint holds."""

    x: Array
    """Solution at the start of the cycle, (n, m), for right-hand sides divided by their `column_sizes`."""
    residual: Array
    """True residual at the start of the cycle, (n, m); NaN before the first."""
    needs_float64: NDArray[np.bool_]
    """Right-hand sides that products in float32 do not solve, (m,)."""
    iteration: int = 0
    history: list[Residuals] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    cycle: "Cycle | None" = None
    """None between cycles."""
    precision: Precision = "float64"
    """That of products in the cycle, and in the one before where there is none."""
    extremes: Array | None = None
    """Estimates of the smallest and the largest eigenvalue of A + s by the cycles that have ended, for the columns that
    are traced, (2, t); None before the first."""
    has_ended: bool = False
    """Whether no further cycle follows one that has ended, since what it left is the caller's to refine."""
    spent: float = 0.0
    """Seconds of the fit so far, in all of its runs, where its iterations are watched."""
    sizes: Array | None = None
    """The `column_sizes` of the right-hand sides, (m,); None before the iteration has begun."""
    error: Array = field(default_factory=lambda: np.zeros(0))
    """Norm of the error of products in float32 over that of the vectors, (m,), as the last cycle had it; before, as it
    is expected. Empty before the iteration has begun."""

    def solution(self) -> Array:
        """Solution so far, of the cycle that is open too, (n, m)."""
        x = self.x.copy()
        if self.cycle is not None:
            x[:, self.cycle.columns] += self.cycle.correction
        with np.errstate(over="ignore"):
            return x if self.sizes is None else x * self.sizes

    def arrays(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Arrays and plain values that a checkpoint writes."""
        arrays = {"x": self.x, "residual": self.residual}
        plain: dict[str, Any] = {
            "precision": self.precision,
            "needs_float64": self.needs_float64.tolist(),
            "iteration": self.iteration,
            "history": [[h.iteration, h.seconds, h.largest, h.is_true] for h in self.history],
            "messages": self.messages,
            "columns": None,
            "has_ended": self.has_ended,
            "spent": self.spent,
            "sizes": None if self.sizes is None else self.sizes.tolist(),
            "error": self.error.tolist(),
        }
        if self.extremes is not None:
            arrays["extremes"] = self.extremes
        if (c := self.cycle) is not None:
            arrays |= {"correction": c.correction, "recurrence": c.residual, "direction": c.direction}
            if c.traced:
                arrays["traced"] = np.concatenate(c.traced)
            plain |= {name: getattr(c, name).tolist() for name in ("columns", "goal", "product", "least")}
        return arrays, plain

    @classmethod
    def from_arrays(cls, arrays: dict[str, Array], plain: dict[str, Any]) -> "State":
        """Undo `arrays`."""
        state = cls(
            arrays["x"],
            arrays["residual"],
            np.array(plain.get("needs_float64", [plain["precision"] == "float64"] * arrays["x"].shape[1])),
            plain["iteration"],
            [Residuals(*line) for line in plain["history"]],
            list(plain["messages"]),
            precision=plain["precision"],
            extremes=arrays.get("extremes"),
            has_ended=plain["has_ended"],
            spent=plain["spent"],
            sizes=None if plain.get("sizes") is None else np.array(plain["sizes"]),
            error=np.array(plain.get("error", [])),
        )
        if plain["columns"] is not None:
            state.cycle = Cycle(
                np.array(plain["columns"], np.intp),
                np.array(plain["goal"]),
                arrays["correction"],
                arrays["recurrence"],
                arrays["direction"],
                np.array(plain["product"]),
                np.array(plain["least"]),
                np.split(traced, len(traced) // 2) if (traced := arrays.get("traced")) is not None else [],
            )
        return state


@dataclass
class Cycle:
    """State within a cycle, for the k right-hand sides that are not done."""

    columns: NDArray[np.intp]
    """Numbers of these right-hand sides, (k,)."""
    goal: Array
    """Norms at which they are done if all others have met theirs, (k,); infinite for those that have been ended."""
    correction: Array
    """Change of X in this cycle, (n, k)."""
    residual: Array
    """Residuals by the recurrence, (n, k)."""
    direction: Array
    """Next direction, (n, k)."""
    product: Array
    """rᵀz, (k,)."""
    least: Array
    """Norms at which they are done while others have not met their goals, (k,)."""
    traced: list[Array] = field(default_factory=list)
    """Step lengths and rᵀz before them of the columns that are traced, (2, t), one array for every iteration; NaN where
    a column had converged."""

    def open(self) -> NDArray[np.intp]:
        """Places of those that are not done."""
        every = np.arange(len(self.columns))
        return every[self.is_going(every, np.linalg.norm(self.residual, axis=0))]

    def is_going(self, places: NDArray[np.intp], norms: Array) -> NDArray[np.bool_]:
        """Mask of those that go on, of all that are not done, by the norms of their residuals."""
        goal = self.goal[places]
        is_missed = norms > goal
        return is_missed | np.isfinite(goal) & (norms > self.least[places]) if is_missed.any() else is_missed

    def condition(self) -> float:
        """Condition number of the preconditioned matrix that the traced columns show so far; NaN without any."""
        extremes = np.array([ritz_values(*column) for column in np.array(self.traced).transpose(2, 1, 0)])
        low, high = np.fmin.reduce(extremes[:, 0], initial=inf), np.fmax.reduce(extremes[:, 1], initial=nan)
        return float(high / low) if 0 < low < inf else nan


@dataclass(frozen=True)
class CGOutcome:
    """Result of conjugate gradient."""

    x: Array
    residuals: Array
    """True relative residual of every right-hand side, (m,)."""
    status: Status
    iterations: int
    rank: int
    """Columns of the preconditioner's factor in the end."""
    history: tuple[Residuals, ...]
    messages: tuple[str, ...]
    condition: float = nan
    """Estimate of the 2-norm condition number of A + diag(s), the largest of all shifts; NaN where nothing is known.

    It is made from what the iteration computes anyway, and is about right where A is positive semidefinite and the
    right-hand sides have a part in the direction of the smallest eigenvalue (noise has); else it is too small."""
