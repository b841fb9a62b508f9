"""A worker's end of the control plane: the stream to its driver, and the threads that keep it alive.

The client has one thread with an event loop, which sleeps as long as there is nothing to send or to receive.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable

from headrace.control import messages as msg
from headrace.control.deployment import ControlAddress
from headrace.control.framing import LAST_FRAME, READ_AHEAD_BYTES, framed, receive
from headrace.control.listening import bare_host
from headrace.control.tls_identity import TLS_NAME, client_context
from headrace.errors import WorkerLost

_BEAT_SECONDS = 1.0
_EXIT_SECONDS = 5.0
_CLOSE_SECONDS = 3  # at least, until the driver has read all

_log = logging.getLogger("headrace.worker")


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
                "HR-6005", refused or f"the driver at {address.host}:{address.port} did not answer in {timeout:.0f} s"
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
        tls = client_context(address.certificate) if address.certificate else None
        reader, writer = await self._connect(bare_host(address.host), address.port, tls)
        writer.write(framed(address.secret.encode()))
        sending = asyncio.ensure_future(self._send(writer))
        try:
            while received := await receive(reader):
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
        """Connect to the first address of the host that answers; each has its share of the time."""
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
                            sock=connection, limit=READ_AHEAD_BYTES, ssl=tls, server_hostname=TLS_NAME if tls else None
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
                writer.write(framed(msg.encode(message)))
                await writer.drain()
            writer.write(framed(LAST_FRAME))
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


def _close_when_forked(connection: socket.socket) -> None:
    """Close a connection in forked children: one of a user's function must not keep the stream open when this process dies."""
    known = weakref.ref(connection)

    def close() -> None:
        if (of_parent := known()) is not None:
            of_parent.close()

    os.register_at_fork(after_in_child=close)
