"""The GPU of this process: found and opened once, and measured then, since no plan may assume its rates.

dkrr imports CuPy, and opens the GPU, where a fit asks for it, or before the first fit that takes long without it. A
process that was forked has none: CUDA does not survive a fork.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib.util import find_spec
from threading import Lock

import numpy as np

from dkrr.errors import InputError
from dkrr.kernels.device import CudaDevice, Device, DeviceArray
from dkrr.planning.resources import Gpu

SIDE = 4096
"""Rows of the matrices that are multiplied."""
COPIED_NUMBERS = 2**26
"""Numbers of float32 that are read and written: 256 MiB, more than its cache."""
REPETITIONS = 3


@dataclass(frozen=True)
class OpenedGpu:
    """A device, and what it is as a resource."""

    device: Device
    gpu: Gpu
    lock: Lock = field(default_factory=Lock, compare=False)

    @property
    def now(self) -> Gpu:
        """The resource with the memory that is free now."""
        free, total = self.device.memory()
        return replace(self.gpu, free_bytes=free, total_bytes=total)


@dataclass(frozen=True)
class NoGpu:
    """Why this process has no GPU."""

    why: str
    remedy: str = "expected an NVIDIA GPU that CuPy can use, or device='cpu'"


FORKED = NoGpu("this process was forked when its parent had opened the GPU, which does not survive that")

_found: OpenedGpu | NoGpu | None = None
"""The GPU, or why there is none; None: nobody has looked."""
_lock = Lock()


@cache
def has_cupy() -> bool:
    """Whether CuPy is installed; nothing is imported."""
    return find_spec("cupy") is not None


def open_gpu() -> OpenedGpu:
    """Open the GPU of this process and measure it, if that is not done yet.

    Raises
    ------
    InputError
        Saying what is missing, and what to do.
    """
    found = _looked()
    if isinstance(found, NoGpu):
        raise InputError(f"device is 'cuda', and {found.why}; {found.remedy}")
    return found


def known_gpu() -> Gpu | None:
    """The GPU with the memory that is free now; None where none is open."""
    return _found.now if isinstance(_found, OpenedGpu) else None


def found_gpu() -> Gpu | str:
    """The GPU, opened if it is not yet; or why there is none."""
    found = _looked()
    return found.why if isinstance(found, NoGpu) else found.now


def is_fork_of_opened() -> bool:
    """Whether the parent of this process had opened the GPU."""
    return _found is FORKED


def _looked() -> OpenedGpu | NoGpu:
    global _found
    with _lock:  # rates that two threads measured at a time would be halved
        if _found is None:
            _found = _opened()
        return _found


def _opened() -> OpenedGpu | NoGpu:
    if not has_cupy():
        return NoGpu("CuPy is not installed", "expected it, and an NVIDIA GPU: pip install 'dkrr[cuda]'")
    try:
        device = CudaDevice()
        return OpenedGpu(device, measured(device, device.name))
    except ImportError as error:  # a library of CUDA is missing, or of another version
        remedy = (
            "expected CuPy for the CUDA version of the driver: 'dkrr[cuda]' has that for CUDA 12, cupy-cuda13x is for "
            "CUDA 13"
        )
        return NoGpu(f"CuPy cannot be loaded ({_line(error)})", remedy)
    except MemoryError as error:
        remedy = "expected that other programs leave some, or device='cpu'"
        return NoGpu(f"the GPU has no free memory ({_line(error)})", remedy)
    except Exception as error:
        return NoGpu(f"CuPy finds no GPU that it can use ({_line(error)})")


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def measured(device: Device, name: str, side: int = SIDE, numbers: int = COPIED_NUMBERS) -> Gpu:
    """The GPU with its memory, and three rates: products in float32 and in float64, and an elementwise pass."""
    xp, (free, total), rates = device.xp, device.memory(), dict[str, float]()
    for dtype in ("float32", "float64"):
        square = device.array(np.full((side, side), 0.5, dtype))
        rates[dtype] = 2.0 * side**3 / _seconds(device, partial(xp.matmul, square, square))
    vector = device.array(np.full(numbers, 0.5, np.float32))
    memory = 8.0 * numbers / _seconds(device, partial(device.fused(_square), vector))
    del square, vector
    device.release()
    return Gpu(name, total, free, rates["float32"], rates["float64"], memory)


def _square(x: DeviceArray) -> DeviceArray:
    return x * x


def _seconds(device: Device, work: Callable[[], object]) -> float:
    """Shortest time of some work, after it has been done once."""
    seconds = []
    for _ in range(1 + REPETITIONS):
        device.synchronize()
        begun = time.perf_counter()
        work()
        device.synchronize()
        seconds.append(time.perf_counter() - begun)
    return max(min(seconds[1:]), 1e-9)


def _forget() -> None:
    global _found, _lock
    _found, _lock = FORKED if isinstance(_found, OpenedGpu) else None, Lock()


os.register_at_fork(after_in_child=_forget)
