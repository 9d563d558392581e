"""Nothing that dkrr did not write is deleted or changed, and no name from data becomes a path."""

import hashlib
import os
import random
import re
import shutil
import unicodedata
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import zarr
from click.testing import CliRunner

import dkrr
from dkrr import cli
from dkrr.errors import DkrrError, InputError, StoreError
from dkrr.store import RunStore, replacing
from dkrr.store.paths import MAX_NAME_BYTES, file_name, resolved_place

PARTS = (
    *("..", ".", "", "/", "\\", "../../precious", "../../../precious/thesis", "..\\..", "precious", "a//b", "km/h"),
    *("zarr.json", "c", "c/0", "0", "__proto__", ".dkrr-lock", ".zgroup", "rows", "~", "~root", "$HOME", "%2e%2e", "%"),
    *("\x1b[31m", "-rf", "--out", "日本語", "x" * 300, "é" * 150, "x/" * 60, "con", "NUL", "é"),
    *" \t\n\r\x00\x7f\u202e\u200f\ufeff*?|;ﬁΩİ😀",
    unicodedata.normalize("NFD", "é"),
)
ORDINARY = ("delay", "arr_delay", "Verspätung", "km per hour", "x.y", "A1", "日本")


def names(n):
    """So many different names: every part alone, and parts together."""
    rng, found = random.Random(0), dict.fromkeys((*ORDINARY, *PARTS))
    while len(found) < n:
        found["".join(rng.choices([*PARTS, *ORDINARY], k=rng.randint(2, 4)))] = None
    return list(found)


def few_or_many(few, many):
    """So many names in the fast suite, and more at night."""
    return pytest.mark.parametrize("n", [few, pytest.param(many, marks=[pytest.mark.nightly, pytest.mark.guard])])


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Current folder in others with files that are nobody's business."""
    folder = tmp_path / "1" / "2" / "3" / "4" / "home"
    for where in (tmp_path, folder.parent.parent, folder.parent, folder, folder / "out"):
        (where / "precious" / "thesis").mkdir(parents=True)
        (where / "precious" / "thesis" / "chapter.tex").write_text("years of work")
        (where / "precious" / "zarr.json").write_text("{}")
        (where / ".git").mkdir()
        (where / ".git" / "config").write_text("[core]")
    (folder / "link").symlink_to(folder / "precious")
    (folder / "out" / "rows").mkdir()
    (folder / "out" / "c").write_text("notes")
    monkeypatch.chdir(folder)
    np.save("x.npy", np.arange(6.0)[:, None])
    return folder


def snapshot(root, but=""):
    """All below a folder: what each folder, link and file is, but for a pipe with this name."""
    found = {}
    for folder, folders, files in os.walk(root):
        for path in (Path(folder) / name for name in (*folders, *files) if name != but):
            if path.is_symlink():
                found[path] = str(path.readlink())
            else:
                found[path] = "folder" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def unchanged(before, root, *written):
    """Whether all is as it was, but for what is at some places, and for new folders on the way to them."""
    after = snapshot(root)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    own = {path for path in changed if any(place in (path, *path.parents) for place in written)}
    new = {path for path in changed - own if any(path in place.parents for place in written) and path not in before}
    assert changed == own | new, sorted(changed - own - new)
    return True


@contextmanager
def refused(root, match, kind=InputError):
    """A call that is refused, and changes nothing below a folder."""
    before = snapshot(root)
    with pytest.raises(kind, match=match):
        yield
    assert unchanged(before, root)


def table(columns):
    """A column with the rows, and one with every name."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(rng.normal(size=(6, len(columns))), columns=columns).assign(**{"the rows": np.arange(6.0)})


X = pd.DataFrame({"the rows": np.arange(6.0)})
RIDGE = dkrr.KernelRidge().fit(X, np.arange(6.0))


ENDS = {
    "target": (".zarr", ".parquet", ".csv", ".arrow", ".feather", ".npy"),
    "kept column": (".zarr", ".parquet", ".csv", ".arrow"),
    "class": (".zarr", ".parquet", ".csv"),
}
"""Formats for names in data."""


@few_or_many(60, 1000)
@pytest.mark.parametrize(("what", "end"), [(what, end) for what, ends in ENDS.items() for end in ends])
def test_any_name_in_data_is_a_column_and_not_a_path(home, tmp_path, what, end, n):
    some, model, rows, options = names(n), RIDGE, table(names(n)).drop(columns=""), {}
    if what == "target":
        model, rows = dkrr.KernelRidge().fit(X, rows.drop(columns="the rows")), X
    elif what == "class":
        model = dkrr.KernelLogisticRegression().fit(np.arange(48.0)[:, None], np.array(2 * some[:24], object))
        rows, options = pd.DataFrame({0: np.arange(3.0)}), {"probabilities": True}
        rows.index = pd.Index(["a", "b", "c"], name="../../precious")
    else:
        options = {"keep": list(rows)}
    before = snapshot(tmp_path)
    dkrr.save(model, "m.zarr")
    for _ in range(2):
        dkrr.predict_to(dkrr.load("m.zarr"), rows, f"p{end}", overwrite=True, **options)
    assert unchanged(before, tmp_path, home / "m.zarr", home / f"p{end}")
    if (what, end) == ("kept column", ".zarr"):
        group = zarr.open_group("p.zarr", mode="r")
        known = group.attrs["dkrr"]["columns"]
        assert sorted(known.values()) == sorted([*rows, "prediction"]) and sorted(group) == sorted(known)
        for folder in set(known) - {"prediction"}:
            np.testing.assert_array_equal(group[folder][:], rows[known[folder]])
        assert all(known[name] == name for name in ORDINARY) and known["%2E.%2F..%2Fprecious"] == "../../precious"


def fit(store):
    dkrr.KernelRidge(kernel="rbf", tile=4, store=store).fit(X.to_numpy(), np.arange(6.0))


def search(store):
    dkrr.KernelRidgeCV([1.0], kernel="rbf", cv=2, tile=4, store=store, solver="cg").fit(X.to_numpy(), np.arange(6.0))


def run(arguments, path):
    """The same on the command line: a command that ends with an option, whose value is the path."""
    *others, option = arguments.split()
    done = CliRunner().invoke(cli.dkrr, [*others, f"{option}={path}"])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    if done.exit_code:
        assert done.exit_code in (1, 2) and ("dkrr: " in done.stderr or "Usage: " in done.stderr)
        raise DkrrError(done.stderr)


PLACES = [name for name in names(200) if "\0" not in name]
METHODS = {
    "save": partial(dkrr.save, RIDGE),
    "save over": partial(dkrr.save, RIDGE, overwrite=True),
    "store": fit,
    "search": search,
    "gram": lambda path: dkrr.gram(X.to_numpy(), chunks=4, store=path),
    "report": partial(dkrr.report, RIDGE),
    "predict .zarr": partial(dkrr.predict_to, RIDGE, X, overwrite=True),
    "predict .csv": partial(dkrr.predict_to, RIDGE, X, overwrite=True),
    "fit --model": partial(run, "fit --x x.npy --y x.npy --model"),
    "fit --store": partial(run, "fit --x x.npy --y x.npy --tile 4 --kernel rbf --overwrite --model m.zarr --store"),
    "predict --out .csv": partial(run, "predict --model given.zarr --x x.npy --overwrite --out"),
}


@few_or_many(8, 100)
@pytest.mark.parametrize("way", METHODS)
def test_any_path_writes_there_only_or_is_refused(home, tmp_path, way, n):
    dkrr.save(RIDGE, "given.zarr")
    worked = set()
    for path in (folder + name for name in PLACES[:n] for folder in ("", "out/")):
        place = path + Path(way).suffix
        written = Path(os.path.realpath(place))
        if tmp_path not in written.parents:
            continue  # "/", which is nobody's business here
        before = snapshot(tmp_path)
        try:
            METHODS[way](place)
        except DkrrError:
            assert unchanged(before, tmp_path)
            continue
        worked.add(path)
        places = [written]
        if way == "search":  # stores in a folder, which may be another's
            places = [written / "kernel-0", written / "fit"]
        else:
            assert before.get(written) in (None, "folder") and not any(written in p.parents for p in before)
        assert unchanged(before, tmp_path, *places, *[home / "m.zarr"] * (way == "fit --store"))
        for one in places:
            shutil.rmtree(one) if one.is_dir() else one.unlink()
    assert {f"out/{name}" for name in ORDINARY} <= worked


def test_places_are_one_form_of_what_users_write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for path in ("a", "./a", "b/../a", "link", f"{tmp_path}/a", f"file://{tmp_path}//a/", "link/."):
        assert resolved_place(path) == f"{tmp_path}/a"
    assert resolved_place("s3://bucket/a/") == "s3://bucket/a"
    for url in ("s3://bucket/../a", "s3://bucket/a/./b"):
        with pytest.raises(InputError, match="a part '.' or '..'"):
            resolved_place(url)


def test_file_names_are_plain_and_of_one_text_each():
    texts = [*names(3000), "\ud800", *("y" * k for k in range(190, 210))]
    found = [file_name(text) for text in texts]
    assert len(set(found)) == len(texts)
    for name in found:
        assert name not in ("", ".", "..", "zarr.json") and not name.startswith((".", "__"))
        assert "/" not in name and "\\" not in name and name.isprintable() and len(name.encode()) <= MAX_NAME_BYTES
    assert [file_name(name) for name in ORDINARY] == list(ORDINARY)


class TestForeignFiles:
    """What others put into folders of dkrr's stays, and the folders are not replaced."""

    @pytest.mark.parametrize("name", ["a.txt", "coef/c.0.0.bak", "c.0.x", "mine/c.0.0", "coef/..zarr", "more", "link"])
    def test_a_model_with_other_files_is_not_replaced(self, home, tmp_path, name):
        for _ in range(2):
            dkrr.save(RIDGE, "m.zarr", overwrite=True)
        assert dkrr.verify("m.zarr").is_whole
        path = home / "m.zarr" / name
        path.parent.mkdir(exist_ok=True)
        other = {"link": lambda path: path.symlink_to("precious"), "more": Path.mkdir}
        other.get(name, lambda path: path.write_text("mine"))(path)
        with refused(tmp_path, f"'{name}' in it was not written by dkrr"):
            dkrr.save(RIDGE, "m.zarr", overwrite=True)

    @pytest.mark.parametrize("method", ["one step", "two renames"])
    def test_what_comes_into_a_model_while_it_is_replaced_stays(self, home, monkeypatch, method):
        if method == "two renames":
            monkeypatch.setattr(replacing, "exchanged", lambda first, second: False)
        dkrr.save(RIDGE, "m.zarr")
        move = replacing._move

        def late(*args, **named):
            (home / "m.zarr" / "notes.txt").write_text("mine")
            move(*args, **named)

        monkeypatch.setattr(replacing, "_move", late)
        dkrr.save(RIDGE, "m.zarr", overwrite=True)
        (left,) = home.glob(".dkrr-*")
        assert [p.name for p in left.iterdir()] == ["notes.txt"] and dkrr.verify("m.zarr").is_whole

    @pytest.mark.parametrize("name", ["notes.txt", "k/c/1x", "k/mine"])
    def test_predictions_with_other_files_are_not_replaced(self, home, tmp_path, name):
        for _ in range(2):
            dkrr.predict_to(RIDGE, X.assign(k=0), "p.zarr", keep="k", overwrite=True)
        Path("p.zarr", name).write_text("mine")
        with refused(tmp_path, "was not written by dkrr"):
            dkrr.predict_to(RIDGE, X, "p.zarr", overwrite=True)

    def test_forged_predictions_list_nothing_elsewhere_and_arrays_of_users_are_not_replaced(self, home, tmp_path):
        columns = {"../precious": "a", "..": "b", "": "c", "link": "d"}
        zarr.create_group("p.zarr", attributes={"dkrr": {"kind": "predictions", "columns": columns}})
        (home / "p.zarr" / "link").symlink_to(home / "precious")
        with refused(tmp_path, "'link' in it was not written by dkrr"):
            dkrr.predict_to(RIDGE, X, "p.zarr", overwrite=True)
        before = snapshot(tmp_path)
        (home / "p.zarr" / "link").unlink()
        dkrr.predict_to(RIDGE, X, "p.zarr", overwrite=True)
        assert unchanged(before, tmp_path, home / "p.zarr")
        zarr.create_array("array.zarr", shape=(3,), dtype="f8")[:] = 1.0
        zarr.create_group("group.zarr", attributes={"dkrr": {"kind": "my own"}})
        for name in ("array.zarr", "group.zarr"):
            with refused(tmp_path, "is not an array or a group of predictions"):
                dkrr.predict_to(RIDGE, X, name, overwrite=True)

    def test_a_run_leaves_what_others_put_into_its_store(self, home):
        rows = np.random.default_rng(0).normal(size=(48, 2))
        model = dkrr.KernelRidge(kernel="rbf", tile=16, solver="cg", store="run.zarr").fit(rows, rows[:, 0])
        store = RunStore(resolved_place("run.zarr"))
        names = ("notes.txt", "video.partial", "weights/notes.txt", "system-0/c.0.0/a")
        mine = {home / "run.zarr" / name for name in names}
        for path in mine:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("mine")
        model.fit(rows, rows[:, 0])
        for name in [*(name for name, _ in store.arrays()), "weights", "system-0"]:
            store.delete(name)
        store.delete()
        assert all(path.read_text() == "mine" for path in mine)
        assert {path for path in (home / "run.zarr").rglob("*") if path.is_file()} == mine

    def test_a_folder_with_hidden_files_is_not_a_store(self, home, tmp_path):
        (home / "project" / ".git").mkdir(parents=True)
        with refused(tmp_path, "is not the store of a dkrr run", StoreError):
            fit("project")

    def test_a_report_replaces_only_reports(self, home):
        dkrr.report(RIDGE, "r.html")
        with pytest.raises(InputError, match="exists already"):
            dkrr.report(RIDGE, "r.html")
        dkrr.report(RIDGE, "r.html", overwrite=True)
        (home / "thesis.html").write_text("<!DOCTYPE html>")
        os.mkfifo("pipe.html")
        (home / "device.html").symlink_to(os.devnull)
        before = snapshot(home, "pipe.html")
        for name in ("thesis.html", "pipe.html", "device.html"):
            with pytest.raises(InputError, match="is not a report of dkrr"):
                dkrr.report(RIDGE, name, overwrite=True)
            assert snapshot(home, "pipe.html") == before and Path(os.devnull).is_char_device()


class TestEnclosing:
    """Stores, models and outputs with the current folder, an input or another output in them."""

    @pytest.mark.parametrize("way", ["store", "search", "gram"])
    def test_a_store_may_not_hold_the_current_folder_or_an_input(self, home, tmp_path, way):
        for store in ("s/..", ".", "..", "../home", "link/..", str(home), f"file://{home}/x/.."):
            with refused(tmp_path, "holds the current folder|the same place as"):
                METHODS[way](store)
        fit("run.zarr")
        (home / "run.zarr" / "inside").mkdir()
        inside, y, rows = "run.zarr/inside/x.npy", np.arange(6.0), np.ones((6, 2))
        np.save(inside, rows)
        for X, targets, name in ((inside, y, "X"), (rows, inside, "y"), (np.load(inside, "r"), y, "X")):
            with refused(tmp_path, f"a folder that holds {name}"):
                dkrr.KernelRidge(tile=4, store="run.zarr").fit(X, targets)
        os.chdir("run.zarr/inside")
        with refused(tmp_path, "a folder that holds the current folder"):
            fit("..")

    def test_an_output_may_not_hold_an_input_or_the_current_folder(self, home, tmp_path):
        X.to_csv("x.csv", index=False)
        dkrr.save(RIDGE, "m.zarr")
        dkrr.predict_to(RIDGE, X.assign(k=1), "p.zarr", keep="k")
        for rows in ("p.zarr/k", zarr.open_array("p.zarr/k", mode="r")):
            with refused(tmp_path, "that holds X"):
                dkrr.predict_to(RIDGE, rows, "p.zarr", overwrite=True)
        with refused(tmp_path, "the same place as X"):
            dkrr.predict_to(RIDGE, "x.csv", "x.csv", overwrite=True)
        with refused(tmp_path, "path is"):
            dkrr.report("m.zarr", "m.zarr")
        os.chdir("m.zarr")
        with refused(tmp_path, "the current folder"):
            dkrr.save(RIDGE, "../m.zarr", overwrite=True)
        os.chdir(home)
        with refused(tmp_path, "only such a one is overwritten"):  # through a folder that does not exist
            dkrr.save(RIDGE, "missing/../precious/thesis", overwrite=True)

    @pytest.mark.parametrize(
        "arguments",
        [
            "fit --x x.npy --y x.npy --model m.zarr --store m.zarr",
            "fit --x x.npy --y x.npy --model run/m.zarr --store run",
            "fit --x x.npy --y x.npy --model m.zarr --store m.zarr/run",
            "fit --x x.npy --y x.npy --overwrite --model x.npy",
            "fit --x out/x.npy --y x.npy --model m.zarr --store out",
            "select --x x.npy --y x.npy --alphas 1 --model m.zarr --store .",
            "select --x x.npy --y x.npy --alphas 1 --model s/m.zarr --store s",
            "predict --model m.zarr --x x.npy --overwrite --out x.npy",
        ],
    )
    def test_the_command_line_refuses_the_same_places(self, home, tmp_path, arguments):
        shutil.copy("x.npy", "out")
        *others, path = arguments.split()
        with refused(tmp_path, "expected a separate path", DkrrError):
            run(" ".join(others), path)


DELETES = {
    "cluster/dkrr_local_server.py": {"rmtree"},
    "store/buckets.py": {"obstore.delete"},
    "data/arrays.py": {"truncate"},
    "store/replacing.py": {"replace", "rename", "rmdir", "rmtree", "unlink"},
}
"""Calls that delete or replace, by module: decision 17 says of each what guards it."""
CALLS = re.compile(
    r"\b(unlink|rmdir|removedirs|rmtree|renames?|copytree|copyfile|rm|rm_file|f?truncate|os\.remove|shutil\.move"
    r"|obstore\.delete|(?<=os\.)replace|(?<=\.)replace(?=\([^,()]*\)))\("
)


def test_only_one_module_deletes_and_replaces():
    package, found = Path(dkrr.__file__).parent, {}
    for file in package.rglob("*.py"):
        code = file.read_text()
        if calls := set(CALLS.findall(code)):
            found[str(file.relative_to(package))] = calls
        assert not re.search(r"zarr[^\n]*\((?:[^()]|\([^()]*\))*\boverwrite=|open_memmap\([^)]*w", code), file
    assert found == DELETES
