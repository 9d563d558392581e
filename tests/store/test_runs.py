"""The store of a run belongs to one problem, and what is not ours is never touched."""

import contextlib
import json
import re
import shutil
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import dkrr
from dkrr.cli import dkrr as command
from dkrr.errors import DkrrError, InputError, StoreError, WrongStoreError
from dkrr.store import RunStore
from dkrr.store.description import FORMAT_VERSION
from dkrr.store.format import read_group, write_group
from dkrr.store.lock import owned
from dkrr.store.places import free_bytes, place_at
from dkrr.store.status_and_damage import TileMap, map_in_text
from tests.stores import edit, flip

FORMATS = Path(__file__).parents[2] / "docs" / "reference" / "formats.md"
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
    ({"X": changed_at(ROWS, (0, 0))}, "the values of X differ, first in rows 0 to 30. Give"),
    ({"sample_weight": changed_at(WEIGHTS, 1)}, "the sample weights"),
    ({"alpha": 0.6}, "the values of alpha differ .alpha: here .?0.6.?, in the store .?0.5.?.. Give"),
    ({"gamma": 0.4}, "the kernels"),
]
OF_VALUES = [*OF_ANY, ({"fit_intercept": True}, "fit_intercept")]
OF_CLASSES = [
    *OF_ANY,
    ({"class_weight": {0: 2.0}}, "the sample weights"),
    ({"fit_intercept": False}, "fit_intercept"),
    ({"one_vs_rest": True}, "one_vs_rest"),
]
PROBLEMS = [(dkrr.KernelRidge, ROWS[:, 0], *other) for other in OF_VALUES]
PROBLEMS += [
    pytest.param(dkrr.KernelLogisticRegression, CODES, *other, marks=[pytest.mark.nightly] * (k < len(OF_ANY)))
    for k, other in enumerate(OF_CLASSES)
]


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
    "later": (
        group_of("run", FORMAT_VERSION + 1),
        f"run of format {FORMAT_VERSION + 1}, and this version reads format",
    ),
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
def test_a_store_of_another_format_is_refused_with_the_version_that_wrote_it(tmp_path, kind):
    """With the words of the page."""
    shown = re.search(r"```text\n(.*?)\n```", FORMATS.read_text(), re.S)[1]
    assert shown.startswith("model.zarr is a dkrr model of format 2")
    words = shown.replace("dkrr model", f"dkrr {kind}").replace("model.zarr", str(tmp_path / "s"))
    write_group(str(tmp_path / "s"), {"kind": kind, "format": FORMAT_VERSION + 1, "versions": {"dkrr": "0.2.0"}})
    for use in (dkrr.verify, *([dkrr.status] if kind == "run" else [dkrr.load])):
        with pytest.raises(WrongStoreError) as caught:
            use(tmp_path / "s")
        assert str(caught.value).startswith(words)


def test_a_run_is_resumed_only_by_the_version_that_began_it(tmp_path):
    fit(dkrr.KernelRidge, tmp_path / "run.zarr")
    edit(tmp_path / "run.zarr", versions={"dkrr": "0.0.9"})
    with pytest.raises(WrongStoreError, match=r"this is .*: use dkrr 0\.0\.9, which wrote it, or give another store="):
        fit(dkrr.KernelRidge, tmp_path / "run.zarr")
    assert dkrr.status(tmp_path / "run.zarr").problem


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


# What stores hold is told as it is, and nothing damaged is called whole


INPUTS = np.random.default_rng(0).normal(size=(300, 4))
Y = INPUTS @ [1.0, -2.0, 0.5, 0.0]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Finished runs and models of several kinds."""
    folder = tmp_path_factory.mktemp("made")

    def fit(name, **settings):
        settings = {"kernel": "rbf", "alpha": 0.1, "tile": 64, "store": str(folder / name), **settings}
        return dkrr.KernelRidge(**settings).fit(da.from_array(INPUTS, chunks=100), Y)

    with dask.config.set({"dkrr.checkpoint-seconds": 0}):
        model = fit("cholesky", solver="cholesky")
        fit("cg", solver="cg")
        fit("primal", form="primal", kernel="polynomial", degree=2, solver="cholesky", tile=8)
    dkrr.gram(INPUTS, kernel="rbf", store=folder / "gram", chunks=64)
    dkrr.save(model, folder / "model")
    return folder


def command_line(*arguments):
    return CliRunner().invoke(command, [str(a) for a in arguments])


KINDS = {"cholesky": "run", "cg": "run", "primal": "run", "gram": "Gram matrix", "model": "model"}


@pytest.mark.parametrize("name", KINDS)
def test_verify_says_what_is_whole(made, name):
    found = dkrr.verify(made / name)
    assert found.is_whole and "is whole" in str(found) and found.kind == KINDS[name]
    on_disk = sum(file.stat().st_size for file in (made / name).rglob("c.*"))
    assert sum(array.n_bytes for array in found.arrays) == on_disk > 0
    if name != "model":
        assert "nothing is left" in dkrr.status(made / name).left or name == "cg"


@pytest.mark.parametrize(
    "name", [pytest.param(k, marks=[pytest.mark.nightly, pytest.mark.guard] * (k == "cg")) for k in KINDS]
)
def test_every_damaged_file_is_named(made, tmp_path, name):
    files = [file.relative_to(made / name) for file in sorted((made / name).rglob("*")) if file.is_file()]
    for number, file in enumerate(files):
        if len(file.parts) > 1 and file.name == "zarr.json" and '"group"' in (made / name / file).read_text():
            continue  # a group between has no content
        shutil.copytree(made / name, tmp_path / "copy")
        flip(tmp_path / "copy" / file, 11 * number)
        if str(file) == "zarr.json":
            with pytest.raises(StoreError, match="damaged"):
                dkrr.verify(tmp_path / "copy")
        else:
            found = dkrr.verify(tmp_path / "copy")
            assert not found.is_whole and len(found.damage) == 1, file
            assert str(file.parent) in found.damage[0] and file.name in found.damage[0]
            assert "again" in str(found)
        shutil.rmtree(tmp_path / "copy")


def test_missing_chunks_are_named(made, tmp_path):
    turn = RunStore(str(made / "cg")).note("checkpoint")["turn"]
    (rows,) = (made / "cholesky").glob("rows*")
    missing = {"model": "rows/c.0.0", "cg": f"checkpoint-{turn}/x/c.0.0", "cholesky": f"{rows.name}/c.1.0"}
    for name, chunk in missing.items():
        shutil.copytree(made / name, tmp_path / name)
        (tmp_path / name / chunk).unlink()
        found = dkrr.verify(tmp_path / name)
        assert not found.is_whole and not found.damage and chunk.split("/")[-1] in found.missing[0]


def test_status_says_how_far_a_run_is_and_shows_the_map_of_tiles(made, tmp_path):
    shutil.copytree(made / "cholesky", tmp_path / "run")
    (tmp_path / "run" / "system-0" / "factor" / "c.4.1").unlink()
    assert command_line("status", tmp_path / "run").output.endswith(
        "  system-0/factor: 14 of 15 chunks\n  ██\n  ████\n  ██████\n  ████████\n  ██░░██████\n"
    )
    assert "█" not in command_line("status", made / "cholesky").output, "what is complete"
    for chunk in ("c.4.0", "c.2.2"):
        (tmp_path / "run" / "system-0" / "factor" / chunk).unlink()
    found = dkrr.status(tmp_path / "run")
    assert found.kind == "fit" and found.problem["shape"] == [300, 4] and found.layout["tile"] == 64
    factor = next(array for array in found.arrays if array.name == "system-0/factor")
    assert (factor.present, factor.expected) == (12, 15)
    assert found.left == "3 chunks are left to compute (system-0/factor)"
    assert dkrr.verify(tmp_path / "run").is_whole, "what is yet to be computed is not missing"
    assert dkrr.status(made / "cg").checkpoint["iteration"] > 0


def test_a_map_in_text_has_a_pair_of_characters_for_a_cell():
    shares = np.where(np.tri(5, dtype=bool), np.linspace(0, 1, 25).reshape(5, 5).round(), np.nan)
    shares[4, :4] = 0.0, 0.1, 0.5, 0.9
    title, first, *_, last = map_in_text(TileMap("factor", 1234, 6972, shares)).splitlines()
    assert (title, first, last) == ("  factor: 1,234 of 6,972 chunks", "  ░░", "  ░░▒▒▓▓▓▓██")


@pytest.mark.parametrize(("columns", "side"), [(80, 10), (20, 9), (4, 1), (2, 1)])
def test_a_map_fits_into_the_terminal(tmp_path, monkeypatch, columns, side):
    monkeypatch.setenv("COLUMNS", str(columns))
    fit = dkrr.KernelRidge(kernel="rbf", alpha=0.1, tile=8, solver="cholesky", store=str(tmp_path / "run")).fit
    fit(INPUTS[:75], Y[:75])
    (tmp_path / "run" / "system-0" / "factor" / "c.9.9").unlink()
    lines = command_line("status", tmp_path / "run").output.splitlines()
    found = lines[lines.index("  system-0/factor: 54 of 55 chunks") + 1 :]
    assert [len(line) for line in found] == [2 + 2 * (k + 1) for k in range(side)]
    assert found[-1].strip("█ ") == ("▓▓" if side == 1 else "░░")


def test_status_says_who_uses_a_run(made, tmp_path):
    shutil.copytree(made / "cg", tmp_path / "run")
    with owned(str(tmp_path / "run")):
        assert "in use by this process" in str(dkrr.status(tmp_path / "run"))
    assert dkrr.status(tmp_path / "run").owner == ""


def test_status_of_a_run_that_has_not_begun(tmp_path):
    RunStore(str(tmp_path / "run")).open()
    assert "not begun" in str(dkrr.status(tmp_path / "run"))
    assert dkrr.verify(tmp_path / "run").is_whole


def test_other_things_are_not_runs_or_models(tmp_path, made):
    zarr.create_group(tmp_path / "group")
    (tmp_path / "empty").mkdir()
    for name in ("group", "empty", "nothing"):
        for use in (dkrr.verify, dkrr.status):
            with pytest.raises(StoreError, match=name):
                use(tmp_path / name)
            refused = command_line(use.__name__, tmp_path / name)
            assert refused.exit_code != 0 and name in refused.stderr and "Traceback" not in refused.stderr
    with pytest.raises(StoreError, match="is a saved model.*dkrr info"):
        dkrr.status(made / "model")


def test_verify_and_status_on_the_command_line(made, tmp_path):
    assert command_line("verify", made / "model").exit_code == 0
    assert "is whole" in command_line("verify", made / "cg").output
    found = json.loads(command_line("status", made / "cg", "--json").output)
    assert found["kind"] == "fit" and found["arrays"][0]["present"] >= 1
    assert "nothing is left" in command_line("status", made / "cholesky").output
    shutil.copytree(made / "model", tmp_path / "model")
    (tmp_path / "model" / "dual_coef" / "c.0.0").unlink()
    damaged = command_line("verify", tmp_path / "model")
    assert damaged.exit_code == 1 and "missing: chunk c.0.0" in damaged.output
