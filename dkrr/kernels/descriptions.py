"""From names and descriptions to kernels; nothing is imported, unpickled or evaluated.

What reads descriptions of kernels and of feature maps alike; nothing is imported, unpickled or evaluated.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from dkrr.checks import finite, shown
from dkrr.errors import InputError, InputTypeError
from dkrr.kernels.base import Kernel
from dkrr.kernels.categories import Categories
from dkrr.kernels.centring import CentredLinear
from dkrr.kernels.columns import Columns
from dkrr.kernels.composite import Normalized, Product, Scaled, Sum
from dkrr.kernels.custom import CallableKernel, Precomputed
from dkrr.kernels.dot import Cosine, Linear, Polynomial, Sigmoid, TaylorRBF
from dkrr.kernels.euclidean import RBF, Matern
from dkrr.kernels.lengths import scales_of
from dkrr.kernels.manhattan import AdditiveChi2, Chi2, Laplacian
from dkrr.kernels.random_walk import RandomWalk
from dkrr.kernels.text import BagOfWords


@dataclass(frozen=True)
class Reader:
    """Values from their descriptions, and what descriptions name and do not hold."""

    kinds: Mapping[str, Callable[[Mapping[str, Any], Reader], Any]]
    """From the key that names a value, such as "kernel", to what reads its description."""
    callables: Mapping[str, Any]
    """Functions, and users' own feature maps and classes, by name."""
    arrays: Mapping[str, Any]
    """Arrays by checksum."""
    warns: bool = True
    """Whether functions and classes whose source text has changed give a warning."""

    @classmethod
    def of(cls, kinds: Mapping[str, Any], callables: Any, arrays: Any) -> Reader:
        """Reader with what a user gives for functions and arrays: mappings, or None."""
        for name, given in (("callables", callables), ("arrays", arrays)):
            if given is not None and not isinstance(given, Mapping):
                raise InputTypeError(
                    f"{name} is {shown(given)}; expected a mapping from names in descriptions, or None"
                )
        return cls(kinds, callables or {}, arrays or {})

    def read(self, description: Any) -> Any:
        """The array, or the value of any kind, that is described."""
        if isinstance(description, Mapping):
            if "array" in description:
                return self._array(description["array"])
            for kind, read in self.kinds.items():
                if isinstance(description.get(kind), str):
                    return read(description, self)
        expected = " or ".join(f'{{"{kind}": name, ...}}' for kind in self.kinds)
        raise InputError(f"the description is {shown(description)}; expected {expected}")

    def settings(self, description: Mapping[str, Any], kind: str | None = None) -> dict[str, Any]:
        """Parameters in a description of this kind, those that are described themselves as values."""
        return {
            key: self.read(value) if isinstance(value, Mapping) else value
            for key, value in description.items()
            if key != kind
        }

    def given(self, description: Mapping[str, Any], what: str) -> tuple[str, Any]:
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

    def read_whole(self, description: Any, read: Callable[[Any, Reader], Any]) -> Any:
        """What a description as a whole makes; one that contains itself, or thousands of others, is refused."""
        try:
            return read(description, self)
        except RecursionError:
            raise InputError(
                "the description nests without end; expected a kernel or a feature map of few parts"
            ) from None

    def _array(self, checksum: Any) -> Any:
        if not isinstance(checksum, str) or checksum not in self.arrays:
            raise InputError(f"the array {shown(checksum)} of a description is missing; expected it in `arrays`")
        return self.arrays[checksum]

    def check_source(self, description: Mapping[str, Any], digest: str, what: str) -> None:
        """Warn if a function or class that was given again differs from the one that was described."""
        if self.warns and digest != description.get("digest"):
            warnings.warn(
                f"the {what} given for {description['name']!r} has another source text than the one that was saved; "
                "results are right only if it computes the same",
                UserWarning,
                stacklevel=6,  # the caller of kernel_from_dict or feature_map_from_dict
            )


_DESCRIBED: dict[str, type[Kernel]] = {
    kernel.tag: kernel
    for kernel in (
        Linear, Polynomial, RBF, Laplacian, Matern, Cosine, Sigmoid, AdditiveChi2, Chi2,
        TaylorRBF, Normalized, CentredLinear,
        Precomputed, Sum, Product, Scaled, Columns, BagOfWords, RandomWalk, Categories,
    )
}  # fmt: skip

# scikit-learn's metric names, and "matern"; which of its three settings each takes.
_NAMED: dict[str, tuple[type[Kernel], tuple[str, ...]]] = {
    "additive_chi2": (AdditiveChi2, ()),
    "chi2": (Chi2, ("gamma",)),
    "cosine": (Cosine, ()),
    "laplacian": (Laplacian, ("gamma",)),
    "linear": (Linear, ()),
    "matern": (Matern, ()),
    "poly": (Polynomial, ("gamma", "degree", "coef0")),
    "polynomial": (Polynomial, ("gamma", "degree", "coef0")),
    "precomputed": (Precomputed, ()),
    "rbf": (RBF, ("gamma",)),
    "sigmoid": (Sigmoid, ("gamma", "coef0")),
}

DEFAULTS = {"gamma": None, "degree": 3, "coef0": 1}
"""Settings that named kernels share."""

OTHER_NAMES = {
    "gaussian": "rbf",
    "gauss": "rbf",
    "squared_exponential": "rbf",
    "se": "rbf",
    "exponential": "laplacian",
    "laplace": "laplacian",
    "dot": "linear",
    "tanh": "sigmoid",
    "chi_squared": "chi2",
}
"""Names that kernels have elsewhere, for suggestions."""


def as_kernel(
    kernel: object,
    *,
    gamma: float | None = None,
    degree: float = 3,
    coef0: float = 1,
    kernel_params: Mapping[str, Any] | None = None,
) -> Kernel:
    """The kernel that scikit-learn's arguments mean.

    Parameters
    ----------
    kernel : str, Kernel or callable
        A scikit-learn metric name or "matern"; a value, returned as it is; or a function of blocks.
    gamma, degree, coef0
        Settings of a named kernel; gamma=None is 1 / n_features (1 for "chi2"). One that the kernel does not have is
        refused unless it is the default, since it would change nothing.
    kernel_params : mapping, optional
        Keyword arguments for a function, or settings of a named kernel, such as ``nu`` and ``length_scale``.

    Returns
    -------
    Kernel

    Raises
    ------
    InputError
        For an unknown name, or settings that the kernel cannot take.

    Examples
    --------
    >>> from dkrr.kernels import as_kernel
    >>> as_kernel("rbf", gamma=0.5)
    RBF(gamma=0.5)
    """
    settings = _checked_params(kernel_params)
    if isinstance(gamma, str):
        raise InputTypeError(
            f"gamma is {shown(gamma)}; expected a number above 0, one for each column, or None: 1 / n_features, which "
            f"is scikit-learn's 'auto' (its 'scale' is 1 / (n_features * X.var()))"
        )
    if gamma is not None:
        scales_of(gamma, "gamma")
    finite(degree, "degree"), finite(coef0, "coef0")  # also where the kernel has none
    common = {"gamma": gamma, "degree": degree, "coef0": coef0}
    if isinstance(kernel, str):
        return _named_kernel(kernel, common, settings)
    if isinstance(kernel, Kernel):
        if gamma is not None or degree != 3 or coef0 != 1 or settings:
            raise InputError(
                f"gamma, degree, coef0 or kernel_params are given beside the kernel value {kernel!r}; "
                "expected the value alone: set its parameters in its constructor"
            )
        return kernel
    if callable(kernel) and not isinstance(kernel, type):
        _refuse_unused(shown(kernel), (), common, ': give kernel_params={"...": ...}')
        return CallableKernel(functools.partial(kernel, **settings) if settings else kernel)
    remedy = f": write {kernel.__name__}(), not the class {kernel.__name__}" if isinstance(kernel, type) else ""
    raise InputTypeError(
        f"kernel is {shown(kernel)}; expected a name ({_listed(_NAMED)}), a dkrr.kernels.Kernel or a function of "
        f"blocks (X, Y){remedy}"
    )


def _checked_params(kernel_params: Any) -> dict[str, Any]:
    if kernel_params is None:
        return {}
    if not isinstance(kernel_params, Mapping) or not all(isinstance(name, str) for name in kernel_params):
        raise InputTypeError(
            f"kernel_params is {shown(kernel_params)}; expected a dict of parameters by name, or None: for example "
            f'{{"nu": 2.5}}'
        )
    return dict(kernel_params)


def kernel_from_dict(
    description: Mapping[str, Any],
    callables: Mapping[str, Callable[..., Any]] | None = None,
    arrays: Mapping[str, Any] | None = None,
) -> Kernel:
    """The kernel that `Kernel.to_dict` described; `dkrr.features.kernel_from_dict` also reads those of feature maps.

    Parameters
    ----------
    description : mapping
        For example ``{"kernel": "rbf", "gamma": 0.1}``; sums, products and multiples nest.
    callables : mapping from name to function, optional
        The functions of callable kernels, by the names in the description.
    arrays : mapping from checksum to array, optional
        The arrays of feature maps and kernels, by the checksums in the description.

    Returns
    -------
    Kernel

    Raises
    ------
    InputError
        If the description is damaged, or a function is needed and not given.

    Warns
    -----
    UserWarning
        If the function given has another source than the one described.
    """
    kernel: Kernel = Reader.of({"kernel": read_kernel}, callables, arrays).read_whole(description, read_kernel)
    return kernel


def read_kernel(description: Mapping[str, Any], reader: Reader) -> Kernel:
    """The kernel that is described."""
    if not isinstance(description, Mapping) or not isinstance(description.get("kernel"), str):
        raise InputError(f'the description is {shown(description)}; expected {{"kernel": name, ...}}')
    name = description["kernel"]
    if name == CallableKernel.tag:
        return _given_function(description, reader)
    if name not in _DESCRIBED:
        raise InputError(
            f"kernel is {shown(name)} in a description; expected one of {_listed(_DESCRIBED)}, of this dkrr"
        )
    return _made(_DESCRIBED[name], name, reader.settings(description, "kernel"))


def _given_function(description: Mapping[str, Any], reader: Reader) -> CallableKernel:
    name, function = reader.given(description, "kernel function")
    kernel = CallableKernel(function, name, bool(description.get("takes_objects")))
    reader.check_source(description, kernel.digest, "kernel function")
    return kernel


def _named_kernel(name: str, common: dict[str, Any], extra: dict[str, Any]) -> Kernel:
    if name not in _NAMED:
        raise InputError(
            f"kernel is {shown(name)}; expected one of {_listed(_NAMED)}, a dkrr.kernels.Kernel or a function of "
            f"blocks (X, Y){_suggestion(name)}"
        )
    kernel, taken = _NAMED[name]
    remedy = ""
    if kernel is Matern:
        remedy = ': give kernel_params={"length_scale": ..., "nu": ...} (--kernel-param length_scale=...)'
    _refuse_unused(repr(name), taken, common, remedy)
    settings = {key: common[key] for key in taken}
    if kernel is Chi2 and settings["gamma"] is None:
        del settings["gamma"]
    unknown = sorted(extra.keys() - _parameters(kernel))
    if unknown:
        raise InputError(
            f"kernel_params: the kernel {name!r} has no parameter {', '.join(unknown)}; expected "
            f"{_listed(_parameters(kernel)) or 'none'}"
        )
    return _made(kernel, name, settings | extra)


def taken_by(kernel: object) -> tuple[str, ...]:
    """Those of gamma, degree and coef0 that a kernel of `as_kernel` takes."""
    return _NAMED[kernel][1] if isinstance(kernel, str) and kernel in _NAMED else ()


def _refuse_unused(kernel: str, taken: tuple[str, ...], common: dict[str, Any], remedy: str) -> None:
    """Refuse settings that are not the default and that the kernel does not have."""
    for name, value in common.items():
        if name not in taken and value is not DEFAULTS[name] and value != DEFAULTS[name]:
            others = [other for other, (_, has) in _NAMED.items() if name in has]
            raise InputError(
                f"{name} is {shown(value)}, which the kernel {kernel} does not have; expected "
                f"{name}={DEFAULTS[name]!r}, or one of the kernels {_listed(dict.fromkeys(others))}{remedy}"
            )


def _suggestion(name: str) -> str:
    """Ending of a message: the name that was probably meant; empty without one."""
    plain = name.strip().lower()
    near = [OTHER_NAMES[plain]] if plain in OTHER_NAMES else get_close_matches(plain, _NAMED, 1)
    return f": did you mean {near[0]!r}?" if near else ""


@functools.cache
def _parameters(kernel: type[Kernel]) -> dict[str, None]:
    """Names of the parameters of a class of kernels, in order."""
    return dict.fromkeys(field.name for field in fields(kernel))  # type: ignore[arg-type]


def _made(kernel: type[Kernel], name: str, settings: dict[str, Any]) -> Kernel:
    known = _parameters(kernel)
    unknown = sorted(settings.keys() - known)
    if unknown:
        raise InputError(
            f"the kernel {name!r} has no parameter {', '.join(unknown)}; expected {_listed(known) or 'none'}"
        )
    try:
        return kernel(**settings)
    except TypeError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the description of kernel {name!r} is incomplete: {error}") from error


def _listed(names: Mapping[str, object] | list[str]) -> str:
    return ", ".join(repr(name) for name in names)
