"""Models and runs from elsewhere: nothing in them is executed, followed or waited for, and no raw error comes of them.

Whoever makes such a store knows the format, so descriptions and chunks have matching checksums here.
"""

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

import dkrr
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
    def test_claims(self, model, changes):
        for name in ("rows", "dual_coef"):
            stored(model, name, **changes)
            refused(model)

    def test_a_million_one_row_chunks(self, model):
        # As many files as there are claimed cost whoever makes them; that they are not listed one by one is the point.
        stored(model, "rows", shape=[10**8, 3], rows_per_chunk=1)
        refused(model, "chunks of another size")

    def test_large_claims_with_a_file_for_them(self, model):
        stored(model, "rows", shape=[10**9, 3])
        stored(model, "dual_coef", shape=[10**9, 1])
        with (model / "rows" / "c.1430.0").open("wb") as file:
            file.truncate(2**24)
        refused(model)

    def test_the_size_of_the_description(self, model, monkeypatch):
        size = (model / "zarr.json").stat().st_size
        monkeypatch.setattr(descriptions, "MAX_BYTES", size + 2000)
        edit(model, note="x" * 3000)
        refused(model, f"at most {size + 2000}")


class TestDescriptions:
    def write(self, model, text):
        (model / "zarr.json").write_text(text)

    @pytest.mark.parametrize("depth", [100, 10**5])
    def test_deep_json(self, model, depth):
        for opening, closing in (("[", "]"), ('{"a":', "}")):
            inner = opening * depth + "1" + closing * depth
            self.write(
                model, '{"zarr_format": 3, "node_type": "group", "attributes": {"dkrr": {"kind": ' + inner + "}}}"
            )
            refused(model, "damaged")

    def test_deep_kernels(self, model):
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
    def test_kernels(self, model, kernel):
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
        for given in (None, BagOfWords()):
            with pytest.raises(InputError, match="token_pattern=.*regular expression"):
                dkrr.load(tmp_path / "m.zarr", kernel=given)
        assert time.monotonic() - start < 2
        assert np.allclose(dkrr.load(tmp_path / "m.zarr", kernel=kernel).predict(documents), fitted.predict(documents))


class TestLinks:
    @pytest.mark.parametrize("name", ["zarr.json", "rows", "rows/c.0.0", "rows/zarr.json", "intercept/c.0.0"])
    def test_of_models(self, model, tmp_path, name):
        shutil.copytree(model, tmp_path / "other")
        target = model / name
        target.rename(tmp_path / "moved")
        target.symlink_to(tmp_path / "other" / name)
        refused(model, "link")

    def test_that_lead_in_circles(self, model):
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

    def test_of_runs(self, tmp_path):
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
    def test_copies_of_x(self, fit, tmp_path, rows):
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
    def test_checkpoints(self, fit, tmp_path, notes):
        edit(tmp_path / "run", notes=notes)
        found = fit()
        assert np.allclose(found.predict(X), self.expected)

    @pytest.mark.parametrize(
        "layout", [{"tile": -5}, {"tile": "x"}, {"panel": 7}, {"form": "cubic"}, {"more": 1}], ids=str
    )
    def test_layouts(self, fit, tmp_path, layout):
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
        """Nothing that a file names is imported, made or called; tests/transformers/test_saving.py has its parts."""
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
    def test_names_of_targets(self, model, names):
        edit(model, target_names=names)
        refused(model, "damaged")
