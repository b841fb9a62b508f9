"""Clients that send nothing, read nothing, or send too much: they cost the driver neither its descriptors nor its memory."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack, suppress

import pytest
from test_server import key, tls  # noqa: F401 - fixtures

from headrace.config import Configuration
from headrace.rest import connections, discovery, server
from headrace.rest.jobs import Jobs
from rest_kit import ID, FakeJob
from waiting import wait_until

HEAD = b"Host: 127.0.0.1\r\nAuthorization: Bearer s3cret\r\n"


@pytest.fixture
def job():
    return FakeJob()


@pytest.fixture
def url(tmp_path, monkeypatch, job):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv(discovery.TOKEN_VARIABLE, raising=False)
    monkeypatch.setattr(server, "_url", None)
    monkeypatch.setattr(server, "_jobs", Jobs())
    server.register(job, Configuration({"rest.port": 0, "headrace.rest.token": "s3cret"}))
    return server._url


@pytest.fixture
def connect(url):
    with ExitStack() as opened:
        port = int(url.rpartition(":")[2])

        def connect(sent):
            client = opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            client.sendall(sent)
            return client

        yield connect


def status(url, path="/jobs"):
    request = urllib.request.Request(url + path, headers={"Authorization": "Bearer s3cret"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.status


def is_closed(client):
    """Whether the server has closed the connection, after all that it has sent."""
    client.settimeout(0.01)
    try:
        return client.recv(1 << 20) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_silent_clients_are_closed_when_there_are_too_many(url, connect, monkeypatch):
    monkeypatch.setattr(connections, "_MOST", 20)
    silent = []
    for _ in range(5):  # not all at once: of more than 40 new ones the newest are closed, before they are looked at
        silent += [connect(b"GET /jobs HTTP/1.1\r\nHost: 127") for _ in range(10)]
        assert status(url) == 200
    wait_until(lambda: sum(map(is_closed, silent)) >= 30)
    assert not is_closed(silent[-1])  # the oldest go first


def test_a_stream_is_not_closed_for_others(url, connect, monkeypatch):
    monkeypatch.setattr(connections, "_MOST", 20)
    stream = connect(b"GET /events HTTP/1.1\r\n" + HEAD + b"\r\n")
    assert b"text/event-stream" in stream.recv(1000)
    for _ in range(50):
        connect(b"")
    assert status(url) == 200
    assert not is_closed(stream)


def test_a_request_that_does_not_arrive_is_given_up(url, connect, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)
    slow, answered = connect(b"GET /jobs HTTP/1.1\r\n"), connect(b"GET /jobs HTTP/1.1\r\n" + HEAD + b"\r\n")
    assert answered.recv(100).startswith(b"HTTP/1.1 200")
    refused = connect(b"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n")
    assert refused.recv(100).startswith(b"HTTP/1.1 401")

    def all_closed():
        for client in (slow, answered, refused):
            try:
                client.sendall(b"x")  # a byte now and then gains no time
            except OSError:
                continue
        return is_closed(slow) and is_closed(answered) and is_closed(refused)

    wait_until(all_closed)


def test_a_client_that_reads_nothing_is_given_up(connect, job, monkeypatch):
    """Else two hundred of them, such as suspended laptops, would keep all others from the event stream."""
    monkeypatch.setattr(connections, "STALLED_SECONDS", 0.3)
    job.plan.name = "x" * 20_000_000
    stuck = connect(b"GET /jobs/overview HTTP/1.1\r\n" + HEAD + b"\r\n")

    def given_up():
        try:
            stuck.sendall(b" ")
        except OSError:
            return True
        return False

    wait_until(given_up)


def test_a_client_that_reads_slowly_gets_all_of_it(connect, job, monkeypatch):
    monkeypatch.setattr(connections, "STALLED_SECONDS", 3.0)  # less than it takes to read all
    job.plan.name = "x" * 20_000_000
    slow, taken = connect(b"GET /jobs/overview HTTP/1.1\r\n" + HEAD + b"\r\n"), 0
    while taken < 20_000_000:
        part = slow.recv(1 << 20)
        assert part, f"the connection was closed after {taken:,} bytes"
        taken += len(part)
        time.sleep(0.25)


def test_the_driver_keeps_descriptors_for_itself(monkeypatch):
    for limit, most in ((1024, 256), (200, 50), (32, 16), (1 << 20, 400), (resource.RLIM_INFINITY, 400)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert connections.most_connections() == most


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_that_is_too_large_is_refused(connect, job, announced):
    size = b"Content-Length: 30000000\r\n" if announced else b"Transfer-Encoding: chunked\r\n"
    client = connect(
        b"POST /jobs/" + ID.encode() + b"/savepoints HTTP/1.1\r\nContent-Type: application/json\r\n" + HEAD
    )
    client.sendall(size + b"\r\n")
    if not announced:
        client.sendall((b"100000\r\n" + b"x" * (1 << 20) + b"\r\n") * 2)
    answer = b""
    while b"no request needs that" not in answer:
        part = client.recv(10_000)
        assert part, answer
        answer += part
    assert answer.startswith(b"HTTP/1.1 413")
    assert job.asked == []


DRIVER = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
from headrace.config import Configuration
from headrace.rest import server
print(server._start(Configuration(json.loads(sys.argv[1]))), flush=True)
for line in sys.stdin:
    open("/dev/null").close()  # raises if there is no descriptor left
    print("opened", flush=True)
"""


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_driver_can_write_its_checkpoints_while_another_user_opens_connections(tmp_path, request, is_encrypted):
    """One that has not spoken TLS is a connection too."""
    options = {
        "rest.port": 0,
        "headrace.rest.token": "s3cret",
        **(request.getfixturevalue("tls") if is_encrypted else {}),
    }
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", DRIVER, json.dumps(options)]
    with subprocess.Popen(command, env=environment, **pipes) as driver, ExitStack() as opened:
        url = driver.stdout.readline().strip()
        address = "127.0.0.1", int(url.rpartition(":")[2])
        for number in range(220):
            client = opened.enter_context(socket.create_connection(address, timeout=60))
            with suppress(ConnectionError):
                client.sendall(b"" if is_encrypted else b"GET /jobs HTTP/1.1\r\n")
            if number % 20 == 0:
                driver.stdin.write("open a file\n")
                driver.stdin.flush()
                assert driver.stdout.readline() == "opened\n"
        assert is_encrypted or status(url) == 200
        driver.stdin.close()
