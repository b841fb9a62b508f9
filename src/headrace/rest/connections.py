"""Connections to REST: how many there may be, and how long one may wait. They run in the event loop of the REST server.

A connection is a file descriptor of the driver, and any process of the machine can open one, without a token. The driver
needs descriptors for checkpoints.

Clients poll: they send the same bytes again and again. A connection gives the answer itself then, in a sixth of the time that
parsing, checking and routing take: what these have found depends on nothing but these bytes.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable
from typing import Any
from weakref import WeakMethod, WeakSet

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.rest.access import STRICT_HEADERS
from headrace.rest.cache import REPEATS

IDLE_SECONDS = 75  # that a connection is kept after an answer: more than the periods in which clients poll
HEAD_SECONDS = 10.0  # until the head of a request is complete
STALLED_SECONDS = 60.0  # that a client may read nothing of its response
BACKLOG = 16  # connections that are accepted at once, before they can be counted
_WAITING = 128  # that wait to be accepted
_MOST = 400
_REPEATED = 32  # requests that a connection knows
_REPEATED_BYTES = 4096  # of one of them
_STRICT = b"".join(f"{name.lower()}: {value}\r\n".encode() for name, value in STRICT_HEADERS.items())
_HEAD_BYTES = 64 << 10
_NOT_HTTP = f"this is not HTTP, or the head of the request is larger than {_HEAD_BYTES >> 10} KiB"


def most_connections() -> int:
    """A quarter of the descriptors that the process may have, and no more than are of use."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if limit == resource.RLIM_INFINITY else max(16, min(_MOST, limit // 4))


class Listener(socket.socket):
    """The listening sockets; connections beyond twice the limit are closed at once.

    One that has not spoken TLS yet is known to nothing else, for a minute.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._accepted: WeakSet[socket.socket] = WeakSet()

    def listen(self, backlog: int = _WAITING, /) -> None:
        """Let some wait in the kernel: the event loop gives one number for these and for those that it accepts at once."""
        super().listen(max(backlog, _WAITING))

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        if sum(one.fileno() >= 0 for one in self._accepted) >= 2 * most_connections():
            connection.close()
            raise BlockingIOError  # as if nothing had come
        self._accepted.add(connection)
        return connection, address


class Connection(H11Protocol):
    """One connection. When there are too many, the oldest that waits for a request is closed."""

    waiting_since = 0.0  # in seconds of the loop
    _head: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _request: bytes | None = None  # the request that is being answered, if these are all bytes of it

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn = h11.Connection(h11.SERVER, _HEAD_BYTES)
        # A weak reference: requests refer to this state, and connections must not wait for the garbage collector.
        self.app_state = {**self.app_state, REPEATS: WeakMethod(self._repeats)}
        self._repeated: dict[bytes, Callable[[], bytes | None]] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_request()
        if len(self.connections) > (most := most_connections()):
            open_ones = [
                one for one in self.connections if isinstance(one, Connection) and not one.transport.is_closing()
            ]
            if len(open_ones) > most:
                idle = (one for one in open_ones if one.is_idle)
                min(idle, key=lambda one: one.waiting_since, default=self).transport.abort()

    @property
    def is_idle(self) -> bool:
        """Return True if the connection only waits for a request."""
        return self.cycle is None or self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        between = self.conn.our_state is self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]
        if between and (find := self._repeated.get(data)) is not None and self._answer_again(find):
            return
        self._request = data if between and len(data) <= _REPEATED_BYTES else None
        super().data_received(data)
        if not self.is_idle:
            self._disarm_head()
        elif self._head is None:
            self._expect_request()

    def _repeats(self, find: Callable[[], bytes | None]) -> None:
        """The request that is being answered gets what `find` gives, as JSON; so do the same bytes when they come again."""
        if self._request is not None and self.conn.their_state is h11.DONE and not self.conn.trailing_data[0]:
            self._repeated.pop(self._request, None)
            while len(self._repeated) >= _REPEATED:
                del self._repeated[next(iter(self._repeated))]
            self._repeated[self._request] = find

    def _answer_again(self, find: Callable[[], bytes | None]) -> bool:
        """Answer what was answered before; False if that has to be done in the usual way."""
        if self.flow.write_paused or self.transport.is_closing() or (body := find()) is None:
            return False
        self._disarm_head()
        head = b"".join([b"%s: %s\r\n" % header for header in self.server_state.default_headers])
        kind = b"content-length: %d\r\ncontent-type: application/json\r\n" % len(body)
        self.transport.write(b"HTTP/1.1 200 OK\r\n" + head + kind + _STRICT + b"\r\n" + body)
        self.on_response_complete()
        return True

    def send_400_response(self, msg: str) -> None:
        """JSON, as all that REST says; a response that has begun is broken off."""
        body = msgspec.json.encode({"errors": [_NOT_HTTP]})
        if not self.is_idle:  # the body of a request that is being answered: what its route says is not sent
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.scope["method"] == "HEAD":
                body = b""
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
            response = h11.Response(status_code=400, headers=[*(headers | STRICT_HEADERS).items()])
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
        self._expect_end()

    def on_response_complete(self) -> None:
        self._request = None  # the next one may have come with it
        self.waiting_since = self.loop.time()
        super().on_response_complete()
        self._expect_end()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._expect_end()

    def shutdown(self) -> None:
        super().shutdown()
        self._expect_end()

    def _expect_end(self) -> None:
        """A connection that is closed stays open until its client has read all: not for ever."""
        if self.transport.is_closing() and self._stalled is None and self.transport.get_write_buffer_size():
            self._expect_reading()

    def _expect_request(self) -> None:
        self.waiting_since = self.loop.time()
        self._head = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading()

    def _expect_reading(self) -> None:
        """A large answer over a slow line takes its time, as long as something of it is read."""
        self._disarm_stalled()
        left = self.transport.get_write_buffer_size()
        self._stalled = self.loop.call_later(STALLED_SECONDS, self._check_reading, left)

    def _check_reading(self, before: int) -> None:
        self._stalled = None
        if self.transport.get_write_buffer_size() < before:
            self._expect_reading()
        else:
            self.transport.abort()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._disarm_stalled()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm_head()
        self._disarm_stalled()
        self._repeated.clear()
        super().connection_lost(exc)

    def _disarm_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _disarm_stalled(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
