"""Bad input gets a clear error before work starts, and nothing computed is lost."""

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
import zarr

import dkrr
from dkrr import KernelRidge
from dkrr.errors import (
    DiskSpaceError,
    InputError,
    InputTypeError,
    MemoryLimitError,
    NotPositiveDefiniteError,
    StoreError,
)
from dkrr.kernels import RBF
from dkrr.tiles.store import WORDS


@pytest.mark.parametrize(("bad", "word"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")])
@pytest.mark.parametrize("kind", ["ndarray", "csr", "dask", "zarr"])
@pytest.mark.parametrize("tile", [None, 48])
def test_first_bad_value_of_X_is_named(data, tmp_path, kind, bad, word, tile):
    X = data.X.copy()
    X[150, 3] = X[201, 0] = bad
    wrapped = {
        "ndarray": lambda: X,
        "csr": lambda: sp.csr_array(X),
        "dask": lambda: da.from_array(X, chunks=(20, 2)),
        "zarr": lambda: _zarr(tmp_path, X),
    }[kind]()
    with pytest.raises(InputError, match=f"X contains {word}.*row 150, column 3"):
        KernelRidge(kernel="rbf", tile=tile).fit(wrapped, data.y)


def _zarr(folder, X):
    zarr.save_array(str(folder / "x.zarr"), X)
    return str(folder / "x.zarr")


def test_first_bad_value_of_y_is_named(data):
    y = data.y.copy()
    y[7, 2] = np.nan
    with pytest.raises(InputError, match="y contains NaN.*row 7, column 2"):
        KernelRidge().fit(data.X, y)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alpha": -1.0}, "alpha.*>= 0"),
        ({"alpha": [1.0, 2.0]}, r"alpha has shape \(2,\).*\(3,\)"),
        ({"alpha": np.nan}, "alpha.*finite"),
        ({"alpha": "much"}, "alpha is 'much'; expected a number"),
        ({"kernel": "rbff"}, "rbff.*linear"),
        ({"kernel": "rbf", "gamma": 0.0}, "gamma"),
        ({"kernel": "rbf", "gamma": -1.0}, "gamma"),
        ({"kernel": RBF(), "gamma": 1.0}, "gamma"),
        ({"solver": "qr"}, "solver is 'qr'; expected.*cholesky"),
        ({"form": "both"}, "form is 'both'; expected.*primal"),
        ({"kernel": "rbf", "form": "primal"}, "finite feature map"),
        ({"tile": 0}, "tile is 0; expected"),
        ({"tile": 2.5}, "tile is 2.5; expected"),
        ({"memory_limit": "lots"}, "memory_limit is 'lots'.*4GiB"),
        ({"memory_limit": -5}, "memory_limit is -5"),
    ],
)
def test_bad_settings(data, change, message):
    with pytest.raises(InputError, match=message):
        KernelRidge(**change).fit(data.X, data.y)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (da.zeros((0, 3)), "empty"),
        (da.zeros((211, 0)), "empty"),
        (da.zeros((211, 2, 2)), "dimensions"),
        (da.zeros((211, 2), dtype=complex), "complex"),
        (da.from_array(np.full((211, 2), "a")), "numbers"),
        ("nowhere/x.zarr", "does not exist"),
    ],
)
def test_bad_lazy_X(data, X, message):
    with pytest.raises(InputError, match=message):
        KernelRidge().fit(X, data.y)


def test_bad_local_X(data):
    with pytest.raises(ValueError, match="(?i)complex"):
        KernelRidge().fit(data.X.astype(complex), data.y)
    with pytest.raises(ValueError):
        KernelRidge().fit(data.X.astype(str).astype(object) + "a", data.y)
    with pytest.raises(ValueError, match="0 sample"):
        KernelRidge().fit(data.X[:0], data.y[:0])
    with pytest.raises(InputTypeError, match="numbers"):
        KernelRidge().fit(da.from_array(data.X), np.full(211, "a"))


def test_lengths_that_differ(data):
    with pytest.raises(ValueError, match="211.*210"):
        KernelRidge().fit(data.X, data.y[:210])
    with pytest.raises(InputError, match="211 rows and y 210"):
        KernelRidge().fit(da.from_array(data.X), data.y[:210])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(3), r"shape \(3,\)"),
        (-np.ones(211), "row 0"),
        (np.zeros(211), "zero everywhere"),
        (np.full(211, np.nan), "finite"),
    ],
)
def test_bad_weights(data, weights, message):
    with pytest.raises(InputError, match=message):
        KernelRidge().fit(data.X, data.y, sample_weight=weights)


def test_precomputed_must_be_square_and_symmetric(data):
    with pytest.raises(InputError, match="square"):
        KernelRidge(kernel="precomputed").fit(data.X, data.y)
    K = RBF(gamma=1.0)(data.X)
    K[100, 20] += 1e-3
    for tile in (None, 48):
        with pytest.raises(InputError, match="symmetric"):
            KernelRidge(kernel="precomputed", tile=tile).fit(K, data.y)


@pytest.mark.parametrize("tile", [None, 48])
def test_singular_matrix_names_lambda_the_row_and_a_remedy(data, tile):
    X = data.X.copy()
    X[137] = X[60]  # the later of two equal rows is where the factorisation fails
    with pytest.raises(NotPositiveDefiniteError, match=r"alpha = 0.*row 137.*duplicate rows.*alpha > 0") as caught:
        KernelRidge(alpha=0.0, kernel="rbf", gamma=3.0, tile=tile).fit(X, data.y)
    assert caught.value.row == 137


@pytest.mark.parametrize("tile", [None, 48])
def test_indefinite_kernel_is_found_in_the_factorisation(data, tile):
    K = -np.eye(211)
    K[:100, :100] = np.eye(100)
    with pytest.raises(NotPositiveDefiniteError, match=r"alpha = 0.5.*row 100 .*increase alpha") as caught:
        KernelRidge(alpha=0.5, kernel="precomputed", tile=tile).fit(K, data.y)
    assert caught.value.row == 100


def test_least_squares_with_dependent_columns_names_the_feature(data):
    X = np.column_stack([data.X, data.X[:, 1]])
    with pytest.raises(NotPositiveDefiniteError, match="feature 5.*dependent columns"):
        KernelRidge(alpha=0.0).fit(X, data.y)


def test_least_squares_says_which_form_is_impossible(data):
    wide = np.random.default_rng(0).normal(size=(20, 60))
    model = KernelRidge(alpha=0.0, kernel="linear").fit(wide, np.arange(20.0))
    assert model.plan_.form == "dual" and "rank" in str(model.plan_)


def test_memory_limit_that_cannot_be_met_names_one_that_can(data):
    with pytest.raises(MemoryLimitError, match=r"smallest memory_limit that suffices is .* \((\d+) bytes\)") as caught:
        KernelRidge(kernel="rbf", memory_limit="10MiB").fit(data.X, data.y)
    assert "Nothing was computed" in str(caught.value)
    enough = int(str(caught.value).split(" bytes)")[0].rsplit("(", 1)[1])
    plan = dkrr.plan(n=211, d=5, kernel="rbf", memory_limit=enough)
    assert plan.peak_bytes <= enough


def test_disk_that_is_too_small_is_refused(data, tmp_path, monkeypatch):
    monkeypatch.setattr("dkrr.machine.detection.free_bytes", lambda url: 10_000)
    with pytest.raises(DiskSpaceError, match=r"9\.77 KiB are free.*Nothing was computed"):
        KernelRidge(kernel="rbf", store=str(tmp_path / "run.zarr")).fit(data.X, data.y)
    assert not (tmp_path / "run.zarr").exists()


def test_store_that_is_something_else_is_left_alone(data, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match="not the store of a dkrr run"):
        KernelRidge(kernel="rbf", store=str(tmp_path)).fit(data.X, data.y)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreError, match="not the store of a dkrr run"):
        KernelRidge(kernel="rbf", store=str(tmp_path / "file")).fit(data.X, data.y)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ("X", "X"),
        ("y", "y"),
        ("weights", "sample_weight"),
        ("alpha", "alpha"),
        ("gamma", "kernel"),
        ("icpt", "fit_intercept"),
    ],
)
def test_store_of_another_problem_is_refused(data, tmp_path, change, field):
    store = str(tmp_path / "run.zarr")
    settings = {"alpha": 0.5, "kernel": "rbf", "gamma": 0.3, "tile": 100, "store": store}
    first = KernelRidge(**settings).fit(data.X, data.y, sample_weight=data.weights)
    X, y, weights = data.X.copy(), data.y.copy(), data.weights.copy()
    if change == "X":
        X[0, 0] += 1
    elif change == "y":
        y[0, 0] += 1
    elif change == "weights":
        weights[1] += 1
    else:
        settings |= {"alpha": {"alpha": 0.6}, "gamma": {"gamma": 0.4}, "icpt": {"fit_intercept": True}}[change]
    with pytest.raises(StoreError, match=f"another problem.*{WORDS.get(field, field)}"):
        KernelRidge(**settings).fit(X, y, sample_weight=weights)
    settings = {"alpha": 0.5, "kernel": "rbf", "gamma": 0.3, "store": store}
    again = KernelRidge(**settings).fit(data.X, data.y, sample_weight=data.weights)
    assert np.array_equal(again.dual_coef_, first.dual_coef_)


def test_predict_refuses_other_columns_and_an_unfitted_model(data):
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        KernelRidge().predict(data.X)
    model = KernelRidge(kernel="rbf").fit(data.X, data.y)
    with pytest.raises(ValueError, match="4 features.*5 features"):
        model.predict(data.X[:, :4])
    with pytest.raises(InputError, match="4 features.*5 features"):
        model.predict(da.from_array(data.X[:, :4]))
    X = data.X_new.copy()
    X[3, 1] = np.nan
    with pytest.raises(InputError, match="NaN.*row 3, column 1"):
        model.predict(X)


def test_another_kernel_function_of_the_same_source_is_another_problem(data, tmp_path):
    def make(scale):
        return lambda X, Z: np.exp(-scale * ((X[:, None] - Z[None]) ** 2).sum(axis=2))

    settings = {"tile": 100, "store": str(tmp_path / "run.zarr")}
    KernelRidge(kernel=make(1.0), **settings).fit(data.X, data.y)
    KernelRidge(kernel=make(1.0), **settings).fit(data.X, data.y)
    with pytest.raises(StoreError, match="another problem.*kernel"):
        KernelRidge(kernel=make(2.0), **settings).fit(data.X, data.y)


def test_least_squares_counts_only_rows_with_a_weight():
    rng = np.random.default_rng(0)
    X, y, weights = rng.normal(size=(10, 6)), rng.normal(size=10), np.repeat([0.0, 1.0], 5)
    model = KernelRidge(alpha=0.0).fit(X, y, sample_weight=weights)
    assert model.plan_.form == "dual"
    assert np.allclose(model.predict(X)[5:], y[5:])


def test_nothing_is_left_of_a_copy_that_was_refused(data, tmp_path):
    X = data.X.copy()
    X[5, 1] = np.nan
    with pytest.raises(InputError, match="row 5"):
        KernelRidge(kernel="rbf", tile=60, store=str(tmp_path / "run.zarr")).fit(da.from_array(X, chunks=50), data.y)
    assert [p.name for p in (tmp_path / "run.zarr").iterdir()] == ["zarr.json"]


def test_rounding_beside_the_largest_entry_is_no_asymmetry(data):
    K = 100.0 * np.eye(211)
    K[150, 3] = 1e-17
    for tile in (None, 48):
        KernelRidge(kernel="precomputed", tile=tile).fit(K, data.y)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gamma": 0.1}, "gamma is 0.1, which the kernel 'linear' does not have; expected gamma=None, or one of"),
        ({"kernel": "rbf", "degree": 2}, "degree is 2, which the kernel 'rbf' does not have; expected degree=3"),
        ({"kernel": "rbf", "coef0": 0.0}, "coef0 is 0.0, which the kernel 'rbf' does not have; expected coef0=1"),
        ({"kernel": np.dot, "gamma": 0.1}, "gamma is 0.1, which the kernel .*: give kernel_params"),
    ],
)
def test_a_parameter_that_the_kernel_does_not_have(data, given, message):
    with pytest.raises(InputError, match=message):
        KernelRidge(**given).fit(data.X, data.y)
