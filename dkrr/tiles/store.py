"""The store of one run: what problem it belongs to, and the arrays in it."""

import json
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zarr

from dkrr.errors import StoreError
from dkrr.tiles.chunks import local_path, zarr_store

FORMAT_VERSION = 4

_COPY = re.compile("rows(-[0-9a-z]+)?")


@dataclass(frozen=True)
class RunStore:
    """A Zarr group that holds everything one fit keeps on disk."""

    url: str

    def at(self, name: str) -> str:
        """URL of something inside the store."""
        return f"{self.url.rstrip('/')}/{name}"

    def open(self) -> None:
        """Begin a run here, or take the existing one; it belongs to no problem until `claim`.

        Raises
        ------
        StoreError
            If something else exists here.
        """
        if self.description() is None:
            attributes = {"dkrr": {"kind": "run", "format": FORMAT_VERSION, "fingerprint": None}}
            zarr.create_group(zarr_store(self.url), attributes=attributes)

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
            details = "; ".join(f"{k}: here {fingerprint.get(k)}, in the store {theirs.get(k)}" for k in differing)
            raise StoreError(
                f"the store {self.url} belongs to another problem ({details}). Give another store= or delete this one"
            )

    def _attributes(self) -> dict[str, Any]:
        found = self.description()
        if found is None:
            raise StoreError(f"the store {self.url} was deleted during the run")
        return found

    def _update(self, **changes: Any) -> None:
        group = zarr.open_group(zarr_store(self.url), mode="r+")
        group.attrs["dkrr"] = {**self._attributes(), **changes}

    def staged_rows(self) -> str | None:
        """Name of the copy of X in the store, if it is complete."""
        name: str | None = self._attributes()["rows"]
        if name is not None and not _COPY.fullmatch(name):
            raise StoreError(
                f"the store {self.url} is damaged: it names {name!r} as its copy of X. Give another store="
            )
        return name

    def set_staged_rows(self, name: str) -> None:
        """Remember that the copy of X is complete."""
        self._update(rows=name)

    def note(self, name: str) -> Any:
        """Value noted in the description under a name; None if nothing was noted."""
        return self._attributes().get("notes", {}).get(name)

    def set_note(self, name: str, value: Any) -> None:
        """Note a value of JSON's types in the description, in one write."""
        self._update(notes={**self._attributes().get("notes", {}), name: value})

    def create_group(self, name: str) -> None:
        """Create a group in the store, unless it exists."""
        zarr.open_group(zarr_store(self.at(name)), mode="a")

    def description(self) -> dict[str, Any] | None:
        """Description that an earlier run wrote of this store; None if nothing exists here.

        Raises
        ------
        StoreError
            If something else exists here.
        """
        path = local_path(self.url)
        if path is not None and not path.exists():
            return None
        if path is not None and path.is_dir() and not any(path.iterdir()):
            return None
        try:
            found = zarr.open_group(zarr_store(self.url), mode="r").attrs.asdict().get("dkrr")
        except FileNotFoundError as error:
            if path is None:
                return None
            raise StoreError(_foreign(self.url)) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{_foreign(self.url)} ({error})") from error
        if not isinstance(found, dict):
            raise StoreError(_foreign(self.url))
        if found.get("kind") != "run" or found.get("format") != FORMAT_VERSION:
            raise StoreError(
                f"{self.url} is a dkrr {found.get('kind')} of format {found.get('format')}, not a run of format "
                f"{FORMAT_VERSION}. Give another store= or delete this one"
            )
        return found

    def delete(self, name: str = "") -> None:
        """Remove the store, or one thing in it."""
        url = self.at(name) if name else self.url
        path = local_path(url)
        if path is not None:
            shutil.rmtree(path, ignore_errors=True)
        else:
            zarr.core.sync.sync(zarr_store(url).delete_dir(""))


def free_bytes(url: str) -> int | None:
    """Free space where a store is (or would be); None where that is not known (remote stores)."""
    path = local_path(url)
    if path is None:
        return None
    with suppress(OSError):  # mostly it exists
        return shutil.disk_usage(path).free
    existing: Path = path.absolute()
    while not existing.exists():
        existing = existing.parent
    return shutil.disk_usage(existing).free


def _foreign(url: str) -> str:
    return f"{url} exists and is not the store of a dkrr run; nothing was changed. Give another store="
