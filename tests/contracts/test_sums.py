"""Sums over rows: the same promises for dense rows, CSR rows and Fourier features."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose

from dkrr.errors import NotPositiveDefiniteError
from dkrr.features import FourierGrid
from dkrr.kernels import RBF
from dkrr.kernels.maps import IdentityMap, PolynomialMap
from dkrr.linalg.fourier_sums import FourierFeatures, FourierSums
from dkrr.linalg.sums import DenseFeatures, DenseSums, ReferredSums, sums_of_others

N, T = 61, 2
BOX = [(-3.0, 3.0)]


@dataclass
class Case:
    """Features, blocks of rows, and Φ of the rows by the feature map alone."""

    features: Any
    X: Any
    phi: np.ndarray
    unpacked: Any

    def __post_init__(self):
        rng = np.random.default_rng(5)
        self.y, self.weights = rng.standard_normal((N, T)), np.where(rng.random(N) < 0.2, 0.0, rng.uniform(0.5, 2, N))

    def sums(self, rows=slice(None), weighted=True):
        """Sums of some rows."""
        found = self.features.new_sums(T)
        found.add(self.features.block(self.X[rows]), self.y[rows], self.weights[rows] if weighted else None)
        return found

    def system(self, rows, has_intercept):
        """Matrix, moments, means of features and targets, and squares, by their definitions."""
        phi, y, w = self.phi[rows], self.y[rows], self.weights[rows]
        means = (w @ phi / w.sum(), w @ y / w.sum()) if has_intercept else (np.zeros(phi.shape[1]), np.zeros(T))
        phi, y = phi - means[0], y - means[1]
        return phi.T @ (w[:, None] * phi), phi.T @ (w[:, None] * y), *means, w @ y**2


def of_map(phi, X, reference):
    features = DenseFeatures(phi, X.shape[1], np.full(phi.dimension(X.shape[1]), reference))
    dense = X.toarray() if sp.issparse(X) else X
    return Case(features, X, phi.transform(dense), lambda v: DenseSums.unpacked(features.dimension, T, v))


def on_grid():
    phi, X = FourierGrid(RBF(gamma=0.5), box=BOX), np.random.default_rng(0).uniform(-3, 3, (N, 1))
    features = FourierFeatures(phi, 1, threads=2)
    return Case(features, X, phi.transform(X), lambda v: FourierSums.unpacked(features.grid, v))


def rows():
    return np.random.default_rng(0).standard_normal((N, 4)) + 3.0


CASES = {
    "dense": lambda: of_map(PolynomialMap(2, 1.0, 1.0), rows(), 2.5),
    "dense, reference 0": lambda: of_map(IdentityMap(), rows(), 0.0),
    "CSR": lambda: of_map(IdentityMap(), sp.csr_array(np.where(rows() > 3.5, rows(), 0.0)), 1.5),
    "Fourier": on_grid,
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]()


@pytest.mark.parametrize("has_intercept", [False, True])
def test_the_system_is_that_of_the_definitions_however_the_rows_were_cut(case, has_intercept):
    if not has_intercept:
        case.phi = case.phi - case.features.reference  # about which features are taken
    cuts, total = [0, 1, 20, 20, 47, N], case.features.new_sums(T)
    for a, b in pairwise(cuts):
        total.include(case.unpacked(case.sums(slice(a, b)).packed()))
    found = total.system(has_intercept=has_intercept)
    matrix, moments, means, target_means, squares = case.system(slice(None), has_intercept)
    size = np.abs(matrix).max()
    assert_allclose(np.tril(found.matrix.matrix()), np.tril(matrix), atol=1e-12 * size)
    assert_allclose(found.matrix.diagonal(), matrix.diagonal(), atol=1e-12 * size)
    vectors = np.random.default_rng(6).standard_normal((len(matrix), 2))
    assert_allclose(found.matrix.multiply(vectors), matrix @ vectors, atol=1e-11 * size)
    expected = np.linalg.cond((matrix + size * np.eye(len(matrix))) / size)
    assert 1.0 <= found.condition(size, lambda v: np.linalg.solve(matrix + size * np.eye(len(v)), v)) < 2.0 * expected
    assert_allclose(found.moments, moments, atol=1e-12 * size)
    assert_allclose(found.target_means, target_means, atol=1e-13)
    assert_allclose(found.squares, squares, rtol=1e-12)
    assert_allclose(found.total, case.weights.sum(), rtol=1e-13)
    reference = case.features.reference if has_intercept else 0.0
    assert_allclose(found.means + reference, means, atol=1e-12 * np.abs(case.phi).max())


@pytest.mark.parametrize("has_intercept", [False, True])
def test_values_and_leverages_of_a_solution_are_those_of_dense_formulas(case, has_intercept):
    if not has_intercept:
        case.phi = case.phi - case.features.reference
    alpha, block = 0.3, case.features.block(case.X)
    matrix, moments, means, target_means, squares = case.system(slice(None), has_intercept)
    solution = case.sums().system(has_intercept=has_intercept).solution(alpha)
    inverse = np.linalg.inv(matrix + alpha * np.eye(len(matrix)))
    beta, centred = inverse @ moments, case.phi - means
    constant = 1 / case.weights.sum() if has_intercept else 0.0
    expected = centred @ beta + target_means
    assert_allclose(case.features.values(block, solution.coef) + solution.constants, expected, atol=1e-10)
    leverages = np.einsum("ij,jk,ik->i", centred, inverse, centred) + constant
    assert_allclose(case.features.leverages(solution)(block), leverages, rtol=1e-9)
    assert_allclose(solution.quadratic, (squares - np.einsum("ij,ij->j", moments, beta)) / alpha, rtol=1e-9)
    sign, expected_log = np.linalg.slogdet(matrix + alpha * np.eye(len(matrix)))
    if has_intercept:
        expected_log += np.log(case.weights.sum() / alpha)
    assert sign == 1
    assert_allclose(solution.log_determinant(), expected_log, rtol=1e-9)


def test_sums_of_other_parts_and_differences_are_those_of_their_rows(case):
    folds = [np.arange(k, N - 4, 3) for k in range(3)]
    rest = case.sums(np.arange(N - 4, N))
    for fold, found in zip(folds, sums_of_others([case.sums(rows) for rows in folds], rest), strict=True):
        expected = case.sums(np.setdiff1d(np.arange(N), fold))
        assert_allclose(found.packed(), expected.packed(), atol=1e-11 * np.abs(expected.packed()).max())
    small, whole = case.sums(np.arange(5)), case.sums()
    left = whole.without(small)
    assert_allclose(left.packed(), case.sums(np.arange(5, N)).packed(), atol=1e-11 * np.abs(whole.packed()).max())
    assert whole.without(case.sums(np.arange(1, N))) is None, "one row is left, of which no digits are"


def test_sums_about_other_references_are_those_about_them(case):
    shift, targets = np.linspace(-1, 1, case.features.dimension), np.array([0.5, -3.0])
    moved = case.features.about(shift)
    if moved is None:
        moved, shift = case.features, np.zeros(case.features.dimension)
    expected = moved.new_sums(T)
    expected.add(moved.block(case.X), case.y - targets, case.weights)
    found = case.sums().about(shift, targets)
    for system, other in ((found.system(has_intercept=k), expected.system(has_intercept=k)) for k in (False, True)):
        assert_allclose(np.tril(system.matrix.matrix()), np.tril(other.matrix.matrix()), atol=1e-9)
        for name in ("moments", "squares", "total", "means", "target_means"):
            assert_allclose(getattr(system, name), getattr(other, name), atol=1e-10)
    assert_allclose(found.means[1], expected.means[1], atol=1e-12)


def test_merged_sums_are_about_the_means_of_all_rows(case):
    first, second, zeros = slice(0, 20), slice(20, N), np.zeros(case.features.dimension)
    start = case.features.reference
    parts = [ReferredSums(case.sums(rows), start, np.zeros(T)).about_means() for rows in (first, second)]
    found = parts[0].merged(parts[1])
    whole = ReferredSums(case.sums(), start, np.zeros(T)).about_means()
    assert_allclose(found.reference, whole.reference, atol=1e-11)
    assert_allclose(found.target_reference, whole.target_reference, atol=1e-12)
    system, other = found.sums.system(has_intercept=True), whole.sums.system(has_intercept=True)
    assert_allclose(np.tril(system.matrix.matrix()), np.tril(other.matrix.matrix()), atol=1e-9)
    assert_allclose(system.moments, other.moments, atol=1e-10)
    assert_allclose(found.sums.means[0], zeros, atol=1e-12)


def test_squared_errors_of_sums_are_those_of_the_rows_within_their_bound(case):
    if not case.features.has_exact_squares:
        pytest.skip("Fourier features take a second pass")
    rng, block = np.random.default_rng(3), case.features.block(case.X)
    coef, constants = rng.standard_normal((case.features.dimension, 2 * T)), rng.standard_normal(2 * T)
    found, bounds = case.sums().squared_errors(coef, constants, N)
    errors = np.tile(case.y, 2) - case.features.values(block, coef) - constants
    expected = case.weights @ errors**2
    assert (np.abs(found - expected) <= bounds).all()
    assert (bounds <= 1e-9 * expected).all()


def test_without_a_row_that_counts_there_is_no_intercept(case):
    case.weights[:] = 0.0
    with pytest.raises(NotPositiveDefiniteError, match="no row has a positive weight"):
        case.sums().system(has_intercept=True).solution(1.0)
