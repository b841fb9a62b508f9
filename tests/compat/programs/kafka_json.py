"""JSON rows are written to a topic of Kafka, and read from it until the end.

Modelled on: Apache Flink, pyflink/examples/datastream/connectors/kafka_json_format; building-pyflink-apps, s10 to s18.

Not run on PyFlink: it needs the jar of the connector.

Prints, in any order:
    ada@x skyone 99.5
    bob@x sunset 80.0
"""

import os

from headrace.pyflink.common import Types, WatermarkStrategy
from headrace.pyflink.datastream import RuntimeExecutionMode, StreamExecutionEnvironment
from headrace.pyflink.datastream.connectors.kafka import (
    DeliveryGuarantee,
    KafkaOffsetResetStrategy,
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)
from headrace.pyflink.datastream.formats.json import JsonRowDeserializationSchema, JsonRowSerializationSchema

BOOTSTRAP_SERVERS = os.getenv("BOOTSTRAP_SERVERS", "localhost:9092")
FLIGHT = Types.ROW_NAMED(["email", "airline", "price"], [Types.STRING(), Types.STRING(), Types.DOUBLE()])
KEY = Types.ROW_NAMED(["email"], [Types.STRING()])

if __name__ == "__main__":
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_runtime_mode(RuntimeExecutionMode.STREAMING)
    env.set_parallelism(1)
    env.add_jars("file:///jars/flink-sql-connector-kafka-1.17.1.jar")
    flight_sink = (
        KafkaSink.builder()
        .set_bootstrap_servers(BOOTSTRAP_SERVERS)
        .set_record_serializer(
            KafkaRecordSerializationSchema.builder()
            .set_topic("flightdata")
            .set_key_serialization_schema(JsonRowSerializationSchema.builder().with_type_info(KEY).build())
            .set_value_serialization_schema(JsonRowSerializationSchema.builder().with_type_info(FLIGHT).build())
            .build()
        )
        .set_delivery_guarantee(DeliveryGuarantee.AT_LEAST_ONCE)
        .build()
    )
    flights = env.from_collection([("ada@x", "skyone", 99.5), ("bob@x", "sunset", 80.0)], type_info=FLIGHT)
    flights.sink_to(flight_sink).name("flightdata_sink").uid("flightdata_sink")
    env.execute("flight_importer")

    source = (
        KafkaSource.builder()
        .set_bootstrap_servers(BOOTSTRAP_SERVERS)
        .set_topics("flightdata")
        .set_group_id("group.flightdata")
        .set_starting_offsets(KafkaOffsetsInitializer.committed_offsets(KafkaOffsetResetStrategy.EARLIEST))
        .set_bounded(KafkaOffsetsInitializer.latest())
        .set_property("partition.discovery.interval.ms", "10000")
        .set_value_only_deserializer(JsonRowDeserializationSchema.builder().type_info(FLIGHT).build())
        .build()
    )
    env.from_source(source, WatermarkStrategy.no_watermarks(), "flight_data_source").map(
        lambda row: f"{row.email} {row['airline']} {row[2]}"
    ).print()
    env.execute("flight_reader")
