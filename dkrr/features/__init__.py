"""Explicit feature maps: immutable values that turn blocks of rows into blocks of Φ."""

from dkrr.features.base import FeatureMap, MapKernel
from dkrr.features.custom import CallableMap
from dkrr.features.descriptions import (
    arrays_of,
    feature_map,
    feature_map_from_dict,
    kernel_from_dict,
    required_feature_map,
)
from dkrr.features.fourier import RandomFourier
from dkrr.features.interactions import InteractionMap
from dkrr.features.maps import (
    ColumnsMap,
    ConcatenatedMap,
    IdentityMap,
    NormalizedMap,
    PolynomialMap,
    ScaledMap,
    UnitLengthMap,
)
from dkrr.features.nystroem import Nystroem, NystroemMap, whitened
from dkrr.features.taylor import TaylorMap

__all__ = [
    "CallableMap",
    "ColumnsMap",
    "ConcatenatedMap",
    "FeatureMap",
    "IdentityMap",
    "InteractionMap",
    "MapKernel",
    "NormalizedMap",
    "Nystroem",
    "NystroemMap",
    "PolynomialMap",
    "RandomFourier",
    "ScaledMap",
    "TaylorMap",
    "UnitLengthMap",
    "arrays_of",
    "feature_map",
    "feature_map_from_dict",
    "kernel_from_dict",
    "required_feature_map",
    "whitened",
]
