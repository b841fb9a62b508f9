"""The loops that run once for each record of a keyed stream, in plain Python. Hashes are in `hashing`.

`compiled.pyx` is the same in C; tests run both. Whatever both need not do for each record is left to their callers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from headrace.records.copying import detached
from headrace.records.kernel.hashing import groups_of, hash_texts

__all__ = [
    "DirectValue",
    "KeyContext",
    "LoadedValues",
    "detached",
    "filter_each",
    "flat_map_each",
    "groups_of",
    "hash_texts",
    "map_each",
    "places_of_tagged",
    "process_each",
    "state_handle",
    "take",
    "take_detached",
    "take_each",
]

T = TypeVar("T")


class KeyContext:
    """The current key: its address and key group, and which record of the batch it belongs to.

    The runtime writes address and group for each record, handles read them. Writing `address` also ends the namespace.
    `no_key` is the address while no key is selected. The position only tells where to look first: handles
    check that the address there is this one.
    """

    __slots__ = ("address", "group", "no_key", "position")

    def __init__(self, no_key: Any) -> None:
        self.address = self.no_key = no_key
        self.group: int = 0
        self.position: int = 0


def state_handle(cls: type[T]) -> type[T]:
    """Decorate a class of handles: calls of its methods are faster then, in the compiled form."""
    return cls


class LoadedValues:
    """The part of a value state that users call: values of a batch's keys, loaded at once, or values in a dict.

    While nothing is loaded the dict `_cache` has the values that were used. What neither has, and a missing key, is left to
    `_value_elsewhere`, which also gives the default, and `_update_elsewhere`. A `_cache` of another class stores in its own way.
    """

    def __init__(self, context: KeyContext) -> None:
        self._context = context
        self._cache: dict[Any, Any] = {}
        self._addresses_loaded: list[Any] = []
        self._values_loaded: list[Any] = []
        self._places_loaded: list[int] = []
        self._changed = False  # by the user, since the values were loaded

    def _load_values(self, addresses: list[Any], values: list[Any], places: npt.NDArray[np.int64]) -> None:
        """Take the values of the batch with these addresses; by record, its place among the values."""
        if not len(addresses) == len(values) == len(places):
            raise ValueError("addresses, values and places must be of one length")
        if values and not 0 <= places.min() <= places.max() < len(values):
            raise IndexError("a place without a value")
        self._addresses_loaded, self._values_loaded, self._places_loaded = addresses, values, places.tolist()
        self._changed = False

    def _unload(self) -> None:
        self._addresses_loaded, self._values_loaded, self._places_loaded = [], [], []
        self._changed = False

    @property
    def _loaded(self) -> list[Any]:
        """The values, by place; None where there is none."""
        return self._values_loaded

    def value(self) -> Any:
        """Return the value of the current key, else the default."""
        context, addresses = self._context, self._addresses_loaded
        if addresses:
            position = context.position
            if position < len(addresses) and addresses[position] is context.address:
                stored = self._values_loaded[self._places_loaded[position]]
                if stored is not None:
                    return stored
        elif context.address is not context.no_key:
            stored = dict.get(self._cache, context.address)
            if stored is not None:
                return stored
        return self._value_elsewhere()

    def update(self, value: Any) -> None:
        """Store a value; None removes it."""
        context, addresses = self._context, self._addresses_loaded
        if addresses:
            position = context.position
            if position < len(addresses) and addresses[position] is context.address:
                self._values_loaded[self._places_loaded[position]] = value
                self._changed = True
                return
        elif type(self._cache) is dict and context.address is not context.no_key:
            self._cache[context.address] = value
            return
        self._update_elsewhere(value)

    def _value_elsewhere(self) -> Any:
        raise NotImplementedError

    def _update_elsewhere(self, value: Any) -> None:
        raise NotImplementedError


class DirectValue:
    """The part of a value state that users call: values in one dict for each key group.

    A dict of another class than `dict` finds what is not in it, in the same form, or None. What a plain one does not hold, and a
    missing key, are left to `_value_elsewhere`; None and a missing key to `_update_elsewhere`. Values of `_plain` types are
    returned and stored as they are, or all if the state is `_immutable`; others are copied when they are read, and stored as
    `_keep` returns them, if it is given.
    """

    _context: KeyContext
    _tables: list[dict[Any, Any]]
    _plain: AbstractSet[Any]
    _immutable: bool
    _copy: Callable[[Any], Any]
    _keep: Callable[[Any], Any] | None

    def value(self) -> Any:
        """Return the value of the current key, else the default."""
        context = self._context
        if context.address is context.no_key:
            return self._value_elsewhere()
        try:
            stored = self._tables[context.group][context.address]
        except KeyError:
            return self._value_elsewhere()
        if stored is None:
            return self._default_value()
        return stored if self._immutable or type(stored) in self._plain else self._copy(stored)

    def update(self, value: Any) -> None:
        """Store a value; None removes it."""
        context = self._context
        if value is None or context.address is context.no_key:
            self._update_elsewhere(value)
            return
        if self._keep is not None and type(value) not in self._plain:
            value = self._keep(value)
        self._tables[context.group][context.address] = value

    def _default_value(self) -> Any:
        raise NotImplementedError

    def _value_elsewhere(self) -> Any:
        raise NotImplementedError

    def _update_elsewhere(self, value: Any) -> None:
        raise NotImplementedError


# --- loops ----------------------------------------------------------------------------------------------------------
# Each calls a function of the user for every record with its key selected, appends what it gives to `out`, and to `ends`,
# if that is a list, the length of `out` afterwards. If the function fails, `context.position` is the place of the record.
# Records may be made one after the other. The compiled form lets go of each before it asks for the next one.


def take(result: Iterable[Any] | None, out: list[Any]) -> None:
    """Append the records that a function gave for one record."""
    if result is not None:
        out.extend(result)


def take_detached(result: Iterable[Any] | None, out: list[Any]) -> None:
    """The same for a function that may change a record after it has emitted it."""
    if result is not None:
        out.extend(map(detached, result))


def process_each(
    function: Callable[[Any, Any], Any],
    element: Any,
    rows: Iterable[Any],
    stamps: list[int] | None,
    addresses: list[Any],
    groups: list[int],
    context: KeyContext,
    out: list[Any],
    ends: list[int] | None,
    detach: bool = False,
) -> None:
    """Call a process function, with the record's timestamp as `element.stamp` where there are `stamps`.

    With `detach` its results are detached from what the function keeps, as in all of these loops.
    """
    put = take_detached if detach else take
    for context.position, row, context.address, context.group in zip(
        range(len(addresses)), rows, addresses, groups, strict=True
    ):
        if stamps is not None:
            element.stamp = stamps[context.position]
        put(function(row, element), out)
        if ends is not None:
            ends.append(len(out))
    if stamps is not None:
        element.stamp = None


def flat_map_each(
    function: Callable[[Any], Any],
    rows: Iterable[Any],
    addresses: list[Any],
    groups: list[int],
    context: KeyContext,
    out: list[Any],
    ends: list[int] | None,
    detach: bool = False,
) -> None:
    """Call a function that gives an iterable of records, or None."""
    put = take_detached if detach else take
    for context.position, row, context.address, context.group in zip(
        range(len(addresses)), rows, addresses, groups, strict=True
    ):
        put(function(row), out)
        if ends is not None:
            ends.append(len(out))


def map_each(
    function: Callable[[Any], Any],
    skips_none: bool,
    rows: Iterable[Any],
    addresses: list[Any],
    groups: list[int],
    context: KeyContext,
    out: list[Any],
    ends: list[int] | None,
    detach: bool = False,
) -> None:
    """Call a function that gives one record, or, with `skips_none`, one or None."""
    for context.position, row, context.address, context.group in zip(
        range(len(addresses)), rows, addresses, groups, strict=True
    ):
        result = function(row)
        if result is not None or not skips_none:
            out.append(detached(result) if detach else result)
        if ends is not None:
            ends.append(len(out))


def filter_each(
    function: Callable[[Any], Any],
    rows: Iterable[Any],
    addresses: list[Any],
    groups: list[int],
    context: KeyContext,
    out: list[Any],
    ends: list[int] | None,
) -> None:
    """Keep the records for which a function gives something true."""
    for context.position, row, context.address, context.group in zip(
        range(len(addresses)), rows, addresses, groups, strict=True
    ):
        if function(row):
            out.append(row)
        if ends is not None:
            ends.append(len(out))


def places_of_tagged(rows: list[Any], tag: type) -> list[int]:
    """Return the places of the tuples whose first item is of a class."""
    return [i for i, row in enumerate(rows) if type(row) is tuple and row and type(row[0]) is tag]


def take_each(
    function: Callable[[Any], Any], rows: Iterable[Any], out: list[Any], ends: list[int] | None, detach: bool = False
) -> None:
    """Call a function without a key that gives an iterable of records, or None."""
    put = take_detached if detach else take
    for row in rows:
        put(function(row), out)
        if ends is not None:
            ends.append(len(out))
