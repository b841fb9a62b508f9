"""The state of a subtask on its host: which backend, and where its working files are."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from headgate.graph.plan import Settings
from headgate.graph.task_info import TaskInfo
from headgate.state.backend import BackendSetup, KeyedStateBackend
from headgate.state.hashmap.backend import HashMapBackend

__all__ = ["local_directory", "open_backend", "remove_dead_attempts"]


def open_backend(settings: Settings, setup: BackendSetup) -> KeyedStateBackend:
    """The backend that the job asks for."""
    if settings.state_backend != "rocksdb":
        return HashMapBackend(setup)
    from headgate.state.rocksdb import MemoryBudget, RocksDBBackend  # 20 MB that other jobs need not load

    MemoryBudget.configure(settings.rocksdb_memory)
    return RocksDBBackend(setup)


def _root(tmp_dir: str | None) -> Path:
    return Path(tmp_dir or tempfile.gettempdir()) / "headgate-state"


def local_directory(tmp_dir: str | None, info: TaskInfo) -> Path:
    """`<tmp>/headgate-state/<job>/<attempt>/<operator>-<subtask>`: no two subtasks, and no two attempts, share one."""
    return _root(tmp_dir) / info.job_id / str(info.attempt) / f"{info.operator_id[:16]}-{info.subtask}"


def remove_dead_attempts(tmp_dir: str | None, job_id: str, attempt: int) -> None:
    """Remove the working files that earlier attempts of the job left on this host.

    A subtask of an old attempt may still be dying: what it holds open stays usable for it, and nobody else reads it.
    """
    job = _root(tmp_dir) / job_id
    if not job.is_dir():
        return
    for old in job.iterdir():
        if old.name.isdigit() and int(old.name) < attempt:
            shutil.rmtree(old, ignore_errors=True)
