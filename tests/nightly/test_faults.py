"""Faults of disks and permissions, caused for real: a clear error, nothing damaged, and the next call works.

As a program, which may mount, in a folder of its own, this module causes them. Each case prints a line of JSON: its
name, and what was found for every attempt: the name of the error ("" for none, and "raw ..." for one that is not of
dkrr), its message, and whether the next attempt, without the fault, gave the answer.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import warnings
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from unittest import mock

import dask
import dask.array
import numpy as np
import pytest

import dkrr
from dkrr.errors import DkrrError

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.guard
Found = dict[str, list[tuple[str, str, str, bool]]]


def in_a_namespace():
    """Beginning of a command that mounts file systems which nobody else sees; skips the test where none can."""
    unshare = ["unshare", "--mount"]
    if os.geteuid() != 0:
        pytest.skip("needs root: mounts, and a second user without the rights of the first")
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], check=False).returncode:
        pytest.skip("needs a namespace of its own for mounts")
    return unshare


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the program below found, which runs once: it mounts file systems that nobody else sees."""
    unshare = in_a_namespace()
    root = tmp_path_factory.mktemp("faults")
    for folder in (root, *root.parents[:2]):
        folder.chmod(0o755)  # for the other user
    command = [*unshare, sys.executable, "-m", "tests.nightly.test_faults", str(root)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines())


def check(attempts, *kinds):
    """Errors of these kinds (or none), and right answers afterwards."""
    wrong = [one for one in attempts if one[1] not in ("", *kinds) or not one[3]]
    assert not wrong, "\n".join(map(str, wrong))


def test_a_disk_that_is_full_from_any_write_on(found):
    attempts = found["full_disk"]
    check(attempts, "DiskSpaceError")
    errors = [message for _, kind, message, _ in attempts if kind]
    assert len(errors) > 70 and all("No space left on device. Free some space" in message for message in errors)


def test_a_disk_or_a_store_that_vanishes(found):
    check(found["vanished"], "StoreError", "UnreachableStoreError", "BusyStoreError", "DamagedChunkError")
    assert sum(kind != "" for _, kind, _, _ in found["vanished"]) > 20


def test_a_file_system_for_reading_only(found):
    attempts = found["read_only"]
    check(attempts, "StoreError", "UnreachableStoreError")
    worked = {name for name, kind, _, _ in attempts if not kind}
    # A primal fit in tiles writes its training errors, and says that it cannot.
    finished = {f"finished {name}" for name in ("ridge", "iterated", "logistic", "search", "gram")}
    assert worked == {*finished, "gram as X", "load"}
    errors = [message for _, kind, message, _ in attempts if kind]
    assert all("Read-only file system" in one and "Mount the file system for writing" in one for one in errors)


def test_few_open_files_and_small_files_only(found):
    attempts = found["limits"]
    check(attempts, "StoreError", "UnreachableStoreError", "DiskSpaceError")
    failed = {name: message for name, kind, message, _ in attempts if kind}
    assert not [name for name in failed if name.startswith("ulimit -n 64")]
    assert "Allow more open files (ulimit -n)" in failed["1 files left ridge"]
    assert "Allow larger files (ulimit -f)" in failed["2000 bytes ridge"]


def test_folders_and_files_of_another_user(found):
    attempts = found["permissions"]
    check(attempts, "StoreError", "UnreachableStoreError", "InputError")
    failed = {name: message for name, kind, message, _ in attempts if kind}
    assert {name for name, _, _, _ in attempts} - failed.keys() == {"fit without a home directory"}
    assert "ermission denied" in failed["calibrate"]
    assert all("ermission denied" in failed[name] for name in ("closed ridge", "X", "y", "part of a model"))


# The program

X = np.random.default_rng(0).normal(size=(96, 3))
Y = X[:, 0]
TILED = {"kernel": "rbf", "tile": 32}
CHOLESKY = {**TILED, "solver": "cholesky"}
PRIMAL = {"kernel": "linear", "form": "primal", "tile": 32}
TOLERANCES = {"search": 1e-8 * float(np.linalg.norm(Y)) / 0.1}
"""Largest error of coefficients by conjugate gradient, whose cycles a resumed search begins elsewhere: tol ‖y‖ / λ,
since K + λI has no eigenvalue below λ. Those of the others, of which entries are up to 2, are within 1e-8."""


def save(at):
    dkrr.save(dkrr.KernelRidge(0.1, kernel="rbf").fit(X, Y), at / "model.zarr", overwrite=True)
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
        return bool(abs(OPERATIONS[name](at) - expected).max() <= TOLERANCES.get(name, 1e-8))
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
    opened, opened_file, seen = os.open, open, list[int]()

    def note(path):
        if str(path).startswith(str(root)):
            seen.append(len(seen) + 1)
            if seen[-1] == number:
                fault()

    def watched(path, flags, *more, **named):
        if flags & (os.O_WRONLY | os.O_RDWR):
            note(path)
        return opened(path, flags, *more, **named)

    def watched_file(path, mode="r", *more, **named):
        if set(mode) & set("wxa+"):
            note(path)
        return opened_file(path, mode, *more, **named)

    with mock.patch.object(os, "open", watched), mock.patch("builtins.open", watched_file):
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
    for name in ("ridge", "gram"):  # all of a run is deleted
        yield from at_every_write(folder, name, 5, lambda: shutil.rmtree(at / "run.zarr"))


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
    """Few open files (all may be in use already but for one), and small files only."""
    expected, tried = in_folders(folder), []

    def try_all(title, what, value, names=OPERATIONS, are_in_use=False):
        before = resource.getrlimit(what)
        resource.setrlimit(what, (value, before[1]))
        with ExitStack() as stack:
            with suppress(OSError):
                while are_in_use:
                    file = stack.enter_context(Path(os.devnull).open())
            if are_in_use:
                file.close()
            for name in names:
                at = folder / f"{title} {name}"
                at.mkdir()
                tried.append((attempted(at.name, partial(OPERATIONS[name], at)), name, at))
        resource.setrlimit(what, before)

    try_all("ulimit -n 64", resource.RLIMIT_NOFILE, 64)
    try_all("1 files left", resource.RLIMIT_NOFILE, 64, ("ridge", "gram", "save"), True)
    try_all("2000 bytes", resource.RLIMIT_FSIZE, 2000)
    for one, name, at in tried:
        yield [*one, is_answer(name, at, expected[name])]


def permissions(folder):
    """Another user's folders and files, and no home directory."""
    closed, others, secret = folder / "closed", folder / "others", str(folder / "secret.npy")
    np.save(secret, X)
    for at in (closed, others):
        at.mkdir()
        save(at)
        OPERATIONS["ridge"](at)
    Path(secret).chmod(0o600)
    (others / "model.zarr" / "dual_coef" / "c.0.0").chmod(0o600)
    closed.chmod(0o700)
    folder.chmod(0o755)
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    os.environ["HOME"] = "/nonexistent"
    os.environ.pop("XDG_CACHE_HOME", None)
    plain = dkrr.KernelRidge(kernel="rbf")
    calls = {
        "X": lambda: plain.fit(secret, Y),
        "X in a closed folder": lambda: plain.fit(str(closed / "x.npy"), Y),
        "y": lambda: plain.fit(X, secret),
        "model in a closed folder": lambda: dkrr.load(closed / "model.zarr"),
        "part of a model": lambda: dkrr.load(others / "model.zarr"),
        "fit without a home directory": lambda: plain.fit(X, Y),
    }
    calls |= {f"{at.name} {name}": partial(OPERATIONS[name], at) for name in OPERATIONS for at in (closed, others)}
    for each in calls.items():
        yield [*attempted(*each), True]
    with dask.config.set({"dkrr.profile-directory": str(others)}):
        yield [*attempted("calibrate", dkrr.calibrate), True]


CASES = (full_disk, vanished, read_only, limits, permissions)


def main(root):
    warnings.simplefilter("ignore")
    dask.config.set({"dkrr.quick-measurement": False})
    for case in CASES:
        folder = root / case.__name__
        folder.mkdir()
        print(json.dumps([case.__name__, list(case(folder))]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
