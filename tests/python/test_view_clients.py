"""`nestor view --serve` beside clients that misuse it: the owner is served, memory stays, and a signal ends it."""
import http.client
import signal
import socket
import subprocess
import urllib.parse

import pytest
from conftest import PATIENCE
from rude_clients import clients, crowd, memory
from view_runs import write_run


@pytest.fixture
def server(nestor, tmp_path):
    """The server of a page: its process, host and path."""
    command = [str(nestor), "view", str(write_run(tmp_path / "run")), "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        url = urllib.parse.urlsplit(process.stdout.readline().strip())
        yield process, url.netloc, url.path
        process.kill()


def page(host, path):
    connection = http.client.HTTPConnection(host, timeout=PATIENCE)
    connection.request("GET", path)
    with connection.getresponse() as response:
        assert response.status == 200
        return response.read()


def test_nobody_waits_for_a_body_that_does_not_come(server):
    """The reply, or the end of the connection, comes before any body; a request that is none is refused."""
    process, host, path = server
    sent = clients(host, path)
    for name, status in {
        "no body": 403, "no body, no host": 403, "two lengths": 403, "a length of 2^64": 403, "a huge chunk": 403,
        "expects 100-continue": 403, "upgrade": 403, "HTTP/1.0": 403, "HEAD": 403, "OPTIONS": 403, "CONNECT": 403,
        "an absolute target": 403, "two hosts": 403, "a TLS hello": 400, "HTTP/0.9": 400, "HTTP/2 by prior knowledge": 400,
        "the page, by POST": 405, "the page, with a body": 200,
    }.items():
        port = int(host.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
            client.sendall(next(iter(sent[name]())))
            reply = client.makefile("rb").read()
        assert reply.startswith(f"HTTP/1.1 {status} ".encode()), (name, reply[:200])
        body = reply.partition(b"\r\n\r\n")[2]
        assert (body == b"") == (name == "HEAD"), name
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0


def test_the_owner_is_served_beside_a_crowd(server):
    process, host, path = server
    whole, idle = page(host, path), memory(process.pid)
    with crowd(host, path):
        for _ in range(10):
            assert page(host, path) == whole
        assert memory(process.pid) - idle < 100 << 20
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    assert process.stdout.read().endswith("ended\n")
