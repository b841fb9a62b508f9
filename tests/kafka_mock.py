"""librdkafka's mock cluster: quick, no JVM. It keeps records and group offsets; it fences nobody, and stores no offsets of transactions."""

from __future__ import annotations

import re

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient


class _Log:
    def __init__(self) -> None:
        self.text = ""

    def log(self, level, message, *arguments):
        self.text += message % arguments


class MockCluster:
    """Brokers that live as long as this object; a topic has 4 partitions."""

    def __init__(self) -> None:
        log = _Log()
        self._producer = Producer({"test.mock.num.brokers": 1, "linger.ms": 0}, logger=log)
        self._producer.poll(0.1)
        self.address = re.search(r"replaced with (\S+)", log.text).group(1)
        self._admin = AdminClient({"bootstrap.servers": self.address})

    def create(self, topic):
        """A topic is made by asking for it."""
        assert len(self._admin.list_topics(topic, timeout=60).topics[topic].partitions) == 4

    def produce(self, topic, partition, *values, key=None, timestamp=0):
        """Write records; a value may be None."""
        for value in values:
            self._producer.produce(topic, value, key, partition, timestamp=timestamp)
        assert self._producer.flush(60) == 0

    def commit(self, group, offsets):
        """Commit offsets of a group: {(topic, partition): offset}."""
        consumer = Consumer({"bootstrap.servers": self.address, "group.id": group, "enable.auto.commit": False})
        consumer.commit(
            offsets=[TopicPartition(*place, offset) for place, offset in offsets.items()], asynchronous=False
        )
        consumer.close()

    def committed(self, group, topic):
        """The offsets of a group, by partition."""
        consumer = Consumer({"bootstrap.servers": self.address, "group.id": group, "enable.auto.commit": False})
        found = consumer.committed([TopicPartition(topic, partition) for partition in range(4)], 10)
        consumer.close()
        return {one.partition: one.offset for one in found if one.offset >= 0}

    def read(self, topic):
        """Everything in a topic: (partition, key, value)."""
        options = {"bootstrap.servers": self.address, "group.id": "reader", "enable.partition.eof": True}
        consumer = Consumer({**options, "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(4)])
        found, ends = [], set()
        while len(ends) < 4:
            for message in consumer.consume(1000, 0.2):
                if message.error() is None:
                    found.append((message.partition(), message.key(), message.value()))
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    ends.add(message.partition())
        consumer.close()
        return found
