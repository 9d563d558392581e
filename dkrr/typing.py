"""Types of what users pass, for annotations of their own programs, as numpy.typing has them.

`RowsLike`, `TargetsLike` and `WeightsLike` are the containers of X, y and ``sample_weight``, `KernelLike`,
`TransformerLike` and `FoldsLike` what ``kernel``, ``transformer`` and ``cv`` may be, and `NumbersLike` one number or
several. `Predictions` is what predictions are returned as. Containers are described by what they can do, so that no
package of them has to be installed: a type checker accepts arrays of NumPy, Dask, Zarr, h5py and xarray, frames of
pandas, polars, Dask and Arrow, `dkrr.Table`, matrices of scipy.sparse, lists, and paths. It refuses a number, None and
a dict.

>>> import dkrr
>>> from dkrr.typing import KernelLike, RowsLike, TargetsLike
>>> def fitted(X: RowsLike, y: TargetsLike, kernel: KernelLike = "rbf") -> dkrr.KernelRidge:
...     return dkrr.KernelRidge(kernel=kernel).fit(X, y)
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ForwardRef, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dask.array import Array

    from dkrr.kernels.base import Kernel
    from dkrr.kernels.map_base import FeatureMap
else:  # known by name, since a program that only names them should not import dask and scipy
    Array = ForwardRef("Array", module="dask.array")
    Kernel = ForwardRef("Kernel", module="dkrr.kernels.base")
    FeatureMap = ForwardRef("FeatureMap", module="dkrr.kernels.map_base")

__all__ = [
    "FoldsLike",
    "GroupsLike",
    "KernelLike",
    "KernelName",
    "NumbersLike",
    "Predictions",
    "RowsLike",
    "TargetsLike",
    "TransformerLike",
    "WeightsLike",
]


class SupportsArray(Protocol):
    """Array or column: of NumPy, Dask, Zarr, h5py, xarray or torch; a Series of pandas, polars or Dask."""

    def __array__(self) -> Any: ...

    @property
    def shape(self) -> tuple[Any, ...]:
        """Number of rows, and of columns if it has any."""


class SupportsChunks(Protocol):
    """Array whose rows are read in blocks: of Dask, Zarr or h5py."""

    @property
    def shape(self) -> tuple[Any, ...]:
        """Numbers of rows and columns."""

    @property
    def chunks(self) -> tuple[Any, ...]:
        """Sizes of its blocks."""


class SupportsDaskGraph(Protocol):
    """Containers that Dask may compute: its collections, and arrays of xarray."""

    def __dask_graph__(self) -> Any: ...


class SupportsSparse(Protocol):
    """Matrix or array of scipy.sparse."""

    @property
    def shape(self) -> tuple[Any, ...]:
        """Numbers of rows and columns."""

    def tocsr(self) -> Any:
        """The same in compressed rows."""


class SupportsColumns(Protocol):
    """Table with named columns: `dkrr.Table`, a frame of pandas, polars (also lazy) or Dask, a table of Arrow."""

    @property
    def columns(self) -> Any:
        """Its columns, or their names."""


class FrameInMemory(SupportsColumns, Protocol):
    """Frame of pandas or polars."""

    def to_numpy(self) -> Any:
        """Its values."""


class SupportsTransform(Protocol):
    """Transformer of scikit-learn: an estimator, a Pipeline or a ColumnTransformer."""

    @property
    def fit(self) -> Callable[..., Any]:
        """Function that learns from rows."""

    @property
    def transform(self) -> Callable[..., Any]:
        """Function from rows to rows."""


class SupportsPredict(Protocol):
    """Fitted estimator of dkrr."""

    @property
    def predict(self) -> Callable[..., Any]:
        """Function from rows to predictions."""


class SupportsSplit(Protocol):
    """Splitter of scikit-learn, such as KFold, GroupKFold or TimeSeriesSplit."""

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[Any]:
        """Pairs (train, test) of row numbers."""
        ...


MaybeLazy: TypeAlias = SupportsChunks | SupportsDaskGraph
"""Rows whose predictions are or may be lazy; to be asked before `InMemory`, since arrays of xarray and frames of Dask
have methods of every name for mypy (`__getattr__`)."""

TargetsLike: TypeAlias = Sequence[Any] | SupportsArray | MaybeLazy | SupportsColumns | str | Path
"""Targets or labels: a list or any array, a column or a table, the path of one, or the name of columns of X."""

RowsLike: TypeAlias = TargetsLike | SupportsSparse
"""Rows: a list or any array, a matrix of scipy.sparse, a table with named columns, documents or other objects that the
kernel takes, or the path or URL of any of these."""

WeightsLike: TypeAlias = float | TargetsLike
"""Sample weights: one number for all rows, or one for each as `TargetsLike` has them."""

InMemory: TypeAlias = NDArray[Any] | list[Any] | tuple[Any, ...] | SupportsSparse | FrameInMemory
"""Rows whose predictions are an ndarray."""

DaskArray: TypeAlias = Array
"""A lazy array of Dask."""

Predictions: TypeAlias = NDArray[np.float64] | DaskArray
"""An ndarray for rows in memory, a lazy Dask array for rows that are read in blocks."""

GroupsLike: TypeAlias = Sequence[Any] | SupportsArray
"""Group of every row, for splitters that keep the rows of a group together."""

NumbersLike: TypeAlias = float | Sequence[float] | SupportsArray
"""A number, or several in one dimension."""

KernelName: TypeAlias = Literal[
    "additive_chi2",
    "chi2",
    "cosine",
    "laplacian",
    "linear",
    "matern",
    "poly",
    "polynomial",
    "precomputed",
    "rational_quadratic",
    "rbf",
    "sigmoid",
]
"""Names of kernels, as in scikit-learn where it has them."""

KernelLike: TypeAlias = KernelName | Kernel | FeatureMap | Callable[..., Any]
"""A name, a value of `dkrr.kernels` or `dkrr.features`, or a function of two blocks of rows."""

TransformerLike: TypeAlias = Literal["standardize"] | SupportsTransform
"""Transformer of X before the kernel: StandardScaler by its name, or any transformer of scikit-learn."""

FoldsLike: TypeAlias = int | Literal["loo"] | SupportsSplit | Iterable[tuple[Any, Any]]
"""Folds: their number, "loo" (one row at a time), a splitter of scikit-learn, or pairs (train, test) of row numbers."""


def __dir__() -> list[str]:
    return __all__
