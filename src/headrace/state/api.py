"""Keyed state for users: descriptors and the handles of the five kinds, with PyFlink's names (SPEC R1.2 - R1.7).

A descriptor names a state and its type; the runtime context gives a handle for it. A handle is one object for the life of
the operator; it reads and writes the state of the current key through a table of the backend, in the subtask's thread:

    class Count(KeyedProcessFunction):
        def open(self, ctx):
            self.count = ctx.get_state(ValueStateDescriptor("count", "bigint"))

        def process_element(self, value, ctx):
            self.count.update((self.count.value() or 0) + 1)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, ClassVar, Generic, TypeVar

from headrace.api.durations import Time
from headrace.checkpoint.handles import StateMeta, TypeMeta
from headrace.errors import IllegalState, InvalidArgument
from headrace.records.copying import copied
from headrace.records.kernel import DirectValue, KeyContext, state_handle
from headrace.records.types import TypeInformation, TypeMismatch, as_type, check_storable
from headrace.state.addresses import NO_KEY, address_of, key_of
from headrace.state.tables import MISSING, DictTable, ListTable, MapTable, ValueTable
from headrace.state.ttl_config import StateTtlConfig

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
IN = TypeVar("IN")
OUT = TypeVar("OUT")


# --- handles --------------------------------------------------------------------------------------------------------


class State(ABC):
    """State of the current key."""

    @abstractmethod
    def clear(self) -> None:
        """Remove what is stored for the current key; other keys keep theirs."""


class ValueState(State, Generic[T]):
    """One value per key; None means that there is none."""

    @abstractmethod
    def value(self) -> T | None:
        """Return the value of the current key, else the descriptor's default, else None."""

    @abstractmethod
    def update(self, value: T | None) -> None:
        """Store a value; None clears."""


@state_handle
class DirectValueState(DirectValue, ValueState[Any]):
    """A value state without a time to live: in the common case there is no call between the user and the dict.

    With `reuse` the user may change a value that was read in place, and so the state. If all values of the type are
    `immutable`, a stored value is returned without a check.
    """

    def __init__(
        self,
        descriptor: ValueStateDescriptor,
        context: KeyContext,
        table: DictTable,
        *,
        reuse: bool,
        immutable: bool = False,
    ) -> None:
        self.name = descriptor.name
        self._default = descriptor.default
        self._context = context
        self._table = table
        self._tables = table.tables
        self._plain = table.plain
        self._immutable = immutable
        self._copy = self._reused if reuse else table.copy
        self._keep = None if reuse else table.keep

    def _value_elsewhere(self) -> Any:
        """Return the value below the dict that takes writes, or the default."""
        stored = self._table.get(*self._place())
        if stored is None:
            return self._default_value()
        return stored if self._immutable or type(stored) in self._plain else self._copy(stored)

    def _default_value(self) -> Any:
        return copied(self._default)

    def _reused(self, stored: Any) -> Any:
        """The object itself, in the dict that takes writes: there it counts as changed, and no snapshot reads it."""
        context = self._context
        table, found = self._tables[context.group], self._table.unpack(stored)
        if found is not stored or context.address not in table:
            found = table[context.address] = copied(found) if found is stored else found
        return found

    def _update_elsewhere(self, value: Any) -> None:
        self._place()
        assert value is None
        self.clear()

    def clear(self) -> None:
        self._table.remove(*self._place())

    def _place(self) -> tuple[int, Any]:
        """Key group and address of the current key."""
        context = self._context
        if context.address is NO_KEY:
            NO_KEY.refuse(f"value state '{self.name}'")
        return context.group, context.address


@state_handle
class RowValueState(DirectValueState):
    """A value state of rows that can be changed: what is stored has the names of the type."""

    def __init__(self, descriptor: ValueStateDescriptor, *args: Any, **options: Any) -> None:
        super().__init__(descriptor, *args, **options)
        self._type = descriptor.type

    def update(self, value: Any) -> None:
        if value is not None:
            with suppress(TypeMismatch):  # it is refused when a snapshot is taken, with its key
                value = self._type.normalise([value])[0]
        super().update(value)


class _TableState(State):
    """A handle on a table; `copy` makes the result of a read independent of the state, None: no copy is needed."""

    def __init__(
        self, descriptor: Any, context: KeyContext, table: Any, copy: Callable[[Any], Any] | None = None
    ) -> None:
        self.name: str = descriptor.name
        self._context = context
        self._table = table
        self._copy = copy

    def _place(self) -> tuple[int, Any]:
        """Key group and address of the current key."""
        context = self._context
        if context.address is NO_KEY:
            NO_KEY.refuse(f"state '{self.name}'")
        return context.group, context.address

    def clear(self) -> None:
        """Remove what is stored for the current key; other keys keep theirs."""
        self._table.remove(*self._place())


class TableValueState(_TableState, ValueState[Any]):
    """A value state with a time to live; it has no default (SPEC R2.2)."""

    _table: ValueTable

    def value(self) -> Any:
        group, address = self._place()
        stored = self._table.get(group, address)
        return stored if self._copy is None else self._copy(stored)

    def update(self, value: Any) -> None:
        if value is None:
            self.clear()
        else:
            group, address = self._place()
            self._table.put(group, address, value)


class ListState(_TableState, Generic[T]):
    """A list per key, in order of insertion; elements are never None.

    Iterating a handle iterates the elements of the current key.
    """

    _table: ListTable

    def __init__(self, descriptor: StateDescriptor, *args: Any) -> None:
        super().__init__(descriptor, *args)
        self._where = f"list state '{self.name}'"

    def get(self) -> list[T]:
        """Return the elements; an empty list if there are none. Changing the list does not change the state."""
        group, address = self._place()
        stored = self._table.get(group, address)
        if stored is None:
            return []
        return list(stored) if self._copy is None else list(map(self._copy, stored))

    def add(self, value: T) -> None:
        """Append one element."""
        if value is None:
            raise InvalidArgument("HR-2003", f"{self._where}: an element is None, which list state cannot hold")
        group, address = self._place()
        self._table.extend(group, address, (value,))

    def add_all(self, values: Iterable[T]) -> None:
        """Append elements; without any, nothing happens."""
        elements = self._checked(values)
        if elements:
            self._table.extend(*self._place(), elements)

    def update(self, values: Iterable[T]) -> None:
        """Replace all elements; without any, this is the same as clear()."""
        elements = self._checked(values)
        if elements:
            self._table.replace(*self._place(), elements)
        else:
            self.clear()

    def _checked(self, values: Any) -> list[Any]:
        """Return the elements as a list; list state holds no None (SPEC R1.4)."""
        if values is None:
            raise InvalidArgument(
                "HR-2003", f"{self._where}: the list of values is None; to remove all elements call clear()"
            )
        if isinstance(values, str | bytes):
            raise InvalidArgument("HR-2003", f"{self._where}: {values!r} is one value; call add(), or pass a list")
        elements = list(values)
        if any(element is None for element in elements):
            raise InvalidArgument(
                "HR-2003", f"{self._where}: an element is None, which list state cannot hold: {elements[:5]!r}"
            )
        return elements

    def __iter__(self) -> Iterator[T]:
        return iter(self.get())


class MapEntries(Iterator[T]):
    """An iteration over the map at a place that can remove entries; the map may also be changed freely meanwhile.

    `pick` makes the result of (map key, value).
    """

    def __init__(
        self, source: Iterator[tuple[Any, Any]], pick: Callable[[Any, Any], T], table: MapTable, place: tuple[int, Any]
    ) -> None:
        self._source = source
        self._pick = pick
        self._table, self._place = table, place
        self._next: tuple[Any, Any] | None = None  # read by has_next()
        self._last: Any = MISSING

    def has_next(self) -> bool:
        """Return True if another entry follows."""
        if self._next is None:
            self._next = next(self._source, None)
        return self._next is not None

    def __next__(self) -> T:
        entry = next(self._source) if self._next is None else self._next
        self._next = None
        self._last = entry[0]
        return self._pick(key_of(entry[0]), entry[1])

    def remove(self) -> None:
        """Delete the entry returned last, also after `has_next()`; IllegalState if there is none or it is removed."""
        if self._last is MISSING:
            raise IllegalState(
                "HR-2011", "remove() needs an entry: call it once after next(), not before and not twice"
            )
        self._table.delete(*self._place, self._last)
        self._last = MISSING


class MapState(_TableState, Generic[K, V]):
    """A map per key, stored entry by entry. Iterating a handle iterates the keys of the map."""

    _table: MapTable

    def _map_key(self, key: Any) -> Any:
        if key is None:
            raise InvalidArgument("HR-2003", f"map state '{self.name}': key is None: every entry needs a key")
        try:
            return address_of(key)
        except InvalidArgument as error:
            raise InvalidArgument("HR-2003", f"map state '{self.name}': {error.text}") from None

    def get(self, key: K) -> V | None:
        """Return the value of an entry, or None."""
        group, address = self._place()
        stored = self._table.get(group, address, self._map_key(key))
        if stored is MISSING:
            return None
        value: V = stored if self._copy is None else self._copy(stored)
        return value

    def put(self, key: K, value: V) -> None:
        """Add or replace one entry; the value may be None if its type allows that."""
        group, address = self._place()
        self._table.put(group, address, self._map_key(key), value)

    def put_all(self, dict_value: Mapping[K, V] | Iterable[tuple[K, V]]) -> None:
        """Add or replace several entries: a dict, or pairs, which are what PyFlink takes in a process of its own."""
        if entries := {self._map_key(key): value for key, value in dict(dict_value).items()}:
            self._table.put_all(*self._place(), entries)

    def remove(self, key: K) -> None:
        """Remove one entry, if it exists."""
        group, address = self._place()
        self._table.delete(group, address, self._map_key(key))

    def contains(self, key: K) -> bool:
        """Return True if there is such an entry."""
        group, address = self._place()
        return self._table.get(group, address, self._map_key(key)) is not MISSING

    def items(self) -> MapEntries[tuple[K, V]]:
        """All entries."""
        return self._iterate(lambda key, value: (key, value))

    def keys(self) -> MapEntries[K]:
        """Return the keys of all entries."""
        return self._iterate(lambda key, _: key)

    def values(self) -> MapEntries[V]:
        """Return the values of all entries."""
        return self._iterate(lambda _, value: value)

    def _iterate(self, pick: Callable[[Any, Any], Any]) -> MapEntries[Any]:
        group, address = place = self._place()
        entries = self._table.entries(group, address)
        if self._copy is not None:
            copy = self._copy
            entries = ((key, copy(value)) for key, value in entries)
        return MapEntries(entries, pick, self._table, place)

    def is_empty(self) -> bool:
        """Return True if there are no entries."""
        return self._table.is_empty(*self._place())

    __getitem__ = get
    __setitem__ = put
    __delitem__ = remove
    __contains__ = contains
    __iter__ = keys


class FoldingState(_TableState, Generic[T]):
    """All values added for a key, folded into one stored value by a function of the user."""

    _table: ValueTable

    def add(self, value: T | None) -> None:
        """Fold one more value in; None clears."""
        group, address = self._place()
        if value is None:
            self._table.remove(group, address)
        else:
            self._table.put(group, address, self._fold(self._table.get_owned(group, address), value))

    @abstractmethod
    def _fold(self, stored: Any, value: Any) -> Any:
        """Return the new stored value; the function may change the old one, or None, in place."""

    @abstractmethod
    def combine(self, one: Any, other: Any) -> Any:
        """Return the stored value of two windows that are merged."""


class ReducingState(FoldingState[T]):
    """All values added for a key, combined into one by the descriptor's function."""

    def __init__(self, descriptor: ReducingStateDescriptor, *args: Any) -> None:
        super().__init__(descriptor, *args)
        self._reduce, self._type = descriptor.reduce, descriptor.type

    def get(self) -> T | None:
        """Return the combined value, or None."""
        group, address = self._place()
        stored: T | None = self._table.get(group, address)
        return stored if self._copy is None else self._copy(stored)

    def _fold(self, stored: Any, value: Any) -> Any:
        return copied(value) if stored is None else self.combine(stored, value)

    def combine(self, one: Any, other: Any) -> Any:
        result = _checked_result(self.name, "reduce", self._reduce(one, other))
        return self._type.named(result) if self._type.converts else result


class AggregatingState(FoldingState[IN], Generic[IN, OUT]):
    """All values added for a key, folded into an accumulator by the descriptor's function."""

    def __init__(self, descriptor: AggregatingStateDescriptor, *args: Any) -> None:
        super().__init__(descriptor, *args)
        self._function = descriptor.function

    def get(self) -> OUT | None:
        """Return the result of the accumulator, or None if nothing was added."""
        group, address = self._place()
        stored = self._table.get(group, address)
        if stored is None:
            return None
        # get_result may return the accumulator itself.
        result: OUT = self._function.get_result(stored if self._copy is None else self._copy(stored))
        return result

    def _fold(self, stored: Any, value: Any) -> Any:
        accumulator = self._function.create_accumulator() if stored is None else stored
        return _checked_result(self.name, "add", self._function.add(value, accumulator))

    def combine(self, one: Any, other: Any) -> Any:
        return _checked_result(self.name, "merge", self._function.merge(one, other))


def _checked_result(name: str, method: str, value: Any) -> Any:
    """Return the result of a user's function; None would silently clear the state."""
    if value is None:
        raise InvalidArgument(
            "HR-2003", f"state '{name}': {method}() of its function returned None; it must return the new value"
        )
    return value


# --- descriptors ----------------------------------------------------------------------------------------------------


class StateDescriptor:
    """The name and the type of a state of an operator; two are equal if kind and name are."""

    kind: ClassVar[str]
    handle: ClassVar[type[_TableState]]

    def __init__(self, name: str, type_info: object = None) -> None:
        if not isinstance(name, str) or not name:
            raise InvalidArgument(
                "HR-2005", f"{type(self).__name__} needs a name: a str that is not empty, got {name!r}"
            )
        self.name = check_storable(name, "the state name")
        self.type: TypeInformation = as_type(type_info)
        self.map_key_type: TypeInformation | None = None
        self.ttl: StateTtlConfig | None = None

    def get_name(self) -> str:
        """Return the name of the state, unique in its operator."""
        return self.name

    def meta(self) -> StateMeta:
        """Return the part of the description that a snapshot stores."""
        map_key = None if self.map_key_type is None else TypeMeta.of(self.map_key_type)
        return StateMeta(self.name, self.kind, TypeMeta.of(self.type), map_key, self.ttl is not None)

    def enable_time_to_live(self, ttl_config: StateTtlConfig | Time | timedelta | int) -> None:
        """Let entries expire; a plain duration means the default settings.

        >>> descriptor = ValueStateDescriptor("last", "string")
        >>> descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.days(1)).build())
        """
        if not isinstance(ttl_config, StateTtlConfig):
            ttl_config = StateTtlConfig.new_builder(ttl_config).build()
        self.ttl = ttl_config if ttl_config.is_enabled() else None

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, StateDescriptor) and other.name == self.name

    def __hash__(self) -> int:
        return hash((type(self), self.name))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.type})"


class ValueStateDescriptor(StateDescriptor):
    """One value per key; where nothing is stored, a read returns a copy of `default`.

    >>> ValueStateDescriptor("count", "bigint", default=0)
    ValueStateDescriptor('count', bigint)
    """

    kind = "value"
    handle = TableValueState

    def __init__(self, name: str, value_type_info: object = None, default: Any = None) -> None:
        super().__init__(name, value_type_info)
        self.default = default


class ListStateDescriptor(StateDescriptor):
    """A list per key; the type is that of one element.

    >>> ListStateDescriptor("buffer", "word string, n bigint")
    ListStateDescriptor('buffer', row<word string, n bigint>)
    """

    kind = "list"
    handle = ListState

    def __init__(self, name: str, elem_type_info: object = None) -> None:
        super().__init__(name, elem_type_info)


class MapStateDescriptor(StateDescriptor):
    """A map per key.

    >>> MapStateDescriptor("seen", "string", "bigint")
    MapStateDescriptor('seen', string, bigint)
    """

    kind = "map"
    handle = MapState

    def __init__(self, name: str, key_type_info: object = None, value_type_info: object = None) -> None:
        super().__init__(name, value_type_info)
        self.map_key_type: TypeInformation = as_type(key_type_info)

    def __repr__(self) -> str:
        return f"MapStateDescriptor({self.name!r}, {self.map_key_type}, {self.type})"


class ReducingStateDescriptor(StateDescriptor):
    """Values combined by a function: `f(a, b)`, or an object with `reduce(a, b)`.

    >>> ReducingStateDescriptor("sum", lambda a, b: a + b, "bigint").reduce(1, 2)
    3
    """

    kind = "reducing"
    handle = ReducingState

    def __init__(self, name: str, reduce_function: Any, type_info: object = None) -> None:
        super().__init__(name, type_info)
        bound = getattr(reduce_function, "reduce", reduce_function)
        if not callable(bound) or isinstance(reduce_function, type):
            raise InvalidArgument(
                "HR-1204",
                f"state '{name}' needs a reduce function: a callable of two values or an object with reduce(a, b), "
                f"got {reduce_function!r}",
            )
        self.reduce: Callable[[Any, Any], Any] = bound
        self._function = reduce_function

    def get_reduce_function(self) -> Any:
        """Return the function as it was given."""
        return self._function


class AggregatingStateDescriptor(StateDescriptor):
    """Values folded into an accumulator by an object with create_accumulator, add, get_result and merge.

    The type is that of the accumulator; values and results may be of other types. A class with these methods is
    instantiated.
    """

    kind = "aggregating"
    handle = AggregatingState

    def __init__(self, name: str, agg_function: Any, state_type_info: object = None) -> None:
        super().__init__(name, state_type_info)
        function = agg_function() if isinstance(agg_function, type) else agg_function
        missing = [
            m for m in ("create_accumulator", "add", "get_result", "merge") if not callable(getattr(function, m, None))
        ]
        if missing:
            raise InvalidArgument(
                "HR-1204", f"state '{name}' needs an aggregate function: {agg_function!r} lacks {', '.join(missing)}"
            )
        self.function = function

    def get_agg_function(self) -> Any:
        """Return the function that folds."""
        return self.function
