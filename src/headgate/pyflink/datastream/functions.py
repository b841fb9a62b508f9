"""`pyflink.datastream.functions`."""

from headgate.api.functions import AggregateFunction as AggregateFunction
from headgate.api.functions import BroadcastProcessFunction as BroadcastProcessFunction
from headgate.api.functions import CoFlatMapFunction as CoFlatMapFunction
from headgate.api.functions import CoMapFunction as CoMapFunction
from headgate.api.functions import CoProcessFunction as CoProcessFunction
from headgate.api.functions import FilterFunction as FilterFunction
from headgate.api.functions import FlatMapFunction as FlatMapFunction
from headgate.api.functions import KeyedBroadcastProcessFunction as KeyedBroadcastProcessFunction
from headgate.api.functions import KeyedCoProcessFunction as KeyedCoProcessFunction
from headgate.api.functions import KeyedProcessFunction as KeyedProcessFunction
from headgate.api.functions import KeySelector as KeySelector
from headgate.api.functions import MapFunction as MapFunction
from headgate.api.functions import Partitioner as Partitioner
from headgate.api.functions import ProcessFunction as ProcessFunction
from headgate.api.functions import ReduceFunction as ReduceFunction
from headgate.api.functions import RuntimeContext as RuntimeContext
from headgate.api.functions import SinkFunction as SinkFunction
from headgate.api.functions import SourceFunction as SourceFunction
from headgate.api.functions import TimerService as TimerService
