"""Names by which `fitting` still reads any strategy, until its systems read their own."""

from typing import Any

ALIASES = {"stores_tiles": "is_stored"}
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
        own = vars(self)
        if "inner" in own:
            return getattr(own["inner"], name)
        name = ALIASES.get(name, name)
        for part in ("products", "tiling", "place"):
            held = vars(own[part]) if part in own else {}
            if name in held:
                return held[name]
        if name in ABSENT:
            return ABSENT[name]
        raise AttributeError(name)
