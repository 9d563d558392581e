"""Faults of disks and of permissions, caused for real: run as a program that may mount, in a folder of its own.

Each case prints a line of JSON: its name, and what was found for every attempt: the name of the error ("" for none, and
"raw ..." for one that is not of dkrr), its message, and whether the next attempt, without the fault, gave the answer.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import dask.array
import numpy as np

import dkrr
from dkrr.errors import DkrrError

X = np.random.default_rng(0).normal(size=(96, 3))
Y = X[:, 0]
TILED = {"kernel": "rbf", "tile": 32}
MODEL = dkrr.KernelRidge(0.1, kernel="rbf").fit(X, Y)
Operation = Callable[[Path], Any]


def ridge(at: Path) -> Any:
    return dkrr.KernelRidge(0.1, **TILED, solver="cholesky", store=f"{at}/run.zarr").fit(X, Y).dual_coef_


def iterated(at: Path) -> Any:
    return dkrr.KernelRidge(0.1, **TILED, solver="cg", store=f"{at}/run.zarr").fit(X, Y).dual_coef_


def copied(at: Path) -> Any:
    rows = dask.array.from_array(X, chunks=(40, 3))
    return dkrr.KernelRidge(0.1, **TILED, solver="cholesky", store=f"{at}/run.zarr").fit(rows, Y).dual_coef_


def primal(at: Path) -> Any:
    model = dkrr.KernelRidge(0.1, kernel="linear", form="primal", tile=32, store=f"{at}/run.zarr")
    return model.fit(X, Y).coef_


def logistic(at: Path) -> Any:
    return dkrr.KernelLogisticRegression(0.1, **TILED, store=f"{at}/run.zarr").fit(X, Y > 0).dual_coef_


def search(at: Path) -> Any:
    return dkrr.KernelRidgeCV((0.1, 1.0), **TILED, store=f"{at}/run.zarr").fit(X, Y).dual_coef_


def gram(at: Path) -> Any:
    return dkrr.gram(X, kernel="rbf", chunks=32, store=f"{at}/run.zarr").compute()


def save(at: Path) -> Any:
    dkrr.save(MODEL, at / "model.zarr", overwrite=True)
    return dkrr.load(at / "model.zarr").dual_coef_


OPERATIONS = (ridge, iterated, copied, primal, logistic, search, gram, save)


def attempted(name: str, call: Callable[[], Any]) -> list[str]:
    try:
        call()
    except DkrrError as error:
        return [name, type(error).__name__, str(error)]
    except Exception as error:
        return [name, f"raw {type(error).__name__}", str(error)]
    return [name, "", ""]


def is_answer(operation: Operation, at: Path, expected: Any) -> bool:
    try:
        return bool(abs(operation(at) - expected).max() <= 1e-8)  # of conjugate gradient; the largest entry is about 2
    except Exception as error:
        print(f"{operation.__name__} in {at}: {error!r}", file=sys.stderr)
        return False


@contextmanager
def at_the_write(number: int, root: Path, fault: Callable[[], None]) -> Iterator[list[bool]]:
    """Cause a fault at one of the openings of files for writing below a folder; whether it came to that."""
    opened, count, caused = os.open, 0, [False]

    def watched(path: Any, flags: int, *more: Any, **named: Any) -> int:
        nonlocal count
        if flags & (os.O_WRONLY | os.O_RDWR) and str(path).startswith(str(root)):
            count += 1
            if count == number:
                fault()
                caused[0] = True
        return opened(path, flags, *more, **named)

    os.open = watched  # type: ignore[assignment]
    try:
        yield caused
    finally:
        os.open = opened  # type: ignore[assignment]


def mount(folder: Path, options: str) -> None:
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)


def at_every_write(
    folder: Path, operation: Operation, step: int, fault: Callable[[], None], mend: Callable[[], None]
) -> Iterator[list[Any]]:
    """One attempt for every write of an operation: the fault comes there, and is mended before the next attempt."""
    at = folder / "here"
    at.mkdir()
    expected = operation(at)
    number, caused = 1, [True]
    while caused[0]:
        shutil.rmtree(at)
        at.mkdir()
        if operation is save:
            save(at)
        with at_the_write(number, folder, fault) as caused:
            found = attempted(f"{operation.__name__} {number}", lambda: operation(at))
        mend()
        yield [*found, is_answer(operation, at, expected)]
        number += step
    shutil.rmtree(at)


def full_disk(folder: Path) -> Iterator[list[Any]]:
    """The disk is full from one of the writes on."""
    disk = folder / "disk"
    mount(disk, "size=2m")
    filler = disk / "filler"

    def fill() -> None:
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 4096)
            except OSError:
                return

    for operation, step in ((ridge, 1), (copied, 3), (gram, 1), (save, 1), (search, 23)):
        yield from at_every_write(disk, operation, step, fill, lambda: filler.unlink(missing_ok=True))


def vanished(folder: Path) -> Iterator[list[Any]]:
    """The disk is unmounted at one of the writes, and comes back with all that was on it."""
    at, away = folder / "here", folder / "away"

    def return_() -> None:
        if away.exists():
            away.rename(at)

    for operation in (ridge, copied, gram, save):
        yield from at_every_write(folder, operation, 5, lambda: (at.rename(away), None)[1], return_)


def deleted(folder: Path) -> Iterator[list[Any]]:
    """All of a run is deleted while it writes."""
    store = folder / "here" / "run.zarr"
    for operation in (ridge, gram):
        yield from at_every_write(folder, operation, 5, lambda: shutil.rmtree(store), lambda: None)


def read_only(folder: Path) -> Iterator[list[Any]]:
    """The file system is read-only, with finished work on it and without."""
    disk = folder / "read-only"
    mount(disk, "size=16m")
    expected = {}
    for operation in OPERATIONS:
        (disk / operation.__name__).mkdir()
        expected[operation] = operation(disk / operation.__name__)
    (disk / "new").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    found = [attempted(f"finished {op.__name__}", lambda op=op: op(disk / op.__name__)) for op in OPERATIONS]
    found += [attempted(f"new {op.__name__}", lambda op=op: op(disk / "new")) for op in OPERATIONS]
    precomputed = dkrr.KernelRidge(kernel="precomputed")
    found.append(attempted("gram as X", lambda: precomputed.fit(f"{disk}/gram/run.zarr", Y)))
    found.append(attempted("load", lambda: dkrr.load(disk / "save" / "model.zarr")))
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    are_right = all(is_answer(op, disk / op.__name__, expected[op]) for op in OPERATIONS)
    yield from ([*one, are_right] for one in found)


def limits(folder: Path) -> Iterator[list[Any]]:
    """Few open files (all may be in use already but for some), and small files only."""
    expected = {op: op(folder / op.__name__) for op in OPERATIONS if not (folder / op.__name__).mkdir()}
    of_files, of_size = resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_FSIZE)
    tried: list[tuple[list[str], Operation, Path]] = []

    def try_all(name: str, operations: tuple[Operation, ...]) -> None:
        for op in operations:
            at = folder / f"{name} {op.__name__}"
            at.mkdir()
            tried.append((attempted(at.name, lambda op=op, at=at: op(at)), op, at))

    resource.setrlimit(resource.RLIMIT_NOFILE, (64, of_files[1]))
    try_all("ulimit -n 64", OPERATIONS)
    for free in (1, 2, 3):
        files = []
        try:
            while True:
                files.append(Path(os.devnull).open())  # noqa: SIM115
        except OSError:
            for file in files[:free]:
                file.close()
        try_all(f"{free} files left", (ridge, gram, save))
        for file in files:
            file.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, of_files)
    for size in (100, 2000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, of_size[1]))
        try_all(f"{size} bytes", OPERATIONS)
        resource.setrlimit(resource.RLIMIT_FSIZE, of_size)
    for one, op, at in tried:
        yield [*one, is_answer(op, at, expected[op])]


def permissions(folder: Path) -> Iterator[list[Any]]:
    """Another user's folders and files, and no home directory (calibrate keeps its profile there by default)."""
    closed, others = folder / "closed", folder / "others"
    np.save(folder / "secret.npy", X)
    for at in (closed, others):
        at.mkdir()
        save(at)
        ridge(at)
    (folder / "secret.npy").chmod(0o600)
    (others / "model.zarr" / "dual_coef" / "c.0.0").chmod(0o600)
    closed.chmod(0o700)
    folder.chmod(0o755)
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    os.environ["HOME"] = "/nonexistent"
    os.environ.pop("XDG_CACHE_HOME", None)
    for op in OPERATIONS:
        for at in (closed, others):
            yield [*attempted(f"{at.name} {op.__name__}", lambda op=op, at=at: op(at)), True]
    plain = dkrr.KernelRidge(kernel="rbf")
    for name, call in {
        "X": lambda: plain.fit(str(folder / "secret.npy"), Y),
        "X in a closed folder": lambda: plain.fit(str(closed / "x.npy"), Y),
        "y": lambda: plain.fit(X, str(folder / "secret.npy")),
        "model in a closed folder": lambda: dkrr.load(closed / "model.zarr"),
        "part of a model": lambda: dkrr.load(others / "model.zarr"),
        "fit without a home directory": lambda: plain.fit(X, Y),
    }.items():
        yield [*attempted(name, call), True]
    for where in (None, "/nonexistent/folder", str(closed / "more"), str(others)):
        with dask.config.set({"dkrr.profile-directory": where}):
            yield [*attempted(f"calibrate with profiles in {where}", dkrr.calibrate), True]


CASES = (full_disk, vanished, deleted, read_only, limits, permissions)


def main(root: Path) -> None:
    warnings.simplefilter("ignore")
    dask.config.set({"dkrr.quick-measurement": False})
    for case in CASES:
        folder = root / case.__name__
        folder.mkdir()
        print(json.dumps([case.__name__, list(case(folder))]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
