"""`pyflink.common`."""

from headrace.pyflink.common.completable_future import *
from headrace.pyflink.common.config_options import *
from headrace.pyflink.common.configuration import *
from headrace.pyflink.common.execution_config import *
from headrace.pyflink.common.input_dependency_constraint import *
from headrace.pyflink.common.job_client import *
from headrace.pyflink.common.job_execution_result import *
from headrace.pyflink.common.job_id import *
from headrace.pyflink.common.job_status import *
from headrace.pyflink.common.restart_strategy import *
from headrace.pyflink.common.serialization import ByteArraySchema as ByteArraySchema
from headrace.pyflink.common.serialization import DeserializationSchema as DeserializationSchema
from headrace.pyflink.common.serialization import Encoder as Encoder
from headrace.pyflink.common.serialization import SerializationSchema as SerializationSchema
from headrace.pyflink.common.serialization import SimpleStringSchema as SimpleStringSchema
from headrace.pyflink.common.serialization import format_schema as _format_schema
from headrace.pyflink.common.serializer import *
from headrace.pyflink.common.time import *
from headrace.pyflink.common.typeinfo import *
from headrace.pyflink.common.types import *
from headrace.pyflink.common.watermark_strategy import (
    AssignerWithPeriodicWatermarksWrapper as AssignerWithPeriodicWatermarksWrapper,
)
from headrace.pyflink.common.watermark_strategy import WatermarkStrategy as WatermarkStrategy


def __getattr__(name: str) -> object:
    """Schemas that were here in Flink 1.x, and that PyFlink still puts here."""
    return _format_schema(__name__, name)
