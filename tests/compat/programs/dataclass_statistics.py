"""Lines of a CSV file become dataclasses, which a reduce adds up.

Modelled on: deep-bi pyflink-workshop, chapters 1 and 2.

Prints:
    Event(index=0, age=67, sex='male', job=2, amount=1169)
    ('male', 1169.0)
    ('male', 1632.5)
    ('female', 7882.0)
    ('male', 2711.6666666666665)
"""

import inspect
import tempfile
from dataclasses import dataclass
from pathlib import Path

from headrace.pyflink.common.watermark_strategy import WatermarkStrategy
from headrace.pyflink.datastream import StreamExecutionEnvironment
from headrace.pyflink.datastream.connectors import FileSource, StreamFormat

CSV_HEADER = ["index", "age", "sex", "job", "amount"]
DATA = "0,67,male,2,1169\n1,22,female,2,5951\n2,49,male,1,2096\n3,45,female,2,7882\n4,53,male,2,4870\n"


@dataclass
class Event:
    index: int
    age: int
    sex: str
    job: int
    amount: int


@dataclass
class Statistics:
    key: str
    total: int
    count: int

    def mean(self):
        return self.key, self.total / self.count

    def __add__(self, other: "Statistics") -> "Statistics":
        return Statistics(self.key, self.total + other.total, self.count + other.count)


INTEGER_PARAMS = [p.name for p in inspect.signature(Event).parameters.values() if p.annotation is int]


def json_to_event(record: dict) -> Event:
    for name in INTEGER_PARAMS:
        record[name] = int(record[name])
    return Event(**record)


def csv_line_to_json(line: str) -> dict:
    return dict(zip(CSV_HEADER, line.split(","), strict=True))


def main(path):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), path).build()
    stream = env.from_source(source, WatermarkStrategy.for_monotonous_timestamps(), f"Read: {path}")
    events = stream.map(csv_line_to_json).name("CSV to JSON").map(json_to_event).name("JSON to Event")
    events.filter(lambda event: event.age >= 60).print()
    events.filter(lambda event: event.age >= 30 and event.job > 0).map(
        lambda event: Statistics(event.sex, event.amount, 1)
    ).key_by(lambda stats: stats.key).reduce(lambda left, right: left + right).map(Statistics.mean).print()
    env.execute("Chapter 2")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "credit.csv")
        file.write_text(DATA)
        main(str(file))
