"""Users' values, checked one by one where they are taken: numbers, flags, names of a choice, paths.

Each function returns the value in the type that the package works with, or raises `InputError` (`InputTypeError` for a
wrong type) that names the argument.
"""

import re
import stat
from collections.abc import Sequence
from importlib.util import find_spec
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from dkrr.errors import InputError, InputTypeError
from dkrr.plain_text import safe_message

MAX_WHOLE = 2**53
"""Larger whole numbers are not all represented in float64, in which costs are computed."""
CLASSES = "convert it, or if it holds class labels, give it to KernelLogisticRegression (or --logistic)"
"""What to do about text as targets."""
MAX_SHOWN = 160
"""Characters of a value in a message."""
BUCKETS = ("s3", "gs", "az")
"""Protocols of URLs ``s3://bucket/...``, ``gs://bucket/...`` and ``az://container/...``, which obstore reads."""
HOST = re.compile(r"(\[[^\]@]*\]|[^:@]*)(:[0-9]*)?")
"""Host in a URL, and its port."""
SECRET = re.compile(
    "token|secret|pass|pwd|cred|signature|auth|key|jwt|session|policy|^x-|^(sig|sas|code|pw)$", re.IGNORECASE
)
"""Name of what gives access in the query of a URL."""
MAX_PATH = 4096
"""Characters of a path or URL; file systems take fewer."""
MAX_NAME = 255
"""Bytes of a name in a path."""


def shown(value: object) -> str:
    """A value in a message: on one line, cut where it is long, by its type where it has no text."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # of a user's class, or a number with too many digits
        return f"of type {type(value).__qualname__}"
    text = safe_message(text)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 20]} ... ({type(value).__qualname__})"


def finite(value: object, name: str) -> float:
    """Finite real number as a float, or InputError."""
    # First whether it is a float, as it nearly always is: numbers.Real takes ten times as long to ask.
    if type(value) is not float:
        if not is_real(value):
            raise InputTypeError(f"{name} is {shown(value)} ({type(value).__qualname__}); expected a real number")
        try:
            value = float(value)  # type: ignore[arg-type]
        except OverflowError:
            raise InputError(f"{name} is {shown(value)}; expected a number that float64 represents") from None
    if not isfinite(value):
        raise InputError(f"{name} is {value!r}; expected a finite number")
    return value


def is_real(value: object) -> bool:
    """Whether a value is one real number: neither a flag, nor a duration, which NumPy counts as an integer."""
    return isinstance(value, Real) and not isinstance(value, bool | np.bool_ | np.timedelta64)


def positive(value: object, name: str) -> float:
    """Finite number above zero as a float, or InputError."""
    number = finite(value, name)
    if number <= 0:
        raise InputError(f"{name} is {shown(value)}; expected a finite number above 0")
    return number


def not_negative(value: object, name: str) -> float:
    """Finite number of at least zero as a float, or InputError."""
    number = finite(value, name)
    if number < 0:
        raise InputError(f"{name} is {shown(value)}; expected a finite number >= 0")
    return number


def positive_or_none(value: object, name: str) -> float | None:
    """None, or a finite number above zero as a float, or InputError."""
    return None if value is None else positive(value, name)


def whole(value: object, name: str, minimum: int, remedy: str = "", maximum: int = MAX_WHOLE) -> int:
    """Whole number from `minimum` to `maximum` as an int, or InputError."""
    if isinstance(value, bool | np.bool_ | np.timedelta64) or not isinstance(value, Integral):
        raise InputTypeError(f"{name} is {shown(value)} ({type(value).__qualname__}); expected a whole number")
    number = int(value)
    if number < minimum:
        ending = f": {remedy}" if remedy else ""
        raise InputError(f"{name} is {shown(value)}; expected a whole number of at least {minimum}{ending}")
    if number > maximum:
        raise InputError(f"{name} is {shown(value)}; expected a whole number of at most {maximum:,}")
    return number


def flag(value: object, name: str, remedy: str = "") -> bool:
    """True or False, or InputError: other values would count as one of the two by accident."""
    if value is True or value is False:
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    raise InputTypeError(f"{name} is {shown(value)}; expected True or False{remedy}")


def n_dimensions(value: object) -> int | None:
    """Number of dimensions of a number, an array or nested sequences; None for ragged ones."""
    try:
        return int(np.ndim(value))  # type: ignore[arg-type]
    except (TypeError, ValueError, RecursionError):
        return None


def choice(value: object, name: str, choices: Sequence[str], remedy: str = "") -> str:
    """One of some names, or InputError."""
    if not isinstance(value, str) or value not in choices:
        *most, last = map(repr, choices)
        raise InputError(f"{name} is {shown(value)}; expected {', '.join(most)} or {last}{remedy}")
    return value


def location(
    value: object, name: str, what: str = "a path or URL: text or pathlib.Path", *, is_kept: bool = False
) -> str:
    """Path or URL as text, or InputError.

    Parameters
    ----------
    value : object
    name : str
    what : str
        What is expected.
    is_kept : bool
        Whether it is that of a run, a model or predictions: see `may_keep`.
    """
    if not isinstance(value, str | Path):
        raise InputTypeError(f"{name} is {shown(value)} ({type(value).__qualname__}); expected {what}")
    text = str(value)
    if not text.strip():
        raise InputError(f"{name} is {text!r}; expected {what}, not an empty one")
    if "://" in text:
        _refuse_secrets(text, name)
    is_too_long = len(text) > MAX_PATH or any(len(part.encode(errors="replace")) > MAX_NAME for part in text.split("/"))
    if "\0" in text or is_too_long:
        raise InputError(
            f"{name} is {shown(text)}; expected {what}, without null bytes, and with names that a file system takes"
        )
    if is_kept:
        refuse_others_than_kept(text, name)
    if "://" in text:
        _check_protocols(text, name)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{name} is {shown(text)}; expected {what}, in characters of Unicode") from None
    return text


def may_keep(url: str) -> bool:
    """Whether runs, models and predictions may be at a path or URL: in a folder or a bucket."""
    protocol, mark, _ = url.partition("://")
    return not mark or protocol in ("file", *BUCKETS)


def refuse_others_than_kept(url: str, name: str) -> None:
    """Refuse URLs of other protocols than those that `may_keep` runs, models and predictions."""
    if not may_keep(url):
        raise InputError(
            f"{name} is {shown(url)}: runs, models and predictions are kept in folders and in buckets "
            f"({', '.join(f'{protocol}://' for protocol in BUCKETS)}); expected one of these: mount the file system, "
            f"or copy what is there"
        )


def is_existing_folder(path: str, name: str = "") -> bool:
    """Whether a path is that of a folder; InputError if it is neither a folder nor a file, or does not exist.

    A pipe or a device might never end, and opening a pipe waits for a writer.
    """
    of = f"{name}: " if name else ""
    try:
        mode = Path(path).stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{of}the path {path} does not exist") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{of}cannot read {path}: {error}") from error
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise InputError(f"{of}{path} is a pipe, a socket or a device; expected a file or a folder")
    return stat.S_ISDIR(mode)


def _check_protocols(url: str, name: str) -> None:
    """Refuse a URL of a protocol that is unknown, or whose package is not installed."""
    from fsspec import get_filesystem_class  # not by processes that only see paths

    for protocol in url.partition("://")[0].split("::"):
        if protocol in BUCKETS:
            _check_obstore(url, name)
            continue
        try:
            get_filesystem_class(protocol)
        except (ImportError, ValueError) as error:
            raise InputError(
                f"{name} is {shown(url)}, and the protocol {protocol!r} cannot be used: {error}; expected a path, or "
                f"a URL of a file system that fsspec knows here"
            ) from error


def _refuse_secrets(url: str, name: str) -> None:
    """Refuse what may give access: stores, models and logs would hold it."""
    for part in url.split("::"):
        protocol, mark, rest = part.partition("://")
        place, *query = re.split(r"\?" if protocol.lower() in BUCKETS else "[?#]", rest, maxsplit=1)
        host = re.split(r"[/\\]", place, maxsplit=1)[0]
        names = [pair.partition("=")[0] for pair in re.split("[&;]", unquote("".join(query)))]
        is_secret = bool(query) and (protocol.lower() in BUCKETS or any(map(SECRET.search, names)))
        # A password with a slash seems to end the host: what is left of it is not the number of a port.
        if mark and (is_secret or not HOST.fullmatch(host)):
            known = place.rpartition("@")[2] if HOST.fullmatch(host.rpartition("@")[2]) else "..."
            raise InputError(
                f"{name} is {shown(f'{protocol}://{known}')} with a name, a password or a query; expected a URL "
                f"without them: give credentials in the environment (docs/stores.md), or open the array and give it "
                f"instead of the URL"
            )


def _check_obstore(url: str, name: str) -> None:
    if find_spec("obstore") is None:
        raise InputError(
            f"{name} is {shown(url)}, which needs obstore, and it is not installed; expected it: pip install "
            f"'dkrr[cloud]', or a path"
        )


def numbers(values: Any, name: str, expected: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A number, or a sequence of them, as an array of float64; neither text, flags, dates nor masked entries."""
    if type(values) is float:
        return np.asarray(values)
    if isinstance(values, str | bytes | Path) or hasattr(values, "mask"):
        raise InputTypeError(f"{name} is {shown(values)}; expected {expected}")
    try:
        found = np.asarray(values)
        are_numbers = found.dtype.kind in "iuf" or (found.dtype.kind == "O" and all(map(is_real, found.flat)))
        if are_numbers and _has_no_flags(values):
            return found.astype(np.float64)
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass
    raise InputTypeError(f"{name} is {shown(values)}; expected {expected}")


def _has_no_flags(values: Any) -> bool:
    # NumPy turns [True, 2.0] into floats.
    return not isinstance(values, list | tuple) or not any(isinstance(v, bool | np.bool_) for v in values)


def is_object(value: Any) -> bool:
    """Whether a parameter is a kernel, a function or a transformer: no number, text or array of numbers."""
    return value is not None and not isinstance(value, str | list | dict | bool | int | float | np.ndarray | np.generic)
