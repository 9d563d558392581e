"""Texts of plans: their layout, and why a strategy was chosen or rejected; the words of a strategy are its method's."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from dkrr.planning.iterations_first import GIVEN_UP
from dkrr.planning.problem import Form, Problem
from dkrr.planning.resources import Resources
from dkrr.planning.strategy import Strategy
from dkrr.planning.target_batches import batch_reason
from dkrr.text import Explained, Reason, codes_of, format_bytes, format_seconds, plural

SMALL_SECONDS = 3.0
"""Work below this needs no workers."""
EQUAL_TIME = 1.03
"""Ratio of projected times below which they count as equal; the disk decides then."""
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


# Descriptions


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
    if ratio > EQUAL_TIME:
        times = f"{ratio:.2f}" if ratio < 1.095 else f"{ratio:.2g}" if ratio < 99.5 else f"{ratio:,.0f}"
        compared = f"slower, {times} × the time"
    else:
        compared = "about as fast"
        if rejected.disk_bytes > chosen.disk_bytes:
            compared += ", and needs more disk"
        elif rejected.read_bytes > chosen.read_bytes:
            compared += ", and reads more"
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


def reasons_of(
    problem: Problem, resources: Resources, chosen: Strategy, candidates: Sequence[Strategy]
) -> list[Reason]:
    """Why a plan is what it is, sentence by sentence."""
    reasons = _shortages(resources, chosen)
    if problem.layout is not None:
        text = "the store holds a run that began with this form and these tiles; the run resumes"
        if 0 < problem.layout.kept_rows < problem.n:
            text = "the store holds a run of the first rows with this form and these tiles; the run grows"
        reasons.append(Reason("resumed", text))
        reasons += [Reason(GIVEN_UP, problem.layout.given_up)] if problem.layout.given_up else []
    reasons.append(why_form(problem, chosen, candidates))
    if resources.confined:
        reasons.append(Reason("confined", resources.confined))
    reasons += [Reason("storage-rates", text) for text in resources.storage_reasons]
    if chosen.form == "dual":
        reasons += [*([batch_reason(problem)] if problem.batch else []), *_function_reasons(problem)]
    kept = [chosen.method.why_kept(chosen, problem, candidates)] if problem.uncertainty else []
    return reasons + chosen.method.why(chosen, problem, candidates) + kept


def _function_reasons(problem: Problem) -> list[Reason]:
    """Where the costs of users' kernel functions come from."""
    reasons = []
    for function in problem.kernel.functions:
        cost = function.cost
        if cost is None:
            text = "has not been measured: its time and its temporaries, 8 bytes for each entry, are assumptions"
        else:
            each = f"{cost.seconds * 1e9:.3g} ns and {cost.entry_bytes:.0f} bytes of memory for each entry"
            text = f"was measured on a block of {cost.rows:,} × {cost.rows:,} rows: {each}"
        reasons.append(Reason("kernel-function", f"the kernel function {function.name!r} {text}"))
    return reasons


def _shortages(resources: Resources, chosen: Strategy) -> list[Reason]:
    """Disk and memory that this machine lacks now, as a plan may be meant for another machine or another time."""
    reasons, free, limit = [], resources.disk_free_bytes, resources.worker_limit_bytes * resources.n_workers
    if free is not None and chosen.disk_bytes > free:
        text = (
            f"only {format_bytes(free)} of disk are free here: a fit needs store= or dkrr.temporary-directory elsewhere"
        )
        reasons.append(Reason("disk-short-here", text))
    here = resources.memory_bytes
    if resources.limit_is_given and here is not None and not resources.cluster_is_running and limit > here:
        has = f"the {format_bytes(here)} that this machine or job can give now"
        reasons.append(Reason("memory-short-here", f"memory_limit={format_bytes(limit)} is more than {has}"))
    return reasons


def best_of_each_kind(candidates: Sequence[Strategy], chosen: Strategy) -> list[Strategy]:
    """Best candidate of each kind, possible and refused, so that the explanation stays short."""
    best: dict[tuple[tuple[type, str, str], bool], Strategy] = {}
    for c in sorted(candidates, key=lambda c: (bool(c.refused), c.seconds)):
        best.setdefault((c.kind, bool(c.refused)), c)
    possible = {chosen.kind, *(kind for kind, is_refused in best if not is_refused)}
    # A refused tile size is of no interest where another one of the same kind is possible.
    kept = [c for c in best.values() if c.summary() != chosen.summary() and not (c.refused and c.kind in possible)]
    return sorted(kept, key=lambda c: (bool(c.refused), c.seconds))
