"""`pyflink.datastream.state_backend`, with the classes that programs for Flink 1.x use."""

from __future__ import annotations

import logging
from enum import Enum
from urllib.parse import urlparse

from headrace import config
from headrace.api.state_backends import EmbeddedRocksDBStateBackend as _RocksDB
from headrace.api.state_backends import HashMapStateBackend, StateBackend
from headrace.config import Configuration
from headrace.errors import InvalidArgument
from headrace.pyflink._without_effect import warn_without_effect

__all__ = [
    "CustomStateBackend",
    "EmbeddedRocksDBStateBackend",
    "FsStateBackend",
    "HashMapStateBackend",
    "MemoryStateBackend",
    "PredefinedOptions",
    "RocksDBStateBackend",
    "StateBackend",
]

_LOG = logging.getLogger(__name__)


class PredefinedOptions(Enum):
    """Flink's sets of options for RocksDB; Headrace's options of RocksDB are fixed."""

    DEFAULT = 0
    SPINNING_DISK_OPTIMIZED = 1
    SPINNING_DISK_OPTIMIZED_HIGH_MEM = 2
    FLASH_SSD_OPTIMIZED = 3


class EmbeddedRocksDBStateBackend(_RocksDB):
    """State in RocksDB on the worker's disk.

    The directory for working files is used; other settings of RocksDB are kept and have no effect:
    `state.backend.rocksdb.memory.fixed-per-slot` sets its memory.
    """

    def __init__(
        self,
        enable_incremental_checkpointing: bool | None = None,
    ) -> None:
        super().__init__(enable_incremental_checkpointing)
        self._paths: list[str] | None = None
        self._options = PredefinedOptions.DEFAULT
        self._factory: str | None = None
        self._threads: int | None = None

    def apply_to(self, configuration: Configuration) -> None:
        super().apply_to(configuration)
        if self._paths:
            configuration.set(config.IO_TMP_DIRS, self._paths[0])
            if self._paths[1:]:
                _LOG.warning("set_db_storage_paths(): a worker uses one directory, %s", self._paths[0])

    def set_db_storage_paths(self, *paths: str) -> None:
        """Directories of the worker for RocksDB's files, of which the first is used."""
        self._paths = [urlparse(path).path.rstrip("/") if "://" in path else path for path in paths]

    def get_db_storage_paths(self) -> list[str] | None:
        return self._paths

    def is_incremental_checkpoints_enabled(self) -> bool:
        return bool(self._incremental)

    def set_predefined_options(self, options: PredefinedOptions) -> None:
        warn_without_effect("EmbeddedRocksDBStateBackend.set_predefined_options")
        self._options = options

    def get_predefined_options(self) -> PredefinedOptions:
        return self._options

    def set_options(self, options_factory_class_name: str) -> None:
        warn_without_effect("EmbeddedRocksDBStateBackend.set_options")
        self._factory = options_factory_class_name

    def get_options(self) -> str | None:
        return self._factory

    def set_number_of_transfer_threads(self, number_of_transfering_threads: int) -> None:
        if number_of_transfering_threads < 1:
            raise InvalidArgument("HR-8005", f"at least one thread is needed, got {number_of_transfering_threads}")
        warn_without_effect("EmbeddedRocksDBStateBackend.set_number_of_transfer_threads")
        self._threads = number_of_transfering_threads

    def get_number_of_transfer_threads(self) -> int:
        return 4 if self._threads is None else self._threads


class CustomStateBackend(StateBackend):
    """A backend that is written in Java: refused."""

    def __init__(self, j_custom_state_backend: object = None) -> None:
        raise InvalidArgument(
            "HR-8001",
            "CustomStateBackend is written in Java, and there is no Flink here: use HashMapStateBackend or "
            "EmbeddedRocksDBStateBackend",
        )

    def apply_to(self, configuration: Configuration) -> None:
        """Never called."""


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
