"""Kernels with a feature map, one of each kind and compositions: a row here puts a map through every shared test."""

from dkrr.features import RandomFourier, TaylorMap
from dkrr.kernels import RBF, Columns, Cosine, Laplacian, Linear, Matern, Normalized, Polynomial, TaylorRBF
from dkrr.kernels.interactions import InteractionMap
from dkrr.kernels.kernel_features import required_feature_map

LENGTHS = Normalized(Polynomial(degree=2, coef0=0.0))
KERNELS = [
    Linear(),
    Cosine(),
    Polynomial(),
    Polynomial(degree=0),
    Polynomial(degree=1, gamma=0.7, coef0=3.0),
    Polynomial(degree=2, coef0=0.0),
    Polynomial(degree=4, gamma=2.0, coef0=0.5),
    InteractionMap().kernel(),
    0.3 * InteractionMap(),
    TaylorRBF(degree=0),
    TaylorMap(6, 0.3).kernel(),
    Normalized(Polynomial(degree=3)),
    Normalized(0.7 * Normalized(TaylorRBF(degree=3)) + Linear()),
    Normalized(RandomFourier(RBF(), 30).kernel()),
    Columns(Polynomial(degree=2), [0]),
    Columns(Linear(), [0]) + 0.5 * Columns(Cosine(), [0]),
    0.3 * (Polynomial(degree=2) + Cosine()) + Linear(),
    RandomFourier(RBF(), 30).kernel(),
    RandomFourier(Laplacian(gamma=0.3), 24, random_state=3).kernel(),
    RandomFourier(Matern(nu=2.5), 14) + Linear(),
]
MAPS = [InteractionMap(), TaylorMap(0), TaylorMap(6, 0.3), RandomFourier(Matern(nu=2.5), 14, random_state=3)]
"""Maps that are values of their own."""


def map_of(kernel, n_features):
    """φ of a kernel for so many columns."""
    return required_feature_map(kernel, n_features)
