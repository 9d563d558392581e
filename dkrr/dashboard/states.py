"""What a fit tells of itself while it runs, in a bounded size and as values of MessagePack.

It goes through the scheduler, where any client may write anything under the same topic. So a state is checked when it
is read, and what is not one is ignored.
"""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

TOPIC = "dkrr"
"""Topic of the events of Dask's scheduler under which fits send their states."""
MAX_TEXT = 300
MAX_SIDE = 60
"""Rows and columns of a map of tiles that is sent; one of its cells stands for several tiles beyond."""
MAX_POINTS = 240
"""Points of a curve that is sent."""
MAX_CURVES = 2
MAX_LINES = 40
"""Stages."""
MAX_NOTES = 6

NONE, MISSING, RUNNING, DONE, FORMED = " 0r4f"
"""Cells: outside of the triangle; no tile is done; one is worked on; all are done; formed again for each product."""
PARTS = "0123"
"""Cells with fewer than all tiles done, by quarters."""
PLACES = "abcdefghij"
"""Cells whose tiles are kept in memory: by the thread that keeps them, whose colours repeat."""
CELLS = frozenset({NONE, MISSING, RUNNING, DONE, FORMED, *PARTS, *PLACES})

RUNNING_FIT, COMPLETE, FAILED = "running", "complete", "failed"


@dataclass(frozen=True)
class Tiles:
    """Map of the tiles of a matrix."""

    name: str
    n_done: int
    n_tiles: int
    step: int
    """Tiles along the side of a cell."""
    cells: list[str]
    """One text for each row of cells, from the top."""


@dataclass(frozen=True)
class Curve:
    """Convergence of an iterative method."""

    method: str
    tol: float
    """Value at which the method ends; 0 if not known."""
    points: list[list[float]]
    """Step, value, and 1 if the value was computed from the point itself, 0 if by a recurrence."""


@dataclass(frozen=True)
class FitState:
    """A fit at one time."""

    fit: str
    """Name that no other fit has."""
    client: str
    """Dask's name of its client: the scheduler knows whether it is still connected."""
    who: str
    title: str
    how: str
    status: str
    """RUNNING_FIT, COMPLETE or FAILED."""
    message: str
    """Error of a fit that has failed."""
    seconds: float
    """Since it began."""
    planned: float
    """Seconds that the plan expects of all stages."""
    stage: str
    """Stage that runs, or the last one."""
    share: float
    """Fraction of that stage's work that is done."""
    left: float
    """Seconds until its end at the rate so far; negative if not known."""
    stages: list[list[Any]]
    """Name, planned and measured seconds of every stage."""
    tiles: Tiles | None
    curves: list[Curve]
    notes: list[str]

    def plain(self) -> dict[str, Any]:
        """State as values of MessagePack."""
        return asdict(self)

    @classmethod
    def read(cls, found: Any) -> Self | None:
        """State that a message of the topic holds; None if it is not one."""
        try:
            return cls._read(found)
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
            return None

    @classmethod
    def _read(cls, found: Any) -> Self:
        values: dict[str, Any] = {}
        for one in fields(cls):
            value = found[one.name]
            if one.type is str:
                value = _text(value)
            elif one.type is float:
                value = _number(value)
            values[one.name] = value
        tiles = values["tiles"]
        values["tiles"] = None if tiles is None else _tiles(tiles)
        values["curves"] = [_curve(one) for one in _some(values["curves"], MAX_CURVES)]
        values["notes"] = [_text(one) for one in _some(values["notes"], MAX_NOTES)]
        values["stages"] = [[_text(a), _number(b), _number(c)] for a, b, c in _some(values["stages"], MAX_LINES)]
        if values["status"] not in (RUNNING_FIT, COMPLETE, FAILED):
            raise ValueError(values["status"])
        return cls(**values)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value[:MAX_TEXT]


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(value)
    return float(value)


def _some(value: Any, most: int) -> list[Any]:
    if not isinstance(value, list | tuple) or len(value) > most:
        raise ValueError(value)
    return list(value)


def _tiles(found: Any) -> Tiles:
    rows = [_text(row) for row in _some(found["cells"], MAX_SIDE)]
    if any(len(row) > MAX_SIDE or not CELLS.issuperset(row) for row in rows):
        raise ValueError(rows)
    n_done, n_tiles, step = (int(_number(found[name])) for name in ("n_done", "n_tiles", "step"))
    return Tiles(_text(found["name"]), n_done, n_tiles, step, rows)


def _curve(found: Any) -> Curve:
    points = [[_number(value) for value in _some(point, 3)] for point in _some(found["points"], MAX_POINTS)]
    if any(len(point) != 3 for point in points):
        raise ValueError(points)
    return Curve(_text(found["method"]), _number(found["tol"]), points)
