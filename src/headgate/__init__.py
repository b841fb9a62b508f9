"""Headgate: stateful stream processing in Python on Spark.

>>> from headgate import StreamExecutionEnvironment
>>> env = StreamExecutionEnvironment.local()
>>> list(env.from_collection([1, 2, 3]).map(lambda n: n * 2).execute_and_collect())
[2, 4, 6]
"""

from headgate.config import Configuration
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
from headgate.functions import (
    AggregateFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    FilterFunction,
    FlatMapFunction,
    Function,
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
from headgate.restart import RestartStrategies
from headgate.runtime.job import JobStatus
from headgate.runtime.session import spark_conf
from headgate.stream import ConnectedStreams, DataStream, KeyedStream
from headgate.types import Row, TypeInformation, Types

__version__ = "0.1.0"

__all__ = [
    "AggregateFunction",
    "CoFlatMapFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "ConfigError",
    "Configuration",
    "ConnectedStreams",
    "DataStream",
    "FilterFunction",
    "FlatMapFunction",
    "Function",
    "GraphError",
    "HeadgateError",
    "IllegalState",
    "InvalidArgument",
    "JobCancelled",
    "JobClient",
    "JobExecutionResult",
    "JobFailed",
    "JobStatus",
    "KeySelector",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStream",
    "MapFunction",
    "NotEnoughSlots",
    "OutputTag",
    "Partitioner",
    "ProcessFunction",
    "ReduceFunction",
    "RestartStrategies",
    "Row",
    "RuntimeContext",
    "SinkFunction",
    "SourceFunction",
    "StateMigrationError",
    "StorageError",
    "StreamExecutionEnvironment",
    "TypeInformation",
    "Types",
    "UserCodeError",
    "WorkerLost",
    "spark_conf",
]
