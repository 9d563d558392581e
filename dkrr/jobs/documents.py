"""TOML and YAML files as values with the lines that they are on.

Neither library says where a TOML value was: a file that `tomllib` accepts is therefore read again statement by
statement. A statement ends where the text since its first line is valid TOML by itself, so that strings, arrays and
inline tables over several lines are told apart by `tomllib`, not by rules of this module.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from dkrr.errors import InputError
from dkrr.plain_text import one_line, safe_message
from dkrr.values import location, shown

Keys = tuple[str | int, ...]
"""Way to a value from the root: names in tables, and numbers of entries in lists, from 0."""

MAX_BYTES = 16 * 2**20
"""A job file is written by people; a larger one is something else."""
MAX_VALUES = 200_000
"""Values of a YAML file whose aliases are followed: few lines may stand for any number of them."""


@dataclass(frozen=True)
class Problem:
    """What is wrong with a job file, and where."""

    line: int
    """From 1; 0: not at one place."""
    message: str


class JobError(InputError):
    """Errors of a job file, each with its line.

    Attributes
    ----------
    problems : tuple of Problem
        In the order of their lines.
    """

    def __init__(self, file: str, problems: list[Problem]) -> None:
        self.file, self.problems = file, tuple(sorted(problems, key=lambda problem: problem.line))
        lines = [f"{file}:{p.line}: {p.message}" if p.line else f"{file}: {p.message}" for p in self.problems]
        self._lines = lines if len(lines) == 1 else [f"{file} has {len(lines)} errors", *lines]
        super().__init__("\n".join(self._lines))

    def __str__(self) -> str:
        return "\n".join(one_line(safe_message(line)) for line in self._lines)

    def __reduce__(self) -> tuple[type, tuple[str, list[Problem]]]:
        # Exceptions travel between processes.
        return type(self), (self.file, list(self.problems))


@dataclass(frozen=True)
class Document:
    """Content of a file."""

    file: str
    """Path, as it was given."""
    content: dict[str, Any]
    """Tables as dicts, lists, and values."""
    lines: dict[Keys, int] = field(repr=False)
    """Line of every value, from 1; where lines of parts are not known, only that of the whole."""

    def line(self, keys: Keys) -> int:
        """Line of a value, or of what holds it."""
        for end in range(len(keys), 0, -1):
            if (found := self.lines.get(keys[:end])) is not None:
                return found
        return 0


def read_document(path: str | Path) -> Document:
    """Read a TOML or YAML file; its name's ending says which.

    Raises
    ------
    InputError
        If it cannot be read; with the line if it is not valid TOML or YAML, or has a key twice.
    """
    file = location(path, "JOB", "the path of a job file")
    reader = _READERS.get(Path(file).suffix.lower())
    if reader is None:
        raise InputError(f"JOB is {shown(file)}; expected a file whose name ends in {', '.join(_READERS)}")
    try:
        if Path(file).stat().st_size > MAX_BYTES:
            raise InputError(f"JOB is {shown(file)}, of more than {MAX_BYTES // 2**20} MiB; expected a job file")
        text = Path(file).read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise InputError(f"JOB is {shown(file)}, which is not text in UTF-8: {error}; expected a job file") from None
    except OSError as error:
        raise InputError(f"JOB is {shown(file)}, which cannot be read: {error.strerror}; expected a job file") from None
    try:
        content, lines = reader(file, text)
    except RecursionError:
        raise InputError(f"JOB is {shown(file)}, whose values are nested too deeply; expected a job file") from None
    return Document(file, content, lines)


def _read_toml(file: str, text: str) -> tuple[dict[str, Any], dict[Keys, int]]:
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", str(error))
        line = int(found[1]) if found and found[1] else text.count("\n") + 1
        reason = str(error)[: found.start()] if found else str(error)
        raise JobError(file, [Problem(line, _toml_advice(reason, text, line))]) from None
    lines: dict[Keys, int] = {}
    table: Keys = ()
    lengths: dict[Keys, int] = {}
    for line, statement, part in _statements(text):
        if statement.startswith("["):
            table = _table(part, lengths)
            lines.setdefault(table, line)
        else:
            for keys in _ways(part):
                lines.setdefault(table + keys, line)
    return content, lines


def _toml_advice(reason: str, text: str, line: int) -> str:
    """Message of an error of tomllib, with the line's own text."""
    if reason.startswith(("Cannot overwrite", "Cannot declare", "Cannot mutate", "Cannot redefine")):
        row = text.splitlines()[line - 1].strip() if line <= text.count("\n") + 1 else ""
        return f"{shown(row)} gives again what the file has given before; expected every key and table once ({reason})"
    return f"not TOML: {reason}"


def _statements(text: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Line, text and content of every statement of valid TOML: a table's head, or keys with their value."""
    rows = text.split("\n")
    begin = 0
    while begin < len(rows):
        end = begin
        while True:
            end += 1
            statement = "\n".join(rows[begin:end])
            try:
                found = tomllib.loads(statement)
                break
            except tomllib.TOMLDecodeError:
                if end == len(rows):
                    raise
        if found:
            yield begin + 1, statement.lstrip(), found
        begin = end


def _table(found: dict[str, Any], lengths: dict[Keys, int]) -> Keys:
    """Way to the table that a head names; `lengths` counts the tables of every array of tables."""
    keys: Keys = ()
    inner: Any = found
    while inner:
        (name,) = inner
        keys, inner = (*keys, name), inner[name]
        is_new = isinstance(inner, list)  # [[name]]
        if is_new:
            (inner,) = inner
            lengths[keys] = lengths.get(keys, 0) + 1
        if keys in lengths:
            keys = (*keys, lengths[keys] - 1)
    return keys


def _ways(value: Any, keys: Keys = ()) -> Iterator[Keys]:
    """Ways to a value and all its parts."""
    if keys:
        yield keys
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        yield from _ways(part, (*keys, name))


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML 1.2's values: 1e-3 is a number, and `on`, `no` or `12:30` are text."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    ("int", r"[-+]?[0-9]+", [*"-+0123456789"]),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", [*"-+.0123456789"]),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", [*"-+."]),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), _first)
# YAML 1.1 reads 010 as 8.
_Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(loader.construct_scalar(node)))


def _read_yaml(file: str, text: str) -> tuple[dict[str, Any], dict[Keys, int]]:
    lines: dict[Keys, int] = {}
    problems: list[Problem] = []
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        content = {} if root is None else _value(loader, root, (), lines, problems)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = " ".join(part for part in (error.context, error.problem) if part)
        raise JobError(file, [Problem(mark.line + 1 if mark else 0, f"not YAML: {message}")]) from None
    except (yaml.YAMLError, ValueError) as error:
        raise JobError(file, [Problem(0, f"not YAML: {' '.join(str(error).split())}")]) from None
    if problems:
        raise JobError(file, problems)
    if not isinstance(content, dict):
        raise JobError(file, [Problem(1, f"the file is {shown(content)}; expected keys with values")])
    return content, lines


def _value(loader: _Loader, node: Any, keys: Keys, lines: dict[Keys, int], problems: list[Problem]) -> Any:
    """Value of a node, with the lines of its parts."""
    line = node.start_mark.line + 1
    lines[keys] = line
    if len(lines) > MAX_VALUES:
        raise ValueError(f"the file stands for more than {MAX_VALUES:,} values")
    if isinstance(node, yaml.SequenceNode):
        return [_value(loader, part, (*keys, k), lines, problems) for k, part in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return loader.construct_object(node)
    seen: set[str] = set()
    for name, _ in node.value:
        if name.tag != "tag:yaml.org,2002:merge" and (text := str(name.value)) in seen:
            problems.append(Problem(name.start_mark.line + 1, f"the key {text} is given twice; expected it once"))
        seen.add(str(name.value))
    loader.flatten_mapping(node)
    found: dict[str, Any] = {}
    for name, part in node.value:
        text = str(name.value)
        found[text] = _value(loader, part, (*keys, text), lines, problems)
        lines[(*keys, text)] = name.start_mark.line + 1
    return found


_READERS = {".toml": _read_toml, ".yaml": _read_yaml, ".yml": _read_yaml}
