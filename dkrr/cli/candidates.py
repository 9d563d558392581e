"""Candidates and folds as they are written on a command line."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dkrr.errors import InputError
from dkrr.values import shown

MAX_ALPHAS = 10**6
"""No search has more values of λ."""


def candidates(given: Sequence[str], option: str) -> list[float]:
    """Numbers of one option or several: with commas between, or from:to:how-many with equal ratios.

    Raises
    ------
    InputError
        Naming the option.
    """
    return [value for text in given for value in _values(text, option)]


def _values(text: str, option: str) -> list[float]:
    try:
        if ":" in text:
            first, last, count = text.split(":")
            if not 0 < float(first) < float(last) < math.inf or not 2 <= int(count) <= MAX_ALPHAS:
                raise ValueError
            return [float(value) for value in np.geomspace(float(first), float(last), int(count))]
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            f"{option} is {shown(text)}; expected numbers with commas between, or from:to:how-many such as 1e-4:1:10"
        ) from None


def train_sizes(text: str, option: str) -> list[float] | list[int]:
    """Fractions, or whole numbers of rows, with commas between; raises InputError naming the option."""
    parts = text.split(",")
    try:
        return [int(part) for part in parts] if all(part.strip().isdigit() for part in parts) else [*map(float, parts)]
    except ValueError:
        raise InputError(
            f"{option} is {shown(text)}; expected fractions such as 0.125,0.25,0.5, or numbers of rows"
        ) from None


def folds_of_rows(cv: str, shuffle: int | None, *, is_classification: bool = False) -> Any:
    """Number of folds, or a splitter of random rows."""
    from dkrr.estimators.cross_validation import shuffled_folds

    count = whole(cv, "--cv")
    if shuffle is not None and not 0 <= shuffle < 2**32:
        raise InputError(f"--shuffle is {shown(shuffle)}; expected a seed from 0 to {2**32 - 1}")
    if shuffle is None or count < 2:
        return count
    return shuffled_folds(count, shuffle, is_classification=is_classification)


def whole(text: str, option: str, expected: str = "a whole number of folds, or loo") -> int:
    """Whole number; raises InputError naming the option."""
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{option} is {shown(text)}; expected {expected}") from None
