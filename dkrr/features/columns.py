"""The feature map of some of the columns."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dkrr.errors import InputError, InputTypeError
from dkrr.features.base import COPY_SECONDS, Array, FeatureMap
from dkrr.kernels import Columns, Kernel
from dkrr.kernels.blocks import Block


@dataclass(frozen=True)
class ColumnsMap(FeatureMap):
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

    base: FeatureMap
    columns: tuple[int, ...] | None = None
    start: int | None = None
    stop: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.base, FeatureMap):
            raise InputTypeError(f"{self.base!r} is no feature map; expected a dkrr.features.FeatureMap")
        if self.columns is not None:
            object.__setattr__(self, "columns", tuple(int(c) for c in self.columns))
        elif self.start is None or self.stop is None:
            raise InputError("ColumnsMap needs columns=, or start= and stop=")

    @property
    def _where(self) -> Any:
        return slice(self.start, self.stop) if self.columns is None else list(self.columns)

    @property
    def width(self) -> int:
        """Number of the columns."""
        return len(self.columns) if self.columns is not None else (self.stop or 0) - (self.start or 0)

    @property
    def keeps_sparse(self) -> bool:
        return self.base.keeps_sparse

    def dimension(self, n_features: int) -> int:  # noqa: ARG002
        """Return that of the part."""
        return self.base.dimension(self.width)

    def entry_seconds(self, n_features: int) -> float:  # noqa: ARG002
        return self.base.entry_seconds(self.width) + COPY_SECONDS

    def held_bytes(self, n_features: int) -> int:  # noqa: ARG002
        return self.base.held_bytes(self.width)

    def resolved(self, n_features: int) -> FeatureMap:  # noqa: ARG002
        base = self.base.resolved(self.width)
        return self if base is self.base else replace(self, base=base)

    def kernel(self) -> Kernel:
        """Return the kernel of the columns."""
        numbers = tuple(range(self.start or 0, self.stop or 0)) if self.columns is None else self.columns
        return Columns(self.base.kernel(), numbers)

    def to_dict(self) -> dict[str, Any]:
        description = super().to_dict()
        return {**description, "columns": None if self.columns is None else list(self.columns)}

    def _cut(self, X: Block) -> Block:
        if X.shape[1] < (max(self.columns) + 1 if self.columns else self.stop or 0):
            raise InputError(f"X has {X.shape[1]} columns, and {self!r} takes later ones")
        part: Block = X[:, self._where]
        return np.ascontiguousarray(part) if isinstance(part, np.ndarray) else part

    def _fill(self, X: Block, start: int, stop: int, out: npt.NDArray[np.float64]) -> None:
        self.base._fill(self._cut(X), start, stop, out)

    def _multiply(self, X: Block, coef: Array) -> Array:
        return self.base._multiply(self._cut(X), coef)

    def _adjoint(self, X: Block, values: Array) -> Array:
        return self.base._adjoint(self._cut(X), values)
