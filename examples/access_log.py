"""Web access logs: a watched directory in, hits and bytes of every path out, exactly once.

    python examples/make_access_log.py /tmp/logs --files 20
    headrace run examples/access_log.py /tmp/logs /tmp/hits

Reads the files of the directory (with `--watch` also those that come later, until you stop the job), keeps hits, bytes and
errors of every path in keyed state, and writes the new figures of every path that a batch has touched as Parquet, partitioned by day. Lines
that are no access log go to a directory of their own. Kill a worker while it runs: the figures stay right.
"""

import argparse
import re

from headrace import KeyedProcessFunction, OutputTag, ProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from headrace.connectors.files import FileSink, FileSource

LINE = re.compile(r'(\S+) \S+ \S+ \[(\d+)/(\w+)/(\d+):[^\]]+\] "(?:\S+) (\S+) [^"]*" (\d{3}) (\d+|-) "[^"]*" "[^"]*"')
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
HIT = "path string, day string, status int, bytes bigint"
FIGURES = "path string, day string, hits bigint, bytes bigint, errors bigint"
DAMAGED = OutputTag("damaged", "line string")


class Parse(ProcessFunction):
    """A line of the log as a row; what is none goes aside."""

    def process_element(self, value, ctx):
        found = LINE.fullmatch(value)
        if found is None:
            yield DAMAGED, (value,)
            return
        _, day, month, year, path, status, size = found.groups()
        date = f"{year}-{MONTHS.index(month) + 1:02}-{day}"
        yield path, date, int(status), 0 if size == "-" else int(size)


class Figures(KeyedProcessFunction):
    """Hits, bytes and errors of a path on a day."""

    def open(self, runtime_context):
        self.figures = runtime_context.get_state(
            ValueStateDescriptor("figures", "hits bigint, bytes bigint, errors bigint")
        )

    def process_element(self, value, ctx):
        hits, size, errors = self.figures.value() or (0, 0, 0)
        now = hits + 1, size + value.bytes, errors + (value.status >= 500)
        self.figures.update(now)
        yield value.path, value.day, *now


def build(env: StreamExecutionEnvironment, logs: str, out: str, watch: bool = False) -> None:
    """The program."""
    source = FileSource(logs, "text", watch_ms=500 if watch else None)
    hits = env.from_source(source, source_name="logs").process(Parse(), output_type=HIT).name("parse")
    figures = hits.key_by(lambda hit: (hit.path, hit.day)).process(Figures(), output_type=FIGURES).name("figures")
    figures.sink_to(FileSink(f"{out}/figures", "parquet", partition_by="day")).name("write")
    hits.get_side_output(DAMAGED).sink_to(FileSink(f"{out}/damaged", "json")).name("damaged")


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("logs")
    p.add_argument("out")
    p.add_argument("--watch", action="store_true", help="go on with files that come later")
    a = p.parse_args()
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    env.enable_checkpointing(1000)
    env.get_checkpoint_config().set_checkpoint_storage_dir(f"file://{a.out}/checkpoints")
    build(env, a.logs, a.out, a.watch)
    env.execute("access log")


if __name__ == "__main__":
    main()
