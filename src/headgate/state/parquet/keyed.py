"""Keyed state as Parquet tables: what a canonical savepoint holds (SPEC R8.2).

One table for each state, one file for each subtask, sorted by key group and key, row groups cut at key groups:

    key_group  key  namespace?  value               value, reducing and aggregating state
    key_group  key  namespace?  pos  value          list state, one row for each element
    key_group  key  namespace?  map_key  value      map state, one row for each entry
    key_group  key  namespace?  domain  ts          timers
    key_group  value                                raw keyed state

`ttl_ts` is added to each value of a state with a time to live. A typed key or value is a column of its type, of several
fields a struct; of an untyped one there is `..._pickle` and, for people, `..._text`.

No backend knows of this: a native snapshot is read back into a backend of its own, whose states are then walked through;
and the other way round.
"""

from __future__ import annotations

import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headgate.checkpoint.assignment import check_max_parallelism
from headgate.checkpoint.handles import FileRef, KeyedStateHandle, Payload, ReadPayload, StateMeta, TypeMeta
from headgate.errors import IllegalState
from headgate.records.key_groups import KeyGroupRange
from headgate.records.types import PICKLED, TypeInformation, as_type
from headgate.state.addresses import VOID, address_of, in_namespace, key_of, prepare_keys, split_address
from headgate.state.api import ValueStateDescriptor
from headgate.state.backend import BackendSetup, KeyedStateBackend, SnapshotKind, SnapshotRun, StateSpec
from headgate.state.cells import ListCell, MapCell, ValueCell
from headgate.state.parquet.columns import column_fields, columns_of, values_of
from headgate.state.pickling import dump_values, load_values
from headgate.state.timers import TIMERS, TimeDomain
from headgate.state.ttl_config import StateTtlConfig, Time

__all__ = [
    "CANONICAL",
    "CanonicalRun",
    "StoredTable",
    "as_native",
    "describe_tables",
    "read_tables",
    "stored_tables",
    "table_schema",
]

CANONICAL = "canonical"
_RAW = "_raw"
_CHUNK = 1 << 20
_ROWS = 1 << 16  # in a row group at most
_STAMPS = pa.int64()
_BIGINT = as_type("bigint")
_TTL = StateTtlConfig.new_builder(Time.days(36500)).disable_cleanup_in_background().build()
_TIMERS_META = StateMeta(TIMERS, "timers", TypeMeta.of(_BIGINT))
_RAW_META = StateMeta(_RAW, "raw", TypeMeta.of(as_type("binary")))


class StoredTable(msgspec.Struct, frozen=True):
    """One table of a snapshot: its state, its file, and the key group of each row group."""

    meta: StateMeta
    file: str
    groups: list[int]
    rows: int = 0


class _Extra(msgspec.Struct, frozen=True):
    tables: list[StoredTable]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Entries of one key group in the form that tables have: one element, entry or value a row."""

    keys: list[Any]
    namespaces: list[Any]
    values: list[Any]
    extra: list[Any] | None = None  # positions in a list, keys of a map
    stamps: list[int] | None = None


# ---- schema --------------------------------------------------------------------------------------------------------


def table_schema(meta: StateMeta, key_type: TypeInformation) -> pa.Schema:
    """The columns of a state's table.

    >>> from headgate.checkpoint.handles import TypeMeta
    >>> table_schema(StateMeta("total", "value", TypeMeta.of(as_type("bigint"))), as_type("string")).names
    ['key_group', 'key', 'namespace', 'value']
    """
    fields = [pa.field("key_group", pa.int32(), nullable=False)]
    if meta.kind != "raw":
        fields += [*column_fields("key", key_type), pa.field("namespace", pa.binary())]
    if meta.kind == "timers":
        return pa.schema([*fields, pa.field("domain", pa.string()), pa.field("ts", pa.int64())])
    if meta.kind == "list":
        fields.append(pa.field("pos", pa.int32(), nullable=False))
    if meta.kind == "map":
        fields += column_fields("map_key", _map_key_type(meta))
    fields += column_fields("value", meta.value_type.type_info())
    if meta.ttl:
        fields.append(pa.field("ttl_ts", _STAMPS))
    return pa.schema(fields)


def _map_key_type(meta: StateMeta) -> TypeInformation:
    return PICKLED if meta.map_key_type is None else meta.map_key_type.type_info()


def _spec(meta: StateMeta) -> StateSpec:
    map_key = None if meta.map_key_type is None else meta.map_key_type.type_info()
    return StateSpec(meta.name, meta.kind, meta.value_type.type_info(), map_key, _TTL if meta.ttl else None)


# ---- out of a backend ----------------------------------------------------------------------------------------------


def read_tables(backend: KeyedStateBackend) -> Iterator[tuple[StateMeta, Iterator[tuple[int, pa.RecordBatch]]]]:
    """Every state of a backend that was just restored, as (key group, rows of the table) in the order of the groups."""
    key_type = backend.setup.key_type
    for meta in backend.restored_metas():
        yield meta, _batches(meta, key_type, _entries(backend, meta))
    timers = sorted(backend.timers.all(), key=lambda timer: timer.group)
    if timers:
        groups = groupby(timers, key=lambda timer: timer.group)
        yield _TIMERS_META, ((group, _timer_rows(group, list(some), key_type)) for group, some in groups)
    raw = backend.raw_groups()
    if raw:
        schema = table_schema(_RAW_META, key_type)
        yield (
            _RAW_META,
            (
                (
                    group,
                    pa.RecordBatch.from_pydict({"key_group": [group], "value": [backend.raw(group)]}, schema=schema),
                )
                for group in sorted(raw)
            ),
        )


def _timer_rows(group: int, timers: list[Any], key_type: TypeInformation) -> pa.RecordBatch:
    columns = [
        pa.array([group] * len(timers), pa.int32()),
        *columns_of([key_of(timer.address) for timer in timers], key_type),
        _namespaces([timer.namespace for timer in timers]),
        pa.array([timer.domain.name.lower() for timer in timers]),
        pa.array([timer.timestamp for timer in timers], pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=table_schema(_TIMERS_META, key_type))


def _entries(backend: KeyedStateBackend, meta: StateMeta) -> Iterator[tuple[int, _Rows]]:
    cell = backend.open_cell(_spec(meta))
    table = None
    if meta.kind == "value" and not meta.ttl:
        table = backend.value_table(ValueStateDescriptor(meta.name, meta.value_type.type_info()))
    for group, found in groupby(backend.addresses(meta.name), key=itemgetter(0)):
        addresses = [address for _, address in found]
        for at in range(0, len(addresses), _ROWS):
            some = addresses[at : at + _ROWS]
            if table is not None:
                stored: Sequence[Any] = table.get_many(some, [group] * len(some))
            else:
                stored = [_stored(backend, cell, group, address) for address in some]
            yield group, _sorted(_rows(meta, some, stored))


def _stored(backend: KeyedStateBackend, cell: Any, group: int, address: Any) -> Any:
    backend.context.address, backend.context.group = address, group
    if isinstance(cell, MapCell):
        return dict(cell.entries())
    return cell.get()


def _rows(meta: StateMeta, addresses: Sequence[Any], stored: Sequence[Any]) -> _Rows:
    parts = [split_address(address) for address in addresses]
    keys = [key_of(address) for address, _ in parts]
    namespaces = [None if namespace is VOID else namespace for _, namespace in parts]
    extra: list[Any] | None = None
    values = list(stored)
    if meta.kind in {"list", "map"}:
        counts = [len(one) for one in stored]
        keys = [key for key, count in zip(keys, counts, strict=True) for _ in range(count)]
        namespaces = [one for one, count in zip(namespaces, counts, strict=True) for _ in range(count)]
        if meta.kind == "list":
            extra = [position for count in counts for position in range(count)]
            values = [element for one in stored for element in one]
        else:
            extra = [key_of(map_key) for one in stored for map_key in one]
            values = [value for one in stored for value in one.values()]
    if not meta.ttl:
        return _Rows(keys, namespaces, values, extra)
    return _Rows(keys, namespaces, [value for value, _ in values], extra, [stamp for _, stamp in values])


def _sorted(rows: _Rows) -> _Rows:
    """By key; rows of one list stay in order."""
    try:
        order = sorted(range(len(rows.keys)), key=rows.keys.__getitem__)
    except TypeError:  # keys of several types have no order
        order = sorted(range(len(rows.keys)), key=lambda i: repr(rows.keys[i]))

    def moved(column: list[Any] | None) -> Any:
        return None if column is None else [column[i] for i in order]

    return _Rows(moved(rows.keys), moved(rows.namespaces), moved(rows.values), moved(rows.extra), moved(rows.stamps))


def _batches(
    meta: StateMeta, key_type: TypeInformation, entries: Iterator[tuple[int, _Rows]]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    schema = table_schema(meta, key_type)
    for group, rows in entries:
        columns = [pa.array([group] * len(rows.keys), pa.int32()), *columns_of(rows.keys, key_type)]
        columns.append(_namespaces(rows.namespaces))
        if meta.kind == "list":
            columns.append(pa.array(rows.extra, pa.int32()))
        elif meta.kind == "map":
            columns += columns_of(rows.extra or [], _map_key_type(meta))
        columns += columns_of(rows.values, meta.value_type.type_info())
        if meta.ttl:
            columns.append(pa.array(rows.stamps, _STAMPS))
        yield group, pa.RecordBatch.from_arrays(columns, schema=schema)


def _namespaces(namespaces: list[Any]) -> pa.Array:
    if not any(one is not None for one in namespaces):
        return pa.nulls(len(namespaces), pa.binary())
    cells = [None if one is None or one is VOID else dump_values([one], "a namespace") for one in namespaces]
    return pa.array(cells, pa.binary())


class _Spool:
    """Payloads in local files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._names: dict[str, Path] = {}
        directory.mkdir(parents=True, exist_ok=True)

    def keep(self, run: SnapshotRun) -> KeyedStateHandle | None:
        """Run a snapshot to its end."""
        current, file = "", None
        for name, data in run:
            if name != current:
                if file is not None:
                    file.close()
                current = name
                file = self._path(name).open("ab")
            assert file is not None
            file.write(data)
        if file is not None:
            file.close()
        return run.handle

    def _path(self, name: str) -> Path:
        return self._names.setdefault(name, self._directory / str(len(self._names)))

    def read(self, payload: Payload, offset: int, length: int) -> bytes:
        """Some bytes of a payload."""
        path = Path(payload.path) if payload.path is not None else self._names[payload.id]
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(length)


def _scratch(setup: BackendSetup, directory: Path, key_type: TypeInformation) -> BackendSetup:
    return replace(
        setup, directory=directory, key_type=key_type, incremental=False, instance=f"{setup.instance}-scratch"
    )


class CanonicalRun(SnapshotRun):
    """A native snapshot that is written as tables. `file_of` names the file of a state."""

    def __init__(self, backend: KeyedStateBackend, checkpoint_id: int, file_of: Callable[[str], str]) -> None:
        """The synchronous part is that of the native snapshot."""
        self.checkpoint_id = checkpoint_id
        self._make, self._setup, self._file_of = type(backend), backend.setup, file_of
        self._native = backend.snapshot(checkpoint_id, SnapshotKind.SAVEPOINT)
        self._handle: KeyedStateHandle | None = None
        self._done = False
        self._steps = self._work()

    @property
    def handle(self) -> KeyedStateHandle | None:
        """What the snapshot left."""
        if not self._done:
            raise IllegalState(f"savepoint {self.checkpoint_id} is not written yet: iterate it to its end first")
        return self._handle

    def cancel(self) -> None:
        """Stop."""
        self._native.cancel()

    def __next__(self) -> tuple[str, bytes]:
        return next(self._steps)

    def _work(self) -> Iterator[tuple[str, bytes]]:
        with tempfile.TemporaryDirectory(prefix="headgate-savepoint-") as name:
            directory = Path(name)
            spool = _Spool(directory / "native")
            native = spool.keep(self._native)
            if native is not None:
                yield from self._tables(native, spool, directory)
        self._done = True

    def _tables(self, native: KeyedStateHandle, spool: _Spool, directory: Path) -> Iterator[tuple[str, bytes]]:
        scratch = self._make(_scratch(self._setup, directory / "scratch", self._setup.key_type))
        files: list[FileRef] = []
        tables: list[StoredTable] = []
        try:
            scratch.restore([native], spool.read)
            for meta, batches in read_tables(scratch):
                path = directory / f"table-{len(files)}.parquet"
                name = self._file_of(meta.name)
                table = _write(meta, self._setup.key_type, batches, path, name)
                if not table.groups:
                    path.unlink()
                    continue
                crc32 = 0
                with path.open("rb") as file:
                    while data := file.read(_CHUNK):
                        crc32 = zlib.crc32(data, crc32)
                        yield name, data
                files.append(FileRef(name, Payload(name, path.stat().st_size, crc32), False, self.checkpoint_id))
                tables.append(table)
                path.unlink()
        finally:
            scratch.dispose()
        groups = KeyGroupRange(native.first_group, native.last_group)
        self._handle = describe_tables(
            native.checkpoint_id, native.max_parallelism, groups, self._setup.key_type, files, tables
        )


def _write(
    meta: StateMeta, key_type: TypeInformation, batches: Iterable[tuple[int, pa.RecordBatch]], path: Path, name: str
) -> StoredTable:
    groups: list[int] = []
    rows = 0
    with pq.ParquetWriter(path, table_schema(meta, key_type), compression="zstd") as writer:
        for group, batch in batches:
            if batch.num_rows:
                writer.write_table(pa.Table.from_batches([batch]), row_group_size=batch.num_rows)
                groups.append(group)
                rows += batch.num_rows
    return StoredTable(meta, name, groups, rows)


# ---- into a backend ------------------------------------------------------------------------------------------------


def as_native(
    make: type[KeyedStateBackend], setup: BackendSetup, handles: Sequence[KeyedStateHandle], read: ReadPayload
) -> tuple[list[KeyedStateHandle], ReadPayload, Callable[[], None]]:
    """Handles that a backend can restore: canonical ones are read into a backend of the same make and snapshotted there.

    The last one of the answer is called when the restore is done.
    """
    tables = [handle for handle in handles if handle.backend == CANONICAL]
    native = [handle for handle in handles if handle.backend != CANONICAL]
    if not tables:
        return list(handles), read, _nothing
    for handle in tables:
        check_max_parallelism(f"operator '{setup.operator}'", handle.max_parallelism, setup.max_parallelism)
    directory = Path(tempfile.mkdtemp(prefix="headgate-restore-"))

    def remove() -> None:
        shutil.rmtree(directory, ignore_errors=True)

    spool = _Spool(directory / "native")
    stored_key = tables[0].key_type.type_info()
    scratch = make(_scratch(setup, directory / "scratch", stored_key))
    try:
        for handle in tables:
            _load(scratch, handle, read)
        made = spool.keep(scratch.snapshot(tables[0].checkpoint_id, SnapshotKind.SAVEPOINT))
    except BaseException:
        remove()
        raise
    finally:
        scratch.dispose()
    if made is not None:
        native.append(made)
    names = {payload.id for payload in made.payloads()} if made is not None else set()

    def read_either(payload: Payload, offset: int, length: int) -> bytes:
        return spool.read(payload, offset, length) if payload.id in names else read(payload, offset, length)

    return native, read_either, remove


def stored_tables(handle: KeyedStateHandle) -> list[StoredTable]:
    """The tables of a canonical handle."""
    return msgspec.convert(handle.extra, _Extra).tables


def describe_tables(
    checkpoint_id: int,
    max_parallelism: int,
    groups: KeyGroupRange,
    key_type: TypeInformation,
    files: list[FileRef],
    tables: list[StoredTable],
) -> KeyedStateHandle:
    """The handle of a subtask's tables."""
    extra: dict[str, Any] = msgspec.to_builtins(_Extra(tables), builtin_types=(bytes,))
    return KeyedStateHandle(
        CANONICAL,
        checkpoint_id,
        max_parallelism,
        groups.start,
        groups.end,
        TypeMeta.of(key_type),
        files=files,
        extra=extra,
    )


def _nothing() -> None:
    """There is nothing to remove."""


def _load(backend: KeyedStateBackend, handle: KeyedStateHandle, read: ReadPayload) -> None:
    files = {file.name: file.payload for file in handle.files}
    for table in stored_tables(handle):
        with _PayloadFile(files[table.file], read) as source:
            parquet = pq.ParquetFile(pa.PythonFile(source, mode="r"))
            for index, group in enumerate(table.groups):
                if group in backend.setup.key_groups:
                    _load_rows(backend, table.meta, handle.key_type.type_info(), group, parquet.read_row_group(index))


def _load_rows(
    backend: KeyedStateBackend, meta: StateMeta, key_type: TypeInformation, group: int, table: pa.Table
) -> None:
    if meta.kind == "raw":
        backend.put_raw(group, table.column("value")[0].as_py())
        return
    keys = prepare_keys(values_of(table, "key", key_type))
    addresses = [
        address if namespace is None else in_namespace(address, namespace)
        for address, namespace in zip(keys, _read_namespaces(table.column("namespace")), strict=True)
    ]
    if meta.kind == "timers":
        for address, domain, ts in zip(
            addresses, table.column("domain").to_pylist(), table.column("ts").to_pylist(), strict=True
        ):
            backend.timers.register(TimeDomain[domain.upper()], ts, address, group)
        return
    values = values_of(table, "value", meta.value_type.type_info())
    if meta.ttl:
        values = list(zip(values, table.column("ttl_ts").to_pylist(), strict=True))
    extra = values_of(table, "map_key", _map_key_type(meta)) if meta.kind == "map" else None
    backend.begin_batch(addresses, [group] * len(addresses))
    _store(backend, meta, group, addresses, values, extra)
    backend.end_batch()
    backend.clear_current_key()


def _store(
    backend: KeyedStateBackend,
    meta: StateMeta,
    group: int,
    addresses: list[Any],
    values: list[Any],
    map_keys: list[Any] | None,
) -> None:
    if meta.kind == "value" and not meta.ttl and all(split_address(one)[1] is VOID for one in addresses):
        table = backend.value_table(ValueStateDescriptor(meta.name, meta.value_type.type_info()))
        table.put_many(addresses, [group] * len(addresses), values)
        return
    context = backend.context
    context.group = group
    if meta.kind == "value" and not meta.ttl:  # with namespaces
        state = backend.state(ValueStateDescriptor(meta.name, meta.value_type.type_info()))
        for context.address, value in zip(addresses, values, strict=True):
            state.update(value)
        return
    cell = backend.open_cell(_spec(meta))
    if isinstance(cell, ListCell):
        for context.address, found in groupby(zip(addresses, values, strict=True), key=itemgetter(0)):
            cell.extend([value for _, value in found])
    elif isinstance(cell, MapCell):
        assert map_keys is not None
        for context.address, map_key, value in zip(addresses, map_keys, values, strict=True):
            cell.put(address_of(map_key), value)
    else:
        assert isinstance(cell, ValueCell)
        for context.address, value in zip(addresses, values, strict=True):
            cell.put(value)


def _read_namespaces(column: pa.ChunkedArray) -> list[Any]:
    if column.null_count == len(column):
        return [None] * len(column)
    return [None if cell is None else load_values(cell, "a namespace")[0] for cell in column.to_pylist()]


class _PayloadFile:
    """A payload as a file that pyarrow reads from."""

    closed = False

    def __init__(self, payload: Payload, read: ReadPayload) -> None:
        self._payload, self._read, self._at = payload, read, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, size: int | None = -1) -> bytes:
        """The next bytes."""
        left = self._payload.size - self._at
        wanted = left if size is None or size < 0 else min(size, left)
        data = self._read(self._payload, self._at, wanted) if wanted > 0 else b""
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place."""
        self._at = offset + (0 if whence == 0 else self._at if whence == 1 else self._payload.size)
        return self._at

    def tell(self) -> int:
        """The place."""
        return self._at

    def readable(self) -> bool:
        """Yes."""
        return True

    seekable = readable

    def writable(self) -> bool:
        """No."""
        return False

    def flush(self) -> None:
        """Nothing is written."""

    def close(self) -> None:
        """Nothing is open."""
        self.closed = True
