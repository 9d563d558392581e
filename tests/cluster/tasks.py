"""What tests let workers run: a worker imports this module to read its task, so it imports little itself."""

import os
import signal
import time
from pathlib import Path

import numpy as np

from dkrr.cluster import resident
from dkrr.errors import NotPositiveDefiniteError


def square(meter, x):
    meter.bytes_read += x
    return x * x


def take_memory(meter, *_):
    held = []
    for _ in range(60):
        held.append(np.ones(2**21))
        time.sleep(0.05)


def not_positive(meter, row):
    raise NotPositiveDefiniteError(f"the pivot of row {row} is not positive", row)


def wait_for(meter, path):
    deadline = time.monotonic() + 30
    while not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def die_once(meter, marker):
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


def die(meter):
    os.kill(os.getpid(), signal.SIGKILL)


def kill_the_scheduler(*_):
    """Kill the process that started the worker that this runs in."""
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(5)


def scaled(meter, k, shared):
    meter.bytes_read += k
    return shared * (k + 1.0)


def process(meter, shared):
    return os.getpid()


def keep(meter, run, k, shared):
    """How often this process has been here, and whether it keeps what it kept."""
    return resident.get_or_create(run, k, lambda: os.getpid())


def kept_runs(run):
    return run in resident._runs
