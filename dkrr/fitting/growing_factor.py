"""A dual fit that grows: rows, targets, weights and a factor in memory, which every call continues by its own rows.

The factor is that of the posteriors: standard deviations, the likelihood and leave-one-out residuals take the same one,
whichever of them, or the fit, has made it. The rows of earlier calls keep their place in it, and the kernel its origin.
λ and what is in K are part of a factor: with another λ all rows are factored once more.

`grow` chooses between this and the sums of the primal form (`dkrr.fitting.growing_sums`).
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dkrr.data import Rows, scan, watched
from dkrr.errors import InputError, warn_inaccurate
from dkrr.fitting.context import progress_of
from dkrr.fitting.data import TrainingData, shared_fields
from dkrr.fitting.fallbacks import with_messages
from dkrr.fitting.growing_sums import GrownSums, Space, grown, sums_of
from dkrr.fitting.joined_rows import joined_rows
from dkrr.fitting.kept import Kept
from dkrr.fitting.posteriors import Posteriors
from dkrr.fitting.request_plans import KEEPS_FACTOR, plan_of_factor
from dkrr.fitting.requests import FitRequest, Targets
from dkrr.fitting.run import Fit, fit_regression, shortfall
from dkrr.fitting.sampled import centre_linear_parts, with_bounding_box
from dkrr.kernels import Kernel
from dkrr.kernels.kernel_features import feature_map, is_drawn
from dkrr.linalg.in_memory_cholesky import memory_bytes
from dkrr.text import NO_REASON, Reason, plural

Array = NDArray[np.float64]

NOTHING_KEPT = Kept(0, lambda _: None)


@dataclass(frozen=True)
class GrownFactor:
    """Rows of all calls so far, and of the fit before them, with the factor that their posteriors have."""

    asked: Kernel
    """Kernel of the first call, as it was requested."""
    posteriors: Posteriors
    """Posteriors of all these rows: their request, and the factor where one was made."""
    space: Space | None = None
    """Fields of the data that all calls share; None: of a fit, whose factor may have them."""
    keeps_rows: ClassVar[bool] = True

    @classmethod
    def of_fit(cls, asked: Kernel, posteriors: Posteriors) -> "GrownFactor":
        """Rows of a fit, from which a model goes on."""
        given = posteriors.given
        before = given.settings.kernel
        return cls(asked if with_bounding_box(asked, given.rows) == before else before, posteriors)

    @property
    def fit_intercept(self) -> bool:
        """Whether the models have an intercept."""
        return self.posteriors.given.settings.fit_intercept

    @property
    def n(self) -> int:
        """Rows so far."""
        return len(self.posteriors.targets)

    def kept(self, alphas: NDArray[np.float64], new: Rows) -> tuple[Kept, Space | None, str]:
        """What a fit of these rows and new ones takes of the factor, its space, and words for a message."""
        kept, space = self.posteriors.kept(alphas.tolist(), new), self.space or _space_of(self.posteriors)
        if kept is None:
            why = (
                "alpha is not that of the factor that was kept"
                if self.posteriors.has_factor
                else "the model had no factor in float64 in memory"
            )
        elif space.kernel != self.posteriors.kernel:  # of a run in a store that began with another origin
            why = "the kernel has another origin"
        else:
            return kept, space, f"the factor of the other {self.n:,} was kept"
        return NOTHING_KEPT, None, f"all were factored, since {why}"


Grown = GrownSums | GrownFactor
"""What a model that grows keeps of its rows."""


def grow(known: Grown | None, request: FitRequest, asked: Kernel, show: bool | None) -> tuple[Grown, Fit]:
    """What is kept of the rows so far and those of a request, and the fit of all of them.

    The form follows in every call from all rows so far: the one that was asked for, or that with the smaller matrix.
    Sums, once they exist, stay.

    Parameters
    ----------
    known : GrownSums or GrownFactor, optional
        What is kept of earlier rows, which does not change; None: there are none.
    request : FitRequest
        The new rows.
    asked : Kernel
        Kernel as it was requested.
    show : bool or None
        Whether progress is shown, as in `make_progress`.

    Raises
    ------
    InputError
        If the model cannot grow with these settings and rows; the message says what to do.
    MemoryLimitError
        If a factor of all rows, or the sums, do not fit in memory.
    NotPositiveDefiniteError
        If the matrix is not positive definite.

    Warns
    -----
    ConvergenceWarning
        If the result is less accurate than requested.
    """
    if isinstance(known, GrownFactor):
        request = request.with_settings(kernel=known.posteriors.given.settings.kernel)
    if not isinstance(known, GrownSums):
        if why := _why_dual(known, request):
            return _factored(known, request, asked, why, show)
        known = None if known is None else _sums_so_far(known, request, show)
    _refuse_without_rows(request)
    return grown(known, request, asked, show)


def _refuse_without_rows(request: FitRequest) -> None:
    """Refuse settings that need rows, where only sums over them are kept."""
    settings = request.settings
    if settings.form == "dual":
        raise InputError(
            "form is 'dual', and the model is in primal form, whose rows were not kept; expected form='primal' or "
            "'auto': or give all rows to fit"
        )
    if settings.uncertainty is not False:
        raise InputError(
            f"uncertainty is {settings.uncertainty!r}, and in primal form partial_fit keeps sums and not the rows, "
            f"which it needs; expected uncertainty=False, or form='dual' from the first call on: or give all rows to "
            f"fit"
        )


def _why_dual(known: GrownFactor | None, request: FitRequest) -> Reason:
    """Reason for the dual form; empty for the primal one."""
    settings, weights, (n, d) = request.settings, [request.weights], request.rows.shape
    phi = feature_map(settings.kernel.resolved(d), d)
    is_of_sums = is_drawn(settings.kernel) or (phi is not None and phi.is_transform)
    if settings.form == "dual":
        if is_of_sums:
            raise InputError(
                f"form is 'dual', and kernel is {settings.kernel!r}, an approximation that partial_fit has in primal "
                f"form only; expected form='primal' or 'auto', or the kernel that it approximates"
            )
        return Reason("form-requested", "form='dual' was requested")
    if settings.form == "primal" or is_of_sums:
        return NO_REASON
    if phi is None:
        return Reason("no-feature-map", "dual, since the kernel has no finite feature map")
    if settings.uncertainty is not False:
        return Reason("rows-are-kept", "dual, since uncertainty takes the rows, which sums do not keep")
    if known is not None:
        n, weights = n + known.n, [known.posteriors.given.weights, request.weights]
    n -= sum(int(np.count_nonzero(w == 0)) for w in weights if w is not None)
    dimension = phi.dimension(d)
    if dimension <= n - (1 if settings.fit_intercept else 0):  # the rank of the sums
        return NO_REASON
    return Reason("smaller-matrix", f"dual, since n = {plural(n, 'row')} against D = {plural(dimension, 'feature')}")


def _sums_so_far(known: GrownFactor, request: FitRequest, show: bool | None) -> GrownSums:
    """Sums over the rows that were kept."""
    given, outputs = known.posteriors.given, request.outputs
    assert isinstance(given.outputs, Targets) and isinstance(outputs, Targets)
    earlier = Targets(given.outputs.values, outputs.alphas)
    return sums_of(replace(request, rows=given.rows, outputs=earlier, weights=given.weights), known.asked, show)


def _factored(
    known: GrownFactor | None, request: FitRequest, asked: Kernel, why: Reason, show: bool | None
) -> tuple[GrownFactor, Fit]:
    """Fit of all rows in dual form, with what is kept of the factor of the earlier ones."""
    kept, space, n_new, messages = NOTHING_KEPT, None, request.rows.shape[0], tuple[str, ...]()
    because, outputs = replace(request.because, form=why, solver=KEEPS_FACTOR), request.outputs
    assert isinstance(outputs, Targets)
    if known is not None:
        kept, space, text = known.kept(outputs.alphas, request.rows)
        messages = (f"{plural(known.n + n_new, 'row')}, {n_new:,} of them in this call; {text}",)
    request = replace(_joined(known, request), because=because, kept=kept)
    request, plan = plan_of_factor(request, _held_bytes(kept, len(set(outputs.alphas.tolist()))))
    assert isinstance(request.outputs, Targets)
    data = TrainingData.of(request.outputs, shared_fields(request, plan.problem))
    data = centre_linear_parts(data) if space is None else replace(data, **space._asdict())
    scale = data.dual_scale()
    if scale is not None and kept.swept:
        swept = {group: one * scale[kept.n :] for group, one in kept.swept.items()}
        request = replace(request, kept=replace(kept, swept=swept))
    (model,) = with_messages(fit_regression(request, data, plan, progress_of(show, plan.seconds)), messages)
    if not model.result.status.is_good:
        warn_inaccurate(shortfall(model.result, plan), stacklevel=4)
    space = Space(data.kernel, data.feature_map, data.centring, data.fit_intercept)
    return GrownFactor(asked if known is None else known.asked, model.posteriors, space), Fit(plan, (model,))


def _space_of(posteriors: Posteriors) -> Space:
    """Fields of the data of a fit."""
    given = posteriors.given
    assert isinstance(given.outputs, Targets)
    data = centre_linear_parts(TrainingData.of(given.outputs, shared_fields(given, given.problem())))
    return Space(data.kernel, data.feature_map, data.centring, data.fit_intercept)


def _held_bytes(kept: Kept, n_factors: int) -> int:
    """Memory of the factors that are kept, and of K beside them."""
    first = kept.factor("system-0")
    if first is None:
        return 0
    each = memory_bytes(first.grid, keeps=False)
    swept = sum(one.nbytes for one in kept.swept.values())
    return swept + n_factors * each + (0 if kept.matrix is None else memory_bytes(first.grid, keeps=True) - each)


def _joined(known: GrownFactor | None, request: FitRequest) -> FitRequest:
    """Request of all rows so far and the new ones, in memory and apart from the arrays that were given."""
    parts, outputs = [request], request.outputs
    if known is not None:
        parts.insert(0, known.posteriors.given)
    scan(request.rows, "X")  # here, since errors name the rows of this call
    rows = joined_rows([one.rows for one in parts], request.settings.memory_limit)
    weights, values = None, list[Array]()
    if any(one.weights is not None for one in parts):
        each = [np.ones(one.rows.shape[0]) if one.weights is None else one.weights for one in parts]
        weights = np.concatenate(each)
    for one in parts:
        assert isinstance(one.outputs, Targets)
        values.append(one.outputs.values)
    assert isinstance(outputs, Targets)
    targets = Targets(np.concatenate(values), outputs.alphas)
    return replace(request, rows=watched(rows), outputs=targets, weights=weights, posteriors=Posteriors)
