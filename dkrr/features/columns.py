"""The feature map of some of the columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dkrr.errors import InputError, InputTypeError
from dkrr.features.base import Array, FeatureMap
from dkrr.features.maps import WrapperMap
from dkrr.kernels import Columns, Kernel
from dkrr.kernels.blocks import Block
from dkrr.values import n_dimensions, shown, whole


@dataclass(frozen=True)
class ColumnsMap(WrapperMap):
    """φ(x) = φ₁ of some of the columns of x, for the kernel ``Columns``.

    Parameters
    ----------
    base : FeatureMap
        φ₁.
    columns : sequence of int, optional
        Numbers of the columns; None: those from `start` to `stop` − 1.
    start, stop : int, optional
        Consecutive columns.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr.features import ColumnsMap, IdentityMap
    >>> ColumnsMap(IdentityMap(), [2, 0]).transform(np.array([[1.0, 2.0, 3.0]]))
    array([[3., 1.]])
    """

    tag: ClassVar[str] = "columns"

    columns: tuple[int, ...] | None = None
    start: int | None = None
    stop: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("start", "stop"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole(getattr(self, name), name, 0))
        if self.columns is not None:
            object.__setattr__(self, "columns", _checked_columns(self.columns))
        elif self.start is None or self.stop is None:
            raise InputError("columns is None; expected columns=, or start= and stop=")
        elif self.stop <= self.start:
            raise InputError(f"stop is {self.stop} and start {self.start}; expected at least one column between them")

    @property
    def _numbers(self) -> Sequence[int]:
        return range(self.start or 0, self.stop or 0) if self.columns is None else self.columns

    @property
    def width(self) -> int:
        """Number of the columns."""
        return len(self._numbers)

    def _base_columns(self, n_features: int) -> int:  # noqa: ARG002
        return self.width

    def resolved(self, n_features: int) -> FeatureMap:  # noqa: ARG002
        return super().resolved(self.width)

    def kernel(self) -> Kernel:
        return Columns(self.base.kernel(), tuple(self._numbers))

    def to_dict(self) -> dict[str, Any]:
        description = super().to_dict()
        return {**description, "columns": None if self.columns is None else list(self.columns)}

    def _cut(self, X: Block) -> Block:
        needed = max(self.columns) + 1 if self.columns else self.stop or 0
        if X.shape[1] < needed:
            raise InputError(f"X has {X.shape[1]} columns; expected at least {needed} for {self!r}")
        part: Block = X[:, slice(self.start, self.stop) if self.columns is None else list(self.columns)]
        return np.ascontiguousarray(part) if isinstance(part, np.ndarray) else part

    def _fill(self, X: Block, start: int, stop: int, out: Array) -> None:
        self.base._fill(self._cut(X), start, stop, out)

    def _multiply(self, X: Block, coef: Array) -> Array:
        return self.base._multiply(self._cut(X), coef)

    def _adjoint(self, X: Block, values: Array) -> Array:
        return self.base._adjoint(self._cut(X), values)


def _checked_columns(columns: Any) -> tuple[int, ...]:
    if not isinstance(columns, Sequence | np.ndarray) or isinstance(columns, str | bytes) or n_dimensions(columns) != 1:
        raise InputTypeError(f"columns is {shown(columns)}; expected numbers of columns, at least one")
    if len(columns) == 0:
        raise InputError("columns is empty; expected numbers of columns, at least one")
    return tuple(whole(column, "columns", 0, "they count from 0") for column in columns)
