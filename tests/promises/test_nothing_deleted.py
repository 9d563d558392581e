"""Nothing that dkrr did not write is deleted or changed, and no name from data becomes a path."""

import ast
import hashlib
import os
import random
import shutil
import unicodedata
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
from dkrr.tiles import RunStore, replacing
from dkrr.tiles.paths import MAX_NAME_BYTES, file_name, resolved_place

PARTS = (
    *("..", ".", "", "/", "\\", "../../precious", "../../../precious/thesis", "..\\..", "precious", "a//b", "km/h"),
    *("zarr.json", "c", "c/0", "0", "__proto__", ".dkrr-lock", ".zgroup", "rows", "~", "~root", "$HOME", "%2e%2e", "%"),
    *(
        " ",
        "\t",
        "\n",
        "\r",
        "\x1b[31m",
        "\x00",
        "\x7f",
        "\u202e",
        "\u200f",
        "\ufeff",
        "-rf",
        "--out",
        "*",
        "?",
        "|",
        ";",
    ),
    *(
        "é",
        unicodedata.normalize("NFD", "é"),
        "ﬁ",
        "日本語",
        "Ω",
        "İ",
        "😀",
        "x" * 300,
        "é" * 150,
        "x/" * 60,
        "con",
        "NUL",
    ),
)
ORDINARY = ("delay", "arr_delay", "Verspätung", "km per hour", "x.y", "A1", "日本")


def names(n):
    """So many different names: every part alone, and parts together."""
    rng, found = random.Random(0), dict.fromkeys((*ORDINARY, *PARTS))
    while len(found) < n:
        found["".join(rng.choices([*PARTS, *ORDINARY], k=rng.randint(2, 4)))] = None
    return list(found)


NIGHT = [pytest.mark.nightly, pytest.mark.guard]


def few_or_many(few, many):
    """So many names in the fast suite, and more at night."""
    return pytest.mark.parametrize("n", [few, pytest.param(many, marks=NIGHT)])


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


def table(columns):
    """A column with the rows, and one with every name."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(rng.normal(size=(6, len(columns))), columns=columns).assign(**{"the rows": np.arange(6.0)})


X = pd.DataFrame({"the rows": np.arange(6.0)})
RIDGE = dkrr.KernelRidge().fit(X, np.arange(6.0))
ENDS = (".zarr", ".parquet", ".csv", ".arrow", ".feather", ".npy")


class TestNamesInData:
    """Names of columns, targets and classes."""

    @few_or_many(60, 1000)
    @pytest.mark.parametrize("end", ENDS)
    def test_any_name_of_a_target_is_a_column_and_not_a_path(self, home, tmp_path, end, n):
        model = dkrr.KernelRidge().fit(X, table(names(n)).drop(columns="the rows"))
        before = snapshot(tmp_path)
        dkrr.save(model, "m.zarr")
        dkrr.predict_to(dkrr.load("m.zarr"), X, f"p{end}")
        dkrr.predict_to(dkrr.load("m.zarr"), X, f"p{end}", overwrite=True)
        assert unchanged(before, tmp_path, home / "m.zarr", home / f"p{end}")

    @few_or_many(60, 1000)
    @pytest.mark.parametrize("end", [".zarr", ".parquet", ".csv", ".arrow"])
    def test_any_name_of_a_kept_column_is_a_column_and_not_a_path(self, home, tmp_path, end, n):
        frame, before = table(names(n)).drop(columns=""), snapshot(tmp_path)
        for _ in range(2):
            dkrr.predict_to(RIDGE, frame, f"p{end}", keep=list(frame), overwrite=True)
        assert unchanged(before, tmp_path, home / f"p{end}")
        if end == ".zarr":
            group = zarr.open_group("p.zarr", mode="r")
            known = group.attrs["dkrr"]["columns"]
            assert sorted(known.values()) == sorted([*frame, "prediction"]) and sorted(group) == sorted(known)
            for folder, name in known.items():
                if name != "prediction":
                    np.testing.assert_array_equal(group[folder][:], frame[name])
            assert all(known[name] == name for name in ORDINARY)

    @pytest.mark.parametrize("end", [".zarr", ".parquet", ".csv"])
    def test_any_name_of_a_class_is_a_column_and_not_a_path(self, home, tmp_path, end):
        some = names(1000)[:24]
        model = dkrr.KernelLogisticRegression().fit(np.arange(48.0)[:, None], np.array(2 * some, object))
        before = snapshot(tmp_path)
        dkrr.save(model, "m.zarr")
        model = dkrr.load("m.zarr")
        frame = pd.DataFrame({0: np.arange(3.0)}, index=pd.Index(["a", "b", "c"], name="../../precious"))
        for overwrite in (False, True):
            dkrr.predict_to(model, frame, f"p{end}", probabilities=True, overwrite=overwrite)
        assert unchanged(before, tmp_path, home / "m.zarr", home / f"p{end}")


PLACES = [name for name in names(200) if "\0" not in name]


def fit(store):
    dkrr.KernelRidge(kernel="rbf", tile=4, store=store).fit(X.to_numpy(), np.arange(6.0))


def search(store):
    dkrr.KernelRidgeCV([1.0], kernel="rbf", cv=2, tile=4, store=store, solver="cg").fit(X.to_numpy(), np.arange(6.0))


WAYS = {
    "save": lambda path: dkrr.save(RIDGE, path),
    "save over": lambda path: dkrr.save(RIDGE, path, overwrite=True),
    "store": fit,
    "search": search,
    "gram": lambda path: dkrr.gram(X.to_numpy(), chunks=4, store=path),
    "report": lambda path: dkrr.report(RIDGE, path),
    **{
        end: lambda path, end=end: dkrr.predict_to(RIDGE, X, f"{path}{end}", overwrite=True)
        for end in (".zarr", ".csv")
    },
}


class TestNamesOfPlaces:
    """Paths of models, stores and outputs."""

    @few_or_many(14, 100)
    @pytest.mark.parametrize("way", WAYS)
    def test_any_path_from_python_writes_there_only_or_is_refused(self, home, tmp_path, way, n):
        worked = []
        for name in PLACES[:n]:
            for path in (name, f"out/{name}"):
                written = Path(os.path.realpath(path + (way if way in ENDS else "")))
                if tmp_path not in written.parents:
                    continue  # "/", which is nobody's business here
                before = snapshot(tmp_path)
                try:
                    WAYS[way](path)
                except DkrrError:
                    assert unchanged(before, tmp_path)
                else:
                    worked.append(path)
                    if way == "search":  # stores in a folder, which may be another's
                        places = [written / "kernel-0", written / "fit"]
                    else:
                        places = [written]
                        assert before.get(written) in (None, "folder") and not any(written in p.parents for p in before)
                    assert unchanged(before, tmp_path, *places)
                    for place in places:
                        shutil.rmtree(place) if place.is_dir() else place.unlink()
        assert {f"out/{name}" for name in ORDINARY} <= set(worked)


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

    def test_a_target_with_the_path_of_a_folder_is_a_column(self, home, tmp_path):
        frame = pd.DataFrame({"a": np.arange(9.0), "id": range(9)})
        dkrr.save(dkrr.KernelRidge().fit(frame[["a"]], frame.a.rename("../../precious")), "m.zarr")
        before = snapshot(tmp_path)
        assert dkrr.predict_to(dkrr.load("m.zarr"), frame, "out/p.zarr", keep="id") == (9,)
        assert unchanged(before, tmp_path, home / "out" / "p.zarr")
        group = zarr.open_group("out/p.zarr", mode="r")
        assert sorted(group) == ["%2E.%2F..%2Fprecious", "id"]

    def test_a_model_with_other_files_is_not_replaced(self, home, tmp_path):
        dkrr.save(RIDGE, "m.zarr")
        for name in ("notes.txt", "coef/c.0.0.bak", "c.0.x", "mine/c.0.0", "coef/..zarr"):
            path = home / "m.zarr" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text("mine")
            before = snapshot(tmp_path)
            with pytest.raises(InputError, match=f"'{name}' in it was not written by dkrr"):
                dkrr.save(RIDGE, "m.zarr", overwrite=True)
            assert unchanged(before, tmp_path)
            path.unlink()
            shutil.rmtree(home / "m.zarr" / "mine", ignore_errors=True)
        for make in (Path.mkdir, lambda path: path.symlink_to(home / "precious")):
            make(home / "m.zarr" / "more")
            with pytest.raises(InputError, match="'more' in it"):
                dkrr.save(RIDGE, "m.zarr", overwrite=True)
            (home / "m.zarr" / "more").unlink() if (home / "m.zarr" / "more").is_symlink() else (
                home / "m.zarr" / "more"
            ).rmdir()
        dkrr.save(RIDGE, "m.zarr", overwrite=True)
        assert dkrr.verify("m.zarr").is_whole

    @pytest.mark.parametrize("method", ["one step", "two renames"])
    def test_what_comes_into_a_model_while_it_is_replaced_stays(self, home, monkeypatch, method):
        if method == "two renames":
            monkeypatch.setattr(replacing, "_renameat2", lambda: None)
        dkrr.save(RIDGE, "m.zarr")
        move = replacing._move

        def late(*args, **named):
            (home / "m.zarr" / "notes.txt").write_text("mine")
            move(*args, **named)

        monkeypatch.setattr(replacing, "_move", late)
        dkrr.save(RIDGE, "m.zarr", overwrite=True)
        (left,) = home.glob(".dkrr-*")
        assert [p.name for p in left.iterdir()] == ["notes.txt"] and dkrr.verify("m.zarr").is_whole

    @pytest.mark.parametrize("kind", ["array", "group"])
    def test_zarr_arrays_of_users_are_not_replaced(self, home, tmp_path, kind):
        if kind == "array":
            zarr.create_array("p.zarr", shape=(3,), dtype="f8")[:] = 1.0
        else:
            zarr.create_group("p.zarr", attributes={"dkrr": {"kind": "my own"}})
        before = snapshot(tmp_path)
        with pytest.raises(InputError, match="is not an array or a group of predictions"):
            dkrr.predict_to(RIDGE, X, "p.zarr", overwrite=True)
        assert unchanged(before, tmp_path)

    def test_predictions_with_other_files_are_not_replaced(self, home, tmp_path):
        dkrr.predict_to(RIDGE, X.assign(k=0), "p.zarr", keep="k")
        for name in ("notes.txt", "k/c/1x", "k/mine"):
            Path("p.zarr", name).write_text("mine")
            before = snapshot(tmp_path)
            with pytest.raises(InputError, match="was not written by dkrr"):
                dkrr.predict_to(RIDGE, X, "p.zarr", overwrite=True)
            assert unchanged(before, tmp_path)
            Path("p.zarr", name).unlink()
        dkrr.predict_to(RIDGE, X, "p.zarr", overwrite=True)

    def test_forged_columns_of_predictions_list_nothing_elsewhere(self, home, tmp_path):
        attributes = {"dkrr": {"kind": "predictions", "columns": {"../precious": "a", "..": "b", "": "c", "link": "d"}}}
        zarr.create_group("p.zarr", attributes=attributes)
        (home / "p.zarr" / "link").symlink_to(home / "precious")
        before = snapshot(tmp_path)
        with pytest.raises(InputError, match="'link' in it was not written by dkrr"):
            dkrr.predict_to(RIDGE, X, "p.zarr", overwrite=True)
        (home / "p.zarr" / "link").unlink()
        dkrr.predict_to(RIDGE, X, "p.zarr", overwrite=True)
        assert unchanged(before, tmp_path, home / "p.zarr")

    def test_a_run_leaves_what_others_put_into_its_store(self, home):
        settings = {"kernel": "rbf", "tile": 16, "solver": "cg", "store": "run.zarr"}
        rows = np.random.default_rng(0).normal(size=(48, 2))
        dkrr.KernelRidge(**settings).fit(rows, rows[:, 0])
        store = RunStore(resolved_place("run.zarr"))
        mine = [
            home / "run.zarr" / name for name in ("notes.txt", "video.partial", "weights/notes.txt", "system-0/c.0.0/a")
        ]
        for path in mine:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("mine")
        dkrr.KernelRidge(**settings).fit(rows, rows[:, 0])
        for name in [*(name for name, _ in store.arrays()), "weights", "system-0"]:
            store.delete(name)
        store.delete()
        assert all(path.read_text() == "mine" for path in mine)
        left = {path for path in (home / "run.zarr").rglob("*") if path.is_file()}
        assert left == set(mine)

    def test_a_folder_with_hidden_files_is_not_a_store(self, home, tmp_path):
        (home / "project" / ".git").mkdir(parents=True)
        before = snapshot(tmp_path)
        with pytest.raises(StoreError, match="is not the store of a dkrr run"):
            fit("project")
        assert unchanged(before, tmp_path)

    def test_a_report_replaces_only_reports(self, home):
        dkrr.report(RIDGE, "r.html")
        dkrr.report(RIDGE, "r.html")
        (home / "thesis.html").write_text("<!DOCTYPE html>")
        os.mkfifo("pipe.html")
        (home / "device.html").symlink_to(os.devnull)
        for name in ("thesis.html", "pipe.html", "device.html"):
            before = snapshot(home, "pipe.html")
            with pytest.raises(InputError, match="is not a report of dkrr"):
                dkrr.report(RIDGE, name)
            assert snapshot(home, "pipe.html") == before and Path(os.devnull).is_char_device()

    def test_folders_beside_lock_files_of_others_stay(self, home):
        """As of the package filelock, which leaves an empty file beside what it locks."""
        from dkrr.runtime.folders import delete_abandoned

        for name in ("dkrr-results1", "dkrr-fit-12345678", "dkrr-abcd1234"):
            (home / name).mkdir()
            (home / name / "data").write_text("mine")
            (home / f"{name}.lock").touch()
            os.utime(home / f"{name}.lock", (0, 0))
        before = snapshot(home)
        assert delete_abandoned(str(home)) == [] and snapshot(home) == before


class TestEnclosing:
    """Stores, models and outputs with the current folder, an input or another output in them."""

    def refused(self, before, root, call, match):
        with pytest.raises(InputError, match=match):
            call()
        assert unchanged(before, root)

    def test_a_store_may_not_hold_the_current_folder_or_an_input(self, home, tmp_path):
        np.save("x.npy", np.ones((6, 2)))
        fit("run.zarr")
        (home / "run.zarr" / "inside").mkdir()
        np.save("run.zarr/inside/x.npy", np.ones((6, 2)))
        before = snapshot(tmp_path)
        rows, y = np.ones((6, 2)), np.arange(6.0)
        estimator = dkrr.KernelRidge(tile=4, store="run.zarr")
        self.refused(before, tmp_path, lambda: estimator.fit("run.zarr/inside/x.npy", y), "a folder that holds X")
        self.refused(before, tmp_path, lambda: estimator.fit(rows, "run.zarr/inside/x.npy"), "a folder that holds y")
        mapped = np.load("run.zarr/inside/x.npy", mmap_mode="r")
        self.refused(before, tmp_path, lambda: estimator.fit(mapped, y), "a folder that holds X")
        for store in ("s/..", ".", "..", "../home", "link/..", str(home), f"file://{home}/x/.."):
            for way in ("store", "search", "gram"):
                call = partial(WAYS[way], store)
                self.refused(before, tmp_path, call, "holds the current folder|the same place as")
        os.chdir("run.zarr/inside")
        self.refused(before, tmp_path, lambda: fit(".."), "a folder that holds the current folder")

    def test_an_output_may_not_hold_an_input_or_the_current_folder(self, home, tmp_path):
        frame = X.assign(k=1)
        frame.to_csv("x.csv", index=False)
        dkrr.save(RIDGE, "m.zarr")
        dkrr.predict_to(RIDGE, frame, "p.zarr", keep="k")
        before = snapshot(tmp_path)
        over = {"overwrite": True}
        self.refused(before, tmp_path, lambda: dkrr.predict_to(RIDGE, "x.csv", "x.csv", **over), "the same place as X")
        self.refused(before, tmp_path, lambda: dkrr.predict_to(RIDGE, "p.zarr/k", "p.zarr", **over), "that holds X")
        open_array = zarr.open_array("p.zarr/k", mode="r")
        self.refused(before, tmp_path, lambda: dkrr.predict_to(RIDGE, open_array, "p.zarr", **over), "that holds X")
        self.refused(before, tmp_path, lambda: dkrr.report("m.zarr", "m.zarr"), "out is")
        os.chdir("m.zarr")
        self.refused(before, tmp_path, lambda: dkrr.save(RIDGE, "../m.zarr", **over), "the current folder")

    @pytest.mark.parametrize(
        "arguments",
        [
            "fit --x x.npy --y x.npy --model m.zarr --store m.zarr",
            "fit --x x.npy --y x.npy --model run/m.zarr --store run",
            "fit --x x.npy --y x.npy --model m.zarr --store m.zarr/run",
            "fit --x x.npy --y x.npy --model x.npy --overwrite",
            "fit --x x.npy --y x.npy --model m.zarr --store s/..",
            "fit --x data/x.npy --y x.npy --model m.zarr --store data",
            "select --x x.npy --y x.npy --alphas 1 --model m.zarr --store .",
            "select --x x.npy --y x.npy --alphas 1 --model s/m.zarr --store s",
            "predict --model m.zarr --x x.npy --out x.npy --overwrite",
        ],
    )
    def test_the_command_line_refuses_the_same_places(self, home, tmp_path, arguments):
        for path in ("x.npy", "data/x.npy"):
            Path(path).parent.mkdir(exist_ok=True)
            np.save(path, np.ones((6, 1)))
        before = snapshot(tmp_path)
        done = CliRunner().invoke(cli.dkrr, arguments.split())
        assert done.exit_code == 2 and "expected a path of its own" in done.stderr, done.stderr
        assert unchanged(before, tmp_path)


class TestNamesOnTheCommandLine:
    @few_or_many(10, 80)
    def test_any_name_as_a_place_on_the_command_line_writes_there_only(self, home, tmp_path, n):
        np.save("x.npy", np.arange(6.0)[:, None])
        dkrr.save(RIDGE, "given.zarr")
        commands = {
            "--model": ["fit", "--x", "x.npy", "--y", "x.npy"],
            "--out": ["predict", "--model", "given.zarr", "--x", "x.npy", "--overwrite"],
            "--store": [
                "fit",
                "--x",
                "x.npy",
                "--y",
                "x.npy",
                "--model",
                "m.zarr",
                "--tile",
                "4",
                "--overwrite",
                "--kernel",
                "rbf",
            ],
        }
        for option, command in commands.items():
            worked = set()
            for name in PLACES[:n]:
                path = f"out/{name}.csv" if option == "--out" else f"out/{name}"
                written = Path(os.path.realpath(path))
                before = snapshot(tmp_path)
                done = CliRunner().invoke(cli.dkrr, [*command, f"{option}={path}"])
                assert done.exit_code in (0, 1, 2) and (
                    done.exception is None or isinstance(done.exception, SystemExit)
                )
                if done.exit_code:
                    assert unchanged(before, tmp_path) and ("dkrr: " in done.stderr or "Usage: " in done.stderr)
                    continue
                worked.add(name)
                assert unchanged(before, tmp_path, written, home / "m.zarr")
                assert before.get(written) in (None, "folder") and not any(written in p.parents for p in before)
                shutil.rmtree(written) if written.is_dir() else written.unlink()
            assert set(ORDINARY) <= worked


DELETES = {
    ("runtime/local_server.py", "rmtree"),
    ("tiles/buckets.py", "delete"),
    ("tiles/lock.py", "ftruncate"),
    ("tiles/mapped.py", "truncate"),
    ("tiles/replacing.py", "replace"),
    ("tiles/replacing.py", "rename"),
    ("tiles/replacing.py", "rmdir"),
    ("tiles/replacing.py", "rmtree"),
    ("tiles/replacing.py", "unlink"),
}
"""Calls that delete or replace, by module: decision 17 says of each what guards it."""
NAMES = {
    *("unlink", "rmdir", "removedirs", "rmtree", "rename", "renames", "copytree", "copyfile", "rm", "rm_file"),
    *("truncate", "ftruncate"),
}


def calls():
    package = Path(dkrr.__file__).parent
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            of = node.func.value if isinstance(node.func, ast.Attribute) else None
            is_replace = name == "replace" and len(node.args) + len(node.keywords) == (2 if is_named(of, "os") else 1)
            is_system = (is_named(of, "os") and name == "remove") or (is_named(of, "shutil") and name == "move")
            is_library = name == "delete" and isinstance(of, ast.Attribute) and of.attr == "_library"
            where = str(file.relative_to(package))
            if name in NAMES or is_replace or is_system or is_library:
                yield where, name
            assert not any(k.arg == "overwrite" and "zarr" in ast.unparse(node.func) for k in node.keywords), where
            assert not (name == "open_memmap" and "w" in ast.unparse(node)), f"{where} maps a file that it writes"


def is_named(node, name):
    return isinstance(node, ast.Name) and node.id == name


def test_only_one_module_deletes_and_replaces():
    assert set(calls()) == DELETES
