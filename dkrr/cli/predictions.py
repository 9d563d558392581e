"""Predictions, written as a Zarr array or a NumPy file."""

from pathlib import Path
from typing import Any

import numpy as np

from dkrr.errors import InputError, StoreError
from dkrr.tiles.arrays import chunk_rows, create_array, open_array
from dkrr.tiles.aside import check_free, written_aside
from dkrr.values import location, shown


def check_predictions_path(path: str, *, overwrite: bool) -> None:
    """Refuse a path that predictions could not be written to, before they are computed."""
    if not location(path, "--out", "the path of the predictions").endswith((".zarr", ".npy")):
        raise InputError(f"--out is {shown(path)}; expected a path that ends in .zarr or .npy")
    check_free(path, overwrite=overwrite, what="an array of predictions", is_one=_is_array)


def _is_array(path: str) -> bool:
    if path.endswith(".npy"):
        return Path(path).is_file()
    try:
        open_array(path)
    except StoreError:
        return False
    return True


def write_predictions(predictions: Any, path: str, *, overwrite: bool = False) -> None:
    """Write predictions, an ndarray or a lazy Dask array, to a .npy file or a Zarr array, one block at a time.

    They are written to a temporary path first: a prediction that fails leaves `path` unchanged.
    """
    if predictions.dtype == object and not hasattr(predictions, "chunks"):
        predictions = np.array(predictions.tolist())  # strings of a fixed length
    dtype = predictions.dtype
    if dtype.kind not in "biuf" and not (dtype.kind == "U" and path.endswith(".npy")):
        raise InputError(
            f"labels are of type {dtype}, which {path} does not hold; expected numbers, or strings in a .npy file: "
            f"--proba writes numbers"
        )
    with written_aside(path, overwrite=overwrite) as place:
        if place.endswith(".npy"):
            out = np.lib.format.open_memmap(place, mode="w+", dtype=dtype, shape=predictions.shape)
        else:
            out = create_array(place, predictions.shape, dtype, chunk_rows(predictions.shape, dtype))
        for start, stop in _blocks(predictions):
            part = predictions[start:stop]
            out[start:stop] = part.compute() if hasattr(part, "compute") else part
        if place.endswith(".npy"):
            out.flush()


MAX_BLOCKS_BYTES = 128 * 2**20
"""Predictions that are computed and written together."""


def _blocks(predictions: Any) -> list[tuple[int, int]]:
    n = predictions.shape[0]
    step = max(1, MAX_BLOCKS_BYTES // max(1, int(np.prod(predictions.shape[1:])) * 8))
    if hasattr(predictions, "chunks"):
        # Several blocks at once keep all workers busy; all blocks at once might exceed the memory.
        tallest = max(predictions.chunks[0])
        step = max(tallest, min(step, 16 * tallest))
    return [(start, min(start + step, n)) for start in range(0, n, step)]
