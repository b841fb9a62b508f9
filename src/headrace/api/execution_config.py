"""The settings of a program's execution, in PyFlink's spelling: a face of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self

from headrace import config
from headrace.config import Configuration, Option, OptionKind

__all__ = ["ExecutionConfig"]

# Options of Flink that have no effect here: they are kept, and `execute` warns.
_CLOSURE_CLEANER: Final = Option("pipeline.closure-cleaner-level", OptionKind.STRING, "RECURSIVE", "")
_LATENCY_INTERVAL: Final = Option("metrics.latency.interval", OptionKind.INT, 0, "")
_CANCELLATION_INTERVAL: Final = Option("task.cancellation.interval", OptionKind.INT, 30_000, "")
_CANCELLATION_TIMEOUT: Final = Option("task.cancellation.timeout", OptionKind.INT, 180_000, "")
_FORCE_KRYO: Final = Option("pipeline.force-kryo", OptionKind.BOOL, False, "")
_FORCE_AVRO: Final = Option("pipeline.force-avro", OptionKind.BOOL, False, "")
_GENERIC_TYPES: Final = Option("pipeline.generic-types", OptionKind.BOOL, True, "")
_COMPRESSION: Final = Option("execution.checkpointing.snapshot-compression", OptionKind.BOOL, False, "")


class ExecutionConfig:
    """Settings of a program's execution; `env.get_config()` gives it.

    >>> ExecutionConfig(Configuration()).set_parallelism(4).get_parallelism()
    4
    """

    PARALLELISM_DEFAULT = -1
    """Leaves the parallelism to parallelism.default."""
    PARALLELISM_UNKNOWN = -2

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration

    def _set(self, option: Option[Any], value: object) -> Self:
        self._configuration.set(option, value)
        return self

    def _get(self, option: Option[Any]) -> Any:
        value = self._configuration.get(option)
        return option.default if value is None else config.parse_value(option, value)

    def enable_closure_cleaner(self) -> Self:
        return self._set(_CLOSURE_CLEANER, "RECURSIVE")

    def disable_closure_cleaner(self) -> Self:
        return self._set(_CLOSURE_CLEANER, "NONE")

    def is_closure_cleaner_enabled(self) -> bool:
        return bool(self._get(_CLOSURE_CLEANER) != "NONE")

    def set_auto_watermark_interval(self, interval: int) -> Self:
        """Set the interval of periodic watermarks, in milliseconds."""
        return self._set(config.AUTO_WATERMARK_INTERVAL, interval)

    def get_auto_watermark_interval(self) -> int:
        return self._configuration.get(config.AUTO_WATERMARK_INTERVAL)

    def set_latency_tracking_interval(self, interval: int) -> Self:
        return self._set(_LATENCY_INTERVAL, interval)

    def get_latency_tracking_interval(self) -> int:
        return int(self._get(_LATENCY_INTERVAL))

    def set_parallelism(self, parallelism: int) -> Self:
        """The parallelism of operators that set none themselves."""
        if parallelism == self.PARALLELISM_DEFAULT:
            self._configuration.remove_config(config.PARALLELISM)
            return self
        return self._set(config.PARALLELISM, parallelism)

    def get_parallelism(self) -> int:
        return self._configuration.get(config.PARALLELISM)

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """The number of key groups of operators that set none themselves."""
        return self._set(config.MAX_PARALLELISM, max_parallelism)

    def get_max_parallelism(self) -> int:
        return self._configuration.get(config.MAX_PARALLELISM)

    def set_task_cancellation_interval(self, interval: int) -> Self:
        return self._set(_CANCELLATION_INTERVAL, interval)

    def get_task_cancellation_interval(self) -> int:
        return int(self._get(_CANCELLATION_INTERVAL))

    def set_task_cancellation_timeout(self, timeout: int) -> Self:
        return self._set(_CANCELLATION_TIMEOUT, timeout)

    def get_task_cancellation_timeout(self) -> int:
        return int(self._get(_CANCELLATION_TIMEOUT))

    def enable_force_kryo(self) -> Self:
        return self._set(_FORCE_KRYO, True)

    def disable_force_kryo(self) -> Self:
        return self._set(_FORCE_KRYO, False)

    def is_force_kryo_enabled(self) -> bool:
        return bool(self._get(_FORCE_KRYO))

    def enable_generic_types(self) -> Self:
        return self._set(_GENERIC_TYPES, True)

    def disable_generic_types(self) -> Self:
        return self._set(_GENERIC_TYPES, False)

    def has_generic_types_disabled(self) -> bool:
        return not self._get(_GENERIC_TYPES)

    def enable_auto_generated_uids(self) -> Self:
        """Derive an id from the graph for operators without uid."""
        return self._set(config.AUTO_GENERATE_UIDS, True)

    def disable_auto_generated_uids(self) -> Self:
        """Make a missing uid an error."""
        return self._set(config.AUTO_GENERATE_UIDS, False)

    def has_auto_generated_uids_enabled(self) -> bool:
        return self._configuration.get(config.AUTO_GENERATE_UIDS)

    def enable_force_avro(self) -> Self:
        return self._set(_FORCE_AVRO, True)

    def disable_force_avro(self) -> Self:
        return self._set(_FORCE_AVRO, False)

    def is_force_avro_enabled(self) -> bool:
        return bool(self._get(_FORCE_AVRO))

    def enable_object_reuse(self) -> Self:
        """Hand mutable state values and records out without copying; the program changes no record that it has emitted."""
        return self._set(config.OBJECT_REUSE, True)

    def disable_object_reuse(self) -> Self:
        return self._set(config.OBJECT_REUSE, False)

    def is_object_reuse_enabled(self) -> bool:
        return self._configuration.get(config.OBJECT_REUSE)

    def set_global_job_parameters(self, global_job_parameters_dict: Mapping[str, Any]) -> Self:
        """Values that functions read with `runtime_context.get_job_parameter()`."""
        texts = {str(key): str(value) for key, value in global_job_parameters_dict.items()}
        if not texts:
            self._configuration.remove_config(config.JOB_PARAMETERS)
            return self
        return self._set(config.JOB_PARAMETERS, config.write_map(texts))

    def get_global_job_parameters(self) -> dict[str, str]:
        return config.read_map(self._configuration.get(config.JOB_PARAMETERS))

    def get_default_kryo_serializer_classes(self) -> dict[str, str]:
        """An empty dict: there are no Java serializers."""
        return {}

    def get_registered_kryo_types(self) -> list[str]:
        """An empty list: there are no Java serializers."""
        return []

    def get_registered_pojo_types(self) -> list[str]:
        """An empty list: there are no Java serializers."""
        return []

    def set_use_snapshot_compression(self, use_snapshot_compression: bool) -> Self:
        return self._set(_COMPRESSION, use_snapshot_compression)

    def is_use_snapshot_compression(self) -> bool:
        return bool(self._get(_COMPRESSION))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExecutionConfig) and self._configuration.to_dict() == other._configuration.to_dict()

    def __hash__(self) -> int:
        return hash(frozenset(self._configuration.to_dict().items()))
