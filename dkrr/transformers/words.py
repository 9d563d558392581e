"""Descriptions of fitted transformers in words."""

from typing import Any

MAX_COLUMNS = 6


def in_words(description: Any) -> list[str]:
    """Lines about a transformer, from its description in a saved model: a line for each part of the columns.

    Of a damaged description they say less: only `dkrr.load` checks it.
    """
    try:
        return _lines(description) or ["of no columns"]
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
        return ["damaged: dkrr.load says how"]


def _lines(description: Any) -> list[str]:
    if _name(description) == "ColumnTransformer":
        parts = _list(_value(description["fitted"].get("transformers_")))
        named = [_list(_value(part)) for part in parts]
        known = {part[0]: (part[1], _list(_value(part[2]))) for part in named if len(part) == 3}
        return [f"{_line(part)} of {_columns(columns)}" for part, columns in known.values() if columns]
    return [_line(description)]


def _line(description: Any) -> str:
    """One line about a transformer: its steps, and how many categories it knows."""
    description = _value(description)
    if isinstance(description, str):
        return description
    kind, fitted = _name(description), description.get("fitted", {})
    inner = [_list(_value(step)) for step in _list(_value(description.get("parameters", {}).get("steps")))]
    if inner:
        return " → ".join(_line(step[1]) for step in inner if len(step) == 2)
    if kind == "OneHotEncoder" and "categories_" in fitted:
        n = sum(
            len(_value(part).get("array", ()))
            for part in _list(_value(fitted["categories_"]))
            if isinstance(part, dict)
        )
        return f"{kind} ({n} values)"
    settings = {k: v for k, v in description.get("parameters", {}).items() if k == "strategy"}
    return kind + "".join(f" ({value})" for value in settings.values())


def _name(description: Any) -> str:
    return str(description.get("class", "")).rpartition(".")[2] if isinstance(description, dict) else str(description)


def _value(found: Any) -> Any:
    """What a described value holds."""
    if isinstance(found, dict) and len(found) == 1:
        for kind in ("tuple", "transformer"):
            if kind in found:
                return found[kind]
    return found


def _list(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []


def _columns(columns: list[Any]) -> str:
    names = ", ".join(str(name) for name in columns[:MAX_COLUMNS])
    return names + (f", ... ({len(columns)} columns)" if len(columns) > MAX_COLUMNS else "")
