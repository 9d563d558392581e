"""Kernels: immutable values that turn blocks of rows into blocks of the Gram matrix."""

from dkrr.kernels.base import EntryCost, Kernel
from dkrr.kernels.columns import Columns
from dkrr.kernels.composite import Product, Scaled, Sum
from dkrr.kernels.custom import CallableKernel, Precomputed
from dkrr.kernels.descriptions import as_kernel, kernel_from_dict
from dkrr.kernels.dot import Cosine, Linear, Polynomial, Sigmoid
from dkrr.kernels.euclidean import RBF, Matern
from dkrr.kernels.manhattan import AdditiveChi2, Chi2, Laplacian

__all__ = [
    "RBF",
    "AdditiveChi2",
    "CallableKernel",
    "Chi2",
    "Columns",
    "Cosine",
    "EntryCost",
    "Kernel",
    "Laplacian",
    "Linear",
    "Matern",
    "Polynomial",
    "Precomputed",
    "Product",
    "Scaled",
    "Sigmoid",
    "Sum",
    "as_kernel",
    "kernel_from_dict",
]
