"""Sweeps of several kernels in step with each other: every product is one pass that forms the tiles of all of them.

A sweep is written for one kernel. Here each is a function that takes turns with the others (`dkrr.runtime.turns`): it
runs until it asks for a product with its K. Once all that are left wait, one pass serves them. Columns,
preconditioners, races and checkpoints are those of each kernel; what a kernel finds does not depend on the others.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dkrr.fitting.context import Context
from dkrr.fitting.data import TrainingData
from dkrr.fitting.gram import MultipliedGram
from dkrr.kernels.families import KernelFamily
from dkrr.linalg.family_operator import FamilyOperator, FamilyTiles
from dkrr.linalg.operator import Operator, Precision, Vectors
from dkrr.linalg.sources import GramTiles
from dkrr.planning import Iterative
from dkrr.runtime import Progress, RunRecord
from dkrr.runtime.turns import Ask, take_turns
from dkrr.tiles import TileGrid

Request = tuple[Vectors, Precision]


class TogetherGram(MultipliedGram):
    """Gram matrix of one kernel, whose products are part of those of several."""

    def __init__(self, data: TrainingData, strategy: Iterative, context: Context, ask: Ask) -> None:
        super().__init__(data, strategy, context, None)
        self._operator_of_one = AskingOperator(data.n, ask)

    def operator(self) -> Operator:
        return self._operator_of_one

    def tiles(self) -> GramTiles:
        """Tiles of the matrix, as tasks form them."""
        tiles = self._tiles()
        assert isinstance(tiles, GramTiles)
        return tiles

    @property
    def grid(self) -> TileGrid:
        """How the matrix is cut."""
        return self._grid

    @property
    def context(self) -> Context:
        """Context of the kernel's sweep."""
        return self._context


class AskingOperator(Operator):
    """A matrix whose products are made in one pass with those of others.

    Parameters
    ----------
    n : int
    ask : callable
        From vectors and a precision to the product.
    """

    def __init__(self, n: int, ask: Ask) -> None:
        self.n, self._ask, self.record = n, ask, RunRecord()

    def multiply(
        self,
        vectors: Vectors,
        precision: Precision = "float64",
        columns: NDArray[np.intp] | None = None,  # noqa: ARG002
    ) -> Vectors:
        return self._ask((vectors, precision))  # type: ignore[no-any-return]


class Together:
    """Kernels whose sweeps run in step.

    Parameters
    ----------
    count : int
    """

    def __init__(self, count: int) -> None:
        self._matrices: list[TogetherGram | None] = [None] * count
        self._asks = dict[int, Ask]()
        self._operator: FamilyOperator | None = None

    def run(self, sweeps: Sequence[Callable[[], None]]) -> None:
        """Run the sweep of every kernel; each is to take its matrix from `matrix`."""

        def begun(number: int, sweep: Callable[[], None]) -> Callable[[Ask], None]:
            def function(ask: Ask) -> None:
                self._asks[number] = ask
                sweep()

            return function

        take_turns([begun(number, sweep) for number, sweep in enumerate(sweeps)], self._serve)

    def matrix(self, number: int, data: TrainingData, strategy: Iterative, context: Context) -> TogetherGram:
        """Gram matrix of a kernel."""
        found = TogetherGram(data, strategy, context, self._asks[number])
        self._matrices[number] = found
        return found

    def _serve(self, requests: Mapping[int, Request]) -> dict[int, Vectors]:
        # Products in float64 are for true residuals: they wait until all kernels have come to theirs.
        low = {k: vectors for k, (vectors, precision) in requests.items() if precision == "float32"}
        vectors = low or {k: vectors for k, (vectors, _) in requests.items()}
        first = self._matrices[min(requests)]  # a kernel whose sweep has ended has no executor any more
        assert first is not None
        return self._family().multiply(first.context.executor, vectors, "float32" if low else "float64")

    def _family(self) -> FamilyOperator:
        """Operator of all kernels: at the first request every kernel has its matrix."""
        if self._operator is None:
            matrices = [matrix for matrix in self._matrices if matrix is not None]
            assert len(matrices) == len(self._matrices)
            one = min(matrices, key=lambda matrix: matrix.grid.tile)
            family = KernelFamily(tuple(matrix.tiles().kernel for matrix in matrices))
            self._operator = FamilyOperator(FamilyTiles(family, one.tiles().rows), one.grid, one.context.slots)
        return self._operator


class OneOfSeveral(Progress):
    """Display of one of several runs that take turns: its digits are part of the stage of all, and it has no other.

    Parameters
    ----------
    whole : Progress
        Display of all.
    stage : str
        Name of the stage.
    """

    def __init__(self, whole: Progress, stage: str) -> None:
        super().__init__()
        self._whole, self._stage, self._is_in_it = whole, stage, False

    def begin(self, name: str, total: float, done: float) -> None:  # noqa: ARG002
        self._is_in_it = name == self._stage

    def advance(self, flops: float) -> None:
        if self._is_in_it:
            self._whole.advance(flops)

    def end(self, *, failed: bool) -> None:  # noqa: ARG002
        self._is_in_it = False

    def note(self, message: str) -> None:
        self._whole.note(message)
