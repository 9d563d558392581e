"""Finite feature maps of kernels, and what kernels and maps consist of."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from dkrr.checks import shown, whole
from dkrr.errors import InputError, InputTypeError
from dkrr.kernels.base import Kernel
from dkrr.kernels.centring import CentredLinear
from dkrr.kernels.columns import Columns
from dkrr.kernels.composite import Normalized, Scaled, Sum
from dkrr.kernels.documents import BagOfWords
from dkrr.kernels.dot import Cosine, Linear, Polynomial, TaylorRBF
from dkrr.kernels.interactions import InteractionMap
from dkrr.kernels.map_base import FeatureMap, MapKernel
from dkrr.kernels.maps import (
    CentredMap,
    ColumnsMap,
    ConcatenatedMap,
    IdentityMap,
    NormalizedMap,
    PolynomialMap,
    ScaledMap,
    UnitLengthMap,
)
from dkrr.kernels.nystroem import Nystroem, NystroemMap
from dkrr.kernels.taylor import TaylorMap


def feature_map(kernel: Kernel, n_features: int) -> FeatureMap | None:
    """Finite feature map of a kernel, or None if it has none (or none is known).

    Parameters
    ----------
    kernel : Kernel
        Kernel whose map is sought.
    n_features : int
        Number of columns d of X; an open gamma becomes 1 / d.

    Returns
    -------
    FeatureMap or None
        None for RBF and other kernels of infinite dimension, for polynomials with coef0 < 0 or a fractional
        degree (φ would not be real or finite), for products and for functions.

    See Also
    --------
    dkrr.features.FeatureMap : Base class of feature maps.

    Examples
    --------
    >>> from dkrr.features import feature_map
    >>> from dkrr.kernels import RBF, Polynomial
    >>> feature_map(Polynomial(degree=2), n_features=7).dimension(7)
    36
    >>> feature_map(RBF(), n_features=7) is None
    True
    """
    if not isinstance(kernel, Kernel):
        raise InputTypeError(f"kernel is {shown(kernel)}; expected a dkrr.kernels.Kernel, such as RBF()")
    n_features = whole(n_features, "n_features", 1)
    map_of = next((_MAPS[kind] for kind in type(kernel).__mro__ if kind in _MAPS), None)
    return None if map_of is None else map_of(kernel, n_features)


def required_feature_map(kernel: Kernel, n_features: int) -> FeatureMap:
    """Finite feature map φ of a kernel, ⟨φ(x), φ(z)⟩ = k(x, z).

    Parameters
    ----------
    kernel : Kernel
    n_features : int
        d, number of columns of X; an open gamma becomes 1 / d.

    Raises
    ------
    InputError
        If the kernel has none, or none is known: `feature_map` returns None then.

    Examples
    --------
    >>> from dkrr.kernels.kernel_features import required_feature_map
    >>> from dkrr.kernels import Linear, Polynomial
    >>> required_feature_map(Linear() + Polynomial(degree=2), 3).dimension(3)
    13
    """
    n_features = whole(n_features, "n_features", 1)
    found = feature_map(kernel.resolved(n_features) if isinstance(kernel, Kernel) else kernel, n_features)
    if found is None:
        raise InputError(
            f"{kernel!r} has no finite feature map, or none is known; expected a linear, cosine or Taylor kernel, a "
            "polynomial of whole degree with coef0 of at least 0, the kernel of a feature map, or sums, multiples "
            "and normalisations of these: use the kernel itself (form='dual'), or approximate it by name with "
            "dkrr.features.RandomFourier, Nystroem or (RBF of few columns) TaylorMap"
        )
    return found


def _of_columns(kernel: Columns, n_features: int) -> FeatureMap | None:
    numbers = kernel.numbers(n_features)
    base = feature_map(kernel.base, kernel.width(n_features))
    if base is None:
        return None
    return ColumnsMap(base, range(numbers.start, numbers.stop) if isinstance(numbers, slice) else tuple(numbers))


def _of_polynomial(kernel: Polynomial, n_features: int) -> FeatureMap | None:
    if kernel.coef0 < 0 or not isinstance(kernel.degree, int):
        return None
    return PolynomialMap(kernel.degree, _gamma(kernel, n_features), kernel.coef0)


def _of_scaled(kernel: Scaled, n_features: int) -> FeatureMap | None:
    base = feature_map(kernel.base, n_features)
    return None if base is None else ScaledMap(base, kernel.scale)


def _of_sum(kernel: Sum, n_features: int) -> FeatureMap | None:
    if kernel == InteractionMap().kernel():
        return InteractionMap()  # the same features as below, with products that need none of them
    left, right = feature_map(kernel.left, n_features), feature_map(kernel.right, n_features)
    return None if left is None or right is None else ConcatenatedMap(left, right)


def _of_normalized(kernel: Normalized, n_features: int) -> FeatureMap | None:
    base = feature_map(kernel.base, n_features)
    if isinstance(base, IdentityMap):
        return NormalizedMap()
    return None if base is None else UnitLengthMap(base, Normalized(kernel.base.resolved(n_features)))


def _gamma(kernel: Polynomial | TaylorRBF, n_features: int) -> float:
    return 1.0 / n_features if kernel.gamma is None else kernel.gamma


_MAPS: dict[type, Callable[[Any, int], FeatureMap | None]] = {
    Linear: lambda *_: IdentityMap(),
    CentredLinear: lambda kernel, _: CentredMap(kernel.origin),
    Cosine: lambda *_: NormalizedMap(),
    BagOfWords: lambda kernel, _: NormalizedMap() if kernel.normalized else IdentityMap(),
    TaylorRBF: lambda kernel, d: TaylorMap(kernel.degree, _gamma(kernel, d)),
    MapKernel: lambda kernel, d: kernel.base.resolved(d),
    Polynomial: _of_polynomial,
    Columns: _of_columns,
    Scaled: _of_scaled,
    Sum: _of_sum,
    Normalized: _of_normalized,
}
"""Function for each class of kernels that makes its feature map, or returns None where its settings allow none."""


def is_drawn(kernel: Kernel) -> bool:
    """Whether a map inside a kernel is drawn from the training rows."""
    return any(isinstance(part, Nystroem) for part in parts_of(kernel))


def parts_of(value: Kernel | FeatureMap) -> list[Kernel | FeatureMap]:
    """A kernel or feature map and all that it consists of, itself first."""
    if not isinstance(value, Kernel | FeatureMap):
        raise InputTypeError(f"value is {shown(value)}; expected a dkrr.kernels.Kernel or a dkrr.features.FeatureMap")
    parts = [getattr(value, field.name) for field in fields(value)]  # type: ignore[arg-type]
    inner = [parts_of(part) for part in parts if isinstance(part, Kernel | FeatureMap)]
    return [value, *(part for several in inner for part in several)]


def arrays_of(value: Kernel | FeatureMap) -> dict[str, Any]:
    """Arrays, ndarray or CSR, that the description of a kernel or feature map names by their checksums."""
    named = [part for part in parts_of(value) if isinstance(part, NystroemMap | CentredLinear)]
    return {digest: array for one in named for digest, array in one.arrays().items()}


def refuse_more_components_than_rows(kernel: Kernel, n_rows: int) -> None:
    """Raise InputError if a Nyström approximation would have more centres than rows."""
    for part in parts_of(kernel):
        if isinstance(part, Nystroem) and part.n_components > n_rows:
            raise InputError(
                f"n_components of Nystroem is {part.n_components}; expected at most the number of training rows, "
                f"{n_rows}: use fewer, or the kernel itself, which is exact"
            )
