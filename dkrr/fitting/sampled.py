"""Feature maps that are drawn from the training rows, before the fit is planned."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

import numpy as np

from dkrr.cluster import Progress
from dkrr.data import MemoryRows, Rows, scan, write_rows
from dkrr.data.rows import check_finite
from dkrr.fitting.context import Context
from dkrr.fitting.costs.centre_costs import DRAWING
from dkrr.fitting.data import ORIGIN, FitData
from dkrr.fitting.grids import box_of
from dkrr.kernels import Kernel, centring
from dkrr.kernels.fourier_grid import FourierGrid
from dkrr.kernels.kernel_features import feature_map as feature_map_of
from dkrr.kernels.map_base import Array, FeatureMap, MapKernel
from dkrr.kernels.nystroem import Nystroem, NystroemMap, entry_seconds, held_bytes, whitened
from dkrr.linalg.pivoted_cholesky import choose_pivots
from dkrr.store import RunStore

ORIGIN_ROWS = 1024
ORIGIN_BYTES = 16 * 2**20
"""Rows, and their bytes, whose mean is the origin: any point near the rows will do, so they need not all be read."""

Value = TypeVar("Value", bound=Kernel | FeatureMap)
Data = TypeVar("Data", bound=FitData)


def with_sampled_maps(value: Value, rows: Rows, progress: Progress | None = None) -> Value:
    """Kernel or feature map with every Nyström approximation inside fitted to the rows.

    Parameters
    ----------
    value : Kernel or FeatureMap
    rows : Rows
        The training rows, of shape (n, d).
    progress : Progress, optional

    Returns
    -------
    Kernel or FeatureMap
        The value itself if nothing is to be drawn.

    Raises
    ------
    InputError
        If the rows hold NaN or infinity, or the kernel is not positive semidefinite on the centres.
    """
    return _replaced(value, lambda part: nystroem_map(part, rows, progress) if isinstance(part, Nystroem) else part)


def with_bounding_box(kernel: Kernel, rows: Rows) -> Kernel:
    """Kernel in which every Fourier grid has the box of the rows, unless it was given one."""
    return _replaced(kernel, lambda part: _boxed(part, rows) if isinstance(part, FourierGrid) else part)


def _boxed(phi: FourierGrid, rows: Rows) -> FourierGrid:
    if phi.box is not None:
        return phi
    d = rows.shape[1]
    phi = phi.resolved(d)  # type: ignore[assignment]
    return phi.in_box(box_of(rows, phi.columns(d)))


def centre_linear_parts(data: Data, store: str | None = None) -> Data:
    """Move the origin of the kernel near the rows, for fits with an intercept.

    The model is the same. Data are returned as they are without an intercept, where an origin brings nothing (see
    `kernels.centring`), and with CSR rows, which it would fill.

    Parameters
    ----------
    data : FitData
        Some rows are read. The kernel is resolved.
    store : str, optional
        Store of the fit. A run that it holds resumes with its own origin, whatever container holds the rows now.
    """
    kernel, d = data.kernel, data.rows.shape[1]
    if not data.fit_intercept or data.rows.is_sparse or not centring.linear_scales(kernel, d).any():
        return data
    begun = None if store is None else RunStore(store).description()
    if begun is not None and begun["fingerprint"] is not None:
        noted = begun["notes"].get(ORIGIN)
        # One of another length is another problem's, which `claim` refuses.
        origin = None if noted is None or len(noted) != d else centring.as_origin(noted)
    else:
        origin = _origin_of(data)
    if origin is None:
        return data
    about = centring.with_origin(kernel, origin)
    phi = None if data.feature_map is None else feature_map_of(about, d)
    return replace(data, kernel=about, feature_map=phi, centring=centring.Centring(kernel, origin))


def _origin_of(data: FitData) -> Array | None:
    """Origin near the rows that count; None of CSR rows, also where only a block shows that they are."""
    rows, weights = data.rows, data.weights
    n, d = rows.shape
    most = max(1, min(ORIGIN_ROWS, ORIGIN_BYTES // (8 * d)))
    everywhere = isinstance(rows, MemoryRows)
    if weights is None:
        # Of rows that are not in memory the first are read, which lie together.
        sample = rows.read(0, n)[:: -(-n // most)] if everywhere else rows.read(0, min(n, most))
        n_positive, shares = n, None
    else:
        counting = np.flatnonzero(weights)
        some = counting[:: -(-len(counting) // most)] if everywhere else counting[:most]
        together = not everywhere and some[-1] - some[0] + 1 == len(some)
        sample = rows.read(int(some[0]), int(some[-1]) + 1) if together else rows.take(some)
        n_positive, shares = len(counting), weights[some]
    return centring.origin_near(data.kernel, sample, n_positive, shares) if isinstance(sample, np.ndarray) else None


def nystroem_map(settings: Nystroem, rows: Rows, progress: Progress | None = None) -> NystroemMap:
    """Draw the centres and whiten them.

    Parameters
    ----------
    settings : Nystroem
    rows : Rows
        Uniform pivots read the rows of the centres only.
    progress : Progress, optional

    Returns
    -------
    NystroemMap
        With `n_components` features, or fewer if the kernel has a smaller rank on the rows.
    """
    kernel, m = settings.base.resolved(rows.shape[1]), settings.n_components
    progress = Progress() if progress is None else progress
    with progress.stage(DRAWING, float(m) ** 2):
        if settings.pivots != "uniform":
            scan(rows, "X")  # a NaN would become a pivot
        pivots = choose_pivots(kernel, rows, m, settings.pivots, settings.random_state, progress.advance)
        centres = rows.take(np.sort(pivots))
        check_finite(centres, "the centres drawn from X")
        return whitened(kernel, centres)


def with_stored_arrays(value: Value, context: Context) -> Value:
    """Kernel or feature map whose arrays lie in the store, for tasks that travel to other processes.

    A whitening of 2,000 centres is 32 MB, which every task would carry. Nothing changes where tasks do not travel.
    """
    if context.client is None:
        return value
    store = context.stored.store

    def stored(part: Any) -> Any:
        if not isinstance(part, NystroemMap):
            return part
        places = []
        for digest, array in part.arrays().items():
            # A name that holds the checksum: a process never takes the arrays of one run for those of another.
            name = f"features-{digest}"
            store.delete(name)  # of an earlier call, which may not have finished it
            places.append(write_rows(MemoryRows(array), store.place(name)))
        return _StoredMap(part.base, *places)

    return _replaced(value, stored)


def _replaced(value: Value, change: Callable[[Any], Any]) -> Value:
    """Value with `change` applied to it, or else to its parts; the value itself if that changes nothing."""
    new: Value = change(value)
    if new is not value:
        return new
    parts = {f.name: getattr(value, f.name) for f in fields(value)}  # type: ignore[arg-type]
    known = {name: _replaced(part, change) for name, part in parts.items() if isinstance(part, Kernel | FeatureMap)}
    changed = {name: part for name, part in known.items() if part is not parts[name]}
    return replace(value, **changed) if changed else value  # type: ignore[type-var]


@dataclass(frozen=True)
class _StoredMap(FeatureMap):
    """A `NystroemMap` in a store; each process reads it once."""

    tag: ClassVar[str] = "stored"

    base: Kernel
    centres: Rows
    whitening: Rows

    def entry_seconds(self, n_features: int) -> float:
        return entry_seconds(self.base, self.whitening.shape[0], n_features)

    def held_bytes(self, n_features: int) -> int:
        return held_bytes(self.base, self.whitening.shape[0], n_features)

    def dimension(self, n_features: int) -> int:  # noqa: ARG002
        """Number of centres."""
        return self.whitening.shape[0]

    def kernel(self) -> Kernel:
        """Kernel of the map."""
        return MapKernel(self)

    def _fill(self, X: Any, start: int, stop: int, out: Array) -> None:
        _read(self)._fill(X, start, stop, out)

    def _multiply(self, X: Any, coef: Array) -> Array:
        return _read(self)._multiply(X, coef)

    def _adjoint(self, X: Any, values: Array) -> Array:
        return _read(self)._adjoint(X, values)


@lru_cache(maxsize=2)
def _read(stored: _StoredMap) -> NystroemMap:
    centres, whitening = (rows.read(0, rows.shape[0]) for rows in (stored.centres, stored.whitening))
    return NystroemMap(stored.base, centres, whitening)
