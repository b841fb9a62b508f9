"""Headrace: stateful stream processing in Python on Spark.

>>> from headrace import StreamExecutionEnvironment
>>> env = StreamExecutionEnvironment.local()
>>> list(env.from_collection([1, 2, 3]).map(lambda n: n * 2).execute_and_collect())
[2, 4, 6]

The public names of a module of `headrace.api` are those of its `__all__`. What runs in a driver is imported when it is
used: workers and most commands need neither a driver nor Spark, and start in half of the time without.
"""

from importlib import import_module as _import_module
from pkgutil import iter_modules as _iter_modules
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from headrace.api.async_io import *
from headrace.api.checkpoint_config import *
from headrace.api.durable import durable as durable
from headrace.api.durations import Time as Time
from headrace.api.functions import *
from headrace.api.joins import *
from headrace.api.keyed_batches import *
from headrace.api.sink import *
from headrace.api.sources import *
from headrace.api.state_backends import *
from headrace.api.stream import *
from headrace.api.two_phase_commit import *
from headrace.api.watermarks import *
from headrace.api.windowed_stream import *
from headrace.api.windows import *
from headrace.config import Configuration as Configuration
from headrace.errors import *
from headrace.job.restart import RestartStrategies as RestartStrategies
from headrace.job.status import JobStatus as JobStatus
from headrace.records.batch import Batch as Batch
from headrace.records.flink_values import restored_instant as _restored_instant  # noqa: F401 - pickles name it
from headrace.records.flink_values import restored_row as _restored_row  # noqa: F401 - as above
from headrace.records.types import Row as Row
from headrace.records.types import TypeInformation as TypeInformation
from headrace.records.types import Types as Types
from headrace.state.api import AggregatingState as AggregatingState
from headrace.state.api import AggregatingStateDescriptor as AggregatingStateDescriptor
from headrace.state.api import ListState as ListState
from headrace.state.api import ListStateDescriptor as ListStateDescriptor
from headrace.state.api import MapState as MapState
from headrace.state.api import MapStateDescriptor as MapStateDescriptor
from headrace.state.api import ReducingState as ReducingState
from headrace.state.api import ReducingStateDescriptor as ReducingStateDescriptor
from headrace.state.api import ValueState as ValueState
from headrace.state.api import ValueStateDescriptor as ValueStateDescriptor
from headrace.state.timers import TimeDomain as TimeDomain
from headrace.state.ttl_config import StateTtlConfig as StateTtlConfig

if _TYPE_CHECKING:
    from headrace.driver.session import spark_conf as spark_conf
    from headrace.environment import *
    from headrace.savepoints.reader import StateSnapshotReader as StateSnapshotReader
    from headrace.savepoints.writer import *

__version__ = "0.1.0"

_OF_DRIVERS = {
    "JobClient": "headrace.environment",
    "JobExecutionResult": "headrace.environment",
    "SavepointWriter": "headrace.savepoints.writer",
    "StateSnapshotReader": "headrace.savepoints.reader",
    "StreamExecutionEnvironment": "headrace.environment",
    "spark_conf": "headrace.driver.session",
}

# Without it `from headrace import *` would bring our modules too: `config`, `state`, `job` ...
__all__ = [n for n, v in globals().items() if not (n.startswith("_") or isinstance(v, _ModuleType))] + list(_OF_DRIVERS)


def _submodules() -> set[str]:
    found = _iter_modules(__path__)  # noqa: F405 - every package has it
    return {module.name for module in found if not module.name.startswith("_")}


def __getattr__(name: str) -> _Any:
    owner = _OF_DRIVERS.get(name)
    if owner is None and (name.startswith("_") or name not in _submodules()):
        raise AttributeError(f"module 'headrace' has no attribute '{name}'")
    module = owner or f"headrace.{name}"
    try:
        loaded = _import_module(module)
    except AttributeError as error:  # `from headrace import ...` would replace it by an ImportError without a cause
        raise ImportError(f"cannot import {module}: AttributeError: {error}", name=module) from error
    return loaded if owner is None else getattr(loaded, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_OF_DRIVERS, *_submodules()})
