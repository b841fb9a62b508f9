"""`pyflink.datastream.checkpoint_storage`: where checkpoints go, in one object."""

from __future__ import annotations

from abc import ABC, abstractmethod

from headrace import config
from headrace.config import Configuration
from headrace.errors import InvalidArgument

__all__ = ["CheckpointStorage", "CustomCheckpointStorage", "FileSystemCheckpointStorage", "JobManagerCheckpointStorage"]


class CheckpointStorage(ABC):
    """A set of options under one name; `env.get_checkpoint_config().set_checkpoint_storage(...)` takes it."""

    @abstractmethod
    def apply_to(self, configuration: Configuration) -> None:
        """Write the options."""


class JobManagerCheckpointStorage(CheckpointStorage):
    """Checkpoints in the driver's memory: for experiments, since they are lost with the driver."""

    DEFAULT_MAX_STATE_SIZE = 5 * 1024 * 1024

    def __init__(self, checkpoint_path: str | None = None, max_state_size: int | None = None) -> None:
        self._path = checkpoint_path
        self._max_state_size = self.DEFAULT_MAX_STATE_SIZE if max_state_size is None else max_state_size

    def apply_to(self, configuration: Configuration) -> None:
        configuration.set(config.CHECKPOINT_STORAGE, "jobmanager")
        if self._path is not None:
            configuration.set(config.CHECKPOINT_DIR, self._path)

    def get_checkpoint_path(self) -> str | None:
        return _plain(self._path)

    def get_savepoint_path(self) -> str | None:
        return None

    def get_max_state_size(self) -> int:
        """A limit of Flink: here the state of a checkpoint may be as large as the driver's memory."""
        return self._max_state_size

    def __str__(self) -> str:
        return f"JobManagerCheckpointStorage(checkpoints to driver, path: {self._path})"


class FileSystemCheckpointStorage(CheckpointStorage):
    """Checkpoints in files, below a path or a URL.

    >>> FileSystemCheckpointStorage("file:///checkpoints/").get_checkpoint_path()
    'file:///checkpoints'
    """

    MAX_FILE_STATE_THRESHOLD = 1024 * 1024

    def __init__(
        self, checkpoint_path: str, file_state_size_threshold: int | None = None, write_buffer_size: int | None = None
    ) -> None:
        if not checkpoint_path:
            raise InvalidArgument("HR-8005", "FileSystemCheckpointStorage needs a path")
        if (
            file_state_size_threshold is not None
            and not 0 <= file_state_size_threshold <= self.MAX_FILE_STATE_THRESHOLD
        ):
            raise InvalidArgument(
                "HR-8005",
                f"file_state_size_threshold must be from 0 to {self.MAX_FILE_STATE_THRESHOLD}, got {file_state_size_threshold}",
            )
        self._path, self._threshold, self._buffer = checkpoint_path, file_state_size_threshold, write_buffer_size

    def apply_to(self, configuration: Configuration) -> None:
        configuration.set(config.CHECKPOINT_STORAGE, "filesystem").set(config.CHECKPOINT_DIR, self._path)
        if self._threshold is not None:
            configuration.set(config.CHECKPOINT_INLINE_THRESHOLD, self._threshold)
        if self._buffer is not None:
            configuration.set(config.CHECKPOINT_WRITE_BUFFER, self._buffer)

    def get_checkpoint_path(self) -> str:
        return _plain(self._path) or ""

    def get_savepoint_path(self) -> str | None:
        return None

    def get_min_file_size_threshold(self) -> int:
        return config.CHECKPOINT_INLINE_THRESHOLD.default if self._threshold is None else self._threshold

    def get_write_buffer_size(self) -> int:
        return config.CHECKPOINT_WRITE_BUFFER.default if self._buffer is None else self._buffer

    def __str__(self) -> str:
        return f"FileSystemCheckpointStorage(path: {self._path})"


class CustomCheckpointStorage(CheckpointStorage):
    """A storage that is written in Java: refused."""

    def __init__(self, j_custom_checkpoint_storage: object = None) -> None:
        raise InvalidArgument(
            "HR-8001",
            "CustomCheckpointStorage is written in Java, and there is no Flink here: use FileSystemCheckpointStorage with a URL "
            "(s3, gs, az, abfs, abfss, webhdfs, swebhdfs)",
        )

    def apply_to(self, configuration: Configuration) -> None:
        """Never called."""


def _plain(path: str | None) -> str | None:
    return path if path is None or path.endswith("://") else path.rstrip("/")
