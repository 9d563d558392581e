"""Kernels as values: operators, names, functions and descriptions, and what depends on rows to be refused."""

import functools

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics.pairwise import pairwise_kernels

from dkrr.errors import InputError, InputTypeError, InputWarning, KernelFunctionError
from dkrr.features import CallableMap
from dkrr.kernels import RBF, CallableKernel, Chi2, Linear, Polynomial, Precomputed
from dkrr.kernels.descriptions import kernel_from_dict
from dkrr.kernels.dot import unit_rows
from dkrr.kernels.names import as_kernel, taken_by
from tests.oracles import naive_gram

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((9, 4)), RNG.standard_normal((6, 4))


def quadratic(X, Y, power=2):
    return (X @ Y.T) ** power


def test_sums_products_and_multiples_are_values_and_compute_what_they_say():
    a, b = RBF(gamma=0.5), Linear()
    assert a + b == RBF(gamma=0.5) + Linear() != a * b and hash(a + b) == hash(RBF(gamma=0.5) + Linear())
    assert 2 * a == a * 2.0 == np.float64(2) * a == np.int64(2) * a != 3 * a
    assert_allclose((2 * a + b * b)(X, Y), 2 * a(X, Y) + b(X, Y) ** 2, rtol=1e-14)


def test_out_must_be_a_writeable_block_of_the_right_shape_and_order():
    frozen = np.empty((9, 6))
    frozen.flags.writeable = False
    for out in (np.empty((6, 9)), np.empty((9, 12))[:, ::2], np.empty((6, 9)).T, frozen):
        with pytest.raises(InputError, match="read-only" if out is frozen else "out"):
            RBF()(X, Y, out=out)
    for out in (np.empty((9, 6), dtype=int), [[0.0] * 6] * 9):
        with pytest.raises(InputTypeError, match="out"):
            RBF()(X, Y, out=out)


def test_rows_that_a_kernel_cannot_take_are_refused():
    with pytest.raises(InputError, match="expected"):
        RBF()(X, Y[:, :3])
    with pytest.raises(InputError, match="fractional power"):
        Polynomial(degree=0.5, gamma=1.0, coef0=0.0)(X, -X)
    for kernel in (Chi2(), as_kernel("additive_chi2")):
        with pytest.raises(InputError, match="non-negative"):
            kernel(X)
        with pytest.raises(InputError, match="non-negative"):
            kernel(sp.csr_array(X))


@pytest.mark.parametrize(
    "name", ["linear", "poly", "polynomial", "rbf", "laplacian", "cosine", "sigmoid", "chi2", "additive_chi2"]
)
@pytest.mark.parametrize("settings", [{}, {"gamma": 0.3, "degree": 2, "coef0": 0.5}])
def test_names_of_scikit_learn_mean_the_same_kernels(name, settings):
    rows = abs(X)
    expected = pairwise_kernels(rows, metric=name, filter_params=True, **settings)
    taken = {key: value for key, value in settings.items() if key in taken_by(name)}
    assert_allclose(as_kernel(name, **taken)(rows), expected, rtol=1e-12, atol=1e-12)
    for other in settings.keys() - taken.keys():
        with pytest.warns(InputWarning, match=f"{other}={settings[other]} is ignored: the kernel '{name}' does not"):
            assert as_kernel(name, **{other: settings[other]}) == as_kernel(name)
    if not settings:
        assert_allclose(naive_gram(name, rows), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "params"),
    [
        ({"gamma": 0.1}, {"gamma": 5}),
        ({"gamma": np.array([0.1, 0.2, 0.3])}, {"gamma": 5}),
        ({"gamma": 0.1}, {"gamma": 0.1}),
        ({"degree": 2}, {"degree": 5}),
        ({"coef0": 0}, {"gamma": 1.0, "coef0": 2}),
    ],
)
def test_two_values_of_one_parameter_are_refused(settings, params):
    name = "rbf" if np.ndim(settings.get("gamma", 0)) else "polynomial"
    (given,) = settings
    with pytest.raises(
        InputError, match=rf"{given} is .*, and kernel_params has {given}={params[given]}; expected one"
    ):
        as_kernel(name, **settings, kernel_params=params)
    assert as_kernel(name, kernel_params={"gamma": 5}) == as_kernel(name, gamma=5)


def test_a_function_of_blocks_is_a_kernel_that_combines_with_others_and_has_costs():
    kernel = as_kernel(quadratic, kernel_params={"power": 3})
    assert_allclose(kernel(X, Y), (X @ Y.T) ** 3)
    assert_array_equal(kernel(X), kernel(X).T)
    assert_allclose(kernel.diagonal(np.tile(X, (5, 1))), np.tile((X**2).sum(axis=1) ** 3, 5))
    assert_allclose((2 * CallableKernel(quadratic) + RBF())(X), 2 * (X @ X.T) ** 2 + RBF()(X))
    assert kernel.name == f"{__name__}.quadratic"
    assert kernel.workspace_bytes(100, 200, 3) > 16 * 100 * 200
    assert kernel.nominal_seconds(3) > 0


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda X, Y: float(X[0] @ Y[0]), r"returned shape \(\).*scikit-learn's takes two single rows"),
        (lambda X, Y: Y @ X.T, r"returned shape \(6, 9\).*expected \(9, 6\)"),
        (lambda X, Y: (X @ Y.T).astype(complex), "dtype complex128"),
        (lambda X, Y: sp.csr_array(X @ Y.T), "sparse"),
        (lambda X, Y: np.where(X @ Y.T > 0, X @ Y.T, np.nan), "NaN or infinite"),
        (lambda X, Y: "no", "returned shape"),
        (lambda X, Y: [[1.0], [1.0, 2.0]], "lists of different lengths"),
        (lambda X, Y: np.ma.masked_less(X @ Y.T, 0), "masked entries"),
        (lambda X, Y: list(np.ma.masked_less(X @ Y.T, 0)), "masked entries"),
        (lambda X, Y: np.full((len(X), len(Y)), 2**60 + 1), f"the whole number {2**60 + 1} in"),
    ],
)
def test_what_a_function_returns_is_checked(function, message):
    with pytest.raises(InputError, match=f"(?s)kernel function 'mine'.*{message}"):
        CallableKernel(function, name="mine")(X, Y)


def test_a_function_must_be_symmetric_but_for_rounding():
    with pytest.raises(InputError, match="'mine' is not symmetric"):
        CallableKernel(lambda X, Y: X @ np.tri(4) @ Y.T, name="mine")(X)
    almost = CallableKernel(lambda X, Y: X @ Y.T * (1 + 1e-13 * np.arange(len(Y))))
    assert_array_equal(almost(X), almost(X).T)


def test_lengths_of_sparse_rows_take_no_memory_of_their_width():
    wide = sp.csr_array(([3.0, 4.0, 2.0], ([0, 0, 1], [0, 2**40 - 1, 7])), shape=(2, 2**40))
    assert_allclose(unit_rows(wide).data, [0.6, 0.8, 1.0], rtol=1e-15)


def test_flags_and_unsigned_numbers_are_taken_as_numbers():
    same = CallableKernel(lambda X, Y: (X[:, None] == Y).all(axis=2))
    assert_array_equal(same(X), np.eye(9))
    small = CallableKernel(lambda X, Y: (X[:, None] == Y).all(axis=2).astype(np.uint8))
    assert_array_equal(small(X), np.eye(9))


@pytest.mark.parametrize("rows", [X, np.asfortranarray(X), sp.csr_array(X)], ids=["dense", "fortran", "csr"])
@pytest.mark.parametrize("made", [CallableKernel, lambda f: CallableMap(lambda rows: f(rows, rows), 9).kernel()])
def test_functions_cannot_write_into_the_rows_of_the_user(rows, made):
    def scaled(X, Y):
        values = X.data if sp.issparse(X) else X
        values *= 2
        return X @ Y.T

    kept = rows.copy()
    with pytest.raises(KernelFunctionError, match=r"read-only; it writes into the rows .* work on a copy \(X\.copy"):
        made(scaled)(rows)
    assert abs(rows - kept).sum() == 0


def of_the_median(X, Y):
    squares = ((X[:, None] - Y) ** 2).sum(axis=2)
    return np.exp(-squares / np.median(squares))


@pytest.mark.parametrize(
    "function",
    [
        of_the_median,
        lambda X, Y: X @ Y.T / abs(X).max(),
        lambda X, Y: (X - Y[0]) @ (Y - Y[0]).T,
        lambda X, Y: (X - Y.mean(axis=0)) @ (Y - Y.mean(axis=0)).T,
    ],
    ids=["median", "maximum", "first", "mean"],
)
def test_entries_that_depend_on_the_other_rows_of_a_block_are_refused(function):
    with pytest.raises(InputError, match=r"'mine': entry k\(x, z\) depended on the other rows.*beforehand"):
        CallableKernel(function, name="mine")(X)
    centred = CallableMap(lambda rows: rows - rows.mean(axis=0), 4, name="mine")
    with pytest.raises(InputError, match=r"'mine': a feature depended on the other rows"):
        centred.transform(X)


def test_entries_of_objects_that_depend_on_the_other_objects_are_refused():
    kernel = CallableKernel(lambda X, Y: np.array([[len(set(X)) + (x == z) for z in Y] for x in X]), name="mine")
    with pytest.raises(InputError, match="depended on the other rows"):
        kernel.fitted(list("abcdef"))(kernel.encode(list("abcdef")))


def test_functions_of_float32_products_are_no_dependence():
    assert CallableKernel(lambda X, Y: X.astype(np.float32) @ Y.T.astype(np.float32))(X + 100).shape == (9, 9)


def test_a_description_names_a_function_which_must_be_given_again():
    kernel = CallableKernel(quadratic, name="quadratic")
    description, nested = kernel.to_dict(), kernel + 2 * RBF()
    assert set(description) == {"kernel", "name", "digest"}
    assert kernel_from_dict(description, {"quadratic": quadratic}) == kernel
    assert kernel_from_dict(nested.to_dict(), {"quadratic": quadratic}) == nested
    with pytest.raises(InputError, match=r"given again: dkrr\.load\(path, kernel=\.\.\.\)"):
        kernel_from_dict(nested.to_dict())
    with pytest.warns(UserWarning, match="another source"):
        kernel_from_dict(description, {"quadratic": lambda X, Y: X @ Y.T})


def test_digests_tell_functions_apart_and_are_the_same_for_the_same():
    class Machine:
        def __call__(self, X, Y):
            return X @ Y.T

    partial = functools.partial
    functions = (quadratic, partial(quadratic, power=3), partial(quadratic, power=4), Machine(), np.dot)
    assert len({CallableKernel(function).digest() for function in functions}) == 5
    assert CallableKernel(Machine()).digest() == CallableKernel(Machine()).digest()


def test_a_precomputed_matrix_is_its_own_kernel_and_is_checked():
    kernel, K, out = Precomputed(), RBF()(X), np.empty((9, 9))
    assert kernel(K, out=out) is out
    assert_array_equal(out, K)
    assert_array_equal(kernel(sp.csr_array(K)), K)
    assert_array_equal(kernel(K[:3], X), K[:3])
    assert_array_equal(kernel.diagonal(K), np.ones(9))
    for call in (kernel, kernel.diagonal):
        with pytest.raises(InputError, match="square"):
            call(K[:3])
    with pytest.raises(InputError, match="not symmetric"):
        kernel(np.triu(K))
    with pytest.raises(InputError, match="expected 9, one for each training row"):
        kernel(K[:3, :5], X)
