"""Keys of job files: the options of a command, the values that each takes, and the JSON Schema of both."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

from dkrr.values import is_real, shown

Kind = Literal["text", "number", "whole", "flag", "list"]
"""What a value is; a list is one of texts and numbers that the command line has with commas between."""

_TYPES: dict[Kind, dict[str, Any]] = {
    "text": {"type": ["string", "integer"]},
    "number": {"type": "number"},
    "whole": {"type": "integer"},
    "flag": {"type": "boolean"},
    "list": {"type": ["string", "number", "array"], "items": {"type": ["string", "number"]}},
}
_EXPECTED: dict[Kind, str] = {
    "text": "text",
    "number": "a number",
    "whole": "a whole number",
    "flag": "true or false",
    "list": "a value, or a list of values",
}


@dataclass(frozen=True)
class Key:
    """A key, as one option of the command."""

    name: str
    """Option without its dashes."""
    parameter: str
    """Name of the function's argument."""
    kind: Kind
    help: str = ""
    choices: tuple[str, ...] = ()
    """All values; empty: any."""
    is_repeatable: bool = False
    """Whether the option may be given several times, so that a list is a value."""
    is_required: bool = False
    is_of_job: bool = False
    """Whether all models of a job share the value."""
    is_place: bool = False
    """Whether it is where a model writes: a place for each."""
    changes_the_model: bool = True
    """False for what decides where and how the work is done, and where the model goes."""

    def problem(self, value: Any) -> str:
        """Message about a value that cannot be used; empty if it can."""
        values = value if self.is_repeatable and isinstance(value, list) and value else [value]
        for one in values:
            if not self._takes(one):
                return f"{self.name} is {shown(one)}; expected {self.expected}{_suggestion(one, self.choices)}"
        return ""

    @property
    def expected(self) -> str:
        """Words for the values that can be used."""
        if self.choices:
            return " or ".join(f'"{choice}"' for choice in self.choices)
        return _EXPECTED[self.kind] + (", or a list of such" if self.is_repeatable else "")

    def argument(self, value: Any) -> Any:
        """Value as the command's function takes it."""
        if self.is_repeatable:
            return tuple(value) if isinstance(value, list) else (value,)
        if self.kind == "list":
            return ",".join(map(str, value)) if isinstance(value, list) else str(value)
        return str(value) if self.kind == "text" else value

    def schema(self) -> dict[str, Any]:
        """JSON Schema of a value."""
        one = {"enum": list(self.choices)} if self.choices else _TYPES[self.kind]
        described = {"description": self.help} if self.help else {}
        if self.is_repeatable:
            return {**described, "anyOf": [one, {"type": "array", "items": one, "minItems": 1}]}
        return {**described, **one}

    def _takes(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        match self.kind:
            case "text":
                return isinstance(value, str) or is_whole
            case "number":
                return is_real(value)
            case "whole":
                return is_whole
            case "flag":
                return isinstance(value, bool)
            case "list":
                parts = value if isinstance(value, list) else [value]
                return bool(parts) and all(isinstance(part, str) or is_real(part) for part in parts)


def unknown(name: str, known: Iterable[str], where: str) -> str:
    """Message about a key that does not exist, with the nearest ones."""
    known = list(known)
    return f"unknown key {name} in {where}{_suggestion(name.replace('_', '-').lstrip('-'), known, known)}"


def _suggestion(value: Any, known: Sequence[str], otherwise: Sequence[str] = ()) -> str:
    near = get_close_matches(str(value).lower(), known, n=2, cutoff=0.6) if known else []
    if near:
        return f": did you mean {' or '.join(near)}?"
    return f"; expected one of {', '.join(otherwise)}" if otherwise else ""


def json_schema(command: str, keys: Sequence[Key]) -> dict[str, Any]:
    """JSON Schema of the job files of a command, for editors.

    Parameters
    ----------
    command : str
        Name of the command, and of the table of values that all models share.
    keys : sequence of Key
        Its keys.
    """
    shared = {key.name: key.schema() for key in keys}
    own = {key.name: key.schema() for key in keys if not key.is_of_job}
    grid = {name: {"type": "array", "items": schema, "minItems": 1} for name, schema in own.items()}
    name = {"type": "string", "description": "Name of the model; {key} stands for the value of a key of the grid."}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Job of dkrr {command}",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            command: {
                "type": "object",
                "description": "Values that all models share.",
                "additionalProperties": False,
                "properties": shared,
            },
            "model": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "name": name,
                        **own,
                        "grid": {
                            "type": "object",
                            "description": "A model for each combination of values.",
                            "additionalProperties": False,
                            "properties": grid,
                        },
                    },
                },
            },
        },
    }
