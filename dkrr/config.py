"""Defaults, in Dask's configuration under ``dkrr:`` (files, environment, ``dask.config.set``), checked where read."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dask
import yaml

from dkrr.checks import checked_device, flag, location, not_negative, positive, positive_or_none, shown, whole
from dkrr.errors import InputError, StoreError

__all__ = ["check_settings", "setting"]

with (Path(__file__).parent / "dkrr.yaml").open() as _file:
    _defaults: dict[str, Any] = yaml.safe_load(_file)

dask.config.update_defaults(_defaults)


MAX_RATE = 1e15
"""No machine computes, reads or waits more, nor less than its inverse; times of any work are then finite."""


def _path_or_none(value: Any, name: str) -> str | None:
    return None if value is None else location(value, name)


def _workers_or_none(value: Any, name: str) -> int | None:
    return None if value is None else whole(value, name, 1)


def _rates(value: Any, name: str) -> dict[str, float]:
    """Rates that are given."""
    known = _defaults["dkrr"]["rates"]
    if not isinstance(value, Mapping) or not set(value) <= set(known):
        raise InputError(f"{name} is {shown(value)}; expected rates by their names: {', '.join(known)}")
    given = {key: rate for key, rate in value.items() if rate is not None}
    # What takes no time may be given as 0.
    found = {k: (not_negative if k.endswith("-seconds") else positive)(v, f"{k} of {name}") for k, v in given.items()}
    for key, rate in found.items():
        if rate > MAX_RATE or 0 < rate < 1 / MAX_RATE:
            raise InputError(f"{key} of {name} is {rate:g}; expected a number from {1 / MAX_RATE:g} to {MAX_RATE:g}")
    return found


_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "memory-limit": lambda value, _: value,  # an argument of the same name has the same values: checked with it
    "temporary-directory": _path_or_none,
    "checkpoint-seconds": not_negative,
    "durable": flag,
    "wait-for-workers-seconds": positive_or_none,
    "local.workers": _workers_or_none,
    "profile-directory": _path_or_none,
    "quick-measurement": flag,
    "device": checked_device,
    "rates": _rates,
}


def setting(name: str) -> Any:
    """Value of ``dkrr.<name>``.

    Parameters
    ----------
    name : str
        Name of the setting, such as "memory-limit" or "local.workers".

    Returns
    -------
    object
        Checked value: a number, a text, True or False, or None.

    Raises
    ------
    InputError
        If it is not one that the setting can have.

    See Also
    --------
    dkrr.config.check_settings : Refuse a wrong value of any setting.

    Examples
    --------
    >>> import dask
    >>> from dkrr.config import setting
    >>> with dask.config.set({"dkrr.local.workers": 2}):
    ...     setting("local.workers")
    2
    """
    return _CHECKS[name](dask.config.get(f"dkrr.{name}"), f"dkrr.{name} in Dask's configuration")


_valid: tuple[list[int], list[Any], dict[str, Any]] = [], [], {}
"""Identities of a configuration's names and values, which were all right; they themselves; and the checked values."""


def checked_settings() -> dict[str, Any]:
    """Checked values of all settings by their names, as `setting` returns them.

    Every fit reads all of them; objects that were right at the last time are not checked again.

    Raises
    ------
    InputError
        Naming a setting that is wrong.
    """
    global _valid
    given = dask.config.get("dkrr")
    found = [*given, *given.values()]
    for part in (given.get("local"), given.get("rates")):
        if type(part) is dict:
            found += [*part, *part.values()]
    identities = list(map(id, found))
    valid, _, settings = _valid
    if identities != valid:
        settings = {name: setting(name) for name in _CHECKS}
        _valid = identities, found, settings
    return settings


def check_settings() -> None:
    """Refuse a wrong value of any setting before work starts.

    Raises
    ------
    InputError
        Naming the setting.

    See Also
    --------
    dkrr.config.setting : Value of one setting.

    Examples
    --------
    >>> from dkrr.config import check_settings
    >>> check_settings()
    """
    checked_settings()


def temporary_directory() -> str:
    """Folder for what is kept without a store: ``dkrr.temporary-directory``, else the system's.

    Raises
    ------
    StoreError
        If the system has none that this user may write to.
    """
    import tempfile  # not by processes that keep nothing

    try:
        return setting("temporary-directory") or tempfile.gettempdir()
    except FileNotFoundError as error:
        raise StoreError(
            f"there is no temporary folder: {error.strerror}; expected one that this user may write to: set "
            f"dkrr.temporary-directory in Dask's configuration, or give a store"
        ) from error


def __dir__() -> list[str]:
    return __all__
