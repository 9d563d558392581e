"""Errors and warnings of dkrr; each message says what is wrong, what was expected and what to do."""

import errno
import traceback
import warnings
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dkrr.text import one_line, safe_message

__all__ = [
    "BusyStoreError",
    "ClusterError",
    "ConvergenceWarning",
    "DamagedChunkError",
    "DiskSpaceError",
    "DkrrError",
    "InputError",
    "InputTypeError",
    "InputWarning",
    "KernelFunctionError",
    "MemoryLimitError",
    "NotFiniteError",
    "NotFittedError",
    "NotPositiveDefiniteError",
    "PlanError",
    "StoreError",
    "UnreachableStoreError",
    "WrongStoreError",
]

_PACKAGE = str(Path(__file__).parent)


class DkrrError(Exception):
    """Base class of all errors that dkrr raises on purpose.

    Its text is one line that may be printed whatever it names: control characters are escaped, and URLs are without
    names, passwords and queries.

    Attributes
    ----------
    is_transient : bool
        Whether the same call may succeed later: the cause is a state of a machine, a server or another process.

    See Also
    --------
    dkrr.errors.InputError : An argument, an array or a file cannot be used.
    dkrr.errors.PlanError : No plan fits the limits.
    dkrr.errors.StoreError : A store cannot be used.

    Examples
    --------
    >>> import numpy as np, dkrr
    >>> try:
    ...     dkrr.KernelRidge(alpha=-1.0).fit(np.eye(3), [1.0, 2.0, 3.0])
    ... except dkrr.errors.DkrrError as error:
    ...     print(type(error).__name__, error.is_transient)
    InputError False
    """

    is_transient = False

    def __init__(self, *arguments: object, is_transient: bool | None = None) -> None:
        super().__init__(*arguments)
        if is_transient is not None:  # unlike most errors of this class
            self.is_transient = is_transient

    def __str__(self) -> str:
        return one_line(safe_message(super().__str__().strip()))


def short_traceback(error: Exception) -> list[str]:
    """Lines that IPython shows of an error whose message suffices: the user's own calls, none of this package."""
    frames = traceback.extract_tb(error.__traceback__)
    own = takewhile(lambda frame: not frame.filename.startswith(_PACKAGE), frames)
    shown = traceback.format_list([frame for frame in own if "/IPython/" not in frame.filename])
    return "".join([*shown, f"{type(error).__name__}: {error}"]).splitlines()


class InputError(DkrrError, ValueError):
    """An argument, an array or a file has the wrong shape, type or value."""

    _render_traceback_ = short_traceback


class InputTypeError(InputError, TypeError):
    """An argument or an array has a type that cannot be used."""


class KernelFunctionError(DkrrError):
    """A user's kernel function failed; the message names the block and the rows."""


class PlanError(DkrrError, ValueError):
    """No plan fits the limits; nothing has been computed."""

    _render_traceback_ = short_traceback


class MemoryLimitError(PlanError):
    """The memory limit is too small; the message names the smallest sufficient limit.

    See Also
    --------
    dkrr.plan : Make a plan without carrying it out.

    Examples
    --------
    >>> import numpy as np, dkrr
    >>> try:
    ...     dkrr.plan(np.eye(3), kernel="rbf", memory_limit="1 MiB")
    ... except dkrr.errors.MemoryLimitError as error:
    ...     print("The smallest memory_limit that suffices" in str(error))
    True
    """


class StoreError(DkrrError, OSError):
    """A store is missing, damaged, of another kind, or belongs to another problem."""

    _render_traceback_ = short_traceback


class WrongStoreError(StoreError, InputError):
    """The path of a store holds the run of another problem, or something else; nothing was changed."""


class DiskSpaceError(PlanError, StoreError):
    """A disk has less free space than the plan needs, or is full."""

    is_transient = True


class DamagedChunkError(StoreError):
    """A part of a store is missing, truncated, or does not match its checksum.

    Attributes
    ----------
    url : str
        The array.
    key : str
        The file of the chunk, or of the array's metadata.
    """

    def __init__(self, message: str, url: str, key: str) -> None:
        super().__init__(message)
        self.url, self.key = url, key

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        # Exceptions travel between processes.
        return type(self), (str(self), self.url, self.key)


class UnreachableStoreError(StoreError):
    """A store cannot be read or written at the moment (permission, limits, a lost disk); it is not damaged."""


class BusyStoreError(UnreachableStoreError):
    """A store belongs to another run at the moment; the message says whose, and where."""

    is_transient = True


class ClusterError(DkrrError):
    """The scheduler or the workers of a Dask cluster do not answer, were lost, or none started.

    The same call with a store resumes.
    """

    is_transient = True


class Float32BreakdownError(DkrrError):
    """A factor in float32 does not serve; the fit is planned again without it, so that users do not see this."""


class NotPositiveDefiniteError(DkrrError, np.linalg.LinAlgError):
    """A pivot of the factorisation is not positive.

    Attributes
    ----------
    row : int
        Row (counted from 0) of the failing pivot.
    """

    def __init__(self, message: str, row: int) -> None:
        super().__init__(message)
        self.row = row

    def __reduce__(self) -> tuple[type, tuple[str, int]]:
        # Exceptions travel between processes; the default would lose `row`.
        return type(self), (str(self), self.row)


class NotFiniteError(DkrrError, FloatingPointError):
    """A number computed from finite data is outside the range of float64, or NaN.

    Attributes
    ----------
    row : int or None
        Row or feature (counted from 0) that it belongs to, if known.
    """

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.message, self.row = message, row

    def __str__(self) -> str:
        text = super().__str__()
        return text if self.row is None else f"{text} (row {self.row}, counted from 0)"

    def __reduce__(self) -> tuple[type, tuple[str, int | None]]:
        return type(self), (self.message, self.row)


_OF_THE_MOMENT = {
    getattr(errno, name)
    for name in (
        # Space, and what others use at the moment.
        *("ENOSPC", "EDQUOT", "EAGAIN", "EBUSY", "ENFILE"),
        # Disks and servers of files that are away.
        *("EIO", "ESTALE", "ENOTCONN", "ENODEV", "ENXIO", "EREMOTEIO"),
        # Networks.
        *("ETIMEDOUT", "ECONNREFUSED", "ECONNRESET", "ECONNABORTED", "ENETDOWN", "ENETUNREACH", "EHOSTDOWN"),
        *("EHOSTUNREACH", "ENETRESET", "EPIPE"),
    )
    if hasattr(errno, name)
}
"""Numbers of errors of the system that may have passed when the same is tried later."""


def is_transient(error: BaseException | None) -> bool:
    """Whether the same call may succeed later: an error that says so, or is caused by one, or one of the system."""
    if isinstance(error, DkrrError) and error.is_transient:
        return True
    if isinstance(error, OSError) and not isinstance(error, DkrrError):
        is_of_network = isinstance(error, TimeoutError | ConnectionError)  # libraries raise these without a number
        return error.errno in _OF_THE_MOMENT or (is_of_network and error.errno is None)
    return error is not None and is_transient(error.__cause__)


class InputWarning(UserWarning):
    """Data are used as they are, or a parameter is ignored, which may not be what was meant; the message says which."""


ConvergenceWarning: type[UserWarning]
NotFittedError: type[DkrrError]


def warn_inaccurate(message: str, *, stacklevel: int) -> None:
    """Warn by `ConvergenceWarning` that a result is less accurate than required; levels count from the caller."""
    warnings.warn(message, _with_scikit_learn("ConvergenceWarning"), stacklevel=stacklevel + 1)


def _with_scikit_learn(name: str) -> Any:
    """One of the classes that are scikit-learn's too, so that those who catch or ignore its own have them.

    Its import takes a second, and tasks that form tiles do without it: they are made when they are first named.
    """
    if name in globals():
        return globals()[name]
    from sklearn import exceptions

    class ConvergenceWarning(exceptions.ConvergenceWarning):  # type: ignore[misc]  # scikit-learn has no types
        """The solution is less accurate than required."""

        __qualname__ = "ConvergenceWarning"

    class NotFittedError(DkrrError, exceptions.NotFittedError):  # type: ignore[misc]
        """An estimator was not fitted yet; call fit first."""

        __qualname__ = "NotFittedError"
        _render_traceback_ = short_traceback

    for made in (ConvergenceWarning, NotFittedError):
        globals().setdefault(made.__name__, made)  # one class of each name, also where another thread makes them too
    return globals()[name]


if not TYPE_CHECKING:  # for which any name would be one of the module

    def __getattr__(name: str) -> type:
        if name in ("ConvergenceWarning", "NotFittedError"):
            return _with_scikit_learn(name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return __all__
