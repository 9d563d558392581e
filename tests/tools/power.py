"""How many small faults in dkrr does a suite of tests notice? The same faults (mutants) for several suites, paired.

::

    python -m tests.tools.power sample --tree . --size 640 --seed 7 --out mutants.json
    python -m tests.tools.power cover --tests ../old --pytest "-m 'not slow'" --out before-cover.jsonl
    python -m tests.tools.power run --tests ../old --pytest "-m 'not slow'" --mutants mutants.json \
        --cover before-cover.jsonl --out before.jsonl
    ... cover and run of --tests . --out after.jsonl
    python -m tests.tools.power compare before.jsonl after.jsonl --mutants mutants.json --write docs/results/mutants.md
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

``run`` collects the suite once for each of ``--processes``, which then forks for each mutant: the child gives the
functions their changed code, and runs the tests that enter the changed block until the first failure, those first that
will probably fail soon (quick, few blocks, another case of the same test later). So a mutant does not change worker
processes that the tests start, what was computed at import, and what was cached then; that is so for each suite. A
failure counts if it is repeated in a second process, and does not occur without the mutant in a third. A mutant is also
noticed (*hung*) if a test takes far longer than without it. ``--seconds`` limits the tests of a mutant, by their
seconds without it; a survivor says how many tests were left, and a later run with more seconds runs those. Results are
appended: a stopped run resumes.
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
import multiprocessing
import os
import pkgutil
import random
import resource
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
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any, ClassVar

import click
import numpy as np
import pandas as pd
import psutil
import pytest
from scipy.stats import binomtest

AT_LEAST = 8
"""Mutants of a package."""
CPU, WALL = (5.0, 10.0), (10.0, 60.0)
"""A test hangs after so many times its seconds without a mutant, and so many more; the clock is not that of a machine
which others use, too."""
MEMORY_BYTES = 16 * 2**30
"""A mutant may ask for any size."""
HITS = bytearray(2**16)
"""A byte for each probe: whether it was passed."""
NOTICED = ("killed", "hung")
BEGIN, END = "<!-- table of mutants: begin -->", "<!-- table of mutants: end -->"
Mutant = dict[str, Any]
Record = dict[str, Any]
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
    path = Path(sys.modules["dkrr"].__file__ or "").parents[1] / mutant["module"]
    source = path.read_text()
    if function_starts(source, mutant) is None:
        return 0
    changed = f"\n{source}\n".replace(f"\n{mutant['before']}\n", f"\n{mutant['after']}\n")[1:-1]
    with warnings.catch_warnings(action="ignore"):
        compiled = [compile(text, path, "exec", dont_inherit=True) for text in (source, changed)]
    count, pairs = 0, zip(*map(code_objects, compiled), strict=False)
    for old, new in itertools.takewhile(lambda pair: pair[0].co_qualname == pair[1].co_qualname, pairs):
        if new != old and f"{old.co_qualname}.".startswith(f"{mutant['function']}."):
            for function in functions.get((str(path), old.co_qualname, old.co_firstlineno), ()):
                if function.__code__.co_freevars == new.co_freevars:
                    function.__code__ = new
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


# A process that has collected the suite, and forks


class Server:
    """Plugin of pytest that takes over when the tests are collected."""

    def __init__(self, command: str, options: dict[str, Any]) -> None:
        self.options, self.is_covering = options, command == "cover"
        self.failures: list[str] = []

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
        self.functions, self.helpers = live_functions(), psutil.Process().children(recursive=True)
        gc.collect()
        gc.freeze()
        (self.cover if self.is_covering else self.run)()
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.failures.append(str(crash.message if crash else report.longrepr)[:300] or "failed")

    def ended(
        self, tests: list[str], mutant: Mutant | None = None, *, is_ended_by_failure: bool = False
    ) -> list[Record]:
        """Run tests in a new process, until it dies, hangs or has a failure that ends it: what was found of each."""
        found: list[Record] = []
        pipe, write = multiprocessing.Pipe(duplex=False)
        with tempfile.TemporaryDirectory(prefix="power-", ignore_cleanup_errors=True) as scratch:
            if not (pid := os.fork()):
                try:
                    self.be_child(tests, mutant, write, scratch)
                finally:
                    os._exit(0)
            write.close()
            try:
                for test in tests:
                    self.wait(pipe, psutil.Process(pid), test)
                    found.append(pipe.recv())
                    if found[-1]["why"] and is_ended_by_failure:
                        break
            except (EOFError, OSError) as error:
                what = "hung" if isinstance(error, TimeoutError) else "died"
                found.append({"test": tests[len(found)], "why": what, "seconds": [0.0, 0.0]})
            pipe.close()
            # What the child has started, and what it has left, is adopted by this process.
            while others := [one for one in psutil.Process().children(recursive=True) if one not in self.helpers]:
                for one in others:
                    with suppress(psutil.Error):
                        one.kill()
                psutil.wait_procs(others, timeout=1)
        return found

    def wait(self, pipe: Any, child: psutil.Process, test: str) -> None:
        """Wait for the result of a test; raise TimeoutError if it hangs, EOFError if the child died."""
        cpu, wall = (0.0, 0.0) if self.is_covering else self.seconds[test]
        start, used = time.monotonic(), sum(child.cpu_times()[:2])
        while not pipe.poll(0.25):
            if child.status() == psutil.STATUS_ZOMBIE and not pipe.poll():
                raise EOFError
            is_hung = sum(child.cpu_times()[:2]) - used > CPU[0] * cpu + CPU[1] or (
                time.monotonic() - start > WALL[0] * wall + WALL[1]
            )
            if is_hung and not self.is_covering:
                raise TimeoutError

    def be_child(self, tests: list[str], mutant: Mutant | None, pipe: Any, scratch: str) -> None:
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
        if mutant is not None:
            put_in(mutant, self.functions)
        items = [self.items[test] for test in tests]
        for item, following in itertools.zip_longest(items, items[1:]):
            pipe.send(self.run_item(item, following))

    def run_item(self, item: pytest.Item, following: pytest.Item | None) -> Record:
        self.failures.clear()
        HITS[:] = bytes(len(HITS))
        start = time.process_time(), time.perf_counter()
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        except BaseException as error:  # a test that ends pytest
            self.failures.insert(0, repr(error))
        seconds = [round(time.process_time() - start[0], 4), round(time.perf_counter() - start[1], 4)]
        found = {"test": item.nodeid, "why": next(iter(self.failures), ""), "seconds": seconds}
        if self.is_covering:
            hits = np.packbits(np.frombuffer(HITS, np.uint8)).tobytes()
            found["hits"] = base64.b85encode(zlib.compress(hits)).decode()
        return found

    def mine(self, jobs: list[Any]) -> list[Any]:
        """The part of jobs that this one of several processes does."""
        return jobs[self.options["part"] :: self.options["processes"]]

    def write(self, found: Record) -> None:
        with Path(self.options["out"]).open("ab", buffering=0) as out:
            out.write(json.dumps(found).encode() + b"\n")

    def cover(self) -> None:
        done = {one.get("test") for one in read_lines(self.options["out"])}
        self.write({"lines": Probes.lines, "sources": checksums()})
        for test in self.mine([*self.items]):
            if test in done:
                continue
            (found,) = self.ended([test])  # each in a process of its own, which sets up the fixtures that it shares
            note(f"left out: {test}: {found['why']}" if found["why"] else test)
            self.write(found)

    def run(self) -> None:
        lines = read_lines(self.options["cover"])
        heads = [one for one in lines if "lines" in one]
        if any(one["sources"] != checksums() or one != heads[0] for one in heads):
            raise click.ClickException("dkrr is not the one that was covered: run cover again")
        self.lines = heads[0]["lines"]
        used = [one for one in lines if one.get("test") in self.items and not one["why"]]
        packed = [np.frombuffer(zlib.decompress(base64.b85decode(one["hits"])), np.uint8) for one in used]
        self.bits, self.seconds = np.stack(packed), {one["test"]: tuple(one["seconds"]) for one in used}
        self.tests = pd.DataFrame({"test": list(self.seconds)})
        self.tests["function"] = self.tests.test.str.partition("[")[0]
        blocks = np.bitwise_count(self.bits).sum(axis=1)
        self.tests["cost"] = (np.array([wall for _, wall in self.seconds.values()]) + 0.003) * (blocks + 1)
        note(f"{len(used)} of {len(self.items)} tests are used")
        mutants = json.loads(Path(self.options["mutants"]).read_text())
        order = random.Random(0).sample(range(len(mutants)), len(mutants))  # whatever is done first is a sample
        results = {one["mutant"]: one for one in read_lines(self.options["out"])}
        for number in self.mine(order[: self.options["limit"]]):
            known = results.get(number)
            if known is None or (known["left"] and known["seconds"] < self.options["seconds"]):
                start, n_done = time.monotonic(), known["ran"] if known and not self.options["matrix"] else 0
                record = self.judged(mutants[number], n_done)
                took = round(time.monotonic() - start, 2)
                self.write({"mutant": number, **record, "seconds": self.options["seconds"], "took": took})
                where = f"{number} {mutants[number]['module']}:{mutants[number]['line']} {record['outcome']}"
                note(f"{where}, {record['ran']} tests, {record['left']} left, {took} s {record['killers'][:1]}")

    def chosen(self, mutant: Mutant) -> list[str] | None:
        """Tests that enter the changed block, in order; None if dkrr has not the function."""
        path = Path(mutant["module"])
        start = function_starts(path.read_text(), mutant) if path.exists() else None
        if start is None:
            return None
        lines = self.lines.get(mutant["module"].removesuffix(".py").removesuffix("/__init__"), {})
        covers = np.zeros(len(self.bits), bool)
        for line in range(mutant["lines"][0], mutant["lines"][1] + 1):
            if (probe := lines.get(str(line + start))) is not None:
                covers |= (self.bits[:, probe >> 3] >> (7 - (probe & 7)) & 1).astype(bool)
        found = self.tests[covers].sort_values(["cost", "test"])
        found["cost"] *= found.groupby("function").cumcount() + 1
        return list(found.sort_values(["cost", "test"]).test)

    def judged(self, mutant: Mutant, n_done: int) -> Record:
        """Run the tests of a mutant behind those that are done; the outcome, and the tests that fail."""
        tests, is_matrix = self.chosen(mutant), self.options["matrix"]
        used = np.cumsum([self.seconds[test][0] for test in tests or ()])
        stop = int(np.searchsorted(used, self.options["seconds"])) + 1
        rest, left, ran = (tests or [])[n_done:stop], len((tests or [])[stop:]), n_done
        killers, why = list[str](), ""
        while rest and (is_matrix or not killers):
            ended = self.ended(rest, mutant, is_ended_by_failure=not is_matrix)
            ran, rest = ran + len(ended), rest[len(ended) :]
            if not (failed := {one["test"]: one["why"] for one in ended if one["why"]}):
                continue
            wrong = {one["test"] for one in self.ended(list(failed)) if one["why"]}
            if not is_matrix and "hung" not in failed.values() and not wrong:
                wrong = {one["test"] for one in self.ended(list(failed), mutant) if not one["why"]}
            found = [test for test in failed if test not in wrong]
            killers, why = killers + found, why or next((failed[test] for test in found), "")
        outcome = "hung" if why == "hung" else "killed" if killers else "survived"
        left = left if is_matrix or not killers else 0
        outcome = "not applicable" if tests is None else outcome
        return {"outcome": outcome, "killers": killers, "why": why, "ran": ran, "left": left}


def note(text: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')} {text}", err=True)


def control(what: int, value: int) -> None:
    """Set the signal when the parent ends (1), or adopt the children of those that end (36)."""
    ctypes.CDLL(None).prctl(what, value, 0, 0, 0)


def checksums() -> dict[str, str]:
    files = sorted(Path("dkrr").rglob("*.py"))
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest()[:12] for path in files}


def read_lines(path: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()] if Path(path).exists() else []


def serve(command: str, tests: Path, tree: Path, pytest_arguments: str, **options: Any) -> None:
    """Run a command where the suite of one checkout meets the dkrr of another: in copies of both."""
    ignored = shutil.ignore_patterns(
        ".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__", "output", "_build", ".library"
    )
    with tempfile.TemporaryDirectory(prefix="power-copy-") as folder:
        root = Path(folder) / "code"
        shutil.copytree(tests, root, ignore=ignored, ignore_dangling_symlinks=True)
        shutil.rmtree(root / "dkrr")
        shutil.copytree(tree / "dkrr", root / "dkrr", ignore=ignored)
        threads = {f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "OMP", "MKL", "NUMEXPR")}
        scratch = {"POLARS_MAX_THREADS": "1", "HYPOTHESIS_STORAGE_DIRECTORY": f"{folder}/hypothesis"}
        environment = os.environ | threads | scratch | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": ""}
        script = [sys.executable, "-P", __file__, "inside", "--", command]
        parts = [json.dumps({**options, "part": part}, default=str) for part in range(options["processes"])]
        calls = [[*script, part, pytest_arguments] for part in parts]
        running = [subprocess.Popen(call, cwd=root, env=environment, stdin=subprocess.DEVNULL) for call in calls]
        sys.exit(max(abs(one.wait()) for one in running))


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
    serve("cover", tests, tree, arguments, out=out, processes=processes)


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
def run(tree: Path, tests: Path, arguments: str, **options: Any) -> None:
    """Run the tests against each mutant."""
    serve("run", tests, tree, arguments, **options)


@main.command()
@click.argument("before", type=EXISTING)
@click.argument("after", type=EXISTING)
@click.option("--mutants", type=EXISTING, required=True)
@click.option("--write", type=EXISTING, help="Page that takes the table.")
def compare(before: Path, after: Path, mutants: Path, write: Path | None) -> None:
    """Compare two suites; list the mutants that only one of them notices."""
    from tests.tools.pages import replaced  # a suite that is measured may have no such module

    descriptions = json.loads(mutants.read_text())
    first, second = (pd.DataFrame(read_lines(path)).drop_duplicates("mutant", keep="last") for path in (before, after))
    pairs = first.merge(second, on="mutant", suffixes=("_before", "_after")).sort_values("mutant")
    pairs = pairs[(pairs.outcome_before != "not applicable") & (pairs.outcome_after != "not applicable")]
    pairs["package"] = [f"`{package(descriptions[number]['module'])}`" for number in pairs.mutant]
    noticed = {title: pairs[f"outcome_{title}"].isin(NOTICED) for title in ("before", "after")}
    only = {"before": noticed["before"] & ~noticed["after"], "after": noticed["after"] & ~noticed["before"]}
    rows = ["| package | mutants | noticed before | noticed after | only before | only after | p |", "|---" * 7 + "|"]
    for name, found in [*pairs.groupby("package"), ("all", pairs)]:
        counts = [int(each[found.index].sum()) for each in (*noticed.values(), *only.values())]
        shares = [f"{count} ({count / len(found):.0%})" for count in counts[:2]]
        p = binomtest(counts[2], sum(counts[2:])).pvalue if any(counts[2:]) else 1.0  # McNemar's exact test
        cells = [name, len(found), *shares, *counts[2:], f"{p:.2g}"]
        rows.append(f"| {' | '.join(map(str, cells))} |")
    table = "\n".join(rows)
    click.echo(table)
    for title in only:
        click.echo(f"{title}: {(pairs[f'left_{title}'] > 0).sum()} survivors met a part of their tests only")
    for title, other in (("before", "after"), ("after", "before")):
        click.echo(f"\nNoticed {title} only:")
        for pair in pairs[only[title]].to_dict("records"):
            mutant = descriptions[pair["mutant"]]
            click.echo(
                f"\n{pair['mutant']}: {mutant['module']}:{mutant['line']} {mutant['function']}\n{mutant['diff']}"
            )
            click.echo(f"{pair[f'killers_{title}'][0]}: {pair[f'why_{title}']!r}; the other ran {pair[f'ran_{other}']}")
    if write is not None:
        write.write_text(replaced(write.read_text(), table, BEGIN, END))


@main.command("cover-set")
@click.argument("matrix", type=EXISTING)
@click.option("--cover", type=EXISTING, required=True)
def cover_set(matrix: Path, cover: Path) -> None:
    """Print for each file how many of its tests are needed to notice what the suite notices."""
    killers = {one["mutant"]: one["killers"] for one in read_lines(matrix)}
    kills, alone = defaultdict[str, set[int]](set), Counter(tests[0] for tests in killers.values() if len(tests) == 1)
    for number, test in ((number, test) for number, tests in killers.items() for test in tests):
        kills[test].add(number)
    open_mutants, needed = set().union(*kills.values()), list[str]()
    while open_mutants:
        needed.append(max(sorted(kills), key=lambda test: len(kills[test] & open_mutants)))
        open_mutants -= kills[needed[-1]]
    frame = pd.DataFrame({"test": [one["test"] for one in read_lines(cover) if "test" in one]})
    frame["file"] = frame.test.str.partition("::")[0]
    frame = frame.assign(tests=1, kill=frame.test.isin(kills), needed=frame.test.isin(needed))
    frame["alone"] = [alone[test] for test in frame.test]
    found = frame.groupby("file")[["tests", "kill", "needed", "alone"]].sum().sort_values(["needed", "file"])
    for row in found.itertuples():
        click.echo(f"{row.Index}: {row.tests} tests, {row.kill} kill, {row.needed} needed, {row.alone} alone")
    for test in sorted(needed):
        click.echo(f"needed: {test} ({len(kills[test])} mutants, {alone[test]} by it alone)")


if __name__ == "__main__":
    main()
