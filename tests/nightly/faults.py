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
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from unittest import mock

import dask
import dask.array
import numpy as np

import dkrr
from dkrr.errors import DkrrError

X = np.random.default_rng(0).normal(size=(96, 3))
Y = X[:, 0]
TILED = {"kernel": "rbf", "tile": 32}
MODEL = dkrr.KernelRidge(0.1, kernel="rbf").fit(X, Y)
CHOLESKY = {**TILED, "solver": "cholesky"}
PRIMAL = {"kernel": "linear", "form": "primal", "tile": 32}


def save(at):
    dkrr.save(MODEL, at / "model.zarr", overwrite=True)
    return dkrr.load(at / "model.zarr").dual_coef_


def fit(estimator, at, y=Y, rows=X):
    fitted = estimator.set_params(store=f"{at}/run.zarr").fit(rows, y)
    return fitted.coef_ if fitted.form == "primal" else fitted.dual_coef_


OPERATIONS = {
    "ridge": lambda at: fit(dkrr.KernelRidge(0.1, **CHOLESKY), at),
    "iterated": lambda at: fit(dkrr.KernelRidge(0.1, **TILED, solver="cg"), at),
    "copied": lambda at: fit(dkrr.KernelRidge(0.1, **CHOLESKY), at, rows=dask.array.from_array(X, chunks=(40, 3))),
    "primal": lambda at: fit(dkrr.KernelRidge(0.1, **PRIMAL), at),
    "logistic": lambda at: fit(dkrr.KernelLogisticRegression(0.1, **TILED), at, Y > 0),
    "search": lambda at: fit(dkrr.KernelRidgeCV((0.1, 1.0), **TILED), at),
    "gram": lambda at: dkrr.gram(X, kernel="rbf", chunks=32, store=f"{at}/run.zarr").compute(),
    "save": save,
}
"""f(folder): writes there, and returns its answer."""


def attempted(name, call):
    try:
        call()
    except DkrrError as error:
        return [name, type(error).__name__, str(error)]
    except Exception as error:
        return [name, f"raw {type(error).__name__}", str(error)]
    return [name, "", ""]


def is_answer(name, at, expected):
    try:
        return bool(abs(OPERATIONS[name](at) - expected).max() <= 1e-8)  # of conjugate gradient; entries are up to 2
    except Exception as error:
        print(f"{name} in {at}: {error!r}", file=sys.stderr)
        return False


def in_folders(root):
    """Answers of all operations, each in a folder of its name."""
    for name in OPERATIONS:
        (root / name).mkdir()
    return {name: operation(root / name) for name, operation in OPERATIONS.items()}


@contextmanager
def at_the_write(number, root, fault):
    """Cause a fault at one of the openings of files for writing below a folder; a list of those that were seen."""
    opened, seen = os.open, list[int]()

    def watched(path, flags, *more, **named):
        if flags & (os.O_WRONLY | os.O_RDWR) and str(path).startswith(str(root)):
            seen.append(len(seen) + 1)
            if seen[-1] == number:
                fault()
        return opened(path, flags, *more, **named)

    with mock.patch.object(os, "open", watched):
        yield seen


def mount(folder, options):
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)


def at_every_write(folder, name, step, fault, mend=int):
    """One attempt for every write of an operation: the fault comes there, and is mended before the next attempt."""
    at, operation = folder / "here", OPERATIONS[name]
    at.mkdir()
    expected, number, is_caused = operation(at), 1, True
    while is_caused:
        shutil.rmtree(at)
        at.mkdir()
        if operation is save:
            save(at)
        with at_the_write(number, folder, fault) as seen:
            found = attempted(f"{name} {number}", lambda: operation(at))
        mend()
        yield [*found, is_answer(name, at, expected)]
        is_caused, number = number in seen, number + step
    shutil.rmtree(at)


def full_disk(folder):
    """The disk is full from one of the writes on."""
    disk = folder / "disk"
    mount(disk, "size=2m")
    filler = disk / "filler"

    def fill():
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"x" * 4096)

    for name, step in (("ridge", 1), ("copied", 3), ("gram", 1), ("save", 1), ("search", 23)):
        yield from at_every_write(disk, name, step, fill, lambda: filler.unlink(missing_ok=True))


def vanished(folder):
    """The disk is unmounted at one of the writes, and comes back with all that was on it."""
    at, away = folder / "here", folder / "away"
    for name in ("ridge", "copied", "gram", "save"):
        yield from at_every_write(folder, name, 5, lambda: at.rename(away), lambda: away.exists() and away.rename(at))


def deleted(folder):
    """All of a run is deleted while it writes."""
    for name in ("ridge", "gram"):
        yield from at_every_write(folder, name, 5, lambda: shutil.rmtree(folder / "here" / "run.zarr"))


def read_only(folder):
    """The file system is read-only, with finished work on it and without."""
    disk = folder / "read-only"
    mount(disk, "size=16m")
    expected = in_folders(disk)
    (disk / "new").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    calls = {f"finished {name}": partial(operation, disk / name) for name, operation in OPERATIONS.items()}
    calls |= {f"new {name}": partial(operation, disk / "new") for name, operation in OPERATIONS.items()}
    calls["gram as X"] = lambda: dkrr.KernelRidge(kernel="precomputed").fit(f"{disk}/gram/run.zarr", Y)
    calls["load"] = lambda: dkrr.load(disk / "save" / "model.zarr")
    found = [attempted(*each) for each in calls.items()]
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    are_right = all(is_answer(name, disk / name, answer) for name, answer in expected.items())
    yield from ([*one, are_right] for one in found)


def limits(folder):
    """Few open files (all may be in use already but for some), and small files only."""
    expected = in_folders(folder)
    of_files, of_size = resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_FSIZE)
    tried = []

    def try_all(title, names):
        for name in names:
            at = folder / f"{title} {name}"
            at.mkdir()
            tried.append((attempted(at.name, partial(OPERATIONS[name], at)), name, at))

    resource.setrlimit(resource.RLIMIT_NOFILE, (64, of_files[1]))
    try_all("ulimit -n 64", OPERATIONS)
    for free in (1, 2, 3):
        files = []
        with suppress(OSError):
            while True:
                files.append(Path(os.devnull).open())  # noqa: SIM115
        for file in files[:free]:
            file.close()
        try_all(f"{free} files left", ("ridge", "gram", "save"))
        for file in files:
            file.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, of_files)
    for size in (100, 2000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, of_size[1]))
        try_all(f"{size} bytes", OPERATIONS)
        resource.setrlimit(resource.RLIMIT_FSIZE, of_size)
    for one, name, at in tried:
        yield [*one, is_answer(name, at, expected[name])]


CASES = (full_disk, vanished, deleted, read_only, limits)


def main(root):
    warnings.simplefilter("ignore")
    dask.config.set({"dkrr.quick-measurement": False})
    for case in CASES:
        folder = root / case.__name__
        folder.mkdir()
        print(json.dumps([case.__name__, list(case(folder))]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
