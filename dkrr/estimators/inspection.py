"""What a run or a saved model holds: whether it is whole (`verify`), and how far a run is (`status`)."""

from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkrr.checks import location, shown
from dkrr.data.stored import described_rows
from dkrr.errors import DamagedChunkError, StoreError, UnreachableStoreError
from dkrr.estimators.description import describe_model, model_arrays
from dkrr.fitting.batches import GROUP, N_BATCHES
from dkrr.fitting.checkpoint import Snapshots
from dkrr.fitting.storage import PLAN, WORK
from dkrr.store import ChunkedArray, RunStore
from dkrr.store.format import read_group
from dkrr.store.lock import who_owns
from dkrr.store.paths import resolved_place
from dkrr.text import card, format_bytes, one_line, table, texts

MAX_TILES = 2**23
"""Chunks of an array of which a map is made."""

SHADES = "░▒▓█"
"""Cells of a map in text: none of the chunks is written, fewer than half, more, all."""
MAX_LINES = 40
"""Lines of a map in text."""
MAX_CELLS = 84
"""Cells on a side of a map of tiles; one stands for several tiles where there are more."""


@dataclass(frozen=True)
class ArrayContents:
    """Chunks of one array of a store."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    present: int
    """Chunks that are there with their full size."""
    expected: int
    """Chunks of the whole array; of a triangle in tiles those on and below the diagonal."""
    n_bytes: int
    """Bytes of those that are there."""


@dataclass(frozen=True)
class TileMap:
    """Which tiles of an array of a run are written."""

    name: str
    present: int
    """Chunks that are there."""
    expected: int
    """Chunks of the complete array; of a triangle those on and below the diagonal."""
    shares: NDArray[np.float64]
    """Fraction of the chunks that are there, by row and column of cells; NaN where the array has none."""


@dataclass(frozen=True, repr=False)
class Verification:
    """Result of `verify`: whether every part of a store is what was written."""

    path: str
    kind: str
    """"run", "model", or "Gram matrix"."""
    arrays: tuple[ArrayContents, ...]
    damage: tuple[str, ...]
    """Damaged parts, each with its array, file and path."""
    missing: tuple[str, ...]
    """Parts that a complete array lacks; tiles that a run has yet to compute are not among them."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing is damaged or missing."""
        return not self.damage and not self.missing

    def to_dict(self) -> dict[str, Any]:
        """Values of JSON."""
        return {**asdict(self), "is_whole": self.is_whole}

    def __str__(self) -> str:
        read = sum(array.n_bytes for array in self.arrays)
        n_chunks = sum(array.present for array in self.arrays)
        if self.is_whole:
            return f"{self.path}: the {self.kind} is whole ({n_chunks} chunks, {format_bytes(read)} read and compared)"
        found = [*(f"damaged: {text}" for text in self.damage), *(f"missing: {text}" for text in self.missing)]
        remedy = (
            "run the fit again with the same store and data: what is damaged is computed again"
            if self.kind != "model"
            else "save the model again, or copy it again from where it is whole"
        )
        lines = [f"{self.path}: the {self.kind} is damaged; {remedy}", *(f"  {line}" for line in found)]
        return "\n".join(map(one_line, lines))

    def __repr__(self) -> str:
        state = "whole" if self.is_whole else f"{len(self.damage)} damaged, {len(self.missing)} missing"
        return f"<Verification of the {self.kind} {self.path}: {state}>"

    def _repr_html_(self) -> str:
        title, *found = str(self).splitlines()
        return card(title, texts(found) if found else "", _table(self.arrays))


@dataclass(frozen=True, repr=False)
class RunStatus:
    """Result of `status`: what the store of a run holds, how far the run is, and what is left."""

    path: str
    kind: str
    """"fit", "Gram matrix", "search" (of a selection), or "begun" where no problem has been written yet."""
    problem: dict[str, Any]
    """What the run computes: shape of X, kernel, alpha, checksums."""
    layout: dict[str, Any]
    """How it is cut into tiles."""
    arrays: tuple[ArrayContents, ...]
    checkpoint: dict[str, Any] | None
    """Last checkpoint of an iteration: its number of iterations, or of Newton steps, and the largest residual."""
    batches_left: int = 0
    """Batches of targets that are not solved yet."""
    owner: str = ""
    """Process that uses the store, or that was killed while it did; empty without."""

    def to_dict(self) -> dict[str, Any]:
        """Values of JSON."""
        return asdict(self)

    def __str__(self) -> str:
        if self.kind == "begun":
            return f"{self.path}: a run that has not begun to compute"
        shape = " × ".join(map(str, self.problem.get("shape", ()))) or "unknown shape"
        lines = [f"{self.path}: {self.kind}, X of {shape}, {_described(self.layout)}"]
        lines += [f"  {self.owner}"] if self.owner else []
        for array in self.arrays:
            share = f"{array.present} of {array.expected} chunks" if array.present < array.expected else "complete"
            lines.append(f"  {array.name:<28} {share:<24} {format_bytes(array.n_bytes)}")
        if self.checkpoint is not None:
            lines.append("  last checkpoint: " + ", ".join(f"{k} {v}" for k, v in self.checkpoint.items()))
        lines.append(f"  {format_bytes(sum(array.n_bytes for array in self.arrays))} in all; {self.left}")
        return "\n".join(map(one_line, lines))

    def __repr__(self) -> str:
        return f"<RunStatus of the {self.kind} {self.path}: {self.left}>"

    def _repr_html_(self) -> str:
        title, *_ = str(self).splitlines()
        last = "" if self.checkpoint is None else ", ".join(f"{k} {v}" for k, v in self.checkpoint.items())
        facts = {"left": self.left, "last checkpoint": last, "owner": self.owner}
        return card(title, table((k, v) for k, v in facts.items() if v), _table(self.arrays))

    @property
    def left(self) -> str:
        """What the same call would have to do, in words."""
        unfinished = [array for array in self.arrays if array.present < array.expected]
        if self.batches_left:
            return f"{self.batches_left} batches of targets are left to solve"
        if self.checkpoint is not None:
            return "the same call goes on from the checkpoint"
        if unfinished:
            chunks = sum(array.expected - array.present for array in unfinished)
            names = ", ".join(array.name for array in unfinished[:3])
            return f"{chunks} chunks are left to compute ({names}{', ...' if len(unfinished) > 3 else ''})"
        return "nothing is left to compute"


def verify(path: str | Path) -> Verification:
    """Read all of a saved model, or of the store of a run, and compare it with its checksums.

    Parameters
    ----------
    path : str or Path
        Path or URL.

    Returns
    -------
    Verification
        Its text says what is damaged or missing; ``is_whole`` is True if nothing is.

    Raises
    ------
    StoreError
        If the path holds neither a run nor a model, or its description is damaged.

    Examples
    --------
    >>> import numpy as np, dkrr, tempfile
    >>> model = dkrr.KernelRidge(kernel="rbf").fit(np.eye(3), [1.0, 2.0, 3.0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dkrr.save(model, f"{folder}/model.zarr")
    ...     found = dkrr.verify(f"{folder}/model.zarr")
    >>> found.is_whole, found.kind, len(found.arrays)
    (True, 'model', 3)
    """
    url = resolved_place(location(path, "path", "the path or URL of a run or a model", is_kept=True))
    if (_read(url) or {}).get("kind") == "model":
        return _verified_model(str(path), url)
    run = RunStore(url)
    description = run.description()
    if description is None:
        raise StoreError(f"{path} does not exist, or is empty; expected a run or a model that dkrr wrote")
    arrays, damage = _contents(run)
    missing = []
    for error in run.damage():
        damage.append(str(error))
    for name in _complete_arrays(run):
        try:
            run.open_array(name).check_complete()
        except DamagedChunkError as error:
            missing += [str(error)] if str(error) not in damage else []
    return Verification(str(path), _kind(description, of_run="run"), arrays, _once(damage), _once(missing))


def _verified_model(path: str, url: str) -> Verification:
    found = describe_model(url)
    arrays, damage, missing = [], list[str](), list[str]()
    for name, array in model_arrays(url, found):
        try:
            array.check_metadata()
        except DamagedChunkError as error:
            damage.append(str(error))
        arrays.append(_content(name, array))
        damage += [str(error) for error in array.damaged_chunks()]
        try:
            array.check_complete()
        except DamagedChunkError as error:
            missing.append(str(error))
    missing = [text for text in missing if text not in damage]
    return Verification(path, "model", tuple(arrays), _once(damage), _once(missing))


def status(path: str | Path) -> RunStatus:
    """What the store of a run holds, how far it is, and what is left; no number in it is read or compared.

    The store may belong to a run that is under way, and may be read-only.

    Parameters
    ----------
    path : str or Path
        Path or URL of the store of a run (`store=`).

    Raises
    ------
    StoreError
        If the path does not hold a run, or its description is damaged.
    """
    run = RunStore(resolved_place(location(path, "path", "the path or URL of a run", is_kept=True)))
    if (_read(run.url) or {}).get("kind") == "model":
        raise StoreError(
            f"{path} is a saved model; expected the store of a run (store=): dkrr info describes a model, and dkrr "
            f"verify checks it"
        )
    description = run.description()
    if description is None:
        raise StoreError(f"{path} does not exist, or is empty; expected the store of a run")
    fingerprint = description["fingerprint"]
    if fingerprint is None:
        return RunStatus(str(path), "begun", {}, {}, (), None)
    arrays, _ = _contents(run)
    kind = _kind(description, of_run="fit")
    layout, left = description.get("layout") or {}, run.note(N_BATCHES) or 0
    if not isinstance(fingerprint.get("shape", []), list):
        raise StoreError(f"the run in {run.url} is damaged: its X has the shape {shown(fingerprint['shape'])}")
    if type(left) is not int:
        raise StoreError(f"the run in {run.url} is damaged: it has {left!r} batches of targets")
    if left:
        left -= sum(a.name.startswith(f"{GROUP}/") and a.present == a.expected for a in arrays) // 2
    return RunStatus(str(path), kind, fingerprint, layout, arrays, _checkpoint(run), left, who_owns(run.url))


def tile_maps(path: str | Path) -> list[TileMap]:
    """Maps of the arrays of a run that have tiles in rows and columns.

    Raises
    ------
    StoreError
        As `status`.
    """
    run, maps = RunStore(resolved_place(location(path, "path", "the path or URL of a run", is_kept=True))), []
    for name, array in run.arrays():
        is_triangle = isinstance(array, ChunkedArray) and len(array.shape) == 2 and _is_triangle(name)
        # An array may only claim more tiles than that.
        if isinstance(array, ChunkedArray) and is_triangle and prod(array.grid) <= MAX_TILES:
            maps.append(_tile_map(name, array))
    return maps


def map_in_text(found: TileMap, width: int) -> str:
    """Map of the tiles of an array as text: full blocks where tiles are written, paler ones where chunks are missing.

    Parameters
    ----------
    found : TileMap
    width : int
        Characters of a line. One character pair stands for several tiles where there are many.
    """
    n_rows, n_columns = found.shares.shape
    most = max(1, min(width // 2 - 1, MAX_LINES))
    step = -(-max(n_rows, n_columns) // most)
    lines = []
    for row in range(0, n_rows, step):
        cells = [found.shares[row : row + step, column : column + step] for column in range(0, n_columns, step)]
        shares = [cell[np.isfinite(cell)] for cell in cells]
        shades = [SHADES[int(s.any()) + int(s.mean() >= 0.5) + int((s == 1).all())] for s in shares if s.size]
        lines.append("  " + "".join(2 * shade for shade in shades))
    return "\n".join([f"  {found.name}: {found.present:,} of {found.expected:,} chunks", *lines])


def _tile_map(name: str, array: ChunkedArray) -> TileMap:
    rows, columns = array.grid
    per_tile = max(1, array.chunks[0] // array.chunks[1])
    n_rows, n_columns = min(rows, MAX_CELLS), min(-(-columns // per_tile), MAX_CELLS)
    expected, present = np.zeros((n_rows, n_columns)), np.zeros((n_rows, n_columns))
    cells = np.arange(columns) * n_columns // columns
    for i in range(rows):
        n_chunks = min((i + 1) * per_tile, columns) if array.shape[0] == array.shape[1] else columns
        expected[i * n_rows // rows] += np.bincount(cells[:n_chunks], minlength=n_columns)
    for i, j in array.present():
        present[i * n_rows // rows, cells[j]] += 1
    with np.errstate(invalid="ignore"):
        return TileMap(name, int(present.sum()), int(expected.sum()), present / expected)


def notes_of_run(path: str | Path) -> dict[str, Any]:
    """Text of the plan of a run, its result (once it has ended), and the history of its checkpoint.

    Raises
    ------
    StoreError
        As `status`.
    """
    run = RunStore(resolved_place(location(path, "path", "the path or URL of a run", is_kept=True)))
    plain = Snapshots(run).plain() or {}
    return {"plan": run.note(PLAN), "work": run.note(WORK), "history": plain.get("history") or []}


def _read(url: str) -> dict[str, Any] | None:
    try:
        return read_group(url)
    except UnreachableStoreError:
        raise
    except StoreError:
        return None  # RunStore says what is wrong


def _kind(description: dict[str, Any], *, of_run: str) -> str:
    what = (description["fingerprint"] or {}).get("what")
    return {None: of_run, "gram": "Gram matrix"}.get(what, "search")


def _contents(run: RunStore) -> tuple[tuple[ArrayContents, ...], list[str]]:
    """Arrays of a run, and what is wrong with the metadata of others."""
    arrays, damage = [], []
    for name, found in run.arrays():
        if isinstance(found, ChunkedArray):
            arrays.append(_content(name, found))
        else:
            damage.append(str(found))
    return tuple(arrays), damage


def _content(name: str, array: ChunkedArray) -> ArrayContents:
    present, grid = array.present(), array.grid
    n_expected = prod(grid)
    if _is_working(name):
        n_expected = len(present)
    elif len(array.shape) == 2 and array.shape[0] == array.shape[1] and _is_triangle(name):
        per_tile = array.chunks[0] // array.chunks[1]
        n_short = min(grid[0], grid[1] // per_tile)  # rows of tiles that end at the diagonal, and have fewer than all
        n_expected = per_tile * n_short * (n_short + 1) // 2 + (grid[0] - n_short) * grid[1]
    return ArrayContents(name, array.shape, array.dtype, len(present), n_expected, len(present) * array.chunk_bytes)


def _is_triangle(name: str) -> bool:
    """Whether an array of a run holds the tiles of a triangle: factors, Gram matrices, ΦᵀWΦ."""
    last = name.rsplit("/", maxsplit=1)[-1]
    return last in ("factor", "gram") or last.startswith("part-")


def _is_working(name: str) -> bool:
    """Whether an array of a run holds sums that tasks pass on to each other, of which not all need ever be there."""
    last = name.rsplit("/", maxsplit=1)[-1]
    return last == "partial" or last.startswith("sum-") or last.endswith("-sums")


def _complete_arrays(run: RunStore) -> list[str]:
    """Names of the arrays that the description of a run says are complete: its copy of X, and its last checkpoint."""
    copy = run.staged_rows()
    arrays = () if copy is None else described_rows(run.place(copy[0]), copy[1]).arrays
    return [*(array.url.removeprefix(f"{run.url}/") for array in arrays), *Snapshots(run).complete()]


def _checkpoint(run: RunStore) -> dict[str, Any] | None:
    plain = Snapshots(run).plain()
    if plain is None:
        return None
    try:
        if "iteration" in plain:
            history = plain.get("history") or []
            return {"iteration": plain["iteration"], **({"residual": history[-1][2]} if history else {})}
        state = plain.get("state") or {}
        return {
            "models done": len(plain.get("done", ())),
            **({"Newton step": state["step"]} if "step" in state else {}),
        }
    except (LookupError, TypeError) as error:
        raise StoreError(f"the run in {run.url} is damaged: its checkpoint is described by {plain!r}") from error


def _table(arrays: tuple[ArrayContents, ...]) -> str:
    """HTML of the arrays of a store."""
    rows = []
    for array in arrays:
        shape, chunks = " × ".join(map(str, array.shape)), f"{array.present:,} of {array.expected:,}"
        rows.append((array.name, shape, chunks, format_bytes(array.n_bytes)))
    return table(rows, ("array", "shape", "chunks", "size"))


def _described(layout: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in layout.items() if value not in (None, "", 1)) or "no layout"


def _once(texts: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))
