"""`pyflink.datastream.stream_execution_environment`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

from headrace import config
from headrace.api.checkpoint_config import CheckpointingMode
from headrace.api.sources import Source
from headrace.api.specs import MapSpec
from headrace.api.stream import DataStream, KeyedStream, Records, check_parallelism
from headrace.api.watermarks import WatermarkStrategy
from headrace.api.windows import WindowAssigner
from headrace.environment import StreamExecutionEnvironment as _Environment
from headrace.errors import InvalidArgument
from headrace.graph.flink_plan import as_flink_json
from headrace.graph.job_graph import KeySpec
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
from headrace.pyflink.datastream.window import CountSlidingWindowAssigner, CountTumblingWindowAssigner
from headrace.records.batch import Batch
from headrace.records.flink_values import MutableRow
from headrace.records.types import PICKLED, TypeInformation, TypeMismatch, as_type
from headrace.worker.keys import KeyReader

__all__ = ["StreamExecutionEnvironment"]

_CHANGELOG = "state.changelog.enabled"
_CACHED_FILES = "pipeline.cached-files"


class StreamExecutionEnvironment(_Environment):
    """Headrace's environment with PyFlink's methods and results.

    >>> from headrace.testing import local_runtime
    >>> with local_runtime():
    ...     env = StreamExecutionEnvironment.get_execution_environment()
    >>> list(env.from_collection([1, 2]).map(lambda n: n + 1).execute_and_collect())
    [2, 3]
    """

    _copies_records: ClassVar[bool] = True
    _default_local_parallelism: ClassVar[int] = os.cpu_count() or 1

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
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
                "set_stream_time_characteristic(IngestionTime): records get no time when they are read; use windows and "
                "timers of processing time, or a timestamp assigner that reads the clock"
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
                f"set_python_executable({python_exec!r}): Spark starts the workers with the interpreter that "
                f"spark.pyspark.python names, now {sys.executable}; set that option before the session starts"
            )

    def register_cached_file(self, file_path: str, name: str, executable: bool = False) -> None:
        """Accepted with a warning: as in PyFlink, no Python function can read it."""
        entry = f"name:{name},path:{file_path},executable:{str(executable).lower()}"
        before = self.get_configuration().get(_CACHED_FILES)
        self.get_configuration().set(_CACHED_FILES, entry if before is None else f"{before};{entry}")

    # --- sources ----------------------------------------------------------------------------------------------------

    def from_collection(self, collection: Iterable[Any], type_info: object = None) -> DataStream:
        """A stream of the elements of a collection, in order; they are converted to the type as Flink does."""
        elements, wanted = list(collection), as_type(type_info)
        try:
            return super().from_collection(elements, wanted)
        except TypeMismatch:
            return super().from_collection(fitted(elements, wanted), wanted)

    def read_text_file(self, file_path: str, charset_name: str = "UTF-8") -> DataStream:
        """As in Flink 1.x: the lines of a file, or of all files of a directory."""
        lines = FileSource.for_record_stream_format(StreamFormat.text_line_format(charset_name), file_path).build()
        return self.from_source(lines, source_name="read_text_file")

    def from_source(
        self,
        source: Source[Any],
        watermark_strategy: WatermarkStrategy | None = None,
        source_name: str = "Source",
        type_info: object = None,
        *,
        rate: float | None = None,
    ) -> DataStream:
        """A stream from a source object; its rows are PyFlink's."""
        stream = super().from_source(source, watermark_strategy, source_name, rate=rate)
        node = stream._own("from_source()")
        node.type = stream._type = with_flink_rows(source.type)
        if type_info is not None and with_flink_rows(as_type(type_info)) != node.type:
            raise InvalidArgument(f"from_source(): the source has the type {source.type}, not {as_type(type_info)}")
        return stream

    def create_input(self, input_format: Any, type_info: object = None) -> DataStream:
        """A stream from a source object; input formats of Flink's are refused."""
        if isinstance(input_format, Source):
            return self.from_source(input_format, type_info=type_info)
        raise InvalidArgument(
            f"create_input() needs a source of Headrace, got {input_format!r}: read files with from_source(FileSource...)"
        )

    # --- running ----------------------------------------------------------------------------------------------------

    def _count_assigner(self, size: int, slide: int) -> WindowAssigner:
        """Only full windows fire, and any function can compute them."""
        return CountSlidingWindowAssigner(size, slide) if slide else CountTumblingWindowAssigner(size)

    def _record_text(self) -> Callable[[Any], str]:
        return printed

    def execute_async(self, job_name: str = "Flink Streaming Job") -> JobClient:  # type: ignore[override]
        """Start the program; PyFlink's client returns futures."""
        return JobClient(super().execute_async(job_name))

    def get_execution_plan(self) -> str:
        """The plan in Flink's JSON: nodes and their predecessors; `explain` shows Headrace's own."""
        return as_flink_json(self._pipeline, self.get_parallelism())

    def close(self) -> None:
        """Nothing is to be closed: jobs and sessions live on their own."""

    def _collect(self, stream: DataStream, job_name: str | None) -> Records:
        """A keyed stream is collected with its keys."""
        return super()._collect(_with_keys(stream) if isinstance(stream, KeyedStream) else stream, job_name)


def _with_keys(stream: KeyedStream) -> DataStream:
    before = stream._before_key()
    keyed = before._then("Key By", MapSpec(function=_KeyAndValue(stream._key, before.get_type())), PICKLED)
    before._beside(keyed._own("key_by()"))
    return keyed


class _KeyAndValue:
    """Makes a row of the key of a record and the record."""

    def __init__(self, key: KeySpec, type: TypeInformation) -> None:
        self._key, self._type = key, type
        self._reader: KeyReader | None = None

    def __call__(self, value: Any) -> MutableRow:
        self._reader = self._reader or KeyReader(self._key, 1)
        return MutableRow(f0=self._reader.keys(Batch.of_rows([value], self._type))[0], f1=value)
