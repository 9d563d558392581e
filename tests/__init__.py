"""Tests of dkrr."""

import os

# Idle threads of OpenBLAS sleep after 2^4 cycles instead of 2^26, its default, which is tens of milliseconds of a core.
# Between the small products of these tests that took a tenth of the processor time, and many times as much where other
# processes need the cores. OpenBLAS reads it when NumPy is imported, and processes that tests start inherit it.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
