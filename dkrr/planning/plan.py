"""The plan: a frozen value that explains itself."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from dkrr.linalg.cholesky import tile_steps
from dkrr.planning.problem import Form, Problem
from dkrr.planning.resources import Execution, Resources
from dkrr.units import format_bytes, format_seconds

_WHERE = {
    "memory": "in the calling process, in memory",
    "serial": "in the calling process, tiles on disk",
    "dask": "on Dask workers, tiles on disk",
}


@dataclass(frozen=True)
class Candidate:
    """One way to solve the problem, with its projected cost."""

    form: Form
    execution: Execution
    n_workers: int
    """Processes that work."""
    tile: int
    """Rows of a tile; a small matrix in memory is one."""
    panel: int
    """Columns of a stored strip of a tile."""
    segment: int
    """Tile columns that one task of the factorisation subtracts; 0 means all."""
    row_parts: int
    """Parts of the rows whose normal matrices are formed separately (primal)."""
    row_block: int
    """Rows of X that are in memory at once (primal)."""
    seconds: float
    read_bytes: float
    written_bytes: float
    disk_bytes: int
    """Most space taken in the store at any time."""
    peak_bytes: int
    """Most memory of any process that works."""
    limit_bytes: int
    """What that process is allowed."""
    solver: Literal["cholesky", "cg"] = "cholesky"
    iterations: int = 0
    """Expected of conjugate gradient."""
    rank: int = 0
    """Expected columns of the preconditioner's factor."""
    rank_limit: int = 0
    """Columns that there is memory for."""
    kept_tiles: int = 0
    """Tiles of the matrix that each place keeps in memory; the others are formed at every pass."""
    precision: Literal["float64", "float32"] = "float64"
    """Of the products (of conjugate gradient) or of the factor (that preconditions it)."""
    stores_tiles: bool = False
    """Conjugate gradient reads tiles from disk that were formed once."""
    cold_part: float = 0.0
    """Part of those that the system's cache of files has no room for: the disk itself delivers it at every pass."""
    has_factor: bool = False
    """A complete float32 factor on disk is the preconditioner."""
    keeps_rows: bool = False
    """Every process keeps X in memory."""
    keeps_matrix: bool = False
    """The matrix stays in memory beside its factor; otherwise its tiles are formed again for the residual."""
    n_tiles: int = 0
    """Tiles along one side (conjugate gradient)."""
    slots: int = 1
    """Tasks that run at once (conjugate gradient)."""
    refused: str = ""
    """Why it cannot be chosen; empty if it can."""

    def layout(self) -> dict[str, Any]:
        """How the run is cut, for the runs that go on with it; the fields of Layout."""
        return {
            "form": self.form,
            "tile": self.tile,
            "panel": self.panel,
            "segment": self.segment,
            "row_parts": self.row_parts,
            "solver": self.solver,
        }

    @property
    def name(self) -> str:
        """Short description."""
        where = {"memory": "in memory", "serial": "on disk, one process", "dask": f"{self.n_workers} workers"}
        if self.has_factor:
            how = "conjugate gradient with a float32 factor"
            return f"{self.form}, {how}, {where[self.execution]}, tiles of {self.tile:,}"
        if self.solver == "cg":
            where |= {"memory": "in this process", "serial": "in this process"}
            return f"{self.form}, conjugate gradient, {where[self.execution]}, {_products(self)}"
        tiles = "" if self.execution == "memory" else f", tiles of {self.tile:,}"
        return f"{self.form}, Cholesky, {where[self.execution]}{tiles}"


@dataclass(frozen=True)
class Plan:
    """What will be done, what it should cost, and why.

    ``str(plan)`` explains it; ``plan.to_dict()`` is for programs.
    """

    problem: Problem
    resources: Resources
    chosen: Candidate
    prediction: Form
    """Form in which the model predicts: primal costs O(D) a row, dual O(n d)."""
    reasons: tuple[str, ...]
    rejected: tuple[Candidate, ...]
    """The other candidates, best first."""

    @property
    def form(self) -> Form:
        """Form of the solve."""
        return self.chosen.form

    @property
    def solver(self) -> str:
        """Name of the solver: "cholesky" or "cg"."""
        return self.chosen.solver

    @property
    def execution(self) -> Execution:
        """Where the work is done."""
        return self.chosen.execution

    @property
    def seconds(self) -> float:
        """Projected wall time."""
        return self.chosen.seconds

    @property
    def peak_bytes(self) -> int:
        """Projected highest memory of any process that works."""
        return self.chosen.peak_bytes

    @property
    def disk_bytes(self) -> int:
        """Projected space in the store."""
        return self.chosen.disk_bytes

    @property
    def uses_threads(self) -> bool:
        """In the calling process tasks run in threads with one BLAS thread each, not one after the other."""
        streams = self.problem.loss == "logistic" and self.form == "primal"
        return streams or (self.solver == "cg" and not self.chosen.has_factor)

    def to_dict(self) -> dict[str, Any]:
        """Plan as values of JSON."""
        problem = {
            "n": self.problem.n,
            "d": self.problem.d,
            "n_targets": self.problem.n_targets,
            "loss": self.problem.loss,
            "kernel": self.problem.kernel.to_dict(),
            "dimension": self.problem.dimension,
            "alphas": list(self.problem.alphas),
            "fit_intercept": self.problem.fit_intercept,
        }
        return {
            "problem": problem,
            **asdict(self.chosen),
            "solver": self.solver,
            "prediction": self.prediction,
            "reasons": list(self.reasons),
            "rejected": [{"name": c.name, **asdict(c)} for c in self.rejected],
        }

    def __str__(self) -> str:
        c, p = self.chosen, self.problem
        matrix = p.n if c.form == "dual" else p.dimension or 0
        what = "K + λI" if c.form == "dual" else "ΦᵀΦ + λI"
        columns = _plural(p.n_targets, "target")
        if p.loss == "logistic":
            what = "K + 2λW⁻¹" if c.form == "dual" else "ΦᵀWΦ + 2λI"
            columns = f"softmax of {p.n_targets} classes" if p.is_coupled else _plural(p.n_targets, "logistic model")
        lines = [
            f"dkrr plan: {p.n:,} rows × {p.d:,} columns, {columns}, {_describe(p)}",
            f"  form        {c.form}: {'factor' if c.solver == 'cholesky' else 'iterate with'} {what}, {matrix:,} × "
            f"{matrix:,}; predict in {self.prediction} form",
            f"  solver      {_solver(c, p)}" + (f", {len(p.alphas)} values of alpha" if len(p.alphas) > 1 else ""),
            f"  where       {_where(c)}",
        ]
        if c.solver == "cg" and not c.has_factor:
            lines.append(f"  products    {_products(c)}")
        elif c.execution != "memory" and not (p.loss == "logistic" and c.form == "primal"):
            n_tiles = -(-matrix // c.tile)
            by = f", {c.segment} tile columns a task" if c.segment else ""
            lines.append(
                f"  tiles       {c.tile:,} × {c.tile:,} in strips of {c.panel}{by}; "
                f"{n_tiles} a side, {sum(1 for _ in tile_steps(n_tiles, c.segment))} tasks"
            )
        lines += [
            f"  time        about {format_seconds(c.seconds)}",
            f"  memory      at most {format_bytes(c.peak_bytes)} a process (limit {format_bytes(c.limit_bytes)})",
            f"  disk        {format_bytes(c.disk_bytes)}; {format_bytes(c.written_bytes)} written, "
            f"{format_bytes(c.read_bytes)} read"
            if c.execution != "memory"
            else "  disk        none",
            "  because",
            *(f"    - {reason}" for reason in self.reasons),
        ]
        if self.rejected:
            lines.append("  rejected")
            lines += [f"    - {_rejection(r, c)}" for r in self.rejected[:4]]
        return "\n".join(lines)


def _solver(c: Candidate, p: Problem) -> str:
    if p.loss == "logistic":
        how = {
            "cholesky": "Cholesky",
            "cg": f"conjugate gradient{f' with a factor of rank about {c.rank:,}' if c.rank else ''}",
        }[c.solver]
        if c.has_factor:
            how = "conjugate gradient with factors in float32"
        inner = f", {c.iterations:,} iterations in all" if c.solver == "cg" else ""
        return f"Newton to a relative gradient of {p.tol:.0e}, by {how}; about {p.n_steps} steps{inner} (an estimate)"
    if c.solver == "cholesky":
        return "tiled Cholesky"
    if c.has_factor:
        return (
            f"conjugate gradient to a true residual of {p.tol:.0e}, preconditioned by a tiled Cholesky factor in "
            f"float32; about {c.iterations} iterations (an estimate)"
        )
    rank = f"rank up to {c.rank_limit:,}, about {c.rank:,}" if c.rank < c.rank_limit else f"rank {c.rank:,}"
    how = f"preconditioned ({rank})" if c.rank_limit else "not preconditioned by a factor"
    return (
        f"conjugate gradient, {how}, to a true residual of {p.tol:.0e}; about {c.iterations} iterations (an estimate)"
    )


def _products(c: Candidate) -> str:
    if c.form == "primal":
        return "float64, the rows streamed at every pass"
    n_tiles = c.n_tiles * (c.n_tiles + 1) // 2
    kept = min(n_tiles, c.kept_tiles * c.slots)
    low = "mixed precision" if c.precision == "float32" else "float64"
    if c.stores_tiles:
        return f"{low}, tiles of {c.tile:,} formed once and read from disk at every pass"
    if kept == n_tiles:
        return f"{low}, the matrix kept in memory"
    part = f", {kept / n_tiles:.0%} of them kept in memory" if kept else ""
    return f"{low}, tiles of {c.tile:,} formed at every pass{part}"


def _where(c: Candidate) -> str:
    if c.solver == "cg" and not c.has_factor and c.execution != "dask":
        return "in the calling process"
    if c.solver == "cg" and not c.has_factor:
        return f"on Dask workers ({_plural(c.n_workers, 'process', 'es')})"
    return f"{_WHERE[c.execution]}" + (f" ({_plural(c.n_workers, 'process', 'es')})" if c.execution == "dask" else "")


def _rejection(rejected: Candidate, chosen: Candidate) -> str:
    ratio = rejected.seconds / max(chosen.seconds, 1e-9)
    compared = f"slower, {ratio:.2g} × the time" if ratio > 1.03 else "no faster, and moves more bytes"
    why = rejected.refused or compared
    cost = f"about {format_seconds(rejected.seconds)}, {format_bytes(rejected.peak_bytes)} a process"
    return f"{rejected.name}: {why} ({cost})"


def _plural(count: int, word: str, ending: str = "s") -> str:
    return f"{count:,} {word}{'' if count == 1 else ending}"


def _describe(p: Problem) -> str:
    description = p.kernel.to_dict()
    name = description.pop("kernel")
    if "feature_map" in description:  # the kernel of a map: what it is a map of says more
        description = dict(description["feature_map"])
        name = description.pop("feature_map")
    parameters = ", ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in description.items()
        if not isinstance(value, dict | list)
    )
    alphas = p.alphas[0] if len(p.alphas) == 1 else p.alphas
    return f"{name} kernel" + (f" ({parameters})" if parameters else "") + f", alpha={alphas}"
