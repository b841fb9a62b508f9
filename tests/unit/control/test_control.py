"""The control plane by itself: who may speak, what is encrypted, and that neither side waits for a dead other."""

import contextlib
import errno
import gc
import logging
import os
import pickle
import queue
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.control import control_server
from headrace.control.control_server import ControlServer, WorkerKey
from headrace.control.deployment import ControlAddress
from headrace.control.messages import Cancel, Confirm, Failed, Finished, Metrics, Output, Ping, Register, Running
from headrace.control.worker_link import ControlClient
from headrace.errors import WorkerLost
from waiting import wait_until

ME = Register(level=0, index=1, attempt=3, host="here", pid=7)


@pytest.fixture(autouse=True)
def nothing_goes_wrong_in_silence(caplog):
    """asyncio logs errors of tasks that no code waits for, when they are collected."""
    yield
    gc.collect()
    records = [*caplog.get_records("call"), *caplog.get_records("teardown")]
    assert [record.getMessage() for record in records if record.name == "asyncio"] == []


class Driver:
    """A server that keeps what it hears."""

    def __init__(self, bind="127.0.0.1", advertise="127.0.0.1", port=0, **options):
        self.heard = queue.SimpleQueue()
        self.lost = queue.SimpleQueue()
        self.server = ControlServer(
            bind, advertise, port, lambda w, m: self.heard.put((w, m)), self.lost.put, **options
        )
        self.server.begin_attempt(3)

    def hear(self):
        return self.heard.get(timeout=60)


@pytest.fixture
def driver():
    made = Driver()
    yield made
    made.server.stop()


@pytest.fixture
def tls_driver():
    made = Driver(tls=True)
    yield made
    made.server.stop()


def connect(address, register=ME, on_message=lambda m: None, timeout=60.0, **options):
    return ControlClient(address, register, timeout, on_message, **options)


def exchange(driver):
    """Messages in both directions, then a clean end."""
    got = queue.SimpleQueue()
    # A machine that stands still for a while has pings among them.
    client = connect(driver.server.address, on_message=lambda m: None if isinstance(m, Ping) else got.put(m))
    key = WorkerKey(3, 0, 1)
    assert driver.hear() == (key, ME)
    assert driver.server.connected() == [key]
    for message in (Running(), Output("c", b"x" * 100_000, 5), Finished()):
        client.send(message)
        assert driver.hear() == (key, message)
    driver.server.send(key, Confirm(1))
    driver.server.send(None, Cancel("enough"))
    received = [got.get(timeout=60) for _ in range(3)]
    assert received[1:] == [Confirm(1), Cancel("enough")]
    client.close()
    assert driver.lost.get(timeout=60) == key
    assert driver.server.connected() == []


def test_messages_both_ways(driver):
    exchange(driver)


def test_messages_both_ways_encrypted(tls_driver):
    assert tls_driver.server.address.certificate is not None
    exchange(tls_driver)


def test_the_address_travels_with_its_secret_but_does_not_show_it(tls_driver):
    address = tls_driver.server.address
    assert pickle.loads(pickle.dumps(address)) == address
    assert address.secret not in repr(address)
    assert "CERTIFICATE" not in repr(address)


def test_a_wrong_secret_is_refused(driver):
    address = driver.server.address
    with pytest.raises(WorkerLost, match="the driver refused the connection: wrong secret"):
        connect(ControlAddress(address.host, address.port, "guessed"))
    assert driver.heard.empty()
    assert driver.server.connected() == []


def test_a_wrong_secret_is_refused_over_tls(tls_driver):
    address = tls_driver.server.address
    with pytest.raises(WorkerLost, match="wrong secret"):
        connect(ControlAddress(address.host, address.port, "guessed", address.certificate))


def test_tls_refuses_a_plain_connection(tls_driver):
    address = tls_driver.server.address
    with pytest.raises(WorkerLost):
        connect(ControlAddress(address.host, address.port, address.secret), timeout=2)
    assert tls_driver.heard.empty()


def test_a_worker_refuses_a_driver_with_another_certificate(driver, tls_driver):
    """Somebody who has taken the driver's place must not get the secret."""
    other = Driver(tls=True)
    address = tls_driver.server.address
    with pytest.raises(WorkerLost):
        connect(ControlAddress("127.0.0.1", other.server.address.port, address.secret, address.certificate), timeout=2)
    assert other.heard.empty()
    other.server.stop()


def test_a_stale_attempt_is_refused(driver):
    with pytest.raises(WorkerLost, match="attempt 2 is over, attempt 3 runs"):
        connect(driver.server.address, Register(0, 1, 2, "here", 7))
    assert driver.heard.empty()


def test_the_same_task_twice_is_refused(driver):
    client = connect(driver.server.address)
    with pytest.raises(WorkerLost, match="task 0/1 of attempt 3 runs already"):
        connect(driver.server.address)
    client.close()


def test_the_first_message_must_be_register(driver):
    with pytest.raises(WorkerLost, match="must be Register"):
        connect(driver.server.address, Running())


def test_a_failure_arrives_before_the_connection_ends(driver):
    client = connect(driver.server.address)
    driver.hear()
    client.send(Failed("broken", "trace"))
    client.close()
    assert driver.hear()[1] == Failed("broken", "trace")
    assert driver.lost.get(timeout=60) == WorkerKey(3, 0, 1)


def test_the_last_message_arrives_though_the_driver_stands_still_for_seconds(driver, monkeypatch):
    """A worker that has finished must not count as dead because its driver, or the whole machine, was slow."""
    released = threading.Event()
    heard = driver.heard.put

    def hear(item):
        heard(item)
        if item[1] == Running():
            released.wait(60)

    monkeypatch.setattr(driver, "heard", type("Slow", (), {"put": staticmethod(hear), "get": driver.heard.get})())
    client = connect(driver.server.address)
    client.send(Running())
    assert [driver.hear()[1], driver.hear()[1]] == [ME, Running()]
    client.send(Finished())
    threading.Timer(5, released.set).start()
    client.close()
    assert driver.hear()[1] == Finished()
    assert driver.lost.get(timeout=60) == WorkerKey(3, 0, 1)


@pytest.mark.parametrize(("timeout", "turns"), [(0.5, 3), (5.0, 5)])
def test_a_driver_that_never_ends_the_stream_is_not_waited_for_longer_than_its_timeout(driver, timeout, turns):
    client = connect(driver.server.address, timeout=timeout)
    waited = []
    client._reader = type(
        "Stuck", (), {"is_alive": lambda _: True, "join": lambda _, timeout: waited.append(timeout)}
    )()
    client.close()
    assert waited == [1] * turns
    assert driver.lost.get(timeout=60) == WorkerKey(3, 0, 1)


def test_a_message_that_cannot_be_handled_is_logged(driver, caplog):
    code = (
        "import time; from headrace.control.worker_link import *; from headrace.control.messages import Register\n"
        f"address = ControlAddress('127.0.0.1', {driver.server.address.port}, {driver.server.address.secret!r})\n"
        "client = ControlClient(address, Register(0, 1, 3, 'here', 7), 60, print)\n"
        "client.send(17)\n"
        "time.sleep(60)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert "the connection to the driver is lost; stopping" in ended.stderr
    assert driver.lost.get(timeout=60) == WorkerKey(3, 0, 1)
    assert "a message of worker 1 of level 0 cannot be handled" in caplog.text
    assert "ValidationError" in caplog.text


def test_a_message_of_the_driver_that_cannot_be_handled_ends_the_worker(driver):
    code = (
        "import time; from headrace.control.worker_link import *; from headrace.control.messages import *\n"
        f"address = ControlAddress('127.0.0.1', {driver.server.address.port}, {driver.server.address.secret!r})\n"
        "def handle(message):\n"
        "    if isinstance(message, Confirm): raise LookupError('no such output')\n"
        "client = ControlClient(address, Register(0, 1, 3, 'here', 7), 60, handle)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as worker:
        assert driver.hear()[1] == ME
        driver.server.send(None, Confirm(1))
        said = worker.communicate(timeout=60)[1]
        assert worker.returncode == 70
    assert "a message of the driver cannot be handled" in said
    assert "no such output" in said
    assert "the connection to the driver is lost; stopping" in said


def test_large_messages_arrive(driver):
    client = connect(driver.server.address)
    driver.hear()
    sent = Output("c", b"x" * (70 << 20), 5)
    client.send(sent)
    client.send(Finished())
    assert driver.hear()[1] == sent
    assert driver.hear()[1] == Finished()
    client.close()


def test_a_slow_worker_gets_every_message(driver):
    """More than the buffers of the connection hold, and the end of the job behind them."""
    got, go_on = queue.SimpleQueue(), threading.Event()

    def on_message(message):
        go_on.wait(60)
        got.put(message)

    client = connect(driver.server.address, on_message=on_message)
    driver.hear()
    for number in range(40):
        driver.server.send(None, Cancel(f"{number}" + "x" * (1 << 20)))
    go_on.set()
    received = []
    while len(received) < 40:
        message = got.get(timeout=60)
        received += [int(message.reason.split("x")[0])] if isinstance(message, Cancel) else []
    assert received == list(range(40))
    client.close()


def test_the_last_message_of_a_driver_that_stops_arrives_while_the_worker_sends():
    for _ in range(5):
        made, got = Driver(), queue.SimpleQueue()
        process = subprocess.Popen(
            [sys.executable, "-c", SENDER, pickle.dumps(made.server.address).hex()], stdout=subprocess.PIPE, text=True
        )
        try:
            for _ in range(20):
                made.hear()
            made.server.send(None, Cancel("the job is over"))
            made.server.stop()
            got = process.communicate(timeout=60)[0]
        finally:
            process.kill()
        assert "the job is over" in got
        assert process.returncode == 70


SENDER = """
import pickle, sys, time
from headrace.control.messages import Cancel, Output, Register
from headrace.control.worker_link import ControlClient
address = pickle.loads(bytes.fromhex(sys.argv[1]))
def show(message):
    if isinstance(message, Cancel):
        print(message.reason, flush=True)
client = ControlClient(address, Register(0, 1, 3, "here", 7), 60, show)
while True:
    client.send(Output("c", b"x" * 100_000, 5))
    time.sleep(0.001)
"""


def test_others_on_the_port_do_not_disturb(driver):
    """A scanner that says nothing, one that says something else, and one that announces more than a secret has."""
    address = ("127.0.0.1", driver.server.address.port)
    quiet, odd, greedy, cut = (socket.create_connection(address, timeout=60) for _ in range(4))
    odd.sendall(b"GET / HTTP/1.1\r\nHost: headrace\r\n\r\n")
    greedy.sendall((1 << 62).to_bytes(8, "big") + b"x" * 1000)
    cut.sendall((32).to_bytes(8, "big") + b"half")
    cut.close()
    for refused in (odd, greedy):
        assert b"wrong secret" in refused.recv(1000)
        refused.close()
    client = connect(driver.server.address)
    assert driver.hear()[1] == ME
    client.close()
    assert driver.lost.get(timeout=60) == WorkerKey(3, 0, 1)
    quiet.close()


def test_who_says_nothing_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(control_server, "_GREETING_SECONDS", 0.2)
    monkeypatch.setattr(control_server, "_GRACE_SECONDS", 0.2)
    made = Driver(timeout=1.0)
    with socket.create_connection(("127.0.0.1", made.server.address.port), timeout=60) as quiet:
        assert b"it received nothing for 1 s" in quiet.recv(1000)
        while quiet.recv(1000):
            pass
    made.server.stop()


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
@pytest.mark.parametrize("bind", ["::1", "::", "localhost"])
def test_other_addresses(bind):
    heard = queue.SimpleQueue()
    server = ControlServer(
        bind, "localhost" if bind == "::" else bind, 0, lambda w, m: heard.put(m), lambda w: None, tls=bind == "::"
    )
    server.begin_attempt(3)
    client = connect(server.address)
    assert heard.get(timeout=60) == ME
    client.close()
    server.stop()


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_addresses_in_brackets():
    """Spark writes addresses of IPv6 like this."""
    made = Driver(bind="[::1]", advertise="[::1]")
    assert made.server.address.certificate is None
    client = connect(made.server.address)
    assert made.hear()[1] == ME
    client.close()
    made.server.stop()


def names(monkeypatch, **addresses):
    """A name service that has these names, besides the others."""
    resolve = socket.getaddrinfo

    def found(host, port, *args, **options):
        of = addresses.get(host, [host])
        return [line for address in of for line in resolve(address, port, *args, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", found)


@pytest.mark.parametrize(
    ("addresses", "encrypted"),
    [(["127.0.0.1", "127.0.0.2"], False), (["127.0.0.1", "::"], True), (["::1", "127.0.0.1"], False), (["::"], True)],
)
def test_what_listens_beyond_loopback_is_encrypted(monkeypatch, addresses, encrypted):
    """All addresses on which it listens count, not the first one of the name."""
    names(monkeypatch, gate=[*addresses, "192.0.2.1"])  # the last one belongs to another machine
    made = Driver(bind="gate")
    assert (made.server.address.certificate is not None) == encrypted
    for address in addresses:
        client = connect(replace(made.server.address, host=address))
        assert made.hear()[1] == ME
        client.close()
        assert made.lost.get(timeout=60) == WorkerKey(3, 0, 1)
    made.server.stop()


def test_what_is_reached_from_beyond_loopback_is_encrypted():
    """Behind a forwarder the driver listens on loopback, but its workers are elsewhere."""
    for elsewhere in ("192.0.2.1", "no-such-name.invalid"):
        made = Driver(advertise=elsewhere)
        made.server.stop()
        assert made.server.address.certificate is not None


def test_all_addresses_of_a_name_are_tried(driver, monkeypatch):
    names(monkeypatch, gate=["127.0.0.2", "127.0.0.1"])
    client = connect(replace(driver.server.address, host="gate"))
    assert driver.hear()[1] == ME
    client.close()


def test_an_address_that_does_not_answer_has_its_share_of_the_time(driver, monkeypatch):
    with socket.create_server(("127.0.0.3", 0), backlog=0) as full:
        port = full.getsockname()[1]
        made = Driver(port=port)
        waiting = [socket.socket() for _ in range(4)]
        for connection in waiting:
            connection.setblocking(False)
            connection.connect_ex(("127.0.0.3", port))
        names(monkeypatch, gate=["127.0.0.3", "127.0.0.1"])
        client = connect(replace(made.server.address, host="gate"), timeout=8)
        assert made.hear()[1] == ME
        client.close()
        for connection in waiting:
            connection.close()
        made.server.stop()


def test_small_messages_do_not_wait(driver):
    """For what was sent before to be acknowledged: up to 40 ms."""
    made = []
    serve = driver.server._set_options
    driver.server._set_options = lambda connection: (serve(connection), made.append(connection))
    client = connect(driver.server.address)
    driver.hear()
    assert made[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert made[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000
    client.close()


@pytest.mark.parametrize("tls", [False, True])
def test_a_driver_that_stops_ends_the_stream_of_an_idle_worker_well(tls, caplog, monkeypatch):
    """The worker ends it as well, before the driver's patience does, and neither of them logs an error."""
    monkeypatch.setattr(control_server, "_STOP_SECONDS", 60)
    made = Driver(tls=tls)
    process = start_worker(made.server.address, 60)
    started = time.monotonic()
    made.server.stop()
    assert time.monotonic() - started < 5
    assert process.wait(timeout=60) == 70
    process.communicate()
    assert made.lost.get(timeout=60) == WorkerKey(3, 0, 1)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_message_that_cannot_be_encoded_ends_the_worker(driver):
    code = (
        "import time; from headrace.control.worker_link import *; from headrace.control.messages import *\n"
        f"address = ControlAddress('127.0.0.1', {driver.server.address.port}, {driver.server.address.secret!r})\n"
        "client = ControlClient(address, Register(0, 1, 3, 'here', 7), 60, print)\n"
        "client.send(Failed(object(), 'trace'))\n"
        "time.sleep(60)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 70
    assert "a message to the driver cannot be sent" in ended.stderr
    assert "the connection to the driver is lost; stopping" in ended.stderr
    assert driver.lost.get(timeout=60) == WorkerKey(3, 0, 1)


def test_a_message_to_a_worker_that_cannot_be_encoded_ends_its_stream(driver, caplog):
    process = start_worker(driver.server.address, 60)
    driver.hear()
    driver.server.send(None, Cancel(object()))
    assert process.wait(timeout=60) == 70
    process.communicate()
    assert driver.lost.get(timeout=60) == WorkerKey(3, 0, 1)
    assert "the connection of a worker is closed" in caplog.text


def test_a_worker_that_stood_still_first_reads_what_was_sent_meanwhile():
    """A suspended machine, or a container that was paused: its driver is not gone."""
    made = Driver(timeout=5.0)
    process = start_worker(made.server.address, 5.0)
    for _ in range(2):
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(7)
        os.kill(process.pid, signal.SIGCONT)
        time.sleep(1)
        assert process.poll() is None
    process.kill()
    process.communicate()
    made.server.stop()


def test_many_workers_may_connect_while_the_driver_is_busy(driver):
    """All of an attempt connect at once; the kernel keeps those that the driver has not accepted yet."""
    busy = threading.Event()
    driver.server._loop.call_soon_threadsafe(busy.wait, 60)
    known = min(control_server._BACKLOG, int(Path("/proc/sys/net/core/somaxconn").read_text()))
    connections = [
        socket.create_connection(("127.0.0.1", driver.server.address.port), timeout=5) for _ in range(min(300, known))
    ]
    busy.set()
    for connection in connections:
        connection.close()
    client = connect(driver.server.address)
    assert driver.hear()[1] == ME
    client.close()


def test_a_name_with_one_address_leaves_no_thread_behind(driver, monkeypatch):
    names(monkeypatch, gate=["127.0.0.1"])
    before = set(threading.enumerate())
    client = connect(replace(driver.server.address, host="gate"))
    driver.hear()
    started = {thread.name for thread in set(threading.enumerate()) - before}
    client.close()
    assert started == {"headrace-control", "headrace-watchdog"}


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def no_collector():
    """What is closed is closed at once, and not when the collector finds it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_handshake_under_way_ends_with_the_driver(no_collector):
    made = Driver(tls=True)
    before = descriptors()
    with socket.create_connection(("127.0.0.1", made.server.address.port), timeout=60) as quiet:
        wait_until(lambda: descriptors() >= before + 2)  # it is accepted
        made.server.stop()
        assert quiet.recv(1) == b""


@pytest.mark.parametrize("delay", [0.0005, 0.002, 0.01])
def test_who_connects_while_the_driver_stops_is_told(no_collector, delay):
    made = Driver()
    busy = threading.Event()
    made.server._loop.call_soon_threadsafe(busy.wait, 60)
    address = ("127.0.0.1", made.server.address.port)
    connections = [socket.create_connection(address, timeout=60) for _ in range(200)]
    busy.set()
    time.sleep(delay)
    made.server.stop()
    for connection in connections:
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(100):
                pass
        connection.close()


def test_a_driver_that_ends_late_is_ended_well(no_collector):
    """A busy machine: `stop` gives up waiting, but the thread still ends all connections and stops listening."""
    made = Driver()
    address = ("127.0.0.1", made.server.address.port)
    busy = threading.Event()
    with socket.create_connection(address, timeout=60) as quiet:
        wait_until(lambda: made.server._greeting)
        made.server._loop.call_soon_threadsafe(busy.wait, 60)
        made.server.stop()
        busy.set()
        assert quiet.recv(1000) == b""
    made.server._thread.join(timeout=60)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=60)


def test_a_driver_may_be_stopped_twice_at_the_same_time():
    made = Driver()
    with socket.create_connection(("127.0.0.1", made.server.address.port), timeout=60):
        threads = [threading.Thread(target=made.server.stop) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    made.server._thread.join(timeout=60)
    assert not made.server._thread.is_alive()


def test_a_quiet_connection_does_not_hold_up_the_stop(monkeypatch):
    monkeypatch.setattr(control_server, "_STOP_SECONDS", 60)
    made = Driver()
    with socket.create_connection(("127.0.0.1", made.server.address.port), timeout=60) as quiet:
        wait_until(lambda: made.server._greeting)
        started = time.monotonic()
        made.server.stop()
        assert time.monotonic() - started < 5
        assert quiet.recv(1000) == b""


def test_a_stopped_worker_does_not_hold_up_the_stop():
    made = Driver()
    process = start_worker(made.server.address, 60)
    os.kill(process.pid, signal.SIGSTOP)
    made.server.send(None, Cancel("x" * (20 << 20)))
    started = time.monotonic()
    made.server.stop()
    assert time.monotonic() - started < 12
    os.kill(process.pid, signal.SIGCONT)
    assert process.wait(timeout=60) == 70
    process.communicate()


def test_a_driver_that_cannot_listen_leaves_nothing_open(driver, no_collector):
    before = descriptors()
    for _ in range(5):
        with pytest.raises(WorkerLost):
            Driver(port=driver.server.address.port)
    assert descriptors() == before


def test_a_timeout_of_a_month():
    made = Driver(timeout=30 * 86400.0)
    connect(made.server.address, timeout=30).close()
    made.server.stop()


def test_a_message_for_one_worker_goes_to_that_one_only(driver):
    got = [queue.SimpleQueue(), queue.SimpleQueue()]
    clients = [connect(driver.server.address, replace_index(index), on_message=got[index].put) for index in range(2)]
    for _ in clients:
        driver.hear()
    driver.server.send(WorkerKey(3, 0, 1), Confirm(7))
    driver.server.send(None, Cancel("all"))
    received = []
    for one in got:
        received.append([])
        while not isinstance(message := one.get(timeout=60), Cancel):
            received[-1] += [message] if isinstance(message, Confirm) else []
    for client in clients:
        client.close()
    assert received == [[], [Confirm(7)]]


def replace_index(index):
    return Register(level=0, index=index, attempt=3, host="here", pid=7)


def test_sending_after_the_end_is_no_error():
    made = Driver()
    client = connect(made.server.address)
    client.close()
    client.send(Finished())
    made.server.stop()
    made.server.send(None, Cancel("late"))
    made.server.stop()


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_all_addresses_of_ipv6_take_connections_over_ipv4():
    made = Driver(bind="::")
    client = connect(replace(made.server.address, host="127.0.0.1"))
    assert made.hear()[1] == ME
    client.close()
    made.server.stop()


def test_a_driver_that_does_not_answer_is_an_error_that_says_so():
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = ControlAddress("127.0.0.1", deaf.getsockname()[1], "s")
        for _ in range(50):
            with pytest.raises(WorkerLost, match=r"did not answer in 0 s"):
                connect(address, timeout=0.02)
        wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name == "headrace-control"])


def test_a_driver_that_closes_the_connection_at_once():
    with socket.create_server(("127.0.0.1", 0)) as rude:

        def close_at_once():
            rude.accept()[0].close()

        threading.Thread(target=close_at_once, daemon=True).start()
        with pytest.raises(WorkerLost, match=r"closed the connection|cannot be reached: .*reset"):
            connect(ControlAddress("127.0.0.1", rude.getsockname()[1], "s"), timeout=60)


def test_a_short_timeout_has_more_pings():
    made, got = Driver(timeout=1.0), queue.SimpleQueue()
    client = connect(made.server.address, on_message=got.put)
    started, pings = time.monotonic(), 0
    while pings < 6:
        pings += isinstance(got.get(timeout=60), Ping)
    assert time.monotonic() - started < 5 * control_server._PING_SECONDS
    client.close()
    made.server.stop()


def test_older_versions_of_tls_are_refused(tls_driver):
    context = ssl.create_default_context(cadata=tls_driver.server.address.certificate.decode())
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection(("127.0.0.1", tls_driver.server.address.port), timeout=60) as connection,
        pytest.raises(ssl.SSLError),
    ):
        context.wrap_socket(connection, server_hostname="headrace-driver")


def test_a_handshake_that_never_comes_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(control_server, "_GREETING_SECONDS", 0.2)
    made = Driver(tls=True, timeout=1.0)
    with socket.create_connection(("127.0.0.1", made.server.address.port), timeout=30) as quiet:
        assert quiet.recv(1) == b""
    made.server.stop()


def test_a_port_that_is_taken_on_one_of_the_addresses_is_not_the_one(monkeypatch):
    names(monkeypatch, gate=["127.0.0.1", "127.0.0.2"])
    create, made = socket.create_server, []

    def create_server(address, **options):
        made.append(address)
        if len(made) == 2:
            raise OSError(errno.EADDRINUSE, "taken")
        return create(address, **options)

    monkeypatch.setattr(socket, "create_server", create_server)
    driver = Driver(bind="gate")
    assert [(host, port) for host, port in made[2:]] == [("127.0.0.1", 0), ("127.0.0.2", driver.server.address.port)]
    driver.server.stop()


def test_a_worker_with_a_host_that_is_no_name(caplog):
    with pytest.raises(WorkerLost, match=r"a\.\.b:1 cannot be reached: 'a\.\.b' is no name of a host"):
        connect(ControlAddress("a..b", 1, "s"), timeout=5)
    assert "cannot be handled" not in caplog.text


def test_the_death_of_a_worker_that_has_forked_is_seen_at_once(driver):
    code = WORKER.replace(
        'print("connected"', 'import os\nchild = os.fork() or time.sleep(30) or os._exit(0)\nprint("connected"'
    )
    process = start_worker(driver.server.address, 60, code=code)
    driver.hear()
    process.kill()
    process.wait()
    assert driver.lost.get(timeout=20) == WorkerKey(3, 0, 1)


def test_a_worker_that_can_start_no_thread_ends_as_well(driver):
    refuse = 'import threading\ndef no(self): raise RuntimeError("no new thread")\nthreading.Thread.start = no\n'
    process = start_worker(driver.server.address, 60, code=WORKER.replace("print(", refuse + "print("))
    driver.server.stop()
    assert process.wait(timeout=60) == 70
    process.communicate()


@pytest.mark.long
def test_connections_leave_nothing_behind(driver):
    def exchange_one():
        client = connect(driver.server.address)
        driver.hear()
        client.close()
        driver.lost.get(timeout=60)

    exchange_one()
    before = descriptors(), threading.active_count()
    for _ in range(200):
        exchange_one()
        socket.create_connection(("127.0.0.1", driver.server.address.port), timeout=60).close()
    wait_until(lambda: (descriptors(), threading.active_count()) == before)
    wait_until(lambda: driver.server._streams == driver.server._greeting == set())


def test_an_idle_connection_wakes_up_hardly_ever(driver):
    code = (
        "import pickle, resource, sys, time; from headrace.control.worker_link import *; from headrace.control.messages import *\n"
        "client = ControlClient(pickle.loads(bytes.fromhex(sys.argv[1])), Register(0, 1, 3, 'here', 7), 60, lambda m: None)\n"
        "time.sleep(1)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw\n"
        "time.sleep(4)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before)\n"
        "client.close()\n"
    )
    command = [sys.executable, "-c", code, pickle.dumps(driver.server.address).hex()]
    ended = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert int(ended.stdout) < 60  # a ping each two seconds, a look at the clock each second


def test_no_driver_at_all():
    with pytest.raises(WorkerLost, match=r"127\.0\.0\.1:1"):
        connect(ControlAddress("127.0.0.1", 1, "s"), timeout=1)


def test_a_taken_port_is_an_error_that_says_what_to_set(driver):
    with pytest.raises(WorkerLost, match=r"cannot listen on 127.0.0.1:\d+.*headrace.control.port"):
        ControlServer("127.0.0.1", "127.0.0.1", driver.server.address.port, print, print)


def test_a_port_that_does_not_exist_is_an_error_that_says_what_to_set():
    with pytest.raises(
        WorkerLost, match=r"cannot listen on 127.0.0.1:70000; set headrace.control.port to at most 65535"
    ):
        Driver(port=70_000)


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.EACCES, "set headrace.control.port to a free port"), (errno.EMFILE, "Too many open files$")],
)
def test_the_advice_fits_the_error(monkeypatch, number, advice):
    def create_server(*args, **options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket, "create_server", create_server)
    with pytest.raises(WorkerLost, match=advice):
        Driver(port=80)


@pytest.mark.parametrize("bind", ["192.0.2.1", "no-such-name.invalid", "a..b", "x" * 64])
def test_an_address_of_another_machine_is_an_error_that_says_what_to_set(bind):
    with pytest.raises(WorkerLost, match=rf"cannot listen on {bind}:0.*set headrace.control.host to an address of"):
        ControlServer(bind, bind, 0, print, print)


def test_a_chosen_port_is_used():
    first = Driver()
    port = first.server.address.port
    first.server.stop()
    second = ControlServer("127.0.0.1", "127.0.0.1", port, lambda *a: None, lambda w: None)
    assert second.address.port == port
    second.stop()


def test_beats_come_every_second(driver):
    metrics = Metrics(1, 2, 3, 4, 5, 6, 7, 8, 9)
    client = connect(driver.server.address, beat=lambda: metrics)
    driver.hear()
    started = time.monotonic()
    assert [driver.hear()[1] for _ in range(2)] == [metrics, metrics]
    assert time.monotonic() - started > 0.5
    client.close()


def test_a_worker_whose_counters_cannot_be_read_is_heard(driver, caplog):
    """Else the driver would count it as lost after `headrace.control.timeout`. The counters before are sent again."""
    metrics = [Metrics(1)]
    client = connect(driver.server.address, beat=metrics.pop)
    driver.hear()
    assert [driver.hear()[1] for _ in range(3)] == [Metrics(1)] * 3
    client.close()
    assert "its counters cannot be read" in caplog.text


def test_a_worker_whose_counters_take_long_is_heard(driver):
    go_on = threading.Event()
    client = connect(driver.server.address, beat=lambda: go_on.wait(60) and Metrics(1))
    driver.hear()
    assert [driver.hear()[1] for _ in range(2)] == [Metrics()] * 2
    go_on.set()
    while driver.hear()[1] != Metrics(1):
        pass
    client.close()


def test_a_worker_whose_counters_take_long_ends_when_it_hears_nothing():
    made = Driver(timeout=2.0)
    code = WORKER.replace("lambda m: None)", "lambda m: None, lambda: time.sleep(1000))")
    process = start_worker(made.server.address, 2.0, code=code)
    time.sleep(2)
    hung = threading.Event()
    made.server._loop.call_soon_threadsafe(hung.wait)
    assert process.wait(timeout=60) == 70
    hung.set()
    process.communicate()
    made.server.stop()


WORKER = """
import pickle, sys, time
from headrace.control.messages import Register
from headrace.control.worker_link import ControlClient
address = pickle.loads(bytes.fromhex(sys.argv[1]))
ControlClient(address, Register(0, 1, 3, "here", 7), float(sys.argv[2]), lambda m: None)
print("connected", flush=True)
time.sleep(60)
"""


def start_worker(address, timeout, env=None, code=WORKER):
    command = [sys.executable, "-c", code, pickle.dumps(address).hex(), str(timeout)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    assert process.stdout.readline() == "connected\n", process.communicate()[1]
    return process


def test_a_worker_ends_when_its_driver_is_gone(driver):
    process = start_worker(driver.server.address, 60)
    driver.server.stop()
    assert process.wait(timeout=60) == 70
    assert "the connection to the driver is lost; stopping" in process.stderr.read()


def test_a_worker_ends_when_it_hears_nothing():
    made = Driver(timeout=3.0)
    process = start_worker(made.server.address, 3.0)
    time.sleep(5)
    assert process.poll() is None  # pings come often enough
    hung = threading.Event()
    made.server._loop.call_soon_threadsafe(hung.wait)  # the driver hangs; its connections stay open
    assert process.wait(timeout=60) == 70
    hung.set()
    assert "no message from the driver for 3 s; stopping" in process.stderr.read()
    made.server.stop()


def test_a_web_proxy_is_not_asked(driver):
    proxy = {
        "http_proxy": "http://127.0.0.1:1",
        "https_proxy": "http://127.0.0.1:1",
    }
    process = start_worker(driver.server.address, 60, env=proxy | {"PATH": "/usr/bin"})
    process.kill()
    process.wait()
    wait_until(lambda: not driver.server.connected())
