"""A value state in columns, accessed key by key: the values of a batch's keys are read at once, and stored at once.

The first access in a batch loads the values of all its keys into a list, which the handle then works on (`headrace.records.kernel`); the
end of the batch writes them back. That is faster than one large dict, where nearly every access waits for memory, and a
snapshot copies columns instead of reading every object. All of it runs in the subtask's thread.

Keys of small batches, and those that are selected one by one (timers, for example), go through a dict instead. An address that
is no integer, such as one with a namespace, cannot be stored in a column: the state is then moved to a table of entries
permanently.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from headrace.records.copying import copied
from headrace.records.kernel import KeyContext, LoadedValues, state_handle
from headrace.records.types import TypeInformation, TypeMismatch
from headrace.state.addresses import NO_KEY, NoKeySet, key_of, split_address
from headrace.state.api import ValueState
from headrace.state.backend import KeyArrays
from headrace.state.columns import ColumnTable, Ints
from headrace.state.tables import BatchTable, ValueTable

_FEW = 64  # keys that are read and written one by one: numpy's fixed cost is higher
_MANY = 10_000  # values outside of batches that wait to be written back


@state_handle
class ColumnValue(LoadedValues, ValueState[Any], BatchTable):
    """The handle and the table of a state.

    An entry that is loaded is in the list only; any other that was used since the last flush is in the dict.
    """

    def __init__(
        self,
        name: str,
        where: str,
        type_info: TypeInformation,
        columns: ColumnTable,
        context: KeyContext,
        group_of: Callable[[Any], int],
        demote: Callable[[ColumnValue], ValueTable],
    ) -> None:
        """`where` names the operator and the state in errors; `demote` moves the state to a table of entries."""
        super().__init__(context)
        self.name = name
        self.default: Any = None
        self._where, self._type, self._columns = where, type_info, columns
        self._group_of, self._demote = group_of, demote
        self._cache_groups: dict[Any, int] = {}  # of those in the dict that were read
        self._addresses: list[Any] = []  # of the batch
        self._groups: Any = ()
        self._arrays: KeyArrays | None = None  # the batch's keys and groups, if the caller has them
        # While the batch is loaded: its keys, their slots, the column at these slots, and by record the place of its value.
        self._keys: Ints | None = None
        self._slots: Ints | None = None
        self._before: Any | None = None
        self._places: Ints | None = None
        self._place_of: dict[Any, int] | None = None  # by address, made when it is needed
        self._table: ValueTable | None = None  # once the state is not in columns

    # --- the user's side --------------------------------------------------------------------------------------------

    def clear(self) -> None:
        self.update(None)

    def _value_elsewhere(self) -> Any:
        """Return the value of a key that is not the one of the record in the batch, or the default."""
        try:
            stored = self._stored(self._context.address)
        except NoKeySet:
            NO_KEY.refuse(f"value state '{self.name}'")
        return copied(self.default) if stored is None else stored

    def _update_elsewhere(self, value: Any) -> None:
        address = self._context.address
        try:
            place = self._loaded_at(address)
            if place is None:
                self._cache[address] = value
                return
        except NoKeySet:
            NO_KEY.refuse(f"value state '{self.name}'")
        self._loaded[place] = value
        self._changed = True

    def _loaded_at(self, address: Any) -> int | None:
        """Return the place of a loaded value; None if it is not loaded."""
        if self._places is None:
            return None
        position = self._context.position
        if position < len(self._addresses) and self._addresses[position] is address:
            return int(self._places[position])
        if self._place_of is None:
            self._place_of = dict(zip(self._addresses, self._places.tolist(), strict=True))
        return self._place_of.get(address)

    # --- the backend's side -----------------------------------------------------------------------------------------

    def get_many(self, addresses: Sequence[Any], groups: Sequence[int]) -> list[Any]:
        self.flush()
        keys = None if self._table is not None else self._int_keys(addresses)
        if keys is None:
            assert self._table is not None
            return self._table.get_many(addresses, groups)
        return self._columns.read(keys, np.asarray(groups, np.int64))[2]

    def put_many(self, addresses: Sequence[Any], groups: Sequence[int], values: Sequence[Any]) -> None:
        self.flush()
        pairs = dict(
            zip(addresses, zip(np.asarray(groups).tolist(), values, strict=True), strict=True)
        )  # the last counts
        distinct = list(pairs)
        keys = None if self._table is not None else self._int_keys(distinct)
        if keys is None:
            assert self._table is not None
            self._table.put_many(addresses, groups, values)
            return
        spots = np.array([group for group, _ in pairs.values()], np.int64)
        self._store_mixed(distinct, spots, self._columns.find(keys, spots), [value for _, value in pairs.values()])

    def has(self, group: int, address: Any) -> bool:
        """Return True if a key has a value; nothing is written back."""
        if self._table is not None:
            return self._table.get(group, address) is not None
        place = self._loaded_at(address)
        if place is not None:
            return self._loaded[place] is not None
        if address in self._cache:
            return self._cache[address] is not None
        return _is_number(address) and self._columns.find_one(address, group) >= 0

    def begin(self, addresses: Sequence[Any], groups: Sequence[int], arrays: KeyArrays | None = None) -> None:
        """Called before a batch with these keys."""
        self.flush()
        self._addresses = addresses if type(addresses) is list else list(addresses)
        self._groups, self._arrays = groups, arrays

    def flush(self) -> None:
        """Write back, and end the batch."""
        if self._table is not None:
            return
        if self._changed:
            self._store_loaded()
        if self._cache:
            self._store_cached()
        if self._table is None:
            self._cache, self._cache_groups = {}, {}
        self._end_batch()

    def _end_batch(self) -> None:
        self._unload()
        self._addresses, self._groups, self._arrays = [], (), None
        self._slots = self._keys = self._before = self._places = self._place_of = None

    def _stored(self, address: Any) -> Any:
        """Return the value at an address, or None; a batch is loaded at the first access."""
        place = self._loaded_at(address)
        if place is None:
            try:
                return self._cache[address]
            except KeyError:
                pass
            if not _is_number(address):
                self._use_tables()
                return self._cache[address]
            if self._places is None and len(self._addresses) > _FEW:
                self._load()
                if self._table is not None:
                    return self._cache[address]
                place = self._loaded_at(address)
            elif len(self._cache) > _MANY:
                self.flush()
        if place is not None:
            return self._loaded[place]
        context = self._context
        self._cache_groups[address] = context.group
        stored = self._cache[address] = self._columns.get(context.group, address)
        return stored

    def _load(self) -> None:
        """Read the values of the whole batch; those that were written before stay."""
        addresses = self._addresses
        keys, self._groups = self._arrays or (self._int_keys(addresses), np.asarray(self._groups))
        if keys is None:
            return
        self._keys = keys
        self._slots, self._before, values = self._columns.read(keys, self._groups)
        places = self._places = self._first_places(self._slots)
        if not self._columns.all_live(self._slots):
            for place in np.flatnonzero(places != np.arange(len(places))).tolist():
                values[place] = 0  # it is not read: all values can be packed
        self._load_values(addresses, values, places)
        if self._cache:
            found = [(address, self._loaded_at(address)) for address in self._cache]
            for address, at in found:
                if at is not None:
                    values[at] = self._cache.pop(address)
                    self._changed = True

    def _first_places(self, slots: Ints) -> Ints:
        """For each record of the batch, the first one with the same key."""
        if not len(slots) or slots.min() >= 0:
            return self._columns.places(slots)
        places = np.arange(len(slots))
        known = slots >= 0
        there = np.flatnonzero(known)
        places[there] = there[self._columns.places(slots[there])]
        first: dict[Any, int] = {}
        for place in np.flatnonzero(~known).tolist():
            places[place] = first.setdefault(self._addresses[place], place)
        return places

    def _store_loaded(self) -> None:
        """Store the values of the batch's keys, each once."""
        columns, slots, before, places = self._columns, self._slots, self._before, self._places
        assert slots is not None
        assert places is not None
        first = np.flatnonzero(places == np.arange(len(places)))
        packed = self._pack(self._loaded)
        if packed is None:
            there = first.tolist()
            addresses, values = ([column[place] for place in there] for column in (self._addresses, self._loaded))
            self._store_mixed(addresses, np.asarray(self._groups)[first], slots[first], values)
            return
        if not columns.all_live(slots):
            assert self._keys is not None
            slots, before = columns.slots(self._keys, self._groups, 0), None
        if len(first) < len(slots):
            slots, packed, before = slots[first], packed[first], None if before is None else before[first]
        columns.put(slots, packed, before)

    def _store(self, addresses: Sequence[Any], groups: Any, keys: Ints, values: list[Any]) -> None:
        """Store values of different keys."""
        columns, packed = self._columns, self._pack(values)
        if packed is None:
            self._store_mixed(addresses, groups, columns.find(keys, groups), values)
        else:
            columns.put(columns.slots(keys, groups, 0), packed)

    def _store_mixed(self, addresses: Sequence[Any], groups: Any, slots: Ints, values: list[Any]) -> None:
        """Store values of which some may be None, which removes, or numbers of another type."""
        gone = np.array([value is None for value in values], np.bool_)
        removed, there = slots[gone], np.flatnonzero(~gone)
        kept = [addresses[i] for i in there.tolist()]
        present = [values[i] for i in there.tolist()]
        packed = self._pack(present)
        if packed is None:
            packed = self._converted(kept, present)
        self._columns.remove(removed[removed >= 0])
        if kept:
            slots = self._columns.slots(np.array(kept, np.int64), np.asarray(groups)[there], 0)
            self._columns.put(slots, packed)

    def _pack(self, values: Sequence[Any]) -> Any | None:
        """Python numbers as a column; None if a value is None or of another type."""
        dtype = self._columns.values.dtype
        try:  # numpy and struct use the same codes for C types
            return np.frombuffer(struct.pack(f"{len(values)}{dtype.char}", *values), dtype)
        except (struct.error, OverflowError):
            return None

    def _converted(self, addresses: Sequence[Any], values: Sequence[Any]) -> Any:
        """Return the column with conversions; TypeMismatch names the key of the first value that does not fit."""
        try:
            column = self._type.to_batch(values).column(0).to_numpy(zero_copy_only=False)
        except TypeMismatch as error:
            raise TypeMismatch(f"{self._where}, key {addresses[error.index]!r}: {error}") from None
        return column.astype(self._columns.values.dtype)

    def _store_cached(self) -> None:
        """Store the values in the dict."""
        known = dict(zip(self._addresses, self._groups, strict=True)) | self._cache_groups
        cached = self._cache
        if len(cached) <= _FEW:
            cached = {a: value for a, value in cached.items() if not self._store_one(a, known.get(a), value)}
        addresses = list(cached)
        keys = self._int_keys(addresses)
        if keys is None or not cached:
            return
        groups = np.array([known[a] if a in known else self._group_of(a) for a in addresses], np.int64)
        self._store(addresses, groups, keys, list(cached.values()))

    def _store_one(self, address: Any, group: int | None, value: Any) -> bool:
        """Store a value; False for one that has to be converted."""
        return _is_number(address) and group is not None and self._columns.store_one(address, group, value)

    def _int_keys(self, addresses: Sequence[Any]) -> Ints | None:
        """Addresses as a column; None, and the state leaves the columns, if one is not an integer of 64 bits."""
        if set(map(type, addresses)) <= {int}:
            with suppress(OverflowError):
                return np.array(addresses, np.int64)
        self._use_tables()
        return None

    def _use_tables(self) -> None:
        """Move the state from columns to a table of entries."""
        table = self._table = self._demote(self)
        changed = self._cache
        if self._changed:
            assert self._places is not None
            changed = {a: self._loaded[place] for a, place in zip(self._addresses, self._places.tolist(), strict=True)}
            changed |= self._cache
        for address, value in changed.items():
            table.put_many((address,), (self._group_of(key_of(split_address(address)[0])),), (value,))
        self._cache = _TableCache(table, self._context)
        self._end_batch()


class ColumnValues:
    """The handles of a backend whose states are in columns."""

    def __init__(self) -> None:
        self._handles: list[ColumnValue] = []

    def add(self, handle: ColumnValue) -> None:
        self._handles.append(handle)

    def remove(self, handle: ColumnValue) -> None:
        self._handles.remove(handle)

    def begin(self, addresses: Sequence[Any], groups: Sequence[int], arrays: KeyArrays | None) -> None:
        """Called before a batch with these keys."""
        for handle in list(self._handles):  # one may leave the list
            handle.begin(addresses, groups, arrays)

    def flush(self) -> None:
        """Write back what handles hold, before the columns are read."""
        for handle in list(self._handles):
            handle.flush()


def _is_number(address: Any) -> bool:
    """Return True if an address is a key of the columns."""
    return type(address) is int and -(1 << 63) <= address < 1 << 63


class _TableCache(dict[Any, Any]):
    """Replaces the cache once the state is not in columns."""

    def __init__(self, table: ValueTable, context: KeyContext) -> None:
        self._table, self._context = table, context

    def __getitem__(self, address: Any) -> Any:
        return self._table.get(self._context.group, address)

    def __setitem__(self, address: Any, value: Any) -> None:
        hash(address)  # NoKeySet if there is no key
        self._table.put_many((address,), (self._context.group,), (value,))
