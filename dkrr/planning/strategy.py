"""Strategies: a way to solve with its details in one place, and its projected cost; and what a way to solve is."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from dkrr.cost import Stage
from dkrr.kernels.map_base import FeatureMap
from dkrr.planning.problem import Form, Loss, Problem
from dkrr.planning.resources import Execution, Resources, Workplace
from dkrr.planning.tile_sizes import Tiling
from dkrr.text import NO_REASON, Reason, codes_of

Solver = Literal["cholesky", "float32", "cg"]
"""Solver of linear systems: a complete factor in float64 or in float32, or conjugate gradient without one."""


class Details(Protocol):
    """What all methods say of a strategy; the rest of its details only its method reads."""

    @property
    def tiling(self) -> Tiling:
        """Cut of the matrix."""

    @property
    def row_parts(self) -> int:
        """Segments of the rows."""

    @property
    def iterations(self) -> int:
        """Expected of conjugate gradient, which are an estimate; 0: none."""

    @property
    def keeps_factors(self) -> bool:
        """Factors stay after the fit, in memory or in its store: standard deviations and held-out errors take them."""


@dataclass(frozen=True)
class Method(ABC):
    """A way to solve: its candidates, its words, and how it is carried out.

    It has no state, and all objects of a class are equal. One line of `dkrr.fitting.methods.METHODS` makes it known.
    """

    name: ClassVar[str]
    form: ClassVar[Form]
    solver: ClassVar[Solver]
    losses: ClassVar[tuple[Loss, ...]] = ("squared", "logistic")
    is_of_grids: ClassVar[bool] = False
    """For feature maps whose sums over the rows are transforms, and for no other."""
    is_direct: ClassVar[bool] = True
    """Complete factors solve the systems, in a time that hardly depends on the spectrum."""
    factors_matrix: ClassVar[bool] = False
    """The whole matrix is formed and factored."""
    device: ClassVar[Literal["cpu", "cuda"]] = "cpu"
    """Where its products are computed."""
    calls_blas: ClassVar[bool] = True
    """Its tasks call BLAS; otherwise they have separate threads."""
    folds_by: ClassVar[Literal["", "sums", "grid", "factors", "sweep"]] = ""
    """By what a search has the errors of held-out rows: sums over the rows of folds, factors, columns of one run."""

    def answers(self, solver: Solver, loss: Loss) -> bool:  # noqa: ARG002
        """Whether it is what a request for a solver means."""
        return solver == self.solver

    @abstractmethod
    def candidates(self, p: Problem, r: Resources) -> "Iterable[Strategy]":
        """Priced candidates, those in memory first."""

    def solver_of(self, c: "Strategy") -> Literal["cholesky", "cg"]:  # noqa: ARG002
        """Solver of linear systems, as users name it."""
        return "cg" if self.solver == "cg" else "cholesky"

    def uses_threads(self, place: Workplace) -> bool:  # noqa: ARG002
        """In the calling process tasks run in threads with one BLAS thread each, not one after the other."""
        return False

    def executor(self, c: "Strategy") -> Any:  # noqa: ARG002
        """Context manager of what does its tasks in the calling process; None: as `uses_threads` says."""
        return None

    # Words

    @abstractmethod
    def summary(self, c: "Strategy") -> str:
        """Short description of a strategy."""

    @abstractmethod
    def facts(self, c: "Strategy", p: Problem) -> list[tuple[str, str]]:
        """Lines of a plan about it: solver, place, and how the matrix is stored."""

    @abstractmethod
    def why(self, c: "Strategy", p: Problem, candidates: "Sequence[Strategy]") -> list[Reason]:
        """Why it solves the systems, and where."""

    @abstractmethod
    def why_kept(self, c: "Strategy", p: Problem, candidates: "Sequence[Strategy]") -> Reason:
        """Which factor the fit keeps for standard deviations, and where; or why it keeps none."""

    # Results

    @abstractmethod
    def saved_bytes(self, plan: Any) -> int:
        """Size of a saved model, in whole chunks, but for its description and a transformer."""

    @abstractmethod
    def uncertainty_bytes(self, plan: Any) -> int | None:
        """Size of what a saved model has besides to give standard deviations and intervals; None where it cannot."""

    # Execution, of data and in a context that only packages above know

    def ridge(self, data: Any, plan: Any, context: Any, start: Any = None) -> Any:
        """Solution of a ridge regression."""
        raise NotImplementedError(f"{self.name} has no regressions")

    def objective(self, data: Any, plan: Any, context: Any) -> Any:
        """Objective of a classification, whose Newton steps it solves."""
        raise NotImplementedError(f"{self.name} has no classifications")


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """Solver of a problem with its details, in one place, and its projected cost.

    Attributes
    ----------
    method : Method
        Way to solve.
    form : {"primal", "dual"}
        Form of the solve.
    place : Workplace
        Where the tasks run: `execution`, `n_workers`, `limit_bytes`, ...
    details : Details
        Tiles, iterations and whatever else the method decides.
    stages : tuple of Stage
        Projected time, bytes and memory, stage by stage.
    n_steps : int
        Expected steps of Newton's method; 0: a regression.
    refused : Reason
        Why it cannot be chosen; empty if it can.
    features : FeatureMap or None
        Features that it has beside those of the kernel: a Fourier grid; None: those of the kernel, if there are any.
    otherwise : Strategy, optional
        Direct strategy that takes over if the iterations of this one turn out to be slower.

    See Also
    --------
    dkrr.planning.Plan : The plan of a fit.
    dkrr.planning.Reason : A sentence of a plan, with a code.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr import KernelRidge
    >>> chosen = KernelRidge(kernel="rbf").fit(np.eye(3), [1.0, 2.0, 3.0]).plan_.chosen
    >>> chosen.summary()
    'dual, Cholesky, in memory'
    """

    method: Method
    form: Form
    place: Workplace
    details: Any
    stages: tuple[Stage, ...]
    n_steps: int = 0
    refused: Reason = NO_REASON
    features: FeatureMap | None = None
    otherwise: "Strategy | None" = None
    solver: Literal["cholesky", "cg"] = field(init=False, repr=False, compare=False)
    """Solver of linear systems, as users name it."""
    seconds: float = field(init=False, repr=False, compare=False)
    """Projected wall time."""
    read_bytes: float = field(init=False, repr=False, compare=False)
    """Bytes read from the store."""
    written_bytes: float = field(init=False, repr=False, compare=False)
    """Bytes written to the store."""
    disk_bytes: int = field(init=False, repr=False, compare=False)
    """Peak space in the store."""
    peak_bytes: int = field(init=False, repr=False, compare=False)
    """Peak memory of any process that works."""

    def __post_init__(self) -> None:
        seconds, read, written, disk, peak = 0.0, 0.0, 0.0, 0, 0
        for stage in self.stages:
            seconds += stage.seconds
            read, written, disk = read + stage.read_bytes, written + stage.written_bytes, disk + stage.disk_bytes
            peak = max(peak, stage.peak_bytes)
        # They are asked for again and again while candidates are compared.
        self.__dict__.update(
            solver=self.method.solver_of(self),
            seconds=seconds,
            read_bytes=read,
            written_bytes=written,
            disk_bytes=disk,
            peak_bytes=peak,
        )

    @property
    def is_direct(self) -> bool:
        """Complete factors solve the systems, in a time that hardly depends on the spectrum."""
        return self.method.is_direct

    @property
    def is_whole(self) -> bool:
        """The whole matrix is factored in memory."""
        return self.method.factors_matrix and self.place.is_memory

    @property
    def keeps_factors(self) -> bool:
        """Factors stay after the fit: standard deviations and held-out errors take them."""
        return bool(self.details.keeps_factors)

    @property
    def iterations(self) -> int:
        """Expected of conjugate gradient, which are an estimate; 0: none."""
        return int(self.details.iterations)

    @property
    def tiling(self) -> Tiling:
        """Cut of the matrix."""
        tiling: Tiling = self.details.tiling
        return tiling

    @property
    def tile(self) -> int:
        """Rows of a tile."""
        return self.tiling.tile

    def layout(self) -> dict[str, Any]:
        """Tile sizes and other fields of Layout, which a resumed run must keep."""
        solver = "float32" if self.method.solver == "float32" else self.solver
        return {"form": self.form, **asdict(self.tiling), "row_parts": self.details.row_parts, "solver": solver}

    @property
    def execution(self) -> Execution:
        """Kind of place."""
        return self.place.execution

    @property
    def n_workers(self) -> int:
        """Processes that work."""
        return self.place.n_workers

    @property
    def limit_bytes(self) -> int:
        """Memory that a process may hold."""
        return self.place.limit_bytes

    @property
    def fits(self) -> bool:
        """Whether the place has enough memory."""
        return self.peak_bytes <= self.place.usable_bytes

    @property
    def kind(self) -> tuple[type, Form, Execution]:
        """Same for candidates that differ in sizes only."""
        return type(self.details), self.form, self.execution

    def summary(self) -> str:
        """Short description."""
        return self.method.summary(self)

    def to_dict(self) -> dict[str, Any]:
        """Strategy as values of JSON."""
        names = ("solver", "execution", "n_workers", "seconds", "read_bytes", "written_bytes", "disk_bytes")
        figures = {name: getattr(self, name) for name in (*names, "peak_bytes", "limit_bytes")}
        priced = {"form": self.form, "place": asdict(self.place), "stages": [asdict(s) for s in self.stages]}
        details = asdict(self.details)
        if self.n_steps:
            details = {"inner": {**priced, "refused": "", **details}, "n_steps": self.n_steps}
        (code,) = codes_of([self.refused])
        settings = {**priced, "refused": self.refused, "refused_code": code, **details}
        return {"name": self.summary(), "tile": self.tile, **figures, **settings}
