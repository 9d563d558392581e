"""Damage to models before they are loaded, and to the stores of runs between a kill and the next call.

What is done to a store is drawn at random: what disks, copies, people and mistakes do to files. No operation knows what
the files hold. Models are loaded, and runs resumed, in processes kept warm.
"""

import atexit
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import scipy.sparse as sp

import dkrr
from dkrr.cluster.local_workers import LocalWorkers
from dkrr.features import Nystroem, RandomFourier
from dkrr.kernels import RBF, BagOfWords, Columns, Linear, Matern, Polynomial
from tests.nightly.chaos.fits import FITS, Fitted, fitted, same
from tests.nightly.chaos.outcomes import GOOD, Outcome, of_error, words
from tests.nightly.chaos.processes import ENVIRONMENT, FIT, started

Random = np.random.Generator
MAX_DRAWS = 200
"""Draws until one changes something."""


@cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="damage-")


def _folder() -> Path:
    """Folder of this process for its models and runs: deleted when it ends, but not where it is killed."""
    return Path(_temporary().name)


# Operations ---------------------------------------------------------------------------------------------------------


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


def flip_bit(content: bytes, rng: Random) -> bytes:
    changed = bytearray(content)
    if content:
        changed[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def scatter_bytes(content: bytes, rng: Random) -> bytes:
    changed = bytearray(content)
    for _ in range(int(rng.integers(2, 65)) if content else 0):
        changed[rng.integers(len(content))] = int(rng.integers(256))
    return bytes(changed)


def zero_range(content: bytes, rng: Random) -> bytes:
    start, stop = np.sort(rng.integers(len(content) + 1, size=2)).tolist()
    return content[:start] + bytes(stop - start) + content[stop:]


def exchange_blocks(content: bytes, rng: Random) -> bytes:
    """Two parts of a file trade places, at multiples of 8 bytes."""
    units, changed = len(content) // 8, bytearray(content)
    if units > 1:
        width = int(rng.integers(1, units // 2 + 1))
        parts = [slice(8 * k * width, 8 * (k + 1) * width) for k in rng.choice(units // width, 2, replace=False)]
        changed[parts[0]], changed[parts[1]] = content[parts[1]], content[parts[0]]
    return bytes(changed)


def change_character(characters: bytes, content: bytes, rng: Random) -> bytes:
    """Another one of some characters in a text: with another digit it stays valid JSON."""
    places = [k for k, code in enumerate(content) if code in characters]
    if not places or not content.isascii():
        return content
    at = places[int(rng.integers(len(places)))]
    return content[:at] + bytes([characters[int(rng.integers(len(characters)))]]) + content[at + 1 :]


def swap_files(scene: Scene, file: Path, rng: Random) -> None:
    """Two files trade places, mostly two of the same size."""
    other, mine = _another(scene, file, rng), file.read_bytes()
    file.write_bytes(other.read_bytes())
    other.write_bytes(mine)


def _another(scene: Scene, file: Path, rng: Random) -> Path:
    """Another file, mostly one of the same size; the file itself if there is no other."""
    files = [f for f in scene.files() if f != file] or [file]
    alike = [f for f in files if f.stat().st_size == file.stat().st_size]
    return _one(alike if alike and rng.random() < 0.7 else files, rng)


def _one(paths: Sequence[Path], rng: Random) -> Path:
    return paths[int(rng.integers(len(paths)))]


def take_file(scene: Scene, file: Path, rng: Random, places: Sequence[Path]) -> None:
    """The file of the same name of one of some stores."""
    found = [p for p in (place / file.relative_to(scene.folder) for place in places) if p.is_file()]
    file.write_bytes(_one(found or [file], rng).read_bytes())


def take_foreign_folder(scene: Scene, file: Path, rng: Random) -> None:
    """All of a folder as another store, or an earlier version, has it."""
    name = file.parent.relative_to(scene.folder)
    found = [p / name for p in (*scene.foreign, *scene.older) if (p / name).is_dir()]
    if found and file.parent != scene.folder:
        shutil.rmtree(file.parent)
        shutil.copytree(_one(found, rng), file.parent)


def empty_folder(scene: Scene, file: Path, rng: Random) -> None:
    folder = _one_above(scene, file, rng)
    shutil.rmtree(folder)
    folder.mkdir()


def _one_above(scene: Scene, file: Path, rng: Random) -> Path:
    """A folder that holds the file, the store's own too."""
    return _one([p for p in file.parents if p == scene.folder or scene.folder in p.parents], rng)


CONTENTS: dict[str, Callable[[bytes, Random], bytes]] = {
    "bit flipped": flip_bit,
    "bytes changed": scatter_bytes,
    "range of zeros": zero_range,
    "all zeros": lambda content, rng: bytes(len(content)),
    "truncated": lambda content, rng: content[: int(rng.integers(len(content) or 1))],
    "empty file": lambda content, rng: b"",
    "bytes appended": lambda content, rng: content + rng.bytes(int(rng.integers(1, 65))) * int(rng.integers(1, 65)),
    "parts exchanged": exchange_blocks,
    "digit changed": partial(change_character, b"0123456789"),
    "letter changed": partial(change_character, bytes(range(97, 123))),
}
"""f(content of a file, rng) → another one, or the same if it cannot be changed so."""
FILES: dict[str, Callable[[Scene, Path, Random], Any]] = {
    "file deleted": lambda scene, file, rng: file.unlink(),
    "files swapped": swap_files,
    "another file copied over": lambda scene, file, rng: file.write_bytes(_another(scene, file, rng).read_bytes()),
    "file of an older version": lambda scene, file, rng: take_file(scene, file, rng, scene.older),
    "file of another store": lambda scene, file, rng: take_file(scene, file, rng, scene.foreign),
    "folder of another store": take_foreign_folder,
    "folder emptied": empty_folder,
    "folder deleted": lambda scene, file, rng: shutil.rmtree(_one_above(scene, file, rng)),
    "file not readable": lambda scene, file, rng: file.chmod(0),
    "folder closed": lambda scene, file, rng: _one_above(scene, file, rng).chmod(0o500 * int(rng.integers(2))),
    "folder in place of a file": lambda scene, file, rng: [step() for step in (file.unlink, file.mkdir)],
}
"""f(scene, file, rng): changes something, if it can."""
OPERATIONS = (*CONTENTS, *FILES)
"""Names of all. New ones are appended: trials count them."""


def state(folder: Path) -> dict[str, tuple[int, bytes | None]]:
    """Permissions and contents of all that a folder holds, as far as they can be read, and its own."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        is_readable = path.is_file() and os.access(path, os.R_OK)
        found[str(path.relative_to(folder))] = path.stat().st_mode, path.read_bytes() if is_readable else None
    return found


def damage(scene: Scene, rng: Random, operation: str) -> str | None:
    """Damage a folder once, and say what was done; None if no file of it can be damaged so."""
    before = state(scene.folder)
    for _ in range(MAX_DRAWS):
        files = scene.files()
        if rng.random() < 0.5:  # else a folder with many chunks would take nearly all
            chosen = _one(sorted({f.parent for f in files}), rng)
            files = [f for f in files if f.parent == chosen]
        file = _one(files, rng)
        if operation in CONTENTS:
            file.write_bytes(CONTENTS[operation](file.read_bytes(), rng))
        else:
            FILES[operation](scene, file, rng)
        if not scene.folder.exists() or state(scene.folder) != before:
            return f"{operation}: {file.relative_to(scene.folder)}"
    return None


def open_again(folder: Path) -> None:
    """Give back the permissions of a folder and of all folders in it, so that it can be deleted."""
    folder.chmod(0o700)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            open_again(path)


# Trials -------------------------------------------------------------------------------------------------------------


Draw = tuple[Scene, str, Callable[[Path], tuple[Outcome, str]]]
"""What a trial damages a copy of, a description, and the outcome of the use of the copy."""


def trial(part: str, seed: int, number: int, only: list[str], places: list[str]) -> dict[str, Any]:
    """Damage a copy of a model, or of the store of a run that was killed, and use it.

    Parameters
    ----------
    part : {"models", "runs"}
    seed, number : int
    only : list of str
        Kinds of models, or fits, to choose from; empty: all.
    places : list of str
        Places where runs are resumed, to choose from: here, cluster.
    """
    rng = np.random.default_rng([seed, number])
    operation, names = OPERATIONS[number % len(OPERATIONS)], only or list(KINDS if part == "models" else FITS)
    name, other = (names[int(rng.integers(len(names)))] for _ in range(2))
    scene, about, judged = _model(name, other) if part == "models" else _run(name, other, operation, places, rng)
    folder = Path(tempfile.mkdtemp(prefix=f"trial-{number}-", dir=_folder()))
    path, as_damaged = folder / "store.zarr", folder / "as-damaged.zarr"
    found, outcome = {"row": operation, "group": name}, None
    try:
        shutil.copytree(scene.folder, path)
        done = damage(replace(scene, folder=path), rng, operation)
        if done is None:
            return {**found, "outcome": (outcome := Outcome.HARMLESS), "what": "nothing", "count": 0}
        if path.exists() and operation not in ("folder closed", "file not readable"):
            shutil.copytree(path, as_damaged)
        outcome, detail = judged(path)
        where = "" if outcome in GOOD else f"; {as_damaged}"
        return {**found, "outcome": outcome, "what": f"{about}{where}; {done}", "detail": detail}
    finally:
        open_again(folder)
        if outcome is None or outcome in GOOD:
            shutil.rmtree(folder)


# Models -------------------------------------------------------------------------------------------------------------

N, N_NEW, D = 90, 11, 4
_RNG = np.random.default_rng(15)
_WORDS = ("kernel", "ridge", "matrix", "tile", "store", "worker", "plan", "chunk", "λ", "row", "gram", "error")
_X, _WIDE = _RNG.standard_normal((N + N_NEW, D)), _RNG.standard_normal((N + N_NEW, 3 * D))
_SPARSE = sp.csr_array(np.where(np.abs(_WIDE) > 0.8, _WIDE, 0.0))
_TEXTS = [" ".join(_RNG.choice(_WORDS, size=size)) for size in _RNG.integers(3, 9, N + N_NEW)]
_TABLE = pd.DataFrame({"text": _TEXTS, "a": _X[:, 0], "b": _X[:, 1]})
_ridge = partial(dkrr.KernelRidge, 0.1)
_logistic = partial(dkrr.KernelLogisticRegression, 0.1)
FROM_STORE = "read from the store"

KINDS: dict[str, tuple[Any, Any]] = {
    "RBF": (_ridge(kernel="rbf", gamma=0.3, fit_intercept=True), _X),
    "linear": (_ridge(kernel="linear", fit_intercept=True), _X),
    "polynomial": (_ridge(kernel="polynomial", degree=2, form="primal"), _X),
    "sum and product": (_ridge(kernel=RBF(gamma=0.2) + 2.0 * Matern(nu=0.5) * Linear()), _X),
    "sparse rows": (_ridge(kernel=Polynomial(degree=3), form="dual"), _SPARSE),
    "Nyström": (_ridge(kernel=Nystroem(RBF(gamma=0.3), 20)), _X),
    "random Fourier": (_ridge(kernel=RandomFourier(RBF(gamma=0.3), 40)), _X),
    "documents": (_ridge(kernel=BagOfWords()), _TEXTS),
    "table": (_ridge(kernel=Columns(BagOfWords(), ["text"]) + Columns(RBF(gamma=0.3), ["a", "b"])), _TABLE),
    f"rows {FROM_STORE}": (_ridge(kernel="laplacian"), _X),
    f"sparse rows {FROM_STORE}": (_ridge(kernel=Polynomial(degree=3), form="dual"), _SPARSE),
    "logistic": (_logistic(kernel="rbf", gamma=0.3), _X),
    "logistic, primal": (_logistic(kernel="linear"), _X),
    "search": (dkrr.KernelRidgeCV([0.01, 1.0], kernel="rbf", gamma=0.3, cv=3), _X),
}
"""Kinds of models: the estimator, and its training rows with N_NEW new ones behind them."""


@dataclass(frozen=True)
class Saved:
    """A model that was saved, and what it predicts."""

    name: str
    path: Path
    predictions: tuple[Any, ...]


@cache
def saved(name: str, version: int) -> Saved:
    """Model of a kind; versions differ in their targets only, so that all their files have the same names."""
    (estimator, rows), rng = KINDS[name], np.random.default_rng([15, version])
    labels = np.arange(N) % (2 if "primal" in name else 3)
    y = rng.permutation(labels) if name.startswith("logistic") else rng.standard_normal((N, 2))
    path = _folder() / f"model-{list(KINDS).index(name)}-{version}.zarr"
    dkrr.save(estimator.fit(rows[:N], y), path)
    return Saved(name, path, _predictions(name, path))


def _predictions(name: str, path: Path) -> tuple[Any, ...]:
    """All numbers that a model gives."""
    with mock.patch("dkrr.estimators.saving.IN_MEMORY_BYTES", 0 if FROM_STORE in name else 256 * 2**20):
        model, X_new = dkrr.load(path), KINDS[name][1][N:]
    found = [model.predict(X_new)]
    if hasattr(model, "predict_proba"):
        found.append(model.predict_proba(X_new))
    found += [np.asarray(getattr(model, each)) for each in ("dual_coef_", "coef_") if hasattr(model, each)]
    return tuple(found)


def _model(name: str, other: str) -> Draw:
    original = saved(name, 0)
    foreign = saved(other, 1 if other == name else 0)
    return Scene(original.path, [saved(name, 1).path], [foreign.path]), name, partial(loaded_outcome, original)


def loaded_outcome(original: Saved, path: Path) -> tuple[Outcome, str]:
    """Outcome of loading a damaged copy of a model: identical predictions and coefficients, or an error."""
    try:
        with warnings.catch_warnings(record=True) as noted:
            warnings.simplefilter("always")
            found = _predictions(original.name, path)
    except Exception as error:
        return of_error(error, str(path))
    is_same = len(found) == len(original.predictions) and all(
        a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(found, original.predictions, strict=True)
    )
    outcome = Outcome.WRONG if not is_same else Outcome.REPAIRED if noted else Outcome.HARMLESS
    return outcome, words(w.message for w in noted)


# Runs ---------------------------------------------------------------------------------------------------------------

NUMBER = re.compile(r"[\d.]+(e[+-]\d+)?")
N_SNAPSHOTS = 6
"""States of one run that are kept, besides the finished one."""
ON_WORKERS = 5
"""One trial of so many is resumed on workers."""
N_WORKERS, WORKER_BYTES = 2, 2**30


@cache
def reference(name: str) -> Fitted:
    """What the undisturbed run gives."""
    with tempfile.TemporaryDirectory(dir=_folder()) as folder:
        return fitted(name, f"{folder}/run.zarr")


@cache
def another(name: str) -> Path:
    """Store of a finished run with other data."""
    store = _folder() / f"run-{list(FITS).index(name)}-of-others" / "run.zarr"
    store.parent.mkdir()
    fitted(name, str(store), version=1)
    return store


@cache
def snapshots(name: str) -> tuple[Path, ...]:
    """Stores of a run as a kill leaves them at several moments, and when it is finished.

    The process is stopped at each of them, its store copied, and the process continued.
    """
    folder = _folder() / f"run-{list(FITS).index(name)}"
    store, seconds = folder / "run.zarr", reference(name).seconds
    folder.mkdir()
    command = [sys.executable, "-c", FIT, json.dumps({"name": name, "store": str(store)})]
    process = started(command, folder / "log", ENVIRONMENT)
    found: list[Path] = []
    while process.poll() is None:
        time.sleep(seconds / (N_SNAPSHOTS + 1) if store.exists() else 0.001)
        process.send_signal(signal.SIGSTOP)
        with suppress(ChildProcessError):  # it has ended; else all its threads have stopped then
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        has_files = any(path.is_file() for path in store.rglob("*"))
        if has_files and process.poll() is None and len(found) < 2 * N_SNAPSHOTS:
            found.append(folder / f"at-{len(found)}.zarr")
            shutil.copytree(store, found[-1])
        process.send_signal(signal.SIGCONT)
    if process.returncode:
        raise RuntimeError(f"the undisturbed fit failed: status {process.returncode}")
    return (*found, store)


@cache
def _client() -> Any:
    """Client of workers that are kept between trials."""
    stack = ExitStack()
    atexit.register(stack.close)
    workers = stack.enter_context(LocalWorkers(N_WORKERS, WORKER_BYTES, str(_folder())))
    return stack.enter_context(workers.client())


def _run(name: str, other: str, operation: str, places: list[str], rng: Random) -> Draw:
    place = "cluster" if rng.integers(ON_WORKERS) == 0 else "here"
    place = place if place in places else places[0]
    states = snapshots(name)
    moment = int(rng.integers(operation == "file of an older version", len(states)))
    about = f"{name}, {place}, state {moment} of {len(states)}"
    scene = Scene(states[moment], states[:moment], [another(name), another(other)])
    return scene, about, partial(resumed_outcome, name, place)


def resumed_outcome(name: str, place: str, store: Path) -> tuple[Outcome, str]:
    """Outcome of resuming a run whose store was damaged: the undisturbed result, or an error."""
    expected, before = reference(name), dict[str, int]()
    with ExitStack() as stack:
        if place == "cluster":
            _client().wait_for_workers(N_WORKERS, timeout=60)  # one that has died is started again
            stack.enter_context(_client().as_current())
            before = _client().run(os.getpid)
        try:
            found = fitted(name, str(store), place)
        except Exception as error:
            outcome, detail = of_error(error, str(store))
        else:
            usual, news = ({NUMBER.sub("0", text): text for text in one.said} for one in (expected, found))
            detail = words(text for key, text in news.items() if key not in usual)
            outcome = Outcome.REPAIRED if detail else Outcome.HARMLESS
            outcome = outcome if same(name, found, expected) else Outcome.WRONG
        if before and before != _client().run(os.getpid):
            return Outcome.CRASH, f"a worker died; {detail}"
    return outcome, detail
