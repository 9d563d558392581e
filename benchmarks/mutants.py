"""Do the tests notice a fault in a core module? Small faults (mutants) are put into copies of it, and its tests run.

::

    python -m benchmarks.mutants [--sample 30] [--all] [--json output/mutants.jsonl] [--write docs/mutants.md]
    python -m benchmarks.mutants --tree before=../old --tree after=. --json output/mutants.jsonl
    python -m benchmarks.mutants --module dkrr/tiles/matrix.py=tests/tiles/test_grid.py

mutmut makes the mutants: ``<=`` for ``<``, ``-`` for ``+``, ``or`` for ``and``, another number, an argument left out.
Two kinds are not used: other strings, since most strings are words of a message, and None for a value, which fails
wherever the line runs. A sample draws places in the code, and one mutant of each; the same seed draws the same ones,
and a larger sample contains a smaller one.

Every mutant is written into a copy of the checkout, where pytest runs the tests of its module until the first failure;
Hypothesis draws the same examples each time. A mutant is **caught** if the tests fail, **timed out** if they take
several times the CPU seconds of the clean run, or far longer on the clock, and **survived** otherwise. The share is
that of the mutants that did not survive. A survivor may be equivalent to the original; each is printed.

Mutants that ``--json`` holds already, of the same source and tests, are not run again.
"""

import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from difflib import unified_diff
from pathlib import Path
from typing import Any

import click
import libcst
from mutmut.mutation.file_mutation import Mutation, create_mutations, deep_replace

from benchmarks.accuracy import replaced

MODULES = {
    "dkrr/linalg/cholesky.py": ["tests/linalg/test_cost.py", "tests/linalg/test_cholesky.py"],
    "dkrr/linalg/substitution.py": ["tests/linalg/test_substitution.py"],
    "dkrr/linalg/preconditioner.py": ["tests/linalg/test_preconditioner.py"],
    "dkrr/linalg/low_rank.py": ["tests/linalg/test_preconditioner.py"],
    "dkrr/linalg/pivoted_cholesky.py": ["tests/linalg/test_preconditioner.py"],
    "dkrr/solvers/conjugate_gradient.py": ["tests/solvers/test_conjugate_gradient.py"],
    "dkrr/planning/planner.py": ["tests/planning/test_decisions.py", "tests/planning/test_plans.py"],
    "dkrr/planning/tilings.py": ["tests/planning/test_decisions.py", "tests/planning/test_prices.py"],
    "dkrr/planning/direct_dual.py": ["tests/planning/test_decisions.py", "tests/planning/test_prices.py"],
    "dkrr/planning/direct_primal.py": ["tests/planning/test_decisions.py", "tests/planning/test_prices.py"],
    "dkrr/tiles/chunks.py": ["tests/tiles/test_chunks.py"],
    "dkrr/arguments.py": [
        "tests/test_arguments.py",
        "tests/planning/test_clusters.py",
        "tests/estimators/test_bad_input.py",
        "tests/estimators/test_logistic_bad_input.py",
    ],
}
"""Core modules, and the tests that mirror them or call them, the quickest ones first."""
CPU_FACTOR, CPU_SECONDS = 3.0, 20.0
"""Limit of a run: this many times the clean run's CPU seconds, and so many more."""
WALL_FACTOR = 10.0
"""Limit on the clock over that in CPU seconds: for tests that wait for ever, also while others use the machine."""
MEMORY_BYTES = 16 * 2**30
"""Most address space of a process: a mutant may ask for any size."""
PLUGIN = """
from hypothesis import Phase, settings
settings.register_profile("mutants", derandomize=True, database=None, phases=[Phase.explicit, Phase.generate])
"""
"""A failure is enough: no simpler example is looked for."""
PYTEST = [
    *("-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", "pytest_timeout", "--timeout", "0"),
    *("-p", "_hypothesis_pytestplugin", "-p", "mutants_plugin", "--hypothesis-profile", "mutants"),
]
"""Only the plugins that are needed: to load the others takes longer than many tests."""
BEGIN, END = "<!-- table of mutants: begin -->", "<!-- table of mutants: end -->"
HEAD = "| module | code | mutants tried | caught | timed out | survived | share |\n|---|---|---|---|---|---|---|"


@dataclass(frozen=True)
class Mutant:
    """One mutant, and what became of it."""

    code: str
    """Name of the checkout."""
    module: str
    tests: str
    source: str
    """Checksum of the module without the mutation."""
    of: int
    """All mutants of the module."""
    line: int
    diff: str
    outcome: str = ""
    cpu_seconds: float = 0.0

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for the same mutant in another run."""
        return self.code, self.module, self.tests, self.source, self.line, self.diff


def mutants(path: Path, module: str) -> tuple[libcst.Module, list[Mutation]]:
    """Parse a file and list its mutants, in the order of the code."""
    parsed, found, *_ = create_mutations(module, path.read_text())
    return parsed, [one for one in found if _is_used(*map(parsed.code_for_node, (one.original_node, one.mutated_node)))]


def _is_used(original: str, mutated: str) -> bool:
    is_string = original.startswith(("'", '"'))
    return not is_string and mutated.count("None") <= original.count("None")


def drawn(found: list[Mutation], size: int, seed: int) -> list[int]:
    """Numbers of a sample of mutants, at most one of a place."""
    places: dict[int, list[int]] = {}
    for number, one in enumerate(found):
        places.setdefault(id(one.original_node), []).append(number)
    rng = random.Random(seed)
    sample = [rng.choice(numbers) for numbers in places.values()]
    rng.shuffle(sample)
    return sample[:size]


class Copy:
    """Copy of a checkout that mutants are written into."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.root, self.scratch = folder / "code", folder / "scratch"
        ignored = shutil.ignore_patterns(".*", "__pycache__", "output")
        shutil.copytree(tree, self.root, ignore=ignored)
        (folder / "mutants_plugin.py").write_text(PLUGIN)
        paths = f"{self.root}{os.pathsep}{folder}"
        settings = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OPENBLAS_NUM_THREADS": "1"}
        self.environment = os.environ | settings | {"PYTHONPATH": paths, "TMPDIR": str(self.scratch)}

    def run(self, tests: Iterable[str], cpu_seconds: float | None = None) -> tuple[str, float, str]:
        """Run tests; return how they ended, their CPU seconds and what they printed.

        Only the clean run, which has no limit, leaves bytecode: Python could take that of one mutant for the next.
        """
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir()

        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            if cpu_seconds is not None:
                resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_seconds), int(cpu_seconds) + 5))

        command = [sys.executable, *([] if cpu_seconds is None else ["-B"]), *PYTEST, *tests]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with (self.scratch / "printed.txt").open("w+") as printed:  # workers that stay would keep a pipe open
            streams: dict[str, Any] = {"stdout": printed, "stderr": subprocess.STDOUT}
            process = subprocess.Popen(
                command, cwd=self.root, env=self.environment, start_new_session=True, preexec_fn=limit, **streams
            )
            try:
                status = process.wait(None if cpu_seconds is None else WALL_FACTOR * cpu_seconds)
            except subprocess.TimeoutExpired:
                status = -signal.SIGKILL
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # and its workers
                process.wait()
            printed.seek(0)
            text = printed.read()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if status in (-signal.SIGXCPU, -signal.SIGKILL):
            return "timed out", used, text
        return ("caught" if status else "survived"), used, text


def tried(
    code: str, copy: Copy, module: str, tests: list[str], size: int | None, seed: int, known: dict[object, Mutant]
) -> Iterator[Mutant]:
    """Run the mutants of one module, but for those that are known."""
    target, limit = copy.root / module, 0.0
    if not target.is_file():
        raise click.ClickException(f"{code} has no {module}; name the modules of another layout by --module")
    source, times = target.read_text(), target.stat()
    checksum = hashlib.sha256(source.encode()).hexdigest()[:12]
    parsed, found = mutants(target, module)
    for number in range(len(found)) if size is None else drawn(found, size, seed):
        changed = deep_replace(parsed, found[number].original_node, found[number].mutated_node)
        assert isinstance(changed, libcst.Module)
        where, *diff = list(unified_diff(source.splitlines(), changed.code.splitlines(), lineterm="", n=0))[2:]
        line, text = int(where.split()[1].lstrip("-").split(",")[0]), "\n".join(diff)
        one = Mutant(code, module, " ".join(tests), checksum, len(found), line, text)
        if one.key in known:
            yield known[one.key]
            continue
        limit = limit or _limit(copy, target, tests)
        try:
            target.write_text(changed.code)
            outcome, used, _ = copy.run(tests, limit)
        finally:
            target.write_text(source)
            os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))  # its bytecode is compared with it
        yield replace(one, outcome=outcome, cpu_seconds=round(used, 2))


def _limit(copy: Copy, target: Path, tests: list[str]) -> float:
    """CPU seconds that a mutant may take; refuse tests that fail without a mutation or pass without the module."""
    ended, clean, printed = copy.run(tests)
    if ended != "survived":
        raise click.ClickException(f"the tests of {target.name} fail without a mutation:\n{printed[-3000:]}")
    limit = CPU_FACTOR * clean + CPU_SECONDS
    target.write_text("raise ImportError\n")
    if copy.run(tests, limit)[0] == "survived":
        raise click.ClickException(f"the tests of {target.name} pass without it: they import another one, or none")
    return limit


def table(results: Iterable[Mutant]) -> str:
    """Return the table in Markdown: a line for each module of each checkout, and one for all its modules."""
    groups: dict[tuple[str, str], list[Mutant]] = {}
    for one in results:
        groups.setdefault((one.module, one.code), []).append(one)
        groups.setdefault(("all", one.code), []).append(one)
    lines = [HEAD]
    for (module, code), group in sorted(groups.items(), key=lambda item: item[0][0] == "all"):
        counts = [sum(one.outcome == outcome for one in group) for outcome in ("caught", "timed out", "survived")]
        total = sum({one.module: one.of for one in group}.values())
        name = module if module == "all" else f"`{module}`"
        share = 100 * (1 - counts[2] / len(group))
        lines.append(f"| {name} | {code} | {len(group)} of {total} | {' | '.join(map(str, counts))} | {share:.0f} % |")
    return "\n".join(lines)


def _pairs(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    if any("=" not in value for value in values):
        raise click.BadParameter("expected NAME=VALUE")
    return dict(value.split("=", 1) for value in values)


@click.command()
@click.option("--sample", default=30, show_default=True, help="Mutants of each module.")
@click.option("--all", "everything", is_flag=True, help="All mutants.")
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--tree", "trees", multiple=True, callback=_pairs, default=["this=."], show_default=True, metavar="NAME=FOLDER",
    help="Checkout whose modules and tests are used.",
)  # fmt: skip
@click.option(
    "--module", "modules", multiple=True, callback=_pairs, metavar="FILE=TESTS,TESTS",
    help="Modules and their tests, instead of the table in this command.",
)  # fmt: skip
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Results, one a line.")
@click.option(
    "--write", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Page that takes the table."
)
def main(
    sample: int, everything: bool, seed: int, trees: dict[str, str], modules: dict[str, str], file: Path | None,
    write: Path | None,
) -> None:  # fmt: skip
    """Count the faults in core modules that their tests notice."""
    lines = file.read_text().splitlines() if file is not None and file.exists() else []
    earlier = [Mutant(**json.loads(line)) for line in lines]
    known: dict[object, Mutant] = {one.key: one for one in earlier}
    wanted = {module: tests.split(",") for module, tests in modules.items()} or MODULES
    results = [one for one in earlier if one.code not in trees or one.module not in wanted]
    for code, tree in trees.items():
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            copy = Copy(Path(tree), Path(folder))
            for module, tests in wanted.items():
                for one in tried(code, copy, module, tests, None if everything else sample, seed, known):
                    results.append(one)
                    if one.outcome == "survived":
                        click.echo(f"{code}: {module}:{one.line} survived\n{one.diff}", err=True)
                    if file is not None and one.key not in known:
                        with file.open("a") as out:
                            out.write(json.dumps(asdict(one)) + "\n")
    block = table(results)
    click.echo(block)
    if write is not None:
        write.write_text(replaced(write.read_text(), block, BEGIN, END))


if __name__ == "__main__":
    main()
