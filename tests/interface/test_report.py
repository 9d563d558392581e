"""Reports of models and runs: what they say, that they load nothing, and how a browser shows them."""

import base64
import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

import dkrr
from dkrr import inspection, model_description
from dkrr.cli import dkrr as command
from dkrr.errors import ConvergenceWarning, InputError, StoreError
from dkrr.inspection import tile_maps
from dkrr.kernels import CallableKernel
from dkrr.model_description import describe_model, search_summary, summary_of
from dkrr.reports import _template, pictures
from dkrr.solvers import ConjugateGradient
from dkrr.tiles import RunStore
from dkrr.tiles.descriptions import read_group, write_group
from tests.interface.test_notebooks import EVIL, linear

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SETTINGS = {"kernel": "rbf", "gamma": 0.3, "alpha": 0.05}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(7)
    X = rng.standard_normal((131, 3))
    y = np.sin(X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.standard_normal(131)
    return X, y


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    """A store of a complete run, and the model."""
    store = tmp_path_factory.mktemp("run") / "run.zarr"
    model = dkrr.KernelRidge(**SETTINGS, solver="cholesky", store=str(store), tile=32).fit(*data)
    return store, model


def sections(page):
    text = re.sub(r"data:image/svg\+xml;base64,[A-Za-z0-9+/=]*", "", page)
    assert re.search(r"(https?:|//|url\(|<script|@import|javascript:)", text) is None, "nothing is loaded"
    assert len(page) < 2**20
    return re.findall(r"<h2>(.*?)</h2>", text)


def drawn(page):
    """Pictures of a page, as SVG by their names."""
    found = re.findall(r'<img alt="([^"]*)" src="data:image/svg\+xml;base64,([^"]*)">', page)
    assert len(found) == page.count("<img")
    images = [(name, base64.b64decode(content).decode()) for name, content in found]
    assert all(text.startswith("<?xml") and "<script" not in text for _, text in images)
    return [name for name, _ in images]


class TestOfAModel:
    def test_a_report_of_a_tiled_run_has_its_map(self, run, tmp_path):
        _, model = run
        dkrr.save(model, tmp_path / "m.zarr")
        page = dkrr.report(tmp_path / "m.zarr", tmp_path / "report.html")
        assert (tmp_path / "report.html").read_text(encoding="utf-8") == page
        assert sections(page) == sections(dkrr.report(model)) == ["Plan", "Result", "Residuals of the training rows"]
        for words in ("factorisation", "true relative residual", "tiles on disk, since store=", "solver=&#39;cholesky"):
            assert words in page
        assert drawn(page) == ["residuals"]

    def test_residuals_are_those_of_predictions(self, data):
        X, y = data
        targets, weights = np.column_stack([y, y**2]), np.linspace(0.0, 2.0, len(y))
        model = dkrr.KernelRidge(alpha=[0.1, 2.0], kernel="rbf", fit_intercept=True)
        for form, kernel in (("dual", "rbf"), ("primal", "linear")):
            model.set_params(form=form, kernel=kernel).fit(X, targets, sample_weight=weights)
            for k, found in enumerate(summary_of(model)["residuals"]):
                expected = (targets - model.predict(X))[weights > 0, k]
                assert found["n"] == sum(found["counts"]) == np.count_nonzero(weights)
                assert found["root_mean_square"] == pytest.approx(np.sqrt(np.mean(expected**2)), rel=1e-5)
                assert found["largest"] == pytest.approx(np.abs(expected).max(), rel=1e-5)
                counts, _ = np.histogram(expected, len(found["counts"]), (-found["edge"], found["edge"]))
                assert np.abs(counts - found["counts"]).sum() <= 4, "those beyond the edges are in the outermost bins"

    def test_residuals_of_changed_targets_are_not_shown(self, data):
        X, y = data[0], data[1].copy()
        model = dkrr.KernelRidge(**SETTINGS).fit(X, y)
        y[0] += 1.0
        assert summary_of(model)["residuals"] == [] and "Residuals" not in "".join(sections(dkrr.report(model)))

    def test_a_report_draws_convergence(self, data, tmp_path):
        model = dkrr.KernelRidge(**SETTINGS, solver=ConjugateGradient(preconditioner=None)).fit(*data)
        dkrr.save(model, tmp_path / "m.zarr")
        for subject in (model, tmp_path / "m.zarr"):
            assert drawn(dkrr.report(subject)) == ["convergence", "residuals"]
        figure = pictures.figure(pictures.convergence(model.solve_result_.to_dict()["history"], 1e-8))
        line, true, _ = figure.axes[0].lines
        assert np.array_equal(line.get_ydata(), [h.largest for h in model.solve_result_.history])
        assert len(true.get_xdata()) == sum(h.is_true for h in model.solve_result_.history) > 0

    def test_a_report_of_classes_draws_the_steps(self, data, tmp_path):
        model = dkrr.KernelLogisticRegression(**SETTINGS).fit(data[0], data[1] > 1.0)
        dkrr.save(model, tmp_path / "m.zarr")
        for page in (dkrr.report(model), dkrr.report(tmp_path / "m.zarr")):
            assert sections(page) == ["Plan", "Result", "Convergence"] and drawn(page) == ["convergence"]
            assert "the relative gradient is what was asked for" in page
        steps = model.solve_result_.to_dict()["steps"]
        (line,) = pictures.figure(pictures.newton_steps(steps)).axes[0].lines
        assert np.array_equal(line.get_ydata(), [s.gradient for s in model.solve_result_.steps])

    def test_of_a_search_and_what_it_saves(self, data, tmp_path):
        search = dkrr.KernelRidgeCV(alphas=[1e-3, 0.1, 1.0], gamma=[0.1, 0.3], optimize="length", train_sizes=[0.5])
        with pytest.warns(ConvergenceWarning, match="ended at the bound"):
            search.fit(*data)
        page = dkrr.report(search)
        dkrr.save(search, tmp_path / "m.zarr")
        saved = dkrr.report(tmp_path / "m.zarr")
        for one in (page, saved):
            assert sections(one)[0] == "Selection"
            for words in ("dkrr optimum", "Chosen of 6 candidates", "the score went", "best score"):
                assert words in one
            assert drawn(one)[0] == "scores"
        assert (tmp_path / "m.zarr").exists() and saved.partition("<h2>")[2] == page.partition("<h2>")[2]

    def test_the_picture_of_a_search_shows_its_scores(self, data):
        search = dkrr.KernelRidgeCV(alphas=[1e-3, 0.1, 1.0], gamma=[0.1, 0.3], train_sizes=[0.5]).fit(*data)
        found = summary_of(search)["search"]
        scores, curve = pictures.figure(
            pictures.scores(found["candidates"]), pictures.learning_curve(found["curve"])
        ).axes
        shown = np.concatenate([line.get_ydata() for line in scores.lines[:-1]])
        assert np.array_equal(np.sort(shown), np.sort(search.cv_results_["mean_test_score"]))
        assert scores.lines[-1].get_xdata() == [search.best_params_["alpha"]]
        assert {text.get_text() for text in scores.get_legend().get_texts()} == {"gamma=0.1", "gamma=0.3", "chosen"}
        assert np.array_equal(curve.lines[0].get_ydata(), search.learning_curve_["mean_test_score"])

    def test_what_a_search_advises(self, data, tmp_path):
        search = dkrr.KernelRidgeCV(alphas=[10.0, 20.0, 50.0]).fit(*data)
        dkrr.save(search, tmp_path / "m.zarr")
        for page in (dkrr.report(search), dkrr.report(tmp_path / "m.zarr")):
            assert "<p>the best alpha is the smallest of the candidates, 10" in page
        found = search_summary(search)
        draw = pictures.scores(found["candidates"], found["score_name"], found["advice"])
        (axes,) = pictures.figure(draw).axes
        assert "the smallest of the candidates, 10" in axes.get_title().replace("\n", " ")
        assert axes.get_ylabel() == "neg_mean_squared_error of the rows left out"

    def test_the_size_does_not_grow_with_the_candidates(self, data, monkeypatch):
        search = dkrr.KernelRidgeCV(alphas=np.logspace(-3, 2, 9), cv=2, refit=False).fit(*data)
        monkeypatch.setattr(model_description, "MAX_CANDIDATES", 4)
        found = search_summary(search)
        assert len(found["candidates"]) == 4 and found["n_candidates"] == 9
        best = np.sort(search.cv_results_["mean_test_score"])[-4:]
        assert sorted(candidate[2] for candidate in found["candidates"]) == best.tolist()
        assert [candidate[2] for candidate in found["candidates"] if candidate[4]] == [best[-1]]

    def test_what_has_no_report_is_refused(self, data, run, tmp_path):
        dkrr.save(run[1], tmp_path / "m.zarr")
        for subject, words in (
            (dkrr.KernelRidge(), "without a plan"),
            (dkrr.load(tmp_path / "m.zarr"), "give the path"),
            (7, "subject is 7"),
        ):
            with pytest.raises(InputError, match=words):
                dkrr.report(subject)
        with pytest.raises(StoreError, match="does not exist"):
            dkrr.report(tmp_path / "none.zarr")
        for out in (tmp_path, tmp_path / "no" / "x.html"):
            with pytest.raises(InputError, match="out is"):
                dkrr.report(run[1], out)

    def test_a_model_without_a_summary(self, data, run, tmp_path):
        dkrr.save(run[1], tmp_path / "m.zarr")
        dkrr.save(dkrr.load(tmp_path / "m.zarr"), tmp_path / "again.zarr")
        with pytest.raises(InputError, match="without a summary"):
            dkrr.report(tmp_path / "again.zarr")

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("residuals", [{"n": 1}]),
            ("search", {"score": None}),
            ("call", "<b>"),
        ],
    )
    def test_a_forged_description_is_refused_or_harmless(self, run, tmp_path, name, value):
        dkrr.save(run[1], tmp_path / "m.zarr")
        found = read_group(str(tmp_path / "m.zarr"))
        found["report"][name] = value
        write_group(str(tmp_path / "m.zarr"), found)
        if name == "call":  # text of any kind is shown
            assert "&lt;b&gt;" in dkrr.report(tmp_path / "m.zarr")
            return
        with pytest.raises(StoreError, match="damaged"):
            dkrr.report(tmp_path / "m.zarr")

    def test_names_from_elsewhere_are_text(self, data, tmp_path):
        model = dkrr.KernelRidge(kernel=CallableKernel(linear, name=EVIL)).fit(*data)
        assert EVIL in str(model.plan_)
        page = dkrr.report(model)
        assert "<script" not in page and "&lt;script&gt;alert" in page

    def test_texts_from_a_file_are_text(self, run, tmp_path):
        dkrr.save(run[1], tmp_path / "m.zarr")
        found = read_group(str(tmp_path / "m.zarr"))
        best = [["$\\frac{x$ {{ 7 * 7 }}" + EVIL, 0.1, -1.0, 0.1, True]]
        search = {"best": EVIL, "score": [1.0], "plan": EVIL, "candidates": best, "n_candidates": 1, "optimum": None}
        found["report"] |= {"call": f"{{{{ 7 * 7 }}}}{EVIL}", "search": {**search, "curve": None}}
        write_group(str(tmp_path / "m.zarr"), found)
        page = dkrr.report(tmp_path / "m.zarr")
        assert "<script" not in page and "{{ 7 * 7 }}&lt;script" in page and ">49<" not in page

    @pytest.mark.parametrize("name", ["matplotlib", "jinja2"])
    def test_a_missing_package_is_named(self, data, run, tmp_path, monkeypatch, name):
        dkrr.save(run[1], tmp_path / "m.zarr")
        _template.cache_clear()
        monkeypatch.setitem(sys.modules, name, None)
        for subject in (run[1], tmp_path / "m.zarr"):
            with pytest.raises(InputError, match=f"needs {name}.*dkrr\\[report\\]"):
                dkrr.report(subject, tmp_path / "r.html")
        assert not (tmp_path / "r.html").exists()


class TestOfARun:
    def test_a_report_of_a_complete_run(self, run):
        page = dkrr.report(run[0])
        assert sections(page) == ["Progress", "Tiles", "Plan", "Result"] and drawn(page) == ["map of tiles"]
        assert "nothing is left" in page and "SOLVED" in page
        (found,) = tile_maps(run[0])
        assert (found.name, found.present, found.expected) == ("system-0/factor", 15, 15)
        expected = np.where(np.tri(5, dtype=bool), 1.0, np.nan)
        assert np.array_equal(found.shares, expected, equal_nan=True)

    def test_a_report_of_an_unfinished_run_says_how_far_it_is(self, run, tmp_path):
        shutil.copytree(run[0], tmp_path / "run")
        for column in range(3):
            (file,) = (tmp_path / "run" / "system-0" / "factor").glob(f"c*4?{column}")
            file.unlink()
        found = read_group(str(tmp_path / "run"))
        del found["notes"]["work"]
        write_group(str(tmp_path / "run"), found)
        page = dkrr.report(tmp_path / "run")
        assert "unfinished" in page and "chunks are left to compute" in page
        assert sections(page) == ["Progress", "Tiles", "Plan"] and drawn(page) == ["map of tiles"]
        (found,) = tile_maps(tmp_path / "run")
        assert (found.present, found.expected) == (12, 15)
        assert found.shares[4].tolist() == [0.0, 0.0, 0.0, 1.0, 1.0] and found.shares[3, 0] == 1.0
        assert "unfinished" not in dkrr.report(run[0])

    def test_cells_stand_for_several_tiles(self, run, monkeypatch):
        monkeypatch.setattr(inspection, "MAX_CELLS", 3)
        (found,) = tile_maps(run[0])
        assert (found.present, found.expected) == (15, 15)
        assert np.array_equal(found.shares, np.where(np.tri(3, dtype=bool), 1.0, np.nan), equal_nan=True)

    def test_a_report_of_a_run_that_has_begun(self, tmp_path, run):
        RunStore(str(tmp_path / "run")).open()
        assert "has not begun" in dkrr.report(tmp_path / "run")


def test_the_command_writes_a_report(run, tmp_path):
    dkrr.save(run[1], tmp_path / "m.zarr")
    for path in (tmp_path / "m.zarr", run[0]):
        result = CliRunner().invoke(command, ["report", str(path), "--out", str(tmp_path / "r.html"), "--overwrite"])
        assert result.exit_code == 0 and result.stdout == f"{tmp_path}/r.html\n", result.output
        sections((tmp_path / "r.html").read_text(encoding="utf-8"))
    result = CliRunner().invoke(command, ["report", str(tmp_path), "--out", str(tmp_path / "r.html")])
    assert result.exit_code == 2 and "Traceback" not in result.output
    assert "report" in describe_model(tmp_path / "m.zarr")
    assert "report" not in json.loads(CliRunner().invoke(command, ["info", str(tmp_path / "m.zarr"), "--json"]).stdout)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_a_browser_shows_it_without_errors(run, tmp_path):
    page = tmp_path / "report.html"
    dkrr.report(run[0], page)
    assert CHROMIUM is not None
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'user'}"]
    options += ["--enable-logging=stderr", f"--screenshot={tmp_path / 'p.png'}", "--window-size=1280,1600"]
    done = subprocess.run([CHROMIUM, *options, page.as_uri()], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and (tmp_path / "p.png").stat().st_size > 10_000, done.stderr
    assert "CONSOLE" not in done.stderr, done.stderr
