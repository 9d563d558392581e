"""Shared settings of the benchmark tests, and their commands without a process for each."""

import json
import sys
from importlib import import_module

import pytest
from click.testing import CliRunner

from benchmarks import machine


@pytest.fixture(autouse=True, scope="package")
def brief_watch():
    """The load of others is watched for a moment only: no time is quoted here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "SECONDS_BEFORE", 0.05)
        yield


@pytest.fixture(scope="session")
def run_here():
    """Do what `peers.run_command` does, in this process: a fresh one takes seconds to import the libraries."""

    def run(command, timeout=None):
        python, option, module, *arguments = command
        assert (python, option) == (sys.executable, "-m")
        result = CliRunner().invoke(import_module(module).main, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout.strip().splitlines()[-1])

    return run
