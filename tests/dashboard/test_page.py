"""The page on Dask's dashboard, of real fits on a real cluster, as a browser gets it."""

import base64
import functools
import hashlib
import logging
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from weakref import WeakKeyDictionary

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster

import dkrr
from dkrr.dashboard.states import TOPIC
from dkrr.errors import ClusterError, NotPositiveDefiniteError
from dkrr.kernels import CallableKernel
from dkrr.runtime import followed
from dkrr.runtime.claims import claimed
from dkrr.runtime.followed import page_of
from dkrr.solvers import ConjugateGradient
from tests.cluster.processes import free_port, session, wait_for_text
from tests.dashboard.test_states import STATE
from tests.test_markup import EVIL

AT_A_WORKER = '<path class="f1" opacity="1.0"'
"""Cells of the map of tiles."""
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def cluster():
    """Two workers, and a scheduler with an HTTP server and the preload."""
    options = {"n_workers": 2, "threads_per_worker": 1, "memory_limit": 2**30, "dashboard_address": "127.0.0.1:0"}
    with (
        dask.config.set({f"distributed.{name}.preload": ["dkrr.preload"] for name in ("scheduler", "worker")}),
        LocalCluster(**options) as cluster,
    ):
        yield cluster


@pytest.fixture
def client(cluster):
    """The ambient client of a machine so slow that no work is small."""
    with Client(cluster) as client, dask.config.set({"dkrr.rates.gemm-gflops": 1e-3}):
        yield client


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """The last state of a fit arrives, however busy this machine is."""
    monkeypatch.setattr(followed, "LAST_SECONDS", 60.0)


def fetched(client, path="/now"):
    """Answer of the page's server."""
    with urllib.request.urlopen(page_of(client) + path, timeout=30) as answer:
        return answer.read().decode()


def card(client):
    """HTML of the first fit of the page."""
    return fetched(client).split("</section>")[0]


class Tags(HTMLParser):
    """Names of the elements of a page."""

    def __init__(self, page):
        super().__init__()
        self.found = set()
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.add(tag)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(307, 3))
    return X, np.sin(X[:, 0])


def linear(X, Y):
    return X @ Y.T


def linear_on_workers_once(path, caller, X, Y):
    """Linear kernel; outside of the calling process it waits until a file is there."""
    deadline = time.monotonic() + 60
    while os.getpid() != caller and not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return X @ Y.T


def test_a_fit_while_it_runs_and_after(client, data, tmp_path, caplog):
    gate = tmp_path / "gate"
    kernel = CallableKernel(functools.partial(linear_on_workers_once, str(gate), os.getpid()), name=EVIL)
    model = dkrr.KernelRidge(kernel=kernel, tile=64, solver="cholesky", progress=True)
    caplog.set_level(logging.INFO, "dkrr.progress")
    with ThreadPoolExecutor(1) as aside:
        fitted = aside.submit(model.fit, *data)
        try:
            deadline = time.monotonic() + 60
            running = ""
            while AT_A_WORKER not in running and time.monotonic() < deadline:
                assert not fitted.done(), fitted.result()
                running = card(client)
        finally:
            gate.touch()
        fitted.result()
    assert ">running<" in running and "factorisation: 0 of 15 tiles done" in running and "left of the stage" in running
    assert "<b>factorisation</b>" in running and "&lt;script&gt;" in running
    ended = card(client)
    assert ">complete<" in ended and "factorisation: 15 of 15 tiles done" in ended
    assert '<path class="missing"' not in ended
    assert "substitution" in ended and "left of the stage" not in ended
    assert f"Dask's dashboard: {page_of(client)}" in caplog.messages
    assert page_of(client) == client.dashboard_link.replace("/status", "/dkrr")


def test_conjugate_gradient(client, data):
    dkrr.KernelRidge(kernel="rbf", tile=64, solver=ConjugateGradient(preconditioner=None)).fit(*data)
    shown = card(client)
    assert "iteration of conjugate gradient" in shown and "K: 15 of 15 tiles kept in memory" in shown
    assert "tol 1e-08" in shown and "a colour for each thread" in shown


def test_newton(client, data):
    dkrr.KernelLogisticRegression(kernel="rbf", tile=64).fit(data[0], data[1] > 0)
    shown = card(client)
    assert "step of Newton" in shown and "relative gradient" in shown and ">complete<" in shown


def test_the_primal_form(client, data):
    dkrr.KernelRidge(kernel="poly", form="primal", solver="cholesky", tile=5).fit(*data)
    assert "factorisation: 10 of 10 tiles done" in card(client)


def test_a_fit_that_fails(client, data):
    with pytest.raises(NotPositiveDefiniteError):
        dkrr.KernelRidge(kernel=CallableKernel(linear), alpha=0.0, tile=64, solver="cholesky").fit(*data)
    shown = card(client)
    assert ">failed<" in shown and "factorisation: 0 of 15 tiles done" in shown and AT_A_WORKER not in shown
    assert "NotPositiveDefiniteError: K + λI is not positive definite" in shown


def test_workers_and_earlier_fits(client):
    client.log_event(TOPIC, replace(STATE, fit="a", client=client.id, title="this one").plain())
    client.log_event(TOPIC, replace(STATE, fit="b", client="Client-gone", title="that one").plain())
    fits, workers, earlier, _ = fetched(client).split("</section>")
    assert "this one" in fits and ">running<" in fits and "factorisation: 3 of 6 tiles done" in fits
    assert "2 workers, 2 threads" in workers and workers.count("of 1 GiB") == 2
    assert "that one" in earlier and ">lost<" in earlier
    client.log_event(TOPIC, replace(STATE, fit="a", status="complete").plain())


def test_what_others_write_is_text_or_nothing(client):
    before = fetched(client).count("</section>")
    for message in (EVIL, [EVIL], {"fit": EVIL}, {"fit": {}}, STATE.plain() | {"fit": "c", "seconds": EVIL}):
        client.log_event(TOPIC, message)
    assert fetched(client).count("</section>") == before
    texts = dict.fromkeys(("fit", "who", "title", "how", "message", "stage", "client"), EVIL)
    lists = {"notes": [EVIL], "stages": [[EVIL, 1.0, 2.0]]}
    for status in ("running", "complete", "failed"):
        curves = [{"method": EVIL, "tol": -1.0, "points": [[1.0, 1e300, 1.0], [-2.0, -5.0, 1.0]]}]
        client.log_event(TOPIC, STATE.plain() | texts | lists | {"status": status, "curves": curves})
        page = fetched(client)
        assert "&lt;script&gt;" in page and "script" not in Tags(page).found


def test_the_page_loads_nothing_and_runs_its_own_script_only(client):
    with urllib.request.urlopen(page_of(client), timeout=30) as answer:
        page, policy = answer.read().decode(), answer.headers["Content-Security-Policy"]
    assert re.search(r"(https?:|//\w|url\(|@import|javascript:| on\w+=)", page) is None
    (script,) = re.findall("<script>(.*?)</script>", page, re.DOTALL)
    assert f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in policy
    assert "default-src 'none'" in policy and "unsafe-inline'" not in policy.replace("style-src 'unsafe-inline'", "")
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(page_of(client), data=b"x", timeout=30)


def test_the_page_is_under_the_prefix_of_the_dashboard(client):
    with urllib.request.urlopen(page_of(client).replace("/dkrr", "/some/prefix/dkrr"), timeout=30) as answer:
        assert answer.status == 200


def test_a_scheduler_without_http(ambient_workers, data, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "dkrr")
    monkeypatch.setattr(followed, "_pages", WeakKeyDictionary())  # said once for each client, which other tests have
    assert dkrr.KernelRidge(kernel="rbf", tile=64, solver="cholesky").fit(*data).plan_.execution == "dask"
    assert page_of(ambient_workers) is None and ambient_workers.get_events(TOPIC) == ()
    assert "no page of dkrr on Dask's dashboard: the scheduler's HTTP pages are off" in caplog.messages


def test_a_scheduler_that_refuses_the_page(cluster, data, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "dkrr")
    monkeypatch.setattr(followed, "add_page", refused)
    with Client(cluster) as client, dask.config.set({"dkrr.rates.gemm-gflops": 1e-3}):
        before = client.get_events(TOPIC)
        dkrr.KernelRidge(kernel="rbf", tile=64, solver="cholesky").fit(*data)
        assert client.get_events(TOPIC) == before
    assert [text for text in caplog.messages if "ModuleNotFoundError: No module named 'dkrr.dashboard'" in text]


def refused():
    raise ModuleNotFoundError("No module named 'dkrr.dashboard'")


WITHOUT_DKRR = "import sys; sys.modules['dkrr'] = None; from distributed.cli.dask_scheduler import main; main()"


def test_a_scheduler_that_cannot_import_dkrr(tmp_path):
    address, log = f"tcp://127.0.0.1:{free_port()}", tmp_path / "log"
    options = ["--host", "127.0.0.1", "--port", address.rsplit(":", 1)[1], "--dashboard-address", "127.0.0.1:0"]
    with session([sys.executable, "-c", WITHOUT_DKRR, *options], log) as process:
        wait_for_text("Scheduler at", log, process)
        with Client(address) as client:
            assert page_of(client) is None
            with pytest.raises(ClusterError, match="install dkrr where the scheduler runs"), claimed(client, 1, 0):
                pass


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_a_browser_shows_it_without_errors(client, tmp_path):
    client.log_event(TOPIC, replace(STATE, fit="d", client=client.id).plain())
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'user'}"]
    options += ["--enable-logging=stderr", "--virtual-time-budget=5000", "--dump-dom", "--window-size=1280,1600"]
    done = subprocess.run([CHROMIUM, *options, page_of(client)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and "CONSOLE" not in done.stderr, done.stderr
    assert 'id="lost" hidden' in done.stdout and ">running<" in done.stdout
