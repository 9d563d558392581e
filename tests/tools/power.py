"""How many small faults in dkrr does a suite of tests notice? The same faults (mutants) for several suites, paired.

::

    python -m tests.tools.power sample --tree . --size 640 --seed 7 --out mutants.json
    python -m tests.tools.power cover --tests ../old --pytest "-m 'not slow'" --out before-cover.jsonl
    python -m tests.tools.power run --tests ../old --pytest "-m 'not slow'" --mutants mutants.json \
        --cover before-cover.jsonl --out before.jsonl
    ... cover and run of --tests . --out after.jsonl
    python -m tests.tools.power compare before.jsonl after.jsonl --mutants mutants.json --write docs/mutants.md
    python -m tests.tools.power run ... --matrix --limit 200 --out matrix.jsonl
    python -m tests.tools.power cover-set matrix.jsonl --cover before-cover.jsonl

mutmut makes the mutants: ``<=`` for ``<``, ``-`` for ``+``, ``or`` for ``and``, another number, an argument left out;
in bodies of functions, decorated ones too. Two kinds are not used: other strings, since most are words of a message,
and None for a value, which fails wherever the line runs. A mutant is the text of a function before and after, so it
applies to each version of dkrr that has this function.

``--tests`` is the checkout whose tests run, ``--tree`` the one whose dkrr they run against. Both are copied first.
``cover`` runs the suite once with a probe in each block of each function, and stores for each test its seconds and the
blocks that it enters, in any thread, also through fixtures that it shares. Tests that fail without a mutant are left
out.

``run`` collects the suite once and forks for each mutant: the child gives the functions their changed code, and runs
the tests that enter the changed block until the first failure, those first that will probably fail soon (quick, few
blocks, another case of the same test later). So a mutant does not change worker processes that the tests start, what
was computed at import, and what was cached then; that is so for each suite. A failure counts if it is repeated in a
second process, and does not occur without the mutant in a third. A mutant is also noticed (*hung*) if a test takes far
longer than without it. ``--seconds`` limits the tests of a mutant, by their seconds without it; a survivor says how
many tests were left, and a later run with more seconds runs those. Results are appended: a stopped run resumes.
"""

import ast
import base64
import ctypes
import difflib
import gc
import hashlib
import importlib
import itertools
import json
import os
import pkgutil
import random
import resource
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
import warnings
import zlib
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any, ClassVar

import click
import numpy as np
import psutil
import pytest

AT_LEAST = 8
"""Mutants of a package."""
CPU, WALL = (5.0, 10.0), (10.0, 60.0)
"""A test hangs after so many times its seconds without a mutant, and so many more; the clock is not that of a machine
which others use, too."""
MEMORY_BYTES = 16 * 2**30
"""A mutant may ask for any size."""
LOG = os.dup(2)
HITS = bytearray(2**16)
"""A byte for each probe: whether it was passed."""
NOTICED = ("killed", "hung")
BEGIN, END = "<!-- table of mutants: begin -->", "<!-- table of mutants: end -->"
Mutant = dict[str, Any]
Functions = dict[tuple[str, str, int], list[types.FunctionType]]

# Mutants


def outer_functions(
    body: list[ast.stmt], prefix: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from outer_functions(node.body, f"{prefix}{node.name}.")


def candidates(path: Path) -> tuple[Any, list[list[Any]]]:
    """Parse a module; return it with its mutants, grouped by place."""
    from mutmut.mutation.file_mutation import create_mutations

    lines = path.read_text().split("\n")
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.decorator_list:  # mutmut leaves them out
            for number in range(node.decorator_list[0].lineno - 1, node.lineno - 1):
                lines[number] = f"#@{number}"
    parsed, found, *_ = create_mutations(path.name, "\n".join(lines))
    places: dict[int, list[Any]] = {}
    for one in found:
        before, after = map(parsed.code_for_node, (one.original_node, one.mutated_node))
        if not before.startswith(("'", '"')) and after.count("None") <= before.count("None"):
            places.setdefault(id(one.original_node), []).append(one)
    return parsed, list(places.values())


def described(path: Path, module: str, parsed: Any, mutation: Any) -> Mutant | None:
    """Return a mutant as text, None if it is not in the body of a function."""
    from mutmut.mutation.file_mutation import deep_replace

    source = path.read_text().split("\n")
    changed = deep_replace(parsed, mutation.original_node, mutation.mutated_node).code.split("\n")  # type: ignore[union-attr]
    changed = [source[int(line[2:])] if line.startswith("#@") else line for line in changed]
    same = next((k for k, (one, other) in enumerate(zip(source, changed, strict=False)) if one != other), 0)
    for name, node in outer_functions(ast.parse("\n".join(source)).body):
        first, last = node.lineno - 1, node.end_lineno or 0
        if node.body[0].lineno - 1 <= same < last:
            before, after = source[first:last], changed[first : last + len(changed) - len(source)]
            diff = list(difflib.unified_diff(before, after, lineterm="", n=0))[3:]
            size = max(1, sum(line.startswith("-") for line in diff))
            return {
                "module": module, "function": name, "line": same + 1, "lines": [same - first, same - first + size - 1],
                "diff": "\n".join(diff), "before": "\n".join(before), "after": "\n".join(after),
            }  # fmt: skip
    return None


def code_objects(code: types.CodeType) -> Iterator[types.CodeType]:
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield one
            yield from code_objects(one)


def live_functions() -> Functions:
    """Import all of dkrr; return its functions by file, name and first line."""
    import dkrr

    for found in pkgutil.walk_packages(dkrr.__path__, "dkrr."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    folder, functions = str(Path(dkrr.__file__).parent) + os.sep, defaultdict(list)
    for one in gc.get_objects():
        if type(one) is types.FunctionType and one.__code__.co_filename.startswith(folder):
            code = one.__code__
            functions[code.co_filename, code.co_qualname, code.co_firstlineno].append(one)
    return functions


def function_starts(source: str, mutant: Mutant) -> int | None:
    """Line of the function of a mutant in a module, None unless it is there once."""
    text, wanted = f"\n{source}\n", f"\n{mutant['before']}\n"
    return text[: text.index(wanted)].count("\n") + 1 if text.count(wanted) == 1 else None


def put_in(mutant: Mutant, functions: Functions) -> int:
    """Give the live functions the code of a mutant; return how many have other code now."""
    path = str(Path(sys.modules["dkrr"].__file__ or "").parents[1] / mutant["module"])
    source, found = Path(path).read_text(), dict[Any, Any]()
    if function_starts(source, mutant) is None:
        return 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for text in (source, f"\n{source}\n".replace(f"\n{mutant['before']}\n", f"\n{mutant['after']}\n")[1:-1]):
            numbers: Counter[str] = Counter()
            for code in code_objects(compile(text, path, "exec", dont_inherit=True)):
                if f"{code.co_qualname}.".startswith(f"{mutant['function']}."):
                    numbers[code.co_qualname] += 1
                    found.setdefault((code.co_qualname, numbers[code.co_qualname]), []).append(code)
    count = 0
    for old, *new in found.values():
        for function in functions.get((path, old.co_qualname, old.co_firstlineno), ()) if new and new[0] != old else ():
            if function.__code__.co_freevars == new[0].co_freevars:
                function.__code__ = new[0]
                count += 1
    return count


# Probes


class Probes(SourceFileLoader):
    """Loader of modules of dkrr with a probe in each block of a function: `__hits__[7] = 1`."""

    lines: ClassVar[dict[str, dict[int, int]]] = {}
    numbers = itertools.count()

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        spec = PathFinder.find_spec(name, path, target) if name.partition(".")[0] == "dkrr" else None
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            spec.loader = cls(name, spec.origin)
        return spec

    def get_code(self, fullname: str) -> types.CodeType:
        source = Path(self.path).read_text()
        tree = ast.parse(source)
        self.lines[fullname.replace(".", "/")] = lines = dict[Any, Any]()
        self.put_in(tree, lines, False)
        return compile(tree, self.path, "exec", dont_inherit=True)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__["__hits__"] = HITS
        super().exec_module(module)

    def put_in(self, node: ast.AST, lines: dict[int, int], inside: bool) -> None:
        """Add probes to the blocks of a statement; note the probe of each line."""
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            block, probed, due, number = getattr(node, name, []), [], inside, 0
            for one in block:
                is_constant = isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)  # a docstring
                if due and isinstance(one, ast.stmt) and not is_constant:
                    number, due = next(self.numbers), False
                    probe = ast.parse(f"__hits__[{number}] = 1").body[0]
                    for part in ast.walk(probe):
                        ast.copy_location(part, one)
                    probed.append(probe)
                if inside and isinstance(one, ast.stmt):
                    lines.update(dict.fromkeys(range(one.lineno, (one.end_lineno or 0) + 1), number))
                self.put_in(one, lines, inside or isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
                probed.append(one)
                due = due or (inside and hasattr(one, "body"))
            block[:] = probed


def packed(hits: bytes) -> str:
    return base64.b85encode(zlib.compress(np.packbits(np.frombuffer(hits, np.uint8)).tobytes())).decode()


def unpacked(text: str) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b85decode(text)), np.uint8)


# A process that has collected the suite, and forks


@dataclass
class Task:
    """Tests to run in a new process."""

    tests: list[str]
    mutant: Mutant | None = None
    is_ended_by_failure: bool = False


Job = Generator[Task, list[dict[str, Any]], None]


@dataclass
class Child:
    """A process that runs a task."""

    pid: int
    pipe: int
    scratch: str
    task: Task
    job: Job
    received: bytes = b""
    ended: list[dict[str, Any]] = field(default_factory=list)
    cpu: float = 0.0
    wall: float = field(default_factory=time.monotonic)

    def cpu_seconds(self) -> float:
        parts = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")

    def read(self) -> bool:
        """Take what the child has sent; return whether it has ended."""
        found = os.read(self.pipe, 2**20)
        *lines, self.received = (self.received + found).split(b"\n")
        for line in lines:
            self.ended.append(json.loads(line))
            self.cpu, self.wall = self.cpu_seconds(), time.monotonic()
        return not found

    def is_hung(self, clean: dict[str, tuple[float, float]]) -> bool:
        seconds = clean.get(self.task.tests[min(len(self.ended), len(self.task.tests) - 1)], (20.0, 20.0))
        load = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1) / 3)
        is_late = time.monotonic() - self.wall > (WALL[0] * seconds[1] + WALL[1]) * load
        return is_late or self.cpu_seconds() - self.cpu > CPU[0] * seconds[0] + CPU[1]


class Server:
    """Plugin of pytest that takes over when the tests are collected."""

    def __init__(self, command: str, options: dict[str, Any]) -> None:
        self.options, self.is_covering = options, command == "cover"
        self.reports: list[pytest.TestReport] = []
        self.shared: dict[int, tuple[bytes, float]] = {}
        self.seconds: dict[str, tuple[float, float]] = {}
        self.took = 0.0

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """A failure is enough, and the same each time: no simpler example is looked for."""
        from hypothesis import HealthCheck, Phase, settings

        quick: dict[str, Any] = {"derandomize": True, "database": None, "deadline": None, "print_blob": False}
        phases = [Phase.explicit, Phase.generate]
        settings.register_profile("power", settings(**quick, phases=phases, suppress_health_check=list(HealthCheck)))
        settings.load_profile("power")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        assert not session.testsfailed, "the tests cannot be collected"
        self.session, self.items = session, {item.nodeid: item for item in session.items}
        self.functions = live_functions()
        self.out = Path(self.options["out"]).open("a")  # noqa: SIM115
        note(f"{len(self.items)} tests, {len(list(Path('/proc/self/task').iterdir()))} threads")
        gc.collect()
        gc.freeze()
        self.loop(self.coverings() if self.is_covering else self.judgements())
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(report)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        """What a shared fixture enters counts for each test that uses it."""
        if not self.is_covering or fixturedef.scope == "function":
            return (yield)
        outer, start = bytes(HITS), time.perf_counter()
        HITS[:] = bytes(len(HITS))
        try:
            return (yield)
        finally:
            took = time.perf_counter() - start
            self.took += took
            self.shared[id(fixturedef)] = bytes(HITS), took
            HITS[:] = np.maximum(np.frombuffer(outer, np.uint8), np.frombuffer(HITS, np.uint8)).tobytes()

    def loop(self, jobs: Iterator[Job]) -> None:
        """Run jobs, each of which asks for one process after another."""
        active: list[Child] = []

        def advance(job: Job, ended: list[dict[str, Any]] | None) -> None:
            with suppress(StopIteration):
                task = next(job) if ended is None else job.send(ended)
                active.append(self.fork(task, job))

        while True:
            while len(active) < self.options["processes"] and (job := next(jobs, None)) is not None:
                advance(job, None)
            if not active:
                return
            before = time.monotonic()
            ready = select.select([one.pipe for one in active], [], [], 0.25)[0]
            paused = max(0.0, time.monotonic() - before - 5.0)  # nobody hangs while all are stopped
            for one in list(active):
                one.wall += paused
                if one.pipe in ready and one.read():
                    what = "died"
                elif one.is_hung(self.seconds):
                    what = "hung"
                else:
                    continue
                active.remove(one)
                self.end(one, {other.pid for other in active})
                is_over = one.ended and one.task.is_ended_by_failure and one.ended[-1]["why"]
                if len(one.ended) < len(one.task.tests) and not is_over:
                    one.ended.append({"test": one.task.tests[len(one.ended)], "why": what, "seconds": [0.0, 0.0]})
                advance(one.job, one.ended)

    def end(self, child: Child, active: set[int]) -> None:
        """Kill a child and the processes that it has started; the folder tells whose those are that it has left."""
        with suppress(psutil.Error, OSError):
            others = psutil.Process(child.pid).children(recursive=True)
            os.killpg(child.pid, signal.SIGKILL)
            for one in others:
                with suppress(psutil.Error):
                    one.kill()
        os.waitpid(child.pid, 0)
        for one in psutil.Process().children(recursive=True):
            with suppress(psutil.Error, OSError):
                if one.ppid() == os.getpid() and one.pid not in active and one.status() == psutil.STATUS_ZOMBIE:
                    os.waitpid(one.pid, 0)
                elif one.environ().get("TMPDIR") == child.scratch:
                    one.kill()
        os.close(child.pipe)
        shutil.rmtree(child.scratch, ignore_errors=True)

    def fork(self, task: Task, job: Job) -> Child:
        pipe, write = os.pipe()
        scratch = tempfile.mkdtemp(prefix="power-")
        pid = os.fork()
        if pid == 0:
            try:
                os.close(pipe)
                self.be_child(task, write, scratch)
            except BaseException as error:
                note(f"{task.tests[0]}: {error!r}")
            finally:
                os._exit(0)
        os.close(write)
        with suppress(OSError):
            os.setpgid(pid, pid)
        return Child(pid, pipe, scratch, task, job)

    def be_child(self, task: Task, pipe: int, scratch: str) -> None:
        with suppress(OSError):
            os.setpgid(0, 0)
        control(1, signal.SIGKILL)
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        reserved = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (reserved + MEMORY_BYTES,) * 2)
        os.environ["TMPDIR"], tempfile.tempdir = scratch, None
        folders: Any = self.session.config._tmp_path_factory  # type: ignore[attr-defined]
        folders._basetemp, folders._given_basetemp = None, Path(scratch) / "pytest"
        if task.mutant is not None:
            put_in(task.mutant, self.functions)
        items = [self.items[test] for test in task.tests]
        for item, following in itertools.zip_longest(items, items[1:]):
            found = self.run_item(item, following)
            os.write(pipe, json.dumps(found).encode() + b"\n")
            if found["why"] and task.is_ended_by_failure:
                return

    def run_item(self, item: pytest.Item, following: pytest.Item | None) -> dict[str, Any]:
        self.reports.clear()
        self.took = 0.0
        HITS[:] = bytes(len(HITS))
        start, why, seconds = (time.process_time(), time.perf_counter()), "", [0.0, 0.0]
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        except BaseException as error:  # a test that ends pytest
            why = repr(error)
        seconds = [round(time.process_time() - start[0], 4), round(time.perf_counter() - start[1] - self.took, 4)]
        for report in self.reports:
            if report.failed:
                crash = getattr(report.longrepr, "reprcrash", None)
                why = why or str(crash.message if crash else report.longrepr)[:300] or "failed"
        found = {"test": item.nodeid, "why": why, "seconds": seconds}
        if self.is_covering:
            hits = np.frombuffer(HITS, np.uint8).copy()
            names = getattr(item, "_fixtureinfo", None)
            for definitions in names.name2fixturedefs.values() if names else ():
                for own, took in filter(None, (self.shared.get(id(one)) for one in definitions)):
                    hits |= np.frombuffer(own, np.uint8)
                    seconds[1] = round(seconds[1] + took, 4)
            found["hits"] = packed(hits.tobytes())
        return found

    def write(self, found: dict[str, Any]) -> None:
        self.out.write(json.dumps(found) + "\n")
        self.out.flush()

    # cover

    def coverings(self) -> Iterator[Job]:
        done = {one.get("test") for one in read_lines(self.options["out"])}
        if not done:
            self.write({"lines": Probes.lines, "sources": checksums()})
        files = defaultdict(list)
        for test in self.items:
            if test not in done:
                files[test.partition("::")[0]].append(test)
        longest_first = sorted(files.values(), key=len, reverse=True)
        for number, tests in enumerate(longest_first):
            note(f"{number} of {len(files)}: {tests[0]}")
            yield self.covering(tests)

    def covering(self, tests: list[str]) -> Job:
        while tests:
            ended = yield Task(tests)
            for one in ended:
                if one["why"]:
                    note(f"left out: {one['test']}: {one['why']}")
                self.write(one)
            tests = tests[len(ended) :]

    # run

    def judgements(self) -> Iterator[Job]:
        head, *tests = read_lines(self.options["cover"])
        if head["sources"] != checksums():
            raise click.ClickException("dkrr is not the one that was covered: run cover again")
        self.lines = head["lines"]
        tests = [one for one in tests if not one["why"] and one["test"] in self.items]
        self.bits = np.stack([unpacked(one["hits"]) for one in tests])
        self.names = [one["test"] for one in tests]
        self.seconds = {one["test"]: (one["seconds"][0], one["seconds"][1]) for one in tests}
        counts = np.unpackbits(self.bits, axis=1).sum(1) + 1.0
        self.costs = [(one["seconds"][1] + 0.003) * count for one, count in zip(tests, counts, strict=True)]
        note(f"{len(tests)} of {len(self.items)} tests are used")
        mutants = json.loads(Path(self.options["mutants"]).read_text())
        order = list(range(len(mutants)))
        random.Random(0).shuffle(order)  # whatever is done first is a sample
        only = {int(one) for one in self.options["only"].split(",") if one}
        results = {one["mutant"]: one for one in read_lines(self.options["out"])}
        for number in [one for one in order if not only or one in only][: self.options["limit"]]:
            known = results.get(number)
            if known is None or (known["left"] and known["seconds"] < self.options["seconds"]):
                yield self.judged(number, mutants[number], known["ran"] if known and not self.options["matrix"] else 0)

    def chosen(self, mutant: Mutant) -> list[str] | None:
        """Tests that enter the changed block, in order; None if dkrr has not the function."""
        module = mutant["module"].removesuffix(".py").removesuffix("/__init__")
        start = function_starts(Path(mutant["module"]).read_text(), mutant) if Path(mutant["module"]).exists() else None
        if start is None:
            return None
        lines = self.lines.get(module, {})
        probes = {lines.get(str(line + start)) for line in range(mutant["lines"][0], mutant["lines"][1] + 1)} - {None}
        covers = np.zeros(len(self.names), bool)
        for one in probes:
            covers |= (self.bits[:, one >> 3] >> (7 - (one & 7)) & 1).astype(bool)
        rank: Counter[str] = Counter()
        ordered = []
        for cost, test in sorted((self.costs[k], self.names[k]) for k in np.flatnonzero(covers)):
            rank[test.partition("[")[0]] += 1
            ordered.append((cost * rank[test.partition("[")[0]], test))
        return [test for _, test in sorted(ordered)]

    def judged(self, number: int, mutant: Mutant, n_done: int) -> Job:
        start, tests, is_matrix = time.monotonic(), self.chosen(mutant), self.options["matrix"]
        used = np.cumsum([self.seconds[test][0] for test in tests or ()])
        stop = int(np.searchsorted(used, self.options["seconds"])) + 1
        rest, left = (tests or [])[n_done:stop], len((tests or [])[stop:])
        record: dict[str, Any] = {
            "mutant": number, "outcome": "survived", "killers": [], "why": "", "doubtful": [], "ran": n_done,
            "left": left, "seconds": self.options["seconds"],
        }  # fmt: skip
        while rest and (is_matrix or not record["killers"]):
            ended = yield Task(rest, mutant, not is_matrix)
            record["ran"] += len(ended)
            rest = rest[len(ended) :]
            failed = [one for one in ended if one["why"]]
            if not failed:
                continue
            clean = yield Task([one["test"] for one in failed])
            wrong = {one["test"] for one in clean if one["why"]}
            if not is_matrix and failed[0]["why"] not in NOTICED and not wrong:
                again = yield Task([failed[0]["test"]], mutant)
                wrong |= {one["test"] for one in again if not one["why"]}
            record["doubtful"] += sorted(wrong)
            for one in failed:
                if one["test"] not in wrong:
                    record["killers"].append(one["test"])
                    record["why"] = record["why"] or one["why"]
        if record["killers"]:
            record |= {"outcome": "hung" if record["why"] == "hung" else "killed", "left": left if is_matrix else 0}
        if tests is None:
            record["outcome"] = "not applicable"
        took = time.monotonic() - start
        self.write(record | {"took": round(took, 2)})
        short = f"{mutant['module']}:{mutant['line']} {record['outcome']}"
        note(f"{number} {short}, {record['ran']} tests, {record['left']} left, {took:.1f} s {record['killers'][:1]}")


def note(text: str) -> None:
    os.write(LOG, f"{time.strftime('%H:%M:%S')} {text}\n".encode())


def control(what: int, value: int) -> None:
    """Set the signal when the parent ends (1), or adopt the children of those that end (36)."""
    ctypes.CDLL(None).prctl(what, value, 0, 0, 0)


def checksums() -> dict[str, str]:
    files = sorted(Path("dkrr").rglob("*.py"))
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest()[:12] for path in files}


def read_lines(path: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()] if Path(path).exists() else []


def serve(command: str, tests: str, tree: str, options: dict[str, Any], pytest_arguments: str) -> None:
    """Run a command where the suite of one checkout meets the dkrr of another: in copies of both."""
    left_out = (".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__", "output", "_build")
    with tempfile.TemporaryDirectory(prefix="power-copy-") as folder:
        root = Path(folder) / "code"
        ignored = shutil.ignore_patterns(*left_out)
        shutil.copytree(tests, root, ignore=ignored, ignore_dangling_symlinks=True)
        shutil.rmtree(root / "dkrr")
        shutil.copytree(Path(tree) / "dkrr", root / "dkrr", ignore=ignored)
        threads = {f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "OMP", "MKL", "NUMEXPR")}
        scratch = {"POLARS_MAX_THREADS": "1", "HYPOTHESIS_STORAGE_DIRECTORY": f"{folder}/hypothesis"}
        environment = os.environ | threads | scratch | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": ""}
        script = [sys.executable, "-P", __file__, "inside", "--", command, json.dumps(options), pytest_arguments]
        subprocess.run(script, cwd=root, env=environment, stdin=subprocess.DEVNULL, check=True)


# Commands


@click.group()
def main() -> None:
    """Measure how many small faults the tests notice."""


@main.command(hidden=True)
@click.argument("command")
@click.argument("options", type=json.loads)
@click.argument("pytest_arguments")
def inside(command: str, options: dict[str, Any], pytest_arguments: str) -> None:
    control(36, 1)  # processes whose parents have ended become children of this one
    control(1, signal.SIGKILL)
    if command == "cover":
        sys.meta_path.insert(0, Probes)
    given = ["-c", "pyproject.toml", "--rootdir", ".", "-qq", "-s", "--tb=native", "-p", "no:cacheprovider"]
    given += ["-p", "no:randomly", "-p", "no:faulthandler", "-o", "timeout=0", *shlex.split(pytest_arguments)]
    sys.exit(pytest.main(given, plugins=[Server(command, options)]))


EXISTING = click.Path(exists=True, path_type=Path, resolve_path=True)
NEW = click.Path(path_type=Path, resolve_path=True)
tree_option = click.option("--tree", type=EXISTING, default=".", help="Checkout whose dkrr is used.")
tests_option = click.option("--tests", type=EXISTING, default=".", help="Checkout whose tests are used.")
pytest_option = click.option("--pytest", "arguments", default="", help="More arguments of pytest: which tests.")
processes_option = click.option("--processes", default=2, show_default=True)


@main.command()
@tree_option
@click.option("--size", default=640, show_default=True)
@click.option("--seed", default=7, show_default=True)
@click.option("--out", type=NEW, required=True)
def sample(tree: Path, size: int, seed: int, out: Path) -> None:
    """Draw mutants of all packages, in proportion to their code; at most one of a place."""
    sys.path.insert(0, str(tree))
    functions, rng, found = live_functions(), random.Random(seed), defaultdict[str, list[Any]](list)
    for path in sorted((tree / "dkrr").rglob("*.py")):
        module = path.relative_to(tree).as_posix()
        parsed, places = candidates(path)
        found[package(module)] += [(path, module, parsed, place) for place in places]
    total, drawn = sum(map(len, found.values())), list[Mutant]()
    quotas = {name: max(AT_LEAST, round(size * len(places) / total)) for name, places in found.items()}
    quotas[max(quotas, key=quotas.__getitem__)] += size - sum(quotas.values())
    for name, places in sorted(found.items()):
        rng.shuffle(places)
        kept = filter(None, (described(p, m, parsed, rng.choice(options)) for p, m, parsed, options in places))
        drawn += itertools.islice(filter(partial(put_in, functions=functions), kept), quotas[name])
        click.echo(f"{name}: {quotas[name]} of {len(places)} places")
    out.write_text(json.dumps(drawn, indent=1))


def package(module: str) -> str:
    return "/".join(module.split("/")[:2]) if module.count("/") > 1 else "dkrr/*.py"


@main.command()
@tree_option
@tests_option
@pytest_option
@processes_option
@click.option("--out", type=NEW, required=True)
def cover(tree: Path, tests: Path, arguments: str, processes: int, out: Path) -> None:
    """Store which blocks of dkrr each test enters."""
    serve("cover", str(tests), str(tree), {"out": str(out), "processes": processes}, arguments)


@main.command()
@tree_option
@tests_option
@pytest_option
@processes_option
@click.option("--mutants", type=EXISTING, required=True)
@click.option("--cover", type=EXISTING, required=True)
@click.option("--out", type=NEW, required=True)
@click.option("--seconds", default=30.0, show_default=True, help="CPU seconds of the tests of a mutant.")
@click.option("--matrix", is_flag=True, help="Find all tests that fail, not only the first.")
@click.option("--limit", type=int, help="So many mutants only: a random part.")
@click.option("--only", default="", help="Numbers of mutants, with commas between.")
def run(tree: Path, tests: Path, arguments: str, **options: Any) -> None:
    """Run the tests against each mutant."""
    given = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    serve("run", str(tests), str(tree), given, arguments)


def p_value(only_before: int, only_after: int) -> float:
    """McNemar's exact test, of two sides."""
    from scipy.stats import binomtest

    return float(binomtest(only_before, only_before + only_after).pvalue) if only_before + only_after else 1.0


@main.command()
@click.argument("before", type=EXISTING)
@click.argument("after", type=EXISTING)
@click.option("--mutants", type=EXISTING, required=True)
@click.option("--write", type=EXISTING, help="Page that takes the table.")
def compare(before: Path, after: Path, mutants: Path, write: Path | None) -> None:
    """Compare two suites; list the mutants that only one of them notices."""
    descriptions = json.loads(mutants.read_text())
    first, second = ({one["mutant"]: one for one in read_lines(path)} for path in (before, after))
    pairs = [(number, first[number], second[number]) for number in sorted(first.keys() & second.keys())]
    pairs = [pair for pair in pairs if "not applicable" not in (pair[1]["outcome"], pair[2]["outcome"])]
    groups: dict[str, list[tuple[bool, bool]]] = defaultdict(list)
    for number, *results in pairs:
        noticed = results[0]["outcome"] in NOTICED, results[1]["outcome"] in NOTICED
        for name in (f"`{package(descriptions[number]['module'])}`", "all"):
            groups[name].append(noticed)
    rows = ["| package | mutants | noticed before | noticed after | only before | only after | p |", "|---" * 7 + "|"]
    for name, found in sorted(groups.items(), key=lambda item: (item[0] == "all", item[0])):
        ones = [sum(one for one, _ in found), sum(one for _, one in found)]
        only = [found.count((True, False)), found.count((False, True))]
        shares = [f"{one} ({one / len(found):.0%})" for one in ones]
        rows.append(f"| {name} | {len(found)} | {' | '.join(shares)} | {only[0]} | {only[1]} | {p_value(*only):.2g} |")
    table = "\n".join(rows)
    click.echo(table)
    for title, k in (("before", 1), ("after", 2)):
        click.echo(f"{title}: {sum(pair[k]['left'] > 0 for pair in pairs)} survivors met a part of their tests only")
    for title, one, other in (("before", 1, 2), ("after", 2, 1)):
        click.echo(f"\nNoticed {title} only:")
        for pair in pairs:
            if pair[one]["outcome"] in NOTICED and pair[other]["outcome"] not in NOTICED:
                mutant = descriptions[pair[0]]
                click.echo(f"\n{pair[0]}: {mutant['module']}:{mutant['line']} {mutant['function']}\n{mutant['diff']}")
                click.echo(f"{pair[one]['killers'][0]}: {pair[one]['why']!r}; the other ran {pair[other]['ran']}")
    if write is not None:
        start, rest = write.read_text().split(BEGIN, 1)
        write.write_text(f"{start}{BEGIN}\n{table}\n{END}{rest.split(END, 1)[1]}")


@main.command("cover-set")
@click.argument("matrix", type=EXISTING)
@click.option("--cover", type=EXISTING, required=True)
def cover_set(matrix: Path, cover: Path) -> None:
    """Print for each file how many of its tests are needed to notice what the suite notices."""
    kills: dict[str, set[int]] = defaultdict(set)
    killers = {one["mutant"]: one["killers"] for one in read_lines(matrix)}
    for number, tests in killers.items():
        for test in tests:
            kills[test].add(number)
    only = Counter(tests[0] for tests in killers.values() if len(tests) == 1)
    open_mutants, needed = set().union(*kills.values()), set()
    while open_mutants:
        best = max(sorted(kills), key=lambda test: len(kills[test] & open_mutants))
        needed.add(best)
        open_mutants -= kills[best]
    files: dict[str, Counter[str]] = defaultdict(Counter)
    for one in read_lines(cover)[1:]:
        parts = {"tests": 1, "kill": one["test"] in kills, "needed": one["test"] in needed, "alone": only[one["test"]]}
        files[one["test"].partition("::")[0]].update({name: int(value) for name, value in parts.items()})
    for name, found in sorted(files.items(), key=lambda item: (item[1]["needed"], item[0])):
        click.echo(f"{name}: " + ", ".join(f"{found[part]} {part}" for part in ("tests", "kill", "needed", "alone")))
    for test in sorted(needed):
        click.echo(f"needed: {test} ({len(kills[test])} mutants, {only[test]} by it alone)")


if __name__ == "__main__":
    main()
