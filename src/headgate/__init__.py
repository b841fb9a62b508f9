"""Headgate: stateful stream processing in Python on Spark.

>>> from headgate import StreamExecutionEnvironment
>>> env = StreamExecutionEnvironment.local()
>>> list(env.from_collection([1, 2, 3]).map(lambda n: n * 2).execute_and_collect())
[2, 4, 6]

The public names of a module of `headgate.api` are those of its `__all__`. What runs in a driver is imported when it is
used: workers and most commands need neither a driver nor Spark, and start in half of the time without.
"""

from importlib import import_module as _import_module
from pkgutil import iter_modules as _iter_modules
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from headgate.api.async_io import *
from headgate.api.checkpoint_config import *
from headgate.api.durable import durable as durable
from headgate.api.durations import Time as Time
from headgate.api.functions import *
from headgate.api.joins import *
from headgate.api.keyed_batches import *
from headgate.api.sink import *
from headgate.api.sources import *
from headgate.api.state_backends import *
from headgate.api.stream import *
from headgate.api.two_phase_commit import *
from headgate.api.watermarks import *
from headgate.api.windowed_stream import *
from headgate.api.windows import *
from headgate.config import Configuration as Configuration
from headgate.errors import *
from headgate.job.restart import RestartStrategies as RestartStrategies
from headgate.job.status import JobStatus as JobStatus
from headgate.records.batch import Batch as Batch
from headgate.records.flink_values import restored_instant as _restored_instant  # noqa: F401 - pickles name it
from headgate.records.flink_values import restored_row as _restored_row  # noqa: F401 - as above
from headgate.records.types import Row as Row
from headgate.records.types import TypeInformation as TypeInformation
from headgate.records.types import Types as Types
from headgate.state.api import AggregatingState as AggregatingState
from headgate.state.api import AggregatingStateDescriptor as AggregatingStateDescriptor
from headgate.state.api import ListState as ListState
from headgate.state.api import ListStateDescriptor as ListStateDescriptor
from headgate.state.api import MapState as MapState
from headgate.state.api import MapStateDescriptor as MapStateDescriptor
from headgate.state.api import ReducingState as ReducingState
from headgate.state.api import ReducingStateDescriptor as ReducingStateDescriptor
from headgate.state.api import ValueState as ValueState
from headgate.state.api import ValueStateDescriptor as ValueStateDescriptor
from headgate.state.timers import TimeDomain as TimeDomain
from headgate.state.ttl_config import StateTtlConfig as StateTtlConfig

if _TYPE_CHECKING:
    from headgate.driver.session import spark_conf as spark_conf
    from headgate.environment import *
    from headgate.savepoints.reader import StateSnapshotReader as StateSnapshotReader
    from headgate.savepoints.writer import *

__version__ = "0.1.0"

_OF_DRIVERS = {
    "JobClient": "headgate.environment",
    "JobExecutionResult": "headgate.environment",
    "SavepointWriter": "headgate.savepoints.writer",
    "StateSnapshotReader": "headgate.savepoints.reader",
    "StreamExecutionEnvironment": "headgate.environment",
    "spark_conf": "headgate.driver.session",
}

# Without it `from headgate import *` would bring our modules too: `config`, `state`, `job` ...
__all__ = [n for n, v in globals().items() if not (n.startswith("_") or isinstance(v, _ModuleType))] + list(_OF_DRIVERS)


def _submodules() -> set[str]:
    found = _iter_modules(__path__)  # noqa: F405 - every package has it
    return {module.name for module in found if not module.name.startswith("_")}


def __getattr__(name: str) -> _Any:
    owner = _OF_DRIVERS.get(name)
    if owner is None and (name.startswith("_") or name not in _submodules()):
        raise AttributeError(f"module 'headgate' has no attribute '{name}'")
    module = owner or f"headgate.{name}"
    try:
        loaded = _import_module(module)
    except AttributeError as error:  # `from headgate import ...` would replace it by an ImportError without a cause
        raise ImportError(f"cannot import {module}: AttributeError: {error}", name=module) from error
    return loaded if owner is None else getattr(loaded, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_OF_DRIVERS, *_submodules()})
