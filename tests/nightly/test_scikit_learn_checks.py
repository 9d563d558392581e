"""All of scikit-learn's checks, for each estimator as it is and for the ways to solve."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from dkrr import KernelLogisticRegression, KernelLogisticRegressionCV, KernelRidge, KernelRidgeCV


def of_partial_fit(estimator):
    """Checks that call `partial_fit`, which keeps sums in memory and so refuses `tile`."""
    names = ("estimators_partial_fit_n_features", "n_features_in_after_fitting", "fit_score_takes_y")
    is_refused = isinstance(estimator, KernelRidge) and estimator.tile is not None
    return {f"check_{name}": "partial_fit refuses tile" for name in names} if is_refused else {}


@parametrize_with_checks(
    [
        KernelRidge(),
        KernelRidge(kernel="rbf", tile=40, fit_intercept=True),
        KernelRidge(form="primal", tile=5, fit_intercept=True),
        KernelRidgeCV(cv=3),
        KernelRidgeCV(cv="loo"),
        KernelRidgeCV(kernel="linear", cv=3),
        KernelLogisticRegression(),
        KernelLogisticRegression(kernel="rbf", form="dual", one_vs_rest=True, solver="cg"),
        KernelLogisticRegressionCV([0.1, 1.0], cv=2),
    ],
    expected_failed_checks=of_partial_fit,
)
def test_scikit_learns_checks_pass(estimator, check):
    check(estimator)
