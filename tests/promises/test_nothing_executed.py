"""Models and runs from elsewhere: nothing in them is executed, followed or waited for, and no raw error comes of them.

Whoever makes such a store knows the format, so descriptions and chunks have matching checksums here.
"""

import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import time

import dask
import dask.array as da
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dkrr
from dkrr import cli
from dkrr.errors import DkrrError, InputError, StoreError
from dkrr.kernels import BagOfWords
from dkrr.tiles import RunStore, descriptions
from tests.stores import edit

X = np.random.default_rng(0).normal(size=(60, 3))
Y = X[:, 0]


@pytest.fixture
def model(tmp_path):
    dkrr.save(dkrr.KernelRidge(kernel="rbf").fit(X, Y), tmp_path / "m.zarr")
    return tmp_path / "m.zarr"


def stored(model, name, **changes):
    """Change the description of one array of a model."""
    found = descriptions.read_group(str(model))["stored"]
    edit(model, stored={**found, name: {**found[name], **changes}})


def refused(model, match=None, **arguments):
    start = time.monotonic()
    with pytest.raises(DkrrError, match=match):
        dkrr.load(model, **arguments).predict(X)
    assert time.monotonic() - start < 2, "refused before work"


class TestSizes:
    @pytest.mark.parametrize(
        "changes",
        [
            {"shape": [10**15, 3]},
            {"shape": [10**15, 3], "rows_per_chunk": 1},
            {"shape": [60, 10**15]},
            {"shape": [2**61, 2**61]},
            {"shape": [60, 3], "rows_per_chunk": 1},
            {"shape": [True, 3]},
            {"shape": [60, -3]},
            {"shape": [60.0, 3]},
            {"shape": "60"},
            {"shape": [60, 3, 1]},
            {"dtype": "O"},
            {"dtype": "object"},
            {"dtype": "float32"},
            {"dtype": ["float64"]},
            {"kind": "sparse", "n_entries": 10**15},
            {"kind": "sparse", "n_entries": None},
            {"kind": "pickle"},
        ],
        ids=str,
    )
    def test_arrays_that_claim_more_than_their_files_are_refused(self, model, changes):
        for name in ("rows", "dual_coef"):
            stored(model, name, **changes)
            refused(model)

    def test_a_million_chunks_of_one_row_are_refused(self, model):
        # As many files as there are claimed cost whoever makes them; that they are not listed one by one is the point.
        stored(model, "rows", shape=[10**8, 3], rows_per_chunk=1)
        refused(model, "chunks of another size")

    def test_large_claims_with_a_file_for_them_are_refused(self, model):
        stored(model, "rows", shape=[10**9, 3])
        stored(model, "dual_coef", shape=[10**9, 1])
        with (model / "rows" / "c.1430.0").open("wb") as file:
            file.truncate(2**24)
        refused(model)

    def test_a_large_description_is_not_read(self, model, monkeypatch):
        size = (model / "zarr.json").stat().st_size
        monkeypatch.setattr(descriptions, "MAX_BYTES", size + 2000)
        edit(model, note="x" * 3000)
        refused(model, f"at most {size + 2000}")


class TestDescriptions:
    def write(self, model, text):
        (model / "zarr.json").write_text(text)

    @pytest.mark.parametrize("depth", [100, 10**5])
    def test_deep_json_is_refused(self, model, depth):
        for opening, closing in (("[", "]"), ('{"a":', "}")):
            inner = opening * depth + "1" + closing * depth
            self.write(
                model, '{"zarr_format": 3, "node_type": "group", "attributes": {"dkrr": {"kind": ' + inner + "}}}"
            )
            refused(model, "damaged")

    def test_deep_kernels_are_refused(self, model):
        kernel = {"kernel": "rbf", "gamma": 1.0}
        for _ in range(70):
            kernel = {"kernel": "scaled", "base": kernel, "scale": 1.0}
        edit(model, kernel=kernel)
        refused(model, "deep")

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "null",
            "[]",
            "1e999",
            '{"attributes": 5}',
            '{"a": ' + "9" * 5000 + "}",
            "\x00",
            '{"attributes": {"dkrr": 5}}',
        ],
        ids=lambda text: text[:12],
    )
    def test_other_json(self, model, text):
        self.write(model, text)
        refused(model)

    @pytest.mark.parametrize(
        "kernel",
        [
            {"kernel": "os.system"},
            {"kernel": "callable", "name": "os.system", "digest": "0"},
            {"kernel": "rbf", "gamma": "__import__('os')"},
            {"kernel": "rbf", "gamma": -1.0},
            {"kernel": "rbf", "gamma": [1.0] * 10},
            {"kernel": "rbf", "gamma": {"array": "../x"}},
            {"kernel": "polynomial", "degree": 10**30},
            {"kernel": "matern", "nu": "x", "length_scale": []},
            {"kernel": "sum", "left": {"kernel": "sum"}, "right": 5},
            {"kernel": "rbf", "__class__": "x"},
            {"kernel": ["rbf"]},
        ],
        ids=str,
    )
    def test_forged_kernels_are_refused(self, model, kernel):
        edit(model, kernel=kernel)
        refused(model)

    def test_no_setting_of_a_place_is_taken_over(self, model, tmp_path):
        edit(
            model,
            parameters={"alpha": 1.0, "store": str(tmp_path / "written"), "progress": True, "kernel": "os.system"},
        )
        again = dkrr.load(model)
        assert again.store is None and again.progress is None
        again.fit(X, Y)
        assert not (tmp_path / "written").exists()

    def test_a_regular_expression_must_be_given_again(self, tmp_path):
        slow = r"(?:(a|a|b)\w?)*c"
        kernel = BagOfWords(token_pattern=slow)
        documents = ["ac aac", "bc abc", "aaac bc c"]
        fitted = dkrr.KernelRidge(kernel=kernel).fit(documents, [1.0, 2.0, 3.0])
        dkrr.save(fitted, tmp_path / "m.zarr")
        start = time.monotonic()
        for other in (None, BagOfWords()):
            with pytest.raises(InputError, match="token_pattern=.*regular expression"):
                dkrr.load(tmp_path / "m.zarr", kernel=other)
        assert time.monotonic() - start < 2
        assert np.allclose(dkrr.load(tmp_path / "m.zarr", kernel=kernel).predict(documents), fitted.predict(documents))


class TestLinks:
    @pytest.mark.parametrize("name", ["zarr.json", "rows", "rows/c.0.0", "rows/zarr.json", "intercept/c.0.0"])
    def test_links_and_devices_in_models_are_refused(self, model, tmp_path, name):
        shutil.copytree(model, tmp_path / "other")
        target = model / name
        target.rename(tmp_path / "moved")
        target.symlink_to(tmp_path / "other" / name)
        refused(model, "link")

    def test_links_that_lead_in_circles_are_refused(self, model):
        shutil.rmtree(model / "rows")
        (model / "rows").symlink_to(model)
        refused(model, "link")
        found = dkrr.verify
        with pytest.raises(StoreError, match="link"):
            found(model)

    def test_pipes_are_not_waited_for(self, model):
        for name in ("rows/c.0.0", "zarr.json"):
            (model / name).unlink()
            os.mkfifo(model / name)
            refused(model, "not a file")

    def test_links_in_runs_are_refused(self, tmp_path):
        fit = dkrr.KernelRidge(kernel="rbf", store=str(tmp_path / "run"), tile=20, solver="cholesky").fit
        fit(X, Y)
        (tmp_path / "run" / "system-0").rename(tmp_path / "elsewhere")
        (tmp_path / "run" / "system-0").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(StoreError, match="link"):
            fit(X, Y)
        for use in (dkrr.verify, dkrr.status):
            assert not [array for array in use(tmp_path / "run").arrays if "system" in array.name]


class TestRuns:
    """A run that is resumed from a store which another has made."""

    @pytest.fixture
    def fit(self, tmp_path):
        rows = da.from_array(X, chunks=20)
        model = dkrr.KernelRidge(kernel="rbf", store=str(tmp_path / "run"), tile=20, solver="cg")
        with dask.config.set({"dkrr.checkpoint-seconds": 0}):
            self.expected = model.fit(rows, Y).predict(X)
        return lambda: model.fit(rows, Y)

    @pytest.mark.parametrize(
        "rows",
        [
            "../elsewhere",
            {"name": "rows/../../x", "kind": "dense"},
            {"name": "rows", "kind": "dense", "shape": [10**15, 3], "dtype": "float64", "rows_per_chunk": None},
            {"name": "rows", "kind": "dense", "shape": [60, 3], "dtype": "O", "rows_per_chunk": None},
            5,
        ],
        ids=str,
    )
    def test_forged_copies_of_x_in_a_run_are_refused_or_made_again(self, fit, tmp_path, rows):
        edit(tmp_path / "run", rows=rows)
        try:
            found = fit()
        except StoreError:
            return
        assert np.allclose(found.predict(X), self.expected), "or it is copied again"

    @pytest.mark.parametrize(
        "notes",
        [
            {"checkpoint": {"turn": "../..", "arrays": ["x"], "plain": "{}"}},
            {"checkpoint": {"turn": 0, "arrays": ["../../x"], "plain": "{}"}},
            {"checkpoint": {"turn": 0, "arrays": [], "plain": "{}"}},
            {"checkpoint": {"turn": 0, "arrays": ["x", "residual"], "plain": "[" * 10**5}},
            {"checkpoint": 5},
            {"pivots": "../x"},
        ],
        ids=lambda notes: str(notes)[:60],
    )
    def test_forged_checkpoints_are_not_resumed(self, fit, tmp_path, notes):
        edit(tmp_path / "run", notes=notes)
        found = fit()
        assert np.allclose(found.predict(X), self.expected)

    @pytest.mark.parametrize("shape", [5, 0.5, "60 x 3", {"n": 60}, None], ids=str)
    def test_forged_shapes_in_a_run_are_refused(self, fit, tmp_path, shape):
        run = RunStore(str(tmp_path / "run")).description()
        edit(tmp_path / "run", fingerprint={**run["fingerprint"], "shape": shape})
        result = CliRunner().invoke(cli.dkrr, ["status", str(tmp_path / "run")])
        assert result.exit_code == 2 and "damaged: its X has the shape" in result.output

    @pytest.mark.parametrize("n", [10**7, 10**11, 2**52])
    def test_tiles_that_are_only_claimed(self, tmp_path, n):
        dkrr.KernelRidge(kernel="rbf", store=str(tmp_path / "run"), tile=20, solver="cholesky").fit(X, Y)
        place = tmp_path / "run" / "system-0" / "factor" / "zarr.json"
        place.write_text(json.dumps({**json.loads(place.read_text()), "shape": [n, n]}))
        start = time.monotonic()
        for use in (dkrr.status, dkrr.verify, dkrr.report):
            with contextlib.suppress(StoreError):  # or only what exists is shown
                use(tmp_path / "run")
        assert time.monotonic() - start < 5

    @pytest.mark.parametrize(
        "layout", [{"tile": -5}, {"tile": "x"}, {"panel": 7}, {"form": "cubic"}, {"more": 1}], ids=str
    )
    def test_forged_layouts_are_refused(self, fit, tmp_path, layout):
        run = RunStore(str(tmp_path / "run")).description()
        edit(tmp_path / "run", layout={**run["layout"], **layout})
        with pytest.raises(StoreError):
            fit()


def test_loading_imports_and_runs_nothing_of_the_model(model, tmp_path):
    """In a process with a limit of memory, and a current folder with a module of the name that the model has."""
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    edit(model, kernel={"kernel": "callable", "name": "evil.function", "digest": "0"}, feature_map=None)
    script = f"import dkrr\ntry:\n    dkrr.load({str(model)!r})\nexcept dkrr.errors.DkrrError:\n    print('refused')"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, resource.getrlimit(resource.RLIMIT_NPROC)),
    )
    assert done.stdout == "refused\n" and not (tmp_path / "ran").exists()
    assert json.loads((model / "zarr.json").read_text())["attributes"]["dkrr"]["kernel"]["name"] == "evil.function"


class TestTransformers:
    """A model with a transformer of its maker's choice."""

    @pytest.fixture
    def model(self, tmp_path):
        from sklearn.compose import make_column_transformer
        from sklearn.preprocessing import OneHotEncoder, StandardScaler

        rows = np.column_stack([X, np.arange(60) % 3])
        encoder = OneHotEncoder(sparse_output=False)
        transformer = make_column_transformer((encoder, [3]), remainder=StandardScaler())
        dkrr.save(dkrr.KernelRidge(kernel="rbf", transformer=transformer).fit(rows, Y), tmp_path / "m.zarr")
        return tmp_path / "m.zarr"

    def test_a_class_that_anyone_named(self, tmp_path, monkeypatch):
        """Nothing that a file names is imported, made or called; `test_transformers_saved.py` has its parts."""
        import skops.io

        (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Transformer: pass\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        data = skops.io.dumps(__import__("evil").Transformer())
        del sys.modules["evil"]
        (tmp_path / "ran").unlink()
        assert skops.io.get_untrusted_types(data=data) == ["evil.Transformer"]
        monkeypatch.setattr(
            "dkrr.transformers.saving.saved_transformer", lambda _: np.frombuffer(data, np.uint8)[:, None]
        )
        dkrr.save(dkrr.KernelRidge(transformer="standardize").fit(X, Y), tmp_path / "evil.zarr")
        assert dkrr.verify(tmp_path / "evil.zarr").is_whole
        refused(tmp_path / "evil.zarr", "'evil.Transformer', which a file cannot hold")
        assert "evil" not in sys.modules and not (tmp_path / "ran").exists()

    @pytest.mark.parametrize(
        "entry",
        [
            5,
            [],
            {},
            {"asked": None, "text": "", "n_features_in": "x"},
            {"asked": "os", "text": "", "n_features_in": 1},
        ],
        ids=str,
    )
    def test_other_json(self, model, entry):
        edit(model, transformer=entry)
        refused(model, "damaged")

    @pytest.mark.parametrize("names", [5, [], [5], ["a", None], "a"], ids=str)
    def test_forged_names_of_targets_are_refused(self, model, names):
        edit(model, target_names=names)
        refused(model, "damaged")


def missing(entries, name):
    return {key: value for key, value in entries.items() if key != name}


JUNK = [
    *(
        None,
        True,
        -1,
        10**400,
        1e308,
        float("nan"),
        float("inf"),
        "",
        "\ud800",
        "a\x1b[31m\u202e\n",
        [],
        [[]],
        [1, 2, 3, 4],
    ),
    *({}, {"a": 1}, {"kernel": "rbf"}, "x" * 5000, [0] * 5000),
]
COMMANDS = (["info"], ["info", "--json"], ["verify"], ["report", "--out", "{}.html"])


def ran(command, path):
    """A command about a model."""
    return CliRunner().invoke(cli.dkrr, [command[0], str(path), *(text.format(path) for text in command[1:])])


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forged")
    iterative = dkrr.KernelRidge(kernel="rbf", solver="cg").fit(X, np.column_stack([Y, Y]))
    labels = dkrr.KernelLogisticRegression(kernel="rbf").fit(X, np.where(Y > 0, "up", "down"))
    standardized = dkrr.KernelRidge(kernel="linear", transformer="standardize").fit(X, Y)
    found = {}
    for name, fitted in {"cg": iterative, "labels": labels, "standardized": standardized}.items():
        dkrr.save(fitted, folder / f"{name}.zarr")
        found[name] = folder / f"{name}.zarr", descriptions.read_group(str(folder / f"{name}.zarr"))
    return found


class TestForgedEntries:
    """Descriptions whose entries have other types or values than dkrr writes: one line, and no traceback."""

    @pytest.mark.parametrize(
        ("entry", "value"),
        [
            ("form", "cubic"),
            ("form", []),
            ("status", "x\x1b[31m"),
            ("status", None),
            ("residual", "1e-9"),
            ("residual", 10**400),
            ("seconds", float("nan")),
            ("seconds", -1.0),
            ("seconds", [1.0]),
            ("peak_bytes", 10**400),
            ("peak_bytes", 1.5),
            ("peak_bytes", True),
            ("tol", None),
            ("tol", float("inf")),
            ("iterations", "5"),
            ("rank", {}),
            ("history", 5),
            ("history", [[1, 2.0, 3.0]]),
            ("history", [[1, 2.0, 3.0, 1]]),
            ("history", [[1, "x", 3.0, True]]),
            ("history", {"0": []}),
        ],
        ids=str,
    )
    def test_forged_results_are_refused(self, model, entry, value):
        solve = descriptions.read_group(str(model))["solve"]
        for forged in ({**solve, entry: value}, missing(solve, entry)):
            edit(model, solve=forged)
            refused(model, f"damaged: its description has solve=.*{entry}")
            for command in COMMANDS:
                result = ran(command, model)
                assert result.exit_code == 2 and f"has solve={{'{entry}'" in result.output
                assert isinstance(result.exception, SystemExit) and result.output.count("\n") == 1

    @pytest.mark.parametrize(
        ("entry", "value"),
        [
            *(("solve", value) for value in (5, [], "x")),
            *(("versions", value) for value in (None, 5, [], {"numpy": 5})),
            *(("report", value) for value in (5, [], "x")),
            *(("request", value) for value in (5, [], {"kernel": "callable", "name": 5})),
            *(("estimator", value) for value in (None, "os.system", ["KernelRidge"], "x\n\x1b[31m")),
            *(("kernel", value) for value in ({"kernel": "words", "token_pattern": ["x"]},)),
            *(("n_features", value) for value in (10**400, True, 2.0)),
            *(("id", value) for value in (5, None)),
        ],
        ids=str,
    )
    def test_forged_entries_are_refused(self, model, entry, value):
        edit(model, **{entry: value})
        refused(model, f"damaged: its description has {entry}=")

    def test_a_dtype_of_labels_takes_no_memory_that_it_claims(self, models):
        path, description = models["labels"]
        for dtype in ("<U400000000", "V1000000000000", "<M8[s]", 5, "O"):
            edit(path, **{**description, "class_dtype": dtype})
            if dtype == "<U400000000":
                assert dkrr.load(path).classes_.dtype == "<U4", "as wide as the labels are"
            else:
                refused(path, "class_dtype=")

    def test_patterns_of_a_request_are_not_taken_over(self, tmp_path):
        dkrr.save(dkrr.KernelRidge(kernel=BagOfWords()).fit(["ac aac", "bc"], [1.0, 2.0]), tmp_path / "m.zarr")
        request = descriptions.read_group(str(tmp_path / "m.zarr"))["request"]
        edit(tmp_path / "m.zarr", request={**request, "token_pattern": r"(?:(a|a|b)\w?)*c"})
        with pytest.raises(StoreError, match="token_pattern"):
            dkrr.load(tmp_path / "m.zarr")

    @pytest.mark.filterwarnings("ignore:the transformer of .* was fitted with scikit-learn")
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    def test_any_forged_part_of_a_description_is_harmless(self, models, data):
        """Whatever is changed, commands end with an error of one line or a text that is safe to print."""
        path, description = models[data.draw(st.sampled_from(sorted(models)))]
        forged = json.loads(json.dumps(description))
        place, key = forged, data.draw(st.sampled_from(sorted(set(forged) - {"kind", "format"})))
        while isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
            place = place[key]
            key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(min(len(place), 6))))
        place[key] = data.draw(st.sampled_from(JUNK))
        descriptions.write_group(str(path), forged)
        with contextlib.suppress(DkrrError):  # or what was changed is not used
            dkrr.load(path).predict(X)
        for command in COMMANDS:
            result = ran(command, path)
            assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
            assert all(character.isprintable() or character == "\n" for character in result.output)


class TestNames:
    """Names that would act on a terminal, or are not Unicode."""

    BAD = "a\ud800\x1b[31m\u202e\u2066\x9b\nb"

    @pytest.fixture
    def named(self, tmp_path):
        labels = np.array([self.BAD, "x"])[(Y > 0).astype(int)]
        dkrr.save(dkrr.KernelLogisticRegression().fit(X, labels), tmp_path / "labels.zarr")
        dkrr.save(dkrr.KernelRidge().fit(X, np.column_stack([Y, Y])), tmp_path / "m.zarr")
        edit(tmp_path / "m.zarr", target_names=[self.BAD, "c"], feature_names=[self.BAD, "d", "e"])
        edit(tmp_path / "m.zarr", versions={self.BAD: self.BAD})
        return tmp_path / "m.zarr", tmp_path / "labels.zarr"

    def test_names_with_control_characters_are_escaped_on_a_terminal(self, named):
        for path in named:
            for command in COMMANDS:
                result = ran(command, path)
                assert result.exit_code in (0, 2) and "Traceback" not in result.output
                assert all(character.isprintable() or character == "\n" for character in result.output)
            assert (
                r"a\ud800\u001b[31m\u202e\u2066\u009b b" in CliRunner().invoke(cli.dkrr, ["info", str(named[0])]).output
            )

    def test_json_keeps_names_as_they_are(self, named):
        output = CliRunner().invoke(cli.dkrr, ["info", "--json", str(named[0])]).output
        assert json.loads(output)["target_names"] == [self.BAD, "c"]

    def test_names_in_errors_are_escaped(self, named):
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame(X, columns=list("xyz"))
        with pytest.raises(InputError) as caught:
            dkrr.load(named[0]).predict(frame)
        assert r"\u001b[31m" in str(caught.value) and str(caught.value).isprintable()

    def test_names_that_zarr_cannot_hold_are_refused(self, named, tmp_path):
        model = dkrr.load(named[1])
        with pytest.raises(InputError, match="not text in Unicode"):
            dkrr.predict_to(model, X, tmp_path / "p.zarr")
        assert not (tmp_path / "p.zarr").exists()
        assert dkrr.predict_to(model, X, tmp_path / "q.zarr", probabilities=True) == (60, 2)

    @pytest.mark.parametrize("end", [".csv", ".parquet", ".arrow"])
    def test_names_that_a_table_cannot_hold_are_refused(self, named, tmp_path, end):
        for path, options in ((named[0], {}), (named[1], {}), (named[1], {"probabilities": True})):
            model = dkrr.load(path)
            model.__dict__.pop("feature_names_in_", None)  # scikit-learn warns that X has none
            with pytest.raises(InputError, match="not text in Unicode"):
                dkrr.predict_to(model, X, tmp_path / f"p{end}", **options)
            assert not (tmp_path / f"p{end}").exists()

    def test_names_of_columns_in_errors_are_escaped(self):
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame(X)
        frame.columns = pandas.Index([self.BAD, "b", "c"], dtype=object)
        with pytest.raises(InputError, match="in Unicode"):
            dkrr.open_table(frame)

    def test_names_in_usage_and_warnings_are_escaped(self, tmp_path):
        for arguments in (
            ["--x\x1b[31m"],
            ["x\x1b[31m"],
            ["info", "\x1b]0;x\x07"],
            ["fit", "--x", "\u202e.npy", "--y", "y"],
        ):
            result = CliRunner().invoke(cli.dkrr, arguments)
            assert result.exit_code == 2 and all(c.isprintable() or c == "\n" for c in result.output)
        script = "import warnings, logging\nfrom dkrr.cli.main import dkrr\n@dkrr.command()\ndef say():\n"
        script += "    warnings.warn('a\\x1b[31m')\n    logging.getLogger('dkrr').warning('b\\x1b[31m\\nc')\n"
        script += "    print(1 / 0)\ntry:\n    dkrr(['say'])\nexcept ZeroDivisionError:\n    pass"
        done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert r"a\u001b[31m" in done.stderr and r"b\u001b[31m c" in done.stderr and "\x1b" not in done.stderr
