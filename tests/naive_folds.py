"""One fit after another: what a selection has to find."""

import numpy as np
from sklearn.metrics import log_loss

from dkrr import KernelLogisticRegression, KernelRidge
from dkrr.kernels import Linear
from tests import precise


def naive_predictions(X, Y, folds, alpha, weights=None, **settings):
    """Held-out predictions of every fold by a fit of its own, of shape (k, t) each; folds are pairs of row numbers."""
    found = []
    for train, test in folds:
        w = None if weights is None else weights[train]
        model = KernelRidge(alpha=alpha, solver="cholesky", **settings).fit(X[train], Y[train], sample_weight=w)
        found.append(model.predict(X[test]))
    return found


def naive_scores(X, Y, folds, alphas, weights=None, **settings):
    """Negative weighted mean squared errors, of shape (n_alphas, n_folds)."""
    scores = np.empty((len(alphas), len(folds)))
    for a, alpha in enumerate(alphas):
        predictions = naive_predictions(X, Y, folds, alpha, weights, **settings)
        for k, ((_, test), values) in enumerate(zip(folds, predictions, strict=True)):
            squares = (Y[test] - values).reshape(len(test), -1) ** 2
            scores[a, k] = -np.average(squares.mean(axis=1), weights=None if weights is None else weights[test])
    return scores


def scores_of(search):
    """Scores of every λ and fold of a search."""
    return np.stack([search.cv_results_[f"split{k}_test_score"] for k in range(search.n_splits_)], axis=1)


def naive_class_scores(X, labels, folds, weights=None, **settings):
    """Negative mean losses of the rows that every fold holds out, by a fit of classes of its own."""
    found = []
    for train, test in folds:
        w = (None, None) if weights is None else (weights[train], weights[test])
        model = KernelLogisticRegression(**settings).fit(X[train], labels[train], sample_weight=w[0])
        found.append(-log_loss(labels[test], model.predict_proba(X[test]), sample_weight=w[1]))
    return found


def exact_errors(X, y, folds, alpha, weights=None, *, fit_intercept=False):
    """Held-out errors of every fold by a linear model in 180 digits, of the shape of y[test] each."""
    found = []
    for train, test in folds:
        w = None if weights is None else weights[train]
        settings = {"sample_weight": w, "fit_intercept": fit_intercept, "X_new": X[test]}
        predictions = precise.ridge(Linear(), X[train], y[train], alpha, **settings).predictions
        found.append(y[test] - predictions.reshape(y[test].shape))
    return found


def leave_one_out(n):
    """Pairs of row numbers."""
    rows = np.arange(n)
    return [(np.delete(rows, i), rows[i : i + 1]) for i in rows]
