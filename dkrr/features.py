"""Explicit feature maps: immutable values that turn blocks of rows into blocks of Φ."""

from dkrr.kernels.descriptions import feature_map_from_dict, kernel_from_dict
from dkrr.kernels.fourier import RandomFourier
from dkrr.kernels.fourier_grid import FourierGrid
from dkrr.kernels.given_maps import CallableMap
from dkrr.kernels.implied import arrays_of, feature_map, required_feature_map
from dkrr.kernels.interactions import InteractionMap
from dkrr.kernels.map_base import FeatureMap, MapKernel
from dkrr.kernels.nystroem import Nystroem, NystroemMap, whitened
from dkrr.kernels.taylor import TaylorMap

__all__ = [
    "CallableMap",
    "FeatureMap",
    "FourierGrid",
    "InteractionMap",
    "MapKernel",
    "Nystroem",
    "NystroemMap",
    "RandomFourier",
    "TaylorMap",
    "arrays_of",
    "feature_map",
    "feature_map_from_dict",
    "kernel_from_dict",
    "required_feature_map",
    "whitened",
]
