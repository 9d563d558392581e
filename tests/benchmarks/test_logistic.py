import importlib.util
import json

import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from sklearn.linear_model import LogisticRegression

from benchmarks import flights, logistic
from benchmarks.flights import COLUMNS, Encoder, Flights
from benchmarks.report import judge
from benchmarks.steps import STEPS, Goal
from dkrr.solvers.result import NewtonStep

# The port that Dask's scheduler takes by default may be in use on this machine.
pytestmark = pytest.mark.filterwarnings("ignore:Port 8787 is already in use")


def command(*arguments):
    result = CliRunner().invoke(logistic.main, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result, [json.loads(line) for line in result.stdout.splitlines()]


def goals(name):
    return {goal.text: goal for step in STEPS if step.name == name for goal in step.goals}


@pytest.fixture(scope="module")
def table():
    return flights.load()


@pytest.fixture
def read_once(table, monkeypatch):
    monkeypatch.setattr(flights, "load", lambda: table)


@pytest.fixture
def in_this_process(read_once, monkeypatch):
    """A fresh process for each fit takes seconds to start."""

    def run(data, fit, timeout):
        return json.loads(json.dumps(logistic.fit_once(data, fit), default=float))

    monkeypatch.setattr(logistic, "run_fit", run)


@pytest.fixture(autouse=True)
def few_trees(monkeypatch):
    peer = logistic.peer
    monkeypatch.setattr(
        logistic,
        "peer",
        lambda name, **settings: peer(name, **settings, **({"max_iter": 5} if name == "boosting" else {})),
    )


class TestFlights:
    def test_all_that_arrived(self, table):
        assert table.n == flights.TOTAL_FLIGHTS == 327_346
        assert table.is_late.mean() == pytest.approx(0.2371, abs=1e-4)
        assert {name: int(codes.max()) + 1 for name, codes in table.codes.items()} == {
            "month": 12,
            "hour": 19,
            "carrier": 16,
            "origin": 3,
            "dest": 104,
            "weekday": 7,
        }
        # The first two flights of the file left on 1 January 2013, a Tuesday.
        assert table.codes["weekday"][:2].tolist() == [1, 1]
        assert table.numbers["clock"][:2].tolist() == [5 + 15 / 60, 5 + 29 / 60]
        assert table.is_late[:3].tolist() == [0, 1, 1] and table.delay[:3].tolist() == [11, 20, 33]

    @pytest.mark.parametrize(("columns", "d"), [("all", 162), ("few", 40)])
    def test_rows_are_standardised_and_the_held_out_ones_are_others(self, table, tmp_path, columns, d):
        data = flights.write(tmp_path, columns, 3000, 500, table)
        assert (data.n, data.n_test, data.d) == (3000, 500, d) and flights.Stored.open(tmp_path) == data
        X = zarr.open_array(data.x, mode="r")[:]
        np.testing.assert_allclose(X.mean(axis=0), 0, atol=1e-12)
        constant = np.ptp(X, axis=0) == 0
        assert constant.sum() <= 11, "only a carrier and destinations of which the sample has no flight"
        np.testing.assert_allclose(X.std(axis=0)[~constant], 1)
        order = np.random.default_rng(flights.SEED).permutation(table.n)
        assert np.array_equal(zarr.open_array(data.y, mode="r")[:], table.is_late[order[:3000]])
        assert np.array_equal(zarr.open_array(data.y_test, mode="r")[:], table.is_late[order[245_510:246_010]])

    def test_values_become_indicators(self):
        names, rows = ("distance", "carrier"), np.arange(4)
        small = Flights(
            numbers={"distance": np.array([1.0, 2, 3, 6])},
            codes={"carrier": np.array([2, 0, 2, 0])},
            is_late=np.array([0, 1, 0, 0]),
            delay=np.array([0.0, 20, 15, -3]),
        )
        encoder = Encoder.of(small, names, rows)
        raw = np.array([[1, 0, 0, 1], [2, 1, 0, 0], [3, 0, 0, 1], [6, 1, 0, 0]], dtype=np.float64)
        spread = raw.std(axis=0)
        np.testing.assert_allclose(encoder.encode(rows), (raw - raw.mean(axis=0)) / np.where(spread > 0, spread, 1))
        assert encoder.d == 4 and encoder.encode(rows[1:2]).shape == (1, 4)

    def test_nothing_that_is_known_after_departure(self):
        assert not {"dep_delay", "dep_time", "arr_time", "air_time"} & set(flights._USED)
        assert not {"arr_delay"} & {name for names in COLUMNS.values() for name in names}

    def test_more_rows_than_there_are(self, table, tmp_path):
        with pytest.raises(ValueError, match="n_test=81837 must be between 1 and 81836"):
            flights.write(tmp_path, "few", 10, 81_837, table)

    def test_missing_package_says_what_to_install(self, monkeypatch):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'dkrr\[demo\]'"):
            flights.load()

    def test_unexpected_file_is_refused(self, monkeypatch, tmp_path):
        path = tmp_path / "flights.csv"
        path.write_text(",".join(flights._USED) + "\n" + "2013,1,1,11,UA,EWR,IAH,1400,5,15\n")
        monkeypatch.setattr(flights, "_file", lambda: path)
        with pytest.raises(ValueError, match="holds 1 flights, not 327346"):
            flights.load()


def test_figures_of_probabilities():
    y, p = np.array([0, 1, 1, 0]), np.array([0.2, 0.9, 0.4, 0.3])
    found = logistic.figures(y, np.column_stack([1 - p, p]))
    assert found["accuracy"] == 0.75 and found["auc"] == 1.0
    assert found["log_loss"] == pytest.approx(-np.log([0.8, 0.9, 0.4, 0.7]).mean())
    three = np.array([[0.6, 0.3, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])
    assert logistic.figures(np.arange(3), three)["auc"] == 1.0
    assert logistic.figures(np.array([0, 1, 1]), three)["auc"] is None


def test_seconds_of_each_step():
    steps = [NewtonStep(k + 1, seconds, 1.0, 0.1, 1.0, 1, 0) for k, seconds in enumerate((0.5, 2.0, 2.5))]
    assert logistic.seconds_of(steps) == [0.5, 1.5, 0.5]


def test_small_data_sets(tmp_path):
    result, lines = command("small", "--most-rows", 150, "--json", tmp_path / "lines.jsonl")
    assert (tmp_path / "lines.jsonl").read_text() == result.stdout
    assert [(line["data"], line["what"]) for line in lines if line["estimator"] == "logistic"] == [
        ("breast_cancer", "dkrr"),
        ("digits", "dkrr, multinomial"),
        ("digits", "dkrr, ovr"),
        ("circles", "dkrr"),
    ]
    for line in lines:
        # No line separates circles.
        assert line["accuracy"] > (0.4 if line["data"] == "circles" and line["estimator"] == "linear" else 0.6), line
    ours = lines[0]
    assert ours["status"] == "CONVERGED" and ours["newton_steps"] == len(ours["step_seconds"]) > 0
    for goal in goals("logistic-small").values():
        assert judge(goal, lines).value is not None, goal.text
    assert judge(goals("logistic-small")["relative gradient, the worst"], lines).is_met
    assert "circles, n = 150, d = 2" in result.stderr and "HistGradientBoosting" in result.stderr


def test_flights_from_zarr(read_once):
    result, (line,) = command("flights", "--n", 1500, "--n-test", 800, "--kernel", "polynomial", "--no-peers")
    assert (line["n"], line["d"], line["dimension"], line["form"]) == (1500, 40, 861, "primal")
    assert line["status"] == "CONVERGED" and line["read_bytes"] >= line["newton_steps"] * 1500 * 40 * 8
    assert 0 < line["process_bytes_before"] <= line["process_peak_bytes"] <= line["projected_peak_bytes"] <= 2**30
    (goal,) = goals("logistic-flights").values()
    assert judge(goal, [line]).is_met
    assert "flights, of 327,346, n = 1,500, d = 40, held out 800, 1GiB" in result.stderr


def test_flights_beside_peers(in_this_process):
    _, lines = command("flights", "--n", 400, "--n-test", 300, "--kernel", "linear")
    ours, linear, boosting = lines
    assert [line["estimator"] for line in lines] == ["logistic", "linear", "boosting"]
    assert (ours["d"], ours["dimension"]) == (162, 162)
    assert ours["log_loss"] == pytest.approx(linear["log_loss"], abs=5e-3), "the same model"
    assert 0 < linear["probability_difference"] < 0.1 and "probability_difference" not in boosting
    assert all(line["n_test"] == 300 and 0.4 < line["auc"] < 1 for line in lines)


def test_linear_model_is_that_of_scikit_learn(table, tmp_path):
    data = flights.write(tmp_path, "few", 800, 100, table)
    fit = logistic.Fit("dkrr", "logistic", {"alpha": logistic.LINEAR_ALPHA, "form": "primal"}, is_streamed=True)
    record = logistic.fit_once(data, fit)
    X, y, X_test = (zarr.open_array(p, mode="r")[:] for p in (data.x, data.y, data.x_test))
    peer = LogisticRegression(C=1 / (2 * logistic.LINEAR_ALPHA), tol=1e-10, max_iter=10_000).fit(X, y)
    found = np.load(tmp_path / "probabilities.npy")
    np.testing.assert_allclose(found, peer.predict_proba(X_test), atol=1e-6)
    assert record["accuracy"] == (found.argmax(axis=1) == zarr.open_array(data.y_test, mode="r")[:]).mean()


def test_newton_steps_out_of_core_beside_a_ridge_regression(in_this_process):
    arguments = ["--n", 200, "--n-test", 200, "--tile", 128, "--memory-limit", "512MiB", "--workers", 1]
    result, (ridge, ours) = command("core", *arguments, "--solver", "cholesky", "--force-workers", "--no-peers")
    for line in (ridge, ours):
        assert line["planned"] == "dual, Cholesky, 1 workers, tiles of 128" and line["n_workers"] == 1
        assert 0 < line["peak_bytes"] <= line["projected_peak_bytes"] <= 2**29
    assert ridge["status"] == "SOLVED" and ridge["settings"]["alpha"] == 8 * ours["settings"]["alpha"]
    assert ours["status"] == "CONVERGED" and ours["residual"] <= 1e-8 and ours["written_bytes"] > 0
    assert ours["step_over_ridge"] == pytest.approx(np.mean(ours["step_seconds"]) / ridge["seconds"])
    values = {text: judge(goal, [ridge, ours]).value for text, goal in goals("logistic-core").items()}
    assert values["a Newton step over a ridge regression, cholesky"] == ours["step_over_ridge"]
    assert values["a Newton step over a ridge regression, cg"] is None
    assert 0 < values["largest peak memory over the projected, out of core"] <= 1
    assert "1 workers within 512MiB" in result.stderr


def test_path_beside_separate_fits(read_once):
    result, lines = command("path", "--n", 200, "--n-test", 300, "--values", 3)
    *each, summary = lines
    assert [line["alpha"] for line in each] == pytest.approx([10, 10**-0.5, 0.01])
    assert all(line["status"] == line["alone"]["status"] == "CONVERGED" for line in lines[:-1])
    assert summary["probability_difference"] < 1e-6
    assert summary["newton_steps"] == sum(line["newton_steps"] for line in each)
    assert summary["ratio"] == pytest.approx(summary["seconds"] / summary["alone_seconds"])
    goal: Goal
    (goal,) = goals("logistic-path").values()
    assert judge(goal, lines).value == summary["ratio"]
    assert "fit_path of 3 λ over separate fits" in result.stderr


def test_fit_that_fails_is_a_line(tmp_path, table):
    data = flights.write(tmp_path, "few", 50, 50, table)
    record = logistic.run_fit(data, logistic.Fit("dkrr", "logistic", {"kernel": "nonsense"}), None)
    assert record["what"] == "dkrr" and "nonsense" in record["failed"]
    logistic.show("title", [record], (logistic.Column("", "what"),))
