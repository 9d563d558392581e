import itertools
import json
import tracemalloc

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.errors import InputError, InputTypeError
from dkrr.kernels import RandomWalk, kernel_from_dict
from dkrr.kernels import graph_products as products_module
from dkrr.kernels import graph_walks as walks_module
from dkrr.kernels.graphs import GRAPH_WIDTH
from dkrr.linalg.sources import fill_gram

KINDS = ("none", "int", "str")
every_kind = pytest.mark.parametrize("kind", KINDS)


def random_graphs(n, kind="str", seed=0, largest=9, density=0.35, n_labels=3):
    """Pairs (adjacency, labels), some with isolated nodes, some without edges."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n):
        size = int(rng.integers(1, largest + 1))
        upper = np.triu(rng.random((size, size)) < density * rng.integers(0, 3) / 1.5, 1)
        drawn = rng.integers(0, n_labels, size)
        labels = {
            "none": None,
            "int": (drawn * 1000 - 7).tolist(),
            "str": [("C", "Cl", "")[k % 3] * (1 + k // 3) for k in drawn],
        }
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
        return float(np.linalg.solve(np.eye(len(W)) - decay * W, np.ones(len(W))).sum())
    return float(sum(decay**k * np.linalg.matrix_power(W, k).sum() for k in range(steps + 1)))


def dense_gram(X, Y, decay, steps=None):
    return np.array([[dense_sum(x, y, decay, steps) for y in Y] for x in X])


def explicit_walks(graph, length):
    A, _ = graph
    if length == 0:
        return [(v,) for v in range(len(A))]
    return [(*walk, v) for walk in explicit_walks(graph, length - 1) for v in np.flatnonzero(A[walk[-1]])]


def naive_sum(one, other, decay, steps):
    """Compare every walk of one graph with every walk of the other."""
    total = 0.0
    for length in range(steps + 1):
        for walk, with_ in itertools.product(explicit_walks(one, length), explicit_walks(other, length)):
            alike = one[1] is None or all(one[1][v] == other[1][w] for v, w in zip(walk, with_, strict=True))
            total += decay**length * alike
    return total


def largest_radius(graphs):
    return max(np.linalg.eigvalsh(product_matrix(g, g))[-1] for g in graphs)


def safe_decay(graphs, fraction=0.7):
    return fraction / largest_radius(graphs)


@every_kind
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_finite_sums_count_every_common_walk(kind, steps):
    X, Y = random_graphs(5, kind, 1, largest=5), random_graphs(4, kind, 2, largest=5)
    expected = np.array([[naive_sum(x, y, 0.3, steps) for y in Y] for x in X])
    assert_allclose(RandomWalk(0.3, steps, normalized=False)(X, Y), expected, rtol=1e-12)


@every_kind
@pytest.mark.parametrize("steps", [None, 1, 7, 8])
def test_sums_are_those_of_the_dense_product_graph(kind, steps):
    X, Y = random_graphs(15, kind, 3), random_graphs(10, kind, 4)
    decay = safe_decay(X + Y)
    plain = RandomWalk(decay, steps, normalized=False)
    expected = dense_gram(X, Y, decay, steps)
    assert_allclose(plain(X, Y), expected, rtol=1e-12)
    assert_allclose(plain(X), dense_gram(X, X, decay, steps), rtol=1e-12)
    own = np.array([dense_sum(x, x, decay, steps) for x in X]), np.array([dense_sum(y, y, decay, steps) for y in Y])
    assert_allclose(plain.diagonal(X), own[0], rtol=1e-12)
    normalized = RandomWalk(decay, steps)
    assert_allclose(normalized(X, Y), expected / np.sqrt(np.outer(*own)), rtol=1e-12)
    K = normalized(X)
    assert_array_equal(K, K.T)
    assert_array_equal(K.diagonal(), 1.0)
    assert K.max() <= 1 + 1e-12
    assert_allclose(K, normalized(X, list(X)), rtol=1e-12)


@every_kind
def test_sums_near_the_limit_of_convergence_keep_their_digits(kind):
    X = random_graphs(25, kind, 6)
    for fraction, tolerance in ((0.99, 1e-11), (0.99999, 1e-8)):
        decay = safe_decay(X, fraction)
        assert_allclose(RandomWalk(decay, normalized=False)(X), dense_gram(X, X, decay), rtol=tolerance)


def test_symmetric_graphs_are_summed_by_classes():
    """Complete, complete bipartite and star graphs and cycles, whose nodes refinement does not tell apart."""
    graphs = [
        nx.complete_graph(7),
        nx.complete_bipartite_graph(3, 5),
        nx.star_graph(9),
        nx.cycle_graph(12),
        nx.path_graph(4),
    ]
    graphs += [nx.disjoint_union(nx.cycle_graph(3), nx.path_graph(3)), nx.circular_ladder_graph(4), nx.petersen_graph()]
    for labelled in (False, True):
        pairs = [(nx.to_numpy_array(g, dtype=int), [k % 2 for k in g] if labelled else None) for g in graphs]
        decay = safe_decay(pairs, 0.95)
        assert_allclose(RandomWalk(decay, normalized=False)(pairs), dense_gram(pairs, pairs, decay), rtol=1e-11)
        assert_allclose(RandomWalk(0.2, 5, normalized=False)(pairs), dense_gram(pairs, pairs, 0.2, 5), rtol=1e-12)


def test_classes_are_as_few_as_can_be():
    rows = RandomWalk(0.1).encode([nx.star_graph(9), nx.path_graph(5), nx.cycle_graph(6)])
    side, _ = walks_module.quotients(rows, rows)
    sizes = np.split(np.rint(side.starts**2).astype(int), side.first_classes[1:-1])
    assert [sorted(each.tolist()) for each in sizes] == [[1, 9], [1, 2, 2], [6]]


@every_kind
def test_order_of_nodes_does_not_matter(kind):
    X = random_graphs(15, kind, 7)
    rng = np.random.default_rng(0)
    shuffled = []
    for A, labels in X:
        order = rng.permutation(len(A))
        shuffled.append((A[np.ix_(order, order)], None if labels is None else [labels[k] for k in order]))
    kernel = RandomWalk(safe_decay(X))
    assert_allclose(kernel(shuffled, X), kernel(X), rtol=1e-13)


def test_labels_that_match_nothing_give_zero():
    X = [(np.ones((1, 1)) - 1, ["C"]), (np.array([[0, 1], [1, 0]]), ["C", "O"])]
    Y = [(np.array([[0, 1], [1, 0]]), ["N", "F"]), (np.array([[0, 1], [1, 0]]), ["O", "N"])]
    assert_array_equal(RandomWalk(0.1, normalized=False)(X, Y), [[0, 0], [0, 1]])
    assert_array_equal(RandomWalk(0.1, normalized=False)(Y[:1], X[:1]), [[0]])


@every_kind
@pytest.mark.parametrize("steps", [None, 4])
def test_random_walks_have_no_negative_eigenvalue(kind, steps):
    X = random_graphs(60, kind, 8)
    X[10] = X[20]
    for normalized in (True, False):
        K = RandomWalk(safe_decay(X, 0.9), steps, normalized)(X)
        assert np.linalg.eigvalsh(K)[0] >= -1e-12 * np.trace(K)


@every_kind
@pytest.mark.parametrize("steps", [None, 5])
def test_random_walks_do_not_depend_on_the_blocks(kind, steps, monkeypatch):
    kernel = RandomWalk(safe_decay(random_graphs(90, kind, 9), 0.98), steps)
    graphs = kernel.encode(random_graphs(90, kind, 9))
    X, Y = graphs[:40], graphs[40:]
    whole = kernel(X, Y)
    blocks = [[kernel(X[i : i + 7], Y[j : j + 13]) for j in range(0, 50, 13)] for i in range(0, 40, 7)]
    assert_array_equal(np.block(blocks), whole)
    monkeypatch.setattr(products_module, "PRODUCT_ENTRIES", 100)
    monkeypatch.setattr(walks_module, "MATCHED_PAIRS", 37)
    assert_array_equal(kernel(X, Y), whole)
    monkeypatch.undo()

    K = kernel(X)
    gram = np.zeros((40, 40))
    fill_gram(kernel, X, X, gram, lower=True)
    assert_array_equal(np.tril(gram), np.tril(K))
    pieces = np.empty((40, 40))
    for rows, columns, piece in kernel.pieces(X):
        pieces[rows, columns] = piece
    assert_array_equal(np.tril(pieces), np.tril(K))
    assert_array_equal(np.tril(kernel(X, X.copy()), -1), np.tril(K, -1))


@every_kind
def test_random_walks_in_float32_are_close(kind):
    X = random_graphs(20, kind, 10)
    for kernel in (RandomWalk(safe_decay(X)), RandomWalk(safe_decay(X), normalized=False), RandomWalk(1e3, 30)):
        single = kernel(X, X[:5], out=np.empty((20, 5), dtype=np.float32))
        assert_allclose(single, kernel(X, X[:5]), rtol=1e-6, atol=1e-40)


def test_encoded_graphs_are_taken_as_they_are():
    X = random_graphs(6, seed=11)
    kernel = RandomWalk(safe_decay(X))
    rows = kernel.encode(X)
    assert kernel.encode(rows) is rows
    assert rows.shape == (6, GRAPH_WIDTH)
    objects = np.empty(6, dtype=object)
    objects[:] = X
    for form in (
        rows,
        tuple(X),
        objects,
        pd.Series(objects, index=range(6, 0, -1)),
        rows.astype(np.float32),
        sp.csr_matrix(rows),
    ):
        assert_array_equal(kernel(form), kernel(X))
    assert kernel([], X).shape == (0, 6)
    assert kernel.diagonal([]).shape == RandomWalk(0.1, normalized=False).diagonal([]).shape == (0,)


@pytest.mark.parametrize("X", [np.eye(3), sp.csc_array(np.eye(3)), "CCO", 5, np.empty((2, 2), dtype=object), iter([])])
def test_what_cannot_be_encoded(X):
    with pytest.raises(InputTypeError, match="expected a list, a tuple or a one-dimensional object array of graphs"):
        RandomWalk(0.1)(X)


def test_graphs_of_different_kinds_of_labels_are_refused():
    kernel = RandomWalk(0.01)
    with pytest.raises(InputError, match="expected graphs as encoded rows"):
        kernel(sp.csr_array(np.eye(3)))
    with pytest.raises(InputError, match="X's graphs have strings as labels and Y's have no labels"):
        kernel(random_graphs(2, "str"), random_graphs(2, "none"))
    with pytest.raises(InputError, match="graph 1: .*not symmetric"):
        kernel([random_graphs(1)[0], (np.array([[0, 1], [0, 0]]), ["C", "C"])])


@every_kind
@pytest.mark.parametrize("excess", [1.0, 1 + 1e-9, 1.05, 1e200])
@pytest.mark.parametrize("normalized", [True, False])
def test_divergent_sums_are_refused(kind, excess, normalized):
    X = random_graphs(25, kind, 12)
    limit = 1 / largest_radius(X)
    worst = int(np.argmax([largest_radius([x]) for x in X]))
    kernel = RandomWalk(excess * limit, normalized=normalized)
    with pytest.raises(InputError, match=f"expected less than {limit:.6g} .*product of graph {worst} of X with itself"):
        kernel(X)
    with pytest.raises(InputError, match=f"graph {worst} of Y .* use decay={0.9 * limit:.3g} or less"):
        kernel(random_graphs(3, kind, largest=1), X)
    if not normalized:
        with pytest.raises(InputError, match="or a finite number of steps"):
            kernel.diagonal(X)
    assert np.isfinite(RandomWalk(float(f"{0.9 * limit:.3g}"), normalized=normalized)(X)).all()


def test_limit_is_that_of_labelled_products():
    """Not that of the graphs without their labels, which may be far lower."""
    A = nx.to_numpy_array(nx.complete_graph(6), dtype=int)
    X = [(A, list("abcdef")), (A, list("aabbcc"))]
    assert 0.04 * 5**2 >= 1
    assert_allclose(RandomWalk(0.04, normalized=False)(X), dense_gram(X, X, 0.04), rtol=1e-12)


def test_the_limit_of_a_large_graph_is_found_by_iteration():
    graph = nx.random_regular_graph(4, 30, seed=1)
    X = [(nx.to_numpy_array(graph, dtype=int), np.random.default_rng(0).integers(0, 1, 30).tolist())]
    for labels in (X[0][1], [7, *X[0][1][1:]]):  # the second leaves nothing to collapse
        one = [(X[0][0], labels)]
        limit = 1 / largest_radius(one)
        with pytest.raises(InputError, match=f"expected less than {limit:.6g} "):
            RandomWalk(1.2 * limit)(one)
        assert_allclose(RandomWalk(0.9 * limit, normalized=False)(one), dense_gram(one, one, 0.9 * limit), rtol=1e-11)


@every_kind
def test_too_many_walks_for_floats(kind):
    with pytest.raises(InputError, match="too many for float64.*use a smaller decay or fewer steps"):
        RandomWalk(1e200, 9)(random_graphs(9, kind, 13))


@pytest.mark.parametrize(
    "kernel",
    [RandomWalk(0.1), RandomWalk(decay=1, steps=np.int64(3), normalized=False, label=None), RandomWalk(0.2, label="z")],
)
def test_a_random_walk_comes_back_from_its_description(kernel):
    assert kernel_from_dict(json.loads(json.dumps(kernel.to_dict()))) == kernel
    assert kernel.to_dict()["kernel"] == "random_walk"
    assert kernel.has_unit_diagonal is kernel.normalized
    assert not (2 * kernel).has_unit_diagonal
    assert kernel.resolved(GRAPH_WIDTH) is kernel
    assert kernel.entry_cost(GRAPH_WIDTH).element_seconds > 0


@every_kind
def test_memory_of_random_walks_stays_within_its_bound(kind):
    X = random_graphs(28, kind, 14, largest=24, density=0.1)
    for kernel in (RandomWalk(safe_decay(X)), RandomWalk(0.1, 6)):
        rows = kernel.encode(X)
        for left, right in ((rows, None), (rows, rows[:14].copy())):
            out = np.empty((28, 28 if right is None else 14))
            tracemalloc.start()
            kernel(left, right, out=out)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak <= kernel.workspace_bytes(*out.shape, GRAPH_WIDTH)
        tracemalloc.start()
        for _ in kernel.pieces(rows, dtype=np.float32):
            pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak <= kernel.pieces_bytes(28, 28, GRAPH_WIDTH)
