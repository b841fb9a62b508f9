"""Each name of the table can be called, and warns once; options warn where the job starts."""

from __future__ import annotations

import pytest

from headrace.config import Configuration
from headrace.pyflink import _without_effect as without_effect
from headrace.pyflink._without_effect import WITHOUT_EFFECT
from headrace.pyflink.common import ExecutionConfig, SimpleStringSchema
from headrace.pyflink.datastream import (
    CheckpointConfig,
    EmbeddedRocksDBStateBackend,
    PredefinedOptions,
    SlotSharingGroup,
    StreamExecutionEnvironment,
    TimeCharacteristic,
)
from headrace.pyflink.datastream.connectors.kafka import FlinkKafkaProducer
from headrace.pyflink.datastream.formats.orc import OrcBulkWriters
from headrace.pyflink.datastream.formats.parquet import ParquetBulkWriters, ParquetColumnarRowInputFormat
from headrace.pyflink.table import DataTypes
from headrace.testing import local_runtime

ROW = DataTypes.ROW([DataTypes.FIELD("a", DataTypes.INT())])


def producer(**options):
    return FlinkKafkaProducer("t", SimpleStringSchema(), {"bootstrap.servers": "localhost:1"}, **options)


def environment():
    with local_runtime():
        return StreamExecutionEnvironment.get_execution_environment()


CALLS = {
    "SlotSharingGroup": lambda: SlotSharingGroup.builder("g").build(),
    "StreamExecutionEnvironment.register_slot_sharing_group": lambda: environment().register_slot_sharing_group(
        SlotSharingGroup("g")
    ),
    "StreamExecutionEnvironment.set_default_local_parallelism": lambda: environment().set_default_local_parallelism(2),
    "StreamExecutionEnvironment.set_stream_time_characteristic": lambda: environment().set_stream_time_characteristic(
        TimeCharacteristic.EventTime
    ),
    "CheckpointConfig.set_force_checkpointing": lambda: CheckpointConfig(Configuration()).set_force_checkpointing(True),
    "EmbeddedRocksDBStateBackend.set_predefined_options": lambda: EmbeddedRocksDBStateBackend().set_predefined_options(
        PredefinedOptions.DEFAULT
    ),
    "EmbeddedRocksDBStateBackend.set_options": lambda: EmbeddedRocksDBStateBackend().set_options("com.example.Factory"),
    "EmbeddedRocksDBStateBackend.set_number_of_transfer_threads": lambda: (
        EmbeddedRocksDBStateBackend().set_number_of_transfer_threads(2)
    ),
    "FlinkKafkaProducer.set_flush_on_checkpoint": lambda: producer().set_flush_on_checkpoint(False),
    "FlinkKafkaProducer(kafka_producer_pool_size)": lambda: producer(kafka_producer_pool_size=7),
    "ParquetBulkWriters.for_row_type(hadoop_config)": lambda: ParquetBulkWriters.for_row_type(ROW, Configuration()),
    "ParquetColumnarRowInputFormat(hadoop_config)": lambda: ParquetColumnarRowInputFormat(ROW, Configuration()),
    "OrcBulkWriters.for_row_type(hadoop_config)": lambda: OrcBulkWriters.for_row_type(ROW, None, Configuration()),
}
ARGUMENTS = {
    "add_jars": ("file:///a.jar",),
    "add_classpaths": ("file:///a.jar",),
    "register_cached_file": ("/x", "x"),
    "enable_changelog_state_backend": (True,),
    "set_latency_tracking_interval": (5,),
    "set_task_cancellation_interval": (5,),
    "set_task_cancellation_timeout": (5,),
    "set_use_snapshot_compression": (True,),
}
OF_OPTIONS = [name for name, row in WITHOUT_EFFECT.items() if row.why.startswith("it sets `")]


@pytest.fixture(autouse=True)
def nothing_warned(monkeypatch):
    monkeypatch.setattr(without_effect, "_WARNED", set())
    monkeypatch.setattr(StreamExecutionEnvironment, "_default_local_parallelism", 1)


@pytest.mark.parametrize("name", sorted(set(WITHOUT_EFFECT) - set(OF_OPTIONS)))
def test_a_name_warns_once(name, caplog):
    CALLS[name]()
    CALLS[name]()
    row = WITHOUT_EFFECT[name]
    found = [one.getMessage() for one in caplog.records if one.getMessage().startswith(f"{name} has no effect")]
    assert found == [f"{name} has no effect: {row.why}" + (f"; {row.instead}" if row.instead else "")]


@pytest.mark.parametrize("name", OF_OPTIONS)
def test_an_option_warns_where_the_job_starts(name):
    kind, method = name.split(".")
    env = environment()
    getattr(env if kind == "StreamExecutionEnvironment" else ExecutionConfig(env.get_configuration()), method)(
        *ARGUMENTS.get(method, ())
    )
    row = WITHOUT_EFFECT[name]
    key = row.why.split("`")[1]
    assert env.get_configuration().check() == [f"option '{key}' has no effect: {row.instead}"]
