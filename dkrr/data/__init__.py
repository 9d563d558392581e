"""Rows of data, wherever they are: read in blocks, staged into a store, checked."""

from dkrr.data.arrays import MemoryRows
from dkrr.data.dask_rows import DaskRows, frame_to_numpy, is_dask_frame
from dkrr.data.open import (
    NON_LABEL_KINDS,
    as_rows,
    load_array,
    load_labels,
    load_targets,
    open_path,
    refuse_group,
    refuse_unreadable,
)
from dkrr.data.rows import Rows, scan, scan_tasks
from dkrr.data.sampling import sampled
from dkrr.data.stored import CheckedRows, described_rows, whole, write_rows
from dkrr.data.table import Table
from dkrr.data.table_opening import (
    as_table,
    in_memory,
    is_pandas_like,
    open_table,
    table_or_value,
    with_columns,
)
from dkrr.data.watched import refuse_changed, watched

__all__ = [
    "NON_LABEL_KINDS",
    "CheckedRows",
    "DaskRows",
    "MemoryRows",
    "Rows",
    "Table",
    "as_rows",
    "as_table",
    "described_rows",
    "frame_to_numpy",
    "in_memory",
    "is_dask_frame",
    "is_pandas_like",
    "load_array",
    "load_labels",
    "load_targets",
    "open_path",
    "open_table",
    "refuse_changed",
    "refuse_group",
    "refuse_unreadable",
    "sampled",
    "scan",
    "scan_tasks",
    "table_or_value",
    "watched",
    "whole",
    "with_columns",
    "write_rows",
]
