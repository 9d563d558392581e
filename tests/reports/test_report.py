"""Reports of models and runs: what they say, that they load nothing, and how a browser shows them."""

import json
import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

import dkrr
from dkrr.cli import dkrr as command
from dkrr.cost import Span
from dkrr.errors import InputError, StoreError
from dkrr.fit_summary import summary_of
from dkrr.kernels import CallableKernel
from dkrr.model_description import describe_model
from dkrr.runtime import RunRecord, TaskRecord
from dkrr.solvers import ConjugateGradient, SolveResult, Status
from dkrr.solvers.result import Residuals
from dkrr.solvers.work import MAX_BARS, MAX_LANES, measured_work
from dkrr.tiles import RunStore
from dkrr.tiles.descriptions import read_group, write_group
from tests.test_markup import EVIL, linear

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
    assert re.search(r"(https?:|//|url\(|<script|@import|javascript:)", page) is None, "nothing is loaded"
    assert len(page) < 2**20
    return re.findall(r"<h2>(.*?)</h2>", page)


class TestOfAModel:
    def test_of_a_run_with_tiles(self, run, tmp_path):
        _, model = run
        dkrr.save(model, tmp_path / "m.zarr")
        page = dkrr.report(tmp_path / "m.zarr", tmp_path / "report.html")
        assert (tmp_path / "report.html").read_text(encoding="utf-8") == page
        found = sections(page)
        assert found[:3] == ["Plan and reasons", "Planned beside measured", "Time line"] and found[-1] == "To reproduce"
        assert "Residuals of the training rows" in found and "Memory" in found
        for words in ("factorisation", "true relative residual", "tiles on disk, since store=", "numpy "):
            assert words in page

    def test_residuals_are_those_of_predictions(self, data):
        X, y = data
        targets, weights = np.column_stack([y, y**2]), np.linspace(0.0, 2.0, len(y))
        model = dkrr.KernelRidge(alpha=[0.1, 2.0], kernel="rbf", fit_intercept=True)
        for form, kernel in (("dual", "rbf"), ("primal", "linear")):
            model.set_params(form=form, kernel=kernel).fit(X, targets, sample_weight=weights)
            for k, found in enumerate(summary_of(model)["residuals"]):
                expected = (targets - model.predict(X))[weights > 0, k]
                points = np.array(found["points"])
                assert np.allclose(points[:, 1], expected, rtol=1e-3, atol=1e-4)
                assert np.allclose(points[:, 0], model.predict(X)[weights > 0, k], rtol=1e-3, atol=1e-4)
                assert found["n"] == sum(found["counts"]) == np.count_nonzero(weights)
                assert found["root_mean_square"] == pytest.approx(np.sqrt(np.mean(expected**2)), rel=1e-5)
                assert found["largest"] == pytest.approx(np.abs(expected).max(), rel=1e-5)

    def test_residuals_of_changed_targets_are_not_shown(self, data):
        X, y = data[0], data[1].copy()
        model = dkrr.KernelRidge(**SETTINGS).fit(X, y)
        y[0] += 1.0
        assert summary_of(model)["residuals"] == [] and "Residuals" not in "".join(sections(dkrr.report(model)))

    def test_stages_of_tasks(self, run):
        _, model = run
        stages = {row[0]: row for row in summary_of(model)["work"]["stages"]}
        _, seconds, read, written, _, n_tasks = stages["factorisation"]
        assert n_tasks == 15 and seconds > 0 and read > 0 and written > 0, "5 × 6 / 2 tiles"
        assert sum(row[5] for row in stages.values()) == len(model.solve_result_.record.tasks)
        assert sum(row[2] for row in stages.values()) == model.solve_result_.record.bytes_read

    def test_convergence(self, data):
        model = dkrr.KernelRidge(**SETTINGS, solver=ConjugateGradient(preconditioner=None)).fit(*data)
        assert "iteration of conjugate gradient" in dkrr.report(model)

    def test_newton(self, data):
        page = dkrr.report(dkrr.KernelLogisticRegression(**SETTINGS).fit(data[0], data[1] > 1.0))
        found = sections(page)
        assert "step of Newton" in page and "Convergence" in found and "Residuals of the training rows" not in found
        assert "iteration of conjugate gradient" not in page and "the relative gradient is what was asked for" in page

    def test_of_a_search_and_what_it_saves(self, data, tmp_path):
        search = dkrr.KernelRidgeCV(
            alphas=[1e-3, 0.1, 1.0], gamma=[0.1, 0.3], optimize="length", train_sizes=[0.5]
        ).fit(*data)
        page = dkrr.report(search)
        dkrr.save(search, tmp_path / "m.zarr")
        saved = dkrr.report(tmp_path / "m.zarr")
        for one in (page, saved):
            assert sections(one)[0] == "Selection"
            for words in (
                "Learning curve",
                "Search by gradients",
                "The best 6 of 6 candidates",
                "gamma=0.3",
                "best score",
            ):
                assert words in one

    def test_a_bad_subject(self, data, run, tmp_path):
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
            ("work", {"status": "<b>", "steps": 3}),
            ("work", 7),
            ("plan", "x"),
            ("residuals", [{"n": 1}]),
            ("search", {"score": None}),
            ("call", None),
        ],
    )
    def test_a_changed_description(self, run, tmp_path, name, value):
        dkrr.save(run[1], tmp_path / "m.zarr")
        found = read_group(str(tmp_path / "m.zarr"))
        found["report"][name] = value
        write_group(str(tmp_path / "m.zarr"), found)
        if name == "call":  # text of any kind is shown
            assert "None.fit" in dkrr.report(tmp_path / "m.zarr")
            return
        with pytest.raises(StoreError, match="damaged"):
            dkrr.report(tmp_path / "m.zarr")

    def test_names_from_elsewhere_are_text(self, data, tmp_path):
        model = dkrr.KernelRidge(kernel=CallableKernel(linear, name=EVIL)).fit(*data)
        assert EVIL in str(model.plan_)
        page = dkrr.report(model)
        assert "<script" not in page and "&lt;script&gt;alert" in page


def test_the_size_does_not_grow_with_the_work():
    names = ("factorisation", "substitution", "conjugate gradient")
    spans = [Span(name, 100.0 + 50 * k, 50.0) for k, name in enumerate(names)]
    tasks = [TaskRecord(f"t-{k}", None, str(k % 90), 100.0 + 0.0075 * k, 0.5, {}, 3, 5, 7 + k) for k in range(20_000)]
    history = tuple(Residuals(k, 0.1 * k, 0.5**k, k % 7 == 0) for k in range(3000))
    result = SolveResult(Status.CONVERGED, 1e-9, 3000, 150.0, 1, 2, 3, history=history, record=RunRecord(150.0, tasks))
    found = measured_work(replace(result, spans=tuple(spans)))
    line = found["line"]
    assert len(line["bars"]) <= MAX_BARS and len(line["lanes"]) == 1 + MAX_LANES and line["n_lanes"] == 90
    assert len(json.dumps(found)) < 200_000
    assert [row[0] for row in found["stages"]] == list(names) and sum(row[5] for row in found["stages"]) == 20_000
    assert sum(row[2] for row in found["stages"]) == 60_000 and max(row[4] for row in found["stages"]) == 7 + 19_999
    assert found["history"][-1][0] == 2999 and len(found["history"]) <= 500
    busy = sum(bar[4] for bar in line["bars"] if bar[0])
    assert busy == pytest.approx(sum(0.5 for task in tasks if task.worker in line["lanes"]), rel=1e-3)
    assert all(bar[4] <= bar[2] - bar[1] + 1e-3 for bar in line["bars"] if bar[0]), "no thread does two tasks at once"


class TestOfARun:
    def test_complete(self, run):
        page = dkrr.report(run[0])
        found = sections(page)
        assert found[:3] == ["How far it is", "Tiles", "Plan and reasons"] and "Time line" in found
        assert "system-0/factor: 15 of 15 chunks" in page and "nothing is left" in page and "SOLVED" in page

    def test_unfinished(self, run, tmp_path):
        shutil.copytree(run[0], tmp_path / "run")
        for file in sorted((tmp_path / "run" / "system-0" / "factor").glob("c*"))[-6:]:
            file.unlink()
        found = read_group(str(tmp_path / "run"))
        del found["notes"]["work"]
        write_group(str(tmp_path / "run"), found)
        page = dkrr.report(tmp_path / "run")
        assert "unfinished" in page and 'class="missing"' in page and "chunks are left to compute" in page
        assert "Plan and reasons" in sections(page)
        assert "unfinished" not in dkrr.report(run[0])

    def test_begun(self, tmp_path, run):
        RunStore(str(tmp_path / "run")).open()
        assert "has not begun" in dkrr.report(tmp_path / "run")


def test_command(run, tmp_path):
    dkrr.save(run[1], tmp_path / "m.zarr")
    for path in (tmp_path / "m.zarr", run[0]):
        result = CliRunner().invoke(command, ["report", str(path), "--out", str(tmp_path / "r.html")])
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
