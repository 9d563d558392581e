"""What the displays of progress show, where each is used, and who takes dkrr's messages."""

import builtins
import io
import logging
import os
import re
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

import dkrr
from dkrr.cluster import CombinedProgress, Progress, make_progress
from dkrr.cluster import progress as displays
from dkrr.cluster.progress import LiveProgress, LogProgress, is_screen, logged_to_stderr, stderr_logger


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""
    found = SimpleNamespace(now=100.0)
    monkeypatch.setattr(displays.time, "monotonic", lambda: found.now)
    return found


class ZMQInteractiveShell:
    """What IPython's kernel for notebooks is called."""


@pytest.fixture
def notebook(monkeypatch):
    """Texts that the outputs of a cell show, in turn; a list for each output."""
    outputs = []

    def text_of(shown):
        return re.sub("\x1b.*?m", "", shown._repr_mimebundle_([], [])["text/plain"])

    def display(shown, display_id=None):
        outputs.append([text_of(shown)])
        mine = outputs[-1]
        return SimpleNamespace(update=lambda again: mine.append(text_of(again)))

    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    return outputs


def lines(capsys):
    out, err = capsys.readouterr()
    assert out == "", "standard output is the program's own"
    assert all(re.match(r"dkrr \d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", line) for line in err.splitlines())
    return [line.split(maxsplit=3)[3] for line in err.splitlines()]


def test_a_log_has_a_line_every_tenth(clock, capsys):
    display = LogProgress(stderr_logger)
    with display.stage("factorisation", 64.0):  # in sixteenths, of which two are more than a tenth
        for _ in range(16):
            clock.now += 3.0
            display.advance(4.0)
    *found, last = lines(capsys)
    assert [line[15:18].strip() for line in found] == [f"{12.5 * k:.0f}" for k in range(1, 9)]
    assert found[0] == "factorisation:  12%, 6.0 s gone, 42.0 s left"
    assert last == "factorisation: done in 48.0 s"
    display.note("hello")
    assert lines(capsys) == ["hello"]


def test_a_log_says_what_an_earlier_run_did(clock, capsys):
    display = LogProgress(stderr_logger)
    with display.stage("x", 100.0, 60.0):
        clock.now += 10.0
        display.advance(20.0)
    # Twenty were done in ten seconds by this run, and twenty are left.
    said = ["x: 60% of its work done by an earlier run", "x:  80%, 10.0 s gone, 10.0 s left", "x: done in 10.0 s"]
    assert lines(capsys) == said


def test_a_terminal_shows_a_bar():
    out = io.StringIO()
    display = LiveProgress(Console(file=out, force_terminal=True, width=100))
    with display.stage("factorisation", 8.0, 2.0):
        display.advance(4.0)
        display._bars.refresh()
        assert "75%" in out.getvalue()
        display.advance(2.0)
    display.note("between")
    assert "factorisation" in out.getvalue() and "100%" in out.getvalue()
    assert "between" in out.getvalue()


def test_a_notebook_has_an_output_with_a_bar_for_each_stage_and_the_time_that_is_left(notebook, monkeypatch):
    monkeypatch.setattr(displays, "REFRESH_SECONDS", 0.01)
    display = make_progress(None)
    with display.stage("factorisation", 8.0, 2.0):
        display.advance(2.0)
        time.sleep(0.1)
        display.advance(1.0)
        shown = len(notebook[0])
        while len(notebook[0]) < shown + 3:  # also while a task runs
            time.sleep(0.01)
        assert re.search(r"factorisation .* 62% 0:00:00 left 0:00:0\d", notebook[0][-1])
    for _ in range(2):
        with display.stage("substitution", 1.0):
            display.advance(1.0)
    display.note("[b]between[/b]")
    (bars, (note,)) = notebook
    found = [line.split()[0] for line in bars[-1].splitlines()]
    assert found == ["factorisation", "substitution"], "a line for a stage that is repeated"
    assert note == "[b]between[/b]\n"
    for k in range(2 * displays.MAX_BARS):
        with display.stage("substitution", 1.0, detail=f"model {k}"):
            pass
    assert len(bars[-1].splitlines()) <= displays.MAX_BARS + 1 and f"model {k}" in bars[-1]


@pytest.mark.parametrize("kind", ["log", "terminal", "notebook"])
def test_a_failed_stage_is_not_done_and_ends_its_bar(kind, notebook, capsys):
    out = io.StringIO()
    terminal = Console(file=out, force_terminal=True, force_jupyter=False)
    made = {"log": lambda: LogProgress(stderr_logger), "terminal": lambda: LiveProgress(terminal)}
    display = made.get(kind, lambda: make_progress(None))()
    with pytest.raises(ZeroDivisionError), display.stage("x", 10.0):
        1 / 0  # noqa: B018
    if kind == "log":
        assert not any("done" in line for line in lines(capsys))
    else:
        assert "x " in (shown := out.getvalue() if kind == "terminal" else notebook[0][-1]) and "stopped" in shown
    with display.stage("y", 1.0):
        display.advance(1.0)


def shown_by(show):
    return [type(display) for display in make_progress(show)._displays]


@pytest.mark.parametrize(("show", "kind"), [(None, [LiveProgress]), (True, [LiveProgress]), (False, [])])
def test_a_terminal_has_a_bar_unless_it_is_turned_off(monkeypatch, show, kind):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "JUPYTER_COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    leader, follower = os.openpty()
    with os.fdopen(follower, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        assert shown_by(show) == kind
    os.close(leader)


def test_elsewhere_nothing_is_shown_unless_asked(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert shown_by(None) == []
    assert shown_by(True) == [LogProgress]


def stage_of(show):
    with make_progress(show).stage("x", 1.0):
        pass


def set_up(name, handler):
    """Set up a logger as a program does; the fixture `same_loggers` undoes it."""
    logger = logging.getLogger(name)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    return logger


class TestLogging:
    """A program that has set up logging gets every line once."""

    @pytest.fixture(params=["dkrr.progress", "dkrr", ""])
    def logged(self, request):
        stream = io.StringIO()
        set_up(request.param, logging.StreamHandler(stream))
        return stream

    @pytest.mark.parametrize("show", [None, True])
    def test_in_place_of_stderr(self, logged, show, capsys):
        stage_of(show)
        assert re.fullmatch(r"x: done in .*\n", logged.getvalue())
        assert capsys.readouterr() == ("", "")

    def test_beside_a_live_display(self, logged, notebook):
        stage_of(None)
        assert re.fullmatch(r"x: done in .*\n", logged.getvalue())
        assert notebook[0][-1].startswith("x ")

    def test_on_the_screen_in_place_of_a_live_display(self, notebook, capsys):
        set_up("dkrr", logging.StreamHandler(sys.stderr))
        stage_of(None)
        assert capsys.readouterr().err.startswith("x: done in") and not notebook

    @pytest.mark.parametrize("kind", [logging.NullHandler, logging.StreamHandler])
    def test_not_by_a_handler_that_takes_nothing_or_warnings_only(self, kind, capsys):
        handler = kind()
        handler.setLevel(logging.WARNING if kind is logging.StreamHandler else logging.INFO)
        set_up("dkrr", handler).propagate = False
        stage_of(True)
        assert capsys.readouterr().err.count("x: done in") == 1

    def test_messages_below_the_package_are_written_once_with_date_and_time(self, capsys):
        logging.getLogger().handlers[:] = []  # with which pytest captures messages
        with logged_to_stderr() as handler:
            assert is_screen(handler)
            logging.getLogger("dkrr.fitting.run").info("%d rows", 7)
            logging.getLogger("dkrr.store.lock").warning("taken over")
            logging.getLogger("dkrr").debug("not shown")
            with logged_to_stderr() as second:
                assert second is None, "there is one already"
        logging.getLogger("dkrr").info("after the end")
        assert lines(capsys) == ["7 rows", "warning: taken over"]


def test_the_time_of_stages_is_measured(clock):
    display = Progress()
    for name, seconds in (("factorisation", 3.0), ("substitution", 2.0), ("factorisation", 4.0)):
        with display.stage(name, 1.0, detail="model 1"):
            clock.now += seconds
            with display.measured("within"):
                clock.now += 1.0
    found = {stage.name: stage.seconds for stage in display.take_stages()}
    assert found == {"factorisation": 7.0, "substitution": 2.0, "within": 3.0}, "nothing is counted twice"
    assert display.take_stages() == (), "each is told once"


@pytest.mark.parametrize(("solver", "stage"), [("cholesky", "factorisation"), ("cg", "preconditioner")])
def test_stages_in_memory_say_how_far_they_are(solver, stage, monkeypatch):
    display, steps = Progress(), {}
    monkeypatch.setattr("dkrr.fitting.context.make_progress", lambda show: display)
    monkeypatch.setattr(display, "begin", lambda name, total, done: steps.setdefault(name, [total]))
    monkeypatch.setattr(display, "advance", lambda flops: steps[next(reversed(steps))].append(flops))
    X = np.random.default_rng(0).standard_normal((2300, 3))  # more than one tile
    dkrr.KernelRidge(kernel="rbf", alpha=1e-3, solver=solver).fit(X, X[:, 0])
    total, *found = steps[stage]
    assert len(found) >= 3 and sum(found) <= total * (1 + 1e-9)
    assert sum(found) == pytest.approx(total) or solver == "cg", "it may end early"


def test_a_search_has_one_display_and_its_parts_move_it_on(clock, capsys):
    with CombinedProgress("search", 160.0, True, "the plan\n  time        80 s") as whole:
        for k, seconds in enumerate((20.0, 20.0, 100.0, 20.0)):
            with whole.part(seconds):
                fit = make_progress(True)
                with fit.stage("factorisation", 8.0):
                    clock.now += 10.0
                    fit.advance(4.0)
                if k == 1:
                    fit.note("hello")
                    fit.detail("Newton step 3; about 5 s left")
                clock.now += 10.0
            assert [stage.name for stage in fit.take_stages()] == ["factorisation"]
    found = lines(capsys)
    assert found[:2] == ["the plan", "time        80 s"]
    assert found[-1] == "search: done in 1 min 20 s" and found.count("hello") == 1
    shares = [line[8:12].strip() for line in found if "gone" in line]
    assert shares == ["12%", "25%", "88%", "100%"]
    assert not any("factorisation" in line or "Newton" in line for line in found)


def test_the_share_of_a_search_never_falls_where_parts_take_longer_or_are_left_out(clock, capsys):
    with CombinedProgress("search", 30.0, True) as whole, whole.part(20.0):
        for _ in range(50):
            clock.now += 5.0
            whole.advance(0.0)
    shares = [int(line[8:12].strip().rstrip("%")) for line in lines(capsys) if "gone" in line]
    assert len(shares) > 3 and shares == sorted(shares) and shares[0] == 17 and 60 < shares[-1] < 67


def test_a_short_search_shows_nothing_unless_it_is_asked_to(capsys):
    X = np.random.default_rng(0).standard_normal((40, 2))
    dkrr.KernelRidgeCV([0.1, 1.0]).fit(X, X[:, 0])
    assert lines(capsys) == []
    dkrr.KernelRidgeCV([0.1, 1.0], kernel=["rbf", "laplacian"], train_sizes=[0.5], progress=True).fit(X, X[:, 0])
    found = lines(capsys)
    assert found[0] == "dkrr selection: 40 rows × 2 columns, 1 target, 2 kernels × 2 λ × 5 folds"
    assert any(line.startswith("time        about") and "in all" in line for line in found)
    assert not any("factorisation" in line for line in found)


@pytest.mark.parametrize("transformer", [None, "standardize"])
def test_long_predictions_of_an_estimator_are_shown(monkeypatch, caplog, transformer):
    X = np.random.default_rng(0).standard_normal((120, 2))
    model = dkrr.KernelRidge(kernel="rbf", transformer=transformer).fit(X, X[:, 0])
    monkeypatch.setattr("dkrr.fitting.prediction_plans.MIN_PLANNED", 0.0)
    for quiet, progress, lines in ((1e9, True, 0), (0.0, False, 0), (0.0, None, 2)):
        monkeypatch.setattr("dkrr.fitting.prediction_plans.QUIET_SECONDS", quiet)
        caplog.clear()
        with caplog.at_level(logging.INFO, "dkrr.progress"):
            model.set_params(progress=progress)
            np.testing.assert_array_equal(model.predict(X), model.predict(X, return_std=True)[0])
        done = [text for text in caplog.messages if text.startswith("predictions, 120 rows: done in")]
        assert len(done) == lines
