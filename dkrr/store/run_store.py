"""The store of one run: what problem it belongs to, and the arrays in it."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import dkrr
from dkrr.checks import shown
from dkrr.errors import DamagedChunkError, StoreError, UnreachableStoreError, WrongStoreError
from dkrr.store.chunks import ChunkedArray
from dkrr.store.description import (
    CHECKPOINT_NOTE,
    COPY,
    FEATURES,
    FORMAT_VERSION,
    NOT_GROWN,
    RUN,
    check_description,
    matches,
    writer_of,
)
from dkrr.store.fingerprints import differences, plain, refusal
from dkrr.store.format import METADATA_NAME, read_group, write_group
from dkrr.store.lock import check_owned
from dkrr.store.matrix import TiledMatrix, TileGrid, shape_of_part
from dkrr.store.paths import NAMES
from dkrr.store.places import Place, is_foreign_file, place_at, refuse_links
from dkrr.store.replacing import STORE

RUN_VERSIONS = {"dkrr": dkrr.__version__}
"""Versions that a run records of the program that began it."""
PLAN, WORK, N_BATCHES, CHECKPOINT, PIVOTS = "plan", "work", "n-batches", "checkpoint", "pivots"
"""Names of notes: text of the plan; result, once the run has ended; number of batches of targets; the last complete
checkpoint; the group of the preconditioner's pivots."""
ASKED, STAGE, FACTOR = "asked", "stage", "preconditioner"
"""Names of notes: what the last call asked for, and the plan's times; the last stage that has begun; which columns of
the preconditioner's factor are complete in the group of the same name."""
ENDED = "ended"
"""Name of the last stage of a run without a result."""
GROWTH = "growth-"
"""Beginning of the names of the groups of growths, before their numbers: all that a run writes once it has grown."""
APPLICATION = "apply-"
"""Beginning of the names of the groups of vectors while a factor is applied; a run that was killed leaves them."""
FACTORED = "factored"
"""Name of the note that the factors of a run are complete, of as many rows."""
BATCHES = "batches"
"""Group of the batches of targets that are solved, with two arrays each."""

UNLIKE_OURS = (StoreError, LookupError, TypeError, ValueError, AttributeError, RecursionError)
"""Errors of reading a store whose content was not written by dkrr."""

_CHUNK = re.compile(r"c(\.[0-9]+)+")


@dataclass
class RunStore:
    """A Zarr group that holds everything one fit keeps on disk; nothing is made or deleted there once it is lost."""

    url: str
    _known: tuple[str, dict[str, Any], int] | None = field(default=None, repr=False, compare=False)
    """Name of the run in checksums, its matrices that have grown, and the number of its growth (0: none)."""
    _growing: int = field(default=0, repr=False, compare=False)
    """Number of the growth that is worked on and not complete; 0: the run itself."""

    def at(self, name: str) -> str:
        """URL of something inside the store."""
        return f"{self.url.rstrip('/')}/{name}"

    def place(self, name: str) -> Place:
        """Place of something inside the store, under a name that no other run has."""
        return place_at(self.url, self._facts[0]).at(name)

    @property
    def _facts(self) -> tuple[str, dict[str, Any], int]:
        # A disk may have been unmounted: what would be made in its place is not the store of a run.
        if self._known is None or not (place_at(self.url).is_remote or place_at(self.at(METADATA_NAME)).exists()):
            self._know(self._described())
        assert self._known is not None
        return self._known

    def _know(self, description: dict[str, Any]) -> None:
        matrices, number = self._entries(description)["matrices"], self._growing or description["generation"]
        self._known = description["id"], matrices, number

    def inner(self, name: str) -> str:
        """Name in the store of an array or a group of the run: all but copies of rows is in the group of its growth."""
        first, number = name.split("/")[0], self._facts[2]
        is_shared = COPY.fullmatch(first) or first.startswith((FEATURES, GROWTH))
        return name if not number or is_shared else f"{GROWTH}{number}/{name}"

    def _inner(self, name: str) -> Place:
        place = self.place(name)
        refuse_links(place.url, self.url)
        return place

    def create_array(
        self, name: str, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: str = "float64"
    ) -> ChunkedArray:
        """Create an array, or take the existing one of this layout; see `ChunkedArray.create`."""
        return self.created(self.inner(name), shape, chunks, dtype)

    def created(self, inner: str, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: str) -> ChunkedArray:
        """Create an array by its name in the store."""
        check_owned()
        place = self._inner(inner)
        return ChunkedArray.create(place.url, shape, chunks, dtype, place.identity)

    def open_array(self, name: str) -> ChunkedArray:
        """Open an array of the run; see `ChunkedArray.open`."""
        return self.opened(self.inner(name))

    def opened(self, inner: str) -> ChunkedArray:
        """Open an array by its name in the store."""
        place = self._inner(inner)
        return ChunkedArray.open(place.url, place.identity)

    def create_group(self, name: str) -> None:
        """Create a group in the store, unless it exists."""
        check_owned()
        place = self._inner(self.inner(name))
        if METADATA_NAME not in place.names():
            write_group(place.url)

    def matrix_arrays(self, name: str, n: int) -> list[tuple[str, int, int]]:
        """Arrays of a matrix of `n` rows, each with its first row and the last one's successor."""
        return self._facts[1].get(name) or [(self.inner(name), 0, n)]

    def matrix(self, name: str, grid: TileGrid, dtype: str = "float64") -> TiledMatrix:
        """Create a matrix in tiles, or take the existing one of this layout, whose rows may lie in several arrays.

        Raises
        ------
        StoreError
            If a matrix of another layout exists, or it cannot be written.
        """
        listed, tile = self.matrix_arrays(name, grid.n), grid.tile
        are_adjacent = all(a < b and (b == n or (b < n and b % tile == 0)) for (_, a, n), (_, b, _) in pairwise(listed))
        shapes = [shape_of_part(first, n, tile) for _, first, n in listed]
        are_pieces = all(
            rows == n or (rows > 0 and first // tile == (n - 1) // tile)
            for (_, first, n), (rows, _) in zip(listed, shapes, strict=True)
        )
        if listed[0][1] != 0 or listed[-1][2] != grid.n or not are_adjacent or not are_pieces:
            raise StoreError(
                f"the run {self.url} is damaged: its description has matrices={ {name: listed} } for {grid}. Give "
                f"another store="
            )
        chunks = (tile, grid.panel)
        arrays = tuple(self.created(one[0], shape, chunks, dtype) for one, shape in zip(listed, shapes, strict=True))
        return TiledMatrix(arrays, grid, tuple(first for _, first, _ in listed))

    def complete_matrix(self, listed: list[tuple[str, int, int]], grid: TileGrid) -> TiledMatrix | None:
        """Matrix in some arrays of the store, if it is there, complete and of this layout; nothing is created."""
        try:
            arrays = tuple(self.opened(array) for array, _, _ in listed)
        except DamagedChunkError:
            return None
        shapes = [shape_of_part(first, n, grid.tile) for _, first, n in listed]
        sizes = grid.tile, grid.panel  # of chunks, which an array of fewer rows has no larger than itself
        layouts = [(shape, tuple(map(min, sizes, shape))) for shape in shapes]
        if [(array.shape, array.chunks) for array in arrays] != layouts:
            return None
        matrix = TiledMatrix(arrays, grid, tuple(first for _, first, _ in listed))
        return matrix if matrix.is_complete else None

    def arrays(self, folder: str = "") -> Iterator[tuple[str, ChunkedArray | DamagedChunkError]]:
        """Names of all arrays in the store, each with the array, or with what is wrong with its metadata.

        Raises
        ------
        StoreError
            If the store cannot be read, or has a link in it.
        """
        for name in sorted(place_at(self.at(folder)).names()):
            inner = f"{folder}/{name}".lstrip("/")
            place = place_at(self.at(inner))
            if not NAMES.fullmatch(inner) or _CHUNK.fullmatch(name) or not place.is_folder():
                continue
            held = place.names()
            if any(_CHUNK.fullmatch(one) for one in held) or not _is_group(place.url, held):
                try:
                    yield inner, self.opened(inner)
                except DamagedChunkError as error:
                    yield inner, error
            else:
                yield from self.arrays(inner)

    def damage(self) -> list[DamagedChunkError]:
        """Read all that is in the store, and return what is damaged."""
        found = []
        for _, array in self.arrays():
            found += array.damaged_chunks() if isinstance(array, ChunkedArray) else [array]
        return found

    def holds(self, url: str) -> bool:
        """Whether an array lies in this store."""
        return url.startswith(f"{self.url.rstrip('/')}/")

    def discard(self, url: str, key: str) -> None:
        """Delete a damaged part of the store: a chunk, or metadata; a copy of X is copied again as a whole.

        Raises
        ------
        StoreError
            If it is not a part of this store, or cannot be deleted.
        """
        if not self.holds(url):
            raise StoreError(f"{url} is not in {self.url}; nothing was deleted")
        check_owned()
        name = url.removeprefix(self.url).strip("/")
        if COPY.fullmatch(name.split("/")[0]):
            self._forget_copy(name.split("/")[0])
            self.delete(name.split("/")[0])
        else:
            place = self.place(name)
            place.at(key).delete(STORE)
            if key in place.names():
                raise StoreError(
                    f"{place.url}/{key} is damaged and cannot be deleted; delete it, and run again with the same store"
                )

    def open(self) -> None:
        """Begin a run here, or take the existing one; it belongs to no problem until `claim`.

        Raises
        ------
        StoreError
            If something else exists here.
        """
        if self.description() is None:
            empty: dict[str, Any] = {"fingerprint": None, "layout": {}, "rows": None, "matrices": {}, "notes": {}}
            empty |= NOT_GROWN
            kind = {"kind": "run", "format": FORMAT_VERSION, "versions": RUN_VERSIONS}
            self._write(kind | {"id": os.urandom(16).hex()} | empty)

    def claim(self, fingerprint: dict[str, Any], layout: dict[str, Any], notes: dict[str, Any] | None = None) -> None:
        """Take the open store for the problem with this fingerprint, or resume its run.

        Parameters
        ----------
        fingerprint : dict
            What the problem is.
        layout : dict
            How it is cut into tiles; remembered for runs that resume.
        notes : dict, optional
            Noted with it, if the store is taken.

        Raises
        ------
        StoreError
            If the store belongs to another problem, or another version of dkrr began the run.
        """
        theirs = self.fingerprint()
        if theirs is None:
            self.begin(fingerprint=fingerprint, layout=layout, notes=notes or {})
        elif names := differences(theirs, plain(fingerprint)):
            raise refusal(self.url, theirs, plain(fingerprint), names)

    def fingerprint(self) -> dict[str, Any] | None:
        """Fingerprint of the run that the store holds; None if it holds none yet.

        Raises
        ------
        StoreError
            If another version of dkrr began the run.
        """
        described = self._described()
        theirs: dict[str, Any] | None = described["fingerprint"]
        if theirs is not None and described.get("versions") != RUN_VERSIONS:  # whose last digits may differ
            raise WrongStoreError(
                f"the run {self.url} can be resumed only by the version of dkrr that began it, and this is "
                f"{dkrr.__version__}: use {writer_of(described)}, or give another store= or delete this one"
            )
        return theirs

    def begin(self, **entries: Any) -> None:
        """Take the open store for a problem."""
        self._write({**self._described(), **NOT_GROWN, "versions": RUN_VERSIONS, "rows": None, **entries})

    def replace(self, number: int, **entries: Any) -> None:
        """Put another run in the place of the one here, in one write; growths that have begun are given up.

        What it keeps of the latter is in its `matrices` and `rows`; all else is superseded, see `tidy`. Its own arrays
        are in the group with this number, see `new_number`.
        """
        described, self._growing = self._described(), 0
        self._write({**described, **entries, "generation": number, "growing": None, "superseded": True})

    def begin_growth(self, number: int, **entries: Any) -> None:
        """Begin a growth, which is worked on from here until `commit_growth`; the run stays as it is meanwhile.

        Parameters
        ----------
        number : int
            From `new_number`, for the group of what is new.
        entries
            Entries of its description.
        """
        described = self._described()
        is_superseded = described["superseded"] or described["growing"] is not None
        self._growing = number
        self._write({**described, "growing": {**entries, "number": number}, "superseded": is_superseded})
        write_group(self.at(f"{GROWTH}{number}"))

    def new_number(self) -> int:
        """Number of a growth that begins now: workers of a killed call may still write to the group of another."""
        described = self._described()
        latest = max(described["generation"], (described["growing"] or {"number": 0})["number"])
        return int(latest) + 1 + int.from_bytes(os.urandom(2), "big")

    @property
    def is_growing(self) -> bool:
        """Whether a growth is worked on that is not complete."""
        return self._growing > 0

    def has_grown(self, name: str) -> bool:
        """Whether a matrix has tile rows of the run that it grows from, in arrays of that."""
        return name in self._facts[1]

    def resume_growth(self) -> None:
        """Work on the growth that has begun."""
        described = self._described()
        self._growing = described["growing"]["number"]
        self._know(described)
        write_group(self.at(f"{GROWTH}{self._growing}"))

    def discard_growth(self) -> None:
        """Give up a growth that has begun, if there is one."""
        described = self._described()
        if described["growing"] is not None:
            self._growing = 0
            self._write({**described, "growing": None, "superseded": True})

    def commit_growth(self, **notes: Any) -> None:
        """Put the growth in the place of the run, in one write, with some more notes; the rest is superseded."""
        described = self._described()
        if self._growing and described["growing"] is not None:
            growing = dict(described["growing"])
            number, self._growing = growing.pop("number"), 0
            growing["notes"] = {**growing["notes"], **notes}
            more = {"generation": number, "growing": None, "before": None, "superseded": True}
            self._write({**described, **growing, **more})
            with suppress(StoreError, OSError):  # the run is complete without it
                self.tidy()

    def tidy(self) -> None:
        """Delete what is superseded: of growths that were given up, and of the run that another has replaced."""
        described = self._described()
        if not described["superseded"]:
            return
        parts = [described, *([] if described["growing"] is None else [described["growing"]])]
        numbers = {described["generation"], (described["growing"] or described).get("number", described["generation"])}
        kept = {one["rows"]["name"] for one in parts if one["rows"] is not None}
        kept |= {array for one in parts for listed in one["matrices"].values() for array, _, _ in listed}
        kept |= {one["weights"]["array"] for one in parts if one["weights"] is not None} - {None}
        if (before := described["before"]) is not None:
            inside = "" if before["group"] is None else f"{before['group']}/"
            kept |= {f"{inside}{name}" for name in arrays_of_iterations(before["notes"])}
        self._delete_others(kept, numbers)
        for listed in described["matrices"].values():
            for (array, _, _), (_, stop, _) in pairwise(listed):
                found = self.opened(array)
                for chunk in found.present():
                    if chunk[0] * found.chunks[0] >= stop:
                        found.discard(chunk)
        if described["generation"]:
            write_group(self.at(f"{GROWTH}{described['generation']}"))
        self._write({**described, "superseded": False})

    def _delete_others(self, kept: set[str], numbers: set[int], folder: str = "") -> None:
        """Delete what is neither kept, nor in the groups of these growths, nor features, which have their checksum."""
        for name in place_at(self.at(folder)).names():
            inner = f"{folder}/{name}".lstrip("/")
            if not NAMES.fullmatch(inner) or _CHUNK.fullmatch(name) or not place_at(self.at(inner)).is_folder():
                continue
            number = re.match(f"{GROWTH}([0-9]{{1,15}})", inner)
            is_copy = bool(COPY.fullmatch(inner.split("/")[0]))
            is_current = not is_copy and (0 if number is None else int(number[1])) in numbers
            if inner in kept or is_current or inner.startswith(FEATURES):
                continue
            if any(one.startswith(f"{inner}/") for one in kept):
                self._delete_others(kept, numbers, inner)
            else:
                self.place(inner).delete(STORE)

    def change_layout(self, layout: dict[str, Any], notes: dict[str, Any]) -> None:
        """Remember another layout for the runs that resume this one, and note several values, in one write."""
        self._update(layout=layout, notes={**self._entries()["notes"], **notes})

    def _described(self) -> dict[str, Any]:
        found = self.description()
        if found is None:
            raise StoreError(f"the store {self.url} was deleted during the run; run again to begin a new one")
        return found

    def _entries(self, description: dict[str, Any] | None = None) -> dict[str, Any]:
        """Entries of what is worked on: of the run, or of a growth that is not complete."""
        found = self._described() if description is None else description
        if not self._growing:
            return found
        if found["growing"] is None or found["growing"]["number"] != self._growing:
            raise StoreError(f"the growth of the run {self.url} was given up by another call; run again")
        entries: dict[str, Any] = found["growing"]
        return entries

    def _update(self, **changes: Any) -> None:
        found = self._described()
        changed = {**self._entries(found), **changes}
        self._write({**found, "growing": changed} if self._growing else changed)

    def _write(self, description: dict[str, Any]) -> None:
        check_owned()
        write_group(self.url, description)
        self._know(plain(description))

    def staged_rows(self) -> tuple[str, dict[str, Any]] | None:
        """Name and description of the copy of X in the store, if it is complete."""
        found = self._entries()["rows"]
        return None if found is None else (found.pop("name"), found)

    def set_staged_rows(self, name: str | None, described: dict[str, Any] | None = None) -> None:
        """Remember that the copy of X is complete; without a name, that there is none."""
        self._update(rows=None if name is None else {**(described or {}), "name": name})

    def name_of_copy(self) -> str:
        """Name of a copy of X, which the run that this one grows from does not have."""
        return f"rows-{self._facts[2]}" if self._facts[2] else "rows"

    def _forget_copy(self, name: str) -> None:
        """Remember that a copy of X is not complete."""
        found = self._described()
        for entries in (found, found["growing"]):
            if entries is not None and entries["rows"] is not None and entries["rows"]["name"] == name:
                entries["rows"] = None
        self._write(found)

    def note(self, name: str) -> Any:
        """Value noted in the description under a name; None if nothing was noted."""
        return self._entries()["notes"].get(name)

    def set_note(self, name: str, value: Any) -> None:
        """Note a value of JSON's types in the description, in one write."""
        self.set_notes({name: value})

    def set_notes(self, notes: dict[str, Any]) -> None:
        """Note several values in one write."""
        self._update(notes={**self._entries()["notes"], **notes})

    def checkpoint(self) -> dict[str, Any] | None:
        """Last complete checkpoint, as `CHECKPOINT_NOTE` describes it; None without one.

        Raises
        ------
        StoreError
            If that is not as dkrr writes it.
        """
        found: dict[str, Any] | None = self.note(CHECKPOINT)
        if not matches(found, (None, CHECKPOINT_NOTE)):
            raise StoreError(f"the run {self.url} is damaged: its checkpoint is described by {shown(found)}")
        return found

    def description(self) -> dict[str, Any] | None:
        """Description that an earlier run wrote of this store; None if nothing exists here.

        Raises
        ------
        StoreError
            If something else exists here, or the description is damaged.
        """
        foreign = f"{self.url} exists and is not the store of a dkrr run; nothing was changed. Give another store="
        if is_foreign_file(self.url):
            raise WrongStoreError(foreign)
        try:
            found = read_group(self.url)
        except StoreError as error:
            # The system or the service does not let it be read, whatever it is.
            if isinstance(error, UnreachableStoreError) or isinstance(error.__cause__, OSError):
                raise
            raise WrongStoreError(f"{foreign} ({error})") from error
        if found is None and all(STORE.fullmatch(name) for name in place_at(self.url).names()):  # a lock is there
            return None
        if not found:
            raise WrongStoreError(foreign)
        if found.get("kind") != "run":
            raise WrongStoreError(
                f"{self.url} is a saved {found.get('kind')} of dkrr, not the store of a run; nothing was changed. Give "
                f"another store="
            )
        found = NOT_GROWN | found
        check_description(self.url, found, RUN, ". Give another store= or delete this one")
        return found

    def delete_below(self, group: str, beginning: str) -> None:
        """Delete what has a name that begins so in a group."""
        for name in self.place(self.inner(group)).names():
            if name.startswith(beginning):
                self.delete(f"{group}/{name}")

    def delete(self, name: str = "") -> None:
        """Delete an array, a matrix or a group in the store, or all of it; files that dkrr did not write stay."""
        check_owned()
        if not name:
            if self.description() is not None:
                place_at(self.url).delete(STORE)
            return
        matrices, number = self._facts[1], self._growing
        below = {one: listed for one, listed in matrices.items() if f"{one}/".startswith(f"{name}/")}
        for array in {self.inner(name), *(array for listed in below.values() for array, _, _ in listed)}:
            if not number or array.startswith(f"{GROWTH}{number}/") or array == self.inner(name):
                self.place(array).delete(STORE)  # the tile rows of the run from which this one grows are still its own
        if below:
            self._update(matrices={one: listed for one, listed in matrices.items() if one not in below})


def notes_of_iterations(notes: dict[str, Any]) -> dict[str, Any]:
    """Notes of what iterations have found, which those of a larger run begin with."""
    is_kept = re.compile(f"{CHECKPOINT}|{PIVOTS}|{FACTOR}|model-[0-9]+")
    return {name: value for name, value in notes.items() if is_kept.fullmatch(name) and value is not None}


def arrays_of_iterations(notes: dict[str, Any]) -> list[str]:
    """Names of the arrays, or of their groups, that such notes name."""
    found = [name for name in notes if name not in (CHECKPOINT, PIVOTS)]
    if matches(notes.get(CHECKPOINT), CHECKPOINT_NOTE):
        found.append(f"{CHECKPOINT}-{notes[CHECKPOINT]['turn']}")
    return found + ([notes[PIVOTS]] if matches(notes.get(PIVOTS), NAMES) else [])


def _is_group(url: str, held: list[str]) -> bool:
    """Whether a folder without chunks is a group: damaged metadata are those of an array."""
    try:
        return METADATA_NAME not in held or read_group(url) is not None
    except StoreError:
        return False
