"""Fitted transformers as bytes of skops, and made of them again; what others may have written is refused."""

import contextlib
import io
import json
import zipfile
from functools import partial

import numpy as np
import pandas as pd
import pytest
import skops.io
from sklearn import preprocessing
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.decomposition import PCA, IncrementalPCA, TruncatedSVD
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.feature_selection import VarianceThreshold
from sklearn.frozen import FrozenEstimator
from sklearn.impute import KNNImputer, MissingIndicator, SimpleImputer
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import FeatureUnion, make_pipeline

import dkrr
from dkrr.data.transformers import transformed_block
from dkrr.data.transformers_saved import SAFE_CLASSES, loaded_transformer, saved_transformer
from dkrr.errors import DkrrError, InputError, StoreError
from dkrr.estimators.model_description import LIBRARY_VERSIONS
from tests.data.flights import NUMBERS, OF_NUMBERS, OF_THE_TABLE, TEXT, dense, flights, targets
from tests.oracles import assert_close
from tests.stores import flip

OTHERS = {
    "pca": PCA(2, whiten=True),
    "incremental pca": IncrementalPCA(2),
    "svd": TruncatedSVD(1, random_state=0),
    "variance": VarianceThreshold(),
    "knn": KNNImputer(),
    "indicator": MissingIndicator(features="all"),
    "fourier": RBFSampler(n_components=300, random_state=0),
    "binarizer": preprocessing.Binarizer(),
    "log": preprocessing.FunctionTransformer(np.log1p, feature_names_out="one-to-one"),
    "bins": preprocessing.KBinsDiscretizer(3, strategy="uniform"),
    "normalizer": preprocessing.Normalizer(),
    "power": preprocessing.PowerTransformer(),
    "quantile": preprocessing.QuantileTransformer(n_quantiles=90),
}
ALL = {name: make() for name, make in (OF_THE_TABLE | OF_NUMBERS).items()} | OTHERS
GIVEN = {
    "columns": [preprocessing.PolynomialFeatures],
    "union": preprocessing.PolynomialFeatures,
    "selector": make_column_selector(),
}
"""What must be given again: its work is not bounded by what a file holds, or it may have a regular expression."""


def fitted(name):
    table = flights() if name in OF_THE_TABLE else flights()[NUMBERS]
    return clone(ALL[name]).fit(table), table


@pytest.mark.parametrize("name", ALL)
def test_a_transformer_made_of_its_bytes_transforms_alike(name):
    transformer, table = fitted(name)
    data = saved_transformer(transformer)
    assert data.dtype == np.uint8 and data.shape[1] == 1
    made = loaded_transformer(data.tobytes(), GIVEN.get(name))
    np.testing.assert_allclose(dense(made.transform(table)), dense(transformer.transform(table)), rtol=1e-13)
    assert list(made.get_feature_names_out()) == list(transformer.get_feature_names_out())
    np.testing.assert_allclose(dense(made.fit(table).transform(table)), dense(transformer.transform(table)), rtol=1e-13)
    if name in GIVEN:
        with pytest.raises(InputError, match="transformer is None, .*which a file cannot hold"):
            loaded_transformer(data.tobytes(), None)


def test_every_class_that_files_may_name_is_tested():
    made = [FrozenEstimator(preprocessing.StandardScaler().fit(flights()[NUMBERS])), *(fitted(name)[0] for name in ALL)]
    text = "".join(json.dumps(schema_of(saved_transformer(one).tobytes())) for one in made)
    assert not [name for names in SAFE_CLASSES.values() for name in names if f'"__class__": "{name}"' not in text]


def test_it_is_an_array_of_the_model_whose_damage_is_noticed(tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 40))
    model = dkrr.KernelRidge(kernel="rbf", transformer=PCA(20)).fit(X, X[:, 0])
    dkrr.save(model, tmp_path / "m.zarr")
    assert "transformer" in {array.name for array in dkrr.verify(tmp_path / "m.zarr").arrays}
    assert_close(dkrr.load(tmp_path / "m.zarr").predict(X), model.predict(X), 1e-12)
    (chunk,) = (tmp_path / "m.zarr" / "transformer").glob("c*")
    flip(chunk, 100)
    with pytest.raises(StoreError, match="damaged"):
        dkrr.load(tmp_path / "m.zarr")


class Own(preprocessing.StandardScaler):
    """A user's own transformer."""


def own_function(X):
    return np.asarray(X) ** 2


@pytest.mark.parametrize("own", [Own(), preprocessing.FunctionTransformer(own_function)], ids=["class", "function"])
def test_a_users_own_class_or_function_must_be_given_again(own, tmp_path):
    X, transformer = flights()[NUMBERS], make_pipeline(own, "passthrough")
    model = dkrr.KernelRidge(kernel="rbf", transformer=transformer).fit(X, targets())
    dkrr.save(model, tmp_path / "m.zarr")
    for wrong in (None, preprocessing.OneHotEncoder(), [PCA]):
        with pytest.raises(InputError, match="transformer is .*(Own|own_function)', which a file cannot hold"):
            dkrr.load(tmp_path / "m.zarr", transformer=wrong)
    with pytest.raises(InputError, match="transformer is 5; expected the transformer, class or function"):
        dkrr.load(tmp_path / "m.zarr", transformer=5)
    for again in (transformer, [Own, own_function]):
        loaded = dkrr.load(tmp_path / "m.zarr", transformer=again)
        assert_close(loaded.predict(X), model.predict(X), 1e-12)


def local():
    def inner(X):
        return X

    return preprocessing.FunctionTransformer(inner)


@pytest.mark.parametrize(
    "transformer",
    [
        preprocessing.FunctionTransformer(lambda X: X),
        local(),
        RBFSampler(random_state=np.random.RandomState(0)),
        make_pipeline(preprocessing.StandardScaler(), memory="cache"),
    ],
    ids=["lambda", "local function", "random state", "place"],
)
def test_what_a_file_cannot_hold_or_name_is_refused_when_it_is_saved(transformer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = dkrr.KernelRidge(transformer=transformer).fit(flights()[NUMBERS], targets())
    with pytest.raises(InputError, match="transformer cannot be saved"):
        dkrr.save(model, tmp_path / "m.zarr")
    assert not (tmp_path / "m.zarr").exists()


def test_another_version_of_scikit_learn_is_a_warning(tmp_path, monkeypatch):
    model = dkrr.KernelRidge(transformer=preprocessing.OneHotEncoder()).fit(flights()[TEXT], targets())
    with monkeypatch.context() as patched:
        patched.setattr(
            "dkrr.estimators.model_description.LIBRARY_VERSIONS", LIBRARY_VERSIONS | {"scikit-learn": "1.5.0"}
        )
        dkrr.save(model, tmp_path / "m.zarr")
    with pytest.warns(UserWarning, match="fitted with scikit-learn '1.5.0', and this is"):
        dkrr.load(tmp_path / "m.zarr")


def schema_of(data):
    return json.loads(zipfile.ZipFile(io.BytesIO(data)).read("schema.json"))


def changed(data, change, compression=zipfile.ZIP_STORED, rewritten=bytes):
    """The same file with another tree, and other arrays."""
    source, buffer, schema = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO(), schema_of(data)
    found = change(schema)
    with zipfile.ZipFile(buffer, "w", compression) as target:
        for name in source.namelist():
            text = json.dumps(schema if found is None else found)
            target.writestr(name, rewritten(source.read(name)) if name != "schema.json" else text)
    return buffer.getvalue()


def nodes(tree, loader):
    if isinstance(tree, dict):
        if tree.get("__loader__") == loader:
            yield tree
        tree = list(tree.values())
    if isinstance(tree, list):
        for value in tree:
            yield from nodes(value, loader)


def node(loader, kind, content, number):
    return {"__loader__": loader, "__module__": "builtins", "__class__": kind, "content": content, "__id__": number}


NAMED = {
    "ObjectNode": "os.system builtins.eval evil.Transformer sklearn.linear_model._base.LinearRegression "
    "sklearn.preprocessing._polynomial.PolynomialFeatures dkrr.estimators.kernel_ridge.KernelRidge",
    "FunctionNode": "os.system numpy.load numpy.lib.format.open_memmap",
    "TypeNode": "builtins.map subprocess.Popen",
    "PartialNode": "functools.partial",
    "MethodNode": "sklearn.pipeline.Pipeline",
    "OperatorFuncNode": "operator.attrgetter",
    "ConstructorFromReduceNode": "subprocess.Popen",
    "RandomGeneratorNode": "numpy.random._generator.FourierNormalMatrix",
    "TreeNode": "sklearn.tree._tree.Tree",
    "DictNode": "collections.OrderedDict",
    "SetNode": "builtins.set",
    "BytesNode": "builtins.bytes",
    "CachedNode": "None.None",
    "NdArrayNode": "numpy.memmap",
    "NoSuchNode": "builtins.str",
    None: "builtins.str",
    5: "builtins.str",
}


# Files of someone who knows the format: nothing that they name is made, and nothing large of something small.

DATA = saved_transformer(make_pipeline(preprocessing.OneHotEncoder(sparse_output=False)).fit(flights()[TEXT])).tobytes()


def part(schema, name):
    (found,) = (n for n in nodes(schema, "ObjectNode") if n["__class__"] == name)
    return found["content"]["content"]


def refused(change, words="is damaged", **more):
    with pytest.raises((InputError, StoreError), match=words):
        loaded_transformer(changed(DATA, change, **more), None)


@pytest.mark.parametrize("loader", NAMED)
def test_nothing_that_a_file_names_is_made(loader, monkeypatch):
    monkeypatch.setattr(skops.io, "loads", lambda *_, **__: pytest.fail("it was made"))
    for name in NAMED[loader].split():
        module, _, kind = name.rpartition(".")
        found = {**node(loader, kind, {}, 1), "__module__": module}
        refused(
            lambda schema, found=found: part(schema, "Pipeline").update(content=found),
            "damaged|which a file cannot hold",
        )


@pytest.mark.parametrize("name", ["transform", "__class__", "__reduce__"])
def test_attributes_that_hide_methods_are_refused(name):
    def change(schema):
        content = part(schema, "OneHotEncoder")
        content[name] = next(iter(content.values()))

    refused(change, "has the attribute")


def claimed_columns(schema):
    (found,) = (n for n in nodes(schema, "ListNode") if [v.get("content") for v in n["content"]] == ["3", "3"])
    found["content"][0] |= {"content": "1000000000000", "__id__": 7}


def claimed_in_an_array(schema):
    (found,) = (n for n in nodes(schema, "ListNode") if [v.get("content") for v in n["content"]] == ["3", "3"])
    numbers = [node("JsonNode", "str", f"{10**12}", k) for k in (7, 8)]
    shape = node("TupleNode", "tuple", [node("JsonNode", "str", "2", 9)], 10)
    found |= {"__loader__": "NdArrayNode", "__module__": "numpy", "__class__": "ndarray", "type": "json"}
    found |= {"content": numbers, "shape": shape}


def claimed_text(schema):
    (found,) = (n for n in nodes(schema, "ListNode") if [v.get("content") for v in n["content"]] == ["3", "3"])
    found["content"][0] |= {"content": '"x"', "__id__": 7}


def setting(schema, name, content, of="Pipeline"):
    """Processes that a file would start, a folder whose pickles joblib would read, and values that it does not hold."""
    part(schema, of)[name] = node("JsonNode", "str", content, 7)


def nested_lists(schema, levels, n_short):
    found = node("JsonNode", "str", "0", 1)
    for level in range(levels):
        short = [node("ListNode", "list", [], found["__id__"])] * n_short
        found = node("ListNode", "list", [found, *short], 1000 + level)
    part(schema, "Pipeline")["verbose"] = found


def one_file_for_many(schema):
    for k, found in enumerate(nodes(schema, "NdArrayNode")):
        found |= {"type": "numpy", "file": "1.npy", "__id__": k + 1, "content": []}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (claimed_columns, "larger than the file holds"),
        (claimed_in_an_array, "larger than the file holds"),
        (partial(setting, name="dtype", content='"<U100000000"', of="OneHotEncoder"), "expected one of float64"),
        (partial(setting, name="memory", content='"elsewhere"'), "has memory=..., a cache folder"),
        (partial(nested_lists, levels=30, n_short=2), "has the number of another node"),
        (partial(nested_lists, levels=400, n_short=0), "is damaged"),
        (claimed_text, "it is not a tree that skops writes"),
        (one_file_for_many, "is in the file '1.npy'"),
    ],
)
def test_what_is_larger_than_the_file_is_refused(change, words):
    refused(change, words)


def test_wide_values_and_dtypes_of_text_are_refused():
    encoder = preprocessing.OneHotEncoder(dtype=np.dtype(np.float32)).fit([["a"], ["b"]])
    assert loaded_transformer(saved_transformer(encoder).tobytes(), None).dtype == np.float32
    for known, width in ((["a", "b"], 20_000), ([], 400_000_000)):
        encoder.categories_ = [np.array(known, f"<U{width}")]
        with pytest.raises(InputError, match=f"an array of dtype.*<U{width}.*text of at most 4,096 bytes"):
            saved_transformer(encoder)
    with pytest.raises(InputError, match="has dtype=.*expected one of float64"):
        saved_transformer(preprocessing.OneHotEncoder(dtype=np.dtype("<U1000")).fit([["a"]]))


def test_headers_that_claim_more_than_their_part_of_the_file_are_refused():
    def claimed(content):
        return content.replace(b"'shape': (2,), }   ", b"'shape': (2000,), }")

    data = saved_transformer(preprocessing.StandardScaler().fit(np.ones((3, 2)))).tobytes()
    with pytest.raises(StoreError, match=r"is damaged: .*its header says 15\.8 KiB, and there are 144 B"):
        loaded_transformer(changed(data, lambda schema: None, rewritten=claimed), None)


def test_columns_that_a_small_file_would_repeat_without_bound_are_refused():
    union = FeatureUnion([("a", "passthrough"), ("b", "passthrough")]).fit(np.ones((2, 1)))
    assert loaded_transformer(saved_transformer(make_pipeline(*[union] * 4)).tobytes(), None).steps[3]
    for last in (union, FrozenEstimator(union)):
        with pytest.raises(InputError, match="cannot be saved: its FeatureUnions and ColumnTransformers repeat"):
            saved_transformer(make_pipeline(*[union] * 39, last))


def test_numbers_of_processes_are_not_taken_over():
    parts = [("a", preprocessing.StandardScaler(), [0]), ("b", FeatureUnion([("c", "passthrough")]), [1])]
    fitted = ColumnTransformer(parts).fit(np.eye(2))
    expected = fitted.transform(np.eye(2))
    fitted.n_jobs = fitted.transformers_[1][1].n_jobs = 64
    made = loaded_transformer(saved_transformer(fitted).tobytes(), None)
    assert fitted.n_jobs == 64 and made.n_jobs is None and made.transformers_[1][1].n_jobs is None
    assert np.array_equal(made.transform(np.eye(2)), expected)


def test_pandas_na_is_refused_when_it_is_saved():
    table = pd.DataFrame({"a": pd.array([1, None], dtype="Int64")})
    with pytest.raises(InputError, match=r"it has pandas.NA, for which missing_values=numpy.nan stands"):
        saved_transformer(SimpleImputer(missing_values=pd.NA).fit(table))
    made = loaded_transformer(saved_transformer(SimpleImputer().fit(table)).tobytes(), None)
    assert made.transform(table).tolist() == [[1.0], [1.0]]


def test_frames_of_a_package_that_is_missing_are_refused_in_words(monkeypatch):
    def missing(name):
        raise ImportError(f"{name} is not installed")

    scaler = preprocessing.StandardScaler().set_output(transform="polars").fit(np.eye(2))
    made = loaded_transformer(saved_transformer(scaler).tobytes(), None)
    monkeypatch.setattr("sklearn.utils._set_output.check_library_installed", missing)
    with pytest.raises(InputError, match="X cannot be transformed by StandardScaler, .*polars is not installed"):
        transformed_block(made, np.eye(2))


def test_compressed_parts_are_refused():
    made = loaded_transformer(changed(DATA, lambda schema: None), None)
    assert made.transform(flights()[TEXT]).shape == (97, 6)
    refused(lambda schema: None, "larger than the file", compression=zipfile.ZIP_DEFLATED)


def test_other_trees_protocols_and_bytes_are_damaged():
    for protocol in (0, None, 99, "x"):
        refused(lambda schema, protocol=protocol: schema.update(protocol=protocol))
    for other in (5, [], {}, {"protocol": 2}, {"protocol": 2, "__loader__": "JsonNode"}):
        refused(lambda _, other=other: other)
    for data in (b"", b"PK", b"x" * 100, DATA[:-50], DATA[:200] + DATA[300:]):
        with pytest.raises(StoreError, match="is damaged"):
            loaded_transformer(data, None)


@pytest.mark.filterwarnings("ignore:X has feature names")
def test_a_missing_attribute_is_an_error_of_dkrr_or_not_needed():
    names = list(part(schema_of(DATA), "OneHotEncoder"))
    assert len(names) > 8
    for name in names:
        data = changed(DATA, lambda schema, name=name: part(schema, "OneHotEncoder").pop(name) and None)
        with contextlib.suppress(DkrrError):
            transformed_block(loaded_transformer(data, None), flights()[TEXT])


def test_other_estimators_of_scikit_learn_are_refused():
    for other in (CountVectorizer().fit(["ab cd"]), LinearRegression().fit([[1.0]], [1.0])):
        with pytest.raises(InputError, match="which a file cannot hold"):
            loaded_transformer(skops.io.dumps(other), None)
