"""The store of one run: what problem it belongs to, and the arrays in it."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zarr

from dkrr.errors import StoreError
from dkrr.tiles.chunks import local_path, zarr_store

FORMAT_VERSION = 1


@dataclass(frozen=True)
class RunStore:
    """A Zarr group that holds everything one fit keeps on disk."""

    url: str

    def at(self, name: str) -> str:
        """URL of something inside the store."""
        return f"{self.url.rstrip('/')}/{name}"

    def claim(self, fingerprint: dict[str, Any]) -> bool:
        """Take the store for the problem with this fingerprint.

        Returns
        -------
        bool
            True if the store already belonged to this problem, so that the run goes on from what is there.

        Raises
        ------
        StoreError
            If something else is there, or another problem's run.
        """
        fingerprint = json.loads(json.dumps(fingerprint))
        found = self.description()
        if found is None:
            group = zarr.create_group(zarr_store(self.url))
            group.attrs["dkrr"] = {"kind": "run", "format": FORMAT_VERSION, "fingerprint": fingerprint}
            return False
        if found.get("kind") != "run" or found.get("format") != FORMAT_VERSION:
            raise StoreError(
                f"{self.url} is a dkrr {found.get('kind')} of format {found.get('format')}, not a run of format "
                f"{FORMAT_VERSION}. Give another store= or delete this one"
            )
        theirs = found.get("fingerprint", {})
        differing = sorted(k for k in fingerprint.keys() | theirs.keys() if fingerprint.get(k) != theirs.get(k))
        if differing:
            details = "; ".join(f"{k}: here {fingerprint.get(k)}, in the store {theirs.get(k)}" for k in differing)
            raise StoreError(
                f"the store {self.url} belongs to another problem ({details}). Give another store= or delete this one"
            )
        return True

    def description(self) -> dict[str, Any] | None:
        """What dkrr wrote about this store; None if there is nothing here.

        Raises
        ------
        StoreError
            If there is something here that dkrr did not write.
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
        return found

    def delete(self, name: str = "") -> None:
        """Remove the store, or one thing in it."""
        url = self.at(name) if name else self.url
        path = local_path(url)
        if path is not None:
            shutil.rmtree(path, ignore_errors=True)
        else:
            zarr.core.sync.sync(zarr_store(url).clear())


def free_bytes(url: str) -> int | None:
    """Free space where a store is (or would be); None where that is not known (remote stores)."""
    path = local_path(url)
    if path is None:
        return None
    existing: Path = path.absolute()
    while not existing.exists():
        existing = existing.parent
    return shutil.disk_usage(existing).free


def _foreign(url: str) -> str:
    return f"{url} exists and is not a dkrr store; nothing was changed. Give another store="
