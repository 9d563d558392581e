"""Parquet: a file, a folder of files, or one partitioned by columns (Hive), here or in an object store."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import accumulate
from typing import Any

import pyarrow
import pyarrow.dataset

from dkrr.errors import InputError
from dkrr.tables.arrow import columns_of
from dkrr.tables.source import BATCH_ROWS, Column, Source


class ParquetSource(Source):
    """Row groups of a data set in Parquet. Footers say how many rows they have; only columns in use are read.

    Parameters
    ----------
    path : str or list of str
        File, folder, or files; a URL of a file system that fsspec knows.
    label : str
        What messages call it.
    owner : object, optional
        Owner of a temporary file, which is kept as long as this source; it does not travel to other processes.

    Raises
    ------
    InputError
        If it does not exist, or is not in Parquet.
    """

    def __init__(self, path: str | list[str], label: str = "", owner: Any = None) -> None:
        self._path, self._owner = path, owner
        self.label = label or (path if isinstance(path, str) else f"{path[0]}, ...")
        with reading(self.label):
            _ = self.columns

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path, "_owner": None, "label": self.label}

    @cached_property
    def _dataset(self) -> Any:
        first = self._path if isinstance(self._path, str) else self._path[0]
        filesystem = None
        if "://" in first:
            from fsspec.core import url_to_fs

            filesystem, path = url_to_fs(first)
        else:
            path = self._path
        return pyarrow.dataset.dataset(path, filesystem=filesystem, format="parquet", partitioning="hive")

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        return columns_of(self._dataset.schema)

    @cached_property
    def _groups(self) -> list[tuple[Any, int, int]]:
        """Fragment, number within it, and rows of each row group."""
        with reading(self.label):
            return [
                (fragment, group.id, int(group.num_rows))
                for fragment in self._dataset.get_fragments()
                for group in fragment.row_groups
                if group.num_rows
            ]

    @cached_property
    def edges(self) -> Sequence[int]:
        return (0, *accumulate(rows for _, _, rows in self._groups))

    @property
    def n_rows(self) -> int:
        return self.edges[-1]

    def batches(self, start: int, stop: int, names: Sequence[str]) -> Iterator[Any]:
        k = bisect_right(self.edges, start) - 1
        while start < stop:
            fragment, number, rows = self._groups[k]
            first = self.edges[k]
            with reading(self.label):
                stream = fragment.subset(row_group_ids=[number]).to_batches(
                    schema=self._dataset.schema,
                    columns=list(names),
                    batch_size=min(BATCH_ROWS, rows),
                    batch_readahead=0,
                    fragment_readahead=0,
                    use_threads=False,
                )
                for batch in stream:
                    last = first + batch.num_rows
                    if last > start and first < stop:
                        skip = max(start - first, 0)
                        yield batch.slice(skip, min(stop, last) - first - skip)
                    first = last
                    if first >= stop:
                        break
            k += 1
            start = max(start, self.edges[k])


@contextmanager
def reading(label: str) -> Iterator[None]:
    """Report errors of Arrow, HDF5 and the file system as bad input, with the name of the table."""
    try:
        yield
    except (pyarrow.ArrowException, OSError, ValueError, ImportError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        text = str(error).strip().partition("\n")[0] or type(error).__name__
        raise InputError(
            f"cannot read {label}: {text}; expected a whole table, with names and texts in Unicode"
        ) from error
