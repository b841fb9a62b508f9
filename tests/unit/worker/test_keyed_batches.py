"""Keyed functions over whole batches agree with functions over single records, and share their state."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from headrace import (
    Configuration,
    KeyedBatchFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from headrace.errors import GraphError, HeadraceError
from headrace.records.key_groups import key_group, owner
from headrace.testing.harness import OneInputHarness

TYPE = "k bigint, s string, f double, n bigint"
TOTAL = ValueStateDescriptor("total", "bigint", default=0)
KEYS = {
    "int": "k",
    "string": "s",
    "composite": ["k", "s"],
    "double": "f",
    "function": lambda row: row.k % 3,
}


class ByRecord(KeyedProcessFunction):
    def open(self, runtime_context):
        self.total = runtime_context.get_state(TOTAL)

    def process_element(self, value, ctx):
        self.total.update(self.total.value() + value.n)
        yield (*value[:3], self.total.value())


class ByBatch(KeyedBatchFunction):
    def open(self, runtime_context):
        self.total = runtime_context.get_state(TOTAL)

    def process_batch(self, batch):
        before = self.total.get_many()
        self.total.put_many(before + batch.sum("n"))
        running = batch.running_sum("n", before)
        return batch.arrow.set_column(3, "n", pa.array(running))


def harness(function, key, backend, restore=None, **options):
    configuration = Configuration({"state.backend.type": backend})
    output = TYPE if isinstance(function, KeyedProcessFunction) else None
    return OneInputHarness(
        function, key=key, input_type=TYPE, output_type=output, configuration=configuration, restore=restore, **options
    )


record = st.tuples(
    st.integers(-4, 4),
    st.sampled_from(["a", "b", "ü", ""]),
    st.sampled_from([0.0, -0.0, 1.5, float("nan")]),
    st.integers(-9, 9),
)


def shown(rows):
    return [tuple(map(repr, row)) for row in rows]


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("key", KEYS)
@settings(max_examples=examples(8))
@given(st.lists(st.tuples(st.booleans(), st.lists(record, max_size=12)), min_size=1, max_size=4))
def test_batches_and_records_agree_and_share_their_state(backend, key, parts):
    expected, found, snapshot = [], [], None
    with harness(ByRecord(), KEYS[key], "hashmap") as plain:
        for by_batch, rows in parts:
            plain.process_elements(rows)
            expected += plain.take()
            with harness(ByBatch() if by_batch else ByRecord(), KEYS[key], backend, snapshot) as other:
                other.process_elements(rows)
                found += other.take()
                snapshot = other.snapshot()
    assert shown(found) == shown(expected)


class Totals(KeyedBatchFunction):
    """One result for each key and batch."""

    def open(self, runtime_context):
        self.total = runtime_context.get_state(TOTAL)

    def process_batch(self, batch):
        totals = self.total.get_many() + batch.sum("n")
        self.total.put_many(totals)
        return pa.RecordBatch.from_arrays([batch.keys, pa.array(totals)], names=["k", "n"])


def totals(backend="hashmap", function=None, **options):
    build = lambda rows: rows.key_by("k").process_batches(function or Totals(), output_type="k bigint, n bigint")  # noqa: E731
    configuration = Configuration({"state.backend.type": backend})
    return OneInputHarness.of(build, input_type="k bigint, n bigint", configuration=configuration, **options)


def test_one_result_for_each_key_has_the_timestamp_of_the_last_record_of_the_key():
    with totals() as harness:
        harness.process_elements([(1, 2), (2, 3), (1, 4)], timestamps=[10, 20, 30])
        assert harness.take_with_timestamps() == [((1, 6), 30), ((2, 3), 20)]


def test_a_wider_job_has_the_state_of_its_key_groups():
    with totals(max_parallelism=8) as narrow:
        narrow.process_elements([(n, 1) for n in range(50)])
        snapshot = narrow.snapshot()
    for subtask in range(2):
        own = [n for n in range(50) if owner(key_group(n, 8), 8, 2) == subtask]
        with totals(parallelism=2, subtask=subtask, max_parallelism=8, restore=snapshot) as wide:
            wide.process_elements([(n, 1) for n in own])
            assert wide.take() == [(n, 2) for n in own]


class Grouped(KeyedBatchFunction):
    def process_batch(self, batch):
        assert batch.keys.to_pylist() == [5, 7]
        assert batch.index.tolist() == [0, 1, 0]
        assert batch.count().tolist() == [2, 1]
        assert batch.min("n").tolist() == [-1, 4]
        assert batch.max(batch.column("n") * 2).tolist() == [6, 8]
        assert batch.first().tolist() == [0, 1]
        assert batch.last().tolist() == [2, 1]


def test_a_batch_is_grouped_without_moving_its_records():
    with totals(function=Grouped()) as harness:
        harness.process_elements([(5, 3), (7, 4), (5, -1)])
        assert harness.take() == []


class Names(KeyedBatchFunction):
    """State that is no number, and that is removed."""

    def open(self, runtime_context):
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen"))
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "int"))

    def process_batch(self, batch):
        seen = self.seen.get_many([])
        for key, names in zip(batch.keys.to_pylist(), seen, strict=True):
            names.append(key)
        counts = self.count.get_many(0) + 1
        self.seen.put_many([None if count == 3 else names for count, names in zip(counts, seen, strict=True)])
        self.count.put_many(counts)
        self.count.remove_many(counts == 3)
        sizes = [len(names) for names in seen]
        return pa.RecordBatch.from_arrays([batch.keys, pa.array(sizes)], names=["k", "n"])


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_state_of_other_types_is_a_list_and_can_be_removed(backend):
    with totals(backend, Names()) as harness:
        for _ in range(4):
            harness.process_elements([(1, 0), (1, 0)])
        assert harness.take() == [(1, 1), (1, 2), (1, 3), (1, 1)]


class Wrong(KeyedBatchFunction):
    def __init__(self, act, descriptor=None):
        self.act, self.descriptor = act, descriptor or ValueStateDescriptor("total", "int")

    def open(self, runtime_context):
        self.state = runtime_context.get_state(self.descriptor)

    def process_batch(self, batch):
        self.act(self.state)


WRONG = {
    "without default": (lambda state: state.get_many(), "get_many() needs a default"),
    "too few": (lambda state: state.put_many([1]), "needs a value for each of the 2 keys of the batch, got 1"),
    "too large": (lambda state: state.put_many(np.array([1, 1 << 40])), "the values are not int32"),
    "a fraction": (lambda state: state.put_many(np.array([1, 0.5])), "the values are not int32"),
    "a text": (lambda state: state.put_many(["a", "b"]), "the values are not int32"),
    "a short mask": (lambda state: state.remove_many([True]), "needs a bool for each of the 2 keys"),
}


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("what", WRONG)
def test_a_mistake_names_the_state(what, backend):
    act, said = WRONG[what]
    with totals(backend, Wrong(act)) as harness, pytest.raises(HeadraceError) as raised:
        harness.process_elements([(1, 0), (2, 0)])
    assert said in str(raised.value)
    assert "value state 'total'" in str(raised.value)


def test_state_outside_of_a_batch_is_refused():
    class Late(Totals):
        def open(self, runtime_context):
            super().open(runtime_context)
            self.total.get_many()

    with pytest.raises(HeadraceError, match="was used outside of process_batch"), totals(function=Late()):
        pass


def test_other_kinds_of_state_are_refused():
    function = Wrong(None, ListStateDescriptor("items", "int"))
    with pytest.raises(HeadraceError, match="has value states without a time to live"), totals(function=function):
        pass


def test_the_stream_must_be_typed():
    env = StreamExecutionEnvironment.get_execution_environment()
    keyed = env.from_collection([1, 2]).key_by(lambda n: n)
    with pytest.raises(GraphError, match=r"process_batches\(\) at .* needs a typed stream"):
        keyed.process_batches(Totals())


def test_null_keys_are_refused():
    with totals() as harness, pytest.raises(HeadraceError, match="key column has 1 null"):
        harness.process_elements([(None, 1), (2, 1)])


def test_keys_that_are_no_column_are_refused():
    build = lambda rows: rows.key_by(lambda row: row.k if row.n else str(row.k)).process_batches(Grouped())  # noqa: E731
    with (
        OneInputHarness.of(build, input_type="k bigint, n bigint") as harness,
        pytest.raises(HeadraceError, match=r"process_batches\(\) needs keys that are a column of one type"),
    ):
        harness.process_elements([(1, 0), (2, 1)])
