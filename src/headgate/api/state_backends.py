"""Shorthands for `env.set_state_backend(...)`: where keyed state lives, and where its checkpoints go, in one word."""

from __future__ import annotations

from abc import ABC, abstractmethod

from headgate import config
from headgate.config import Configuration

__all__ = [
    "EmbeddedRocksDBStateBackend",
    "FsStateBackend",
    "HashMapStateBackend",
    "MemoryStateBackend",
    "RocksDBStateBackend",
    "StateBackend",
]


class StateBackend(ABC):
    """A set of options under one name."""

    @abstractmethod
    def apply_to(self, configuration: Configuration) -> None:
        """Write the options."""


class HashMapStateBackend(StateBackend):
    """State in memory; checkpoints go where the configuration says.

    >>> HashMapStateBackend().apply_to(conf := Configuration())
    >>> conf.get("state.backend.type")
    'hashmap'
    """

    def apply_to(self, configuration: Configuration) -> None:
        """State in memory."""
        configuration.set(config.STATE_BACKEND, "hashmap")


class EmbeddedRocksDBStateBackend(StateBackend):
    """State in RocksDB on the worker's disk; checkpoints go where the configuration says.

    >>> EmbeddedRocksDBStateBackend(enable_incremental_checkpointing=True).apply_to(conf := Configuration())
    >>> conf.get("state.backend.type"), conf.get("execution.checkpointing.incremental")
    ('rocksdb', True)
    """

    def __init__(self, enable_incremental_checkpointing: bool | None = None) -> None:
        self._incremental = enable_incremental_checkpointing

    def apply_to(self, configuration: Configuration) -> None:
        """State in RocksDB."""
        configuration.set(config.STATE_BACKEND, "rocksdb")
        if self._incremental is not None:
            configuration.set(config.CHECKPOINT_INCREMENTAL, self._incremental)


class MemoryStateBackend(HashMapStateBackend):
    """State in memory, checkpoints in the driver's memory: for trying things out, lost with the driver.

    >>> MemoryStateBackend().apply_to(conf := Configuration())
    >>> conf.get("execution.checkpointing.storage")
    'jobmanager'
    """

    def apply_to(self, configuration: Configuration) -> None:
        """State and checkpoints in memory."""
        super().apply_to(configuration)
        configuration.set(config.CHECKPOINT_STORAGE, "jobmanager")


class FsStateBackend(HashMapStateBackend):
    """State in memory, checkpoints in files.

    >>> FsStateBackend("file:///data/checkpoints").apply_to(conf := Configuration())
    >>> conf.get("execution.checkpointing.dir")
    'file:///data/checkpoints'
    """

    def __init__(self, checkpoint_directory_uri: str) -> None:
        self._directory = checkpoint_directory_uri

    def apply_to(self, configuration: Configuration) -> None:
        """State in memory, checkpoints in the directory."""
        super().apply_to(configuration)
        _in_files(configuration, self._directory)


class RocksDBStateBackend(EmbeddedRocksDBStateBackend):
    """State in RocksDB, checkpoints in files, incremental if wished.

    >>> RocksDBStateBackend("file:///data/checkpoints", True).apply_to(conf := Configuration())
    >>> conf.get("execution.checkpointing.storage"), conf.get("execution.checkpointing.incremental")
    ('filesystem', True)
    """

    def __init__(self, checkpoint_data_uri: str, enable_incremental_checkpointing: bool | None = None) -> None:
        super().__init__(enable_incremental_checkpointing)
        self._directory = checkpoint_data_uri

    def apply_to(self, configuration: Configuration) -> None:
        """State in RocksDB, checkpoints in the directory."""
        super().apply_to(configuration)
        _in_files(configuration, self._directory)


def _in_files(configuration: Configuration, directory: str) -> None:
    configuration.set(config.CHECKPOINT_STORAGE, "filesystem")
    configuration.set(config.CHECKPOINT_DIR, directory)
