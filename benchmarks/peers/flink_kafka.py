"""W11 on PyFlink: Kafka, a Python function with keyed state, Kafka, exactly once. Runs until it is killed."""
import argparse
import os

from pyflink.common import Configuration, Row, Types, WatermarkStrategy
from pyflink.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from pyflink.datastream.connectors.base import DeliveryGuarantee
from pyflink.datastream.connectors.kafka import (
    KafkaOffsetsInitializer, KafkaRecordSerializationSchema, KafkaSink, KafkaSource)
from pyflink.datastream.formats.json import JsonRowDeserializationSchema, JsonRowSerializationSchema
from pyflink.datastream.state import ValueStateDescriptor

IN = Types.ROW_NAMED(["k", "v"], [Types.LONG(), Types.LONG()])
OUT = Types.ROW_NAMED(["k", "total"], [Types.LONG(), Types.LONG()])


class Total(KeyedProcessFunction):
    def open(self, runtime_context):
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value, ctx):
        total = (self.total.value() or 0) + value[1]
        self.total.update(total)
        yield Row(k=value[0], total=total)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--broker", required=True)
    p.add_argument("--input", required=True)
    p.add_argument("--output", required=True)
    p.add_argument("--work", required=True)
    p.add_argument("--jars", required=True, help="the directory of the connector's jar")
    p.add_argument("--mode", choices=["process", "thread"], default="thread")
    p.add_argument("--parallelism", type=int, default=1)
    p.add_argument("--interval-ms", type=int, default=1000)
    a = p.parse_args()
    os.environ.setdefault("_python_worker_execution_mode", "process")
    config = Configuration()
    config.set_string("python.execution-mode", a.mode)
    config.set_string("python.fn-execution.bundle.size", "100000")
    config.set_string("execution.checkpointing.dir", f"file://{a.work}/checkpoints")
    env = StreamExecutionEnvironment.get_execution_environment(config)
    env.add_jars(*[f"file://{a.jars}/{name}" for name in os.listdir(a.jars) if "connector-kafka" in name])
    env.set_parallelism(a.parallelism)
    env.enable_checkpointing(a.interval_ms)
    source = (KafkaSource.builder().set_bootstrap_servers(a.broker).set_topics(a.input)
              .set_group_id(a.output).set_starting_offsets(KafkaOffsetsInitializer.earliest())
              .set_value_only_deserializer(JsonRowDeserializationSchema.builder().type_info(IN).build())
              .build())
    serializer = (KafkaRecordSerializationSchema.builder().set_topic(a.output)
                  .set_value_serialization_schema(
                      JsonRowSerializationSchema.builder().with_type_info(OUT).build()).build())
    sink = (KafkaSink.builder().set_bootstrap_servers(a.broker).set_record_serializer(serializer)
            .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .set_transactional_id_prefix(a.output)
            .set_property("transaction.timeout.ms", "60000").build())
    (env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
        .key_by(lambda row: row[0], Types.LONG()).process(Total(), OUT).sink_to(sink))
    env.execute("totals")


if __name__ == "__main__":
    main()
