"""Kills of fits at random times: every process x way to solve x place x signal; the run is resumed, and compared.

An episode begins with an empty store and ends with a result: until then fits of the same call are started, and
processes of them killed.
"""

import contextlib
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from tests.nightly.chaos.fits import FITS, Fitted, same
from tests.nightly.chaos.outcomes import Outcome, words
from tests.nightly.chaos.processes import GONE_SECONDS, Cluster, FitProcess, left_of_session

TARGETS: dict[str, dict[str, tuple[str, ...]]] = {
    "here": {"process": ("SIGKILL", "SIGTERM", "SIGINT")},
    "here, no store": {"process": ("SIGTERM", "SIGINT")},
    "own workers": {
        "process group": ("SIGKILL", "SIGTERM", "SIGINT"),
        "client": ("SIGKILL", "SIGTERM"),
        "scheduler": ("SIGKILL", "SIGTERM"),
        "worker": ("SIGKILL", "SIGTERM"),
    },
    "own workers, no store": {"process group": ("SIGTERM", "SIGINT"), "client": ("SIGTERM",)},
    "cluster": {
        "client": ("SIGKILL", "SIGTERM", "SIGINT"),
        "scheduler": ("SIGKILL",),
        "nanny": ("SIGKILL",),
        "worker": ("SIGKILL", "SIGTERM"),
    },
}
"""Processes of each place and the signals that they are sent. Ctrl-C in a terminal is SIGINT to the process group."""
OWNERS = ("process", "client", "process group")
"""Targets with the process that called dkrr: a kill ends the fit."""
MANY = ("worker", "nanny")
"""Targets of which there are several: they are killed again and again within one fit."""
SHARES = {"here": 50, "here, no store": 4, "own workers": 14, "own workers, no store": 3, "cluster": 29}
"""Episodes of each place among a hundred."""
WORKER_SHARE = 3
"""Times that a worker is chosen for once that another process is."""
MAX_KILLS = {"here": 4, "here, no store": 1, "own workers": 4, "own workers, no store": 1, "cluster": 8}
"""Kills of an episode; of one fit in which workers are killed."""
FIT_SECONDS = 240.0
"""Limit of one fit, on a machine that does other work."""
FIRST_SECONDS = {"here": 1.0, "own workers": 6.0, "cluster": 2.0}
"""Expected time of a fit, until one was seen."""


@dataclass(frozen=True)
class Episode:
    """What is fitted, where, and what is killed how."""

    place: str
    target: str
    signal: str
    name: str

    @property
    def row(self) -> str:
        """Line of the table."""
        return f"{self.place}: {self.target}, {self.signal}"

    @property
    def fit_place(self) -> str:
        """Place as `fits` knows it."""
        return self.place.removesuffix(", no store")


def episodes(seed: int) -> Iterator[Episode]:
    """Episodes of a campaign, without end: every combination of a place in a random order, then in another one."""
    rng = random.Random(seed)
    places = {place: _shuffled(place, rng) for place in TARGETS}
    while True:
        hundred = [place for place, n in SHARES.items() for _ in range(n)]
        rng.shuffle(hundred)
        for place in hundred:
            yield next(places[place])


def _shuffled(place: str, rng: random.Random) -> Iterator[Episode]:
    while True:
        found = []
        for target, signals in TARGETS[place].items():
            times = WORKER_SHARE if target == "worker" else 1
            found += [Episode(place, target, one, name) for one in signals for name in FITS] * times
        rng.shuffle(found)
        yield from found


@cache
def _folder() -> Path:
    """Folder of this process."""
    return Path(tempfile.mkdtemp(prefix="kills-"))


@cache
def shared_cluster() -> Cluster:
    """A cluster, which the episodes of this process share; not started yet. It ends with this process."""
    return Cluster(_folder() / "cluster")


UNDISTURBED: dict[tuple[str, str], float] = {}
"""Longest time of a fit that nothing disturbed, by place and name."""


@cache
def reference(name: str) -> tuple[Fitted, int]:
    """Result of the uninterrupted fit, in the calling process with a store, and the number of its files."""
    with tempfile.TemporaryDirectory(dir=_folder()) as folder:
        fit = FitProcess(Path(folder, "fit"), name, Path(folder, "run"), "here")
        if fit.wait(FIT_SECONDS) != 0:
            raise RuntimeError(f"the undisturbed fit failed: {fit.words()}")
        return fit.answer(), _count(Path(folder, "run"))


def episode(place: str, target: str, signal_name: str, name: str, seed: int, number: int) -> dict[str, Any]:
    """Carry out an episode, and judge it."""
    one = Episode(place, target, signal_name, name)
    folder = _folder() / f"episode-{number}"
    folder.mkdir()
    trial = _Trial(one, folder, random.Random(f"{seed}-{number}"))
    try:
        reference(name)
        outcome, detail = trial.run()
    finally:
        trial.end()
    what = f"{name}, {one.row}: {trial.n_kills} kills at {', '.join(trial.moments)}"
    if outcome == Outcome.HARMLESS:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        what += f"; {folder}"
    return {"row": one.row, "group": name, "outcome": outcome, "count": trial.n_kills, "what": what, "detail": detail}


def _count(store: Path | None) -> int:
    return 0 if store is None else sum(len(files) for _, _, files in os.walk(store))


def _chunks(store: Path | None) -> dict[str, tuple[int, int]]:
    """Identities of the files of factors, which are written once."""
    found = {}
    for path in [] if store is None else store.rglob("factor/*"):
        with contextlib.suppress(OSError):
            if path.is_file() and not path.name.endswith((".json", ".partial")):
                status = path.stat()
                found[str(path)] = (status.st_ino, status.st_mtime_ns)
    return found


@dataclass
class _Trial:
    """One episode as it goes on."""

    one: Episode
    folder: Path
    rng: random.Random
    n_kills: int = 0
    moments: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    fits: list[FitProcess] = field(default_factory=list)
    before: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Chunks when the fit started."""
    killed_threads: int = 0

    @property
    def store(self) -> Path | None:
        """Store of the run: without one nothing is looked at there."""
        return None if self.one.place.endswith("no store") else self.folder / "run"

    def run(self) -> tuple[Outcome, str]:
        """Kill and resume until there is a result."""
        while True:
            may_kill = self._may_kill()
            fit = self._start()
            while self._may_kill() and self._moment(fit):
                if self._kill(fit):
                    self.n_kills += 1
                    self.moments.append(f"{time.monotonic() - fit.started:.2f} s ({_count(self.store)} files)")
                if self.one.target not in MANY:
                    break
            status = fit.wait(FIT_SECONDS)
            failure = self._judged(fit, status, is_disturbed=may_kill) or self._tidy(fit, status) or self._redone()
            if failure is not None:
                return failure
            if status == 0:
                is_same = same(self.one.name, fit.answer(), reference(self.one.name)[0])
                return (Outcome.HARMLESS, words(self.errors)) if is_same else (Outcome.WRONG, words(fit.answer().said))

    def end(self) -> None:
        """Leave no process behind."""
        for fit in self.fits:
            if fit.poll() is None:
                fit.wait(0.0)
            left_of_session(fit.pid, 0.0)

    def _may_kill(self) -> bool:
        return self.n_kills < MAX_KILLS[self.one.place]

    def _start(self) -> FitProcess:
        address = None
        if self.one.fit_place == "cluster":
            address = shared_cluster().ensure()
        self.before = _chunks(self.store)
        self.killed_threads = self.killed_threads if self.before else 0
        folder = self.folder / f"fit-{len(self.fits)}"
        self.fits.append(FitProcess(folder, self.one.name, self.store, self.one.fit_place, address))
        return self.fits[-1]

    def _moment(self, fit: FitProcess) -> bool:
        """Wait for a random moment: a number of files in the store, or a time; False if the fit ended before."""
        (undisturbed, most_files), place = reference(self.one.name), self.one.fit_place
        expected = UNDISTURBED.get((self.one.place, self.one.name), FIRST_SECONDS[place])
        expected = undisturbed.seconds if place == "here" else expected
        by_files = self.store is not None and self.rng.random() < 0.5
        n_files, seconds = self.rng.randint(0, most_files), self.rng.uniform(0.0, expected)
        if self.n_kills and self.one.target in MANY:
            by_files, seconds = False, self.rng.uniform(0.02, 0.8)
        while fit.poll() is None and not (fit.folder / "started").exists():
            time.sleep(0.002)
        start = time.monotonic()
        while fit.poll() is None:
            passed = time.monotonic() - start
            if not by_files and passed >= seconds:
                return True
            if by_files and (passed > expected or _count(self.store) >= n_files):
                time.sleep(self.rng.uniform(0.0, 0.03))
                return fit.poll() is None
            time.sleep(0.002)
        return False

    def _kill(self, fit: FitProcess) -> bool:
        """Send the signal; False if there is no such process now."""
        target, cluster, is_own = self.one.target, shared_cluster(), self.one.fit_place == "own workers"
        workers = fit.workers() if is_own else cluster.workers() if self.one.fit_place == "cluster" else []
        # A task for each worker may be computed again where all lose their work, or their client.
        self.killed_threads += 1 if target in ("process", *MANY) else len(workers)
        if target == "process group":
            fit.kill_all(signal.Signals[self.one.signal])
            return True
        nannies = [psutil.Process(nanny.pid) for nanny in cluster.nannies if nanny.poll() is None]
        choices = {
            **{owner: [psutil.Process(fit.pid)] for owner in OWNERS},
            "nanny": nannies if len(nannies) > 1 else [],
            "worker": workers,
            "scheduler": fit.scheduler() if is_own else cluster.scheduler(),
        }[target]
        if not choices:
            time.sleep(0.05)
            return False
        try:
            self.rng.choice(choices).send_signal(signal.Signals[self.one.signal])
        except psutil.Error:
            return False
        if target == "nanny":
            cluster.forget_dead_nannies()
            cluster.add_nanny()
        return True

    def _judged(self, fit: FitProcess, status: int | None, *, is_disturbed: bool) -> tuple[Outcome, str] | None:
        """Failure that the end of a fit shows; None if it ended as it may."""
        was_hit = is_disturbed and self.one.target in OWNERS
        if status is None:
            return Outcome.HANG, fit.words()
        if status == 0:
            if not is_disturbed or not self.n_kills:
                key = (self.one.place, self.one.name)
                UNDISTURBED[key] = max(UNDISTURBED.get(key, 0.0), fit.answer().seconds)
            return None
        if status == 3:
            outcome, text = fit.answer()
            if outcome == Outcome.RAW or not is_disturbed or was_hit:
                return (outcome if outcome == Outcome.RAW else Outcome.MISLED if was_hit else Outcome.LOST), text
            self.errors.append(text)
            return None
        if was_hit and abs(status) % 128 == signal.Signals[self.one.signal]:
            return None
        crashes = (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGILL)
        return (Outcome.CRASH if status in crashes else Outcome.RAW), f"status {status}\n{fit.words()}"

    def _tidy(self, fit: FitProcess, status: int | None) -> tuple[Outcome, str] | None:
        """Failure that a fit which ended shows by what it left: processes, temporary files."""
        left = left_of_session(fit.pid, GONE_SECONDS)
        if left:
            return Outcome.ORPHAN, f"{words(left)}\n{fit.words()}"
        if self.one.signal == "SIGKILL" and self.one.target in OWNERS and status != 0:
            return None
        files = fit.temporary_files()
        return (Outcome.LITTER, f"{words(files)}\n{fit.words()}") if files else None

    def _redone(self) -> tuple[Outcome, str] | None:
        """Failure if more chunks of the factor were written again than one for each killed thread."""
        now = _chunks(self.store)
        again = [path for path, found in self.before.items() if now.get(path, found) != found]
        allowed = self.killed_threads
        return (Outcome.REDONE, f"{len(again)} for {allowed}: {words(again)}") if len(again) > allowed else None
