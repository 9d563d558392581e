"""Users' values, checked one by one where they are taken: numbers, flags, names of a choice, paths, sizes of memory.

Each function returns the value in the type that the package works with, or raises `InputError` (`InputTypeError` for a
wrong type) that names the argument. Checks of one argument, which several estimators and functions have, are behind
those of any argument. What needs kernels, rows or likelihoods is checked in `dkrr.fitting.requests`.
"""

import re
import stat
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from math import inf, isfinite
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from dkrr.errors import InputError, InputTypeError
from dkrr.text import safe_message

BOOL_TYPES = (bool, np.bool_)
MAX_WHOLE = 2**53
"""Larger whole numbers are not all represented in float64, in which everything is computed."""
TEXT_TARGETS_ADVICE = "convert it, or if it holds class labels, give it to KernelLogisticRegression (or --logistic)"
"""Remedy for text as targets."""
MAX_COUNT = 2**48
"""No machine holds more rows, columns, targets or classes."""
MIN_TOL = 1e-15
"""float64 has no digits below."""
UNITS = {f"{prefix}b": 1000**k for k, prefix in enumerate(("", *"kmgt"))}
UNITS |= {unit.removesuffix("b"): size for unit, size in UNITS.items()}
UNITS |= {f"{prefix}ib": 1024**k for k, prefix in enumerate("kmgt", 1)}
"""Bytes of a unit of memory, in lower case."""
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
        text, is_whole = "", True
        for part in _parts(value):
            is_whole = len(text) <= 2 * MAX_SHOWN
            if not is_whole:
                break
            text += part
        text = " ".join(text.split())
    except Exception:  # of a user's class, or a number with too many digits
        return f"of type {type(value).__qualname__}"
    text = safe_message(text)
    return text if is_whole and len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 20]} ... ({type(value).__qualname__})"


def _parts(value: Any) -> Iterator[str]:
    """`repr` in parts, of lists and dictionaries one by one: a few of them that hold each other may have no end."""
    if type(value) in (list, tuple, dict) and value:
        marks = repr(type(value)())
        yield marks[0]
        for k, one in enumerate(value):
            yield ", " if k else ""
            yield from _parts(one)
            if type(value) is dict:
                yield ": "
                yield from _parts(value[one])
        yield ("," if type(value) is tuple and len(value) == 1 else "") + marks[1]
    else:
        yield repr(value)


def finite(value: object, name: str) -> float:
    """Finite real number as a float, or InputError."""
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
    if type(value) in (float, int):  # as it nearly always is: numbers.Real takes ten times as long to ask
        return True
    return isinstance(value, Real) and not isinstance(value, (*BOOL_TYPES, np.timedelta64))


def positive(value: object, name: str) -> float:
    """Finite number above zero as a float, or InputError."""
    number = finite(value, name)
    if number <= 0:
        raise InputError(f"{name} is {shown(value)}; expected a finite number above 0")
    return number


def scales_of(values: object, name: str) -> float | tuple[float, ...]:
    """Check a number above 0, or a sequence with one for each column, which becomes a tuple; else InputError."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if not isinstance(values, list | tuple):
        return positive(values, name)
    if len(values) == 0:
        raise InputError(f"{name} is empty; expected a number above 0, or a sequence with one for each column")
    return tuple(positive(value, f"{name}[{k}]") for k, value in enumerate(values))


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
    if isinstance(value, (*BOOL_TYPES, np.timedelta64)) or not isinstance(value, Integral):
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
    if isinstance(value, BOOL_TYPES):
        return bool(value)
    raise InputTypeError(f"{name} is {shown(value)}; expected True or False{remedy}")


def n_dimensions(value: object) -> int | None:
    """Number of dimensions of a number, an array or nested sequences; None for ragged ones."""
    try:
        return int(np.ndim(value))  # type: ignore[arg-type]
    except (TypeError, ValueError, RecursionError):
        return None


def choice(value: object, name: str, choices: Sequence[str], remedy: str = "") -> str:
    """Check that a value is one of some names; InputError if it is not."""
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
            f"or copy the data"
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
    for protocol in url.partition("://")[0].split("::"):
        if protocol in BUCKETS:
            if find_spec("obstore") is None:
                raise InputError(
                    f"{name} is {shown(url)}, which needs obstore, and it is not installed; expected it: pip install "
                    f"'dkrr[cloud]', or a path"
                )
            continue
        from fsspec import get_filesystem_class  # not by processes that only see paths

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
                f"without them: give credentials in the environment (docs/how-to/clusters.md), or open the array and "
                f"give it instead of the URL"
            )


def numbers(values: Any, name: str, expected: str) -> NDArray[np.float64]:
    """A number, or a sequence of them, as an array of float64; neither text, flags, dates nor masked entries."""
    if type(values) is float:
        return np.asarray(values)
    if isinstance(values, str | bytes | Path) or hasattr(values, "mask"):
        raise InputTypeError(f"{name} is {shown(values)}; expected {expected}")
    try:
        found = np.asarray(values)
        are_numbers = found.dtype.kind in "iuf" or (found.dtype.kind == "O" and all(map(is_real, found.flat)))
        # NumPy turns [True, 2.0] into floats.
        if are_numbers and not (isinstance(values, list | tuple) and any(isinstance(v, BOOL_TYPES) for v in values)):
            return found.astype(np.float64)
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass
    raise InputTypeError(f"{name} is {shown(values)}; expected {expected}")


def refuse_masked(value: Any, name: str) -> None:
    """Refuse masked entries in an array, a list or a tuple: NumPy would take the numbers below the mask.

    Raises
    ------
    InputTypeError
        If it has any.
    """
    try:
        is_masked = _is_masked(value)
    except RecursionError:  # a list that holds itself, which NumPy refuses
        return
    if is_masked:
        raise InputTypeError(
            f"{name} has masked entries; expected plain numbers: fill them (numpy.ma.filled, dask.array.ma.filled), or "
            f"leave their rows out"
        )


def _is_masked(value: Any) -> bool:
    if isinstance(value, np.ma.MaskedArray):
        return bool(np.ma.is_masked(value))
    # Each type once: lists may have millions of floats.
    kinds = set(map(type, value)) if isinstance(value, list | tuple) else ()
    return any(issubclass(kind, np.ma.MaskedArray | list | tuple) for kind in kinds) and any(map(_is_masked, value))


def is_object(value: Any) -> bool:
    """Whether a parameter is a kernel, a function or a transformer: no number, text or array of numbers."""
    return value is not None and not isinstance(value, str | list | dict | bool | int | float | np.ndarray | np.generic)


# Arguments of estimators and functions


def parse_bytes(value: Any, name: str = "memory_limit") -> int:
    """Number of bytes that ``"4GiB"``, ``"500 MB"`` or a number stands for.

    Parameters
    ----------
    value : int, float, NumPy number or str
        A number of bytes, or a number with a unit (kB, MB, GB, TB: powers of 1000; KiB ... TiB: of 1024).
    name : str
        What the value is, for the error message.

    Raises
    ------
    InputError
        If the text is not a number with a known unit, the number is not positive, or one below a million has no unit.
    """
    number, unit = (value, "") if is_real(value) else (0, "")
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*([a-z]*)\s*", value.lower())
        if match is not None and match[2] in UNITS:
            number, unit = float(match[1]) * UNITS[match[2]], match[2]
    if not 1 <= number < 2**63:
        raise InputError(
            f"{name} is {shown(value)}; expected a positive number of bytes: write for example '4GiB' or '500 MB'"
        )
    if number < 10**6 and not unit:
        likely = "GB" if number < 256 else "MB"
        raise InputError(f"{name}={shown(value)} is {number:g} bytes; did you mean '{number:g} {likely}'?")
    return int(number)


def checked_uncertainty(uncertainty: Any) -> bool | Literal["intervals"]:
    """Check `uncertainty`: whether a fit keeps its factor, or "intervals": also the models that leave out folds."""
    if isinstance(uncertainty, str) and uncertainty == "intervals":
        return "intervals"
    return flag(uncertainty, "uncertainty", ', or "intervals"')


def checked_memory_limit(memory_limit: Any) -> int | str | None:
    """Limit of memory, as it was given; None: what the machine has."""
    if memory_limit is not None:
        parse_bytes(memory_limit)
    return memory_limit  # type: ignore[no-any-return]


def checked_form(form: Any) -> Any:
    """Form; None for "auto"."""
    checked = choice(form, "form", ("auto", "primal", "dual"))
    return None if checked == "auto" else checked


DEVICES = ("auto", "cpu", "cuda")


def checked_device(device: Any, name: str = "device") -> Any:
    """Where products with K are computed."""
    return choice(device, name, DEVICES)


def checked_loss(loss: Any) -> Any:
    """Loss."""
    return choice(loss, "loss", ("squared", "logistic"), ": for KernelRidge or KernelLogisticRegression")


def checked_tol(tol: Any, name: str = "tol") -> float:
    """Relative residual between what float64 can represent and 1."""
    if not is_real(tol) or not MIN_TOL <= tol < 1:
        raise InputError(
            f"{name} is {shown(tol)}; expected a relative residual of at least {MIN_TOL:g} (float64 has no digits "
            f"below) and less than 1"
        )
    return float(tol)


def checked_count(value: Any, name: str) -> int:
    """Number of rows, columns, targets or classes."""
    expected = "a whole number of at least 1: give it, or X and y instead of sizes"
    return checked_whole(value, name, expected, MAX_COUNT)


def checked_tile(tile: Any) -> int | None:
    """Tile size; None: the planner chooses."""
    return None if tile is None else checked_whole(tile, "tile", "a whole number of at least 1 row, or None")


def checked_max_iter(max_iter: Any) -> int:
    """Allowed steps of Newton's method."""
    return checked_whole(max_iter, "max_iter", "a whole number of at least 1 Newton step")


def checked_whole(value: Any, name: str, expected: str, maximum: int = MAX_WHOLE) -> int:
    """Whole number of at least 1."""
    try:
        return whole(value, name, 1, maximum=maximum)
    except InputError:
        at_most = f" (at most {maximum:,})" if isinstance(value, int) and value > maximum else ""
        raise InputError(f"{name} is {shown(value)}; expected {expected}{at_most}") from None


def checked_progress(progress: Any) -> bool | None:
    """Whether progress is shown; None: on a terminal."""
    return None if progress is None else flag(progress, "progress", ", or None: on a terminal")


def checked_alphas(alpha: Any, n_targets: int) -> NDArray[np.float64]:
    """λ of every target, of shape (n_targets,); finite and ≥ 0."""
    values = numbers(alpha, "alpha", "a number, or one for each target")
    if values.ndim > 1 or values.size not in (1, n_targets):
        raise InputError(
            f"alpha has shape {values.shape}; expected a number, or shape ({n_targets},): one for each target. "
            f"KernelRidgeCV (dkrr select) chooses among several"
        )
    _refuse_negative(values, alpha, "alpha")
    return values.repeat(n_targets // values.size)


def checked_candidates(alphas: Any) -> NDArray[np.float64]:
    """Values of λ to choose from, finite and ≥ 0, in the order in which they are given."""
    values = np.atleast_1d(numbers(alphas, "alphas", "numbers >= 0, or None for an automatic range"))
    if values.ndim != 1 or values.size == 0:
        raise InputError(f"alphas has shape {values.shape}; expected at least one number, in one dimension")
    _refuse_negative(values, alphas, "alphas")
    return values


def _refuse_negative(values: NDArray[np.float64], given: Any, name: str) -> None:
    if not 0 <= values.min() <= values.max() < inf:  # also where one is NaN
        raise InputError(f"{name} is {shown(given)}; expected finite numbers >= 0: 0 is kernel least squares")


def checked_path(alphas: Any, name: str = "alpha") -> tuple[float, ...]:
    """Values of λ of a logistic regression, one for each model; finite and > 0."""
    values = numbers(alphas, name, "a number > 0 for each model")
    if values.ndim != 1 or values.size == 0:
        raise InputError(
            f"{name} has shape {values.shape[1:] or values.shape}; expected one number > 0 for each model: fit_path "
            "makes a model for each of several, and KernelLogisticRegressionCV chooses"
        )
    is_good = np.isfinite(values) & (values > 0)
    if not is_good.all():
        raise InputError(
            f"{name} is {values[~is_good][0]:g}; expected a finite number > 0: without a penalty the solution of "
            f"separable classes is infinite"
        )
    return tuple(values.tolist())


def checked_train_sizes(train_sizes: Any) -> NDArray[np.float64] | NDArray[np.intp]:
    """Fractions, or numbers of rows; raises InputError if they are neither."""
    expected = "fractions between 0 and 1 such as (0.125, 0.25, 0.5), or whole numbers of rows"
    values = numbers(train_sizes, "train_sizes", expected)
    if values.ndim == 1 and values.size:
        if np.asarray(train_sizes).dtype.kind in "iu" and (values >= 1).all():
            return np.asarray(train_sizes).astype(np.intp)
        if np.asarray(train_sizes).dtype.kind == "f" and ((values > 0) & (values <= 1)).all() and (values < 1).any():
            return values
    raise InputError(f"train_sizes is {shown(train_sizes)}; expected {expected}")
