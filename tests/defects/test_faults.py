"""What may never be lost, repeated or destroyed, also when processes, storage and operators do their worst.

A test that is expected to fail shows a known defect: its reason begins with the defect's name. The test says what is right;
whoever repairs the defect removes the mark, since a test that passes unexpectedly fails.
"""

import json
import os
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from edge_kit import Count, Numbers, counted, eventually, files_below, key_of, wait_running
from pyspark.sql.types import LongType, StructField, StructType

from headrace.api.sink import CommitRequest, Epoch, EpochContext, WriterContext
from headrace.connectors.delta import DeltaSink
from headrace.connectors.files import FileSink, FileSource
from headrace.connectors.spark.epochs import EpochSink
from headrace.errors import HeadraceError
from headrace.records.types import as_type

JOB, OTHER_JOB = "a" * 32, "b" * 32
ROW = as_type("word string, n bigint")


def require(condition, what):
    """What must hold before the defect can show: without it the test itself is broken, whatever it is expected to do."""
    if not condition:
        raise RuntimeError(f"the test cannot say anything: {what}")


def writer_context(job=JOB, *, attempt=0, staging=None, type_info=ROW):
    return WriterContext("out", "op", 0, 1, 128, attempt, job, staging, type_info, 1)


def epoch_context(job=JOB, spark=None):
    return EpochContext("out", "op", job, spark, None, ROW)


def prepared(writer, *rows):
    """What a writer prepares for a checkpoint after these records."""
    for row in rows:
        writer.write(row)
    return list(writer.prepare(False))


def error_of(action, *arguments):
    """The error that an action ends with; None if there is none."""
    try:
        action(*arguments)
    except HeadraceError as error:
        return error
    return None


# --- F1: files that an attempt has prepared -----------------------------------------------------------------------------


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="F1 FileSink: an old attempt deletes what a newer one has prepared"
)
def test_an_old_attempt_leaves_what_a_newer_one_has_prepared(tmp_path):
    sink = FileSink(str(tmp_path), "json")
    old = sink.writer(writer_context(attempt=0), [])
    old.write(("old", 1))  # then its host pauses, and the driver starts another attempt
    new = prepared(sink.writer(writer_context(attempt=1), []), ("a", 1), ("b", 2))
    require(new, "nothing is prepared")
    old.prepare(False)  # it wakes up with a barrier in its queue
    requests = [CommitRequest(one, 5) for one in new]
    sink.committer(writer_context(attempt=1)).commit(requests)
    visible = [line for path in tmp_path.glob("part-*") for line in path.read_text().splitlines()]
    assert [json.loads(line)["word"] for line in visible] == ["a", "b"]
    assert not any(request.dropped for request in requests)


# --- F3, F10: what a savepoint holds for a Delta table --------------------------------------------------------------------


def words(table):
    """The words of all rows of a Delta table; the error if it cannot be read."""
    try:
        return sorted(DeltaTable(str(table)).to_pyarrow_table().column("word").to_pylist())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("change", ["optimize", "delete"])
@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="F3 DeltaSink: start after a stop repeats rows of a table that was compacted",
)
def test_an_epoch_that_was_committed_before_the_table_was_rewritten_is_not_added_again(tmp_path, change):
    sink, table = DeltaSink(str(tmp_path / "table")), tmp_path / "table"
    writer, committer = sink.writer(writer_context(), []), sink.epoch_committer(epoch_context())
    committer.commit(Epoch(5, prepared(writer, ("x", 1))))
    last = prepared(writer, ("y", 2))
    committer.commit(Epoch(6, last))  # the job stops with a savepoint, which holds this epoch
    if change == "optimize":
        DeltaTable(str(table)).optimize.compact()
    else:
        DeltaTable(str(table)).delete("word = 'y'")
    before = words(table)
    require(before == (["x", "y"] if change == "optimize" else ["x"]), f"the table has {before}")
    sink.epoch_committer(epoch_context(OTHER_JOB)).commit(Epoch(6, last))  # a job starts from the savepoint
    assert words(table) == before


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="F10 DeltaSink: a savepoint's last epoch makes a new table unreadable"
)
def test_a_new_table_is_readable_after_a_start_from_a_savepoint_of_a_job_with_another_table(tmp_path):
    old, new = DeltaSink(str(tmp_path / "old")), DeltaSink(str(tmp_path / "new"))
    last = prepared(old.writer(writer_context(), []), ("y", 2))
    old.epoch_committer(epoch_context()).commit(Epoch(6, last))
    require(words(tmp_path / "old") == ["y"], "the old table does not have its row")
    committer = new.epoch_committer(epoch_context(OTHER_JOB))
    if error_of(committer.commit, Epoch(6, last)) is None:
        committer.commit(Epoch(7, prepared(new.writer(writer_context(OTHER_JOB), []), ("z", 3))))
        assert words(tmp_path / "new") == ["z"]
    assert words(tmp_path / "old") == ["y"]


@pytest.mark.parametrize("value", ["plain", "a b", "a:b", "ä", "a/b", "50%", "a%20b", "x=y", "#1", "q?"])
def test_a_delta_table_keeps_partition_values_with_special_characters(tmp_path, value):
    sink = DeltaSink(str(tmp_path / "table"), partition_by=["word"])
    sink.epoch_committer(epoch_context()).commit(Epoch(1, prepared(sink.writer(writer_context(), []), (value, 1))))
    assert words(tmp_path / "table") == [value]


# --- F5: which snapshot a resume chooses ------------------------------------------------------------------------------------

TWO_RETAINED = {"execution.checkpointing.num-retained": "2"}


def stop_and_resume(cluster, options):
    """A job that was stopped with a savepoint and resumed."""
    job = cluster.start(options=options)
    job.feed(100)
    job.stop(cluster.savepoints)
    job = cluster.resume(options=options)
    job.feed(50)
    return job


def end_behind_the_savepoint(cluster, job, end):
    """Let a job end when more of its output is visible than the savepoint knows of; all that is visible then."""
    if end == "finish":
        job.feed_rest()
    else:
        job.checkpoint()
        require(cluster.comes_to_show(counted(range(150))), "the output of the checkpoint is not visible")
        job.cancel() if end == "cancel" else job.kill_worker()
    expected = {"finish": "FINISHED", "cancel": "CANCELED", "fail": "FAILED"}[end]
    require(job.wait() == expected, f"the job is {job.status}, not {expected}: {job.error}")
    return cluster.visible()


def check_resume_is_refused(cluster, options, visible):
    again = cluster.resume(options=options)
    if again.running():
        again.feed_rest()
    assert (again.wait(), cluster.visible()) == ("FAILED", visible)
    assert again.error


@pytest.mark.parametrize("end", ["cancel", "finish", "fail"])
@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="F5b resume: goes back to a savepoint behind output that is committed"
)
def test_resume_does_not_go_back_behind_output_that_is_visible(cluster, end):
    options = TWO_RETAINED | {"restart-strategy.type": "none"}
    visible = end_behind_the_savepoint(cluster, stop_and_resume(cluster, options), end)
    check_resume_is_refused(cluster, options, visible)


@pytest.mark.parametrize("end", ["cancel", "finish", "fail"])
def test_resume_without_a_retained_checkpoint_is_refused(cluster, end):
    options = {"execution.checkpointing.num-retained": "1", "restart-strategy.type": "none"}
    visible = end_behind_the_savepoint(cluster, stop_and_resume(cluster, options), end)
    check_resume_is_refused(cluster, options, visible)


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="F5 resume: runs a FINISHED job again, from the savepoint of a stop that failed",
)
def test_resume_does_not_repeat_a_finished_job_that_was_not_stopped(cluster):
    job = cluster.start(options=TWO_RETAINED)
    job.feed(100)
    job.checkpoint()
    job.feed(50)
    failure = job.lose_worker_in_stop(cluster.savepoints)
    require(failure is not None, "the stop has succeeded")
    job.feed_rest()
    require(job.wait() == "FINISHED", f"the job is {job.status}: {job.error}")
    require(cluster.visible() == counted(range(400)), "the output is not complete")
    check_resume_is_refused(cluster, TWO_RETAINED, counted(range(400)))


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="F14 resume: with --from, a job without a checkpoint starts elsewhere the next time",
)
def test_a_job_that_is_resumed_twice_starts_from_the_same_savepoint(cluster):
    first = cluster.start()
    first.feed(50)
    other = first.savepoint(cluster.savepoints)
    first.feed(50)
    origin = first.stop(cluster.savepoints)
    job = cluster.start_from(origin)
    for more in ({"execution.state-recovery.path": str(other)}, {}):
        require(job.running() and job.position == 100, f"it starts at {job.position}: {job.error}")
        job.kill_driver()
        job = cluster.resume(options=more)
    assert job.running()
    assert job.position == 100


# --- F6, F9: what a snapshot holds for foreach_epoch ------------------------------------------------------------------------


class Tables:
    """As much of a SparkSession as the committer of foreach_epoch needs."""

    read = property(lambda self: self)

    def parquet(self, *paths):
        return paths


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="F6 foreach_epoch: an epoch with a missing staged file counts as done"
)
def test_an_epoch_with_a_missing_staged_file_is_an_error(tmp_path):
    calls = []
    sink = EpochSink(lambda rows, number: calls.append(number))
    writer = sink.writer(writer_context(staging=str(tmp_path / "taskowned")), [])
    staged = prepared(writer, ("x", 1)) + prepared(writer, ("y", 2))
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    require(len(files) == 2, f"two files should be staged, not {files}")
    files[1].unlink()
    error = error_of(sink.epoch_committer(epoch_context(spark=Tables())).commit, Epoch(7, staged))
    assert (calls, files[0].exists()) == ([], True)
    assert error is not None
    assert files[1].name in str(error)


@pytest.mark.parametrize(
    "fork",
    [
        False,
        pytest.param(
            True,
            marks=pytest.mark.xfail(
                strict=True,
                raises=AssertionError,
                reason="F9 foreach_epoch: a job started from a plain savepoint destroys the running job's output",
            ),
        ),
    ],
)
def test_a_job_that_starts_from_a_savepoint_takes_nothing_from_the_job_that_runs(jobs, tap, tmp_path, fork):
    written = {"production": [], "trial": []}

    def program(where):
        def write(rows, number):
            written[where].extend(rows.column(0).to_pylist())

        return lambda env: env.from_source(Numbers(tap.name)).map(int, output_type="bigint").foreach_epoch(write)

    production = wait_running(jobs.start(tmp_path / "production", program("production")))
    tap.give(10)
    production.trigger_checkpoint()
    require(eventually(lambda: len(written["production"]) == 10), "the first epoch is not written")
    tap.give(20)
    savepoint = production.trigger_savepoint(str(tmp_path / "savepoints"))
    if fork:
        options = {"execution.state-recovery.path": savepoint}
        trial = jobs.start(tmp_path / "trial", program("trial"), options, name="trial")
        eventually(lambda: written["trial"] or trial.get_job_status().is_terminal, 10)
    tap.give(30)
    production.trigger_checkpoint()
    eventually(lambda: len(written["production"]) >= 30, 3)
    assert written["production"] == list(range(30))


# --- F12: names of directories after a power failure ---------------------------------------------------------------------------


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="F12 FileSink: names of new directories are not flushed to the local disk",
)
def test_the_names_of_new_directories_are_flushed(tmp_path, monkeypatch):
    flushed, flush = set(), os.fsync

    def flush_and_remember(descriptor):
        flushed.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", flush_and_remember)
    sink = FileSink(str(tmp_path), "json", partition_by="word")
    requests = [CommitRequest(one, 5) for one in prepared(sink.writer(writer_context(), []), ("x", 1))]
    sink.committer(writer_context()).commit(requests)
    made = {path for path in tmp_path.rglob("*") if path.is_dir()}
    require(made and flushed, "no directory was made, or nothing is flushed")
    assert {str(path.parent) for path in made} <= flushed


# --- F13: files that a running job has prepared -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fork",
    [
        False,
        pytest.param(
            True,
            marks=pytest.mark.xfail(
                strict=True,
                raises=AssertionError,
                reason="F13 FileSink: a job started from a plain savepoint commits the running job's pending files",
            ),
        ),
    ],
)
def test_a_job_that_starts_from_a_savepoint_commits_nothing_of_the_job_that_runs(cluster, tmp_path, fork):
    def trial(numbers):
        sink = FileSink(str(tmp_path / "trial-output"), "text")
        numbers.key_by(key_of).process(Count()).uid("count").sink_to(sink).uid("files")

    production = cluster.start()
    production.feed(100)
    production.checkpoint()
    require(cluster.comes_to_show(counted(range(100))), "the first checkpoint's output is not visible")
    production.feed(50)
    savepoint = production.savepoint(cluster.savepoints)
    if fork:
        directory = {"execution.checkpointing.dir": str(tmp_path / "trial-checkpoints")}
        cluster.start_from(savepoint, trial, directory).running()
    assert cluster.visible() == counted(range(100))
    production.kill_worker()
    production.feed_rest()
    require(production.wait() == "FINISHED", production.error)
    assert cluster.visible() == counted(range(400))


# --- F8: a watched directory --------------------------------------------------------------------------------------------


def found_by(enumerator, root):
    """The names of the files that a listing finds new."""
    paths = [part.path for split in enumerator.discover() for part in split.parts]
    return sorted(path.rpartition(f"{root}/")[2] for path in paths)


def test_files_are_not_read_again_when_one_directory_is_deleted_during_a_listing(monkeypatch):
    store = fsspec.filesystem("memory")
    for name in ("day=1/a.txt", "day=1/b.txt", "day=2/c.txt", "old/d.txt"):
        store.pipe(f"/in/{name}", b"x\n")
    enumerator = FileSource("memory://in", "text", watch_ms=1000).enumerator(None)
    assert found_by(enumerator, "in") == ["day=1/a.txt", "day=1/b.txt", "day=2/c.txt", "old/d.txt"]
    list_directory = type(store).ls

    def delete_and_list(self, path, detail=True, **options):
        if path.rstrip("/").endswith("/old") and store.exists("/in/old"):
            store.rm("/in/old", recursive=True)  # between the listing of the directory above and this one
            self.deleted = True
        return list_directory(self, path, detail=detail, **options)

    monkeypatch.setattr(type(store), "ls", delete_and_list)
    store.pipe("/in/day=2/new.txt", b"x\n")
    assert found_by(enumerator, "in") == ["day=2/new.txt"]
    assert not store.exists("/in/old")
    assert found_by(enumerator, "in") == []


def test_files_are_not_read_again_when_their_file_system_was_not_mounted_for_a_while(tmp_path):
    inbox, device = tmp_path / "in", tmp_path / "device"
    inbox.mkdir()
    for name in "abc":
        (inbox / f"{name}.txt").write_text("x\n")
    source = FileSource(str(inbox), "text", watch_ms=1000)
    enumerator = source.enumerator(None)
    assert found_by(enumerator, "in") == ["a.txt", "b.txt", "c.txt"]
    inbox.rename(device)
    assert found_by(enumerator, "in") == []
    inbox.mkdir()  # the mount point
    enumerator = source.enumerator(enumerator.snapshot())  # the job restarts meanwhile
    assert found_by(enumerator, "in") == []
    inbox.rmdir()
    device.rename(inbox)
    assert found_by(enumerator, "in") == []


# --- F11: a driver that was superseded -----------------------------------------------------------------------------------


class Frame:
    """As much of a Spark DataFrame as `from_dataframe` needs."""

    isStreaming = False  # noqa: N815 - pyspark's name
    schema = StructType([StructField("n", LongType())])
    sparkSession = None  # noqa: N815 - pyspark's name

    @property
    def write(self):
        return self

    def parquet(self, path):
        directory = Path(path.removeprefix("file://"))
        directory.mkdir(parents=True)
        pq.write_table(pa.table({"n": range(10)}), directory / "part-0.parquet")


def test_a_superseded_driver_that_reads_to_the_end_leaves_the_input_of_its_successor(cluster):
    def program(numbers):
        env = numbers.get_execution_environment()
        env.from_dataframe(Frame()).uid("frame").sink_to(FileSink(str(cluster.output / "frame"), "json")).uid("copy")
        cluster.count_into_files(numbers)

    def staged():
        return [path for path in files_below(cluster.checkpoints.parent) if "dataframe-" in path]

    options = {"execution.checkpointing.interval": ""}  # no final checkpoint: the end is the first thing it claims
    old = cluster.start(program, options)
    old.feed(100)
    old.checkpoint()
    new = cluster.resume(program, options)
    assert new.running(), new.error
    before = staged()
    if not before:
        pytest.fail("the rows of the DataFrame are not staged")
    old.feed_rest()
    assert (old.wait(), "another driver has taken over" in old.error) == ("FAILED", True)
    assert staged() == before
    new.feed_rest()
    assert new.wait() == "FINISHED"
