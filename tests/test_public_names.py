"""What `import headrace` promises: these names, importable and documented. A change here is a change of the interface."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest

import headrace
import headrace.testing

_TEXT = """
    AggregateFunction AggregatingState AggregatingStateDescriptor BroadcastProcessFunction CheckpointConfig
    CheckpointedFunction CheckpointingMode CoFlatMapFunction CoMapFunction CoProcessFunction ConfigError Configuration
    ConnectedStreams DataStream ExternalizedCheckpointRetention FilterFunction FlatMapFunction Function GraphError HeadraceError IllegalState InvalidArgument JobCancelled JobClient
    JobExecutionResult JobFailed JobStatus KeySelector KeyedBroadcastProcessFunction KeyedCoProcessFunction
    KeyedProcessFunction KeyedStream ListState ListStateDescriptor MapFunction MapState MapStateDescriptor
    NotEnoughSlots OutputTag Partitioner ProcessFunction ReduceFunction ReducingState ReducingStateDescriptor
    RestartStrategies Row RuntimeContext SinkFunction SourceFunction StateMigrationError StateTtlConfig StorageError
    StreamExecutionEnvironment Time TimeDomain TypeInformation Types UserCodeError ValueState ValueStateDescriptor
    WorkerLost spark_conf EmbeddedRocksDBStateBackend HashMapStateBackend StateBackend
    Source SourceReader QueueReader ReaderContext DynamicSource SplitEnumerator Batch durable
    Sink SinkWriter WriterContext Committer CommitRequest Epoch EpochCommitter EpochContext TwoPhaseCommitSinkFunction
    SavepointWriter StateSnapshotReader
    BroadcastStream DataStreamSink FunctionInitializationContext FunctionSnapshotContext KeyedStateStore TimerService
    MAX_WATERMARK MIN_WATERMARK TimestampAssigner Watermark WatermarkGenerator WatermarkOutput WatermarkStrategy
    AllWindowFunction AllWindowedStream CoGroupFunction CoGroupedStreams ContinuousEventTimeTrigger
    ContinuousProcessingTimeTrigger CountEvictor CountSlidingWindowAssigner CountTrigger CountTumblingWindowAssigner CountWindow DeltaEvictor DeltaTrigger EventTimeSessionWindows
    EventTimeTrigger Evictor FlatJoinFunction GlobalWindow GlobalWindows IntervalJoin JoinFunction JoinedStreams
    MergingWindowAssigner NeverTrigger ProcessAllWindowFunction ProcessJoinFunction ProcessWindowFunction
    ProcessingTimeSessionWindows ProcessingTimeTrigger PurgingTrigger SlidingEventTimeWindows SlidingProcessingTimeWindows
    TimeEvictor TimeWindow Trigger TriggerResult TumblingEventTimeWindows TumblingProcessingTimeWindows WindowAssigner
    WindowFunction WindowedStream
    KeyedBatch KeyedBatchFunction
    AsyncFunction AsyncRetryPredicate AsyncRetryStrategy ExponentialBackoffDelayRetryStrategy FixedDelayRetryStrategy
    NoRetryStrategy RetryPredicate
"""
NAMES = _TEXT.split()

TESTING = ["OneInputHarness", "RunResult", "TwoInputHarness", "local_runtime", "run"]


def test_the_public_names():
    public = {n for n in dir(headrace) if not n.startswith("_") and not inspect.ismodule(getattr(headrace, n))}
    assert public == set(NAMES)
    assert sorted(headrace.__all__) == sorted(NAMES)  # so a star import brings no module of ours
    assert headrace.testing.__all__ == TESTING


@pytest.mark.parametrize(
    ("module", "name"), [("headrace", n) for n in NAMES] + [("headrace.testing", n) for n in TESTING]
)
def test_every_name_is_there_and_documented(module, name):
    found = getattr(importlib.import_module(module), name)
    assert inspect.getdoc(found)
    assert (found.__doc__ or "").strip(), f"{name} has no docstring of its own"


@pytest.mark.parametrize("name", [n for n in NAMES if inspect.isclass(getattr(headrace, n))])
def test_every_public_method_is_documented(name):
    """Methods a user may call or override; Types.STRING() and the like say all by their names."""
    if name == "Types":
        pytest.skip("the names of types are their documentation")
    cls = getattr(headrace, name)
    silent = [
        attribute
        for attribute, value in vars(cls).items()
        if not attribute.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, classmethod | staticmethod | property))
        and not inspect.getdoc(getattr(cls, attribute, value))
    ]
    assert silent == []


def test_all_errors_have_one_base():
    errors = [v for n in NAMES if inspect.isclass(v := getattr(headrace, n)) and issubclass(v, Exception)]
    assert len(errors) >= 12
    assert all(issubclass(error, headrace.HeadraceError) for error in errors)
    assert issubclass(headrace.InvalidArgument, ValueError)
    assert issubclass(headrace.IllegalState, RuntimeError)
    assert issubclass(headrace.StorageError, OSError)


def test_the_version():
    assert headrace.__version__ == "0.1.0"


def test_importing_starts_no_jvm():
    """A unit test of a user's function must not pay for one."""
    program = """
import importlib, pkgutil, headrace
for module in pkgutil.walk_packages(headrace.__path__, "headrace."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
from pyspark import SparkContext
print(SparkContext._gateway, SparkContext._active_spark_context)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "None None\n"


def test_a_module_is_imported_when_it_is_used():
    code = """
import headrace
for name in "connectors", "rest", "savepoints", "driver", "worker", "storage", "local", "testing", "pyflink", "environment":
    assert name in dir(headrace), name
    assert getattr(headrace, name).__name__ == f"headrace.{name}"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "statement", ["from headrace import StreamExecutionEnvironment", "import headrace; headrace.driver"]
)
def test_a_failure_of_a_late_import_keeps_its_cause(statement):
    """Python replaces an AttributeError in `from headrace import ...` by "cannot import name" without a cause."""
    module = "headrace.environment" if "Stream" in statement else "headrace.driver"
    code = f"""
import sys
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == '{module}':
            raise AttributeError("module 'profile' has no attribute 'run'")
sys.meta_path.insert(0, Broken())
try:
    {statement.replace("; ", chr(10) + "    ")}
except ImportError as error:
    print(error.name, error, repr(error.__cause__), sep='|')
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    cause = "module 'profile' has no attribute 'run'"
    assert run.stdout.strip().split("|") == [
        module,
        f"cannot import {module}: AttributeError: {cause}",
        f'AttributeError("{cause}")',
    ]


def test_no_other_name():
    with pytest.raises(AttributeError, match="module 'headrace' has no attribute 'Job'"):
        headrace.Job  # noqa: B018


@pytest.mark.parametrize("module", ["headrace", "headrace.cli.main", "headrace.worker.shell"])
def test_only_a_driver_loads_spark_and_what_a_driver_needs(module):
    """A worker of a Spark application and a command start in half of the time."""
    heavy = ("pyspark.sql", "fastapi", "pandas", "headrace.driver.job", "headrace.environment")
    code = f"import sys, {module}; print(*(name for name in {heavy} if name in sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []
