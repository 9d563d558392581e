"""What holds of every operator that conjugate gradient multiplies with: a row of MAKERS joins one to these tests."""

import itertools
import uuid
from functools import partial

import array_api_strict
import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

from dkrr.cluster import Progress, SerialExecutor, ThreadExecutor
from dkrr.data import MemoryRows, as_rows, write_rows
from dkrr.kernels import RBF, Laplacian, Linear, Matern, Polynomial
from dkrr.kernels.maps import IdentityMap, PolynomialMap
from dkrr.linalg import device_products, sources, square
from dkrr.linalg.curvature import Curvature, CurvatureOperator
from dkrr.linalg.device_products import DeviceExecutor
from dkrr.linalg.gram_products import LastProduct, TiledOperator
from dkrr.linalg.in_memory_cholesky import InMemoryMatrix
from dkrr.linalg.likelihood import Bernoulli, Softmax
from dkrr.linalg.likelihood_passes import CurvatureProduct, LikelihoodPass
from dkrr.linalg.normal import NormalOperator
from dkrr.linalg.passes import Design, Segment
from dkrr.linalg.sources import FormedTiles, GramTiles, MatrixTiles
from dkrr.linalg.square import SquareMatrix
from dkrr.linalg.training_sets import TrainingSetOperator, TrainingSets
from dkrr.store import TileGrid
from tests import systems
from tests.gpus import MadeUpDevice
from tests.oracles import naive_gram, naive_normal
from tests.stores import place
from tests.systems import RAGGED, MatrixOperator, positive_definite, random

one_blas_thread = systems.one_blas_thread

N, M, ONE_ROW = 47, 3, TileGrid(1, 4, 2)
A = positive_definite(N)
X = np.where(random(N, 4, seed=1) < 0.6, random(N, 4), 0.0)
MAP = PolynomialMap(degree=2, gamma=0.7, coef0=1.0)
C = np.random.default_rng(3).uniform(0.5, 2.0, N)


def same(matrix):
    return [matrix] * M


def tiled(source, grid, executor, **settings):
    return TiledOperator(source, grid, executor, f"test-{uuid.uuid4().hex}", 3, 3, **settings)


def gram(kernel, kept_tiles, keeps, folder, executor):
    """In ragged tiles, formed again or kept."""
    source = GramTiles(kernel, MemoryRows(X))
    return tiled(source, RAGGED, executor, kept_tiles=kept_tiles, keeps=keeps), same(naive_gram(kernel, X))


def sparse_gram(folder, executor):
    rows = write_rows(as_rows(sp.csr_array(X)), place(folder / "rows"), 10)
    source = GramTiles(RBF(gamma=0.2), rows, systems.vectors(folder, RAGGED, C[:, None]))
    return tiled(source, RAGGED, executor, kept_tiles=1), same(np.outer(C, C) * naive_gram(RBF(gamma=0.2), X))


def stored_sum(folder, executor):
    source = FormedTiles(tuple(systems.tiles_of(folder, RAGGED, k * A) for k in (1, 2)))
    found = tiled(source, RAGGED, executor, kept_tiles=2, keeps="float32", scale=C)
    return found, same(3 * np.outer(C, C) * A)


def in_memory(tile, scaled, folder, executor):
    rows = as_rows(X if scaled else A)
    source = GramTiles(RBF(gamma=0.2), rows, C[:, None]) if scaled else MatrixTiles(rows)
    matrix = np.outer(C, C) * naive_gram(RBF(gamma=0.2), X) if scaled else A
    return InMemoryMatrix.of_source(source, TileGrid(N, tile, tile), executor), same(matrix)


def in_square(rows, folder, executor):  # after a factorisation in the same array
    matrix = SquareMatrix.of_kernel(Linear(), rows, C, Progress())
    matrix.factor("", np.ones(N))
    return matrix, same(np.outer(C, C) * naive_gram(Linear(), X))


def on_device(xp, most, kernel, scale, folder, executor):
    """In ranges of 12 rows on a made-up GPU, which has room for blocks of `most` entries and for a few ranges."""
    executor = DeviceExecutor(MadeUpDevice(xp, most), height=12, row_bytes=1200.0)
    made = tiled(GramTiles(kernel, MemoryRows(X)), TileGrid(N, 12, 12), executor, scale=scale)
    c = np.ones(N) if scale is None else scale
    return made, same(np.outer(c, c) * naive_gram(kernel, X))


def training_sets(folder, executor):
    masks = np.stack([np.arange(N) % 3 != 0, np.arange(N) > 9, np.arange(N) < 4], axis=1)
    sets = TrainingSets(C[:, None] * masks, np.array([2, 0, 1]))
    return TrainingSetOperator(MatrixOperator(A), sets), [np.outer(c, c) * A for c in sets.scale().T]


def segments_of(rows, targets, weights):
    return tuple(Segment(rows, a, b, 4, targets, weights) for a, b in itertools.pairwise([0, 11, 12, N]))


def normal(feature_map, sparse, weighted, centred, folder, executor):
    phi, w = feature_map.transform(X), C if weighted else np.ones(N)
    centre = np.average(phi, axis=0, weights=w) if centred else None
    matrix, _ = naive_normal(phi - (0.0 if centre is None else centre), w, np.zeros((N, 1)))
    rows = MemoryRows(sp.csr_array(X) if sparse else X)
    segments = segments_of(rows, np.zeros((N, 1)), C[:, None] if weighted else None)
    return NormalOperator(Design(feature_map, centre), segments, executor, phi.shape[1]), same(matrix)


def likelihood(like, sparse, intercept, folder, executor):
    """Curvature of the primal form, streamed over the rows."""
    phi = np.column_stack([MAP.transform(X), np.ones((N, int(intercept)))])
    coef = 0.1 * random(phi.shape[1], like.n_columns)
    products = np.zeros((like.n_systems, *2 * (coef.size // like.n_systems,)))
    like.root(phi @ coef, C).add_products(products, phi)
    segments = segments_of(MemoryRows(sp.csr_array(X) if sparse else X), np.zeros((N, 1)), C[:, None])
    passes = LikelihoodPass(MAP, like, X.shape[1], intercept, "diagonal")
    dense = [np.tril(P) + np.tril(P, -1).T for P in products]
    return CurvatureProduct(passes, segments, executor, coef), dense


def newton(like, centred, folder, executor):
    """Π Cᵀ K C Π of the dual form."""
    root = like.root(2 * random(N, like.n_columns), np.where(np.arange(N) % 9 == 0, 0.0, C))
    coupled = isinstance(like, Softmax)
    roots, ones = systems.dense_roots(root.scale, root.unit if coupled else None)
    K, dense = np.kron(A, np.eye(like.n_columns)) if coupled else A, []
    for W in roots:
        P = systems.orthogonal_to(W.T @ ones) if centred else np.eye(len(K))
        dense.append(P @ W.T @ K @ W @ P)
    return CurvatureOperator(MatrixOperator(A), Curvature.of_root(root, centred=centred)), dense


MAKERS = {
    "gram": partial(gram, RBF(gamma=0.2), 0, "float64"),
    "gram, kept in float32": partial(gram, Polynomial(degree=2, gamma=1.0), 2, "float32"),
    "gram, all kept": partial(gram, Laplacian(gamma=0.1), 99, "float64"),
    "gram of stored sparse rows": sparse_gram,
    "sum of stored tiles": stored_sum,
    "on a GPU, NumPy": partial(on_device, np, np.inf, RBF(gamma=0.2), C),
    "on a GPU, strict": partial(on_device, array_api_strict, np.inf, 0.5 * Matern() + Linear(), None),
    "on a GPU with little room": partial(on_device, np, 40, Polynomial(degree=2, gamma=0.1), C),
    "one row": lambda folder, executor: (tiled(MatrixTiles(MemoryRows(A[:1, :1])), ONE_ROW, executor), same(A[:1, :1])),
    "in memory, one tile": partial(in_memory, N, False),
    "in memory, several tiles": partial(in_memory, 7, False),
    "in memory, scaled Gram matrix": partial(in_memory, 7, True),
    "square": partial(in_square, as_rows(X)),
    "square of sparse rows": partial(in_square, as_rows(sp.csr_array(X))),
    "last product": lambda folder, executor: (LastProduct(MatrixOperator(A)), same(A)),
    "training sets": training_sets,
    "normal, dense": partial(normal, MAP, False, True, True),
    "normal, sparse": partial(normal, IdentityMap(), True, False, True),
    "likelihood, binary": partial(likelihood, Bernoulli(1), True, True),
    "likelihood, one vs rest": partial(likelihood, Bernoulli(M), False, True),
    "likelihood, softmax": partial(likelihood, Softmax(M), False, False),
    **{
        f"newton, {name}, {'centred' if centred else 'plain'}": partial(newton, like, centred)
        for name, like in (("binary", Bernoulli(1)), ("one vs rest", Bernoulli(M)), ("softmax", Softmax(M)))
        for centred in (False, True)
    },
}


@pytest.fixture(params=MAKERS)
def make(request, tmp_path, monkeypatch):
    for module in (sources, square):
        monkeypatch.setattr(module, "KERNEL_BLOCK", 6)
    for name in ("MIN_SIDE", "STRIP_ROWS"):
        monkeypatch.setattr(device_products, name, 5)
    return lambda executor: MAKERS[request.param](tmp_path, executor)


def assert_product(found, matrices, V, columns, accuracy):
    """Errors are of the size of rounding in |A| |V|."""
    assert found.dtype == np.float64
    for i, k in enumerate(columns):
        scale = np.abs(matrices[k]) @ np.abs(V[:, i]) + np.abs(matrices[k]).max() * np.abs(V[:, i]).max()
        assert_allclose(found[:, i] / scale, matrices[k] @ V[:, i] / scale, atol=accuracy)


def test_it_multiplies_any_columns_by_the_dense_matrix(make):
    operator, matrices = make(SerialExecutor())
    n, m, everything = len(matrices[0]), len(matrices), np.arange(len(matrices))
    assert operator.n == n
    for precision, accuracy in (("float64", 1e-11), ("float32", 1e-5), ("float64", 1e-11)):
        wide = random(n, 2 * m, seed=2)
        wide.flags.writeable = False
        for V in (wide[:, :m], wide[:, ::2], np.asfortranarray(wide[:, m:])):
            assert_product(operator.multiply(V, precision), matrices, V, everything, accuracy)
            inner = getattr(operator, "gram", getattr(operator, "operator", None))
            assert inner is None or inner.products[-1] == (precision, V.size * (n // N) // n), "it is passed on"
        for columns in ([0], [m - 1], [0, m - 1][: 1 + (m > 1)], everything):
            V = random(n, len(columns), seed=3)
            found = operator.multiply(V, precision, np.array(columns))
            assert_product(found, matrices, V, columns, accuracy)


def test_threads_give_the_same_bits(make):
    with ThreadExecutor(3) as threads:
        results = []
        for executor in (SerialExecutor(), threads):
            operator, matrices = make(executor)
            V = random(len(matrices[0]), len(matrices), seed=2)
            results += [operator.multiply(V), operator.multiply(V)]  # the second time with what the first kept
            assert all(t.value is None for t in operator.record.tasks), "a record must not hold a product"
    for other in results[1:]:
        assert_array_equal(other, results[0])
