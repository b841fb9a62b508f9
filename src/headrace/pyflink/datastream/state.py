"""`pyflink.datastream.state`."""

from __future__ import annotations

from typing import TypeVar

from headrace.pyflink.common.time import Duration as Duration
from headrace.pyflink.common.time import Time as Time
from headrace.pyflink.common.typeinfo import TypeInformation as TypeInformation
from headrace.pyflink.common.typeinfo import Types as Types
from headrace.state.api import AggregatingState as AggregatingState
from headrace.state.api import AggregatingStateDescriptor as AggregatingStateDescriptor
from headrace.state.api import ListState as ListState
from headrace.state.api import ListStateDescriptor as ListStateDescriptor
from headrace.state.api import MapState as _MapState
from headrace.state.api import MapStateDescriptor as _MapStateDescriptor
from headrace.state.api import ReducingState as ReducingState
from headrace.state.api import ReducingStateDescriptor as ReducingStateDescriptor
from headrace.state.api import State as State
from headrace.state.api import StateDescriptor as StateDescriptor
from headrace.state.api import ValueState as ValueState
from headrace.state.api import ValueStateDescriptor as ValueStateDescriptor
from headrace.state.broadcast import BroadcastState as BroadcastState
from headrace.state.broadcast import ReadOnlyBroadcastState as ReadOnlyBroadcastState
from headrace.state.operator import OperatorStateBackend
from headrace.state.ttl_config import StateTtlConfig as StateTtlConfig

__all__ = [
    "AggregatingState",
    "AggregatingStateDescriptor",
    "BroadcastState",
    "ListState",
    "ListStateDescriptor",
    "MapState",
    "MapStateDescriptor",
    "OperatorStateStore",
    "ReadOnlyBroadcastState",
    "ReducingState",
    "ReducingStateDescriptor",
    "State",
    "StateDescriptor",
    "StateTtlConfig",
    "ValueState",
    "ValueStateDescriptor",
]

K = TypeVar("K")
V = TypeVar("V")

OperatorStateStore = OperatorStateBackend


class MapState(_MapState[K, V]):
    """Headrace's map state; an entry whose value is None is not contained, as in PyFlink."""

    def contains(self, key: K) -> bool:
        return self.get(key) is not None

    __contains__ = contains


class MapStateDescriptor(_MapStateDescriptor):
    """A map per key."""

    handle = MapState
