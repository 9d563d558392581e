import json
from math import comb

import pytest
from click.testing import CliRunner

import dkrr
from benchmarks import forms
from benchmarks.forms import CASES, crossing, crossover_table, grid_points, pick, region_map

LIMIT = "1GiB"


def command(*arguments):
    result = CliRunner().invoke(forms.main, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def record(**values):
    defaults = {"benchmark": "forms", "case": "linear", "kind": "form", "d": 50, "dimension": 50, "predicted": 60.0}
    return defaults | {"measured": 70.0, "switches": None, "load": {"noisy": False}} | values


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("n", "d"), [(100, 1), (1000, 5), (3000, 300), (200_000, 40)])
def test_a_pick_is_that_of_the_plan(name, n, d):
    plan = dkrr.plan(n=n, d=d, memory_limit=LIMIT, workers=2, **CASES[name].settings)
    place = "memory" if plan.execution == "memory" else "disk"
    assert pick(CASES[name], n, d, LIMIT, 2) == (plan.form, plan.solver, place)


def test_a_refusal_says_what_is_short():
    assert pick(CASES["rbf"], 10**6, 10, "250MiB", 2) == ("refused", "", "memory")


def test_features_are_those_of_the_map():
    for name, case in CASES.items():
        for d in (1, 4, 30):
            dimension = dkrr.plan(n=2, d=d, **case.settings).problem.dimension
            assert dimension is None if name == "rbf" else dimension == pytest.approx(case.features(d))


def test_regions_are_refined_where_they_meet():
    asked = []

    def choose(i, j):
        asked.append((i, j))
        return ("primal" if i > 2 * j + 3 else "dual", "cholesky", "memory")

    found = region_map(choose, 33, 17)
    assert found == [[choose(i, j) for i in range(33)] for j in range(17)]
    n_asked = len(asked) - 33 * 17
    assert n_asked == len(set(asked[:n_asked])) < 33 * 17 / 2, "once each, and few"


def test_grid_points():
    assert grid_points((0, 2), 2) == [1, 3, 10, 32, 100]
    assert len(grid_points(forms.N_DECADES, 16)) == 81


class TestCrossing:
    def runs(self, *triples):
        return [{"n": n, "seconds": {"a": a, "b": b}} for n, a, b in triples]

    def test_power_laws_cross_where_they_do(self):
        sizes = (100, 200, 400, 800)
        runs = self.runs(*((n, 3e-4 * n**1.5, 1e-6 * n**2.5) for n in sizes))
        assert crossing(runs, "a", "b") == 300
        assert crossing(reversed(runs), "a", "b") == 300

    def test_one_is_faster_everywhere(self):
        runs = self.runs((100, 1.0, 2.0), (200, 1.0, 4.0))
        assert crossing(runs, "a", "b") is None and crossing(runs, "b", "a") is None

    def test_the_last_of_several_counts(self):
        runs = self.runs((1, 2.0, 1.0), (4, 1.0, 2.0), (16, 2.0, 1.0), (64, 1.0, 2.0))
        assert crossing(runs, "a", "b") == 32


def test_least_number_that_holds():
    assert forms.first_true(lambda n: n >= 500) == pytest.approx(500, rel=0.011)
    assert forms.first_true(lambda n: True) == 16
    assert forms.first_true(lambda n: False) is None


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    path = tmp_path_factory.mktemp("forms") / "new" / "lines.jsonl"
    sizes = ["--n", 40, "--n", 90]
    cases = ["--case", "polynomial-2", "--case", "rbf", "--d", 7]
    return command("measure", *cases, *sizes, "--json", path), path


def test_lines_of_the_measurement(measured):
    result, path = measured
    assert path.read_text() == result.stdout
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["case"], line["kind"]) for line in lines] == [("polynomial-2", "form"), ("rbf", "solver")]
    assert lines[0]["dimension"] == comb(9, 2) and lines[1]["dimension"] is None
    for line, ways in zip(lines, ({"primal", "dual"}, {"cg", "cholesky"}), strict=True):
        assert [run["n"] for run in line["sizes"]] == [40, 90]
        assert line["difference"] < 1e-5, "both ways have the same solution"
        for run in line["sizes"]:
            assert set(run["seconds"]) == set(run["projected"]) == ways
            assert min(run["seconds"].values()) > 0
        assert line["measured"] is None or 40 <= line["measured"] <= 90
        assert line["load"]["noisy"] in (True, False) and line["machine"]["cores"] >= 1
    assert "polynomial, degree 2 | 7 | 36" in result.stderr


def test_sizes_go_on_until_the_times_cross(monkeypatch):
    def at(self, n):
        return {"n": n, "seconds": {"primal": 1.0, "dual": n / 1000}, "projected": {}, "difference": 0.0}

    monkeypatch.setattr(forms.Race, "at", at)
    monkeypatch.setattr(forms.Race, "predicted", lambda self: 300.0)
    monkeypatch.setattr(forms.Race, "switches", lambda self: 320)
    found = forms.Race(CASES["linear"], 10, "form", LIMIT).run((), None)
    assert found["measured"] == 1000 and found["predicted"] == 300
    assert len(found["sizes"]) == 7, "five around 300, the largest of them 600, and 849 and 1,200"


def test_solvers_are_not_timed_beyond_the_largest_size(monkeypatch):
    sizes = []
    monkeypatch.setattr(forms.Race, "predicted", lambda self: None)
    monkeypatch.setattr(forms.Race, "switches", lambda self: None)
    seconds = {"cg": 2.0, "cholesky": 1.0}
    monkeypatch.setattr(
        forms.Race, "at", lambda self, n: sizes.append(n) or {"n": n, "seconds": seconds, "difference": 0.0}
    )
    found = forms.Race(CASES["rbf"], 8, "solver", LIMIT).run((), 4000)
    assert found["measured"] is None and max(sizes) == 4000


def test_picture_with_crossovers(tmp_path, measured, monkeypatch):
    """The command itself, with a planner that needs no processes."""
    monkeypatch.setattr(forms, "ProcessPoolExecutor", _Here)
    monkeypatch.setattr(forms, "pick", lambda case, n, d, *_: _coarse_pick(n, d))
    lines = tmp_path / "lines.jsonl"
    both = [record(), record(d=500, measured=800.0), record(case="rbf", kind="solver", dimension=None, measured=9e3)]
    lines.write_text("".join(json.dumps(line) + "\n" for line in [*both, {"benchmark": "another"}]))
    out = tmp_path / "pictures" / "forms.png"
    result = command("draw", "--out", out, "--per-decade", 8, "--measured", lines)
    assert out.read_bytes().startswith(b"\x89PNG")
    assert result.stdout.startswith("| kernel | d | D |")
    assert "| linear | 500 | 50 | primal, dual | 60 | 800 | – |" in result.stdout
    assert "| RBF | 50 | ∞ |" in result.stdout


def _coarse_pick(n, d):
    if n > 5e6:
        return ("refused", "", "memory")
    return ("primal" if n > d else "dual", "cholesky" if n < 3e4 else "cg", "memory" if n < 1e6 else "disk")


class _Here:
    def __init__(self, *_):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def map(self, function, items):
        return map(function, items)


def test_table_marks_noise():
    table = crossover_table([record(load={"noisy": True}, measured=None)])
    assert table.splitlines()[-1] == "| linear | 50 | 50 | primal, dual | 60 | – (noisy) | – |"
