"""What the displays show, and where each is used."""

import io
import logging
import os
import re
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from dkrr.runtime import Progress, displays, make_progress
from dkrr.runtime.displays import LiveProgress, LogProgress, NotebookProgress


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""

    class Clock:
        now = 100.0

    monkeypatch.setattr(displays.time, "monotonic", lambda: Clock.now)
    return Clock


@pytest.fixture
def notebook(monkeypatch):
    """What a cell of a notebook shows, in turn: one output, replaced by each update."""
    shown = []

    class Handle:
        def update(self, bundle, raw):
            assert raw
            shown.append(bundle)

    def display(bundle, raw, display_id):
        assert raw and display_id and not shown, "one output"
        shown.append(bundle)
        return Handle()

    ipython = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=None))
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    return shown


def lines(capsys):
    out, err = capsys.readouterr()
    assert out == "", "standard output is the program's own"
    assert all(re.match(r"dkrr \d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", line) for line in err.splitlines())
    return [line.split(maxsplit=3)[3] for line in err.splitlines()]


class TestLog:
    def test_a_line_every_tenth(self, clock, capsys):
        display = LogProgress(on_stderr=True)
        with display.stage("factorisation", 64.0):  # in sixteenths, of which two are more than a tenth
            for _ in range(16):
                clock.now += 3.0
                display.advance(4.0)
        found = lines(capsys)
        assert [line.split("%")[0].split()[-1] for line in found[:-1]] == [
            "12",
            "25",
            "38",
            "50",
            "62",
            "75",
            "88",
            "100",
        ]
        assert found[0] == "factorisation:  12%, 6.0 s gone, 42.0 s left"
        assert found[-1] == "factorisation: done in 48.0 s"

    def test_a_log_has_no_line_more_often_than_needed(self, clock, capsys):
        display = LogProgress(on_stderr=True)
        with display.stage("x", 10.0):
            for _ in range(10):
                clock.now += 0.1
                display.advance(1.0)
        assert lines(capsys) == ["x: done in 1.0 s"]

    def test_a_log_says_what_an_earlier_run_did(self, clock, capsys):
        display = LogProgress(on_stderr=True)
        with display.stage("x", 100.0, 60.0):
            clock.now += 10.0
            display.advance(20.0)
        # Twenty were done in ten seconds by this run, and twenty are left.
        assert lines(capsys) == [
            "x: 60% done by an earlier run",
            "x:  80%, 10.0 s gone, 10.0 s left",
            "x: done in 10.0 s",
        ]

    def test_a_failed_stage_is_not_done(self, capsys):
        display = LogProgress(on_stderr=True)
        with pytest.raises(ZeroDivisionError), display.stage("x", 10.0):
            1 / 0  # noqa: B018
        assert not any("done" in line for line in lines(capsys))

    def test_a_note_is_a_line_of_the_log(self, capsys):
        LogProgress(on_stderr=True).note("hello")
        assert lines(capsys) == ["hello"]


class TestLive:
    def test_a_terminal_shows_a_bar(self):
        out = io.StringIO()
        display = LiveProgress(Console(file=out, force_terminal=True, width=100))
        with display.stage("factorisation", 8.0, 2.0):
            display.advance(4.0)
            display._bar.refresh()
            assert "75%" in out.getvalue()
            display.advance(2.0)
        display.note("between")
        assert "factorisation" in out.getvalue() and "100%" in out.getvalue()
        assert "between" in out.getvalue()

    def test_an_error_ends_the_bar(self):
        display = LiveProgress(Console(file=io.StringIO(), force_terminal=True))
        with pytest.raises(ZeroDivisionError), display.stage("x", 1.0):
            1 / 0  # noqa: B018
        assert display._bar is None
        with display.stage("y", 1.0):
            display.advance(1.0)


class TestNotebook:
    def test_a_bar_while_it_runs_and_then_a_line_for_each_stage(self, notebook, clock):
        display = NotebookProgress()
        with display.stage("factorisation", 8.0, 2.0):
            display.advance(3.0)
            clock.now += 9.0
            display._show()
            assert notebook[-1]["text/plain"] == "factorisation  62%, 9.0 s gone, 9.0 s left"
            assert "width:62.5%" in notebook[-1]["text/html"]
        for k in range(2):
            with display.stage("substitution", 1.0, detail=f"model {k}"):
                clock.now += 1.0
        display.note("<b>between</b>")
        assert notebook[-1]["text/plain"].splitlines() == [
            "factorisation  done in 9.0 s",
            "substitution   done in 2.0 s (2 times)",
            "<b>between</b>",
        ]
        assert "width:" not in notebook[-1]["text/html"], "no bar is left"
        assert "&lt;b&gt;between" in notebook[-1]["text/html"]

    def test_it_is_updated_while_a_task_runs(self, notebook, monkeypatch):
        monkeypatch.setattr(displays, "REFRESH_SECONDS", 0.001)
        display = NotebookProgress()
        with display.stage("x", 1.0):
            while len(notebook) < 3:
                assert display._stage is not None
        n = len(display.lines())
        assert n == 1 and display._stop.is_set()

    def test_a_failed_stage_is_not_done(self, notebook):
        display = NotebookProgress()
        with pytest.raises(ZeroDivisionError), display.stage("x", 10.0):
            1 / 0  # noqa: B018
        assert notebook[-1]["text/plain"].startswith("x  stopped after")


class TestMakeProgress:
    @pytest.fixture(autouse=True)
    def _no_overrides(self, monkeypatch):
        for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "JUPYTER_COLUMNS"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("TERM", "xterm")

    @pytest.mark.parametrize(("show", "kind"), [(None, LiveProgress), (True, LiveProgress), (False, Progress)])
    def test_on_a_terminal(self, monkeypatch, show, kind):
        leader, follower = os.openpty()
        with os.fdopen(follower, "w") as terminal:
            monkeypatch.setattr(sys, "stderr", terminal)
            assert type(make_progress(show)) is kind
        os.close(leader)

    def test_elsewhere_nothing_is_shown_unless_asked(self, monkeypatch):
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        assert type(make_progress(None)) is Progress
        assert isinstance(make_progress(True), LogProgress)

    def test_in_a_notebook(self, notebook):
        assert type(make_progress(None)) is NotebookProgress


class TestLogging:
    """A program that has set up logging gets every line once."""

    @pytest.fixture(params=["dkrr.progress", "dkrr", ""])
    def logged(self, request, monkeypatch):
        logger, stream = logging.getLogger(request.param), io.StringIO()
        handler = logging.StreamHandler(stream)
        logger.addHandler(handler)
        before = logger.level
        logger.setLevel(logging.INFO)
        yield stream
        logger.removeHandler(handler)
        logger.setLevel(before)

    @pytest.mark.parametrize("show", [None, True])
    def test_in_place_of_stderr(self, logged, show, capsys):
        with make_progress(show).stage("x", 1.0):
            pass
        assert re.fullmatch(r"x: done in .*\n", logged.getvalue())
        assert capsys.readouterr() == ("", "")

    def test_beside_a_live_display(self, logged, notebook):
        with make_progress(None).stage("x", 1.0):
            pass
        assert re.fullmatch(r"x: done in .*\n", logged.getvalue())
        assert notebook[-1]["text/plain"].startswith("x  done in")

    def test_on_the_screen_in_place_of_a_live_display(self, notebook, capsys):
        handler = logging.StreamHandler(sys.stderr)
        logger = logging.getLogger("dkrr")
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            with make_progress(None).stage("x", 1.0):
                pass
        finally:
            logger.removeHandler(handler)
            logger.setLevel(logging.NOTSET)
        assert capsys.readouterr().err.startswith("x: done in") and not notebook

    def test_not_by_a_handler_of_warnings(self, monkeypatch, capsys):
        stream = io.StringIO()
        handler = logging.StreamHandler(stream)
        handler.setLevel(logging.WARNING)
        monkeypatch.setattr(logging.getLogger("dkrr"), "handlers", [handler])
        monkeypatch.setattr(logging.getLogger("dkrr"), "propagate", False)
        monkeypatch.setattr(logging.getLogger("dkrr"), "level", logging.INFO)
        with make_progress(True).stage("x", 1.0):
            pass
        assert stream.getvalue() == "" and "x: done in" in capsys.readouterr().err
