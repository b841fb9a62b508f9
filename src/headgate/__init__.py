"""Headgate: stateful stream processing in Python on Spark.

>>> from headgate import StreamExecutionEnvironment
>>> env = StreamExecutionEnvironment.local()
>>> list(env.from_collection([1, 2, 3]).map(lambda n: n * 2).execute_and_collect())
[2, 4, 6]
"""

from headgate.api.checkpoint_config import CheckpointConfig, CheckpointingMode, ExternalizedCheckpointRetention
from headgate.api.durable import durable
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
from headgate.api.sink import (
    CommitRequest,
    Committer,
    Epoch,
    EpochCommitter,
    EpochContext,
    Sink,
    SinkWriter,
    WriterContext,
)
from headgate.api.sources import DynamicSource, QueueReader, ReaderContext, Source, SourceReader, SplitEnumerator
from headgate.api.state_backends import (
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    StateBackend,
)
from headgate.api.stream import ConnectedStreams, DataStream, KeyedStream
from headgate.api.two_phase_commit import TwoPhaseCommitSinkFunction
from headgate.config import Configuration
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
from headgate.job.status import JobStatus
from headgate.records.batch import Batch
from headgate.records.types import Row, TypeInformation, Types
from headgate.savepoints.reader import StateSnapshotReader
from headgate.savepoints.writer import SavepointWriter
from headgate.state.api import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from headgate.state.timers import TimeDomain
from headgate.state.ttl_config import StateTtlConfig, Time

__version__ = "0.1.0"

__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "Batch",
    "BroadcastProcessFunction",
    "CheckpointConfig",
    "CheckpointedFunction",
    "CheckpointingMode",
    "CoFlatMapFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "CommitRequest",
    "Committer",
    "ConfigError",
    "Configuration",
    "ConnectedStreams",
    "DataStream",
    "DynamicSource",
    "EmbeddedRocksDBStateBackend",
    "Epoch",
    "EpochCommitter",
    "EpochContext",
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
    "QueueReader",
    "ReaderContext",
    "ReduceFunction",
    "ReducingState",
    "ReducingStateDescriptor",
    "RestartStrategies",
    "Row",
    "RuntimeContext",
    "SavepointWriter",
    "Sink",
    "SinkFunction",
    "SinkWriter",
    "Source",
    "SourceFunction",
    "SourceReader",
    "SplitEnumerator",
    "StateBackend",
    "StateMigrationError",
    "StateSnapshotReader",
    "StateTtlConfig",
    "StorageError",
    "StreamExecutionEnvironment",
    "Time",
    "TimeDomain",
    "TwoPhaseCommitSinkFunction",
    "TypeInformation",
    "Types",
    "UserCodeError",
    "ValueState",
    "ValueStateDescriptor",
    "WorkerLost",
    "WriterContext",
    "durable",
    "spark_conf",
]
