import json

import networkx as nx
import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import graphs, qm9
from tests.benchmarks.test_qm9 import METHANE, WATER, parse_naive


@pytest.mark.parametrize(("text", "expected"), [(METHANE, nx.star_graph(4)), (WATER, nx.path_graph(3))])
def test_bonds(text, expected):
    elements, positions = parse_naive(text)
    found = graphs.molecule(np.array([qm9.SYMBOLS.index(e) for e in elements]), np.array(positions))
    assert found.labels == tuple(elements)
    assert nx.is_isomorphic(nx.Graph(found.edges), expected)


def test_molecules_are_connected():
    found = graphs.molecules(50)
    assert len(found) == 50
    for graph in found:
        assert nx.is_connected(nx.Graph(graph.edges))
        hydrogens = [k for k, label in enumerate(graph.labels) if label == "H"]
        assert all(sum(k in edge for edge in graph.edges) == 1 for k in hydrogens)


@pytest.mark.filterwarnings("ignore")  # GraKeL's, where it is installed
def test_command():
    result = CliRunner().invoke(
        graphs.main, ["pairs", "--n", "4", "--more", "6", "--repeat", "1"], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert [record["case"] for record in records] == [case.name for case in graphs.CASES]
    for record, case in zip(records, graphs.CASES, strict=True):
        assert record["dkrr"]["seconds"] > 0
        if record["grakel"] is not None:
            assert record["ratio"] > 0
            wrong = case.labelled and not case.is_dense  # GraKeL's default method: the module says how
            assert record["largest_difference"] < (0.1 if wrong else 1e-10)
    assert "random walks" in result.stderr


def test_a_fit_of_molecules():
    arguments = ["fit", "--n", "60", "--n-test", "20", "--tile", "20", "--memory-limit", "4GiB"]
    result = CliRunner().invoke(graphs.main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["execution"] == "serial" and record["residual"] < 1e-9
    assert record["peak_bytes"] <= record["projected_bytes"] and record["r2"] > 0
