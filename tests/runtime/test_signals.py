"""SIGTERM and SIGHUP end a run in order, and the process as they would have."""

import signal
import subprocess
import sys
import threading

import pytest

from dkrr.runtime.signals import ENDING, ended_in_order

SCRIPT = """
import os, signal, sys, time
from dkrr.runtime.signals import ended_in_order
{before}
try:
    with ended_in_order():
        try:
            with ended_in_order():
                os.kill(os.getpid(), signal.{name})
                time.sleep(20)
        finally:
            os.kill(os.getpid(), signal.{name})
            print("in order", flush=True)
finally:
    print("not reached")
"""


def run(name, before=""):
    code = SCRIPT.format(name=name, before=before)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_what_is_inside_ends_first_and_the_status_is_that_of_the_signal(name):
    assert run(name) == (-getattr(signal, name), "in order\n", "")


def test_another_one_much_later_ends_at_once():
    before = "import dkrr.runtime.signals as s; s.PATIENCE_SECONDS = -1.0"
    assert run("SIGTERM", before) == (-signal.SIGTERM, "", "")


def test_one_that_is_swallowed_ends_the_process_after_the_block():
    code = """
import os, signal
from dkrr.runtime.signals import ended_in_order
with ended_in_order():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except BaseException:
        print("swallowed", flush=True)
print("not reached")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "swallowed\n")


def test_handlers_of_others_stay():
    before = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))"
    assert run("SIGTERM", before)[0] == 7
    with ended_in_order():
        inside = [signal.getsignal(number) for number in ENDING]
    assert signal.SIG_DFL not in inside
    assert [signal.getsignal(number) for number in ENDING] == [signal.SIG_DFL] * len(ENDING)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    try:
        with ended_in_order():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_other_threads_change_nothing():
    found = []

    def enter():
        with ended_in_order():
            found.append([signal.getsignal(number) for number in ENDING])

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [[signal.SIG_DFL] * len(ENDING)]
