"""`pyflink.common`."""

from headgate.pyflink.common.completable_future import *
from headgate.pyflink.common.config_options import *
from headgate.pyflink.common.configuration import *
from headgate.pyflink.common.execution_config import *
from headgate.pyflink.common.input_dependency_constraint import *
from headgate.pyflink.common.job_client import *
from headgate.pyflink.common.job_execution_result import *
from headgate.pyflink.common.job_id import *
from headgate.pyflink.common.job_status import *
from headgate.pyflink.common.restart_strategy import *
from headgate.pyflink.common.serialization import ByteArraySchema as ByteArraySchema
from headgate.pyflink.common.serialization import DeserializationSchema as DeserializationSchema
from headgate.pyflink.common.serialization import Encoder as Encoder
from headgate.pyflink.common.serialization import SerializationSchema as SerializationSchema
from headgate.pyflink.common.serialization import SimpleStringSchema as SimpleStringSchema
from headgate.pyflink.common.serialization import format_schema as _format_schema
from headgate.pyflink.common.serializer import *
from headgate.pyflink.common.time import *
from headgate.pyflink.common.typeinfo import *
from headgate.pyflink.common.types import *
from headgate.pyflink.common.watermark_strategy import (
    AssignerWithPeriodicWatermarksWrapper as AssignerWithPeriodicWatermarksWrapper,
)
from headgate.pyflink.common.watermark_strategy import WatermarkStrategy as WatermarkStrategy


def __getattr__(name: str) -> object:
    """Schemas that were here in Flink 1.x, and that PyFlink still puts here."""
    return _format_schema(__name__, name)
