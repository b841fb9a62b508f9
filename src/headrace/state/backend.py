"""The contract of a keyed state backend: what the runtime may call on hashmap and rocksdb alike.

Order of calls: construct, `restore` at most once, then `state`, records, snapshots and notifications in any order,
`dispose`. A backend runs in the subtask's thread (only a `SnapshotRun` may be iterated in another one), never sleeps and
reads no clock but the one it is given. Work that could take long is divided into steps that the caller requests:
`SnapshotRun` (next), `end_batch`, `maintain`, `background_cleanup`.

For each batch of records:

    addresses = backend.prepare_keys(keys)
    backend.begin_batch(addresses, groups)
    context = backend.context
    for address, group, record in zip(addresses, groups, records):
        context.address = address        # selects the key, and ends any namespace
        context.group = group
        ...                              # user code: handle.value(), handle.update(x)
    backend.end_batch()

State is addressed by (key group, key, namespace). Windows set `context.address = in_namespace(address, window)`.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.checkpoint.assignment import require_same_max_parallelism
from headrace.checkpoint.handles import KeyedStateHandle, ReadPayload, StateMeta, TypeMeta, attach, read_inline
from headrace.errors import IllegalState, InvalidArgument
from headrace.records.copying import copier
from headrace.records.key_groups import KeyGroupRange, KeyHasher
from headrace.records.types import PICKLED, TypeInformation, as_type
from headrace.state.addresses import (
    NO_KEY,
    VOID,
    address_of,
    check_namespace,
    in_namespace,
    key_of,
    no_key,
    prepare_keys,
    split_address,
)
from headrace.state.api import FoldingState, ListState, State, StateDescriptor, ValueStateDescriptor
from headrace.state.schema import check_key_type
from headrace.state.tables import AddressedTable, BatchTable, DictTable, ListTable, ValueTable
from headrace.state.timers import TIMERS, Timers
from headrace.state.ttl import Expiry, expiring

KeyArrays = tuple[npt.NDArray[np.int64], npt.NDArray[Any]]
"""The keys of a batch, and their key groups."""
KeysAndNumbers = tuple[npt.NDArray[np.int64], npt.NDArray[Any]]
"""Keys and values of a state of numbers."""
NumberGroup = tuple[int, KeysAndNumbers | dict[Any, Any]]
"""A key group with entries sorted by key; those that have namespaces, or are among such, by address."""


class SnapshotKind(enum.Enum):
    """Sharing of files between snapshots (SPEC R7.4)."""

    CHECKPOINT = "checkpoint"  # as configured: may build on a confirmed one, and be built on
    FULL = "full"  # refers to nothing old, later ones may build on it
    SAVEPOINT = "savepoint"  # self-contained, never a base
    CANONICAL = "canonical savepoint"  # a savepoint as Parquet tables (`parquet/`); backends are not called with it


def number_type(meta: StateMeta, key_type: TypeInformation) -> np.dtype[Any] | None:
    """Return the type of the column of a state of numbers under integer keys; None for any other state.

    >>> number_type(StateMeta("total", "value", TypeMeta.of(as_type("bigint"))), as_type("int"))
    dtype('int64')
    """
    value_type = meta.value_type.type_info()
    if meta.ttl or meta.kind != "value" or value_type.kind != "scalar" or key_type.kind != "scalar":
        return None
    number = value_type.arrow_type
    is_number = pa.types.is_integer(number) or pa.types.is_float32(number) or pa.types.is_float64(number)
    if not (is_number and pa.types.is_signed_integer(key_type.arrow_type)):
        return None
    dtype: np.dtype[Any] = np.dtype(number.to_pandas_dtype())
    return dtype


@dataclass(frozen=True, slots=True)
class BackendSetup:
    """The parameters of a backend.

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


TIMER_TABLE: Final = StateMeta(TIMERS, "timers", TypeMeta.of(as_type("bigint")))
RAW_STREAMS: Final = StateMeta("_raw", "raw", TypeMeta.of(as_type("binary")))
INTERNAL_KINDS: Final = frozenset([TIMER_TABLE.kind, RAW_STREAMS.kind])
"""Kinds of state that no descriptor can name."""


def table_name(meta: StateMeta) -> str:
    """Return the name of a state's storage: a state of the user may be called like an internal one."""
    return f"{'i' if meta.kind in INTERNAL_KINDS else 's'}:{meta.name}"


class SnapshotRun(Iterator[tuple[str, bytes]]):
    """A snapshot whose synchronous part is done; each `next()` does a few milliseconds of the rest.

    It yields (payload id, bytes) to be appended to that payload, in order; the bytes may be empty. After the last
    one `handle` describes the snapshot: None if there is no state at all, as in a run of this class itself.

        run = backend.snapshot(7)
        for payload, data in run:
            files[payload].write(data)
        metadata.append(run.handle)
    """

    def __init__(self, checkpoint_id: int) -> None:
        self.checkpoint_id = checkpoint_id
        self.status = "running"  # then "done" or "cancelled"
        self._handle: KeyedStateHandle | None = None
        self._steps: Iterator[tuple[str, bytes]] = iter(())

    def __next__(self) -> tuple[str, bytes]:
        try:
            return next(self._steps)
        except StopIteration:
            if self.status == "running":
                self.status = "done"
            raise

    @property
    def handle(self) -> KeyedStateHandle | None:
        if self.status != "done":
            raise IllegalState(f"snapshot {self.checkpoint_id} is {self.status}: iterate it to its end first")
        return self._handle

    def cancel(self) -> None:
        """Stop and release the state that the snapshot holds; no effect when it is done."""
        if self.status == "running":
            self.status = "cancelled"

    def finish(self) -> KeyedStateHandle | None:
        """Run to the end and keep the bytes inside the handle: for tests and small state."""
        parts: dict[str, list[bytes]] = {}
        for payload, data in self:
            parts.setdefault(payload, []).append(data)
        handle = self.handle
        return None if handle is None else attach(handle, {name: b"".join(data) for name, data in parts.items()})


class NumberColumns(Protocol):
    """A value state of numbers under integer keys as numpy columns; an entry is a row number, its slot."""

    values: npt.NDArray[Any]
    live: npt.NDArray[np.bool_]
    count: int

    def find(self, keys: npt.NDArray[np.int64], groups: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the slot of every key, -1 where there is none; a slot that is not `live` has no entry."""
        ...

    def put(self, slots: npt.NDArray[np.int64], values: npt.NDArray[Any]) -> None:
        """Store a value in each of these slots."""
        ...

    def remove(self, slots: npt.NDArray[np.int64]) -> None:
        """Remove the entries of these slots."""
        ...

    def slots(self, keys: npt.NDArray[np.int64], groups: npt.NDArray[Any], neutral: Any) -> npt.NDArray[np.int64]:
        """Return the slot of every key; unknown keys get one, with the neutral value."""
        ...

    def touch(self, slots: npt.NDArray[np.int64]) -> None:
        """Report that the values of these slots were changed."""
        ...


class KeyedStateBackend(ABC):
    """Keyed state of one operator in one subtask."""

    name: ClassVar[str]
    returns_stored_objects: ClassVar[bool]
    """Whether tables return objects that belong to the state, so that handles must copy mutable ones."""

    def __init__(self, setup: BackendSetup) -> None:
        self.setup = setup
        self.context = no_key()
        self.timers = Timers(partial(self._internal_table, TIMER_TABLE))
        self.key_group_of = setup.group_of or KeyHasher(setup.max_parallelism).group
        self._handles: dict[str, tuple[str, State, AddressedTable]] = {}  # kind, handle and table by name
        self._expiries: dict[str, Expiry] = {}
        self._runs: list[SnapshotRun] = []
        self._has_raw_streams = False
        self._started = False

    # --- the current key ---

    prepare_keys = staticmethod(prepare_keys)

    def set_current_key(self, key: Any, group: int | None = None) -> None:
        """Select one key outside of a batch: for timers, tests and one-off work."""
        group = self.key_group_of(key) if group is None else group
        self._check_group(group, f"key {key!r}")
        self.context.address = address_of(key)
        self.context.group = group
        self.key_selected()

    def clear_current_key(self) -> None:
        """Select no key: keyed state then raises NoKeySet."""
        self.context.address = NO_KEY

    def current_key(self) -> Any:
        if self.context.address is NO_KEY:
            NO_KEY.refuse("the current key")
        return self.key_at(split_address(self.context.address)[0])

    def key_at(self, address: Any) -> Any:
        """Return the key of an address without namespace."""
        key = key_of(address)
        key_type = self.setup.key_type
        return key_type.record(key) if key_type.converts and type(key) is tuple else key

    def _check_group(self, group: int, what: str) -> None:
        groups = self.setup.key_groups
        if group not in groups:
            raise IllegalState(
                "HR-2010",
                f"operator '{self.setup.operator}': {what} is of key group {group}, but this subtask owns groups "
                f"{groups.start} to {groups.end}; the key of a record must be the same on both sides of key_by()",
            )

    # --- states ---

    def state(self, descriptor: StateDescriptor) -> Any:
        """Return the handle of a state: one object per name, whatever the current key (SPEC R1.2)."""
        return self._open(descriptor)[1]

    def _open(self, descriptor: StateDescriptor) -> tuple[str, State, AddressedTable]:
        name = descriptor.name
        found = self._handles.get(name)
        if found is None:
            expiry = None if descriptor.ttl is None else Expiry(descriptor.ttl, self.setup.clock)
            table = self.open_table(descriptor.meta(), expiry)
            if expiry is None and isinstance(descriptor, ValueStateDescriptor):
                handle = self.value_handle(descriptor, table)
            else:
                if expiry is not None:
                    self._expiries[name], table = expiry, expiring(table, expiry)
                copy = copier(descriptor.type) if self.returns_stored_objects else None
                handle = descriptor.handle(descriptor, self.context, table, copy)
            found = self._handles[name] = descriptor.kind, handle, table
        elif found[0] != descriptor.kind:
            raise IllegalState(
                "HR-2007",
                f"Incompatible key/value state types: operator '{self.setup.operator}', state '{name}' is "
                f"{found[0]} state and is now requested as {descriptor.kind} state; use another name for the new state",
            )
        return found

    def value_table(self, descriptor: ValueStateDescriptor) -> BatchTable:
        """Return a value state for many keys at once; the same storage as `state(descriptor)`."""
        table = self._open(descriptor)[2]
        assert isinstance(table, BatchTable)
        return table

    def column_table(self, descriptor: ValueStateDescriptor) -> NumberColumns | None:
        """A value state as columns, for aggregations over whole batches; None if the backend or the type has none."""
        return None

    def keys(self, name: str, namespace: Any = VOID) -> list[Any]:
        """Return the keys that have an entry in a state, in a namespace; a copy, so state may change meanwhile."""
        check_namespace(namespace)
        return [self.key_at(split_address(address)[0]) for _, address in self._addresses_in(name, namespace)]

    def _addresses_in(self, name: str, namespace: Any) -> list[tuple[int, Any]]:
        return [found for found in self.addresses(name) if split_address(found[1])[1] == namespace]

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
                if self.has_entry(descriptor.name, group, address):
                    context.address, context.group = address, group
                    function(self.key_at(split_address(address)[0]), handle)
        finally:
            context.address, context.group = before

    def merge_namespaces(self, descriptor: StateDescriptor, target: Any, sources: Iterable[Any]) -> None:
        """Merge the current key's state of the sources into the target and drop the sources (SPEC R1.9)."""
        _, handle, table = self._open(descriptor)
        if not isinstance(handle, ListState | FoldingState):
            raise InvalidArgument(
                "HR-2013",
                f"state '{descriptor.name}' is {descriptor.kind} state and cannot be merged; "
                "merging windows need list, reducing or aggregating state",
            )
        assert isinstance(table, ListTable | ValueTable)
        group, address = self.context.group, split_address(self.context.address)[0]
        sources = [source for source in sources if source != target]
        for namespace in (target, *sources):
            check_namespace(namespace)
        parts: list[Any] = [table.take(group, in_namespace(address, source)) for source in sources]
        parts = [part for part in parts if part is not None]
        address = in_namespace(address, target)
        if isinstance(table, ListTable):
            table.absorb(group, address, [element for part in parts for element in part])
        elif parts and isinstance(handle, FoldingState):
            merged = table.get_owned(group, address)
            for part in parts:
                merged = part if merged is None else handle.combine(merged, part)
            table.put(group, address, merged)

    # --- raw keyed state ---

    def _internal_table(self, meta: StateMeta) -> DictTable:
        """Return the table of timers or of raw streams."""
        table = self.open_table(meta)
        assert isinstance(table, DictTable)
        return table

    def raw_streams(self) -> dict[int, bytes]:
        """Return the raw stream of each key group that has one (SPEC R1.11)."""
        if not self._has_raw_streams:
            return {}
        return {group: stream for group, _, stream in sorted(self._internal_table(RAW_STREAMS).items())}

    def put_raw_stream(self, group: int, stream: bytes) -> None:
        """Store opaque bytes for a key group."""
        self._check_group(group, "a raw stream")
        self._started = self._has_raw_streams = True
        self._internal_table(RAW_STREAMS).put(group, group, stream)  # an address must belong to one group

    def clear_raw_streams(self) -> None:
        if self._has_raw_streams:
            table = self._internal_table(RAW_STREAMS)
            for group, address, _ in list(table.items()):
                table.remove(group, address)

    # --- snapshots and restore ---

    def _describe(self, checkpoint_id: int) -> KeyedStateHandle:
        """Return the handle of a snapshot without any state."""
        setup, groups = self.setup, self.setup.key_groups
        key_type = TypeMeta.of(setup.key_type)
        return KeyedStateHandle(self.name, checkpoint_id, setup.max_parallelism, groups.start, groups.end, key_type)

    def _payload_name(self, checkpoint_id: int) -> str:
        groups = self.setup.key_groups
        return f"{self.setup.instance}-{checkpoint_id}-{groups.start}-{groups.end}"

    def _add_run(self, run: SnapshotRun) -> SnapshotRun:
        self._runs = [one for one in self._runs if one.status == "running"] + [run]
        return run

    def restore(
        self, handles: Iterable[KeyedStateHandle], read: ReadPayload = read_inline, *, claim: bool = False
    ) -> None:
        """Restore the state of this subtask's key groups from any number of old snapshots with any old ranges.

        With `claim` the restored snapshot counts as confirmed, so the next one may be an increment on it: all handles
        must then be of one checkpoint, whose payloads stay as long as the new ones need them.
        """
        operator = self.setup.operator
        if self._started:
            raise IllegalState(f"operator '{operator}': restore() must come before the first use of state")
        self._started = True
        handles = list(handles)
        for handle in handles:
            if handle.backend != self.name:
                raise IllegalState(
                    "HR-2107",
                    f"operator '{operator}': checkpoint {handle.checkpoint_id} holds {handle.backend} state, the job runs "
                    f"{self.name}; native snapshots cannot change backends: start from a canonical savepoint",
                )
            require_same_max_parallelism(f"operator '{operator}'", handle.max_parallelism, self.setup.max_parallelism)
            check_key_type(operator, handle.key_type.type_info(), self.setup.key_type)
        ids = {handle.checkpoint_id for handle in handles}
        if claim and len(ids) > 1:
            raise InvalidArgument(
                "HR-9001", f"operator '{operator}': cannot claim several checkpoints {sorted(ids)} at once"
            )
        if handles:
            self.restore_handles(handles, read, claim=claim and self.setup.incremental)
        restored = {meta.kind for forms in self.restored_forms() for meta in forms}
        self._has_raw_streams = RAW_STREAMS.kind in restored
        if TIMER_TABLE.kind in restored:
            self.timers.reload()

    def notify_aborted(self, checkpoint_id: int) -> None:
        """Abort a checkpoint that will never be confirmed: stop its run; its changes belong to the next one."""
        for run in self._runs:
            if run.checkpoint_id == checkpoint_id:
                run.cancel()

    def dispose(self) -> None:
        """Free everything; the backend cannot be used afterwards."""
        for run in self._runs:
            run.cancel()
        self._runs.clear()
        self.clear_current_key()

    # --- implemented by each backend ---

    @abstractmethod
    def open_table(self, meta: StateMeta, expiry: Expiry | None = None) -> AddressedTable:
        """The storage of a state, with a time to live as (value, stamp) pairs, which `expiry` lets the backend remove.

        StateMigrationError if the restored state is incompatible.
        """

    @abstractmethod
    def value_handle(self, descriptor: ValueStateDescriptor, table: AddressedTable) -> State:
        """Return the handle of a value state without time to live."""

    @abstractmethod
    def addresses(self, name: str) -> Iterable[tuple[int, Any]]:
        """(group, address) of every entry of a state; safe while state changes."""

    def number_groups(self, meta: StateMeta) -> Iterator[NumberGroup] | None:
        """The entries of a restored state by key group, some at a time, as columns; None: they are read one by one.

        Only for a state of numbers under integer keys (`number_type`).
        """
        return None

    def load_numbers(self, meta: StateMeta, columns: KeysAndNumbers, groups: npt.NDArray[Any]) -> bool:
        """Add entries, as columns; False: they are put one by one."""
        return False

    @abstractmethod
    def has_entry(self, name: str, group: int, address: Any) -> bool: ...

    @abstractmethod
    def key_selected(self) -> None:
        """Called when a single key was selected: cleanup that is due per record (SPEC R2.5 c)."""

    @abstractmethod
    def begin_batch(self, addresses: Sequence[Any], groups: Sequence[int], arrays: KeyArrays | None = None) -> None:
        """Called before a batch of records with these keys: prefetch, and cleanup that is due per record.

        `arrays` are the same keys and groups, which the caller may have if keys are integers.
        """

    @abstractmethod
    def end_batch(self) -> None:
        """Called after a batch: write back, cleanup that is due per access, one slice of merging."""

    @abstractmethod
    def maintain(self, budget_entries: int) -> bool:
        """Do a slice of work that snapshots left behind, when idle; returns whether more remains."""

    def figures(self) -> dict[str, float]:
        """Return the metrics that only this backend has."""
        return {}

    @abstractmethod
    def background_cleanup(self, budget_entries: int) -> int:
        """Check entries for expiry, without any access; returns how many entries were removed or shrunk."""

    @abstractmethod
    def snapshot(self, checkpoint_id: int, kind: SnapshotKind = SnapshotKind.CHECKPOINT) -> SnapshotRun:
        """Return the synchronous part of a snapshot: later writes are not in it. Several may run at once."""

    @abstractmethod
    def restore_handles(self, handles: list[KeyedStateHandle], read: ReadPayload, *, claim: bool) -> None:
        """Restore from handles that were checked; called once, before any other use."""

    @abstractmethod
    def restored_forms(self) -> list[list[StateMeta]]:
        """Each state that was restored and not opened yet, internal ones too, in all its forms.

        Subtasks of the job before may have stored it in different ones.
        """

    @abstractmethod
    def notify_complete(self, checkpoint_id: int) -> None:
        """Confirm a checkpoint; ids of other snapshots are ignored."""
