"""PyFlink's paths: the names are PyFlink's, and PyFlink's own examples run with another import root."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

import headrace.pyflink
from headrace.cli.coverage import pyflink_names
from headrace.errors import UserCodeError
from headrace.testing import local_runtime

# From flink-python/pyflink at c9be954 (2026-08): __all__ of each module, or its classes where it has none.
PYFLINK = {
    "common": """Configuration ConfigOption ConfigOptions ExecutionConfig TypeInformation TypeSerializer Types
        SerializationSchema DeserializationSchema SimpleStringSchema ByteArraySchema Encoder CompletableFuture
        InputDependencyConstraint JobClient JobExecutionResult JobID JobStatus RestartStrategies
        RestartStrategyConfiguration Row RowKind WatermarkStrategy Duration Instant Time
        AssignerWithPeriodicWatermarksWrapper""",
    "common.completable_future": "CompletableFuture",
    "common.config_options": "ConfigOption ConfigOptions",
    "common.configuration": "Configuration",
    "common.constants": "MAX_LONG_VALUE MIN_LONG_VALUE",
    "common.execution_config": "ExecutionConfig",
    "common.input_dependency_constraint": "InputDependencyConstraint",
    "common.serializer": "TypeSerializer",
    "metrics": "Counter Distribution Meter Metric MetricGroup",
    "table": "",
    "datastream.checkpoint_storage": """CheckpointStorage CustomCheckpointStorage FileSystemCheckpointStorage
        JobManagerCheckpointStorage""",
    "datastream.slot_sharing_group": "MemorySize SlotSharingGroup",
    "datastream.utils": "ResultTypeQueryable",
    "datastream.window": """Window TimeWindow CountWindow GlobalWindow TimeWindowSerializer CountWindowSerializer
        GlobalWindowSerializer TriggerResult Trigger WindowAssigner MergingWindowAssigner SessionWindowTimeGapExtractor
        EventTimeTrigger ContinuousEventTimeTrigger ProcessingTimeTrigger ContinuousProcessingTimeTrigger PurgingTrigger
        CountTrigger NeverTrigger CountTumblingWindowAssigner CountSlidingWindowAssigner TumblingProcessingTimeWindows
        TumblingEventTimeWindows SlidingProcessingTimeWindows SlidingEventTimeWindows ProcessingTimeSessionWindows
        EventTimeSessionWindows DynamicProcessingTimeSessionWindows DynamicEventTimeSessionWindows GlobalWindows""",
    "common.job_client": "JobClient",
    "common.job_execution_result": "JobExecutionResult",
    "common.job_id": "JobID",
    "common.job_status": "JobStatus",
    "common.restart_strategy": "RestartStrategies RestartStrategyConfiguration",
    "common.time": "Duration Instant Time",
    "common.typeinfo": "TypeInformation Types RowTypeInfo TupleTypeInfo",
    "common.types": "Row RowKind",
    "common.watermark_strategy": "WatermarkStrategy TimestampAssigner AssignerWithPeriodicWatermarksWrapper",
    "datastream": """StreamExecutionEnvironment DataStream KeyedStream WindowedStream ConnectedStreams BroadcastStream
        BroadcastConnectedStream AsyncDataStream DataStreamSink MapFunction CoMapFunction FlatMapFunction
        CoFlatMapFunction ReduceFunction FilterFunction ProcessFunction KeyedProcessFunction CoProcessFunction
        KeyedCoProcessFunction WindowFunction ProcessWindowFunction AggregateFunction BroadcastProcessFunction
        KeyedBroadcastProcessFunction AsyncFunction RuntimeContext TimerService CheckpointingMode CheckpointConfig
        ExternalizedCheckpointRetention StateBackend HashMapStateBackend EmbeddedRocksDBStateBackend CustomStateBackend
        PredefinedOptions CheckpointStorage JobManagerCheckpointStorage FileSystemCheckpointStorage
        CustomCheckpointStorage RuntimeExecutionMode Window TimeWindow CountWindow GlobalWindow WindowAssigner
        MergingWindowAssigner TriggerResult Trigger TimeDomain KeySelector Partitioner SourceFunction SinkFunction
        SlotSharingGroup MemorySize OutputTag AsyncRetryPredicate AsyncRetryStrategy
        ExternalizedCheckpointCleanup FsStateBackend MemoryStateBackend RocksDBStateBackend""",
    "datastream.checkpoint_config": "CheckpointConfig ExternalizedCheckpointCleanup",
    "datastream.checkpointing_mode": "CheckpointingMode",
    "datastream.externalized_checkpoint_retention": "ExternalizedCheckpointRetention",
    "datastream.data_stream": """CloseableIterator DataStream KeyedStream ConnectedStreams WindowedStream DataStreamSink
        BroadcastStream BroadcastConnectedStream AllWindowedStream""",
    "datastream.execution_mode": "RuntimeExecutionMode",
    "datastream.functions": """Function RuntimeContext MapFunction CoMapFunction FlatMapFunction CoFlatMapFunction ReduceFunction
        AggregateFunction KeySelector FilterFunction Partitioner SourceFunction SinkFunction ProcessFunction
        CoProcessFunction KeyedProcessFunction KeyedCoProcessFunction TimerService WindowFunction AllWindowFunction
        ProcessWindowFunction ProcessAllWindowFunction BaseBroadcastProcessFunction BroadcastProcessFunction
        KeyedBroadcastProcessFunction AsyncFunction AsyncFunctionDescriptor AsyncRetryPredicate AsyncRetryStrategy""",
    "datastream.output_tag": "OutputTag",
    "datastream.state": """ValueStateDescriptor ValueState ListStateDescriptor ListState MapStateDescriptor MapState
        ReducingStateDescriptor ReducingState AggregatingStateDescriptor AggregatingState ReadOnlyBroadcastState
        BroadcastState StateTtlConfig OperatorStateStore State StateDescriptor""",
    "datastream.state_backend": """StateBackend HashMapStateBackend EmbeddedRocksDBStateBackend CustomStateBackend
        PredefinedOptions FsStateBackend MemoryStateBackend RocksDBStateBackend""",
    "datastream.stream_execution_environment": "StreamExecutionEnvironment",
    "datastream.time_characteristic": "TimeCharacteristic",
    "datastream.time_domain": "TimeDomain",
    "datastream.timerservice": "TimerService",
}
for _name in pyflink_names():
    if "." not in _name.path:
        PYFLINK[_name.module] = f"{PYFLINK.get(_name.module, '')} {_name.path}"
PYFLINK |= {
    "datastream.connectors": " ".join(
        n.path for n in pyflink_names() if ".connectors." in n.module and "." not in n.path
    ),
    "datastream.formats": "",
    "datastream.connectors.kafka": PYFLINK["datastream.connectors.kafka"] + " DeliveryGuarantee",  # imported there
    "table": "DataTypes",
    "table.types": "DataTypes",
}
# Of PyFlink 1.x, for programs that were written for it.
PYFLINK_1 = {
    "FsStateBackend",
    "MemoryStateBackend",
    "RocksDBStateBackend",
    "ExternalizedCheckpointCleanup",
    "TimeCharacteristic",
}
# Names that PyFlink's modules have beside their `__all__`.
BESIDE = {"AllWindowFunction", "AllWindowedStream", "ProcessAllWindowFunction", "TimestampAssigner"}
MODULES = [
    m.name.removeprefix("headrace.pyflink.")
    for m in pkgutil.walk_packages(headrace.pyflink.__path__, "headrace.pyflink.")
    if "._" not in m.name
]


def public(module):
    names = {name for name, value in vars(module).items() if not name.startswith("_") and not inspect.ismodule(value)}
    return set(getattr(module, "__all__", names))


PACKAGES = {"common", "datastream", "datastream.connectors", "datastream.formats", "metrics", "table"}


def test_no_module_that_pyflink_does_not_have():
    assert set(MODULES) - PACKAGES <= set(PYFLINK)


@pytest.mark.parametrize("name", MODULES)
def test_every_name_is_pyflinks(name):
    module = importlib.import_module(f"headrace.pyflink.{name}")
    functions = PYFLINK["datastream.functions"] if name == "datastream" else ""
    types = "RowTypeInfo TupleTypeInfo TimestampAssigner" if name == "common" else ""
    windows = "AllWindowedStream CloseableIterator" if name == "datastream" else ""
    allowed = {*PYFLINK[name].split(), *PYFLINK_1, *functions.split(), *types.split(), *windows.split(), *BESIDE}
    assert public(module) <= allowed
    assert all(hasattr(module, one) for one in public(module))


@pytest.mark.parametrize("name", ["StreamExecutionEnvironment", "JobClient", "CheckpointConfig"])
def test_what_is_not_a_plain_re_export_is_a_thin_class(name):
    package = headrace.pyflink.datastream if name != "JobClient" else headrace.pyflink.common
    assert getattr(package, name) is not getattr(headrace, name)


# PyFlink's values and results differ from Headrace's here: these are classes of their own.
OWN = [
    "StreamExecutionEnvironment",
    "JobClient",
    "CheckpointConfig",
    "Configuration",
    "Row",
    "Types",
    "RestartStrategies",
    "EmbeddedRocksDBStateBackend",
    "MapState",
    "MapStateDescriptor",
    "ProcessFunction",
    "KeyedProcessFunction",
    "CoProcessFunction",
    "KeyedCoProcessFunction",
    "BroadcastProcessFunction",
    "KeyedBroadcastProcessFunction",
]


@pytest.mark.parametrize("package", ["common", "datastream", "datastream.state", "datastream.functions"])
def test_the_rest_are_the_same_objects(package):
    module = importlib.import_module(f"headrace.pyflink.{package}")
    for name in (public(module) & public(headrace)) - set(OWN):
        assert getattr(module, name) is getattr(headrace, name)


def test_contexts_can_be_named_in_annotations():
    from headrace.pyflink.datastream import functions as f

    for owner, names in {
        f.ProcessFunction: ["Context"],
        f.KeyedProcessFunction: ["Context", "OnTimerContext"],
        f.CoProcessFunction: ["Context"],
        f.KeyedCoProcessFunction: ["Context", "OnTimerContext"],
        f.BroadcastProcessFunction: ["Context", "ReadOnlyContext"],
        f.KeyedBroadcastProcessFunction: ["Context", "ReadOnlyContext", "OnTimerContext"],
        f.SinkFunction: ["Context"],
        f.ProcessWindowFunction: ["Context"],
        f.ProcessAllWindowFunction: ["Context"],
        headrace.Trigger: ["TriggerContext", "OnMergeContext"],
    }.items():
        assert all(hasattr(owner, name) for name in names)


# --- PyFlink's own examples, with `pyflink` replaced by `headrace.pyflink` ------------------------------------------

WORD_COUNT = """
from pyflink.common import Types
from pyflink.datastream import StreamExecutionEnvironment

word_count_data = ["To be, or not to be,--that is the question:--",
                   "Whether 'tis nobler in the mind to suffer"]


def word_count():
    env = StreamExecutionEnvironment.get_execution_environment()
    # write all the data to one file
    env.set_parallelism(1)
    ds = env.from_collection(word_count_data)

    def split(line):
        yield from line.split()

    # compute word count
    ds = ds.flat_map(split) \\
           .map(lambda i: (i, 1), output_type=Types.TUPLE([Types.STRING(), Types.INT()])) \\
           .key_by(lambda i: i[0]) \\
           .reduce(lambda i, j: (i[0], i[1] + j[1]))
    ds.print()

    # submit for execution
    env.execute()


word_count()
"""

BASIC_OPERATIONS = """
import json

from pyflink.common import Types
from pyflink.datastream import StreamExecutionEnvironment


def show(ds, env):
    ds.print()
    env.execute()


def basic_operations():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)

    # define the source
    ds = env.from_collection(
        collection=[
            (1, '{"name": "Flink", "tel": 123, "addr": {"country": "Germany", "city": "Berlin"}}'),
            (2, '{"name": "hello", "tel": 135, "addr": {"country": "China", "city": "Shanghai"}}'),
            (3, '{"name": "world", "tel": 124, "addr": {"country": "USA", "city": "NewYork"}}'),
            (4, '{"name": "PyFlink", "tel": 32, "addr": {"country": "China", "city": "Hangzhou"}}')
        ],
        type_info=Types.ROW_NAMED(["id", "info"], [Types.INT(), Types.STRING()])
    )

    # map
    def update_tel(data):
        # parse the json
        json_data = json.loads(data.info)
        json_data['tel'] += 1
        return data.id, json.dumps(json_data)

    show(ds.map(update_tel), env)

    # filter
    show(ds.filter(lambda data: data.id == 1).map(update_tel), env)

    # key by
    show(ds.map(lambda data: (json.loads(data.info)['addr']['country'],
                              json.loads(data.info)['tel']))
           .key_by(lambda data: data[0]).sum(1), env)


basic_operations()
"""

STATE_ACCESS = """
from pyflink.common import Time
from pyflink.common.typeinfo import Types
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.functions import KeyedProcessFunction, RuntimeContext
from pyflink.datastream.state import ValueStateDescriptor, StateTtlConfig


class Sum(KeyedProcessFunction):

    def __init__(self):
        self.state = None

    def open(self, runtime_context: RuntimeContext):
        state_descriptor = ValueStateDescriptor("state", Types.FLOAT())
        state_ttl_config = StateTtlConfig \\
            .new_builder(Time.seconds(1)) \\
            .set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite) \\
            .disable_cleanup_in_background() \\
            .build()
        state_descriptor.enable_time_to_live(state_ttl_config)
        self.state = runtime_context.get_state(state_descriptor)

    def process_element(self, value, ctx: 'KeyedProcessFunction.Context'):
        # retrieve the current count
        current = self.state.value()
        if current is None:
            current = 0

        # update the state's count
        current += value[1]
        self.state.update(current)

        yield value[0], current


def state_access_demo():
    env = StreamExecutionEnvironment.get_execution_environment()

    ds = env.from_collection(
        collection=[
            ('Alice', 110.5),
            ('Bob', 30.25),
            ('Alice', 20.0),
            ('Bob', 53.5),
            ('Alice', 13.25),
        ],
        type_info=Types.TUPLE([Types.STRING(), Types.FLOAT()]))

    # apply the process function onto a keyed stream
    ds.key_by(lambda value: value[0]) \\
      .process(Sum()) \\
      .print()

    # submit for execution
    env.execute()


state_access_demo()
"""

SIDE_OUTPUT = """
from pyflink.common import Types
from pyflink.datastream import OutputTag, ProcessFunction, StreamExecutionEnvironment

output_tag = OutputTag("side-output", Types.STRING())


class MyProcessFunction(ProcessFunction):

    def process_element(self, value: int, ctx: ProcessFunction.Context):
        # emit data to regular output
        yield value

        # emit data to side output
        yield output_tag, "sideout-" + str(value)


env = StreamExecutionEnvironment.get_execution_environment()
main_data_stream = env.from_collection([1, 2], type_info=Types.INT()).process(MyProcessFunction(), Types.INT())
main_data_stream.print()
main_data_stream.get_side_output(output_tag).print()
env.execute()
"""

KEYED_PROCESS_WITH_TIMER = """
from pyflink.common import Row, Types
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment, TimeDomain
from pyflink.datastream.state import MapStateDescriptor, ValueStateDescriptor


class CountWithTimeoutFunction(KeyedProcessFunction):

    def __init__(self):
        self.state = None

    def open(self, runtime_context: RuntimeContext):
        self.state = runtime_context.get_state(ValueStateDescriptor(
            "my_state", Types.PICKLED_BYTE_ARRAY()))
        self.seen = runtime_context.get_map_state(MapStateDescriptor("seen", Types.STRING(), Types.INT()))

    def process_element(self, value, ctx: KeyedProcessFunction.Context):
        # retrieve the current count
        current = self.state.value()
        if current is None:
            current = Row(value.f1, 0, 0)

        # update the state's count
        current = Row(current[0], current[1] + 1, ctx.timer_service().current_processing_time())
        self.seen.put(value.f1, current[1])
        self.state.update(current)

        # schedule the next timer 60 seconds from the current event time
        ctx.timer_service().register_event_time_timer(current[2] + 60000)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext):
        # get the state for the key that scheduled the timer
        result = self.state.value()

        # check if this is an outdated timer or the latest timer
        if timestamp == result[2] + 60000 and ctx.time_domain() == TimeDomain.EVENT_TIME:
            # emit the state on timeout
            yield result[0], result[1], dict(self.seen.items())


env = StreamExecutionEnvironment.get_execution_environment()
ds = env.from_collection(
    [("hello", "a"), ("hello", "b"), ("world", "c")], Types.ROW([Types.STRING(), Types.STRING()]))
ds.key_by(lambda value: value[0]).process(CountWithTimeoutFunction()).print()
env.execute()
"""

BROADCAST = """
from pyflink.common import Types
from pyflink.datastream import BroadcastProcessFunction, StreamExecutionEnvironment
from pyflink.datastream.state import MapStateDescriptor

rules = MapStateDescriptor("rules", Types.STRING(), Types.INT())


class Match(BroadcastProcessFunction):
    def process_element(self, value, ctx: BroadcastProcessFunction.ReadOnlyContext):
        if ctx.get_broadcast_state(rules).contains("n"):
            yield value

    def process_broadcast_element(self, value, ctx: BroadcastProcessFunction.Context):
        ctx.get_broadcast_state(rules).put("n", value)
        yield "rule", value


env = StreamExecutionEnvironment.get_execution_environment()
broadcast = env.from_collection([5]).broadcast(rules)
env.from_collection([]).connect(broadcast).process(Match()).print()
env.execute()
"""

JOB_CLIENT = """
from pyflink.common import Configuration, Duration, JobStatus, RestartStrategies
from pyflink.datastream import (CheckpointingMode, ExternalizedCheckpointRetention, RuntimeExecutionMode,
                                StreamExecutionEnvironment)

config = Configuration()
config.set_integer("parallelism.default", 2)
env = StreamExecutionEnvironment.get_execution_environment(config)
env.set_runtime_mode(RuntimeExecutionMode.STREAMING)
env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 1000))
env.from_collection(["x"]).print()
env.enable_checkpointing(1000)
env.get_checkpoint_config() \
    .set_checkpointing_mode(CheckpointingMode.EXACTLY_ONCE) \
    .set_min_pause_between_checkpoints(500) \
    .set_checkpoint_timeout(60000) \
    .set_max_concurrent_checkpoints(1) \
    .set_tolerable_checkpoint_failure_number(2) \
    .set_externalized_checkpoint_retention(ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION) \
    .enable_unaligned_checkpoints() \
    .set_aligned_checkpoint_timeout(Duration.of_seconds(30))
assert env.get_checkpoint_interval() == 1000
client = env.execute_async("my job")
assert client.get_job_execution_result().result().get_job_id() == client.get_job_id()
assert client.get_job_execution_result().done()
assert client.get_job_execution_result().exception() is None
status = client.get_job_status().result()
assert status == JobStatus.FINISHED
assert status.is_terminal_state() and status.is_globally_terminal_state()
client.cancel().result()
with env.from_collection(range(10)).execute_and_collect() as results:
    for result in results:
        assert result < 10
assert len(env.from_collection([1, 2, 3]).execute_and_collect(limit=2)) == 2
print(env.get_parallelism())
"""

# The samples of Flink's pages on checkpoints and on state, of 1.x and of today, in PyFlink's spelling.
CHECKPOINTS_OF_FLINK_1 = """
from pyflink.datastream import (CheckpointingMode, ExternalizedCheckpointCleanup, FsStateBackend, MemoryStateBackend,
                                RocksDBStateBackend, StreamExecutionEnvironment)

env = StreamExecutionEnvironment.get_execution_environment()

# start a checkpoint every 1000 ms
env.enable_checkpointing(1000)

# set mode to exactly-once (this is the default)
env.get_checkpoint_config().set_checkpointing_mode(CheckpointingMode.EXACTLY_ONCE)

# make sure 500 ms of progress happen between checkpoints
env.get_checkpoint_config().set_min_pause_between_checkpoints(500)

# checkpoints have to complete within one minute, or are discarded
env.get_checkpoint_config().set_checkpoint_timeout(60000)

# allow only one checkpoint to be in progress at the same time
env.get_checkpoint_config().set_max_concurrent_checkpoints(1)

# enable externalized checkpoints which are retained after job cancellation
env.get_checkpoint_config().enable_externalized_checkpoints(ExternalizedCheckpointCleanup.RETAIN_ON_CANCELLATION)

# allow job recovery fallback to checkpoint when there is a more recent savepoint
env.get_checkpoint_config().set_prefer_checkpoint_for_recovery(True)

for backend in (MemoryStateBackend(), FsStateBackend("file:///chk"), RocksDBStateBackend("file:///chk", True)):
    env.set_state_backend(backend)
"""

CHECKPOINTS_OF_TODAY = """
from pyflink.datastream import CheckpointingMode, ExternalizedCheckpointCleanup, StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing(1000)
env.get_checkpoint_config().set_checkpointing_mode(CheckpointingMode.EXACTLY_ONCE)
env.get_checkpoint_config().set_min_pause_between_checkpoints(500)
env.get_checkpoint_config().set_checkpoint_timeout(60000)

# only two consecutive checkpoint failures are tolerated
env.get_checkpoint_config().set_tolerable_checkpoint_failure_number(2)
env.get_checkpoint_config().set_max_concurrent_checkpoints(1)
env.get_checkpoint_config().set_externalized_checkpoint_cleanup(ExternalizedCheckpointCleanup.RETAIN_ON_CANCELLATION)

# enables the unaligned checkpoints
env.get_checkpoint_config().enable_unaligned_checkpoints()
"""

STATE_WITH_TTL = """
from pyflink.common.time import Time
from pyflink.common.typeinfo import Types
from pyflink.datastream import FlatMapFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import StateTtlConfig, ValueStateDescriptor

TTLS = [
    StateTtlConfig.new_builder(Time.seconds(1))
        .set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)
        .set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)
        .build(),
    StateTtlConfig.new_builder(Time.seconds(1)).disable_cleanup_in_background().build(),
    StateTtlConfig.new_builder(Time.seconds(1)).cleanup_full_snapshot().build(),
    StateTtlConfig.new_builder(Time.seconds(1)).cleanup_incrementally(10, True).build(),
    StateTtlConfig.new_builder(Time.seconds(1)).cleanup_in_rocksdb_compact_filter(1000).build(),
]


class CountWindowAverage(FlatMapFunction):

    def __init__(self, ttl):
        self.sum = None
        self.ttl = ttl

    def open(self, runtime_context: RuntimeContext):
        descriptor = ValueStateDescriptor("average", Types.PICKLED_BYTE_ARRAY())
        descriptor.enable_time_to_live(self.ttl)
        self.sum = runtime_context.get_state(descriptor)

    def flat_map(self, value):
        # access the state value
        current_sum = self.sum.value()
        if current_sum is None:
            current_sum = (0, 0)

        # update the count, and add the second field of the input value
        current_sum = (current_sum[0] + 1, current_sum[1] + value[1])
        self.sum.update(current_sum)

        # if the count reaches 2, emit the average and clear the state
        if current_sum[0] >= 2:
            self.sum.clear()
            yield value[0], int(current_sum[1] / current_sum[0])


for ttl in TTLS:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([(1, 3), (1, 5), (1, 7), (1, 4), (1, 2)]) \\
        .key_by(lambda row: row[0]) \\
        .flat_map(CountWindowAverage(ttl)) \\
        .print()
    env.execute()
"""


def run_program(source, capsys):
    program = source.replace("pyflink", "headrace.pyflink")
    with local_runtime():
        exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
    return capsys.readouterr().out.splitlines()


def test_word_count(capsys):
    lines = run_program(WORD_COUNT, capsys)
    assert lines[0] == "(To,1)"  # as Java writes a record of a type
    assert "(the,2)" in lines
    assert len(lines) == 17


def test_basic_operations(capsys):
    """The expected lines are those in the comments of PyFlink's example."""
    assert run_program(BASIC_OPERATIONS, capsys) == [
        """(1, '{"name": "Flink", "tel": 124, "addr": {"country": "Germany", "city": "Berlin"}}')""",
        """(2, '{"name": "hello", "tel": 136, "addr": {"country": "China", "city": "Shanghai"}}')""",
        """(3, '{"name": "world", "tel": 125, "addr": {"country": "USA", "city": "NewYork"}}')""",
        """(4, '{"name": "PyFlink", "tel": 33, "addr": {"country": "China", "city": "Hangzhou"}}')""",
        """(1, '{"name": "Flink", "tel": 124, "addr": {"country": "Germany", "city": "Berlin"}}')""",
        "('Germany', 123)",
        "('China', 135)",
        "('USA', 124)",
        "('China', 167)",
    ]


def test_state_access(capsys):
    assert run_program(STATE_ACCESS, capsys) == [
        "('Alice', 110.5)",
        "('Bob', 30.25)",
        "('Alice', 130.5)",
        "('Bob', 83.75)",
        "('Alice', 143.75)",
    ]


def test_side_output(capsys):
    assert sorted(run_program(SIDE_OUTPUT, capsys)) == ["1", "2", "sideout-1", "sideout-2"]


def test_keyed_process_with_timers(capsys):
    lines = sorted(run_program(KEYED_PROCESS_WITH_TIMER, capsys))
    assert lines == ["('a', 2, {'a': 1, 'b': 2})", "('c', 1, {'c': 1})"]


def test_broadcast_state(capsys):
    assert run_program(BROADCAST, capsys) == ["('rule', 5)"]


def test_job_client_and_configuration(capsys):
    lines = run_program(JOB_CLIENT, capsys)
    assert lines[0].endswith("> x")
    assert lines[-1] == "2"


@pytest.mark.parametrize("sample", [CHECKPOINTS_OF_FLINK_1, CHECKPOINTS_OF_TODAY])
def test_the_samples_of_checkpoint_settings(sample):
    with local_runtime():
        names = {}
        exec(compile(sample.replace("pyflink", "headrace.pyflink"), "<sample>", "exec"), names)
    found = names["env"].get_configuration().to_dict()
    expected = {
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.min-pause": "500 ms",
        "execution.checkpointing.timeout": "1 min",
        "execution.checkpointing.max-concurrent-checkpoints": "1",
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    }
    if sample is CHECKPOINTS_OF_FLINK_1:
        expected |= {
            "headrace.resume.prefer-checkpoint": "true",
            "state.backend.type": "rocksdb",
            "execution.checkpointing.storage": "filesystem",
            "execution.checkpointing.dir": "file:///chk",
            "execution.checkpointing.incremental": "true",
        }
    else:
        expected |= {
            "execution.checkpointing.tolerable-failed-checkpoints": "2",
            "execution.checkpointing.unaligned.enabled": "true",
        }
    assert found == expected


def test_the_samples_of_state_with_a_time_to_live(capsys):
    assert run_program(STATE_WITH_TTL, capsys) == ["(1, 4)", "(1, 5)"] * 5


def test_a_failed_job_through_the_client():
    from headrace.pyflink.datastream import StreamExecutionEnvironment

    with local_runtime():
        env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([0]).map(lambda n: 1 // n).print()
    future = env.execute_async().get_job_execution_result()
    assert isinstance(future.exception(), UserCodeError)
    with pytest.raises(UserCodeError, match="ZeroDivisionError"):
        future.result()


WINDOWS = """
from typing import Iterable

from pyflink.common import Duration, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import (ProcessWindowFunction, StreamExecutionEnvironment, TimeWindow, Trigger, TriggerResult,
                                WindowFunction)
from pyflink.datastream.window import CountWindow, EventTimeSessionWindows, SessionWindowTimeGapExtractor


class OfSecondField(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp) -> int:
        return value[1]


class GapOfRecord(SessionWindowTimeGapExtractor):
    def extract(self, element: tuple) -> int:
        return element[1]


class HowMany(ProcessWindowFunction[tuple, tuple, str, TimeWindow]):
    def process(self, key: str, context: ProcessWindowFunction.Context[TimeWindow],
                elements: Iterable[tuple]) -> Iterable[tuple]:
        return [(key, context.window().start, context.window().end, len(list(elements)))]

    def clear(self, context: ProcessWindowFunction.Context) -> None:
        pass


class Total(WindowFunction[tuple, tuple, str, CountWindow]):
    def apply(self, key: str, window: CountWindow, inputs: Iterable[tuple]):
        return [(key, sum(value for _, value in inputs))]


class AtNine(Trigger[tuple, TimeWindow]):
    def on_element(self, element: tuple, timestamp: int, window: TimeWindow,
                   ctx: Trigger.TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE if timestamp == 9 else TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_merge(self, window: TimeWindow, ctx: Trigger.OnMergeContext) -> None:
        pass

    def clear(self, window: TimeWindow, ctx: Trigger.TriggerContext) -> None:
        pass


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
ds = env.from_collection([('hi', 1), ('hi', 2), ('hi', 3), ('hi', 4), ('hi', 8), ('hi', 9), ('hi', 20)],
                         type_info=Types.TUPLE([Types.STRING(), Types.INT()]))
strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(1)) \\
    .with_timestamp_assigner(OfSecondField()).with_idleness(Duration.of_minutes(1))
keyed = ds.assign_timestamps_and_watermarks(strategy).key_by(lambda x: x[0], key_type=Types.STRING())
result = Types.TUPLE([Types.STRING(), Types.INT(), Types.INT(), Types.INT()])
keyed.window(EventTimeSessionWindows.with_dynamic_gap(GapOfRecord())).process(HowMany(), result).print()
keyed.window(EventTimeSessionWindows.with_dynamic_gap(GapOfRecord())).trigger(AtNine()).process(HowMany(), result).print()
keyed.count_window(3).apply(Total(), Types.TUPLE([Types.STRING(), Types.INT()])).print()
env.execute()
"""


def test_windows(capsys):
    """In the manner of PyFlink's examples of windows."""
    lines = run_program(WINDOWS, capsys)
    assert sorted(lines) == ["(hi,1,18,6)", "(hi,1,18,6)", "(hi,20,40,1)", "(hi,21)", "(hi,6)"]


# What PyFlink's modules import themselves, and programs import from there.
FROM_ELSEWHERE = {
    "common": "JsonRowDeserializationSchema CsvRowSerializationSchema AvroRowDeserializationSchema",
    "common.constants": "MAX_LONG_VALUE MIN_LONG_VALUE",
    "common.watermark_strategy": "Duration",
    "datastream.checkpoint_config": "CheckpointingMode Duration",
    "datastream.data_stream": "MapFunction OutputTag Row Types ValueStateDescriptor WindowAssigner WatermarkStrategy",
    "datastream.functions": "IN IN1 IN2 KEY KeyedStateStore MetricGroup OUT TimeDomain ValueState ValueStateDescriptor W",
    "datastream.output_tag": "Types TypeInformation",
    "datastream.state": "Duration Time TypeInformation Types",
    "datastream.stream_execution_environment": "Configuration ExecutionConfig JobExecutionResult Types",
    "datastream.window": "IN KEY MAX_LONG_VALUE OUT OutputTag ReduceFunction StateDescriptor T Time Types W",
}


@pytest.mark.parametrize("module", FROM_ELSEWHERE)
def test_names_that_programs_import_from_where_pyflink_only_uses_them(module):
    found = importlib.import_module(f"headrace.pyflink.{module}")
    assert [name for name in FROM_ELSEWHERE[module].split() if not hasattr(found, name)] == []


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("datastream.connectors.jdbc", "pyflink.datastream.connectors.jdbc is not in Headrace: write with Spark: "),
        ("util.java_utils", "pyflink.util is not in Headrace: it is internal to PyFlink; remove what reaches into it"),
        ("ml.lib", "pyflink.ml is not in Headrace: train with Spark ML, "),
    ],
)
def test_a_module_that_is_not_here_says_what_to_use(module, text):
    with pytest.raises(ModuleNotFoundError) as failure:
        importlib.import_module(f"headrace.pyflink.{module}")
    assert str(failure.value).startswith(text)


def test_a_module_that_pyflink_has_not_is_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'headrace\.pyflink\.utils'$"):
        importlib.import_module("headrace.pyflink.utils")


def test_a_format_that_pyflink_has_not():
    with pytest.raises(ImportError, match="cannot import name 'JsonSchema'"):
        from headrace.pyflink.common import JsonSchema  # noqa: F401
