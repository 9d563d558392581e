"""The documentation site names everything that is public; `make docs` builds it and runs its examples."""

import ast
import re
import shlex
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from dkrr.cli.main import dkrr

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "cluster").rglob("*.md"))]
PAGES_WITH_COMMANDS = [page for page in PAGES if re.search(r"^(\$ )?(dask )?dkrr ", page.read_text(), re.M)]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_has_a_title_and_a_picture(path):
    text = path.read_text()
    title, line = (ast.get_docstring(ast.parse(text)) or "\n").splitlines()[:2]
    assert line == "=" * len(title) > ""
    assert "plt." in text or "figure" in text


def test_the_notebook_runs_and_is_stored_without_outputs(tmp_path):
    import nbformat
    from nbclient import NotebookClient
    from traitlets.config import Config

    for path in sorted((DOCS / "notebooks").glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert not any(cell.outputs or cell.execution_count for cell in code)
        # Sockets in a folder with a short name, instead of ports, which another process may take first.
        with tempfile.TemporaryDirectory(prefix="kernel-") as folder:
            config = Config({"KernelManager": {"transport": "ipc", "ip": f"{folder}/k"}})
            where = {"metadata": {"path": str(tmp_path)}}
            NotebookClient(notebook, config=config, timeout=120, resources=where).execute()
        assert any(output.output_type == "display_data" for cell in code for output in cell.outputs)


COMMAND = re.compile(r"^(?:\$ )?(?:dask )?dkrr ((?:.*\\\n)*.*)", re.M)


def commands_of(page: Path, kind: str) -> list[list[str]]:
    """Arguments of the commands in the blocks of one kind, of the first of several in a pipe."""
    blocks = re.findall(rf"^```{kind}\n(.*?)^```", page.read_text(), re.M | re.S)
    found = [match[1].replace("\\\n", " ") for block in blocks for match in COMMAND.finditer(block)]
    return [shlex.split(re.split(r" [|>#] ?| 2> ", command)[0], comments=True) for command in found]


@pytest.mark.parametrize("page", PAGES_WITH_COMMANDS, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_have_known_options(page):
    for name, *arguments in commands_of(page, "(?:sh|console)"):
        known = {option for p in dkrr.commands[name].params for option in [*p.opts, *p.secondary_opts]}
        given = {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}
        assert given <= known | {"--help"}, (name, given - known)


def test_commands_of_the_tutorial_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = DOCS / "tutorials" / "batch.md"
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S):
        exec(compile(block, str(page), "exec"), {})
    for command in commands_of(page, "sh"):
        done = CliRunner().invoke(dkrr, command)
        assert done.exit_code == 0, (command, done.output)
