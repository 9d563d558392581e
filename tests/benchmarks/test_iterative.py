"""The command that measures one fit takes its options and says what it solved."""

import json

import pytest
from click.testing import CliRunner

from benchmarks.iterative import main


@pytest.mark.parametrize(("solver", "limit"), [("cholesky", 1000), ("cg-auto", 1000), ("cg-auto", 2)])
def test_one_fit(solver, limit):
    options = ["--data", "normal", "--n", "203", "--solver", solver, "--max-iter", str(limit)]
    done = CliRunner().invoke(main, ["fit", *options], catch_exceptions=False)
    record = json.loads(done.stdout.splitlines()[-1])
    assert done.exit_code == 0 and record["n"] == 203 and record["seconds"] > 0
    assert (record["residual"] <= 1e-6) == (limit > 2) and record["iterations"] <= limit
