"""A Kafka broker for tests: one process in KRaft mode, from jars that Maven fetches once by name."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

VERSION = "4.1.0"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "headrace" / f"kafka-{VERSION}"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
FETCH_SECONDS = 270
START_SECONDS = 60

POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>headrace</groupId><artifactId>broker</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
  </dependencies>
</project>
"""


class NoBroker(Exception):
    """Why there can be no broker here."""


def jars() -> Path:
    """The directory with the broker's jars; NoBroker if they cannot be had."""
    if (CACHE / "complete").exists():
        return CACHE
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            raise NoBroker(f"a Kafka broker needs {tool}, which is not installed")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "pom.xml").write_text(POM)
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]
        try:
            done = subprocess.run(
                [*command, f"-DoutputDirectory={CACHE}"],
                cwd=directory,
                capture_output=True,
                text=True,
                timeout=FETCH_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NoBroker(f"Maven did not fetch the Kafka broker in {FETCH_SECONDS} s") from None
    if done.returncode != 0:
        raise NoBroker(f"Maven cannot fetch the Kafka broker: {(done.stdout + done.stderr)[-500:]}")
    (CACHE / "complete").touch()
    return CACHE


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Broker:
    """One broker: `start`, `stop` or `kill`, and `start` again with the same data on the same port."""

    def __init__(self, directory: str | Path, options: dict[str, str] | None = None) -> None:
        self.directory = Path(directory)
        self.port, self.login_port, self._controller = free_port(), free_port(), free_port()
        self._options = options or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._class_path = f"{jars()}/*"
        self._format()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def login_address(self) -> str:
        """Where SASL PLAIN is asked for: alice, hunter2."""
        return f"127.0.0.1:{self.login_port}"

    def _properties(self) -> str:
        open_to_all, with_login = f"PLAINTEXT://127.0.0.1:{self.port}", f"LOGIN://127.0.0.1:{self.login_port}"
        lines = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"{open_to_all},{with_login},CONTROLLER://127.0.0.1:{self._controller}",
            "advertised.listeners": f"{open_to_all},{with_login}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.login.plain.sasl.jaas.config": f'{LOGIN} required user_alice="hunter2";',
            "log.dirs": f"{self.directory}/data",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "log.retention.ms": "-1",  # tests give records timestamps of years ago, which would be deleted at once
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "group.initial.rebalance.delay.ms": "0",
            "broker.session.timeout.ms": "2000",  # a broker that was killed may come back so soon
            "broker.heartbeat.interval.ms": "500",
            "num.network.threads": "2",
            "num.io.threads": "2",
            "auto.create.topics.enable": "false",
            **self._options,
        }
        return "".join(f"{key}={value}\n" for key, value in lines.items())

    def _java(self, *arguments: str) -> list[str]:
        small = ["-Xmx384m", "-Xms128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        return ["java", *small, "-cp", self._class_path, *arguments]

    def _format(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        config = self.directory / "broker.properties"
        config.write_text(self._properties())
        # An id that begins with a dash would be taken for an option.
        cluster = "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
        command = self._java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config))
        subprocess.run(command, check=True, capture_output=True, timeout=60)

    def start(self) -> Broker:
        """Start it and wait until it answers."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        with (self.directory / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", str(self.directory / "broker.properties")), stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_SECONDS
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        while True:
            if self._process.poll() is not None:
                raise RuntimeError(f"the broker ended: {(self.directory / 'broker.log').read_text()[-2000:]}")
            try:
                if admin.list_topics(timeout=1).brokers:
                    return self
            except KafkaException:
                if time.monotonic() > deadline:
                    self.kill()
                    raise
            time.sleep(0.1)

    def stop(self) -> None:
        """End it in good order."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
            self._process = None

    def kill(self) -> None:
        """End it without a warning."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        """Make a topic."""
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.address})
        options = {key.replace("_", "."): value for key, value in config.items()}
        for future in admin.create_topics([NewTopic(topic, partitions, 1, config=options)]).values():
            future.result(30)

    def add_partitions(self, topic: str, total: int) -> None:
        """Give a topic more partitions."""
        from confluent_kafka.admin import AdminClient, NewPartitions

        admin = AdminClient({"bootstrap.servers": self.address})
        for future in admin.create_partitions([NewPartitions(topic, total)]).values():
            future.result(30)


def read_all(address: str, topic: str, isolation: str = "read_committed", seconds: float = 60) -> list[tuple]:
    """Everything in a topic now: (partition, offset, key, value)."""
    from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

    options = {"bootstrap.servers": address, "group.id": "test-reader", "isolation.level": isolation}
    consumer = Consumer({**options, "enable.partition.eof": True, "enable.auto.commit": False})
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    found, left, deadline = [], set(partitions), time.monotonic() + seconds
    while left:
        assert time.monotonic() < deadline, f"{topic}: no end of partitions {left} in {seconds} s"
        for message in consumer.consume(5000, 0.2):
            if message.error() is None:
                found.append((message.partition(), message.offset(), message.key(), message.value()))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
            elif not message.error().retriable():
                raise KafkaException(message.error())
    consumer.close()
    return found
