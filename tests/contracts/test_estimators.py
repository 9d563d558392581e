"""What is promised of every estimator; a new one joins by a row of ESTIMATORS."""

import pickle

import dask.array as da
import numpy as np
import pytest
import zarr
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import exceptions
from sklearn.base import clone
from sklearn.metrics import accuracy_score, r2_score

import dkrr
from dkrr import KernelLogisticRegression, KernelLogisticRegressionCV, KernelRidge, KernelRidgeCV
from dkrr.errors import ConvergenceWarning, DkrrError, NotFittedError
from dkrr.kernels import RBF, Polynomial

ESTIMATORS = {
    "ridge": KernelRidge(0.1, kernel=RBF(gamma=0.3), fit_intercept=True),
    "primal ridge": KernelRidge(0.1, kernel=Polynomial(degree=2), form="primal", fit_intercept=True),
    "ridge by conjugate gradient": KernelRidge(0.1, kernel="laplacian", solver="cg", tol=1e-11),
    "search": KernelRidgeCV([0.1, 1.0], kernel=RBF(gamma=0.3), cv=2),
    "logistic": KernelLogisticRegression(0.1, kernel=RBF(gamma=0.3), form="dual"),
    "primal logistic": KernelLogisticRegression(0.1, form="primal", one_vs_rest=True),
    "search of classes": KernelLogisticRegressionCV([0.1, 1.0], kernel=RBF(gamma=0.3), cv=2),
}
every_estimator = pytest.mark.parametrize("name", ESTIMATORS)

RNG = np.random.default_rng(0)
N = 53
X, X_NEW = RNG.normal(size=(N, 3)), RNG.normal(size=(11, 3))
WEIGHTS = RNG.uniform(0.2, 3.0, N)
Y = np.column_stack([np.sin(2 * X[:, 0]), X @ [1.0, -1.0, 0.5]]) + 0.1 * RNG.normal(size=(N, 2))
LABELS = np.array(["no", "perhaps", "yes, certainly"])[np.digitize(X[:, 0] + 0.5 * RNG.normal(size=N), [-0.5, 0.5])]


def fresh(name, **settings):
    """An estimator that is not fitted, and its targets."""
    model = clone(ESTIMATORS[name]).set_params(**settings)
    return model, LABELS if "Logistic" in type(model).__name__ else Y


def fitted(name):
    model, y = fresh(name)
    return model.fit(X, y, sample_weight=WEIGHTS)


def assert_same_answers(model, other, rows=X_NEW, **tolerance):
    """Every kind of prediction is equal, or close with a tolerance; labels are equal."""
    for method in ("predict", "predict_proba", "predict_log_proba", "decision_function"):
        if hasattr(model, method):
            found, expected = getattr(model, method)(rows), getattr(other, method)(X_NEW)
            if tolerance and expected.dtype.kind == "f":
                assert_allclose(found, expected, **tolerance)
            else:
                assert_array_equal(found, expected)


OF_FITTED = {
    "predict": lambda model, path: model.predict(X),
    "score": lambda model, path: model.score(X, LABELS if hasattr(model, "predict_proba") else Y[:, 0]),
    "deviations": lambda model, path: model.predict(X, return_std=True),
    "intervals": lambda model, path: model.predict_interval(X),
    "leave-one-out": lambda model, path: model.loo_residuals(),
    "likelihood": lambda model, path: model.log_marginal_likelihood(),
    "probabilities": lambda model, path: model.predict_proba(X),
    "save": dkrr.save,
    "report": dkrr.report,
    "predict_to": lambda model, path: dkrr.predict_to(model, X, path),
    "plan": lambda model, path: dkrr.plan(X, model=model),
}
OF_REGRESSIONS = {"deviations", "intervals", "leave-one-out", "likelihood"}
OF_CLASSES = {"probabilities"}


@pytest.mark.parametrize("kind", dict.fromkeys(map(type, ESTIMATORS.values())), ids=lambda kind: kind.__name__)
def test_an_estimator_that_is_not_fitted_is_refused_as_scikit_learn_does(kind, tmp_path):
    for way in OF_FITTED.keys() - (OF_REGRESSIONS if hasattr(kind, "predict_proba") else OF_CLASSES):
        with pytest.raises(exceptions.NotFittedError, match=f"{kind.__name__} is not fitted; .*: call fit") as caught:
            OF_FITTED[way](kind(), tmp_path / "new.npy")
        assert type(caught.value) is NotFittedError and isinstance(caught.value, DkrrError), way
    assert not [*tmp_path.iterdir()]


def test_errors_and_warnings_that_are_scikit_learns_travel_between_processes():
    assert issubclass(ConvergenceWarning, exceptions.ConvergenceWarning)
    for one in (ConvergenceWarning("slow"), NotFittedError("call fit")):
        again = pickle.loads(pickle.dumps(one))
        assert type(again) is type(one) and type(one).__module__ == "dkrr.errors" and str(again) == str(one)


@every_estimator
def test_a_fit_returns_the_estimator_and_leaves_its_arguments_alone(name):
    model, y = fresh(name)
    before, arguments = repr(model.get_params()), (X.copy(), y.copy(), WEIGHTS.copy())
    assert model.fit(*arguments[:2], sample_weight=arguments[2]) is model
    assert repr(model.get_params()) == before
    for given, expected in zip(arguments, (X, y, WEIGHTS), strict=True):
        assert_array_equal(given, expected)
    result, plan = model.solve_result_, model.plan_
    assert result.status.name in ("SOLVED", "CONVERGED") and 0 <= result.residual <= 1e-8
    assert (plan.problem.n, plan.problem.d, model.n_features_in_) == (N, 3, 3)
    assert plan.chosen.peak_bytes > 0 and result.seconds > 0 and result.stages
    assert "because" in str(plan) and result.status.name.lower() in str(result).lower()


@every_estimator
def test_predictions_of_lazy_rows_follow_their_chunks_and_stay_lazy(name, tmp_path):
    model, lazy = fitted(name), da.from_array(X_NEW, chunks=(4, 2))
    zarr.save_array(f"{tmp_path}/x.zarr", X_NEW)
    assert_same_answers(model, model, lazy, atol=1e-12)
    assert_same_answers(model, model, f"{tmp_path}/x.zarr", atol=1e-12)
    for method in ("predict", "predict_proba", "decision_function"):
        if hasattr(model, method):
            found, expected = getattr(model, method)(lazy), getattr(model, method)(X_NEW)
            assert isinstance(found, da.Array) and isinstance(expected, np.ndarray)
            assert found.shape == expected.shape and found.chunks[0] == (4, 4, 3)
            assert found.compute().dtype == found.dtype == expected.dtype
            assert found[3:9].compute().shape == expected[3:9].shape


@every_estimator
def test_a_saved_model_predicts_the_same_bits_and_can_be_fitted_again(name, tmp_path):
    model, y = fresh(name)
    dkrr.save(model.fit(X, y), tmp_path / "m.zarr")
    again = dkrr.load(tmp_path / "m.zarr")
    assert_same_answers(again, model)
    assert_array_equal(again.intercept_, model.intercept_)
    assert again.alpha == getattr(model, "alpha_", getattr(model, "alpha", None))
    assert_same_answers(clone(again).fit(X, y), model, atol=1e-6)


@every_estimator
def test_scores_count_the_weights_of_rows(name):
    model, y = fitted(name), fresh(name)[1]
    measure = accuracy_score if y is LABELS else r2_score
    if hasattr(model, "best_score_"):
        assert model.cv_results_["rank_test_score"][model.best_index_] == 1
    assert model.score(X, y, sample_weight=WEIGHTS) == pytest.approx(
        measure(y, model.predict(X), sample_weight=WEIGHTS), abs=1e-12
    )


@every_estimator
def test_one_number_is_the_weight_of_every_row(name):
    setting, halved = ("alphas", [0.05, 0.5]) if "search" in name else ("alpha", 0.05)
    twice, (half, y) = fresh(name)[0].fit(X, fresh(name)[1], sample_weight=2.0), fresh(name, **{setting: halved})
    assert_same_answers(twice, half.fit(X, y), atol=1e-6)


@pytest.mark.parametrize("estimator", [KernelRidge(), KernelLogisticRegression()], ids=["ridge", "logistic"])
def test_attributes_of_one_form_do_not_survive_the_next_fit(estimator):
    y = Y if isinstance(estimator, KernelRidge) else LABELS
    model = clone(estimator).set_params(form="primal").fit(X, y)
    assert hasattr(model, "coef_")
    model.set_params(kernel="rbf", form="dual").fit(X, y)
    assert hasattr(model, "dual_coef_") and not hasattr(model, "coef_")
