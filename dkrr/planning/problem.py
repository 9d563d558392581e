"""Sizes and settings of a problem that its cost depends on."""

from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, Literal, Self

from dkrr.data.rows import sparse_bytes_at_once
from dkrr.kernels import Kernel
from dkrr.kernels.map_base import FeatureMap
from dkrr.linalg.gram_products import Precision
from dkrr.linalg.newton import NewtonWork
from dkrr.linalg.solver_settings import Cholesky, ConjugateGradient, Float32Cholesky
from dkrr.planning.facts import NOTHING_MEASURED, Facts
from dkrr.text import Reason

Form = Literal["primal", "dual"]
Loss = Literal["squared", "logistic"]
DeviceName = Literal["auto", "cpu", "cuda"]
"""Where products with K are computed; "auto": the planner chooses."""

STORED_COLUMNS = 12
"""Nominal time of a stored entry of CSR rows over that of a column of dense rows (measured: 5 to 15)."""
FLOAT32_TIME = 0.6
"""Nominal time of an entry in float32 over that in float64 (exp, clamps: measured 0.5 to 0.7)."""
ACTIVE_ALPHAS, ACTIVE_PART = 3, 0.5
"""Values of λ whose columns iterate for most of the time, where all folds are solved for at once, and their part of all
λ where that is more: the best one, and those by which it is known to be that. (Measured: 4.7 of 10 with 12,000 rows of
QM9, 4.2 of 8 with 2,000 made-up rows.)"""


@dataclass(frozen=True)
class Because:
    """Why form and solver are what they are, where something else than the user has set them."""

    form: Reason | None = None
    """None: the user requested it, or the planner chooses."""
    solver: Reason | None = None
    reasons: tuple[Reason, ...] = ()
    """Reasons of the search whose run a fit continues."""
    rejected: tuple[Reason, ...] = ()
    """Alternatives that this search rejected."""


NOTHING_SET = Because()


@dataclass(frozen=True)
class Layout:
    """Tile sizes of a stored run; a resumed run must keep them."""

    form: Form
    tile: int
    panel: int
    columns_per_task: int
    row_parts: int
    solver: Literal["cholesky", "cg", "float32"] = "cholesky"
    batch: int = 0
    """Targets that are solved for at once; 0: all."""
    given_up: str = ""
    """What became of the iterations with which the run began; empty where it goes on as it began."""
    kept_rows: int = 0
    """Rows whose factor is in the store, where this run has more; 0: the run does not grow."""
    store: str = field(default="", compare=False)
    """Path or URL of the run, for messages."""

    def is_of(self, solver: Cholesky | ConjugateGradient | None) -> bool:
        """Whether a solver can resume the run; None means any."""
        if solver is None:
            return True
        if self.solver == "cholesky":
            return isinstance(solver, Cholesky)
        by_float32 = isinstance(solver, ConjugateGradient) and isinstance(solver.preconditioner, Float32Cholesky)
        return isinstance(solver, ConjugateGradient) and by_float32 == (self.solver == "float32")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Sizes of one kernel ridge or kernel logistic regression."""

    n: int
    """Rows."""
    d: int
    """Columns of X."""
    n_targets: int
    """Columns of scores: targets of a regression, models or classes of a classification."""
    kernel: Kernel
    feature_map: FeatureMap | None
    """φ where it is finite, else None."""
    alphas: tuple[float, ...] = (1.0,)
    """Distinct values of λ; one factorisation each."""
    fit_intercept: bool = False
    n_positive_weights: int | None = None
    """Number of rows whose weight is not zero; None: all."""
    total_weight: float | None = None
    """Sum of the weights; None: n."""
    row_bytes: int | None = None
    """Bytes of one row of X in memory; None: 8 d."""
    dense_window_row_bytes: int | None = None
    """Bytes of one row of X where sparse rows are heaviest, which bound the memory of a block; None: row_bytes."""
    cumulative_largest_row_bytes: tuple[int, ...] = ()
    """Bytes of the 1, 2, 4, ... heaviest rows of X and of all of them; empty: they follow from heavy_row_bytes."""
    x_bytes: int | None = None
    """Bytes of X where it is stored; None: n × row_bytes."""
    is_sparse: bool = False
    """X is sparse."""
    x_is_shared: bool = False
    """X is in a store that workers can read; otherwise it is copied for them."""
    x_in_memory: bool = True
    """X is in this process's memory already."""
    y_in_memory: bool = True
    """The targets are in this process's memory already."""
    y_is_mapped: bool = False
    """The targets are in a mapped file, and so will be the training errors, which become the dual coefficients."""
    read_overhead_bytes: int = 0
    """Peak memory for reading a block of X, besides the block."""
    batch: int = 0
    """Most targets that the dual form solves for at once, found by `make_plan`; 0: all."""
    keeps_store: bool = False
    """The user gave a store, to be kept and resumed from."""
    form: Form | None = None
    """None: the planner chooses."""
    tile: int | None = None
    """None: the planner chooses."""
    layout: Layout | None = None
    """Layout of the run that this one resumes."""
    kept_rows: int = 0
    """Rows whose factor is kept, the first ones of this fit; 0: none. See `n_kept_rows`."""
    solver: Cholesky | ConjugateGradient | None = None
    """None: the planner chooses."""
    device: DeviceName = "auto"
    tol: float = 1e-8
    """True relative residual required of an iterative solver."""
    facts: Facts = NOTHING_MEASURED
    """What was measured of the rows and the kernel."""
    loss: Loss = "squared"
    n_folds: int = 1
    """Training sets that conjugate gradient solves for at once, each with all targets and all λ."""
    races: bool = False
    """λ that have lost are given up before they are solved for."""
    is_softmax: bool = False
    """All columns of a classification are one softmax."""
    uncertainty: bool = False
    """The fit keeps its factors, from which standard deviations, the likelihood and errors of held-out rows follow."""
    interval_folds: int = 0
    """Folds without which models are computed as well, for intervals; 0: none."""
    folds_are_fitted: bool = False
    """Each of these models is a separate fit, as the kernel learns from its training rows."""
    undrawn: Kernel | None = None
    """The kernel before its Nyström centres were drawn for this fit; None: `kernel`."""
    because: Because = NOTHING_SET
    """Why `form` and `solver`, where the user has not requested them."""

    def measured(self, **facts: Any) -> Self:
        """Problem of which these facts are known as well."""
        return replace(self, facts=replace(self.facts, **facts))

    def with_features(self, features: FeatureMap | None) -> Self:
        """Problem with the features that a strategy has, for its price and its words; None: those of the kernel."""
        return self if features is None else replace(self, feature_map=features)

    def with_form(self, form: Form, because: Reason) -> Self:
        """Problem with a form; a plan states the reason, unless the user requested this form."""
        if self.form == form:
            return self
        return replace(self, form=form, because=replace(self.because, form=because))

    def with_solver(self, solver: Cholesky | ConjugateGradient, because: Reason) -> Self:
        """Problem with a solver, unless it has one already; a plan states the reason."""
        if self.solver is not None:
            return self
        return replace(self, solver=solver, because=replace(self.because, solver=because))

    @property
    def n_kept_rows(self) -> int:
        """Rows whose factor is kept: by a model in memory, or by the run in the store."""
        kept = self.kept_rows or (0 if self.layout is None else self.layout.kept_rows)
        return kept if kept <= self.n else 0  # a run of more rows is refused

    @property
    def grows(self) -> bool:
        """Whether rows are summed and not kept, for a fit that grows."""
        return self.because.form is not None and self.because.form.code == "grows"

    @property
    def dimension(self) -> int | None:
        """Number of features D; None where φ is infinite."""
        return None if self.feature_map is None else self.feature_map.dimension(self.d)

    def matrix_size(self, form: Form) -> int:
        """Rows of the matrix of a form: n, or the number of features (0 where φ is infinite)."""
        return self.n if form == "dual" else self.dimension or 0

    @property
    def bytes_of_row(self) -> int:
        """Bytes of one row of X in memory."""
        return 8 * self.d if self.row_bytes is None else self.row_bytes

    @property
    def most_bytes_of_row(self) -> int:
        """Bytes of one row of a block, where rows are heaviest."""
        return self.bytes_of_row if self.dense_window_row_bytes is None else self.dense_window_row_bytes

    @property
    def streams_sparse(self) -> bool:
        """Rows of φ are as sparse as those of X."""
        return self.is_sparse and self.feature_map is not None and self.feature_map.keeps_sparse

    def largest_rows_bytes(self, k: int) -> int:
        """Largest total of bytes of any k rows."""
        k, table = min(k, self.n), self.cumulative_largest_row_bytes
        if not table:
            return k * self.most_bytes_of_row
        # Sums of rows in descending order grow ever more slowly: by less than any average before.
        step = k.bit_length() - 1
        return min(table[step + int(k > 1 << step)], -(-table[step] * k >> step))

    def row_bytes_in_strips(self, height: int) -> int:
        """Average bytes of a row where `height` consecutive rows are read in strips (`Rows.row_ranges`)."""
        return ceil(self._bytes_at_once(height, in_strips=True) / height) if self.is_sparse else self.bytes_of_row

    def bytes_of_block(self, height: int) -> int:
        """Bytes of `height` consecutive rows, as a pass over the rows reads them (`Segment.blocks`)."""
        return self._bytes_at_once(height, in_strips=False) if self.is_sparse else height * self.bytes_of_row

    def _bytes_at_once(self, height: int, *, in_strips: bool) -> int:
        largest, one = self.largest_rows_bytes(height), self.largest_rows_bytes(1)
        return sparse_bytes_at_once(height, self.most_bytes_of_row, largest, one, in_strips=in_strips)

    def csr_bytes(self, height: int) -> int | None:
        """`row_bytes_in_strips` where X is sparse, for the memory of a kernel; None where it is dense."""
        return self.row_bytes_in_strips(height) if self.is_sparse else None

    def entry_time(self, precision: Precision = "float64") -> float:
        """Seconds of one entry of the kernel of these rows, on one core while the others do the same."""
        if (measured := self.facts.entry_seconds) is not None:
            return measured.float64 if precision == "float64" else measured.float32
        width = self.d
        if self.is_sparse and self.kernel.sparse_parts:  # entries of 12 bytes at least
            width = min(width, STORED_COLUMNS * -(-self.bytes_of_row // 12))
        nominal = self.kernel.nominal_seconds(width)
        return nominal if precision == "float64" else FLOAT32_TIME * nominal

    @property
    def stored_bytes(self) -> int:
        """Bytes of X in a store."""
        return self.n * self.bytes_of_row if self.x_bytes is None else self.x_bytes

    @property
    def y_bytes(self) -> int:
        """Bytes of the targets, and of the training errors."""
        return 8 * self.n * self.n_targets

    @property
    def y_bytes_to_come(self) -> int:
        """Memory of the calling process for targets not yet in memory, and for the training errors."""
        return 0 if self.y_is_mapped else self.y_bytes * (1 if self.y_in_memory else 2)

    @property
    def wants_tiles(self) -> bool:
        """The user requested tiles, by a store that can be resumed or by their size."""
        return self.keeps_store or self.tile is not None

    @property
    def settings(self) -> Cholesky | ConjugateGradient | None:
        """Solver that was requested, or that began the run in the store; None: the planner chooses."""
        if self.solver is not None or self.layout is None:
            return self.solver
        if self.layout.solver == "float32":
            return ConjugateGradient(Float32Cholesky())
        return Cholesky() if self.layout.solver == "cholesky" else ConjugateGradient()

    @property
    def iteration_settings(self) -> ConjugateGradient:
        """Settings of conjugate gradient: the user's, or the defaults."""
        return self.solver if isinstance(self.solver, ConjugateGradient) else ConjugateGradient()

    @property
    def n_right_sides(self) -> int:
        """Columns of the systems: the targets, and the ones of an intercept in the dual form."""
        return self.n_targets + (1 if self.fit_intercept and self.loss == "squared" else 0)

    @property
    def n_steps(self) -> int:
        """Expected steps of Newton's method, for all values of λ; 1 for a regression."""
        if self.loss == "squared":
            return 1
        return self.newton.steps

    @property
    def newton(self) -> NewtonWork:
        """Expected work of Newton's method."""
        return NewtonWork.expected(self.tol, self.alphas, is_softmax=self.is_softmax)

    @property
    def systems(self) -> "Systems":
        """Linear systems of a fit."""
        if self.loss == "logistic":
            newton, m = self.newton, self.n_targets
            return Systems(
                n_factors=newton.steps * m,
                n_right_sides=1,
                n_stored=1,
                n_columns=m,
                n_active=m,
                shift=newton.shift,
                tol=newton.inner_tol,
                n_steps=newton.steps,
                more_iterations=newton.more,
                n_products=newton.products,
                n_vectors=newton.n_vectors,
                n_curvatures=m,
            )
        m, n_alphas = self.n_right_sides, len(self.alphas)
        active = max(min(ACTIVE_ALPHAS, n_alphas), ceil(ACTIVE_PART * n_alphas))
        return Systems(
            n_factors=n_alphas,
            n_right_sides=m,
            n_stored=n_alphas if self.keeps_store else 1,
            n_columns=m * n_alphas * self.n_folds,
            # Columns of large λ end soon.
            n_active=m * (n_alphas if self.n_folds == 1 else active * self.n_folds),
            shift=min(self.alphas),
            tol=self.tol,
            n_curvatures=0 if self.n_folds == 1 else self.n_folds,
        )


@dataclass(frozen=True)
class Systems:
    """Number and accuracy of the linear systems of one fit, which have the same matrix and different diagonals."""

    n_factors: int
    """Number of factorisations, one after the other."""
    n_right_sides: int
    """Number of right-hand sides of each factor."""
    n_stored: int
    """Number of factors that are in the store at once."""
    n_columns: int
    """Number of right-hand sides that conjugate gradient solves for at once."""
    n_active: int
    """Number of them on which it works on average."""
    shift: float
    """Smallest λ of the systems."""
    tol: float
    """Relative residual of each system."""
    n_steps: int = 1
    """Number of times that conjugate gradient solves for all columns."""
    more_iterations: int = 0
    """Iterations of each of those times, besides what the spectrum makes necessary."""
    n_products: int = 0
    """Products in float64 besides the iterations; 0: what conjugate gradient computes true residuals for."""
    n_vectors: int = 12
    """Arrays as long as the columns, in the calling process."""
    n_curvatures: int = 0
    """Number of columns or training sets with their own diagonal, and so with small matrices in the preconditioner."""
