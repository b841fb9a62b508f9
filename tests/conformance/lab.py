"""What the conformance tests work with: a backend with a clock that is set by hand, and pauses.

A *pause* is a point where a job could stop. Each test runs three times: pauses that do nothing, pauses that snapshot
and restore into a fresh backend, and pauses that do so from a chain of incremental checkpoints.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headrace.checkpoint.handles import KeyedStateHandle, decode_handle, encode_handle
from headrace.records.key_groups import KeyGroupRange, key_group, key_group_range
from headrace.state.api import StateDescriptor, StateTtlConfig, Time
from headrace.state.backend import BackendSetup, KeyedStateBackend, SnapshotKind
from headrace.state.hashmap.backend import HashMapBackend
from headrace.state.rocksdb import RocksDBBackend
from namespaces import entry_count
from state_handles import detach

# A backend joins the suite by one line here.
BACKENDS: dict[str, type[KeyedStateBackend]] = {
    "hashmap": HashMapBackend,
    "rocksdb": RocksDBBackend,
}

PAUSES = ("running", "restored", "incremental")
LONG = StateTtlConfig.new_builder(Time.days(365)).build()


class Lab:
    """One operator's keyed state under test."""

    def __init__(self, backend: str, tmp_path: Any, pause: str = "running", ttl: StateTtlConfig | None = None) -> None:
        self.kind = BACKENDS[backend]
        self.tmp_path = tmp_path
        self.pause_kind = pause
        self.ttl = ttl
        self.now = 0
        self.payloads: dict[str, bytes] = {}
        self.checkpoint = 0
        self.instances = 0
        self.options: dict[str, Any] = {}
        self.backend = self.open()

    def configure(self, **options: Any) -> None:
        """Other options for the backend from here on; starts from nothing."""
        self.options = options
        self.backend = self.open()

    def setup(self, **changes: Any) -> BackendSetup:
        self.instances += 1
        directory = self.tmp_path / str(self.instances)
        directory.mkdir()
        setup = BackendSetup(
            operator="op",
            key_groups=KeyGroupRange(0, 127),
            max_parallelism=128,
            clock=lambda: self.now,
            incremental=self.pause_kind == "incremental",
            instance=str(self.instances),
            directory=directory,
        )
        return replace(setup, **{**self.options, **changes})

    def open(
        self, handles: list[KeyedStateHandle] | None = None, claim: bool = False, **changes: Any
    ) -> KeyedStateBackend:
        """A fresh backend, with what the handles hold."""
        backend = self.kind(self.setup(**changes))
        if handles:
            backend.restore(handles, self.read, claim=claim)
        return backend

    def read(self, payload: Any, offset: int, length: int) -> bytes:
        return self.payloads[payload.id][offset : offset + length]

    def keep(self, handle: KeyedStateHandle | None) -> list[KeyedStateHandle]:
        """Put a handle's payloads aside, as files would be, and the handle through its bytes."""
        if handle is None:
            return []
        described, payloads = detach(handle)
        self.payloads.update(payloads)
        return [decode_handle(encode_handle(described))]

    def snapshot(
        self, backend: KeyedStateBackend | None = None, kind: SnapshotKind = SnapshotKind.CHECKPOINT
    ) -> list[KeyedStateHandle]:
        """A whole snapshot of a backend, not yet confirmed; its id is `self.checkpoint`."""
        self.checkpoint += 1
        return self.keep((backend or self.backend).snapshot(self.checkpoint, kind).finish())

    def restart(self) -> None:
        """Go on in a fresh backend with what a snapshot holds."""
        handles = self.snapshot()
        self.backend.dispose()
        self.backend = self.open(handles)

    def pause(self) -> None:
        """A point where the job could stop."""
        if self.pause_kind == "restored":
            self.restart()
        elif self.pause_kind == "incremental":
            handles = self.snapshot()
            self.backend.notify_complete(self.checkpoint)
            fresh = self.open(handles, claim=True)
            self.backend.dispose()
            self.backend = fresh

    def key(self, key: Any) -> None:
        self.backend.set_current_key(key)

    def state(self, descriptor: StateDescriptor) -> Any:
        """The handle in the current backend."""
        if self.ttl is not None and descriptor.ttl is None:
            descriptor.enable_time_to_live(self.ttl)
        return self.backend.state(descriptor)

    def count(self, name: str) -> int:
        return entry_count(self.backend, name)


def owner_range(key: Any, max_parallelism: int, parallelism: int) -> KeyGroupRange:
    group = key_group(key, max_parallelism)
    ranges = [key_group_range(i, max_parallelism, parallelism) for i in range(parallelism)]
    return next(one for one in ranges if group in one)
