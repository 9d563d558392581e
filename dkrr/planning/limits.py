"""What a plan may use of the machine: fractions of memory, and what processes hold besides their arrays."""

WORKER_BASELINE_BYTES = 160 * 2**20
"""Resident memory of a worker process with NumPy, SciPy, Zarr and dkrr imported, before its first task (measured:
about 110 MiB, and 50 more with an S3 store, with libraries of the versions of 2026). Workers are asked when they
start."""
PROCESS_MARGIN_BYTES = 24 * 2**20
"""Interpreter, allocator and messages, on top of what is counted."""
CALLER_MARGIN_BYTES = 12 * 2**20
"""The same of the calling process, which has its libraries loaded and exchanges no messages (measured: what is counted
is 30 MiB too high already)."""
LOCAL_FRACTION = 0.92
"""Fraction of a worker's limit that a plan may use where dkrr starts the workers: they hold nothing else, and
neither spill nor pause."""
CLUSTER_FRACTION = 0.70
"""Fraction of a worker's limit that a plan may use of a user's workers: Dask pauses a worker at 0.80 of its limit and
kills it at 0.95."""
AVAILABLE_FRACTION = 0.80
"""Fraction of the memory available now that is used where no limit is given."""
RESIDENT_ROWS_FRACTION = 1 / 4
"""Largest fraction of a process's memory that X may take where every process keeps it."""
