"""The process that starts workers: what it takes from its caller, and what it leaves on the caller's terminal."""

import os
import pickle
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
from contextlib import suppress

import dask
import psutil
import pytest
from distributed import Client

from dkrr.cluster.local_workers import LocalWorkers, new_credentials

SCRIPT = """
import sys, dask
from concurrent.futures import ThreadPoolExecutor
sys.path[:] = [p for p in sys.path if p not in ("", sys.argv[1])]
from dkrr.cluster.local_workers import LocalWorkers
with dask.config.set(pool=ThreadPoolExecutor(1)), LocalWorkers(1, 10**9, sys.argv[1]) as workers:
    print(workers.address()[:6])
"""


def test_the_current_folder_is_not_imported_from_and_a_pool_not_sent(tmp_path):
    (tmp_path / "json.py").write_text("raise SystemExit('the json of the current folder')")
    command = [sys.executable, "-P", "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout, done.stderr) == ("tls://\n", "")


def test_nothing_on_the_terminal_of_a_caller_that_stops_at_once(tmp_path, capfd):
    with LocalWorkers(1, 10**9, str(tmp_path)) as workers:
        os.kill(workers._process.pid, signal.SIGINT)
    assert workers._process.returncode == 0
    assert capfd.readouterr() == ("", "")


def all_of(workers):
    """The process that started workers, and all that it started."""
    this = psutil.Process(workers._process.pid)
    return [this, *this.children(recursive=True)]


def listening(*processes):
    """Addresses where processes listen."""
    found = [connection for one in processes for connection in one.net_connections("inet")]
    return [tuple(c.laddr) for c in found if c.status == psutil.CONN_LISTEN]


def answer_without_a_certificate(place, context):
    """What a server sends after the handshake; TLS 1.3 refuses a client at its first read."""
    with socket.create_connection(place, timeout=10) as plain, context.wrap_socket(plain) as stream:
        assert stream.version() == "TLSv1.3"
        try:
            stream.sendall(b"x" * 100)
            return stream.recv(100)
        except (ssl.SSLError, ConnectionError):
            return b""


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    # Settings of the user's for another cluster: nothing of them may be used.
    with (
        dask.config.set({"distributed.comm.tls.ciphers": "none", "distributed.comm.tls.ca-file": "/missing"}),
        LocalWorkers(2, 10**9, str(tmp_path_factory.mktemp("scratch"))) as workers,
        workers.client() as client,
    ):
        yield workers, client


class TestCredentials:
    """Other users of the machine reach the ports of 127.0.0.1 as well, and must get nothing there."""

    def test_files_of_keys_are_in_the_folder_that_is_deleted(self, workers):
        started, client = workers
        folders = {*client.run(tempfile.gettempdir).values(), client.run_on_scheduler(tempfile.gettempdir)}
        assert folders == {started._options["local_directory"]}

    def test_everything_listens_on_loopback_only_and_speaks_tls_only(self, workers):
        places = listening(*all_of(workers[0]))
        # The scheduler, two nannies and two workers; no HTTP server.
        assert len(places) == 5 and {host for host, _ in places} == {"127.0.0.1"}
        assert not listening(psutil.Process())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        for place in places:
            with suppress(ConnectionError), socket.create_connection(place, timeout=10) as plain:
                plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
                assert not plain.recv(100).startswith(b"HTTP")
            assert not answer_without_a_certificate(place, context)

    @pytest.mark.parametrize("known", ["nothing", "a certificate of another cluster"])
    def test_another_client_is_refused(self, workers, known):
        client = workers[1]
        address, security = client.scheduler.address, new_credentials()
        if known == "nothing":
            address, security = address.replace("tls:", "tcp:"), None
        with pytest.raises(OSError), dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
            Client(address, set_as_default=False, timeout=2, security=security)
        assert client.submit(int, "7").result() == 7

    def test_the_key_is_nowhere_to_be_seen(self, workers):
        server, client = workers
        inner = server._security.tls_client_key.splitlines()[1].encode()
        for process in all_of(server):
            seen = "".join(process.cmdline()) + repr(process.environ())
            assert "PRIVATE KEY" not in seen and inner.decode() not in seen
        assert inner not in pickle.dumps(client.run(lambda: dict(dask.config.config)))
        assert "PRIVATE" not in repr(client.security)

    def test_every_cluster_has_its_own_and_strict_checks_accept_it(self):
        one, other = new_credentials(), new_credentials()
        assert one.tls_client_key != other.tls_client_key
        for role in ("client", "scheduler", "worker"):
            assert getattr(one, f"tls_{role}_cert") == one.tls_ca_file
        sent = pickle.loads(pickle.dumps(one))
        server = sent.get_listen_args("scheduler")["ssl_context"]
        client = one.get_connection_args("worker")["ssl_context"]
        for context in (server, client):
            context.verify_flags |= ssl.VERIFY_X509_STRICT
            assert context.verify_mode == ssl.CERT_REQUIRED and context.minimum_version == ssl.TLSVersion.TLSv1_3
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        ends = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
        for end in (0, 1, 0, 1, 0):
            with suppress(ssl.SSLWantReadError):
                ends[end].do_handshake()
        ends[0].write(b"hello")
        assert ends[1].read() == b"hello"
