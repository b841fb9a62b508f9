"""What users hold: descriptors and the five kinds of keyed state, in PyFlink's spelling (SPEC R1).

A descriptor names a state and says what it holds; the runtime context turns it into a handle. A handle is one object
for the life of the operator, and what it answers depends on the key of the record that is being processed:

    class Count(KeyedProcessFunction):
        def open(self, ctx):
            self.count = ctx.get_state(ValueStateDescriptor("count", "bigint"))

        def process_element(self, value, ctx):
            self.count.update((self.count.value() or 0) + 1)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any, ClassVar, Generic, TypeVar

from headgate.errors import InvalidArgument
from headgate.records.types import TypeInformation, as_type
from headgate.state.ttl_config import CleanupStrategies, StateTtlConfig, Time

__all__ = [
    "AggregatingState",
    "AggregatingStateDescriptor",
    "CleanupStrategies",
    "ListState",
    "ListStateDescriptor",
    "MapEntries",
    "MapState",
    "MapStateDescriptor",
    "ReducingState",
    "ReducingStateDescriptor",
    "State",
    "StateDescriptor",
    "StateTtlConfig",
    "Time",
    "ValueState",
    "ValueStateDescriptor",
]

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
    """One value per key; None is the absence of one."""

    @abstractmethod
    def value(self) -> T | None:
        """The value of the current key, else the descriptor's default, else None."""

    @abstractmethod
    def update(self, value: T | None) -> None:
        """Store a value; None clears."""


class ListState(State, Generic[T]):
    """A list per key, in order of insertion; elements are never None.

    Iterating a handle iterates the elements of the current key.
    """

    @abstractmethod
    def get(self) -> list[T]:
        """The elements; an empty list if there are none. Changing the list does not change the state."""

    @abstractmethod
    def add(self, value: T) -> None:
        """Append one element."""

    @abstractmethod
    def add_all(self, values: Iterable[T]) -> None:
        """Append several elements; none given: nothing happens."""

    @abstractmethod
    def update(self, values: Iterable[T]) -> None:
        """Replace all elements; none given: the same as clear()."""

    def __iter__(self) -> Iterator[T]:
        return iter(self.get())


class MapEntries(Iterator[T]):
    """An iteration over a map that may remove as it goes; the map may also be changed freely meanwhile.

    `remove()` deletes the entry that was returned last; `has_next()` in between does not matter.
    """

    @abstractmethod
    def has_next(self) -> bool:
        """Whether another entry follows."""

    @abstractmethod
    def remove(self) -> None:
        """Delete the entry returned last; IllegalState if there is none or it is gone already."""


class MapState(State, Generic[K, V]):
    """A map per key, stored entry by entry. Iterating a handle iterates the keys of the map."""

    @abstractmethod
    def get(self, key: K) -> V | None:
        """The value of an entry, or None."""

    @abstractmethod
    def put(self, key: K, value: V) -> None:
        """Add or replace one entry; the value may be None if its type allows that."""

    @abstractmethod
    def put_all(self, dict_value: dict[K, V]) -> None:
        """Add or replace several entries."""

    @abstractmethod
    def remove(self, key: K) -> None:
        """Remove one entry, if it is there."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Whether there is such an entry."""

    @abstractmethod
    def items(self) -> MapEntries[tuple[K, V]]:
        """All entries."""

    @abstractmethod
    def keys(self) -> MapEntries[K]:
        """The keys of all entries."""

    @abstractmethod
    def values(self) -> MapEntries[V]:
        """The values of all entries."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Whether there are no entries."""

    def __getitem__(self, key: K) -> V | None:
        return self.get(key)

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        self.remove(key)

    def __contains__(self, key: K) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[K]:
        return self.keys()


class ReducingState(State, Generic[T]):
    """All values added for a key, combined into one by the descriptor's function."""

    @abstractmethod
    def get(self) -> T | None:
        """The combined value, or None."""

    @abstractmethod
    def add(self, value: T | None) -> None:
        """Combine one more value; None clears."""


class AggregatingState(State, Generic[IN, OUT]):
    """All values added for a key, folded into an accumulator by the descriptor's function."""

    @abstractmethod
    def get(self) -> OUT | None:
        """The result of the accumulator, or None if nothing was added."""

    @abstractmethod
    def add(self, value: IN | None) -> None:
        """Fold one more value in; None clears."""


# --- descriptors ----------------------------------------------------------------------------------------------------


class StateDescriptor:
    """Names a state of an operator and says what it holds; two are equal if kind and name are."""

    kind: ClassVar[str]

    def __init__(self, name: str, type_info: object = None) -> None:
        if not isinstance(name, str) or not name:
            raise InvalidArgument(f"{type(self).__name__} needs a name: a str that is not empty, got {name!r}")
        self.name = name
        self.type: TypeInformation = as_type(type_info)
        self.ttl: StateTtlConfig | None = None

    def get_name(self) -> str:
        """The name of the state, unique in its operator."""
        return self.name

    @property
    def map_key_type(self) -> TypeInformation | None:
        """The type of a map's keys; None for the other kinds."""
        return None

    def enable_time_to_live(self, ttl_config: StateTtlConfig | Time | timedelta | int) -> None:
        """Let entries expire; also takes a plain length of time for the default settings.

        >>> descriptor = ValueStateDescriptor("last", "string")
        >>> descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.days(1)).build())
        """
        if not isinstance(ttl_config, StateTtlConfig):
            ttl_config = StateTtlConfig.new_builder(ttl_config).build()
        self.ttl = ttl_config if ttl_config.is_enabled else None

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, StateDescriptor) and other.name == self.name

    def __hash__(self) -> int:
        return hash((type(self), self.name))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.type})"


class ValueStateDescriptor(StateDescriptor):
    """One value per key; `default` is handed out, as a copy, where nothing is stored.

    >>> ValueStateDescriptor("count", "bigint", default=0)
    ValueStateDescriptor('count', bigint)
    """

    kind = "value"

    def __init__(self, name: str, type_info: object = None, default: Any = None) -> None:
        super().__init__(name, type_info)
        self.default = default


class ListStateDescriptor(StateDescriptor):
    """A list per key; the type is that of one element.

    >>> ListStateDescriptor("buffer", "word string, n bigint")
    ListStateDescriptor('buffer', row<word string, n bigint>)
    """

    kind = "list"

    def __init__(self, name: str, elem_type_info: object = None) -> None:
        super().__init__(name, elem_type_info)


class MapStateDescriptor(StateDescriptor):
    """A map per key.

    >>> MapStateDescriptor("seen", "string", "bigint")
    MapStateDescriptor('seen', string, bigint)
    """

    kind = "map"

    def __init__(self, name: str, key_type_info: object = None, value_type_info: object = None) -> None:
        super().__init__(name, value_type_info)
        self._map_key_type = as_type(key_type_info)

    @property
    def map_key_type(self) -> TypeInformation:
        """The type of the map's keys."""
        return self._map_key_type

    def __repr__(self) -> str:
        return f"MapStateDescriptor({self.name!r}, {self._map_key_type}, {self.type})"


class ReducingStateDescriptor(StateDescriptor):
    """Values combined by a function: `f(a, b)`, or an object with `reduce(a, b)`.

    >>> ReducingStateDescriptor("sum", lambda a, b: a + b, "bigint").reduce(1, 2)
    3
    """

    kind = "reducing"

    def __init__(self, name: str, reduce_function: Any, type_info: object = None) -> None:
        super().__init__(name, type_info)
        bound = getattr(reduce_function, "reduce", reduce_function)
        if not callable(bound) or isinstance(reduce_function, type):
            raise InvalidArgument(
                f"state '{name}' needs a reduce function: a callable of two values or an object with reduce(a, b), "
                f"got {reduce_function!r}"
            )
        self.reduce: Callable[[Any, Any], Any] = bound


class AggregatingStateDescriptor(StateDescriptor):
    """Values folded into an accumulator by an object with create_accumulator, add, get_result and merge.

    The type is that of the accumulator; values and results may be of other types. A class with these methods is
    instantiated.
    """

    kind = "aggregating"

    def __init__(self, name: str, agg_function: Any, state_type_info: object = None) -> None:
        super().__init__(name, state_type_info)
        function = agg_function() if isinstance(agg_function, type) else agg_function
        missing = [
            m for m in ("create_accumulator", "add", "get_result", "merge") if not callable(getattr(function, m, None))
        ]
        if missing:
            raise InvalidArgument(
                f"state '{name}' needs an aggregate function: {agg_function!r} lacks {', '.join(missing)}"
            )
        self.function = function
