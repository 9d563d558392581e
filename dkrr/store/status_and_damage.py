"""Inspection of runs and saved models: damage (`verify`), and how far a run is (`status`)."""

import re
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dkrr.checks import location, shown
from dkrr.errors import DamagedChunkError, StoreError
from dkrr.store.chunks import ChunkedArray
from dkrr.store.description import (
    COPY,
    COUNT,
    FACTOR_NOTE,
    FEATURES,
    SAVE_AGAIN,
    SIZE,
    arrays_of_rows,
    describe_model,
    is_model,
    list_of,
    matches,
    model_arrays,
)
from dkrr.store.format import METADATA_NAME
from dkrr.store.how_far import HowFar
from dkrr.store.lock import who_owns
from dkrr.store.paths import NAMES, resolved_place
from dkrr.store.places import place_at
from dkrr.store.run_store import APPLICATION, CHECKPOINT, FACTOR, GROWTH, PIVOTS, PLAN, WORK, RunStore
from dkrr.text import Explained, format_bytes, one_line, plural

MAX_TILES = 2**23
"""Chunks of an array of which a map is made."""

SHADES = "░▒▓█"
"""Cells of a map in text: none of the chunks is written, fewer than half, more, all."""
MAX_LINES, MAX_CELLS = 40, 84
"""Cells on a side of a map of tiles, in text and in a picture."""

EARLIER = "earlier/"
"""Beginning of the shown names of arrays of a run before it has grown, which the run does not have any more."""


class Part(NamedTuple):
    """Array of the store, or one of those of a matrix that has grown."""

    array: ChunkedArray
    rows: range
    """Rows of its chunks that count."""
    tile_row: int = 0
    """Row of tiles of the matrix at which its chunks begin."""

    @property
    def tile_rows(self) -> range:
        """Rows of tiles of the matrix that it has rows of."""
        return range(self.tile_row + self.rows.start, self.tile_row + self.rows.stop)

    @property
    def per_tile(self) -> int:
        """Chunks of a tile, of an array of tiles."""
        return -(-self.array.chunks[0] // self.array.chunks[1])

    @property
    def is_square(self) -> bool:
        """Whether the array has the shape of the matrix."""
        return self.array.shape[0] == self.array.shape[1]

    def present(self) -> list[tuple[int, ...]]:
        """Positions in the matrix of the existing chunks."""
        return [(self.tile_row + c[0], *c[1:]) for c in self.array.present() if c[0] in self.rows]


@dataclass(frozen=True)
class ArrayContents:
    """Chunks of one array of a store.

    Attributes
    ----------
    name : str
        Name of the array.
    shape : tuple of int
        Shape of the array.
    dtype : str
        Type of its entries.
    present : int
        Existing chunks of full size.
    expected : int
        Chunks of the whole array; of a triangle in tiles those on and below the diagonal.
    n_bytes : int
        Bytes of the existing chunks.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    present: int
    expected: int
    n_bytes: int


@dataclass(frozen=True)
class TileMap:
    """Which tiles of an array of a run are written."""

    name: str
    present: int
    """Existing chunks."""
    expected: int
    """Chunks of the complete array; of a triangle those on and below the diagonal."""
    shares: NDArray[np.float64]
    """Fraction of existing chunks, by row and column of cells; NaN where the array has none."""


@dataclass(frozen=True, repr=False)
class Verification(Explained):
    """Result of `verify`: whether every part of a store is what was written.

    Attributes
    ----------
    path : str
        Path or URL, as it was given.
    kind : {"run", "model", "Gram matrix"}
        What the path holds.
    arrays : tuple of ArrayContents
        Arrays, with the number of their chunks.
    damage : tuple of str
        Damaged parts, each with its array, file and path.
    missing : tuple of str
        Parts that a complete array lacks; tiles that a run has yet to compute are not among them.

    See Also
    --------
    dkrr.verify : Whether a store or a saved model is whole.

    Examples
    --------
    >>> import numpy as np, dkrr, tempfile
    >>> model = dkrr.KernelRidge(kernel="rbf").fit(np.eye(3), [1.0, 2.0, 3.0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dkrr.save(model, f"{folder}/model.zarr")
    ...     found = dkrr.verify(f"{folder}/model.zarr")
    >>> found.is_whole, found.damage
    (True, ())
    """

    path: str
    kind: str
    arrays: tuple[ArrayContents, ...]
    damage: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """Whether nothing is damaged or missing."""
        return not self.damage and not self.missing

    def to_dict(self) -> dict[str, Any]:
        """Values of JSON."""
        return {**asdict(self), "is_whole": self.is_whole}

    def __str__(self) -> str:
        if self.is_whole:
            n_chunks, n_bytes = (sum(getattr(one, name) for one in self.arrays) for name in ("present", "n_bytes"))
            read = f"{plural(n_chunks, 'chunk')}, {format_bytes(n_bytes)} read and compared"
            return one_line(f"{self.path}: the {self.kind} is whole ({read})")
        remedy = (
            "run the fit again with the same store and data: what is damaged is computed again"
            if self.kind != "model"
            else f"{SAVE_AGAIN[0].lower()}{SAVE_AGAIN[1:]}"
        )
        parts = {"damaged": self.damage, "missing": self.missing}
        found = (f"    - {what}: {text}" for what, several in parts.items() for text in several)
        return "\n".join(map(one_line, (f"{self.path}: the {self.kind} is damaged; {remedy}", "  parts", *found)))

    def _summary(self) -> str:
        state = "whole" if self.is_whole else f"{len(self.damage)} damaged, {len(self.missing)} missing"
        return f"{self.kind}, {state}"


@dataclass(frozen=True, repr=False)
class RunStatus(Explained):
    """Result of `status`: what the store of a run holds, how far the run is, and what is left.

    Attributes
    ----------
    path : str
        Path or URL, as it was given.
    kind : {"fit", "Gram matrix", "search", "begun"}
        What is computed; "search" of a selection, "begun" where no problem has been written yet.
    problem : dict
        What the run computes: shape of X, kernel, alpha, checksums.
    layout : dict
        How it is cut into tiles.
    arrays : tuple of ArrayContents
        Arrays, with the number of chunks that are written.
    checkpoint : dict or None
        Last checkpoint of an iteration: its number of iterations, or of Newton steps, and the largest residual.
    left : str
        What the same call would have to do, in words.
    is_finished : bool
        Whether the same call would only read its result.
    stage : str
        Stage that has begun last; empty where none has, or the run has ended with a result.
    asked : dict or None
        Tolerance and limit of iterations of the last call, where there are such.
    result : dict or None
        Status, residual and iterations, once the run has ended.
    seconds_left : float or None
        Time of what is left by the plan, in seconds; None where that is not known.
    batches_left : int
        Batches of targets that are not solved yet.
    owner : str
        Process that uses the store, or that was killed while it did; empty without.
    runs : tuple of RunStatus
        Runs of a search: one for each kernel, that of the optimum, and the fit of all rows.

    See Also
    --------
    dkrr.status : How far the run in a store is.

    Examples
    --------
    >>> import numpy as np, dkrr, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = f"{folder}/run.zarr"
    ...     model = dkrr.KernelRidge(kernel="rbf", store=store).fit(np.eye(3), [1.0, 2.0, 3.0])
    ...     found = dkrr.status(store)
    >>> [one.name for one in found.arrays if one.present < one.expected]
    []
    """

    path: str
    kind: str
    problem: dict[str, Any]
    layout: dict[str, Any]
    arrays: tuple[ArrayContents, ...]
    checkpoint: dict[str, Any] | None
    left: str
    is_finished: bool = False
    stage: str = ""
    asked: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    seconds_left: float | None = None
    batches_left: int = 0
    owner: str = ""
    runs: tuple["RunStatus", ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Values of JSON."""
        return asdict(self)

    def __str__(self) -> str:
        if self.kind == "begun":
            of = f", {self.owner}" if self.owner else ""
            return one_line(f"{self.path}: a run that has not begun to compute ({self.left}){of}")
        if self.runs:
            lines = [f"{self.path}: search", *([f"  owner       {self.owner}"] if self.owner else [])]
            lines += [f"  left        {self.left}", "  runs"]
            lines += [f"    - {one.path.rpartition('/')[2]:<18} {one.left}" for one in self.runs]
            return "\n".join(map(one_line, lines))
        shape = " × ".join(map(str, self.problem.get("shape", ()))) or "unknown shape"
        cut = ", ".join(f"{name} {value}" for name, value in self.layout.items() if value not in (None, "", 1))
        lines = [f"{self.path}: {self.kind}, X of {shape}, {cut or 'no layout'}"]
        lines += [f"  owner       {self.owner}"] if self.owner else []
        if self.checkpoint is not None:
            lines.append("  checkpoint  " + ", ".join(f"{k} {v}" for k, v in self.checkpoint.items()))
        lines += [
            f"  in all      {format_bytes(sum(one.n_bytes for one in self.arrays))}",
            f"  left        {self.left}",
        ]
        lines += ["  arrays"] if self.arrays else []
        for one in self.arrays:
            share = f"{one.present} of {plural(one.expected, 'chunk')}" if one.present < one.expected else "complete"
            lines.append(f"    - {one.name:<28} {share:<24} {format_bytes(one.n_bytes)}")
        return "\n".join(map(one_line, lines))

    def _summary(self) -> str:
        return f"{self.kind}, {self.left}"


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

    See Also
    --------
    dkrr.status : How far the run in a store is.
    dkrr.save : Save a fitted model.

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
    if is_model(url):
        kind, (arrays, damage) = "model", _arrays_of_model(url)
        complete, opened = list(arrays), {name: parts[0].array for name, parts in arrays.items()}.__getitem__
    else:
        run = RunStore(url)
        kind, (arrays, damage) = _kind(_begun(run, path, " or a model that dkrr wrote"), of_run="run"), _arrays_of(run)
        complete, opened = _complete_arrays(run), run.open_array
    damage += [str(error) for parts in arrays.values() for one in parts for error in one.array.damaged_chunks()]
    missing = []
    for name in complete:
        try:
            opened(name).check_complete()
        except DamagedChunkError as error:
            missing += [str(error)] if str(error) not in damage else []
    contents = tuple(_content(name, parts) for name, parts in arrays.items())
    return Verification(str(path), kind, contents, tuple(dict.fromkeys(damage)), tuple(dict.fromkeys(missing)))


def status(path: str | Path) -> RunStatus:
    """Contents of the store of a run, its progress, and the work that is left; reads no number of its arrays.

    The store may belong to a run that is under way, and may be read-only. Of the folder of a search it has all runs.

    Parameters
    ----------
    path : str or Path
        Path or URL of the store of a run (`store=`).

    Returns
    -------
    RunStatus
        Its text says what is done and what is left.

    Raises
    ------
    StoreError
        If the path does not hold a run, or its description is damaged.

    See Also
    --------
    dkrr.verify : Whether a store or a saved model is whole.
    dkrr.report : An HTML page of a fit, a run or a model.

    Examples
    --------
    >>> import numpy as np, dkrr, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = f"{folder}/run.zarr"
    ...     model = dkrr.KernelRidge(kernel="rbf", store=store).fit(np.eye(3), [1.0, 2.0, 3.0])
    ...     found = dkrr.status(store)
    >>> found.kind, found.is_finished
    ('fit', True)
    """
    run = _run_at(path)
    if is_model(run.url):
        raise StoreError(
            f"{path} is a saved model; expected the store of a run (store=): dkrr info describes a model, and dkrr "
            f"verify checks it"
        )
    if parts := _runs_of_search(run):
        return _status_of_search(str(path), run.url, parts)
    return _status_of_run(str(path), run, _begun(run, path))


def _status_of_run(path: str, run: RunStore, description: dict[str, Any]) -> RunStatus:
    saved, fingerprint, copy = run.checkpoint(), description["fingerprint"], description["rows"]
    seen = None if saved is None or _is_of_finished_batch(saved, description["notes"]) else saved["shown"]
    far = HowFar(fingerprint or {}, description["notes"], seen)
    far.check(run.url)
    contents = tuple(_content(name, parts) for name, parts in _arrays_of(run)[0].items())
    own = tuple(one for one in contents if not _is_of_growth(one.name))
    kind = "begun" if fingerprint is None else _kind(description, of_run="fit")
    is_finished, left = far.is_finished(kind, own), far.words(kind, own, None if copy is None else copy["name"])
    if (growing := description["growing"]) is not None:
        shape = (growing["fingerprint"] or {}).get("shape")
        n_rows = plural(shape[0], "row") if shape and matches(shape, [SIZE, SIZE]) else "more rows"
        begun = [one for one in contents if one.name.startswith(f"{GROWTH}{growing['number']}/")]
        chunks = sum(one.expected - one.present for one in begun if one.name.endswith("/factor"))
        left += (
            f"; a growth to {n_rows} has begun ({plural(chunks, 'chunk')} left to compute), which their call resumes"
        )
    return RunStatus(
        path=path,
        kind=kind,
        problem=fingerprint or {},
        layout=description["layout"],
        arrays=contents,
        checkpoint=seen,
        left=left,
        is_finished=is_finished,
        stage="" if is_finished else far.stage,
        asked=far.asked,
        result=far.result,
        seconds_left=None if is_finished else far.seconds_left(),
        batches_left=far.batches_left(own),
        owner=who_owns(run.url),
    )


def _is_of_finished_batch(saved: dict[str, Any], notes: dict[str, Any]) -> bool:
    """Whether a checkpoint is of a batch of targets that is solved: the next one begins its own iteration."""
    return bool(saved["plain"].get("part")) and bool(notes.get(f"batch-{saved['plain']['part']}"))


FINAL_ARRAYS = re.compile("(model|held-out)-[0-9]+")
"""Notes of what is found and does not change any more: names of arrays."""
SEARCH_PART = re.compile(r"kernel-[0-9]+(-[a-z]+-[0-9]+)*|optimum|fit")
"""Names of the runs in the folder of a search."""


def _runs_of_search(run: RunStore) -> list[tuple[str, dict[str, Any]]]:
    """Names and descriptions of the runs in the folder of a search, in their order; none of anything else."""
    names = place_at(run.url).names()
    if METADATA_NAME in names:
        return []
    order = {"optimum": (1,), "fit": (2,)}
    found = sorted(filter(SEARCH_PART.fullmatch, names), key=lambda name: (*order.get(name, (0,)), _natural(name)))
    each = [(name, RunStore(run.at(name)).description()) for name in found]
    return [(name, description) for name, description in each if description is not None]


def _natural(name: str) -> list[int]:
    return [int(number) for number in re.findall("[0-9]+", name)]


def _status_of_search(path: str, url: str, parts: list[tuple[str, dict[str, Any]]]) -> RunStatus:
    runs = tuple(_status_of_run(f"{path}/{name}", RunStore(f"{url}/{name}"), found) for name, found in parts)
    unfinished = [one for one in runs if not one.is_finished]
    is_finished = not unfinished and parts[-1][0] == "fit"
    left = "nothing is left to compute; the same call reads its result"
    if unfinished:
        left = f"{unfinished[0].path.rpartition('/')[2]}: {unfinished[0].left}"
    elif not is_finished:
        left = f"the fit of all rows has not begun; what has is finished ({plural(len(runs), 'run')})"
    return RunStatus(path, "search", {}, {}, (), None, left, is_finished=is_finished, owner=who_owns(url), runs=runs)


def tile_maps(path: str | Path, cells: int = MAX_CELLS) -> list[TileMap]:
    """Maps of the arrays of a run that have tiles in rows and columns.

    Parameters
    ----------
    path : str or Path
    cells : int
        Most cells on a side; one stands for several tiles where there are more.

    Raises
    ------
    StoreError
        As `status`.
    """
    arrays, _ = _arrays_of(_run_at(path))
    triangles = {name: parts for name, parts in arrays.items() if _is_triangle(name, parts)}
    # An array may only claim more tiles than that.
    few = {name: parts for name, parts in triangles.items() if sum(prod(one.array.grid) for one in parts) <= MAX_TILES}
    return [_tile_map(name, parts, max(1, cells)) for name, parts in few.items()]


def _tile_map(name: str, parts: list[Part], cells: int) -> TileMap:
    rows, columns = max(one.tile_rows.stop for one in parts), max(one.array.grid[1] for one in parts)
    per_tile, is_square = max(one.per_tile for one in parts), parts[0].is_square
    n_rows, n_columns = min(rows, cells), min(-(-columns // per_tile), cells)
    expected, present = np.zeros((n_rows, n_columns)), np.zeros((n_rows, n_columns))
    cell_of = np.arange(columns) * n_columns // columns
    for one in parts:
        for i in one.tile_rows:
            n_chunks = min((i + 1) * per_tile, one.array.grid[1]) if is_square else columns
            expected[i * n_rows // rows] += np.bincount(cell_of[:n_chunks], minlength=n_columns)
        for i, j in one.present():
            present[i * n_rows // rows, cell_of[j]] += 1
    with np.errstate(invalid="ignore"):
        return TileMap(name, int(present.sum()), int(expected.sum()), present / expected)


def map_in_text(found: TileMap) -> str:
    """Map of the tiles of an array as text: full blocks where all is written, paler ones where chunks are missing."""
    lines = [f"  {found.name}: {found.present:,} of {plural(found.expected, 'chunk')}"]
    for row in found.shares:
        shades = [SHADES[int(share > 0) + int(share >= 0.5) + int(share == 1)] for share in row[np.isfinite(row)]]
        lines.append("  " + "".join(2 * shade for shade in shades))
    return "\n".join(lines)


def notes_of_run(path: str | Path) -> dict[str, Any]:
    """Text of the plan of a run, its result (once it has ended), and the history of its checkpoint.

    Raises
    ------
    StoreError
        As `status`.
    """
    run = _run_at(path)
    saved = run.checkpoint() or {"plain": {}}
    return {"plan": run.note(PLAN), "work": run.note(WORK), "history": saved["plain"].get("history")}


def _run_at(path: str | Path) -> RunStore:
    return RunStore(resolved_place(location(path, "path", "the path or URL of a run", is_kept=True)))


def _begun(run: RunStore, path: str | Path, more: str = " (store=)") -> dict[str, Any]:
    """Description of a run that exists."""
    found = run.description()
    if found is None:
        raise StoreError(f"{path} does not exist, or is empty; expected the store of a run{more}")
    return found


def _kind(description: dict[str, Any], *, of_run: str) -> str:
    what = (description["fingerprint"] or {}).get("what")
    return {None: of_run, "gram": "Gram matrix"}.get(what, "search")


def _arrays_of(run: RunStore) -> tuple[dict[str, list[Part]], list[str]]:
    """Arrays of a run, those of a matrix under its name, and what is wrong with the metadata of others."""
    description, placed = run.description() or {}, dict[str, tuple[str, Any, Any, Any]]()
    number, growing = description.get("generation", 0), description.get("growing")
    group = "" if growing is None else f"{GROWTH}{growing['number']}/"
    for entries in (growing, description):  # of a growth that is not complete only what it has written itself
        tile = ((entries or {}).get("layout") or {}).get("tile")
        tile = tile if matches(tile, COUNT) else 1
        for name, listed in ((entries or {}).get("matrices") or {}).items():
            shown_name = name if entries is description else f"{group}{name}"
            for (array, first, _), (_, stop, _) in pairwise([*listed, (None, listed[-1][2], None)]):
                if entries is description or array.startswith(group):
                    placed[array] = shown_name, first, stop, tile
    arrays, damage = dict[str, list[Part]](), list[str]()
    for name, found in run.arrays():
        if isinstance(found, ChunkedArray):
            part, shown_name = Part(found, range(found.grid[0])), _shown_name(name, number)
            if name in placed:
                shown_name, first, stop, tile = placed[name]
                part = _placed(found, first, stop, tile)
            arrays.setdefault(shown_name, []).append(part)
        else:
            damage.append(str(found))
    return {name: sorted(parts, key=lambda one: one.tile_rows.start) for name, parts in arrays.items()}, damage


def _placed(array: ChunkedArray, first: int, stop: int, tile: int) -> Part:
    """Array with some rows of a matrix; see `TiledMatrix`."""
    if array.shape[0] != array.shape[-1]:
        return Part(array, range(array.grid[0]), first // tile)
    height = array.chunks[0]
    return Part(array, range(first // height, min(array.grid[0], -(-stop // height))))


def _shown_name(name: str, number: int) -> str:
    """Name of an array without the group of the run's growth; of what it has not written "earlier/" stands before."""
    own = f"{GROWTH}{number}/"
    is_shared = COPY.fullmatch(name.split("/")[0]) or name.startswith((FEATURES, GROWTH))
    return name.removeprefix(own) if not number or is_shared else f"{EARLIER}{name}"


def _is_of_growth(name: str) -> bool:
    return name.startswith((GROWTH, EARLIER))


def _arrays_of_model(url: str) -> tuple[dict[str, list[Part]], list[str]]:
    arrays, damage = dict[str, list[Part]](), list[str]()
    for name, several in model_arrays(url, describe_model(url)):
        for array in several:
            try:
                array.check_metadata()
            except DamagedChunkError as error:
                damage.append(str(error))
            full = name if len(several) == 1 else f"{name}/{array.url.rpartition('/')[2]}"
            arrays[full] = [Part(array, range(array.grid[0]))]
    return arrays, damage


def _content(name: str, parts: list[Part]) -> ArrayContents:
    array, counts = parts[-1].array, [len(one.present()) for one in parts]
    n_present, n_expected, shape = sum(counts), prod(array.grid), array.shape
    if _is_working(name):
        n_expected = n_present
    elif _is_triangle(name, parts) and (len(parts) > 1 or parts[0].is_square):
        n_expected, shape = sum(map(_n_expected, parts)), (array.shape[1], array.shape[1])
    n_bytes = sum(n * one.array.chunk_bytes for n, one in zip(counts, parts, strict=True))
    return ArrayContents(name, shape, array.dtype, n_present, n_expected, n_bytes)


def _n_expected(part: Part) -> int:
    """Chunks on and below the diagonal."""
    columns, rows = part.array.grid[1], part.rows
    if not part.is_square:
        return columns
    return _n_lower(rows.stop, columns, part.per_tile) - _n_lower(rows.start, columns, part.per_tile)


def _n_lower(n_rows: int, n_columns: int, per_tile: int) -> int:
    """Chunks of the first rows of tiles on and below the diagonal, of `n_columns` in a row at most."""
    n_short = min(n_rows, n_columns // per_tile)  # rows of tiles that end at the diagonal, and have fewer than all
    return per_tile * n_short * (n_short + 1) // 2 + (n_rows - n_short) * n_columns


def _is_triangle(name: str, parts: list[Part]) -> bool:
    """Whether an array of a run holds the tiles of a triangle: factors, Gram matrices, ΦᵀWΦ."""
    last = name.rpartition("/")[2]
    return (last in ("factor", "gram") or last.startswith("part-")) and all(len(one.array.shape) == 2 for one in parts)


def _is_working(name: str) -> bool:
    """Whether an array of a run holds what tasks pass on to each other, of which not all need ever be there."""
    last = name.rpartition("/")[2]
    return last.startswith("sum-") or last.endswith("-sums") or f"/{APPLICATION}" in name


def _complete_arrays(run: RunStore) -> list[str]:
    """Names of the arrays that the description of a run says are complete: its copy of X, and its last checkpoint."""
    copy, saved, pivots, factor = run.staged_rows(), run.checkpoint(), run.note(PIVOTS), run.note(FACTOR)
    arrays = () if copy is None else arrays_of_rows(run.place(copy[0]), copy[1])
    names = [array.url.removeprefix(f"{run.url}/") for array in arrays]
    names += [] if saved is None else [f"{CHECKPOINT}-{saved['turn']}/{name}" for name in saved["arrays"]]
    names += [] if pivots is None else [str(pivots)]
    kept = {name: keys for name, keys in (run.description() or {})["notes"].items() if FINAL_ARRAYS.fullmatch(name)}
    names += [f"{name}/{key}" for name, keys in kept.items() if matches(keys, list_of(NAMES)) for key in keys]
    if not matches(factor, (None, FACTOR_NOTE)):
        raise StoreError(f"the run {run.url} is damaged: its preconditioner is described by {shown(factor)}")
    return names if factor is None else [*names, *_names_of_factor(factor)]


def _names_of_factor(note: dict[str, Any]) -> list[str]:
    """Arrays of the preconditioner's factor that are complete."""
    panels = [f"{FACTOR}/{first}-{stop}" for first, stop in note["panels"]]
    each = ["index", "corner", *(f"rows-{a}-{b}" for a, b in note["segments"])]
    return [f"{panel}/{name}" for panel in panels for name in each] + [f"{panels[-1]}/left"]
