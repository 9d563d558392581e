"""The process that starts workers: what it takes from its caller, and what it leaves on the caller's terminal."""

import os
import signal
import subprocess
import sys
import threading

from dkrr.runtime.local_workers import LocalWorkers, portable


def test_settings_that_live_in_this_process_are_left_out():
    of_main = type("Local", (), {"__module__": "__main__"})
    sys.modules["__main__"].Local = of_main
    try:
        config = {"a": 1, "lock": threading.Lock(), "deep": {"b": [1, "x"], "lock": threading.Lock(), "c": of_main()}}
        assert portable(config) == {"a": 1, "deep": {"b": [1, "x"]}}
    finally:
        del sys.modules["__main__"].Local


SCRIPT = """
import sys, dask
from concurrent.futures import ThreadPoolExecutor
sys.path[:] = [p for p in sys.path if p not in ("", sys.argv[1])]
from dkrr.runtime.local_workers import LocalWorkers
with dask.config.set(pool=ThreadPoolExecutor(1)), LocalWorkers(1, 10**9, sys.argv[1]) as workers:
    print(workers.address()[:6])
"""


def test_the_current_folder_is_not_imported_from_and_a_pool_not_sent(tmp_path):
    (tmp_path / "json.py").write_text("raise SystemExit('the json of the current folder')")
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT, str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("tcp://\n", "")


def test_nothing_on_the_terminal_of_a_caller_that_stops_at_once(tmp_path, capfd):
    with LocalWorkers(1, 10**9, str(tmp_path)) as workers:
        os.kill(workers._process.pid, signal.SIGINT)
    assert workers._process.returncode == 0
    assert capfd.readouterr() == ("", "")
