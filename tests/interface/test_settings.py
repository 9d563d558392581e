"""Settings in Dask's configuration: a wrong one is refused by its name before work starts."""

import re
from functools import reduce
from pathlib import Path

import dask
import numpy as np
import pytest

import dkrr
from dkrr.config import setting, temporary_directory
from dkrr.errors import InputError, StoreError

MANY = reduce(lambda inner, _: [inner, inner], range(60), list[object]())
"""Sixty lists that YAML's anchors and aliases make of a few lines: 2⁶⁰ if they are shown."""
WRONG = {
    "memory-limit": ["many", -1, True],
    "temporary-directory": ["", 3, "a\0b"],
    "checkpoint-seconds": ["5 minutes", float("nan"), -1, None, True],
    "durable": ["no", 1, None],
    "wait-for-workers-seconds": ["5 minutes", float("nan"), 0, False],
    "local.workers": [0, 1.5, "two", MANY],
    "profile-directory": ["", 3],
    "quick-measurement": ["off", None],
    "device": ["gpu", 0, None],
    "rates": [None, 3, {"gemm-gflops": 0}, {"gemm-gflops": "fast"}, {"gemm": 3.0}, {"gemm-gflops": 5e-324}],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_wrong_settings_are_refused_before_work(monkeypatch, name, value):
    monkeypatch.setattr("dkrr.fitting.run.with_sampled_maps", lambda *_: pytest.fail("work has begun"))
    word = {"memory-limit": "memory_limit", "local.workers": "workers"}.get(name, f"dkrr.{name}")
    with dask.config.set({f"dkrr.{name}": value}), pytest.raises(InputError, match=word):
        dkrr.KernelRidge(tile=2).fit(np.eye(4), np.ones(4))


def test_every_setting_is_checked_and_its_default_is_right():
    given = dask.config.get("dkrr")
    assert {*given.keys() - {"local"}, *(f"local.{name}" for name in given["local"])} == set(WRONG)
    for name in WRONG:
        setting(name)  # its default


def test_every_setting_is_described_and_has_the_variable_of_the_rule():
    """The page shows the file of defaults, where a comment stands above each, and one variable as an example."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"
    (shown,) = re.findall(r"^```\{literalinclude\} (.*)$", page.read_text(), re.M)
    defaults = (page.parent / shown).read_text()
    for name in (one.rpartition(".")[2] for one in WRONG):
        assert re.search(rf"^ *#.*\n *{name}:|^ *{name}:\n *#", defaults, re.M), name
    rates = {f"rates.{name}" for name in dask.config.get("dkrr.rates")}
    names = {f"dkrr.{name}" for name in rates | set(WRONG) - {"rates"}}
    variables = {name: f"DASK_{name.upper().replace('.', '__').replace('-', '_')}" for name in names}
    for name, variable in variables.items():
        with dask.config.set(dask.config.collect_env({variable: "7"})):
            assert dask.config.get(name) == 7
    (example,) = re.findall(r"`(dkrr\.[\w.-]+)` is\s+`(DASK_\w+)`", page.read_text())
    assert example in variables.items()


def test_a_system_without_a_temporary_folder_names_the_setting(monkeypatch):
    """Fits that need none work; what needs one says what to do."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: Path("/missing/folder").read_text())
    assert dkrr.KernelRidge().fit(np.eye(4), np.ones(4)).plan_.form == "dual"
    with pytest.raises(StoreError, match=r"dkrr\.temporary-directory"):
        temporary_directory()
    with dask.config.set({"dkrr.temporary-directory": "/elsewhere"}):
        assert temporary_directory() == "/elsewhere"
