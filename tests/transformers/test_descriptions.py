"""Fitted transformers as JSON and arrays, and made of them again."""

import json

import numpy as np
import pytest
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.decomposition import PCA, IncrementalPCA, TruncatedSVD
from sklearn.feature_selection import VarianceThreshold
from sklearn.impute import KNNImputer, MissingIndicator
from sklearn.kernel_approximation import RBFSampler
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    KBinsDiscretizer,
    Normalizer,
    OneHotEncoder,
    PowerTransformer,
    QuantileTransformer,
    SplineTransformer,
)

import dkrr
from dkrr.errors import InputError
from dkrr.transformers.descriptions import CLASSES, described, named_parts, transformer_from
from dkrr.versions import VERSIONS
from tests.transformers.cases import NUMBERS, OF_NUMBERS, OF_THE_TABLE, TEXT, flights, targets
from tests.transformers.test_learning import dense

OTHERS = {
    "pca": lambda: PCA(2, whiten=True),
    "incremental pca": lambda: IncrementalPCA(2),
    "svd": lambda: TruncatedSVD(1, random_state=0),
    "variance": VarianceThreshold,
    "knn": KNNImputer,
    "indicator": lambda: MissingIndicator(features="all"),
    "fourier": lambda: RBFSampler(n_components=300, random_state=0),
    "binarizer": Binarizer,
    "log": lambda: FunctionTransformer(np.log1p, feature_names_out="one-to-one"),
    "bins": lambda: KBinsDiscretizer(3, strategy="uniform"),
    "normalizer": Normalizer,
    "power": PowerTransformer,
    "quantile": lambda: QuantileTransformer(n_quantiles=90),
}


def again(transformer, given=None):
    found, arrays = described(transformer)
    return transformer_from(json.loads(json.dumps(found, allow_nan=False)), named_parts(given), arrays)


@pytest.mark.parametrize("name", [*OF_THE_TABLE, *OF_NUMBERS, *OTHERS])
def test_the_same_transformer(name):
    table = flights() if name in OF_THE_TABLE else flights()[NUMBERS]
    fitted = {**OF_THE_TABLE, **OF_NUMBERS, **OTHERS}[name]().fit(table)
    made = again(fitted)
    np.testing.assert_allclose(dense(made.transform(table)), dense(fitted.transform(table)), rtol=1e-13)
    assert repr(made) == repr(fitted) or name == "selector"  # whose columns are no function any more
    assert list(made.get_feature_names_out()) == list(fitted.get_feature_names_out())
    assert described(made)[0] == described(fitted)[0]
    np.testing.assert_allclose(dense(made.fit(table).transform(table)), dense(fitted.transform(table)), rtol=1e-13)


def test_every_class_that_descriptions_name_is_tested():
    text = json.dumps(
        [
            described(make().fit(flights() if name in OF_THE_TABLE else flights()[NUMBERS]))[0]
            for name, make in {**OF_THE_TABLE, **OF_NUMBERS, **OTHERS}.items()
        ]
    )
    assert not [name for names in CLASSES.values() for name in names if f'.{name}"' not in text]


def test_large_arrays_are_those_of_the_store(tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 40))
    found, arrays = described(PCA(20).fit(X))
    assert [array.shape for array in arrays.values()] == [(800, 1)] and len(json.dumps(found)) < 10_000
    model = dkrr.KernelRidge(kernel="rbf", transformer=PCA(20)).fit(X, X[:, 0])
    dkrr.save(model, tmp_path / "m.zarr")
    assert "transformer-0" in {array.name for array in dkrr.verify(tmp_path / "m.zarr").arrays}
    np.testing.assert_allclose(dkrr.load(tmp_path / "m.zarr").predict(X), model.predict(X), rtol=1e-10)


class Halved(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """A user's own transformer."""

    def __init__(self, by=2.0):
        self.by = by

    def fit(self, X, y=None):
        self.means_ = np.asarray(X).mean(axis=0)
        return self

    def transform(self, X):
        return (np.asarray(X) - self.means_) / self.by


def own_function(X):
    return np.asarray(X) ** 2


class TestGivenAgain:
    @pytest.fixture(params=[Halved(3.0), FunctionTransformer(own_function)], ids=["class", "function"])
    def transformer(self, request):
        return make_pipeline(request.param, "passthrough")

    def test_models(self, transformer, tmp_path):
        X = flights()[NUMBERS]
        model = dkrr.KernelRidge(kernel="rbf", transformer=transformer).fit(X, targets())
        dkrr.save(model, tmp_path / "m.zarr")
        for wrong in (None, OneHotEncoder(), [PCA]):
            with pytest.raises(InputError, match="transformer is .*(Halved|own_function)', which a file cannot hold"):
                dkrr.load(tmp_path / "m.zarr", transformer=wrong)
        for given in (transformer, [Halved, own_function]):
            loaded = dkrr.load(tmp_path / "m.zarr", transformer=given)
            np.testing.assert_allclose(loaded.predict(X), model.predict(X), rtol=1e-12)

    def test_what_is_given(self, tmp_path):
        with pytest.raises(InputError, match="transformer is 5; expected the transformer, class or function"):
            dkrr.load(tmp_path / "m.zarr", transformer=5)


def test_what_cannot_be_described(tmp_path):
    model = dkrr.KernelRidge(transformer=SplineTransformer()).fit(flights()[NUMBERS], targets())
    with pytest.raises(InputError, match=r"transformer cannot be saved: SplineTransformer.bsplines_\[0\] is .*BSpline"):
        dkrr.save(model, tmp_path / "m.zarr")
    assert not (tmp_path / "m.zarr").exists()


def test_another_version_of_scikit_learn(tmp_path, monkeypatch):
    model = dkrr.KernelRidge(transformer=OneHotEncoder()).fit(flights()[TEXT], targets())
    with monkeypatch.context() as patched:
        patched.setattr("dkrr.model_description.VERSIONS", VERSIONS | {"scikit-learn": "1.5.0"})
        dkrr.save(model, tmp_path / "m.zarr")
    with pytest.warns(UserWarning, match="fitted with scikit-learn 1.5.0, and this is"):
        dkrr.load(tmp_path / "m.zarr")
