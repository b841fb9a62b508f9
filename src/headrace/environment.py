"""The execution environment: builds programs and runs them, on Spark or in the local runtime.

It is used in the threads of the program, which is the driver.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, Self

from pyspark.sql import DataFrame, SparkSession

from headrace import config
from headrace.api.call_site import call_site
from headrace.api.checkpoint_config import CheckpointConfig, CheckpointingMode
from headrace.api.dialect import NATIVE, Dialect
from headrace.api.execution_config import ExecutionConfig
from headrace.api.functions import callable_of
from headrace.api.sources import CollectionSource, DataGenSource, SequenceSource, Source, check_rate
from headrace.api.specs import MapSpec, SourceSpec
from headrace.api.state_backends import StateBackend
from headrace.api.stream import (
    DataStream,
    DataStreamSink,
    KeyedStream,
    Records,
    check_buffer_timeout,
    check_parallelism,
    check_strategy,
)
from headrace.api.watermarks import WatermarkStrategy
from headrace.config import Configuration, process_defaults
from headrace.connectors.spark.dataframe import DataFrameSource
from headrace.connectors.spark.epochs import EpochSink
from headrace.driver.job import SparkJob
from headrace.driver.log_output import shows_progress
from headrace.driver.progress import live_table
from headrace.driver.session import get_session
from headrace.errors import GraphError, InvalidArgument
from headrace.graph.job_graph import JobGraph, NodeInput
from headrace.graph.levels import Layout, as_json, describe
from headrace.graph.plan import JobPlan, graph_html
from headrace.html_tables import html_table
from headrace.job.restart import RestartStrategyConfiguration
from headrace.job_client import Job, JobClient, JobExecutionResult
from headrace.launch.output import OnOutput, Printer, Results, WithKey
from headrace.launch.program import Program
from headrace.launch.start import start
from headrace.records.types import PICKLED, TypeMismatch, as_type
from headrace.rest.server import linger

__all__ = ["JobClient", "JobExecutionResult", "StreamExecutionEnvironment"]

_local_everywhere: dict[str, Any] | None = None


def use_local_runtime(options: dict[str, Any] | None) -> dict[str, Any] | None:
    """Make `get_execution_environment` return local environments, or (None) those on Spark again; the previous setting.

    For `headrace.testing.local_runtime`, so that a whole program can be tested as it is.
    """
    global _local_everywhere
    before, _local_everywhere = _local_everywhere, options
    return before


class StreamExecutionEnvironment:
    """The start of a program: makes streams and runs the job.

    >>> env = StreamExecutionEnvironment.get_execution_environment()
    >>> env.set_parallelism(2).get_parallelism()
    2
    """

    def __init__(
        self,
        configuration: Configuration | None = None,
        spark: SparkSession | None = None,
        local: dict[str, Any] | None = None,
        *,
        dialect: Dialect = NATIVE,
    ) -> None:
        self.dialect = dialect
        self._configuration = Configuration(process_defaults())
        if configuration is not None:
            self._configuration.add_all(configuration)
        self._program = Program(self._configuration, local=local is not None)
        self._pipeline = self._program.pipeline
        self._spark = spark
        self._local = local  # options of the local runtime
        self._channels = itertools.count()

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
        """Set the time that a record may wait for its buffer to fill: 0 = not at all, -1 = until it is full."""
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
        """Set the restart strategy, see `RestartStrategies`."""
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
        """Set the backend of keyed state, and its checkpoint storage; see `headrace.api.state_backends`."""
        state_backend.apply_to(self._configuration)
        return self

    def get_checkpoint_interval(self) -> int:
        """Milliseconds; -1 if there are no periodic checkpoints."""
        return self.get_checkpoint_config().get_checkpoint_interval()

    def add_python_file(self, file_path: str) -> None:
        """Ship a module, an archive of modules (.zip, .egg, .whl) or a directory of them with the jobs of this environment.

        The file is copied now. Jobs of other environments do not see it, and may add another file of the same name.
        """
        self._program.shipment.add_file(file_path)

    def add_python_archive(self, archive_path: str, target_dir: str | None = None) -> None:
        """Ship an archive (.zip, .tar, .tar.gz, .tgz) of any files with the jobs of this environment.

        It is copied now. A function finds its files below `target_dir` (the name of the archive, if that is left out) in
        its working directory.
        """
        self._program.shipment.add_archive(archive_path, target_dir)

    def set_python_requirements(self, requirements_file_path: str, requirements_cache_dir: str | None = None) -> None:
        """Install packages for the jobs of this environment, now and on this machine, and ship them.

        With a directory of packages that were downloaded before, nothing is downloaded. The workers must have the same
        platform and version of Python.
        """
        self._program.shipment.add_requirements(requirements_file_path, requirements_cache_dir)

    # --- sources ----------------------------------------------------------------------------------------------------

    def from_collection(self, collection: Iterable[Any], type_info: object = None) -> DataStream:
        """A stream of the elements of a collection, in order."""
        elements, type, fitted = list(collection), as_type(type_info), self.dialect.fitted
        try:
            source = CollectionSource(elements, type)
        except TypeMismatch:
            if fitted is None:
                raise
            source = CollectionSource(fitted(elements, type), type)
        return self.from_source(source, source_name="Collection Source")

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
        type = self.dialect.source_type(source.type)
        if type_info is not None and self.dialect.source_type(as_type(type_info)) != type:
            raise InvalidArgument(
                "HR-1227", f"from_source(): the source has the type {source.type}, not {as_type(type_info)}"
            )
        spec = SourceSpec(function=source, rate=rate, watermarks=strategy)
        node = self._pipeline.add(source_name, spec, [], type, call_site())
        node.single = source.single
        return DataStream(self._pipeline, self, [NodeInput(node.id, None, None, 0)], node.type, node)

    def add_source(self, source_func: Any, source_name: str = "Custom Source", type_info: object = None) -> DataStream:
        """A stream from a SourceFunction, in one subtask unless you set its parallelism; a `Source` as in `from_source`."""
        if isinstance(source_func, Source):
            return self.from_source(source_func, source_name=source_name, type_info=type_info)
        for method in ("run", "cancel"):
            if not callable(getattr(source_func, method, None)):
                raise InvalidArgument(
                    "HR-1204", f"add_source() needs an object with run(ctx) and cancel(), got {source_func!r}"
                )
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
        """Return the program so far and the options that are set as HTML for a notebook."""
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
        client: JobClient = self.dialect.client(self._client(job_name))
        return client

    def _client(self, job_name: str | None) -> JobClient:
        printer = Printer(self._configuration)
        return JobClient(self._start(job_name, printer.take), printer.report_dropped)

    def _collect(self, stream: DataStream, job_name: str | None) -> Records:
        """Run the program and iterate over the records of one of its streams (see DataStream.execute_and_collect)."""
        if isinstance(stream, KeyedStream):
            stream = self._with_keys(stream)
        channel = f"collect-{next(self._channels)}"
        stream._collect_into(channel)
        results = Results(stream.get_type(), channel, Printer(self._configuration).take)
        results.job = self._start(job_name, results.take)
        return results

    def _with_keys(self, stream: KeyedStream) -> DataStream:
        """The records of a keyed stream in their form; they stay where they are, but each must have a key."""
        before, keyed = stream._before_key(), self.dialect.keyed
        form = MapSpec(function=WithKey(stream._key, stream.get_type(), keyed))
        made = before._then("Key By", form, stream.get_type() if keyed is None else PICKLED)
        before._beside(made._own("key_by()"))
        return made

    def _foreach_epoch(self, stream: DataStream, function: Callable[[Any, int], object]) -> DataStreamSink:
        """Give each completed checkpoint's output to a function (see DataStream.foreach_epoch)."""
        sink = stream.sink_to(EpochSink(function))
        # The function runs Spark jobs beside the dataflow: they need a slot, or they would wait for ever.
        self._configuration.set(config.RESERVED_SLOTS, max(1, self._configuration.get(config.RESERVED_SLOTS)))
        return sink

    def _graph(self, job_name: str | None) -> tuple[JobGraph, Layout]:
        return self._program.graph(job_name)

    def _job_plan(self, job_name: str | None = None) -> JobPlan:
        """The plan that a runtime runs; the program stays as it is. For tools and the test kit."""
        return self._program.plan(job_name)

    def _start(self, job_name: str | None, on_output: OnOutput) -> Job:
        return start(self._program, job_name, on_output, self._session, self._local)

    def _session(self) -> SparkSession:
        self._spark = get_session(self._spark, self._configuration)
        return self._spark
