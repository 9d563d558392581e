"""Damage to a folder of files, drawn at random: what disks, copies, people and mistakes do to a store.

Nothing here knows what the files hold.
"""

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Random = np.random.Generator
MAX_DRAWS = 200
"""Draws until one changes something."""


@dataclass(frozen=True)
class Damage:
    """What was done to a folder."""

    operation: str
    file: str
    """Path in the folder."""

    def __str__(self) -> str:
        return f"{self.operation}: {self.file}"


@dataclass(frozen=True)
class Scene:
    """A folder to damage, and what may be put in the place of its files."""

    folder: Path
    older: Sequence[Path]
    """Folders of an earlier version of the same."""
    foreign: Sequence[Path]
    """Folders of something else of the same format."""

    def files(self) -> list[Path]:
        """All its files."""
        return sorted(p for p in self.folder.rglob("*") if p.is_file())


Operation = Callable[[Scene, Path, Random], bool]
"""f(scene, file, rng) → whether something was changed."""


def _changed(file: Path, content: bytes) -> bool:
    if file.read_bytes() == content:
        return False
    file.write_bytes(content)
    return True


def flip_bit(_: Scene, file: Path, rng: Random) -> bool:
    content = bytearray(file.read_bytes())
    if content:
        content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
    return _changed(file, bytes(content))


def scatter_bytes(_: Scene, file: Path, rng: Random) -> bool:
    content = bytearray(file.read_bytes())
    for _k in range(int(rng.integers(2, 65)) if content else 0):
        content[rng.integers(len(content))] = int(rng.integers(256))
    return _changed(file, bytes(content))


def zero_range(_: Scene, file: Path, rng: Random) -> bool:
    content = bytearray(file.read_bytes())
    start, stop = np.sort(rng.integers(len(content) + 1, size=2)).tolist()
    content[start:stop] = bytes(stop - start)
    return _changed(file, bytes(content))


def zero_all(_: Scene, file: Path, rng: Random) -> bool:  # noqa: ARG001
    return _changed(file, bytes(file.stat().st_size))


def truncate(_: Scene, file: Path, rng: Random) -> bool:
    content = file.read_bytes()
    return _changed(file, content[: int(rng.integers(len(content)))] if content else content)


def empty_file(_: Scene, file: Path, rng: Random) -> bool:  # noqa: ARG001
    return _changed(file, b"")


def append_bytes(_: Scene, file: Path, rng: Random) -> bool:
    more = rng.bytes(int(rng.integers(1, 65))) if rng.random() < 0.5 else bytes(int(rng.integers(1, 4097)))
    return _changed(file, file.read_bytes() + more)


def exchange_blocks(_: Scene, file: Path, rng: Random) -> bool:
    """Two parts of a file trade places, at multiples of 8 bytes."""
    content = file.read_bytes()
    units = len(content) // 8
    if units < 2:
        return False
    width = int(rng.integers(1, units // 2 + 1))
    first = int(rng.integers(units - 2 * width + 1))
    second = int(rng.integers(first + width, units - width + 1))
    a, b, w = 8 * first, 8 * second, 8 * width
    return _changed(file, content[:a] + content[b : b + w] + content[a + w : b] + content[a : a + w] + content[b + w :])


def change_digit(_: Scene, file: Path, rng: Random) -> bool:
    """Another digit in a text, which stays valid JSON."""
    content = file.read_bytes()
    places = [m.start() for m in re.finditer(rb"\d", content)]
    if not places or not content.isascii():
        return False
    at = places[int(rng.integers(len(places)))]
    return _changed(file, content[:at] + str(rng.integers(10)).encode() + content[at + 1 :])


def change_letter(_: Scene, file: Path, rng: Random) -> bool:
    """Another letter in a text."""
    content = file.read_bytes()
    places = [m.start() for m in re.finditer(rb"[a-z]", content)]
    if not places or not content.isascii():
        return False
    at = places[int(rng.integers(len(places)))]
    return _changed(file, content[:at] + bytes([int(rng.integers(97, 123))]) + content[at + 1 :])


def delete_file(_: Scene, file: Path, rng: Random) -> bool:  # noqa: ARG001
    file.unlink()
    return True


def swap_files(scene: Scene, file: Path, rng: Random) -> bool:
    """Two files trade places, mostly two of the same size."""
    other = _another(scene, file, rng)
    if other is None:
        return False
    mine, others = file.read_bytes(), other.read_bytes()
    other.write_bytes(mine)
    return _changed(file, others)


def copy_over(scene: Scene, file: Path, rng: Random) -> bool:
    """Another file of the same folder, mostly one of the same size, is written over a file."""
    other = _another(scene, file, rng)
    return other is not None and _changed(file, other.read_bytes())


def _another(scene: Scene, file: Path, rng: Random) -> Path | None:
    files = [f for f in scene.files() if f != file]
    alike = [f for f in files if f.stat().st_size == file.stat().st_size]
    chosen = alike if alike and rng.random() < 0.7 else files
    return chosen[int(rng.integers(len(chosen)))] if chosen else None


def take_older(scene: Scene, file: Path, rng: Random) -> bool:
    """A file as an earlier version had it."""
    return _take(scene, file, scene.older, rng)


def take_foreign(scene: Scene, file: Path, rng: Random) -> bool:
    """The file of the same name of another store."""
    return _take(scene, file, scene.foreign, rng)


def _take(scene: Scene, file: Path, places: Sequence[Path], rng: Random) -> bool:
    name = file.relative_to(scene.folder)
    found = [p / name for p in places if (p / name).is_file()]
    return bool(found) and _changed(file, found[int(rng.integers(len(found)))].read_bytes())


def take_foreign_folder(scene: Scene, file: Path, rng: Random) -> bool:
    """All of a folder as another store, or an earlier version, has it."""
    name = file.parent.relative_to(scene.folder)
    found = [p / name for p in (*scene.foreign, *scene.older) if (p / name).is_dir()]
    if not found or file.parent == scene.folder:
        return False
    before = {f.name: f.read_bytes() for f in file.parent.iterdir() if f.is_file()}
    other = found[int(rng.integers(len(found)))]
    if before == {f.name: f.read_bytes() for f in other.iterdir() if f.is_file()}:
        return False
    shutil.rmtree(file.parent)
    shutil.copytree(other, file.parent)
    return True


def empty_folder(scene: Scene, file: Path, rng: Random) -> bool:
    folder = _folder(scene, file, rng)
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return True


def delete_folder(scene: Scene, file: Path, rng: Random) -> bool:
    folder = _folder(scene, file, rng)
    shutil.rmtree(folder)
    return True


def _folder(scene: Scene, file: Path, rng: Random) -> Path:
    """A folder that holds the file, the store's own too."""
    within = [p for p in file.parents if p == scene.folder or scene.folder in p.parents]
    return within[int(rng.integers(len(within)))]


def remove_permission(_: Scene, file: Path, rng: Random) -> bool:  # noqa: ARG001
    file.chmod(0)
    return True


def close_folder(scene: Scene, file: Path, rng: Random) -> bool:
    """No permission for a folder, to read or to write."""
    _folder(scene, file, rng).chmod(0o000 if rng.random() < 0.5 else 0o500)
    return True


def folder_for_file(_: Scene, file: Path, rng: Random) -> bool:  # noqa: ARG001
    """A folder where a file was."""
    file.unlink()
    file.mkdir()
    return True


OPERATIONS: dict[str, Operation] = {
    "bit flipped": flip_bit,
    "bytes changed": scatter_bytes,
    "range of zeros": zero_range,
    "all zeros": zero_all,
    "truncated": truncate,
    "empty file": empty_file,
    "bytes appended": append_bytes,
    "parts exchanged": exchange_blocks,
    "digit changed": change_digit,
    "letter changed": change_letter,
    "file deleted": delete_file,
    "files swapped": swap_files,
    "another file copied over": copy_over,
    "file of an older version": take_older,
    "file of another store": take_foreign,
    "folder of another store": take_foreign_folder,
    "folder emptied": empty_folder,
    "folder deleted": delete_folder,
    "file not readable": remove_permission,
    "folder closed": close_folder,
    "folder in place of a file": folder_for_file,
}
"""By name. New ones are appended: trials count them."""


def damage(scene: Scene, rng: Random, operation: str) -> Damage | None:
    """Damage a folder once; None if no file of it can be damaged so."""
    for _ in range(MAX_DRAWS):
        files = scene.files()
        if rng.random() < 0.5:  # else a folder with many chunks would take nearly all
            folders = sorted({f.parent for f in files})
            chosen = folders[int(rng.integers(len(folders)))]
            files = [f for f in files if f.parent == chosen]
        file = files[int(rng.integers(len(files)))]
        if OPERATIONS[operation](scene, file, rng):
            return Damage(operation, str(file.relative_to(scene.folder)))
    return None


def open_again(folder: Path) -> None:
    """Give back the permissions of a folder and of all folders in it, so that it can be deleted."""
    folder.chmod(0o700)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            open_again(path)
