"""Explicit feature maps: immutable values that turn blocks of rows into blocks of Φ."""

from dkrr.features.base import FeatureMap
from dkrr.features.descriptions import feature_map, feature_map_from_dict
from dkrr.features.maps import ConcatenatedMap, IdentityMap, NormalisedMap, PolynomialMap, ScaledMap

__all__ = [
    "ConcatenatedMap",
    "FeatureMap",
    "IdentityMap",
    "NormalisedMap",
    "PolynomialMap",
    "ScaledMap",
    "feature_map",
    "feature_map_from_dict",
]
