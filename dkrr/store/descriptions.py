"""The JSON of Zarr groups and arrays that dkrr writes and reads itself: bounded, checked, and written at once.

The description of a run or a model is the attribute ``dkrr`` of its group, with a checksum of its own beside it.
"""

import hashlib
import json
from typing import Any

from dkrr.errors import StoreError
from dkrr.store.files import make_folder, read_file, write_file

NAME = "zarr.json"
MAX_BYTES = 256 * 2**20
"""Largest description: a vocabulary of ten million words fits."""
MAX_DEPTH = 64
"""Deepest nesting of values: of sums in sums of kernels, mostly."""

_GROUP = {"zarr_format": 3, "node_type": "group"}


def write_group(url: str, description: dict[str, Any] | None = None) -> None:
    """Write a Zarr group, with the description of what it holds if there is one.

    Raises
    ------
    StoreError
        If it cannot be written.
    """
    attributes = {} if description is None else {"dkrr": description, "checksum": _checksum(description)}
    make_folder(url)
    write_json(f"{url}/{NAME}", {**_GROUP, "attributes": attributes})


def write_json(url: str, value: dict[str, Any]) -> None:
    """Write a value as a file of JSON."""
    write_file(url, [json.dumps(value, indent=1).encode()])


def read_group(url: str) -> dict[str, Any] | None:
    """Description in a Zarr group; None if there is no group, an empty one if dkrr wrote none.

    Raises
    ------
    StoreError
        If the file is not a group's, is damaged, or holds more or deeper values than dkrr writes.
    """
    found = read_json(f"{url}/{NAME}")
    if found is None:
        return None
    if found.get("node_type") == "array":
        raise StoreError(f"{url} is an array, and no group")
    attributes = found.pop("attributes", {})
    if not isinstance(attributes, dict):
        raise _damaged(url, "its attributes are not a JSON object")
    description = attributes.get("dkrr")
    if description is None or not isinstance(description, dict):
        return {}
    if "checksum" not in attributes:  # of a version that wrote none: of the present one it would be damaged
        return {name: description.get(name) for name in ("kind", "format", "versions")}
    if found != _GROUP or set(attributes) != {"dkrr", "checksum"} or attributes["checksum"] != _checksum(description):
        raise _damaged(url, "its description does not match its checksum")
    return description


def read_json(url: str) -> dict[str, Any] | None:
    """Object in a file of JSON; None if there is no file.

    Raises
    ------
    StoreError
        If it is not JSON, not an object, too large or too deep.
    """
    raw = read_file(url, MAX_BYTES)
    if raw is None:
        return None
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _damaged(url, f"it is not JSON that dkrr wrote: {error}") from error
    if not isinstance(found, dict):
        raise _damaged(url, "it is not a JSON object")
    if _is_deeper(found, MAX_DEPTH):
        raise _damaged(url, f"its values are nested more than {MAX_DEPTH} deep")
    return found


def _is_deeper(value: Any, depth: int) -> bool:
    level = [value]
    while level:
        if depth == 0:
            return True
        inner = [v for one in level for v in (one.values() if isinstance(one, dict) else one)]
        level, depth = [v for v in inner if isinstance(v, dict | list)], depth - 1
    return False


def _checksum(description: dict[str, Any]) -> str:
    # Of what a reader finds: tuples have become lists, and keys text.
    plain = json.dumps(json.loads(json.dumps(description)), sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(plain.encode()).hexdigest()}"


def _damaged(url: str, why: str) -> StoreError:
    return StoreError(f"{url} is damaged: {why}")
