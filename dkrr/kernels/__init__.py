"""Kernels: immutable values that turn blocks of rows into blocks of the Gram matrix."""

from typing import TYPE_CHECKING

from dkrr.kernels.base import Kernel as Kernel
from dkrr.kernels.composite import weighted_sums as weighted_sums
from dkrr.kernels.composite import weights_of as weights_of
from dkrr.kernels.custom import CallableKernel as CallableKernel
from dkrr.kernels.diagnosis import smallest_eigenvalue as smallest_eigenvalue
from dkrr.kernels.graphs import Graph as Graph
from dkrr.kernels.registry import *  # noqa: F403  (every class of kernels has its line there)

if not TYPE_CHECKING:  # type checkers know the names from the imports
    from dkrr.kernels import registry

    __all__ = [
        "CallableKernel",
        "Graph",
        "Kernel",
        "smallest_eigenvalue",
        "weighted_sums",
        "weights_of",
        *registry.__all__,
    ]

    def __dir__():
        return __all__
