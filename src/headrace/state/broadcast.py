"""Broadcast state: a map that every subtask of an operator holds in full (SPEC R4.4).

The broadcast side of an operator gets a `BroadcastState` and may change it; the other side gets a
`ReadOnlyBroadcastState`. The copies are not compared: they stay equal because every subtask processes every broadcast
record and makes the same change, while a record of the other side is processed by one subtask only. All of it runs in
the subtask's thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, NoReturn, TypeVar

from headrace.errors import IllegalState, InvalidArgument

K = TypeVar("K")
V = TypeVar("V")

_MUTATORS = frozenset({"clear", "put", "put_all", "remove"})


class ReadOnlyBroadcastState(Generic[K, V]):
    """The view of a broadcast state for the non-broadcast side: it shows every change, and allows none.

    Values are returned by reference; changing one in place is an error that cannot be detected here.

    >>> rules = BroadcastState("rules")
    >>> rules.put("limit", 10)
    >>> view = rules.read_only()
    >>> view.get("limit"), view["limit"], "limit" in view, list(view.items())
    (10, 10, True, [('limit', 10)])
    """

    def __init__(self, name: str, entries: dict[K, V] | None = None) -> None:
        self.name = name
        self._entries: dict[K, V] = {} if entries is None else entries

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None; `contains` tells a missing key from a None value."""
        try:
            return self._entries.get(key)
        except TypeError as error:
            raise self._bad_key(key, error) from None

    def contains(self, key: K) -> bool:
        """Return True if the key has an entry."""
        try:
            return key in self._entries
        except TypeError as error:
            raise self._bad_key(key, error) from None

    def items(self) -> Iterator[tuple[K, V]]:
        """All entries."""
        return iter(self._entries.items())

    def keys(self) -> Iterator[K]:
        """All keys."""
        return iter(self._entries)

    def values(self) -> Iterator[V]:
        """All values."""
        return iter(self._entries.values())

    def is_empty(self) -> bool:
        """Return True if there is no entry."""
        return not self._entries

    __getitem__ = get
    __contains__ = contains

    def __iter__(self) -> Iterator[K]:
        return self.keys()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self._entries!r})"

    # Without these the caller would get an AttributeError or a TypeError that does not name the reason.
    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute in _MUTATORS:
            raise self._read_only(f"{attribute}()")
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{attribute}'")

    def __setitem__(self, key: K, value: V) -> None:
        raise self._read_only("state[key] = value")

    def __delitem__(self, key: K) -> None:
        raise self._read_only("del state[key]")

    def _read_only(self, attempt: str) -> IllegalState:
        return IllegalState(
            "HR-2008",
            f"broadcast state '{self.name}' is read-only on this side: {attempt} is not allowed; change it in "
            "process_broadcast_element(), where every subtask makes the same change",
        )

    def _bad_key(self, key: object, error: TypeError) -> InvalidArgument:
        return InvalidArgument(
            "HR-2008",
            f"broadcast state '{self.name}': a {type(key).__name__} cannot be a key ({error}); "
            "use an immutable value, for example a str, an int or a tuple",
        )


class BroadcastState(ReadOnlyBroadcastState[K, V]):
    """The broadcast state for the broadcast side: every change must depend on broadcast records only.

    An iteration shows the entries at its beginning, so entries may be removed and put meanwhile.

    >>> rules = BroadcastState("rules")
    >>> rules.put_all({"a": 1, "b": 2})
    >>> for key, value in rules.items():
    ...     if value == 1:
    ...         rules.remove(key)
    >>> list(rules.keys())
    ['b']
    """

    def put(self, key: K, value: V) -> None:
        """Set the value of a key. None is a value, not a key."""
        if key is None:
            raise self._none_key()
        try:
            self._entries[key] = value
        except TypeError as error:
            raise self._bad_key(key, error) from None

    def put_all(self, dict_value: Mapping[K, V]) -> None:
        """Set the values of many keys; all of them or, if one key is wrong, none."""
        try:
            new = dict(dict_value)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(
                "HR-2008",
                f"broadcast state '{self.name}': put_all() takes a dict, got {type(dict_value).__name__} ({error})",
            ) from None
        if None in new:
            raise self._none_key()
        self._entries.update(new)

    def remove(self, key: K) -> None:
        """Delete the entry of a key, if there is one."""
        try:
            self._entries.pop(key, None)
        except TypeError as error:
            raise self._bad_key(key, error) from None

    def clear(self) -> None:
        """Delete all entries."""
        self._entries.clear()

    def read_only(self) -> ReadOnlyBroadcastState[K, V]:
        """Return the view for the other side."""
        return ReadOnlyBroadcastState(self.name, self._entries)

    def items(self) -> Iterator[tuple[K, V]]:
        """All entries."""
        return iter(list(self._entries.items()))

    def keys(self) -> Iterator[K]:
        """All keys."""
        return iter(list(self._entries))

    def values(self) -> Iterator[V]:
        """All values."""
        return iter(list(self._entries.values()))

    __setitem__ = put
    __delitem__ = remove

    def _none_key(self) -> InvalidArgument:
        return InvalidArgument(
            "HR-2008",
            f"broadcast state '{self.name}': None cannot be a key; use a constant of your own for a single entry",
        )


class BroadcastStates:
    """The broadcast states of one operator: those whose descriptors were given to `stream.broadcast(...)`.

    The contexts of a broadcast process function call `writable` on the broadcast side and `read_only` on the other.

    >>> states = BroadcastStates([BroadcastState("rules")])
    >>> states.writable("rules").put("a", 1)
    >>> states.read_only("rules").get("a")
    1
    """

    def __init__(self, states: list[BroadcastState[Any, Any]]) -> None:
        self._writable = {state.name: state for state in states}
        # Made once: the read-only side gets its view for every record.
        self._read_only = {state.name: state.read_only() for state in states}

    def writable(self, name: str) -> BroadcastState[Any, Any]:
        """Return the state for the broadcast side; InvalidArgument if it was not declared."""
        self._check(name)
        return self._writable[name]

    def read_only(self, name: str) -> ReadOnlyBroadcastState[Any, Any]:
        """Return the state for the other side; InvalidArgument if it was not declared."""
        self._check(name)
        return self._read_only[name]

    def _check(self, name: str) -> None:
        if name not in self._writable:
            known = ", ".join(f"'{known}'" for known in sorted(self._writable)) or "none"
            raise InvalidArgument(
                "HR-2008",
                f"broadcast state '{name}' was not declared for this operator (declared: {known}); "
                "pass its descriptor to stream.broadcast(...) as well",
            )
