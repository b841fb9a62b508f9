"""`pyflink.datastream.state`."""

from headgate.state.api import AggregatingState as AggregatingState
from headgate.state.api import AggregatingStateDescriptor as AggregatingStateDescriptor
from headgate.state.api import ListState as ListState
from headgate.state.api import ListStateDescriptor as ListStateDescriptor
from headgate.state.api import MapState as MapState
from headgate.state.api import MapStateDescriptor as MapStateDescriptor
from headgate.state.api import ReducingState as ReducingState
from headgate.state.api import ReducingStateDescriptor as ReducingStateDescriptor
from headgate.state.api import State as State
from headgate.state.api import StateDescriptor as StateDescriptor
from headgate.state.api import ValueState as ValueState
from headgate.state.api import ValueStateDescriptor as ValueStateDescriptor
from headgate.state.broadcast import BroadcastState as BroadcastState
from headgate.state.broadcast import ReadOnlyBroadcastState as ReadOnlyBroadcastState
from headgate.state.ttl_config import StateTtlConfig as StateTtlConfig
