"""Chunks whose checksums this process has compared a moment ago, and whose files have not changed since.

A factorisation reads each tile about six times, most of them within seconds and from the system's cache. One comparison
holds for a minute, unless the file changes: in runs that last longer nearly every reading is compared.
"""

import os
import time
from collections.abc import Hashable

MAX_AGE_SECONDS = 60.0
"""What was longer ago may have left the cache, and be read from the disk again."""
SETTLED_SECONDS = 2.0
"""File systems keep times to within less than this: a file that is older, and changes, has another time of change."""
MAX_CHUNKS = 2**16
"""Chunks that are remembered."""


class Comparisons:
    """Chunks and the files in which their checksums were compared."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[tuple[int, ...], float]] = {}

    def hold(self, chunk: Hashable, status: os.stat_result) -> bool:
        """Whether a chunk was compared a moment ago, in this very file."""
        found = self._known.get(chunk)
        return found is not None and found[0] == _file(status) and time.monotonic() - found[1] < MAX_AGE_SECONDS

    def note(self, chunk: Hashable, status: os.stat_result) -> None:
        """Note that a chunk matches its checksum; `status` is of its file, from before the comparison."""
        if time.time() - status.st_ctime < SETTLED_SECONDS:
            return
        if len(self._known) >= MAX_CHUNKS:
            self._known = {}
        self._known[chunk] = _file(status), time.monotonic()


def _file(status: os.stat_result) -> tuple[int, ...]:
    """What differs if a file is another, or has changed: no program can set the time of the last change."""
    return status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns


COMPARISONS = Comparisons()
"""Of this process."""
