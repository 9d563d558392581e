"""Completion in shells: commands, options, choices and paths."""

import shutil
import subprocess
import sys

import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from dkrr.cli import dkrr
from dkrr.cli.completion import VARIABLE


def completions(*words, incomplete=""):
    found = BashComplete(dkrr, {}, "dkrr", VARIABLE).get_completions(list(words), incomplete)
    return {item.value: item.type for item in found}


def test_commands_options_choices_and_paths():
    assert {"fit", "predict", "completion"} <= set(completions())
    assert set(completions("fit", incomplete="--solver")) == {"--solver", "--solver-max-iter"}
    assert set(completions("fit", "--solver")) == {"auto", "cholesky", "cg"}
    for words in (["fit"], ["fit", "--x"], ["fit", "--model"], ["fit", "--store"], ["fit", "--results"], ["verify"]):
        assert completions(*words, incomplete="da") == {"da": "file"}, words
    assert completions("fit", "--memory-limit", incomplete="4") == {}
    assert set(completions("completion")) == {"bash", "zsh", "fish"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(shell):
    script = CliRunner().invoke(dkrr, ["completion", shell])
    assert script.exit_code == 0 and f"{VARIABLE}={shell}_complete" in script.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_with_the_script(tmp_path):
    script = CliRunner().invoke(dkrr, ["completion", "bash"]).stdout
    (tmp_path / "dkrr").write_text(f"#!/bin/sh\nexec {sys.executable} -c 'from dkrr.cli import main; main()' \"$@\"\n")
    (tmp_path / "dkrr").chmod(0o755)
    asked = 'COMP_WORDS=(dkrr fit --fit) COMP_CWORD=2\n_dkrr_completion dkrr\necho "${COMPREPLY[@]}"'
    command = f'compopt() {{ :; }}\nPATH="{tmp_path}:$PATH"\n{script}\n{asked}'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["--fit-intercept"], done.stderr
