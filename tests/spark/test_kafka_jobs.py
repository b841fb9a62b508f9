"""Kafka to Kafka on Spark: killed workers and a killed broker cost no record, and none comes twice. SPEC R9.1"""

import json
import os
import signal
import threading
import time
from collections import Counter

import pytest
from confluent_kafka import Producer
from spark_kit import wait_until

from headrace import KeyedProcessFunction, RestartStrategies, ValueStateDescriptor
from headrace.connectors.kafka import KafkaSink, KafkaSource
from kafka_broker import read_all

pytestmark = pytest.mark.xdist_group("kafka")  # one broker

COUNT, KEYS, PARTITIONS, SECONDS = 10_000, 10, 4, 5


class Number(KeyedProcessFunction):
    """Numbers the records of each key: a record that is lost or repeated leaves a gap or a double."""

    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))

    def process_element(self, value, ctx):
        number = (self.count.value() or 0) + 1
        self.count.update(number)
        yield value.k, value.v, number


def fill(address, topic, kills_done):
    """Write the input, spread over some seconds, the last tenth when the kills are done; it goes on when the broker is back."""
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "log_level": 0})
    for v in range(COUNT):
        producer.produce(topic, json.dumps({"k": v % KEYS, "v": v}), partition=v % PARTITIONS)
        if v % 200 == 0:
            producer.poll(SECONDS * 200 / COUNT)
        if (
            v == COUNT * 9 // 10
        ):  # else a source might have read everything, and nobody misses a worker that has finished
            producer.flush(60)
            kills_done.wait(120)
    assert producer.flush(120) == 0


def completed(job):
    return job.stats.snapshot().counts.completed


def kill(job, victim):
    """Kill a worker when one more checkpoint is complete."""
    assert job.wait_running(120)
    before, restarts = completed(job), job.restarts
    wait_until(lambda: completed(job) > before, "a checkpoint")
    os.kill(job.workers()[victim].pid, signal.SIGKILL)
    wait_until(lambda: job.restarts > restarts, "the restart")


def test_kafka_to_kafka(make_env, workers, tmp_path, kafka_broker):
    kafka_broker.create("numbers-in", PARTITIONS)
    kafka_broker.create("numbers-out", 3)
    env = make_env(2)
    env.enable_checkpointing(300)
    env.get_checkpoint_config().set_checkpoint_storage_dir(f"file://{tmp_path}/checkpoints")
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(20, 100))
    source = KafkaSource(
        kafka_broker.address,
        topics=["numbers-in"],
        value_format="json",
        type_info="k bigint, v bigint",
        stop={("numbers-in", partition): COUNT // PARTITIONS for partition in range(PARTITIONS)},
        group_id="numbers",
    )
    sink = KafkaSink(kafka_broker.address, "numbers-out", key="k", transactional_id_prefix="numbers")
    numbered = env.from_source(source).key_by("k").process(Number(), output_type="k bigint, v bigint, n bigint")
    numbered.sink_to(sink)
    kills_done = threading.Event()
    filler = threading.Thread(target=fill, args=(kafka_broker.address, "numbers-in", kills_done), daemon=True)
    filler.start()
    client = env.execute_async("kafka to kafka")
    kill(client.job, (1, 0))
    kafka_broker.kill()
    time.sleep(0.5)
    kafka_broker.start()
    kill(client.job, (0, 1))
    kills_done.set()
    client.wait(120)
    filler.join(60)
    rows = [json.loads(value) for *_, value in read_all(kafka_broker.address, "numbers-out")]
    assert Counter(row["v"] for row in rows) == Counter(range(COUNT))
    for key in range(KEYS):
        assert sorted(row["n"] for row in rows if row["k"] == key) == list(range(1, COUNT // KEYS + 1))
    assert client.job.restarts >= 2, client.job.failure_log
