"""Output that is committed on the driver, while commits lag behind, and when a job is followed by another one."""

import threading

import pytest
from edge_kit import (
    EpochLedgerSink,
    LedgerSink,
    Numbers,
    checkpoints,
    eventually,
    finished_subtasks,
    record,
    wait_ended,
    wait_running,
)
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage

from headrace.connectors.spark.sink import PythonDataSink


class Lag:
    """Holds the first commit of a ledger until `release`; then it fails if `die` was called before."""

    def __init__(self, ledger, jobs):
        self._open, self._dead, self.reached = threading.Event(), False, threading.Event()
        ledger.before_commit = self._hold
        jobs.at_end(self.release)

    def _hold(self, number):
        self.reached.set()
        self._open.wait(30)
        if self._dead:
            raise RuntimeError("the driver died")

    def die(self):
        self._dead = True

    def release(self):
        self._open.set()


# --- a later job ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sink", [LedgerSink, EpochLedgerSink])
def test_what_was_committed_with_a_savepoint_keeps_its_number_in_the_next_job(jobs, tap, ledger, tmp_path, sink):
    def build(env):
        env.from_source(Numbers(tap.name)).sink_to(sink(ledger.name))

    first = wait_running(jobs.start(tmp_path / "first", build))
    tap.give(10)
    first.trigger_checkpoint()
    tap.give(20)
    savepoint = first.stop_with_savepoint(savepoint_directory=str(tmp_path / "savepoints"))
    assert wait_ended(first) == ("FINISHED", None)
    assert ledger.visible == record(20)

    second = jobs.start(tmp_path / "second", build, {"execution.state-recovery.path": savepoint})
    tap.let(30)
    tap.close()
    assert wait_ended(second) == ("FINISHED", None)
    assert ledger.visible == record(30)
    numbers = {name: {number for number, other in ledger.commits if other == name} for _, name in ledger.commits}
    assert all(len(some) == 1 for some in numbers.values()), numbers


tables = {}  # by name: the last batch id, and the rows


class Message(WriterCommitMessage):
    def __init__(self, rows):
        self.rows = rows


class Table(DataSource):
    """Skips batches whose id is not above its last one, as Spark's documentation tells writers to do."""

    @classmethod
    def name(cls):
        return "table"

    def streamWriter(self, schema, overwrite):  # noqa: N802 - pyspark's name
        return TableWriter(self.options["table"])


class TableWriter(DataSourceStreamWriter):
    def __init__(self, table):
        self.table = table

    def write(self, iterator):
        return Message([row.n for row in iterator])

    def commit(self, messages, batchId):  # noqa: N803 - pyspark's name
        last, rows = tables[self.table]
        if batchId > last:
            tables[self.table] = batchId, rows + [n for message in messages for n in message.rows]

    def abort(self, messages, batchId):  # noqa: N803 - pyspark's name
        pass


def test_a_data_source_that_skips_known_batch_ids_gets_every_record_once_over_two_jobs(jobs, tap, tmp_path, request):
    table = request.node.name
    tables[table] = 0, []

    def build(env):
        rows = env.from_source(Numbers(tap.name)).map(lambda n: (n,), output_type="n bigint")
        rows.sink_to(PythonDataSink(Table, {"table": table}))

    first = wait_running(jobs.start(tmp_path / "first", build))
    for count in (10, 20, 30):
        tap.give(count)
        first.trigger_checkpoint()
    savepoint = first.stop_with_savepoint(savepoint_directory=str(tmp_path / "savepoints"))
    assert wait_ended(first) == ("FINISHED", None)

    second = jobs.start(tmp_path / "second", build, {"execution.state-recovery.path": savepoint})
    tap.let(40)
    tap.close()
    assert wait_ended(second) == ("FINISHED", None)
    assert sorted(tables.pop(table)[1]) == list(range(40))


# --- commits that lag -------------------------------------------------------------------------------------------------


def test_a_slow_commit_does_not_fail_the_job(jobs, tap, ledger, tmp_path):
    """Three checkpoints while the first commit is slow: the files of the second one are gone when its turn comes."""
    lag = Lag(ledger, jobs)
    client = jobs.start(tmp_path, lambda env: env.from_source(Numbers(tap.name)).sink_to(EpochLedgerSink(ledger.name)))
    wait_running(client)
    for count in (10, 20, 30):
        tap.give(count)
        client.trigger_checkpoint()
        assert lag.reached.wait(60)
    eventually(lambda: len(checkpoints(tmp_path)) == 1, 2)  # the files of older ones are deleted
    lag.release()
    tap.close()
    assert wait_ended(client) == ("FINISHED", None)
    assert ledger.visible == record(30)


def two_splits(tap, ledger):
    """A source of two subtasks, each chained with a subtask of the sink, so that one may finish before the other."""
    return lambda env: env.from_source(Numbers(tap.name, 2)).sink_to(EpochLedgerSink(ledger.name))


def test_what_a_finished_subtask_prepared_is_committed_by_the_next_driver(jobs, tap, ledger, tmp_path):
    """The commit of checkpoint 1 is slow, checkpoint 2 is complete without the finished subtask, the driver dies."""
    build = two_splits(tap, ledger)
    lag = Lag(ledger, jobs)
    client = wait_running(jobs.start(tmp_path / "checkpoints", build, parallelism=2))
    tap.give(10, split=0)
    tap.give(10, split=1)
    tap.end(0)
    client.trigger_checkpoint()
    assert lag.reached.wait(60)
    eventually(lambda: finished_subtasks(client), 2)
    client.trigger_checkpoint()
    lag.die()
    jobs.crash(client, tmp_path / "checkpoints")
    assert not ledger.visible

    ledger.before_commit = lambda number: None
    client = jobs.resume(tmp_path / "checkpoints", build, parallelism=2)
    tap.close()
    assert wait_ended(client) == ("FINISHED", None)
    assert ledger.visible == record(10, split=0) + record(10, split=1)


def test_what_a_finished_subtask_prepared_is_committed_before_the_job_ends(jobs, tap, ledger, tmp_path):
    """Only checkpoint 2 holds what the finished subtask prepared, and it is deleted while the commit of 1 is slow."""
    lag = Lag(ledger, jobs)
    options = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "10 ms"}
    client = wait_running(jobs.start(tmp_path, two_splits(tap, ledger), options, parallelism=2))
    tap.give(10, split=1)
    client.trigger_checkpoint()
    assert lag.reached.wait(60)
    tap.give(10, split=0)
    tap.end(0)
    client.trigger_checkpoint()
    eventually(lambda: finished_subtasks(client), 2)
    client.trigger_checkpoint()
    eventually(lambda: len(checkpoints(tmp_path)) == 1, 2)  # the files of older ones are deleted
    lag.release()
    tap.close()
    assert wait_ended(client) == ("FINISHED", None)
    assert ledger.visible == record(10, split=0) + record(10, split=1)
