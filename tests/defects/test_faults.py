"""What may never be lost, repeated or destroyed, also when processes, storage and operators do their worst.

A test that is expected to fail shows a known defect: its reason begins with the defect's name. The test says what is right;
whoever repairs the defect removes the mark, since a test that passes unexpectedly fails.
"""

from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from edge_kit import files_below
from pyspark.sql.types import LongType, StructField, StructType

from headrace.connectors.files import FileSink, FileSource


def found_by(enumerator, root):
    """The names of the files that a listing finds new."""
    paths = [part.path for split in enumerator.discover() for part in split.parts]
    return sorted(path.rpartition(f"{root}/")[2] for path in paths)


# --- F8: a watched directory --------------------------------------------------------------------------------------------


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
