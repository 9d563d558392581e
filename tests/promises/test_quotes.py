"""What pages say of times, memory and errors is what was measured."""

import pytest

from benchmarks.quotes import QUOTES, differences, of, quote
from benchmarks.results import RESULTS, ROOT, prune, read_runs

RUNS = read_runs(RESULTS)
LINE = {"n": 100, "a": 2.0, "ratio": 1.7}


@pytest.mark.parametrize("page", sorted({q.page for q in QUOTES}))
def test_the_numbers_of_a_page_are_those_of_the_recorded_results(page):
    assert differences(RUNS, ROOT, [q for q in QUOTES if q.page == page]) == []


def run_of(*records, step="small", **more):
    run = {"step": step, "size": "full", "status": "complete", "noisy": False, "records": list(records)}
    return run | {"machine": {}, "started": "", "commit": ""} | more


@pytest.mark.parametrize(
    ("page", "records", "message"),
    [
        ("A fit of 100 rows\ntakes 2.0 s, 1.70 × as long.", [LINE], None),
        ("A fit of 100 rows takes 3 s, 1.70 × as long.", [LINE], "the page says '3 s', measured '2.0 s'"),
        ("A fit takes long.", [LINE], "the page has no text 'A fit of 100 rows takes 2.0 s, 1.70 × as long.'"),
        ("", [LINE | {"n": 500}], "0 lines of step small"),
        ("", [LINE, LINE], "2 lines of step small"),
    ],
)
def test_a_page_that_says_something_else_is_reported(page, records, message, tmp_path):
    (tmp_path / "page.md").write_text(page)
    where = {"n": 100}
    text = "A fit of 100 rows takes {time}, {ratio} × as long."
    one = quote("page.md", "small", text, time=of("a", "seconds", where=where), ratio=of("ratio", "ratio", where=where))
    found = differences([run_of(*records)], tmp_path, [one])
    assert (found == []) if message is None else message in found[0]
    assert "quiet" in differences([run_of(*records, noisy=True)], tmp_path, [one])[0]
    assert "not measured" in differences([], tmp_path, [one])[0]


def test_only_runs_that_are_shown_are_kept():
    old, new, failed = run_of(started="1"), run_of(started="2"), run_of(status="failed", started="3")
    gone, noisy = run_of(step="a step of the past"), run_of(step="text", noisy=True)
    assert prune([old, gone, new, failed, noisy]) == [new]
    assert prune(RUNS) == RUNS, "run python -m benchmarks.report --prune"
