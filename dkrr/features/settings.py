"""Checks of the arguments of feature maps."""

from dkrr.errors import InputError, InputTypeError
from dkrr.kernels import Kernel, as_kernel


def as_base(base: object, name: str) -> Kernel:
    """Kernel that a feature map approximates, of a value or one of scikit-learn's names; not a precomputed one."""
    if not isinstance(base, Kernel | str):
        raise InputTypeError(f"{name} is given {base!r}; expected a dkrr.kernels.Kernel, or the name of one")
    kernel = as_kernel(base)
    if kernel.is_precomputed:
        raise InputError(f"{name} is given a precomputed kernel; expected one of rows: its X is a Gram matrix already")
    return kernel
