"""The execution environment: builds programs and runs them, on Spark or in the local runtime.

It is used in the threads of the program, which is the driver.
"""

from __future__ import annotations

import copy
import itertools
import logging
import queue
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from pyspark.sql import DataFrame, SparkSession

from headrace import config
from headrace.api.checkpoint_config import CheckpointConfig, CheckpointingMode
from headrace.api.execution_config import ExecutionConfig
from headrace.api.functions import callable_of
from headrace.api.sources import CollectionSource, DataGenSource, SequenceSource, Source, check_rate
from headrace.api.specs import SourceSpec
from headrace.api.state_backends import StateBackend
from headrace.api.stream import (
    DataStream,
    DataStreamSink,
    Records,
    call_site,
    check_buffer_timeout,
    check_parallelism,
    check_strategy,
)
from headrace.api.watermarks import WatermarkStrategy
from headrace.api.windows import WindowAssigner
from headrace.config import Configuration, process_defaults
from headrace.connectors.spark.dataframe import DataFrameSource
from headrace.connectors.spark.epochs import EpochSink
from headrace.connectors.spark.epochs import forget as forget_staged
from headrace.driver.epochs import epoch_sinks
from headrace.driver.job import SparkJob
from headrace.driver.log_output import shows_progress, start_log_output
from headrace.driver.progress import live_table
from headrace.driver.replan import dry_run, with_key_groups
from headrace.driver.restore_plan import saved_operators
from headrace.driver.resume import named_manifest
from headrace.driver.session import get_session
from headrace.driver.shipping import add_archive, add_file, install_requirements
from headrace.errors import ConfigError, GraphError, HeadraceError, InvalidArgument
from headrace.graph.job_graph import JobGraph, NodeInput, Pipeline, build_job_graph
from headrace.graph.levels import Layout, as_json, describe, lay_out
from headrace.graph.plan import JobPlan, Settings, ShippedArchive, graph_html, make_plan
from headrace.ids import JobId, new_job_id
from headrace.job.restart import RestartStrategyConfiguration, from_configuration
from headrace.job.status import JobStatus
from headrace.job_client import Job, JobClient, JobExecutionResult
from headrace.local import LocalRun
from headrace.records.html_tables import html_table
from headrace.records.types import TypeInformation, as_type
from headrace.rest.server import linger, register
from headrace.storage.storage_settings import StorageSettings
from headrace.worker.operators.sinks import decode_collected

__all__ = ["JobClient", "JobExecutionResult", "StreamExecutionEnvironment"]

_LOG = logging.getLogger(__name__)
_OnOutput = Callable[[str, bytes, Callable[[], None]], None]
_REQUIREMENTS = "python-requirements"  # the directory that they are unpacked into
_local_everywhere: dict[str, Any] | None = None


def use_local_runtime(options: dict[str, Any] | None) -> dict[str, Any] | None:
    """Make `get_execution_environment` return local environments, or (None) those on Spark again; the previous setting.

    For `headrace.testing.local_runtime`, so that a whole program can be tested as it is.
    """
    global _local_everywhere
    before, _local_everywhere = _local_everywhere, options
    return before


class StreamExecutionEnvironment:
    """Where a program starts.

    >>> env = StreamExecutionEnvironment.get_execution_environment()
    >>> env.set_parallelism(2).get_parallelism()
    2
    """

    _copies_records: ClassVar[bool] = False  # a function must not change a record that it has emitted

    def __init__(
        self,
        configuration: Configuration | None = None,
        spark: SparkSession | None = None,
        local: dict[str, Any] | None = None,
    ) -> None:
        self._configuration = Configuration(process_defaults())
        if configuration is not None:
            self._configuration.add_all(configuration)
        self._spark = spark
        self._local = local  # options of the local runtime
        self._pipeline = Pipeline()
        self._channels = itertools.count()
        self._python_files: list[str] = []
        self._archives: list[ShippedArchive] = []
        self._shipped: set[tuple[str, str]] = set()  # options of files that were shipped

    @classmethod
    def get_execution_environment(
        cls, configuration: Configuration | SparkSession | None = None, spark: SparkSession | None = None
    ) -> Self:
        """An environment on Spark: on the session you give, on the active one, or on one made at `execute`."""
        if configuration is not None and not isinstance(configuration, Configuration):
            configuration, spark = None, configuration
        return cls(configuration, spark, _local_everywhere)

    @classmethod
    def local(cls, configuration: Configuration | None = None, **options: Any) -> Self:
        """An environment that runs programs in this process, without Spark, deterministic, with virtual time."""
        return cls(configuration, local=options)

    # --- settings ---------------------------------------------------------------------------------------------------

    def get_configuration(self) -> Configuration:
        """The options; changes have an effect until `execute`."""
        return self._configuration

    def get_config(self) -> ExecutionConfig:
        """The settings of the program's execution, in PyFlink's words."""
        return ExecutionConfig(self._configuration)

    def configure(self, configuration: Configuration) -> Self:
        """Copy options into this environment."""
        self._configuration.add_all(configuration)
        return self

    def set_parallelism(self, parallelism: int) -> Self:
        """The parallelism of operators that set none themselves."""
        self._configuration.set(config.PARALLELISM, check_parallelism(parallelism, "parallelism"))
        return self

    def get_parallelism(self) -> int:
        """The default parallelism."""
        return int(self._configuration.get(config.PARALLELISM))

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """The number of key groups of operators that set none themselves."""
        self._configuration.set(config.MAX_PARALLELISM, check_parallelism(max_parallelism, "max parallelism"))
        return self

    def get_max_parallelism(self) -> int:
        """The default max parallelism; -1 = derived from the parallelism."""
        return int(self._configuration.get(config.MAX_PARALLELISM))

    def set_buffer_timeout(self, timeout_millis: int) -> Self:
        """How long a record may wait for its buffer to fill: 0 = not at all, -1 = until it is full."""
        self._configuration.set(config.BUFFER_TIMEOUT, check_buffer_timeout(timeout_millis))
        return self

    def get_buffer_timeout(self) -> int:
        """The default buffer timeout in milliseconds."""
        return int(self._configuration.get(config.BUFFER_TIMEOUT))

    def disable_operator_chaining(self) -> Self:
        """Run every operator in a vertex of its own."""
        self._configuration.set(config.CHAINING, False)
        return self

    def set_restart_strategy(self, strategy: RestartStrategyConfiguration) -> Self:
        """What to do when the job fails, see `RestartStrategies`."""
        strategy.apply_to(self._configuration)
        return self

    def enable_checkpointing(self, interval: int, mode: CheckpointingMode | None = None) -> Self:
        """Take a checkpoint every `interval` milliseconds; a failed job continues from the newest one."""
        settings = self.get_checkpoint_config().set_checkpoint_interval(interval)
        if mode is not None:
            settings.set_checkpointing_mode(mode)
        return self

    def get_checkpoint_config(self) -> CheckpointConfig:
        """All settings of checkpoints."""
        return CheckpointConfig(self._configuration)

    def set_state_backend(self, state_backend: StateBackend) -> Self:
        """Where keyed state lives, and where its checkpoints go; see `headrace.api.state_backends`."""
        state_backend.apply_to(self._configuration)
        return self

    def get_checkpoint_interval(self) -> int:
        """Milliseconds; -1 if there are no periodic checkpoints."""
        return self.get_checkpoint_config().get_checkpoint_interval()

    def add_python_file(self, file_path: str) -> None:
        """Ship a module, an archive of modules (.zip, .egg, .whl) or a directory of them with the jobs of this environment.

        The file is copied now. Jobs of other environments do not see it, and may add another file of the same name.
        """
        self._python_files.append(add_file(file_path))

    def add_python_archive(self, archive_path: str, target_dir: str | None = None) -> None:
        """Ship an archive (.zip, .tar, .tar.gz, .tgz) of any files with the jobs of this environment.

        It is copied now. A function finds its files below `target_dir` (the name of the archive, if that is left out) in
        its working directory.
        """
        call = f"add_python_archive({archive_path!r})"
        file = add_archive(archive_path, call)
        self._archives.append(ShippedArchive(file, target_dir or Path(archive_path).name))

    def set_python_requirements(self, requirements_file_path: str, requirements_cache_dir: str | None = None) -> None:
        """Install packages for the jobs of this environment, now and on this machine, and ship them.

        With a directory of packages that were downloaded before, nothing is downloaded. The workers must have the same
        platform and version of Python.
        """
        with tempfile.TemporaryDirectory(prefix="headrace-") as place:
            install_requirements(requirements_file_path, requirements_cache_dir, place)
            file = add_archive(place, "set_python_requirements()")
        self._archives = [one for one in self._archives if one.directory != _REQUIREMENTS]
        self._archives.append(ShippedArchive(file, _REQUIREMENTS, importable=True))

    # --- sources ----------------------------------------------------------------------------------------------------

    def from_collection(self, collection: Iterable[Any], type_info: object = None) -> DataStream:
        """A stream of the elements of a collection, in order."""
        return self.from_source(CollectionSource(list(collection), as_type(type_info)), source_name="Collection Source")

    def from_elements(self, *elements: Any, type_info: object = None) -> DataStream:
        """A stream of the arguments."""
        return self.from_collection(elements, type_info)

    def from_sequence(self, start: int, end: int, *, rate: float | None = None) -> DataStream:
        """The integers start .. end, both included, in parallel; `rate` limits the records per second."""
        return self.from_source(SequenceSource(start, end, as_type("bigint")), source_name="Sequence Source", rate=rate)

    def from_datagen(
        self,
        generate: Callable[[Any], Any],
        count: int | None = None,
        rate: float | None = None,
        type_info: object = None,
        vectorised: bool = False,
    ) -> DataStream:
        """Records made from their number 0, 1, 2, ...

        `count` of them (None = for ever), `rate` a second (None = as fast as the job takes them). A vectorised
        generator gets a numpy array of numbers and gives a pyarrow.RecordBatch.
        """
        callable_of(generate, "generate", "from_datagen()")
        return self.from_source(
            DataGenSource(generate, count, rate, as_type(type_info), vectorised), source_name="DataGen Source"
        )

    def from_dataframe(
        self, frame: DataFrame, source_name: str = "DataFrame", *, rate: float | None = None
    ) -> DataStream:
        """The rows of a bounded Spark DataFrame.

        A Spark job writes them once, below execution.checkpointing.dir if that is set (set it if there is more than one
        machine), before the dataflow starts; they are deleted when the job has finished.
        """
        self._spark = self._spark or frame.sparkSession
        return self.from_source(DataFrameSource(frame), source_name=source_name, rate=rate)

    def from_source(
        self,
        source: Source[Any],
        watermark_strategy: WatermarkStrategy | None = None,
        source_name: str = "Source",
        type_info: object = None,
        *,
        rate: float | None = None,
    ) -> DataStream:
        """A stream from a source object; `rate` limits the records per second, over all subtasks.

        Without a strategy, records have the timestamps that the source gives them, and there are no watermarks before the
        end of the data. The type is the source's own; a `type_info` must be equal to it.
        """
        check_rate(rate)
        strategy = watermark_strategy
        if strategy is not None:
            strategy = check_strategy(strategy, source.type, "from_source()")
        if type_info is not None and as_type(type_info) != source.type:
            raise InvalidArgument(f"from_source(): the source has the type {source.type}, not {as_type(type_info)}")
        spec = SourceSpec(function=source, rate=rate, watermarks=strategy)
        node = self._pipeline.add(source_name, spec, [], source.type, call_site())
        node.single = source.single
        return DataStream(self._pipeline, self, [NodeInput(node.id, None, None, 0)], node.type, node)

    def add_source(self, source_func: Any, source_name: str = "Custom Source", type_info: object = None) -> DataStream:
        """A stream from a SourceFunction, in one subtask unless you set its parallelism; a `Source` as in `from_source`."""
        if isinstance(source_func, Source):
            return self.from_source(source_func, source_name=source_name, type_info=type_info)
        for method in ("run", "cancel"):
            if not callable(getattr(source_func, method, None)):
                raise InvalidArgument(f"add_source() needs an object with run(ctx) and cancel(), got {source_func!r}")
        node = self._pipeline.add(source_name, SourceSpec(function=source_func), [], as_type(type_info), call_site())
        node.parallelism = 1
        return DataStream(self._pipeline, self, [NodeInput(node.id, None, None, 0)], node.type, node)

    # --- running ----------------------------------------------------------------------------------------------------

    def get_execution_plan(self) -> str:
        """The plan as JSON: vertices, chains, edges, levels, slots."""
        return as_json(*self._graph(None))

    def explain(self) -> str:
        """The plan as a text tree."""
        return describe(*self._graph(None))

    def _repr_html_(self) -> str:
        """What a notebook shows: the program so far, and the options that are set."""
        options = html_table(
            "options", ["key", "value", "set by"], [(k, v, o.value) for k, v, o in self._configuration.changed()]
        )
        try:
            graph, layout = self._graph(None)
        except GraphError as error:  # as long as there is no operator
            return html_table("environment", ["program"], [[str(error)]]) + options
        return graph_html(graph, f"environment: {layout.slots} task slots") + options

    def execute(self, job_name: str | None = None) -> JobExecutionResult:
        """Run the program and wait for its end."""
        client = self._client(job_name)
        try:
            shown = isinstance(client.job, SparkJob) and shows_progress(self._configuration)
            with live_table(client.job) if shown else nullcontext():
                return client.wait()
        except KeyboardInterrupt:
            client.cancel()
            raise
        finally:
            linger()

    def execute_async(self, job_name: str | None = None) -> JobClient:
        """Start the program and return at once."""
        return self._client(job_name)

    def _client(self, job_name: str | None) -> JobClient:
        printer = _Printer(self._configuration)
        return JobClient(self._start(job_name, printer.take), printer.report_dropped)

    def _collect(self, stream: DataStream, job_name: str | None) -> Records:
        """Run the program and iterate over the records of one of its streams (see DataStream.execute_and_collect)."""
        channel = f"collect-{next(self._channels)}"
        stream._collect_into(channel)
        results = _Results(stream.get_type(), channel, _Printer(self._configuration).take)
        results.job = self._start(job_name, results.take)
        return results

    def _count_assigner(self, size: int, slide: int) -> WindowAssigner | None:
        return None

    def _record_text(self) -> Callable[[Any], str]:
        return str

    def _foreach_epoch(self, stream: DataStream, function: Callable[[Any, int], object]) -> DataStreamSink:
        """Give each completed checkpoint's output to a function (see DataStream.foreach_epoch)."""
        sink = stream.sink_to(EpochSink(function))
        # The function runs Spark jobs beside the dataflow: they need a slot, or they would wait for ever.
        self._configuration.set(config.RESERVED_SLOTS, max(1, self._configuration.get(config.RESERVED_SLOTS)))
        return sink

    def _graph(self, job_name: str | None) -> tuple[JobGraph, Layout]:
        conf = self._configuration
        limit = conf.get(config.MAX_PARALLELISM)
        graph = build_job_graph(
            self._pipeline,
            job_name or conf.get(config.JOB_NAME) or "Headrace job",
            conf.get(config.PARALLELISM),
            limit if limit > 0 else None,
            conf.get(config.CHAINING),
            conf.get(config.AUTO_GENERATE_UIDS),
        )
        return graph, lay_out(graph)

    def _ship_configured(self) -> None:
        """Ship what the options name, once."""
        for path in self._taken(config.PYTHON_FILES):
            self.add_python_file(path)
        for path in self._taken(config.PYTHON_ARCHIVES):
            archive, _, directory = path.partition("#")
            self.add_python_archive(archive, directory or None)
        for path in self._taken(config.PYTHON_REQUIREMENTS):
            file, _, packages = path.partition("#")
            self.set_python_requirements(file, packages or None)

    def _taken(self, option: config.Option[str | None]) -> list[str]:
        found = self._configuration.get(option) or ""
        if (option.key, found) in self._shipped:
            return []
        self._shipped.add((option.key, found))
        return [part.strip() for part in found.split(",") if part.strip()]

    def _is_batch(self, graph: JobGraph) -> bool:
        """Whether running aggregations give one result for each key, at the end of the bounded input."""
        mode = self._configuration.get(config.RUNTIME_MODE)
        if mode == "STREAMING":
            return False
        sources = [vertex.head for vertex in graph.vertices if vertex.is_source]
        bounded = [getattr(source.spec.function, "bounded", None) for source in sources]
        endless = next((one for one, ends in zip(sources, bounded, strict=True) if ends is False), None)
        if mode == "BATCH" and endless is not None:
            raise ConfigError(
                f"execution.runtime-mode is BATCH, and the source '{endless.name}' ({endless.call_site}) never ends: use "
                "STREAMING, or a source that is bounded"
            )
        return mode == "BATCH" or all(ends is True for ends in bounded)

    def _job_plan(self, job_name: str | None = None) -> JobPlan:
        """What a runtime gets to run; the program stays as it is. For tools and the test kit."""
        self._ship_configured()
        graph, layout = self._graph(job_name)
        self._check_sinks(graph)
        self._check_unaligned(graph)
        settings = Settings.of(
            self._configuration, self._waits_for_final_checkpoint(), self._is_batch(graph), self._copies_records
        )
        return make_plan(graph, layout, settings, tuple(self._python_files), tuple(self._archives))

    def _check_sinks(self, graph: JobGraph) -> None:
        """Sinks that commit on the driver need checkpoints."""
        for _, operator in epoch_sinks(graph):
            where = f"sink '{operator.name}' ({operator.call_site})"
            if not self._waits_for_final_checkpoint():
                raise ConfigError(
                    f"{where} writes with every completed checkpoint, and the job takes none: call env.enable_checkpointing(ms), "
                    "leave execution.checkpointing.checkpoints-after-tasks-finish on, and run on Spark"
                )
            if operator.spec.function.needs_staging and self._configuration.get(config.CHECKPOINT_DIR) is None:
                raise ConfigError(
                    f"{where} keeps its records beside the checkpoints until they are complete: set execution.checkpointing.dir to "
                    "a directory that Spark can read"
                )

    def _check_unaligned(self, graph: JobGraph) -> None:
        """In-flight data behind a custom partitioner is stored only if that is forced, as in Flink (SPEC R6.4)."""
        conf = self._configuration
        wanted = conf.get(config.CHECKPOINT_INTERVAL) is not None and conf.get(config.UNALIGNED)
        custom = next((edge for edge in graph.edges if edge.partitioning.kind == "custom"), None)
        if custom is not None and wanted and not conf.get(config.UNALIGNED_FORCED):
            raise ConfigError(
                f"unaligned checkpoints with partition_custom() before '{graph.vertices[custom.target].name}': after a change "
                "of parallelism, stored records go where the partitioner sends them then. If it always sends equal keys to "
                "the same subtask, set execution.checkpointing.unaligned.forced=true; else switch unaligned checkpoints off"
            )

    def _replanner(self, job_name: str | None) -> Callable[[int], JobPlan]:
        """A function that plans the program as it is now with another parallelism."""
        other = copy.copy(self)
        other._pipeline = self._pipeline.copy()
        other._python_files, other._archives = list(self._python_files), list(self._archives)
        other._configuration = Configuration(self._configuration)

        def replan(parallelism: int) -> JobPlan:
            other.get_configuration().set(config.PARALLELISM, parallelism)
            return other._job_plan(job_name)

        return replan

    def _waits_for_final_checkpoint(self) -> bool:
        conf = self._configuration
        periodic = conf.get(config.CHECKPOINT_INTERVAL) is not None and self._local is None
        return periodic and bool(conf.get(config.CHECKPOINT_AFTER_FINISH))

    def _start(self, job_name: str | None, on_output: _OnOutput) -> Job:
        start_log_output(self._configuration)
        for warning in self._configuration.check():
            _LOG.warning(warning)
        job_id = new_job_id()
        frames = self._place_frames(job_id, self._graph(job_name)[0])
        plan = self._job_plan(job_name)
        replan = self._replanner(job_name)
        self._pipeline.job_started()
        if self._local is not None:
            return _LocalJob(plan, on_output, **self._local)
        manifest = named_manifest(self._configuration)
        if manifest is not None:
            plan = with_key_groups(plan, saved_operators(manifest.operators))
            if self._configuration.get(config.DRY_RUN):
                raise SystemExit(dry_run(plan, manifest, self._configuration))
        checkpointing = self.get_checkpoint_config().is_checkpointing_enabled()
        restart = from_configuration(self._configuration, checkpointing=checkpointing)
        job = SparkJob(plan, job_id, self._session(), self._configuration, restart, on_output, replan)
        self._stage(frames, job, resumed=manifest is not None)
        address = register(job, self._configuration)  # first, since it may refuse: then nothing runs
        job.start()
        if address is not None:
            _LOG.info("job '%s' (%s) starts; dashboard: %s", plan.name, job_id[:8], address)
        return job

    def _place_frames(self, job_id: JobId, graph: JobGraph) -> list[DataFrameSource]:
        """The DataFrames that are sources of a job; each gets the directory for its rows."""
        functions = (operator.spec.function for v in graph.vertices for operator in v.operators)
        frames = [function for function in functions if isinstance(function, DataFrameSource)]
        layout = StorageSettings.of(self._configuration).layout(job_id) if frames else None
        for frame in frames:
            frame.place(layout.task_owned if layout is not None else tempfile.gettempdir())
        return frames

    def _stage(self, frames: list[DataFrameSource], job: SparkJob, *, resumed: bool) -> None:
        """Write the rows of DataFrames before the dataflow takes the slots; a snapshot refers to rows that are there.

        What is staged for sources and sinks is deleted when the job has finished.
        """
        for frame in frames:
            if not resumed and not self._configuration.get(config.RESUME):
                frame.stage()
            job.when_finished.append(frame.forget)
        settings = StorageSettings.of(self._configuration)
        for _, operator in epoch_sinks(job.plan.graph):
            if operator.spec.function.needs_staging:
                job.when_finished.append(partial(_forget_staged, settings, job, operator.id))

    def _session(self) -> SparkSession:
        self._spark = get_session(self._spark, self._configuration)
        return self._spark


def _forget_staged(settings: StorageSettings, job: SparkJob, operator_id: str) -> None:
    layout = settings.layout(job.job_id)  # a resumed job has the id of the one that it goes on with
    if layout is not None:
        forget_staged(layout.task_owned, operator_id)


class _Printer:
    """Printed lines on the driver's stdout, up to a number per second; the others are counted and dropped."""

    def __init__(self, configuration: Configuration) -> None:
        self._limit = configuration.get(config.PRINT_MAX_LINES)
        self._second = 0.0
        self._printed = 0
        self._dropped = 0

    def take(self, channel: str, payload: bytes, confirm: Callable[[], None]) -> None:
        lines = payload.decode("utf-8", "replace").split("\n")
        now = time.monotonic()
        if now - self._second >= 1:
            self.report_dropped()
            self._second, self._printed = now, 0
        shown = lines[: max(0, self._limit - self._printed)]
        self._printed += len(shown)
        self._dropped += len(lines) - len(shown)
        if shown:
            sys.stdout.write("\n".join(shown) + "\n")
            sys.stdout.flush()
        confirm()

    def report_dropped(self) -> None:
        """Print how many lines were not shown: after each second, and when the job has ended."""
        if self._dropped:
            sys.stdout.write(
                f"... {self._dropped} lines not shown (headrace.print.max-lines-per-second = {self._limit})\n"
            )
            self._dropped = 0


class _Results(Iterator[Any], AbstractContextManager[Any]):
    """Records of one stream on the driver, until the job ends; a batch is confirmed when it is taken from the queue."""

    job: Job

    def __init__(self, type: TypeInformation, channel: str, otherwise: _OnOutput) -> None:
        self._type, self._channel, self._otherwise = type, channel, otherwise
        self._batches: queue.SimpleQueue[tuple[bytes, Callable[[], None]]] = queue.SimpleQueue()
        self._rows = self._read()
        self._closed = False

    def take(self, channel: str, payload: bytes, confirm: Callable[[], None]) -> None:
        if channel == self._channel:
            self._batches.put((payload, confirm))
        else:
            self._otherwise(channel, payload, confirm)

    def __next__(self) -> Any:
        try:
            return next(self._rows)
        except KeyboardInterrupt:  # not caught in the loop: CPython does not cover its backward jumps
            self.close()
            raise

    next = __next__  # PyFlink's name

    def _read(self) -> Iterator[Any]:
        while True:
            ended = self.job.status.is_terminal
            try:
                payload, confirm = self._batches.get(timeout=0 if ended else 0.1)
            except queue.Empty:
                if ended:
                    break
                continue
            confirm()
            yield from decode_collected(payload, self._type)
        if not self._closed:
            self.job.raise_if_failed()

    def close(self) -> None:
        """Cancel the job if it still runs."""
        self._closed = True
        if not self.job.status.is_terminal:
            self.job.cancel()
            self.job.wait(30)

    def __exit__(self, *exc: object) -> None:
        self.close()


class _LocalJob:
    """A job of the local runtime; it runs in the constructor, in the calling thread."""

    def __init__(self, plan: JobPlan, on_output: _OnOutput, until: int | None = None, **options: Any) -> None:
        self.error: HeadraceError | None = None
        run = LocalRun(plan, lambda channel, payload: on_output(channel, payload, lambda: None), **options)
        self.job_id = run.job_id
        try:
            run.run(until)
        except HeadraceError as error:
            self.error = error
        self.status = JobStatus.FINISHED if self.error is None else JobStatus.FAILED

    def cancel(self) -> None:
        """It has ended already."""

    def wait(self, timeout: float | None = None) -> JobStatus:
        return self.status

    def raise_if_failed(self) -> None:
        if self.error is not None:
            raise self.error
