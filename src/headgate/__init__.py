"""Headgate: stateful stream processing in Python on Spark.

>>> from headgate import StreamExecutionEnvironment
>>> env = StreamExecutionEnvironment.local()
>>> list(env.from_collection([1, 2, 3]).map(lambda n: n * 2).execute_and_collect())
[2, 4, 6]
"""

from headgate.api.checkpoint_config import CheckpointConfig, CheckpointingMode, ExternalizedCheckpointRetention
from headgate.api.functions import (
    AggregateFunction,
    BroadcastProcessFunction,
    CheckpointedFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    OutputTag,
    Partitioner,
    ProcessFunction,
    ReduceFunction,
    RuntimeContext,
    SinkFunction,
    SourceFunction,
)
from headgate.api.state_backends import (
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    StateBackend,
)
from headgate.api.stream import ConnectedStreams, DataStream, KeyedStream
from headgate.config import Configuration
from headgate.driver.job import JobStatus
from headgate.driver.session import spark_conf
from headgate.environment import JobClient, JobExecutionResult, StreamExecutionEnvironment
from headgate.errors import (
    ConfigError,
    GraphError,
    HeadgateError,
    IllegalState,
    InvalidArgument,
    JobCancelled,
    JobFailed,
    NotEnoughSlots,
    StateMigrationError,
    StorageError,
    UserCodeError,
    WorkerLost,
)
from headgate.job.restart import RestartStrategies
from headgate.records.types import Row, TypeInformation, Types
from headgate.state.api import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    StateTtlConfig,
    Time,
    ValueState,
    ValueStateDescriptor,
)
from headgate.state.timers import TimeDomain

__version__ = "0.1.0"

__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "BroadcastProcessFunction",
    "CheckpointConfig",
    "CheckpointedFunction",
    "CheckpointingMode",
    "CoFlatMapFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "ConfigError",
    "Configuration",
    "ConnectedStreams",
    "DataStream",
    "EmbeddedRocksDBStateBackend",
    "ExternalizedCheckpointRetention",
    "FilterFunction",
    "FlatMapFunction",
    "Function",
    "GraphError",
    "HashMapStateBackend",
    "HeadgateError",
    "IllegalState",
    "InvalidArgument",
    "JobCancelled",
    "JobClient",
    "JobExecutionResult",
    "JobFailed",
    "JobStatus",
    "KeySelector",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListState",
    "ListStateDescriptor",
    "MapFunction",
    "MapState",
    "MapStateDescriptor",
    "NotEnoughSlots",
    "OutputTag",
    "Partitioner",
    "ProcessFunction",
    "ReduceFunction",
    "ReducingState",
    "ReducingStateDescriptor",
    "RestartStrategies",
    "Row",
    "RuntimeContext",
    "SinkFunction",
    "SourceFunction",
    "StateBackend",
    "StateMigrationError",
    "StateTtlConfig",
    "StorageError",
    "StreamExecutionEnvironment",
    "Time",
    "TimeDomain",
    "TypeInformation",
    "Types",
    "UserCodeError",
    "ValueState",
    "ValueStateDescriptor",
    "WorkerLost",
    "spark_conf",
]
