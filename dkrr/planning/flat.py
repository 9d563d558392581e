"""Names by which `fitting` still reads any strategy, until its systems read their own."""

from contextlib import suppress
from typing import Any

ALIASES = {"segment": "columns_per_task", "stores_tiles": "is_stored", "cold_part": "cold_fraction"}
ABSENT = {
    "columns_per_task": 0,
    "row_parts": 1,
    "rank": 0,
    "rank_limit": 0,
    "iterations": 0,
    "kept_tiles": 0,
    "n_tiles": 0,
    "precision": "float64",
    "keeps_rows": False,
    "is_stored": False,
    "cold_fraction": 0.0,
    "has_factor": False,
    "uses_threads": False,
    "keeps_matrix": False,
}
"""What a strategy reads as that has no such thing."""


class FlatNames:
    """Reads what the parts of a strategy hold as if it were its own."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        name = ALIASES.get(name, name)
        held = vars(vars(self).get("inner", self))
        for part in (vars(self).get("inner"), held.get("products"), held.get("tiling"), held.get("place")):
            with suppress(AttributeError):
                return object.__getattribute__(part, name)
        if name in ABSENT:
            return ABSENT[name]
        raise AttributeError(name)
