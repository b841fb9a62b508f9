"""Keyed state as Parquet tables: the content of a canonical savepoint (SPEC R8.2).

One table for each state, one file for each subtask, sorted by key group and key, row groups divided at key groups:

    key_group  key  namespace?  value               value, reducing and aggregating state
    key_group  key  namespace?  pos  value          list state, one row for each element
    key_group  key  namespace?  map_key  value      map state, one row for each entry
    key_group  key  namespace?  domain  ts          timers
    key_group  value                                raw keyed state

`ttl_ts` is added to each value of a state with a time to live. A typed key or value is a column of its type, of several
fields a struct; an untyped one has the columns `..._pickle` and, for people, `..._text`.

Backends do not use this module: a native snapshot is restored into a temporary backend, whose states are then read; a
restore works the other way round. The thread that writes a snapshot writes tables, the subtask's thread reads them.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headgate.checkpoint.assignment import require_same_max_parallelism
from headgate.checkpoint.handles import FileRef, KeyedStateHandle, Payload, ReadPayload, StateMeta, TypeMeta
from headgate.records.key_groups import KeyGroupRange
from headgate.records.types import PICKLED, TypeInformation
from headgate.state.addresses import VOID, address_of, in_namespace, key_of, prepare_keys, split_address
from headgate.state.backend import (
    INTERNAL_KINDS,
    RAW_STREAMS,
    TIMER_TABLE,
    BackendSetup,
    KeyedStateBackend,
    SnapshotKind,
    SnapshotRun,
)
from headgate.state.local_directory import download
from headgate.state.parquet.columns import column_fields, columns_of, values_of
from headgate.state.pickling import dump_values, load_values
from headgate.state.tables import ListTable, MapTable
from headgate.state.timers import TimeDomain, Timer

CANONICAL = "canonical"
_CHUNK = 1 << 20
_ROWS = 1 << 16  # in a row group at most
_READ_ROWS = 4096  # at once, beside one row group of any size
_STAMPS = pa.int64()


class StoredTable(msgspec.Struct, frozen=True):
    """One table of a snapshot: its state, its file, and the key group of each row group."""

    meta: StateMeta
    file: str
    groups: list[int]
    rows: int = 0


class _StoredTables(msgspec.Struct, frozen=True):
    tables: list[StoredTable]


# ---- schema --------------------------------------------------------------------------------------------------------


def table_schema(meta: StateMeta, key_type: TypeInformation) -> pa.Schema:
    """The columns of a state's table.

    >>> from headgate.records.types import as_type
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


# ---- out of a backend ----------------------------------------------------------------------------------------------

_Entry = tuple[Any, Any, Any]  # key, namespace or None, stored


def read_tables(backend: KeyedStateBackend) -> Iterator[tuple[StateMeta, Iterator[tuple[int, pa.RecordBatch]]]]:
    """Every state of a restored backend that is not opened, as (key group, rows of the table) in the order of the groups."""
    key_type = backend.setup.key_type
    for meta in backend.restored_metas():
        if meta.kind in INTERNAL_KINDS:
            continue
        yield meta, ((group, _rows(meta, key_type, group, some)) for group, some in _entries(backend, meta))
    timers = sorted(backend.timers.all(), key=lambda timer: timer.group)
    if timers:
        groups = groupby(timers, key=lambda timer: timer.group)
        yield TIMER_TABLE, ((group, _timer_rows(group, list(some), key_type)) for group, some in groups)
    streams = {group: {"key_group": [group], "value": [stream]} for group, stream in backend.raw_streams().items()}
    if streams:
        schema = table_schema(RAW_STREAMS, PICKLED)
        yield RAW_STREAMS, ((group, pa.RecordBatch.from_pydict(row, schema)) for group, row in streams.items())


def _entries(backend: KeyedStateBackend, meta: StateMeta) -> Iterator[tuple[int, list[_Entry]]]:
    """The entries of a state by key group, sorted by key."""
    table = backend.open_table(meta)
    for group, found in groupby(backend.addresses(meta.name), key=itemgetter(0)):
        addresses = [address for _, address in found]
        for at in range(0, len(addresses), _ROWS):
            some = addresses[at : at + _ROWS]
            if isinstance(table, MapTable):
                stored: Sequence[Any] = [dict(table.entries(group, address)) for address in some]
            elif isinstance(table, ListTable):
                stored = [table.get(group, address) for address in some]
            else:
                stored = table.get_many(some, [group] * len(some))
            parts = map(split_address, some)
            entries = [
                (key_of(address), None if namespace is VOID else namespace, one)
                for (address, namespace), one in zip(parts, stored, strict=True)
            ]
            try:
                entries.sort(key=itemgetter(0))
            except TypeError:  # keys of several types cannot be compared
                entries.sort(key=lambda entry: repr(entry[0]))
            yield group, entries


def _rows(meta: StateMeta, key_type: TypeInformation, group: int, entries: list[_Entry]) -> pa.RecordBatch:
    """One row per value, element or entry."""
    columns = []
    if meta.kind == "list":
        columns = [pa.array([position for *_, stored in entries for position in range(len(stored))], pa.int32())]
        values = [element for *_, stored in entries for element in stored]
    elif meta.kind == "map":
        map_keys = [key_of(map_key) for *_, stored in entries for map_key in stored]
        columns = columns_of(map_keys, _map_key_type(meta))
        values = [value for *_, stored in entries for value in stored.values()]
    else:
        values = [stored for *_, stored in entries]
    if meta.kind in {"list", "map"}:
        entries = [entry for entry in entries for _ in entry[2]]
    stamps = []
    if meta.ttl:
        stamps = [pa.array([stamp for _, stamp in values], _STAMPS)]
        values = [value for value, _ in values]
    keys, namespaces = [key for key, *_ in entries], [namespace for _, namespace, _ in entries]
    columns = [*_address_columns(group, keys, namespaces, key_type), *columns]
    columns += [*columns_of(values, meta.value_type.type_info()), *stamps]
    return pa.RecordBatch.from_arrays(columns, schema=table_schema(meta, key_type))


def _timer_rows(group: int, timers: list[Timer], key_type: TypeInformation) -> pa.RecordBatch:
    keys = [key_of(timer.address) for timer in timers]
    columns = [
        *_address_columns(group, keys, [timer.namespace for timer in timers], key_type),
        pa.array([timer.domain.name.lower() for timer in timers]),
        pa.array([timer.timestamp for timer in timers], pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=table_schema(TIMER_TABLE, key_type))


def _address_columns(group: int, keys: list[Any], namespaces: list[Any], key_type: TypeInformation) -> list[pa.Array]:
    cells = [None if one is None or one is VOID else dump_values([one], "a namespace") for one in namespaces]
    return [pa.array([group] * len(keys), pa.int32()), *columns_of(keys, key_type), pa.array(cells, pa.binary())]


class _Spool:
    """Payloads in local files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._names: dict[str, Path] = {}
        directory.mkdir(parents=True, exist_ok=True)

    def write(self, run: SnapshotRun) -> KeyedStateHandle | None:
        """Run a snapshot to its end."""
        for name, data in run:
            path = self._names.setdefault(name, self._directory / str(len(self._names)))
            with path.open("ab") as file:
                file.write(data)
        return run.handle

    def __contains__(self, payload: Payload) -> bool:
        return payload.id in self._names

    def read(self, payload: Payload, offset: int, length: int) -> bytes:
        with self._names[payload.id].open("rb") as file:
            file.seek(offset)
            return file.read(length)


def _scratch(setup: BackendSetup, directory: Path, key_type: TypeInformation) -> BackendSetup:
    return replace(
        setup, directory=directory, key_type=key_type, incremental=False, instance=f"{setup.instance}-scratch"
    )


class CanonicalRun(SnapshotRun):
    """A native snapshot that is written as tables; the synchronous part is that of the native snapshot.

    `file_of` names the file of a state.
    """

    def __init__(self, backend: KeyedStateBackend, checkpoint_id: int, file_of: Callable[[str], str]) -> None:
        super().__init__(checkpoint_id)
        self._make, self._setup, self._file_of = type(backend), backend.setup, file_of
        self._native = backend.snapshot(checkpoint_id, SnapshotKind.SAVEPOINT)
        self._steps = self._work()

    def cancel(self) -> None:
        self._native.cancel()

    def _work(self) -> Iterator[tuple[str, bytes]]:
        with tempfile.TemporaryDirectory(prefix="headgate-savepoint-") as name:
            directory = Path(name)
            spool = _Spool(directory / "native")
            native = spool.write(self._native)
            if native is not None:
                yield from self._tables(native, spool, directory)

    def _tables(self, native: KeyedStateHandle, spool: _Spool, directory: Path) -> Iterator[tuple[str, bytes]]:
        scratch = self._make(_scratch(self._setup, directory / "scratch", self._setup.key_type))
        files: list[FileRef] = []
        tables: list[StoredTable] = []
        try:
            scratch.restore([native], spool.read)
            for meta, batches in read_tables(scratch):
                path = directory / "table.parquet"
                name = self._file_of(meta.name)
                table = write_table(meta, self._setup.key_type, batches, path, name)
                if not table.groups:
                    continue
                crc32 = 0
                with path.open("rb") as file:
                    while data := file.read(_CHUNK):
                        crc32 = zlib.crc32(data, crc32)
                        yield name, data
                files.append(FileRef(name, Payload(name, path.stat().st_size, crc32), False, self.checkpoint_id))
                tables.append(table)
        finally:
            scratch.dispose()
        groups = KeyGroupRange(native.first_group, native.last_group)
        self._handle = describe_tables(
            native.checkpoint_id, native.max_parallelism, groups, self._setup.key_type, files, tables
        )


def write_table(
    meta: StateMeta, key_type: TypeInformation, batches: Iterable[tuple[int, pa.RecordBatch]], path: Path, name: str
) -> StoredTable:
    """Write a Parquet file with a row group for each batch, which has the rows of one key group."""
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


def restore(
    backend: KeyedStateBackend, handles: Sequence[KeyedStateHandle], read: ReadPayload, *, claim: bool = False
) -> None:
    """Restore a backend: canonical handles are read into a temporary backend, whose native snapshot is restored."""
    setup = backend.setup
    tables = [handle for handle in handles if handle.backend == CANONICAL]
    if not tables:
        backend.restore(handles, read, claim=claim)
        return
    for handle in tables:
        require_same_max_parallelism(f"operator '{setup.operator}'", handle.max_parallelism, setup.max_parallelism)
    with tempfile.TemporaryDirectory(prefix="headgate-restore-", ignore_cleanup_errors=True) as name:
        spool = _Spool(Path(name) / "native")
        scratch = type(backend)(_scratch(setup, Path(name) / "scratch", tables[0].key_type.type_info()))
        try:
            for handle in tables:
                _load(scratch, handle, read, Path(name) / "table.parquet")
            made = spool.write(scratch.snapshot(tables[0].checkpoint_id, SnapshotKind.SAVEPOINT))
        finally:
            scratch.dispose()
        native = [handle for handle in (*handles, made) if handle is not None and handle.backend != CANONICAL]
        backend.restore(native, lambda payload, *part: (spool.read if payload in spool else read)(payload, *part))


def stored_tables(handle: KeyedStateHandle) -> list[StoredTable]:
    """The tables of a canonical handle."""
    return msgspec.convert(handle.extra, _StoredTables).tables


def describe_tables(
    checkpoint_id: int,
    max_parallelism: int,
    groups: KeyGroupRange,
    key_type: TypeInformation,
    files: list[FileRef],
    tables: list[StoredTable],
) -> KeyedStateHandle:
    """The handle of a subtask's tables."""
    extra: dict[str, Any] = msgspec.to_builtins(_StoredTables(tables), builtin_types=(bytes,))
    return KeyedStateHandle(
        CANONICAL, checkpoint_id, max_parallelism, groups.start, groups.end, TypeMeta.of(key_type), [], files, extra
    )


def _load(backend: KeyedStateBackend, handle: KeyedStateHandle, read: ReadPayload, local: Path) -> None:
    """Each table is read as a whole, into the file `local`: its checksum is that of the whole file."""
    files = {file.name: file.payload for file in handle.files}
    key_type = handle.key_type.type_info()
    for table in stored_tables(handle):
        download(read, files[table.file], local, f"table '{table.file}' of checkpoint {handle.checkpoint_id}")
        with pq.ParquetFile(local) as parquet:
            wanted = [index for index, group in enumerate(table.groups) if group in backend.setup.key_groups]
            ends = accumulate(parquet.metadata.row_group(index).num_rows for index in wanted)
            # Several small row groups at once, since each read has a cost of its own.
            for _, part in groupby(zip(wanted, ends, strict=True), key=lambda one: one[1] // _READ_ROWS):
                _load_rows(backend, table.meta, key_type, parquet.read_row_groups([index for index, _ in part]))


def _load_rows(backend: KeyedStateBackend, meta: StateMeta, key_type: TypeInformation, table: pa.Table) -> None:
    groups = table.column("key_group").to_pylist()
    if meta.kind == "raw":
        for group, stream in zip(groups, table.column("value").to_pylist(), strict=True):
            backend.put_raw_stream(group, stream)
        return
    keys = prepare_keys(values_of(table, "key", key_type))
    addresses = [
        address if namespace is None else in_namespace(address, namespace)
        for address, namespace in zip(keys, _read_namespaces(table.column("namespace")), strict=True)
    ]
    if meta.kind == "timers":
        for group, address, domain, ts in zip(
            groups, addresses, table.column("domain").to_pylist(), table.column("ts").to_pylist(), strict=True
        ):
            backend.timers.register(TimeDomain[domain.upper()], ts, address, group)
        return
    values = values_of(table, "value", meta.value_type.type_info())
    if meta.ttl:
        values = list(zip(values, table.column("ttl_ts").to_pylist(), strict=True))
    backend.begin_batch(addresses, groups)
    target = backend.open_table(meta)
    if isinstance(target, ListTable):
        for (group, address), found in groupby(zip(groups, addresses, values, strict=True), key=itemgetter(0, 1)):
            target.extend(group, address, [value for _, _, value in found])
    elif isinstance(target, MapTable):
        map_keys = values_of(table, "map_key", _map_key_type(meta))
        for group, address, map_key, value in zip(groups, addresses, map_keys, values, strict=True):
            target.put(group, address, address_of(map_key), value)
    else:
        target.put_many(addresses, groups, values)
    backend.end_batch()


def _read_namespaces(column: pa.ChunkedArray) -> list[Any]:
    if column.null_count == len(column):
        return [None] * len(column)
    return [None if cell is None else load_values(cell, "a namespace")[0] for cell in column.to_pylist()]
