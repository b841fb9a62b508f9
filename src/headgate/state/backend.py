"""The contract of a keyed state backend: what the runtime may ask of hashmap and rocksdb alike.

Order of calls: construct, `restore` at most once, then `state`, records, snapshots and notifications in any order,
`dispose`. A backend has no thread, never sleeps and reads no clock but the one it is given. Work that could be long is
cut into steps that the caller asks for: `SnapshotRun` (next), `end_batch`, `maintain`, `background_cleanup`.

For each batch of records:

    addresses = backend.prepare_keys(keys)
    backend.begin_batch(addresses, groups)
    context = backend.context
    for address, group, record in zip(addresses, groups, records):
        context.address = address        # selects the key, and ends any namespace
        context.group = group
        ...                              # user code: handle.value(), handle.update(x)
    backend.end_batch()

State is addressed by (key group, key, namespace). Windows call `set_namespace(window)` after selecting the key.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from headgate.checkpoint.assignment import check_max_parallelism
from headgate.checkpoint.handles import KeyedStateHandle, ReadPayload, StateMeta, TypeMeta, attach, read_inline
from headgate.errors import IllegalState, InvalidArgument
from headgate.records.key_groups import KeyGroupRange, KeyHasher
from headgate.records.types import PICKLED, TypeInformation
from headgate.state.addresses import (
    NO_KEY,
    VOID,
    KeyContext,
    address_of,
    check_namespace,
    in_namespace,
    key_of,
    prepare_keys,
    split_address,
)
from headgate.state.api import (
    AggregatingStateDescriptor,
    ReducingStateDescriptor,
    State,
    StateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from headgate.state.cells import Cell, ListCell, MapCell, ValueCell
from headgate.state.copying import copier
from headgate.state.hashmap.columns import ColumnTable
from headgate.state.keyed import KeyedAggregating, KeyedList, KeyedMap, KeyedReducing, KeyedValue, Mergeable
from headgate.state.timers import Timers
from headgate.state.ttl import Expiry, TtlAggregating, TtlList, TtlMap, TtlReducing, TtlValue

__all__ = ["BackendSetup", "KeyedStateBackend", "SnapshotKind", "SnapshotRun", "StateSpec", "ValueTable"]


class SnapshotKind(enum.Enum):
    """What a snapshot may share with others (SPEC R7.4)."""

    CHECKPOINT = "checkpoint"  # as configured: may build on a confirmed one, and be built on
    FULL = "full"  # uses nothing old, later ones may build on it
    SAVEPOINT = "savepoint"  # self-contained, never a base
    CANONICAL = "canonical savepoint"  # the same as tables (`canonical.py`); no backend is asked for it


@dataclass(frozen=True, slots=True)
class BackendSetup:
    """What a backend is told when it is made.

    `instance` must differ between attempts of the same operator: it is part of the ids of what a snapshot writes.
    `group_of` gives the key group of a key outside of batches; it must agree with how records are routed.
    """

    operator: str
    key_groups: KeyGroupRange
    max_parallelism: int
    clock: Callable[[], int]
    key_type: TypeInformation = PICKLED
    object_reuse: bool = False
    incremental: bool = False
    migrate_ttl: bool = False
    instance: str = "0"
    group_of: Callable[[Any], int] | None = None
    directory: Path | None = None
    ttl_query_entries: int = 1000
    ttl_compaction_ms: int = 0


@dataclass(frozen=True, slots=True)
class StateSpec:
    """A registered state: its descriptor's facts, in the form backends and snapshots use."""

    name: str
    kind: str
    value_type: TypeInformation
    map_key_type: TypeInformation | None = None
    ttl: StateTtlConfig | None = None

    @classmethod
    def of(cls, descriptor: StateDescriptor) -> StateSpec:
        """The facts of a descriptor."""
        return cls(descriptor.name, descriptor.kind, descriptor.type, descriptor.map_key_type, descriptor.ttl)

    def meta(self) -> StateMeta:
        """What a snapshot stores of it."""
        map_key = None if self.map_key_type is None else TypeMeta.of(self.map_key_type)
        return StateMeta(self.name, self.kind, TypeMeta.of(self.value_type), map_key, self.ttl is not None)


class SnapshotRun(Iterator[tuple[str, bytes]]):
    """A snapshot whose synchronous part is done; each `next()` does a few milliseconds of the rest.

    It yields (payload id, bytes) to be appended to that payload, in order; the bytes may be empty. After the last
    one `handle` describes the snapshot: None if there is no state at all.

        run = backend.snapshot(7)
        for payload, data in run:
            files[payload].write(data)
        metadata.append(run.handle)
    """

    checkpoint_id: int

    @property
    @abstractmethod
    def handle(self) -> KeyedStateHandle | None:
        """What the snapshot left; IllegalState while it is not done."""

    @abstractmethod
    def cancel(self) -> None:
        """Stop; the state it holds is released. Harmless when it is done."""

    def finish(self) -> KeyedStateHandle | None:
        """Run to the end and keep the bytes inside the handle: for tests and small state."""
        parts: dict[str, list[bytes]] = {}
        for payload, data in self:
            parts.setdefault(payload, []).append(data)
        handle = self.handle
        return None if handle is None else attach(handle, {name: b"".join(data) for name, data in parts.items()})


class ValueTable(ABC):
    """A value state reached for many keys at once: for built-in aggregations and batch functions."""

    @abstractmethod
    def get_many(self, addresses: Sequence[Any], groups: Sequence[int]) -> list[Any]:
        """The value of each key, None where there is none; mutable values are not copied."""

    @abstractmethod
    def put_many(self, addresses: Sequence[Any], groups: Sequence[int], values: Sequence[Any]) -> None:
        """Store a value for each key; None removes."""


class KeyedStateBackend(ABC):
    """Keyed state of one operator in one subtask."""

    name: ClassVar[str]

    def __init__(self, setup: BackendSetup) -> None:
        self.setup = setup
        self.context = KeyContext()
        self._group_of = setup.group_of or KeyHasher(setup.max_parallelism).group
        self._handles: dict[str, tuple[StateSpec, State]] = {}
        self._expiries: dict[str, Expiry] = {}

    # --- the current key ---

    def prepare_keys(self, keys: list[Any]) -> list[Any]:
        """The addresses of a batch of keys; the same list if they are all str, int or bytes."""
        return prepare_keys(keys)

    def set_current_key(self, key: Any, group: int | None = None) -> None:
        """Select one key outside of a batch: for timers, tests and one-off work."""
        group = self._group_of(key) if group is None else group
        self.check_group(group, key)
        self.context.address = address_of(key)
        self.context.group = group
        self.key_selected()

    def clear_current_key(self) -> None:
        """Select no key: keyed state then raises NoKeySet."""
        self.context.address = NO_KEY

    def current_key(self) -> Any:
        """The key that is selected; NoKeySet if there is none."""
        if self.context.address is NO_KEY:
            NO_KEY.refuse("the current key")
        return self.key_at(split_address(self.context.address)[0])

    def key_at(self, address: Any) -> Any:
        """The key of an address without namespace."""
        key = key_of(address)
        row = self.setup.key_type.row
        return key if row is None or isinstance(key, row) else tuple.__new__(row, key)

    def set_namespace(self, namespace: Any) -> None:
        """Address the current key's state in a namespace, until the next key is selected."""
        check_namespace(namespace)
        if self.context.address is NO_KEY:
            NO_KEY.refuse("a namespace")
        self.context.address = in_namespace(split_address(self.context.address)[0], namespace)

    def check_group(self, group: int, key: Any) -> None:
        """Raise IllegalState if a key does not belong to this subtask."""
        groups = self.setup.key_groups
        if group not in groups:
            raise IllegalState(
                f"operator '{self.setup.operator}': key {key!r} is of key group {group}, but this subtask owns groups "
                f"{groups.start} to {groups.end}; the key of a record must be the same on both sides of key_by()"
            )

    # --- states ---

    def state(self, descriptor: StateDescriptor) -> Any:
        """The handle of a state: one object per name, whatever the current key (SPEC R1.2)."""
        found = self._handles.get(descriptor.name)
        if found is not None:
            self._check_kind(found[0], descriptor)
            return found[1]
        spec = StateSpec.of(descriptor)
        cell = self.open_cell(spec)
        handle = self.make_handle(descriptor, spec, cell)
        self._handles[spec.name] = spec, handle
        return handle

    def _check_kind(self, spec: StateSpec, descriptor: StateDescriptor) -> None:
        if spec.kind != descriptor.kind:
            raise IllegalState(
                f"Incompatible key/value state types: operator '{self.setup.operator}', state '{spec.name}' is "
                f"{spec.kind} state and is now asked for as {descriptor.kind} state; use another name for the new state"
            )

    def make_handle(self, descriptor: StateDescriptor, spec: StateSpec, cell: Cell) -> State:
        """The handle for a cell; a backend may answer with a quicker one for some kinds."""
        # Elements, entries and accumulators are always ours: only a plain value may be handed out for reuse.
        reuse = self.setup.object_reuse and spec.kind == "value" and spec.ttl is None
        copy = copier(spec.value_type, object_reuse=reuse)
        if spec.ttl is not None:
            return _expiring_handle(descriptor, cell, self._expiries[spec.name], copy)
        if isinstance(cell, ListCell):
            return KeyedList(spec.name, cell, copy)
        if isinstance(cell, MapCell):
            return KeyedMap(spec.name, cell, copy)
        assert isinstance(cell, ValueCell)
        if isinstance(descriptor, ReducingStateDescriptor):
            return KeyedReducing(descriptor, cell, copy)
        if isinstance(descriptor, AggregatingStateDescriptor):
            return KeyedAggregating(descriptor, cell, copy)
        assert isinstance(descriptor, ValueStateDescriptor)
        return KeyedValue(spec.name, cell, descriptor.default, copy)

    def expiry_of(self, spec: StateSpec) -> Expiry | None:
        """The expiry of a state with a time to live, one per state."""
        if spec.ttl is None:
            return None
        return self._expiries.setdefault(spec.name, Expiry(spec.ttl, self.setup.clock))

    def state_names(self) -> list[str]:
        """The names of the states that were asked for."""
        return list(self._handles)

    def keys(self, name: str, namespace: Any = VOID) -> list[Any]:
        """The keys that have an entry in a state, in a namespace; a copy, so anything may change meanwhile."""
        check_namespace(namespace)
        return [self.key_at(address) for _, address in self._addresses_in(name, namespace)]

    def _addresses_in(self, name: str, namespace: Any) -> list[tuple[int, Any]]:
        found = []
        for group, address in self.addresses(name):
            key_address, own = split_address(address)
            if own is namespace or own == namespace:
                found.append((group, key_address))
        return found

    def apply_to_all_keys(
        self, descriptor: StateDescriptor, namespace: Any, function: Callable[[Any, Any], None]
    ) -> None:
        """Call `function(key, handle)` for every key with an entry in a namespace; it may change any state (R1.9)."""
        check_namespace(namespace)
        handle = self.state(descriptor)
        context = self.context
        before = context.address, context.group
        try:
            for group, address in self._addresses_in(descriptor.name, namespace):
                full = in_namespace(address, namespace)
                if self.has_entry(descriptor.name, group, full):
                    context.address, context.group = full, group
                    function(self.key_at(address), handle)
        finally:
            context.address, context.group = before

    def merge_namespaces(self, descriptor: StateDescriptor, target: Any, sources: Iterable[Any]) -> None:
        """Merge the current key's state of the sources into the target and drop the sources (SPEC R1.9)."""
        handle = self.state(descriptor)
        if not isinstance(handle, Mergeable):
            raise InvalidArgument(
                f"state '{descriptor.name}' is {descriptor.kind} state and cannot be merged; "
                "merging windows need list, reducing or aggregating state"
            )
        context = self.context
        before = context.address
        address = split_address(before)[0]
        try:
            parts = []
            for source in sources:
                check_namespace(source)
                if source != target:
                    context.address = in_namespace(address, source)
                    parts.append(handle.take())
            check_namespace(target)
            context.address = in_namespace(address, target)
            parts = [part for part in parts if part is not None]
            if parts:
                handle.absorb(parts)
        finally:
            context.address = before

    # --- what a backend brings ---

    @property
    @abstractmethod
    def timers(self) -> Timers:
        """The timers of this operator; they are snapshotted with the state."""

    @abstractmethod
    def open_cell(self, spec: StateSpec) -> Cell:
        """Make or adopt the storage of a state; StateMigrationError if what was restored does not fit."""

    @abstractmethod
    def value_table(self, descriptor: ValueStateDescriptor) -> ValueTable:
        """A value state for many keys at once; the same storage as `state(descriptor)`."""

    def column_table(self, descriptor: ValueStateDescriptor) -> ColumnTable | None:
        """A value state as columns, for aggregations over whole batches; None if the backend, or the type, has none."""
        return None

    @abstractmethod
    def addresses(self, name: str) -> Iterable[tuple[int, Any]]:
        """(group, address) of every entry of a state; safe while state changes."""

    @abstractmethod
    def has_entry(self, name: str, group: int, address: Any) -> bool:
        """Whether a state has an entry at an address."""

    @abstractmethod
    def entry_count(self, name: str) -> int:
        """How many (key, namespace) entries a state has; 0 for an unknown name."""

    @abstractmethod
    def key_selected(self) -> None:
        """Called when a single key was selected: cleanup that is due per record (SPEC R2.5 c)."""

    @abstractmethod
    def begin_batch(self, addresses: Sequence[Any], groups: Sequence[int]) -> None:
        """A batch of records with these keys follows: prefetch, and cleanup that is due per record."""

    @abstractmethod
    def end_batch(self) -> None:
        """The batch is done: write back, cleanup that accesses are owed, one slice of merging."""

    @abstractmethod
    def maintain(self, budget_entries: int) -> bool:
        """Do a slice of work that snapshots left behind; whether more remains. For idle moments."""

    @abstractmethod
    def background_cleanup(self, budget_entries: int) -> int:
        """Check that many entries for expiry, without any access; how many entries were removed or shrunk."""

    @abstractmethod
    def put_raw(self, group: int, data: bytes) -> None:
        """Store opaque bytes for a key group (SPEC R1.11); empty bytes remove them."""

    @abstractmethod
    def raw(self, group: int) -> bytes | None:
        """The opaque bytes of a key group."""

    @abstractmethod
    def raw_groups(self) -> list[int]:
        """The key groups that have opaque bytes."""

    @abstractmethod
    def snapshot(self, checkpoint_id: int, kind: SnapshotKind = SnapshotKind.CHECKPOINT) -> SnapshotRun:
        """The synchronous part of a snapshot: what is written from now on is not in it. Several may run at once."""

    @abstractmethod
    def restore(
        self, handles: Iterable[KeyedStateHandle], read: ReadPayload = read_inline, *, claim: bool = False
    ) -> None:
        """Take over what lies in this subtask's key groups from any number of old snapshots with any old ranges.

        With `claim` the restored snapshot counts as confirmed, so the next one may be an increment on it: all handles
        must then be of one checkpoint, whose payloads stay as long as the new ones need them.
        """

    @abstractmethod
    def restored_metas(self) -> list[StateMeta]:
        """The states that were restored and not asked for yet."""

    @abstractmethod
    def notify_complete(self, checkpoint_id: int) -> None:
        """A checkpoint is confirmed; ids that are not ours are ignored."""

    @abstractmethod
    def notify_aborted(self, checkpoint_id: int) -> None:
        """A checkpoint will never be confirmed: stop its run, its changes belong to the next one."""

    @abstractmethod
    def dispose(self) -> None:
        """Free everything; the backend is of no use afterwards."""


def _expiring_handle(
    descriptor: StateDescriptor, cell: Cell, expiry: Expiry, copy: Callable[[Any], Any] | None
) -> State:
    if isinstance(cell, ListCell):
        return TtlList(descriptor.name, cell, expiry, copy)
    if isinstance(cell, MapCell):
        return TtlMap(descriptor.name, cell, expiry, copy)
    assert isinstance(cell, ValueCell)
    if isinstance(descriptor, ReducingStateDescriptor):
        return TtlReducing(descriptor, cell, expiry, copy)
    if isinstance(descriptor, AggregatingStateDescriptor):
        return TtlAggregating(descriptor, cell, expiry, copy)
    return TtlValue(descriptor.name, cell, expiry, copy)


def check_restorable(setup: BackendSetup, backend: str, handle: KeyedStateHandle) -> None:
    """Raise IllegalState if a snapshot cannot go into this backend at all."""
    if handle.backend != backend:
        raise IllegalState(
            f"operator '{setup.operator}': checkpoint {handle.checkpoint_id} holds {handle.backend} state, the job runs "
            f"{backend}; native snapshots cannot change backends: start from a canonical savepoint"
        )
    check_max_parallelism(f"operator '{setup.operator}'", handle.max_parallelism, setup.max_parallelism)
