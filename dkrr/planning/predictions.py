"""Plan of predictions: sizes that its cost depends on, how many rows at a time, where, for how long, and why."""

from dataclasses import dataclass, field
from typing import Any, Literal

from dkrr.planning.explain import Reasoned
from dkrr.planning.iterations_first import DOUBT_OF_ESTIMATE
from dkrr.planning.plan import NARROW, RATES
from dkrr.planning.problem import Form, Problem
from dkrr.planning.resources import Gpu
from dkrr.planning.uncertainty import UncertaintyPlan
from dkrr.text import Reason, format_bytes, format_seconds, plural

ROWS_TOGETHER = 1024
"""Most rows whose standard deviations are computed together where the factor is in memory: products are then as fast as
those of squares (measured with factors of 4,000 and 8,000 rows: 0.9 of that rate; of 256 rows 0.6)."""
DOUBT = (0.6, 1.5)
"""Shortest and longest time over the projected one: rates of a machine are seldom known better."""
SECOND_SWEEP = 2.0
"""Most time of standard deviations over that of one substitution: rows near training rows take a second one where λ is
small, for bounds of their rounding."""


def power_of_two(number: int) -> int:
    """Largest power of two up to a number: cut so, the same rows are together whatever larger blocks they come in."""
    return 1 << (number.bit_length() - 1)


@dataclass(frozen=True)
class FactorSize:
    """Sizes of a factor that the cost of a block of variances depends on."""

    side: int
    """Rows of the factor."""
    row_bytes: int
    """Memory for each row of a block."""
    fixed_bytes: int = 0
    """Memory for a block of any height."""
    read_bytes: float = 0.0
    """Bytes of the factor that are read for each block; 0: it is in memory."""
    loaded_bytes: int = 0
    """Memory of the factor once it is loaded, or made."""
    most_rows: int = ROWS_TOGETHER
    """Most rows of a block."""
    of_features: bool = False
    """It is a factor of the features' normal matrix, not of all training rows."""

    def rows_within(self, room: float) -> int:
        """Rows of a block that takes no more memory, a power of two; 0 if there is none for one row."""
        rows = min(self.most_rows, int((room - self.fixed_bytes) // self.row_bytes))
        return power_of_two(rows) if rows > 0 else 0

    def bytes_of(self, rows: int) -> int:
        """Memory of a block."""
        return self.fixed_bytes + rows * self.row_bytes


@dataclass(frozen=True)
class Deviations:
    """Standard deviations by one process of a model: a factor that exists, or a plan of one, or conjugate gradient."""

    size: FactorSize | None
    """None: by conjugate gradient."""
    seconds_before: float = 0.0
    """Time to make or load the factor."""
    plan: UncertaintyPlan | None = None
    """None: the factor is known."""
    sweeps: int = 1
    """Substitutions by the factor."""


@dataclass(frozen=True)
class Prediction:
    """Sizes of predictions that their cost depends on."""

    problem: Problem
    """Problem of the fit: training rows, kernel and targets."""
    form: Form
    n_rows: int
    block_rows: int
    """Rows that are read and written together, if memory allows."""
    row_bytes: int
    """Memory of one new row."""
    x_bytes: int
    """Bytes of all new rows where they are read; 0: they are in memory."""
    read_overhead_bytes: int
    n_columns: int
    """Columns of what is written."""
    training_bytes: int
    """Bytes of the training rows that are read for each block of predictions; 0: they are in memory."""
    deviations: tuple[Deviations, ...] = ()
    """Cost of standard deviations for each λ; empty if they are not requested."""
    n_folds: int = 0
    """Folds of intervals; 0: none are asked for."""
    has_folds: bool = False
    """The models of all folds are known."""
    folds_flops: float = 0.0
    """Operations of these models, where they are not, besides those of factors."""
    factors: tuple[Deviations, ...] = ()
    """Factors that these models take, where they are not known, and no standard deviations do."""
    n_workers: int = 0
    """Workers of the client that predict; 0: this process does."""
    is_transformed: bool = False
    """Rows come from a transformer in its own blocks, which are not put together."""
    reasons: tuple[Reason, ...] = ()
    gpu: Gpu | None = None
    """GPU that multiplies by K(x, X); None: cores do."""
    n_leaves: int = 1
    """Products of matrices that a block of the kernel takes there."""


@dataclass(frozen=True)
class Parts:
    """Projected time by what takes it."""

    before: float = 0.0
    """Before the first row: a factor, the models of folds."""
    rows: float = 0.0
    """Reading rows, the predictions themselves, and writing."""
    deviations: float = 0.0
    """Substitutions with a factor."""
    iterations: float = 0.0
    """Standard deviations by conjugate gradient."""
    intervals: float = 0.0

    @property
    def seconds(self) -> float:
        """Time in all."""
        return self.before + self.after

    @property
    def after(self) -> float:
        """Time from the first row on."""
        return self.rows + self.deviations + self.iterations + self.intervals

    @property
    def range(self) -> tuple[float, float]:
        """Shortest and longest time in all."""
        known, (least, most), (fewest, many) = self.seconds - self.iterations, DOUBT, DOUBT_OF_ESTIMATE
        longest = most * known + (SECOND_SWEEP - 1.0) * self.deviations + most * many * self.iterations
        return least * known + fewest * self.iterations, longest


@dataclass(frozen=True, repr=False)
class PredictionPlan(Reasoned):
    """Plan of predictions at new rows: method, projected cost and reasons.

    ``str(plan)`` explains it; ``plan.to_dict()`` is for programs.

    Attributes
    ----------
    prediction : Prediction
        Sizes that the cost depends on: `n_rows`, `form`, `n_columns`, ...
    method : {"predictions", "factor", "iterations"}
        How standard deviations are computed; "predictions": none are.
    execution : {"memory", "dask"}
        Whether this process predicts, or workers of the client do.
    threads : int
        Threads of this process that predict; 1 if workers do.
    block_rows : int
        Rows that are predicted together: those whose standard deviations are, else those that are read together.
    read_rows : int
        Rows that are read and written together.
    parts : Parts
        Projected time by what takes it.
    peak_bytes : int
        Projected highest memory of a process that predicts.
    limit_bytes : int
        Memory that a process may hold.
    read_bytes : float
        Bytes that are read: new rows, and a factor or training rows that are not in memory, for each block.
    written_bytes : int
        Size of the predictions, uncompressed and without columns that are kept.
    rates_from : {"defaults", "quick", "calibration", "configuration"}
        Where the rates come from: dkrr's defaults, a quick measurement, ``dkrr calibrate``, or Dask's configuration.
    reasons : tuple of Reason
        Why so, sentence by sentence.
    rejected : tuple of Reason
        Rejected methods, each with the reason against it.
    plan : UncertaintyPlan or None
        Plan of standard deviations whose factor is not known; None: it is, or none are asked for.

    See Also
    --------
    dkrr.plan : Make a plan without carrying it out.
    dkrr.predict_to : Write predictions to a file or a store.
    dkrr.planning.Plan : The plan of a fit.

    Examples
    --------
    >>> import numpy as np, dkrr
    >>> model = dkrr.KernelRidge(kernel="rbf").fit(np.eye(3), [1.0, 2.0, 3.0])
    >>> plan = dkrr.plan(np.eye(3), model=model)
    >>> plan.n_rows, plan.form, plan.method
    (3, 'dual', 'predictions')
    """

    prediction: Prediction = field(repr=False)
    method: Literal["predictions", "factor", "iterations"]
    execution: Literal["memory", "dask"]
    threads: int
    block_rows: int
    read_rows: int
    parts: Parts
    peak_bytes: int
    limit_bytes: int
    read_bytes: float
    written_bytes: int
    rates_from: str
    reasons: tuple[Reason, ...]
    rejected: tuple[Reason, ...] = ()
    plan: UncertaintyPlan | None = None

    @property
    def seconds(self) -> float:  # type: ignore[override]
        """Projected wall time."""
        return self.parts.seconds

    @property
    def seconds_range(self) -> tuple[float, float]:
        """Shortest and longest time."""
        return self.parts.range

    @property
    def n_rows(self) -> int:
        """New rows."""
        return self.prediction.n_rows

    @property
    def form(self) -> Form:
        """Form in which the model predicts."""
        return self.prediction.form

    def summary(self) -> str:
        """Short description of the method."""
        found = f"in {self.form} form"
        if self.method == "iterations":
            found += ", standard deviations by conjugate gradient"
        elif self.method == "factor":
            stored = any(one.size and one.size.read_bytes for one in self.prediction.deviations)
            found += f", standard deviations from a factor{' that is read for each block' if stored else ''}"
        if self.prediction.n_folds:
            found += f", intervals by {self.prediction.n_folds} models that leave out a fold each"
        return found

    def title(self) -> str:
        p = self.prediction.problem
        return f"dkrr prediction: {plural(self.n_rows, 'row')} × {plural(p.d, 'column')}, {p.n:,} training rows"

    def facts(self) -> list[tuple[str, str]]:
        where = f"in this process ({plural(self.threads, 'thread')})"
        if self.execution == "dask":
            where = f"on {plural(self.prediction.n_workers, 'Dask worker')}"
        least, most = self.seconds_range
        is_wide = most - least > NARROW * self.seconds
        span = f" ({format_seconds(least)} to {format_seconds(most)})" if is_wide else ""
        before = f", {format_seconds(self.parts.before)} of it before the first row" if self.parts.before else ""
        limit = format_bytes(self.limit_bytes)
        columns = plural(self.prediction.n_columns, "column")
        return [
            ("where", where),
            ("blocks", f"{plural(self.block_rows, 'row')} at a time"),
            ("time", f"about {format_seconds(self.seconds)}{span}{before}"),
            ("rates", RATES[self.rates_from]),  # type: ignore[index]
            ("memory", f"at most {format_bytes(self.peak_bytes)} per process (limit {limit})"),
            ("disk", f"{format_bytes(self.read_bytes)} read"),
            ("output", f"{plural(self.n_rows, 'row')} × {columns}, {format_bytes(self.written_bytes)} as numbers"),
        ]

    def own(self) -> dict[str, Any]:
        p = self.prediction
        return {
            "n_rows": p.n_rows,
            "n_training_rows": p.problem.n,
            "form": p.form,
            "n_folds": p.n_folds,
            "has_folds": p.has_folds,
            "execution": self.execution,
            "threads": self.threads,
            "n_workers": p.n_workers,
            "block_rows": self.block_rows,
            "seconds_range": list(self.seconds_range),
            "seconds_before": self.parts.before,
            "rates_from": self.rates_from,
            "peak_bytes": self.peak_bytes,
            "limit_bytes": self.limit_bytes,
            "read_bytes": self.read_bytes,
            "written_bytes": self.written_bytes,
            "n_columns": p.n_columns,
        }

    def _summary(self) -> str:
        cost = f"about {format_seconds(self.seconds)}, at most {format_bytes(self.peak_bytes)} per process"
        return f"{self.form}, {cost}"
