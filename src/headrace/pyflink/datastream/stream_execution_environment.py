"""`pyflink.datastream.stream_execution_environment`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, ClassVar

from headrace import config
from headrace.api.checkpoint_config import CheckpointingMode
from headrace.api.dialect import Dialect
from headrace.api.sources import Source
from headrace.api.stream import DataStream, check_parallelism
from headrace.environment import StreamExecutionEnvironment as _Environment
from headrace.errors import InvalidArgument
from headrace.graph.flink_plan import as_flink_json
from headrace.pyflink._without_effect import warn_without_effect
from headrace.pyflink.common.configuration import Configuration as Configuration
from headrace.pyflink.common.execution_config import ExecutionConfig as ExecutionConfig
from headrace.pyflink.common.job_client import JobClient
from headrace.pyflink.common.job_execution_result import JobExecutionResult as JobExecutionResult
from headrace.pyflink.common.serialization import printed
from headrace.pyflink.common.typeinfo import Types as Types
from headrace.pyflink.common.typeinfo import fitted, with_flink_rows
from headrace.pyflink.datastream.checkpoint_config import CheckpointConfig
from headrace.pyflink.datastream.connectors.file_system import FileSource, StreamFormat
from headrace.pyflink.datastream.execution_mode import RuntimeExecutionMode
from headrace.pyflink.datastream.slot_sharing_group import SlotSharingGroup
from headrace.pyflink.datastream.time_characteristic import TimeCharacteristic
from headrace.records.flink_values import MutableRow

__all__ = ["StreamExecutionEnvironment"]

_CHANGELOG = "state.changelog.enabled"
_CACHED_FILES = "pipeline.cached-files"


def _row_of(key: Any, record: Any) -> MutableRow:
    return MutableRow(f0=key, f1=record)


FLINK = Dialect(source_type=with_flink_rows, fitted=fitted, text=printed, keyed=_row_of, client=JobClient)
"""PyFlink's forms."""


class StreamExecutionEnvironment(_Environment):
    """Headrace's environment with PyFlink's methods and results.

    >>> from headrace.testing import local_runtime
    >>> with local_runtime():
    ...     env = StreamExecutionEnvironment.get_execution_environment()
    >>> list(env.from_collection([1, 2]).map(lambda n: n + 1).execute_and_collect())
    [2, 3]
    """

    _default_local_parallelism: ClassVar[int] = os.cpu_count() or 1

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, dialect=FLINK, **kwargs)
        self._slot_sharing_groups: dict[str, SlotSharingGroup] = {}
        self._time_characteristic = TimeCharacteristic.EventTime

    # --- settings ---------------------------------------------------------------------------------------------------

    def set_runtime_mode(self, execution_mode: RuntimeExecutionMode) -> StreamExecutionEnvironment:
        """In BATCH, reduce(), sum() and the like give one result for each key, when the bounded input has ended."""
        self.get_configuration().set(config.RUNTIME_MODE, execution_mode.name)
        return self

    def get_checkpoint_config(self) -> CheckpointConfig:
        return CheckpointConfig(self.get_configuration())

    def get_checkpointing_mode(self) -> CheckpointingMode:
        return self.get_checkpoint_config().get_checkpointing_mode()

    get_checkpointing_consistency_mode = get_checkpointing_mode

    def is_unaligned_checkpoints_enabled(self) -> bool:
        return self.get_checkpoint_config().is_unaligned_checkpoints_enabled()

    def is_force_unaligned_checkpoints(self) -> bool:
        return self.get_checkpoint_config().is_force_unaligned_checkpoints()

    def is_chaining_enabled(self) -> bool:
        return self.get_configuration().get(config.CHAINING)

    def is_chaining_of_operators_with_different_max_parallelism_enabled(self) -> bool:
        """Always False: chained operators have one max parallelism."""
        return False

    def enable_changelog_state_backend(self, enabled: bool) -> StreamExecutionEnvironment:
        """Accepted with a warning: there is no changelog; `execution.checkpointing.incremental` makes checkpoints short."""
        self.get_configuration().set(_CHANGELOG, enabled)
        return self

    def is_changelog_state_backend_enabled(self) -> bool | None:
        found = self.get_configuration().get(_CHANGELOG)
        return None if found is None else found == "true"

    def set_default_savepoint_directory(self, directory: str) -> StreamExecutionEnvironment:
        self.get_configuration().set(config.SAVEPOINT_DIR, directory)
        return self

    def get_default_savepoint_directory(self) -> str | None:
        return self.get_configuration().get(config.SAVEPOINT_DIR)

    def set_stream_time_characteristic(self, characteristic: TimeCharacteristic) -> None:
        """Keep the characteristic, which has no effect."""
        if characteristic is TimeCharacteristic.IngestionTime:
            raise InvalidArgument(
                "HR-8002",
                "set_stream_time_characteristic(IngestionTime): records get no time when they are read; use windows and "
                "timers of processing time, or a timestamp assigner that reads the clock",
            )
        warn_without_effect("StreamExecutionEnvironment.set_stream_time_characteristic")
        self._time_characteristic = characteristic

    def get_stream_time_characteristic(self) -> TimeCharacteristic:
        return self._time_characteristic

    def get_default_local_parallelism(self) -> int:
        return self._default_local_parallelism

    def set_default_local_parallelism(self, parallelism: int) -> None:
        """Keep the parallelism, which has no effect."""
        warn_without_effect("StreamExecutionEnvironment.set_default_local_parallelism")
        StreamExecutionEnvironment._default_local_parallelism = check_parallelism(parallelism, "parallelism")

    def register_slot_sharing_group(self, slot_sharing_group: SlotSharingGroup) -> StreamExecutionEnvironment:
        """Keep the group, which has no effect."""
        warn_without_effect("StreamExecutionEnvironment.register_slot_sharing_group")
        self._slot_sharing_groups[slot_sharing_group.get_name()] = slot_sharing_group
        return self

    # --- what is shipped --------------------------------------------------------------------------------------------

    def add_jars(self, *jars_path: str) -> None:
        """Accepted with a warning: connectors are built in and need no jars."""
        self._note("pipeline.jars", jars_path)

    def add_classpaths(self, *classpaths: str) -> None:
        """Accepted with a warning: connectors are built in and need no jars."""
        self._note("pipeline.classpaths", classpaths)

    def _note(self, key: str, paths: tuple[str, ...]) -> None:
        before = self.get_configuration().get(key)
        own = [] if before is None else [one.strip(" '") for one in before.strip("[]").split(",")]
        self.get_configuration().set(key, str([*own, *paths]))

    def set_python_executable(self, python_exec: str) -> None:
        """The interpreter of the workers is Spark's `spark.pyspark.python`; another one than this process's is refused."""
        if Path(python_exec).resolve() != Path(sys.executable).resolve():
            raise InvalidArgument(
                "HR-8002",
                f"set_python_executable({python_exec!r}): Spark starts the workers with the interpreter that "
                f"spark.pyspark.python names, now {sys.executable}; set that option before the session starts",
            )

    def register_cached_file(self, file_path: str, name: str, executable: bool = False) -> None:
        """Accepted with a warning: as in PyFlink, no Python function can read it."""
        entry = f"name:{name},path:{file_path},executable:{str(executable).lower()}"
        before = self.get_configuration().get(_CACHED_FILES)
        self.get_configuration().set(_CACHED_FILES, entry if before is None else f"{before};{entry}")

    # --- sources ----------------------------------------------------------------------------------------------------

    def read_text_file(self, file_path: str, charset_name: str = "UTF-8") -> DataStream:
        """As in Flink 1.x: the lines of a file, or of all files of a directory."""
        lines = FileSource.for_record_stream_format(StreamFormat.text_line_format(charset_name), file_path).build()
        return self.from_source(lines, source_name="read_text_file")

    def create_input(self, input_format: Any, type_info: object = None) -> DataStream:
        """A stream from a source object; input formats of Flink's are refused."""
        if isinstance(input_format, Source):
            return self.from_source(input_format, type_info=type_info)
        raise InvalidArgument(
            "HR-1202",
            f"create_input() needs a source of Headrace, got {input_format!r}: read files with from_source(FileSource...)",
        )

    # --- running ----------------------------------------------------------------------------------------------------

    def get_execution_plan(self) -> str:
        """The plan in Flink's JSON: nodes and their predecessors; `explain` shows Headrace's own."""
        return as_flink_json(self._pipeline, self.get_parallelism())

    def close(self) -> None:
        """Nothing is to be closed: jobs and sessions live on their own."""
