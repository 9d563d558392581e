"""Save, load, predict for every kind of model; damaged and foreign files; no code from a file."""

import json
import pickle
import shutil
from dataclasses import dataclass

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

import dkrr
from dkrr import KernelRidge
from dkrr.errors import InputError, NotFittedError, StoreError
from dkrr.features import FeatureMap
from dkrr.kernels import RBF, CallableKernel, Linear, Matern, Polynomial
from dkrr.kernels.interactions import InteractionMap
from dkrr.store.description import FORMAT_VERSION
from tests.pairs import every_pair


def difference(X, Z):
    return np.exp(-((X[:, None, :] - Z[None, :, :]) ** 2).sum(axis=2))


@dataclass(frozen=True)
class Columnwise(FeatureMap):
    factor: float

    def dimension(self, n_features):
        return n_features

    def _fill(self, X, start, stop, out):
        out[...] = self.factor * X[:, start:stop]


class Undescribed(FeatureMap):
    """Not a dataclass."""


def saved(data, path, **settings):
    """A fitted model that was saved at a path."""
    model = KernelRidge(**{"kernel": "rbf"} | settings).fit(data.X, data.y)
    dkrr.save(model, path)
    return model


@pytest.fixture(scope="module")
def kept(data, tmp_path_factory):
    """Folder of a saved model, of which tests take copies."""
    path = tmp_path_factory.mktemp("model") / "m.zarr"
    saved(data, path)
    return path


@pytest.fixture
def path(kept, tmp_path):
    """A saved model that the test may change."""
    return shutil.copytree(kept, tmp_path / "m.zarr")


@pytest.mark.parametrize(
    "settings",
    [
        {"kernel": "rbf", "gamma": 0.3},
        {"kernel": "linear"},
        {"kernel": Polynomial(degree=2), "fit_intercept": True},
        {"kernel": RBF(gamma=0.1) + 2.0 * Matern(nu=0.5) * Linear()},
        {"kernel": "laplacian", "alpha": [0.1, 0.2, 0.3]},
        {"kernel": "polynomial", "degree": 2, "coef0": 0.5, "alpha": [np.int64(1), np.float32(2), 3]},
    ],
    ids=str,
)
@pytest.mark.parametrize("one_target", [False, True])
def test_a_loaded_model_predicts_the_same_bits_and_can_be_fitted_and_cloned(data, tmp_path, settings, one_target):
    y = data.y
    if one_target:
        settings, y = {**settings, "alpha": 0.3}, data.y[:, 0]
    model = KernelRidge(**settings).fit(data.X, y, sample_weight=data.weights)
    dkrr.save(model, tmp_path / "m.zarr")
    (tmp_path / "link.zarr").symlink_to(tmp_path / "m.zarr")  # where the model itself is, the user says
    again = dkrr.load(tmp_path / "link.zarr")
    expected = model.predict(data.X_new)
    assert_array_equal(again.predict(data.X_new), expected)
    assert_array_equal(again.dual_coef_, model.dual_coef_)
    assert_array_equal(again.intercept_, model.intercept_)
    assert again.n_features_in_ == 5
    assert_allclose(again.predict(da.from_array(data.X_new)).compute(), expected)
    for one in (again, clone(again)):
        refit = one.fit(data.X, y, sample_weight=data.weights)
        assert_allclose(refit.predict(data.X_new), expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("tile", [None, 60])
@pytest.mark.parametrize("kind", ["csr", "dask", "precomputed"])
def test_a_model_of_any_rows_is_saved(data, tmp_path, kind, tile):
    X = np.where(np.abs(data.X) > 1, data.X, 0.0)
    rows = {"csr": sp.csr_array(X), "dask": da.from_array(X, chunks=50), "precomputed": RBF(gamma=1.0)(X)}[kind]
    new = {"csr": sp.csr_array(X[:9]), "dask": X[:9], "precomputed": RBF(gamma=1.0)(X[:9], X)}[kind]
    model = KernelRidge(kernel="precomputed" if kind == "precomputed" else "rbf", tile=tile).fit(rows, data.y)
    dkrr.save(model, tmp_path / "m.zarr")
    assert_allclose(dkrr.load(tmp_path / "m.zarr").predict(new), model.predict(new), rtol=0, atol=1e-12)


def test_rows_too_large_for_memory_are_read_at_prediction(data, tmp_path, monkeypatch):
    monkeypatch.setattr("dkrr.estimators.saving.IN_MEMORY_BYTES", 10)
    model = saved(data, tmp_path / "m.zarr")
    again = dkrr.load(tmp_path / "m.zarr")
    assert again._model.rows.is_shared
    assert_allclose(again.predict(data.X_new), model.predict(data.X_new), rtol=0, atol=1e-13)


GIVEN = {
    "function": (
        difference,
        (difference, CallableKernel(difference), RBF() + CallableKernel(difference)),
        [(None, "given again.*kernel="), *((k, "expected '.*difference'") for k in (RBF(), RBF() + Linear()))],
    ),
    "map": (
        Columnwise(2.0),
        (Columnwise, Columnwise(2.0)),
        [(wrong, "Columnwise|kernel=") for wrong in (Undescribed, dict, difference, RBF(), InteractionMap())],
    ),
}


def test_a_damaged_model_is_to_be_saved_or_fitted_again(tmp_path, monkeypatch):
    path, X = tmp_path / "m.zarr", np.eye(3)
    dkrr.save(dkrr.KernelRidge(kernel="rbf").fit(X, [1.0, 2.0, 3.0]), path)
    with monkeypatch.context() as patch:
        patch.setattr("dkrr.estimators.saving.IN_MEMORY_BYTES", 0)
        reads = dkrr.load(path)
    chunk = path / "rows" / "c.0.0"
    chunk.write_bytes(b"x" + chunk.read_bytes()[1:])
    with pytest.raises(
        StoreError, match="the model .* c.0.0 of .*checksum.* Save the model again, .*, or fit it again$"
    ):
        dkrr.load(path)
    with pytest.raises(StoreError, match="c.0.0 .*checksum.*; a model is to be saved again"):
        reads.predict(X)


@pytest.mark.parametrize(("kernel", "right", "wrong"), GIVEN.values(), ids=GIVEN)
def test_a_kernel_of_the_user_must_be_given_again_and_another_one_is_not_damage(data, tmp_path, kernel, right, wrong):
    model = saved(data, tmp_path / "m.zarr", kernel=kernel)
    for given, match in wrong:
        with pytest.raises(InputError, match=match):
            dkrr.load(tmp_path / "m.zarr", kernel=given)
    for given in right:
        assert_array_equal(dkrr.load(tmp_path / "m.zarr", kernel=given).predict(data.X_new), model.predict(data.X_new))


def test_nothing_is_pickled(path):
    assert not [file for file in path.rglob("*") if file.is_file() and file.read_bytes().startswith(b"\x80\x04")]
    description = json.loads((path / "zarr.json").read_text())["attributes"]["dkrr"]
    assert description["kind"] == "model" and description["format"] == FORMAT_VERSION
    assert {"dkrr", "numpy", "zarr", "python"} <= set(description["versions"])


def test_what_is_not_a_model_is_refused(data, tmp_path):
    with pytest.raises(NotFittedError, match="not fitted"):
        dkrr.save(KernelRidge(), tmp_path / "m.zarr")
    (tmp_path / "text").write_text("hello")
    KernelRidge(kernel="rbf", store=str(tmp_path / "run.zarr")).fit(data.X, data.y)
    words = {"m.zarr": "does not exist", "text": "cannot read|not a Zarr group", "run.zarr": "is a dkrr run, not a m"}
    for name, match in words.items():
        with pytest.raises(StoreError, match=match):
            dkrr.load(tmp_path / name)


def test_a_model_is_replaced_only_if_that_is_wanted(data, path, tmp_path):
    other = KernelRidge(kernel="rbf", alpha=7.0).fit(data.X, data.y)
    with pytest.raises(InputError, match="exists already"):
        dkrr.save(other, path)
    assert dkrr.load(path).alpha == 1.0
    dkrr.save(other, path, overwrite=True)
    assert dkrr.load(path).alpha == 7.0 and [p.name for p in tmp_path.iterdir()] == ["m.zarr"]
    (tmp_path / "empty").mkdir()
    dkrr.save(other, tmp_path / "empty", overwrite=True)
    assert dkrr.load(tmp_path / "empty").alpha == 7.0


@pytest.mark.parametrize("dtype", ["|O", "<f8"])
def test_pickle_codecs_are_refused(path, tmp_path, dtype):
    array = path / "dual_coef"
    (array / "zarr.json").unlink()
    (array / "0.0").write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path / "was-run").encode() + b"'\ntR.")
    metadata = {"zarr_format": 2, "shape": [211, 3], "chunks": [211, 3], "fill_value": None, "order": "C"}
    pickled = {"dtype": dtype, "filters": [{"id": "pickle"}], "compressor": None}
    (array / ".zarray").write_text(json.dumps(metadata | pickled))
    with pytest.raises(StoreError, match="at .*dual_coef: its zarr.json is not there"):
        dkrr.load(path)
    assert not (tmp_path / "was-run").exists()


def test_a_model_with_rows_in_a_temporary_folder_says_how_to_keep_it(data):
    model = KernelRidge(kernel="rbf", tile=60).fit(da.from_array(data.X, chunks=50), data.y)
    assert np.isfinite(model.predict(data.X_new)).all()
    with pytest.raises(TypeError, match=r"dkrr\.save"):
        pickle.dumps(model)


def test_lazy_predictions_own_the_rows_they_read(data, workers):
    with workers.as_current():
        model = KernelRidge(kernel="rbf", tile=60).fit(da.from_array(data.X, chunks=50), data.y)
        assert model.plan_.execution == "dask"
        expected = model.predict(data.X_new)
        lazy = model.predict(da.from_array(data.X_new, chunks=10))
        del model
        assert_allclose(workers.compute(lazy).result(), expected, rtol=0, atol=1e-12)


LABELS = [np.array([0, 1, 2]), np.array(["a", "bb", "c"]), np.array(["a", "bb", "c"], object), np.array([False, True])]


@every_pair(
    by_day="values", labels=LABELS, one_vs_rest=[False, True], ids=lambda each: str(getattr(each, "dtype", each))
)
def test_a_classifier_and_its_classes(tmp_path, labels, one_vs_rest):
    X = np.random.default_rng(0).normal(size=(50, 3))
    y = labels[np.arange(50) % len(labels)]
    weight = {label: np.float64(k + 1) for k, label in enumerate(np.unique(y))}
    model = dkrr.KernelLogisticRegression(0.1, kernel="rbf", one_vs_rest=one_vs_rest, class_weight=weight).fit(X, y)
    dkrr.save(model, tmp_path / "m.zarr")
    again = dkrr.load(tmp_path / "m.zarr")
    assert isinstance(again, dkrr.KernelLogisticRegression) and again.classes_.dtype == model.classes_.dtype
    assert_array_equal(again.predict(X), model.predict(X))
    assert again.class_weight == weight
    assert_array_equal(again.predict_log_proba(X), model.predict_log_proba(X))
    assert_allclose(again.fit(X, y).predict_proba(X), model.predict_proba(X), rtol=0, atol=1e-7)
