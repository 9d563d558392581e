"""Graphs in all their forms, the rows that they become, and the kernel of their common walks."""

import contextlib

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import dkrr
from dkrr import KernelRidge
from dkrr.errors import InputError, InputTypeError
from dkrr.kernels import Graph, RandomWalk, random_walk
from dkrr.kernels.graphs import GRAPH_WIDTH, INT_LABELS, NO_LABELS, encode_graphs, read_graphs
from tests.pairs import every_pair
from tests.systems import traced_peak

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
    words = [text.decode(errors="surrogatepass") for text in texts]
    alphabet = np.array([int(word) for word in words] if block.kind == INT_LABELS else words, object)
    found, node, edge = [], 0, 0
    for size, n_edges in zip(block.sizes, block.edge_counts, strict=True):
        labels = None if block.kind == NO_LABELS else alphabet[block.labels[node : node + size]]
        found.append(Graph(int(size), block.edges[edge : edge + n_edges] - node, labels))
        node, edge = node + size, edge + n_edges
    return found


@st.composite
def graphs(draw):
    kind = draw(st.sampled_from([None, st.integers(), st.text(max_size=4)]))
    found = []
    for n in draw(st.lists(st.integers(1, 7), max_size=4)):
        pairs = [(b, a) for a in range(n) for b in range(a + 1, n)]
        edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
        labels = None if kind is None else draw(st.lists(kind, min_size=n, max_size=n))
        found.append(Graph(n, edges, labels))
    return found


@given(graphs())
def test_graphs_come_back_from_their_rows(found):
    X = encode_graphs(found)
    assert X.shape == (len(found), GRAPH_WIDTH) and X.has_canonical_format and (X.data > 0).all()
    assert decode_graphs(X) == found == decode_graphs(X.astype(np.float32))
    assert decode_graphs(X[1:]) == found[1:]


@pytest.mark.parametrize("labels", [["C", "", "Ω☃\ud800"], [-3, 0, 10**30], ["7", "7", "07"]])
def test_all_forms_give_the_same_rows(labels):
    forms = [
        networkx_path(labels),
        (PATH, labels),
        (PATH.astype(bool), tuple(labels)),
        (sp.coo_array(PATH.astype(np.float32)), np.array(labels, dtype=object)),
        (sp.csr_array((np.append([0.0], np.ones(4)), ([0, 0, 1, 1, 2], [2, 1, 0, 2, 1])), shape=(3, 3)), labels),
        (3, [(0, 1), (2, 1)], labels),
        (np.int64(3), np.array([[1, 2], [0, 1]], dtype=np.int32), labels),
        Graph(3, [(1, 0), (1, 2)], labels),
    ]
    X = encode_graphs(forms)
    assert X[:, :60].toarray().std(axis=0).max() == 0
    assert decode_graphs(X) == [Graph(3, [(0, 1), (1, 2)], labels)] * len(forms)


def test_labels_of_networkx_are_attributes_of_nodes():
    assert decode_graphs(encode_graphs([nx.path_graph(3)])) == [Graph(3, [(0, 1), (1, 2)])]
    graph = networkx_path("COC")
    nx.set_node_attributes(graph, dict(zip(graph, [6, 8, 6], strict=True)), "number")
    nx.set_edge_attributes(graph, 1.0, "weight")
    for name, labels in (("label", ("C", "O", "C")), ("number", (6, 8, 6)), (None, None)):
        assert decode_graphs(encode_graphs([graph], name))[0].labels == labels
    bonded = graph.copy()
    nx.set_edge_attributes(bonded, "double", "bond")
    assert decode_graphs(encode_graphs([bonded], None))[0].labels is None
    with pytest.raises(InputError, match=r"graph 0: node 'node 0' has no attribute 'colour'.*\(label, number\)"):
        encode_graphs([graph], "colour")
    del graph.nodes["node 1"]["label"]
    with pytest.raises(InputError, match="node 'node 1' has no attribute 'label'"):
        encode_graphs([graph])


@pytest.mark.parametrize(
    "graphs", [[nx.path_graph(2), nx.path_graph(3)], pd.Series([nx.path_graph(3)] * 2), [Graph(2, [(0, 1)])] * 2]
)
def test_kernels_of_numbers_name_the_kernel_that_compares_graphs(graphs):
    message = r"X holds graphs; expected numbers: .*kernel=dkrr\.kernels\.RandomWalk\("
    known = KernelRidge(kernel="rbf").fit(np.eye(2), [1.0, 2.0])
    for use in (KernelRidge(kernel="rbf").fit, dkrr.plan, lambda X, y: known.predict(X), lambda X, y: dkrr.gram(X)):
        with pytest.raises(InputTypeError, match=message):
            use(graphs, [1.0, 2.0])


def changed(row, column, value):
    adjacency = PATH.astype(float)
    adjacency[row, column] = value
    return adjacency


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ((0, [], None), "n_nodes is 0; expected a whole number of at least 1: leave empty graphs out"),
        ((2.0, [], None), r"n_nodes is 2.0 \(float\); expected a whole number"),
        (nx.DiGraph([(0, 1)]), "networkx DiGraph; expected an undirected"),
        (nx.Graph([(0, 1), (1, 2, {"weight": 2.0})]), r"the edge \(1, 2\) has weight 2.0"),
        (nx.Graph([(0, 0)]), "node 0 has an edge to itself"),
        ((changed(0, 1, np.nan), None), "entries other than 0 and 1"),
        ((sp.csr_array(changed(0, 1, 0.5)), None), "entries other than 0 and 1"),
        ((changed(0, 1, 0.0), None), "not symmetric"),
        ((sp.csr_array(changed(0, 1, 0.0)), None), "not symmetric"),
        ((changed(2, 2, 1.0), None), "node 2 has an edge to itself"),
        ((PATH[:2], None), r"shape \(2, 3\); expected a square"),
        ((PATH.astype(str), None), "dtype <U"),
        ((PATH.tolist(), None), "adjacency is of type list"),
        ((PATH, ["C", "O"]), "labels are 2, and its nodes 3"),
        ((PATH, "COC"), "labels are of type str"),
        ((PATH, ["C", 8, "C"]), "labels are of type int, str"),
        ((PATH, [True, False, True]), "labels are of type bool"),
        ((3, [(0, 1), (1, 0)], None), r"the edge \(0, 1\) is given more than once"),
        ((3, [(0, 3)], None), "an edge names node 3; expected 0 to 2"),
        ((3, [(0, 1, 1.5)], None), "weighted graphs are not supported"),
        ((3, [(0.0, 1.0)], None), "expected pairs of whole numbers"),
        ((3, [(0, 1), (1,)], None), "expected pairs of nodes"),
        ((3, 7, None), "its edges are int"),
        (PATH, "is of type numpy.ndarray; expected a networkx graph"),
        ((3, {(0, 1): "single"}, None), "its edges are a dict, and edges have no labels"),
        (nx.Graph([(0, 1, {"order": 2, "weight": 1})]), r"the edge \(0, 1\) has attributes \(order\), .*data\.clear"),
    ],
)
def test_bad_graphs_are_named(graph, message):
    with pytest.raises(InputError, match=f"^graph 1: .*({message})"):
        encode_graphs([(1, [], None), graph])


@pytest.mark.parametrize(("labels", "others"), [([1], ["C"]), (["C"], None), (None, [1])])
def test_kinds_of_labels_do_not_mix(labels, others):
    first, other = (1, [], labels), (1, [], others)
    with pytest.raises(InputTypeError, match="graph 2 has .* and graph 0 has .*; expected one kind"):
        encode_graphs([first, first, other])
    with pytest.raises(InputError, match="row 1 of X is a graph with .* and row 0 one with"):
        decode_graphs(sp.vstack([encode_graphs([first]), encode_graphs([other])], format="csr"))
    with pytest.raises(InputError, match="X's graphs have .* and Y's have .*; expected one kind"):
        RandomWalk(0.01)([first], [other])


def test_rows_that_are_not_graphs_are_refused():
    X = encode_graphs([(3, [(0, 1), (1, 2)], ["C", "O", "C"])])
    with pytest.raises(InputError, match="expected graphs as encoded rows"):
        RandomWalk(0.01)(X[:, :100])
    rng = np.random.default_rng(0)
    for place in range(X.nnz):
        for value in (-1.0, 0.5, np.nan, 1e300, *rng.integers(1, 400, 5)):
            Y = X.copy()
            Y.data[place] = value
            with contextlib.suppress(InputError, UnicodeDecodeError):  # another label or edge is a graph still
                assert isinstance(decode_graphs(Y)[0], Graph)
        Y = sp.csr_array((X.data[:place], X.indices[:place], [0, place]), shape=X.shape)
        with pytest.raises(InputError, match="row 0 of X is not an encoded graph"):
            decode_graphs(Y)
    with pytest.raises(InputError, match="rows that are not encoded graphs"):
        decode_graphs(sp.csr_array((X.data, X.indices + 1, X.indptr), shape=X.shape))


# Random walks.

every_kind = pytest.mark.parametrize("kind", ["none", "int", "str"])


def random_graphs(n, kind="str", seed=0, largest=9, density=0.35):
    """Pairs (adjacency, labels), some with isolated nodes, some without edges."""
    rng = np.random.default_rng(seed)
    found = []
    for size in rng.integers(1, largest + 1, n):
        upper = np.triu(rng.random((size, size)) < density * rng.integers(0, 3) / 1.5, 1)
        drawn = rng.integers(0, 3, size)
        labels = {"none": None, "int": (drawn * 1000 - 7).tolist(), "str": [("C", "Cl", "")[k] for k in drawn]}
        found.append(((upper | upper.T).astype(int), labels[kind]))
    return found


def product_matrix(one, other):
    """Adjacency of the labelled direct product, dense."""
    (A, a), (B, b) = one, other
    alike = np.ones((len(A), len(B)), dtype=bool) if a is None else np.array([[x == y for y in b] for x in a])
    return np.kron(A, B)[np.ix_(alike.ravel(), alike.ravel())]


def dense_sum(one, other, decay, steps=None):
    W = product_matrix(one, other)
    if steps is None:
        return np.linalg.solve(np.eye(len(W)) - decay * W, np.ones(len(W))).sum()
    return sum(decay**k * np.linalg.matrix_power(W, k).sum() for k in range(steps + 1))


def dense_gram(X, Y, decay, steps=None):
    return np.array([[dense_sum(x, y, decay, steps) for y in Y] for x in X])


def largest_radius(graphs):
    return max(np.linalg.eigvalsh(product_matrix(g, g))[-1] for g in graphs)


def safe_decay(graphs, fraction=0.7):
    return fraction / largest_radius(graphs)


@every_kind
@pytest.mark.parametrize(
    ("steps", "fraction", "tolerance"),
    [(None, 0.7, 1e-12), (None, 0.99, 1e-11), (None, 0.99999, 1e-8), (1, 0.7, 1e-12), (2, 0.7, 1e-12), (7, 0.7, 1e-12)],
)
def test_sums_are_those_of_the_dense_product_graph(kind, steps, fraction, tolerance):
    X, Y = random_graphs(15, kind, 3), random_graphs(10, kind, 4)
    X[10] = X[5]
    decay = safe_decay(X + Y, fraction)
    plain, normalized = RandomWalk(decay, steps, normalized=False), RandomWalk(decay, steps)
    expected, square = dense_gram(X, Y, decay, steps), dense_gram(X, X, decay, steps)
    own = [dense_sum(y, y, decay, steps) for y in Y]
    assert_allclose(plain(X, Y), expected, rtol=tolerance)
    assert_allclose(plain(X), square, rtol=tolerance)
    assert_allclose(plain.diagonal(X), square.diagonal(), rtol=tolerance)
    expected /= np.sqrt(np.outer(square.diagonal(), own))
    assert_allclose(normalized(X, Y), expected, rtol=tolerance)
    K = normalized(X)
    assert_array_equal(K, K.T)
    assert_array_equal(K.diagonal(), 1.0)
    assert normalized.has_unit_diagonal and not plain.has_unit_diagonal


def test_sums_beyond_float32_are_normalized_before_they_are_stored_in_it():
    X, kernel = random_graphs(20, "str", 10), RandomWalk(1e3, 30)
    assert_allclose(kernel(X, X[:5], out=np.empty((20, 5), np.float32)), kernel(X, X[:5]), rtol=1e-6, atol=1e-40)


@pytest.mark.parametrize("labelled", [False, True])
def test_symmetric_graphs_are_summed_by_classes(labelled):
    """Complete bipartite graphs, cycles and others, whose nodes refinement does not tell apart."""
    graphs = [
        nx.complete_bipartite_graph(3, 5),
        nx.cycle_graph(12),
        nx.path_graph(4),
        nx.disjoint_union(nx.cycle_graph(3), nx.path_graph(3)),
        nx.petersen_graph(),
    ]
    pairs = [(nx.to_numpy_array(g, dtype=int), [k % 2 for k in g] if labelled else None) for g in graphs]
    for decay, steps in ((safe_decay(pairs, 0.95), None), (0.2, 5)):
        expected = dense_gram(pairs, pairs, decay, steps)
        assert_allclose(RandomWalk(decay, steps, normalized=False)(pairs), expected, rtol=1e-11)


@every_kind
@pytest.mark.parametrize("steps", [None, 5])
def test_random_walks_do_not_depend_on_the_blocks(kind, steps, monkeypatch):
    kernel = RandomWalk(safe_decay(random_graphs(90, kind, 9), 0.98), steps)
    graphs = kernel.encode(random_graphs(90, kind, 9))
    X, Y = graphs[:40], graphs[40:]
    whole, K = kernel(X, Y), kernel(X)
    blocks = [[kernel(X[i : i + 7], Y[j : j + 13]) for j in range(0, 50, 13)] for i in range(0, 40, 7)]
    assert_array_equal(np.block(blocks), whole)
    pieces = np.empty((40, 40))
    for rows, columns, piece in kernel.pieces(X):
        pieces[rows, columns] = piece
    assert_array_equal(np.tril(pieces), np.tril(K))
    assert_array_equal(np.tril(kernel(X, X.copy()), -1), np.tril(K, -1))
    monkeypatch.setattr(random_walk, "MAX_PRODUCT_ENTRIES", 100)
    monkeypatch.setattr(random_walk, "MATCHED_PAIRS", 37)
    assert_array_equal(kernel(X, Y), whole)


def test_graphs_are_taken_in_any_list_and_encoded_ones_as_they_are():
    X, kernel = random_graphs(6, seed=11), RandomWalk(0.01)
    for form in (tuple(X), np.fromiter(X, object, 6), pd.Series(X, range(6, 0, -1)), kernel.encode(X)):
        assert_array_equal(kernel(form), kernel(X))
    assert kernel([], X).shape == (0, 6) and kernel.diagonal([]).shape == (0,)


@pytest.mark.parametrize("X", [np.eye(3), sp.csc_array(np.eye(3)), "CCO", 5, np.empty((2, 2), dtype=object), iter([])])
def test_what_is_not_a_list_of_graphs_is_refused(X):
    with pytest.raises(InputTypeError, match="expected a list, a tuple or a one-dimensional object array of graphs"):
        RandomWalk(0.1)(X)


@every_pair(kind=["none", "int", "str"], excess=[1.0, 1 + 1e-9, 1.05, 1e200], normalized=[True, False])
def test_divergent_sums_are_refused(kind, excess, normalized):
    X = random_graphs(25, kind, 12)
    limit = 1 / largest_radius(X)
    worst = int(np.argmax([largest_radius([x]) for x in X]))
    kernel = RandomWalk(excess * limit, normalized=normalized)
    with pytest.raises(InputError, match=f"expected less than {limit:.6g} .*product of graph {worst} of X with itself"):
        kernel(X)
    with pytest.raises(InputError, match=f"graph {worst} of Y .* use decay={0.9 * limit:.3g} or less"):
        kernel(random_graphs(3, kind, largest=1), X)
    assert np.isfinite(RandomWalk(float(f"{0.9 * limit:.3g}"), normalized=normalized)(X)).all()


@pytest.mark.parametrize("first", [0, 7])  # with 7 nothing is left to collapse
def test_the_limit_of_a_large_graph_is_found_by_iteration(first):
    one = [(nx.to_numpy_array(nx.random_regular_graph(4, 30, seed=1), dtype=int), [first] + [0] * 29)]
    limit = 1 / largest_radius(one)
    with pytest.raises(InputError, match=f"expected less than {limit:.6g} "):
        RandomWalk(1.2 * limit)(one)
    assert_allclose(RandomWalk(0.9 * limit, normalized=False)(one), dense_gram(one, one, 0.9 * limit), rtol=1e-11)


@every_kind
def test_too_many_walks_for_floats_are_refused(kind):
    with pytest.raises(InputError, match="too many for float64.*use a smaller decay or max_length"):
        RandomWalk(1e200, 9)(random_graphs(9, kind, 13))


@every_kind
def test_memory_of_random_walks_stays_within_its_bound(kind):
    X = random_graphs(28, kind, 14, largest=24, density=0.1)
    for kernel in (RandomWalk(safe_decay(X)), RandomWalk(0.1, 6)):
        rows = kernel.encode(X)
        for Y in (None, rows[:14].copy()):
            out = np.empty((28, 28 if Y is None else 14))
            peak = traced_peak(lambda kernel=kernel, rows=rows, Y=Y, out=out: kernel(rows, Y, out=out))
            assert peak <= kernel.workspace_bytes(*out.shape, GRAPH_WIDTH)
        peak = traced_peak(lambda kernel=kernel, rows=rows: [0 for _ in kernel.pieces(rows, dtype=np.float32)])
        assert peak <= kernel.pieces_bytes(28, 28, GRAPH_WIDTH)
