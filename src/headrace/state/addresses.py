"""Addresses: what state tables are keyed by; used by both backends in the subtask's thread.

Python's dicts take 1, 1.0 and True for the same key, Headrace does not (SPEC R3.1). So a key becomes an *address*:

    str, int, bytes       the key itself, which costs nothing
    bool, float, others   (type, value); -0.0 becomes 0.0 and there is one NaN
    tuples                a tuple of addresses; the tuple itself if all its fields are plain
    list, dict, set, row  (type, addresses of what is in it), in a form that can be hashed
    with a namespace      (NAMESPACED, address, namespace)

A user's tuple never looks like a tagged one: a field that is a type would itself be tagged.
"""

from __future__ import annotations

import copyreg
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, NoReturn

import numpy as np

from headrace.errors import IllegalState, InvalidArgument
from headrace.records.flink_values import MutableRow, restored_row
from headrace.records.kernel import KeyContext

_PLAIN: Final = frozenset([str, int, bytes])
_TUPLE: Final = frozenset([tuple])
_NAN: Final = float("nan")

FOREIGN_GROUP: Final = (
    "state was used for a key group that another subtask owns: the key of a record must be the same "
    "on both sides of key_by()"
)


class NoKeySet(IllegalState):
    """Keyed state was used while no key is selected (SPEC R1.1)."""

    class_code = "HR-2002"


class _NoKey:
    """The address while no key is selected: looking it up in a table raises NoKeySet, so the hot path needs no check."""

    def __hash__(self) -> int:  # noqa: PLE0309 - it never returns
        self.refuse()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        return "NO_KEY"

    @staticmethod
    def refuse(what: str = "keyed state") -> NoReturn:
        raise NoKeySet(
            f"No key set: {what} was used while no record and no timer of a keyed stream is being processed, "
            "for example in open() or process_broadcast_element(); use it in process_element() or on_timer(), "
            "or reach all keys with apply_to_keyed_state()"
        )


class _Namespaced:
    def __repr__(self) -> str:
        return "NAMESPACED"


class _Void:
    """The namespace of state that belongs to a key alone."""

    def __repr__(self) -> str:
        return "VOID"

    def __reduce__(self) -> str:
        return "VOID"


class _ForeignTable(dict[Any, Any]):
    """The table of a key group of another subtask: state written there would be lost, so every access is refused."""

    def _refuse(self, *_: Any) -> Any:
        raise IllegalState("HR-2010", FOREIGN_GROUP)

    __getitem__ = __setitem__ = get = pop = __contains__ = _refuse


NO_KEY: Final = _NoKey()
NAMESPACED: Final = _Namespaced()
VOID: Final = _Void()
FOREIGN_TABLE: Final = _ForeignTable()
copyreg.add_extension(__name__, "VOID", 240)  # timers are stored with it: a pickle holds this number, not the path


def no_key() -> KeyContext:
    """Return a context in which no key is selected."""
    return KeyContext(NO_KEY)


def address_of(key: Any) -> Any:
    """Return the address of one key.

    >>> address_of("a"), address_of(1.0), address_of((1, True))
    ('a', (<class 'float'>, 1.0), (1, (<class 'bool'>, True)))
    """
    kind = type(key)
    if kind in _PLAIN:
        return key
    if kind is bool:
        return (bool, key)
    if isinstance(key, float):
        return (float, _NAN if math.isnan(key) else float(key) + 0.0)  # adding 0.0 turns -0.0 into 0.0
    if isinstance(key, tuple):
        fields = tuple([address_of(field) for field in key])
        return key if all(a is b for a, b in zip(fields, key, strict=True)) else fields
    if isinstance(key, str | int | bytes):
        return key  # a subclass, which hashes and compares as its plain type
    if isinstance(key, np.generic):
        return address_of(key.item())
    if kind in _CONTAINERS:
        return (kind, _CONTAINERS[kind][0](key))
    try:
        hash(key)
    except TypeError:
        raise InvalidArgument(
            "HR-1305",
            f"key {key!r} of type {kind.__qualname__} cannot be a key: it is not hashable; for a dataclass, use frozen=True",
        ) from None
    return (kind, key)


def _addresses(keys: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(map(address_of, keys))


def _keys(addresses: Iterable[Any]) -> Iterator[Any]:
    return map(key_of, addresses)


# What cannot be hashed, as something that can be, and back.
_CONTAINERS: Final[dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]]] = {
    list: (_addresses, lambda held: list(_keys(held))),
    set: (lambda key: frozenset(_addresses(key)), lambda held: set(_keys(held))),
    dict: (
        lambda key: frozenset((address_of(k), address_of(v)) for k, v in key.items()),
        lambda held: {key_of(k): key_of(v) for k, v in held},
    ),
    MutableRow: (
        lambda key: (None if key.names is None else tuple(key.names), _addresses(key)),
        lambda held: restored_row(_keys(held[1]), held[0]),
    ),
}


def prepare_keys(keys: list[Any]) -> list[Any]:
    """Return the addresses of a batch of keys; the same list if every key is its own address."""
    kinds = set(map(type, keys))
    if kinds <= _PLAIN:
        return keys
    if kinds == _TUPLE and set(map(type, chain.from_iterable(keys))) <= _PLAIN:
        return keys
    return list(map(address_of, keys))


def key_of(address: Any) -> Any:
    """Return the key of an address without namespace: the inverse of `address_of`, except for subclasses.

    >>> key_of((1, (float, 2.0)))
    (1, 2.0)
    """
    if not isinstance(address, tuple):
        return address
    if len(address) == 2 and isinstance(address[0], type):
        kind, held = address
        return _CONTAINERS[kind][1](held) if kind in _CONTAINERS else held
    if any(isinstance(field, tuple) for field in address):
        return tuple([key_of(field) for field in address])
    return address


def check_namespace(namespace: Any) -> None:
    """Raise InvalidArgument for a namespace that cannot be one (SPEC R1.2)."""
    if namespace is None:
        raise InvalidArgument(
            "HR-2014", "namespace is None: use a window, or VOID for state that belongs to the key alone"
        )
    try:
        hash(namespace)
    except TypeError:
        raise InvalidArgument(
            "HR-2014", f"namespace {namespace!r} is not hashable: use a window, a tuple or a str"
        ) from None


def in_namespace(address: Any, namespace: Any) -> Any:
    """Return the address of the same key in a namespace; `address` must have none."""
    return address if namespace is VOID else (NAMESPACED, address, namespace)


def split_address(address: Any) -> tuple[Any, Any]:
    """Return the address of the key alone, and the namespace.

    >>> split_address(in_namespace("a", 7)), split_address("a")
    (('a', 7), ('a', VOID))
    """
    if type(address) is tuple and len(address) == 3 and address[0] is NAMESPACED:
        return address[1], address[2]
    return address, VOID


def keys_of(addresses: Sequence[Any]) -> list[Any]:
    """Return the keys of many addresses without namespace."""
    if set(map(type, addresses)) <= _PLAIN:
        return list(addresses)
    return list(map(key_of, addresses))
