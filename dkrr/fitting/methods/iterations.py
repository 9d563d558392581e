"""What both methods of conjugate gradient have in common: their words."""

from collections.abc import Sequence

from dkrr.fitting.methods.solving import SolvingMethod
from dkrr.linalg.solver_settings import ConjugateGradient
from dkrr.planning.explain import why_cg
from dkrr.planning.iterations_first import why_watched
from dkrr.planning.problem import Problem
from dkrr.planning.resources import Workplace
from dkrr.planning.strategy import Strategy
from dkrr.text import Reason, format_bytes, format_seconds, plural


class IterativeMethod(SolvingMethod):
    """Conjugate gradient to a true residual."""

    solver = "cg"
    is_direct = False
    keeps_tiles = False

    def uses_threads(self, place: Workplace) -> bool:  # noqa: ARG002
        return True

    def products_words(self, c: Strategy) -> str:  # noqa: ARG002
        """Precision of the products, and what they read."""
        return "float64, the rows streamed at every pass"

    def summary(self, c: Strategy) -> str:
        where = plural(c.n_workers, "worker") if c.execution == "dask" else "in this process"
        return f"{c.form}, conjugate gradient, {where}, {self.products_words(c)}"

    def solver_words(self, c: Strategy, p: Problem) -> str:
        details = c.details
        rank = f"rank {details.rank:,}"
        if details.rank < details.rank_limit:
            rank = f"rank up to {details.rank_limit:,}, about {details.rank:,}"
        preconditioned = f"preconditioned ({rank})" if details.rank_limit else "not preconditioned by a factor"
        return (
            f"conjugate gradient, {preconditioned}, to a true residual of {p.tol:.0e}; about "
            f"{plural(details.iterations, 'iteration')} (an estimate)"
        )

    def newton_words(self, c: Strategy) -> tuple[str, str]:
        by = f" with a factor of rank about {c.details.rank:,}" if c.details.rank else ""
        return f"conjugate gradient{by}", f", {plural(c.iterations, 'iteration')} in all"

    def more_facts(self, c: Strategy, p: Problem) -> list[tuple[str, str]]:  # noqa: ARG002
        return [("products", self.products_words(c))]

    def why(self, c: Strategy, p: Problem, candidates: Sequence[Strategy]) -> list[Reason]:
        details, found = c.details, [_why_iterative(p, c, candidates)]
        if c.otherwise is not None:
            found.append(why_watched("a factorisation", c.otherwise.summary(), c.otherwise.seconds))
        if c.execution == "memory":
            text = "in the calling process, since its threads are as fast as workers would be"
            found.append(Reason("threads-are-as-fast", text))
        elif c.execution == "serial":
            store = "checkpoints in the store" if p.keeps_store else "a temporary store, since tile= was given"
            code = "store-requested" if p.keeps_store else "tile-requested"
            found.append(Reason(code, f"in the calling process, with {store}"))
        if p.iteration_settings.rank is not None:
            found.append(Reason("rank-requested", f"a preconditioner of rank {details.rank:,} was requested"))
        elif details.rank:
            text = (
                f"a preconditioner of rank {details.rank:,}: a higher rank would take longer to build than it saves, "
                f"or not fit in memory; the spectrum found during the fit may end it earlier or raise it to "
                f"{details.rank_limit:,}"
            )
            found.append(Reason("rank-pays", text))
        return found


def _why_iterative(p: Problem, chosen: Strategy, candidates: Sequence[Strategy]) -> Reason:
    if isinstance(p.solver, ConjugateGradient):
        return why_cg(p)
    direct = [c for c in candidates if c.is_direct and c.form == chosen.form]
    possible = min((c for c in direct if not c.refused), key=lambda c: c.seconds, default=chosen.otherwise)
    if possible is not None:
        factors = "factorisations" if p.loss == "logistic" else "a factorisation"
        disk = f" and {format_bytes(possible.disk_bytes)} of disk" if possible.disk_bytes else ""
        text = f"conjugate gradient, since {factors} would take about {format_seconds(possible.seconds)}{disk}"
        return Reason("factor-is-slower", text)
    if direct:
        why = direct[0].refused
        return Reason(f"factor-refused-{why.code}", f"conjugate gradient, since a factorisation {why}")
    return Reason("factor-is-too-large", "conjugate gradient, since the matrix is too large for a factorisation")
