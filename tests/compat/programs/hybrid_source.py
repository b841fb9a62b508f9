"""Files first, then a topic of Kafka.

Modelled on: Apache Flink, Hybrid source (Python tab).

Fails:
    ModuleNotFoundError: pyflink.datastream.connectors.hybrid_source is not in Headrace: run one job after the
    other, or union() the two sources
"""

from headrace.pyflink.datastream.connectors.hybrid_source import HybridSource

from headrace.pyflink.common import SimpleStringSchema, WatermarkStrategy
from headrace.pyflink.datastream import StreamExecutionEnvironment
from headrace.pyflink.datastream.connectors.file_system import FileSource, StreamFormat
from headrace.pyflink.datastream.connectors.kafka import KafkaOffsetsInitializer, KafkaSource

env = StreamExecutionEnvironment.get_execution_environment()
file_source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), "history").build()
kafka_source = (
    KafkaSource.builder()
    .set_bootstrap_servers("localhost:9092")
    .set_group_id("MY_GROUP")
    .set_topics("quickstart-events")
    .set_value_only_deserializer(SimpleStringSchema())
    .set_starting_offsets(KafkaOffsetsInitializer.timestamp(1))
    .build()
)
hybrid_source = HybridSource.builder(file_source).add_source(kafka_source).build()
env.from_source(hybrid_source, WatermarkStrategy.no_watermarks(), "hybrid").print()
env.execute()
