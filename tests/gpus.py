"""A made-up GPU: this process's own memory, by NumPy or by the strict namespace of the array API standard."""

from typing import Any

import array_api_strict
import numpy as np

from dkrr.kernels.device import Device, DeviceArray
from dkrr.machine import gpu
from dkrr.planning.resources import Gpu

NAMESPACES = {"numpy": np, "strict": array_api_strict}
GIB = 2**30


class MadeUpDevice(Device):
    """A device that has no room for arrays with more than `most` entries, and counts what it refuses and releases."""

    def __init__(self, xp: Any = np, most: float = np.inf, free: int = 2 * GIB) -> None:
        super().__init__(xp)
        self.most, self.free, self.released, self.refused = most, free, 0, 0

    def cast(self, array: DeviceArray, dtype: str) -> DeviceArray:
        """As its base does; of arrays in float64, which products are, too large ones have no room."""
        self._make_room(array)
        return super().cast(array, dtype)

    def fused(self, function: Any) -> Any:
        """Function that looks at the size of its result first."""

        def sized(first: DeviceArray, *others: DeviceArray) -> DeviceArray:
            self._make_room(first)
            return function(first, *others)

        return sized

    def _make_room(self, array: DeviceArray) -> None:
        if array.shape[0] * array.shape[1] > self.most:
            self.refused += 1
            raise MemoryError("made up")

    def memory(self) -> tuple[int, int]:
        """Bytes that are free, of twice as many."""
        return self.free, 2 * self.free

    def release(self) -> None:
        """Count the calls."""
        self.released += 1


def made_up(free: int = 2 * GIB, float32: float = 5e13, float64: float = 5e13, memory: float = 3e12) -> Gpu:
    """A GPU as a resource."""
    return Gpu("made up", 2 * free, free, float32, float64, memory)


def install(monkeypatch: Any, device: Device | None = None, resource: Gpu | None = None) -> Device:
    """Let this process have a GPU."""
    device = MadeUpDevice() if device is None else device
    monkeypatch.setattr(gpu, "_found", gpu.OpenedGpu(device, made_up() if resource is None else resource))
    return device
