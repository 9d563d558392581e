"""Kernels and feature maps from their descriptions; nothing is imported, unpickled or evaluated."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dkrr.checks import shown
from dkrr.errors import DkrrError, InputError, InputTypeError
from dkrr.kernels.base import Kernel
from dkrr.kernels.centring import CentredLinear
from dkrr.kernels.custom import CallableKernel
from dkrr.kernels.fourier import RandomFourier
from dkrr.kernels.fourier_grid import FourierGrid, FourierZones
from dkrr.kernels.interactions import InteractionMap
from dkrr.kernels.map_base import OWN_CLASS, FeatureMap, MapKernel
from dkrr.kernels.names import listed, made, parameters
from dkrr.kernels.nystroem import Nystroem, NystroemMap
from dkrr.kernels.registry import KERNELS
from dkrr.kernels.taylor import TaylorMap
from dkrr.kernels.user_maps import CallableMap

DESCRIBED: Mapping[str, Mapping[str, type]] = {
    "kernel": {**KERNELS, CentredLinear.tag: CentredLinear},
    "feature_map": {
        kind.tag: kind
        for kind in (RandomFourier, Nystroem, NystroemMap, InteractionMap, TaylorMap, FourierGrid, FourierZones)
    },
}
"""Classes by the key that names a value in its description, and by tag."""
GIVEN_AGAIN = (CallableMap.tag, OWN_CLASS)
"""Tags of the maps that descriptions only name."""


@dataclass(frozen=True)
class Reader:
    """Values from their descriptions, and what descriptions name and do not hold."""

    callables: Mapping[str, Any]
    """Functions, and users' own feature maps and classes, by name."""
    arrays: Mapping[str, Any]
    """Arrays by checksum."""
    warns: bool = True
    """Whether functions and classes whose source text has changed give a warning."""

    @classmethod
    def of(cls, callables: Any, arrays: Any) -> Reader:
        """Reader with what a user gives for functions and arrays: mappings, or None."""
        for name, given in (("callables", callables), ("arrays", arrays)):
            if given is not None and not isinstance(given, Mapping):
                raise InputTypeError(
                    f"{name} is {shown(given)}; expected a mapping from names in descriptions, or None"
                )
        return cls(callables or {}, arrays or {})

    def read_whole(self, description: Any, kind: str) -> Any:
        """Make the value of a whole description; refuse one that contains itself, or thousands of others."""
        try:
            return self.read(description, (kind,))
        except RecursionError:
            raise InputError(
                "the description nests without end; expected a kernel or a feature map of few parts"
            ) from None

    def read(self, description: Any, kinds: tuple[str, ...] = tuple(DESCRIBED)) -> Any:
        """The array, or the value of one of these kinds, that is described."""
        if isinstance(description, Mapping):
            if "array" in description and len(kinds) > 1:  # a part of a value
                return self._array(description["array"])
            for kind in kinds:
                if isinstance(description.get(kind), str):
                    return self._value(description, kind, description[kind])
        expected = " or ".join(f'{{"{kind}": name, ...}}' for kind in kinds)
        raise InputError(f"the description is {shown(description)}; expected {expected}")

    def _value(self, description: Mapping[str, Any], kind: str, tag: str) -> Kernel | FeatureMap:
        if kind == "kernel" and tag == MapKernel.tag:
            return MapKernel(self.read(description.get("feature_map"), ("feature_map",)))
        if kind == "kernel" and tag == CallableKernel.tag:
            name, function = self._given(description, "kernel function")
            kernel = CallableKernel(function, name, takes_objects=bool(description.get("takes_objects")))
            self._check_source(description, kernel.digest(), "kernel function")
            return kernel
        if kind == "feature_map" and tag in GIVEN_AGAIN:
            given = self._given_map(description, tag)
            self._check_source(description, given.to_dict()["digest"], "feature map")
            return given
        if tag not in DESCRIBED[kind]:
            raise InputError(
                f"{kind} is {shown(tag)} in a description; expected one of {listed(DESCRIBED[kind])}, of this dkrr"
            )
        found: Kernel | FeatureMap = made(DESCRIBED[kind][tag], tag, self._settings(description, kind))
        return found

    def _settings(self, description: Mapping[str, Any], kind: str | None = None) -> dict[str, Any]:
        """Parameters in a description of this kind, those that are described themselves as values."""
        return {
            key: self.read(value) if isinstance(value, Mapping) else value
            for key, value in description.items()
            if key != kind
        }

    def _array(self, checksum: Any) -> Any:
        if not isinstance(checksum, str) or checksum not in self.arrays:
            raise InputError(f"the array {shown(checksum)} of a description is missing; expected it in `arrays`")
        return self.arrays[checksum]

    def _given(self, description: Mapping[str, Any], what: str) -> tuple[str, Any]:
        """The name in a description, and what was given under it."""
        name = description.get("name")
        if not isinstance(name, str):
            raise InputError(f"the description of a {what} is {dict(description)!r}; expected one with a name")
        if name not in self.callables:
            raise InputError(
                f"the custom {what} {name!r} is missing, and files never hold code; expected it to be given again: "
                "dkrr.load(path, kernel=...)"
            )
        return name, self.callables[name]

    def _given_map(self, description: Mapping[str, Any], tag: str) -> FeatureMap:
        """A user's own map, made of the function, map or class that is given under the name in its description."""
        name, value = self._given(description, "feature map")
        if tag == CallableMap.tag:
            return _of_function(description, name, value)
        settings = description.get("settings")
        return _of_class(self._settings(settings) if isinstance(settings, Mapping) else None, name, value)

    def _check_source(self, description: Mapping[str, Any], digest: str, what: str) -> None:
        """Warn if a function or class that was given again differs from the one that was described."""
        if self.warns and digest != description.get("digest"):
            warnings.warn(
                f"the {what} given for {description['name']!r} has another source text than the one that was saved; "
                "results are right only if it computes the same",
                UserWarning,
                stacklevel=6,  # the caller of kernel_from_dict or feature_map_from_dict
            )


def _of_function(description: Mapping[str, Any], name: str, value: Any) -> CallableMap:
    if isinstance(value, CallableMap):
        return CallableMap(value.function, value.size, name)
    if description.get("size") is None:
        raise InputError(
            f"{value!r} is given for the feature map {name!r}, whose size is a function too, which files do not hold; "
            "expected the CallableMap: dkrr.load(path, kernel=CallableMap(function, size))"
        )
    return CallableMap(value, description["size"], name)


def _of_class(settings: dict[str, Any] | None, name: str, value: Any) -> FeatureMap:
    kind = value if isinstance(value, type) else type(value)
    if not issubclass(kind, FeatureMap) or settings is None:
        raise InputError(f"{value!r} is given for the feature map {name!r}; expected its class or a value of it")
    known = list(parameters(kind))
    if set(settings) != set(known):
        raise InputError(f"the feature map {name!r} was saved with the fields {sorted(settings)}; {kind} has {known}")
    try:
        return kind(**{key: _tuples(setting) for key, setting in settings.items()})
    except DkrrError:
        raise
    except Exception as error:
        raise InputError(
            f"{kind} is given for the feature map {name!r}, and cannot be made with the settings that were saved, "
            f"{settings}: {type(error).__qualname__}: {error}"
        ) from error


def _tuples(value: Any) -> Any:
    """JSON's lists as tuples, which frozen values have."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def kernel_from_dict(
    description: Mapping[str, Any],
    callables: Mapping[str, Callable[..., Any]] | None = None,
    arrays: Mapping[str, Any] | None = None,
) -> Kernel:
    """The kernel that `Kernel.to_dict` described, also where a feature map is part of it.

    Parameters
    ----------
    description : mapping
        For example ``{"kernel": "rbf", "gamma": 0.1}``; sums, products and multiples nest.
    callables : mapping from name to function, optional
        The functions of callable kernels, by the names in the description, and the user's own feature maps: values of
        CallableMap, and classes.
    arrays : mapping from checksum to ndarray or CSR, optional
        What `dkrr.kernels.kernel_features.arrays_of` gave for the kernel.

    Returns
    -------
    Kernel

    Raises
    ------
    InputError
        If the description is damaged, or a function or an array is needed and not given.

    Warns
    -----
    UserWarning
        If the function given has another source than the one described.
    """
    kernel: Kernel = Reader.of(callables, arrays).read_whole(description, "kernel")
    return kernel


def feature_map_from_dict(
    description: Mapping[str, Any],
    callables: Mapping[str, Callable[..., Any]] | None = None,
    arrays: Mapping[str, Any] | None = None,
) -> FeatureMap:
    """Feature map that `FeatureMap.to_dict` described.

    Parameters
    ----------
    description : mapping
        For example ``{"feature_map": "taylor", "degree": 2, "gamma": 1.0}``.
    callables, arrays : mapping, optional
        As for `kernel_from_dict`.

    Raises
    ------
    InputError
        If the description is damaged, or an array is needed and not given.
    """
    found: FeatureMap = Reader.of(callables, arrays).read_whole(description, "feature_map")
    return found


def try_given(
    description: Mapping[str, Any], callables: Mapping[str, Callable[..., Any]], arrays: Mapping[str, Any]
) -> None:
    """Make a kernel or a feature map that is given again, without a warning, to find whether that can be done.

    Raises
    ------
    InputError
        If it cannot; or as the user's own function or class raises.
    """
    replace(Reader.of(callables, arrays), warns=False).read(description)
