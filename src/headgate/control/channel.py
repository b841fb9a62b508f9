"""The control plane: one gRPC stream between the driver and every subtask, with a secret made for the job.

On loopback the stream is plain; otherwise it is TLS with a certificate made for the job. Secret and certificate are
sent inside the task's closure, never in Spark's configuration, which the UI shows.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import math
import os
import queue
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from headgate.control import messages as msg
from headgate.errors import WorkerLost

_METHOD = "/headgate.Control/Stream"
_SECRET = "headgate-secret"  # noqa: S105 - the name of a header
_TLS_NAME = "headgate-driver"
_OPTIONS = [
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.enable_http_proxy", 0),  # an HTTP proxy must not be used between a worker and its driver
    ("grpc.so_reuseport", 0),  # a port that is in use is an error
]
_PING_SECONDS = 2.0
_BEAT_SECONDS = 1.0
_EXIT_SECONDS = 5.0
_CLOSE_SECONDS = 3  # at least, until the driver has read all

_log = logging.getLogger("headgate.worker")
_driver_log = logging.getLogger("headgate.driver")


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
        self._ping_seconds = min(_PING_SECONDS, timeout / 4)
        self._attempt = -1
        self._queues: dict[WorkerKey, asyncio.Queue[msg.FromDriver | None]] = {}
        self._loop = asyncio.new_event_loop()
        self._server: Any = None
        self._pinging: asyncio.Future[None] | None = None
        self._secret = secrets.token_hex(16)
        encrypted = not _is_loopback(bind) if tls is None else tls
        identity = _self_signed() if encrypted else None
        started: queue.SimpleQueue[int | Exception] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._run, args=(bind, port, identity, started), name="headgate-control", daemon=True
        )
        self._thread.start()
        bound = started.get()
        if isinstance(bound, Exception):
            raise bound
        self.address = ControlAddress(advertise, bound, self._secret, identity[1] if identity else None)

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
        if self._loop.is_closed():
            return
        done = asyncio.run_coroutine_threadsafe(self._stop(), self._loop)
        with contextlib.suppress(Exception):
            done.result(timeout=5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)

    # --- in the server's thread -------------------------------------------------------------------------------------

    def _put(self, worker: WorkerKey | None, message: msg.FromDriver | None) -> None:
        """Hand a message to one stream or to all; None ends them."""
        for key, stream in self._queues.items():
            if worker in (None, key):
                stream.put_nowait(message)

    def _run(self, bind: str, port: int, tls: tuple[bytes, bytes] | None, started: Any) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            started.put(self._loop.run_until_complete(self._start(bind, port, tls)))
        except Exception as error:
            started.put(error)
            return
        self._loop.run_forever()
        self._loop.close()

    async def _start(self, bind: str, port: int, tls: tuple[bytes, bytes] | None) -> int:
        self._server = grpc.aio.server(options=_OPTIONS)
        handler = grpc.stream_stream_rpc_method_handler(self._stream, msg.decode_from_worker, msg.encode)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("headgate.Control", {"Stream": handler}),)
        )
        where = f"{_bracketed(bind)}:{port}"
        try:
            if tls is None:
                bound = self._server.add_insecure_port(where)
            else:
                bound = self._server.add_secure_port(where, grpc.ssl_server_credentials([tls]))
        except RuntimeError as error:
            raise WorkerLost(
                f"the control plane cannot listen on {where}: {error}; set headgate.control.port to a free port (0 = any)"
            ) from error
        await self._server.start()
        self._pinging = asyncio.ensure_future(self._ping())
        return int(bound)

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(self._ping_seconds)
            self._put(None, msg.Ping())

    async def _stop(self) -> None:
        if self._pinging is not None:
            self._pinging.cancel()
        self._put(None, None)
        await self._server.stop(grace=1)

    async def _stream(self, requests: AsyncIterator[msg.FromWorker], context: Any) -> AsyncIterator[msg.FromDriver]:
        given = dict(context.invocation_metadata()).get(_SECRET, "")
        if not hmac.compare_digest(str(given), self._secret):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong secret")
        first = await anext(aiter(requests), None)
        if not isinstance(first, msg.Register):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message must be Register")
            return
        worker = WorkerKey(first.attempt, first.level, first.index)
        if first.attempt != self._attempt:
            yield msg.Cancel(f"attempt {first.attempt} is over, attempt {self._attempt} runs")
            return
        if worker in self._queues:
            yield msg.Cancel(f"task {first.level}/{first.index} of attempt {first.attempt} runs already")
            return
        out: asyncio.Queue[msg.FromDriver | None] = asyncio.Queue()
        self._queues[worker] = out
        self._on_message(worker, first)
        reading = asyncio.ensure_future(self._read(worker, requests, out))
        try:
            yield msg.Accepted()
            while (message := await out.get()) is not None:
                yield message
        finally:
            reading.cancel()
            del self._queues[worker]
            self._on_lost(worker)

    async def _read(self, worker: WorkerKey, requests: AsyncIterator[msg.FromWorker], out: Any) -> None:
        try:
            async for message in requests:
                self._on_message(worker, message)
        except Exception:  # the worker is stopped: what it says next would make no sense without this message
            _driver_log.exception("a message of worker %d of level %d cannot be handled", worker.index, worker.level)
        finally:
            out.put_nowait(None)


class ControlClient:
    """A worker's end. `on_message` is called with messages of the driver in the client's own thread.

    A worker that loses its driver must stop: when the stream breaks, or nothing was received for `timeout` seconds, the
    process ends itself. `beat` is called once a second in a thread of its own; its message shows the driver that the
    worker is alive, also while the main thread runs a user's function.
    """

    def __init__(
        self,
        address: ControlAddress,
        register: msg.Register,
        timeout: float,
        on_message: Callable[[msg.FromDriver], None],
        beat: Callable[[], msg.FromWorker | None] = lambda: None,
    ) -> None:
        self._on_message = on_message
        self._timeout = timeout
        self._beat = beat
        self._closing = threading.Event()
        self._received_at = time.monotonic()
        self._requests: queue.SimpleQueue[msg.FromWorker | None] = queue.SimpleQueue()
        self._accepted = threading.Event()
        self._refused: str | None = None
        self._channel = _channel(address)
        call = self._channel.stream_stream(_METHOD, msg.encode, msg.decode_from_driver)
        self._requests.put(register)
        self._responses = call(iter(self._requests.get, None), metadata=((_SECRET, address.secret),))
        self._reader = threading.Thread(target=self._read, name="headgate-control", daemon=True)
        self._reader.start()
        if not self._accepted.wait(timeout) or self._refused is not None:
            self.close()
            raise WorkerLost(
                self._refused or f"the driver at {address.host}:{address.port} did not answer in {timeout:.0f} s"
            )
        threading.Thread(target=self._watch, name="headgate-watchdog", daemon=True).start()

    def send(self, message: msg.FromWorker) -> None:
        """Send; never blocks."""
        self._requests.put(message)

    def close(self) -> None:
        """Send what is queued and end the stream.

        The driver ends it when it has read all. A stream that is closed before that takes the last messages with it, and
        then a finished worker counts as dead, so a slow driver gets as much time as it has otherwise. Each turn counts as
        a second: on a machine that stands still for a while, the driver could not answer either.
        """
        self._closing.set()
        self._requests.put(None)
        for _ in range(max(_CLOSE_SECONDS, math.ceil(self._timeout)) if self._accepted.is_set() else 0):
            if not self._reader.is_alive():
                break
            self._reader.join(timeout=1)
        self._channel.close()

    def _read(self) -> None:
        try:
            for message in self._responses:
                self._received_at = time.monotonic()
                if isinstance(message, msg.Cancel) and not self._accepted.is_set():
                    self._refused = message.reason
                    self._accepted.set()
                    return
                self._accepted.set()
                self._on_message(message)
        except grpc.RpcError as error:
            if not self._accepted.is_set():
                self._refused = f"the driver refused the connection: {error.details()}"
                self._accepted.set()
                return
        if not self._closing.is_set():
            _exit("the connection to the driver is lost")

    def _watch(self) -> None:
        next_beat = time.monotonic() + _BEAT_SECONDS
        while not self._closing.wait(min(_BEAT_SECONDS, self._timeout / 4)):
            if time.monotonic() - self._received_at > self._timeout and not self._closing.is_set():
                _exit(f"no message from the driver for {self._timeout:.0f} s")
            if time.monotonic() >= next_beat - 0.1:
                next_beat = time.monotonic() + _BEAT_SECONDS
                try:
                    message = self._beat()
                except Exception:  # the watch for the driver must continue
                    _log.exception("worker %d: its counters cannot be read", os.getpid())
                    continue
                if message is not None:
                    self.send(message)


def _exit(reason: str) -> None:
    """End this process at once: its attempt is over."""
    last = threading.Timer(_EXIT_SECONDS, os._exit, (70,))  # should the log be blocked
    last.daemon = True
    last.start()
    _log.error("worker %d: %s; stopping", os.getpid(), reason)
    os._exit(70)


def _channel(address: ControlAddress) -> Any:
    target = f"{_bracketed(address.host)}:{address.port}"
    if address.certificate is None:
        return grpc.insecure_channel(target, options=_OPTIONS)
    credentials = grpc.ssl_channel_credentials(root_certificates=address.certificate)
    return grpc.secure_channel(target, credentials, [*_OPTIONS, ("grpc.ssl_target_name_override", _TLS_NAME)])


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(OSError):
        return socket.gethostbyname(host).startswith("127.")
    return host in ("::1", "[::1]")


def _self_signed() -> tuple[bytes, bytes]:
    """A key and a certificate for one job."""
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
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private, certificate.public_bytes(serialization.Encoding.PEM)
