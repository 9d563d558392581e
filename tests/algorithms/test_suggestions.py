"""Suggestions of rows to measure next, against sums of variances that are computed anew after every choice."""

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import dkrr
from dkrr import KernelLogisticRegression, KernelRidge, KernelRidgeCV
from dkrr.errors import InputError, InputTypeError, MemoryLimitError, NotFiniteError
from dkrr.kernels import RBF, Laplacian, Linear, Polynomial

ALPHA, K = 0.2, 6
POLYNOMIAL = Polynomial(degree=2, gamma=0.5)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(3)
    X, weights = rng.normal(size=(53, 3)), rng.uniform(0.3, 3.0, 53)
    weights[[2, 40]] = 0.0
    return X, rng.normal(size=(53, 2)), weights, 1.5 * rng.normal(size=(41, 3))


def variances(kernel, X, weights, alpha, new, fit_intercept):
    """Variances of f at some rows, from the inverse of the matrix of all rows of positive weight."""
    X, weights = X[weights > 0], weights[weights > 0]
    inverse, k = np.linalg.inv(kernel(X) + alpha * np.diag(1 / weights)), kernel(X, new)
    found = kernel.diagonal(new) - np.einsum("ij,ij->j", k, inverse @ k)
    if fit_intercept:
        found = found + (1 - inverse.sum(axis=0) @ k) ** 2 / inverse.sum()
    return found


def naive_choice(kernel, X, weights, alpha, new, k, fit_intercept):
    """Every candidate is tried as a new training row in every round."""
    total = last = variances(kernel, X, weights, alpha, new, fit_intercept).sum()
    rows, gain = [], []
    for _ in range(k):
        sums = np.full(len(new), np.inf)
        for i in set(range(len(new))) - set(rows):
            with_row = np.vstack([X, new[i : i + 1]]), np.append(weights, 1.0)
            sums[i] = variances(kernel, *with_row, alpha, new, fit_intercept).sum()
        rows.append(int(np.argmin(sums)))
        gain.append((last - sums.min()) / total)
        X, weights, last = np.vstack([X, new[rows[-1:]]]), np.append(weights, 1.0), sums.min()
    return rows, gain


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize(
    ("kernel", "weighted", "settings"),
    [
        (RBF(gamma=0.3), True, {"uncertainty": True}),
        (RBF(gamma=0.3), False, {"solver": "cg"}),
        (Laplacian(gamma=0.4), True, {"tile": 16}),
        (POLYNOMIAL, False, {"form": "dual"}),
        (POLYNOMIAL, True, {"form": "primal"}),
        (Linear(), True, {"form": "primal", "uncertainty": True}),
    ],
    ids=str,
)
def test_choices_are_those_of_sums_computed_anew(data, kernel, weighted, settings, fit_intercept):
    X, y, weights, new = data
    model = KernelRidge(ALPHA, kernel=kernel, fit_intercept=fit_intercept, **settings)
    model.fit(X, y, sample_weight=weights if weighted else None)
    found = dkrr.suggest(model, new, K)
    rows, gain = naive_choice(kernel, X, weights if weighted else np.ones(53), ALPHA, new, K, fit_intercept)
    assert_array_equal(found.rows, rows)
    assert_allclose(found.gain, gain, rtol=1e-7)


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("reach", [0.9, 1.2, 2.5])  # in the box of the training rows, near it, and beyond
def test_choices_on_a_fourier_grid_are_those_of_the_kernel(reach, fit_intercept):
    pytest.importorskip("finufft")
    rng = np.random.default_rng(0)
    X, new, kernel = rng.uniform(-1, 1, size=(60, 2)), rng.uniform(-reach, reach, size=(30, 2)), RBF(gamma=1.0)
    model = KernelRidge(ALPHA, kernel=kernel, form="primal", fit_intercept=fit_intercept).fit(X, X[:, 0])
    assert model.plan_.chosen.features is not None
    found = dkrr.suggest(model, new, 4)
    rows, gain = naive_choice(kernel, X, np.ones(60), ALPHA, new, 4, fit_intercept)
    assert_array_equal(found.rows, rows)
    assert_allclose(found.gain, gain, rtol=1e-6)


# Where rows are


def containers(new, folder):
    """Rows in arrays, and in tables with names."""
    np.save(folder / "new.npy", new)
    zarr.create_array(folder / "new.zarr", data=new, chunks=(16, 3))
    pd.DataFrame(new, columns=list("abc")).to_parquet(folder / "new.parquet", row_group_size=20)
    arrays = str(folder / "new.npy"), str(folder / "new.zarr"), da.from_array(new, chunks=(13, 3)), sp.csr_array(new)
    frame = pd.DataFrame(new, columns=list("abc"))
    return arrays, (str(folder / "new.parquet"), frame, dkrr.open_table(folder / "new.parquet"))


@pytest.mark.parametrize("transformer", [None, make_pipeline(StandardScaler(with_mean=False))])
def test_rows_in_every_container_are_suggested_alike(data, transformer, tmp_path):
    X, y, _, new = data
    model = KernelRidge(ALPHA, kernel="rbf", transformer=transformer, uncertainty=True)
    expected = dkrr.suggest(model.fit(X, y), new, K, n_candidates=20, random_state=7)
    assert len(set(expected)) == K and expected.rows.max() < 41
    for training, several in zip((X, pd.DataFrame(X, columns=list("abc"))), containers(new, tmp_path), strict=True):
        model.fit(training, y)
        for rows in several:
            found = dkrr.suggest(model, rows, K, n_candidates=20, random_state=7)
            assert_array_equal(found.rows, expected.rows, err_msg=str(type(rows)))
            assert_allclose(found.gain, expected.gain, rtol=1e-8)


def test_candidates_are_drawn_by_the_seed_and_only_they_are_suggested(data):
    X, y, _, new = data
    model = KernelRidge(ALPHA, kernel="rbf").fit(X, y)
    one, again, other = (dkrr.suggest(model, new, 9, n_candidates=10, random_state=seed) for seed in (0, 0, 1))
    drawn = np.sort(np.random.default_rng(0).choice(41, 10, replace=False))
    assert_array_equal(one.rows, again.rows)
    assert set(one) <= set(drawn) and set(one) != set(other)
    part = dkrr.suggest(model, new[drawn], 9)
    assert_array_equal(one.rows, drawn[part.rows])


def test_a_suggestion_is_an_index(data):
    X, y, _, new = data
    found = dkrr.suggest(KernelRidge(ALPHA, kernel="rbf").fit(X, y), new, K)
    assert_array_equal(new[found], new[found.rows])
    assert_array_equal(pd.DataFrame(new).iloc[found], new[found.rows])
    assert_array_equal(sp.csr_array(new)[found].toarray(), new[found.rows])
    assert len(np.delete(new, found, axis=0)) == 41 - K
    assert repr(found).startswith("<Suggestion: 6 rows, 0.") and len(found) == K


# What has no gain


def test_copies_of_what_is_known_or_chosen_come_last(data):
    X, y, _, new = data
    rows = np.vstack([X[:5], new[:5], new[:5]])  # known, new, and each again
    found = dkrr.suggest(KernelRidge(1e-6, kernel="rbf").fit(X, y), rows, 15)
    assert set(found.rows[:5] % 5) == set(range(5)) and found.rows[:5].min() >= 5
    assert (found.gain[5:] < 1e-3 * found.gain[4]).all() and sorted(found) == list(range(15))


def test_without_noise_what_is_known_has_no_gain(data):
    X, y, _, new = data
    rows = np.vstack([X[:5], new[:5], new[:5]])
    found = dkrr.suggest(KernelRidge(0.0, kernel="laplacian").fit(X, y), rows, 15)
    assert set(found.rows[:5] % 5) == set(range(5)) and found.rows[:5].min() >= 5
    assert (found.gain[5:] == 0).all() and found.gain.sum() == pytest.approx(1.0)
    nothing = dkrr.suggest(KernelRidge(0.0, kernel="laplacian").fit(X, y), X[:4], 3)
    assert_array_equal(nothing.rows, [0, 1, 2])
    assert_array_equal(nothing.gain, 0.0)


# Models


def test_a_search_and_a_saved_model_suggest_as_the_model_does(data, tmp_path):
    X, y, weights, new = data
    search = KernelRidgeCV([ALPHA], kernel="rbf", uncertainty=True).fit(X, y, sample_weight=weights)
    expected = dkrr.suggest(KernelRidge(ALPHA, kernel="rbf").fit(X, y, sample_weight=weights), new, K)
    dkrr.save(search, tmp_path / "m.zarr", uncertainty=True)
    for model in (search, dkrr.load(tmp_path / "m.zarr")):
        found = dkrr.suggest(model, new, K)
        assert_array_equal(found.rows, expected.rows)
        assert_allclose(found.gain, expected.gain, rtol=1e-9)


def test_the_factor_is_made_once(data, monkeypatch):
    X, y, _, new = data
    model = KernelRidge(ALPHA, kernel="rbf").fit(X, y)
    dkrr.suggest(model, new, 2, memory_limit="20GiB")
    monkeypatch.setattr("dkrr.fitting.posterior_cholesky.FactoredGram", None)
    dkrr.suggest(model, new, 2)
    model.predict(new, return_std=True)


def test_what_cannot_be_suggested_is_refused_with_the_remedy(data, tmp_path):
    X, y, _, new = data
    model = KernelRidge(ALPHA, kernel="rbf").fit(X, y)
    with pytest.raises(InputError, match=r"k is 42, and X has 41 rows; expected at most 41 rows"):
        dkrr.suggest(model, new, 42)
    with pytest.raises(InputError, match=r"k is 11, and n_candidates is 10; expected at most 10 rows"):
        dkrr.suggest(model, new, 11, n_candidates=10)
    with pytest.raises(InputError, match="X has 2 features, but KernelRidge is expecting 3"):
        dkrr.suggest(model, new[:, :2], 1)
    bad = new.copy()
    bad[17, 1] = np.nan
    with pytest.raises(InputError, match=r"NaN.*row 17, column 1"):
        dkrr.suggest(model, bad, 1)
    with pytest.raises(InputTypeError, match="model is 3; expected a fitted regression"):
        dkrr.suggest(3, new, 1)
    with pytest.raises(InputError, match="KernelLogisticRegression, which has no variances"):
        dkrr.suggest(KernelLogisticRegression().fit(X, y[:, 0] > 0), new, 1)
    with pytest.raises(InputError, match="2 values of alpha, 0.1 to 2, .*fit those of one alpha in a separate model"):
        dkrr.suggest(KernelRidge([0.1, 2.0], kernel="rbf").fit(X, y), new, 1)
    with pytest.raises(InputError, match="kernel of model is 'precomputed'"):
        dkrr.suggest(KernelRidge(kernel="precomputed").fit(X @ X.T, y), new @ X.T, 1)
    dkrr.save(model, tmp_path / "m.zarr")
    with pytest.raises(InputError, match="saved without its targets.*uncertainty=True"):
        dkrr.suggest(dkrr.load(tmp_path / "m.zarr"), new, 1)
    with pytest.raises(NotFiniteError, match="expected a larger alpha"):
        dkrr.suggest(KernelRidge(60.0, kernel="sigmoid", gamma=0.01, coef0=-9.0).fit(X, y), new, 1)


def test_memory_is_refused_before_work_with_the_numbers(data, monkeypatch):
    X, y, _, _ = data
    model = KernelRidge(ALPHA, kernel="rbf", memory_limit="2.5GiB").fit(X, y)
    monkeypatch.setattr("dkrr.fitting.posteriors.Posteriors.factored", None)
    many = np.zeros((20_000, 3))
    words = r"20,000 × 53 numbers are 8.09 MiB, and 20,000 × 20,000 are 2.98 GiB.*at most [\d,]+ candidates"
    with pytest.raises(MemoryLimitError, match=words):
        dkrr.suggest(model, many, 5, n_candidates=20_000)
    with pytest.raises(MemoryLimitError, match=r"memory_limit \(--memory-limit\) leaves"):
        dkrr.suggest(model, many, 20_000, n_candidates=20_000)


def test_progress_says_what_is_done(data, caplog):
    X, y, _, new = data
    with caplog.at_level("INFO", "dkrr"):
        dkrr.suggest(KernelRidge(ALPHA, kernel="rbf", uncertainty=True).fit(X, y), new, K, progress=True)
    assert "suggestions, 41 candidates" in caplog.text
