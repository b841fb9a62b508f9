"""`pyflink.datastream.state_backend`, with the names from before Flink 1.13 that put state and checkpoints into one."""

from headgate import options
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
    """State in memory, checkpoints in the driver's memory: for trying things out, lost with the driver."""

    def apply_to(self, configuration: Configuration) -> None:
        super().apply_to(configuration)
        configuration.set(options.CHECKPOINT_STORAGE, "jobmanager")


class FsStateBackend(HashMapStateBackend):
    """State in memory, checkpoints in files."""

    def __init__(self, checkpoint_directory_uri: str) -> None:
        self._directory = checkpoint_directory_uri

    def apply_to(self, configuration: Configuration) -> None:
        super().apply_to(configuration)
        _in_files(configuration, self._directory)


class RocksDBStateBackend(EmbeddedRocksDBStateBackend):
    """State in RocksDB, checkpoints in files, optionally incremental."""

    def __init__(self, checkpoint_data_uri: str, enable_incremental_checkpointing: bool | None = None) -> None:
        super().__init__(enable_incremental_checkpointing)
        self._directory = checkpoint_data_uri

    def apply_to(self, configuration: Configuration) -> None:
        super().apply_to(configuration)
        _in_files(configuration, self._directory)


def _in_files(configuration: Configuration, directory: str) -> None:
    configuration.set(options.CHECKPOINT_STORAGE, "filesystem")
    configuration.set(options.CHECKPOINT_DIR, directory)
