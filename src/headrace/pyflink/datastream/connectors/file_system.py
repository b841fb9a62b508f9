"""`pyflink.datastream.connectors.file_system`: builders for Headrace's file source and file sink."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from headrace.connectors.files import FileFormat, TimeBuckets
from headrace.connectors.files import FileSink as _FileSink
from headrace.connectors.files import FileSource as _FileSource
from headrace.connectors.files.formats import LineFormat
from headrace.errors import InvalidArgument
from headrace.pyflink.common.serialization import (
    BulkWriterFactory,
    Encoder,
    SimpleStringSchema,
    check_charset,
)
from headrace.pyflink.datastream.connectors.base import StreamTransformer, SupportsPreprocessing

__all__ = [
    "BucketAssigner",
    "BulkFormat",
    "FileCompactStrategy",
    "FileCompactor",
    "FileEnumeratorProvider",
    "FileSink",
    "FileSource",
    "FileSourceBuilder",
    "FileSplitAssignerProvider",
    "OutputFileConfig",
    "RollingPolicy",
    "StreamFormat",
    "StreamingFileSink",
]


# --- the source -------------------------------------------------------------------------------------------------------


class FileEnumeratorProvider:
    """The splitting of large files, so that several subtasks read them."""

    def __init__(self, splits_files: bool) -> None:
        self.splits_files = splits_files

    @staticmethod
    def default_splittable_file_enumerator() -> FileEnumeratorProvider:
        """Large files of lines, and of Parquet, are cut."""
        return FileEnumeratorProvider(splits_files=True)

    @staticmethod
    def default_non_splittable_file_enumerator() -> FileEnumeratorProvider:
        """Files are read whole."""
        return FileEnumeratorProvider(splits_files=False)


class FileSplitAssignerProvider:
    """Which subtask reads what: the one that has the least left to read."""

    @staticmethod
    def locality_aware_split_assigner() -> FileSplitAssignerProvider:
        """Spark's workers read from shared storage, which has no local parts: splits go to the subtasks that ask."""
        return FileSplitAssignerProvider()


class StreamFormat:
    """A format that is read record by record."""

    def __init__(self, format: FileFormat | str, type_info: object = None) -> None:
        self.format, self.type_info = format, type_info

    @staticmethod
    def text_line_format(charset_name: str = "UTF-8") -> StreamFormat:
        """Lines as strings."""
        charset = check_charset(charset_name)
        if charset == "utf-8":
            return StreamFormat("text")
        if "\n".encode(charset) != b"\n":
            raise InvalidArgument(
                "HR-8002",
                f"text_line_format({charset_name!r}): lines are cut at the byte of '\\n', which this character set has not; "
                "convert the files to UTF-8",
            )
        return StreamFormat(LineFormat(SimpleStringSchema(charset).decoder()))


class BulkFormat:
    """A format that is read in batches."""

    def __init__(self, format: FileFormat | str, type_info: object = None) -> None:
        self.format, self.type_info = format, type_info


class FileSourceBuilder:
    """Builds a file source; it is bounded unless `monitor_continuously` is called."""

    def __init__(self, format: StreamFormat | BulkFormat, paths: Sequence[str]) -> None:
        self._format, self._paths = format, paths
        self._watch_ms: int | None = None
        self._splits = True

    def monitor_continuously(self, discovery_interval: timedelta) -> Self:
        """Look for new files in an interval, for ever."""
        self._watch_ms = max(1, discovery_interval // timedelta(milliseconds=1))
        return self

    def process_static_file_set(self) -> Self:
        """Read the files that are there when the job starts, and end."""
        self._watch_ms = None
        return self

    def set_file_enumerator(self, file_enumerator: FileEnumeratorProvider) -> Self:
        self._splits = file_enumerator.splits_files
        return self

    def set_split_assigner(self, split_assigner: FileSplitAssignerProvider) -> Self:
        """There is one way to assign splits, see `FileSplitAssignerProvider`."""
        return self

    def build(self) -> FileSource:
        cut: dict[str, Any] = {} if self._splits else {"split_bytes": None}
        return FileSource(self._paths, self._format.format, self._format.type_info, watch_ms=self._watch_ms, **cut)


class FileSource(_FileSource):
    """Headrace's file source; records that cannot be read fail the job."""

    @staticmethod
    def for_record_stream_format(stream_format: StreamFormat, *paths: str) -> FileSourceBuilder:
        return FileSourceBuilder(stream_format, paths)

    @staticmethod
    def for_bulk_file_format(bulk_format: BulkFormat, *paths: str) -> FileSourceBuilder:
        return FileSourceBuilder(bulk_format, paths)


# --- the sink ---------------------------------------------------------------------------------------------------------

# Java's letters of dates, as strftime has them.
_JAVA_LETTERS = {
    "yyyy": "%Y",
    "uuuu": "%Y",
    "yy": "%y",
    "MM": "%m",
    "MMM": "%b",
    "MMMM": "%B",
    "dd": "%d",
    "DDD": "%j",
    "HH": "%H",
    "hh": "%I",
    "mm": "%M",
    "ss": "%S",
    "a": "%p",
    "E": "%a",
    "EEE": "%a",
    "EEEE": "%A",
    "e": "%u",
    "xx": "%z",
    "z": "%Z",
}

_JAVA_PATTERN = re.compile(r"'(?P<quoted>(?:[^']|'')*)'|(?P<letters>([A-Za-z])\3*)|[^A-Za-z']")


def strftime_pattern(java: str) -> str:
    """A pattern of Java's DateTimeFormatter as one of strftime.

    >>> strftime_pattern("yyyy-MM-dd--HH"), strftime_pattern("'day='yyyy/MM''%")
    ('%Y-%m-%d--%H', "day=%Y/%m'%%")
    """
    made = []
    for token in _JAVA_PATTERN.finditer(java):
        letters, quoted = token["letters"], token["quoted"]
        if letters is None:
            text = token[0] if quoted is None else quoted.replace("''", "'") or "'"
            made.append(text.replace("%", "%%"))
        elif letters in _JAVA_LETTERS:
            made.append(_JAVA_LETTERS[letters])
        else:
            known = ", ".join(_JAVA_LETTERS)
            raise InvalidArgument(
                "HR-8002",
                f"the pattern {java!r} has {letters!r}, which is not supported; use {known}, or text in quotes",
            )
    return "".join(made)


class BucketAssigner:
    """Which directory below the path a record is written to."""

    def __init__(self, bucket: TimeBuckets | None) -> None:
        self.bucket = bucket

    @staticmethod
    def base_path_bucket_assigner() -> BucketAssigner:
        """The path itself."""
        return BucketAssigner(None)

    @staticmethod
    def date_time_bucket_assigner(format_str: str = "yyyy-MM-dd--HH", timezone_id: str | None = None) -> BucketAssigner:
        """A directory for the time of writing; the timezone is the system's if none is given."""
        return BucketAssigner(TimeBuckets(strftime_pattern(format_str), timezone_id or _system_timezone()))


def _system_timezone() -> str | None:
    """The name of the system's timezone, so that workers elsewhere use the same one."""
    link = Path("/etc/localtime")
    _, found, name = str(link.resolve()).partition("zoneinfo/")
    return name if found and name else None


class RollingPolicy:
    """The conditions under which a file is finished before its checkpoint."""

    @staticmethod
    def default_rolling_policy(
        part_size: int = 1024 * 1024 * 128, rollover_interval: int = 60 * 1000, inactivity_interval: int = 60 * 1000
    ) -> DefaultRollingPolicy:
        """By size in bytes, by age and by inactivity in milliseconds. A checkpoint always finishes files here."""
        return DefaultRollingPolicy(part_size, rollover_interval, inactivity_interval)

    @staticmethod
    def on_checkpoint_rolling_policy() -> OnCheckpointRollingPolicy:
        """Only by a checkpoint."""
        return OnCheckpointRollingPolicy()


@dataclass(frozen=True)
class DefaultRollingPolicy(RollingPolicy):
    """By size, age and inactivity."""

    part_size: int
    rollover_interval: int
    inactivity_interval: int


class OnCheckpointRollingPolicy(RollingPolicy):
    """Only by a checkpoint."""


class OutputFileConfig:
    """The beginning and the end of the names of files."""

    def __init__(self, part_prefix: str, part_suffix: str) -> None:
        self._prefix, self._suffix = part_prefix, part_suffix

    @staticmethod
    def builder() -> OutputFileConfig.OutputFileConfigBuilder:
        return OutputFileConfig.OutputFileConfigBuilder()

    def get_part_prefix(self) -> str:
        return self._prefix

    def get_part_suffix(self) -> str:
        return self._suffix

    class OutputFileConfigBuilder:
        def __init__(self) -> None:
            self.part_prefix, self.part_suffix = "part", ""

        def with_part_prefix(self, prefix: str) -> Self:
            self.part_prefix = prefix
            return self

        def with_part_suffix(self, suffix: str) -> Self:
            self.part_suffix = suffix
            return self

        def build(self) -> OutputFileConfig:
            return OutputFileConfig(self.part_prefix, self.part_suffix)


class FileCompactStrategy:
    """The conditions under which small files are merged; see `FileSink.BaseBuilder.enable_compact`."""

    def __init__(self, checkpoints: int, size: int, threads: int) -> None:
        self.num_checkpoints_before_compaction, self.size_threshold, self.num_compact_threads = (
            checkpoints,
            size,
            threads,
        )

    @staticmethod
    def builder() -> FileCompactStrategy.Builder:
        return FileCompactStrategy.Builder()

    class Builder:
        def __init__(self) -> None:
            self._checkpoints, self._size, self._threads = -1, -1, 1

        def build(self) -> FileCompactStrategy:
            if self._checkpoints < 0 and self._size < 0:
                raise InvalidArgument("HR-8003", "FileCompactStrategy: set a number of checkpoints, or a size")
            return FileCompactStrategy(self._checkpoints, self._size, self._threads)

        def enable_compaction_on_checkpoint(self, num_checkpoints_before_compaction: int) -> Self:
            self._checkpoints = num_checkpoints_before_compaction
            return self

        def set_size_threshold(self, size_threshold: int) -> Self:
            self._size = size_threshold
            return self

        def set_num_compact_threads(self, num_compact_threads: int) -> Self:
            self._threads = num_compact_threads
            return self


class FileCompactor:
    """The merging of small files."""

    def __init__(self, delimiter: bytes | None) -> None:
        self.delimiter = delimiter

    @staticmethod
    def concat_file_compactor(file_delimiter: bytes | None = None) -> FileCompactor:
        """One file behind the other, with the delimiter between."""
        return FileCompactor(file_delimiter or b"")

    @staticmethod
    def identical_file_compactor() -> FileCompactor:
        """A single file as it is."""
        return FileCompactor(None)


class _SinkBuilder:
    """Collects the arguments of Headrace's file sink."""

    def __init__(self, base_path: str, format: FileFormat | str, type_info: Any = None) -> None:
        self._path, self._format = base_path, format
        self._bucket: BucketAssigner = BucketAssigner.date_time_bucket_assigner()
        self._names = OutputFileConfig("part", "")
        self._options: dict[str, Any] = {"type_info": type_info}

    def with_bucket_check_interval(self, interval: int) -> Self:
        """No effect: a file is not visible before its checkpoint, so it is checked when the next record comes."""
        return self

    def with_bucket_assigner(self, bucket_assigner: BucketAssigner) -> Self:
        self._bucket = bucket_assigner
        return self

    def with_output_file_config(self, output_file_config: OutputFileConfig) -> Self:
        self._names = output_file_config
        return self

    def _roll(self, policy: RollingPolicy) -> Self:
        if isinstance(policy, DefaultRollingPolicy):
            self._options |= {
                "roll_bytes": policy.part_size,
                "roll_ms": policy.rollover_interval,
                "idle_ms": policy.inactivity_interval,
            }
        elif not isinstance(policy, OnCheckpointRollingPolicy):
            raise InvalidArgument("HR-8003", f"with_rolling_policy() needs a policy of RollingPolicy, got {policy!r}")
        return self

    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        names = {"prefix": self._names.get_part_prefix(), "suffix": self._names.get_part_suffix()}
        return (self._path, self._format), {**self._options, **names, "bucket": self._bucket.bucket}


def _check_bulk_policy(policy: object) -> None:
    if not isinstance(policy, OnCheckpointRollingPolicy):
        raise ValueError("rolling_policy must be OnCheckpointRollingPolicy for bulk format")  # noqa: TRY004


class FileSink(_FileSink, SupportsPreprocessing):
    """Headrace's file sink, in directories by the hour unless another assigner is given."""

    def get_transformer(self) -> StreamTransformer | None:
        """None: a stream is written as it is."""
        return None

    class BaseBuilder(_SinkBuilder):
        def with_rolling_policy(self, rolling_policy: RollingPolicy) -> Self:
            return self._roll(rolling_policy)

        def enable_compact(self, strategy: FileCompactStrategy, compactor: FileCompactor) -> Self:
            """Not supported: files of several checkpoints are not made one."""
            raise InvalidArgument(
                "HR-8002",
                "enable_compact(): files are not compacted; set a longer interval of checkpoints, which makes larger files, or "
                "write to Delta (headrace.connectors.delta) and run its OPTIMIZE",
            )

        def disable_compact(self) -> Self:
            """Files are not compacted anyway."""
            return self

        def build(self) -> FileSink:
            arguments, options = self._arguments()
            return FileSink(*arguments, **options)

    class RowFormatBuilder(BaseBuilder):
        """Builds a sink of a format that writes record by record."""

    class BulkFormatBuilder(BaseBuilder):
        """Builds a sink of a format that writes many records at a time."""

        def with_rolling_policy(self, rolling_policy: RollingPolicy) -> Self:
            _check_bulk_policy(rolling_policy)
            return self

    @staticmethod
    def for_row_format(base_path: str, encoder: Encoder) -> FileSink.RowFormatBuilder:
        return FileSink.RowFormatBuilder(base_path, encoder.format)

    @staticmethod
    def for_bulk_format(base_path: str, writer_factory: BulkWriterFactory) -> FileSink.BulkFormatBuilder:
        return FileSink.BulkFormatBuilder(base_path, writer_factory.format, writer_factory.type_info)


class StreamingFileSink(_FileSink):
    """The file sink of Flink 1.x, for `add_sink(...)`."""

    class BaseBuilder(_SinkBuilder):
        def with_rolling_policy(self, policy: RollingPolicy) -> Self:
            return self._roll(policy)

        def build(self) -> StreamingFileSink:
            warnings.warn("Deprecated in 1.15. Use FileSink instead.", DeprecationWarning, stacklevel=2)
            arguments, options = self._arguments()
            return StreamingFileSink(*arguments, **options)

    class DefaultRowFormatBuilder(BaseBuilder):
        """Builds a sink of a format that writes record by record."""

    class DefaultBulkFormatBuilder(BaseBuilder):
        """Builds a sink of a format that writes many records at a time."""

        def with_rolling_policy(self, policy: RollingPolicy) -> Self:
            _check_bulk_policy(policy)
            return self

    @staticmethod
    def for_row_format(base_path: str, encoder: Encoder) -> StreamingFileSink.DefaultRowFormatBuilder:
        return StreamingFileSink.DefaultRowFormatBuilder(base_path, encoder.format)

    @staticmethod
    def for_bulk_format(
        base_path: str, writer_factory: BulkWriterFactory
    ) -> StreamingFileSink.DefaultBulkFormatBuilder:
        return StreamingFileSink.DefaultBulkFormatBuilder(base_path, writer_factory.format, writer_factory.type_info)
