"""Rows of data, wherever they are: read in blocks, staged into a store, checked."""

from dkrr.rows.arrays import MemoryRows
from dkrr.rows.checks import scan, scan_tasks
from dkrr.rows.dask_arrays import DaskRows, is_dask_frame, unframed
from dkrr.rows.open import (
    NO_LABELS,
    as_array,
    as_rows,
    load_array,
    load_labels,
    load_targets,
    open_path,
    refuse_group,
    refuse_unreadable,
)
from dkrr.rows.sources import Rows
from dkrr.rows.staging import described_rows, stage, whole, write_rows
from dkrr.rows.stored import CheckedRows, SparseRows
from dkrr.rows.zarr_arrays import ZarrRows

__all__ = [
    "NO_LABELS",
    "CheckedRows",
    "DaskRows",
    "MemoryRows",
    "Rows",
    "SparseRows",
    "ZarrRows",
    "as_array",
    "as_rows",
    "described_rows",
    "is_dask_frame",
    "load_array",
    "load_labels",
    "load_targets",
    "open_path",
    "refuse_group",
    "refuse_unreadable",
    "scan",
    "scan_tasks",
    "stage",
    "unframed",
    "whole",
    "write_rows",
]
