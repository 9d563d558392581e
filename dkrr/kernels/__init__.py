"""Kernels: immutable values that turn blocks of rows into blocks of the Gram matrix."""

from dkrr.kernels.base import Kernel
from dkrr.kernels.categories import Categories
from dkrr.kernels.columns import Columns
from dkrr.kernels.composite import Normalized, Product, Scaled, Sum, weighted_sums, weights_of
from dkrr.kernels.custom import CallableKernel, Precomputed
from dkrr.kernels.descriptions import kernel_from_dict
from dkrr.kernels.diagnosis import SampledSpectrum, smallest_eigenvalue
from dkrr.kernels.documents import BagOfWords
from dkrr.kernels.dot import Cosine, Linear, Polynomial, Sigmoid, TaylorRBF
from dkrr.kernels.euclidean import RBF, Matern
from dkrr.kernels.graphs import Graph
from dkrr.kernels.manhattan import AdditiveChi2, Chi2, Laplacian
from dkrr.kernels.names import as_kernel
from dkrr.kernels.random_walk import RandomWalk

__all__ = [
    "RBF",
    "AdditiveChi2",
    "BagOfWords",
    "CallableKernel",
    "Categories",
    "Chi2",
    "Columns",
    "Cosine",
    "Graph",
    "Kernel",
    "Laplacian",
    "Linear",
    "Matern",
    "Normalized",
    "Polynomial",
    "Precomputed",
    "Product",
    "RandomWalk",
    "SampledSpectrum",
    "Scaled",
    "Sigmoid",
    "Sum",
    "TaylorRBF",
    "as_kernel",
    "kernel_from_dict",
    "smallest_eigenvalue",
    "weighted_sums",
    "weights_of",
]
