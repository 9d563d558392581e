"""The table of kernels: a line for each class, from which descriptions, names and the package's exports are made.

A new kernel is a module with its class, and a line here. What else it has to have, tests say by name.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dkrr.kernels.base import Kernel
from dkrr.kernels.categories import Categories as Categories
from dkrr.kernels.columns import Columns as Columns
from dkrr.kernels.composite import Normalized as Normalized
from dkrr.kernels.composite import Product as Product
from dkrr.kernels.composite import Scaled as Scaled
from dkrr.kernels.composite import Sum as Sum
from dkrr.kernels.custom import Precomputed as Precomputed
from dkrr.kernels.documents import BagOfWords as BagOfWords
from dkrr.kernels.dot import Cosine as Cosine
from dkrr.kernels.dot import Linear as Linear
from dkrr.kernels.dot import Polynomial as Polynomial
from dkrr.kernels.dot import Sigmoid as Sigmoid
from dkrr.kernels.dot import TaylorRBF as TaylorRBF
from dkrr.kernels.euclidean import RBF as RBF
from dkrr.kernels.euclidean import Matern as Matern
from dkrr.kernels.manhattan import AdditiveChi2 as AdditiveChi2
from dkrr.kernels.manhattan import Chi2 as Chi2
from dkrr.kernels.manhattan import Laplacian as Laplacian
from dkrr.kernels.random_walk import RandomWalk as RandomWalk
from dkrr.kernels.rational import RationalQuadratic as RationalQuadratic

_CLASSES = [
    value for value in vars().values() if isinstance(value, type) and issubclass(value, Kernel) and value is not Kernel
]

if not TYPE_CHECKING:  # type checkers know the names from the imports
    __all__ = [kind.__name__ for kind in _CLASSES]

KERNELS: Mapping[str, type[Kernel]] = {kind.tag: kind for kind in _CLASSES}
"""Classes by tag, of the kernels that descriptions hold."""
NAMED: Mapping[str, type[Kernel]] = {
    name: kind for kind in sorted(_CLASSES, key=lambda kind: kind.names) for name in kind.names
}
"""Classes by the names that ``kernel=`` takes: those of scikit-learn's metrics, and others."""
