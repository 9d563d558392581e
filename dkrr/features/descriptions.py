"""From kernels and descriptions to feature maps."""

from collections.abc import Mapping
from dataclasses import fields
from functools import singledispatch
from typing import Any

from dkrr.errors import InputError
from dkrr.features.base import FeatureMap
from dkrr.features.maps import ConcatenatedMap, IdentityMap, NormalisedMap, PolynomialMap, ScaledMap
from dkrr.kernels import Cosine, Kernel, Linear, Polynomial, Scaled, Sum

_DESCRIBED: dict[str, type[FeatureMap]] = {
    feature_map.tag: feature_map
    for feature_map in (IdentityMap, NormalisedMap, PolynomialMap, ScaledMap, ConcatenatedMap)
}


@singledispatch
def feature_map(kernel: Kernel, n_features: int) -> FeatureMap | None:  # noqa: ARG001
    """Return the finite feature map of a kernel, or None if it has none (or none is known).

    Parameters
    ----------
    kernel : Kernel
    n_features : int
        d, number of columns of X; an open gamma becomes 1 / d.

    Returns
    -------
    FeatureMap or None
        None for RBF and other kernels of infinite dimension, for polynomials with coef0 < 0 or a fractional
        degree (φ would not be real or finite), for products and for functions.

    Examples
    --------
    >>> from dkrr.features import feature_map
    >>> from dkrr.kernels import RBF, Polynomial
    >>> feature_map(Polynomial(degree=2), n_features=7).dimension(7)
    36
    >>> feature_map(RBF(), n_features=7) is None
    True
    """
    return None


@feature_map.register
def _(kernel: Linear, n_features: int) -> FeatureMap | None:  # noqa: ARG001
    return IdentityMap()


@feature_map.register
def _(kernel: Cosine, n_features: int) -> FeatureMap | None:  # noqa: ARG001
    return NormalisedMap()


@feature_map.register
def _(kernel: Polynomial, n_features: int) -> FeatureMap | None:
    if kernel.coef0 < 0 or not isinstance(kernel.degree, int):
        return None
    gamma = 1.0 / n_features if kernel.gamma is None else kernel.gamma
    return PolynomialMap(kernel.degree, gamma, kernel.coef0)


@feature_map.register
def _(kernel: Scaled, n_features: int) -> FeatureMap | None:
    base = feature_map(kernel.base, n_features)
    return None if base is None else ScaledMap(base, kernel.scale)


@feature_map.register
def _(kernel: Sum, n_features: int) -> FeatureMap | None:
    left, right = feature_map(kernel.left, n_features), feature_map(kernel.right, n_features)
    return None if left is None or right is None else ConcatenatedMap(left, right)


def feature_map_from_dict(description: Mapping[str, Any]) -> FeatureMap:
    """Return the feature map that `FeatureMap.to_dict` described.

    Parameters
    ----------
    description : mapping
        For example ``{"feature_map": "polynomial", "degree": 2, "gamma": 1.0, "coef0": 1.0}``.

    Raises
    ------
    InputError
        If the description is damaged.
    """
    name = description.get("feature_map") if isinstance(description, Mapping) else None
    if not isinstance(name, str) or name not in _DESCRIBED:
        raise InputError(
            f"{description!r} describes no known feature map; expected "
            f'{{"feature_map": name, ...}} with one of {", ".join(map(repr, _DESCRIBED))}'
        )
    settings = {
        key: feature_map_from_dict(value) if isinstance(value, Mapping) else value
        for key, value in description.items()
        if key != "feature_map"
    }
    known = [field.name for field in fields(_DESCRIBED[name])]  # type: ignore[arg-type]
    if set(settings) != set(known):
        raise InputError(
            f"the description of feature map {name!r} has the parameters {sorted(settings)}; expected {known}"
        )
    return _DESCRIBED[name](**settings)
