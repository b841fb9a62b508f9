"""`/events`: what changes in the jobs, as server-sent events, at most twice a second.

One producer looks at the jobs while there is at least one client, and every client gets the same bytes. A client that reads
slowly gets the newest event of each kind, not all of them. It all runs in the event loop of the REST server; documents are
made in a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from headrace.rest.cache import to_json

_LOG = logging.getLogger(__name__)
Document = dict[str, Any]
PERIOD = 0.5
HEARTBEAT = 10.0
_WAITING = 1000  # checkpoints that a slow client may be behind
_TAKEN = 1 << 16  # bytes that are sent at once
CLIENTS = 200
EventKey: TypeAlias = tuple[str, str, object]
"""Job, kind, and what the event is about."""


@dataclass(frozen=True, slots=True)
class JobChange:
    """One event: `key` says what it is about, `compared` what must change for it to be sent again."""

    job: str
    kind: str
    key: object
    document: Document
    compared: bytes


def make_change(
    job: str, kind: str, document: Document, *, key: object = None, ignored: Iterable[str] = ()
) -> JobChange:
    """Return an event; the fields in `ignored` change with time alone, and do not count."""
    left_out = set(ignored)
    compared = to_json({name: value for name, value in document.items() if name not in left_out})
    return JobChange(job, kind, key, document, compared)


def _encoded(event: JobChange) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event.kind.encode(), to_json(event.document))


@dataclass(eq=False, slots=True)
class _Client:
    job: str | None
    waiting: dict[EventKey, bytes] = field(default_factory=dict)  # the newest of each
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, key: EventKey, encoded: bytes) -> None:
        if self.job is None or key[0] == self.job:
            self.waiting[key] = encoded
            if len(self.waiting) > _WAITING:
                del self.waiting[next(iter(self.waiting))]
            self.ready.set()

    def take(self) -> bytes:
        """Events that wait, the oldest first: some, as newer ones replace those that a slow client has not taken yet."""
        taken: list[bytes] = []
        size = 0
        while self.waiting and (not taken or size + len(next(iter(self.waiting.values()))) <= _TAKEN):
            taken.append(self.waiting.pop(next(iter(self.waiting))))
            size += len(taken[-1])
        return b"".join(taken)


class EventStream:
    """Sends the events of `look` to all clients: it gives what is to be known now, and is called in a thread."""

    def __init__(
        self, look: Callable[[], list[JobChange]], period: float = PERIOD, heartbeat: float = HEARTBEAT
    ) -> None:
        self._look, self._period, self._heartbeat = look, period, heartbeat
        self._clients: set[_Client] = set()
        self._known: dict[EventKey, tuple[bytes, bytes]] = {}  # what is compared, and what is sent
        self._producer: asyncio.Task[None] | None = None

    @property
    def full(self) -> bool:
        return len(self._clients) >= CLIENTS

    async def stream(self, job: str | None) -> AsyncIterator[bytes]:
        """Yield the events of one job, or of all: first what is known now, then what changes."""
        client = _Client(job)
        for key, (_, encoded) in self._known.items():
            client.put(key, encoded)
        self._clients.add(client)
        if self._producer is None or self._producer.done():
            self._known.clear()  # what was known to clients that are gone is too old
            client.waiting.clear()
            self._producer = asyncio.create_task(self._produce())
        try:
            yield b": events of Headrace\n\n"
            while True:
                try:
                    await asyncio.wait_for(client.ready.wait(), self._heartbeat)
                except TimeoutError:
                    yield b": alive\n\n"
                client.ready.clear()
                while client.waiting:
                    yield client.take()
        finally:
            self._clients.discard(client)

    async def _produce(self) -> None:
        while self._clients:
            try:
                events = await asyncio.to_thread(self._look)
            except Exception:  # a job may change while it is looked at; the clients must not be left without events
                _LOG.warning("events cannot be told now; they are tried again", exc_info=True)
                await asyncio.sleep(self._period)
                continue
            seen = set()
            for event in events:
                key = (event.job, event.kind, event.key)
                seen.add(key)
                known = self._known.get(key)
                if known is not None and known[0] == event.compared:
                    continue
                encoded = _encoded(event)
                self._known[key] = event.compared, encoded
                for client in self._clients:
                    client.put(key, encoded)
            for key in self._known.keys() - seen:  # of checkpoints that are not remembered any more
                del self._known[key]
            await asyncio.sleep(self._period)
