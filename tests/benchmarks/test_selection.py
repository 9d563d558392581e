import json
import sys
from types import ModuleType

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import coverage, selection
from dkrr import KernelRidgeCV


def command(*arguments):
    result = CliRunner().invoke(selection.main, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    return json.loads(line)


class FakePeer:
    """What is used of himalaya's estimator."""

    def __init__(self, alphas, kernel, kernel_params, cv):
        self.search = KernelRidgeCV(alphas, kernel=kernel, cv=cv, alpha_per_target=True, **kernel_params)

    def fit(self, X, Y):
        self.search.fit(X, Y)
        self.best_alphas_, self.cv_scores_ = self.search.alpha_, self.search.best_score_
        return self


@pytest.mark.parametrize(
    ("arguments", "method"), [(("loo", "--n", 300), "leave-one-out"), (("primal", "--n", 3000, "--d", 5), "one pass")]
)
def test_selection_beside_one_fit(arguments, method):
    record = command(*arguments)
    assert method in record["planned"] and record["ratio"] == record["seconds"] / record["one_fit_seconds"]
    assert record["selection_seconds"] > 0 and record["projected_seconds"] > 0
    if arguments[0] == "primal":
        assert record["ratio_to_pass"] == record["seconds"] / record["pass_seconds"] > 0


def test_targets_beside_himalaya(run_here, monkeypatch):
    peer = ModuleType("himalaya.kernel_ridge")
    peer.KernelRidgeCV = FakePeer
    monkeypatch.setattr(selection, "run_command", run_here)
    settings = ("targets", "--n", 120, "--targets", 4, "--n-alphas", 3)
    monkeypatch.setattr(selection, "_has_himalaya", lambda _: False)
    assert "missing" in command(*settings)["himalaya"]
    monkeypatch.setitem(sys.modules, "himalaya", ModuleType("himalaya"))
    monkeypatch.setitem(sys.modules, "himalaya.kernel_ridge", peer)
    monkeypatch.setattr(selection, "_has_himalaya", lambda _: True)
    record = command(*settings)
    assert record["ratios"]["same_alpha"] == 1.0 and record["ratios"]["score_difference"] < 1e-12
    assert record["ratios"]["seconds"] == record["dkrr"]["seconds"] / record["himalaya"]["seconds"]
    assert record["dkrr"]["projected_peak_bytes"] > 0


def test_intervals_of_normal_noise_have_its_width():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (1000, 1))
    y = np.sin(X[:, 0]) + 0.5 * rng.standard_normal(1000)
    found = coverage.judge(coverage.Dataset("made", "", X, y, 300, 700), 0, 0.9)
    for kind in coverage.KINDS:
        assert abs(found[kind].coverage - 0.9) < 0.03
        assert found[kind].width == pytest.approx(2 * 1.645 * 0.5, rel=0.1)


def test_coverage_of_a_data_set():
    records = coverage.compare("diabetes", 60, 2, 0.8, None)
    assert [r["what"] for r in records] == list(coverage.KINDS)
    for record in records:
        assert (record["n"], record["n_judged"], record["splits"]) == (60, 382, 2)
        assert record["least_coverage"] <= record["coverage"] <= record["largest_coverage"] <= 1
    assert coverage.result_table(records).row_count == 2


@pytest.mark.parametrize("name", list(coverage.DATASETS))
def test_splits_hold_out_other_rows(name):
    data = coverage.DATASETS[name](50, None)
    X, y, X_test, y_test = coverage.split(data, 1)
    assert X.shape[0] == len(y) == 50 and X_test.shape == (data.n_test, X.shape[1]) and len(y_test) == data.n_test
    np.testing.assert_allclose(X.mean(axis=0), 0, atol=1e-8)
    np.testing.assert_allclose(X.std(axis=0), 1)
