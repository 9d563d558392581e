"""What the displays show, and where each is used."""

import io
import os
import re
import sys
import time

import pytest
from rich.console import Console

from dkrr.runtime import Progress, make_progress, progress
from dkrr.runtime.progress import LiveProgress, LogProgress


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""

    class Clock:
        now = 100.0

    monkeypatch.setattr(progress.time, "monotonic", lambda: Clock.now)
    return Clock


def lines(capsys):
    out, err = capsys.readouterr()
    assert out == "", "standard output is the program's own"
    assert all(re.match(r"dkrr \d\d:\d\d:\d\d ", line) for line in err.splitlines())
    return [line.split(maxsplit=2)[2] for line in err.splitlines()]


class TestLog:
    def test_a_line_every_tenth(self, clock, capsys):
        display = LogProgress()
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

    def test_not_too_often(self, clock, capsys):
        display = LogProgress()
        with display.stage("x", 10.0):
            for _ in range(10):
                clock.now += 0.1
                display.advance(1.0)
        assert lines(capsys) == ["x: done in 1.0 s"]

    def test_not_too_seldom(self, clock, capsys):
        display = LogProgress()
        with display.stage("x", 1000.0):
            for _ in range(4):
                clock.now += 31.0
                display.advance(1.0)
        assert [line[:6] for line in lines(capsys)[:4]] == ["x:   0"] * 4

    def test_an_earlier_run(self, clock, capsys):
        display = LogProgress()
        with display.stage("x", 100.0, 60.0):
            clock.now += 10.0
            display.advance(20.0)
        # Twenty were done in ten seconds by this run, and twenty are left.
        assert lines(capsys) == [
            "x: 60% done by an earlier run",
            "x:  80%, 10.0 s gone, 10.0 s left",
            "x: done in 10.0 s",
        ]

    def test_work_of_unknown_size(self, clock, capsys):
        display = LogProgress()
        with display.stage("x", 0.0):
            clock.now += 50.0
            display.advance(0.0)
            clock.now += 50.0
            display.advance(7.0)
        assert len(lines(capsys)) == 3

    def test_a_failed_stage_is_not_done(self, capsys):
        display = LogProgress()
        with pytest.raises(ZeroDivisionError), display.stage("x", 10.0):
            1 / 0  # noqa: B018
        assert not any("done" in line for line in lines(capsys))

    def test_note(self, capsys):
        LogProgress().note("hello")
        assert lines(capsys) == ["hello"]


class TestLive:
    def test_bar(self):
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

    def test_elsewhere(self, monkeypatch):
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        assert type(make_progress(None)) is Progress
        assert isinstance(make_progress(True), LogProgress)

    def test_nothing_is_shown(self, capsys):
        with make_progress(False).stage("x", 1.0) as display:
            display.advance(1.0)
            display.note("quiet")
        assert capsys.readouterr() == ("", "")


def test_the_time_of_stages_is_measured():
    display = Progress()
    for name in ("factorisation", "substitution", "factorisation"):
        with display.stage(name, 1.0, detail="model 1"):
            time.sleep(0.002)
    first, second = display.take_stages()
    assert (first.name, second.name) == ("factorisation", "substitution")
    assert first.seconds >= 0.004 and second.seconds >= 0.002
    assert display.take_stages() == (), "each is told once"
