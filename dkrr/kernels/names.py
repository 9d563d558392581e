"""Kernels made of names and of scikit-learn's arguments."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from dkrr.checks import finite, scales_of, shown
from dkrr.errors import InputError, InputTypeError, InputWarning
from dkrr.kernels.base import Kernel
from dkrr.kernels.custom import CallableKernel
from dkrr.kernels.registry import NAMED
from dkrr.text import near_names

SETTING_DEFAULTS = {"gamma": None, "degree": 3, "coef0": 1}
"""scikit-learn's settings of named kernels, taken by those that have a parameter of this name."""

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
        A scikit-learn metric name, or another of `Kernel.names`; a value, returned unchanged; or a function of blocks.
    gamma, degree, coef0
        Settings of a named kernel; gamma=None is 1 / n_features (1 for "chi2"). One that a named kernel does not have
        is ignored, with an `InputWarning` unless it is the default; beside a function it is refused.
    kernel_params : mapping, optional
        Keyword arguments for a function, or settings of a named kernel, such as ``nu`` and ``length_scale``. A setting
        that is also given directly (not as its default) is refused, even if both are equal.

    Returns
    -------
    Kernel

    Raises
    ------
    InputError
        For an unknown name, or settings that the kernel cannot take.

    Examples
    --------
    >>> from dkrr.kernels.names import as_kernel
    >>> as_kernel("rbf", gamma=0.5)
    RBF(gamma=0.5)
    """
    found = kernel_of(kernel, gamma=gamma, degree=degree, coef0=coef0, kernel_params=kernel_params)
    warn_of_unused({"kernel": kernel, "gamma": gamma, "degree": degree, "coef0": coef0}, stacklevel=2)
    return found


def kernel_of(kernel: object, *, kernel_params: Mapping[str, Any] | None = None, **given: Any) -> Kernel:
    """The kernel of `as_kernel`, without its warning: gamma, degree and coef0 that are not given are the defaults."""
    common, settings = SETTING_DEFAULTS | given, {}
    if kernel_params is not None:
        if not isinstance(kernel_params, Mapping) or not all(isinstance(name, str) for name in kernel_params):
            raise InputTypeError(
                f"kernel_params is {shown(kernel_params)}; expected a dict of parameters by name, or None: for example "
                f'{{"nu": 2.5}}'
            )
        settings = dict(kernel_params)
    gamma, degree, coef0 = common.values()
    if isinstance(gamma, str):
        raise InputTypeError(
            f"gamma is {shown(gamma)}; expected a number above 0, one for each column, or None: 1 / n_features, which "
            f"is scikit-learn's 'auto' (its 'scale' is 1 / (n_features * X.var()))"
        )
    if gamma is not None:
        scales_of(gamma, "gamma")
    finite(degree, "degree"), finite(coef0, "coef0")  # also where the kernel has none
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
        _refuse_given(shown(kernel), common)
        return CallableKernel(functools.partial(kernel, **settings) if settings else kernel)
    remedy = f": write {kernel.__name__}(), not the class {kernel.__name__}" if isinstance(kernel, type) else ""
    raise InputTypeError(
        f"kernel is {shown(kernel)}; expected a name ({listed(NAMED)}), a dkrr.kernels.Kernel or a function of "
        f"blocks (X, Y){remedy}"
    )


def _named_kernel(name: str, common: dict[str, Any], extra: dict[str, Any]) -> Kernel:
    if name not in NAMED:
        raise InputError(
            f"kernel is {shown(name)}; expected one of {listed(NAMED)}, a dkrr.kernels.Kernel or a function of "
            f"blocks (X, Y){_suggestion(name)}"
        )
    kernel = NAMED[name]
    settings = dict(common)
    for key in common.keys() - taken_by(name):
        del settings[key]
    if extra:
        refuse_twice({key: value for key, value in settings.items() if is_given(key, value)}, extra)
        unknown = sorted(extra.keys() - parameters(kernel))
        if unknown:
            raise InputError(
                f"kernel_params: the kernel {name!r} has no parameter {', '.join(unknown)}; expected "
                f"{listed(parameters(kernel)) or 'none'}"
            )
    if settings.get("gamma", 0) is None:
        del settings["gamma"]  # the kernel's own default, which is 1 for "chi2"
    found: Kernel = made(kernel, name, settings | extra)
    return found


def refuse_twice(given: Mapping[str, object], kernel_params: Mapping[str, Any]) -> None:
    """Refuse parameters that are given both directly and in `kernel_params`, also with equal values."""
    for name in given.keys() & kernel_params.keys():
        raise InputError(
            f"{name} is {shown(given[name])}, and kernel_params has {name}={shown(kernel_params[name])}; expected one "
            f"of the two: leave {name} out of kernel_params (--kernel-param)"
        )


def is_given(name: str, value: object) -> bool:
    """Whether a value of gamma, degree or coef0 is not the default."""
    default = SETTING_DEFAULTS[name]
    return value is not default and (default is None or value != default)


def taken_by(kernel: object) -> tuple[str, ...]:
    """Names among gamma, degree and coef0 that a kernel of `as_kernel` takes."""
    known = parameters(NAMED[kernel]) if isinstance(kernel, str) and kernel in NAMED else {}
    return tuple(filter(known.__contains__, SETTING_DEFAULTS))


def warn_of_unused(given: Mapping[str, Any], *, stacklevel: int) -> None:
    """Warn once of gamma, degree and coef0 that are ignored, since none of the kernels, which have names, has them.

    Parameters
    ----------
    given : mapping
        Values of `SEARCHED`, or lists of them.
    stacklevel : int
        1: the caller of this function.
    """
    kernels = list(given["kernel"]) if is_list(given["kernel"]) else [given["kernel"]]
    unused = _ignored(given, kernels)
    if not unused or not all(isinstance(kernel, str) for kernel in kernels):
        return
    are, them = ("is", "it") if len(unused) == 1 else ("are", "them")
    values = " and ".join(f"{name}={shown(value)}" for name, value in unused.items())
    which = f"none of the kernels {shown(kernels)} has {them}"
    others = listed([name for name in NAMED if unused.keys() <= {*taken_by(name)}])
    remedy = ""
    if len(kernels) == 1:
        which = f"the kernel {kernels[0]!r} does not have {them}"
        if own := sorted(parameters(NAMED[kernels[0]]).keys() - SETTING_DEFAULTS):
            params = ", ".join(f'"{parameter}": ...' for parameter in own)
            remedy = f"; its own: kernel_params={{{params}}} (--kernel-param {own[0]}=...)"
    warnings.warn(
        f"{values} {are} ignored: {which}; kernels with {them}: {others}{remedy}",
        InputWarning,
        stacklevel=stacklevel + 1,
    )


def _ignored(given: Mapping[str, Any], kernels: list[Any]) -> dict[str, Any]:
    """Values, or candidates, of gamma, degree and coef0 that are given and that none of the kernels has."""
    taken, found = set[str]().union(*map(taken_by, kernels)), {}
    for name in SETTING_DEFAULTS:
        if name not in taken and (is_list(given[name]) or is_given(name, given[name])):
            found[name] = given[name]
    return found


SEARCHED = ("kernel", *SETTING_DEFAULTS)
"""Arguments whose lists are candidates of a search."""


def candidate_grid(given: Mapping[str, Any], kernel_params: Any) -> list[dict[str, Any]]:
    """Every combination of the arguments that are lists; one empty dict where none is.

    Kernels with names have only those that they take.

    Parameters
    ----------
    given : mapping
        Values of `SEARCHED`, or lists of them.
    kernel_params : dict or None

    Raises
    ------
    InputError
        For an empty list, and beside kernel values for what none of the kernels takes.
    """
    lists = {}
    for name in SEARCHED:
        value = given[name]
        if is_list(value):
            if len(value) == 0:
                raise InputError(f"{name} is an empty list; expected at least one candidate")
            lists[name] = list(value)
    if isinstance(kernel_params, Mapping):  # else the first kernel says what is wrong
        refuse_twice(lists, kernel_params)
    if "kernel" not in lists:
        kernel = given["kernel"]
        is_named = isinstance(kernel, str)
        return _combined({name: lists[name] for name in lists if not is_named or name in taken_by(kernel)})
    kernels = lists["kernel"]
    ignored = _ignored(given, kernels)
    if ignored and not all(isinstance(kernel, str) for kernel in kernels):
        name, value = next(iter(ignored.items()))
        raise InputError(
            f"{name} is {shown(value)}, which none of the kernels {shown(kernels)} has; expected "
            f"{name}={SETTING_DEFAULTS[name]!r}"
        )
    found = list[dict[str, Any]]()
    for kernel in kernels:
        of_kernel = {name: values for name, values in lists.items() if name in taken_by(kernel)}
        found += _combined({"kernel": [kernel]} | of_kernel)
    return found


def _combined(lists: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """All combinations, in the order of scikit-learn's ParameterGrid."""
    names = sorted(lists)
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*(lists[name] for name in names))]


def is_list(value: object) -> bool:
    """Whether an argument is a list of candidates."""
    return isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 0)


def candidate_settings(given: Mapping[str, Any], kernel_params: Any, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of the kernel of a candidate, whose `parameters` are those of the grid."""
    found = {name: given[name] for name in SEARCHED} | dict(parameters)
    if "kernel" in parameters or isinstance(found["kernel"], str):
        taken = ("kernel", *taken_by(found["kernel"]))
        found = {name: value for name, value in found.items() if name in taken}
    return found | {"kernel_params": kernel_params}


def _refuse_given(function: str, common: dict[str, Any]) -> None:
    """Refuse settings beside a kernel function that are not the default."""
    for name, value in common.items():
        if is_given(name, value):
            raise InputError(
                f"{name} is {shown(value)}, which the kernel {function} does not have; expected "
                f'{name}={SETTING_DEFAULTS[name]!r}, or kernel_params={{"{name}": ...}}, which the function is given'
            )


def _suggestion(name: str) -> str:
    """Ending of a message: the name that was probably meant; empty without one."""
    plain = name.strip().lower()
    near = [OTHER_NAMES[plain]] if plain in OTHER_NAMES else near_names(plain, NAMED)
    return f": did you mean {near[0]!r}?" if near else ""


@functools.cache
def parameters(kind: type) -> dict[str, None]:
    """Names of the parameters of a class of kernels or feature maps, in order."""
    return dict.fromkeys(field.name for field in fields(kind))


def made(kind: type, name: str, settings: dict[str, Any]) -> Any:
    """Kernel or feature map of a class with the settings in a description of this name."""
    known = parameters(kind)
    what = "kernel" if issubclass(kind, Kernel) else "feature map"
    unknown = sorted(settings.keys() - known)
    if unknown:
        raise InputError(
            f"the {what} {name!r} has no parameter {', '.join(unknown)}; expected {listed(known) or 'none'}"
        )
    try:
        return kind(**settings)
    except TypeError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the description of {what} {name!r} is incomplete: {error}") from error


def listed(names: Mapping[str, object] | list[str]) -> str:
    """Names for a message."""
    return ", ".join(repr(name) for name in names)
