"""story.py DIRECTORY [SINK] [SOURCES] [UID]: the program of the stories; it numbers the records of each key.

Files in DIRECTORY/marks steer it while it runs: records are slow until `release` is there, a snapshot waits while
`hold-snapshot` is there, a commit while `hold-commit` is there.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from headrace import (
    CheckpointedFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    SinkFunction,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from headrace.api.sink import Committer, Sink, SinkWriter, WriterContext
from headrace.api.stream import DataStream
from headrace.connectors.files import FileSink, FileSource
from headrace.connectors.spark.source import PythonDataSource
from headrace.driver.session import get_session

COUNT, KEYS, RATE, PARTS = 60_000, 20, 600, 4
DIRECTORY = Path(sys.argv[1])
MARKS = DIRECTORY / "marks"
NUMBER, ROW = "v bigint", "v bigint, n bigint"


def wait_while(mark: str) -> None:
    """Wait until a mark is gone; another mark says that something waits."""
    while (MARKS / mark).exists():
        (MARKS / f"{mark}-waits").touch()
        time.sleep(0.02)


class Throttle(FlatMapFunction, CheckpointedFunction):
    """Lets some records through at a time, so that records are in flight, and a checkpoint can be held here."""

    def open(self, runtime_context: Any) -> None:
        self.seen = 0
        self.pause = 20 * runtime_context.get_number_of_parallel_subtasks() / RATE

    def initialize_state(self, context: Any) -> None:
        """There is no state."""

    def snapshot_state(self, context: Any) -> None:
        wait_while("hold-snapshot")

    def flat_map(self, value: Any) -> Iterator[Any]:
        self.seen += 1
        if self.seen % 20 == 0 and not (MARKS / "release").exists():
            time.sleep(self.pause)
        yield value


class Number(KeyedProcessFunction):
    """Numbers the records of each key: one that is lost or repeated shows for ever."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if not (MARKS / "release").exists():
            time.sleep(0.0005)
        number = (self.count.value() or 0) + 1
        self.count.update(number)
        yield value.v, number


class HeldFiles(Sink[Any]):
    """Files whose commits wait in the worker."""

    def __init__(self, sink: FileSink) -> None:
        self.sink = sink

    def writer(self, context: WriterContext, restored: list[Any]) -> SinkWriter[Any]:
        return self.sink.writer(context, restored)

    def committer(self, context: WriterContext) -> Committer[Any]:
        return HeldCommitter(self.sink.committer(context))


class HeldCommitter(Committer[Any]):
    """Waits before it commits."""

    def __init__(self, committer: Committer[Any]) -> None:
        self.committer = committer

    def commit(self, requests: Any) -> None:
        wait_while("hold-commit")
        self.committer.commit(requests)


def write_epoch(frame: Any, number: int) -> None:
    """One file for each commit number, made on the driver."""
    wait_while("hold-commit")
    path = DIRECTORY / "out" / f"epoch-{number}"
    path.parent.mkdir(exist_ok=True)
    path.with_name(f".{path.name}").write_text(frame.toPandas().to_json(orient="records", lines=True))
    path.with_name(f".{path.name}").rename(path)


class Append(SinkFunction):
    """Appends each record to a file at once: records come again after a restart."""

    def open(self, runtime_context: Any) -> None:
        (DIRECTORY / "out").mkdir(exist_ok=True)
        self.file = (DIRECTORY / "out" / f"{os.getpid()}-{time.time_ns()}").open("w", buffering=1)

    def invoke(self, value: Any, context: Any) -> None:
        self.file.write(json.dumps({"v": value.v, "n": value.n}) + "\n")


class Numbers(DataSource):
    """A share of the records, in parts."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return NUMBER

    def reader(self, schema: Any) -> DataSourceReader:
        return NumbersReader(int(self.options["first"]), int(self.options["last"]))


class NumbersReader(DataSourceReader):
    """The parts."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.size = first, (last - first) // PARTS

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self.first + part * self.size) for part in range(PARTS)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        yield from ((n,) for n in range(partition.value, partition.value + self.size))


def source(env: StreamExecutionEnvironment, kind: str, first: int, last: int) -> DataStream:
    """The records from `first` on, in fewer parts than there may be subtasks."""
    if kind == "datagen":
        return env.from_datagen(lambda n: (first + n,), count=last - first, type_info=NUMBER)
    if kind == "dataframe":
        return env.from_dataframe(
            get_session(None, env.get_configuration()).range(first, last, 1, PARTS).withColumnRenamed("id", "v")
        )
    if kind == "python":
        return env.from_source(
            PythonDataSource(Numbers, {"first": first, "last": last}, bounded=True), source_name=kind
        )
    inbox, size = DIRECTORY / "in", (last - first) // PARTS
    if not inbox.exists():
        inbox.mkdir()
        for at in range(first, last, size):
            (inbox / f"{at}.json").write_text("".join(f'{{"v": {n}}}\n' for n in range(at, at + size)))
    return env.from_source(FileSource(str(inbox), "json", NUMBER), source_name=kind)


def main(sink: str = "files", kinds: str = "datagen", uid: str = "number") -> None:
    """Build the program and run it."""
    env = StreamExecutionEnvironment.get_execution_environment()
    names = kinds.split(",")
    streams = [
        source(env, kind, i * COUNT // len(names), (i + 1) * COUNT // len(names))
        .uid(kind)
        .flat_map(Throttle(), output_type=NUMBER)
        .uid(f"throttle {kind}")
        for i, kind in enumerate(names)
    ]
    records = streams[0].union(*streams[1:]) if streams[1:] else streams[0]
    numbered = records.key_by(lambda row: row.v % KEYS).process(Number(), output_type=ROW).uid(uid)
    if sink == "epochs":
        numbered.foreach_epoch(write_epoch).uid("sink")
    elif sink == "append":
        numbered.add_sink(Append()).uid("sink")
    else:
        numbered.sink_to(HeldFiles(FileSink(f"{DIRECTORY}/out", "json"))).uid("sink")
    env.execute("story")


if __name__ == "__main__":
    main(*sys.argv[2:])
