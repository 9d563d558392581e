"""The command that compares certified bounds with dense variances."""

import json

import pytest
from click.testing import CliRunner

from benchmarks import uncertainty

ARGUMENTS = [
    "bounds",
    "--n",
    "400",
    "--new",
    "8",
    "--d",
    "4",
    "--case",
    "rbf, weights, intercept",
    "--case",
    "laplacian",
]


def test_bounds():
    result = CliRunner().invoke(uncertainty.main, ARGUMENTS, catch_exceptions=False)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == 0 and [line["case"] for line in lines] == ["rbf, weights, intercept", "laplacian"]
    for line in lines:
        assert line["bounds hold"] and 0 < line["largest relative width"] <= 1.001e-3
        assert abs(line["standard errors off"]) < 4 and line["rounding of the dense values"] < 1e-9


@pytest.mark.parametrize("side", [0.98, 1.02])
def test_bounds_that_do_not_hold_fail(monkeypatch, side):
    true = uncertainty.dense

    def dense(*arguments):
        variance, *others = true(*arguments)
        return side * variance, *others

    monkeypatch.setattr(uncertainty, "dense", dense)
    result = CliRunner().invoke(uncertainty.main, ARGUMENTS)
    assert result.exit_code == 1 and not json.loads(result.stdout.splitlines()[-1])["bounds hold"]
