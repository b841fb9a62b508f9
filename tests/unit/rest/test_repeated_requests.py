"""A connection answers a request that it knows by itself: no client can tell, however requests are cut, mixed and ended."""

from __future__ import annotations

import gc
import http.client
import io
import json
import random
import re
import socket
import ssl
import tempfile
import time
import weakref
from contextlib import suppress

import pytest
from test_rest_connections import HEAD, connect, job, url  # noqa: F401 - fixtures
from test_server import key, tls  # noqa: F401 - fixtures

from headrace.config import Configuration
from headrace.rest import connections, server
from headrace.rest.access import Access
from headrace.rest.cache import PolledAnswers
from headrace.rest.jobs import Jobs
from rest_kit import ID, FakeJob
from waiting import wait_until

POLLED = [
    b"GET /jobs HTTP/1.1\r\n" + HEAD + b"\r\n",
    b"GET /jobs/overview HTTP/1.1\r\n" + HEAD + b"\r\n",
    b"GET /jobs/%s HTTP/1.1\r\n" % ID.encode() + HEAD + b"\r\n",
    b"GET /jobs/%s/status HTTP/1.1\r\n" % ID.encode() + HEAD + b"\r\n",
]
OTHERS = [
    b"GET /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",  # 401
    b"GET /jobs HTTP/1.1\r\n" + HEAD.replace(b"s3cret", b"s3creT") + b"\r\n",
    b"GET /jobs HTTP/1.1\r\n" + HEAD + b"Origin: http://evil.example\r\n\r\n",  # 403
    b"HEAD /jobs HTTP/1.1\r\n" + HEAD + b"\r\n",
    b"GET /jobs/nothing HTTP/1.1\r\n" + HEAD + b"\r\n",  # 404
    b"PUT /jobs HTTP/1.1\r\n" + HEAD + b"\r\n",  # 405
    b"GET /jobs HTTP/1.1\r\n" + HEAD + b"Content-Length: 4\r\n\r\nGET ",
    b"GET /jobs HTTP/1.1\r\n" + HEAD + b"Content-Length: 4\r\n\r\n\r\n\r\n",
    b"GET /jobs HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n4\r\nGET \r\n0\r\n\r\n",
    b"POST /jobs/%s/checkpoints HTTP/1.1\r\n" % ID.encode()
    + HEAD
    + b"Content-Length: %d\r\n\r\n" % len(POLLED[0])
    + POLLED[0],
]


@pytest.fixture
def counted(monkeypatch):
    """The paths of the requests that were checked and routed."""
    checked, call = [], Access.__call__

    async def count(self, scope, receive, send):
        checked.append(scope["path"])
        await call(self, scope, receive, send)

    monkeypatch.setattr(Access, "__call__", count)
    return checked


class _Received(io.BytesIO):
    def makefile(self, *_):
        return self

    def close(self):
        """`HTTPResponse` must not."""


def read(client, buffer, method="GET"):
    """The next response: its status, headers, and body."""
    while True:
        if b"\r\n\r\n" in buffer:
            found = http.client.HTTPResponse(_Received(bytes(buffer)), method=method)
            found.begin()
            length = 0 if method == "HEAD" else int(found.headers["content-length"])
            start = buffer.index(b"\r\n\r\n") + 4
            if len(buffer) >= start + length:
                body = bytes(buffer[start : start + length])
                del buffer[: start + length]
                headers = [(name.lower(), value) for name, value in found.getheaders() if name.lower() != "date"]
                return found.status, headers, body
        part = client.recv(1 << 20)
        assert part, f"the connection was closed after {bytes(buffer)!r}"
        buffer += part


def ask(client, request):
    client.sendall(request)
    return read(client, bytearray(), "HEAD" if request.startswith(b"HEAD") else "GET")


def test_the_same_bytes_get_the_same_answer_without_being_routed(connect, counted, job):  # noqa: F811
    client = connect(b"")
    first = [ask(client, POLLED[0]) for _ in range(3)]  # the route, what is polled, the connection
    assert first[0][0] == 200
    assert sorted(first[0][1]) == sorted(first[1][1])
    assert first[1] == first[2]
    routed = len(counted)
    assert all(ask(client, POLLED[0]) == first[1] for _ in range(10))
    assert len(counted) == routed == 2
    assert ask(connect(b""), POLLED[0]) == first[1]  # another connection does not know it
    assert len(counted) == 3


def test_what_has_changed_is_seen(connect, counted, job):  # noqa: F811
    client = connect(b"")
    for _ in range(3):
        ask(client, POLLED[1])
    job.plan.name = "renamed"
    end = time.monotonic() + 60
    while json.loads(ask(client, POLLED[1])[2])["jobs"][0]["name"] != "renamed":
        assert time.monotonic() < end
    assert len(counted) == 2


def test_what_is_gone_is_answered_by_its_route(connect, monkeypatch):  # noqa: F811
    client = connect(b"")
    for _ in range(3):
        assert ask(client, POLLED[0])[0] == 200
    monkeypatch.setattr(PolledAnswers, "find", lambda *_: None)
    assert ask(client, POLLED[0])[0] == 200
    monkeypatch.undo()
    assert ask(client, POLLED[0])[0] == 200


@pytest.mark.parametrize("seed", range(20))
def test_any_mix_of_requests_however_they_are_cut(connect, seed):  # noqa: F811
    """Each gets what it gets on a connection of its own."""
    dice = random.Random(seed)
    expected = {}
    for request in POLLED + OTHERS:
        found = ask(connect(b""), request)
        expected[request] = found[0], sorted(found[1]), found[2]
    client, buffer = connect(b""), bytearray()
    for _ in range(12):
        pool = POLLED if dice.random() < 0.6 else POLLED + OTHERS
        requests = dice.choices(pool, k=dice.choice([1, 1, 1, 2, 5]))
        sent = b"".join(requests)
        cuts = sorted(dice.sample(range(1, len(sent)), dice.choice([0, 0, 1, 3])))
        if dice.random() < 0.5:  # where one request ends, or its head
            cuts = [end for end in range(1, len(sent)) if sent[:end].endswith(b"\r\n\r\n") and dice.random() < 0.7]
        for begin, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
            client.sendall(sent[begin:end])
            time.sleep(dice.choice([0, 0, 0.003]))
        for request in requests:
            status, headers, body = read(client, buffer, "HEAD" if request.startswith(b"HEAD") else "GET")
            wanted = expected[request]
            if request.startswith(b"POST"):
                assert status == wanted[0]
            elif request in POLLED:  # some tell the time, so that their size differs
                assert (status, sorted(dict(headers))) == (wanted[0], sorted(dict(wanted[1])))
                assert json.loads(body).keys() == json.loads(wanted[2]).keys()
            else:
                assert (status, sorted(headers), body) == wanted
    assert buffer == b""


@pytest.mark.parametrize("first", [POLLED[1], OTHERS[4]], ids=["polled", "not polled"])
def test_requests_that_come_together_are_all_answered(connect, first):  # noqa: F811
    client, buffer = connect(b""), bytearray()
    for _ in range(5):
        client.sendall(first + POLLED[3] + POLLED[0])
        read(client, buffer)
        assert json.loads(read(client, buffer)[2]) == {"status": "RUNNING"}
        assert json.loads(read(client, buffer)[2])["jobs"][0]["id"] == ID
    assert buffer == b""


def test_a_body_that_comes_later_is_not_taken_for_a_request(connect):  # noqa: F811
    """The head alone was answered before; what follows belongs to it."""
    client = connect(b"")
    head = b"GET /jobs HTTP/1.1\r\n" + HEAD + b"Content-Length: %d\r\n\r\n" % len(POLLED[0])
    expected = ask(client, POLLED[0])
    for _ in range(4):
        assert ask(client, head)[0] == 200
        client.sendall(POLLED[0])
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(60)
    assert ask(client, POLLED[0])[0] == expected[0]


@pytest.fixture
def made(monkeypatch):
    """The connections of the server."""
    found, init = [], connections.Connection.__init__

    def note(self, *args, **more):
        found.append(self)
        init(self, *args, **more)

    monkeypatch.setattr(connections.Connection, "__init__", note)
    return found


def test_an_answer_in_two_parts_is_sent_at_once(connect, made):  # noqa: F811
    """Not when the client has confirmed the first part, 40 ms later."""
    assert ask(connect(b""), POLLED[0])[0] == 200
    (accepted,) = (one.transport.get_extra_info("socket") for one in made)
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def test_what_a_connection_knows_is_bounded(connect, made):  # noqa: F811
    client = connect(b"")
    for number in range(200):
        request = b"GET /jobs?%d HTTP/1.1\r\n" % number + HEAD + b"\r\n"
        answers = {ask(client, request)[0] for _ in range(2)}
        assert answers == {200}
    long = b"GET /jobs?%s HTTP/1.1\r\n" % (b"x" * 5000) + HEAD + b"\r\n"
    assert {ask(client, long)[0] for _ in range(3)} == {200}
    assert [len(one._repeated) for one in made] == [32]
    assert max(map(len, made[0]._repeated)) < 4096


def answered(client, connection, request):
    """Send a request, and wait until the server has done with it; the response is not read."""
    before = connection.server_state.total_requests
    client.sendall(request)
    wait_until(lambda: connection.server_state.total_requests > before, "the answer")


def test_a_connection_that_is_polled_is_kept_open_until_it_falls_idle(connect, made):  # noqa: F811
    """Each answer begins the time anew after which an idle connection is closed, and ends that for a request."""
    client = connect(b"")
    assert ask(client, POLLED[0])[0] == 200
    (connection,) = made
    timers = []
    for _ in range(5):
        answered(client, connection, POLLED[0])
        wait_until(lambda: connection.timeout_keep_alive_task not in [None, *timers], "the time to begin anew")
        timers.append(connection.timeout_keep_alive_task)
        assert connection._head is None
    assert [one.cancelled() for one in timers] == [True] * 4 + [False]
    connection.timeout_keep_alive = 0.1
    answered(client, connection, POLLED[0])
    while client.recv(1 << 16):
        pass


def test_a_client_that_asks_once_a_minute_keeps_its_connection(connect, made):  # noqa: F811
    """To open another one costs more than the answer, and a client may ask just when the old one is closed."""
    assert ask(connect(b""), POLLED[0])[0] == 200
    (connection,) = made
    wait_until(lambda: connection.timeout_keep_alive_task is not None, "the answer")
    assert connection.timeout_keep_alive_task.when() - connection.loop.time() > 60


def test_it_has_the_date_of_now(connect):  # noqa: F811
    client, dates = connect(b""), set()
    end = time.monotonic() + 60
    while len(dates) < 2:
        client.sendall(POLLED[0])
        dates.update(re.findall(rb"\r\ndate: ([^\r]+)\r\n", client.recv(1 << 16)))
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_known_request_is_no_request_in_the_midst_of_another(connect):  # noqa: F811
    client = connect(b"")
    for _ in range(3):
        assert ask(client, POLLED[0])[0] == 200
    client.sendall(b"GET /jobs/nothing HTTP/1.1\r\nX: ")
    time.sleep(0.2)
    assert ask(client, POLLED[0])[0] == 404


def test_over_tls(tmp_path, monkeypatch, tls, counted):  # noqa: F811
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(server, "_url", None)
    monkeypatch.setattr(server, "_jobs", Jobs())
    server.register(FakeJob(), Configuration({"rest.port": 0, "headrace.rest.token": "s3cret", **tls}))
    context = ssl.create_default_context(cafile=tls["headrace.rest.tls.certificate-file"])
    context.check_hostname = False
    with (
        socket.create_connection(("127.0.0.1", int(server._url.rpartition(":")[2])), timeout=60) as plain,
        context.wrap_socket(plain) as client,
    ):
        answers = [ask(client, POLLED[0]) for _ in range(5)]
    assert answers[1:] == answers[1:2] * 4
    assert answers[0][0] == 200
    assert len(counted) == 2


def test_connections_go_when_they_are_closed(connect, made):  # noqa: F811
    """Not when the garbage collector looks: they hold a request with its token."""
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            client = connect(b"")
            for request in POLLED * 2:
                assert ask(client, request)[0] == 200
            client.close()
        found = [weakref.ref(one) for one in made]
        made.clear()
        assert len(found) == 5
        wait_until(lambda: [one() for one in found] == [None] * 5, "the connections to go")
    finally:
        gc.enable()


def fill_soon(client, connection):
    """Buffers of the kernel that are small: megabytes of answers take longer than a client may read nothing."""
    for end in client, connection.transport.get_extra_info("socket"):
        for buffer in socket.SO_SNDBUF, socket.SO_RCVBUF:
            end.setsockopt(socket.SOL_SOCKET, buffer, 32 << 10)


@pytest.mark.parametrize("how", ["idle", "reads some", "not HTTP", "close"])
def test_a_client_that_does_not_read_the_end_is_given_up(connect, made, job, monkeypatch, how):  # noqa: F811
    """What is left may be less than what makes the server wait before it writes more."""
    monkeypatch.setattr(connections, "STALLED_SECONDS", 0.5)
    job.plan.name = "x" * 20_000
    client = connect(b"")
    assert ask(client, POLLED[1])[0] == 200
    (connection,) = made
    fill_soon(client, connection)
    transport = connection.transport
    while not transport.get_write_buffer_size():
        answered(client, connection, POLLED[1])
    assert transport.get_write_buffer_size() < 64 << 10
    if how in ("idle", "reads some"):
        connection.loop.call_soon_threadsafe(connection._unset_keepalive_if_required)
        connection.loop.call_soon_threadsafe(connection.timeout_keep_alive_handler)
        if how == "reads some":
            connection.loop.call_soon_threadsafe(connection.resume_writing)
    else:
        client.sendall({"not HTTP": b"garbage\r\n\r\n", "close": POLLED[0][:-2] + b"Connection: close\r\n\r\n"}[how])
    wait_until(lambda: connection not in connection.connections, "the connection to go")


def test_a_client_that_polls_and_reads_nothing_costs_no_memory(connect, made, job, monkeypatch):  # noqa: F811
    job.plan.name = "x" * 20_000
    client = connect(b"")
    assert ask(client, POLLED[1])[0] == 200
    (connection,) = made
    fill_soon(client, connection)
    client.settimeout(0.5)
    sizes = []
    with suppress(TimeoutError):  # when its own buffer is full, since the server has stopped to read
        while True:
            client.sendall(POLLED[1])
            sizes.append(connection.transport.get_write_buffer_size())
            time.sleep(0.0002)
    assert 64 << 10 < max(sizes) < 200_000


# --- what is not HTTP -------------------------------------------------------------------------------------------------

CHUNKED = b"/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def said(caplog, capfd):
    """What was logged and printed."""
    return lambda: caplog.text + capfd.readouterr().err


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /jobs?x=" + b"x" * 70_000,
        b"GET /jobs HTTP/1.1\r\n" + HEAD + b"X: " + b"x" * 70_000,
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)) + b"\r\n\r\n",  # TLS
        b"GET /jobs HTTP/1.1\r\nno header\r\n\r\n",
        b"POST " + CHUNKED + b"no chunk\r\n",
    ],
    ids=["query", "header", "garbage", "TLS", "wrong header", "wrong body"],
)
def test_what_is_not_http_is_refused_in_json(connect, sent, said):  # noqa: F811
    client = connect(b"")
    status, headers, body = ask(client, sent)
    assert (status, dict(headers)["content-type"], dict(headers)["connection"]) == (400, "application/json", "close")
    assert dict(headers)["x-content-type-options"] == "nosniff"
    assert json.loads(body) == {"errors": ["this is not HTTP, or the head of the request is larger than 64 KiB"]}
    assert client.recv(1) == b""
    assert "Traceback" not in said()


def test_a_head_of_sixty_kilobytes_that_comes_in_parts(connect):  # noqa: F811
    client = connect(b"GET /jobs HTTP/1.1\r\n" + HEAD + b"X: " + b"x" * 40_000)
    time.sleep(0.2)
    assert ask(client, b"x" * 20_000 + b"\r\n\r\n")[0] == 200


def test_a_wrong_body_of_a_request_for_the_head_alone(connect, said):  # noqa: F811
    client = connect(b"HEAD " + CHUNKED + b"no chunk\r\n")
    assert read(client, bytearray(), "HEAD")[0] == 400
    assert client.recv(1) == b""
    assert "Traceback" not in said()


def test_a_wrong_body_while_its_route_waits_for_it(connect, said, job):  # noqa: F811
    path = b"/jobs/%s/checkpoints HTTP/1.1\r\n" % ID.encode()
    client = connect(b"POST " + path + HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    time.sleep(0.2)
    assert ask(client, b"no chunk\r\n")[0] == 400
    assert client.recv(1) == b""
    assert job.asked == []
    assert "Traceback" not in said()


def test_a_body_that_breaks_off_after_the_answer_has_begun(connect, said):  # noqa: F811
    client = connect(b"POST " + CHUNKED)
    assert read(client, bytearray())[0] == 401
    client.sendall(b"no chunk\r\n" * 5)
    assert client.recv(1000) == b""
    assert "Traceback" not in said()
