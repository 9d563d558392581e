"""The files around the package: versions agree, and workflows, templates and pages name what exists."""

import re

import pytest
import yaml

import dkrr
from tests.promises.test_documents import PROJECT, ROOT

GITHUB = ROOT / ".github"
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.M)[1].split())


def text(name):
    return (ROOT / name).read_text()


def test_the_version_is_written_alike_everywhere():
    citation = yaml.safe_load(text("CITATION.cff"))
    newest = re.search(r"^## (\S+) ", text("CHANGELOG.md"), re.M)[1]
    assert {PROJECT["version"], citation["version"], dkrr.__version__, newest} == {dkrr.__version__}
    assert {"cff-version", "message", "title", "authors"} <= set(citation)


def test_every_target_of_make_is_a_rule():
    rules = set(re.findall(r"^([a-z]+):", MAKEFILE, re.M))
    assert rules >= TARGETS


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "RELEASING.md", "tests/README.md", "README.md", ".ci/run"])
def test_targets_of_make_that_a_page_names_exist(name):
    named = set(re.findall(r"(?:`|^ *\$? *|exec )make ([a-z]+)", text(name), re.M))
    assert named and named <= TARGETS


def test_the_workflow_runs_what_can_be_run_here():
    workflow = yaml.safe_load(text(".github/workflows/ci.yml"))
    assert workflow[True].keys() >= {"push", "pull_request", "schedule"}  # YAML's "on" is True
    commands = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in workflow["jobs"].items()}
    assert commands == {"linux": [".ci/run"], "macos": ["make test"]}
    assert all(job["timeout-minutes"] and "python-version" in str(job["steps"]) for job in workflow["jobs"].values())
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100


def test_checks_before_a_commit_are_pinned():
    repos = {repo["repo"].rpartition("/")[2]: repo for repo in yaml.safe_load(text(".pre-commit-config.yaml"))["repos"]}
    assert all(re.fullmatch(r"v\d+\.\d+\.\d+", repo["rev"]) for repo in repos.values())
    hooks = {hook["id"] for repo in repos.values() for hook in repo["hooks"]}
    assert hooks == {"ruff-check", "ruff-format", "codespell", "check-yaml", "check-added-large-files"}


def test_the_form_for_bugs_asks_for_what_is_needed():
    forms = {path.stem: yaml.safe_load(path.read_text()) for path in GITHUB.glob("ISSUE_TEMPLATE/*.yml")}
    assert set(forms) == {"bug", "idea", "config"}
    for form in (forms["bug"], forms["idea"]):
        assert {"name", "description", "body"} <= set(form)
        assert all(part["type"] == "markdown" or (part["id"] and part["attributes"]["label"]) for part in form["body"])
    asked = str(forms["bug"]["body"])
    assert all(words in asked for words in ("dkrr info", "print(model.plan_)", "message", "Discussions"))


def test_files_that_the_page_of_the_tests_names_exist():
    folder = ROOT / "tests"
    named = set(re.findall(r"`((?:[a-z0-9_]+/)+(?:[a-z0-9_]+\.py)?|[a-z_]+\.py)`", (folder / "README.md").read_text()))
    assert len(named) > 30 and not [name for name in named if not (folder / name).exists()]
    folders = {f"{path.name}/" for path in folder.iterdir() if path.is_dir() and not path.name.startswith("_")}
    assert folders <= named


@pytest.mark.parametrize("page", ["docs/explanation/safety.md", "CONTRIBUTING.md", "RELEASING.md"])
def test_files_that_a_page_names_exist(page):
    named = re.findall(r"`((?:tests|dkrr|docs|\.github|\.ci)/[\w./-]+)`", text(page))
    assert named and not [name for name in named if not (ROOT / name).exists() and not name.endswith("/VERSION")]
