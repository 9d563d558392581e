"""The store of a run belongs to one problem, and what is not ours is never touched."""

import contextlib
import json
import shutil

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import dkrr
from dkrr.errors import DkrrError, InputError, StoreError
from dkrr.store import RunStore
from dkrr.store.description import FORMAT_VERSION
from dkrr.store.format import read_group, write_group
from dkrr.store.places import free_bytes, place_at

PROBLEM = {"X": "9f2c", "shape": [10, 3], "alpha": [1.0], "kernel": {"kernel": "rbf", "gamma": 0.1}, "weights": None}
LAYOUT = {"form": "dual", "tile": 5, "panel": 5, "n_update_parts": 1}


@pytest.fixture
def store(place):
    return RunStore(f"{place}/run")


def claimed(store):
    store.open()
    store.claim(PROBLEM, LAYOUT)
    return store


def test_the_first_run_describes_the_store_and_a_second_finds_it(store):
    assert store.description() is None
    store.open()
    store.open()
    assert store.description()["fingerprint"] is None, "an open store has no owner"
    store.claim(PROBLEM, LAYOUT, {"origins": [[0.1, 2.0], None]})
    found = store.description()
    assert (found["fingerprint"], found["layout"]) == (PROBLEM, LAYOUT)
    assert (found["kind"], found["format"]) == ("run", FORMAT_VERSION)
    store.open()
    # A tuple and a list are the same to JSON; the layout and the notes of the first run stay.
    store.claim({**PROBLEM, "shape": (10, 3)}, {**LAYOUT, "tile": 7}, {"origins": [[0.3, 2.0], None]})
    assert store.description() == found and store.note("origins") == [[0.1, 2.0], None]


def test_a_store_that_was_deleted_during_the_run_is_an_error(store):
    claimed(store).delete()
    assert store.description() is None
    store.delete()  # nothing left to delete is not an error
    uses = [lambda: store.claim(PROBLEM, LAYOUT), lambda: store.note("pivots"), lambda: store.set_note("pivots", "p")]
    for use in uses:
        with pytest.raises(StoreError, match="was deleted during the run"):
            use()


ROWS = np.random.default_rng(0).normal(size=(31, 3))
WEIGHTS = np.linspace(1.0, 2.0, 31)
CODES = np.arange(31) % 3


def changed_at(array, at):
    array = array.copy()
    array[at] += 1
    return array


OF_ANY = [
    ({"X": changed_at(ROWS, (0, 0))}, "the values of X differ. Give"),
    ({"sample_weight": changed_at(WEIGHTS, 1)}, "the sample weights"),
    ({"alpha": 0.6}, "the values of alpha differ .alpha: here .?0.6.?, in the store .?0.5.?.. Give"),
    ({"gamma": 0.4}, "the kernels"),
]
OF_VALUES = [*OF_ANY, ({"y": changed_at(ROWS[:, 0], 0)}, "the targets y"), ({"fit_intercept": True}, "fit_intercept")]
OF_CLASSES = [
    *OF_ANY,
    ({"y": np.where(np.arange(31) == 0, 1, CODES)}, "the labels y"),
    ({"class_weight": {0: 2.0}}, "the sample weights"),
    ({"fit_intercept": False}, "fit_intercept"),
    ({"multi_class": "ovr"}, "multinomial"),
]
PROBLEMS = [(dkrr.KernelRidge, ROWS[:, 0], *other) for other in OF_VALUES]
PROBLEMS += [(dkrr.KernelLogisticRegression, CODES, *other) for other in OF_CLASSES]


def fit(kind, store, X=ROWS, y=ROWS[:, 0], sample_weight=WEIGHTS, tile=10, **settings):
    settings = {"alpha": 0.5, "kernel": "rbf", "gamma": 0.3} | settings
    return kind(store=str(store), tile=tile, **settings).fit(X, y, sample_weight=sample_weight)


@pytest.mark.parametrize(("kind", "y", "change", "what"), PROBLEMS)
def test_the_store_of_another_problem_is_refused_by_what_differs(tmp_path, kind, y, change, what):
    first = fit(kind, tmp_path / "run.zarr", y=y)
    with pytest.raises(StoreError, match=f"another problem.*{what}"):
        fit(kind, tmp_path / "run.zarr", **{"y": y} | change)
    again = fit(kind, tmp_path / "run.zarr", y=y, tile=None)  # the tiles of the store are used
    assert_array_equal(again.dual_coef_, first.dual_coef_)


def test_another_kernel_function_of_the_same_source_is_another_problem(tmp_path):
    def make(scale):
        return lambda X, Z: np.exp(-scale * ((X[:, None] - Z[None]) ** 2).sum(axis=2))

    for _ in range(2):
        fit(dkrr.KernelRidge, tmp_path / "run.zarr", kernel=make(1.0), gamma=None)
    with pytest.raises(StoreError, match="another problem.*kernel"):
        fit(dkrr.KernelRidge, tmp_path / "run.zarr", kernel=make(2.0), gamma=None)


def test_nothing_is_left_of_a_copy_of_rows_that_was_refused(tmp_path):
    rows = changed_at(ROWS, (5, 1)) * np.where(np.arange(31) == 5, np.nan, 1.0)[:, None]
    with pytest.raises(InputError, match="row 5"):
        fit(dkrr.KernelRidge, tmp_path / "run.zarr", X=da.from_array(rows, chunks=7))
    assert [p.name for p in (tmp_path / "run.zarr").iterdir()] == ["zarr.json"]


def group_of(kind, number):
    return lambda path: zarr.create_group(path, attributes={"dkrr": {"kind": kind, "format": number}})


def folder_with(name, text):
    def make(path):
        path.mkdir()
        (path / name).write_text(text)

    return make


NOT_A_RUN = "exists and is not the store of a dkrr run"
FOREIGN = {
    "file": (lambda path: path.write_text("mine"), NOT_A_RUN),
    "folder": (folder_with("thesis.tex", "mine"), NOT_A_RUN),
    "zarr group": (lambda path: zarr.create_group(path, attributes={"mine": 1}), NOT_A_RUN),
    "zarr array": (lambda path: zarr.create_array(path, shape=(3,), dtype="f8"), NOT_A_RUN),
    "broken": (folder_with("zarr.json", "{"), NOT_A_RUN),
    "model": (group_of("model", 1), "is a saved model of dkrr, not the store of a run"),
    "later": (group_of("run", FORMAT_VERSION + 1), f"run of format {FORMAT_VERSION + 1}, not of format"),
    "earlier": (group_of("run", 5), f"run of format 5, not of format {FORMAT_VERSION}: fit again, or use the version"),
}


@pytest.mark.parametrize(("make", "match"), FOREIGN.values(), ids=FOREIGN)
def test_what_is_not_the_store_of_a_run_is_refused_and_untouched(tmp_path, make, match):
    path = tmp_path / "theirs"
    make(path)
    before = {p: p.read_bytes() if p.is_file() else None for p in tmp_path.rglob("*")}
    store = RunStore(str(path))
    for action in (store.description, store.open, lambda: store.claim(PROBLEM, LAYOUT)):
        with pytest.raises(StoreError, match=f"{path} .*{match}.*Give another store="):
            action()
    assert before == {p: p.read_bytes() if p.is_file() else None for p in tmp_path.rglob("*")}


@pytest.mark.parametrize("kind", ["run", "model"])
def test_a_store_of_another_version_is_refused_with_the_version_that_wrote_it(tmp_path, kind):
    write_group(str(tmp_path / "s"), {"kind": kind, "format": FORMAT_VERSION - 1, "versions": {"dkrr": "0.1.0"}})
    words = rf"dkrr {kind} of format 5, not of format 6: fit again, or use the version that wrote it.*'dkrr': '0\.1\.0'"
    for use in (dkrr.verify, *([dkrr.status] if kind == "run" else [dkrr.load])):
        with pytest.raises(StoreError, match=words):
            use(tmp_path / "s")


def test_what_is_damaged_is_found_and_computed_again(place):
    X = np.random.default_rng(0).normal(size=(96, 3))
    settings = {"alpha": 0.1, "kernel": "rbf", "tile": 32, "solver": "cholesky", "store": f"{place}/run.zarr"}
    first = dkrr.KernelRidge(**settings).fit(X, X[:, 0])
    folder = place_at(f"{place}/run.zarr/system-0/factor")
    chunk = next(name for name in sorted(folder.names()) if name.startswith("c."))
    content = bytearray(folder.read(chunk, 2**20))
    content[100] ^= 1
    folder.write(chunk, [bytes(content)])
    assert not dkrr.verify(f"{place}/run.zarr").is_whole
    RunStore(f"{place}/run.zarr").delete("system-0/solution")
    again = dkrr.KernelRidge(**settings).fit(X, X[:, 0])
    assert (again.dual_coef_ == first.dual_coef_).all() and "damaged" in " ".join(again.solve_result_.messages)
    assert dkrr.verify(f"{place}/run.zarr").is_whole


def test_the_store_is_one_zarr_hierarchy(tmp_path):
    store = claimed(RunStore(str(tmp_path)))  # an empty folder is taken
    store.create_group("system-0")
    store.create_array("system-0/x", (4,), (2,)).fill(np.arange(4.0))
    assert_array_equal(zarr.open_group(store.url, mode="r")["system-0/x"][:], np.arange(4.0))


def test_names_below_a_url_and_free_space(tmp_path):
    assert RunStore("s3://bucket/run/").at("a/b") == "s3://bucket/run/a/b"
    free = free_bytes(str(tmp_path))
    assert free > 0 and free == pytest.approx(free_bytes(str(tmp_path / "not" / "there" / "yet")), rel=0.2)
    assert free_bytes("s3://bucket/run") is None


KEYS = ["kernel", "name", "array", "shape", "dtype", "left", "feature_map", "rbf", "sum", "../x", "0" * 64]
NAMES = st.sampled_from(KEYS)
NUMBERS = st.integers(-(2**70), 2**70) | st.floats()
PLAIN = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=6), NAMES)
JSON = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3))


X = np.random.default_rng(0).normal(size=(24, 3))


def changed(data, description):
    """Description with one value, at any depth, replaced, removed or added."""
    copy = json.loads(json.dumps(description))
    parent, key = copy, data.draw(st.sampled_from(sorted(copy)))
    while isinstance(parent[key], dict | list) and parent[key] and data.draw(st.booleans()):
        parent = parent[key]
        key = data.draw(st.sampled_from(sorted(parent) if isinstance(parent, dict) else range(len(parent))))
    if isinstance(parent, dict) and data.draw(st.integers(0, 3)) == 3:
        del parent[key]
    else:
        parent[key] = data.draw(JSON)
    return copy


def fitted(store):
    rows, settings = da.from_array(X, chunks=12), {"kernel": "rbf", "alpha": 0.1, "solver": "cg", "tile": 12}
    return dkrr.KernelRidge(**settings, store=str(store)).fit(rows, X[:, 0])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    with dask.config.set({"dkrr.checkpoint-seconds": 0}):
        fitted(folder / "run.zarr")
    shutil.copytree(folder / "run.zarr", folder / "kept.zarr")
    return folder, read_group(str(folder / "run.zarr")), fitted(folder / "run.zarr").predict(X)


@given(data=st.data())
def test_a_run_with_anything_in_its_description_gives_the_solution_or_is_refused(run, data):
    folder, description, expected = run
    shutil.rmtree(folder / "run.zarr")
    shutil.copytree(folder / "kept.zarr", folder / "run.zarr")
    write_group(str(folder / "run.zarr"), changed(data, description))
    for use in (dkrr.status, dkrr.verify):
        with contextlib.suppress(DkrrError):
            str(use(folder / "run.zarr"))
    with contextlib.suppress(DkrrError):
        found = fitted(folder / "run.zarr").predict(X)
        assert np.allclose(found, expected, atol=1e-6), "a solution is of the rows that were given"
