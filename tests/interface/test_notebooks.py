"""What notebooks show of models, plans and results: readable, without work, and without markup from elsewhere."""

import os
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import dkrr
from dkrr.kernels import CallableKernel
from dkrr.markup import card_of_text, details, table

EVIL = "<script>alert('x')</script>\"&"


class Page(HTMLParser):
    """Elements of a page and what they say; fails where they are not closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self._open = [], "", []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        assert all(not name.startswith("on") and name not in ("src", "href") for name, _ in attrs)
        self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.words += data + "\n"


def linear(X, Y):
    return X @ Y.T


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((61, 3))
    return X, np.abs(X[:, 0]) - X[:, 1] + 0.3 * rng.standard_normal(61)


@pytest.fixture(scope="module")
def search(data):
    return dkrr.KernelRidgeCV(alphas=[0.1, 1.0], gamma=[0.1, 1.0], optimize="length").fit(*data)


@pytest.fixture(scope="module", params=["ridge", "cg", "logistic", "search"])
def model(request, data, search):
    X, y = data
    settings = {"kernel": "rbf", "gamma": 0.3, "alpha": 0.1}
    if request.param == "search":
        return search
    if request.param == "logistic":
        return dkrr.KernelLogisticRegression(**settings).fit(X, y > 0)
    return dkrr.KernelRidge(**settings, solver="cg" if request.param == "cg" else "auto").fit(X, y)


SHOWN = ["plan_", "solve_result_", "selection_plan_", "optimum_"]


def test_plans_and_results_are_one_readable_line(model):
    for name in SHOWN:
        value = getattr(model, name, None)
        if value is not None:
            line = repr(value)
            assert len(line) < 240 and "\n" not in line and line.startswith(f"<{type(value).__name__} "), line
    assert "61 × 3" in repr(model.plan_) and "per process" in repr(model.plan_)
    assert model.solve_result_.status.name in repr(model.solve_result_)
    words = model.solve_result_.status.value
    if isinstance(model, dkrr.KernelLogisticRegression):
        words = words.replace("true residual", "relative gradient")
    assert words in str(model.solve_result_)
    assert len(repr(model.solve_result_.record)) < 60


def test_html_says_what_the_text_says(model):
    for name in SHOWN:
        value = getattr(model, name, None)
        if value is not None:
            page = Page(value._repr_html_())
            for line in str(value).splitlines():
                words = line[6:] if line.startswith("    - ") else line[14:] if line[:2] == "  " else line
                assert words in page.words
            assert {"table", "details"} & set(page.tags) and not {"script", "style", "link"} & set(page.tags)


def test_estimators_have_the_diagram_of_scikit_learn_and_their_plan_and_result(model):
    bundle = model._repr_mimebundle_()
    for text in (bundle["text/html"], model._repr_html_()):
        assert text.count("dkrr plan:") == text.count("dkrr result:") == 1 and "sk-top-container" in text
    assert bundle["text/plain"] == repr(model)
    assert "dkrr plan" not in clone(model)._repr_html_(), "it is not fitted"
    with config_context(display="text"):
        assert "text/html" not in model._repr_mimebundle_() and not hasattr(model, "_repr_html_")
    assert "KernelRidge" in make_pipeline(StandardScaler(), dkrr.KernelRidge())._repr_html_()


def test_showing_a_model_computes_nothing(data, monkeypatch):
    model = dkrr.KernelRidge(kernel="rbf", alpha=0.1).fit(*data)
    for name in ("loo_residuals_", "log_marginal_likelihood_"):
        monkeypatch.setattr(type(model), name, property(lambda self: pytest.fail("the factorisation of all rows")))
    assert "dkrr plan" in model._repr_mimebundle_()["text/html"]


def test_names_from_elsewhere_are_text(data, tmp_path):
    X, y = data
    kernel = CallableKernel(linear, name=EVIL)
    model = dkrr.KernelRidge(kernel=kernel).fit(X, y)
    assert EVIL in str(model.plan_)
    page = Page(model.plan_._repr_html_())
    assert "script" not in page.tags and EVIL in page.words
    path = tmp_path / "<b onclick=x>&"
    dkrr.save(dkrr.KernelRidge().fit(X, y), path)
    page = Page(dkrr.verify(path)._repr_html_())
    assert "b" not in page.tags and str(path) in page.words
    store = tmp_path / "<i>run"
    dkrr.KernelRidge(kernel="rbf", store=str(store), tile=16).fit(X, y)
    found = dkrr.status(store)
    page = Page(found._repr_html_())
    assert "i" not in page.tags and str(store) in page.words and "system-0/factor" in page.words
    assert len(repr(found)) < 240 and repr(dkrr.verify(store)).endswith("whole>")


def test_a_dictionary_of_lists_stays_text():
    assert Page(table([[EVIL, EVIL]], [EVIL, EVIL])).words.count(EVIL) == 4
    assert EVIL in Page(details(EVIL, "")).words
    page = Page(
        card_of_text(f"{EVIL}\n    - {EVIL}\n  name        {EVIL}\n              {EVIL}\n  {EVIL[:9]}\n    - x")
    )
    assert page.words.count(EVIL) == 4 and "script" not in page.tags


def test_the_plan_of_a_function_whose_file_is_not_python(data, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Linear\n(the rows\n")
    names = {}
    exec(compile("\ndef product(X, Y):\n    return X @ Y.T\n", str(page), "exec"), names)
    model = dkrr.KernelRidge(kernel=CallableKernel(names["product"], name="product")).fit(*data)
    assert "product" in str(model.plan_) and "product" in model.plan_._repr_html_()


CELLS = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance(colors="NoColor")
shell.run_cell("import dkrr, numpy as np; one = dkrr.KernelRidge().fit(np.eye(3), np.ones(3))")
for cell in (
    "dkrr.KernelRidge(alpha=-1).fit(np.eye(3), np.ones(3))",
    "dkrr.KernelRidge().fit(np.eye(3), np.ones(4))",
    "dkrr.KernelRidge().fit([[np.nan]], [1.0])",
    "one.predict(np.eye(2))",
    "dkrr.plan(n=10**6, d=3, kernel='rbf', memory_limit='100MB')",
    "dkrr.load('nothing')",
    "dkrr.KernelRidge().predict(np.eye(2))",
):
    print("CELL", flush=True)
    shell.run_cell(cell)
"""


def test_an_error_of_a_user_is_a_few_lines_with_the_call(tmp_path):
    pytest.importorskip("IPython")
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", CELLS], capture_output=True, text=True, check=True, env=environment)
    _, *shown = done.stdout.split("CELL\n")
    assert len(shown) == 7
    for text in shown:
        lines = text.strip().splitlines()
        assert len(lines) <= 4 and "line 1, in <module>" in lines[0] and "Error: " in lines[-1], text
