"""The Gram matrix of a fit where it is factored in float32: in memory, or in tiles in a store."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dkrr.errors import Float32BreakdownError, NotPositiveDefiniteError
from dkrr.fitting.context import Context
from dkrr.fitting.data import FitData
from dkrr.fitting.gram import FactoredGram, GramInMemory, GramInStore
from dkrr.linalg.cholesky import cholesky_tasks
from dkrr.linalg.inverse import LocalFactor, ScaledFactor, SharedFactor
from dkrr.linalg.memory import memory_system
from dkrr.linalg.operator import Operator
from dkrr.linalg.rounding import (
    MAX_ROUNDING_RATIO,
    RoundedTiles,
    least_relative_shift,
    rounding_ratio,
    rounding_scale,
)
from dkrr.linalg.sources import TileSource, Vectors
from dkrr.planning import Float32Factor
from dkrr.tiles import MemoryMatrix

Array = NDArray[np.float64]
AppliedFactor = LocalFactor | SharedFactor | ScaledFactor

TOO_SMALL = (
    "λ is too small for a factor in float32: its rounding is {ratio:.1g} of the smallest eigenvalue that λ ensures, "
    "more than " + f"{MAX_ROUNDING_RATIO:g}"
)
BROKE_DOWN = (
    "the factorisation in float32 broke down at row {row}, since λ is below its rounding or entries are outside of its "
    "range"
)
NOT_CONTRACTING = "iterations with the factor in float32 did not reach the level of rounding"
FACTORING_IN_FLOAT64 = "{reason}: factoring in float64 instead, which takes twice the time and space"


class Float32Gram(FactoredGram):
    """Gram matrix that is factored in float32, by factors that are applied to right-hand sides again and again."""

    _is_requested: bool

    @abstractmethod
    def factor(self, group: str, shift: Array, family: str, detail: str = "") -> AppliedFactor:
        """Factor the matrix + diag(s).

        Parameters
        ----------
        group : str
            Place in the storage.
        shift : ndarray of shape (n,)
            s.
        family : str
            Name of the factors that are all in float64 once float32 does not hold one of them.
        detail : str
            Which of several factors this is, for the display of the progress.

        Raises
        ------
        Float32BreakdownError
            If float32 does not hold it, in memory, where the plan has no room for a factor in float64.
        NotPositiveDefiniteError
            If a pivot is not positive in float64; what exists of the factor is deleted.
        """

    @abstractmethod
    def give_up(self, group: str, family: str, reason: str) -> None:
        """Delete a factor in float32 that does not serve, and make those of its family in float64 from now on.

        Raises
        ------
        Float32BreakdownError
            In memory.
        """

    @abstractmethod
    def breakdown(self, family: str) -> str:
        """Message that float32 did not hold a factor of a family; empty where it did."""

    def factors(
        self, groups: Sequence[str], shifts: Array, family: str, details: Sequence[str]
    ) -> list[Callable[[Array], Array]]:
        each = zip(groups, np.ascontiguousarray(shifts.T), details, strict=True)
        return [self.factor(group, shift, family, detail).apply for group, shift, detail in each]

    def _refusal(self, shift: Array) -> str:
        """Reason against a factor in float32 that nobody requested, known before the work; empty without one."""
        if self._is_requested:
            return ""
        ratio = rounding_ratio(self.n, least_relative_shift(self.scaled_diagonal, shift))
        return "" if ratio <= MAX_ROUNDING_RATIO else TOO_SMALL.format(ratio=ratio)

    def _rounded(
        self, source: TileSource, shift: Array, place: Callable[[Array], Vectors]
    ) -> tuple[TileSource, Array, Array | None]:
        """Tiles of P A P, P s P and P; None for P where all of it is 1.

        Parameters
        ----------
        source : TileSource
            A.
        shift : ndarray of shape (n,)
            s.
        place : callable
            Puts P where tasks read it.
        """
        scale = rounding_scale(self.scaled_diagonal + shift)
        if scale is None and self._scale is None and self._kernel.has_unit_diagonal:
            return source, shift, None  # no entry is out of range, and kernels compute in float32
        ones = np.ones((self.n, 1)) if scale is None else scale
        return RoundedTiles(source, place(ones)), shift * ones[:, 0] ** 2, scale


class Float32GramInStore(Float32Gram, GramInStore):
    """Gram matrix in tiles in a store; factors of a family that float32 does not hold are in float64."""

    def __init__(self, data: FitData, strategy: Float32Factor, context: Context, scale: Array | None = None) -> None:
        super().__init__(data, strategy, context, scale)
        self._is_requested = strategy.tol is not None

    def factor(self, group: str, shift: Array, family: str, detail: str = "") -> AppliedFactor:
        if not self.breakdown(family):
            refusal = self._refusal(shift)
            if not refusal:
                try:
                    return self._in_float32(group, shift, detail)
                except NotPositiveDefiniteError as error:
                    refusal = BROKE_DOWN.format(row=error.row)
            self.give_up(group, family, refusal)
        return self._applied(self.systems.factor(group, shift, "float64", detail), group)

    def _in_float32(self, group: str, shift: Array, detail: str) -> AppliedFactor:
        def place(scale: Array) -> Vectors:
            return self._context.storage.vectors(group, "rounding", self._grid, 1, scale)

        source, scaled_shift, scale = self._rounded(self.systems.source, shift, place)
        systems = replace(self.systems, source=source)
        factor = systems.factor(group, scaled_shift, "float32", ", ".join(filter(None, (detail, "float32"))))
        applied = self._applied(factor, group)
        return applied if scale is None else ScaledFactor(applied, scale)

    def give_up(self, group: str, family: str, reason: str) -> None:
        self._context.storage.delete(group)
        self._context.storage.set_note(f"{family}-broken", reason)
        self._context.progress.note(self.breakdown(family))

    def breakdown(self, family: str) -> str:
        reason = self._context.storage.note(f"{family}-broken")
        return "" if reason is None else FACTORING_IN_FLOAT64.format(reason=reason)


class Float32GramInMemory(Float32Gram, GramInMemory):
    """Gram matrix in the memory of the calling process, in which a factor in float64 may have no place.

    Memory of a factor that is released is that of the next one: the system takes long to give new pages.
    """

    def __init__(self, data: FitData, strategy: Float32Factor, context: Context, scale: Array | None = None) -> None:
        super().__init__(data, strategy, context, scale)
        self._is_requested, self._products_tile = strategy.tol is not None, strategy.products_tile
        self._factors = dict[str, MemoryMatrix]()
        self._released = list[MemoryMatrix]()

    def operator(self) -> Operator:
        return super().operator() if self._keeps_matrix else self._operator(self._tiles(), tile=self._products_tile)

    def factor(self, group: str, shift: Array, family: str, detail: str = "") -> AppliedFactor:
        refusal = self._refusal(shift)
        if refusal:
            self.give_up(group, family, refusal)
        matrix = self._released.pop() if self._released else MemoryMatrix(self._grid, np.float32)
        self._factors[group] = matrix
        source, scaled_shift, scale = self._rounded(self.systems.source, shift, lambda ones: ones)
        tasks = cholesky_tasks(memory_system(source, scaled_shift, matrix))
        try:
            self._context.run_tasks("factorisation", tasks, detail=", ".join(filter(None, (detail, "float32"))))
        except NotPositiveDefiniteError as error:
            self.give_up(group, family, BROKE_DOWN.format(row=error.row))
        factor = LocalFactor(matrix, self._context.threads, self._context.record)
        return factor if scale is None else ScaledFactor(factor, scale)

    def give_up(self, group: str, family: str, reason: str) -> None:  # noqa: ARG002
        raise Float32BreakdownError(FACTORING_IN_FLOAT64.format(reason=reason))

    def breakdown(self, family: str) -> str:  # noqa: ARG002
        return ""  # it ends the run

    def release(self, group: str) -> None:
        self._released.append(self._factors.pop(group))


def float32_gram(data: FitData, strategy: Float32Factor, context: Context, scale: Array | None = None) -> Float32Gram:
    """Gram matrix that is factored in float32, where the plan has it."""
    return (Float32GramInMemory if strategy.is_whole else Float32GramInStore)(data, strategy, context, scale)
