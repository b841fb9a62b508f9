"""Tagged forms of values that checkpoints hold: splits, committables, states of enumerators and writers.

A stored value names its tag (`kafka-split-1`), never a module, so code can move while snapshots stay readable. Values of
classes without a tag are pickled, under the tag `pickle`: their classes must stay importable under the same path.
Sources and sinks use it on the driver and in workers.
"""

from __future__ import annotations

import pickle
from typing import Any, TypeVar

import cloudpickle
import msgspec

from headgate.errors import StateMigrationError

__all__ = ["durable", "from_bytes", "from_text", "to_bytes", "to_text"]

S = TypeVar("S", bound=type[msgspec.Struct])

_CLASSES: dict[str, type[msgspec.Struct]] = {}


def durable(cls: S) -> S:
    """Register a struct with a tag; a class decorator.

    Fields may be added later if they have defaults; any other change needs a class with another tag.

    >>> @durable
    ... class Page(msgspec.Struct, tag="doc-page-1"):
    ...     number: int
    >>> to_text(Page(3))
    '{"type":"doc-page-1","number":3}'
    >>> from_text('{"type":"doc-page-1","number":4}')
    Page(number=4)
    """
    tag = cls.__struct_config__.tag
    if not isinstance(tag, str) or _CLASSES.setdefault(tag, cls) is not cls:
        raise TypeError(f"{cls.__qualname__} needs a tag of its own, got {tag!r}")
    return cls


@durable
class _PlainValue(msgspec.Struct, tag="plain"):
    value: bool | int | str | None


@durable
class _PickledValue(msgspec.Struct, tag="pickle"):
    data: bytes


class _Tag(msgspec.Struct):
    type: str


def to_text(value: Any) -> str:
    """A value as JSON: readable in tables of state."""
    return msgspec.json.encode(_wrap(value)).decode()


def from_text(text: str) -> Any:
    """The value of a JSON text. Pickles are loaded: it must come from a verified snapshot or the job's own workers."""
    return _unwrap(msgspec.json, text)


def to_bytes(value: Any) -> bytes:
    """A value as MessagePack, for those that hold many bytes."""
    return msgspec.msgpack.encode(_wrap(value))


def from_bytes(data: bytes) -> Any:
    """The value of `to_bytes`; the same caution applies as for `from_text`."""
    return _unwrap(msgspec.msgpack, data)


def _wrap(value: Any) -> msgspec.Struct:
    if isinstance(value, msgspec.Struct) and _CLASSES.get(str(value.__struct_config__.tag)) is type(value):
        return value
    if value is None or type(value) in (bool, str) or (type(value) is int and abs(value) < 1 << 63):
        return _PlainValue(value)
    return _PickledValue(cloudpickle.dumps(value, protocol=5))


def _unwrap(format: Any, data: Any) -> Any:
    tag = format.decode(data, type=_Tag).type
    if tag not in _CLASSES:
        raise StateMigrationError(
            f"a stored value has the tag '{tag}', which is unknown here: a newer version of headgate wrote it, or a "
            "connector that this program does not use; upgrade, use the same source or sink, or drop the operator's state"
        )
    value = format.decode(data, type=_CLASSES[tag])
    if isinstance(value, _PlainValue):
        return value.value
    return pickle.loads(value.data) if isinstance(value, _PickledValue) else value
