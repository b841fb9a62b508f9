"""The Delta sink without a job: what is committed again, by whom, and how partitions are named. SPEC R9.3"""

import duckdb
import pytest
from deltalake import DeltaTable

from headrace.api.sink import Epoch, EpochContext, WriterContext
from headrace.connectors.delta import DeltaSink
from headrace.connectors.spark.staged import StagedParquet
from headrace.records.types import as_type

PAIR = as_type("word string, n bigint")
WORDS = ["a", None, "a/b", "50%", "ä b", "x=y", "it's"]


def staged(sink, rows, subtask=0, job="1" * 32):
    sink.check(PAIR)
    writer = sink.writer(WriterContext("out", "op", subtask, 2, 128, 0, job, None, PAIR), [])
    writer.write_batch(PAIR.to_batch(rows))
    return writer.prepare(False)


def committer(sink, job="1" * 32):
    return sink.epoch_committer(EpochContext("out", "op", job, None, None, PAIR))


def rows_of(path):
    table = DeltaTable(str(path)).to_pyarrow_table()
    return sorted(zip(table.column("word").to_pylist(), table.column("n").to_pylist(), strict=True), key=repr)


def test_one_commit_an_epoch_however_often_it_comes(tmp_path):
    sink = DeltaSink(f"file://{tmp_path}")
    files = [*staged(sink, [("a", 1)]), *staged(sink, [("b", 2)], subtask=1)]
    assert not DeltaTable.is_deltatable(str(tmp_path))
    committer(sink).commit(Epoch(7, files))
    committer(sink).commit(Epoch(7, files))
    assert rows_of(tmp_path) == [("a", 1), ("b", 2)]
    table = DeltaTable(str(tmp_path))
    assert [entry["operation"] for entry in table.history()] == ["WRITE", "CREATE TABLE"]
    assert table.transaction_version(f"headrace-{'1' * 32}-op") == 7
    committer(sink).commit(Epoch(9, staged(sink, [("c", 3)])))
    assert rows_of(tmp_path) == [("a", 1), ("b", 2), ("c", 3)]


def test_a_job_from_a_savepoint_leaves_out_what_the_other_has_committed(tmp_path):
    """Its numbers start anew, and the savepoint holds files that the job which took it has committed since."""
    sink = DeltaSink(str(tmp_path))
    old, new = staged(sink, [("a", 1)]), staged(sink, [("b", 2)])
    committer(sink).commit(Epoch(57, old))
    other = committer(sink, job="2" * 32)
    other.commit(Epoch(1, [*old, *new]))
    other.commit(Epoch(2, staged(sink, [("c", 3)], job="2" * 32)))
    assert rows_of(tmp_path) == [("a", 1), ("b", 2), ("c", 3)]


def test_partitions_of_any_name(tmp_path):
    sink = DeltaSink(str(tmp_path), partition_by=["word"])
    rows = [(word, n) for n, word in enumerate(WORDS * 2)]
    committer(sink).commit(Epoch(1, staged(sink, rows)))
    assert rows_of(tmp_path) == sorted(rows, key=repr)
    assert len(DeltaTable(str(tmp_path)).file_uris()) == len(WORDS)


def test_files_that_are_not_committed_are_not_seen(tmp_path):
    sink = DeltaSink(str(tmp_path))
    committer(sink).commit(Epoch(1, staged(sink, [("a", 1)])))
    staged(sink, [("lost", 2)])
    assert rows_of(tmp_path) == [("a", 1)]


def test_secrets_are_not_shown(tmp_path):
    sink = DeltaSink(str(tmp_path), storage_options={"AWS_SECRET_ACCESS_KEY": "hush"})
    assert "hush" not in repr(sink)


def test_large_epochs_are_several_files(tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.connectors.spark.staged._FILE_BYTES", 1000)
    writer = StagedParquet(str(tmp_path)).writer(WriterContext("out", "op", 0, 1, 128, 0, "1" * 32, None, PAIR), [])
    for n in range(100):
        writer.write_batch(PAIR.to_batch([("x" * 100, n)]))
    files = writer.prepare(True)
    assert len(files) > 5
    assert sum(file.rows for file in files) == 100
    query = f"select count(*), sum(n) from '{tmp_path}/*.parquet'"
    assert duckdb.sql(query).fetchall() == [(100, 4950)]
    assert writer.prepare(True) == []


def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "deltalake", None)
    with pytest.raises(ValueError, match=r"DeltaSink\(.*\) needs the deltalake package: pip install .*delta"):
        DeltaSink(str(tmp_path)).check(PAIR)
