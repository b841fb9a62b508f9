"""What a sink has prepared is forgotten when it is committed, and not before: whatever becomes of the checkpoint."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from edge_kit import counted, eventually
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage

from headrace.api.two_phase_commit import TwoPhaseCommitSinkFunction
from headrace.connectors.spark.sink import PythonDataSink
from headrace.errors import ConfigError, HeadraceError

WITHOUT_CHECKPOINTS = {"execution.checkpointing.interval": ""}
NO_FINAL_CHECKPOINT = {"execution.checkpointing.checkpoints-after-tasks-finish": "false"}


# SPEC R5.7, R8.1, R9.3
def test_a_savepoint_of_a_job_without_checkpoints_hides_no_record(cluster):
    job = cluster.start(options=WITHOUT_CHECKPOINTS)
    job.feed(100)
    job.savepoint(cluster.savepoints)
    job.feed_rest()
    assert job.wait() == "FINISHED"
    assert cluster.visible() == counted(range(400))


# SPEC R9.3
def test_a_checkpoint_under_way_when_the_data_ends_hides_no_record(cluster):
    job = cluster.start(options=NO_FINAL_CHECKPOINT)
    job.feed(100)
    with job.storage.hold_writes("_metadata"):
        job.checkpoint_later()
        assert eventually(lambda: job.storage.held)
        job.feed_rest()
        eventually(job.tasks_are_finished, 1.0)
    assert job.wait() == "FINISHED"
    assert cluster.visible() == counted(range(400))


# SPEC R9.3
def test_a_last_checkpoint_that_fails_hides_no_record(cluster):
    job = cluster.start(options=NO_FINAL_CHECKPOINT)
    job.feed(100)
    job.storage.fail_next_write("_metadata")
    with pytest.raises(HeadraceError, match="the disk is broken"):
        job.checkpoint()
    job.feed_rest()
    assert job.wait() == "FINISHED"
    assert cluster.visible() == counted(range(400))


class Transactions(TwoPhaseCommitSinkFunction[str]):
    """Lines of a file that gets its visible name when it is committed."""

    def __init__(self, directory):
        self._directory = directory

    def begin_transaction(self):
        self._directory.mkdir(exist_ok=True)
        return f"{os.urandom(8).hex()}"

    def write(self, transaction, value):
        with (self._directory / transaction).open("a") as file:
            file.write(value + "\n")

    def pre_commit(self, transaction):
        pass

    def commit(self, transaction):
        written = self._directory / transaction
        if written.exists():
            written.rename(self._directory / f"part-{transaction}")

    def abort(self, transaction):
        (self._directory / transaction).unlink(missing_ok=True)


# SPEC R9.2
def test_a_two_phase_sink_without_checkpoints_is_refused_or_commits(cluster):
    def program(numbers):
        numbers.map(str).add_sink(Transactions(cluster.output))

    try:
        job = cluster.start(program, WITHOUT_CHECKPOINTS)
    except ConfigError:
        return
    job.feed_rest()
    assert job.wait() == "FINISHED"
    assert cluster.visible() == [str(n) for n in range(400)]


@dataclass
class Staged(WriterCommitMessage):
    """A file that a task of the data source has written."""

    path: str


class StagingWriter(DataSourceStreamWriter):
    """Renames files at the commit, and removes them at an abort; its first commit fails."""

    def __init__(self, directory):
        self._directory = Path(directory)

    def write(self, rows):
        self._directory.mkdir(exist_ok=True)
        path = self._directory / f"staged-{os.urandom(8).hex()}"
        path.write_text("".join(f"{row.n}\n" for row in rows))
        return Staged(str(path))

    def commit(self, messages, batchId):
        failed = self._directory / "failed-once"
        if not failed.exists():
            failed.touch()
            raise OSError("connection reset by peer")
        for message in messages:
            path = Path(message.path)
            if path.exists():
                path.rename(path.with_name(f"part-{batchId}-{path.name}"))

    def abort(self, messages, batchId):
        for message in messages:
            Path(message.path).unlink(missing_ok=True)


class StagingSource(DataSource):
    """A data source of Spark with a two-phase writer."""

    @classmethod
    def name(cls):
        return "staging"

    def streamWriter(self, schema, overwrite):
        return StagingWriter(self.options["directory"])


def test_a_data_source_whose_commit_fails_once_shows_every_record(cluster):
    def program(numbers):
        rows = numbers.map(lambda n: (n,), output_type="n bigint")
        rows.sink_to(PythonDataSink(StagingSource, {"directory": str(cluster.output)}))

    job = cluster.start(program)
    job.feed(100)
    job.checkpoint()
    assert eventually(lambda: job.restarts == 1)  # the commit has failed
    assert job.running(), job.error
    job.feed_rest()
    assert job.wait() == "FINISHED"
    assert cluster.visible() == [str(n) for n in range(400)]
