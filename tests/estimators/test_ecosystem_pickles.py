"""Fitted models through pickle, cloudpickle, joblib and skops: predictions are the same, bit for bit."""

import io
import pickle

import cloudpickle
import joblib
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_array_equal

from dkrr import KernelLogisticRegression, KernelLogisticRegressionCV, KernelRidge, KernelRidgeCV
from dkrr.features import CallableMap, Nystroem, RandomFourier
from dkrr.kernels import RBF, BagOfWords, CallableKernel, Columns, Graph, Linear, RandomWalk
from tests.contracts.kernels import DISTINCT

RNG = np.random.default_rng(0)
X = RNG.standard_normal((12, 3))
Y = np.sin(X[:, 0]) + X[:, 1]
LABELS = np.where(Y > 0, "high", "low")
TEXTS = ["free prize", "see you", "free call", "sorry you"] * 3
GRAPHS = [Graph(3, [(0, 1), (1, 2)], ["a", "b", "a"]), Graph(2, [(0, 1)], ["a", "b"])] * 6
TABLE = pd.DataFrame({"text": TEXTS, "number": Y})


def products(X, Y):
    return X @ Y.T


def squares(X):
    return X**2


def by_joblib(model):
    file = io.BytesIO()
    joblib.dump(model, file)
    file.seek(0)
    return joblib.load(file)


def by_skops(model):
    skops = pytest.importorskip("skops.io", reason="skops is not installed")
    file = skops.dumps(model)
    return skops.loads(file, trusted=skops.get_untrusted_types(data=file))


WAYS = {
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "cloudpickle": lambda model: cloudpickle.loads(cloudpickle.dumps(model)),
    "joblib": by_joblib,
    "skops": by_skops,
}
every_way = pytest.mark.parametrize("copy", WAYS.values(), ids=WAYS)


def assert_same(model, copied, rows):
    assert_array_equal(copied.predict(rows), model.predict(rows))
    assert copied.get_params() == model.get_params()
    assert copied.plan_ == model.plan_
    assert copied.solve_result_.status is model.solve_result_.status


@every_way
@pytest.mark.parametrize(
    "model",
    [
        KernelRidge(kernel="rbf"),
        KernelRidge(form="primal"),
        KernelRidge(kernel="rbf", solver="cg"),
        KernelRidgeCV([0.1, 1.0], cv=2),
        KernelRidgeCV([0.1, 1.0], kernel=[RBF(), Linear()], cv=2, store_cv_predictions=True),
        KernelLogisticRegression(kernel="rbf"),
        KernelLogisticRegressionCV([0.1, 1.0], cv=2),
    ],
    ids=str,
)
def test_every_estimator(model, copy):
    is_classifier = isinstance(model, KernelLogisticRegression | KernelLogisticRegressionCV)
    model.fit(X, LABELS if is_classifier else Y)
    copied = copy(model)
    assert_same(model, copied, X[::-1].copy())
    if is_classifier:
        assert_array_equal(copied.predict_proba(X), model.predict_proba(X))
    else:
        assert_array_equal(copied.predict(X, return_std=True)[1], model.predict(X, return_std=True)[1])


@every_way
@pytest.mark.parametrize("case", [case for case in DISTINCT if case.semidefinite], ids=str)
def test_every_kernel(case, copy):
    rows = case.rows(12, 3)
    model = KernelRidge(kernel=case.kernel).fit(rows, Y)
    assert_same(model, copy(model), case.rows(5, 3, seed=1))


KINDS = {
    "sparse": (RBF(), sp.csr_array(X)),
    "table": (RBF(), TABLE[["number"]]),
    "precomputed": ("precomputed", X @ X.T),
    "kernel function": (CallableKernel(products), X),
    "feature function": (CallableMap(squares, 3), X),
    "Fourier": (RandomFourier(RBF(), 4), X),
    "Nyström": (Nystroem(RBF(), 4), X),
    "documents": (BagOfWords(), TEXTS),
    "graphs": (RandomWalk(0.1), GRAPHS),
    "columns": (Columns(BagOfWords(), "text") + Columns(RBF(), ["number"]), TABLE),
}


@every_way
@pytest.mark.parametrize(("kernel", "rows"), KINDS.values(), ids=KINDS)
def test_every_kind_of_rows(kernel, rows, copy):
    model = KernelRidge(kernel=kernel, alpha=0.1).fit(rows, Y)
    assert_same(model, copy(model), rows)
