"""Shorthands for `env.set_state_backend(...)`: where keyed state lives, and where its checkpoints go, in one word."""

from __future__ import annotations

from abc import ABC, abstractmethod

from headrace import config
from headrace.config import Configuration

__all__ = ["EmbeddedRocksDBStateBackend", "HashMapStateBackend", "StateBackend"]


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
