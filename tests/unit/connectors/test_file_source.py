"""The directory source: what becomes of files that appear, change, vanish or are damaged. SPEC R9.4"""

import gzip
import os
import random
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace import OutputTag, StreamExecutionEnvironment
from headrace.api.durable import pack, unpack
from headrace.api.sources import ReaderContext
from headrace.connectors.files import CORRUPT_TYPE, FileFormat, FileSource
from headrace.connectors.files import source as files
from headrace.connectors.files.formats import PartReader
from headrace.connectors.files.source import FilesFound
from headrace.errors import HeadraceError, InvalidArgument, StorageError
from headrace.records.batch import Batch
from headrace.records.types import Row, as_type

PAIR = "word string, n bigint"
WHERE = ReaderContext(0, 1, lambda: 0)


def rows_of(source, corrupt=None):
    """All records of a bounded source, through a whole job in the local runtime."""
    env = StreamExecutionEnvironment.local()
    stream = env.from_source(source, source_name="Files")
    if corrupt is not None:
        stream = stream.get_side_output(corrupt)
    return sorted(stream.execute_and_collect(), key=repr)


def splits_of(source, enumerator=None):
    return list((enumerator or source.enumerator(None)).discover())


def read(source, splits, size=1000, cut=None):
    """All records of splits; with `cut` a new reader goes on from a snapshot after so many polls."""
    reader = source.reader(WHERE, list(splits))
    reader.no_more_splits()
    rows, polls = [], 0
    while not reader.finished:
        batch = reader.poll(size() if callable(size) else size)
        rows += batch.rows() if batch is not None else []
        polls += 1
        if cut is not None and polls % cut == 0:
            left = reader.snapshot()
            reader.close()
            reader = source.reader(WHERE, left)
            reader.no_more_splits()
    reader.close()
    return rows


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


# --- formats ----------------------------------------------------------------------------------------------------------


def test_text_with_all_below_it(tmp_path):
    write(tmp_path / "a.txt", "one\ntwo\n")
    write(tmp_path / "deep/er/b.txt", "three")
    write(tmp_path / ".hidden", "no")
    write(tmp_path / "_SUCCESS", "no")
    write(tmp_path / "_temporary/c.txt", "no")
    write(tmp_path / "empty.txt", "")
    assert rows_of(FileSource(str(tmp_path), "text")) == ["one", "three", "two"]
    assert rows_of(FileSource(f"{tmp_path}/*.txt", "text")) == ["one", "two"]
    assert rows_of(FileSource(f"file://{tmp_path}/a.txt", "text")) == ["one", "two"]


def test_csv_json_and_parquet_give_the_same(tmp_path):
    rows = [("a", 1), (None, 2), ("ä,b", None)]
    write(tmp_path / "csv/a.csv", 'word,n\na,1\n,2\n"ä,b",\n')
    write(tmp_path / "json/a.json", '{"word":"a","n":1}\n{"n":2}\n\n{"word":"ä,b","n":null,"x":1}\n')
    table = pa.table({"word": ["a", None, "ä,b"], "extra": [0, 0, 0], "n": pa.array([1, 2, None], pa.int32())})
    (tmp_path / "parquet").mkdir()
    pq.write_table(table, tmp_path / "parquet/a.parquet")
    for format, options in (("csv", {"header": True}), ("json", {}), ("parquet", {})):
        assert set(rows_of(FileSource(f"{tmp_path}/{format}", format, PAIR, **options))) == set(rows)


def test_the_columns_of_parquet_are_found(tmp_path):
    pq.write_table(pa.table({"n": [1, 2], "t": ["x", "y"]}), tmp_path / "a.parquet")
    source = FileSource(str(tmp_path), "parquet")
    assert str(source.type) == "row<n bigint, t string>"
    assert rows_of(source) == [(1, "x"), (2, "y")]
    with pytest.raises(InvalidArgument, match="there is no file to read the columns from; give a type"):
        FileSource(str(tmp_path / "*.none"), "parquet")


def test_compressed_files(tmp_path):
    with gzip.open(tmp_path / "a.csv.gz", "wt") as file:
        file.write("".join(f"w{i},{i}\n" for i in range(5000)))
    source = FileSource(str(tmp_path), "csv", PAIR, split_bytes=100)
    splits = splits_of(source)
    assert len(splits) == 1
    assert read(source, splits, 700, cut=1) == [(f"w{i}", i) for i in range(5000)]


# --- positions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_any_cut_gives_each_line_once(tmp_path, seed):
    """Splits of any size, batches of any size, restored anywhere: every line once. Long lines, no last line's end."""
    chance = random.Random(seed)
    lines = ["x" * chance.choice([0, 1, 5, 40, 300]) + str(i) for i in range(chance.randrange(1, 150))]
    ends = chance.choice(["\n", "\r\n"])
    write(tmp_path / "a.txt", ends.join(lines) + chance.choice(["", ends]))
    source = FileSource(str(tmp_path), "text", split_bytes=chance.choice([37, 100, 1000, 1 << 20]))
    splits = splits_of(source)
    assert read(source, splits, lambda: chance.randrange(1, 50), cut=chance.choice([None, 1, 3])) == lines
    again = [row for split in chance.sample(splits, len(splits)) for row in read(source, [split], 11)]
    assert sorted(again) == sorted(lines)


@pytest.mark.parametrize("seed", range(10))
def test_any_cut_gives_each_row_of_parquet_once(tmp_path, seed):
    chance = random.Random(seed)
    count = chance.randrange(1, 3000)
    pq.write_table(pa.table({"n": range(count)}), tmp_path / "a.parquet", row_group_size=chance.choice([20, 100, 5000]))
    source = FileSource(str(tmp_path), "parquet", split_bytes=chance.choice([50, 2000, 1 << 20]))
    rows = read(source, splits_of(source), lambda: chance.randrange(1, 500), cut=chance.choice([None, 1, 3]))
    assert rows == [(n,) for n in range(count)]


def test_ten_thousand_small_files(tmp_path):
    for i in range(10_000):
        (tmp_path / f"{i}.txt").write_bytes(b"%d\n" % i)
    source = FileSource(str(tmp_path), "text")
    splits = splits_of(source)
    assert len(splits) == 40  # many files in one split: no message for each
    rows = read(source, splits)
    assert sorted(map(int, rows)) == list(range(10_000))


# --- a directory that is watched ---------------------------------------------------------------------------------------


def test_files_are_found_once(tmp_path):
    source = FileSource(str(tmp_path), "text", watch_ms=10)
    enumerator = source.enumerator(None)
    assert (splits_of(source, enumerator), enumerator.complete) == ([], False)
    write(tmp_path / "a", "1\n")
    assert read(source, splits_of(source, enumerator)) == ["1"]
    assert splits_of(source, enumerator) == []
    write(tmp_path / "b", "2\n")
    restored = source.enumerator(enumerator.snapshot())
    assert read(source, splits_of(source, restored)) == ["2"]  # a is known also to the restored one


def test_older_files_come_first(tmp_path):
    for name, time in (("c", 1), ("a", 3), ("b", 2)):
        write(tmp_path / name, name)
        os.utime(tmp_path / name, (time, time))
    source = FileSource(str(tmp_path), "text")
    assert read(source, splits_of(source)) == ["c", "b", "a"]


def test_a_renamed_file_is_a_new_one(tmp_path):
    source = FileSource(str(tmp_path), "text", watch_ms=10)
    enumerator = source.enumerator(None)
    write(tmp_path / "a", "1\n")
    assert len(splits_of(source, enumerator)) == 1
    (tmp_path / "a").rename(tmp_path / "b")
    assert read(source, splits_of(source, enumerator)) == ["1"]


DAY = 24 * 3600.0


def test_a_file_that_listings_lack_is_known_for_seven_days(tmp_path, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(files.time, "time", lambda: now)
    source = FileSource(str(tmp_path / "in"), "text", watch_ms=10)
    write(tmp_path / "in/a", "1\n")
    enumerator = source.enumerator(None)
    assert len(splits_of(source, enumerator)) == 1
    (tmp_path / "in/a").rename(tmp_path / "aside")
    assert splits_of(source, enumerator) == []
    for days in (3, 3, 2):  # eight days, but it was back in between
        now += days * DAY
        enumerator = source.enumerator(unpack(pack(enumerator.snapshot())))
        (tmp_path / "aside").rename(tmp_path / "in/a")
        assert splits_of(source, enumerator) == []
        (tmp_path / "in/a").rename(tmp_path / "aside")
        assert splits_of(source, enumerator) == []
    now += 8 * DAY
    assert splits_of(source, enumerator) == []
    assert enumerator.snapshot() == FilesFound({})


def test_another_file_under_the_name_of_a_deleted_one_is_an_error(tmp_path):
    source = FileSource(str(tmp_path), "text", watch_ms=10)
    enumerator = source.enumerator(None)
    write(tmp_path / "a", "1\n")
    splits_of(source, enumerator)
    (tmp_path / "a").unlink()
    splits_of(source, enumerator)
    write(tmp_path / "a", "1\n2\n")
    with pytest.raises(StorageError, match=r"a has changed since it was found .* a new one needs a name of its own"):
        splits_of(source, enumerator)


def test_a_path_that_is_gone_is_listed_again_with_a_warning(tmp_path, monkeypatch, caplog):
    now = 1000.0
    monkeypatch.setattr(files.time, "time", lambda: now)
    source = FileSource([str(tmp_path / "in"), str(tmp_path / "more")], "text", watch_ms=10)
    write(tmp_path / "in/a", "1\n")
    write(tmp_path / "more/b", "2\n")
    enumerator = source.enumerator(None)
    assert read(source, splits_of(source, enumerator)) == ["1", "2"]
    (tmp_path / "in").rename(tmp_path / "aside")
    write(tmp_path / "more/c", "3\n")
    assert read(source, splits_of(source, enumerator)) == ["3"]
    now += 30 * DAY
    assert splits_of(source, enumerator) == []
    assert [record.getMessage() for record in caplog.records] == [
        f"{source.name}: {tmp_path}/in is not there now; it is listed again every 10 ms, and files that were found before stay known"
    ]
    (tmp_path / "aside").rename(tmp_path / "in")
    assert splits_of(source, enumerator) == []


def test_a_path_of_an_object_store_that_is_empty_is_watched(tmp_path, caplog):
    source = FileSource("memory://nothing-yet", "text", watch_ms=10)
    enumerator = source.enumerator(None)
    assert (splits_of(source, enumerator), enumerator.complete) == ([], False)
    fsspec.filesystem("memory").pipe("/nothing-yet/a", b"1\n")
    assert read(source, splits_of(source, enumerator)) == ["1"]
    assert "/nothing-yet is not there now" in caplog.text


def test_an_appended_file_is_an_error(tmp_path):
    source = FileSource(str(tmp_path), "text", watch_ms=10)
    enumerator = source.enumerator(None)
    write(tmp_path / "a", "1\n")
    splits = splits_of(source, enumerator)
    with (tmp_path / "a").open("a") as file:
        file.write("2\n")
    message = r"a has changed since it was found \(it had 2 bytes, now 4\): a file must be complete when it appears"
    with pytest.raises(StorageError, match=message):
        splits_of(source, enumerator)
    with pytest.raises(StorageError, match=message):
        read(source, splits)
    patient = FileSource(str(tmp_path), "text", watch_ms=10, on_change="ignore")
    assert read(patient, splits) == ["1"]  # what was there when it was found
    assert splits_of(patient, patient.enumerator(enumerator.snapshot())) == []


def test_a_directory_that_does_not_exist(tmp_path):
    with pytest.raises(StorageError, match=r"FileSource\('.*/none'\): there is no such file or directory"):
        splits_of(FileSource(f"{tmp_path}/none", "text"))
    with pytest.raises(StorageError, match="there is no such file or directory"):
        splits_of(FileSource(f"{tmp_path}/none", "text", watch_ms=10))
    with pytest.raises(StorageError, match="there is no such file or directory"):
        splits_of(FileSource("memory://none", "text"))


# --- damage -----------------------------------------------------------------------------------------------------------


def damaged(tmp_path, **options):
    write(tmp_path / "a.csv", "a,1\nb,many\nc,3\n")
    return FileSource(str(tmp_path), "csv", PAIR, **options)


def test_a_corrupt_line_fails_the_job_with_its_place(tmp_path):
    with pytest.raises(
        HeadraceError, match=r"a\.csv, byte 4 cannot be read: .*many.*; it is b'b,many'\. Fix it, or set"
    ):
        rows_of(damaged(tmp_path))


def test_or_is_left_out_and_counted(tmp_path):
    source = damaged(tmp_path, on_corrupt="skip")
    assert rows_of(source) == [("a", 1), ("c", 3)]
    reader = source.reader(WHERE, splits_of(source))
    reader.poll(100)
    assert reader.corrupt == 1


def test_or_goes_to_a_side_output(tmp_path):
    tag = OutputTag("corrupt", CORRUPT_TYPE)
    source = damaged(tmp_path, on_corrupt=tag)
    ((place, reason, data),) = rows_of(source, tag)
    assert place == f"{tmp_path}/a.csv, byte 4"
    assert "many" in reason
    assert data == b"b,many"
    assert rows_of(source) == [("a", 1), ("c", 3)]


def test_a_wrong_header(tmp_path):
    write(tmp_path / "a.csv", "n,word\n1,a\n")
    with pytest.raises(HeadraceError, match=r"its first line is 'n,word', but the fields are 'word,n'"):
        rows_of(FileSource(str(tmp_path), "csv", PAIR, header=True))


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (pa.table({"word": ["a"]}), r"a\.parquet cannot be read: it has no column 'n', only word"),
        (pa.table({"word": ["a"], "n": ["x"]}), "its column 'n' is string, not int64"),
        (pa.table({"word": ["a"], "n": [1.5]}), "its column 'n' is double, not int64"),
    ],
)
def test_parquet_with_other_columns(tmp_path, table, reason):
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(HeadraceError, match=reason):
        rows_of(FileSource(str(tmp_path), "parquet", PAIR))
    pq.write_table(pa.table({"word": ["b"], "n": [2]}), tmp_path / "b.parquet")
    assert rows_of(FileSource(str(tmp_path), "parquet", PAIR, on_corrupt="skip")) == [("b", 2)]


def test_files_that_are_no_parquet_and_no_gzip(tmp_path):
    tag = OutputTag("corrupt", CORRUPT_TYPE)
    write(tmp_path / "p/a.parquet", b"no parquet")
    write(tmp_path / "p/empty.parquet", b"")
    write(tmp_path / "g/a.gz", gzip.compress(b"1\n2\n" * 1000)[:-30])
    found = rows_of(FileSource(f"{tmp_path}/p", "parquet", PAIR, on_corrupt=tag), tag)
    assert [row.place.rpartition("/")[2] for row in found] == ["a.parquet", "empty.parquet"]
    ((place, reason, _),) = rows_of(FileSource(f"{tmp_path}/g", "text", on_corrupt=tag), tag)
    assert place.endswith("a.gz")
    assert "ended" in reason


def test_a_file_that_is_gone_before_it_is_read(tmp_path):
    tag = OutputTag("corrupt", CORRUPT_TYPE)
    write(tmp_path / "a", "1\n")
    write(tmp_path / "b", "2\n")
    source = FileSource(str(tmp_path), "text", on_corrupt=tag)
    splits = splits_of(source)
    (tmp_path / "a").unlink()
    reader = source.reader(WHERE, splits)
    assert reader.poll(10).rows() == ["2"]
    ((_, row),) = reader.take_side()
    assert (row.place, row.reason) == (
        f"{tmp_path}/a",
        "the file is gone: it was deleted or renamed before it was read",
    )


def test_refusals(tmp_path):
    for options, message in (
        (("xml",), "unknown format 'xml'; use text, json, csv, parquet"),
        (("csv",), "format 'csv' needs a type with named fields"),
        (("parquet", "bigint"), "parquet needs a type with named fields, got bigint"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            FileSource(str(tmp_path), *options)
    for options, message in (
        ({"header": True}, "only csv files have a header"),
        ({"on_change": "x"}, "on_change must be 'fail' or 'ignore', got 'x'"),
        ({"on_corrupt": "x"}, "on_corrupt must be 'fail', 'skip' or an OutputTag, got 'x'"),
        ({"watch_ms": 0}, "split_bytes and watch_ms must be positive"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            FileSource(str(tmp_path), "text", **options)


def test_splits_of_one_byte(tmp_path):
    write(tmp_path / "a.txt", "ab\n\nc\n")
    source = FileSource(str(tmp_path), "text", split_bytes=1)
    assert [read(source, [split]) for split in splits_of(source)] == [["ab"], [], [], [""], ["c"], []]


def test_little_to_read_is_shared_too(tmp_path):
    for number in range(8):
        write(tmp_path / f"{number}.txt", b"x" * 99 + b"\n" + b"y" * 999_900)
    assert len(splits_of(FileSource(str(tmp_path), "text"))) == 8
    write(tmp_path / "large.txt", b"z" * 50_000_000)
    sizes = [
        sum(part.end - part.start for part in split.parts) for split in splits_of(FileSource(str(tmp_path), "text"))
    ]
    assert len(sizes) >= 32
    assert max(sizes) <= 58_000_000 // 32


# --- backlog ----------------------------------------------------------------------------------------------------------


def test_the_first_listing_is_a_backlog_until_nothing_is_left_to_read(tmp_path):  # SPEC R5.4
    write(tmp_path / "a.txt", "one\ntwo\n")
    source = FileSource(str(tmp_path), "text", watch_ms=100)
    enumerator, now = source.enumerator(None), [0]
    reader = source.reader(ReaderContext(0, 1, lambda: now[0]), [])
    assert not reader.backlog  # it has nothing to read yet
    reader.add_splits(splits_of(source, enumerator))
    assert reader.backlog
    assert reader.poll(1).rows() == ["one"]
    assert reader.poll(9).rows() == ["two"]
    assert reader.poll(9) is None
    now[0] = 500
    reader.poll(9)
    assert reader.backlog  # the driver may still give out a split of the first listing
    now[0] = 1001
    reader.poll(9)
    assert not reader.backlog
    write(tmp_path / "b.txt", "three\n")
    reader.add_splits(splits_of(source, enumerator))
    assert not reader.backlog
    assert reader.poll(9).rows() == ["three"]
    reader.close()


def test_a_name_that_is_not_utf_8_is_read(tmp_path):
    # The byte E9 is "é" in Latin-1, and no UTF-8.
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.json"))
    write(path, '{"word":"a","n":1}\nbroken\n')
    corrupt = OutputTag("corrupt", CORRUPT_TYPE)
    source = FileSource(str(tmp_path), "json", PAIR, on_corrupt=corrupt)
    assert rows_of(source) == [Row(word="a", n=1)]
    (bad,) = rows_of(source, corrupt)
    assert bad.data == b"broken"
    enumerator = source.enumerator(None)
    stored = [unpack(pack(split)) for split in enumerator.discover()]
    assert len(read(source, stored)) == 1
    assert unpack(pack(enumerator.snapshot())) == enumerator.snapshot()


def test_several_paths(tmp_path):
    for name in ("a/1.txt", "a/2.txt", "b/3.txt"):
        write(tmp_path / name, f"{name}\n")
    paths = [str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "a" / "1.txt")]  # one file is at two of them
    source = FileSource(paths, "text")
    assert rows_of(source) == ["a/1.txt", "a/2.txt", "b/3.txt"]
    assert source.name == f"FileSource('{', '.join(paths)}')"
    with pytest.raises(InvalidArgument, match="the paths are on several file systems"):
        FileSource([str(tmp_path), "memory://x"], "text").enumerator(None)
    with pytest.raises(InvalidArgument, match="give a path, or a list of them"):
        FileSource([], "text")


def test_files_that_are_not_cut(tmp_path):
    write(tmp_path / "a.txt", "x" * 50 + "\n" + "y\n" * 1_000_000)
    write(tmp_path / "empty.txt", "")
    assert len(splits_of(FileSource(str(tmp_path), "text", split_bytes=1 << 16))) > 10
    whole = FileSource(str(tmp_path), "text", split_bytes=None)
    assert [len(split.parts) for split in splits_of(whole)] == [1]
    assert len(read(whole, splits_of(whole), 100_000)) == 1_000_001


def test_a_format_of_ones_own(tmp_path):
    class Words(FileFormat):
        type = as_type("string")

        def reader(self, part, file):
            return WordReader(part, file)

    class WordReader(PartReader):
        def __init__(self, part, file):
            super().__init__(part)
            self._file = file

        def read(self, max_records):
            words = self._file.read().decode().split()[self.part.position :]
            self.finished = True
            return Batch.of_rows(words, as_type("string")), []

        def close(self):
            self._file.close()

    write(tmp_path / "a.txt", "one two\nthree")
    assert rows_of(FileSource(str(tmp_path), Words())) == ["one", "three", "two"]
    with pytest.raises(InvalidArgument, match="the format gives string, not bigint"):
        FileSource(str(tmp_path), Words(), "bigint")
    with pytest.raises(InvalidArgument, match="Words cannot write files"):
        Words().writer(None, as_type("string"))
