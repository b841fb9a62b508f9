"""PyFlink's names that change nothing in Headrace, in one table. Programs can import and call each; it warns once."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from headrace.config import Configuration

__all__ = ["WITHOUT_EFFECT", "WithoutEffect", "warn_without_effect"]

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WithoutEffect:
    """The reason why a name changes nothing, and what to use."""

    why: str
    instead: str = ""


def _option(key: str) -> WithoutEffect:
    """Return the row of a method that sets an option; `execute` warns about the option, wherever it was set."""
    (warning,) = Configuration({key: "x"}).check()
    return WithoutEffect(f"it sets `{key}`", warning.partition(": ")[2])


_ENVIRONMENT, _CONFIG = "StreamExecutionEnvironment", "ExecutionConfig"
_SLOTS = WithoutEffect("Spark's executors run the workers", "spark.executor.cores and spark.executor.memory size them")
_ROCKSDB = WithoutEffect("RocksDB's options are fixed", "state.backend.rocksdb.memory.fixed-per-slot sets its memory")
_HADOOP = WithoutEffect("files are written and read without Hadoop")
_JARS, _CLASSPATHS = "pipeline.jars", "pipeline.classpaths"
_FLAGS = {"closure_cleaner": "pipeline.closure-cleaner-level", "generic_types": "pipeline.generic-types"}
_FLAGS |= {"force_kryo": "pipeline.force-kryo", "force_avro": "pipeline.force-avro"}

WITHOUT_EFFECT: Final[dict[str, WithoutEffect]] = {
    "SlotSharingGroup": _SLOTS,
    f"{_ENVIRONMENT}.register_slot_sharing_group": _SLOTS,
    f"{_ENVIRONMENT}.set_default_local_parallelism": WithoutEffect("local runs are no exception", "set_parallelism()"),
    f"{_ENVIRONMENT}.set_stream_time_characteristic": WithoutEffect(
        "windows and timers name their time themselves, as in Flink since 1.12", "TumblingEventTimeWindows and the like"
    ),
    f"{_ENVIRONMENT}.add_jars": _option(_JARS),
    f"{_ENVIRONMENT}.add_classpaths": _option(_CLASSPATHS),
    f"{_ENVIRONMENT}.register_cached_file": _option("pipeline.cached-files"),
    f"{_ENVIRONMENT}.enable_changelog_state_backend": _option("state.changelog.enabled"),
    "CheckpointConfig.set_force_checkpointing": WithoutEffect("there are no iterations"),
    "EmbeddedRocksDBStateBackend.set_predefined_options": _ROCKSDB,
    "EmbeddedRocksDBStateBackend.set_options": _ROCKSDB,
    "EmbeddedRocksDBStateBackend.set_number_of_transfer_threads": WithoutEffect(
        "a worker has one thread for snapshots", "a larger parallelism writes more files at a time"
    ),
    "FlinkKafkaProducer.set_flush_on_checkpoint": WithoutEffect("a checkpoint waits until all records have arrived"),
    "FlinkKafkaProducer(kafka_producer_pool_size)": WithoutEffect("a subtask has one producer"),
    "ParquetBulkWriters.for_row_type(hadoop_config)": _HADOOP,
    "ParquetColumnarRowInputFormat(hadoop_config)": _HADOOP,
    "OrcBulkWriters.for_row_type(hadoop_config)": _HADOOP,
    **{f"{_CONFIG}.{verb}_{name}": _option(key) for name, key in _FLAGS.items() for verb in ("enable", "disable")},
    f"{_CONFIG}.set_latency_tracking_interval": _option("metrics.latency.interval"),
    f"{_CONFIG}.set_task_cancellation_interval": _option("task.cancellation.interval"),
    f"{_CONFIG}.set_task_cancellation_timeout": _option("task.cancellation.timeout"),
    f"{_CONFIG}.set_use_snapshot_compression": _option("execution.checkpointing.snapshot-compression"),
}
"""By the name of the class and the method; an argument is in parentheses."""

_WARNED: set[str] = set()


def warn_without_effect(name: str) -> None:
    """Log the row of a name, once in a process."""
    if name in _WARNED:
        return
    _WARNED.add(name)
    row = WITHOUT_EFFECT[name]
    _LOG.warning("%s has no effect: %s%s", name, row.why, f"; {row.instead}" if row.instead else "")
