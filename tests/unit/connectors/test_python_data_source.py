"""PySpark's Python data sources as sources of a stream, in the local runtime. SPEC R9.4"""

import datetime as dt
from itertools import pairwise
from typing import ClassVar

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType, TimestampType

from headrace import StreamExecutionEnvironment
from headrace.api.sources import ReaderContext
from headrace.connectors.spark.source import OffsetSplit, PythonDataSource
from headrace.driver.enumerators import SourceSplits, dynamic_sources
from headrace.errors import HeadraceError, InvalidArgument, UserCodeError
from headrace.local import LocalRun

PARTITIONS = 3


class Range(InputPartition):
    def __init__(self, first, last):
        self.first, self.last = first, last


class Numbers(DataSource):
    """The numbers below `total`; `each` more are there at every look."""

    log: ClassVar[list] = []

    @classmethod
    def name(cls):
        return "numbers"

    def schema(self):
        return "n bigint, word string"

    def streamReader(self, schema):
        kind = {"old": OldNumbers, "now": NumbersNow, "arrow": ArrowNumbers}.get(self.options.get("KIND"), NewNumbers)
        return kind(int(self.options["total"]), int(self.options.get("each", 10)))


class NumbersReader(DataSourceStreamReader):
    def __init__(self, total, each):
        self.total, self.each, self.at = total, each, 0

    def initialOffset(self):
        return {"n": 0}

    def partitions(self, start, end):
        Numbers.log.append(("partitions", start["n"], end["n"]))
        width = end["n"] - start["n"]
        cuts = [start["n"] + width * i // PARTITIONS for i in range(PARTITIONS + 1)]
        return [Range(a, b) for a, b in pairwise(cuts)]

    def read(self, partition):
        for n in range(partition.first, partition.last):
            yield n, f"w{n}"

    def commit(self, end):
        Numbers.log.append(("commit", end["n"]))

    def stop(self):
        Numbers.log.append(("stop",))


class NewNumbers(NumbersReader):
    def latestOffset(self, start, limit):
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self.each
        return {"n": min(self.total, start["n"] + rows)}


class NumbersNow(NewNumbers, SupportsTriggerAvailableNow):
    def prepareForTriggerAvailableNow(self):
        Numbers.log.append(("prepare",))


class OldNumbers(NumbersReader):
    def latestOffset(self):
        self.at = min(self.total, self.at + self.each)
        return {"n": self.at}


class ArrowNumbers(NewNumbers):
    def read(self, partition):
        for first in range(partition.first, partition.last, 2):
            numbers = range(first, min(first + 2, partition.last))
            yield pa.record_batch({"n": pa.array(numbers), "word": [f"w{n}" for n in numbers]})


@pytest.fixture(autouse=True)
def empty_log():
    Numbers.log.clear()


def plan_of(source, parallelism=2):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    env.from_source(source, source_name="numbers").uid("numbers").map(tuple).print()
    return env._job_plan("numbers")


def run(plan, seed=1, **how):
    lines = []
    slice_records = how.pop("slice_records", 4)
    local = LocalRun(
        plan,
        lambda channel, payload: lines.extend(payload.decode().splitlines()),
        seed=seed,
        slice_records=slice_records,
        **how,
    )
    return local, lines


def numbers_of(lines):
    return sorted(int(line.split("(")[-1].split(",")[0]) for line in lines)


def collected(source, until=None):
    """The records, as values."""
    env = StreamExecutionEnvironment.local(until=until) if until is not None else StreamExecutionEnvironment.local()
    return list(env.from_source(source).execute_and_collect())


@pytest.mark.parametrize("kind", ["new", "old", "now", "arrow"])
def test_every_row_of_a_stream_is_read_once(kind):
    local, lines = run(plan_of(PythonDataSource(Numbers, {"total": 50, "kind": kind})))
    local.run(until=2000)
    assert numbers_of(lines) == list(range(50))
    assert [step for step in Numbers.log if step[0] == "partitions"] == [
        ("partitions", n, n + 10) for n in range(0, 50, 10)
    ]


def test_rows_are_typed_by_the_schema():
    source = PythonDataSource(Numbers, {"total": 3})
    assert str(source.type) == "row<n bigint, word string>"
    (row, *_) = collected(source, until=1000)
    assert row.word == f"w{row.n}"


def test_a_limit_bounds_a_round():
    local, _ = run(plan_of(PythonDataSource(Numbers, {"total": 9}, limit=4)))
    local.run(until=1000)
    assert Numbers.log == [("partitions", 0, 4), ("partitions", 4, 8), ("partitions", 8, 9)]


def test_no_data_is_asked_for_at_the_poll_interval():
    local, lines = run(plan_of(PythonDataSource(Numbers, {"total": 0}, poll_interval_ms=700)))
    looks = []
    local._splits._sources[0].enumerator._latest = lambda reader, start: looks.append(local.time) or start
    local.run(until=2000)
    assert looks == [0, 700, 1400]
    assert lines == []


@pytest.mark.parametrize("kind", ["new", "old", "now"])
def test_a_bounded_run_of_a_stream_ends(kind):  # what is there at the start, as with the trigger AvailableNow
    local, lines = run(plan_of(PythonDataSource(Numbers, {"total": 30, "kind": kind}, bounded=True)))
    local.run()
    assert numbers_of(lines) == list(range(30 if kind == "now" else 10))
    assert (("prepare",) in Numbers.log) == (kind == "now")


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("parallelism", [1, 2, 5])
@pytest.mark.parametrize("rounds", range(1, 12, 2))
def test_a_restore_gives_every_row_once(rounds, parallelism, whole):
    """A snapshot after so many rounds of the scheduler, in the middle of partitions; the rest by another run."""
    source = PythonDataSource(Numbers, {"total": 40, "each": 20}, barriers_between_partitions=whole)
    first, before = run(plan_of(source), seed=rounds, slice_records=2)
    taken, left = [], iter(range(rounds))
    first.run(stop=lambda: next(left, None) is None, then=lambda: taken.append(first.snapshot()))
    second, after = run(plan_of(source, parallelism), restore=taken[0])
    second.run(until=2000)
    assert numbers_of(before + after) == list(range(40))


def test_barriers_between_partitions_cut_no_partition():
    source = PythonDataSource(Numbers, {"total": 40, "each": 30}, barriers_between_partitions=True)
    reader = source.reader(ReaderContext(0, 1, lambda: 0), [])
    reader.add_splits(source.enumerator(None).discover())
    assert not reader.holds_barrier
    assert len(reader.poll(4)) == 4
    assert reader.holds_barrier
    while reader.holds_barrier:
        assert reader.poll(4) is not None
    assert [split.done for split in reader.snapshot()] == [0, 0]


def test_places_in_the_plan_keep_their_subtask():
    enumerator = PythonDataSource(Numbers, {"total": 40}).enumerator(None)
    owners = [[enumerator.owner(split, 2) for split in enumerator.discover()] for _ in range(3)]
    assert owners == [[0, 1, 0]] * 3


# --- commit ---------------------------------------------------------------------------------------------------------


def splits_of(source, restored=None, parallelism=2):
    ((vertex, operator),) = dynamic_sources(plan_of(source, parallelism).graph).items()
    assert vertex == 0
    return SourceSplits(operator, parallelism, restored)


def look(splits):
    assert splits.wants_discovery
    splits.begin_discovery()
    return splits.found(splits.enumerator.discover())


def commits():
    return [step[1] for step in Numbers.log if step[0] == "commit"]


def test_an_offset_is_committed_when_a_checkpoint_has_all_before_it():  # SPEC R9.4
    splits = splits_of(PythonDataSource(Numbers, {"total": 100}))
    assert splits.assigner.request_split(0) == []
    assert not splits.wants_discovery  # not before all readers are idle
    splits.assigner.request_split(1)
    dealt = look(splits)
    assert [(one.subtask, len(one.splits)) for one in dealt] == [(0, 2), (1, 1)]
    splits.snapshot(1)  # the first round is being read
    splits.assigner.request_split(0)
    splits.snapshot(2)  # still, by one subtask
    splits.assigner.request_split(1)
    splits.snapshot(3)  # it is read
    look(splits)
    splits.snapshot(4)  # the second round is being read
    for checkpoint in (1, 2, 3, 4):
        splits.notify_complete(checkpoint)
        splits.assigner.request_split(0), splits.assigner.request_split(1)
        look(splits)
        assert commits() == ([] if checkpoint < 3 else [10])
    splits.snapshot(5)
    splits.notify_complete(5)
    splits.enumerator.close()
    assert commits() == [10, 50]
    assert Numbers.log[-1] == ("stop",)


def test_after_a_restore_nothing_is_committed_before_all_readers_are_idle():
    source = PythonDataSource(Numbers, {"total": 100})
    first = splits_of(source)
    first.assigner.request_split(0), first.assigner.request_split(1), look(first)
    second = splits_of(source, first.snapshot(1))
    second.assigner.request_split(0)  # the other reader has a partition from the checkpoint
    second.snapshot(2), second.notify_complete(2)
    assert not second.wants_discovery
    second.assigner.request_split(1)
    look(second)
    assert Numbers.log == [("partitions", 0, 10), ("partitions", 10, 20)]
    second.snapshot(3), second.notify_complete(3)
    second.assigner.request_split(0), second.assigner.request_split(1), look(second)
    assert commits() == [10]  # maybe a second time: the first attempt may have died before it
    second.snapshot(4), second.notify_complete(4)
    second.enumerator.close()
    assert commits() == [10, 20]


def test_the_end_of_a_bounded_stream_is_committed():
    splits = splits_of(PythonDataSource(Numbers, {"total": 10}, bounded=True))
    for _ in range(2):
        splits.assigner.request_split(0), splits.assigner.request_split(1)
        dealt = look(splits)
    assert [one.no_more for one in dealt] == [True, True]
    splits.snapshot(1), splits.notify_complete(1)
    splits.enumerator.close()
    assert commits() == [10]


def test_a_reader_that_cannot_stop_says_so_and_holds_nobody_up(caplog):
    class Stuck(Numbers):
        def streamReader(self, schema):
            return StuckReader(10, 10)

    class StuckReader(NewNumbers):
        def stop(self):
            raise OSError("no route")

    enumerator = PythonDataSource(Stuck).enumerator(None)
    enumerator.discover()
    enumerator.close()
    enumerator.close()
    assert caplog.text.count("stop() of data source 'numbers' failed: OSError: no route") == 1
    assert enumerator.discover() == []


# --- batch ----------------------------------------------------------------------------------------------------------


class Table(DataSource):
    def schema(self):
        return StructType([StructField("n", LongType(), False), StructField("words", ArrayType(StringType()))])

    def reader(self, schema):
        return TableReader(schema, self.options)


class TableReader(DataSourceReader):
    def __init__(self, schema, options):
        self.names, self.options = schema.fieldNames(), options

    def partitions(self):
        return [InputPartition(n) for n in range(int(self.options.get("parts", 0)))]

    def read(self, partition):
        for n in range(5):
            yield Row(words=["a", None], n=n + 5 * (partition.value or 0))


@pytest.mark.parametrize("parts", [0, 1, 4])
def test_a_batch_reader_is_a_bounded_source(parts):
    rows = collected(PythonDataSource(Table, {"Parts": parts}, bounded=True))
    assert sorted(row.n for row in rows) == list(range(5 * max(1, parts)))
    assert rows[0].words == ["a", None]


def test_a_restored_batch_goes_on_where_it_was():
    source = PythonDataSource(Table, {"parts": 4}, bounded=True)
    first, before = run(plan_of(source), slice_records=2)
    taken, left = [], iter(range(2))
    first.run(stop=lambda: next(left, None) is None, then=lambda: taken.append(first.snapshot()))
    second, after = run(plan_of(source, 3), restore=taken[0])
    second.run()
    assert numbers_of(before)
    assert numbers_of(before + after) == list(range(20))


# --- simple streams -------------------------------------------------------------------------------------------------


class Simple(DataSource):
    log: ClassVar[list] = []

    def schema(self):
        return "n bigint"

    def simpleStreamReader(self, schema):
        return (SimpleReaderNow if self.options.get("now") else SimpleReader)(self.options)


class SimpleReader(SimpleDataSourceStreamReader):
    def __init__(self, options):
        self.total, self.stuck = int(options.get("total", 25)), options.get("stuck")

    def initialOffset(self):
        return {"n": 0}

    def read(self, start):
        end = min(self.total, start["n"] + 10)
        return self.readBetweenOffsets(start, {"n": end}), ({"n": 0} if self.stuck else {"n": end})

    def readBetweenOffsets(self, start, end):
        Simple.log.append((start["n"], end["n"]))
        return iter([(n,) for n in range(start["n"], end["n"])])

    def commit(self, end):
        Simple.log.append(("commit", end["n"]))


class SimpleReaderNow(SimpleReader, SupportsTriggerAvailableNow):
    def prepareForTriggerAvailableNow(self):
        pass


def test_a_simple_stream_is_read_in_one_subtask():
    plan = plan_of(PythonDataSource(Simple), parallelism=3)
    assert plan.graph.vertices[0].parallelism == 1
    local, lines = run(plan)
    local.run(until=1000)
    assert numbers_of(lines) == list(range(25))


@pytest.mark.parametrize(("now", "count"), [("", 10), ("yes", 25)])
def test_a_bounded_simple_stream_ends(now, count):
    rows = collected(PythonDataSource(Simple, {"now": now} if now else None, bounded=True))
    assert [row.n for row in rows] == list(range(count))


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("rounds", range(1, 14, 3))
def test_a_restored_simple_stream_reads_between_its_offsets(rounds, whole):
    source = PythonDataSource(Simple, barriers_between_partitions=whole)
    first, before = run(plan_of(source, 1), slice_records=3)
    taken, left = [], iter(range(rounds))
    first.run(stop=lambda: next(left, None) is None, then=lambda: taken.append(first.snapshot()))
    second, after = run(plan_of(source, 1), restore=taken[0])
    second.run(until=1000)
    assert numbers_of(before + after) == list(range(25))


def test_a_simple_stream_commits_what_is_in_front_of_a_checkpoint():
    Simple.log.clear()
    source = PythonDataSource(Simple)
    reader = source.reader(ReaderContext(0, 1, lambda: 0), [OffsetSplit()])
    reader.poll(4)
    reader.notify_complete(reader.snapshot())  # inside the first batch
    while len(reader.poll(10) or ()) < 10:
        pass
    cut = reader.snapshot()
    assert cut == [OffsetSplit('{"n": 10}', '{"n": 20}', 10)]
    reader.notify_complete(cut)
    reader.notify_complete(cut)
    assert Simple.log == [(0, 10), (10, 20), ("commit", 10)]


# --- errors ---------------------------------------------------------------------------------------------------------


class Given(DataSource):
    """Gives whatever the test wants."""

    columns, rows = "n bigint NOT NULL, t timestamp", ((1, None),)

    def schema(self):
        return self.columns

    def reader(self, schema):
        return GivenReader(self.rows)


class GivenReader(DataSourceReader):
    def __init__(self, rows):
        self.rows = rows

    def read(self, partition):
        return self.rows if callable(getattr(self.rows, "append", None)) else iter(self.rows)


def given(*rows, columns=Given.columns):
    return PythonDataSource(type("Given", (Given,), {"rows": rows, "columns": columns}), bounded=True)


def test_values_are_converted_as_spark_does():
    noon = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)
    (row,) = collected(given((7, noon)))
    assert (row.n, row.t) == (7, noon)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ((1,), "Expected: 2 columns, Found: 1"),
        (("x", None), "Could not convert 'x'"),
        ({"n": 1, "t": 2}, "dict"),
        ((None, None), "None in column 'n', which is NOT NULL"),
        (Row(n=1, other=2), "other"),
        (pa.record_batch({"n": [1]}), "."),
        (pa.record_batch({"n": [1], "t": ["x"]}), "string"),
    ],
)
def test_rows_that_do_not_fit_name_the_source_and_its_schema(row, why):
    with pytest.raises(
        HeadraceError, match=r"(?s)data source 'Given' gives does not fit its schema row<n bigint, .*" + why
    ):
        collected(given(row))


def test_an_error_in_read_is_the_users():
    class Broken(Table):
        def reader(self, schema):
            return BrokenReader()

    class BrokenReader(DataSourceReader):
        def read(self, partition):
            yield 1, []
            raise ZeroDivisionError("the tap is dry")

    with pytest.raises(UserCodeError, match=r"(?s)test_python_data_source.py.*ZeroDivisionError: the tap is dry"):
        collected(PythonDataSource(Broken, bounded=True))


def test_an_error_on_the_driver_names_method_and_line():
    class Gone(Numbers):
        def streamReader(self, schema):
            return GoneReader(10, 10)

    class GoneReader(NewNumbers):
        def latestOffset(self, start, limit):
            raise OSError("the broker is gone")

    local, _ = run(plan_of(PythonDataSource(Gone)))
    with pytest.raises(
        UserCodeError,
        match=r"latestOffset\(\) of data source 'numbers' failed: OSError: the broker is gone \(.*test_python_data_source.py:\d+\)",
    ):
        local.run(until=10)


def test_a_read_that_gives_fewer_rows_than_before_is_found_out():
    source = PythonDataSource(Numbers, {"total": 9})
    (split, *_) = source.enumerator(None).discover()
    reader = source.reader(ReaderContext(0, 1, lambda: 0), [type(split)(0, split.partition, done=4)])
    with pytest.raises(UserCodeError, match=r"fewer rows than the 4 that it gave.*barriers_between_partitions=True"):
        reader.poll(10)


def test_a_simple_stream_whose_offset_stands_still_is_found_out():
    with pytest.raises(HeadraceError, match=r"gave rows but the same offset that it was given, {\"n\": 0}"):
        collected(PythonDataSource(Simple, {"stuck": "yes"}), until=100)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"source": 7}, "needs a class that extends pyspark.sql.datasource.DataSource, got 7"),
        ({"source": DataSource}, "data source 'DataSource' has no schema of its own: give one, schema='id bigint"),
        ({"source": Table}, "'Table' cannot be read as a stream: it has no streamReader.*pass bounded=True"),
        ({"source": DataSource, "schema": "n int", "bounded": True}, r"has no reader\(\), streamReader\(\) or simple"),
        ({"source": Table, "schema": "n wat"}, "the schema of data source 'Table': type 'n wat': unknown type 'wat'"),
        ({"source": Table, "schema": "bigint"}, "must be columns"),
        ({"source": Simple, "limit": 3}, "data source 'Simple' takes no limit"),
        ({"source": Numbers, "options": {"total": 1, "kind": "old"}, "limit": 3}, "takes no limit"),
        ({"source": Numbers, "options": {"total": 1}, "limit": 0}, "limit must be at least 1 row, got 0"),
        ({"source": Numbers, "options": {"total": 1}, "poll_interval_ms": 0}, "poll_interval_ms must be at least 1"),
    ],
)
def test_wrong_arguments_say_what_to_do(arguments, text):
    with pytest.raises(InvalidArgument, match=text):
        PythonDataSource(**arguments)


@pytest.mark.parametrize("offset", [None, 7, {"n": object()}])
def test_an_offset_that_is_not_json_is_refused(offset):
    source = PythonDataSource(Numbers, {"total": 9})
    with pytest.raises(UserCodeError, match=r"latestOffset\(\) of data source 'numbers' .*(as a dict|not JSON)"):
        source.encoded(offset, "latestOffset")


def test_options_are_as_spark_gives_them():
    source = PythonDataSource(Numbers, {"Total": 7, "Flag": True, "none": None})
    assert source.data_source.options["tOTAL"] == "7"
    assert source.data_source.options["flag"] == "true"
    assert "none" not in source.data_source.options


def test_a_schema_given_replaces_the_sources_own():
    spark = StructType([StructField("n", LongType()), StructField("at", TimestampType())])
    for schema in (spark, "n bigint, at timestamp", pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])):
        source = PythonDataSource(Numbers, {"total": 1}, schema=schema)
        assert str(source.type) == "row<n bigint, at timestamp>"
        assert source.schema == spark


def test_the_default_limit_is_the_readers():
    seen = []

    class Asking(NewNumbers):
        def latestOffset(self, start, limit):
            seen.append(limit)
            return start

    class Source(Numbers):
        def streamReader(self, schema):
            return Asking(1, 1)

    PythonDataSource(Source).enumerator(None).discover()
    PythonDataSource(Source, limit=ReadMaxRows(5)).enumerator(None).discover()
    assert seen == [ReadAllAvailable(), ReadMaxRows(5)]
