"""What a fit counts for its state: the tiles of a triangle, and the points of a curve, in a bounded size."""

from collections.abc import Mapping

from dkrr.dashboard.states import (
    DONE,
    FORMED,
    MAX_POINTS,
    MAX_SIDE,
    NONE,
    PARTS,
    PLACES,
    RUNNING,
    Tiles,
)

Tile = tuple[int, int]


class Points:
    """Points of a curve, which begins again where its steps do."""

    def __init__(self, tol: float) -> None:
        self.tol, self._points = tol, list[list[float]]()

    def add(self, step: int, value: float, tol: float, *, is_true: bool) -> None:
        """Add a point."""
        if self._points and step < self._points[-1][0]:
            self._points.clear()
        self.tol = tol
        self._points.append([float(step), value, float(is_true)])

    def thinned(self) -> list[list[float]]:
        """At most MAX_POINTS, the last among them."""
        step = -(-len(self._points) // MAX_POINTS) or 1
        return self._points[::-1][::step][::-1]


class TileStates:
    """Map of the tiles of a triangle, in cells of step × step tiles."""

    def __init__(self, name: str, n: int) -> None:
        self.name, self.n, self.step = name, n, -(-n // MAX_SIDE)
        self.n_tiles = n * (n + 1) // 2

    def tiles(self) -> Tiles:
        """The map as it is sent."""
        side = -(-self.n // self.step)
        cells = ["".join(self.cell(i, j) if j <= i else NONE for j in range(side)) for i in range(side)]
        return Tiles(self.name, self.n_done, self.n_tiles, self.step, cells)

    @property
    def n_done(self) -> int:
        """Tiles that are done, or kept."""
        raise NotImplementedError

    def cell(self, i: int, j: int) -> str:
        """Text of a cell."""
        raise NotImplementedError


class TilesOfWork(TileStates):
    """Tiles that are computed; those for which no task is left were done before."""

    def __init__(self, name: str, n_tasks: Mapping[Tile, int]) -> None:
        super().__init__(name, 1 + max(i for i, _ in n_tasks))
        self._left, self._sent = dict(n_tasks), dict[Tile, int]()
        self._missing, self._running = dict[Tile, int](), dict[Tile, int]()
        for i, j in n_tasks:
            cell = (i // self.step, j // self.step)
            self._missing[cell] = self._missing.get(cell, 0) + 1

    def note(self, tile: Tile, *, is_done: bool) -> None:
        """Count a task of a tile that was sent, or is done."""
        cell = (tile[0] // self.step, tile[1] // self.step)
        self._running[cell] = self._running.get(cell, 0) + (-1 if is_done else 1)
        if is_done and tile in self._left:
            self._left[tile] -= 1
            if not self._left[tile]:
                del self._left[tile]
                self._missing[cell] -= 1

    def stop(self) -> None:
        """Note that no task runs any more."""
        self._running.clear()

    @property
    def n_done(self) -> int:
        return self.n_tiles - len(self._left)

    def cell(self, i: int, j: int) -> str:
        if self._running.get((i, j), 0) > 0:
            return RUNNING
        missing = self._missing.get((i, j), 0)
        if not missing:
            return DONE
        # Tiles of the triangle in a cell, which the last row and column may cut.
        rows = range(i * self.step, min((i + 1) * self.step, self.n))
        whole = sum(max(0, min((j + 1) * self.step, row + 1) - j * self.step) for row in rows)
        return PARTS[min(3, 4 * (whole - missing) // whole)]


class TilesInMemory(TileStates):
    """Tiles that are kept in memory by the threads of the workers."""

    def __init__(self, places: Mapping[Tile, int | None]) -> None:
        super().__init__("K", 1 + max(i for i, _ in places))
        self._n_kept = sum(place is not None for place in places.values())
        self._cells = dict[Tile, int | None]()
        for (i, j), place in places.items():
            self._cells.setdefault((i // self.step, j // self.step), place)

    @property
    def n_done(self) -> int:
        return self._n_kept

    def cell(self, i: int, j: int) -> str:
        place = self._cells.get((i, j))
        return FORMED if place is None else PLACES[place % len(PLACES)]
