"""PySpark's Python data sources in jobs on Spark: ours, and those that others wrote. SPEC R9.4"""

import json
import os
import signal
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition, SimpleDataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark_datasources import ArrowDataSource, FakeDataSource
from spark_kit import wait_until

from headrace import RestartStrategies
from headrace.connectors.files import FileSink
from headrace.connectors.spark.source import PythonDataSource
from headrace.errors import HeadraceError

PARTITIONS, RATE = 3, 2500


class Range(InputPartition):
    def __init__(self, first, last):
        self.first, self.last = first, last


class Meter(DataSource):
    """Numbers that come with time, RATE a second, until a file says how many there are; commits go into another."""

    @classmethod
    def name(cls):
        return "meter"

    def schema(self):
        return "n bigint, word string"

    def streamReader(self, schema):
        return {"old": OldMeter, "new": NewMeter, "arrow": ArrowMeter}[self.options["kind"]](self.options)


class MeterReader(DataSourceStreamReader):
    def __init__(self, options):
        self.since, self.directory = float(options["since"]), Path(options["directory"])

    def initialOffset(self):
        return {"n": 0}

    def total(self):
        file = self.directory / "total"
        return int(file.read_text()) if file.exists() else 1 << 60

    def there(self):
        return min(self.total(), int((time.time() - self.since) * RATE))

    def partitions(self, start, end):
        cuts = [start["n"] + (end["n"] - start["n"]) * i // PARTITIONS for i in range(PARTITIONS + 1)]
        return [Range(a, b) for a, b in pairwise(cuts)]

    def read(self, partition):
        for n in range(partition.first, partition.last):
            yield n, f"w{n}"

    def commit(self, end):
        with (self.directory / "commits").open("a") as file:
            file.write(f"{end['n']}\n")


class NewMeter(MeterReader, SupportsTriggerAvailableNow):
    """Ends when all is there: a bounded run that takes its time."""

    def prepareForTriggerAvailableNow(self):
        pass

    def latestOffset(self, start, limit):
        while (end := self.there()) == start["n"] < self.total():
            time.sleep(0.01)
        return {"n": end}


class OldMeter(MeterReader):
    def latestOffset(self):
        return {"n": self.there()}


class ArrowMeter(NewMeter):
    def read(self, partition):
        for first in range(partition.first, partition.last, 100):
            numbers = range(first, min(first + 100, partition.last))
            yield pa.record_batch({"n": pa.array(numbers), "word": [f"w{n}" for n in numbers]})


class Simple(DataSource):
    @classmethod
    def name(cls):
        return "simple-meter"

    def schema(self):
        return "n bigint, word string"

    def simpleStreamReader(self, schema):
        return SimpleMeter(self.options)


class SimpleMeter(SimpleDataSourceStreamReader):
    def __init__(self, options):
        self.meter = OldMeter(options)

    def initialOffset(self):
        return {"n": 0}

    def read(self, start):
        end = self.meter.latestOffset()
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start, end):
        return self.meter.read(Range(start["n"], end["n"]))

    def commit(self, end):
        self.meter.commit(end)


def checkpointed(env, directory):
    env.enable_checkpointing(150)
    env.get_checkpoint_config().set_checkpoint_storage_dir(f"file://{directory}/checkpoints")
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(20, 100))
    return env


def meter(directory, kind):
    return {"since": time.time(), "directory": directory, "kind": kind}


def end_soon(options):
    """Let the numbers end a second from now; how many there are then."""
    total, directory = int((time.time() + 1 - options["since"]) * RATE), options["directory"]
    (directory / "next").write_text(str(total))
    (directory / "next").rename(directory / "total")
    return total


def written(directory):
    files = [p for p in Path(directory, "out").iterdir() if not p.name.startswith(".")]
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def written_numbers(directory):
    return Counter(row["n"] for row in written(directory)) if Path(directory, "out").exists() else Counter()


def committed(directory):
    log = Path(directory, "commits")
    return [int(line) for line in log.read_text().splitlines()] if log.exists() else []


def kill_after_a_checkpoint(job, victim):
    assert job.wait_running(120)
    before = job.stats.snapshot().counts.completed
    wait_until(lambda: job.stats.snapshot().counts.completed > before + 1, "a checkpoint")
    os.kill(job.workers()[victim].pid, signal.SIGKILL)
    wait_until(lambda: job.restarts > 0, "the restart")


def run_with_a_kill(env, source, options):
    """Start the job, kill a worker while rows come, and let them end; the client, and how many there are."""
    checkpointed(env, options["directory"])
    env.from_source(source, source_name="meter").rebalance().sink_to(FileSink(f"{options['directory']}/out", "json"))
    client = env.execute_async("meter")
    kill_after_a_checkpoint(client.job, (0, 0))
    return client, end_soon(options)


@pytest.mark.parametrize("kind", ["new", "arrow"])
def test_a_killed_worker_costs_no_row_of_a_stream(make_env, workers, tmp_path, kind):
    options, whole = meter(tmp_path, kind), kind == "arrow"
    source = PythonDataSource(Meter, options, bounded=True, barriers_between_partitions=whole)
    client, total = run_with_a_kill(make_env(2), source, options)
    client.wait(120)
    assert written_numbers(tmp_path) == Counter(range(total))
    assert all(row["word"] == f"w{row['n']}" for row in written(tmp_path))
    commits = committed(tmp_path)
    assert commits[-1] == total  # the last checkpoint has it all
    assert commits == sorted(commits)


@pytest.mark.parametrize(("data_source", "kind"), [(Meter, "old"), (Simple, "simple")])
def test_a_killed_worker_costs_no_row_of_a_stream_without_end(make_env, workers, tmp_path, data_source, kind):
    options = meter(tmp_path, kind)
    client, total = run_with_a_kill(make_env(2), PythonDataSource(data_source, options), options)
    wait_until(lambda: sum(written_numbers(tmp_path).values()) >= total, "all rows")
    wait_until(lambda: committed(tmp_path)[-1:] == [total], "the last commit")
    client.cancel()
    assert written_numbers(tmp_path) == Counter(range(total))


def test_a_fake_of_the_pyspark_data_sources_as_batch_and_as_stream(make_env, workers):
    batch = PythonDataSource(FakeDataSource, {"numRows": 7}, schema="name string, company string", bounded=True)
    rows = list(make_env(2).from_source(batch).execute_and_collect())
    assert len(rows) == 7
    assert all(row.name and row.company for row in rows)
    stream = PythonDataSource(FakeDataSource, {"numRows": 50}, barriers_between_partitions=True)
    with make_env(2).from_source(stream).execute_and_collect() as records:
        some = [next(records) for _ in range(200)]
    assert all(row.state and row.zipcode for row in some)


def test_an_arrow_file_of_the_pyspark_data_sources(make_env, workers, tmp_path):
    table = pa.table({"n": pa.array(range(100)), "word": [f"w{n}" for n in range(100)]})
    for number, part in enumerate(table.to_batches(max_chunksize=25)):
        with pa.ipc.new_file(tmp_path / f"{number}.arrow", part.schema) as file:
            file.write_batch(part)
    source = PythonDataSource(ArrowDataSource, {"path": f"{tmp_path}/*.arrow"}, bounded=True)
    rows = list(make_env(2).from_source(source).execute_and_collect())
    assert sorted(row.n for row in rows) == list(range(100))


def test_an_error_of_the_source_on_the_driver_fails_the_job(make_env, workers, tmp_path):
    class Gone(MeterReader):
        def latestOffset(self):
            raise OSError("the broker is gone")

    class GoneMeter(Meter):
        def streamReader(self, schema):
            return Gone(self.options)

    env = make_env(1)
    env.set_restart_strategy(RestartStrategies.no_restart())
    env.from_source(PythonDataSource(GoneMeter, meter(tmp_path, "gone")), source_name="meter").print()
    with pytest.raises(
        HeadraceError, match=r"source 'meter' .*latestOffset\(\) of data source 'meter' failed: OSError"
    ):
        env.execute("gone")
