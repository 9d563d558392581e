"""Rows of data, wherever they are: read in blocks, staged into a store, checked."""

from dkrr.rows.checks import scan, scan_tasks
from dkrr.rows.open import as_rows, is_dask_frame, load_array, load_labels, open_path, unframed
from dkrr.rows.sources import DaskRows, MemoryRows, Rows, SparseRows, ZarrRows
from dkrr.rows.staging import stage, write_rows

__all__ = [
    "DaskRows",
    "MemoryRows",
    "Rows",
    "SparseRows",
    "ZarrRows",
    "as_rows",
    "is_dask_frame",
    "load_array",
    "load_labels",
    "open_path",
    "scan",
    "scan_tasks",
    "stage",
    "unframed",
    "write_rows",
]
