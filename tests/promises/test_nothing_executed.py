"""Models and runs from elsewhere: nothing in them is executed, followed or waited for, and no raw error comes of them.

Whoever makes such a store knows the format, so descriptions and chunks have matching checksums here.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from functools import reduce

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import dkrr
from dkrr import cli
from dkrr.errors import DkrrError, InputError, StoreError
from dkrr.kernels import BagOfWords
from dkrr.store import RunStore
from dkrr.store import format as descriptions
from tests.stores import edit

X = np.random.default_rng(0).normal(size=(60, 3))
Y = X[:, 0]
SLOW = r"(?:(a|a|b)\w?)*c"
"""A regular expression that takes exponential time."""


@pytest.fixture
def model(tmp_path):
    dkrr.save(dkrr.KernelRidge(kernel="rbf").fit(X, Y), tmp_path / "m.zarr")
    return tmp_path / "m.zarr"


def stored(model, name, **changes):
    """Change the description of one array of a model."""
    found = descriptions.read_group(str(model))["stored"]
    edit(model, stored={**found, name: {**found[name], **changes}})


def refused(model, match=None):
    with pytest.raises(DkrrError, match=match):
        dkrr.load(model).predict(X)


def command(*arguments):
    return CliRunner().invoke(cli.dkrr, [str(one) for one in arguments])


def about(path):
    """What each command about a model prints: an error of one line, or what is safe on a terminal."""
    for line in ("info {}", "info {} --json", "verify {}", "report {} --out {}.html"):
        result = command(*line.replace("{}", str(path)).split())
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert all(character.isprintable() or character == "\n" for character in result.output)
        yield result


SHAPES = ([10**15, 3], [60, 10**15], [2**61, 2**61], [True, 3], [60, -3], [60.0, 3], "60", [60, 3, 1])
CLAIMS = [
    *({"shape": shape} for shape in SHAPES),
    {"shape": [10**9, 3]},
    *({"shape": [n, 3], "rows_per_chunk": 1} for n in (60, 10**8, 10**15)),
    *({"dtype": dtype} for dtype in ("O", "object", "float32", ["float64"])),
    *({"kind": "sparse", "n_entries": n} for n in (10**15, None)),
    {"kind": "pickle"},
]


class TestSizes:
    @pytest.mark.parametrize("changes", CLAIMS, ids=str)
    def test_arrays_that_claim_more_than_their_files_are_refused(self, model, changes):
        for name in ("rows", "dual_coef"):
            stored(model, name, **changes)
            with (model / name / "c.1430.0").open("wb") as file:
                file.truncate(2**24)  # a file for large claims
            refused(model, "stored=.*rows_per_chunk" if changes.get("shape") == [10**8, 3] else None)

    def test_a_large_description_is_not_read(self, model, monkeypatch):
        size = (model / "zarr.json").stat().st_size
        monkeypatch.setattr(descriptions, "MAX_DESCRIPTION_BYTES", size + 2000)
        edit(model, note="x" * 3000)
        refused(model, f"at most {size + 2000}")

    def test_a_small_description_of_many_values_is_not_parsed(self, model, monkeypatch):
        edit(model, note=[[]] * 5000)
        assert dkrr.load(model)
        monkeypatch.setattr(descriptions, "MAX_VALUES", 5000)
        monkeypatch.setattr(descriptions.json, "loads", lambda _: pytest.fail("it was parsed"))
        refused(model, "zarr.json has .* values; expected at most 64 MiB and 5,000: it is not a file that dkrr wrote")

    def test_a_model_that_could_not_be_loaded_is_not_saved(self, tmp_path, monkeypatch):
        deep = reduce(lambda kernel, _: 2.0 * kernel, range(70), dkrr.kernels.RBF(gamma=1.0) + dkrr.kernels.Linear())
        with pytest.raises(StoreError, match="nested more than 64 deep; expected a kernel of fewer levels"):
            dkrr.save(dkrr.KernelRidge(kernel=deep).fit(X, Y), tmp_path / "m.zarr")
        fitted = dkrr.KernelRidge(kernel=BagOfWords()).fit(["aa bb", "bb cc", "cc"], [1.0, 2.0, 3.0])
        monkeypatch.setattr(descriptions, "MAX_VALUES", 40)
        with pytest.raises(StoreError, match=r"description of the model .* values; .*hash them \(n_features\)"):
            dkrr.save(fitted, tmp_path / "m.zarr")
        assert not list(tmp_path.iterdir())

    def test_a_dtype_of_labels_takes_no_memory_that_it_claims(self, tmp_path):
        path = tmp_path / "m.zarr"
        dkrr.save(dkrr.KernelLogisticRegression().fit(X, np.where(Y > 0, "up", "down")), path)
        edit(path, class_dtype="<U400000000")
        assert dkrr.load(path).classes_.dtype == "<U4", "as wide as the labels are"
        for dtype in ("V1000000000000", "<M8[s]", 5, "O"):
            edit(path, class_dtype=dtype)
            refused(path, "class_dtype=")


START = '{"zarr_format": 3, "node_type": "group", "attributes": {"dkrr": {"kind": '
TEXTS = ["", "null", "1e999", "\0", '{"a": ' + "9" * 5000 + "}", '{"attributes": 5}', '{"attributes": {"dkrr": 5}}']
TEXTS += [START + opening * n + "1" + end * n + "}}}" for n in (100, 10**5) for opening, end in ("[]", ('{"a":', "}"))]
KERNELS = [
    {"kernel": "callable", "name": "os.system", "digest": "0"},
    *({"kernel": "rbf", "gamma": gamma} for gamma in ("__import__('os')", -1.0, [1.0] * 10, {"array": "../x"})),
    {"kernel": "polynomial", "degree": 10**30},
    {"kernel": "matern", "nu": "x", "length_scale": []},
]
KERNELS.append(
    reduce(lambda kernel, _: {"kernel": "scaled", "base": kernel, "scale": 1.0}, range(70), {"kernel": "rbf"})
)
ELSEWHERE = ({"dual_coef": {}, "../m2.zarr/dual_coef": {}}, {"/etc/passwd": {}}, {"s3://bucket/intercept": {}})
FORGED = {
    "stored": ({}, ["rows"], {"features-../../other": {}}, *ELSEWHERE),
    "parameters": (None, []),
    "feature_names": (5, ["a", "b"], [1, 2, 3]),
    "feature_map": ("linear",),
    "id": ("x",),
    "format": (99,),
    "solve": (5, [], "x"),
    "versions": (None, 5, [], {"numpy": 5}),
    "request": (5, [], {"kernel": "callable", "name": 5}),
    "estimator": (None, [], "os.system", ["KernelRidge"], "x\n\x1b[31m"),
    "kernel": (*KERNELS, None, [], {"kernel": "os.system"}, {"kernel": "words", "token_pattern": ["x"]}),
    "n_features": (10**400, 10**12, 4, "3", True, 0, 2.0),
    "target_names": (5, [], [5], ["a", None], "a"),
    "transformer": (5, [], {}, {"asked": None, "text": "", "n_features_in": "x"}),
    "solve form": ("cubic", []),
    "solve residual": ("1e-9", 10**400),
    "solve peak_bytes": (10**400, 1.5, True),
    "solve history": (5, [[1, 2.0, 3.0]], [[1, 2.0, 3.0, 1]], [[1, "x", 3.0, True]], {"0": []}),
}
JUNK = [
    *(None, True, -1, 10**400, 1e308, float("nan"), float("inf"), "", "\ud800", "a\x1b[31m\u202e\n", [], [[]]),
    *([1, 2, 3, 4], {}, {"a": 1}, {"kernel": "rbf"}, "x" * 5000, [0] * 5000),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Models of different kinds, and their descriptions."""
    folder = tmp_path_factory.mktemp("forged")
    fitted = {
        "cg": dkrr.KernelRidge(kernel="rbf", solver="cg").fit(X, np.column_stack([Y, Y])),
        "labels": dkrr.KernelLogisticRegression(kernel="rbf").fit(X, np.where(Y > 0, "up", "down")),
        "standardized": dkrr.KernelRidge(kernel="linear", transformer="standardize").fit(X, Y),
    }
    for name, one in fitted.items():
        dkrr.save(one, folder / name)
    return {folder / name: descriptions.read_group(str(folder / name)) for name in fitted}


class TestDescriptions:
    """Descriptions with other entries than dkrr writes: an error of one line, and no traceback."""

    @pytest.mark.parametrize("text", TEXTS, ids=lambda text: f"{text[:12]} {len(text)}")
    def test_other_and_deep_json_is_refused(self, model, text):
        (model / "zarr.json").write_text(text)
        refused(model)

    @pytest.mark.parametrize(
        ("entry", "value"), [(entry, value) for entry, values in FORGED.items() for value in values], ids=str
    )
    def test_forged_entries_are_refused_in_one_line(self, model, entry, value):
        outer, _, inner = entry.partition(" ")
        forged = {**descriptions.read_group(str(model))["solve"], inner: value} if inner else value
        edit(model, **{outer: forged})
        others = {"kernel": None, "transformer": None, "stored": "does not write|damaged", "format": "format 99"}
        others["n_features"] = "damaged: its description (has n_features=|does not fit its content)"
        refused(model, others.get(outer, f"damaged: its description has {outer}=.*{inner}"))
        for result in about(model) if inner else ():
            assert result.exit_code == 2 and f"has solve={{'{inner}'" in result.output
            assert result.output.count("\n") == 1

    @pytest.mark.filterwarnings("ignore:the transformer of .* was fitted with scikit-learn")
    @settings(max_examples=60)
    @given(data=st.data())
    def test_any_forged_part_of_a_description_is_harmless(self, models, data):
        path = data.draw(st.sampled_from(sorted(models)))
        place = forged = json.loads(json.dumps(models[path]))
        key = data.draw(st.sampled_from(sorted(set(forged) - {"kind", "format"})))
        while isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
            place = place[key]
            key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(min(len(place), 6))))
        place[key] = data.draw(st.sampled_from(JUNK))
        descriptions.write_group(str(path), forged)
        with contextlib.suppress(DkrrError):  # or what was changed is not used
            dkrr.load(path).predict(X)
        assert len(list(about(path))) == 4

    def test_no_setting_of_a_place_is_taken_over(self, model, tmp_path):
        place = str(tmp_path / "written")
        edit(model, parameters={"alpha": 1.0, "store": place, "progress": True, "kernel": "os.system"})
        again = dkrr.load(model)
        assert again.store is None and again.progress is None
        again.fit(X, Y)
        assert not (tmp_path / "written").exists()

    def test_a_regular_expression_must_be_given_again(self, tmp_path):
        kernel, path = BagOfWords(token_pattern=SLOW), tmp_path / "m.zarr"
        documents = ["ac aac", "bc abc", "aaac bc c"]
        fitted = dkrr.KernelRidge(kernel=kernel).fit(documents, [1.0, 2.0, 3.0])
        dkrr.save(fitted, path)
        for other in (None, BagOfWords()):
            with pytest.raises(InputError, match="token_pattern=.*regular expression"):
                dkrr.load(path, kernel=other)
        assert np.allclose(dkrr.load(path, kernel=kernel).predict(documents), fitted.predict(documents))
        dkrr.save(dkrr.KernelRidge(kernel=BagOfWords()).fit(documents, [1.0, 2.0, 3.0]), path, overwrite=True)
        edit(path, request={**descriptions.read_group(str(path))["request"], "token_pattern": SLOW})
        with pytest.raises(StoreError, match="token_pattern"):
            dkrr.load(path)


class TestLinks:
    @pytest.mark.parametrize("name", ["zarr.json", "rows", "rows/c.0.0", "rows/zarr.json", "intercept/c.0.0"])
    def test_links_and_devices_in_models_are_refused(self, model, tmp_path, name):
        shutil.copytree(model, tmp_path / "other")
        (model / name).rename(tmp_path / "moved")
        for target in (tmp_path / "other" / name, model):  # elsewhere, and in a circle
            (model / name).unlink(missing_ok=True)
            (model / name).symlink_to(target)
            refused(model, "link")

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


COPY = {"name": "rows", "kind": "dense", "shape": [60, 3], "dtype": "float64", "rows_per_chunk": None}
NOTES = [
    *(
        {"turn": 0, "arrays": arrays, "plain": {}, "shown": {}}
        for arrays in ({}, {"x": "0" * 64}, {"../../x": "0" * 64})
    ),
    {"turn": "../..", "arrays": {"x": "0" * 64}, "plain": {}, "shown": {}},
    {"turn": 0, "arrays": {}, "plain": "[" * 10**5, "shown": []},
    5,
]
HARMLESS = [
    *({"rows": rows} for rows in ("../x", {**COPY, "name": "rows/../../x"}, {**COPY, "shape": [10**15, 3]}, 5)),
    *({"notes": {"checkpoint": one}} for one in NOTES),
    {"notes": {"pivots": "../x"}},
]
LAYOUTS = [{"tile": -5}, {"tile": "x"}, {"panel": 7}, {"form": "cubic"}, {"more": 1}]
SHAPES_OF_X = [{"shape": shape} for shape in (5, 0.5, "60 x 3", {"n": 60}, None)]


class TestRuns:
    """A run that is resumed from a store which another has made."""

    @pytest.fixture
    def fit(self, tmp_path):
        rows = da.from_array(X, chunks=20)
        model = dkrr.KernelRidge(kernel="rbf", store=str(tmp_path / "run"), tile=20, solver="cg")
        with dask.config.set({"dkrr.checkpoint-seconds": 0}):
            self.expected = model.fit(rows, Y).predict(X)
        return lambda: model.fit(rows, Y)

    @pytest.mark.parametrize("changes", HARMLESS, ids=lambda changes: str(changes)[:60])
    def test_forged_copies_and_checkpoints_are_refused_or_made_again(self, fit, tmp_path, changes):
        edit(tmp_path / "run", **changes)
        with contextlib.suppress(*[StoreError] * ("rows" in changes)):
            assert np.allclose(fit().predict(X), self.expected)

    @pytest.mark.parametrize("n", [10**7, 10**11, 2**52])
    def test_tiles_that_are_only_claimed_are_not_listed(self, tmp_path, n):
        dkrr.KernelRidge(kernel="rbf", store=str(tmp_path / "run"), tile=20, solver="cholesky").fit(X, Y)
        place = tmp_path / "run" / "system-0" / "factor" / "zarr.json"
        place.write_text(json.dumps({**json.loads(place.read_text()), "shape": [n, n]}))
        for use in (dkrr.status, dkrr.verify, dkrr.report):
            with contextlib.suppress(StoreError):  # or only what exists is shown
                use(tmp_path / "run")

    @pytest.mark.parametrize(
        "forged", [*LAYOUTS, *({"shape": s} for s in (5, 0.5, "60 x 3", {"n": 60}, None))], ids=str
    )
    def test_forged_layouts_and_shapes_are_refused(self, fit, tmp_path, forged):
        run, entry = RunStore(str(tmp_path / "run")).description(), "fingerprint" if "shape" in forged else "layout"
        edit(tmp_path / "run", **{entry: {**run[entry], **forged}})
        result = command("status", tmp_path / "run")
        assert entry == "layout" or (
            result.exit_code == 2 and "damaged: its description has fingerprint=" in result.output
        )
        with pytest.raises(StoreError):
            fit()


def test_loading_imports_and_runs_nothing_of_the_model(model, tmp_path):
    """In a process whose current folder has a module of the name that the model has."""
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    edit(model, kernel={"kernel": "callable", "name": "evil.function", "digest": "0"}, feature_map=None)
    script = f"import dkrr\ntry:\n    dkrr.load({str(model)!r})\nexcept dkrr.errors.DkrrError:\n    print('refused')"
    run = [sys.executable, "-c", script]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "refused\n" and not (tmp_path / "ran").exists()


def test_the_class_of_a_transformer_that_anyone_named_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Transformer: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    dumps = pytest.importorskip("skops.io").dumps
    data = np.frombuffer(dumps(__import__("evil").Transformer()), np.uint8)
    del sys.modules["evil"]
    (tmp_path / "ran").unlink()
    monkeypatch.setattr("dkrr.data.transformers_saved.saved_transformer", lambda _: data[:, None])
    dkrr.save(dkrr.KernelRidge(transformer="standardize").fit(X, Y), tmp_path / "evil.zarr")
    assert dkrr.verify(tmp_path / "evil.zarr").is_whole
    refused(tmp_path / "evil.zarr", "'evil.Transformer', which a file cannot hold")
    assert "evil" not in sys.modules and not (tmp_path / "ran").exists()


def test_nothing_is_sent_to_anybody(tmp_path, monkeypatch):
    """From a fit to a report: no connection leaves this machine, and no name of a host is looked up."""
    connect, found = socket.socket.connect, []

    def noted(self, address):
        is_here = self.family == socket.AF_UNIX or str(address[0]) in ("127.0.0.1", "::1", "localhost")
        found.extend([] if is_here else [address])
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", noted)
    monkeypatch.setattr(socket.socket, "connect_ex", noted)
    look_up = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda *asked, **how: found.append(asked) or look_up(*asked, **how))
    dkrr.save(dkrr.KernelRidge(kernel="rbf", transformer="standardize").fit(X, Y), tmp_path / "m.zarr")
    again = dkrr.load(tmp_path / "m.zarr")
    dkrr.predict_to(again, X, tmp_path / "p.csv")
    assert dkrr.verify(tmp_path / "m.zarr").is_whole and dkrr.plan(X, kernel="rbf")
    assert [result.exit_code for result in about(tmp_path / "m.zarr")] == [0] * 4
    assert command("info").exit_code == 0 and not found


class TestNames:
    """Names that would act on a terminal, or are not Unicode."""

    BAD = "a\ud800\x1b[31m\u202e\u2066\x9b\nb"

    @pytest.fixture
    def named(self, tmp_path):
        labels = np.array([self.BAD, "x"])[(Y > 0).astype(int)]
        dkrr.save(dkrr.KernelLogisticRegression().fit(X, labels), tmp_path / "labels.zarr")
        dkrr.save(dkrr.KernelRidge().fit(X, np.column_stack([Y, Y])), tmp_path / "m.zarr")
        names = {"target_names": [self.BAD, "c"], "feature_names": [self.BAD, "d", "e"]}
        edit(tmp_path / "m.zarr", **names, versions={self.BAD: self.BAD})
        return tmp_path / "m.zarr", tmp_path / "labels.zarr"

    def test_names_with_control_characters_are_escaped_on_a_terminal_and_kept_in_json(self, named):
        for path in named:
            assert all(result.exit_code in (0, 2) for result in about(path))
        assert r"a\ud800\u001b[31m\u202e\u2066\u009b b" in command("info", named[0]).output
        assert json.loads(command("info", "--json", named[0]).output)["target_names"] == [self.BAD, "c"]

    def test_names_in_errors_are_escaped(self, named):
        with pytest.raises(InputError) as caught:
            dkrr.load(named[0]).predict(pd.DataFrame(X, columns=list("xyz")))
        assert r"\u001b[31m" in str(caught.value) and str(caught.value).isprintable()
        with pytest.raises(InputError, match="in Unicode"):
            dkrr.open_table(pd.DataFrame(X, columns=pd.Index([self.BAD, "b", "c"], dtype=object)))

    @pytest.mark.parametrize("end", [".zarr", ".csv", ".parquet", ".arrow"])
    def test_names_that_a_file_cannot_hold_are_refused(self, named, tmp_path, end):
        labels = (named[1], {"probabilities": True})
        for path, options in ((named[1], {}), *([] if end == ".zarr" else [(named[0], {}), labels])):
            model = dkrr.load(path)
            model.__dict__.pop("feature_names_in_", None)  # scikit-learn warns that X has none
            with pytest.raises(InputError, match="not text in Unicode"):
                dkrr.predict_to(model, X, tmp_path / f"p{end}", **options)
            assert not (tmp_path / f"p{end}").exists()

    def test_names_in_usage_are_escaped(self):
        for line in ("--x\x1b[31m", "x\x1b[31m", "info \x1b]0;x\x07", "fit --x \u202e.npy --y y"):
            result = command(*line.split())
            assert result.exit_code == 2 and all(c.isprintable() or c == "\n" for c in result.output)

    def test_names_in_warnings_are_escaped(self):
        say = r"import warnings; dkrr.command('say')(lambda: warnings.warn('a\x1b[31m')); dkrr(['say'])"
        run = [sys.executable, "-c", f"from dkrr.cli.main import dkrr; {say}"]
        done = subprocess.run(run, capture_output=True, text=True, check=True)
        assert r"a\u001b[31m" in done.stderr and "\x1b" not in done.stderr
