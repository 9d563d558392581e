"""Conjugate gradient, with tiles of K in memory or formed at every pass, or with streamed rows."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dkrr.errors import InputError
from dkrr.linalg.operator import Precision
from dkrr.linalg.pivoted_cholesky import PRICED_RANKS, SMALL_RANKS, partial_apply_seconds
from dkrr.linalg.tiled_operator import KEPT_FRACTIONS
from dkrr.planning import iteration_primal
from dkrr.planning.iteration_dual import GramIteration, factor_seconds
from dkrr.planning.iteration_primal import primal_iterations_expected, row_passes
from dkrr.planning.problem import Form, Problem, Spectrum
from dkrr.planning.products import RowPasses, TileProducts
from dkrr.planning.resources import Resources
from dkrr.planning.strategy import SMALL_SECONDS, Reason, Settings, Strategy, Systems, Tiling, count_of_processes
from dkrr.solvers import ConjugateGradient, Float32Cholesky
from dkrr.text import format_bytes, format_seconds

SURELY_FASTER = 3.0
"""By how much conjugate gradient must beat the direct solver to be chosen: its iterations are an estimate."""
MANY_ITERATIONS = 2000
"""Iterations assumed for the primal form, where the spectrum is not known: if so many are still faster than a direct
solver, as with wide sparse rows, conjugate gradient is chosen."""
FEW_ITERATIONS = 5
"""Iterations of the primal form with uncorrelated columns."""
DOUBT_OF_ESTIMATE = (0.3, 1.3)
"""Smallest and largest number of iterations over the expected one, of fits whose spectrum was estimated on a sample
(normal, uniform, heavy-tailed, clustered and nearly singular rows; 4, 16 and 64 columns)."""
DOUBT_OF_TYPICAL = (0.1, 2.0)
"""The same where a typical spectrum was assumed."""
CG_REQUESTED = Reason("cg-requested", "conjugate gradient was requested")
SPECTRUM_UNKNOWN = Reason(
    "spectrum-unknown", "its iterations cannot be estimated before the fit; give solver='cg' to use it"
)
DIRECT_IS_SOON_DONE = Reason(
    "direct-is-soon-done", f"a factorisation takes no more than {SMALL_SECONDS:g} s, and is exact to rounding"
)
NOT_SURELY_FASTER = Reason(
    "not-surely-faster",
    f"not {SURELY_FASTER:g} × faster, and the estimate of its iterations may be wrong by that factor",
)


@dataclass(frozen=True, kw_only=True)
class Iterative(Strategy):
    """Conjugate gradient to a true residual, preconditioned by a partial factor or a diagonal."""

    products: TileProducts | RowPasses
    iterations: int
    """Expected, from the spectrum."""
    rank: int = 0
    """Expected columns of the preconditioner's factor."""
    rank_limit: int = 0
    """Columns that fit in memory."""

    solver: ClassVar = "cg"

    @classmethod
    def serves(cls, settings: Settings) -> bool:
        if isinstance(settings, ConjugateGradient):
            return not isinstance(settings.preconditioner, Float32Cholesky)
        return settings is None

    @classmethod
    def candidates(cls, problem: Problem, resources: Resources, form: Form) -> Iterator["Iterative"]:
        if form == "dual":
            yield from dual_iterative(problem, Systems.of_ridge(problem), resources)
        elif settings_of(problem).preconditioner in ("auto", None):
            yield from primal_iterative(problem, Systems.of_ridge(problem), resources)

    @property
    def uses_threads(self) -> bool:
        return True

    @property
    def tile_products(self) -> TileProducts:
        """Products of the dual form."""
        assert isinstance(self.products, TileProducts)
        return self.products

    @property
    def row_passes(self) -> RowPasses:
        """Products of the primal form."""
        assert isinstance(self.products, RowPasses)
        return self.products

    def summary(self) -> str:
        where = f"{self.place.n_workers} workers" if self.place.execution == "dask" else "in this process"
        return f"{self.form}, conjugate gradient, {where}, {self.products.describe(self.place.slots)}"

    def solves_by(self) -> str:
        return "conjugate gradient" + (f" with a factor of rank about {self.rank:,}" if self.rank else "")

    def lines(self, problem: Problem) -> list[str]:
        rank = f"rank {self.rank:,}"
        if self.rank < self.rank_limit:
            rank = f"rank up to {self.rank_limit:,}, about {self.rank:,}"
        how = f"preconditioned ({rank})" if self.rank_limit else "not preconditioned by a factor"
        where = "on Dask workers" if self.place.execution == "dask" else "in the calling process"
        return [
            f"  solver      conjugate gradient, {how}, to a true residual of {problem.tol:.0e}; about "
            f"{self.iterations} iterations (an estimate)",
            f"  where       {where}{count_of_processes(self.place)}",
            f"  products    {self.products.describe(self.place.slots)}",
        ]

    def reasons(self, problem: Problem, priced: Strategy, others: Sequence[Strategy]) -> list[Reason]:
        return [
            why_iterative(problem, priced, others),
            *self._place_reasons(problem),
            *self._rank_reasons(problem),
            *self._product_reasons(problem),
        ]

    def _place_reasons(self, problem: Problem) -> list[Reason]:
        if self.place.execution == "memory":
            text = "in the calling process, since its threads are as fast as workers would be"
            return [Reason("threads-are-as-fast", text)]
        if self.place.execution == "serial":
            store = "checkpoints in the store" if problem.keeps_store else "a temporary store, since tile= was given"
            code = "store-requested" if problem.keeps_store else "tile-requested"
            return [Reason(code, f"in the calling process, with {store}")]
        return []

    def _rank_reasons(self, problem: Problem) -> list[Reason]:
        if settings_of(problem).rank is not None:
            return [Reason("rank-requested", f"a preconditioner of rank {self.rank:,} was requested")]
        if not self.rank:
            return []
        text = (
            f"a preconditioner of rank {self.rank:,}: a higher rank would take longer to build than it saves, or not "
            f"fit in memory; the spectrum found during the fit may end it earlier or raise it to {self.rank_limit:,}"
        )
        return [Reason("rank-pays", text)]

    def _product_reasons(self, problem: Problem) -> list[Reason]:
        """Why products are in float32, and the tiles of the dual form kept or formed at every pass."""
        products, reasons = self.products, list[Reason]()
        if isinstance(products, RowPasses):
            return reasons
        if products.precision == "float32":
            text = "products in float32 take about half the time; the true residual is computed in float64"
            reasons.append(Reason("float32-products", text))
        if problem.kernel.is_precomputed or products.kept_fraction(self.place.slots) == 1:
            return reasons
        whole = products.all_tiles * products.tile**2 * products.itemsize
        text = (
            f"the whole matrix would take {format_bytes(whole)} of memory; its tiles are formed at every pass (if "
            f"that is slow, dkrr.gram(store=...) forms them once, and kernel='precomputed' with solver='cg' reads them)"
        )
        return [*reasons, Reason("tiles-formed-again", text)]

    def doubt(self, problem: Problem, direct_seconds: float) -> Reason:
        if direct_seconds <= SMALL_SECONDS:
            return DIRECT_IS_SOON_DONE
        doubt = doubt_of_spectrum(problem, self, direct_seconds, MANY_ITERATIONS)
        if not doubt and self.form == "dual" and SURELY_FASTER * self.seconds > direct_seconds:
            return NOT_SURELY_FASTER
        return doubt

    def iteration_doubt(self, problem: Problem) -> tuple[float, float]:
        if self.form == "primal":
            most = min(MANY_ITERATIONS, self.products.tile + 1)
            return FEW_ITERATIONS / max(self.iterations, FEW_ITERATIONS), max(1.0, most / self.iterations)
        return DOUBT_OF_TYPICAL if problem.spectrum == Spectrum() else DOUBT_OF_ESTIMATE

    def layout(self) -> dict[str, Any]:
        parts = self.products.row_parts if isinstance(self.products, RowPasses) else 1
        return self.layout_of(Tiling(self.products.tile, self.products.tile), parts)

    def growth_seconds(self, problem: Problem, resources: Resources) -> tuple[float, Callable[[int], float]]:
        """Time of one product, and from a rank to the time that one more pivot costs there (dual form)."""
        p, products, slots = problem, self.tile_products, self.place.slots
        way = GramIteration(p, Systems.of_ridge(p), resources, self.place, self.rank)
        m = p.n_right_sides * p.n_folds
        product = way.pass_seconds(products.precision, m, products.kept_fraction(slots))
        apply = partial_apply_seconds(p.n, 1, m, slots, products.precision)

        def pivot_seconds(rank: int) -> float:
            step = max(1, rank // 50)
            more = factor_seconds(p, resources, slots, rank + step) - factor_seconds(p, resources, slots, rank)
            return more / step + self.iterations * apply

        return product / slots, pivot_seconds


def settings_of(problem: Problem) -> ConjugateGradient:
    """Settings that the user gave, or the planner's."""
    return problem.solver if isinstance(problem.solver, ConjugateGradient) else ConjugateGradient()


def refuse_columns_of_gram(problem: Problem, against_dual: Sequence[str]) -> None:
    """Refuse a preconditioner made of columns of K where only the primal form is left.

    Raises
    ------
    InputError
        Naming the preconditioner, after the reasons against the dual form.
    """
    preconditioner = settings_of(problem).preconditioner
    if preconditioner in ("auto", None):
        return
    remedy = (
        "set alpha > 0 or use preconditioner='auto'" if against_dual else "use preconditioner='auto' or form='dual'"
    )
    refusal = (
        f"preconditioner is {preconditioner!r}; expected 'auto' or None in the primal form, as it is made of columns "
        f"of K: {remedy}"
    )
    raise InputError("; ".join([*against_dual, refusal]))


def why_iterative(problem: Problem, priced: Strategy, others: Sequence[Strategy]) -> Reason:
    """Reason for conjugate gradient."""
    if isinstance(problem.solver, ConjugateGradient):
        return CG_REQUESTED
    direct = [c for c in others if c.for_systems.is_direct and c.form == priced.form]
    possible = min((c for c in direct if not c.refused), key=lambda c: c.seconds, default=None)
    if possible is not None:
        return Reason(
            "factor-is-slower",
            f"conjugate gradient, since {'factorisations' if problem.loss == 'logistic' else 'a factorisation'} would "
            f"take about {format_seconds(possible.seconds)} and {format_bytes(possible.disk_bytes)} of disk",
        )
    if direct:
        why = direct[0].refused
        return Reason(f"factor-refused-{why.code}", f"conjugate gradient, since a factorisation {why}")
    return Reason("factor-is-too-large", "conjugate gradient, since the matrix is too large for a factorisation")


def doubt_of_spectrum(problem: Problem, priced: Any, direct_seconds: float, many: int) -> Reason:
    """Whether too little is known of the spectrum to compare an iterative solver with a direct one.

    Parameters
    ----------
    problem : Problem
    priced : Strategy
    direct_seconds : float
    many : int
        Iterations of the primal form that would be many.
    """
    if priced.form == "primal":
        worst = priced.seconds * max(1.0, many / max(priced.for_systems.iterations, 1))
        return Reason() if worst <= direct_seconds else SPECTRUM_UNKNOWN
    return Reason() if problem.kernel.has_unit_diagonal and min(problem.alphas) > 0 else SPECTRUM_UNKNOWN


def dual_iterative(problem: Problem, systems: Systems, resources: Resources) -> list[Iterative]:
    """Conjugate gradient on K + λW⁻¹: the places, times precisions, times ranks, times tiles kept."""
    settings, places = settings_of(problem), resources.caller_and_workers(wants_tiles=problem.wants_tiles)

    def of_ranks(ranks: list[int], fractions: tuple[float, ...]) -> list[Iterative]:
        return [
            _with_products(GramIteration(problem, systems, resources, place, rank), precision, fraction)
            for place in places
            for precision in PRECISIONS[settings.precision]
            for rank in ranks
            for fraction in fractions
        ]

    ranks = priced_ranks(problem)
    candidates = of_ranks(ranks, KEPT_FRACTIONS)
    if settings.rank is None and candidates[0].rank and not any(c.fits for c in candidates):
        # Also without a factor: a limit that is refused is then one that cannot be met.
        candidates += of_ranks([r for r in SMALL_RANKS if r < candidates[0].rank] + [0], KEPT_FRACTIONS[:1])
    return candidates


PRECISIONS: dict[str, tuple[Precision, ...]] = {
    "auto": ("float64", "float32"),
    "mixed": ("float32",),
    "float64": ("float64",),
}
"""Precisions of products that are compared, by the setting."""


def priced_ranks(problem: Problem) -> list[int]:
    """Ranks of the preconditioner's factor that are compared."""
    settings = settings_of(problem)
    if settings.preconditioner is None:
        return [0]
    if settings.rank is not None:
        return [min(settings.rank, problem.n)]
    return [r for r in PRICED_RANKS if r <= problem.n // 4] or [max(1, problem.n // 4)]


def _with_products(way: GramIteration, precision: Precision, fraction: float) -> Iterative:
    """Candidate with tiles in a fraction of the memory that is left for them."""
    products, peak = way.tiles_kept(precision, fraction)
    limit = way.rank
    if settings_of(way.problem).rank is None and way.rank > 0:
        limit = way.largest_rank(way.place.usable_bytes - peak)
    peak += way.factor_bytes(limit) - way.factor_bytes(way.rank)
    iterations, _ = way.counts(precision)
    return Iterative(
        form="dual",
        place=way.place,
        stages=way.stages(products, peak),
        products=products,
        iterations=iterations,
        rank=way.rank,
        rank_limit=limit,
    )


def primal_iterative(p: Problem, systems: Systems, resources: Resources) -> Iterator[Iterative]:
    """Conjugate gradient on ΦᵀWΦ + λI, the rows streamed at every pass; a diagonal preconditioner."""
    products = row_passes(p)
    iterations = primal_iterations_expected(p, systems.shift, systems.tol)
    for place in resources.caller_and_workers(wants_tiles=p.wants_tiles):
        stages = iteration_primal.stages(p, systems, resources, place, products, iterations)
        yield Iterative(form="primal", place=place, stages=stages, products=products, iterations=iterations)
