"""The feature map that is a function of blocks of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dkrr.checks import shown, whole
from dkrr.errors import DkrrError, InputError, InputTypeError, KernelFunctionError
from dkrr.kernels.blocks import STRIP_ROWS, Block, is_sparse, read_only
from dkrr.kernels.custom import (
    ALONE_ROWS,
    as_floats,
    checked_name,
    identity_of,
    refuse_dependence,
    shape_of,
    why_it_failed,
)
from dkrr.kernels.map_base import Array, FeatureMap
from dkrr.text import plural

USER_FEATURE_SECONDS = 20e-9
"""Seconds of a feature: a guess, as a user's function is unknown before it has run."""


@dataclass(frozen=True)
class CallableMap(FeatureMap):
    """A feature map given as a function of a block of rows, and the number of features.

    Parameters
    ----------
    function : callable
        ``function(X)`` returns all φ(x) as an (n_rows, D) array of real numbers, for a block X (n_rows, n_features) of
        float64 rows (a CSR array where the rows are sparse). The features of a row must not depend on the other rows,
        and X is read-only.
    size : int or callable
        D, or ``size(n_features)`` that returns it.
    name : str, optional
        Name in messages and descriptions; None means the function's qualified name.

    See Also
    --------
    dkrr.features.FeatureMap : Base class of feature maps.
    dkrr.kernels.CallableKernel : A function of two blocks of rows.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr import KernelRidge
    >>> from dkrr.features import CallableMap
    >>> def waves(X):
    ...     return np.hstack([np.cos(X), np.sin(X)])
    >>> phi = CallableMap(waves, lambda n_features: 2 * n_features)
    >>> phi.transform(np.array([[0.0, 0.0]]))
    array([[1., 1., 0., 0.]])
    >>> KernelRidge(kernel=phi, form="primal").fit(np.eye(3), [1.0, 2.0, 3.0]).coef_.shape
    (6,)
    """

    tag: ClassVar[str] = "callable"

    function: Callable[..., Any]
    size: int | Callable[[int], int]
    name: str | None = None

    def __post_init__(self) -> None:
        if not callable(self.function) or isinstance(self.function, type):
            raise InputTypeError(f"function {shown(self.function)} is not callable; expected one of a block of rows")
        if not callable(self.size) or isinstance(self.size, type):
            object.__setattr__(self, "size", whole(self.size, "the size of a feature map", 1))
        object.__setattr__(self, "name", checked_name(self.name, self.function))

    def digest(self) -> str:
        """SHA-256 of the sources of the functions and of the values that they use."""
        return identity_of(self.function, self.size)

    def dimension(self, n_features: int) -> int:
        return whole(self.size(n_features), f"the size of {self._subject}", 1) if callable(self.size) else self.size

    def entry_seconds(self, n_features: int) -> float:  # noqa: ARG002
        return USER_FEATURE_SECONDS

    def held_bytes(self, n_features: int) -> int:
        # The function's result for a strip of rows, and a copy; its own memory is unknown.
        return 2 * 8 * STRIP_ROWS * self.dimension(n_features)

    def to_dict(self) -> dict[str, Any]:
        """See base class; the function's name stands for it."""
        size = None if callable(self.size) else self.size
        return {"feature_map": self.tag, "name": self.name, "digest": self.digest(), "size": size}

    @property
    def _subject(self) -> str:
        return f"the feature function {self.name!r}"

    def _fill(self, X: Block, start: int, stop: int, out: Array) -> None:
        # All features of a strip of rows, as the function cannot compute some of them.
        for top in range(0, X.shape[0], STRIP_ROWS):
            rows = slice(top, top + STRIP_ROWS)
            block = X[rows].astype(np.float64, copy=False)
            features = self._block(block)
            if top == 0 and (n := block.shape[0]) > 1:
                last = slice(n - min(ALONE_ROWS, n // 2), n)
                refuse_dependence(self._block(block[last]), features[last], last.start, f"{self._subject}: a feature")
            out[rows] = features[:, start:stop]

    def _block(self, X: Block) -> Array:
        """function(X), checked."""
        expected = X.shape[0], self.dimension(X.shape[1])
        try:
            block = self.function(read_only(X))
        except (DkrrError, MemoryError):
            raise
        except Exception as error:
            kind = "CSR" if is_sparse(X) else "dense"
            raise KernelFunctionError(
                f"{self._subject} failed on a {kind} block of {plural(X.shape[0], 'row')} and "
                f"{plural(X.shape[1], 'column')}: {why_it_failed(error)}"
            ) from error
        if shape_of(block, self._subject) != expected:
            raise InputError(
                f"{self._subject} returned shape {np.shape(block)} for {expected[0]} rows; expected {expected}: a row "
                "of features for each row of X, and as many features as size= says"
            )
        block = as_floats(block, self._subject)
        if not np.isfinite(block).all():
            raise InputError(f"{self._subject} returned NaN or infinite features; expected finite numbers")
        return block.astype(np.float64, copy=False)
