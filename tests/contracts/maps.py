"""One feature map of each kind, and compositions of them: a row here puts a map through every shared test."""

from dkrr.features import (
    ColumnsMap,
    ConcatenatedMap,
    IdentityMap,
    InteractionMap,
    NormalizedMap,
    PolynomialMap,
    RandomFourier,
    ScaledMap,
    TaylorMap,
    UnitLengthMap,
)
from dkrr.kernels import RBF, Laplacian, Matern

MAPS = [
    IdentityMap(),
    NormalizedMap(),
    PolynomialMap(),
    PolynomialMap(degree=0),
    PolynomialMap(degree=1, gamma=0.7, coef0=3.0),
    PolynomialMap(degree=2, coef0=0.0),
    PolynomialMap(degree=4, gamma=2.0, coef0=0.5),
    InteractionMap(),
    ScaledMap(InteractionMap(), 0.3),
    TaylorMap(0),
    TaylorMap(3),
    TaylorMap(6, 0.3),
    UnitLengthMap(PolynomialMap(3)),
    UnitLengthMap(InteractionMap()),
    UnitLengthMap(ConcatenatedMap(IdentityMap(), TaylorMap(2))),
    UnitLengthMap(RandomFourier(RBF(), 30)),
    ColumnsMap(PolynomialMap(2), start=0, stop=1),
    ConcatenatedMap(ColumnsMap(IdentityMap(), [0]), ScaledMap(ColumnsMap(NormalizedMap(), start=0, stop=1), 0.5)),
    ScaledMap(PolynomialMap(2), 2.5),
    ConcatenatedMap(IdentityMap(), PolynomialMap(3, coef0=0.0)),
    ConcatenatedMap(ScaledMap(ConcatenatedMap(PolynomialMap(2), NormalizedMap()), 0.3), IdentityMap()),
    RandomFourier(RBF(), 30),
    RandomFourier(Laplacian(gamma=0.3), 24, random_state=3),
    ConcatenatedMap(RandomFourier(Matern(nu=2.5), 14), IdentityMap()),
]
