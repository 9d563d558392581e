"""Every benchmark runs at its smallest size, its commands take their options, and its data are what they say."""

import importlib
import math
from itertools import combinations, combinations_with_replacement

import click
import numpy as np
import pytest
from click.testing import CliRunner

import benchmarks.__main__ as table
from benchmarks import qm9, report
from benchmarks.steps import STEPS


@pytest.mark.parametrize("step", [s for s in STEPS if "smoke" in s.commands and not s.uses], ids=lambda step: step.name)
def test_every_step_of_the_smallest_size_runs_and_stands_on_the_page(step, tmp_path):
    arguments = ["--size", "smoke", "--only", step.name, "--out", str(tmp_path), "--retries", "0"]
    result = CliRunner().invoke(table.main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (run,) = report.read_runs(tmp_path / "results.jsonl")
    assert run["records"]
    assert str(tmp_path) not in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_the_commands_of_all_sizes_take_their_options(step, tmp_path):
    for size in step.commands:
        session = table.Session(size, tmp_path, tmp_path, 0, False, None)
        _, _, module, *arguments = session.command(step)
        command = importlib.import_module(module).main
        for written_before in (session.lines(step), tmp_path / "costs.json"):  # by other steps, which some read
            written_before.touch()
        if isinstance(command, click.Group):
            module, command, arguments = command.resolve_command(click.Context(command), arguments)
        command.make_context(module, arguments)  # parses and checks, and does nothing


def test_the_published_page_and_the_readme_are_those_of_the_results():
    docs, readme = table.ROOT / "docs", (table.ROOT / "README.md").read_text()
    runs = report.read_runs(docs / "measured" / "results.jsonl")
    pictures = report.pictures_in(docs / "measured", docs)
    assert (docs / "performance.md").read_text() == report.markdown(runs, None, pictures)
    assert report.with_block(readme, report.highlights(report.shown_runs(runs, None))) == readme


def test_descriptors_of_molecules_are_those_of_naive_loops():
    """Eigenvalues of the Coulomb matrix, counts of elements, sums of r⁻¹, r⁻³ and r⁻⁶ over each pair of elements."""
    kinds, positions = [4, 2, 3, 1, 0, 1], np.random.default_rng(0).normal(scale=2.0, size=(1, 6, 3))  # of HCNOF
    charges = np.array([1, 6, 7, 8, 9])[kinds]
    coulomb = np.diag(0.5 * charges**2.4)
    sums = {(power, *pair): 0.0 for power in (1, 3, 6) for pair in combinations_with_replacement(range(5), 2)}
    for i, j in combinations(range(6), 2):
        r = math.dist(positions[0, i], positions[0, j])
        coulomb[i, j] = coulomb[j, i] = charges[i] * charges[j] / (r / 0.529177210903)
        for power in (1, 3, 6):
            sums[power, *sorted((kinds[i], kinds[j]))] += r**-power
    eigenvalues = sorted(np.linalg.eigvalsh(coulomb), key=abs, reverse=True)
    expected = [*eigenvalues, *[0.0] * 23, *np.bincount(kinds, minlength=5), *sums.values()]
    np.testing.assert_allclose(qm9.describe(np.array([kinds]), positions)[0], expected, rtol=1e-11, atol=1e-12)
