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

from headgate.errors import StateMigrationError

__all__ = ["durable", "from_bytes", "from_text", "to_bytes", "to_text"]

C = TypeVar("C", bound=type)

_CLASSES: dict[str, type] = {}
_PLAIN, _PICKLE = "plain", "pickle"


def durable(tag: str) -> Callable[[C], C]:
    """Store values of a dataclass or msgspec struct under a tag, as their fields; a class decorator.

    Fields may be added later if they have defaults; any other change needs a class with another tag.

    >>> from dataclasses import dataclass
    >>> @durable("doc-page-1")
    ... @dataclass
    ... class Page:
    ...     number: int
    >>> to_text(Page(3))
    '["doc-page-1",{"number":3}]'
    >>> from_text('["doc-page-1",{"number":4}]')
    Page(number=4)
    """

    def register(cls: C) -> C:
        if tag in (_PLAIN, _PICKLE) or _CLASSES.setdefault(tag, cls) is not cls:
            raise TypeError(f"{cls.__qualname__}: the tag '{tag}' belongs to {_CLASSES.get(tag, 'headgate')}")
        cls._durable_tag = tag  # type: ignore[attr-defined]
        return cls

    return register


def to_text(value: Any) -> str:
    """A value as JSON: readable in tables of state."""
    return msgspec.json.encode(_tagged(value)).decode()


def from_text(text: str) -> Any:
    """The value of a JSON text. Pickles are loaded: it must come from a verified snapshot or the job's own workers."""
    return _value(msgspec.json, text)


def to_bytes(value: Any) -> bytes:
    """A value as MessagePack, for those that hold many bytes."""
    return msgspec.msgpack.encode(_tagged(value))


def from_bytes(data: bytes) -> Any:
    """The value of `to_bytes`; the same caution applies as for `from_text`."""
    return _value(msgspec.msgpack, data)


def _tagged(value: Any) -> tuple[str, Any]:
    kind = type(value)
    if "_durable_tag" in vars(kind):
        return kind._durable_tag, value  # noqa: SLF001
    if value is None or kind in (bool, str) or (kind is int and abs(value) < 1 << 63):
        return _PLAIN, value
    return _PICKLE, cloudpickle.dumps(value, protocol=5)


def _value(format: Any, data: Any) -> Any:
    tag, stored = format.decode(data, type=tuple[str, msgspec.Raw])
    if tag == _PLAIN:
        return format.decode(stored)
    if tag == _PICKLE:
        return pickle.loads(format.decode(stored, type=bytes))
    kind = _class_of(tag)
    value = format.decode(stored, type=kind)
    if "__msgspec_cache__" in vars(kind):
        del kind.__msgspec_cache__  # type: ignore[attr-defined]  # a class of a script is pickled, and this cannot be
    return value


def _class_of(tag: str) -> type:
    if tag not in _CLASSES:
        # On a worker, classes of the program's own script came by value: only cloudpickle knows them.
        brought = internals._DYNAMIC_CLASS_TRACKER_BY_CLASS  # noqa: SLF001
        found = next((kind for kind in list(brought) if vars(kind).get("_durable_tag") == tag), None)
        if found is None:
            raise StateMigrationError(
                f"a stored value has the tag '{tag}', which is unknown here: a newer version of headgate wrote it, or a "
                "connector that this program does not use; upgrade, use the same source or sink, or drop the operator's state"
            )
        _CLASSES[tag] = found
    return _CLASSES[tag]
