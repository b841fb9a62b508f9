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
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.checkpoint.assignment import require_same_max_parallelism
from headrace.checkpoint.handles import FileRef, KeyedStateHandle, Payload, ReadPayload, StateMeta, TypeMeta
from headrace.errors import IllegalState
from headrace.records.key_groups import KeyGroupRange
from headrace.records.types import PICKLED, TypeInformation, as_type
from headrace.state.addresses import VOID, address_of, in_namespace, key_of, prepare_keys, split_address
from headrace.state.backend import (
    INTERNAL_KINDS,
    RAW_STREAMS,
    TIMER_TABLE,
    BackendSetup,
    KeyedStateBackend,
    NumberGroup,
    SnapshotKind,
    SnapshotRun,
    number_type,
    table_name,
)
from headrace.state.local_directory import download
from headrace.state.parquet.columns import cells_of, column_fields, columns_of, values_of, weight
from headrace.state.pickling import dump_values, load_values
from headrace.state.schema import widest_form
from headrace.state.tables import ListTable, MapTable
from headrace.state.timers import TimeDomain, Timer

CANONICAL = "canonical"
_CHUNK = 1 << 20
_ROWS = 1 << 16  # in a row group at most
_READ_ROWS = 4096  # at once, or one row group of any size
_BYTES = 1 << 25  # in a row group, and read at once; or one row of any size
_LARGEST = (1 << 31) - (1 << 20)  # bytes of a row: Arrow's offsets have 32 bits
_STEP = 64  # rows that are read before their size is known
_TEXT, _INT, _LONG = as_type("string"), as_type("int"), as_type("bigint")
_PICKLED = "pickle "  # before a namespace that is not JSON


class StoredTable(msgspec.Struct, frozen=True):
    """One table of a snapshot: its state, its file, and for each row group its key group and its bytes in memory.

    Tables of older savepoints have no sizes.
    """

    meta: StateMeta
    file: str
    groups: list[int]
    rows: int = 0
    sizes: list[int] = []


class _StoredTables(msgspec.Struct, frozen=True):
    tables: list[StoredTable]


# ---- schema --------------------------------------------------------------------------------------------------------


def table_schema(meta: StateMeta, key_type: TypeInformation) -> pa.Schema:
    """Return the columns of a state's table.

    >>> from headrace.records.types import as_type
    >>> table_schema(StateMeta("total", "value", TypeMeta.of(as_type("bigint"))), as_type("string")).names
    ['key_group', 'key', 'namespace', 'value']
    """
    fields = [pa.field("key_group", pa.int32(), nullable=False)]
    if meta.kind != "raw":
        fields += [*column_fields("key", key_type), pa.field("namespace", pa.string())]
    if meta.kind == "timers":
        return pa.schema([*fields, pa.field("domain", pa.string()), pa.field("ts", pa.int64())])
    if meta.kind == "list":
        fields.append(pa.field("pos", pa.int32(), nullable=False))
    if meta.kind == "map":
        fields += column_fields("map_key", _map_key_type(meta))
    fields += column_fields("value", meta.value_type.type_info())
    if meta.ttl:
        fields.append(pa.field("ttl_ts", pa.int64()))
    return pa.schema(fields)


def _map_key_type(meta: StateMeta) -> TypeInformation:
    return PICKLED if meta.map_key_type is None else meta.map_key_type.type_info()


# ---- out of a backend ----------------------------------------------------------------------------------------------

_Row = tuple[Any, ...]  # without its key group
_Groups = Iterable[tuple[int, Iterable[_Row]]]
_Cells = list[Sequence[Any]]  # column by column


def read_tables(
    backend: KeyedStateBackend, state: str | None = None
) -> Iterator[tuple[StateMeta, Iterator[tuple[int, pa.RecordBatch]]]]:
    """Every state of a restored backend that is not opened, or one, as (key group, rows of the table) by key group.

    What subtasks have stored with and without a time to live is read with it: the setup's `migrate_ttl` has to be on.
    """
    for forms in backend.restored_forms():
        if state not in (None, forms[0].name):
            continue
        meta = widest_form(backend.setup.operator, forms)
        if meta.kind not in INTERNAL_KINDS:
            numbers = backend.number_groups(meta)
            if numbers is None:
                yield meta, _batches(meta, backend.setup, _state_rows(backend, meta))
            else:
                yield meta, _number_batches(meta, backend.setup, numbers)
    timers = sorted(backend.timers.all(), key=lambda timer: timer.group)
    if timers:
        groups = groupby(timers, key=lambda timer: timer.group)
        yield (
            TIMER_TABLE,
            _batches(TIMER_TABLE, backend.setup, ((group, map(_timer_row, some)) for group, some in groups)),
        )
    streams = backend.raw_streams()
    if streams:
        yield RAW_STREAMS, _batches(RAW_STREAMS, backend.setup, ((group, [(one,)]) for group, one in streams.items()))


def _state_rows(backend: KeyedStateBackend, meta: StateMeta) -> _Groups:
    """Yield the rows of a state by key group, sorted by key: one per value, element or entry."""
    table = backend.open_table(meta)
    for group, found in groupby(backend.addresses(meta.name), key=itemgetter(0)):
        addresses = _sorted([address for _, address in found])
        if isinstance(table, MapTable):
            rows: Iterator[_Row] = (
                (*place, key_of(map_key), stored)
                for place, address in zip(map(_place, addresses), addresses, strict=True)
                for map_key, stored in table.entries(group, address)
            )
        elif isinstance(table, ListTable):
            rows = (
                (*place, position, stored)
                for place, address in zip(map(_place, addresses), addresses, strict=True)
                for position, stored in enumerate(table.get(group, address) or ())
            )
        else:
            steps = (addresses[at : at + _STEP] for at in range(0, len(addresses), _STEP))
            values = (stored for some in steps for stored in table.get_many(some, [group] * len(some)))
            rows = ((*_place(address), stored) for address, stored in zip(addresses, values, strict=True))
        yield group, ((*row[:-1], *row[-1]) for row in rows) if meta.ttl else rows


def _sorted(addresses: list[Any]) -> list[Any]:
    """By key; by its text where keys of several types cannot be compared."""
    keyed = [(key_of(split_address(address)[0]), address) for address in addresses]
    try:
        keyed.sort(key=itemgetter(0))
    except TypeError:
        keyed.sort(key=lambda one: repr(one[0]))
    return [address for _, address in keyed]


def _place(address: Any) -> _Row:
    key, namespace = split_address(address)
    return key_of(key), _namespace_cell(namespace)


def _timer_row(timer: Timer) -> _Row:
    return key_of(timer.address), _namespace_cell(timer.namespace), timer.domain.name.lower(), timer.timestamp


def _batches(meta: StateMeta, setup: BackendSetup, groups: _Groups) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each key group in batches of a limited size: an Arrow column ends at 2 GB."""
    schema, types = table_schema(meta, setup.key_type), _column_types(meta, setup.key_type)
    for group, rows in groups:
        for cells in _portions(iter(rows), types, partial(_too_large, meta, setup, group)):
            columns = [pa.array([group] * len(cells[0]), pa.int32())]
            for some, type_info in zip(cells, types, strict=True):
                columns += columns_of(some, type_info)
            yield group, pa.RecordBatch.from_arrays(columns, schema=schema)


def _number_batches(
    meta: StateMeta, setup: BackendSetup, groups: Iterator[NumberGroup]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the same batches, from columns."""
    schema = table_schema(meta, setup.key_type)
    for group, found in groups:
        if isinstance(found, dict):
            rows = ((*_place(address), found[address]) for address in _sorted([*found]))
            yield from _batches(meta, setup, [(group, rows)])
            continue
        for at in range(0, len(found[0]), _ROWS):
            keys, values = (pa.array(some[at : at + _ROWS]) for some in found)
            size = len(keys)
            columns = [
                pa.array(np.full(size, group, np.int32)),
                keys.cast(schema.field("key").type),
                pa.nulls(size, pa.string()),
                values.cast(schema.field("value").type),
            ]
            yield group, pa.RecordBatch.from_arrays(columns, schema=schema)


def _column_types(meta: StateMeta, key_type: TypeInformation) -> list[TypeInformation]:
    """Return the types of the values in a row."""
    value = meta.value_type.type_info()
    if meta.kind == "raw":
        return [value]
    if meta.kind == "timers":
        return [key_type, _TEXT, _TEXT, _LONG]
    inner = {"list": [_INT], "map": [_map_key_type(meta)]}.get(meta.kind, [])
    return [key_type, _TEXT, *inner, value, *([_LONG] if meta.ttl else [])]


def _portions(
    rows: Iterator[_Row], types: list[TypeInformation], too_large: Callable[[_Row, int], IllegalState]
) -> Iterator[_Cells]:
    """Yield the cells of at most `_ROWS` rows and `_BYTES` bytes together, or of one row that is larger."""
    portion: list[list[Any]] = [[] for _ in types]
    size = 0
    while step := list(islice(rows, _STEP)):
        columns, at = zip(*step, strict=True), 0
        for cells, more in _halved([cells_of(some, type) for some, type in zip(columns, types, strict=True)]):
            if more > _LARGEST:
                raise too_large(step[at], more)
            if size and (size + more > _BYTES or len(portion[0]) + len(cells[0]) > _ROWS):
                yield [*portion]
                portion, size = [[] for _ in types], 0
            for column, added in zip(portion, cells, strict=True):
                column += added
            size, at = size + more, at + len(cells[0])
    if size:
        yield [*portion]


def _halved(cells: _Cells) -> Iterator[tuple[_Cells, int]]:
    """Parts of at most `_BYTES` bytes or one row, each with its size."""
    size, rows = sum(map(weight, cells)), len(cells[0])
    if size <= _BYTES or rows == 1:
        yield cells, size
    else:
        yield from _halved([some[: rows // 2] for some in cells])
        yield from _halved([some[rows // 2 :] for some in cells])


def _too_large(meta: StateMeta, setup: BackendSetup, group: int, row: _Row, size: int) -> IllegalState:
    place = f"key group {group}" if meta.kind == "raw" else f"key {row[0]!r:.100}"
    return IllegalState(
        "HR-2202",
        f"operator '{setup.operator}', state '{meta.name}', {place}: a value of {size} bytes is too large for a canonical "
        f"savepoint, where it can have {_LARGEST}: take a savepoint with --format NATIVE, or divide the value, for example "
        "into a map state",
    )


def _namespace_cell(namespace: Any) -> str | None:
    """Return a namespace as a cell of a table: the start and the end of a window are JSON, which any tool reads.

    >>> _namespace_cell((1000, 2000))
    '[1000,2000]'
    """
    if namespace is None or namespace is VOID:
        return None
    if isinstance(namespace, tuple) and all(type(one) in (int, str) for one in namespace):
        return msgspec.json.encode(namespace).decode()
    return _PICKLED + b64encode(dump_values([namespace], "a namespace")).decode()


def _namespace_of(cell: str | bytes) -> Any:
    if isinstance(cell, bytes):  # as they once were
        return load_values(cell, "a namespace")[0]
    if cell.startswith(_PICKLED):
        return load_values(b64decode(cell.removeprefix(_PICKLED)), "a namespace")[0]
    return tuple(msgspec.json.decode(cell))


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


def _scratch(setup: BackendSetup, directory: Path, key_type: TypeInformation, number: int = 0) -> BackendSetup:
    instance = f"{setup.instance}-scratch-{number}"
    return replace(
        setup, directory=directory, key_type=key_type, incremental=False, instance=instance, migrate_ttl=True
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
        with tempfile.TemporaryDirectory(prefix="headrace-savepoint-") as name:
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
                while name in {file.name for file in files}:  # a state of the user may be called like an internal one
                    name = self._file_of(f"_{name}")
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
    """Write a Parquet file; the rows of a batch are of one key group, and so are those of a row group."""
    table = StoredTable(meta, name, [], sizes=[])
    rows = 0
    schema = table_schema(meta, key_type)
    with pq.ParquetWriter(path, schema, compression="zstd", **_encodings(schema)) as writer:
        for group, batch in batches:
            for part in _small(batch):
                writer.write_table(pa.Table.from_batches([part]), row_group_size=part.num_rows)
                table.groups.append(group)
                table.sizes.append(part.nbytes)
                rows += part.num_rows
    return msgspec.structs.replace(table, rows=rows)


def _encodings(schema: pa.Schema) -> dict[str, Any]:
    """Return the encoding of each column: differences for integers and sorted integer keys, else dictionaries."""
    if "key" not in schema.names or not pa.types.is_integer(schema.field("key").type):
        return {}
    if any(pa.types.is_nested(field.type) for field in schema):
        return {}  # Parquet wants the names of inner columns
    packed = [
        name for name in ("key", "value") if name in schema.names and pa.types.is_integer(schema.field(name).type)
    ]
    return {
        "use_dictionary": [name for name in schema.names if name not in packed],
        "column_encoding": dict.fromkeys(packed, "DELTA_BINARY_PACKED"),
    }


def _small(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Return a batch in parts of at most `_ROWS` rows and `_BYTES` bytes, or of one row; none if it is empty."""
    rows = batch.num_rows
    if rows <= 1 or (rows <= _ROWS and batch.nbytes <= _BYTES):
        return [batch] if rows else []
    return [*_small(batch.slice(0, rows // 2)), *_small(batch.slice(rows // 2))]


# ---- into a backend ------------------------------------------------------------------------------------------------


def restore(
    backend: KeyedStateBackend, handles: Sequence[KeyedStateHandle], read: ReadPayload, *, claim: bool = False
) -> None:
    """Restore a backend: canonical handles are read into temporary backends, whose native snapshots are restored."""
    setup = backend.setup
    tables = [handle for handle in handles if handle.backend == CANONICAL]
    if not tables:
        backend.restore(handles, read, claim=claim)
        return
    for handle in tables:
        require_same_max_parallelism(f"operator '{setup.operator}'", handle.max_parallelism, setup.max_parallelism)
    with tempfile.TemporaryDirectory(prefix="headrace-restore-", ignore_cleanup_errors=True) as name:
        spool = _Spool(Path(name) / "native")
        made: list[KeyedStateHandle | None] = []
        for number, some in enumerate(_of_one_form(tables)):
            directory = Path(name) / f"scratch-{number}"
            scratch = type(backend)(_scratch(setup, directory, some[0].key_type.type_info(), number))
            try:
                for handle in some:
                    _load(scratch, handle, read, Path(name) / "table.parquet")
                made.append(spool.write(scratch.snapshot(some[0].checkpoint_id, SnapshotKind.SAVEPOINT)))
            finally:
                scratch.dispose()
        native = [handle for handle in (*handles, *made) if handle is not None and handle.backend != CANONICAL]
        backend.restore(native, lambda payload, *part: (spool.read if payload in spool else read)(payload, *part))


def _of_one_form(handles: Sequence[KeyedStateHandle]) -> list[list[KeyedStateHandle]]:
    """Return the handles, apart from each other where they have a state in different forms.

    Its type has changed, and some subtasks have not opened it since. It gets one form when it is opened.
    """
    found: list[tuple[dict[str, StateMeta], list[KeyedStateHandle]]] = []
    for handle in handles:
        metas = {table_name(table.meta): table.meta for table in stored_tables(handle)}
        for known, some in found:
            if all(known.get(name, meta) == meta for name, meta in metas.items()):
                known.update(metas)
                some.append(handle)
                break
        else:
            found.append((metas, [handle]))
    return [some for _, some in found]


def stored_tables(handle: KeyedStateHandle) -> list[StoredTable]:
    """Return the tables of a canonical handle."""
    return msgspec.convert(handle.extra, _StoredTables).tables


def describe_tables(
    checkpoint_id: int,
    max_parallelism: int,
    groups: KeyGroupRange,
    key_type: TypeInformation,
    files: list[FileRef],
    tables: list[StoredTable],
) -> KeyedStateHandle:
    """Return the handle of a subtask's tables."""
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
            rows = [parquet.metadata.row_group(index).num_rows for index in wanted]
            for some in _together(wanted, rows, table.sizes):
                _load_rows(backend, table.meta, key_type, parquet.read_row_groups(some))


def _together(wanted: list[int], rows: list[int], sizes: list[int]) -> Iterator[list[int]]:
    """Yield the row groups to read at once: small ones together, since each read has a cost of its own.

    The sizes are those in memory, which Parquet does not tell: a value that is repeated takes hardly a byte in the file.
    Where they are not known, row groups are read one by one.
    """
    some: list[int] = []
    size = count = 0
    for index, more in zip(wanted, rows, strict=True):
        added = sizes[index] if sizes else _BYTES
        if some and (count + more > _READ_ROWS or size + added > _BYTES):
            yield some
            some, size, count = [], 0, 0
        some.append(index)
        size, count = size + added, count + more
    if some:
        yield some


def _load_rows(backend: KeyedStateBackend, meta: StateMeta, key_type: TypeInformation, table: pa.Table) -> None:
    if number_type(meta, key_type) is not None and _load_numbers(backend, meta, table):
        return
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


def _load_numbers(backend: KeyedStateBackend, meta: StateMeta, table: pa.Table) -> bool:
    keys, values, namespaces = (table.column(name) for name in ("key", "value", "namespace"))
    if namespaces.null_count < len(table) or keys.null_count or values.null_count:
        return False
    columns = keys.cast(pa.int64()).to_numpy(), values.to_numpy()
    return backend.load_numbers(meta, columns, table.column("key_group").to_numpy())


def _read_namespaces(column: pa.ChunkedArray) -> list[Any]:
    if column.null_count == len(column):
        return [None] * len(column)
    return [None if cell is None else _namespace_of(cell) for cell in column.to_pylist()]
