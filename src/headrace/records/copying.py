"""Copies of values: changing one in place changes neither the state it was read from nor a record that was emitted.

Immutable values are returned as they are: str, int, float, bool, bytes, None, dates, decimals, numpy's numbers, and tuples,
rows and frozensets of these. Anything else is copied, unless the job sets `pipeline.object-reuse`.
"""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from headrace.records.flink_values import MutableRow
from headrace.records.types import TypeInformation, TypeMismatch, form_of

T = TypeVar("T")
ATOMS: Final[set[type]] = {
    int,
    str,
    float,
    bool,
    bytes,
    type(None),
    complex,
    dt.date,
    dt.datetime,
    dt.time,
    dt.timedelta,
    decimal.Decimal,
    uuid.UUID,
    *(np.dtype(code).type for code in "?bhilqBHILQefd"),
}
"""Classes whose objects never change."""


def immutable(cls: type[T]) -> type[T]:
    """Decorates a class whose objects never change, so that they need no copy."""
    ATOMS.add(cls)
    return cls


def is_immutable(value: Any) -> bool:
    """Return True if a value can be returned by reference.

    >>> is_immutable((1, ("a", None))), is_immutable((1, [2]))
    (True, False)
    """
    if type(value) in ATOMS:
        return True
    if not (isinstance(value, tuple) or type(value) is frozenset) or hasattr(value, "__dict__"):
        return False
    return all(type(item) in ATOMS or is_immutable(item) for item in value)


def copied(value: Any) -> Any:
    """Return the value if it is immutable, else a copy that shares nothing mutable with it.

    >>> row = {"word": "a", "n": 1}
    >>> copied(row) == row, copied(row) is row
    (True, False)
    """
    kind = type(value)
    if kind in ATOMS:
        return value
    # A flat container is copied in C; deepcopy takes ten times as long.
    if kind is tuple:
        if _are_atoms(map(type, value)):
            return value
    elif kind is list or kind is MutableRow:
        if _are_atoms(map(type, value)):
            return value.copy()
    elif kind is dict:
        if _are_atoms(map(type, value.values())) and (_are_atoms(map(type, value)) or all(map(is_immutable, value))):
            return value.copy()
    elif kind is set:
        return value.copy()
    elif kind in _PLAIN or _is_plain(kind):
        attributes = value.__dict__
        if _are_atoms(map(type, attributes.values())):
            made = object.__new__(kind)
            made.__dict__.update(attributes)
            return made
    return value if is_immutable(value) else copy.deepcopy(value)


def detached(value: Any) -> Any:
    """A record that shares nothing mutable with what its maker keeps; or the record itself, if it cannot be copied."""
    try:
        return copied(value)
    except Exception:  # an iterator, for example, which only a chained operator can take
        return value


_are_atoms = ATOMS.issuperset
_PLAIN: Final[set[type]] = set()  # classes whose objects are their attributes
_USUAL: Final = ("__new__", "__reduce_ex__", "__reduce__", "__getstate__")
_SPECIAL: Final = ("__copy__", "__deepcopy__", "__setstate__", "__slots__", "__getnewargs__", "__getnewargs_ex__")


def _is_plain(kind: type) -> bool:
    """Return True if an object is copied by copying its attributes, and nothing else is to be done."""
    as_usual = all(getattr(kind, name, None) is getattr(object, name, None) for name in _USUAL)
    plain = as_usual and kind.__dictoffset__ != 0 and not any(hasattr(kind, name) for name in _SPECIAL)
    if plain:
        _PLAIN.add(kind)
    return plain


def copier(type_info: TypeInformation) -> Callable[[Any], Any] | None:
    """Return the function that copies values of this type on read; None: no value needs a copy."""
    if type_info.mutable:
        return partial(_row_copied, type_info)
    if type_info.schema is not None and not any(map(_may_change, type_info.schema)):
        return None
    return copied


def _row_copied(type_info: TypeInformation, value: Any) -> Any:
    """Return a copy of a row that can be changed, with the names of its type."""
    try:
        return copied(type_info.normalise([value])[0])
    except TypeMismatch:
        return copied(value)  # it is refused when it is stored


def _may_change(field: pa.Field) -> bool:
    return pa.types.is_nested(field.type) or form_of(field) == "pickled"
