"""What every container of the columns of a table has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pyarrow

Kind = Literal["number", "text", "category", "date", "other"]

BATCH_ROWS = 65536
"""Most rows that are decoded at once."""


@dataclass(frozen=True)
class Column:
    """A column of a table, as its container describes it."""

    name: str
    kind: Kind
    dtype: str
    """Type of its values, for messages."""
    is_float32: bool = False
    """Whether float32 holds its numbers."""


class Source(ABC):
    """Container of the columns of a table: a file, a folder of files, a frame."""

    label: str = "the table"
    """What messages call it."""
    is_in_memory: bool = False
    """True if its rows are in this process's memory already."""

    @property
    @abstractmethod
    def columns(self) -> tuple[Column, ...]:
        """All columns, in order."""

    @property
    @abstractmethod
    def n_rows(self) -> int:
        """Number of rows."""

    @property
    def edges(self) -> Sequence[int]:
        """First rows of what can only be decoded as a whole, and the number of rows."""
        return (0, self.n_rows)

    @abstractmethod
    def batches(self, start: int, stop: int, names: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
        """Some columns of the rows start ... stop − 1, in consecutive batches of at most BATCH_ROWS rows."""
