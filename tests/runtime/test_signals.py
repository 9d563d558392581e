"""SIGTERM and SIGHUP end a run in order, and the process as they would have."""

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

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
        {after}
finally:
    print("not reached")
"""
AGAIN = """finally:
            os.kill(os.getpid(), signal.{name})
            print("in order", flush=True)"""
SWALLOWED = """except BaseException:
            print("swallowed", flush=True)"""


def run(name, before="", after=AGAIN):
    code = SCRIPT.format(name=name, before=before, after=after.format(name=name))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_what_is_inside_ends_first_and_the_status_is_that_of_the_signal(name):
    assert run(name) == (-getattr(signal, name), "in order\n", "")


def test_another_one_much_later_ends_at_once():
    before = "import dkrr.runtime.signals as s; s.PATIENCE_SECONDS = -1.0"
    assert run("SIGTERM", before) == (-signal.SIGTERM, "", "")


def test_one_that_is_swallowed_ends_the_process_after_the_block():
    assert run("SIGTERM", after=SWALLOWED) == (-signal.SIGTERM, "swallowed\n", "")


def handlers():
    return [signal.getsignal(number) for number in ENDING]


def handlers_inside():
    with ended_in_order():
        return handlers()


def test_handlers_of_others_stay():
    assert run("SIGTERM", "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))")[0] == 7
    assert signal.SIG_DFL not in handlers_inside()
    assert handlers() == [signal.SIG_DFL] * len(ENDING)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    try:
        assert handlers_inside()[ENDING.index(signal.SIGHUP)] is signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_other_threads_change_nothing():
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(handlers_inside).result() == [signal.SIG_DFL] * len(ENDING)
