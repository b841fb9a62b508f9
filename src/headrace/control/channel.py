"""The control plane: one TCP stream between the driver and every subtask, with a secret made for the job.

On loopback the stream is plain; otherwise it is TLS with a certificate made for the job. Secret and certificate are
sent inside the task's closure, never in Spark's configuration, which the UI shows.

A message is its length in eight bytes, then its bytes; an empty one is the last of its direction. A worker sends the
secret first, then `Register`. Each end has one thread with an event loop, which sleeps as long as there is nothing to
send or to receive.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import ipaddress
import logging
import math
import os
import queue
import secrets
import socket
import ssl
import struct
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from headrace.control import messages as msg
from headrace.errors import WorkerLost

_SIZE: Final = struct.Struct(">Q")
_LAST: Final = b""
_LARGEST_GREETING: Final = 1 << 16  # bytes, from those who have not shown the secret yet
_READ_AHEAD: Final = 1 << 18  # bytes
_TLS_NAME = "headrace-driver"
_PING_SECONDS = 2.0
_BEAT_SECONDS = 1.0
_EXIT_SECONDS = 5.0
_CLOSE_SECONDS = 3  # at least, until the driver has read all
_GREETING_SECONDS = 20.0
_BACKLOG = 4096  # all workers of an attempt connect at once
_GRACE_SECONDS = 5.0  # for a worker to read the last message
_STOP_SECONDS = 2.0  # for all of them, at the end of the job
_TRIES = 5  # for a port that is free on all addresses
_LARGEST_PORT: Final = 0xFFFF
_LARGEST_INT: Final = 0x7FFF_FFFF  # of C

_log = logging.getLogger("headrace.worker")
_driver_log = logging.getLogger("headrace.driver")


@dataclass(frozen=True, slots=True)
class ControlAddress:
    """How a worker reaches its driver; `repr` shows no secret."""

    host: str
    port: int
    secret: str = field(repr=False)
    certificate: bytes | None = field(repr=False, default=None)


@dataclass(frozen=True, slots=True)
class WorkerKey:
    """A subtask of one attempt."""

    attempt: int
    level: int
    index: int


class ControlServer:
    """The driver's end. `on_message(worker, message)` and `on_lost(worker)` are called in the server's own thread.

    The server pings often enough for workers that wait `timeout` seconds. `tls` overrides whether streams are encrypted.
    """

    def __init__(
        self,
        bind: str,
        advertise: str,
        port: int,
        on_message: Callable[[WorkerKey, msg.FromWorker], None],
        on_lost: Callable[[WorkerKey], None],
        timeout: float = 20.0,
        tls: bool | None = None,
    ) -> None:
        self._on_message, self._on_lost = on_message, on_lost
        self._timeout = timeout
        self._attempt = -1
        self._queues: dict[WorkerKey, asyncio.Queue[msg.FromDriver | None]] = {}
        self._servers: list[asyncio.Server] = []
        self._streams: set[asyncio.Task[None]] = set()
        self._greeting: set[asyncio.Task[None]] = set()
        self._pinging: asyncio.Future[None] | None = None
        self._stopping, self._stopped = threading.Lock(), False
        self._secret = secrets.token_hex(16)
        listeners = _listen(bind, port)
        plain = all(_is_loopback(listener.getsockname()[0]) for listener in listeners) and _is_here(_bare(advertise))
        identity = _Identity() if (not plain if tls is None else tls) else None
        self._loop = asyncio.SelectorEventLoop()  # whatever the program has made the usual one
        self.address = ControlAddress(
            _bare(advertise), listeners[0].getsockname()[1], self._secret, identity.certificate if identity else None
        )
        started: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._run, args=(listeners, identity, started), name="headrace-control", daemon=True
        )
        self._thread.start()
        if (error := started.get()) is not None:
            raise error

    # --- called by the job ------------------------------------------------------------------------------------------

    def begin_attempt(self, attempt: int) -> None:
        """Accept only workers of this attempt from now on."""
        self._attempt = attempt

    def send(self, worker: WorkerKey | None, message: msg.FromDriver) -> None:
        """Send to one worker, or to all; nothing happens if it is not connected."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the job is over
            self._loop.call_soon_threadsafe(self._put, worker, message)

    def connected(self) -> list[WorkerKey]:
        """The workers whose stream is open."""
        return list(self._queues)

    def stop(self) -> None:
        """End all streams and the server's thread."""
        with self._stopping:
            if self._stopped:
                return
            self._stopped = True
            done = asyncio.run_coroutine_threadsafe(self._stop(), self._loop)
            with contextlib.suppress(Exception):
                done.result(timeout=5)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=5)

    # --- in the server's thread -------------------------------------------------------------------------------------

    def _put(self, worker: WorkerKey | None, message: msg.FromDriver | None) -> None:
        """Hand a message to one stream or to all; None ends them."""
        streams = self._queues.values() if worker is None else filter(None, [self._queues.get(worker)])
        for stream in streams:
            stream.put_nowait(message)

    def _run(self, listeners: list[socket.socket], identity: _Identity | None, started: Any) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._start(listeners, identity))
        except Exception as error:
            self._loop.close()
            for listener in listeners:
                listener.close()
            started.put(error)
            return
        started.put(None)
        self._loop.run_forever()
        self._loop.run_until_complete(self._end())  # here, so that nothing stays open if `stop` waits no longer
        self._loop.close()

    async def _start(self, listeners: list[socket.socket], identity: _Identity | None) -> None:
        tls = identity.server_context() if identity else None
        patience = self._greeting_seconds if identity else None
        for listener in listeners:
            self._servers += [
                await asyncio.start_server(
                    self._accept, sock=listener, limit=_READ_AHEAD, ssl=tls, ssl_handshake_timeout=patience
                )
            ]
            listener.listen(_BACKLOG)  # with `backlog`, asyncio would also accept as many in one turn of its loop
        self._pinging = asyncio.ensure_future(self._ping())

    @property
    def _greeting_seconds(self) -> float:
        return max(_GREETING_SECONDS, self._timeout)

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(min(_PING_SECONDS, self._timeout / 4))
            self._put(None, msg.Ping())

    async def _stop(self) -> None:
        if self._pinging is not None:
            self._pinging.cancel()
        await self._stop_listening()
        for stream in self._greeting:
            stream.cancel()
        self._put(None, None)
        if self._streams:
            await asyncio.wait(self._streams, timeout=_STOP_SECONDS)

    async def _stop_listening(self) -> None:
        """What asyncio has accepted in this turn, and then finds its server closed, it would leave to the collector."""
        for listener in (listener for server in self._servers for listener in server.sockets):
            self._loop.remove_reader(listener.fileno())
        await asyncio.sleep(0)
        for server in self._servers:
            server.close()

    async def _end(self) -> None:
        await self._stop_listening()
        while late := asyncio.all_tasks() - {asyncio.current_task()}:  # TLS handshakes and new streams as well
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await asyncio.sleep(0)  # for transports to close their sockets

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(reader, writer))
        self._streams.add(task)
        self._greeting.add(task)

        def ended(_: object) -> None:  # or cancelled before it began
            writer.transport.abort()
            self._streams.discard(task)
            self._greeting.discard(task)

        task.add_done_callback(ended)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            self._set_options(writer.get_extra_info("socket"))
            register = await self._greeted(reader, writer)
            self._greeting.discard(task)
            if register is not None:
                await self._talk(register, reader, writer)
            # What is closed while the other end still sends may lose the last messages on their way to it.
            writer.write(_framed(_LAST))
            async with asyncio.timeout(_GRACE_SECONDS):
                while await reader.read(1 << 16):
                    pass
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass  # the stream is over in any case
        except Exception:
            _driver_log.exception("the connection of a worker is closed")

    def _set_options(self, connection: socket.socket) -> None:
        """What asyncio sets only for sockets that it has made; and a worker whose host is gone is lost in time.

        So is one that does not read for that long, once the buffers between the two are full.
        """
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            connection.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, min(int(self._timeout * 1000), _LARGEST_INT)
            )

    async def _talk(self, register: msg.Register, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        worker = WorkerKey(register.attempt, register.level, register.index)
        out: asyncio.Queue[msg.FromDriver | None] = asyncio.Queue()
        self._queues[worker] = out
        self._on_message(worker, register)
        reading = asyncio.ensure_future(self._read(worker, reader, out))
        try:
            message: msg.FromDriver | None = msg.Accepted()
            while message is not None:
                writer.write(_framed(msg.encode(message)))
                await writer.drain()
                message = await out.get()
        finally:
            reading.cancel()
            del self._queues[worker]
            self._on_lost(worker)
            await asyncio.wait([reading])  # only one may read at a time

    async def _greeted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> msg.Register | None:
        """The registration of a worker that may speak; others are told why not."""
        first, allowed = None, True
        silent = False
        try:
            async with asyncio.timeout(self._greeting_seconds):
                allowed = hmac.compare_digest(await _receive(reader, _LARGEST_GREETING), self._secret.encode())
                if allowed:
                    first = msg.decode_from_worker(await _receive(reader, _LARGEST_GREETING))
        except TimeoutError:
            silent = True
        except msgspec.MsgspecError:
            pass
        if silent:
            reason = f"the driver refused the connection: it received nothing for {self._greeting_seconds:.0f} s"
        elif not allowed:
            reason = "the driver refused the connection: wrong secret"
        elif not isinstance(first, msg.Register):
            reason = "the driver refused the connection: the first message must be Register"
        elif first.attempt != self._attempt:
            reason = f"attempt {first.attempt} is over, attempt {self._attempt} runs"
        elif WorkerKey(first.attempt, first.level, first.index) in self._queues:
            reason = f"task {first.level}/{first.index} of attempt {first.attempt} runs already"
        else:
            return first
        writer.write(_framed(msg.encode(msg.Cancel(reason))))
        return None

    async def _read(self, worker: WorkerKey, reader: asyncio.StreamReader, out: Any) -> None:
        try:
            while received := await _receive(reader):
                self._on_message(worker, msg.decode_from_worker(received))
        except OSError:
            pass  # the worker died, which `_on_lost` says
        except Exception:  # the worker is stopped: what it says next would make no sense without this message
            _driver_log.exception("a message of worker %d of level %d cannot be handled", worker.index, worker.level)
        finally:
            out.put_nowait(None)


class ControlClient:
    """A worker's end. `on_message` is called with messages of the driver in the client's own thread.

    A worker that loses its driver must stop: when the stream breaks, or nothing was received for `timeout` seconds, the
    process ends itself. `beat` is called once a second in a thread of its own; its message shows the driver that the
    worker is alive, also while the main thread runs a user's function. `beat` may call a user's function itself: while it
    takes long, and where it fails, the message before is sent again.
    """

    def __init__(
        self,
        address: ControlAddress,
        register: msg.Register,
        timeout: float,
        on_message: Callable[[msg.FromDriver], None],
        beat: Callable[[], msg.FromWorker] | None = None,
    ) -> None:
        self._on_message = on_message
        self._timeout = timeout
        self._last_beat: msg.FromWorker = msg.Metrics()
        self._beat_due = math.inf if beat is None else time.monotonic() + 2 * _BEAT_SECONDS
        self._closing = threading.Event()
        self._received = 0  # messages
        self._accepted = threading.Event()
        self._refused: str | None = None
        self._loop = asyncio.SelectorEventLoop()
        self._requests: asyncio.Queue[msg.FromWorker | None] = asyncio.Queue()
        self._requests.put_nowait(register)
        self._talking = self._loop.create_task(self._talk(address))
        self._reader = threading.Thread(target=self._run, args=(address,), name="headrace-control", daemon=True)
        self._reader.start()
        answered, refused = self._accepted.wait(timeout), self._refused
        if not answered or refused is not None:
            self.close()
            raise WorkerLost(
                refused or f"the driver at {address.host}:{address.port} did not answer in {timeout:.0f} s"
            )
        threading.Thread(target=self._watch, name="headrace-watchdog", daemon=True).start()
        if beat is not None:
            threading.Thread(target=self._beat, args=(beat,), name="headrace-beat", daemon=True).start()

    def send(self, message: msg.FromWorker) -> None:
        """Send; never blocks."""
        self._put(message)

    def close(self) -> None:
        """Send what is queued and end the stream.

        The driver ends it when it has read all. A stream that is closed before that takes the last messages with it, and
        then a finished worker counts as dead, so a slow driver gets as much time as it has otherwise. Each turn counts as
        a second: on a machine that stands still for a while, the driver could not answer either.
        """
        self._closing.set()
        self._put(None)
        for _ in range(max(_CLOSE_SECONDS, math.ceil(self._timeout)) if self._accepted.is_set() else 0):
            if not self._reader.is_alive():
                break
            self._reader.join(timeout=1)
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._talking.cancel)

    def _put(self, message: msg.FromWorker | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the connection is over
            self._loop.call_soon_threadsafe(self._requests.put_nowait, message)

    def _run(self, address: ControlAddress) -> None:
        try:
            self._loop.run_until_complete(self._talking)
        except asyncio.CancelledError:
            pass
        except OSError as error:
            if not self._accepted.is_set():
                self._refused = f"the driver at {address.host}:{address.port} cannot be reached: {error}"
        except Exception:  # without its control messages a worker cannot continue
            _log.exception("worker %d: a message of the driver cannot be handled", os.getpid())
        finally:
            self._loop.close()
        if not self._accepted.is_set():
            self._refused = self._refused or f"the driver at {address.host}:{address.port} closed the connection"
            self._accepted.set()
        elif not self._closing.is_set() and self._refused is None:
            _exit("the connection to the driver is lost")

    async def _talk(self, address: ControlAddress) -> None:
        tls = _client_context(address.certificate) if address.certificate else None
        reader, writer = await self._connect(_bare(address.host), address.port, tls)
        writer.write(_framed(address.secret.encode()))
        sending = asyncio.ensure_future(self._send(writer))
        try:
            while received := await _receive(reader):
                message = msg.decode_from_driver(received)
                self._received += 1
                if isinstance(message, msg.Cancel) and not self._accepted.is_set():
                    self._refused = message.reason
                    return
                self._accepted.set()
                self._on_message(message)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            writer.transport.abort()
            await asyncio.sleep(0)  # for the transport to close its socket

    async def _connect(
        self, host: str, port: int, tls: ssl.SSLContext | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """To the first address of the host that answers; each has its share of the time."""
        # In this thread, in which nothing else runs yet: asyncio would leave a thread behind.
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except UnicodeError as error:
            raise OSError(f"'{host}' is no name of a host: {error}") from error
        share = self._timeout / max(1, len(found))
        problem = OSError("it has no address")
        for family, kind, protocol, _, where in found:
            with contextlib.ExitStack() as made:
                try:
                    connection = made.enter_context(socket.socket(family, kind, protocol))
                    connection.setblocking(False)
                    async with asyncio.timeout(share):
                        await asyncio.get_running_loop().sock_connect(connection, where)
                        stream = await asyncio.open_connection(
                            sock=connection, limit=_READ_AHEAD, ssl=tls, server_hostname=_TLS_NAME if tls else None
                        )
                except TimeoutError:
                    problem = TimeoutError(f"{where[0]} did not answer in {share:.0f} s")
                except OSError as error:
                    problem = error
                else:
                    made.pop_all()  # it stays open
                    _close_when_forked(connection)
                    return stream
        raise problem

    async def _send(self, writer: asyncio.StreamWriter) -> None:
        try:
            while (message := await self._requests.get()) is not None:
                writer.write(_framed(msg.encode(message)))
                await writer.drain()
            writer.write(_framed(_LAST))
        except OSError:
            pass  # the end that receives sees it too
        except Exception:  # what follows would make no sense without this message
            _log.exception("worker %d: a message to the driver cannot be sent", os.getpid())
            writer.transport.abort()

    def _watch(self) -> None:
        turn, received, silent = min(_BEAT_SECONDS, self._timeout / 4), 0, 0.0
        while not self._closing.wait(turn):
            # In turns, not by the clock: after this process stood still, it first reads what the driver sent meanwhile.
            received, silent = self._received, silent + turn if received == self._received else 0.0
            if silent > self._timeout and not self._closing.is_set():
                _exit(f"no message from the driver for {self._timeout:.0f} s")
            if time.monotonic() > self._beat_due:
                self.send(self._last_beat)

    def _beat(self, beat: Callable[[], msg.FromWorker]) -> None:
        while not self._closing.wait(_BEAT_SECONDS):
            try:
                self._last_beat = beat()
            except Exception:
                _log.exception("worker %d: its counters cannot be read", os.getpid())
            self.send(self._last_beat)
            self._beat_due = time.monotonic() + 2 * _BEAT_SECONDS


def _exit(reason: str) -> None:
    """End this process at once: its attempt is over."""
    last = threading.Timer(_EXIT_SECONDS, os._exit, (70,))  # should the log be blocked
    last.daemon = True
    try:
        last.start()
        _log.error("worker %d: %s; stopping", os.getpid(), reason)
    finally:
        os._exit(70)


def _framed(message: bytes) -> bytes:
    return _SIZE.pack(len(message)) + message


async def _receive(reader: asyncio.StreamReader, largest: int | None = None) -> bytes:
    """The next message; an empty one if the stream has ended."""
    try:
        (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
        return await reader.readexactly(size) if size and (largest is None or size <= largest) else _LAST
    except asyncio.IncompleteReadError:
        return _LAST


def _listen(bind: str, port: int) -> list[socket.socket]:
    """One port on all addresses of this machine that the name has; `::` takes connections over IPv4 too."""
    where = f"{_bracketed(_bare(bind))}:{port}"
    if port > _LARGEST_PORT:
        raise WorkerLost(
            f"the control plane cannot listen on {where}; set headrace.control.port to at most {_LARGEST_PORT}"
        )
    try:
        found = socket.getaddrinfo(_bare(bind), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        addresses = list(dict.fromkeys((family, where) for family, _, _, _, where in found))
        for _ in range(_TRIES if port == 0 and len(addresses) > 1 else 1):
            try:
                return _listen_on(addresses)
            except OSError as error:
                problem = error
        raise problem
    except (OSError, UnicodeError) as error:
        do = ""
        if isinstance(error, socket.gaierror | UnicodeError) or error.errno == errno.EADDRNOTAVAIL:
            do = "; set headrace.control.host to an address of this machine"
        elif error.errno in (errno.EADDRINUSE, errno.EACCES):
            do = "; set headrace.control.port to a free port (0 = any)"
        raise WorkerLost(f"the control plane cannot listen on {where}: {error}{do}") from error


def _listen_on(addresses: Sequence[tuple[socket.AddressFamily, Any]]) -> list[socket.socket]:
    """Without those that this machine does not have, if it has another one."""
    with contextlib.ExitStack() as made:
        listeners: list[socket.socket] = []
        problem: OSError | None = None
        both = len(addresses) == 1 and socket.has_dualstack_ipv6()
        for family, (host, port, *scope) in addresses:
            chosen = listeners[0].getsockname()[1] if listeners else port
            try:
                listeners.append(
                    made.enter_context(
                        socket.create_server(
                            (host, chosen, *scope), family=family, dualstack_ipv6=both and family == socket.AF_INET6
                        )
                    )
                )
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                problem = error
        if not listeners and problem is not None:
            raise problem
        made.pop_all()  # they stay open
        return listeners


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _bare(host: str) -> str:
    """Spark writes addresses of IPv6 in brackets."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def _is_here(host: str) -> bool:
    """Whether the name leads to loopback; behind a forwarder it does not, though the driver listens there."""
    try:
        return all(_is_loopback(str(where[0])) for *_, where in socket.getaddrinfo(host, None))
    except (OSError, UnicodeError):
        return False


def _close_when_forked(connection: socket.socket) -> None:
    """A process that a user's function forks must not keep the stream open when this one dies."""
    known = weakref.ref(connection)

    def close() -> None:
        if (of_parent := known()) is not None:
            of_parent.close()

    os.register_at_fork(after_in_child=close)


class _Identity:
    """A key and a certificate for one job."""

    def __init__(self) -> None:
        from datetime import UTC, datetime, timedelta

        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _TLS_NAME)])
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=3650))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(_TLS_NAME)]), critical=False)
            .sign(key, hashes.SHA256())
        )
        self._private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self.certificate = certificate.public_bytes(serialization.Encoding.PEM)

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        with tempfile.NamedTemporaryFile() as file:  # Python reads keys from files only; other users cannot read it
            file.write(self._private + self.certificate)
            file.flush()
            context.load_cert_chain(file.name)
        return context


def _client_context(certificate: bytes) -> ssl.SSLContext:
    """For a connection to the driver that has this certificate, and to no other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=certificate.decode())
    return context
