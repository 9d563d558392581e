"""Arrays in mapped files: larger than memory may be, since the system can reclaim their pages."""

import mmap
import os
import tempfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.store.faults import faults_of
from dkrr.units import format_bytes


class _Shared(mmap.mmap):
    """Mapping whose changes are in the file, so that its pages may be released at any time."""


def is_mapped(array: Any) -> bool:
    """Whether the numbers of an array lie in a mapped file."""
    while isinstance(array, np.ndarray | memoryview):
        array = array.base if isinstance(array, np.ndarray) else array.obj
    return isinstance(array, mmap.mmap)


def release_pages(array: Any) -> None:
    """Give back the memory of pages of a file mapped for reading only, or by `mapped_array`; they are read again."""
    while isinstance(array, np.ndarray | memoryview):
        base: Any = array.base if isinstance(array, np.ndarray) else array.obj
        if isinstance(base, mmap.mmap):
            break
        array = base
    else:
        return
    # Of a private mapping that may be written to, the changes would be lost.
    if not isinstance(base, _Shared) and not (isinstance(array, np.memmap) and array.mode == "r"):
        return
    if hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)


def mapped_array(shape: tuple[int, ...], folder: str | None, content: str = "dual coefficients") -> NDArray[np.float64]:
    """Array in a temporary file without a name, which is gone with the array.

    Parameters
    ----------
    shape : tuple of int
    folder : str or None
        Where the file is; None: the system's folder of temporary files.
    content : str
        What it holds, for messages.

    Raises
    ------
    DiskSpaceError
        If it does not fit on the disk.
    StoreError
        If the folder does not take it for another reason.
    """
    n_bytes = 8 * int(np.prod(shape))
    what = f"keep {format_bytes(n_bytes)} of {content} in {folder or 'the temporary folder of the system'}"
    then = "or give another folder as dkrr.temporary-directory (many targets, or y in a file, need one)"
    with faults_of(what, then), tempfile.TemporaryFile(dir=folder) as file:
        # A page of a mapped file that does not fit on the disk would end the process.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, n_bytes)
        else:  # macOS
            file.truncate(n_bytes)
        mapping = _Shared(file.fileno(), n_bytes)
        if hasattr(mmap, "MADV_RANDOM"):
            # Batches of targets take some columns of all rows: reading ahead would fetch the whole file for each.
            mapping.madvise(mmap.MADV_RANDOM)
        return np.frombuffer(mapping, np.float64).reshape(shape)
