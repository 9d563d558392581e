"""Bytes and seconds as people write them."""

import math
import re
from typing import Any

from dkrr.errors import InputError
from dkrr.values import is_real, shown

_FACTORS = {
    "": 1,
    "b": 1,
    "k": 10**3,
    "kb": 10**3,
    "m": 10**6,
    "mb": 10**6,
    "g": 10**9,
    "gb": 10**9,
    "t": 10**12,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


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
    expected = f"{name} is {shown(value)}; expected a positive number of bytes: write for example '4GiB' or '500 MB'"
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*([a-z]*)\s*", value.lower())
        if match is None or match[2] not in _FACTORS:
            raise InputError(expected)
        number, has_unit = float(match[1]) * _FACTORS[match[2]], bool(match[2])
    elif not is_real(value):
        raise InputError(expected)
    else:
        number, has_unit = value, False
    if not 1 <= number < 2**63:
        raise InputError(expected)
    if number < 10**6 and not has_unit:
        unit = "GB" if number < 256 else "MB"
        raise InputError(f"{name} is {shown(value)}, so few bytes; expected a unit with it: {number:g} {unit}?")
    return int(number)


def format_bytes(n_bytes: float) -> str:
    """Number of bytes with a binary unit and three digits: ``1.25 GiB``."""
    size = float(n_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 999.5 or unit == "TiB":
            break
        size /= 1024
    return f"{size:,.0f} {unit}" if unit == "B" or abs(size) >= 999.5 else f"{size:.3g} {unit}"


def format_seconds(seconds: float) -> str:
    """Duration in its one or two largest units: ``850 ms``, ``12.5 s``, ``3 min 20 s``, ``2 h 05 min``."""
    if not math.isfinite(seconds):
        return "an unknown time"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    return f"{hours // 24} d {hours % 24} h"


def format_count(count: int) -> str:
    """Whole number: all its digits below 10¹⁵, otherwise its leading digits and the power of ten."""
    if count < 10**15:
        return f"{count:,}"
    digits = math.log10(count)  # of a whole number of any size, which no float holds
    power, leading = int(digits), round(10 ** (digits % 1), 1)
    return f"about {leading:g}e{power}" if leading < 10 else f"about 1e{power + 1}"
