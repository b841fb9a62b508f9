"""Pickles of untyped state: written once per chunk, read only after their checksum was verified, in any thread.

Classes of the program's own script (`__main__`) cannot be imported by a worker, so values of such classes are written by
cloudpickle, which stores the class too. When they are read, a class of the same name that the program defines replaces
the stored one: `isinstance` holds and methods are the new ones, as for classes of importable modules.
"""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any

import cloudpickle
from cloudpickle import cloudpickle as internals

from headrace.errors import InvalidArgument, StateMigrationError


def dump_values(values: list[Any], where: str) -> bytes:
    """Values as one pickle; InvalidArgument names the type of the first that cannot be stored."""
    try:
        data = pickle.dumps(values, protocol=5)
        if b"__main__" not in data:
            return data
    except (pickle.PicklingError, AttributeError, TypeError):
        pass  # cloudpickle may be able to
    try:
        return bytes(cloudpickle.dumps(values, protocol=5))
    except Exception as error:
        raise _unpicklable(values, where, error) from error


def _unpicklable(values: list[Any], where: str, error: Exception) -> InvalidArgument:
    for value in values:
        try:
            cloudpickle.dumps(value)
        except Exception:
            return InvalidArgument(
                "HR-2004",
                f"{where}: a value of type {type(value).__qualname__} cannot be stored: {error}; "
                "keep plain data in state, and make clients, locks and files in open()",
            )
    return InvalidArgument("HR-2004", f"{where}: values cannot be stored: {error}")


def load_values(data: bytes, where: str) -> list[Any]:
    """Return the values of a pickle; StateMigrationError names the class that is missing or incompatible."""
    reader = _Reader(io.BytesIO(data))
    try:
        values: list[Any] = reader.load()
    except Exception as error:
        raise StateMigrationError(
            "HR-2102",
            f"{where}: stored values need class '{reader.last}', which cannot be read back: {error}; "
            "keep the class importable under its old name and able to take its old fields, or drop the state",
        ) from error
    return values


class _Reader(pickle.Unpickler):
    """An unpickler that records the class it looked up last."""

    last = "?"

    def find_class(self, module: str, name: str, /) -> Any:
        if module == internals.__name__ and name == "_make_skeleton_class":
            return self._skeleton
        if module == internals.__name__ and name == "_class_setstate":
            return _fill_class
        self.last = f"{module}.{name}"
        return super().find_class(module, name)

    def _skeleton(self, kind: Any, name: str, bases: Any, fields: dict[str, Any], tracker: str, extra: Any) -> Any:
        self.last = f"{fields.get('__module__', '__main__')}.{name}"
        known = _program_class(str(fields.get("__module__")), name, tracker)
        return known or internals._make_skeleton_class(kind, name, bases, fields, tracker, extra)  # noqa: SLF001


def _program_class(module: str, name: str, tracker: str) -> type | None:
    """Return the class of that name that the running program defines, if there is exactly one."""
    found = getattr(sys.modules.get(module), name, None)
    if isinstance(found, type):
        return found
    trackers = internals._DYNAMIC_CLASS_TRACKER_BY_ID  # noqa: SLF001 - where cloudpickle keeps the classes it brought
    known: list[type] = [
        kind
        for key, kind in list(trackers.items())
        if kind.__name__ == name and kind.__module__ == module and key not in _from_state
    ]
    if len(known) == 1:
        return known[0]
    _from_state.add(tracker)
    return None


# Trackers of classes that only stored state defines; they never replace the definition of another class.
_from_state: set[str] = set()


def _fill_class(kind: type, state: Any) -> type:
    """Complete a class that was created from a pickle; a class of the program is left unchanged."""
    tracker = internals._DYNAMIC_CLASS_TRACKER_BY_CLASS.get(kind)  # noqa: SLF001
    if tracker in _from_state:
        internals._class_setstate(kind, state)  # noqa: SLF001
    return kind
