"""KernelLogisticRegression against Newton's method written out and scikit-learn, in every form and place."""

import functools
import warnings
from itertools import product

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dkrr import KernelLogisticRegression
from dkrr.errors import ConvergenceWarning
from dkrr.features import Nystroem, PolynomialMap, RandomFourier
from dkrr.kernels import RBF, Laplacian, Linear, Polynomial
from dkrr.solvers import ConjugateGradient, Float32Cholesky, RPCholesky
from tests.estimators.checks import every_check
from tests.oracles import kernel_features, naive_gram, naive_logistic, naive_probabilities
from tests.pairs import every_pair

N, D = 61, 3  # 61 is prime: no tile divides it
KERNELS = {
    "linear": Linear(),
    "polynomial": Polynomial(degree=2, gamma=0.4, coef0=1.0),
    "rbf": RBF(gamma=0.3),
    "laplacian": Laplacian(gamma=0.2),
}
FINITE = ["linear", "polynomial"]
PLACES = {"memory": {}, "tiles": {"tile": 40}}
PROBLEMS = {"binary": (2, "multinomial"), "multinomial": (3, "multinomial"), "ovr": (3, "ovr")}
ALPHA = 0.05

every_problem = pytest.mark.parametrize("problem", PROBLEMS)
SOLVERS = ["cholesky", "cg"]
OBJECTIVES = [(False, True), (True, True), (True, False)]  # weights, intercept
every_solver = pytest.mark.parametrize("solver", SOLVERS)


@functools.cache
def samples(n_classes, n=N, d=D, seed=0):
    """X, codes that depend on it but overlap, weights of which some are zero, and new rows."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    scores = 2 * np.column_stack([X[:, 0] * X[:, -1], np.sin(2 * X[:, 0]), X[:, -1]])[:, :n_classes]
    codes = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
    codes[:n_classes] = np.arange(n_classes)
    weights = rng.uniform(0.2, 3.0, n)
    weights[[1, n // 2, n - 1]] = 0.0
    return X, codes, weights, rng.normal(size=(11, d))


@functools.cache
def textbook(kernel, problem, weighted, fit_intercept, alpha=ALPHA):
    """Dual coefficients and intercepts of the naive minimiser."""
    n_classes, multi_class = PROBLEMS[problem]
    X, codes, weights, _ = samples(n_classes)
    phi = kernel_features(naive_gram(KERNELS[kernel], X))
    found = naive_logistic(phi, codes, alpha, weights if weighted else None, fit_intercept, multi_class)
    return found[2], found[1]


def naive_proba(scores, multi_class="multinomial"):
    if multi_class == "ovr" and scores.shape[1] > 1:
        separate = 1 / (1 + np.exp(-scores))
        return separate / separate.sum(axis=1, keepdims=True)
    return naive_probabilities(scores)


def relative_gradient(K, codes, weights, alpha, coef, intercept, fit_intercept, multi_class="multinomial"):
    """Norm of the objective's gradient in the kernel's space, relative to that at zero; the largest of the models."""
    n, n_classes = len(K), int(codes.max()) + 1
    v, Y = np.ones(n) if weights is None else weights, np.eye(n_classes)[codes]
    is_softmax = n_classes > 2 and multi_class == "multinomial"
    Y = Y[:, 1:] if n_classes == 2 else Y

    def squares(coef, intercept):
        scores = K @ coef + intercept
        P = naive_probabilities(scores) if is_softmax else 1 / (1 + np.exp(-scores))
        r = v[:, None] * (P - Y)
        total = r.sum(axis=0) ** 2 if fit_intercept else np.zeros(Y.shape[1])
        r = r + 2 * alpha * coef
        total = total + (r * (K @ r)).sum(axis=0)
        return total.sum(keepdims=True) if is_softmax else total

    return np.sqrt(squares(coef, intercept) / squares(np.zeros_like(coef), np.zeros(coef.shape[1]))).max()


def fitted(problem, kernel="rbf", weighted=False, labels=None, **arguments):
    n_classes, multi_class = PROBLEMS[problem]
    X, codes, weights, _ = samples(n_classes)
    settings = {"alpha": ALPHA, "kernel": KERNELS[kernel], "multi_class": multi_class, "tol": 1e-10} | arguments
    y = codes if labels is None else labels[codes]
    return KernelLogisticRegression(**settings).fit(X, y, sample_weight=weights if weighted else None)


def close(actual, expected, tolerance=1e-7):
    assert_allclose(actual, expected, rtol=0, atol=tolerance * max(1e-300, np.abs(expected).max()))


@every_check(
    KernelLogisticRegression(), KernelLogisticRegression(kernel="rbf", form="dual", multi_class="ovr", solver="cg")
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


class TestAgainstNaiveNewton:
    @every_pair(kernel=list(KERNELS), way=list(product(PROBLEMS, SOLVERS)), objective=OBJECTIVES, ids=str)
    def test_dual_form(self, kernel, way, objective):
        (problem, solver), (weighted, fit_intercept) = way, objective
        self.check_dual(kernel, problem, weighted, fit_intercept, solver, "memory")

    @every_solver
    @every_problem
    @pytest.mark.parametrize(("kernel", "fit_intercept"), [("rbf", True), ("polynomial", False)])
    def test_dual_form_in_tiles(self, kernel, problem, fit_intercept, solver):
        self.check_dual(kernel, problem, True, fit_intercept, solver, "tiles")

    def check_dual(self, kernel, problem, weighted, fit_intercept, solver, place):
        n_classes, multi_class = PROBLEMS[problem]
        X, codes, weights, X_new = samples(n_classes)
        model = fitted(
            problem, kernel, weighted, form="dual", solver=solver, fit_intercept=fit_intercept, **PLACES[place]
        )
        assert (model.plan_.form, model.plan_.solver) == ("dual", solver)
        assert model.plan_.execution == ("memory" if place == "memory" else "serial")
        coef, intercept = textbook(kernel, problem, weighted, fit_intercept)
        assert model.dual_coef_.shape == coef.shape
        assert model.intercept_.shape == intercept.shape
        close(model.dual_coef_, coef)
        assert_allclose(model.intercept_, intercept, atol=1e-6)
        scores = naive_gram(KERNELS[kernel], X_new, X) @ coef + intercept
        found = model.decision_function(X_new)
        close(found if found.ndim == 2 else found[:, None], scores, 1e-6)
        assert_allclose(model.predict_proba(X_new), naive_proba(scores, multi_class), atol=1e-6)
        # The gradient is what was asked for, and what the result says it is.
        K = naive_gram(KERNELS[kernel], X)
        arguments = (K, codes, weights if weighted else None, ALPHA)
        left = relative_gradient(*arguments, model.dual_coef_, model.intercept_, fit_intercept, multi_class)
        assert left <= 1e-10
        result = model.solve_result_
        assert result.status.name == "CONVERGED" and result.residual <= 1e-10
        assert result.iterations == len(result.steps) == model.n_iter_

    @every_pair(kernel=FINITE, way=list(product(PROBLEMS, SOLVERS, PLACES)), objective=OBJECTIVES, ids=str)
    def test_primal_is_dual(self, kernel, way, objective):
        (problem, solver, place), (weighted, fit_intercept) = way, objective
        X_new = samples(2)[3]
        tiles = {"tile": 4} if place == "tiles" else {}
        primal = fitted(problem, kernel, weighted, form="primal", solver=solver, fit_intercept=fit_intercept, **tiles)
        assert (primal.plan_.form, primal.plan_.solver) == ("primal", solver)
        assert primal.plan_.execution == ("memory" if place == "memory" else "serial")
        dual = fitted(problem, kernel, weighted, form="dual", fit_intercept=fit_intercept)
        close(primal.coef_, dual.coef_, 1e-6)
        assert_allclose(primal.intercept_, dual.intercept_, atol=1e-6)
        assert_allclose(primal.predict_proba(X_new), dual.predict_proba(X_new), atol=1e-6)
        coef, intercept = textbook(kernel, problem, weighted, fit_intercept)
        scores = naive_gram(KERNELS[kernel], X_new, samples(PROBLEMS[problem][0])[0]) @ coef + intercept
        assert_allclose(primal.predict_proba(X_new), naive_proba(scores, PROBLEMS[problem][1]), atol=1e-6)
        assert primal.solve_result_.status.name == "CONVERGED"

    @every_problem
    @pytest.mark.parametrize(
        "solver",
        [
            ConjugateGradient(RPCholesky(rank=5)),
            ConjugateGradient(RPCholesky(rank=40), precision="mixed"),
            ConjugateGradient(None),
            ConjugateGradient(Float32Cholesky()),
        ],
        ids=["rank 5", "mixed", "none", "float32"],
    )
    def test_iterative_solvers(self, solver, problem):
        tiles = {"tile": 40} if isinstance(solver.preconditioner, Float32Cholesky) else {}
        model = fitted(problem, "rbf", True, form="dual", solver=solver, **tiles)
        coef, intercept = textbook("rbf", problem, True, True)
        close(model.dual_coef_, coef)
        assert_allclose(model.intercept_, intercept, atol=1e-6)
        assert model.solve_result_.inner_iterations > 0

    @every_pair(problem=list(PROBLEMS), solver=SOLVERS, place=list(PLACES))
    def test_precomputed(self, problem, solver, place):
        X, _, _, X_new = samples(PROBLEMS[problem][0])
        K = naive_gram(KERNELS["rbf"], X)
        n_classes, multi_class = PROBLEMS[problem]
        codes = samples(n_classes)[1]
        model = KernelLogisticRegression(
            ALPHA, kernel="precomputed", multi_class=multi_class, solver=solver, tol=1e-10, **PLACES[place]
        ).fit(K, codes)
        coef, intercept = textbook("rbf", problem, False, True)
        close(model.dual_coef_, coef)
        scores = naive_gram(KERNELS["rbf"], X_new, X) @ coef + intercept
        new = naive_gram(KERNELS["rbf"], X_new, X)
        assert_allclose(model.predict_proba(new), naive_proba(scores, multi_class), atol=1e-6)

    @pytest.mark.parametrize("kind", ["float32", "csr", "dask", "zarr", "frame", "list"])
    @pytest.mark.parametrize("form", ["primal", "dual"])
    def test_input_types(self, kind, form, tmp_path):
        X, codes, weights, _ = samples(3)
        X = np.where(np.abs(X) < 0.4, 0.0, np.round(X, 1))
        y = np.array(["a", "b", "c"])[codes]
        zarr.save_array(str(tmp_path / "x.zarr"), X)
        wrapped = {
            "float32": X.astype(np.float32),
            "csr": sp.csr_array(X),
            "dask": da.from_array(X, chunks=(17, 2)),
            "zarr": str(tmp_path / "x.zarr"),
            "frame": pd.DataFrame(X, columns=list("pqr")),
            "list": X.tolist(),
        }[kind]
        exact = X.astype(np.float32).astype(float) if kind == "float32" else X
        settings = {"alpha": ALPHA, "kernel": "poly", "degree": 2, "form": form, "tol": 1e-10}
        expected = KernelLogisticRegression(**settings).fit(exact, y, sample_weight=weights).predict_proba(exact)
        model = KernelLogisticRegression(**settings).fit(wrapped, y, sample_weight=weights)
        found = model.predict_proba(wrapped)
        assert isinstance(found, da.Array if kind in ("dask", "zarr") else np.ndarray)
        # Monomials of rows in float32 are in float32.
        assert_allclose(np.asarray(found), expected, atol=1e-5 if kind == "float32" else 1e-7)
        assert_array_equal(np.asarray(model.predict(wrapped)), model.classes_[expected.argmax(axis=1)])


class TestAgainstScikitLearn:
    @every_pair(form=["primal", "dual"], n_classes=[2, 3], weighted=[False, True], fit_intercept=[True, False])
    def test_on_polynomial_features(self, form, n_classes, weighted, fit_intercept):
        X, codes, weights, X_new = samples(n_classes)
        weights = weights if weighted else None
        features = PolynomialMap(degree=2, gamma=0.4, coef0=1.0)
        theirs = LogisticRegression(
            C=1 / (2 * ALPHA), tol=1e-12, solver="newton-cholesky", max_iter=1000, fit_intercept=fit_intercept
        ).fit(features.transform(X), codes, sample_weight=weights)
        ours = KernelLogisticRegression(
            ALPHA, kernel="poly", degree=2, gamma=0.4, coef0=1.0, form=form, fit_intercept=fit_intercept, tol=1e-10
        ).fit(X, codes, sample_weight=weights)
        phi_new = features.transform(X_new)
        assert_allclose(ours.predict_proba(X_new), theirs.predict_proba(phi_new), atol=1e-6)
        assert_allclose(ours.predict_log_proba(X_new), theirs.predict_log_proba(phi_new), atol=1e-5)
        assert_allclose(ours.decision_function(X_new), theirs.decision_function(phi_new), atol=1e-5)
        assert ours.decision_function(X_new).shape == theirs.decision_function(phi_new).shape
        assert_array_equal(ours.predict(X_new), theirs.predict(phi_new))
        assert ours.score(X, codes) == theirs.score(features.transform(X), codes)

    @pytest.mark.parametrize("weighted", [False, True])
    def test_one_vs_rest(self, weighted):
        X, codes, weights, X_new = samples(3)
        weights = weights if weighted else None
        scores = [
            LogisticRegression(C=1 / (2 * ALPHA), tol=1e-12, solver="newton-cholesky", max_iter=1000)
            .fit(X, codes == k, sample_weight=weights)
            .decision_function(X_new)
            for k in range(3)
        ]
        ours = KernelLogisticRegression(ALPHA, multi_class="ovr", tol=1e-10).fit(X, codes, sample_weight=weights)
        assert_allclose(ours.decision_function(X_new), np.column_stack(scores), atol=1e-5)
        assert_allclose(ours.predict_proba(X_new), naive_proba(np.column_stack(scores), "ovr"), atol=1e-6)

    @pytest.mark.parametrize("class_weight", [{0: 2.0, 1: 0.5}, {1: 3.0}, "balanced"])
    @pytest.mark.parametrize("n_classes", [2, 3])
    def test_class_weights(self, n_classes, class_weight):
        X, codes, _, X_new = samples(n_classes)
        theirs = LogisticRegression(
            C=1 / (2 * ALPHA), tol=1e-12, solver="newton-cholesky", max_iter=1000, class_weight=class_weight
        ).fit(X, codes)
        ours = KernelLogisticRegression(ALPHA, class_weight=class_weight, tol=1e-10).fit(X, codes)
        assert_allclose(ours.predict_proba(X_new), theirs.predict_proba(X_new), atol=1e-6)

    def test_is_a_classifier_to_its_tools(self):
        X, codes, _, _ = samples(3)
        y = np.array(["x", "y", "z"])[codes]
        search = GridSearchCV(
            make_pipeline(StandardScaler(), KernelLogisticRegression(kernel="rbf")),
            {"kernellogisticregression__alpha": [1e-2, 1.0]},
            cv=3,
        ).fit(X, y)
        assert 0.4 < search.best_score_ <= 1
        assert search.predict_proba(X).shape == (N, 3)
        copy = clone(KernelLogisticRegression(3.0, kernel=RBF(gamma=0.2), class_weight={0: 1.0}))
        assert copy.alpha == 3.0 and copy.kernel == RBF(gamma=0.2) and copy.class_weight == {0: 1.0}


class TestWeights:
    @every_problem
    def test_class_weights_multiply_those_of_samples(self, problem):
        n_classes, multi_class = PROBLEMS[problem]
        X, codes, weights, _ = samples(n_classes)
        factors = dict(enumerate([0.3, 2.0, 1.0][:n_classes]))
        found = fitted(problem, weighted=True, class_weight=factors)
        whole = weights * np.array([factors[c] for c in codes])
        expected = KernelLogisticRegression(ALPHA, kernel=KERNELS["rbf"], multi_class=multi_class, tol=1e-10)
        close(found.dual_coef_, expected.fit(X, codes, sample_weight=whole).dual_coef_)

    def test_balanced_counts_weights(self):
        _, codes, weights, _ = samples(3)
        totals = np.bincount(codes, weights)
        factors = {k: totals.sum() / (3 * t) for k, t in enumerate(totals)}
        found = fitted("multinomial", weighted=True, class_weight="balanced")
        close(found.dual_coef_, fitted("multinomial", weighted=True, class_weight=factors).dual_coef_)

    def test_class_weights_of_strings(self):
        labels = np.array(["no", "yes"])
        found = fitted("binary", labels=labels, class_weight={"yes": 3.0})
        close(found.dual_coef_, fitted("binary", class_weight={1: 3.0}).dual_coef_)

    @pytest.mark.parametrize("form", ["primal", "dual"])
    @every_problem
    def test_a_weight_of_two_is_a_row_twice(self, problem, form):
        n_classes, multi_class = PROBLEMS[problem]
        X, codes, _, X_new = samples(n_classes)
        settings = {"alpha": ALPHA, "kernel": KERNELS["polynomial"], "multi_class": multi_class, "form": form}
        weights = np.ones(N)
        weights[::3] = 2.0
        weights[1::3] = 0.0
        index = np.repeat(np.arange(N), weights.astype(int))
        weighted = KernelLogisticRegression(tol=1e-10, **settings).fit(X, codes, sample_weight=weights)
        repeated = KernelLogisticRegression(tol=1e-10, **settings).fit(X[index], codes[index])
        assert_allclose(weighted.predict_proba(X_new), repeated.predict_proba(X_new), atol=1e-6)

    def test_one_number_for_all_rows(self):
        X, codes, _, _ = samples(3)
        found = KernelLogisticRegression(ALPHA, tol=1e-10).fit(X, codes, sample_weight=2.0)
        expected = KernelLogisticRegression(ALPHA / 2, tol=1e-10).fit(X, codes)
        close(found.coef_, expected.coef_, 1e-6)

    @pytest.mark.parametrize("form", ["primal", "dual"])
    @pytest.mark.parametrize("multi_class", ["multinomial", "ovr"])
    def test_a_class_of_weight_zero_is_never_likely(self, multi_class, form):
        X, codes, _, X_new = samples(3)
        settings = {"alpha": ALPHA, "kernel": KERNELS["polynomial"], "multi_class": multi_class, "form": form}
        model = KernelLogisticRegression(class_weight={1: 0.0}, **settings, fit_intercept=False).fit(X, codes)
        assert model.solve_result_.status.name == "CONVERGED"
        assert not (model.predict(X_new) == 1).all()
        assert np.isfinite(model.predict_log_proba(X_new)).all()


class TestLabels:
    @pytest.mark.parametrize(
        ("labels", "kind"),
        [
            (np.array(["cat", "dog"]), "U"),
            (np.array(["cat", "a longer dog"], dtype=object), "O"),
            (np.array([False, True]), "b"),
            (np.array([-7, 12]), "i"),
            (np.array([0.0, 1.0]), "f"),
            (np.array([3, 200], dtype=np.uint8), "u"),
        ],
    )
    def test_of_two_classes(self, labels, kind):
        X, codes, _, X_new = samples(2)
        model = fitted("binary", labels=labels)
        assert_array_equal(model.classes_, np.unique(labels))
        order = np.argsort(labels)
        expected = fitted("binary").predict_proba(X_new)
        if order[0] == 1:
            expected = expected[:, ::-1]
        assert_allclose(model.predict_proba(X_new), expected, atol=1e-8)
        found = model.predict(X_new)
        assert found.dtype.kind == kind == model.classes_.dtype.kind
        assert_array_equal(found, model.classes_[expected.argmax(axis=1)])
        assert model.score(X, labels[codes]) == np.mean(model.predict(X) == labels[codes])

    @pytest.mark.parametrize("form", ["primal", "dual"])
    def test_positive_scores_are_those_of_the_second_class(self, form):
        X = np.linspace(-2, 2, 30)[:, None]
        model = KernelLogisticRegression(form=form).fit(X, np.where(X[:, 0] > 0, "up", "down"))
        assert list(model.classes_) == ["down", "up"]
        assert_array_equal(model.predict(X), np.where(X[:, 0] > 0, "up", "down"))
        assert (model.decision_function(X) > 0).tolist() == (X[:, 0] > 0).tolist()
        assert_allclose(model.predict_proba(X)[:, 1], 1 / (1 + np.exp(-model.decision_function(X))))

    @pytest.mark.parametrize(
        "wrap",
        [
            list,
            lambda y: pd.Series(y, index=np.arange(N)[::-1]),
            lambda y: pd.Series(y, dtype="category"),
            lambda y: pd.Series(y, dtype="string"),
            lambda y: np.array(y, dtype=object),
        ],
        ids=["list", "series", "category", "string", "object"],
    )
    def test_strings_of_all_kinds(self, wrap):
        X, codes, _, _ = samples(3)
        y = np.array(["red", "green", "blue"])[codes]
        expected = KernelLogisticRegression().fit(X, y)
        model = KernelLogisticRegression().fit(X, wrap(y))
        assert list(model.classes_) == ["blue", "green", "red"]
        assert_array_equal(model.predict(X), expected.predict(X))
        assert model.score(X, wrap(y)) == expected.score(X, y)

    @pytest.mark.parametrize("dtype", ["Int64", "boolean"])
    def test_nullable_types_without_a_missing_label(self, dtype):
        X, codes, _, _ = samples(2)
        model = KernelLogisticRegression().fit(X, pd.Series(codes).astype(dtype))
        assert_array_equal(model.classes_, [0, 1])
        assert_array_equal(model.predict(X).astype(int), KernelLogisticRegression().fit(X, codes).predict(X))

    def test_labels_may_be_lazy(self, tmp_path):
        X, codes, _, _ = samples(3)
        expected = KernelLogisticRegression().fit(X, codes)
        zarr.save_array(str(tmp_path / "y.zarr"), codes)
        for y in (da.from_array(codes, chunks=13), str(tmp_path / "y.zarr")):
            model = KernelLogisticRegression().fit(da.from_array(X, chunks=(20, 3)), y)
            assert_array_equal(model.classes_, expected.classes_)
            close(model.coef_, expected.coef_, 1e-9)
            assert model.score(da.from_array(X, chunks=(20, 3)), y) == expected.score(X, codes)

    def test_a_column_vector_is_flattened_with_a_warning(self):
        X, codes, _, _ = samples(2)
        with pytest.warns(UserWarning, match="column-vector"):
            model = KernelLogisticRegression().fit(X, codes[:, None])
        assert model.predict(X).shape == (N,)


class TestPaths:
    ALPHAS = (10.0, 0.5, 0.1)

    @pytest.mark.parametrize(
        "settings",
        [
            {"kernel": "rbf", "gamma": 0.3},
            {"kernel": "rbf", "gamma": 0.3, "solver": "cholesky"},
            {"kernel": "rbf", "gamma": 0.3, "multi_class": "ovr"},
            {"kernel": "rbf", "gamma": 0.3, "tile": 40, "solver": "cholesky", "multi_class": "ovr"},
            {"kernel": "poly", "degree": 2},
            {"kernel": "poly", "degree": 2, "form": "primal", "solver": "cg"},
        ],
        ids=["cg", "cholesky", "ovr", "tiles", "primal", "primal cg"],
    )
    def test_are_separate_fits_in_fewer_steps(self, settings):
        X, codes, weights, X_new = samples(3)
        model = KernelLogisticRegression(tol=1e-9, class_weight={0: 2.0}, **settings)
        path = model.fit_path(X, codes, self.ALPHAS, sample_weight=weights)
        separate = [clone(model).set_params(alpha=a).fit(X, codes, sample_weight=weights) for a in self.ALPHAS]
        for found, expected, alpha in zip(path, separate, self.ALPHAS, strict=True):
            assert isinstance(found, KernelLogisticRegression) and found.alpha == alpha
            assert_allclose(found.predict_proba(X_new), expected.predict_proba(X_new), atol=1e-6)
            assert_array_equal(found.predict(X_new), expected.predict(X_new))
            assert found.solve_result_.status.name == "CONVERGED" and found.solve_result_.residual <= 1e-9
            assert found.get_params() == model.get_params() | {"alpha": alpha}
        assert sum(m.n_iter_ for m in path) < sum(m.n_iter_ for m in separate)

    def test_of_one_is_a_fit(self):
        X, codes, _, _ = samples(2)
        model = KernelLogisticRegression(kernel="rbf")
        (found,) = model.fit_path(X, codes, [0.3])
        expected = KernelLogisticRegression(0.3, kernel="rbf").fit(X, codes)
        assert_array_equal(found.dual_coef_, expected.dual_coef_)
        assert found is not model and model.alpha == 1.0

    def test_models_can_be_used_and_fitted_by_themselves(self):
        X, codes, _, X_new = samples(3)
        first, last = KernelLogisticRegression(kernel="rbf").fit_path(X, codes, [1.0, 0.1])
        before = last.decision_function(X_new)
        first.fit(X, codes % 2)
        assert first.decision_function(X_new).shape == (11,)
        assert_array_equal(last.decision_function(X_new), before)


class TestWarmStart:
    @pytest.mark.parametrize("form", ["primal", "dual"])
    @every_problem
    def test_begins_at_the_last_solution(self, problem, form):
        n_classes, multi_class = PROBLEMS[problem]
        X, codes, _, X_new = samples(n_classes)
        settings = {"kernel": KERNELS["polynomial"], "multi_class": multi_class, "form": form, "tol": 1e-9}
        model = KernelLogisticRegression(0.5, warm_start=True, **settings).fit(X, codes)
        first = model.decision_function(X_new)
        model.fit(X, codes)
        assert model.solve_result_.iterations == 0 and model.n_iter_ == 1
        assert_array_equal(model.decision_function(X_new), first)
        model.set_params(alpha=0.4).fit(X, codes)
        cold = KernelLogisticRegression(0.4, **settings).fit(X, codes)
        assert model.n_iter_ < cold.n_iter_
        assert_allclose(model.predict_proba(X_new), cold.predict_proba(X_new), atol=1e-6)
        # The gradient is relative to that at zero, not to that at the start.
        assert model.solve_result_.residual <= 1e-9

    def test_only_when_asked_for(self):
        X, codes, _, _ = samples(2)
        model = KernelLogisticRegression(kernel="rbf").fit(X, codes)
        steps = model.n_iter_
        assert model.fit(X, codes).n_iter_ == steps > 1

    @pytest.mark.parametrize("change", ["rows", "classes", "form", "kernel", "labels"])
    def test_other_problems_get_the_same_answers(self, change):
        X, codes, _, _ = samples(3)
        model = KernelLogisticRegression(0.1, kernel="poly", degree=2, form="dual", warm_start=True, tol=1e-9)
        model.fit(X, codes)
        y = codes
        if change == "rows":
            X, y = X[:40] + 1, codes[:40]
        elif change == "classes":
            y = codes % 2
        elif change == "form":
            model.set_params(form="primal")
        elif change == "kernel":
            model.set_params(kernel="rbf", degree=3)
        else:
            y = 2 - codes
        expected = clone(model).fit(X, y).predict_proba(X)
        assert_allclose(model.fit(X, y).predict_proba(X), expected, atol=1e-6)

    @pytest.mark.parametrize("form", ["primal", "dual"])
    def test_where_the_gradient_at_zero_vanishes(self, form):
        """Zero is the solution there, and not where the last fit ended."""
        X = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
        model = KernelLogisticRegression(form=form, warm_start=True).fit(X, [1, 1, 0, 0])
        assert np.abs(model.decision_function(X)).min() > 0.1
        model.fit(X, [1, 0, 0, 1])
        assert_allclose(model.decision_function(X), 0.0, atol=1e-7)

    @pytest.mark.parametrize(
        "kernel",
        [Nystroem(RBF(gamma=0.3), 20), RandomFourier(RBF(gamma=0.3), 30), "precomputed", lambda A, B: A @ B.T],
        ids=["nystroem", "fourier", "precomputed", "callable"],
    )
    def test_every_kind_of_kernel(self, kernel):
        X, codes, _, _ = samples(3)
        rows = naive_gram(KERNELS["rbf"], X) if isinstance(kernel, str) else X
        model = KernelLogisticRegression(0.1, kernel=kernel, warm_start=True).fit(rows, codes)
        before = model.predict_proba(rows)
        model.fit(rows, codes)
        assert model.solve_result_.iterations == 0
        assert_allclose(model.predict_proba(rows), before, atol=1e-12)

    def test_after_max_iter_it_goes_on(self):
        X, codes, _, _ = samples(3)
        model = KernelLogisticRegression(1e-3, kernel="rbf", max_iter=2, warm_start=True)
        with pytest.warns(ConvergenceWarning, match="max_iter"):
            model.fit(X, codes)
        assert model.n_iter_ == 2 and model.solve_result_.status.name == "MAX_ITERATIONS"
        for _ in range(8):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                model.fit(X, codes)
            if model.solve_result_.status.name == "CONVERGED":
                break
        expected = KernelLogisticRegression(1e-3, kernel="rbf").fit(X, codes)
        assert_allclose(model.predict_proba(X), expected.predict_proba(X), atol=1e-5)


class TestHardProblems:
    @every_solver
    @pytest.mark.parametrize("form", ["primal", "dual"])
    @every_problem
    def test_separable_classes_and_a_tiny_penalty(self, problem, form, solver):
        n_classes, multi_class = PROBLEMS[problem]
        X = samples(n_classes, 31)[0]
        cuts = np.quantile(X[:, 0], np.linspace(0, 1, n_classes + 1)[1:-1])
        y = np.searchsorted(cuts, X[:, 0])
        model = KernelLogisticRegression(
            1e-10 if solver == "cholesky" else 1e-5,
            kernel="poly",
            degree=2,
            form=form,
            solver=solver,
            multi_class=multi_class,
        ).fit(X, y)
        assert model.solve_result_.status.name == "CONVERGED" and model.solve_result_.residual <= 1e-8
        assert model.score(X, y) == 1
        assert np.isfinite(model.predict_log_proba(100 * X)).all()

    @pytest.mark.parametrize(
        ("problem", "solver", "place"),
        [(p, s, "memory") for p in PROBLEMS for s in ("auto", "cholesky")] + [("binary", "cholesky", "tiles")],
    )
    def test_nearly_separable_and_a_tiny_penalty(self, problem, solver, place):
        n_classes, multi_class = PROBLEMS[problem]
        X, codes, _, _ = samples(n_classes)
        model = KernelLogisticRegression(
            1e-10, kernel="rbf", gamma=1.0, multi_class=multi_class, solver=solver, form="dual", **PLACES[place]
        ).fit(X, codes)
        assert model.solve_result_.status.name == "CONVERGED" and model.solve_result_.residual <= 1e-8
        assert model.score(X, codes) == 1  # a kernel this narrow separates any labels
        K = naive_gram(RBF(gamma=1.0), X)
        arguments = (K, codes, None, 1e-10, model.dual_coef_, model.intercept_, True, multi_class)
        assert relative_gradient(*arguments) <= 1e-7

    @every_problem
    def test_a_smooth_kernel_and_a_small_penalty(self, problem):
        """Newton's method needs directions that are exact enough for whole steps."""
        alpha = 1e-8
        n_classes, multi_class = PROBLEMS[problem]
        X, codes, _, _ = samples(n_classes)
        model = KernelLogisticRegression(alpha, kernel="rbf", gamma=0.1, multi_class=multi_class).fit(X, codes)
        assert model.solve_result_.status.name == "CONVERGED" and model.solve_result_.residual <= 1e-8
        K = naive_gram(RBF(gamma=0.1), X)
        coef, intercept = model.dual_coef_, model.intercept_
        assert relative_gradient(K, codes, None, alpha, coef, intercept, True, multi_class) <= 1e-7

    @pytest.mark.parametrize("alpha", [1e3, 1e-3, 1e-6])
    @every_problem
    def test_any_penalty_is_the_naive_minimum(self, problem, alpha):
        n_classes, multi_class = PROBLEMS[problem]
        X, _, _, X_new = samples(n_classes)
        coef, intercept = textbook("polynomial", problem, False, True, alpha)
        scores = naive_gram(KERNELS["polynomial"], X_new, X) @ coef + intercept
        for form, tol in (("primal", 1e-10), ("dual", 1e-9)):  # scores Kα of α near 1 / λ have fewer digits
            model = fitted(problem, "polynomial", alpha=alpha, form=form, tol=tol)
            assert_allclose(model.predict_proba(X_new), naive_proba(scores, multi_class), atol=1e-6)

    @pytest.mark.parametrize("form", ["primal", "dual"])
    @every_problem
    def test_columns_of_very_different_size(self, problem, form):
        n_classes, multi_class = PROBLEMS[problem]
        X, codes, _, _ = samples(n_classes)
        X = X * np.array([1e-3, 1.0, 1e3]) + np.array([0.0, 100.0, 0.0])
        # In the dual form α near 1 / λ times entries near 10⁶ leave the scores some seven digits.
        tol = 1e-8 if form == "primal" else 1e-6
        model = KernelLogisticRegression(1e-3, multi_class=multi_class, form=form, tol=tol).fit(X, codes)
        assert model.solve_result_.residual <= tol

    @every_pair(problem=list(PROBLEMS), solver=SOLVERS, form=["primal", "dual"])
    def test_fewer_rows_than_columns(self, problem, solver, form):
        n_classes, multi_class = PROBLEMS[problem]
        X, codes, _, X_new = samples(n_classes, 13, 30)
        model = KernelLogisticRegression(ALPHA, multi_class=multi_class, form=form, solver=solver, tol=1e-10).fit(
            X, codes
        )
        _, intercept, dual = naive_logistic(X, codes, ALPHA, multi_class=multi_class)
        expected = naive_proba(X_new @ (X.T @ dual) + intercept, multi_class)
        assert_allclose(model.predict_proba(X_new), expected, atol=1e-6)

    @every_pair(form=["primal", "dual"], solver=SOLVERS, multi_class=["multinomial", "ovr"], n_classes=[2, 3, 5])
    def test_one_row_for_each_class(self, n_classes, multi_class, solver, form):
        X = np.random.default_rng(0).normal(size=(n_classes, 2))
        y = np.arange(n_classes)[::-1]
        model = KernelLogisticRegression(
            0.01, kernel="poly", degree=2, multi_class=multi_class, form=form, solver=solver
        ).fit(X, y)
        assert model.solve_result_.status.name == "CONVERGED"
        assert_array_equal(model.predict(X), y)

    @every_pair(
        kernel=["rbf", "linear"],
        solver=SOLVERS,
        where=[*((p, "memory") for p in PROBLEMS), ("binary", "tiles"), ("ovr", "tiles")],
        ids=str,
    )
    def test_duplicates(self, where, solver, kernel):
        """A singular K, and rows that contradict each other."""
        problem, place = where
        n_classes, multi_class = PROBLEMS[problem]
        X, codes, _, _ = samples(n_classes)
        X, y = np.vstack([X[:20], X[:20], X[:20]]), np.concatenate([codes[:20], codes[:20], codes[20:40]])
        model = KernelLogisticRegression(
            1e-4,
            kernel=kernel,
            gamma=0.5 if kernel == "rbf" else None,
            multi_class=multi_class,
            solver=solver,
            form="dual",
            **PLACES[place],
        ).fit(X, y)
        assert model.solve_result_.status.name == "CONVERGED"
        found = model.predict_proba(X)
        assert_allclose(found[:20], found[20:40], atol=1e-9)

    @pytest.mark.parametrize("form", ["primal", "dual"])
    @every_problem
    def test_rows_that_are_all_the_same(self, problem, form):
        """Nothing but the intercept can tell, and it tells how often each class occurs."""
        n_classes, multi_class = PROBLEMS[problem]
        y = np.repeat(np.arange(n_classes), [3, 5, 9][:n_classes])
        X = np.zeros((len(y), 2))
        model = KernelLogisticRegression(multi_class=multi_class, form=form).fit(X, y)
        assert_allclose(model.predict_proba(X[:1])[0], np.bincount(y) / len(y), atol=1e-7)

    @settings(max_examples=25, deadline=None)
    @given(
        n=st.integers(2, 30),
        d=st.integers(1, 20),
        n_classes=st.integers(2, 4),
        n_tiles=st.one_of(st.none(), st.integers(1, 4)),
        form=st.sampled_from(["auto", "primal", "dual"]),
        kernel=st.sampled_from([Linear(), RBF(gamma=0.3)]),
        solver=st.sampled_from(["auto", "cholesky", "cg"]),
        multi_class=st.sampled_from(["multinomial", "ovr"]),
        fit_intercept=st.booleans(),
    )
    def test_any_shape(self, n, d, n_classes, n_tiles, form, kernel, solver, multi_class, fit_intercept):
        n = max(n, n_classes)
        if form == "primal" and isinstance(kernel, RBF):
            form = "dual"
        tile = None if n_tiles is None else -(-(d if form == "primal" else n) // n_tiles)
        rng = np.random.default_rng(n * 1000 + d)
        X, codes = rng.normal(size=(n, d)), rng.integers(0, n_classes, n)
        codes[:n_classes] = np.arange(n_classes)
        model = KernelLogisticRegression(
            0.3,
            kernel=kernel,
            form=form,
            tile=tile,
            solver=solver,
            multi_class=multi_class,
            fit_intercept=fit_intercept,
            tol=1e-9,
        ).fit(X, codes)
        K = naive_gram(kernel, X)
        _, intercept, dual = naive_logistic(kernel_features(K), codes, 0.3, None, fit_intercept, multi_class)
        assert_allclose(model.predict_proba(X), naive_proba(K @ dual + intercept, multi_class), atol=1e-6)


class TestLazyPredictions:
    @every_problem
    def test_follow_the_chunks_and_stay_lazy(self, problem):
        n_classes, _ = PROBLEMS[problem]
        X_new = samples(n_classes)[3]
        labels = np.array(["no", "perhaps", "yes, certainly"])
        model = fitted(problem, labels=labels[:n_classes])
        lazy = da.from_array(X_new, chunks=(4, 2))
        for name, shape in (
            ("predict_proba", (11, n_classes)),
            ("predict_log_proba", (11, n_classes)),
            ("predict", (11,)),
            ("decision_function", (11,) if n_classes == 2 else (11, n_classes)),
        ):
            found, expected = getattr(model, name)(lazy), getattr(model, name)(X_new)
            assert isinstance(found, da.Array)
            assert found.shape == shape == expected.shape
            assert found.chunks[0] == (4, 4, 3)
            computed = found.compute()
            assert computed.dtype == found.dtype == expected.dtype
            if name == "predict":
                assert_array_equal(computed, expected)
            else:
                assert_allclose(computed, expected, atol=1e-12)
                assert_allclose(found[3:9].compute(), expected[3:9], atol=1e-12)

    def test_of_a_stored_array(self, tmp_path):
        X_new = samples(3)[3]
        zarr.save_array(str(tmp_path / "x.zarr"), X_new)
        model = fitted("multinomial")
        found = model.predict(str(tmp_path / "x.zarr"))
        assert isinstance(found, da.Array)
        assert_array_equal(found.compute(), model.predict(X_new))

    def test_in_primal_form(self):
        X_new = samples(3)[3]
        model = fitted("multinomial", "linear", form="primal")
        found = model.predict_proba(da.from_array(X_new, chunks=5))
        assert_allclose(found.compute(), model.predict_proba(X_new), atol=1e-12)


class TestAttributes:
    def test_of_one_form_do_not_survive_the_next_fit(self):
        X, codes, _, _ = samples(2)
        model = KernelLogisticRegression(form="primal").fit(X, codes)
        assert hasattr(model, "coef_") and not hasattr(model, "dual_coef_")
        model.set_params(kernel="rbf", form="dual").fit(X, codes)
        assert hasattr(model, "dual_coef_") and not hasattr(model, "coef_")

    def test_every_step_is_reported(self):
        model = fitted("multinomial", alpha=1e-4)
        steps = model.solve_result_.steps
        assert [s.step for s in steps] == list(range(1, model.n_iter_ + 1))
        objectives = [s.objective for s in steps]
        assert objectives == sorted(objectives, reverse=True)
        assert steps[-1].gradient == model.solve_result_.residual <= 1e-10
        assert model.solve_result_.inner_iterations == sum(s.inner_iterations for s in steps)

    @every_problem
    def test_the_objective_is_the_textbook_s(self, problem):
        n_classes, multi_class = PROBLEMS[problem]
        X, codes, weights, _ = samples(n_classes)
        model = fitted(problem, weighted=True)
        K = naive_gram(KERNELS["rbf"], X)
        scores = K @ model.dual_coef_ + model.intercept_
        Y = np.eye(n_classes)[codes]
        if multi_class == "ovr" and n_classes > 2:
            P = 1 / (1 + np.exp(-scores))
            loss = -(weights[:, None] * (Y * np.log(P) + (1 - Y) * np.log(1 - P))).sum()
        else:
            loss = -(weights * np.log((Y * naive_probabilities(scores)).sum(axis=1))).sum()
        penalty = ALPHA * np.trace(model.dual_coef_.T @ K @ model.dual_coef_)
        assert model.solve_result_.steps[-1].objective == pytest.approx(loss + penalty, rel=1e-10)

    def test_weights_count_in_the_score(self):
        X, codes, weights, _ = samples(3)
        model = fitted("multinomial")
        right = model.predict(X) == codes
        assert model.score(X, codes, sample_weight=weights) == pytest.approx(np.average(right, weights=weights))

    def test_a_sum_of_dual_coefficients_is_zero_with_an_intercept(self):
        for problem in PROBLEMS:
            model = fitted(problem, "laplacian", True)
            assert_allclose(model.dual_coef_.sum(axis=0), 0.0, atol=1e-6 * np.abs(model.dual_coef_).sum())
            if problem == "multinomial":
                assert_allclose(model.dual_coef_.sum(axis=1), 0.0, atol=1e-6)


class TestStore:
    @pytest.mark.parametrize("solver", ["cholesky", "cg"])
    def test_a_fit_that_was_stopped_is_resumed(self, tmp_path, solver):
        X, codes, _, _ = samples(2)
        settings = {"alpha": 1e-3, "kernel": "rbf", "solver": solver, "store": str(tmp_path / "run.zarr"), "tile": 40}
        with pytest.warns(ConvergenceWarning, match="max_iter"):
            first = KernelLogisticRegression(max_iter=3, **settings).fit(X, codes)
        assert first.n_iter_ == 3
        found = KernelLogisticRegression(**settings).fit(X, codes)
        settings["store"] = str(tmp_path / "other.zarr")
        expected = KernelLogisticRegression(**settings).fit(X, codes)
        assert found.n_iter_ == expected.n_iter_ > 3
        assert_allclose(found.predict_proba(X), expected.predict_proba(X), atol=1e-7)
        assert [s.step for s in found.solve_result_.steps] == list(range(1, found.n_iter_ + 1))

    def test_a_finished_fit_is_not_repeated(self, tmp_path):
        X, codes, _, _ = samples(2)
        settings = {"kernel": "rbf", "store": str(tmp_path / "run.zarr"), "tile": 40}
        first = KernelLogisticRegression(**settings).fit(X, codes)
        again = KernelLogisticRegression(**settings).fit(X, codes)
        assert_array_equal(again.dual_coef_, first.dual_coef_)
        assert again.n_iter_ == first.n_iter_


class TestRoundingIsNotTakenForMore:
    @pytest.mark.parametrize("alpha", [1.0, 1e-2, 1e-4, 1e-5])
    def test_unscaled_data_of_three_classes(self, alpha):
        from sklearn.datasets import load_wine

        model = KernelLogisticRegression(alpha=alpha).fit(*load_wine(return_X_y=True))
        assert model.solve_result_.status.name == "CONVERGED"

    @pytest.mark.parametrize("alpha", [1e-5, 1e-6, 1e-7])
    def test_a_softmax_with_intercept_and_a_small_penalty(self, alpha):
        X = np.random.default_rng(0).normal(size=(60, 3))
        y = np.digitize(X[:, 0], [-0.5, 0.5])
        assert KernelLogisticRegression(alpha, kernel="rbf").fit(X, y).solve_result_.status.name == "CONVERGED"

    @pytest.mark.parametrize("column", [[1, 1, 1, 1e5], [1, 1, 1, 1e8]], ids=str)
    def test_columns_of_very_different_sizes(self, column):
        X = np.random.default_rng(0).normal(size=(500, 4))
        y = np.digitize(X[:, 0] + X[:, 3] + 0.3 * np.random.default_rng(1).normal(size=500), [-0.5, 0.5])
        model = KernelLogisticRegression(alpha=1e-3, form="primal").fit(X * column, y)
        assert model.solve_result_.status.name == "CONVERGED" and model.score(X * column, y) > 0.8

    @every_pair(copies=[1, 3], form=["primal", "dual"], solver=SOLVERS)
    def test_gradients_that_cancel_at_zero(self, form, solver, copies):
        rng = np.random.default_rng(0)
        A = np.vstack([rng.normal(size=(30, 3))] * copies)
        X, y = np.vstack([A, A]), np.repeat([0, 1], len(A))
        order = rng.permutation(len(X))
        model = KernelLogisticRegression(alpha=0.1, form=form, solver=solver).fit(X[order], y[order])
        assert model.solve_result_.status.name == "CONVERGED"
        assert_allclose(model.predict_proba(X), 0.5, atol=1e-8)

    @pytest.mark.parametrize("form", ["primal", "dual"])
    def test_a_warm_start_from_a_model_with_an_intercept(self, form):
        X, y, _, _ = samples(3)
        model = KernelLogisticRegression(alpha=ALPHA, kernel=KERNELS["polynomial"], warm_start=True, form=form).fit(
            X, y
        )
        model.set_params(fit_intercept=False).fit(X, y)
        fresh = clone(model).fit(X, y)
        assert_array_equal(model.intercept_, 0.0)
        assert_allclose(model.predict_proba(X), fresh.predict_proba(X), atol=1e-7)


def test_a_path_leaves_its_estimator_alone():
    class Own(KernelLogisticRegression):
        """Of a user."""

    X, y, _, _ = samples(2)
    estimator = Own(alpha=3.0)
    models = estimator.fit_path(X, y, [1.0, 0.1])
    assert estimator.alpha == 3.0 and not hasattr(estimator, "classes_")
    assert [type(m) for m in models] == [Own, Own] and [m.alpha for m in models] == [1.0, 0.1]
