"""Fingerprints of runs: whether the run in a store is that of a problem, and how it differs."""

import json
from typing import Any

from dkrr.errors import WrongStoreError
from dkrr.store.description import CHECKSUM

WORDS = {
    "X": "the values of X",
    "y": "the targets y",
    "classes": "the labels y",
    "shape": "the shape of X",
    "lengths": "the shape of X",
    "dtype": "the dtype of X",
    "kernel": "the kernels",
    "alpha": "the values of alpha",
    "weight": "the sample weights, or those of the classes (class_weight),",
    "sample_weight": "the sample weights",
}
"""Names in fingerprints as users know them."""


def plain(value: dict[str, Any]) -> dict[str, Any]:
    """The value as it is read from JSON: tuples have become lists."""
    found: dict[str, Any] = json.loads(json.dumps(value))
    return found


def differences(theirs: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    """Names of the entries of two fingerprints that differ."""
    return [name for name in sorted(theirs.keys() | ours.keys()) if theirs.get(name) != ours.get(name)]


def refusal(
    url: str, theirs: dict[str, Any], ours: dict[str, Any], names: list[str], *, where: str = "", remedy: str = ""
) -> WrongStoreError:
    """Error of a store that belongs to another problem.

    Parameters
    ----------
    names : list of str
        Entries of the fingerprints that differ.
    where : str
        Where they first do, in words.
    remedy : str
        What can be done, if anything but to give another store.
    """
    if isinstance(theirs.get("X"), str) and isinstance(ours.get("X"), list):
        return WrongStoreError(
            f"the run {url} was begun by a version of dkrr whose runs do not grow, and cannot be compared with this "
            f"problem. Give another store= or delete this one"
        )
    told = [name for name in names if name != "lengths" or "shape" not in names]
    details = "; ".join(
        f"{k}: here {ours.get(k)}, in the store {theirs.get(k)}"
        for k in told
        if not _is_checksum(ours.get(k, theirs.get(k)))
    )
    others = ", ".join(dict.fromkeys(WORDS.get(k, k) for k in names))
    values = f" ({details})" if details else ""
    return WrongStoreError(
        f"the store {url} belongs to another problem: {others} differ{values}{where}. {remedy}Give another store= or "
        f"delete this one; fits of one search, as GridSearchCV's, cannot share a store: give none, or use "
        f"KernelRidgeCV(store=...), which has one for each kernel"
    )


def _is_checksum(value: Any) -> bool:
    """Whether a value is a checksum, or a list of such, which say nothing to a reader."""
    several = value if isinstance(value, list) else [value]
    return any(CHECKSUM.fullmatch(str(one)) for one in several)
