"""The database of one backend: the only module that uses rocksdict.

rocksdict is used in its raw mode: keys and values are bytes. There is no write-ahead log, since after a crash state is
restored from a checkpoint. `flush` and `compact_range` release the GIL; `write` and `create_checkpoint` hold it, the
latter for about a millisecond if all memtables are empty. The subtask's thread and the threads of snapshots call it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Final, cast

import rocksdict
from rocksdict import Options, Rdict, WriteBatch

from headrace.errors import InvalidArgument, LocalStateError, StorageError

_MIB: Final = 1 << 20
_DEFAULT_COLUMN: Final = "default"  # RocksDB's own; no state is stored in it
_IMPORT_FILE: Final = 64 * _MIB
_FIGURES: Final = (
    "cur-size-all-mem-tables",
    "estimate-num-keys",
    "live-sst-files-size",
    "num-running-compactions",
    "num-running-flushes",
    "compaction-pending",
    "estimate-pending-compaction-bytes",
)


class MemoryBudget:
    """The memory that all rocksdb backends of one process may use together.

    `size` bounds RocksDB's memory: blocks, indexes and filters that were read, and rows not yet written to files.
    `cache_size` bounds the estimated size of the entries in use, as Python objects or in columns.
    """

    MANAGED_SIZE: ClassVar[int] = 64 * _MIB
    _shared: ClassVar[MemoryBudget | None] = None

    def __init__(self, size: int = MANAGED_SIZE, cache_size: int | None = None) -> None:
        if size < 8 * _MIB:
            raise InvalidArgument(
                "HR-1001", f"the memory of the rocksdb backend must be at least 8 MiB, got {size} bytes"
            )
        self.size = size
        self.cache_size = size if cache_size is None else cache_size
        self.users: weakref.WeakSet[object] = weakref.WeakSet()
        # The shares are Flink's: memtables may take a third, which is charged to the cache.
        self._blocks = rocksdict.Cache(size * 5 // 6)
        self._buffers = rocksdict.WriteBufferManager.new_write_buffer_manager_with_cache(size // 3, False, self._blocks)

    @classmethod
    def shared(cls) -> MemoryBudget:
        """Return the budget of this process; it has the default size unless `configure` was called before."""
        if cls._shared is None:
            cls._shared = cls()
        return cls._shared

    @classmethod
    def configure(cls, size: int, cache_size: int | None = None) -> MemoryBudget:
        """Set the budget of this process; open backends keep theirs."""
        current = cls._shared
        if current is None or (current.size, current.cache_size) != (size, size if cache_size is None else cache_size):
            cls._shared = cls(size, cache_size)
        return cls.shared()

    def cache_share(self) -> int:
        """Bytes of cached objects that one backend may hold."""
        return self.cache_size // max(1, len(self.users))

    def usage(self) -> tuple[int, int]:
        """Bytes in the block cache, memtables included, and bytes of memtables."""
        return self._blocks.get_usage(), self._buffers.get_usage()

    def database_options(self) -> Options:
        """Options of a database, with the memtables charged to this budget."""
        options = self.column_options()
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        options.set_write_buffer_manager(self._buffers)
        options.set_max_open_files(512)
        options.set_max_background_jobs(2)
        options.set_max_file_opening_threads(2)
        options.set_skip_stats_update_on_db_open(True)
        options.set_keep_log_file_num(1)
        options.set_max_log_file_size(_MIB)
        options.set_stats_dump_period_sec(0)
        options.set_stats_persist_period_sec(0)
        options.set_manifest_preallocation_size(64 * 1024)
        options.set_max_manifest_file_size(4 * _MIB)  # every snapshot stores it
        return options

    def column_options(self) -> Options:
        """Options of a column, with its blocks charged to this budget."""
        table = rocksdict.BlockBasedOptions()
        table.set_block_cache(self._blocks)
        table.set_block_size(8 * 1024)
        table.set_format_version(5)
        table.set_bloom_filter(10, False)
        # Indexes and filters of a large state are larger than the budget: cut in pieces they compete with the data.
        table.set_cache_index_and_filter_blocks(True)
        table.set_pin_l0_filter_and_index_blocks_in_cache(True)
        table.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())
        table.set_partition_filters(True)
        table.set_pin_top_level_index_and_filter(True)
        options = Options(raw_mode=True)
        options.set_block_based_table_factory(table)
        options.set_compression_type(rocksdict.DBCompressionType.lz4())
        options.set_write_buffer_size(max(_MIB, min(16 * _MIB, self.size // 8)))
        options.set_arena_block_size(256 * 1024)
        # Each checkpoint makes a file, and merging files leaves fewer that the next one can refer to.
        options.set_level_zero_file_num_compaction_trigger(8)
        # Smaller files than usual: a file is what an incremental checkpoint can use again.
        options.set_target_file_size_base(32 * _MIB)
        options.set_max_bytes_for_level_base(128 * _MIB)
        # A file with a stretch that is half tombstones is compacted soon: this is what frees expired state. No rule for
        # whole files: it would fire for tiny ones too, and then no file is left for incremental checkpoints to refer to.
        options.add_compact_on_deletion_collector_factory(4096, 2048, 0.0)
        return options


@contextmanager
def _storage(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except Exception as error:  # rocksdict raises plain exceptions
        raise LocalStateError(
            f"rocksdb in {path}: {what} failed: {error}; check that the directory is writable and has space left"
        ) from error


class Column:
    """The rows of one state: a column family."""

    def __init__(self, name: str, family: Rdict, handle: Any, path: Path) -> None:
        self.name = name
        self.handle = handle
        self._family = family
        self._path = path

    def get(self, key: bytes) -> bytes | None:
        found: bytes | None = self._family.get(key)
        return found

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of many rows; fastest when the keys are sorted."""
        return cast("list[bytes | None]", self._family.get(cast("list[Any]", keys)))

    def scan(self, lower: bytes, upper: bytes, *, keep: bool = True) -> Iterator[tuple[bytes, bytes]]:
        """The rows from `lower` to before `upper`, at this moment; `keep=False` leaves them out of the block cache."""
        return _scan(self._family.items, lower, upper, keep)

    def scan_keys(self, lower: bytes, upper: bytes, *, keep: bool = True) -> Iterator[bytes]:
        return _scan(self._family.keys, lower, upper, keep)

    def batch(self) -> WriteBatch:
        batch = WriteBatch(raw_mode=True)
        batch.set_default_column_family(self.handle)
        return batch

    def flush(self, *, wait: bool) -> None:
        """Write the memtables to a file."""
        with _storage(self._path, "writing a file"):
            self._family.flush(wait)

    def compact_periodically(self, period_ms: int) -> None:
        """Have RocksDB's threads rewrite files that are older than the period."""
        with _storage(self._path, "setting the period of compactions"):
            self._family.set_options({"periodic_compaction_seconds": str(max(1, period_ms // 1000))})

    def in_memory(self) -> bool:
        """Return True if the memtables have rows."""
        return bool(self.number("num-entries-active-mem-table") or self.number("num-immutable-mem-table"))

    def number(self, name: str) -> int:
        """Return a property of the column; RocksDB's names, without the prefix."""
        return self._family.property_int_value(f"rocksdb.{name}") or 0

    def delete_range(self, lower: bytes, upper: bytes) -> None:
        with _storage(self._path, "removing a range"):
            self._family.delete_range(lower, upper, _WRITE)

    def drop_range(self, lower: bytes, upper: bytes) -> None:
        """Remove a range of rows, also from the files."""
        if lower < upper:
            self.delete_range(lower, upper)
            with _storage(self._path, "compacting a range"):
                self._family.compact_range(lower, upper)

    def import_range(self, source: Column, lower: bytes, upper: bytes, scratch: Path, budget: MemoryBudget) -> None:
        """Copy a range of rows of another database's column; none of them may be here.

        Ingesting sorted files costs 60% of writing the rows, and needs no compaction later.
        """
        files: list[Path] = []
        rows = source.scan(lower, upper, keep=False)
        with _storage(self._path, "copying rows"):
            for first in rows:
                files.append(scratch / f"{len(files)}.sst")
                _write_file(files[-1], budget.column_options(), first, rows)
            if files:
                options = rocksdict.IngestExternalFileOptions()
                options.set_move_files(True)
                self._family.ingest_external_file([str(file) for file in files], options)

    def close(self) -> None:
        """Drop the references to the column: while any is left, the database stays open and its memory in use."""
        self.handle = None
        with suppress(Exception):
            self._family.close()


_WRITE: Final = rocksdict.WriteOptions()
setattr(_WRITE, "disable_wal", True)  # noqa: B010 - the stub declares a method, but it is an attribute


def _scan(read: Callable[..., Any], lower: bytes, upper: bytes, keep: bool) -> Iterator[Any]:
    options = rocksdict.ReadOptions()
    options.set_iterate_upper_bound(upper)
    if not keep:
        options.fill_cache(False)  # type: ignore[call-arg]
    return _held(read(from_key=lower, read_opt=options), options)


def _held(rows: Iterator[Any], options: rocksdict.ReadOptions) -> Iterator[Any]:
    """The rows; rocksdict reads the bound of the options after they are freed, unless they are referenced here."""
    yield from rows
    del options


class Store:
    """A database in a directory.

    `columns` holds all its column families by name, including those of restored states that are not opened.
    """

    def __init__(self, path: Path, budget: MemoryBudget, *, read_only: bool = False) -> None:
        self.path = path
        self._budget = budget
        self.columns: dict[str, Column] = {}
        with _storage(path, "opening the database"):
            names = [] if not (path / "CURRENT").exists() else Rdict.list_cf(str(path), Options(raw_mode=True))
            families = {name: budget.column_options() for name in names if name != _DEFAULT_COLUMN}
            access = rocksdict.AccessType.read_only(False) if read_only else rocksdict.AccessType.read_write()
            self._database = Rdict(str(path), budget.database_options(), families, access)
            for name in families:
                self._add(name, self._database.get_column_family(name))

    def _add(self, name: str, family: Rdict) -> Column:
        handle = self._database.get_column_family_handle(name)
        column = self.columns[name] = Column(name, family, handle, self.path)
        return column

    def column(self, name: str) -> Column:
        """Return the column of that name, which is created if there is none."""
        found = self.columns.get(name)
        if found is not None:
            return found
        with _storage(self.path, f"making column family '{name}'"):
            return self._add(name, self._database.create_column_family(name, self._budget.column_options()))

    def write(self, batch: WriteBatch) -> None:
        """Apply a batch as a whole."""
        if not batch.is_empty():
            with _storage(self.path, "writing"):
                self._database.write(batch, _WRITE)

    def flush(self, *, wait: bool) -> None:
        """Write all memtables to files, or with `wait=False` only start that."""
        for column in list(self.columns.values()):  # another thread may add a column meanwhile
            if column.in_memory():
                column.flush(wait=wait)

    def in_memory(self) -> bool:
        return any(column.in_memory() for column in list(self.columns.values()))

    def figures(self) -> dict[str, float]:
        """Sums over the columns, and the memory that all databases of this process share; Flink's names."""
        columns = list(self.columns.values())
        found = {f"rocksdb.{name}": float(sum(column.number(name) for column in columns)) for name in _FIGURES}
        blocks, buffers = self._budget.usage()
        return {**found, "rocksdb.block-cache-usage": blocks, "rocksdb.write-buffer-manager-usage": buffers}

    def checkpoint(self, target: Path) -> None:
        """Link the present files into a new directory."""
        with _storage(self.path, "making a checkpoint"):
            rocksdict.Checkpoint(self._database).create_checkpoint(str(target))

    def drop_column(self, name: str) -> None:
        self.columns.pop(name).close()
        with _storage(self.path, f"dropping column family '{name}'"):
            self._database.drop_column_family(name)

    def close(self) -> None:
        """Close the database; files stay, rows that were not flushed may be lost."""
        # Once the background work is cancelled, closing reports that it cannot flush, but closes.
        with suppress(Exception):
            self._database.cancel_all_background(True)
        for column in self.columns.values():
            column.close()
        self.columns.clear()
        with suppress(Exception):
            self._database.close()


def _write_file(path: Path, options: Options, first: tuple[bytes, bytes], rows: Iterator[tuple[bytes, bytes]]) -> None:
    """Write the first row and as many of the others as fit into a file."""
    writer = rocksdict.SstFileWriter(options)
    writer.open(str(path))
    writer[first[0]] = first[1]
    size = 0
    for key, value in rows:
        writer[key] = value
        size += len(key) + len(value)
        if size >= _IMPORT_FILE:
            break
    writer.finish()
