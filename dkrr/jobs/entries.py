"""From a job file to its models: names, and the arguments of each."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from dkrr.jobs.documents import Document, JobError, Keys, Problem
from dkrr.jobs.keys import Key, unknown
from dkrr.values import shown

MAX_MODELS = 100_000
"""Models of a job; a grid with more is an error."""
NAME = re.compile(r"[\w.+=,-]+")
"""Names are those of files, and are matched by patterns."""
_OWN = ("name", "grid")
"""Keys of a model that are not options."""


@dataclass(frozen=True)
class Entry:
    """One model of a job."""

    name: str
    values: Mapping[str, Any]
    """By key, as in the file; defaults of options are not among them."""
    arguments: Mapping[str, Any]
    """By name of the function's argument."""
    stated: frozenset[str]
    """Names of arguments that the file or the command line gives."""
    lines: Mapping[str, int]
    """Line of every key."""
    line: int
    """Line of the model."""


def entries_of(
    document: Document, command: str, keys: Sequence[Key], given: Mapping[str, Any], defaults: Mapping[str, Any]
) -> list[Entry]:
    """Models of a job file, in its order; those of a grid with its last key changing fastest.

    Parameters
    ----------
    document : Document
        The file.
    command : str
        Name of the command, and of the table of values that all models share.
    keys : sequence of Key
        What the command takes.
    given : mapping
        Arguments that the command line gives, which replace those of the file.
    defaults : mapping
        Arguments that nobody gives.

    Returns
    -------
    list of Entry

    Raises
    ------
    JobError
        Naming every line with an unknown key, a wrong value or a contradiction; two models with one name or place.
    """
    reading = _Reading(document, command, {key.name: key for key in keys}, given, defaults)
    found = list(itertools.islice(reading.entries(), MAX_MODELS + 1))
    if len(found) > MAX_MODELS:
        reading.problems.append(Problem(found[-1].line, f"the job has more than {MAX_MODELS:,} models"))
    if not reading.problems:
        reading.check_clashes(found)
    if reading.problems:
        raise JobError(document.file, reading.problems)
    return found


class _Reading:
    """Reads one file, and collects what is wrong with it."""

    def __init__(
        self,
        document: Document,
        command: str,
        keys: dict[str, Key],
        given: Mapping[str, Any],
        defaults: Mapping[str, Any],
    ) -> None:
        self.document, self.command, self.keys, self.given, self.defaults = document, command, keys, given, defaults
        self.problems: list[Problem] = []

    def entries(self) -> Iterator[Entry]:
        """Models; after an error those that can be read."""
        content, tables = self.document.content, (self.command, "model")
        for name in content:
            if name not in tables:
                advice = f": those of a model belong below [{self.command}] or [[model]]" if name in self.keys else ""
                self._add((name,), unknown(name, tables, "the file") + advice)
        shared = self._table((self.command,), content.get(self.command, {}), f"[{self.command}]", self.keys)
        models = content.get("model", [{}] if self.command in content else [])
        if not isinstance(models, list) or not models:
            self._add(("model",), f"the file has no models; expected [[model]], or [{self.command}] for one model")
            return
        own = [name for name, key in self.keys.items() if not key.is_of_job]
        for k, table in enumerate(models):
            yield from self._models(k, table, shared, [*_OWN, *own], is_only=len(models) == 1)

    def _add(self, keys: Keys, message: str) -> None:
        self.problems.append(Problem(self.document.line(keys), message))

    def _table(self, where: Keys, table: Any, title: str, known: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
        """Values of options in a table, without those that cannot be used."""
        if not isinstance(table, dict):
            self._add(where, f"{title} is {shown(table)}; expected a table of keys")
            return {}
        found = {}
        for name, value in table.items():
            if name not in known:
                shared = f"; all models share it: expected it in [{self.command}]" if name in self.keys else ""
                self._add((*where, name), f"{name} is in {title}{shared}" if shared else unknown(name, known, title))
            elif name not in _OWN:
                if problem := self.keys[name].problem(value):
                    self._add((*where, name), problem)
                else:
                    found[name] = value
        return found

    def _models(
        self, k: int, table: Any, shared: dict[str, Any], known: Sequence[str], *, is_only: bool
    ) -> Iterator[Entry]:
        """Models of one [[model]]."""
        where: Keys = ("model", k)
        own = self._table(where, table, "[[model]]", known)
        if not isinstance(table, dict):
            return
        name = self._name(table, where, is_only=is_only)
        grid = self._grid(table, (*where, "grid"), own)
        if name is None or grid is None:
            return
        lines = {key: self.document.line((self.command, key)) for key in shared}
        lines |= {key: self.document.line((*where, key)) for key in own}
        lines |= {key: self.document.line((*where, "grid", key)) for key in grid}
        line = self.document.line(where) or self.document.line((self.command,))
        for combination in itertools.product(*grid.values()):
            point = dict(zip(grid, combination, strict=True))
            full = _named(name, point)
            if NAME.fullmatch(full) is None:
                message = f"the name {shown(full)} cannot be that of a file; expected letters, digits and . _ + = , -"
                self._add((*where, "name"), message)
                return
            values = {key: _placed(value, full) for key, value in {**shared, **own, **point}.items()}
            yield self._entry(full, values, lines, line)

    def _entry(self, name: str, values: dict[str, Any], lines: dict[str, int], line: int) -> Entry:
        arguments = dict(self.defaults) | {
            self.keys[key].parameter: self.keys[key].argument(value) for key, value in values.items()
        }
        arguments |= {argument: _placed(value, name) for argument, value in self.given.items()}
        stated = frozenset(self.keys[key].parameter for key in values) | frozenset(self.given)
        for key in self.keys.values():
            if key.is_required and arguments.get(key.parameter) is None:
                self.problems.append(
                    Problem(line, f"the model {name} has no {key.name}; expected it in [[model]] or [{self.command}]")
                )
        return Entry(name, values, arguments, stated, lines, line)

    def _name(self, table: dict[str, Any], where: Keys, *, is_only: bool) -> str | None:
        """Name, with places for values of the grid; None after an error."""
        name = table.get("name")
        if name is None and is_only:
            return PurePosixPath(self.document.file).stem
        if not isinstance(name, str) or not name:
            what = "a model has no name" if name is None else f"name is {shown(name)}"
            self._add((*where, "name"), f"{what}; expected text, which every [[model]] of several has")
            return None
        grid = table.get("grid", {})
        for place in re.findall(r"\{(.*?)\}", name):
            if not isinstance(grid, dict) or place not in grid:
                self._add((*where, "name"), f"name has {{{place}}}, which is not a key of its grid; expected one of it")
                return None
        return name

    def _grid(self, table: dict[str, Any], where: Keys, own: dict[str, Any]) -> dict[str, list[Any]] | None:
        """Values of every key of a grid; None after an error."""
        grid = table.get("grid", {})
        if not isinstance(grid, dict):
            self._add(where, f"grid is {shown(grid)}; expected a table of keys with lists of values")
            return None
        before = len(self.problems)
        known = [name for name, key in self.keys.items() if not key.is_of_job]
        for name, values in grid.items():
            if name not in known:
                self._add((*where, name), unknown(name, known, "the grid"))
            elif name in own:
                self._add((*where, name), f"{name} is in [[model]] and in its grid; expected it in one of them")
            elif not isinstance(values, list) or not values:
                self._add((*where, name), f"{name} of the grid is {shown(values)}; expected a list of values")
            else:
                wrong = next(filter(None, map(self.keys[name].problem, values)), "")
                if wrong:
                    self._add((*where, name), wrong)
                elif any(value in values[:j] for j, value in enumerate(values)):
                    self._add((*where, name), f"{name} of the grid has a value twice: {shown(values)}")
        return grid if len(self.problems) == before else None

    def check_clashes(self, entries: Sequence[Entry]) -> None:
        """Refuse two models with one name, and two that would be written to one place."""
        names: dict[str, Entry] = {}
        for entry in entries:
            if (other := names.setdefault(entry.name, entry)) is not entry:
                where = f"on line {other.line}" if other.line != entry.line else "in its grid"
                message = f"two models have the name {entry.name}, the other {where}; expected different names"
                self.problems.append(Problem(entry.line, f'{message}: name = "...{{key}}" has values of the grid'))
        places = [key for key in self.keys.values() if key.is_place]
        for key in places:
            seen: dict[str, Entry] = {}
            for entry in entries:
                place = entry.arguments.get(key.parameter)
                if place is not None and (other := seen.setdefault(str(place).rstrip("/"), entry)) is not entry:
                    message = f"the models {other.name} and {entry.name} have one {key.name}, {shown(place)}"
                    remedy = f'give it as {key.name} = "folder/{{name}}.zarr"'
                    line = entry.lines.get(key.name, entry.line)
                    self.problems.append(Problem(line, f"{message}; expected one for each: {remedy}"))
                    break


def _named(name: str, point: Mapping[str, Any]) -> str:
    """Name of a model of a grid."""
    if "{" in name:
        return re.sub(r"\{(.*?)\}", lambda found: _text(point[found[1]]), name)
    return "-".join([name, *(f"{key}={_text(value)}" for key, value in point.items())])


def _text(value: Any) -> str:
    """Value in the name of a model: of a path what tells it from others, as a rule."""
    if isinstance(value, list):
        return ",".join(map(_text, value))
    text = str(value).lower() if isinstance(value, bool) else str(value)
    file, _, member = text.partition("::")
    last = member or (file if _is_number(file) else PurePosixPath(file).stem)
    return re.sub(r"[^\w.+=,-]", "_", last)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _placed(value: Any, name: str) -> Any:
    """Value with the model's name for {name}."""
    return value.replace("{name}", name) if isinstance(value, str) else value
