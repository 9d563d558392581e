"""Completion in shells, which click has: commands, options, choices, and paths as files."""

import os
import subprocess
import sys

from click.shell_completion import BashComplete

from dkrr.cli import dkrr


def completions(*words, incomplete=""):
    found = BashComplete(dkrr, {}, "dkrr", "_DKRR_COMPLETE").get_completions(list(words), incomplete)
    return {item.value: item.type for item in found}


def test_commands_options_choices_and_paths():
    assert {"fit", "predict", "status"} <= set(completions())
    assert set(completions("fit", incomplete="--solver")) == {"--solver", "--solver-max-iter"}
    assert set(completions("fit", "--solver")) == {"auto", "cholesky", "cg"}
    for words in (["fit", "--x"], ["fit", "--model"], ["fit", "--store"], ["fit", "--config"], ["verify"]):
        assert completions(*words, incomplete="da") == {"da": "file"}, words
    assert completions("fit", "--memory-limit", incomplete="4") == {}


def test_the_command_of_the_documentation_prints_a_script():
    program = [f"{sys.prefix}/bin/dkrr"]
    done = subprocess.run(program, env={**os.environ, "_DKRR_COMPLETE": "bash_source"}, capture_output=True, text=True)
    assert done.returncode == 0 and "_DKRR_COMPLETE=bash_complete" in done.stdout
