"""Datasets of xarray, and netCDF files: variables along one dimension are columns."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

from dkrr.errors import InputError
from dkrr.tables.arrow import columns_of
from dkrr.tables.parquet import reading
from dkrr.tables.source import BATCH_ROWS, Column, Source

HDF5 = b"\x89HDF\r\n\x1a\n"
"""First bytes of netCDF 4, which is HDF5."""


class DatasetSource(Source):
    """Variables of a Dataset along one dimension, read in slices of it.

    Parameters
    ----------
    dataset : xarray.Dataset
    label : str
        What messages call it.
    names : sequence of str, optional
        Variables that must be among the columns: others along another dimension are then none. None: all.

    Raises
    ------
    InputError
        If variables have other dimensions.
    """

    def __init__(self, dataset: Any, label: str = "the Dataset", names: Sequence[str] | None = None) -> None:
        self.label = label
        variables = {str(name): dataset[name].dims for name in dataset.data_vars}
        wanted = [name for name in variables if names is None or name in names]
        dimensions = {variables[name] for name in wanted}
        if len(dimensions) != 1 or len(next(iter(dimensions))) != 1:
            found = ", ".join(f"{name} along ({', '.join(map(str, variables[name]))})" for name in wanted[:8])
            raise InputError(
                f"{label} has the variables {found or 'none'}; expected columns along one dimension: choose variables "
                f"that share one, stack their dimensions (dataset.stack(row=[...]).reset_index('row')), or give one "
                f"variable of two dimensions"
            )
        ((self._dimension,),) = dimensions
        self._dataset = dataset[[name for name in variables if variables[name] == (self._dimension,)]]
        chunks = [self._dataset[name].chunks for name in self._dataset.data_vars]
        self._chunks = next((found[0] for found in chunks if found is not None), None)
        self.is_costly = self._chunks is not None
        self.is_in_memory = all(
            getattr(self._dataset[name].variable, "_in_memory", False) for name in self._dataset.data_vars
        )

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        return columns_of(self._batch(0, min(self.n_rows, 1), list(self._dataset.data_vars)).schema)

    @property
    def n_rows(self) -> int:
        return int(self._dataset.sizes[self._dimension])

    @cached_property
    def edges(self) -> Sequence[int]:
        return (0, *accumulate(self._chunks or [self.n_rows]))

    def batches(self, start: int, stop: int, names: Sequence[str]) -> Iterator[Any]:
        ends = [edge for edge in self.edges if start < edge < stop] if self.is_costly else []
        for first, last in zip([start, *ends], [*ends, stop], strict=True):
            step = last - first if self.is_costly else BATCH_ROWS  # a chunk is computed once
            for k in range(first, last, max(step, 1)):
                batch = self._batch(k, min(k + step, last), names)
                yield from (batch.slice(at, BATCH_ROWS) for at in range(0, batch.num_rows, BATCH_ROWS))

    def _batch(self, start: int, stop: int, names: Sequence[str]) -> Any:
        with reading(self.label):
            part = self._dataset[list(names)].isel({self._dimension: slice(start, stop)}).compute()
            return pyarrow.RecordBatch.from_arrays([_column(part[name].values) for name in names], names=list(names))


def _column(values: Any) -> Any:
    values = np.asarray(values)
    return pyarrow.array(values.astype(object) if values.dtype.kind in "SU" else values)


def open_dataset(path: str) -> Any:
    """Dataset in a netCDF file, which is read when its numbers are.

    Raises
    ------
    InputError
        If it cannot be read.
    """
    try:
        import xarray
    except ImportError as error:
        raise InputError(
            f"{path} is a netCDF file, and xarray is missing; expected it: pip install 'dkrr[tables]'"
        ) from error
    try:
        _refuse_other_files(path)
        return xarray.open_dataset(path)
    except InputError:
        raise
    except Exception as error:  # each library behind xarray has errors of its own
        raise InputError(f"cannot read {path}: {error}; expected a netCDF file") from error


def _refuse_other_files(path: str) -> None:
    """Refuse variables that are links or have their numbers in other files, which would be opened."""
    with Path(path).open("rb") as file:
        if file.read(len(HDF5)) != HDF5:
            return
    import h5py

    with h5py.File(path, "r") as file:
        for name in file:
            is_own = isinstance(file.get(name, getlink=True), h5py.HardLink)
            if is_own and isinstance(file[name], h5py.Dataset):
                is_own = not file[name].external and not file[name].is_virtual
            if not is_own:
                raise InputError(
                    f"{path} has {name!r}, which is a link or has its numbers in another file; expected variables that "
                    f"are in the file itself"
                )
