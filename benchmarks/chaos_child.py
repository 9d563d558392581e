"""A process that carries out trials one after another, watched by this one, which outlives its crashes and hangs.

``python -m benchmarks.chaos_child`` is the process: it reads lines of JSON with the name of a function and its
arguments, and answers each with a line.
"""

import ctypes
import faulthandler
import importlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from benchmarks.chaos_trials import Outcome

ROOT = Path(__file__).parents[1]
START_SECONDS = 60.0
"""For the imports of the first trial, on a busy machine."""
MAX_WORDS = 6000
"""Characters of the last words of a child that are recorded."""
ADDRESS_SPACE = 8 * 2**30
"""Bytes that a child may map: an absurd allocation fails there, and does not take the machine's memory."""
ENVIRONMENT = {
    "DASK_DKRR__QUICK_MEASUREMENT": "false",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONFAULTHANDLER": "1",
}
"""Fixed rates and one thread: plans, and with them results, are the same in every process."""
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2
"""Numbers of Linux capabilities."""
PR_CAPBSET_DROP, PR_SET_PDEATHSIG = 24, 1
"""Numbers of operations of prctl(2)."""


def end_with_parent() -> None:
    """The system kills this process when the one that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Child:
    """A process that carries out trials; a context manager.

    Parameters
    ----------
    folder : Path
        Folder for its temporary files.
    seconds : float
        Time limit of one trial.
    is_confined : bool
        It respects permissions, also as root, and its memory is bounded.
    """

    def __init__(self, folder: Path, seconds: float, *, is_confined: bool = True) -> None:
        self._folder, self._seconds, self._is_confined = folder, seconds, is_confined
        self._process: subprocess.Popen[bytes] | None = None
        self._is_warm = False

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._messages = tempfile.TemporaryFile()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._messages.close()

    def ask(self, function: str, *arguments: Any) -> dict[str, Any]:
        """Return what a function returned; an outcome CRASH or HANG with the last words if it did not.

        Parameters
        ----------
        function : str
            ``module:name``; it takes and returns values of JSON, a dictionary.
        """
        process = self._started()
        assert process.stdin is not None
        self._messages.seek(0)
        self._messages.truncate()
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps([function, arguments]).encode() + b"\n")
            process.stdin.flush()
        line = self._line(self._seconds + (0.0 if self._is_warm else START_SECONDS))
        if line is None:
            # SIGABRT: faulthandler then writes where every thread is.
            process.send_signal(signal.SIGABRT)
            time.sleep(0.5)
        self._is_warm = True
        if line:
            found: dict[str, Any] = json.loads(line)
            return found
        self._end()
        self._messages.seek(0)
        outcome = Outcome.HANG if line is None else Outcome.CRASH
        lines = self._messages.read().decode(errors="replace").splitlines()
        last = "\n".join(line for line in lines if not line.startswith("Extension modules"))[-MAX_WORDS:]
        return {"outcome": outcome, "detail": f"exit status {process.returncode}\n{last}"}

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._is_warm = False
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.chaos_child", *(["confined"] if self._is_confined else [])],
                cwd=ROOT,
                env=os.environ | ENVIRONMENT | {"TMPDIR": str(self._folder)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._messages,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        return self._process

    def _line(self, seconds: float) -> bytes | None:
        """Answer of the process; empty if it died, None if it gave none in time."""
        assert self._process is not None and self._process.stdout is not None
        deadline, text, descriptor = time.monotonic() + seconds, b"", self._process.stdout.fileno()
        while not text.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                return None
            part = os.read(descriptor, 65536)
            if not part:
                return b""
            text += part
        return text

    def _end(self) -> None:
        """End the process and all that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


class Children:
    """Children that share a list of trials; a context manager.

    Parameters
    ----------
    folder : Path
    n : int
    seconds : float
    is_confined : bool
        See `Child`.
    finish : str
        Function that each calls at the end.
    """

    def __init__(self, folder: Path, n: int, seconds: float, *, is_confined: bool = True, finish: str = "") -> None:
        self._children = [Child(folder / f"child-{k}", seconds, is_confined=is_confined) for k in range(n)]
        self._finish = finish

    def __enter__(self) -> Self:
        for child in self._children:
            child.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.__exit__()

    def ask(self, function: str, *arguments: Any) -> dict[str, Any]:
        """Return the answer of one of them."""
        return self._children[0].ask(function, *arguments)

    def run(
        self,
        calls: Iterable[tuple[int, tuple[Any, ...]]],
        done: Callable[[int, dict[str, Any]], None],
        is_over: Callable[[], bool],
    ) -> None:
        """Carry out calls of `Child.ask` until none is left or it is over.

        Parameters
        ----------
        calls : iterable of (int, tuple)
            Numbers of trials, and arguments of `Child.ask`.
        done : callable
            Called with the number of a trial and its answer, by one thread at a time.
        is_over : callable
            Whether no other trial is to be started.
        """
        lock, rest = threading.Lock(), iter(calls)

        def work(child: Child) -> None:
            while True:
                with lock:
                    number, call = (0, None) if is_over() else next(rest, (0, None))
                if call is None:
                    break
                answer = child.ask(*call)
                with lock:
                    done(number, answer)
            if self._finish:
                child.ask(self._finish)

        threads = [threading.Thread(target=work, args=(child,)) for child in self._children]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def respect_permissions() -> None:
    """Give up root's right to read and write any file, for threads that start after this."""
    # capget(2), capset(2): version 3, the calling thread, two words of each set.
    libc, header, data = ctypes.CDLL(None, use_errno=True), _Header(0x20080522, 0), (_Data * 2)()
    if libc.capget(ctypes.byref(header), data):
        raise OSError(ctypes.get_errno(), "capget failed")
    for name in ("effective", "permitted", "inheritable"):
        setattr(data[0], name, getattr(data[0], name) & ~(1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH))
    if libc.capset(ctypes.byref(header), data):
        raise OSError(ctypes.get_errno(), "capset failed")
    for number in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)  # or programs that this process starts would have them again


def main() -> None:
    """Answer until the parent closes the pipe."""
    faulthandler.enable(all_threads=True)
    if "confined" in sys.argv:
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        if sys.platform == "linux" and os.geteuid() == 0:
            respect_permissions()
    # What libraries print must not end up between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        name, arguments = json.loads(line)
        module, function = name.split(":")
        try:
            answer = getattr(importlib.import_module(module), function)(*arguments)
        except BaseException:
            # A fault of the trial itself, which is shown as a failure.
            answer = {"outcome": Outcome.RAW, "detail": f"the trial failed: {traceback.format_exc()}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
