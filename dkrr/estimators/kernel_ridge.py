"""Kernel ridge regression with scikit-learn's interface."""

from dataclasses import dataclass
from typing import Any, Self

from dkrr.checks import checked_alphas
from dkrr.estimators.ridge import RidgeRegressor, as_columns
from dkrr.fitting import fit
from dkrr.fitting.requests import FitRequest, Targets


@dataclass(eq=False, repr=False)
class KernelRidge(RidgeRegressor):
    """Exact kernel ridge regression, in memory, out of core or on a Dask cluster.

    Minimises Σᵢ wᵢ (yᵢ − f(xᵢ))² + λ ‖f‖² over the functions of the kernel's space (plus a free constant with
    `fit_intercept`). A planner chooses the primal form (ΦᵀWΦ + λI) w = ΦᵀWy or the dual form (K + λW⁻¹) α = y, where
    the work is done, and in which tiles; `plan_` says why.

    Parameters
    ----------
    alpha : float or array-like of shape (n_targets,), default=1.0
        λ ≥ 0, the regularisation strength; 0 is kernel least squares.
    kernel : str, Kernel, FeatureMap or callable, default="linear"
        A name as in scikit-learn ("linear", "polynomial", "rbf", "laplacian", "matern", "cosine", "sigmoid", "chi2",
        "additive_chi2", "precomputed"), a value of dkrr.kernels, or a function of two blocks of rows
        (X, Y) → array of shape (len(X), len(Y)). A value of dkrr.features selects the model of that feature map: your
        own (CallableMap), or an approximation such as RandomFourier(RBF(), 2000) or Nystroem(RBF(), 2000); without one
        of these the model is exact.
    gamma : float, optional
        γ > 0, for named kernels that have this parameter; None means 1 / n_features (1 for "chi2").
    degree : float, default=3
        Degree of the polynomial kernel.
    coef0 : float, default=1
        Constant of the polynomial and sigmoid kernels.
    kernel_params : dict, optional
        Keyword arguments of a kernel function, or further parameters of a named kernel.
    fit_intercept : bool, default=False
        Whether to fit a constant that is not penalised.
    form : {"auto", "primal", "dual"}, default="auto"
        Unknowns of the linear systems: "primal" one weight for each feature (kernels with a finite feature map), "dual"
        one coefficient for each training row, "auto" the form that is projected to be faster within the limits.
    solver : {"auto", "cholesky", "cg"}, Cholesky or ConjugateGradient, default="auto"
        A Cholesky factorisation in float64 or preconditioned conjugate gradient; settings are values of dkrr.solvers.
        "auto" factors in float32 where λ allows it and refines in float64 to the level of rounding, and takes conjugate
        gradient if that is projected to be at least three times as fast as a factorisation.
    tol : float, default=1e-8
        Largest true relative residual ‖b − (A + λI) x‖ / ‖b‖ of conjugate gradient, for every target. Cholesky reaches
        the level of rounding whatever the value.
    memory_limit : int or str, optional
        Bytes, or text such as "4GiB", for this fit over all workers of one machine (the calling process is not
        counted), or for the calling process if the work is done there. None: what the workers report, or 0.8 of the
        available memory.
    tile : int, optional
        Number of rows in a tile of the matrix; None: the planner chooses. With a number the fit always uses tiles.
    store : str, optional
        Path or URL of the run's Zarr store. It is kept, and the same call resumes from it. None: a temporary store, or
        no store if the work fits in memory.
    progress : bool, optional
        None shows progress on a terminal or in a notebook if the fit takes more than about two seconds; True always
        shows it, also in a log file; False never.
    transformer : "standardize" or transformer of scikit-learn, optional
        What X passes through before the kernel, part of the model and of what `dkrr.save` writes: StandardScaler on all
        columns, or any transformer of X alone (ColumnTransformer, Pipeline of transformers, OneHotEncoder, ...). A copy
        of it is fitted to the training rows, each counted once whatever its weight: in one call if they are in memory,
        else block by block (StandardScaler and others with `partial_fit`, categories, means; a pass for every step of
        a Pipeline), or with the columns that it needs in memory. Rows are transformed a block at a time.

    Attributes
    ----------
    dual_coef_ : ndarray of shape (n_samples,) or (n_samples, n_targets)
        α. Unavailable after a primal fit with λ = 0, which does not determine it. If `solve_result_.condition` is high,
        rounding may leave few correct digits although predictions are accurate; a message of `solve_result_` says so.
    coef_ : ndarray of shape (D,) or (D, n_targets)
        w, the weights of the D features. Available only if the model predicts in primal form; rounding affects it as it
        does `dual_coef_`.
    intercept_ : float or ndarray of shape (n_targets,)
        Constant that is added to predictions; 0 without `fit_intercept`.
    norm_ : float or ndarray of shape (n_targets,)
        ‖f‖ in the kernel's space, without the intercept: ‖w‖ = √(αᵀKα). Rounding in K hides values of αᵀKα below about
        ε √n Σ Kᵢᵢ αᵢ²; such a norm is given as 0, and a message of `solve_result_` says how large it may be.
    X_fit_ : ndarray, scipy.sparse array, or as given to fit
        Training rows, or the Gram matrix if kernel == "precomputed". Unavailable on loaded models, as are `norm_`,
        `plan_` and `solve_result_`.
    n_features_in_ : int
        Number of columns of the training rows, in front of the transformer (of the encoded rows if the kernel takes
        documents or other objects).
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns; set only if X is a table and all its column names are strings.
    log_marginal_likelihood_ : float or ndarray of shape (n_targets,)
        Logarithm of the marginal likelihood of the Gaussian process with covariance s² k and noise s² λ / wᵢ, where s²
        makes it largest; the restricted likelihood with `fit_intercept`. Computed when asked for, from a factor that
        `predict(X, return_std=True)` and `loo_residuals_` share, or
        estimated by conjugate gradient where a factor is not affordable or solver is "cg".
    log_marginal_likelihood_std_ : float or ndarray of shape (n_targets,)
        Standard error of that estimate; 0.0 where the likelihood is exact.
    loo_residuals_ : ndarray of shape (n_samples,) or (n_samples, n_targets)
        y − f₋ᵢ(xᵢ) of every row by the model without it, to find outliers and wrong targets; computed when asked for.
        Refused with a kernel that learns from the training rows (Nystroem, a bag of words).
    transformer_ : transformer
        The fitted copy of `transformer`; only with one. `X_fit_` and `coef_` are of the columns that it makes.
    plan_ : Plan
        What was chosen, and the reasons; print it.
    uncertainty_plan_ : UncertaintyPlan
        Whether the last standard deviations or likelihood came from a factor, and why; after the first of these.
    solve_result_ : SolveResult
        Status, true residual (`residual`), iterations of conjugate gradient, estimated condition number, messages,
        seconds, bytes and peak memory.

    References
    ----------
    C. Saunders, A. Gammerman, V. Vovk, "Ridge regression learning algorithm in dual variables", ICML 1998.
    K. P. Murphy, "Machine Learning: A Probabilistic Perspective", MIT Press 2012, chapter 14.4.3.

    Examples
    --------
    >>> import numpy as np
    >>> from dkrr import KernelRidge
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(10, 5)), rng.normal(size=10)
    >>> model = KernelRidge(alpha=1.0, kernel="rbf").fit(X, y)
    >>> model.plan_.form, model.dual_coef_.shape
    ('dual', (10,))
    """

    alpha: Any = 1.0

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : ndarray, scipy.sparse matrix, table, Dask array, Zarr array, or path, of shape (n_samples, n_features)
            Training rows; the Gram matrix (n_samples, n_samples) if kernel == "precomputed"; documents, graphs, a table
            or other objects if the kernel takes these.
        y : ndarray, table, Dask or Zarr array, path, or column of X, of shape (n_samples,) or (n_samples, n_targets)
            Targets; with a table as X also names of its columns, which are then not part of X. A .npy file of float64
            in C order, given by its path, is not read into memory, and other arrays that are lazy or stored are copied
            to a temporary file if they exceed 64 MiB. In primal form `dual_coef_` is then in a temporary file too,
            mapped into memory; in dual form wherever the plan has batches of targets.
        sample_weight : float, array-like of shape (n_samples,), or column of X, optional
            wᵢ ≥ 0, not all 0; None: 1 for every row.

        Returns
        -------
        KernelRidge
            The fitted estimator.

        Raises
        ------
        InputError
            If an argument cannot be used; the message says what was expected.
        PlanError
            If no plan stays within the memory limit or the disk.
        NotPositiveDefiniteError
            If the matrix is not positive definite; the message names λ and the row.
        NotFiniteError
            If the solution is outside the range of float64.
        StoreError
            If the store is damaged or belongs to another problem.
        """
        X, settings, rows, y, weights = self._checked_targets(X, y, sample_weight)
        values = as_columns(y)
        targets = Targets(values, checked_alphas(self.alpha, values.shape[1]))
        request = FitRequest(settings, rows, targets, weights)
        self._take_fit(fit(request, self.progress), request, X, is_vector=y.ndim == 1)
        return self
