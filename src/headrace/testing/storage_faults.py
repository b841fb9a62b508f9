"""A store in memory that fails on demand: for tests, and for the simulator, which draws the faults from its seed.

Nothing here looks at a clock or a random number, so a run can be repeated exactly.
"""

from __future__ import annotations

import enum
import errno
from collections.abc import Callable, Iterable
from threading import RLock

import msgspec

from headrace.errors import StorageError
from headrace.storage.objects import MissingObject, ObjectInfo, ObjectStore, ObjectWriter, OutcomeUnknown, storage_error

__all__ = ["Fault", "FaultKind", "FaultyStore", "MemoryStore", "Operation"]


class MemoryStore(ObjectStore):
    """Objects in a dict; each instance is a world of its own, and any path will do.

    >>> store = MemoryStore()
    >>> store.put("chk/7", b"abc")
    >>> store.read("chk/7", 1, 1), store.list_names("chk")
    (b'b', ['7'])
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self._lock = RLock()

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        data = self._get("read", path)
        return data[offset:] if length is None else data[offset : offset + length]

    def size(self, path: str) -> int:
        return len(self._get("look at", path))

    def list_objects(self, directory: str) -> list[ObjectInfo]:
        objects = list(self.objects.items())
        return sorted(ObjectInfo(path, len(data)) for path, data in objects if path.startswith(f"{directory}/"))

    def list_names(self, directory: str) -> list[str]:
        start = len(directory) + 1
        return sorted({info.path[start:].partition("/")[0] for info in self.list_objects(directory)})

    def put(self, path: str, data: bytes) -> None:
        with self._lock:
            self.objects[path] = bytes(data)

    def create_if_absent(self, path: str, data: bytes) -> bool:
        with self._lock:
            absent = path not in self.objects
            self.objects.setdefault(path, bytes(data))
            return absent

    def delete(self, path: str) -> None:
        with self._lock:
            self.objects.pop(path, None)

    def make_directory(self, directory: str) -> bool:
        return not self.list_objects(directory)

    def remove_directory(self, directory: str) -> None:
        """Do nothing: the directory went with its last object."""

    def writer(self, directory: str, label: str = "") -> ObjectWriter:
        return _MemoryWriter(directory, self.put)

    def _get(self, action: str, path: str) -> bytes:
        with self._lock:
            if path not in self.objects:
                raise storage_error(action, path, FileNotFoundError(errno.ENOENT, "no such object", path))
            return self.objects[path]


class _MemoryWriter(ObjectWriter):
    def __init__(self, directory: str, put: Callable[[str, bytes], None]) -> None:
        super().__init__(directory)
        self._put = put
        self._buffer = bytearray()

    def _append(self, data: bytes | memoryview) -> None:
        self._buffer += data

    def _commit(self, path: str) -> None:
        self._put(path, bytes(self._buffer))

    def _discard(self) -> None:
        self._buffer.clear()


class FaultKind(enum.Enum):
    """The kinds of storage faults.

    >>> FaultKind("torn")
    <FaultKind.TORN: 'torn'>
    """

    FAIL = "fail"  # an error, and nothing has happened; `amount` is an errno
    TORN = "torn"  # a write stores only the first `amount` bytes, then an error; an atomic create stores nothing
    LOST_REPLY = "lost reply"  # it has happened, but the caller gets an error
    FLIP = "flip"  # byte number `amount` (modulo the size) has a flipped bit; no error
    SLOW = "slow"  # it takes `amount` milliseconds longer


class Operation(enum.Enum):
    """Calls that can be disturbed; a put, a create and the end of a writer are all writes.

    >>> Operation("write")
    <Operation.WRITE: 'write'>
    """

    READ = "read"
    WRITE = "write"
    DELETE = "delete"


class Fault(msgspec.Struct, frozen=True):
    """Disturb the `nth` operation (from 1) of a kind whose path contains `within`; None disturbs all of them.

    >>> Fault(FaultKind.FAIL, 1, amount=errno.ENOSPC).operation
    <Operation.WRITE: 'write'>
    """

    kind: FaultKind
    nth: int | None = 1
    operation: Operation = Operation.WRITE
    within: str = ""
    amount: int = 0


class FaultyStore(MemoryStore):
    """A store in memory with a plan of faults; `delay` is called with the milliseconds of a slow operation.

    >>> store = FaultyStore([Fault(FaultKind.FAIL, 2, amount=errno.ENOSPC)])
    >>> store.put("a", b"1")
    >>> store.put("b", b"2")
    Traceback (most recent call last):
    headrace.errors.StorageError: [HR-3103] cannot write 'b': the disk is full (ENOSPC); free some space there, or use another execution.checkpointing.dir
    """

    def __init__(self, faults: Iterable[Fault] = (), delay: Callable[[int], None] | None = None) -> None:
        super().__init__()
        self.history: list[tuple[Operation, str]] = []
        self.before: Callable[[Operation, str], None] | None = None  # called before each operation
        self._delay = delay
        self._plan: list[tuple[Fault, list[int]]] = []
        for fault in faults:
            self.inject(fault)

    def inject(self, fault: Fault) -> None:
        """Add a fault; it counts operations from now on."""
        with self._lock:
            self._plan.append((fault, [0]))

    def heal(self) -> None:
        """Drop all faults; what they have done to objects stays."""
        with self._lock:
            self._plan.clear()

    def flip(self, path: str, position: int) -> None:
        """Flip a bit of a stored object."""
        with self._lock:
            self.objects[path] = _flipped(self.objects[path], position)

    def truncate(self, path: str, length: int) -> None:
        """Cut a stored object off."""
        with self._lock:
            self.objects[path] = self.objects[path][:length]

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        fault = self._next(Operation.READ, path)
        if fault is not None and fault.kind in {FaultKind.FAIL, FaultKind.TORN, FaultKind.LOST_REPLY}:
            raise _failure("read", path, fault)
        data = super().read(path, offset, length)
        return _flipped(data, fault.amount) if fault is not None and fault.kind is FaultKind.FLIP else data

    def put(self, path: str, data: bytes) -> None:
        self._write("write", path, data, super().put)

    def create_if_absent(self, path: str, data: bytes) -> bool:
        return bool(self._write("create", path, data, super().create_if_absent))

    def _write(self, action: str, path: str, data: bytes, write: Callable[[str, bytes], bool | None]) -> bool | None:
        fault = self._next(Operation.WRITE, path)
        if fault is None:
            return write(path, data)
        if fault.kind is FaultKind.TORN and action == "write":
            write(path, data[: fault.amount])
        if fault.kind in {FaultKind.FAIL, FaultKind.TORN}:
            raise _failure(action, path, fault)
        created = write(path, _flipped(data, fault.amount) if fault.kind is FaultKind.FLIP else data)
        if fault.kind is FaultKind.LOST_REPLY:
            raise _failure(action, path, fault)
        return created

    def delete(self, path: str) -> None:
        fault = self._next(Operation.DELETE, path)
        if fault is None or fault.kind is not FaultKind.FAIL:
            super().delete(path)
        if fault is not None and fault.kind in {FaultKind.FAIL, FaultKind.TORN, FaultKind.LOST_REPLY}:
            raise _failure("delete", path, fault)

    def _next(self, operation: Operation, path: str) -> Fault | None:
        """Return the fault for this operation; all that match are counted, the first that is due is taken."""
        if self.before is not None:
            self.before(operation, path)
        with self._lock:
            self.history.append((operation, path))
            due = None
            for fault, seen in self._plan:
                if fault.operation is operation and fault.within in path:
                    seen[0] += 1
                    if due is None and fault.nth in {None, seen[0]}:
                        due = fault
        if due is not None and due.kind is FaultKind.SLOW and self._delay is not None:
            self._delay(due.amount)
        return due


def _failure(action: str, path: str, fault: Fault) -> StorageError:
    if fault.kind is FaultKind.LOST_REPLY:
        return OutcomeUnknown(f"cannot {action} '{path}': the reply was lost; it may have happened")
    if fault.kind is FaultKind.FAIL and fault.amount == errno.ENOENT:
        return MissingObject(f"cannot {action} '{path}': FileNotFound")
    code = (fault.amount if fault.kind is FaultKind.FAIL else 0) or errno.EIO
    return storage_error(action, path, OSError(code, "injected fault"))


def _flipped(data: bytes, position: int) -> bytes:
    if not data:
        return data
    damaged = bytearray(data)
    damaged[position % len(data)] ^= 1 << position % 8
    return bytes(damaged)
