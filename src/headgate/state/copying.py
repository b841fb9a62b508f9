"""Copies of values that users read, so that changing one in place does not change the state.

Immutable values are returned as they are: str, int, float, bool, bytes, None, dates, decimals, and tuples, rows and
frozensets of these. Anything else is copied on read, unless the job sets `pipeline.object-reuse`.
"""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import uuid
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from headgate.records.types import TypeInformation

ATOMS: Final = frozenset(
    [
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
    ]
)


def is_immutable(value: Any) -> bool:
    """Whether a value can be returned by reference.

    >>> is_immutable((1, ("a", None))), is_immutable((1, [2]))
    (True, False)
    """
    if type(value) in ATOMS:
        return True
    if not (isinstance(value, tuple) or type(value) is frozenset) or hasattr(value, "__dict__"):
        return False
    return all(type(item) in ATOMS or is_immutable(item) for item in value)


def copied(value: Any) -> Any:
    """The value if it is immutable, else a copy that shares nothing mutable with it."""
    kind = type(value)
    if kind in ATOMS or is_immutable(value):
        return value
    # A flat container is copied in C; deepcopy takes ten times as long.
    if kind is list and all(type(item) in ATOMS for item in value):
        return value.copy()
    if kind is dict and all(type(item) in ATOMS for item in value.values()) and all(map(is_immutable, value)):
        return value.copy()
    if kind is set:
        return value.copy()
    return copy.deepcopy(value)


def copier(type_info: TypeInformation) -> Callable[[Any], Any] | None:
    """The function that copies values of this type on read; None: no value needs a copy."""
    if type_info.schema is not None and not any(pa.types.is_nested(field.type) for field in type_info.schema):
        return None
    return copied
