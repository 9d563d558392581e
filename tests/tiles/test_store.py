"""The store of a run belongs to one problem, and what is not ours is never touched."""

import numpy as np
import pytest
import zarr
from numpy.testing import assert_array_equal

from dkrr.errors import StoreError
from dkrr.tiles import RunStore
from dkrr.tiles.store import FORMAT_VERSION, WORDS, free_bytes

PROBLEM = {"X": "9f2c", "shape": [10, 3], "alpha": [1.0], "kernel": {"kernel": "rbf", "gamma": 0.1}, "weights": None}
LAYOUT = {"form": "dual", "tile": 5, "panel": 5, "n_update_parts": 1}


@pytest.fixture(params=["path", "bucket"])
def store(request, tmp_path, bucket):
    return RunStore(str(tmp_path / "run") if request.param == "path" else f"{bucket}/run")


def claimed(store):
    store.open()
    store.claim(PROBLEM, LAYOUT)
    return store


def contents(folder):
    return {p.relative_to(folder): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


class TestClaim:
    def test_nothing_there(self, store):
        assert store.description() is None

    def test_first(self, store):
        claimed(store)
        found = store.description()
        assert found["fingerprint"] == PROBLEM
        assert found["layout"] == LAYOUT
        assert (found["kind"], found["format"]) == ("run", FORMAT_VERSION)

    def test_an_open_store_has_no_owner(self, store):
        store.open()
        store.open()
        assert store.description()["fingerprint"] is None
        claimed(store)
        assert store.description()["fingerprint"] == PROBLEM

    def test_again(self, store):
        claimed(store)
        before = store.description()
        store.open()
        # A tuple and a list are the same to JSON; the layout of the first run stays.
        store.claim({**PROBLEM, "shape": (10, 3)}, {**LAYOUT, "tile": 7})
        assert store.description() == before

    def test_notes_of_the_run_that_began(self, store):
        store.open()
        store.claim(PROBLEM, LAYOUT, {"origins": [[0.1, 2.0], None]})
        store.claim(PROBLEM, LAYOUT, {"origins": [[0.3, 2.0], None]})
        assert store.note("origins") == [[0.1, 2.0], None]

    @pytest.mark.parametrize(
        ("field", "value"),
        [("X", "0000"), ("alpha", [2.0]), ("kernel", {"kernel": "rbf", "gamma": 0.2}), ("weights", "77ab")],
    )
    def test_mismatch_names_the_field(self, store, field, value):
        claimed(store)
        before = store.description()
        with pytest.raises(StoreError, match="another problem") as caught:
            store.claim({**PROBLEM, field: value}, LAYOUT)
        message = str(caught.value)
        assert f"{field}: here {value}, in the store {PROBLEM[field]}" in message
        assert "cannot share a store" in message and f"{WORDS.get(field, field)} differ" in message
        assert not any(f"{other}: here" in message for other in PROBLEM if other != field)
        assert store.description() == before

    def test_a_field_more_or_less_is_a_mismatch(self, store):
        claimed(store)
        with pytest.raises(StoreError, match="dtype: here float32, in the store None"):
            store.claim({**PROBLEM, "dtype": "float32"}, LAYOUT)
        with pytest.raises(StoreError, match="X: here None, in the store 9f2c"):
            store.claim({k: v for k, v in PROBLEM.items() if k != "X"}, LAYOUT)

    def test_checksums_are_not_shown(self, store):
        store.open()
        store.claim({**PROBLEM, "X": "0" * 64, "n": 5}, LAYOUT)
        with pytest.raises(StoreError) as caught:
            store.claim({**PROBLEM, "X": "f" * 64, "n": 6}, LAYOUT)
        assert "the values of X" in str(caught.value) and "(n: here 6, in the store 5). Give" in str(caught.value)
        with pytest.raises(StoreError, match="the values of X differ. Give"):
            store.claim({**PROBLEM, "X": "f" * 64, "n": 5}, LAYOUT)

    def test_deleted_during_the_run(self, store):
        claimed(store)
        store.delete()
        with pytest.raises(StoreError, match="was deleted during the run"):
            store.claim(PROBLEM, LAYOUT)

    def test_an_empty_folder_is_taken(self, tmp_path):
        claimed(RunStore(str(tmp_path)))
        assert RunStore(str(tmp_path)).description()["layout"] == LAYOUT


class TestForeign:
    def make(self, what, path):
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
        else:
            zarr.create_group(path, attributes={"dkrr": {"kind": "run", "format": FORMAT_VERSION + 1}})

    @pytest.mark.parametrize("what", ["file", "folder", "zarr group", "zarr array", "broken", "model", "later format"])
    def test_refused_and_untouched(self, tmp_path, what):
        path = tmp_path / "theirs"
        self.make(what, path)
        before = contents(tmp_path)
        store = RunStore(str(path))
        for action in (store.description, store.open, lambda: store.claim(PROBLEM, LAYOUT)):
            with pytest.raises(StoreError, match=f"{path} .*Give another store="):
                action()
        assert contents(tmp_path) == before

    def test_kind_and_format_are_named(self, tmp_path):
        self.make("model", tmp_path / "m")
        self.make("later format", tmp_path / "r")
        with pytest.raises(StoreError, match="is a saved model of dkrr, not the store of a run"):
            RunStore(str(tmp_path / "m")).description()
        with pytest.raises(StoreError, match=f"run of format {FORMAT_VERSION + 1}, not of format {FORMAT_VERSION}"):
            RunStore(str(tmp_path / "r")).description()


class TestContents:
    def test_staged_rows(self, store):
        claimed(store)
        assert store.staged_rows() is None
        store.set_staged_rows("rows-1", {"kind": "dense"})
        assert store.staged_rows() == ("rows-1", {"kind": "dense", "name": "rows-1"})
        assert store.description()["fingerprint"] == PROBLEM, "the rest of the description stays"
        claimed(store)
        assert store.staged_rows()[0] == "rows-1"
        store.set_staged_rows(None)
        assert store.staged_rows() is None

    def test_names(self):
        assert RunStore("s3://bucket/run/").at("a/b") == "s3://bucket/run/a/b"

    def test_delete_one_thing(self, store):
        claimed(store)
        for group in ("system-0", "system-1"):
            store.create_group(group)
            store.create_group(group)
            store.create_array(f"{group}/x", (4,), (2,)).fill(np.arange(4.0))
        store.delete("system-0")
        kept = store.open_array("system-1/x")
        assert_array_equal(kept.load(), np.arange(4.0))
        with pytest.raises(StoreError):
            store.open_array("system-0/x")
        assert store.description()["fingerprint"] == PROBLEM

    def test_delete_everything(self, store):
        claimed(store)
        store.create_group("g")
        store.delete()
        assert store.description() is None
        store.delete()  # nothing left to delete is not an error

    def test_the_store_is_one_zarr_hierarchy(self, store):
        claimed(store)
        store.create_group("system-0")
        store.create_array("system-0/x", (4,), (2,)).fill(np.arange(4.0))
        from dkrr.tiles.arrays import zarr_store

        group = zarr.open_group(zarr_store(store.url), mode="r")
        assert_array_equal(group["system-0/x"][:], np.arange(4.0))


class TestNotes:
    def test_none_yet(self, store):
        claimed(store)
        assert store.note("checkpoint") is None

    def test_several(self, store):
        claimed(store)
        store.set_note("checkpoint", {"turn": 1, "arrays": ["x"], "plain": "{}"})
        store.set_note("pivots", "pivots-7")
        again = RunStore(store.url)
        assert again.note("checkpoint") == {"turn": 1, "arrays": ["x"], "plain": "{}"}
        assert again.note("pivots") == "pivots-7"
        assert again.note("another") is None

    def test_the_last_value_counts(self, store):
        claimed(store)
        store.set_note("checkpoint", {"turn": 0, "more": True})
        store.set_note("pivots", "kept")
        store.set_note("checkpoint", {"turn": 1})
        assert store.note("checkpoint") == {"turn": 1}
        assert store.note("pivots") == "kept"

    def test_the_rest_of_the_description_stays(self, store):
        claimed(store)
        store.set_staged_rows("rows-1")
        before = store.description()
        store.set_note("pivots", "p")
        assert store.description() == {**before, "notes": {"pivots": "p"}}
        claimed(store)
        assert store.note("pivots") == "p", "a run that resumes finds it"

    def test_deleted_during_the_run(self, store):
        claimed(store)
        store.delete()
        for action in (lambda: store.note("pivots"), lambda: store.set_note("pivots", "p")):
            with pytest.raises(StoreError, match="was deleted during the run"):
                action()


def test_free_bytes(tmp_path):
    free = free_bytes(str(tmp_path))
    assert free == pytest.approx(free_bytes(str(tmp_path / "not" / "there" / "yet")), rel=0.2)
    assert free > 0
    assert free_bytes("s3://bucket/run") is None
