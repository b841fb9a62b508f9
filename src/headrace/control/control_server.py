"""The driver's end of the control plane: one TCP stream to every subtask.

On loopback the stream is plain; otherwise it is TLS with a certificate made for the job. Secret and certificate are
sent inside the task's closure, never in Spark's configuration, which the UI shows. A worker sends the secret first, then
`Register`. The server has one thread with an event loop, which sleeps as long as there is nothing to send or to receive.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import queue
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from headrace.control import messages as msg
from headrace.control.deployment import ControlAddress
from headrace.control.framing import LAST_FRAME, READ_AHEAD_BYTES, framed, receive
from headrace.control.listening import bare_host, is_loopback, leads_to_loopback, listen
from headrace.control.tls_identity import JobIdentity

MAX_GREETING_BYTES: Final = 1 << 16  # from a connection that has not shown the secret yet
_PING_SECONDS = 2.0
_GREETING_SECONDS = 20.0
_BACKLOG = 4096  # all workers of an attempt connect at once
_GRACE_SECONDS = 5.0  # for a worker to read the last message
_STOP_SECONDS = 2.0  # for all of them, at the end of the job
_MAX_INT: Final = 0x7FFF_FFFF  # of C

_log = logging.getLogger("headrace.driver")


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
        listeners = listen(bind, port)
        plain = all(is_loopback(listener.getsockname()[0]) for listener in listeners) and leads_to_loopback(
            bare_host(advertise)
        )
        identity = JobIdentity() if (not plain if tls is None else tls) else None
        self._loop = asyncio.SelectorEventLoop()  # whatever the program has made the usual one
        self.address = ControlAddress(
            bare_host(advertise),
            listeners[0].getsockname()[1],
            self._secret,
            identity.certificate if identity else None,
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

    def _run(self, listeners: list[socket.socket], identity: JobIdentity | None, started: Any) -> None:
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

    async def _start(self, listeners: list[socket.socket], identity: JobIdentity | None) -> None:
        tls = identity.server_context() if identity else None
        patience = self._greeting_seconds if identity else None
        for listener in listeners:
            self._servers += [
                await asyncio.start_server(
                    self._accept, sock=listener, limit=READ_AHEAD_BYTES, ssl=tls, ssl_handshake_timeout=patience
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
        """Stop accepting one turn of the loop before closing: asyncio leaks the connections that it has accepted in the same turn."""
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
            writer.write(framed(LAST_FRAME))
            async with asyncio.timeout(_GRACE_SECONDS):
                while await reader.read(1 << 16):
                    pass
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass  # the stream is over in any case
        except Exception:
            _log.exception("the connection of a worker is closed")

    def _set_options(self, connection: socket.socket) -> None:
        """Set TCP_NODELAY, which asyncio sets only for sockets of its own, and a timeout.

        A worker whose host has vanished is lost after the timeout. So is one that does not read for that long, once the
        buffers between the two are full.
        """
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, min(int(self._timeout * 1000), _MAX_INT))

    async def _talk(self, register: msg.Register, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        worker = WorkerKey(register.attempt, register.level, register.index)
        out: asyncio.Queue[msg.FromDriver | None] = asyncio.Queue()
        self._queues[worker] = out
        self._on_message(worker, register)
        reading = asyncio.ensure_future(self._read(worker, reader, out))
        try:
            message: msg.FromDriver | None = msg.Accepted()
            while message is not None:
                writer.write(framed(msg.encode(message)))
                await writer.drain()
                message = await out.get()
        finally:
            reading.cancel()
            del self._queues[worker]
            self._on_lost(worker)
            await asyncio.wait([reading])  # only one may read at a time

    async def _greeted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> msg.Register | None:
        """Return the registration of a worker that may speak; send others the reason why not, and return None."""
        first, allowed = None, True
        silent = False
        try:
            async with asyncio.timeout(self._greeting_seconds):
                allowed = hmac.compare_digest(await receive(reader, MAX_GREETING_BYTES), self._secret.encode())
                if allowed:
                    first = msg.decode_from_worker(await receive(reader, MAX_GREETING_BYTES))
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
        writer.write(framed(msg.encode(msg.Cancel(reason))))
        return None

    async def _read(self, worker: WorkerKey, reader: asyncio.StreamReader, out: Any) -> None:
        try:
            while received := await receive(reader):
                self._on_message(worker, msg.decode_from_worker(received))
        except OSError:
            pass  # the worker died, which `_on_lost` says
        except Exception:  # the worker is stopped: what it says next would make no sense without this message
            _log.exception("a message of worker %d of level %d cannot be handled", worker.index, worker.level)
        finally:
            out.put_nowait(None)
