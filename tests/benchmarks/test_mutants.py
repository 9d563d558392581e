"""The command on a tiny checkout, whose tests notice some faults and not others."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import mutants

SOURCE = '''
"""A module."""


def is_long(values):
    label = "long"
    if len(values) > 3:
        return label
    return False
'''
TESTS = """
from small.lengths import is_long


def test_is_long():
    assert is_long("abcd") and not is_long("ab")
"""
ALSO_AT_THE_LIMIT = """

def test_at_the_limit():
    assert not is_long("abc")
"""


@pytest.fixture
def checkout(tmp_path):
    for name, text in {"small/__init__.py": "", "small/lengths.py": SOURCE, "tests/test_lengths.py": TESTS}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def run(checkout, *arguments, tests="tests/test_lengths.py"):
    given = ["--tree", f"old={checkout}", "--module", f"small/lengths.py={tests}", *arguments]
    return CliRunner().invoke(mutants.main, given)


def mutant(line, before, after, outcome):
    checksum = hashlib.sha256(SOURCE.encode()).hexdigest()[:12]
    one = mutants.Mutant(
        "old", "small/lengths.py", "tests/test_lengths.py", checksum, 3, line, f"-{before}\n+{after}", outcome
    )
    return asdict(one)


def test_mutants_of_a_checkout(checkout, monkeypatch):
    file, page = checkout / "results.jsonl", checkout / "page.md"
    page.write_text(f"before\n{mutants.BEGIN}\n{mutants.END}\nafter\n")
    kept = (checkout / "small" / "lengths.py").read_text()
    result = run(checkout, "--all", "--json", str(file), "--write", str(page))
    assert result.exit_code == 0, result.output
    # Another label and None for it are not tried.
    assert [json.loads(line) | {"cpu_seconds": 0.0} for line in file.read_text().splitlines()] == [
        mutant(7, "    if len(values) > 3:", "    if len(values) >= 3:", "survived"),
        mutant(7, "    if len(values) > 3:", "    if len(values) > 4:", "caught"),
        mutant(9, "    return False", "    return True", "caught"),
    ]
    row = "| `small/lengths.py` | old | 3 of 3 | 2 | 0 | 1 | 67 % |"
    assert row in result.stdout and row in page.read_text() and page.read_text().endswith("\nafter\n")
    assert "old: small/lengths.py:7 survived" in result.stderr
    assert (checkout / "small" / "lengths.py").read_text() == kept

    monkeypatch.setattr(mutants.Copy, "run", None)  # results that are known are not found again
    assert row in run(checkout, "--all", "--json", str(file)).stdout


def test_a_sample_is_the_same_each_time_and_contains_smaller_ones(checkout):
    _, found = mutants.mutants(Path(mutants.__file__), "mutants.py")
    sample = mutants.drawn(found, 30, 0)
    assert sample == mutants.drawn(found, 30, 0) and sample[:10] == mutants.drawn(found, 10, 0)
    assert sample != mutants.drawn(found, 30, 1)
    assert len({id(found[number].original_node) for number in sample}) == 30


def test_a_mutant_that_never_ends_is_timed_out(checkout, monkeypatch):
    monkeypatch.setattr(mutants, "CPU_SECONDS", 0.0)
    monkeypatch.setattr(mutants, "CPU_FACTOR", 3.0)
    (checkout / "small" / "lengths.py").write_text("def wait(is_over):\n    while not is_over:\n        pass\n")
    (checkout / "tests" / "test_lengths.py").write_text(
        "from small.lengths import wait\n\n\ndef test_wait():\n    wait(True)\n"
    )
    result = run(checkout, "--all")
    assert result.exit_code == 0, result.output
    assert "| `small/lengths.py` | old | 1 of 1 | 0 | 1 | 0 | 100 % |" in result.stdout


@pytest.mark.parametrize(
    ("tests", "text", "message"),
    [
        ("tests/test_lengths.py", TESTS + ALSO_AT_THE_LIMIT + "    assert False\n", "fail without a mutation"),
        ("tests/test_lengths.py", "def test_nothing():\n    pass\n", "pass without it"),
        ("tests/test_others.py", TESTS, "fail without a mutation"),
    ],
)
def test_tests_that_cannot_judge_are_refused(checkout, tests, text, message):
    (checkout / "tests" / "test_lengths.py").write_text(text)
    result = run(checkout, "--sample", "1", tests=tests)
    assert result.exit_code == 1 and message in result.output


def test_a_module_that_is_missing_is_named(checkout):
    (checkout / "small" / "lengths.py").unlink()
    result = run(checkout)
    assert result.exit_code == 1 and "old has no small/lengths.py" in result.output


def test_the_core_modules_have_tests():
    root = Path(mutants.__file__).parents[1]
    for module, tests in mutants.MODULES.items():
        assert all((root / path).is_file() for path in [module, *tests]), module
