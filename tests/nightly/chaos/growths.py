"""Random sequences by which runs and models grow, with kills at any write; each step is compared with a new fit.

A sequence is a few calls of a fit with the same store: more rows, other targets, rows that are left out by weight 0 and
rows that come back, each with some kills. After a kill the call before answers, unless the step was complete already.
In memory `partial_fit` takes the place of the store, and an exception that of a kill.
"""

import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import dask
import numpy as np
from numpy.typing import NDArray

import dkrr
from dkrr.errors import DkrrError, WrongStoreError
from dkrr.fitting import growing_run
from dkrr.solvers import ConjugateGradient, Float32Cholesky
from tests import s3
from tests.nightly.chaos.kills import shared_cluster
from tests.nightly.chaos.outcomes import Outcome, of_error
from tests.nightly.chaos.processes import started
from tests.processes import free_port

Array = NDArray[np.float64]
Random = np.random.Generator

PLACES = ("disk", "bucket", "workers", "memory")
SHARES = {"disk": 5, "bucket": 2, "workers": 2, "memory": 1}
"""Sequences of each place among ten."""
N_ROWS, N_COLUMNS = 640, 3
N_STEPS = 7
TOLERANCE = 1e-9
"""Largest difference of coefficients from those of a new fit, relative to the largest of them; of an intercept, a small
difference of large numbers, ten times as much of the targets."""
ROUNDING = 1e-14
"""The same times λ, below 1e-5: with λ = 1.4e-6 and a condition number of 7e7 a new fit, NumPy and a grown one were all
off by 1.5e-9 to 2.1e-9."""
MAX_RESIDUAL = 1e-9
FORK_SECONDS = 120.0
WRITES = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate")
"""Audit events of Python that change the disk, beside the opening of a file for writing."""
STEPS = {
    "rows": 6,
    "rows, and some left out": 2,
    "rows and targets": 1,
    "targets": 2,
    "rows left out": 3,
    "rows come back": 2,
    "too many left out": 1,
    "nothing": 1,
}
"""Kinds of steps, and how often each is drawn."""


@dataclass(frozen=True)
class Problem:
    """Data and settings of a sequence."""

    X: Array
    weights: Array | None
    settings: dict[str, Any]
    n_targets: int

    @property
    def tolerance(self) -> float:
        """Largest relative difference of coefficients."""
        return max(TOLERANCE, ROUNDING / float(np.min(self.settings["alpha"])))

    def targets(self, version: int, n: int) -> Array:
        """Targets of some version."""
        noise = np.random.default_rng(version).normal(size=(N_ROWS, self.n_targets))
        waves = np.sin(self.X[:, :1] * np.arange(1, self.n_targets + 1) + version)
        return (waves + 0.2 * noise + version)[:n]


@dataclass(frozen=True)
class Call:
    """What a fit is given."""

    n: int
    version: int = 0
    out: frozenset[int] = frozenset()
    """Rows whose weight is 0."""
    gone: frozenset[int] = frozenset()
    """Those of them that the factor does not have: they cannot come back."""

    def loses_factor(self, out: Iterable[int]) -> bool:
        """Whether a call after this one that leaves these rows out cannot keep the factor."""
        return len({row for row in out if row < self.n} - self.gone) > 0.1 * self.n

    def weights(self, problem: Problem) -> Array | None:
        """Weights of its rows."""
        if problem.weights is None and not self.out:
            return None
        weights = np.ones(self.n) if problem.weights is None else problem.weights[: self.n].copy()
        weights[sorted(self.out)] = 0.0
        return weights

    def fit(self, problem: Problem, store: str | None) -> Any:
        """Model with a store."""
        model = dkrr.KernelRidge(**problem.settings, store=store, progress=False)
        y = problem.targets(self.version, self.n)
        return model.fit(problem.X[: self.n], y, sample_weight=self.weights(problem))

    def anew(self, problem: Problem) -> tuple[Array, Array]:
        """Coefficients and intercepts of a fit in memory of the rows that have a weight."""
        stay, weights = np.setdiff1d(np.arange(self.n), sorted(self.out)), self.weights(problem)
        settings = problem.settings | {"solver": "cholesky", "tile": None, "tol": 1e-8}
        y = problem.targets(self.version, self.n)[stay]
        model = dkrr.KernelRidge(**settings, progress=False)
        model.fit(problem.X[stay], y, sample_weight=None if weights is None else weights[stay])
        coef = np.zeros((self.n, problem.n_targets))
        coef[stay] = model.dual_coef_
        return coef, np.atleast_1d(model.intercept_)


def drawn_problem(rng: Random) -> Problem:
    """Half weighted, a third with an intercept, a third in float32."""
    in_float32, n_targets = bool(rng.random() < 1 / 3), int(rng.integers(1, 4))
    weights = rng.uniform(0.3, 3.0, N_ROWS) if rng.random() < 0.5 else None
    # α is that of a new fit to 1e-9 where λ / w is at least 1e-6: with less, rounding of either fit is as large.
    low = -2.0 if in_float32 else -6.0 if weights is None else -5.5
    alphas = 10.0 ** rng.uniform(low, 0, n_targets)
    several = n_targets > 1 and rng.random() < 0.3
    settings: dict[str, Any] = {
        "kernel": "rbf",
        "gamma": float(rng.uniform(0.5, 2.0)),
        "alpha": alphas.tolist() if several else float(alphas[0]),
        "fit_intercept": bool(rng.random() < 1 / 3),
        "solver": ConjugateGradient(Float32Cholesky()) if in_float32 else "cholesky",
        "tol": 1e-12 if in_float32 else 1e-8,
        "tile": int(rng.integers(24, 120)),
    }
    return Problem(rng.normal(size=(N_ROWS, N_COLUMNS)), weights, settings, n_targets)


def drawn_call(call: Call, problem: Problem, rng: Random) -> tuple[str, Call]:
    """Next step of a sequence."""
    kinds = list(STEPS)
    kind = kinds[rng.choice(len(kinds), p=np.array(list(STEPS.values())) / sum(STEPS.values()))]
    tile, out = problem.settings["tile"] or 64, set(call.out)
    n = call.n
    if kind.startswith("rows") and "come back" not in kind and kind != "rows left out":
        to_edge = -n % tile
        n += int(rng.choice([1, max(to_edge, 1), to_edge + 1, tile, int(rng.integers(1, 3 * tile))]))
        n = min(n, N_ROWS)
    if "left out" in kind:
        most = n // 3 if kind.startswith("too many") else max(1, call.n // 12)
        out |= set(map(int, rng.choice(n, int(rng.integers(1, most + 1)), replace=False)))
    if kind == "rows come back":
        out = {row for row in out if row in call.gone or rng.random() < 0.5}
    # Rows enter a factor with the weight that they have then; where too many are left out it is made anew.
    gone = {row for row in out if row in call.gone or row >= call.n}
    if call.loses_factor(out):
        gone = out
    version = call.version + (1 if "targets" in kind else 0)
    return kind, replace(call, n=n, version=version, out=frozenset(out), gone=frozenset(gone))


# Kills --------------------------------------------------------------------------------------------------------------


class _Counter:
    """Counts the writes of this process, and kills it at one of them."""

    def __init__(self, number: int) -> None:
        self.number, self.count = number, 0

    def note(self) -> None:
        self.count += 1
        if self.count == self.number:
            os.kill(os.getpid(), signal.SIGKILL)

    def audited(self, event: str, arguments: Any) -> None:
        """Hook of Python's audit events."""
        is_open = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if event in WRITES or (is_open and str(arguments[0]).startswith("/") and "/dev/" not in str(arguments[0])):
            self.note()

    def watch_buckets(self) -> None:
        """Count requests that change a bucket, each before it is made and after it."""
        import obstore

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **named: Any) -> Any:
                self.note()
                found = function(*arguments, **named)
                self.note()
                return found

            return call

        for name in ("put", "delete", "copy"):
            setattr(obstore, name, counted(getattr(obstore, name)))


def in_fork(folder: Path, work: Callable[[], Any], number: int = 0, seconds: float | None = None) -> Any:
    """What a function returns in a fork, with the number of its writes; None if it was killed.

    Parameters
    ----------
    folder : Path
    work : callable
    number : int
        Write at which it is killed; 0: none.
    seconds : float, optional
        Time at which it is killed.

    Raises
    ------
    Exception
        That of the function.
    """
    file = folder / "answer"
    file.unlink(missing_ok=True)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        counter = _Counter(number)
        sys.addaudithook(counter.audited)
        counter.watch_buckets()
        try:
            answer: tuple[Any, Any] = (work(), None)
        except BaseException as error:
            error.add_note("".join(traceback.format_exception(error)))
            answer = (None, error)
        counter.number = 0
        file.write_bytes(pickle.dumps((*answer, counter.count)))
        os._exit(0)
    start = time.monotonic()
    end = start + (FORK_SECONDS if seconds is None else seconds)
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None and time.monotonic() < end:
        time.sleep(0.002)
    is_late = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    if is_late:
        os.kill(child, signal.SIGKILL if seconds is not None else signal.SIGABRT)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == -signal.SIGKILL:
        return None
    if status != 0:
        raise TimeoutError(f"a fit ended with status {status} after {time.monotonic() - start:.0f} s")
    value, raised, count = pickle.loads(file.read_bytes())
    if raised is not None:
        raise raised
    return value, count


# Sequences ----------------------------------------------------------------------------------------------------------


@dataclass
class Answer:
    """What a fit gave, and what is in the store after it."""

    coef: Array
    intercept: Array
    residual: float
    factored: int
    """Tasks of a factorisation."""
    lengths: list[int]
    generation: int
    trouble: str
    """What `dkrr.verify` and `dkrr.status` find wrong."""


class BrokenPromiseError(AssertionError):
    """A promise that does not hold."""


@dataclass
class Sequence:
    """One sequence in a store, as it goes on."""

    place: str
    url: str
    folder: Path
    problem: Problem
    rng: Random
    n_kills: int = 0
    n_steps: int = 0
    done: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Carry out the steps; raises BrokenPromiseError at the first promise that does not hold."""
        call = Call(int(self.rng.integers(40, 200)))
        before, count = self.checked(call)
        self.done.append(f"{call.n} rows")
        for _ in range(N_STEPS):
            kind, after = drawn_call(call, self.problem, self.rng)
            self.done.append(f"{kind}: {after.n} rows, {len(after.out)} out, y{after.version}")
            for _ in range(int(self.rng.integers(0, 3))):
                self.killed(call, before, after, count)
            before, count = self.checked(after)
            call = after
            self.n_steps += 1
            if self.rng.random() < 0.5:
                again, _ = self.fitted(call)
                self.done.append("the same call")
                if again.factored or again.lengths != before.lengths or again.generation != before.generation:
                    raise BrokenPromiseError(
                        f"the same call appends: {before.lengths} → {again.lengths}, {again.factored} tasks"
                    )
                if not np.array_equal(again.coef, before.coef):
                    raise BrokenPromiseError(f"the same call has other bits: {_distance(again.coef, before.coef):.1e}")

    def fitted(self, call: Call, number: int = 0, seconds: float | None = None) -> Any:
        """Answer of a fit in a fork, and its number of writes; None if it was killed."""

        address = shared_cluster().ensure() if self.place == "workers" else None  # which is to outlive the fork

        def work() -> Answer:
            with on_workers(address):
                model = call.fit(self.problem, self.url)
            verified, status = dkrr.verify(self.url), dkrr.status(self.url)
            from dkrr.store.format import read_group

            found = read_group(self.url) or {}
            keys = [task.key for task in model.solve_result_.record.tasks if task.key.startswith("L-")]
            is_good = verified.is_whole and status.is_finished
            return Answer(
                np.array(model.dual_coef_),
                np.atleast_1d(model.intercept_),
                float(model.solve_result_.residual),
                len(keys),
                list(found["fingerprint"]["lengths"]),
                int(found["generation"]),
                "" if is_good else f"{verified}\n{status}",
            )

        return in_fork(self.folder, work, number, seconds)

    def checked(self, call: Call) -> tuple[Answer, int]:
        """Answer of an undisturbed fit, which is compared with a new one."""
        answer, count = self.fitted(call)
        self.compare(call, answer)
        if answer.trouble:
            raise BrokenPromiseError(f"after the step: {answer.trouble}")
        if answer.lengths[-1] != call.n:
            raise BrokenPromiseError(f"the run has {answer.lengths} rows")
        return answer, count

    def compare(self, call: Call, answer: Answer) -> None:
        """Compare an answer with a new fit."""
        coef, intercept = call.anew(self.problem)
        size = np.abs(self.problem.targets(call.version, call.n)).max()
        found, most = _distance(answer.coef, coef), self.problem.tolerance
        of_intercept = float(np.abs(answer.intercept - intercept).max() / size)
        if found > most or of_intercept > 10 * most or answer.residual > MAX_RESIDUAL:
            raise BrokenPromiseError(
                f"differs from a new fit by {found:.1e}, {of_intercept:.1e}; residual {answer.residual:.1e}"
            )

    def killed(self, call: Call, before: Answer, after: Call, count: int) -> None:
        """Kill a fit at a random write, and ask for the call before it."""
        by_time = self.place == "workers" and self.rng.random() < 0.5
        number = 0 if by_time else int(self.rng.integers(1, count + 1))
        seconds = float(self.rng.uniform(0.2, 3.0)) if by_time else None
        if self.fitted(after, number, seconds) is not None:
            return
        self.n_kills += 1
        self.done.append(f"killed at {seconds or number} of {count}")
        (lengths, damage), _ = in_fork(self.folder, self._described)
        if damage:
            raise BrokenPromiseError(f"damage after a kill: {damage}")
        if self.rng.random() < 0.6:
            self.done.append("the call before")
            try:
                answer, _ = self.fitted(call)
            except WrongStoreError as error:
                is_committed = lengths[-1] == after.n
                is_told = f"{after.n:,} rows" in str(error) or call.loses_factor(after.out)
                if not (is_committed and is_told):
                    raise
                return
            if after.n == call.n or lengths[-1] == call.n:
                self.compare(call, answer)
                if answer.trouble:
                    raise BrokenPromiseError(f"after the call before: {answer.trouble}")
                if answer.coef.shape != before.coef.shape or _distance(answer.coef, before.coef) > TOLERANCE:
                    raise BrokenPromiseError("the call before has another answer")

    def _described(self) -> tuple[list[int], list[str]]:
        from dkrr.store.format import read_group

        found = read_group(self.url) or {}
        return list(found["fingerprint"]["lengths"]), list(map(str, dkrr.verify(self.url).damage))


@contextmanager
def on_workers(address: str | None) -> Iterator[None]:
    """Client of a cluster, where there is one."""
    if address is None:
        yield
        return
    from distributed import Client

    with Client(address), dask.config.set({"dkrr.rates.gemm-gflops": 1e-3}):
        yield


def _distance(found: Array, expected: Array) -> float:
    if found.shape != expected.shape:
        return float("inf")
    return float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-300))


# In memory ----------------------------------------------------------------------------------------------------------


class Interrupted(BaseException):
    """Stands for Ctrl-C."""


@dataclass
class MemorySequence:
    """One sequence of `partial_fit`, as it goes on."""

    problem: Problem
    rng: Random
    n_kills: int = 0
    n_steps: int = 0
    done: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Carry out the steps; raises BrokenPromiseError at the first promise that does not hold."""
        n, problem = int(self.rng.integers(40, 200)), self.problem
        settings = {name: value for name, value in problem.settings.items() if name not in ("tile", "solver", "tol")}
        model = dkrr.KernelRidge(**settings, solver="cholesky", uncertainty=bool(self.rng.random() < 0.5))
        starts = "fit" if self.rng.random() < 0.5 else "partial_fit"
        self.give(model, 0, n, starts)
        for _ in range(N_STEPS):
            more = min(n + int(self.rng.choice([1, 7, 64, int(self.rng.integers(1, 200))])), N_ROWS)
            if more == n:
                break
            if self.rng.random() < 0.6 or not self.is_complete(model, n, more):
                self.give(model, n, more, "partial_fit")
            n = more
            self.compare(model, n)
            self.n_steps += 1

    def give(self, model: Any, first: int, stop: int, name: str) -> None:
        """Call a method with some rows."""
        self.done.append(f"{name}: {stop} rows")
        weights = None if self.problem.weights is None else self.problem.weights[first:stop]
        y = self.problem.targets(0, stop)[first:]
        getattr(model, name)(self.problem.X[first:stop], y, sample_weight=weights)

    def is_complete(self, model: Any, first: int, stop: int) -> bool:
        """Interrupt a call when one of its stages begins, after which the model is as it was; whether none was left."""
        from dkrr.cluster.progress import Progress

        at, entered = int(self.rng.integers(1, 6)), Progress.stage
        seen = iter(range(1, 10**6))

        def stopping(progress: Any, *given: Any, **named: Any) -> Any:
            if next(seen) == at:
                raise Interrupted
            return entered(progress, *given, **named)

        with mock.patch.object(Progress, "stage", stopping):
            try:
                self.give(model, first, stop, "partial_fit")
            except Interrupted:
                self.n_kills += 1
                self.done.append(f"interrupted at {at}")
                self.compare(model, first)
                return False
        return True

    def compare(self, model: Any, n: int) -> None:
        """Compare a model with a new fit."""
        coef, intercept = Call(n).anew(self.problem)
        found = _distance(np.array(model.dual_coef_).reshape(coef.shape), coef)
        size = np.abs(self.problem.targets(0, n)).max()
        of_intercept = float(np.abs(model.intercept_ - intercept).max() / size)
        most = self.problem.tolerance
        if found > most or of_intercept > 10 * most or model.solve_result_.residual > MAX_RESIDUAL:
            raise BrokenPromiseError(
                f"differs from a new fit by {found:.1e}; residual {model.solve_result_.residual:.1e}"
            )


# Trials -------------------------------------------------------------------------------------------------------------


def sequences(seed: int) -> Iterator[str]:
    """Places of the sequences of a campaign, without end."""
    rng = np.random.default_rng(seed)
    ten = [place for place, n in SHARES.items() for _ in range(n)]
    while True:
        yield from rng.permutation(ten).tolist()


@cache
def _server() -> str:
    """Host of a server of buckets, with one bucket; it ends with this process."""
    port, folder = free_port(), Path(tempfile.mkdtemp(prefix="growths-server-"))
    host = f"127.0.0.1:{port}"
    server = started([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], folder / "log", {})
    os.environ.update(s3.variables(host))
    end = time.monotonic() + FORK_SECONDS
    while True:
        try:
            s3.request(host, "PUT", "/growths")
            return host
        except OSError:
            if server.poll() is not None or time.monotonic() > end:
                raise
            time.sleep(0.1)


def trial(place: str, seed: int, number: int) -> dict[str, Any]:
    """Carry out a sequence, and judge it."""
    rng = np.random.default_rng([seed, number])
    problem, folder = drawn_problem(rng), Path(tempfile.mkdtemp(prefix="growths-"))
    one: Any = MemorySequence(problem, rng)
    if place != "memory":
        url = str(folder / "run.zarr")
        if place == "bucket":
            _server()
            url = f"s3://growths/{folder.name}/run.zarr"
        one = Sequence(place, url, folder, problem, rng)
    most = int(rng.choice([2, growing_run.MAX_PIECES]))  # of few pieces a tile row is written again soon
    try:
        with mock.patch.object(growing_run, "MAX_PIECES", most):
            one.run()
        outcome, detail = Outcome.HARMLESS, f"{one.n_steps} steps, {one.n_kills} kills"
    except BrokenPromiseError as error:
        outcome, detail = Outcome.WRONG, str(error)
    except DkrrError as error:
        outcome, detail = Outcome.LOST, of_error(error)[1] + "\n".join(getattr(error, "__notes__", []))
    except Exception as error:
        is_late = isinstance(error, TimeoutError)
        outcome = Outcome.HANG if is_late else Outcome.RAW
        detail = "".join(traceback.format_exception(error))
    what = f"{place}, {_words(problem)}: {'; '.join(one.done)}"
    if outcome == Outcome.HARMLESS:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        what += f"; {folder}"
    row = f"{place}: {'float64' if problem.settings['solver'] == 'cholesky' else 'float32'}"
    group = "with kills" if one.n_kills else "undisturbed"
    return {"row": row, "group": group, "outcome": outcome, "count": 1, "what": what, "detail": detail}


def _words(problem: Problem) -> str:
    given, n = problem.settings, problem.n_targets
    named = {name: given[name] for name in ("alpha", "tile", "fit_intercept")} | {
        "weighted": problem.weights is not None
    }
    return f"{n} targets, " + ", ".join(f"{name}={value}" for name, value in named.items())
