"""Estimators have scikit-learn's interface: its checks, tools, parameters, names of columns, weights that are routed.

The whole lists of checks are in tests/nightly/test_scikit_learn_checks.py.
"""

import inspect
import pickle

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import sklearn
import sklearn.kernel_ridge
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.feature_selection import RFE, RFECV, SelectFromModel
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import get_scorer
from sklearn.model_selection import GridSearchCV, GroupKFold, StratifiedKFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

import dkrr
from dkrr import KernelLogisticRegression, KernelLogisticRegressionCV, KernelRidge, KernelRidgeCV
from dkrr.errors import InputError, NotFittedError
from dkrr.estimators.model_description import search_of
from dkrr.features import CallableMap, Nystroem, RandomFourier
from dkrr.kernels import RBF, BagOfWords, CallableKernel, Columns, Graph, Linear, RandomWalk
from dkrr.kernels.interactions import InteractionMap
from tests.oracles import assert_close

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 3))
Y = np.sin(X[:, 0]) + X[:, 1]
LABELS = np.where(Y > 0, "high", "low")

ESTIMATORS = [
    KernelRidge(),
    KernelRidgeCV([0.1, 1.0], cv=2),
    KernelLogisticRegression(),
    KernelLogisticRegressionCV([0.1, 1.0], cv=2),
]
every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda each: type(each).__name__)

OF_ALL = (
    "estimators_dtypes estimators_overwrite_params estimators_pickle estimator_sparse_array fit2d_1feature "
    "n_features_in fit_idempotent methods_sample_order_invariance methods_subset_invariance "
    "sample_weight_equivalence_on_dense_data"
)
OF_SOME = {True: "classifiers_train class_weight_classifiers", False: "regressors_int regressor_multioutput"}


def is_classifier(estimator):
    return "Logistic" in type(estimator).__name__


def targets_of(estimator):
    return LABELS if is_classifier(estimator) else Y


LATE = {("KernelLogisticRegressionCV", "classifiers_train"), ("KernelLogisticRegressionCV", "estimator_sparse_array")}
"""Checks that take seconds."""
CHECKS = [
    pytest.param(each, name, marks=[pytest.mark.nightly] * ((type(each).__name__, name) in LATE))
    for each in ESTIMATORS
    for name in f"{OF_ALL} {OF_SOME[is_classifier(each)]}".split()
]


@pytest.mark.parametrize(
    ("estimator", "name"), CHECKS, ids=lambda each: each if isinstance(each, str) else type(each).__name__
)
def test_twelve_of_scikit_learns_checks_pass(estimator, name):
    checks = [
        (e, c) for e, c in estimator_checks_generator(estimator) if getattr(c, "func", c).__name__ == f"check_{name}"
    ]
    assert checks
    for instance, check in checks:
        check(instance)


@pytest.mark.parametrize("name", ["linear", "rbf", "laplacian", "polynomial", "cosine", "sigmoid"])
def test_kernel_ridge_is_a_drop_in_for_scikit_learns(name):
    weights, y = (np.arange(40) % 3, Y) if name in ("linear", "rbf") else (None, np.column_stack([Y, X[:, 2]]))
    theirs, ours = (
        kind(alpha=10.0, kernel=name).fit(0.1 * np.abs(X), y, sample_weight=weights)
        for kind in (sklearn.kernel_ridge.KernelRidge, KernelRidge)
    )
    assert_close(ours.dual_coef_, theirs.dual_coef_)
    assert_close(ours.predict(X), theirs.predict(X))
    assert ours.score(X, y) == pytest.approx(theirs.score(X, y), abs=1e-8)
    assert ours.get_params().items() >= theirs.get_params().items()


@every_estimator
def test_nested_parameters_replace_the_kernel_and_leave_other_models_alone(estimator):
    kernel = RBF(gamma=1.0) + 2.0 * Linear()
    model, other = (clone(estimator).set_params(kernel=kernel) for _ in range(2))
    assert model.get_params()["kernel__left__gamma"] == 1.0
    assert model.set_params(kernel__left__gamma=0.5, tol=1e-6) is model
    assert (model.kernel, model.tol) == (RBF(gamma=0.5) + 2.0 * Linear(), 1e-6)
    assert kernel == other.kernel == RBF(gamma=1.0) + 2.0 * Linear()
    assert clone(model).kernel is model.kernel
    assert model.set_params(kernel__gamma=3.0, kernel=RBF()).kernel == RBF(gamma=3.0)
    maps = clone(estimator).set_params(kernel=RandomFourier(RBF(), 10))
    maps.set_params(kernel__base__gamma=0.3, kernel__n_components=20)
    assert maps.kernel == RandomFourier(RBF(gamma=0.3), 20)


def test_parameters_that_do_not_exist_are_named():
    for kernel in ("rbf", np.dot, None):
        with pytest.raises(InputError, match="kernel__gamma is given, .* expected a kernel value: .* or set gamma"):
            KernelRidge(kernel=kernel).set_params(kernel__gamma=1.0)
    with pytest.raises(ValueError, match="Invalid parameter 'kernl'"):
        KernelRidge(kernel=RBF()).set_params(kernl__gamma=1.0)


def test_grids_over_parameters_of_kernels_find_what_separate_fits_find():
    model = make_pipeline(StandardScaler(), KernelRidge(alpha=0.1, kernel=RBF() + 1.0 * Linear()))
    grid = {"kernelridge__kernel__left__gamma": [0.01, 0.3], "kernelridge__kernel__right__scale": [0.1, 2.0]}
    search = GridSearchCV(model, grid, cv=2).fit(X, Y)
    values = [RBF(gamma=gamma) + scale * Linear() for gamma in (0.01, 0.3) for scale in (0.1, 2.0)]
    expected = GridSearchCV(model, {"kernelridge__kernel": values}, cv=2).fit(X, Y)
    assert_array_equal(search.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"])
    assert len(set(search.cv_results_["mean_test_score"])) == 4
    assert search.best_estimator_[-1].kernel == expected.best_params_["kernelridge__kernel"]
    assert_array_equal(search.predict(X), expected.predict(X))


FITS = {
    "ridge": lambda **given: KernelRidge(**given).fit(X, Y),
    "ridge of a matrix": lambda **given: KernelRidge(**given | {"kernel": "precomputed"}).fit(X @ X.T, Y),
    "search": lambda **given: KernelRidgeCV([0.1, 1.0], cv=3, **given).fit(X, Y),
    "search of candidates": lambda **given: KernelRidgeCV([0.1], cv=3, **given | {"gamma": [0.1]}).fit(X, Y),
    "classes": lambda **given: KernelLogisticRegression(**given).fit(X, LABELS),
    "path": lambda **given: KernelLogisticRegression(**given).fit_path(X, LABELS, [1.0, 0.1]),
    "search of classes": lambda **given: KernelLogisticRegressionCV([0.1, 1.0], cv=3, **given).fit(X, LABELS),
    "plan": lambda **given: dkrr.plan(X, Y, **given),
    "plan of a search": lambda **given: dkrr.plan(X, Y, alphas=[0.1], **given | {"gamma": [0.1]}),
    "gram": lambda **given: dkrr.gram(X, **given),
}


@pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
def test_a_parameter_that_a_kernel_with_a_name_does_not_have_is_ignored_with_one_warning(fit):
    message = (
        r"gamma=\[?0\.1\]? is ignored: the kernel '(linear|precomputed)' does not have it; kernels with it: .*'rbf'"
    )
    with pytest.warns(UserWarning, match=message) as caught:
        fit(kernel="linear", gamma=0.1)
    assert [one.filename for one in caught] == [__file__]


def test_a_grid_over_kernels_by_name_scores_what_scikit_learns_does(tmp_path):
    grid = {"kernel": ["linear", "rbf"], "gamma": [0.1, 1.0]}
    with pytest.warns(UserWarning, match=r"gamma=(0.1|1.0) is ignored: the kernel 'linear' does not have it"):
        ours = GridSearchCV(KernelRidge(), grid, cv=2).fit(X, Y)
    theirs = GridSearchCV(sklearn.kernel_ridge.KernelRidge(), grid, cv=2).fit(X, Y)
    assert_close(ours.cv_results_["mean_test_score"], theirs.cv_results_["mean_test_score"])
    with pytest.warns(UserWarning, match="degree=2 is ignored: none of the kernels") as caught:
        search = KernelRidgeCV([1.0], degree=2, cv=2, **grid).fit(X, Y)
    assert len(caught) == 1 and [one.get("gamma") for one in search.cv_results_["params"]] == [None, 0.1, 1.0]
    assert KernelRidge(**search.best_params_).fit(X, Y).predict(X) == pytest.approx(search.predict(X), abs=1e-7)
    dkrr.save(search, tmp_path / "m.zarr")  # without another warning


def test_what_comes_with_a_kernel_value_or_function_is_refused():
    for estimator in (KernelRidge(kernel=RBF()), KernelRidge(kernel=products), KernelRidgeCV(kernel=[RBF(), "linear"])):
        with pytest.raises(InputError, match="gamma"):
            estimator.set_params(gamma=0.1).fit(X, Y)


every_search = pytest.mark.parametrize("kind", [KernelRidgeCV, KernelLogisticRegressionCV])


def test_searches_have_the_rbf_kernel_and_estimators_named_as_scikit_learns_its_linear_one():
    assert [kind().kernel for kind in (KernelRidgeCV, KernelLogisticRegressionCV)] == ["rbf", "rbf"]
    assert [kind().kernel for kind in (KernelRidge, KernelLogisticRegression)] == ["linear", "linear"]
    sizes = {"n_samples": 100, "n_features": 3}
    assert isinstance(dkrr.plan(**sizes).problem.kernel, Linear)
    for search in ({"alphas": [0.1, 1.0]}, {"cv": 5}, {"alphas": 3, "loss": "logistic"}):
        assert isinstance(dkrr.plan(**sizes, **search).plan.problem.kernel, RBF)
    assert inspect.signature(dkrr.gram).parameters["kernel"].default == "linear"


@every_search
def test_cv_none_is_five_folds_as_in_grid_search(kind):
    labels = np.repeat(["a", "b"], 20)  # in order: consecutive folds would lack a class
    y = labels if kind is KernelLogisticRegressionCV else Y
    found, five = (kind([0.1, 1.0], cv=cv, refit=False).fit(X, y) for cv in (None, 5))
    assert found.n_splits_ == 5
    assert_array_equal(found.cv_results_["mean_test_score"], five.cv_results_["mean_test_score"])


@every_search
def test_a_search_has_what_grid_search_has_of_its_choice(kind, tmp_path):
    y, name = (LABELS, "predict_proba") if kind is KernelLogisticRegressionCV else (Y, "predict")
    settings = {"kernel": ["rbf", Linear()], "gamma": [0.1, 0.3], "transformer": StandardScaler()}
    search = kind([0.1, 1.0], cv=2, **settings)
    assert not hasattr(search, "best_estimator_")
    search.fit(X, y)
    best = search.best_estimator_
    assert type(best) is {KernelRidgeCV: KernelRidge, KernelLogisticRegressionCV: KernelLogisticRegression}[kind]
    assert best.get_params().items() >= search.best_params_.items()
    assert best._model is search._model  # not a copy
    again = type(best)(**search.best_params_).fit(X, y)
    for other in (search, pickle.loads(pickle.dumps(search)).best_estimator_):
        assert_array_equal(getattr(best, name)(X), getattr(other, name)(X))
    assert_close(getattr(again, name)(X), getattr(best, name)(X))
    if kind is KernelRidgeCV:  # by the folds of the search
        assert_array_equal(best.predict_interval(X), search.predict_interval(X))
    assert type(search.refit_time_) is float
    assert search.refit_time_ > 0
    assert search.scorer_(search, X, y) == get_scorer(search._score_name)(search, X, y)
    table = pd.DataFrame(search.cv_results_)
    assert table["param_alpha"].dtype == table["param_gamma"].dtype == float
    assert len(table) == 6
    assert table["param_gamma"].isna().sum() == 2
    assert table.loc[search.best_index_, "rank_test_score"] == 1
    dkrr.save(search, tmp_path / "model")
    loaded = dkrr.load(tmp_path / "model")
    assert "transformer" not in search_of(search)["best_params"]  # which the saved model has
    assert search.best_params_.keys() == loaded.best_params_.keys()
    assert_array_equal(loaded.predict(X), best.predict(X))
    search.set_params(refit=False, scoring=lambda estimator, rows, y: float(len(rows))).fit(X, y)
    assert not hasattr(search, "best_estimator_")
    assert not hasattr(search, "refit_time_")
    assert search.scorer_ is search.scoring
    for without in (lambda: search.best_estimator_, lambda: search.predict(X), lambda: dkrr.save(search, "model")):
        with pytest.raises(NotFittedError, match="has no model of all rows, since its refit is False; .* refit=True"):
            without()


def test_a_search_of_classes_has_no_store_which_it_would_not_use():
    assert "store" not in KernelLogisticRegressionCV().get_params()
    with pytest.raises(TypeError, match="unexpected keyword argument 'store'"):
        KernelLogisticRegressionCV(store="run.zarr")


def test_early_stopping_says_that_it_is_another_one_than_scikit_learns():
    first = KernelRidgeCV.__doc__.split("early_stopping : bool, default=True\n")[1].splitlines()[0]
    assert "λ are skipped, not iterations by a validation set" in first


@every_estimator
def test_sample_weights_are_routed_through_pipelines_and_searches(estimator):
    targets, weights = targets_of(estimator), RNG.integers(1, 4, len(X)).astype(float)
    estimator = clone(estimator).set_params(kernel=RBF())

    def search(model):
        grid = {f"{type(estimator).__name__.lower()}__fit_intercept": [False, True]}
        pipeline = make_pipeline(MinMaxScaler(), model)
        if model is not estimator and sklearn.__version__.startswith("1.7."):  # where the pipeline has to ask as well
            pipeline.set_score_request(sample_weight=True)
        return GridSearchCV(pipeline, grid, cv=2)

    with sklearn.config_context(enable_metadata_routing=True):
        model = clone(estimator).set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        found = search(model).fit(X, targets, sample_weight=weights).cv_results_["split0_test_score"][0]
        plain = search(estimator).fit(X, targets).cv_results_["split0_test_score"][0]
    rows = np.arange(len(X))
    folds = StratifiedKFold(2).split(X, LABELS) if is_classifier(estimator) else [(rows[20:], rows[:20])]
    train, test = next(iter(folds))
    scaler = MinMaxScaler().fit(X[train])
    alone = clone(estimator).set_params(fit_intercept=False)
    alone.fit(scaler.transform(X[train]), targets[train], sample_weight=weights[train])
    expected = alone.score(scaler.transform(X[test]), targets[test], sample_weight=weights[test])
    assert found == pytest.approx(expected, rel=1e-12) and found != plain


@pytest.mark.parametrize("estimator", ESTIMATORS[1::2], ids=["ridge", "classes"])
def test_groups_are_routed_to_searches(estimator):
    with sklearn.config_context(enable_metadata_routing=True):
        model = clone(estimator).set_params(cv=GroupKFold(2)).set_fit_request(groups=True)
        groups, targets = {"groups": np.arange(len(X)) % 4}, targets_of(estimator)
        found = cross_validate(model, X, targets, params=groups, cv=GroupKFold(2), return_estimator=True)
    assert [fit.n_splits_ for fit in found["estimator"]] == [2, 2]


@pytest.mark.parametrize("form", ["primal", "dual"])
def test_iterations_are_counted_as_scikit_learn_counts_them(form, tmp_path):
    """As Ridge: None after a direct solve."""
    for kind, settings in ((KernelRidge, {}), (KernelRidgeCV, {"alphas": [0.1, 1.0], "cv": 2})):
        direct, iterated = (
            kind(kernel=Linear(), form=form, solver=solver, **settings).fit(X, Y) for solver in ("cholesky", "cg")
        )
        assert direct.n_iter_ is None and Ridge(solver="cholesky").fit(X, Y).n_iter_ is None
        assert iterated.n_iter_ == iterated.solve_result_.iterations and isinstance(iterated.n_iter_, int)
        assert iterated.n_iter_ > 0 or kind is KernelRidgeCV  # which may have nothing left to do in its last fit
    dkrr.save(iterated, tmp_path / "m.zarr")
    assert not hasattr(dkrr.load(tmp_path / "m.zarr"), "n_iter_")


METHODS = "fit predict score get_params set_params get_metadata_routing set_fit_request set_score_request"
RIDGE = "predict_interval predict_variance_bounds loo_residuals log_marginal_likelihood log_marginal_likelihood_std"
OF_ONE = {
    "KernelRidge": f"{RIDGE} set_predict_request partial_fit set_partial_fit_request",
    "KernelRidgeCV": f"{RIDGE} set_predict_request",
    "KernelLogisticRegression": (
        "decision_function predict_proba predict_log_proba fit_path partial_fit set_partial_fit_request"
    ),
    "KernelLogisticRegressionCV": "decision_function predict_proba predict_log_proba",
}


@every_estimator
def test_estimators_have_these_methods_that_are_documented(estimator):
    kind, model = type(estimator), clone(estimator).fit(X, targets_of(estimator))
    members = {name for name in {*dir(kind), *vars(model)} if not name.startswith("_")} - set(model.get_params())
    attributes = {name for name in members if name.endswith("_")}
    assert members - attributes == set(f"{METHODS} {OF_ONE[kind.__name__]}".split())
    assert all(inspect.getdoc(getattr(kind, name)) for name in members - attributes)


COLUMNS = RNG.standard_normal((60, 5))
TWO_TARGETS = COLUMNS[:, [1, 3]] @ [[3.0, 0.1], [0.1, 3.0]]
LINEAR = {"kernel": "linear", "form": "primal"}
RIDGES = [KernelRidge(**LINEAR), KernelRidgeCV([0.1, 1.0], cv=2, **LINEAR)]
LOGISTICS = [KernelLogisticRegression(**LINEAR), KernelLogisticRegressionCV([0.1], cv=2, **LINEAR)]


@pytest.mark.parametrize(
    ("estimator", "y", "shape"),
    [(one, y, shape) for one in RIDGES for y, shape in ((TWO_TARGETS, (2, 5)), (TWO_TARGETS[:, 1], (5,)))]
    + [(one, TWO_TARGETS[:, 1] > 0, (1, 5)) for one in LOGISTICS]
    + [(one, np.digitize(TWO_TARGETS[:, 1], [-1, 1]), (3, 5)) for one in LOGISTICS],
    ids=lambda each: type(each).__name__ if hasattr(each, "fit") else str(getattr(each, "ndim", each)),
)
def test_coefficients_have_the_shape_by_which_scikit_learn_chooses_columns(estimator, y, shape, tmp_path):
    theirs = Ridge() if not is_classifier(estimator) else LogisticRegression()
    expected, model = theirs.fit(COLUMNS, y), clone(estimator).fit(COLUMNS, y)
    dkrr.save(model, tmp_path / "m.zarr")
    for one in (model, dkrr.load(tmp_path / "m.zarr")):
        assert one.coef_.shape == expected.coef_.shape == shape
        assert np.shape(one.intercept_) == expected.intercept_.shape
    assert np.argmax(np.abs(model.coef_), axis=-1).tolist() == np.argmax(np.abs(expected.coef_), axis=-1).tolist()
    columns = [1, 3] if y.ndim == 2 else [3]
    for selector in (RFE(estimator, n_features_to_select=len(columns)), SelectFromModel(estimator)):
        assert selector.fit(COLUMNS, y).get_support(indices=True).tolist() == columns
    assert set(columns) <= set(RFECV(estimator, step=2, cv=2).fit(COLUMNS, y).get_support(indices=True))


def test_a_feature_map_is_a_transformer_in_a_pipeline():
    phi = InteractionMap()
    found = make_pipeline(FunctionTransformer(phi.transform), KernelRidge(alpha=1e-3)).fit(X, Y).predict(X)
    assert_close(found, KernelRidge(alpha=1e-3, kernel=phi).fit(X, Y).predict(X))


@every_estimator
def test_names_of_columns_belong_to_the_last_fit(estimator):
    y, frame = targets_of(estimator), pd.DataFrame(X, columns=list("abc"))
    model = clone(estimator).fit(frame, y)
    assert list(model.feature_names_in_) == list("abc") and model.n_features_in_ == 3
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.predict(X)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[list("cba")])
    model.fit(X, y)
    assert not hasattr(model, "feature_names_in_")
    with pytest.raises(ValueError, match=f"X has 1 features, but {type(model).__name__} is expecting"):
        model.predict(X[:, :1])


TEXTS = ["free prize", "see you", "free call", "sorry you"] * 10
GRAPHS = [Graph(3, [(0, 1), (1, 2)], ["a", "b", "a"]), Graph(2, [(0, 1)], ["a", "b"])] * 20
TABLE = pd.DataFrame({"text": TEXTS, "number": Y})


def products(X, Y):
    return X @ Y.T


KERNELS = {
    "sparse": (RBF(), sp.csr_array(X)),
    "table": (RBF(), TABLE[["number"]]),
    "precomputed": ("precomputed", X @ X.T),
    "kernel function": (CallableKernel(products), X),
    "feature function": (CallableMap(np.square, 3), X),
    "Fourier": (RandomFourier(RBF(), 4), X),
    "Nyström": (Nystroem(RBF(), 4), X),
    "documents": (BagOfWords(), TEXTS),
    "graphs": (RandomWalk(0.1), GRAPHS),
    "columns": (Columns(BagOfWords(), "text") + Columns(RBF(), ["number"]), TABLE),
}
MODELS = {type(each).__name__: (each, X) for each in ESTIMATORS} | {
    "conjugate gradient": (KernelRidge(kernel="rbf", solver="cg"), X),
    "search of kernels": (KernelRidgeCV([0.1, 1.0], kernel=[RBF(), Linear()], cv=2, store_cv_predictions=True), X),
    **{name: (KernelRidge(kernel=kernel, alpha=0.1), rows) for name, (kernel, rows) in KERNELS.items()},
}


def assert_same(model, copied, rows):
    assert_array_equal(copied.predict(rows), model.predict(rows))
    if is_classifier(model):
        assert_array_equal(copied.predict_proba(rows), model.predict_proba(rows))
    elif model.kernel != "precomputed":
        assert_array_equal(copied.predict(rows, return_std=True)[1], model.predict(rows, return_std=True)[1])
    assert copied.get_params() == model.get_params() and copied.plan_ == model.plan_
    assert copied.solve_result_.status is model.solve_result_.status


@pytest.mark.parametrize("name", MODELS)
def test_pickled_models_predict_the_same_bits(name):
    model, rows = clone(MODELS[name][0]), MODELS[name][1]
    model.fit(rows, targets_of(model))
    assert_same(model, pickle.loads(pickle.dumps(model)), rows[::-1])


def test_models_go_through_skops():
    skops = pytest.importorskip("skops.io", reason="skops is not installed")
    for model in (KernelRidge(kernel=RBF()).fit(X, Y), KernelLogisticRegression().fit(X, LABELS)):
        file = skops.dumps(model)
        assert_same(model, skops.loads(file, trusted=skops.get_untrusted_types(data=file)), X)
