"""The keyed state of an operator on its host: which backend holds it, and where its working files are."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from headrace.checkpoint.handles import CorruptState
from headrace.graph.plan import Settings, TaskInfo
from headrace.records.key_groups import key_group_range
from headrace.records.types import TypeInformation
from headrace.state.backend import BackendSetup, KeyedStateBackend
from headrace.state.hashmap.backend import HashMapBackend
from headrace.state.local_directory import lock_directory
from headrace.state.parquet.keyed import restore as restore_keyed
from headrace.storage.layout import AttemptId
from headrace.storage.local import private_directory
from headrace.worker.snapshots.restore import SubtaskRestore

_CACHE_SHARE = 4  # of RocksDB's memory: an entry in use is read more than ten times faster than a row


def open_backend(
    info: TaskInfo,
    settings: Settings,
    clock: Callable[[], int],
    restore: SubtaskRestore | None,
    key_type: TypeInformation,
    group_of: Callable[[Any], int],
) -> KeyedStateBackend:
    """The keyed state of one operator in one subtask, restored."""
    setup = BackendSetup(
        operator=info.task_name,
        key_groups=key_group_range(info.subtask, info.max_parallelism, info.parallelism),
        max_parallelism=info.max_parallelism,
        clock=clock,
        key_type=key_type,
        object_reuse=settings.object_reuse,
        incremental=settings.incremental,
        migrate_ttl=settings.migrate_ttl,
        instance=f"{info.job_id[:8]}-{info.attempt}-{info.operator_id[:8]}-{info.subtask}",
        group_of=group_of,
        directory=local_directory(settings.tmp_dir, info, settings.epoch)
        if settings.state_backend == "rocksdb"
        else None,
        ttl_query_entries=settings.ttl_query_entries,
        ttl_compaction_ms=settings.ttl_compaction_ms,
    )
    backend = _make_backend(settings, setup)
    restored = None if restore is None else restore.operators.get(info.operator_id)
    if restore is not None and restored is not None and restored.keyed:
        try:
            restore_keyed(backend, restored.keyed, restore.read, claim=restore.claim)
        except CorruptState as error:
            raise CorruptState(f"'{restore.file()}': {error}") from error
    return backend


def _make_backend(settings: Settings, setup: BackendSetup) -> KeyedStateBackend:
    if settings.state_backend != "rocksdb":
        return HashMapBackend(setup)
    from headrace.state.rocksdb import MemoryBudget, RocksDBBackend  # 20 MB that other jobs need not load

    cache = _CACHE_SHARE * settings.rocksdb_memory if settings.rocksdb_cache is None else settings.rocksdb_cache
    MemoryBudget.configure(settings.rocksdb_memory, cache)
    return RocksDBBackend(setup)


def _root(tmp_dir: str | None) -> Path:
    return Path(tmp_dir or tempfile.gettempdir()) / f"headrace-state-{os.getuid()}"


def local_directory(tmp_dir: str | None, info: TaskInfo, epoch: int) -> Path:
    """`<tmp>/headrace-state-<user>/<job>/<attempt>/<operator>-<subtask>`: no two subtasks, and no two attempts, share one.

    A worker of an old driver may still run when the job is resumed, and attempts are counted from 0 again: their names
    begin with the epoch of the driver.
    """
    attempt = AttemptId(epoch, info.attempt)
    return private_directory(_root(tmp_dir)) / info.job_id / str(attempt) / f"{info.operator_id[:16]}-{info.subtask}"


@contextmanager
def local_state_cleaned(tmp_dir: str | None) -> Iterator[None]:
    """Remove working files before and after a task: its own, and those that dead workers of any job of this user left."""
    _remove_unused(tmp_dir)
    try:
        yield
    finally:
        _remove_unused(tmp_dir)


def _remove_unused(tmp_dir: str | None) -> None:
    """Remove the directories that no living process holds; errors leave them to the next task."""
    root = _root(tmp_dir)
    if not root.exists():
        return
    with suppress(OSError):
        private_directory(root)
        for subtask in root.glob("*/*/*"):
            with suppress(OSError):
                lock = lock_directory(subtask)
                if lock is not None:
                    shutil.rmtree(subtask, ignore_errors=True)
                    os.close(lock)
        for empty in (*root.glob("*/*"), *root.glob("*")):
            with suppress(OSError):
                empty.rmdir()
