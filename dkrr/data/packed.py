"""Attributes by which the numbers of an array stand for others: the conventions of netCDF (CF), also in Zarr and HDF5.

Such arrays are packed, ``number * scale_factor + add_offset``, or have a number in place of missing values. xarray
decodes them; the numbers as they are stored would be other data.
"""

import struct
from base64 import standard_b64decode
from collections.abc import Mapping
from typing import Any

import numpy as np

from dkrr.checks import shown
from dkrr.errors import InputError

PACKING = {"scale_factor": 1.0, "add_offset": 0.0}
"""Attributes of packed numbers, and the values with which they change nothing."""
FILL_VALUES = ("_FillValue", "missing_value")
"""Attributes with the numbers that stand for missing values."""
UNSIGNED = "_Unsigned"
"""Attribute of integers that are to be read as unsigned ones, or as signed ones: netCDF-3 and DAP lack the other."""


def refuse_packed(attributes: Mapping[str, Any], dtype: Any, name: str) -> None:
    """Refuse an array whose attributes say that its numbers are packed, or that some of them are missing.

    Parameters
    ----------
    attributes : mapping
    dtype : dtype
        Type of the numbers as they are stored.
    name : str
        What the array is called in messages.

    Raises
    ------
    InputError
        Naming the attribute, and what to do; of numbers only, not of text.
    """
    if np.dtype(dtype).kind not in "iuf":
        return
    for key in (*PACKING, *FILL_VALUES, UNSIGNED):
        try:
            value = attributes.get(key)
        except Exception as error:  # h5py has its own errors for damaged files
            raise InputError(f"{name}: its attribute {key} cannot be read: {error}; expected a whole file") from error
        value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        if value is None or _changes_nothing(key, value, np.dtype(dtype)):
            continue
        what = "some of its numbers stand for missing values" if key in FILL_VALUES else "its numbers stand for others"
        raise InputError(
            f"{name} has the attribute {key} = {shown(value)}, so that {what}; expected the numbers themselves: open "
            f"it with xarray, which decodes them (xarray.open_dataset(..., chunks={{}})['variable']), or remove the "
            f"attribute if it does not hold"
        )


def _changes_nothing(key: str, value: Any, dtype: np.dtype[Any]) -> bool:
    if key == UNSIGNED:
        return str(value).lower() != {"i": "true", "u": "false"}.get(dtype.kind)
    values = np.ravel(_fill_value(value) if key in FILL_VALUES else value)
    if values.dtype.kind not in "biuf":
        return values.size == 0
    # NaN and infinity are refused as they are.
    return bool((~np.isfinite(values) if key in FILL_VALUES else values == PACKING[key]).all())


def _fill_value(value: Any) -> Any:
    """Number that xarray has written into a Zarr array: as text in JSON, of format 3 in base64."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        pass
    try:
        return struct.unpack("<d", standard_b64decode(value))[0]
    except (ValueError, struct.error):
        return value
