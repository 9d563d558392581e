"""Base of all ways to solve a problem: a price made of named stages, and its description."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, Self

from dkrr.cost import Stage
from dkrr.planning.problem import Form, Problem
from dkrr.planning.resources import Execution, Place, Resources
from dkrr.solvers import Cholesky, ConjugateGradient

Settings = Cholesky | ConjugateGradient | None

SMALL_SECONDS = 3.0
"""Work below this needs neither workers nor a solver whose time is only an estimate."""
ACTIVE_ALPHAS = 2
"""Values of λ whose columns iterate for most of the time, where all folds are solved for at once."""


class Reason(str):
    """Sentence of a plan for people, with a code for programs: words may change, a code stays what it is."""

    code: str
    """A few words in kebab-case, such as "smaller-matrix"; empty, as the sentence, where there is no reason."""

    def __new__(cls, code: str = "", text: str = "") -> Self:
        reason = super().__new__(cls, text)
        reason.code = code
        return reason

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.code, str(self))


NO_REASON = Reason()
NOT_ENOUGH_MEMORY = Reason("memory", "needs more memory than allowed")


def codes_of(reasons: Iterable[str]) -> list[str]:
    """Codes of sentences; empty for one that came back as text only, as from a file of skops."""
    return [getattr(reason, "code", "") for reason in reasons]


@dataclass(frozen=True)
class Tiling:
    """How a factorisation cuts its matrix."""

    tile: int
    panel: int
    """Columns of a tile that are stored as one chunk."""
    columns_per_task: int = 0
    """Tile columns that one task of the factorisation subtracts; 0 means all."""


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
    n_active: int = 1
    """Number of columns on which conjugate gradient works on average."""
    n_curvatures: int = 0
    """Number of columns with a diagonal of their own, and so with a small matrix of their own in the preconditioner."""

    @classmethod
    def of_ridge(cls, p: Problem) -> Self:
        """Systems of a ridge regression."""
        return cls(
            n_factors=len(p.alphas),
            n_right_sides=p.n_right_sides,
            n_stored=len(p.alphas) if p.keeps_store else 1,
            n_columns=p.n_right_sides * len(p.alphas) * p.n_folds,
            shift=min(p.alphas),
            tol=p.tol,
            # Columns of large λ end soon.
            n_active=p.n_right_sides
            * (len(p.alphas) if p.n_folds == 1 else min(ACTIVE_ALPHAS, len(p.alphas)) * p.n_folds),
            n_curvatures=0 if p.n_folds == 1 else 3 * p.n_folds,
        )


@dataclass(frozen=True, kw_only=True)
class Strategy(ABC):
    """One way to solve a problem, with its projected cost."""

    form: Form
    place: Place
    stages: tuple[Stage, ...]
    refused: Reason = NO_REASON
    """Why it cannot be chosen; empty if it can."""

    is_direct: ClassVar[bool] = False
    """Complete factors solve the systems, in a time that hardly depends on the spectrum."""

    @classmethod
    @abstractmethod
    def serves(cls, settings: Settings) -> bool:
        """Whether this strategy uses the solver with these settings; None means any solver."""

    @classmethod
    @abstractmethod
    def candidates(cls, problem: Problem, resources: Resources, form: Form) -> Iterator["Strategy"]:
        """Every way of this kind to solve a problem in one form, priced."""

    @abstractmethod
    def summary(self) -> str:
        """Short description of the strategy."""

    @abstractmethod
    def solves_by(self) -> str:
        """What solves linear systems, in a few words."""

    @abstractmethod
    def lines(self, problem: Problem) -> list[str]:
        """Lines of the plan: what solves the systems and to what accuracy, where, and how the matrix is kept."""

    @abstractmethod
    def reasons(self, problem: Problem, priced: "Strategy", others: Sequence["Strategy"]) -> list[Reason]:
        """Why it was chosen among all candidates (`others`).

        Compared with them was `priced`: the strategy itself, or the Newton's method around it.
        """

    @abstractmethod
    def layout(self) -> dict[str, Any]:
        """How the run is cut, for the run that resumes it; the fields of Layout."""

    def layout_of(self, tiling: Tiling, row_parts: int = 1) -> dict[str, Any]:
        """Fields of Layout."""
        return {
            "form": self.form,
            "tile": tiling.tile,
            "panel": tiling.panel,
            "columns_per_task": tiling.columns_per_task,
            "row_parts": row_parts,
            "solver": self.solver,
        }

    def doubt(self, problem: Problem, direct_seconds: float) -> Reason:  # noqa: ARG002
        """Why `solver="auto"` must not choose it where a direct solver takes so long; empty if it may."""
        return NO_REASON

    def iteration_doubt(self, problem: Problem) -> tuple[float, float]:  # noqa: ARG002
        """Smallest and largest number of iterations over the expected one, where an estimate says no more."""
        return 1.0, 1.0

    @property
    def for_systems(self) -> "Strategy":
        """Strategy that solves the linear systems: itself, or the one inside Newton's method."""
        return self

    @property
    def solver(self) -> Literal["cholesky", "cg"]:
        """Solver of linear systems."""
        return self.for_systems.solver

    @property
    def is_whole(self) -> bool:
        """The whole matrix is factored in memory."""
        return False

    @property
    def tile(self) -> int:
        """Rows of a tile."""
        return int(self.layout()["tile"])

    @property
    def uses_threads(self) -> bool:
        """In the calling process tasks run in threads with one BLAS thread each, not one after the other."""
        return False

    @property
    def task_threads(self) -> int:
        """Threads of the calling process that run tasks."""
        return self.place.slots if self.uses_threads else 1

    @property
    def seconds(self) -> float:
        """Projected wall time."""
        return sum(s.seconds for s in self.stages)

    @property
    def read_bytes(self) -> float:
        """Bytes read from the store."""
        return sum(s.read_bytes for s in self.stages)

    @property
    def written_bytes(self) -> float:
        """Bytes written to the store."""
        return sum(s.written_bytes for s in self.stages)

    @property
    def disk_bytes(self) -> int:
        """Peak space in the store."""
        return sum(s.disk_bytes for s in self.stages)

    @property
    def peak_bytes(self) -> int:
        """Peak memory of any process that works."""
        return max(s.peak_bytes for s in self.stages)

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
        return type(self.for_systems), self.form, self.execution

    def to_dict(self) -> dict[str, Any]:
        """Strategy as values of JSON."""
        names = ("solver", "execution", "n_workers", "seconds", "read_bytes", "written_bytes", "disk_bytes")
        figures = {name: getattr(self, name) for name in (*names, "peak_bytes", "limit_bytes")}
        (code,) = codes_of([self.refused])
        return {"name": self.summary(), "tile": self.tile, **figures, **asdict(self), "refused_code": code}


def count_of_processes(place: Place) -> str:
    """Number of Dask's workers and of their threads, in parentheses; empty for the calling process."""
    threads = f" of {place.threads} threads" if place.threads > 1 else ""
    return f" ({plural(place.n_workers, 'process', 'es')}{threads})" if place.execution == "dask" else ""


def plural(count: int, word: str, ending: str = "s") -> str:
    """Count and word."""
    return f"{count:,} {word}{'' if count == 1 else ending}"
