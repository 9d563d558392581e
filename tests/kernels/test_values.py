"""Kernels as values: operators, names, descriptions, functions, and what they refuse."""

import doctest
import functools
import importlib
import pickle
import pkgutil

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics.pairwise import pairwise_kernels

import dkrr.kernels
from dkrr.errors import InputError, InputTypeError
from dkrr.kernels import (
    RBF,
    AdditiveChi2,
    CallableKernel,
    Chi2,
    Cosine,
    Laplacian,
    Linear,
    Matern,
    Polynomial,
    Precomputed,
    Product,
    Scaled,
    Sigmoid,
    Sum,
    as_kernel,
    kernel_from_dict,
)
from dkrr.kernels.descriptions import taken_by
from tests.contracts.kernels import CASES
from tests.oracles import naive_gram

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((9, 4)), RNG.standard_normal((6, 4))


def quadratic(X, Y, power=2):
    return (X @ Y.T) ** power


def test_operators():
    a, b = RBF(0.5), Linear()
    assert a + b == Sum(a, b)
    assert a * b == Product(a, b)
    assert 2 * a == a * 2.0 == np.float64(2) * a == np.int64(2) * a == Scaled(a, 2.0)
    assert_allclose((2 * a + b * b)(X, Y), 2 * a(X, Y) + b(X, Y) ** 2, rtol=1e-14)
    assert hash(a + b) == hash(RBF(0.5) + Linear())


@pytest.mark.parametrize("scale", [0, -1.0, np.nan, np.inf, True])
def test_scale_must_be_positive(scale):
    with pytest.raises(InputError, match="scale of a kernel"):
        scale * Linear()
    with pytest.raises(InputError, match="scale of a kernel"):
        Linear() * scale


@pytest.mark.parametrize("other", [1.0, "rbf", None, np.ones(3)])
def test_only_kernels_add(other):
    with pytest.raises(TypeError):
        Linear() + other
    with pytest.raises(TypeError):
        Linear() * ([other] if isinstance(other, float) else other)


def test_resolved_fills_every_gamma():
    kernel = (2 * RBF() + Polynomial() * Laplacian()).resolved(5)
    assert kernel == 2 * RBF(0.2) + Polynomial(gamma=0.2) * Laplacian(0.2)
    assert Matern().resolved(3) == Matern()
    with pytest.raises(InputError, match="at least 1"):
        RBF().resolved(0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: RBF(gamma=0),
        lambda: RBF(gamma=-1.0),
        lambda: RBF(gamma=np.nan),
        lambda: RBF(gamma=np.inf),
        lambda: RBF(gamma="scale"),
        lambda: RBF(gamma=np.ones((3, 1))),
        lambda: Laplacian(gamma=0),
        lambda: Chi2(gamma=None),
        lambda: Sigmoid(gamma=-2),
        lambda: Sigmoid(coef0=np.nan),
        lambda: Polynomial(degree=-1),
        lambda: Polynomial(degree=np.inf),
        lambda: Polynomial(degree=None),
        lambda: Polynomial(gamma=0.0),
        lambda: Polynomial(coef0=np.inf),
        lambda: Matern(nu=2.0),
        lambda: Matern(length_scale=0.0),
        lambda: CallableKernel(3),
        lambda: Sum(Linear(), 3),
        lambda: Scaled(quadratic, 2.0),
        lambda: Precomputed() + Linear(),
        lambda: 2 * Precomputed(),
    ],
)
def test_bad_parameters(make):
    with pytest.raises(InputError, match=r"expected|cannot be part"):
        make()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (([[1.0]],), InputTypeError),
        ((X.astype(object),), InputTypeError),
        ((X.astype(complex),), InputTypeError),
        ((X[0],), InputError),
        ((X[:, :0],), InputError),
        ((X, Y[:, :3]), InputError),
        ((X, "Y"), InputTypeError),
    ],
)
def test_bad_rows(arguments, error):
    with pytest.raises(error, match="expected"):
        RBF()(*arguments)


def test_bad_out():
    for out in (np.empty((6, 9)), np.empty((9, 12))[:, ::2], np.empty((6, 9)).T):
        with pytest.raises(InputError, match="out"):
            RBF()(X, Y, out=out)
    for out in (np.empty((9, 6), dtype=int), [[0.0] * 6] * 9):
        with pytest.raises(InputTypeError, match="out"):
            RBF()(X, Y, out=out)
    frozen = np.empty((9, 6))
    frozen.flags.writeable = False
    with pytest.raises(InputError, match="read-only"):
        RBF()(X, Y, out=frozen)


def test_fractional_degree_of_a_negative_number():
    with pytest.raises(InputError, match="fractional power"):
        Polynomial(degree=0.5, gamma=1.0, coef0=0.0)(X, -X)


@pytest.mark.parametrize("kernel", [Chi2(), AdditiveChi2()])
def test_chi2_refuses(kernel):
    with pytest.raises(InputError, match="non-negative"):
        kernel(X)
    with pytest.raises(InputTypeError, match="dense"):
        kernel(sp.csr_array(abs(X)))


def test_kernels_are_pickled_and_hashed():
    for case in CASES:
        assert pickle.loads(pickle.dumps(case.kernel)) == case.kernel
    assert len({case.kernel for case in CASES}) == len(CASES)


# --- names ---


@pytest.mark.parametrize(
    "name", ["linear", "poly", "polynomial", "rbf", "laplacian", "cosine", "sigmoid", "chi2", "additive_chi2"]
)
@pytest.mark.parametrize("settings", [{}, {"gamma": 0.3, "degree": 2, "coef0": 0.5}])
def test_scikit_learn_names(name, settings):
    rows = abs(X)
    expected = pairwise_kernels(rows, metric=name, filter_params=True, **settings)
    taken = {key: value for key, value in settings.items() if key in taken_by(name)}
    assert_allclose(as_kernel(name, **taken)(rows), expected, rtol=1e-12, atol=1e-12)
    for other in settings.keys() - taken.keys():
        with pytest.raises(InputError, match=f"{other} is .*, which the kernel '{name}' does not have"):
            as_kernel(name, **{other: settings[other]})
    if not settings:
        assert_allclose(naive_gram(name, rows), expected, rtol=1e-12, atol=1e-12)


def test_other_names():
    assert as_kernel("precomputed") == Precomputed()
    assert as_kernel("matern") == Matern()
    assert as_kernel("matern", kernel_params={"nu": 2.5, "length_scale": 3}) == Matern(2.5, 3.0)
    assert as_kernel("rbf", kernel_params={"gamma": 3}) == RBF(3.0)
    value = RBF(0.1) + Linear()
    assert as_kernel(value) is value


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kernel": "gaussian"}, "kernel is 'gaussian'; expected one of.*'rbf'"),
        ({"kernel": 3}, "expected a name"),
        ({"kernel": None}, "expected a name"),
        ({"kernel": RBF(), "gamma": 0.1}, "beside the kernel value"),
        ({"kernel": Polynomial(), "degree": 2}, "beside the kernel value"),
        ({"kernel": RBF(), "kernel_params": {"gamma": 1}}, "beside the kernel value"),
        ({"kernel": "rbf", "kernel_params": {"width": 1}}, "no parameter width"),
        ({"kernel": "matern", "gamma": 1}, "length_scale"),
    ],
)
def test_bad_names(arguments, message):
    with pytest.raises(InputError, match=message):
        as_kernel(**arguments)


# --- functions ---


def test_callable_kernel():
    kernel = as_kernel(quadratic, kernel_params={"power": 3})
    assert_allclose(kernel(X, Y), (X @ Y.T) ** 3)
    K = kernel(X)
    assert_array_equal(K, K.T)
    assert_allclose(kernel.diagonal(np.tile(X, (5, 1))), np.tile((X**2).sum(axis=1) ** 3, 5))
    assert kernel.name == "tests.kernels.test_values.quadratic"
    assert_allclose((2 * CallableKernel(quadratic) + RBF())(X), 2 * (X @ X.T) ** 2 + RBF()(X))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda X, Y: float(X[0] @ Y[0]), r"returned shape \(\).*scikit-learn's takes two single rows"),
        (lambda X, Y: Y @ X.T, r"returned shape \(6, 9\).*expected \(9, 6\)"),
        (lambda X, Y: (X @ Y.T).astype(complex), "dtype complex128"),
        (lambda X, Y: (X @ Y.T).astype(object), "dtype object"),
        (lambda X, Y: sp.csr_array(X @ Y.T), "sparse"),
        (lambda X, Y: np.where(X @ Y.T > 0, X @ Y.T, np.nan), "NaN or infinite"),
        (lambda X, Y: "no", "returned shape"),
    ],
)
def test_callable_results_are_checked(function, message):
    with pytest.raises(InputError, match=f"(?s)kernel function 'mine'.*{message}"):
        CallableKernel(function, name="mine")(X, Y)


def test_callable_must_be_symmetric():
    with pytest.raises(InputError, match="'mine' is not symmetric"):
        CallableKernel(lambda X, Y: X @ np.tri(4) @ Y.T, name="mine")(X)
    almost = CallableKernel(lambda X, Y: X @ Y.T * (1 + 1e-13 * np.arange(len(Y))))
    assert_array_equal(almost(X), almost(X).T)


def test_callable_workspace():
    kernel = CallableKernel(quadratic)
    assert kernel.workspace_bytes(100, 200, 3) > 16 * 100 * 200
    assert kernel.entry_cost(3).element_seconds > 0


def test_callable_description():
    kernel = CallableKernel(quadratic, name="quadratic")
    description = kernel.to_dict()
    assert set(description) == {"kernel", "name", "digest"}
    assert kernel_from_dict(description, {"quadratic": quadratic}) == kernel
    nested = (kernel + 2 * RBF()).to_dict()
    assert kernel_from_dict(nested, {"quadratic": quadratic}) == kernel + 2 * RBF()
    with pytest.raises(InputError, match=r"given again: dkrr\.load\(path, kernel=\.\.\.\)"):
        kernel_from_dict(nested)
    with pytest.warns(UserWarning, match="another source"):
        kernel_from_dict(description, {"quadratic": lambda X, Y: X @ Y.T})


def test_digest_of_odd_callables():
    class Machine:
        def __call__(self, X, Y):
            return X @ Y.T

    digests = {
        CallableKernel(function).digest
        for function in (
            quadratic,
            functools.partial(quadratic, power=3),
            functools.partial(quadratic, power=4),
            Machine(),
            np.dot,
        )
    }
    assert len(digests) == 5
    assert CallableKernel(Machine()).digest == CallableKernel(Machine()).digest


# --- precomputed ---


def test_precomputed():
    kernel, K = Precomputed(), RBF()(X)
    assert kernel.is_precomputed
    assert not RBF().is_precomputed
    assert_array_equal(kernel(K), K)
    assert_array_equal(kernel(sp.csr_array(K)), K)
    assert_array_equal(kernel(K[:3], X), K[:3])
    assert_array_equal(kernel.diagonal(K), np.ones(9))
    out = np.empty((9, 9))
    assert kernel(K, out=out) is out
    assert kernel_from_dict(kernel.to_dict()) == kernel
    with pytest.raises(InputError, match="square"):
        kernel(K[:3])
    with pytest.raises(InputError, match="square"):
        kernel.diagonal(K[:3])
    with pytest.raises(InputError, match="not symmetric"):
        kernel(np.triu(K))
    with pytest.raises(InputError, match="expected 9, one for each training row"):
        kernel(K[:3, :5], X)


# --- descriptions ---


@pytest.mark.parametrize(
    "description",
    [
        {},
        "rbf",
        None,
        {"kernel": 3},
        {"kernel": "unheard-of"},
        {"kernel": "rbf", "width": 1.0},
        {"kernel": "rbf", "gamma": "1"},
        {"kernel": "rbf", "gamma": -1},
        {"kernel": "scaled", "scale": 2.0},
        {"kernel": "sum", "left": {"kernel": "rbf"}, "right": "rbf"},
        {"kernel": "callable"},
        {"kernel": "callable", "name": "os.system"},
    ],
)
def test_damaged_descriptions(description):
    with pytest.raises(InputError):
        kernel_from_dict(description)


def test_exports_and_examples():
    assert all(hasattr(dkrr.kernels, name) for name in dkrr.kernels.__all__)
    tried = 0
    for module in pkgutil.iter_modules(dkrr.kernels.__path__):
        result = doctest.testmod(importlib.import_module(f"dkrr.kernels.{module.name}"))
        assert result.failed == 0
        tried += result.attempted
    assert tried > 20
    assert Cosine() in {Cosine()}


@pytest.mark.parametrize(
    ("kernel", "settings", "message"),
    [
        ("gaussian", {}, "kernel is 'gaussian'; .*: did you mean 'rbf'"),
        ("RBF", {}, "did you mean 'rbf'"),
        ("polynomal", {}, "did you mean 'polynomial'"),
        (Matern, {}, r"write Matern\(\), not the class Matern"),
        ("rbf", {"gamma": "scale"}, r"gamma is 'scale'; expected a number .* 1 / \(n_features \* X\.var\(\)\)"),
    ],
)
def test_suggestions(kernel, settings, message):
    with pytest.raises(InputError, match=message):
        as_kernel(kernel, **settings)
