"""Explicit feature maps: immutable values that turn blocks of rows into blocks of Φ."""

from dkrr.kernels.fourier import RandomFourier
from dkrr.kernels.fourier_grid import FourierGrid
from dkrr.kernels.kernel_features import feature_map
from dkrr.kernels.map_base import FeatureMap
from dkrr.kernels.nystroem import Nystroem
from dkrr.kernels.taylor import TaylorMap
from dkrr.kernels.user_maps import CallableMap

__all__ = ["CallableMap", "FeatureMap", "FourierGrid", "Nystroem", "RandomFourier", "TaylorMap", "feature_map"]


def __dir__() -> list[str]:
    return __all__
