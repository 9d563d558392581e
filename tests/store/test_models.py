"""Save, load, predict for every kind of model; damaged and foreign files; no code from a file."""

import json
import pickle
from dataclasses import dataclass

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp

import dkrr
from dkrr import KernelRidge
from dkrr.errors import InputError, InputTypeError, StoreError
from dkrr.features import FeatureMap, IdentityMap
from dkrr.kernels import RBF, CallableKernel, Linear, Matern, Polynomial
from tests.stores import edit


def difference(X, Z):
    return np.exp(-((X[:, None, :] - Z[None, :, :]) ** 2).sum(axis=2))


@dataclass(frozen=True)
class Columnwise(FeatureMap):
    factor: float

    def dimension(self, n_features):
        return n_features

    def _fill(self, X, start, stop, out):
        out[...] = self.factor * X[:, start:stop]


@pytest.mark.parametrize(
    "settings",
    [
        {"kernel": "rbf", "gamma": 0.3},
        {"kernel": "linear"},
        {"kernel": Polynomial(degree=2), "fit_intercept": True},
        {"kernel": RBF(gamma=0.1) + 2.0 * Matern(nu=0.5) * Linear()},
        {"kernel": "laplacian", "alpha": [0.1, 0.2, 0.3]},
    ],
    ids=str,
)
@pytest.mark.parametrize("one_target", [False, True])
def test_a_loaded_model_predicts_the_same_bits(data, tmp_path, settings, one_target):
    if one_target and "alpha" in settings:
        settings = {**settings, "alpha": 0.3}
    y = data.y[:, 0] if one_target else data.y
    model = KernelRidge(**settings).fit(data.X, y, sample_weight=data.weights)
    dkrr.save(model, tmp_path / "m.zarr")
    again = dkrr.load(tmp_path / "m.zarr")
    assert np.array_equal(again.predict(data.X_new), model.predict(data.X_new))
    assert np.array_equal(again.dual_coef_, model.dual_coef_)
    assert np.array_equal(again.intercept_, model.intercept_)
    assert again.n_features_in_ == 5
    assert np.allclose(again.predict(da.from_array(data.X_new)).compute(), model.predict(data.X_new))
    refit = again.fit(data.X, y, sample_weight=data.weights)
    assert np.allclose(refit.predict(data.X_new), model.predict(data.X_new))


@pytest.mark.parametrize("kind", ["csr", "dask", "precomputed"])
def test_a_model_of_any_rows_is_saved(data, tmp_path, kind):
    X = np.where(np.abs(data.X) > 1, data.X, 0.0)
    rows = {"csr": sp.csr_array(X), "dask": da.from_array(X, chunks=50), "precomputed": RBF(gamma=1.0)(X)}[kind]
    new = {"csr": sp.csr_array(X[:9]), "dask": X[:9], "precomputed": RBF(gamma=1.0)(X[:9], X)}[kind]
    for tile in (None, 60):
        kernel = "precomputed" if kind == "precomputed" else "rbf"
        model = KernelRidge(kernel=kernel, tile=tile).fit(rows, data.y)
        path = tmp_path / f"m{tile}.zarr"
        dkrr.save(model, path)
        assert np.allclose(dkrr.load(path).predict(new), model.predict(new), rtol=0, atol=1e-12)


def test_rows_too_large_for_memory_are_read_at_prediction(data, tmp_path, monkeypatch):
    monkeypatch.setattr("dkrr.persistence.IN_MEMORY_BYTES", 10)
    model = KernelRidge(kernel="rbf").fit(data.X, data.y)
    dkrr.save(model, tmp_path / "m.zarr")
    again = dkrr.load(tmp_path / "m.zarr")
    assert again._model.rows.is_shared
    assert np.allclose(again.predict(data.X_new), model.predict(data.X_new), rtol=0, atol=1e-13)


def test_custom_kernel_must_be_given_again(data, tmp_path):
    model = KernelRidge(kernel=difference).fit(data.X, data.y)
    dkrr.save(model, tmp_path / "m.zarr")
    with pytest.raises(InputError, match="given again.*kernel="):
        dkrr.load(tmp_path / "m.zarr")
    again = dkrr.load(tmp_path / "m.zarr", kernel=difference)
    assert np.array_equal(again.predict(data.X_new), model.predict(data.X_new))


@pytest.mark.parametrize("wrong", [5, "rbf", [difference]], ids=["number", "name", "list"])
def test_a_wrong_argument_is_not_damage(data, tmp_path, wrong):
    for kernel in ("rbf", difference):
        dkrr.save(KernelRidge(kernel=kernel).fit(data.X, data.y), tmp_path / "m.zarr", overwrite=True)
        with pytest.raises(InputTypeError, match="kernel is .*; expected the function, Kernel, FeatureMap or class"):
            dkrr.load(tmp_path / "m.zarr", kernel=wrong)


def test_a_kernel_without_the_function_is_not_damage(data, tmp_path):
    dkrr.save(KernelRidge(kernel=difference).fit(data.X, data.y), tmp_path / "m.zarr")
    for wrong in (RBF(), RBF() + Linear(), IdentityMap()):
        with pytest.raises(InputError, match="kernel is .*; expected '.*difference'"):
            dkrr.load(tmp_path / "m.zarr", kernel=wrong)
    for right in (CallableKernel(difference), RBF() + CallableKernel(difference)):
        assert dkrr.load(tmp_path / "m.zarr", kernel=right).predict(data.X_new).shape == (len(data.X_new), 3)


def test_a_class_that_cannot_make_the_map_is_not_damage(data, tmp_path):
    class Undescribed(FeatureMap):
        """Not a dataclass."""

    dkrr.save(KernelRidge(kernel=Columnwise(2.0)).fit(data.X, data.y), tmp_path / "m.zarr")
    for wrong in (Undescribed, dict, difference, RBF()):
        with pytest.raises(InputError, match="Columnwise|kernel="):
            dkrr.load(tmp_path / "m.zarr", kernel=wrong)
    assert dkrr.load(tmp_path / "m.zarr", kernel=Columnwise).predict(data.X_new).shape == (len(data.X_new), 3)


@pytest.mark.parametrize("name", [None, 5])
def test_a_function_without_a_name_is_damage(data, tmp_path, name):
    dkrr.save(KernelRidge(kernel=difference).fit(data.X, data.y), tmp_path / "m.zarr")
    edit(tmp_path / "m.zarr", kernel={"kernel": "callable", "name": name, "digest": "0"})
    for kernel in (None, difference):
        with pytest.raises(StoreError, match="damaged.*kernel="):
            dkrr.load(tmp_path / "m.zarr", kernel=kernel)


def test_nothing_is_pickled(data, tmp_path):
    dkrr.save(KernelRidge(kernel="rbf").fit(data.X, data.y), tmp_path / "m.zarr")
    for path in (tmp_path / "m.zarr").rglob("*"):
        if path.is_file():
            assert not path.read_bytes().startswith(b"\x80\x04"), path
    description = json.loads((tmp_path / "m.zarr" / "zarr.json").read_text())["attributes"]["dkrr"]
    assert description["kind"] == "model" and description["format"] == 3
    assert {"dkrr", "numpy", "zarr", "python"} <= set(description["versions"])


def test_what_is_not_a_model_is_refused(data, tmp_path):
    with pytest.raises(InputError, match="not fitted"):
        dkrr.save(KernelRidge(), tmp_path / "m.zarr")
    with pytest.raises(StoreError, match="does not exist"):
        dkrr.load(tmp_path / "m.zarr")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(StoreError, match="cannot read|not a Zarr group"):
        dkrr.load(tmp_path / "text")
    KernelRidge(kernel="rbf", store=str(tmp_path / "run.zarr")).fit(data.X, data.y)
    with pytest.raises(StoreError, match="is a dkrr run, not a model"):
        dkrr.load(tmp_path / "run.zarr")


def test_existing_path_is_not_overwritten(data, tmp_path):
    model = KernelRidge(kernel="rbf").fit(data.X, data.y)
    dkrr.save(model, tmp_path / "m.zarr")
    with pytest.raises(InputError, match="exists already"):
        dkrr.save(model, tmp_path / "m.zarr")
    other = KernelRidge(kernel="rbf", alpha=7.0).fit(data.X, data.y)
    dkrr.save(other, tmp_path / "m.zarr", overwrite=True)
    assert dkrr.load(tmp_path / "m.zarr").alpha == 7.0 and [p.name for p in tmp_path.iterdir()] == ["m.zarr"]
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "text").write_text("mine")
    for path in (tmp_path / "notes", tmp_path / "notes" / "text"):
        with pytest.raises(InputError, match="is not a saved model"):
            dkrr.save(other, path, overwrite=True)
    assert (tmp_path / "notes" / "text").read_text() == "mine"


def test_the_old_model_stays_until_the_new_one_is_whole(data, tmp_path):
    def broken(X):
        raise OSError("the disk is full")

    dkrr.save(KernelRidge(kernel="rbf").fit(data.X, data.y), tmp_path / "m.zarr")
    lazy = da.from_array(data.X, chunks=50)
    model = KernelRidge(kernel="rbf", alpha=7.0).fit(lazy, data.y)
    model._model.rows.array = lazy.map_blocks(broken, dtype=float, meta=np.empty((0, 0)))
    with pytest.raises(OSError, match="disk is full"):
        dkrr.save(model, tmp_path / "m.zarr", overwrite=True)
    assert dkrr.load(tmp_path / "m.zarr").alpha == 1.0 and [p.name for p in tmp_path.iterdir()] == ["m.zarr"]


@pytest.mark.parametrize("url", ["sftp://host/m.zarr", "memory://m.zarr", "hdfs://a/m.zarr", "zip::s3://b/m.zarr"])
def test_models_are_kept_in_folders_and_buckets(data, url):
    model = KernelRidge().fit(data.X, data.y)
    for call in (lambda: dkrr.save(model, url), lambda: dkrr.load(url), lambda: dkrr.verify(url)):
        with pytest.raises(InputError, match=f"path is '{url}': runs, models .* folders and in buckets .s3://, gs://"):
            call()


@pytest.mark.parametrize(
    "changes",
    [
        {"stored": {"dual_coef": {}, "../m2.zarr/dual_coef": {}}},
        {"stored": {"/etc/passwd": {}}},
        {"stored": {"s3://bucket/intercept": {}}},
        {"stored": {"features-../../other": {}}},
        {"stored": ["rows"]},
    ],
    ids=str,
)
def test_names_that_lead_elsewhere_are_refused(data, tmp_path, changes):
    for name in ("m.zarr", "m2.zarr"):
        dkrr.save(KernelRidge(kernel="rbf").fit(data.X, data.y), tmp_path / name)
    edit(tmp_path / "m.zarr", **changes)
    with pytest.raises(StoreError, match="names arrays that dkrr.save does not write"):
        dkrr.load(tmp_path / "m.zarr")


@pytest.mark.parametrize("name", ["rows", "dual_coef", "dual_coef/c.0.0"])
def test_links_out_of_a_model_are_refused(data, tmp_path, name):
    for folder in ("m.zarr", "m2.zarr"):
        dkrr.save(KernelRidge(kernel="rbf").fit(data.X, data.y), tmp_path / folder)
    (tmp_path / "link.zarr").symlink_to(tmp_path / "m.zarr")
    dkrr.load(tmp_path / "link.zarr")  # where the model itself is, the user says
    place = tmp_path / "m.zarr" / name
    place.rename(tmp_path / "taken away")
    place.symlink_to(tmp_path / "m2.zarr" / name)
    with pytest.raises(StoreError, match="is a link, which is not followed"):
        dkrr.load(tmp_path / "m.zarr")


def test_pickle_codecs_are_refused(data, tmp_path):
    dkrr.save(KernelRidge(kernel="rbf").fit(data.X, data.y), tmp_path / "m.zarr")
    array = tmp_path / "m.zarr" / "dual_coef"
    (array / "zarr.json").unlink()
    harmful = b"cos\nsystem\n(S'touch " + str(tmp_path / "was-run").encode() + b"'\ntR."
    (array / "0.0").write_bytes(harmful)
    metadata = {"zarr_format": 2, "shape": [211, 3], "chunks": [211, 3], "fill_value": None, "order": "C"}
    for dtype, filters in (("|O", [{"id": "pickle"}]), ("<f8", [{"id": "pickle"}])):
        (array / ".zarray").write_text(json.dumps({**metadata, "dtype": dtype, "filters": filters, "compressor": None}))
        with pytest.raises(StoreError):
            dkrr.load(tmp_path / "m.zarr")
    assert not (tmp_path / "was-run").exists()


def test_damaged_models_are_refused(data, tmp_path):
    import shutil

    path = tmp_path / "m.zarr"
    dkrr.save(KernelRidge(kernel="rbf").fit(data.X, data.y), path)
    shutil.copytree(path, tmp_path / "copy")
    edit(path, format=99)
    with pytest.raises(StoreError, match="format 99"):
        dkrr.load(path)
    edit(path, format=3, n_features=4)
    with pytest.raises(StoreError, match="damaged"):
        dkrr.load(path)
    edit(path, n_features=5, kernel={"kernel": "os.system"})
    with pytest.raises(StoreError, match="damaged.*os.system"):
        dkrr.load(path)
    shutil.rmtree(tmp_path / "copy" / "dual_coef")
    with pytest.raises(StoreError, match="dual_coef is damaged: its zarr.json is not there"):
        dkrr.load(tmp_path / "copy")


@pytest.mark.parametrize(
    "changes",
    [
        {"parameters": None},
        {"parameters": []},
        {"feature_names": 5},
        {"feature_names": ["a", "b"]},
        {"feature_names": [1, 2, 3, 4, 5]},
        {"n_features": 10**12},
        {"n_features": 4},
        {"n_features": "5"},
        {"n_features": True},
        {"n_features": 0},
        {"kernel": None},
        {"kernel": []},
        {"feature_map": "linear"},
        {"stored": {}},
        {"id": "x"},
        {"vector": None, "estimator": []},
    ],
    ids=str,
)
def test_descriptions_of_other_types_are_refused(data, tmp_path, changes):
    path = tmp_path / "m.zarr"
    dkrr.save(KernelRidge(kernel="rbf").fit(data.X, data.y), path)
    edit(path, **changes)
    with pytest.raises(StoreError):
        dkrr.load(path)


def test_a_model_with_rows_in_a_temporary_folder_says_how_to_keep_it(data):
    model = KernelRidge(kernel="rbf", tile=60).fit(da.from_array(data.X, chunks=50), data.y)
    assert np.isfinite(model.predict(data.X_new)).all()
    with pytest.raises(TypeError, match=r"dkrr\.save"):
        pickle.dumps(model)


def test_a_loaded_model_can_be_fitted_and_cloned(data, tmp_path):
    from sklearn.base import clone

    alpha = [np.int64(1), np.float32(2), 3]
    model = KernelRidge(kernel="polynomial", degree=2, coef0=0.5, alpha=alpha).fit(data.X, data.y)
    dkrr.save(model, tmp_path / "m.zarr")
    again = clone(dkrr.load(tmp_path / "m.zarr")).fit(data.X, data.y)
    assert np.allclose(again.predict(data.X_new), model.predict(data.X_new))


def test_lazy_predictions_own_the_rows_they_read(data, workers):
    X = da.from_array(data.X, chunks=50)
    with workers.as_current():
        model = KernelRidge(kernel="rbf", tile=60).fit(X, data.y)
        assert model.plan_.execution == "dask"
        expected = model.predict(data.X_new)
        lazy = model.predict(da.from_array(data.X_new, chunks=10))
        del model
        assert np.allclose(workers.compute(lazy).result(), expected, rtol=0, atol=1e-12)


def test_names_of_columns_do_not_survive_a_fit_without_them(data):
    import pandas as pd

    model = KernelRidge(kernel="rbf").fit(pd.DataFrame(data.X, columns=list("abcde")), data.y)
    assert list(model.feature_names_in_) == list("abcde")
    model.fit(da.from_array(data.X), data.y)
    assert not hasattr(model, "feature_names_in_")


@pytest.mark.parametrize(
    "labels",
    [np.array([0, 1, 2]), np.array(["a", "bb", "c"]), np.array(["a", "bb", "c"], object), np.array([False, True])],
    ids=lambda labels: str(labels.dtype),
)
@pytest.mark.parametrize("multi_class", ["multinomial", "ovr"])
def test_a_classifier_and_its_classes(tmp_path, labels, multi_class):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 3))
    y = labels[np.arange(50) % len(labels)]
    weight = {label: np.float64(k + 1) for k, label in enumerate(np.unique(y))}
    model = dkrr.KernelLogisticRegression(0.1, kernel="rbf", multi_class=multi_class, class_weight=weight).fit(X, y)
    dkrr.save(model, tmp_path / "m.zarr")
    again = dkrr.load(tmp_path / "m.zarr")
    assert isinstance(again, dkrr.KernelLogisticRegression) and again.classes_.dtype == model.classes_.dtype
    assert np.array_equal(again.predict(X), model.predict(X)) and again.class_weight == weight
    assert np.array_equal(again.predict_log_proba(X), model.predict_log_proba(X))
    assert np.allclose(again.fit(X, y).predict_proba(X), model.predict_proba(X), rtol=0, atol=1e-7)
