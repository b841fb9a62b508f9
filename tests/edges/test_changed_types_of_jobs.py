"""A job whose program has a wider type for a state, which only one of its subtasks has opened. SPEC R8.6, R10.4"""

import pyarrow as pa
import pytest
from edge_kit import wait_running

from headrace import KeyedProcessFunction, StateTtlConfig, Time, ValueStateDescriptor
from headrace.job_client import SavepointFormat
from headrace.savepoints.reader import StateSnapshotReader
from waiting import wait_until

KEYS = range(8)


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "int"))

    def process_element(self, value, ctx):
        self.count.update(1)
        yield value


class CountMore(KeyedProcessFunction):
    """Opens its state for one key only, and so in one subtask."""

    def open(self, runtime_context):
        self.context = runtime_context

    def process_element(self, value, ctx):
        if value[0] == 0:
            self.context.get_state(ValueStateDescriptor("count", "bigint")).update(2**40)
        yield value


class CountForAnHour(CountMore):
    """As it does, with a time to live. Without that key among the records it does not open the state."""

    def process_element(self, value, ctx):
        if value[0] == 0:
            descriptor = ValueStateDescriptor("count", "bigint")
            descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
            self.context.get_state(descriptor).update(2**40)
        yield value


def without_key_0(env):
    numbers = env.from_sequence(0, 1 << 40).map(lambda n: (1, n), output_type="key bigint, n bigint")
    numbers.key_by("key").process(CountForAnHour()).name("count").uid("count").add_sink(lambda pair: None)


def program(function):
    def build(env):
        numbers = env.from_sequence(0, 1 << 40).map(lambda n: (n % len(KEYS), n), output_type="key bigint, n bigint")
        numbers.key_by("key").process(function()).name("count").uid("count").add_sink(lambda pair: None)

    return build


def rows(path):
    return pa.Table.from_batches(StateSnapshotReader.open(path).read("count", "count"))


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_a_snapshot_in_two_forms_is_read_in_the_wider_one(jobs, tmp_path, backend):
    options = {"state.backend.type": backend}
    client = wait_running(jobs.start(tmp_path / "first", program(Count), options, parallelism=2))
    wait_until(lambda: sum(one.records_in for one in client.job.metrics().values()) > 100)
    before = client.trigger_savepoint(str(tmp_path / "savepoints"), SavepointFormat.CANONICAL)
    client.cancel()
    assert rows(before).schema.field("value").type == pa.int32()
    options["execution.state-recovery.path"] = before
    client = wait_running(jobs.start(tmp_path / "second", program(CountMore), options, parallelism=2))
    wait_until(lambda: sum(one.records_in for one in client.job.metrics().values()) > 100)
    for form in SavepointFormat:
        found = rows(client.trigger_savepoint(str(tmp_path / "savepoints"), form))
        assert found.schema.field("value").type == pa.int64()
        pairs = dict(zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True))
        assert pairs == {key: 1 if key else 2**40 for key in KEYS}
    client.cancel()


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_one_subtask_holds_it_with_and_without_a_time_to_live(jobs, tmp_path, backend):
    """After a rescale, both forms are in the files of one subtask, which has not opened the state."""
    options = {"state.backend.type": backend, "headrace.state.ttl-migration.enabled": "true"}
    found = ""
    for number, (what, parallelism) in enumerate(
        [(program(Count), 2), (program(CountForAnHour), 2), (without_key_0, 1)]
    ):
        client = wait_running(jobs.start(tmp_path / str(number), what, options, parallelism=parallelism))
        wait_until(lambda client=client: sum(one.records_in for one in client.job.metrics().values()) > 100)
        found = client.trigger_savepoint(str(tmp_path / "savepoints"), SavepointFormat.NATIVE)
        client.cancel()
        options["execution.state-recovery.path"] = found
    table = rows(found)
    pairs = dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
    assert pairs == {key: 1 if key else 2**40 for key in KEYS}
    assert table.schema.names[-1] == "ttl_ts"
