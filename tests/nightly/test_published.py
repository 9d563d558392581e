"""What is published: wheel, sdist, description and citation, the commands on the pages."""

import inspect
import re
import shlex
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

import dkrr
from dkrr.cli import dkrr as command
from tests import typed_program
from tests.promises.test_documents import PAGES, ROOT


def test_wheel_and_sdist_hold_what_they_should_and_the_index_takes_both(tmp_path):
    """The wheel: the package and its data, a description whose links lead somewhere; the sdist: what builds it."""
    for name in ("build", "hatchling", "hatch_fancy_pypi_readme", "twine"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, ROOT]
    subprocess.run(build, check=True, capture_output=True)
    sdist, wheel = (next(tmp_path.glob(end)) for end in ("*.tar.gz", "*.whl"))
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", sdist, wheel], check=True, capture_output=True)
    with zipfile.ZipFile(wheel) as archive:
        content = {name: archive.read(name).decode() for name in archive.namelist()}
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "dkrr").rglob("*.py")}
    data = {"dkrr/py.typed", "dkrr/dkrr.yaml", "dkrr/cli/report.html"}
    assert {name for name in content if not name.startswith("dkrr-")} == modules | data
    info = wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info"
    assert "dkrr = dkrr.cli:main" in content[f"{info}/entry_points.txt"]
    metadata = message_from_string(content[f"{info}/METADATA"])
    assert metadata["Version"] == yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == dkrr.__version__
    description = metadata.get_payload()
    assert "# dkrr" in description and all("://" in link for link in re.findall(r"\]\(([^)]+)\)", description))
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= {"pyproject.toml", "Makefile", "LICENSE", "cluster/dask-cli/start.sh", "tests/conftest.py"}
    assert not [name for name in names if name.startswith((".venv", "output", ".git/"))]


def test_a_typed_program_runs(tmp_path):
    """Its types are checked with those of the package; it uses all public names."""
    program = Path(typed_program.__file__).read_text()
    functions = {name for name in dkrr.__all__ if not inspect.ismodule(getattr(dkrr, name))}
    unused = {"__version__", "calibrate", "Optimum", "RunStatus", "Verification"}
    assert {name for name in functions if f"dkrr.{name}" not in program} == unused
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = np.sin(X[:, 0])
    pd.DataFrame({"a0": X[:, 0], "a1": X[:, 1], "target": y}).to_parquet(tmp_path / "x.parquet")
    assert min(typed_program.work(X, y, tmp_path / "x.parquet", tmp_path)) > 0.8


def test_a_typed_program_is_accepted_and_its_mistakes_are_refused_with_the_types_of_containers(tmp_path):
    """Those that packages of containers have: the settings of this repository skip most of them."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    options = ["--strict", "--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
    words = [sys.executable, "-m", "mypy", *options, f"--cache-dir={tmp_path}", typed_program.__file__]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


PAGES_WITH_COMMANDS = [page for page in PAGES if re.search(r"^(\$ )?(dask )?dkrr ", page.read_text(), re.M)]
COMMAND = re.compile(r"^(?:\$ )?(?:dask )?dkrr ((?:.*\\\n)*.*)", re.M)


def commands_of(page, kind):
    """Arguments of the commands in the blocks of one kind, of the first of several in a pipe."""
    blocks = re.findall(rf"^```{kind}\n(.*?)^```", page.read_text(), re.M | re.S)
    found = [match[1].replace("\\\n", " ") for block in blocks for match in COMMAND.finditer(block)]
    return [shlex.split(re.split(r" [|>#] ?| 2> ", words)[0], comments=True) for words in found]


@pytest.mark.parametrize("page", PAGES_WITH_COMMANDS, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_have_known_options(page):
    for name, *arguments in commands_of(page, "(?:sh|console)"):
        known = {option for p in command.commands[name].params for option in [*p.opts, *p.secondary_opts]}
        given = {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}
        assert given <= known | {"--help"}, (name, given - known)
