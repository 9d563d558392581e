"""Checks of what a sampled feature map is asked for."""

import numpy as np

from dkrr.errors import InputError, InputTypeError
from dkrr.kernels import Kernel, as_kernel


def as_base(base: object, name: str) -> Kernel:
    """Return the kernel that a feature map approximates: a value, or one of scikit-learn's names.

    Raises
    ------
    InputError
        If it is no kernel, or has no rows of its own (precomputed).
    """
    if not isinstance(base, Kernel | str):
        raise InputTypeError(f"{name} is given {base!r}; expected a dkrr.kernels.Kernel, or the name of one")
    kernel = as_kernel(base)
    if kernel.is_precomputed:
        raise InputError(f"{name} is given a precomputed kernel; expected one of rows: its X is a Gram matrix already")
    return kernel


def whole(value: object, name: str, least: int) -> int:
    """Return a whole number of at least `least`, or raise InputError."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InputTypeError(f"{name} is {value!r} ({type(value).__qualname__}); expected a whole number")
    if value < least:
        raise InputError(f"{name} is {value}; expected at least {least}")
    return int(value)
