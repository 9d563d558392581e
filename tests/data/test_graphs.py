import contextlib
import subprocess
import sys

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from dkrr.errors import InputError, InputTypeError
from dkrr.kernels import Graph
from dkrr.kernels.graphs import GRAPH_WIDTH, INT_LABELS, NO_LABELS, encode_graphs, read_graphs

PATH = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])


def networkx_path(labels):
    graph = nx.Graph()
    graph.add_nodes_from((f"node {k}", {"label": label}) for k, label in enumerate(labels))
    graph.add_edges_from([("node 1", "node 0"), ("node 1", "node 2")])
    return graph


def decode_graphs(X):
    """The graphs that encoded rows stand for."""
    texts = {}
    block = read_graphs(X, texts)
    try:
        words = [text.decode(errors="surrogatepass") for text in texts]
        alphabet = [int(word) for word in words] if block.kind == INT_LABELS else words
    except ValueError as error:
        raise InputError("X holds labels that are not text or whole numbers") from error
    found, node, edge = [], 0, 0
    for size, n_edges in zip(block.sizes.tolist(), block.edge_counts.tolist(), strict=True):
        labels = None if block.kind == NO_LABELS else [alphabet[k] for k in block.labels[node : node + size]]
        found.append(Graph(size, block.edges[edge : edge + n_edges] - node, labels))
        node, edge = node + size, edge + n_edges
    return found


@st.composite
def graphs(draw):
    kind = draw(st.sampled_from([None, st.integers(), st.text(max_size=4)]))
    found = []
    for _ in range(draw(st.integers(0, 4))):
        n = draw(st.integers(1, 7))
        pairs = [(a, b) for a in range(n) for b in range(a + 1, n)]
        edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
        labels = None if kind is None else draw(st.lists(kind, min_size=n, max_size=n))
        found.append(Graph(n, [(b, a) for a, b in edges], labels))
    return found


@given(graphs())
def test_graphs_come_back_from_their_rows(found):
    X = encode_graphs(found)
    assert X.shape == (len(found), GRAPH_WIDTH)
    assert X.data.size == 0 or X.data.min() > 0
    assert X.has_canonical_format
    assert decode_graphs(X) == found
    assert decode_graphs(X.astype(np.float32)) == found
    assert decode_graphs(X[1:]) == found[1:]


@pytest.mark.parametrize("labels", [["C", "", "Ω☃\ud800"], [-3, 0, 10**30], [7, 7, 7], ["7", "7", "07"]])
def test_all_forms_give_the_same_rows(labels):
    forms = [
        networkx_path(labels),
        (PATH, labels),
        (PATH.astype(bool), tuple(labels)),
        (sp.coo_array(PATH.astype(np.float32)), np.array(labels, dtype=object)),
        (3, [(0, 1), (2, 1)], labels),
        (np.int64(3), np.array([[1, 2], [0, 1]], dtype=np.int32), labels),
        Graph(3, [(1, 0), (1, 2)], labels),
    ]
    X = encode_graphs(forms)
    assert (X.toarray() if X.shape[1] < 100 else X[:, :60].toarray()).std(axis=0).max() == 0
    assert decode_graphs(X) == [Graph(3, [(0, 1), (1, 2)], labels)] * len(forms)


def test_numpy_labels_become_plain_ones():
    graph = Graph(2, [], np.array([4, 5], dtype=np.uint8))
    assert graph.labels == (4, 5)
    assert all(type(label) is int for label in graph.labels)
    assert Graph(1, [], np.array(["C"])).labels == ("C",)
    assert hash(graph) == hash(Graph(2, (), (4, 5)))


def test_explicit_zeros_of_a_sparse_adjacency_are_no_edges():
    adjacency = sp.csr_array((np.array([0.0, 1.0, 1.0]), ([0, 0, 1], [2, 1, 0])), shape=(3, 3))
    assert encode_graphs([(adjacency, None)]).data.tolist() == encode_graphs([(3, [(0, 1)], None)]).data.tolist()


def test_labels_of_networkx_are_attributes_of_nodes():
    plain = nx.path_graph(3)
    assert decode_graphs(encode_graphs([plain])) == [Graph(3, [(0, 1), (1, 2)])]
    graph = networkx_path(["C", "O", "C"])
    nx.set_node_attributes(graph, dict(zip(graph, [6, 8, 6], strict=True)), "number")
    assert decode_graphs(encode_graphs([graph], "number"))[0].labels == (6, 8, 6)
    assert decode_graphs(encode_graphs([graph], None))[0].labels is None
    nx.set_edge_attributes(graph, 1.0, "weight")
    assert decode_graphs(encode_graphs([graph]))[0].labels == ("C", "O", "C")
    with pytest.raises(InputError, match=r"graph 0: node 'node 0' has no attribute 'colour'.*\(label, number\)"):
        encode_graphs([graph], "colour")
    del graph.nodes["node 1"]["label"]
    with pytest.raises(InputError, match="node 'node 1' has no attribute 'label'"):
        encode_graphs([graph])


def test_networkx_is_not_imported():
    code = "import sys; from dkrr.kernels.graphs import *; encode_graphs([(2, [(0, 1)], None)])\n"
    subprocess.run([sys.executable, "-c", f"{code}assert 'networkx' not in sys.modules"], check=True)


def weighted():
    graph = nx.path_graph(3)
    graph.edges[1, 2]["weight"] = 2.0
    return graph


def changed(row, column, value):
    adjacency = PATH.astype(float)
    adjacency[row, column] = value
    return adjacency


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ((0, [], None), "n_nodes is 0; expected a whole number of at least 1: leave empty graphs out"),
        (nx.Graph(), "n_nodes is 0; expected a whole number of at least 1: leave empty graphs out"),
        ((np.zeros((0, 0)), None), "n_nodes is 0; expected a whole number of at least 1: leave empty graphs out"),
        ((2.0, [], None), r"n_nodes is 2.0 \(float\); expected a whole number"),
        (nx.DiGraph([(0, 1)]), "networkx DiGraph; expected an undirected"),
        (nx.MultiGraph([(0, 1)]), "networkx MultiGraph"),
        (weighted(), r"the edge \(1, 2\) has weight 2.0"),
        (nx.Graph([(0, 0)]), "node 0 has an edge to itself"),
        ((changed(0, 1, 2.0), None), "entries other than 0 and 1"),
        ((changed(0, 1, np.nan), None), "entries other than 0 and 1"),
        ((sp.csr_array(changed(0, 1, 0.5)), None), "entries other than 0 and 1"),
        ((changed(0, 1, 0.0), None), "not symmetric"),
        ((sp.csr_array(changed(0, 1, 0.0)), None), "not symmetric"),
        ((changed(2, 2, 1.0), None), "node 2 has an edge to itself"),
        ((PATH[:2], None), r"shape \(2, 3\); expected a square"),
        ((PATH.astype(str), None), "dtype <U"),
        ((PATH.tolist(), None), "adjacency is of type list"),
        ((PATH, ["C", "O"]), "2 labels for 3 nodes"),
        ((PATH, "COC"), "labels are of type str"),
        ((PATH, iter("COC")), "labels are of type str_ascii_iterator|labels are of type"),
        ((PATH, ["C", 8, "C"]), "labels are of type int, str"),
        ((PATH, [1.0, 2.0, 1.0]), "labels are of type float"),
        ((PATH, [True, False, True]), "labels are of type bool"),
        ((3, [(0, 1), (1, 0)], None), r"the edge \(0, 1\) is given more than once"),
        ((3, [(0, 3)], None), "an edge names node 3; expected 0 to 2"),
        ((3, [(-1, 2)], None), "an edge names node -1"),
        ((3, [(0, 1, 1.5)], None), "weighted graphs are not supported"),
        ((3, [(0.0, 1.0)], None), "expected pairs of whole numbers"),
        ((3, [(0, 1), (1,)], None), "expected pairs of nodes"),
        ((3, 7, None), "its edges are int"),
        (PATH, "is of type numpy.ndarray; expected a networkx graph"),
        (5, "is of type builtins.int"),
    ],
)
def test_bad_graphs_are_named(graph, message):
    with pytest.raises(InputError, match=f"^graph 1: .*({message})"):
        encode_graphs([(1, [], None), graph])


@pytest.mark.parametrize("labels", [[1], ["C"], None])
@pytest.mark.parametrize("others", [[1], ["C"], None])
def test_kinds_of_labels_do_not_mix(labels, others):
    both = [(1, [], labels), (1, [], labels), (1, [], others)]
    if labels == others:
        assert encode_graphs(both).shape[0] == 3
        return
    with pytest.raises(InputTypeError, match="graph 2 has .* and graph 0 has .*; expected one kind"):
        encode_graphs(both)
    rows = sp.vstack([encode_graphs(both[:1]), encode_graphs(both[2:])], format="csr")
    with pytest.raises(InputError, match="row 1 of X is a graph with .* and row 0 one with"):
        decode_graphs(rows)


def test_rows_that_are_not_graphs():
    X = encode_graphs([(3, [(0, 1), (1, 2)], ["C", "O", "C"])])
    with pytest.raises(InputError, match="expected graphs as encoded rows"):
        decode_graphs(X[:, :100])
    rng = np.random.default_rng(0)
    for place in range(X.nnz):
        for value in (-1.0, 0.5, np.nan, 1e300, *rng.integers(1, 400, 5)):
            Y = X.copy()
            Y.data[place] = value
            with contextlib.suppress(InputError):  # another label or another edge is a graph still
                assert isinstance(decode_graphs(Y)[0], Graph)
    for shorter in range(X.nnz):
        Y = sp.csr_array((X.data[:shorter], X.indices[:shorter], [0, shorter]), shape=X.shape)
        with pytest.raises(InputError, match="row 0 of X is not an encoded graph"):
            decode_graphs(Y)
    with pytest.raises(InputError, match="rows that are not encoded graphs"):
        decode_graphs(sp.csr_array((X.data, X.indices + 1, X.indptr), shape=X.shape))
