"""The store of one run: what problem it belongs to, and the arrays in it."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import dkrr
from dkrr.checks import shown
from dkrr.errors import DamagedChunkError, StoreError, UnreachableStoreError, WrongStoreError
from dkrr.store.chunks import ChunkedArray
from dkrr.store.description import (
    CHECKPOINT_NOTE,
    CHECKSUM,
    COPY,
    FORMAT_VERSION,
    RUN,
    check_description,
    matches,
    writer_of,
)
from dkrr.store.format import METADATA_NAME, read_group, write_group
from dkrr.store.lock import check_owned
from dkrr.store.matrix import TiledMatrix, TileGrid
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
BATCHES = "batches"
"""Group of the batches of targets that are solved, with two arrays each."""

UNLIKE_OURS = (StoreError, LookupError, TypeError, ValueError, AttributeError, RecursionError)
"""Errors of reading a store whose content was not written by dkrr."""

_CHUNK = re.compile(r"c(\.[0-9]+)+")

WORDS = {
    "X": "the values of X",
    "y": "the targets y",
    "classes": "the labels y",
    "shape": "the shape of X",
    "lengths": "the shape of X",
    "dtype": "the dtype of X",
    "kernel": "the kernels",
    "alpha": "the values of alpha",
    "weight": "the sample weights",
    "sample_weight": "the sample weights",
}
"""Names in fingerprints as users know them."""


@dataclass
class RunStore:
    """A Zarr group that holds everything one fit keeps on disk; nothing is made or deleted there once it is lost."""

    url: str
    _known: tuple[str, dict[str, Any]] | None = field(default=None, repr=False, compare=False)
    """Name of the run in checksums, and its matrices that have grown."""

    def at(self, name: str) -> str:
        """URL of something inside the store."""
        return f"{self.url.rstrip('/')}/{name}"

    def place(self, name: str) -> Place:
        """Place of something inside the store, under a name that no other run has."""
        return place_at(self.url, self._facts[0]).at(name)

    @property
    def _facts(self) -> tuple[str, dict[str, Any]]:
        # A disk may have been unmounted: what would be made in its place is not the store of a run.
        if self._known is None or not (place_at(self.url).is_remote or place_at(self.at(METADATA_NAME)).exists()):
            found = self._described()
            self._known = found["id"], found["matrices"]
        return self._known

    def _inner(self, name: str) -> Place:
        place = self.place(name)
        refuse_links(place.url, self.url)
        return place

    def create_array(
        self, name: str, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: str = "float64"
    ) -> ChunkedArray:
        """Create an array, or take the existing one of this layout; see `ChunkedArray.create`."""
        check_owned()
        place = self._inner(name)
        return ChunkedArray.create(place.url, shape, chunks, dtype, place.identity)

    def open_array(self, name: str) -> ChunkedArray:
        """Open an array of the store; see `ChunkedArray.open`."""
        place = self._inner(name)
        return ChunkedArray.open(place.url, place.identity)

    def create_group(self, name: str) -> None:
        """Create a group in the store, unless it exists."""
        check_owned()
        place = self._inner(name)
        if METADATA_NAME not in place.names():
            write_group(place.url)

    def matrix_arrays(self, name: str, n: int) -> list[tuple[str, int, int]]:
        """Arrays of a matrix of `n` rows, each with its first tile row and its number of rows."""
        return self._facts[1].get(name) or [(name, 0, n)]

    def matrix(self, name: str, grid: TileGrid, dtype: str = "float64") -> TiledMatrix:
        """Create a matrix in tiles, or take the existing one of this layout, whose tile rows may lie in several arrays.

        Raises
        ------
        StoreError
            If a matrix of another layout exists, or it cannot be written.
        """
        listed = self.matrix_arrays(name, grid.n)
        are_whole = all(a < b and b * grid.tile <= n for (_, a, n), (_, b, _) in pairwise(listed))
        if listed[0][1] != 0 or listed[-1][2] != grid.n or not are_whole:
            raise StoreError(
                f"the run {self.url} is damaged: its description has matrices={ {name: listed} } for {grid}. Give "
                f"another store="
            )
        chunks = (grid.tile, grid.panel)
        arrays = tuple(self.create_array(array, (n, n), chunks, dtype) for array, _, n in listed)
        return TiledMatrix(arrays, grid, tuple(first for _, first, _ in listed))

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
                    yield inner, self.open_array(inner)
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
            self.set_staged_rows(None)
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
        fingerprint = json.loads(json.dumps(fingerprint))
        described = self._described()
        theirs = described["fingerprint"]
        if theirs is None:
            self._update(versions=RUN_VERSIONS, fingerprint=fingerprint, layout=layout, rows=None, notes=notes or {})
            return
        if described.get("versions") != RUN_VERSIONS:  # its numbers and ours may differ in the last digits
            raise WrongStoreError(
                f"the run {self.url} can be resumed only by the version of dkrr that began it, and this is "
                f"{dkrr.__version__}: use {writer_of(described)}, or give another store= or delete this one"
            )
        names = sorted(fingerprint.keys() | theirs.keys())
        differing = {k: (fingerprint.get(k), theirs.get(k)) for k in names if fingerprint.get(k) != theirs.get(k)}
        if differing:
            details = "; ".join(
                f"{k}: here {here}, in the store {there}"
                for k, (here, there) in differing.items()
                if not any(CHECKSUM.fullmatch(str(one)) for one in (here, there))  # which says nothing to a reader
            )
            others = ", ".join(dict.fromkeys(WORDS.get(k, k) for k in differing))
            values = f" ({details})" if details else ""
            raise WrongStoreError(
                f"the store {self.url} belongs to another problem: {others} differ{values}. Give another store= or "
                f"delete this one; fits of one search, as GridSearchCV's, cannot share a store: give none, or use "
                f"KernelRidgeCV(store=...), which has one for each kernel"
            )

    def change_layout(self, layout: dict[str, Any], notes: dict[str, Any]) -> None:
        """Remember another layout for the runs that resume this one, and note several values, in one write."""
        self._update(layout=layout, notes={**self._described()["notes"], **notes})

    def _described(self) -> dict[str, Any]:
        found = self.description()
        if found is None:
            raise StoreError(f"the store {self.url} was deleted during the run; run again to begin a new one")
        return found

    def _update(self, **changes: Any) -> None:
        self._write({**self._described(), **changes})

    def _write(self, description: dict[str, Any]) -> None:
        check_owned()
        write_group(self.url, description)
        self._known = description["id"], description["matrices"]

    def staged_rows(self) -> tuple[str, dict[str, Any]] | None:
        """Name and description of the copy of X in the store, if it is complete."""
        found = self._described()["rows"]
        return None if found is None else (found.pop("name"), found)

    def set_staged_rows(self, name: str | None, described: dict[str, Any] | None = None) -> None:
        """Remember that the copy of X is complete; without a name, that there is none."""
        self._update(rows=None if name is None else {**(described or {}), "name": name})

    def note(self, name: str) -> Any:
        """Value noted in the description under a name; None if nothing was noted."""
        return self._described()["notes"].get(name)

    def set_note(self, name: str, value: Any) -> None:
        """Note a value of JSON's types in the description, in one write."""
        self.set_notes({name: value})

    def set_notes(self, notes: dict[str, Any]) -> None:
        """Note several values in one write."""
        self._update(notes={**self._described()["notes"], **notes})

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
        check_description(self.url, found, RUN, ". Give another store= or delete this one")
        return found

    def delete(self, name: str = "") -> None:
        """Delete an array, a matrix or a group in the store, or all of it; files that dkrr did not write stay."""
        check_owned()
        if not name:
            if self.description() is not None:
                place_at(self.url).delete(STORE)
            return
        for array in {name, *(array for array, _, _ in self.matrix_arrays(name, 0))}:
            self.place(array).delete(STORE)
        matrices = self._facts[1]
        kept = {one: listed for one, listed in matrices.items() if not f"{one}/".startswith(f"{name}/")}
        if len(kept) < len(matrices):
            self._update(matrices=kept)


def _is_group(url: str, held: list[str]) -> bool:
    """Whether a folder without chunks is a group: damaged metadata are those of an array."""
    try:
        return METADATA_NAME not in held or read_group(url) is not None
    except StoreError:
        return False
