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
from dkrr.errors import DkrrError, StoreError
from dkrr.tiles import RunStore, files
from dkrr.tiles.descriptions import read_group, write_group
from dkrr.tiles.store import FORMAT_VERSION, WORDS, free_bytes

PROBLEM = {"X": "9f2c", "shape": [10, 3], "alpha": [1.0], "kernel": {"kernel": "rbf", "gamma": 0.1}, "weights": None}
LAYOUT = {"form": "dual", "tile": 5, "panel": 5, "n_update_parts": 1}


@pytest.fixture
def store(place):
    return RunStore(f"{place}/run")


def claimed(store):
    store.open()
    store.claim(PROBLEM, LAYOUT)
    return store


class TestClaim:
    def test_the_first_run_describes_the_store_and_a_second_finds_it(self, store):
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

    @pytest.mark.parametrize(
        ("field", "value"),
        [("X", "0000"), ("alpha", [2.0]), ("kernel", {"kernel": "rbf", "gamma": 0.2}), ("weights", "77ab")],
    )
    def test_another_problem_is_refused_and_the_difference_named(self, store, field, value):
        before = claimed(store).description()
        with pytest.raises(StoreError, match="another problem") as caught:
            store.claim({**PROBLEM, field: value}, LAYOUT)
        message = str(caught.value)
        assert f"{field}: here {value}, in the store {PROBLEM[field]}" in message
        assert "cannot share a store" in message and f"{WORDS.get(field, field)} differ" in message
        assert not any(f"{other}: here" in message for other in PROBLEM if other != field)
        assert store.description() == before

    def test_a_field_more_or_less_is_another_problem_and_checksums_are_not_shown(self, store):
        claimed(store)
        with pytest.raises(StoreError, match="dtype: here float32, in the store None"):
            store.claim({**PROBLEM, "dtype": "float32"}, LAYOUT)
        with pytest.raises(StoreError, match="X: here None, in the store 9f2c"):
            store.claim({k: v for k, v in PROBLEM.items() if k != "X"}, LAYOUT)
        other = RunStore(f"{store.url}-2")
        other.open()
        other.claim({**PROBLEM, "X": "0" * 64, "n": 5}, LAYOUT)
        with pytest.raises(StoreError, match=r"the values of X.* \(n: here 6, in the store 5\)\. Give"):
            other.claim({**PROBLEM, "X": "f" * 64, "n": 6}, LAYOUT)
        with pytest.raises(StoreError, match="the values of X differ. Give"):
            other.claim({**PROBLEM, "X": "f" * 64, "n": 5}, LAYOUT)

    def test_a_store_that_was_deleted_during_the_run_is_an_error(self, store):
        claimed(store).delete()
        assert store.description() is None
        store.delete()  # nothing left to delete is not an error
        for action in (
            lambda: store.claim(PROBLEM, LAYOUT),
            lambda: store.note("pivots"),
            lambda: store.set_note("pivots", "p"),
        ):
            with pytest.raises(StoreError, match="was deleted during the run"):
                action()


@pytest.mark.parametrize("what", ["file", "folder", "zarr group", "zarr array", "broken", "model", "later format"])
def test_what_is_not_the_store_of_a_run_is_refused_and_untouched(tmp_path, what):
    path, match = tmp_path / "theirs", "exists and is not the store of a dkrr run"
    if what == "file":
        path.write_text("mine")
    elif what == "folder":
        path.mkdir()
        (path / "thesis.tex").write_text("mine")
    elif what == "zarr group":
        zarr.create_group(path, attributes={"mine": 1})
    elif what == "zarr array":
        zarr.create_array(path, shape=(3,), dtype="f8")[:] = 1.0
    elif what == "broken":
        path.mkdir()
        (path / "zarr.json").write_text("{")
    elif what == "model":
        zarr.create_group(path, attributes={"dkrr": {"kind": "model", "format": 1}})
        match = "is a saved model of dkrr, not the store of a run"
    else:
        zarr.create_group(path, attributes={"dkrr": {"kind": "run", "format": FORMAT_VERSION + 1}})
        match = f"run of format {FORMAT_VERSION + 1}, not of format {FORMAT_VERSION}"
    before = {p: p.read_bytes() if p.is_file() else None for p in tmp_path.rglob("*")}
    store = RunStore(str(path))
    for action in (store.description, store.open, lambda: store.claim(PROBLEM, LAYOUT)):
        with pytest.raises(StoreError, match=f"{path} .*{match}.*Give another store="):
            action()
    assert before == {p: p.read_bytes() if p.is_file() else None for p in tmp_path.rglob("*")}


def test_what_is_damaged_is_found_and_computed_again(place):
    X = np.random.default_rng(0).normal(size=(96, 3))
    settings = {"alpha": 0.1, "kernel": "rbf", "tile": 32, "solver": "cholesky", "store": f"{place}/run.zarr"}
    first = dkrr.KernelRidge(**settings).fit(X, X[:, 0])
    folder = f"{place}/run.zarr/system-0/factor"
    chunk = next(name for name in sorted(files.names(folder)) if name.startswith("c."))
    content = bytearray(files.read_file(f"{folder}/{chunk}", 2**20))
    content[100] ^= 1
    files.write_file(f"{folder}/{chunk}", [bytes(content)])
    assert not dkrr.verify(f"{place}/run.zarr").is_whole
    RunStore(f"{place}/run.zarr").delete("system-0/solution")
    again = dkrr.KernelRidge(**settings).fit(X, X[:, 0])
    assert (again.dual_coef_ == first.dual_coef_).all() and "damaged" in " ".join(again.solve_result_.messages)
    assert dkrr.verify(f"{place}/run.zarr").is_whole


class TestContents:
    def test_notes_and_the_copy_of_the_rows_are_found_by_a_run_that_resumes(self, store):
        claimed(store)
        assert store.note("checkpoint") is None and store.staged_rows() is None
        store.set_note("checkpoint", {"turn": 0, "more": True})
        store.set_note("pivots", "pivots-7")
        store.set_note("checkpoint", {"turn": 1, "arrays": ["x"], "plain": "{}"})
        store.set_staged_rows("rows-1", {"kind": "dense"})
        claimed(store)
        again = RunStore(store.url)
        assert again.note("checkpoint") == {"turn": 1, "arrays": ["x"], "plain": "{}"}
        assert again.note("pivots") == "pivots-7" and again.note("another") is None
        assert again.staged_rows() == ("rows-1", {"kind": "dense", "name": "rows-1"})
        assert again.description()["fingerprint"] == PROBLEM, "the rest of the description stays"
        store.set_staged_rows(None)
        assert store.staged_rows() is None and store.note("pivots") == "pivots-7"

    def test_one_part_is_deleted_and_the_others_stay(self, store):
        claimed(store)
        for group in ("system-0", "system-1"):
            store.create_group(group)
            store.create_group(group)
            store.create_array(f"{group}/x", (4,), (2,)).fill(np.arange(4.0))
        store.delete("system-0")
        assert_array_equal(store.open_array("system-1/x").load(), np.arange(4.0))
        with pytest.raises(StoreError):
            store.open_array("system-0/x")
        assert store.description()["fingerprint"] == PROBLEM
        store.delete()
        assert store.description() is None

    def test_the_store_is_one_zarr_hierarchy(self, tmp_path):
        store = claimed(RunStore(str(tmp_path)))  # an empty folder is taken
        store.create_group("system-0")
        store.create_array("system-0/x", (4,), (2,)).fill(np.arange(4.0))
        assert_array_equal(zarr.open_group(store.url, mode="r")["system-0/x"][:], np.arange(4.0))

    def test_names_below_a_url_and_free_space(self, tmp_path):
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


def places(value, path=()):
    """Paths of all values within a value of JSON."""
    found = [path] if path else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        found += places(one, (*path, key))
    return found


def changed(data, description):
    """Description with one value replaced, removed or added."""
    copy = json.loads(json.dumps(description))
    path = data.draw(st.sampled_from(places(copy)))
    parent = copy
    for key in path[:-1]:
        parent = parent[key]
    if isinstance(parent, dict) and data.draw(st.integers(0, 3)) == 3:
        del parent[path[-1]]
    else:
        parent[path[-1]] = data.draw(JSON)
    return copy


def fitted(store):
    rows, settings = da.from_array(X, chunks=12), {"kernel": "rbf", "alpha": 0.1, "solver": "cg", "tile": 12}
    return dkrr.KernelRidge(**settings, store=str(store)).fit(rows, X[:, 0])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "m.zarr"
    kernel = dkrr.kernels.RBF(0.3) + dkrr.kernels.Polynomial(degree=2, gamma=1.0, coef0=1.0)
    dkrr.save(dkrr.KernelRidge(kernel=kernel, fit_intercept=True).fit(X, X[:, 0]), folder)
    return folder, read_group(str(folder))


@given(data=st.data())
def test_a_model_with_anything_in_its_description_is_used_or_refused(model, data):
    folder, description = model
    write_group(str(folder), changed(data, description))
    for use in (lambda: dkrr.load(folder).predict(X), lambda: dkrr.verify(folder)):
        with contextlib.suppress(DkrrError):
            use()


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
