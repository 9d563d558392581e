"""The examples of the README, the docs and the docstrings run; what the docs name exists."""

import doctest
import importlib
import inspect
import io
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pandas as pd
import pytest

import dkrr
from dkrr.fitting.plans import FitSettings
from dkrr.store.buckets import Bucket
from dkrr.store.places import LocalFolder, Place
from tests.printed import differences

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "cluster").rglob("*.md"))]
IN_THE_REPOSITORY = [ROOT / "cluster" / name / "README.md" for name in ("slurm", "compose", "kubernetes", "dask-cli")]
"""Pages whose commands need what a machine of tests lacks; other tests run their scripts."""
MODULES = [m.name for m in pkgutil.walk_packages(dkrr.__path__, "dkrr.") if m.name != "dkrr.preload"]
WITH_EXAMPLES = [name for name in MODULES if ">>> " in Path(find_spec(name).origin).read_text()]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_of_docstrings_run(name):
    failed, attempted = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert failed == 0 < attempted


def test_methods_have_a_docstring():
    """Their own, or that of the method which they override or which the protocol of places describes."""
    for module in map(importlib.import_module, MODULES):
        for name, cls in inspect.getmembers(module, inspect.isclass):
            for method, value in vars(cls).items() if cls.__module__ == module.__name__ and name[0] != "_" else ():
                is_method = inspect.isfunction(value) and value.__name__ == method
                if method[0] != "_" and (is_method or isinstance(value, property)):
                    is_of_place = cls in (Bucket, LocalFolder) and hasattr(Place, method)
                    assert is_of_place or inspect.getdoc(getattr(cls, method)), f"{module.__name__}.{name}.{method}"


BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```\n(?:\n*```text\n(.*?)^```)?", re.M | re.S)
WITH_CODE = [page for page in PAGES if BLOCK.search(page.read_text()) and page not in IN_THE_REPOSITORY]


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.nightly] * (page.name != "README.md")) for page in WITH_CODE],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_the_code_of_a_page_runs_and_prints_what_the_page_shows(page, tmp_path, monkeypatch):
    """Blocks of Python, in one namespace, and of the shell run in order in a folder; those up to the last that saves
    run twice there. A block of text that follows is what is printed; a block of ``console`` is not run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    blocks = BLOCK.findall(page.read_text())
    writes = max((k for k, (_, code, _) in enumerate(blocks, 1) if re.search(r"\bsave|--overwrite", code)), default=0)
    for part in (blocks, blocks[:writes]):
        namespace: dict[str, object] = {}
        for language, code, shown in part:
            if language == "python":
                with redirect_stdout(io.StringIO()) as out:
                    exec(compile(code, str(page), "exec"), namespace)
                printed = out.getvalue()
            else:
                words = ["bash", "-euo", "pipefail", "-c", code]
                done = subprocess.run(words, capture_output=True, text=True, timeout=250)
                assert done.returncode == 0, f"{code}\n{done.stderr}"
                printed = done.stdout
            assert not shown or (found := differences(shown, printed)) is None, found


def test_what_is_printed_is_compared_in_words_and_numbers():
    shown = "R² 0.95\ntime   about 16.5 s (5 s to 29 s)\nresidual 1.0e-13 …\n"
    assert differences(shown, "R² 0.951\ntime about 2 min 3 s (900 ms to 4 min)\nresidual 3.4e-12 of\nall\n") is None
    assert differences(shown, "R² 0.93\ntime about 2 s (1 s to 4 s)\nresidual 1e-12 .") == (
        "shown 0.95, printed 0.93 in:\nR² 0.93\ntime about 2 s (1 s to 4 s)\nresidual 1e-12 ."
    )
    assert differences(shown, "R² 0.95\nspeed about 2 s (1 s to 4 s)\nresidual 1e-12 .").startswith("shown:")


def test_links_lead_somewhere():
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            assert "://" in link or (page.parent / link).exists(), f"{page}: {link}"


DECISIONS = DOCS / "developers" / "decisions"
DECISION = re.compile(
    r"# (\d+)\. (.+)\n\nStatus: (?:accepted|superseded by \d+) · Date: 20\d\d-\d\d-\d\d\n"
    r"\n## Context\n[^#]+\n## Decision\n[^#]+(?:\n## Consequences\n[^#]+)?(?:\n## Rejected\n[^#]+)?"
)


def test_decisions_are_short_and_of_one_form_and_in_the_index():
    pages, index = sorted(DECISIONS.glob("0*.md")), (DECISIONS / "index.md").read_text()
    for page in pages:
        text = page.read_text()
        form = DECISION.fullmatch(re.sub(r"\]\([^)]*\)|(?s:^```.*?^```)", "", text, flags=re.M))
        assert form and int(form[1]) == int(page.name[:4]), f"{page.name} departs from the template of index.md"
        assert len(text.split()) <= 400, f"{page.name} has {len(text.split())} words"
        assert f"| {form[1]} | [{form[2]}]({page.name}) |" in index, f"{page.name} has no row in index.md"
        for name in re.findall(r"`([\w/]+\.py)`", text):
            assert any((ROOT / folder / name).exists() for folder in ("", "dkrr", "tests")), f"{page.name}: {name}"
    assert len(pages) == index.count("](0")


def test_dependencies_are_those_that_the_documents_name():
    groups = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    required = {(re.split(r"[\[>=<;]", one)[0], extra) for extra, group in groups.items() for one in group}
    always, extras = (
        (DOCS / "developers" / "dependencies.md").read_text().split("## Smallest versions")[0].split("Extras:")
    )
    rows = [(names, "") for names in re.findall(r"^\| (`.*?) \|", always, re.M)]
    rows += re.findall(r"^\| (`.*?) \| (.*?) \|", extras, re.M)
    named = {(name, extra) for names, of in rows for name in re.findall(r"`(.+?)`", names) for extra in of.split(", ")}
    assert named == required


def test_pages_on_installing_and_citing_have_what_the_project_says():
    install, citing = ((DOCS / page).read_text() for page in ("how-to/install.md", "reference/citing.md"))
    rows = re.findall(r"^\| (`.*?) \|", install.split("## Extras")[1].split("## ")[0], re.M)
    assert {name for row in rows for name in re.findall(r"`(.+?)`", row)} == {*PROJECT["optional-dependencies"]}
    assert f"the {len(PROJECT['dependencies'])} required packages" in install
    *first, last = (each.split(" :: ")[-1] for each in PROJECT["classifiers"] if "Python :: 3." in each)
    assert f"| Python | {', '.join(first)} and {last}." in install
    assert f"version = {{{PROJECT['version']}}}," in citing


@pytest.mark.parametrize("search", [{}, {"cv": 2, "train_sizes": [0.5]}], ids=["model", "search"])
@pytest.mark.parametrize("kind", ["KernelRidge", "KernelLogisticRegression"])
def test_every_parameter_and_attribute_is_described(kind, search):
    """By its own words: no class refers to another for what a parameter means."""
    public = getattr(dkrr, f"{kind}CV" if search else kind)
    entries = re.findall(r"^ {4}(\w+) : .+\n {8}(\S.+)", public.__doc__, re.M)
    described = {name for name, text in entries if not text.lower().startswith("as in")}
    names = set(inspect.signature(public).parameters)
    X = pd.DataFrame(np.eye(8)[:, :4], columns=list("abcd"))
    for form in ("primal", "dual"):
        fitted = public(form=form, kernel="linear", transformer="standardize", **search).fit(X, [0, 1, 1, 0] * 2)
        names |= {name for name in dir(fitted) if re.fullmatch(r"[a-zA-Z].*_", name)}
    assert names <= described


def test_signatures_name_the_types_of_what_they_take():
    """As `help` shows them: aliases by their names, and no Any where a type says more."""
    estimators = dkrr.KernelRidge, dkrr.KernelRidgeCV, dkrr.KernelLogisticRegression, dkrr.KernelLogisticRegressionCV
    methods = [function for each in estimators for function in (each, each.fit, each.predict, each.score)]
    for function in (dkrr.plan, dkrr.gram, dkrr.load, dkrr.predict_to, dkrr.report, dkrr.open_table, *methods):
        found = {name: str(p.annotation) for name, p in inspect.signature(function).parameters.items()}
        assert "Any" not in found.values() and "typing." not in " ".join(found.values())
        assert "RowsLike" in found.get("X", "RowsLike")
    assert dkrr.kernels.Kernel in get_args(get_type_hints(dkrr.KernelRidge)["kernel"])  # as some programs read them


def test_type_checkers_know_every_keyword_of_plans():
    of_rows = {"X", "y", "alphas", "cv", "model", "probabilities", "return_std", "interval"}
    assert {*FitSettings.__annotations__} == {*inspect.signature(dkrr.plan).parameters} - of_rows


def test_version_is_the_projects():
    assert dkrr.__version__ == PROJECT["version"]


MESSAGES = re.findall(r"^```text\n(.*?)\n```", (DOCS / "how-to" / "troubleshooting.md").read_text(), re.M | re.S)
RUNBOOK = re.search(r"^## Runbook\n(.*?)^## ", (DOCS / "how-to" / "clusters.md").read_text(), re.M | re.S)[1]
LOGGED = [said for cell in re.findall(r"^\| (`.*?`) \| ", RUNBOOK, re.M) for said in re.findall(r"`(.+?)`", cell)]


def test_the_messages_of_troubleshooting_and_of_the_runbook_are_those_of_the_source():
    code = "\n".join(path.read_text() for path in (ROOT / "dkrr").rglob("*.py"))
    source = " ".join(re.sub(r'"\n *f?"', "", code).split())  # strings that stand one below the other are one
    for message in MESSAGES + LOGGED:
        parts = [part.strip(" .:;,(") for part in message.split("…")]
        assert max(map(len, parts)) >= 12 and all(part in source for part in parts), message
    assert len(MESSAGES) > 15 and len(LOGGED) > 10
