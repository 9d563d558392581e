"""Texts of plans: their layout, the description of a strategy, and why it was chosen or rejected."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from dkrr.linalg.cholesky import factor_bytes, n_tasks
from dkrr.linalg.in_memory_cholesky import ONE_TILE, memory_bytes
from dkrr.linalg.solver_settings import ConjugateGradient
from dkrr.planning.dual import against_float32
from dkrr.planning.dual_cg import settings_of
from dkrr.planning.iterations_first import why_watched
from dkrr.planning.problem import Form, Problem
from dkrr.planning.reasons import NO_REASON, Reason, codes_of
from dkrr.planning.strategy import Direct, Float32Factor, FourierSolve, Iterative, Strategy, TileProducts
from dkrr.planning.transforms import REFINED_RESIDUAL
from dkrr.store import TileGrid
from dkrr.text import Explained, format_bytes, format_seconds, plural

SMALL_SECONDS = 3.0
"""Work below this needs no workers."""
NOT_ENOUGH_MEMORY = Reason("memory", "needs more memory than allowed")
NO_FACTOR_LEFT = Reason("no-factor-left", "leaves no factor in float64, which standard deviations take")
CG_REQUESTED = Reason("cg-requested", "conjugate gradient was requested")


def layout(title: str, facts: Iterable[tuple[str, str]], because: Sequence[str], rejected: Sequence[str]) -> str:
    """Text of a plan."""
    lines = [title, *(f"  {name:12}{text}" for name, text in facts), "  because", *(f"    - {one}" for one in because)]
    return "\n".join([*lines, *(["  rejected", *(f"    - {one}" for one in rejected)] if rejected else [])])


class Reasoned(Explained):
    """Plan of work that may have another plan inside: the common part of its text and of its dictionary."""

    method: Any
    plan: Any
    seconds: float
    reasons: tuple[Reason, ...]
    rejected: tuple[Reason, ...]

    @abstractmethod
    def summary(self) -> str:
        """Short description of the method."""

    @abstractmethod
    def title(self) -> str:
        """First line of the text."""

    @abstractmethod
    def facts(self) -> list[tuple[str, str]]:
        """Lines of the text, by what they tell."""

    @abstractmethod
    def own(self) -> dict[str, Any]:
        """Entries of the dictionary that only this kind of plan has."""

    def to_dict(self) -> dict[str, Any]:
        """Plan as values of JSON."""
        return {
            "method": self.method,
            "name": self.summary(),
            **self.own(),
            "seconds": self.seconds,
            "reasons": list(self.reasons),
            "reason_codes": codes_of(self.reasons),
            "rejected": list(self.rejected),
            "rejected_codes": codes_of(self.rejected),
            "plan": None if self.plan is None else self.plan.to_dict(),
        }

    def __str__(self) -> str:
        return layout(self.title(), [("how", self.summary()), *self.facts()], self.reasons, self.rejected)


# Descriptions of strategies


def solver_facts(c: Strategy, p: Problem) -> list[tuple[str, str]]:
    """Facts of a plan about its solver: accuracy, place, and how the matrix is stored."""
    details, alphas = c.details, f", {len(p.alphas)} values of alpha" if len(p.alphas) > 1 else ""
    facts = [("where", _where(c))]
    if isinstance(details, Iterative):
        facts.append(("products", c.products_text()))
    elif not c.place.is_memory and not c.streams and not isinstance(details, FourierSolve):
        facts.append(("tiles", _tiles(c, p)))
    return [("solver", (_newton(c, p) if c.n_steps else _solver(c, p)) + alphas), *facts]


def _solver(c: Strategy, p: Problem) -> str:
    details = c.details
    if p.grows:
        return "Cholesky, of sums over the rows"
    if isinstance(details, Direct):
        return "tiled Cholesky"
    if isinstance(details, FourierSolve):
        by = (
            f"conjugate gradient with a partial factor (rank up to {details.rank_limit:,})"
            if details.rank_limit
            else "Cholesky"
        )
        return (
            f"{by}, refined to a true residual of {REFINED_RESIDUAL:.0e} of the dual system; entries of K within "
            f"{details.bound:.1e}"
        )
    if isinstance(details, Float32Factor):
        goal = "the level of rounding" if details.tol is None else f"a true residual of {details.tol:.0e}"
        return (
            f"tiled Cholesky in float32, refined in float64 to {goal} by conjugate gradient; about "
            f"{details.iterations} iterations (an estimate)"
        )
    rank = f"rank {details.rank:,}"
    if details.rank < details.rank_limit:
        rank = f"rank up to {details.rank_limit:,}, about {details.rank:,}"
    preconditioned = f"preconditioned ({rank})" if details.rank_limit else "not preconditioned by a factor"
    return (
        f"conjugate gradient, {preconditioned}, to a true residual of {p.tol:.0e}; about "
        f"{plural(details.iterations, 'iteration')} (an estimate)"
    )


def _newton(c: Strategy, p: Problem) -> str:
    details, in_all = c.details, ""
    if isinstance(details, Direct | FourierSolve):
        by = "Cholesky"
    else:
        by, in_all = "conjugate gradient", f", {plural(details.iterations, 'iteration')} in all"
        if isinstance(details, Float32Factor):
            by += " with factors in float32"
        elif details.rank:
            by += f" with a factor of rank about {details.rank:,}"
    steps = plural(c.n_steps, "step")
    return f"Newton to a relative gradient of {p.tol:.0e}, by {by}; about {steps}{in_all} (an estimate)"


def _where(c: Strategy) -> str:
    if c.execution == "dask":
        threads = f" of {c.place.threads} threads" if c.place.threads > 1 else ""
        disk = "" if isinstance(c.details, Iterative | FourierSolve) else ", tiles on disk"
        return f"on Dask workers{disk} ({plural(c.n_workers, 'process', 'es')}{threads})"
    if isinstance(c.details, Iterative | FourierSolve):
        return "in the calling process"
    return f"in the calling process, {'in memory' if c.place.is_memory else 'tiles on disk'}"


def _tiles(c: Strategy, p: Problem) -> str:
    tiling, n_tiles = c.details.tiling, -(-p.matrix_size(c.form) // c.tile)
    columns = f", {tiling.columns_per_task} tile columns per task" if tiling.columns_per_task else ""
    return (
        f"{tiling.tile:,} × {tiling.tile:,} in panels of {tiling.panel}{columns}; {n_tiles} per side, "
        f"{n_tasks(n_tiles, tiling.columns_per_task):,} tasks"
    )


def matrix_of(p: Problem, form: Form) -> str:
    """Matrix of the systems in symbols."""
    if p.loss == "squared":
        return "K + λI" if form == "dual" else "ΦᵀΦ + λI"
    return "K + 2λW⁻¹" if form == "dual" else "ΦᵀWΦ + 2λI"


def columns_of(p: Problem) -> str:
    """Number and kind of the columns of scores."""
    if p.loss == "squared":
        return plural(p.n_targets, "target")
    return f"softmax of {p.n_targets} classes" if p.is_softmax else plural(p.n_targets, "logistic model")


def kernel_of(p: Problem) -> str:
    """Kernel, its parameters and the values of alpha."""
    description = p.kernel.to_dict()
    name = description.pop("kernel")
    if "feature_map" in description:  # the kernel of a map: the kernel that the map approximates is more informative
        description = dict(description["feature_map"])
        name = description.pop("feature_map")
    parameters = ", ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in description.items()
        if not isinstance(value, dict | list)
    )
    alphas = float(f"{p.alphas[0]:.6g}") if len(p.alphas) == 1 else p.alphas
    return f"{name} kernel" + (f" ({parameters})" if parameters else "") + f", alpha={alphas}"


def rejection(rejected: Strategy, chosen: Strategy) -> str:
    """Why a candidate is not the plan."""
    ratio = rejected.seconds / max(chosen.seconds, 1e-9)
    compared = (
        f"slower, {f'{ratio:.2f}' if ratio < 1.095 else f'{ratio:.2g}' if ratio < 99.5 else f'{ratio:,.0f}'} × the time"
        if ratio > 1.03
        else "not faster, and moves more bytes"
    )
    cost = f"about {format_seconds(rejected.seconds)}, {format_bytes(rejected.peak_bytes)} per process"
    return f"{rejected.summary()}: {rejected.refused or compared} ({cost})"


# Why


def why_form(p: Problem, chosen: Strategy, candidates: Sequence[Strategy]) -> Reason:
    """Why the form."""
    if p.because.form is not None:
        return p.because.form
    if p.form is not None:
        return Reason("form-requested", f"form='{p.form}' was requested")
    if p.dimension is None:
        return Reason("no-feature-map", "dual, since the kernel has no finite feature map")
    other = "dual" if chosen.form == "primal" else "primal"
    time = min((c.seconds for c in candidates if c.form == other and not c.refused), default=None)
    against = f"; {other} would take about {format_seconds(time)}" if time is not None else ""
    features, rows = plural(p.dimension, "feature"), plural(p.n, "row")
    return Reason("smaller-matrix", f"{chosen.form}, since D = {features} against n = {rows}{against}")


def why_cg(p: Problem) -> Reason:
    """Why conjugate gradient, where the planner does not choose."""
    return p.because.solver or CG_REQUESTED


def why_solver(p: Problem, c: Strategy, candidates: Sequence[Strategy]) -> list[Reason]:
    """Why what solves the systems, and where."""
    if c.streams:
        text = "the curvature is a matrix in the calling process; the rows are streamed, a pass for each step"
        return [Reason("rows-streamed", text)] + ([] if c.place.is_memory else _why_tiles(p))
    if isinstance(c.details, Direct):
        return _why_factor(p, c, candidates)
    if isinstance(c.details, FourierSolve):
        text = "its matrix is gathered from sums over the rows, and factored"
        if c.details.rank_limit:
            text = "its products are convolutions of sums over the rows; a complete factor would take longer"
        return [Reason("grid-iterates" if c.details.rank_limit else "grid-factored", text)]
    return (
        _why_float32(c.details, candidates)
        if isinstance(c.details, Float32Factor)
        else _why_iterations(p, c, candidates)
    )


def why_kept(p: Problem, c: Strategy, candidates: Sequence[Strategy]) -> Reason:
    """Reason that says which factor the fit keeps for standard deviations, and where; or why it keeps none."""
    if c.form == "primal" and min(p.alphas) > 0 and c.details.keeps_factors:
        what = "the sums over the rows are" if isinstance(c.details, FourierSolve) else "the factor is"
        size = format_bytes(8 * len(p.alphas) * p.matrix_size("primal") ** 2)
        return Reason("factor-kept", f"{what} kept for standard deviations: {size} in memory after the fit")
    if c.form == "primal":
        text = "no factor is kept: standard deviations take a second pass over the rows when they are first asked for"
        return Reason("second-pass", text)
    if c.details.keeps_factors:
        grid = TileGrid(p.n, c.details.tiling.tile, c.details.tiling.panel)
        each = memory_bytes(grid, keeps=False) if c.place.is_memory else factor_bytes(grid)
        where = (
            "memory after the fit" if c.place.is_memory else "the store" if p.keeps_store else "the temporary folder"
        )
        size = format_bytes(len(p.alphas) * each)
        return Reason("factor-kept", f"the factor is kept for standard deviations: {size} in {where}")
    if isinstance(c.details, Float32Factor):
        return Reason(
            "no-factor-kept",
            "no factor is kept: that of the fit is in float32, and standard deviations take another one in float64, or "
            "conjugate gradient, when they are first asked for",
        )
    if isinstance(p.settings, ConjugateGradient):
        why = why_cg(p)
    else:
        refused = next((o.refused for o in candidates if o.form == "dual" and o.details.keeps_factors), NO_REASON)
        why = Reason("", f"a factorisation {refused or 'is too large'}")
    return Reason("no-factor-kept", f"no factor is kept, since {why}: standard deviations come by conjugate gradient")


def _why_factor(p: Problem, c: Strategy, candidates: Sequence[Strategy]) -> list[Reason]:
    against = against_float32(p) if p.n > ONE_TILE and c.form == "dual" else ""
    precision = [Reason("float64", f"in float64, since {against}")] if against else []
    if c.place.is_memory:
        text = "in the calling process, since everything fits in memory and that is fastest"
        return [*precision, Reason("fits-in-memory", text)]
    whole = next((o for o in candidates if o.place.is_memory and o.form == c.form), None)
    if p.keeps_store:
        why = [Reason("store-requested", "tiles on disk, since store= asks for a run that can be resumed")]
    elif whole is None:
        why = []
    elif whole.refused == NOT_ENOUGH_MEMORY:
        needed = f"{format_bytes(whole.peak_bytes)} of {format_bytes(whole.limit_bytes)}"
        why = [Reason("exceeds-memory", f"tiles on disk, since in memory one process would need {needed}")]
    else:
        code = whole.refused.code or "faster-on-workers"
        why = [Reason(code, f"on Dask, since {whole.refused or 'that is faster'}")]
    return precision + why + _why_tiles(p)


def _why_tiles(p: Problem) -> list[Reason]:
    if p.layout is not None:
        return []
    if p.tile is not None:
        return [Reason("tile-requested", f"tile={p.tile} was requested")]
    text = "larger tiles read less, smaller ones divide the work more evenly: this size is the fastest"
    return [Reason("tile-is-fastest", text)]


def _why_float32(details: Float32Factor, candidates: Sequence[Strategy]) -> list[Reason]:
    if details.tol is not None:
        why = Reason("float32-requested", "conjugate gradient with a factor in float32 was requested")
    else:
        text = "a factor in float32, since it takes half the time and space of one in float64"
        direct = [c.seconds for c in candidates if isinstance(c.details, Direct) and not c.refused]
        if direct:
            text += f" (about {format_seconds(min(direct))} in all)"
        why = Reason("float32", text)
    then = "float64 follows if it breaks down; solver='cholesky' factors in float64 throughout"
    return [why, Reason("float64-follows", then)]


def _why_iterations(p: Problem, c: Strategy, candidates: Sequence[Strategy]) -> list[Reason]:
    assert isinstance(c.details, Iterative)
    details, found = c.details, [_why_iterative(p, c, candidates)]
    if c.otherwise is not None:
        found.append(why_watched(c.otherwise))
    if c.execution == "memory":
        text = "in the calling process, since its threads are as fast as workers would be"
        found.append(Reason("threads-are-as-fast", text))
    elif c.execution == "serial":
        store = "checkpoints in the store" if p.keeps_store else "a temporary store, since tile= was given"
        code = "store-requested" if p.keeps_store else "tile-requested"
        found.append(Reason(code, f"in the calling process, with {store}"))
    if settings_of(p).rank is not None:
        found.append(Reason("rank-requested", f"a preconditioner of rank {details.rank:,} was requested"))
    elif details.rank:
        text = (
            f"a preconditioner of rank {details.rank:,}: a higher rank would take longer to build than it saves, or "
            f"not fit in memory; the spectrum found during the fit may end it earlier or raise it to "
            f"{details.rank_limit:,}"
        )
        found.append(Reason("rank-pays", text))
    if isinstance(details.products, TileProducts):
        found += _why_products(p, details.products, c.place.slots)
    return found


def _why_products(p: Problem, products: TileProducts, slots: int) -> list[Reason]:
    """Why products are in float32, and the tiles kept or formed at every pass."""
    reasons = []
    if products.precision == "float32":
        text = "products in float32 take about half the time; the true residual is computed in float64"
        reasons.append(Reason("float32-products", text))
    if p.kernel.is_precomputed or products.kept_fraction(slots) == 1:
        return reasons
    whole = products.all_tiles * products.tile**2 * products.itemsize
    text = (
        f"the whole matrix would take {format_bytes(whole)} of memory; tiles that are not kept are formed at "
        f"every pass (if that is slow, dkrr.gram(store=...) forms them once, and kernel='precomputed' with solver='cg' "
        f"reads them)"
    )
    return [*reasons, Reason("tiles-formed-again", text)]


def _why_iterative(p: Problem, chosen: Strategy, candidates: Sequence[Strategy]) -> Reason:
    if isinstance(p.solver, ConjugateGradient):
        return why_cg(p)
    direct = [c for c in candidates if c.is_direct and c.form == chosen.form]
    possible = min((c for c in direct if not c.refused), key=lambda c: c.seconds, default=chosen.otherwise)
    if possible is not None:
        return Reason(
            "factor-is-slower",
            f"conjugate gradient, since {'factorisations' if p.loss == 'logistic' else 'a factorisation'} would take "
            f"about {format_seconds(possible.seconds)} and {format_bytes(possible.disk_bytes)} of disk",
        )
    if direct:
        why = direct[0].refused
        return Reason(f"factor-refused-{why.code}", f"conjugate gradient, since a factorisation {why}")
    return Reason("factor-is-too-large", "conjugate gradient, since the matrix is too large for a factorisation")
