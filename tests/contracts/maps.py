"""One feature map of each kind, and compositions of them: a row here puts a map through every shared test."""

from dkrr import features as f
from dkrr.kernels import RBF, Laplacian, Matern

MAPS = [
    f.IdentityMap(),
    f.NormalizedMap(),
    f.PolynomialMap(),
    f.PolynomialMap(degree=0),
    f.PolynomialMap(degree=1, gamma=0.7, coef0=3.0),
    f.PolynomialMap(degree=2, coef0=0.0),
    f.PolynomialMap(degree=4, gamma=2.0, coef0=0.5),
    f.InteractionMap(),
    f.ScaledMap(f.InteractionMap(), 0.3),
    f.TaylorMap(0),
    f.TaylorMap(6, 0.3),
    f.UnitLengthMap(f.PolynomialMap(3)),
    f.UnitLengthMap(f.ConcatenatedMap(f.ScaledMap(f.UnitLengthMap(f.TaylorMap(3)), 0.7), f.IdentityMap())),
    f.UnitLengthMap(f.RandomFourier(RBF(), 30)),
    f.ColumnsMap(f.PolynomialMap(2), start=0, stop=1),
    f.ConcatenatedMap(
        f.ColumnsMap(f.IdentityMap(), [0]), f.ScaledMap(f.ColumnsMap(f.NormalizedMap(), start=0, stop=1), 0.5)
    ),
    f.ConcatenatedMap(f.ScaledMap(f.ConcatenatedMap(f.PolynomialMap(2), f.NormalizedMap()), 0.3), f.IdentityMap()),
    f.RandomFourier(RBF(), 30),
    f.RandomFourier(Laplacian(gamma=0.3), 24, random_state=3),
    f.ConcatenatedMap(f.RandomFourier(Matern(nu=2.5), 14), f.IdentityMap()),
]
