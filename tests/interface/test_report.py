"""What notebooks and reports show of models, plans and runs: whole, without work, and without markup from elsewhere."""

import base64
import inspect
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import clone

import dkrr
from dkrr.cli import pictures
from dkrr.cli.report import _template
from dkrr.errors import InputError, StoreError
from dkrr.estimators.model_description import search_summary, summary_of
from dkrr.fitting.posteriors import Posteriors
from dkrr.kernels import CallableKernel
from dkrr.solvers import ConjugateGradient
from dkrr.store.format import read_group
from dkrr.store.status_and_damage import tile_maps
from dkrr.text import card_of_text, details, table
from tests.interface.conftest import run as command
from tests.stores import edit

EVIL = "<script>alert('x')</script>\"&"
RBF = {"kernel": "rbf", "gamma": 0.3, "alpha": 0.05}
RNG = np.random.default_rng(7)
X = RNG.standard_normal((131, 3))
Y = np.sin(X[:, 0]) + X[:, 1] ** 2 + 0.1 * RNG.standard_normal(131)
NOISY = np.sin(3 * X[:, 0]) + 0.3 * np.random.default_rng(1).standard_normal(131)


class Page(HTMLParser):
    """Elements of a page, what they say, its headings and its pictures; fails where an element is not closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.pictures, self._open = [], "", [], []
        self.feed(text)
        self.headings = re.findall("<h2>(.*?)</h2>", text)
        assert not self._open and not {"script", "link"} & set(self.tags) and len(text) < 2**20

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        assert not any(name.startswith("on") or name == "href" for name in values)
        self.tags.append(tag)
        if tag not in ("meta", "img"):
            self._open.append(tag)
        if tag == "img":  # a picture that the page holds itself
            content = base64.b64decode(values["src"].removeprefix("data:image/svg+xml;base64,"), validate=True).decode()
            assert content.startswith("<?xml") and "<script" not in content
            self.pictures.append(values["alt"])

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.words += data + "\n"
        assert self._open[-1:] != ["style"] or not re.search("url|@import", data), "nothing is loaded"


def linear(A, B):
    return A @ B.T


def saved(model, path):
    dkrr.save(model, path)
    return path


@pytest.fixture(scope="module", params=["ridge", "cg", "logistic", "search"])
def model(request):
    if request.param == "search":
        search = dkrr.KernelRidgeCV(alphas=[1e-3, 0.1, 1.0], gamma=[0.1, 0.3], optimize="isotropic", train_sizes=[0.5])
        return search.fit(X, NOISY)  # whose optimum is within the range: at its bound rounding decides how it ends
    if request.param == "logistic":
        return dkrr.KernelLogisticRegression(**RBF).fit(X, Y > 1)
    return dkrr.KernelRidge(**RBF, solver=ConjugateGradient(None) if request.param == "cg" else "auto").fit(X, Y)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A store of a complete run, and the model."""
    store = tmp_path_factory.mktemp("run") / "run.zarr"
    return store, dkrr.KernelRidge(**RBF, solver="cholesky", store=str(store), tile=32).fit(X, Y)


# Notebooks


def test_plans_and_results_are_a_readable_line_and_their_html_says_what_their_text_says(model):
    for name in ("plan_", "solve_result_", "selection_plan_", "optimum_"):
        value = getattr(model, name, None)
        if value is not None:
            line, page = repr(value), Page(value._repr_html_())
            assert len(line) <= 80 and "\n" not in line and line.startswith(f"<{type(value).__name__}: "), line
            for text in str(value).splitlines():
                assert (
                    text[6:] if text.startswith("    - ") else text[14:] if text[:2] == "  " else text
                ) in page.words
            assert {"table", "details"} & set(page.tags) and "style" not in page.tags
    result = model.solve_result_
    assert repr(model.plan_).startswith(f"<Plan: {model.plan_.form}, {model.plan_.solver}, about ")
    assert result.status.name in repr(result) and len(repr(result.record)) < 60
    words = result.status.value.replace("true residual", "relative gradient" if result.steps else "true residual")
    assert words in str(result)


def test_estimators_have_the_diagram_of_scikit_learn_and_their_plan_and_result(model):
    bundle = model._repr_mimebundle_()
    for text in (bundle["text/html"], model._repr_html_()):
        assert f'<summary style="cursor:pointer">dkrr plan and result: {model.solve_result_.status.name}, ' in text
        assert text.count("dkrr plan:") == text.count("dkrr result:") == 1 and "sk-top-container" in text
    assert bundle["text/plain"] == repr(model)
    assert "dkrr plan" not in clone(model)._repr_html_(), "it is not fitted"
    with config_context(display="text"):
        assert "text/html" not in model._repr_mimebundle_() and not hasattr(model, "_repr_html_")


def test_looking_at_a_model_computes_nothing(tmp_path, monkeypatch):
    model = dkrr.KernelRidge(kernel="rbf", alpha=0.1).fit(X, Y)
    dkrr.save(model, tmp_path / "m.zarr")
    loaded = dkrr.load(tmp_path / "m.zarr")  # without what errors are computed from
    monkeypatch.setattr(Posteriors, "_prepare", lambda self: pytest.fail("the factorisation of all rows"))
    for one in (model, loaded):
        found = dict(inspect.getmembers(one))  # as debuggers and scikit-learn's diagram do
        assert {"dual_coef_", "loo_residuals", "log_marginal_likelihood"} <= set(found)
        assert not hasattr(one, "uncertainty_plan_")
        assert "dual_coef_" in one._repr_mimebundle_()["text/html"]
        pickle.loads(pickle.dumps(one))
    assert "dkrr plan" in model._repr_html_()


def test_names_from_elsewhere_are_text(tmp_path):
    model = dkrr.KernelRidge(kernel=CallableKernel(linear, name=EVIL)).fit(X, Y)
    place, store = tmp_path / "<b onclick=x>&", tmp_path / "<i>run"
    saved(dkrr.KernelRidge().fit(X, Y), place)
    dkrr.KernelRidge(kernel="rbf", store=str(store), tile=64).fit(X, Y)
    whole, status = dkrr.verify(place), dkrr.status(store)
    for html, words in (
        (model.plan_._repr_html_(), EVIL),
        (dkrr.report(model), EVIL),
        (whole._repr_html_(), str(place)),
        (status._repr_html_(), str(store)),
        (status._repr_html_(), "system-0/factor"),
        (table([[EVIL, EVIL]], [EVIL, EVIL]), f"{EVIL}\n" * 4),
        (details(EVIL, ""), EVIL),
        (card_of_text(f"{EVIL}\n    - {EVIL}\n  name        {EVIL}\n              {EVIL}\n  a\n    - x"), EVIL),
    ):
        page = Page(html)
        assert words in page.words and "i" not in page.tags and ("b" not in page.tags or "h1" in page.tags)
    assert repr(whole).endswith("whole>") and len(repr(status)) <= 80


CELLS = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance(colors="NoColor")
shell.run_cell("import dkrr, numpy as np; one = dkrr.KernelRidge().fit(np.eye(3), np.ones(3))")
for cell in (
    "dkrr.KernelRidge(alpha=-1).fit(np.eye(3), np.ones(3))",
    "dkrr.KernelRidge().fit([[np.nan]], [1.0])",
    "one.predict(np.eye(2))",
    "dkrr.plan(n_samples=10**6, n_features=3, kernel='rbf', memory_limit='100MB')",
):
    print("CELL", flush=True)
    shell.run_cell(cell)
"""


def test_an_error_of_a_user_is_a_few_lines_with_the_call(tmp_path):
    pytest.importorskip("IPython")
    environment = os.environ | {"IPYTHONDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", CELLS], capture_output=True, text=True, check=True, env=environment)
    _, *shown = done.stdout.split("CELL\n")
    assert len(shown) == 4
    for text in shown:
        lines = text.strip().splitlines()
        assert len(lines) <= 4 and "line 1, in <module>" in lines[0] and "Error: " in lines[-1], text


# Reports of models


SECTIONS = {
    "KernelRidge": ["Plan", "Result", "Residuals of the training rows"],
    "KernelLogisticRegression": ["Plan", "Result", "Convergence"],
    "KernelRidgeCV": ["Selection", "Plan", "Result", "Residuals of the training rows"],
}


def test_a_report_has_the_sections_and_pictures_of_its_model_also_from_a_file(model, tmp_path):
    pages = [dkrr.report(model), dkrr.report(saved(model, tmp_path / "m.zarr"), tmp_path / "r.html")]
    assert (tmp_path / "r.html").read_text(encoding="utf-8") == pages[1]
    assert pages[0].partition("<h2>")[2] == pages[1].partition("<h2>")[2]
    page, sections = Page(pages[1]), SECTIONS[type(model).__name__].copy()
    drawn = {"Selection": "scores", "Convergence": "convergence", "Residuals of the training rows": "residuals"}
    if model.solve_result_.history and "Convergence" not in sections:
        sections.insert(2, "Convergence")
    assert page.headings == sections and page.pictures == [drawn[name] for name in sections if name in drawn]
    if "Selection" in sections:
        for words in ("dkrr optimum", "Chosen of 6 candidates", "the score went", "best score"):
            assert words in page.words


def test_residuals_are_those_of_predictions():
    targets, weights = np.column_stack([Y, Y**2]), np.linspace(0.0, 2.0, len(Y))
    for form, kernel in (("dual", "rbf"), ("primal", "linear")):
        model = dkrr.KernelRidge([0.1, 2.0], kernel=kernel, form=form, fit_intercept=True)
        model.fit(X, targets, sample_weight=weights)
        for k, found in enumerate(summary_of(model)["residuals"]):
            expected = (targets - model.predict(X))[weights > 0, k]
            assert found["n"] == sum(found["counts"]) == np.count_nonzero(weights)
            assert found["root_mean_square"] == pytest.approx(np.sqrt(np.mean(expected**2)), rel=1e-5)
            assert found["largest"] == pytest.approx(np.abs(expected).max(), rel=1e-5)
            counts, _ = np.histogram(expected, len(found["counts"]), (-found["edge"], found["edge"]))
            assert np.abs(counts - found["counts"]).sum() <= 4, "those beyond the edges are in the outermost bins"


def test_residuals_of_changed_targets_are_not_shown():
    y = Y.copy()
    model = dkrr.KernelRidge(**RBF).fit(X, y)
    y[0] += 1.0
    assert summary_of(model)["residuals"] == [] and "Residuals" not in dkrr.report(model)


def lines_of(*draws):
    return [axes.lines for axes in pictures.figure(*draws).axes]


def test_pictures_of_iterations_and_steps_show_their_residuals_and_gradients():
    result = dkrr.KernelRidge(**RBF, solver=ConjugateGradient(None)).fit(X, Y).solve_result_
    ((line, true, _),) = lines_of(pictures.convergence(result.to_dict()["history"], 1e-8))
    assert np.array_equal(line.get_ydata(), [h.largest for h in result.history])
    assert len(true.get_xdata()) == sum(h.is_true for h in result.history) > 0
    result = dkrr.KernelLogisticRegression(**RBF).fit(X, Y > 1).solve_result_
    ((line,),) = lines_of(pictures.newton_steps(result.to_dict()["steps"]))
    assert np.array_equal(line.get_ydata(), [s.gradient for s in result.steps])


def test_a_picture_of_a_search_shows_its_scores():
    search = dkrr.KernelRidgeCV(alphas=[1e-3, 0.1, 1.0], gamma=[0.1, 0.3], train_sizes=[0.5]).fit(X, Y)
    found = summary_of(search)["search"]
    scores, curve = lines_of(pictures.scores(found["candidates"]), pictures.learning_curve(found["curve"]))
    shown = np.concatenate([line.get_ydata() for line in scores[:-1]])
    assert np.array_equal(np.sort(shown), np.sort(search.cv_results_["mean_test_score"]))
    assert scores[-1].get_xdata() == [search.best_params_["alpha"]]
    assert {line.get_label() for line in scores} == {"gamma=0.1", "gamma=0.3", "chosen"}
    assert np.array_equal(curve[0].get_ydata(), search.learning_curve_["mean_test_score"])


def test_a_search_shows_its_advice_and_only_its_best_candidates(tmp_path, monkeypatch):
    search = dkrr.KernelRidgeCV(alphas=np.linspace(10, 90, 9), cv=2).fit(X, Y)
    monkeypatch.setattr("dkrr.estimators.model_description.MAX_SUMMARY_CANDIDATES", 4)
    found = search_summary(search)
    assert len(found["candidates"]) == 4 and found["n_candidates"] == 9
    best = np.sort(search.cv_results_["mean_test_score"])[-4:]
    assert sorted(candidate[2] for candidate in found["candidates"]) == best.tolist()
    assert [candidate[2] for candidate in found["candidates"] if candidate[4]] == [best[-1]]
    assert "<p>the best alpha is the smallest of the candidates, 10" in dkrr.report(search)


def test_what_has_no_report_is_refused(run, tmp_path):
    path = saved(run[1], tmp_path / "m.zarr")
    again = saved(dkrr.load(path), tmp_path / "again.zarr")
    for subject, out, words in (
        (dkrr.load(path), None, "give the path"),
        (again, None, "without a summary"),
        (run[1], tmp_path / "no" / "x.html", "path is"),
    ):
        with pytest.raises((InputError, StoreError), match=words):
            dkrr.report(subject, out)


@pytest.mark.parametrize("change", [{"residuals": [{"n": 1}]}, {"search": {"score": None}}])
def test_a_forged_description_is_refused(run, tmp_path, change):
    path = saved(run[1], tmp_path / "m.zarr")
    edit(path, report=read_group(str(path))["report"] | change)
    with pytest.raises(StoreError, match="damaged"):
        dkrr.report(path)


def test_texts_from_a_file_are_text(run, tmp_path):
    path = saved(run[1], tmp_path / "m.zarr")
    best = [["$\\frac{x$ {{ 7 * 7 }}" + EVIL, 0.1, -1.0, 0.1, True]]
    search = {"best": EVIL, "score": [1.0], "plan": EVIL, "candidates": best, "n_candidates": 1, "optimum": None}
    call = f"{{{{ 7 * 7 }}}}{EVIL}"
    edit(path, report=read_group(str(path))["report"] | {"call": call, "search": {**search, "curve": None}})
    assert call in Page(dkrr.report(path)).words


@pytest.mark.parametrize("name", ["matplotlib", "jinja2"])
def test_a_missing_package_is_named(run, tmp_path, monkeypatch, name):
    _template.cache_clear()
    monkeypatch.setitem(sys.modules, name, None)
    for subject in (run[1], saved(run[1], tmp_path / "m.zarr")):
        with pytest.raises(InputError, match=f"needs {name}.*dkrr\\[report\\]"):
            dkrr.report(subject, tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


# Reports of runs


def test_a_report_of_a_complete_run(run):
    page = Page(dkrr.report(run[0]))
    assert page.headings == ["Progress", "Tiles", "Plan", "Result"] and page.pictures == ["map of tiles"]
    for part in ("nothing is left", "SOLVED", "factorisation", "true relative residual", "since store="):
        assert part in page.words
    assert "unfinished" not in page.words


def test_a_report_of_an_unfinished_run_says_how_far_it_is(run, tmp_path):
    store = shutil.copytree(run[0], tmp_path / "run")
    for column in range(3):
        (file,) = (store / "system-0" / "factor").glob(f"c*4?{column}")
        file.unlink()
    notes = {name: note for name, note in read_group(str(store))["notes"].items() if name != "work"}
    edit(store, notes=notes)
    page = Page(dkrr.report(store))
    assert "unfinished" in page.words and "chunks are left to compute" in page.words
    assert page.headings == ["Progress", "Tiles", "Plan"] and page.pictures == ["map of tiles"]
    (found,) = tile_maps(store)
    assert (found.name, found.present, found.expected) == ("system-0/factor", 12, 15)
    assert found.shares[4].tolist() == [0.0, 0.0, 0.0, 1.0, 1.0] and found.shares[3, 0] == 1.0


@pytest.mark.parametrize(("cells", "side"), [(100, 5), (3, 3)])
def test_a_map_has_a_cell_for_a_tile_or_for_several(run, cells, side):
    (found,) = tile_maps(run[0], cells)
    assert (found.present, found.expected) == (15, 15)
    np.testing.assert_array_equal(found.shares, np.where(np.tri(side, dtype=bool), 1.0, np.nan))


def test_the_command_writes_a_report_and_descriptions_leave_it_out(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (saved(run[1], "m.zarr"), run[0]):
        assert command(f"report {path} --out r.html --overwrite").stdout == "r.html\n"
        Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert "report" not in json.loads(command("info m.zarr --json").stdout)
