"""Tagged forms of values that checkpoints hold: splits, committables, states of enumerators and writers.

A stored value names its tag (`kafka-split-1`), never a module, so code can move while snapshots stay readable. Values of
classes without a tag are pickled, under the tag `pickle`: their classes must stay importable under the same path.
Sources and sinks are stored with it on the driver and in workers.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import cloudpickle
import msgspec
from cloudpickle import cloudpickle as internals

from headrace.errors import InvalidArgument, StateMigrationError

__all__ = ["durable", "pack", "to_text", "unpack"]

C = TypeVar("C", bound=type)

_CLASSES: dict[str, type] = {}
_PLAIN, _PICKLE = "plain", "pickle"
_BINARY = {_PICKLE}  # tags of values that hold many bytes


def durable(tag: str, *, binary: bool = False) -> Callable[[C], C]:
    """Store values of a dataclass or msgspec struct under a tag, as their fields; a class decorator.

    Fields may be added later if they have defaults; any other change needs a class with another tag. `binary`: most of
    a value are bytes, which JSON would blow up.

    >>> from dataclasses import dataclass
    >>> @durable("doc-page-1")
    ... @dataclass
    ... class Page:
    ...     number: int
    >>> to_text(Page(3))
    '["doc-page-1",{"number":3}]'
    >>> unpack('["doc-page-1",{"number":4}]')
    Page(number=4)
    """

    def register(cls: C) -> C:
        if tag in (_PLAIN, _PICKLE) or _CLASSES.setdefault(tag, cls) is not cls:
            raise TypeError(f"{cls.__qualname__}: the tag '{tag}' belongs to {_CLASSES.get(tag, 'headrace')}")
        cls._durable_tag = tag  # type: ignore[attr-defined]
        _BINARY.update([tag] if binary else ())
        return cls

    return register


def to_text(value: Any) -> str:
    """A value as JSON: readable in tables of state."""
    return msgspec.json.encode(_tagged(value)).decode()


def pack(value: Any) -> str | bytes:
    """A value as JSON, or as MessagePack if it holds many bytes."""
    tag, stored = _tagged(value)
    return msgspec.msgpack.encode((tag, stored)) if tag in _BINARY else to_text(value)


def unpack(data: str | bytes) -> Any:
    """The value of `to_text` or `pack`. Pickles are loaded: `data` is of a verified snapshot or of the job's workers."""
    format: Any = msgspec.json if isinstance(data, str) else msgspec.msgpack
    tag, stored = format.decode(data, type=tuple[str, msgspec.Raw])
    if tag == _PLAIN:
        return format.decode(stored)
    if tag == _PICKLE:
        return pickle.loads(format.decode(stored, type=bytes))
    return _decode(format, stored, _class_of(tag))


def _decode(format: Any, stored: Any, kind: type) -> Any:
    try:
        return format.decode(stored, type=kind)
    finally:
        if "__msgspec_cache__" in vars(kind):
            del kind.__msgspec_cache__  # type: ignore[attr-defined]  # a class of a script is pickled, and this cannot be


def _tagged(value: Any) -> tuple[str, Any]:
    kind = type(value)
    if "_durable_tag" in vars(kind):
        if kind._durable_tag not in _BINARY:  # noqa: SLF001 - a second copy of many bytes costs too much
            _check_readable(kind, value)
        return kind._durable_tag, value  # noqa: SLF001
    if value is None or kind in (bool, str) or (kind is int and abs(value) < 1 << 63):
        return _PLAIN, value
    return _PICKLE, cloudpickle.dumps(value, protocol=5)


def _check_readable(kind: type, value: Any) -> None:
    """Refuse a value now that could not be restored later: a NaN, a field without a precise type."""
    try:
        same = _decode(msgspec.json, msgspec.json.encode(value), kind) == value
    except (msgspec.MsgspecError, TypeError) as error:
        raise InvalidArgument("HR-2004", f"{value!r} cannot be stored under '{kind._durable_tag}': {error}") from error  # type: ignore[attr-defined]  # noqa: SLF001
    if not same:
        raise InvalidArgument(
            "HR-2004",
            f"{value!r} would not be read back as it is from '{kind._durable_tag}': "  # type: ignore[attr-defined]  # noqa: SLF001
            "give its fields types without Any, or leave out @durable, so that it is pickled",
        )


def _class_of(tag: str) -> type:
    if tag not in _CLASSES:
        # On a worker, classes of the program's own script came by value: only cloudpickle knows them.
        brought = internals._DYNAMIC_CLASS_TRACKER_BY_CLASS  # noqa: SLF001
        found = next((kind for kind in list(brought) if vars(kind).get("_durable_tag") == tag), None)
        if found is None:
            raise StateMigrationError(
                "HR-2102",
                f"a stored value has the tag '{tag}', which is unknown here: a newer version of headrace wrote it, or a "
                "connector that this program does not use; upgrade, use the same source or sink, or drop the operator's state",
            )
        _CLASSES[tag] = found
    return _CLASSES[tag]
