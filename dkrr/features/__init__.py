"""Explicit feature maps: immutable values that turn blocks of rows into blocks of Φ."""

from dkrr.features.base import FeatureMap
from dkrr.features.descriptions import arrays_of, feature_map, feature_map_from_dict
from dkrr.features.fourier import RandomFourier
from dkrr.features.map_kernel import MapKernel
from dkrr.features.maps import ConcatenatedMap, IdentityMap, NormalisedMap, PolynomialMap, ScaledMap
from dkrr.features.nystroem import Nystroem, NystroemMap, whitened

__all__ = [
    "ConcatenatedMap",
    "FeatureMap",
    "IdentityMap",
    "MapKernel",
    "NormalisedMap",
    "Nystroem",
    "NystroemMap",
    "PolynomialMap",
    "RandomFourier",
    "ScaledMap",
    "arrays_of",
    "feature_map",
    "feature_map_from_dict",
    "whitened",
]
