"""W11: Kafka to Kafka, exactly once, on one real broker: Headrace beside Quix Streams, PyFlink and Spark.

    python benchmarks/kafka_to_kafka.py [--work DIR] [--rounds 3] [--only headrace]

Each engine reads the same topic of JSON records (two partitions, keyed), adds them up under their key in a Python function,
and writes every sum as JSON to a topic of its own, in transactions of one second. The rate is that at which committed
records appear, from the first ones that are visible to the last: neither the start nor the first transaction counts. Then
everything is read and checked. Spark writes without transactions. One JSON line a run; at the end medians and ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from run import interpreter

from headrace import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from headrace.connectors.kafka import KafkaSink, KafkaSource

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from kafka_broker import Broker, read_all  # noqa: E402 - found by the path above

INPUT, PARTITIONS, KEYS = "numbers", 2, 10_000
JARS = {
    "flink": ["org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2"],
    # All that they need and Spark does not bring: their own descriptions name repositories that may be out of reach.
    "spark-kafka": [
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "org.apache.kafka:kafka-clients:3.9.2",
        "org.apache.commons:commons-pool2:2.13.1",
    ],
}


class Total(KeyedProcessFunction):
    def open(self, runtime_context):
        self.total = runtime_context.get_state(ValueStateDescriptor("total", "bigint"))

    def process_element(self, value, ctx):
        total = (self.total.value() or 0) + value.v
        self.total.update(total)
        yield value.k, total


def headrace(broker: str, output: str, work: str, backend: str) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(PARTITIONS)
    env.enable_checkpointing(1000)
    env.get_configuration().set("state.backend.type", backend)
    env.get_configuration().set("execution.checkpointing.dir", f"file://{work}/checkpoints")
    source = KafkaSource(broker, topics=[INPUT], value_format="json", type_info="k bigint, v bigint")
    totals = env.from_source(source).key_by("k").process(Total(), output_type="k bigint, total bigint")
    totals.sink_to(KafkaSink(broker, output, key="k", transactional_id_prefix=output))
    env.execute("totals")


def fill(address: str, count: int) -> dict[int, int]:
    """Write the input; the last sum of each key."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 50, "log_level": 0})
    totals: Counter[int] = Counter()
    for number in range(count):
        key, value = number * 7919 % KEYS, number % 100 + 1
        totals[key] += value
        while True:
            try:
                producer.produce(INPUT, json.dumps({"k": key, "v": value}), str(key), partition=key % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.5)
    assert producer.flush(300) == 0
    return totals


def visible(admin: AdminClient, topic: str) -> int:
    """How many offsets of a topic a reader of committed records has in front of it."""
    spec = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(PARTITIONS)}
    found = admin.list_offsets(spec, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=30)
    return sum(future.result().offset for future in found.values())


_DEPENDENCY = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version><exclusions><exclusion>"
    "<groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
)


def fetch_jars(work: Path, environment: str) -> Path | None:
    """The connector's jars, fetched by name; None if they cannot be had."""
    directory = work / "jars" / environment
    if not directory.exists():
        pom = work / "pom.xml"
        dependencies = "".join(_DEPENDENCY.format(*jar.split(":")) for jar in JARS[environment])
        pom.write_text(
            f'<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>a</groupId>'
            f"<artifactId>a</artifactId><version>1</version><dependencies>{dependencies}</dependencies></project>"
        )
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime"]
        # Maven writes to standard output, which is for figures.
        if subprocess.run([*command, f"-DoutputDirectory={directory}"], check=False, stdout=sys.stderr).returncode != 0:
            shutil.rmtree(directory, ignore_errors=True)  # or some jars would be taken for all of them
            return None
    return directory


def commands(a: argparse.Namespace, peer: str, broker: str, output: str, work: str) -> list[list[str]]:
    """What to start for a peer; [] if it cannot be had."""
    common = ["--broker", broker, "--output", output, "--work", work]
    if peer.startswith("headrace"):
        return [[sys.executable, __file__, "--job", peer.split()[1], *common]]
    environment = {"quix": "quix", "pyflink": "flink", "spark": "spark-kafka"}[peer]
    python = interpreter(a.work, environment)
    if python is None:
        return []
    script = str(HERE / "peers" / f"{environment.removesuffix('-kafka')}_kafka.py")
    common = [str(python), script, "--input", INPUT, *common]
    if peer == "quix":  # a process for each partition
        return [[*common[:-1], f"{work}/{number}"] for number in range(PARTITIONS)]
    jars = fetch_jars(a.work, environment)
    return [] if jars is None else [[*common, "--jars", str(jars)]]


def measure(a: argparse.Namespace, broker: Broker, peer: str, number: int, totals: dict[int, int]) -> dict[str, object]:
    """One run of a peer."""
    output = f"{peer.replace(' ', '-')}-{number}"
    broker.create(output, PARTITIONS)
    admin = AdminClient({"bootstrap.servers": broker.address})
    work = tempfile.mkdtemp(prefix="w11-")
    started = commands(a, peer, broker.address, output, work)
    if not started:
        return {"peer": peer, "work": "W11", "notes": "not installed"}
    looks: list[tuple[float, int]] = []
    with (Path(work) / "log").open("w") as log:
        path = f"{Path(started[0][0]).parent}:{os.environ['PATH']}"
        processes = [
            subprocess.Popen(one, stdout=log, stderr=log, start_new_session=True, env=os.environ | {"PATH": path})
            for one in started
        ]
    begun = time.monotonic()
    try:
        while True:
            time.sleep(0.1)
            looks.append((time.monotonic() - begun, visible(admin, output)))
            if looks[-1][1] >= a.records or looks[-1][0] > a.limit or all(p.poll() is not None for p in processes):
                break
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    rows = [json.loads(value) for *_, value in read_all(broker.address, output, seconds=300)]
    largest: dict[int, int] = {}
    for row in rows:
        largest[row["k"]] = max(largest.get(row["k"], 0), row["total"])
    seen = [look for look in looks if look[1] > 0]
    notes = "" if len(rows) >= a.records else f"not done in {a.limit} s: {(Path(work) / 'log').read_text()[-300:]}"
    shutil.rmtree(work, ignore_errors=True)
    (first, before), (last, after) = (seen[0], seen[-1]) if seen else ((0.0, 0), (1.0, 0))
    return {
        "peer": peer,
        "work": "W11",
        "records": len(rows),
        "seconds": round(last - first, 2),
        "records_per_s": round((after - before) / max(last - first, 0.1)),
        "first_visible_s": round(first, 1),
        "each_once": len(rows) == a.records and largest == dict(totals),
        "notes": notes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--broker", help=argparse.SUPPRESS)
    parser.add_argument("--output", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache" / "headrace-bench")
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=280, help="seconds for one run")
    parser.add_argument("--only", default="", help="run only peers whose names contain this")
    a = parser.parse_args()
    if a.job:
        headrace(a.broker, a.output, str(a.work), a.job)
        return
    a.work.mkdir(parents=True, exist_ok=True)
    peers = ["headrace hashmap", "headrace rocksdb", "quix", "pyflink", "spark"]
    peers = [peer for peer in peers if a.only in peer]
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="w11-broker-") as directory:
        broker = Broker(directory).start()
        try:
            broker.create(INPUT, PARTITIONS)
            totals = fill(broker.address, a.records)
            for number in range(a.rounds):
                for peer in peers:  # interleaved: one run of each, then the next round
                    found = measure(a, broker, peer, number, totals)
                    print(json.dumps(found), flush=True)
                    if found.get("records_per_s"):
                        rates.setdefault(peer, []).append(float(str(found["records_per_s"])))
        finally:
            broker.kill()
    medians = {peer: statistics.median(some) for peer, some in rates.items()}
    for peer, median in medians.items():
        own = medians.get("headrace hashmap")
        ratio = "" if own is None or peer.startswith("headrace") else f"headrace is {own / median:.1f}x"
        print(f"W11 {peer:18} {median:12,.0f} records/s  {ratio}")


if __name__ == "__main__":
    main()
