"""Kafka in and out, with a real broker."""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from acceptance.checkpoints import KILLS, checkpointed, kill_often, kill_worker
from acceptance.lines import Outcome, line
from headrace import KeyedProcessFunction, ValueStateDescriptor
from headrace.connectors.kafka import KafkaSink, KafkaSource

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from kafka_broker import Broker, read_all

COUNT, KEYS, PARTITIONS = 1_000_000, 100, 4
RATE = 10_000  # of the input until the last kill: slow enough that the kills fall into the run


class Number(KeyedProcessFunction):
    """Numbers the records of each key: a record that is lost or repeated leaves a gap or a double."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        number = (self.count.value() or 0) + 1
        self.count.update(number)
        yield value.k, value.v, number


@contextmanager
def running_broker() -> Iterator[Broker]:
    """A broker that ends with the line."""
    with tempfile.TemporaryDirectory() as directory:
        broker = Broker(directory).start()
        try:
            yield broker
        finally:
            broker.kill()


def fill(address: str, topic: str, count: int, kills_done: threading.Event) -> None:
    """Write `{"k": ..., "v": 0 .. count - 1}`: at a rate as long as there are kills to come, and the last tenth only then."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "log_level": 0})
    started = time.monotonic()
    for v in range(count):
        while True:
            try:
                producer.produce(topic, b'{"k":%d,"v":%d}' % (v % KEYS, v), partition=v % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        if v % 1000 == 0:
            producer.poll(0)
            ahead = started + v / RATE - time.monotonic()
            if ahead > 0:
                kills_done.wait(ahead)
        if v == count * 9 // 10:
            kills_done.wait()
    producer.flush(300)


@line("kafka-to-kafka", 900)
def kafka_to_kafka() -> Outcome:
    """Kafka, keyed state, Kafka: a million records, 20 killed workers and a killed broker, each record once."""
    with running_broker() as broker, tempfile.TemporaryDirectory() as directory:
        broker.create("in", PARTITIONS)
        broker.create("out", PARTITIONS)
        env = checkpointed(2, {}, directory)
        source = KafkaSource(
            broker.address,
            topics=["in"],
            value_format="json",
            type_info="k bigint, v bigint",
            stop={("in", partition): COUNT // PARTITIONS for partition in range(PARTITIONS)},
        )
        sink = KafkaSink(broker.address, "out", key="k", transactional_id_prefix="acceptance")
        numbered = env.from_source(source).key_by("k").process(Number(), output_type="k bigint, v bigint, n bigint")
        numbered.sink_to(sink)
        kills_done = threading.Event()
        threading.Thread(target=fill, args=(broker.address, "in", COUNT, kills_done), daemon=True).start()
        started = time.monotonic()
        client = env.execute_async("kafka to kafka")
        kills = kill_often(client, KILLS // 2, kill_worker)
        broker.kill()
        broker.start()
        kills += kill_often(client, KILLS - KILLS // 2, kill_worker)
        kills_done.set()
        client.wait(600)
        seconds = time.monotonic() - started
        rows = [msgspec.json.decode(value) for *_, value in read_all(broker.address, "out", seconds=300)]
    return _judged(rows, kills, seconds)


def _judged(rows: list[dict[str, int]], kills: int, seconds: float) -> Outcome:
    times = Counter(row["v"] for row in rows)
    lost, repeated = COUNT - len(times), sum(times.values()) - len(times)
    numbers: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        numbers[row["k"]].append(row["n"])
    in_state = all(sorted(found) == list(range(1, COUNT // KEYS + 1)) for found in numbers.values())
    ok = lost == repeated == 0 and in_state and kills == KILLS and len(numbers) == KEYS
    return Outcome(
        ok,
        f"{len(rows):,} records, {kills} kills and a broker's, {lost} lost, {repeated} repeated, state "
        f"{'exact' if in_state else 'WRONG'}, {COUNT / seconds:,.0f} records/s with all the restarts",
    )
