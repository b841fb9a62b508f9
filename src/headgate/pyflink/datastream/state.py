"""`pyflink.datastream.state`."""

from __future__ import annotations

from typing import TypeVar

from headgate.pyflink.common.time import Duration as Duration
from headgate.pyflink.common.time import Time as Time
from headgate.pyflink.common.typeinfo import TypeInformation as TypeInformation
from headgate.pyflink.common.typeinfo import Types as Types
from headgate.state.api import AggregatingState as AggregatingState
from headgate.state.api import AggregatingStateDescriptor as AggregatingStateDescriptor
from headgate.state.api import ListState as ListState
from headgate.state.api import ListStateDescriptor as ListStateDescriptor
from headgate.state.api import MapState as _MapState
from headgate.state.api import MapStateDescriptor as _MapStateDescriptor
from headgate.state.api import ReducingState as ReducingState
from headgate.state.api import ReducingStateDescriptor as ReducingStateDescriptor
from headgate.state.api import State as State
from headgate.state.api import StateDescriptor as StateDescriptor
from headgate.state.api import ValueState as ValueState
from headgate.state.api import ValueStateDescriptor as ValueStateDescriptor
from headgate.state.broadcast import BroadcastState as BroadcastState
from headgate.state.broadcast import ReadOnlyBroadcastState as ReadOnlyBroadcastState
from headgate.state.operator import OperatorStateBackend
from headgate.state.ttl_config import StateTtlConfig as StateTtlConfig

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
    """Headgate's map state; an entry whose value is None is not contained, as in PyFlink."""

    def contains(self, key: K) -> bool:
        return self.get(key) is not None

    __contains__ = contains


class MapStateDescriptor(_MapStateDescriptor):
    """A map per key."""

    handle = MapState
