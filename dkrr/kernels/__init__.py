"""Kernels: immutable values that turn blocks of rows into blocks of the Gram matrix."""

from typing import TYPE_CHECKING

from dkrr.kernels.base import Kernel as Kernel
from dkrr.kernels.composite import weighted_sums as weighted_sums
from dkrr.kernels.composite import weights_of as weights_of
from dkrr.kernels.custom import CallableKernel as CallableKernel
from dkrr.kernels.descriptions import kernel_from_dict as kernel_from_dict
from dkrr.kernels.diagnosis import SampledSpectrum as SampledSpectrum
from dkrr.kernels.diagnosis import smallest_eigenvalue as smallest_eigenvalue
from dkrr.kernels.graphs import Graph as Graph
from dkrr.kernels.names import as_kernel as as_kernel
from dkrr.kernels.registry import *  # noqa: F403  (every class of kernels has its line there)

if not TYPE_CHECKING:  # type checkers know the names from the imports
    from dkrr.kernels import registry

    __all__ = [
        "CallableKernel",
        "Graph",
        "Kernel",
        "SampledSpectrum",
        "as_kernel",
        "kernel_from_dict",
        "smallest_eigenvalue",
        "weighted_sums",
        "weights_of",
        *registry.__all__,
    ]
