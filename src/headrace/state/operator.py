"""Operator state: lists, broadcast maps and raw streams that belong to a subtask, not to a key (SPEC R4.1-R4.4, R1.11).

    function -- OperatorListState, BroadcastState --> OperatorStateBackend -- snapshot() --> OperatorStateSnapshot
                                                            ^                                       |
                                                            +-- RestoredOperatorState <-- rescale --+

It is held in memory, with either keyed backend. A snapshot has two parts: `snapshot()` copies in the subtask's thread; the
function that it returns serialises, on any thread. The result is plain data with an offset and a checksum per element, so
that `rescale` (which follows `headrace.checkpoint.assignment`) divides it without decoding elements.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, TypeAlias, cast

import cloudpickle
import msgspec

from headrace.checkpoint.assignment import ElementRange, Mode, StateShape, redistribute
from headrace.checkpoint.handles import TypeMeta
from headrace.errors import IllegalState, InvalidArgument, StateMigrationError, StorageError
from headrace.records.copying import ATOMS, is_immutable
from headrace.records.types import TypeInformation, TypeMismatch
from headrace.state.addresses import no_key
from headrace.state.api import ListState, ListStateDescriptor, MapStateDescriptor, StateDescriptor
from headrace.state.broadcast import BroadcastState
from headrace.state.tables import ListTable

_RAW = "raw"
_PICKLE_PROTOCOL = 5  # fixed: a snapshot may be read by another Python version


# ---- the parts of a snapshot -----------------------------------------------------------------------------------


class StateSnapshot(msgspec.Struct, frozen=True):
    """One operator state of one subtask: the bytes of all elements, and the offset and the crc32 of each.

    `types` are the type of the elements, those of key and value (broadcast), or empty (raw streams).
    """

    name: str
    mode: Mode
    types: tuple[TypeMeta, ...]
    data: bytes
    offsets: tuple[int, ...]
    checksums: tuple[int, ...]

    @classmethod
    def of(
        cls, name: str, mode: Mode, types: tuple[TypeMeta, ...], elements: Sequence[bytes | memoryview]
    ) -> StateSnapshot:
        """Return a snapshot of elements that are encoded already."""
        starts = list(accumulate(map(len, elements), initial=0))[:-1]
        return cls(name, mode, types, b"".join(elements), tuple(starts), tuple(map(zlib.crc32, elements)))

    @property
    def shape(self) -> StateShape:
        """The modes and sizes that redistribution needs."""
        return StateShape(self.mode, len(self.offsets))

    def elements(self) -> list[memoryview]:
        """Return the bytes of each element, in order."""
        view = memoryview(self.data)
        return [view[start:stop] for start, stop in pairwise((*self.offsets, len(self.data)))]

    def cut(self, start: int, stop: int) -> StateSnapshot:
        """Return the elements from `start` to `stop` (exclusive)."""
        if (start, stop) == (0, len(self.offsets)):
            return self
        bounds = (*self.offsets, len(self.data))
        first, last = bounds[start], bounds[stop]
        offsets = tuple(offset - first for offset in self.offsets[start:stop])
        checksums = self.checksums[start:stop]
        return msgspec.structs.replace(self, data=self.data[first:last], offsets=offsets, checksums=checksums)

    def verify(self, where: str) -> None:
        """Raise StorageError if an element is damaged; `where` begins the message."""
        bounds = (*self.offsets, len(self.data))
        if len(self.offsets) != len(self.checksums) or list(bounds) != sorted(bounds) or bounds[0] != 0:
            raise StorageError(
                "HR-3102", f"{where}: the element offsets of the snapshot are damaged; restore from another checkpoint"
            )
        for index, (element, checksum) in enumerate(zip(self.elements(), self.checksums, strict=True)):
            if zlib.crc32(element) != checksum:
                raise StorageError(
                    "HR-3102",
                    f"{where}: element {index} of {len(self.offsets)} is damaged (its checksum does not match); "
                    "restore from another checkpoint",
                )


class OperatorStateSnapshot(msgspec.Struct, frozen=True):
    """All operator state of one subtask at one checkpoint; `raw` holds the raw streams."""

    states: tuple[StateSnapshot, ...] = ()
    raw: StateSnapshot | None = None

    @property
    def is_empty(self) -> bool:
        return not self.states and self.raw is None

    def shapes(self) -> dict[str, StateShape]:
        """Return the managed states for `headrace.checkpoint.assignment.redistribute`."""
        return {state.name: state.shape for state in self.states}

    def raw_shapes(self) -> dict[str, StateShape]:
        """Return the raw streams as one split state, which is redistributed by a call of its own."""
        return {} if self.raw is None else {_RAW: self.raw.shape}


class RestoredState(msgspec.Struct, frozen=True):
    """Consecutive elements to restore; `carried` as in `headrace.checkpoint.assignment.ElementRange`."""

    snapshot: StateSnapshot
    carried: bool = True


class RestoredOperatorState(msgspec.Struct, frozen=True):
    """The parts of old snapshots that one new subtask restores."""

    states: tuple[RestoredState, ...] = ()
    raw: tuple[StateSnapshot, ...] = ()

    @classmethod
    def of(
        cls,
        old: Sequence[OperatorStateSnapshot | None],
        parts: Iterable[ElementRange],
        raw_parts: Iterable[ElementRange],
    ) -> RestoredOperatorState:
        """Return the assigned parts of the snapshots of all old subtasks."""
        managed = {(subtask, state.name): state for subtask, left in enumerate(old) if left for state in left.states}
        raw = {subtask: left.raw for subtask, left in enumerate(old) if left and left.raw}
        states = (RestoredState(managed[p.subtask, p.name].cut(p.start, p.stop), p.carried) for p in parts)
        return cls(tuple(states), tuple(raw[p.subtask].cut(p.start, p.stop) for p in raw_parts))


def rescale(old: Sequence[OperatorStateSnapshot | None], parallelism: int) -> list[RestoredOperatorState]:
    """Return the state that each new subtask restores from the snapshots of all old ones (None: it left none).

    >>> [len(part.states) for part in rescale([OperatorStateSnapshot(), None], 3)]
    [0, 0, 0]
    """
    parts = redistribute([None if snapshot is None else snapshot.shapes() for snapshot in old], parallelism)
    raw = redistribute([None if snapshot is None else snapshot.raw_shapes() for snapshot in old], parallelism)
    return [RestoredOperatorState.of(old, mine, streams) for mine, streams in zip(parts, raw, strict=True)]


# ---- state handles -----------------------------------------------------------------------------------------


class _Elements(ListTable):
    """The elements of a list of operator state, which has no key."""

    def __init__(self, elements: list[Any]) -> None:
        self._elements = elements

    def get(self, group: int, address: Any) -> Sequence[Any]:
        return self._elements

    def extend(self, group: int, address: Any, stored: Sequence[Any]) -> None:
        self._elements.extend(stored)

    def replace(self, group: int, address: Any, stored: Sequence[Any]) -> None:
        self._elements = list(stored)

    def remove(self, group: int, address: Any) -> None:
        self._elements = []


class OperatorListState(ListState[Any]):
    """A list of one subtask, split or united at restore; elements are stored and returned by reference."""

    def __init__(self, descriptor: StateDescriptor, where: str, elements: list[Any]) -> None:
        super().__init__(descriptor, no_key(), _Elements(elements))
        self._where = where

    def _place(self) -> tuple[int, Any]:
        return 0, None


_Kind: TypeAlias = tuple[Mode, tuple[TypeInformation, ...]]


@dataclass(frozen=True, slots=True)
class _Registered:
    mode: Mode
    types: tuple[TypeInformation, ...]
    handle: OperatorListState | BroadcastState[Any, Any]

    def contents(self) -> list[Any]:
        """Return the elements, of a broadcast map its entries, as a new list."""
        return self.handle.get() if isinstance(self.handle, OperatorListState) else list(self.handle.items())


class OperatorStateBackend:
    """The operator state of one subtask. A name has one mode and one type.

    `operator` names the operator in errors. States in `restored` that the program never opens stay serialised and are
    part of every snapshot.

    >>> backend = OperatorStateBackend("sink")
    >>> words = backend.get_list_state(ListStateDescriptor("words", "string"))
    >>> words.add_all(["a", "b"])
    >>> serialise = backend.snapshot()
    >>> words.clear()  # after the barrier, so not in the snapshot
    >>> [part.states[0].snapshot.shape.elements for part in rescale([serialise()], 2)]
    [1, 1]
    """

    def __init__(self, operator: str, restored: RestoredOperatorState | None = None) -> None:
        self._operator = operator
        self._states: dict[str, _Registered] = {}
        self._untouched: dict[str, list[RestoredState]] = {}
        self._raw_output: list[bytes] = []
        restored = restored or RestoredOperatorState()
        for part in restored.states:
            snapshot = part.snapshot
            snapshot.verify(self._where(snapshot.name, snapshot.mode))
            self._untouched.setdefault(snapshot.name, []).append(part)
        for stream in restored.raw:
            stream.verify(f"operator '{operator}', raw operator state")
        self._raw_input = [bytes(element) for stream in restored.raw for element in stream.elements()]

    @property
    def names(self) -> list[str]:
        """The names of the open states, sorted."""
        return sorted(self._states)

    def get_list_state(self, descriptor: ListStateDescriptor) -> OperatorListState:
        """Return a list whose elements are distributed evenly when the parallelism changes (SPEC R4.2)."""
        state: OperatorListState = self._open(descriptor, Mode.SPLIT)
        return state

    def get_union_list_state(self, descriptor: ListStateDescriptor) -> OperatorListState:
        """Return a list; at each restore every subtask gets all elements of all subtasks (SPEC R4.3)."""
        state: OperatorListState = self._open(descriptor, Mode.UNION)
        return state

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]:
        """Return a map that every subtask holds in full (SPEC R4.4)."""
        state: BroadcastState[Any, Any] = self._open(state_descriptor, Mode.BROADCAST)
        return state

    def raw_streams(self) -> list[bytes]:
        """Return the raw streams that were restored (SPEC R1.11)."""
        return list(self._raw_input)

    def write_raw_stream(self, stream: bytes) -> None:
        """Add one stream to the next snapshot, and only to it; whole streams are redistributed like a split list's elements."""
        self._raw_output.append(bytes(stream))

    def _open(self, descriptor: StateDescriptor, mode: Mode) -> Any:
        """Return the handle of a state; when first opened, it is made of the elements that were restored."""
        self._check_descriptor(descriptor, MapStateDescriptor if mode is Mode.BROADCAST else ListStateDescriptor)
        name, where = descriptor.name, self._where(descriptor.name, mode)
        types = tuple(type for type in (descriptor.map_key_type, descriptor.type) if type is not None)
        state = self._states.get(name)
        if state is not None:
            self._check(name, (state.mode, state.types), (mode, types))
            return state.handle
        values: list[Any] = []
        for part in self._untouched.get(name, ()):
            stored = tuple(type.type_info() for type in part.snapshot.types)
            self._check(name, (part.snapshot.mode, stored), (mode, types))
            values += decode_elements(part.snapshot, types, where)
        self._untouched.pop(name, None)
        broadcast = mode is Mode.BROADCAST
        handle = BroadcastState(name, dict(values)) if broadcast else OperatorListState(descriptor, where, values)
        self._states[name] = _Registered(mode, types, handle)
        return handle

    def _check_descriptor(self, descriptor: StateDescriptor, expected: type[StateDescriptor]) -> None:
        if not isinstance(descriptor, expected):
            raise InvalidArgument(
                "HR-2005", f"operator '{self._operator}': {descriptor!r} is not a {expected.__name__}"
            )
        if descriptor.ttl is not None:
            raise InvalidArgument(
                "HR-2006",
                f"operator '{self._operator}': operator state '{descriptor.name}' cannot have a time to live, as only "
                "keyed state expires; drop the TTL, or remove old elements yourself",
            )

    def _check(self, name: str, stored: _Kind, requested: _Kind) -> None:
        if stored[0] is not requested[0]:
            raise IllegalState(
                "HR-2007",
                f"operator '{self._operator}': Incompatible state assignment modes: state '{name}' is a {stored[0]}, "
                f"but is requested as a {requested[0]}; request it in the same mode everywhere, or use another name",
            )
        if stored[1] != requested[1]:
            held, declared = (" -> ".join(map(str, types)) for _, types in (stored, requested))
            raise StateMigrationError(
                "HR-2101",
                f"{self._where(name, requested[0])} holds {held}, but is requested as {declared}; "
                "declare the type it has, or use another name",
            )

    def _where(self, name: str, mode: Mode) -> str:
        return f"operator '{self._operator}', {mode} state '{name}'"

    def snapshot(self) -> Callable[[], OperatorStateSnapshot]:
        """Copy everything now; the function that is returned serialises the copy, on any thread, any time later.

        Immutable elements are copied by reference. The others are pickled here: it is the fastest deep copy, and half of
        the serialisation.
        """
        frozen = [
            (name, state, _freeze(state.contents(), self._where(name, state.mode)))
            for name, state in self._states.items()
        ]
        untouched = [[part.snapshot for part in parts if part.carried] for parts in self._untouched.values()]
        raw, self._raw_output = self._raw_output, []

        def serialise() -> OperatorStateSnapshot:
            states = []
            for name, state, values in frozen:
                types = tuple(map(TypeMeta.of, state.types))
                elements = _encode(values, state.types, self._where(name, state.mode))
                states.append(StateSnapshot.of(name, state.mode, types, elements))
            for first, *others in filter(None, untouched):
                carried = [element for part in (first, *others) for element in part.elements()]
                states.append(StateSnapshot.of(first.name, first.mode, first.types, carried))
            states.sort(key=lambda state: state.name)
            return OperatorStateSnapshot(tuple(states), StateSnapshot.of(_RAW, Mode.SPLIT, (), raw) if raw else None)

        return serialise


# ---- elements and their bytes --------------------------------------------------------------------------------------


class _Pickled(bytes):
    """A mutable element that was pickled in the synchronous part."""


def _freeze(values: list[Any], where: str) -> list[Any]:
    """Return the values in a form that later changes by the program do not affect."""
    if ATOMS.issuperset(map(type, values)):
        return values
    return [
        value if is_immutable(value) else _Pickled(_dumps(value, index, where)) for index, value in enumerate(values)
    ]


def _encode(frozen: list[Any], types: tuple[TypeInformation, ...], where: str) -> list[bytes]:
    """Return the bytes of each element; typed values are checked and converted."""
    if any(type.is_typed for type in types):
        values = [pickle.loads(value) if type(value) is _Pickled else value for value in frozen]
        if len(types) == 1:
            frozen = _to_plain(types[0], values, where)
        else:
            columns = [list(column) for column in zip(*values, strict=True)] or [[], []]
            plain = [_to_plain(type, column, where) for type, column in zip(types, columns, strict=True)]
            frozen = list(zip(*plain, strict=True))
    return [value if type(value) is _Pickled else _dumps(value, i, where) for i, value in enumerate(frozen)]


def encode_elements(name: str, mode: Mode, types: tuple[TypeInformation, ...], values: list[Any]) -> StateSnapshot:
    """Return the snapshot of a state with these elements; of a broadcast map with these entries."""
    elements = _encode(values, types, f"{mode} state '{name}'")
    return StateSnapshot.of(name, mode, tuple(map(TypeMeta.of, types)), elements)


def decode_elements(snapshot: StateSnapshot, types: tuple[TypeInformation, ...], where: str | None = None) -> list[Any]:
    """Return the elements of a state, of a broadcast map its entries; `where` begins an error message."""
    where = where or f"{snapshot.mode} state '{snapshot.name}'"
    values: list[Any] = []
    for index, element in enumerate(snapshot.elements()):
        try:
            values.append(pickle.loads(element))
        except Exception as error:
            raise StateMigrationError(
                "HR-2102",
                f"{where}: element {index} of {len(snapshot.offsets)} cannot be unpickled "
                f"({type(error).__name__}: {error}); its class must stay importable under the name it had when the "
                "state was written",
            ) from error
    if len(types) == 1:
        return [_from_plain(types[0], value) for value in values]
    return [tuple(map(_from_plain, types, entry)) for entry in values]


def _to_plain(type: TypeInformation, values: list[Any], where: str) -> list[Any]:
    """Check the values against their declared type, all at once; rows become plain tuples."""
    if not type.is_typed:
        return values
    try:
        rows = iter(type.to_rows(type.to_batch([value for value in values if value is not None])))
    except TypeMismatch as error:
        raise InvalidArgument(
            "HR-2003", f"{where}: {error.text}; change the value, or declare the type that the state really holds"
        ) from None
    plain = map(tuple, rows) if type.converts else rows
    return [None if value is None else next(plain) for value in values]


def _from_plain(type: TypeInformation, value: Any) -> Any:
    return value if value is None or not type.converts else type.record(value)


def _dumps(value: object, index: int, where: str) -> bytes:
    try:
        return pickle.dumps(value, _PICKLE_PROTOCOL)
    except Exception:  # a class of the user's script, or a lambda: it must be pickled by value
        try:
            return cast("bytes", cloudpickle.dumps(value, _PICKLE_PROTOCOL))
        except Exception as error:
            raise InvalidArgument(
                "HR-2004",
                f"{where}: element {index}, a {type(value).__name__}, cannot be pickled ({type(error).__name__}: "
                f"{error}); keep plain data in state, and make connections, locks and files in open()",
            ) from error
