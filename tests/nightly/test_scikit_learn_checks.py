"""All of scikit-learn's checks, for each estimator as it is and for the ways to solve."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from dkrr import KernelLogisticRegression, KernelLogisticRegressionCV, KernelRidge, KernelRidgeCV


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
    ]
)
def test_scikit_learns_checks_pass(estimator, check):
    check(estimator)
