"""The storage options of a job, read and checked once (SPEC R5.9, R5.10)."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from headrace import config
from headrace.checkpoint.settings import stored_in_files
from headrace.config import Configuration
from headrace.errors import ConfigError
from headrace.ids import JobId
from headrace.storage.layout import JobLayout
from headrace.storage.objects import normalise, unsupported

MAX_INLINE_THRESHOLD: Final = 1 << 20
MAX_JOBMANAGER_STATE: Final = 5 * 1024 * 1024


class StorageKind(enum.Enum):
    """The kinds of checkpoint storage."""

    JOBMANAGER = "jobmanager"  # inside the acks, to the driver
    FILESYSTEM = "filesystem"


class StorageSettings(msgspec.Struct, frozen=True):
    """The storage options of a configuration; unset, the kind is filesystem if there is a directory.

    >>> StorageSettings.of(Configuration({"execution.checkpointing.dir": "/data/"})).kind
    <StorageKind.FILESYSTEM: 'filesystem'>
    """

    kind: StorageKind
    directory: str | None
    savepoint_directory: str | None
    create_subdir: bool
    inline_threshold: int
    write_buffer: int
    private: bool  # files on local file systems are for this user only

    @classmethod
    def of(cls, configuration: Configuration) -> StorageSettings:
        """Read and check the options."""
        directory, savepoints = configuration.get(config.CHECKPOINT_DIR), configuration.get(config.SAVEPOINT_DIR)
        kind = StorageKind.FILESYSTEM if stored_in_files(configuration) else StorageKind.JOBMANAGER
        if kind is StorageKind.FILESYSTEM and not directory:
            raise ConfigError(
                "HR-1008",
                f"{config.CHECKPOINT_STORAGE.key} is filesystem, but {config.CHECKPOINT_DIR.key} is not set; set it, "
                "for example to file:///data/checkpoints or s3://bucket/checkpoints",
            )
        for option, path in ((config.CHECKPOINT_DIR, directory), (config.SAVEPOINT_DIR, savepoints)):
            if path and (reason := unsupported(path)):
                raise ConfigError("HR-1008", f"{option.key} is '{path}': {reason}")
        threshold = configuration.get(config.CHECKPOINT_INLINE_THRESHOLD)
        if threshold > MAX_INLINE_THRESHOLD:
            raise ConfigError(
                "HR-1008",
                f"{config.CHECKPOINT_INLINE_THRESHOLD.key} is {threshold} bytes; it may be at most {MAX_INLINE_THRESHOLD} (1 mb), "
                "since every state below it is kept in the driver's memory",
            )
        return cls(
            kind,
            normalise(directory) if directory else None,
            normalise(savepoints) if savepoints else None,
            configuration.get(config.CHECKPOINT_CREATE_SUBDIR),
            threshold,
            configuration.get(config.CHECKPOINT_WRITE_BUFFER),
            configuration.get(config.STORAGE_PRIVATE),
        )

    def layout(self, job_id: JobId) -> JobLayout | None:
        """Return the paths of a job; None if nothing is stored in files."""
        if self.directory is None:
            return None
        return JobLayout.of(self.directory, job_id, create_subdir=self.create_subdir)
