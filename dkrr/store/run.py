"""The store of one run: what problem it belongs to, and the arrays in it."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dkrr.errors import DamagedChunkError, StoreError, UnreachableStoreError, WrongStoreError
from dkrr.store.chunks import ChunkedArray
from dkrr.store.format import NAME, read_group, write_group
from dkrr.store.paths import NAMES
from dkrr.store.places import Place, is_foreign_file, place_at, refuse_links
from dkrr.store.replacing import STORE

FORMAT_VERSION = 5

_COPY = re.compile("rows(-[0-9a-z]+)?")
_ID = re.compile("[0-9a-f]{32}")
_CHUNK = re.compile(r"c(\.[0-9]+)+")

WORDS = {
    "X": "the values of X",
    "y": "the targets y",
    "classes": "the labels y",
    "shape": "the shape of X",
    "dtype": "the dtype of X",
    "kernel": "the kernels",
    "alpha": "the values of alpha",
    "weight": "the sample weights",
    "sample_weight": "the sample weights",
}
"""Names in fingerprints as users know them."""


@dataclass
class RunStore:
    """A Zarr group that holds everything one fit keeps on disk."""

    url: str
    _id: str | None = field(default=None, repr=False, compare=False)

    def at(self, name: str) -> str:
        """URL of something inside the store."""
        return f"{self.url.rstrip('/')}/{name}"

    def place(self, name: str) -> Place:
        """Place of something inside the store, under a name that no other run has."""
        # A disk may have been unmounted: what would be made in its place is not the store of a run.
        if self._id is None or not (self._here.is_remote or place_at(f"{self.url}/{NAME}").exists()):
            self._id = self._attributes()["id"]
        return place_at(self.url, self._id).at(name)

    @property
    def _here(self) -> Place:
        return place_at(self.url)

    def create_array(
        self, name: str, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: str = "float64"
    ) -> ChunkedArray:
        """Create an array, or take the existing one of this layout; see `ChunkedArray.create`."""
        place = self.place(name)
        refuse_links(place.url, self.url)
        return ChunkedArray.create(place.url, shape, chunks, dtype, place.identity)

    def open_array(self, name: str) -> ChunkedArray:
        """Open an array of the store; see `ChunkedArray.open`."""
        place = self.place(name)
        refuse_links(place.url, self.url)
        return ChunkedArray.open(place.url, place.identity)

    def arrays(self) -> Iterator[tuple[str, ChunkedArray | DamagedChunkError]]:
        """Names of all arrays in the store, each with the array, or with what is wrong with its metadata.

        Raises
        ------
        StoreError
            If the store cannot be read, or has a link in it.
        """
        yield from self._arrays_below("")

    def _arrays_below(self, folder: str) -> Iterator[tuple[str, ChunkedArray | DamagedChunkError]]:
        for name in sorted(place_at(self.at(folder) if folder else self.url).names()):
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
                yield from self._arrays_below(inner)

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
        name = url.removeprefix(self.url).strip("/")
        if _COPY.fullmatch(name.split("/")[0]):
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
            self._write({"kind": "run", "format": FORMAT_VERSION, "id": os.urandom(16).hex(), "fingerprint": None})

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
            If the store belongs to another problem.
        """
        fingerprint = json.loads(json.dumps(fingerprint))
        theirs = self._attributes()["fingerprint"]
        if theirs is None:
            self._update(fingerprint=fingerprint, layout=layout, rows=None, notes=notes or {})
            return
        differing = sorted(k for k in fingerprint.keys() | theirs.keys() if fingerprint.get(k) != theirs.get(k))
        if differing:
            pairs = {k: (fingerprint.get(k), theirs.get(k)) for k in differing}
            details = "; ".join(
                f"{k}: here {here}, in the store {there}"
                for k, (here, there) in pairs.items()
                if not (_is_checksum(here) or _is_checksum(there))
            )
            others = ", ".join(WORDS.get(k, k) for k in differing)
            values = f" ({details})" if details else ""
            raise WrongStoreError(
                f"the store {self.url} belongs to another problem: {others} differ{values}. Give another store= or "
                f"delete this one; fits of one search, as GridSearchCV's, cannot share a store: give none, or use "
                f"KernelRidgeCV(store=...), which has one for each kernel"
            )

    def _attributes(self) -> dict[str, Any]:
        found = self.description()
        if found is None:
            raise StoreError(f"the store {self.url} was deleted during the run; run again to begin a new one")
        return found

    def _update(self, **changes: Any) -> None:
        self._write({**self._attributes(), **changes})

    def _write(self, description: dict[str, Any]) -> None:
        write_group(self.url, description)
        self._id = description["id"]

    def staged_rows(self) -> tuple[str, dict[str, Any]] | None:
        """Name and description of the copy of X in the store, if it is complete."""
        found = self._attributes().get("rows")
        if found is None:
            return None
        if not isinstance(found, dict) or not _COPY.fullmatch(str(found.get("name"))):
            raise StoreError(
                f"the store {self.url} is damaged: it names {found!r} as its copy of X. Give another store="
            )
        return found["name"], found

    def set_staged_rows(self, name: str | None, described: dict[str, Any] | None = None) -> None:
        """Remember that the copy of X is complete; without a name, that there is none."""
        self._update(rows=None if name is None else {**(described or {}), "name": name})

    def note(self, name: str) -> Any:
        """Value noted in the description under a name; None if nothing was noted."""
        return (self._attributes().get("notes") or {}).get(name)

    def set_note(self, name: str, value: Any) -> None:
        """Note a value of JSON's types in the description, in one write."""
        self._update(notes={**(self._attributes().get("notes") or {}), name: value})

    def create_group(self, name: str) -> None:
        """Create a group in the store, unless it exists."""
        place = self.place(name)
        refuse_links(place.url, self.url)
        if NAME not in place.names():
            write_group(place.url)

    def description(self) -> dict[str, Any] | None:
        """Description that an earlier run wrote of this store; None if nothing exists here.

        Raises
        ------
        StoreError
            If something else exists here, or the description is damaged.
        """
        if is_foreign_file(self.url):
            raise WrongStoreError(_foreign(self.url))
        try:
            found = read_group(self.url)
        except StoreError as error:
            # The system or the service does not let it be read, whatever it is.
            if isinstance(error, UnreachableStoreError) or isinstance(error.__cause__, OSError):
                raise
            raise WrongStoreError(f"{_foreign(self.url)} ({error})") from error
        if found is None:
            if any(not STORE.fullmatch(name) for name in self._here.names()):  # a lock is there
                raise WrongStoreError(_foreign(self.url))
            return None
        if not found:
            raise WrongStoreError(_foreign(self.url))
        if found.get("kind") != "run":
            raise WrongStoreError(
                f"{self.url} is a saved {found.get('kind')} of dkrr, not the store of a run; nothing was changed. Give "
                f"another store="
            )
        if found.get("format") != FORMAT_VERSION:
            raise WrongStoreError(
                f"{self.url} is a dkrr run of format {found.get('format')}, not of format {FORMAT_VERSION}. Give "
                f"another store= or delete this one"
            )
        kinds = {"fingerprint": dict | None, "layout": dict | None, "notes": dict | None}
        is_wrong = "fingerprint" not in found or any(not isinstance(found.get(k), kind) for k, kind in kinds.items())
        if is_wrong or (found["fingerprint"] is not None and found.get("layout") is None):
            raise StoreError(
                f"the store {self.url} is damaged: its description is not one that dkrr writes. Give another store="
            )
        if not _ID.fullmatch(str(found.get("id"))):
            raise StoreError(f"the store {self.url} is damaged: its id is {found.get('id')!r}. Give another store=")
        return found

    def delete(self, name: str = "") -> None:
        """Delete an array or a group of arrays in the store, or all of it; files that dkrr did not write stay."""
        if name or self.description() is not None:
            (self.place(name) if name else self._here).delete(STORE)


def _is_group(url: str, held: list[str]) -> bool:
    """Whether a folder without chunks is a group: damaged metadata are those of an array."""
    try:
        return NAME not in held or read_group(url) is not None
    except StoreError:
        return False


def _foreign(url: str) -> str:
    return f"{url} exists and is not the store of a dkrr run; nothing was changed. Give another store="


def _is_checksum(value: Any) -> bool:
    """Whether a value is a SHA-256, which says nothing to a reader."""
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None
