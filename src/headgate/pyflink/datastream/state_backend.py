"""`pyflink.datastream.state_backend`, with the classes that programs for Flink 1.x use."""

from __future__ import annotations

from headgate import config
from headgate.api.state_backends import EmbeddedRocksDBStateBackend, HashMapStateBackend, StateBackend
from headgate.config import Configuration

__all__ = [
    "EmbeddedRocksDBStateBackend",
    "FsStateBackend",
    "HashMapStateBackend",
    "MemoryStateBackend",
    "RocksDBStateBackend",
    "StateBackend",
]


class MemoryStateBackend(HashMapStateBackend):
    """State in memory, checkpoints in the driver's memory: for experiments, since they are lost with the driver."""

    def apply_to(self, configuration: Configuration) -> None:
        super().apply_to(configuration)
        configuration.set(config.CHECKPOINT_STORAGE, "jobmanager")


class _InFiles(StateBackend):
    """Puts checkpoints into files."""

    _directory: str

    def apply_to(self, configuration: Configuration) -> None:
        super().apply_to(configuration)  # type: ignore[safe-super]
        configuration.set(config.CHECKPOINT_STORAGE, "filesystem").set(config.CHECKPOINT_DIR, self._directory)


class FsStateBackend(_InFiles, HashMapStateBackend):
    """State in memory, checkpoints in files."""

    def __init__(self, checkpoint_directory_uri: str) -> None:
        self._directory = checkpoint_directory_uri


class RocksDBStateBackend(_InFiles, EmbeddedRocksDBStateBackend):
    """State in RocksDB, checkpoints in files, incremental if enabled."""

    def __init__(self, checkpoint_data_uri: str, enable_incremental_checkpointing: bool | None = None) -> None:
        super().__init__(enable_incremental_checkpointing)
        self._directory = checkpoint_data_uri
