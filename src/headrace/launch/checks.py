"""Rules that a program must follow before it can run; each error names the operator and the option."""

from __future__ import annotations

from headrace import config
from headrace.config import Configuration
from headrace.driver.epochs import epoch_sinks
from headrace.errors import ConfigError
from headrace.graph.job_graph import JobGraph


def is_batch(graph: JobGraph, configuration: Configuration) -> bool:
    """Return True if running aggregations give one result for each key, at the end of the bounded input."""
    mode = configuration.get(config.RUNTIME_MODE)
    if mode == "STREAMING":
        return False
    sources = [vertex.head for vertex in graph.vertices if vertex.is_source]
    bounded = [getattr(source.spec.function, "bounded", None) for source in sources]
    endless = next((one for one, ends in zip(sources, bounded, strict=True) if ends is False), None)
    if mode == "BATCH" and endless is not None:
        raise ConfigError(
            "HR-1009",
            f"execution.runtime-mode is BATCH, and the source '{endless.name}' ({endless.call_site}) never ends: use "
            "STREAMING, or a source that is bounded",
        )
    return mode == "BATCH" or all(ends is True for ends in bounded)


def check_sinks(graph: JobGraph, configuration: Configuration, *, final_checkpoint: bool) -> None:
    """Refuse sinks that commit on the driver in a job without the checkpoints that they need."""
    for _, operator in epoch_sinks(graph):
        where = f"sink '{operator.name}' ({operator.call_site})"
        if not final_checkpoint:
            raise ConfigError(
                "HR-1007",
                f"{where} writes with every completed checkpoint, and the job takes none: call env.enable_checkpointing(ms), "
                "leave execution.checkpointing.checkpoints-after-tasks-finish on, and run on Spark",
            )
        if operator.spec.function.needs_staging and configuration.get(config.CHECKPOINT_DIR) is None:
            raise ConfigError(
                "HR-1007",
                f"{where} keeps its records beside the checkpoints until they are complete: set execution.checkpointing.dir to "
                "a directory that Spark can read",
            )


def check_unaligned(graph: JobGraph, configuration: Configuration) -> None:
    """Refuse to store in-flight data behind a custom partitioner unless that is forced, as in Flink (SPEC R6.4)."""
    wanted = configuration.get(config.CHECKPOINT_INTERVAL) is not None and configuration.get(config.UNALIGNED)
    custom = next((edge for edge in graph.edges if edge.partitioning.kind == "custom"), None)
    if custom is not None and wanted and not configuration.get(config.UNALIGNED_FORCED):
        raise ConfigError(
            "HR-1006",
            f"unaligned checkpoints with partition_custom() before '{graph.vertices[custom.target].name}': after a change "
            "of parallelism, stored records go where the partitioner sends them then. If it always sends equal keys to "
            "the same subtask, set execution.checkpointing.unaligned.forced=true; else switch unaligned checkpoints off",
        )
