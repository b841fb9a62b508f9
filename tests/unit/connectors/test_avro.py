"""Avro: the bytes of the specification's examples, schemas that have changed, and files."""

import datetime as dt
import io
import json
from decimal import Decimal

import cloudpickle
import pytest

from headrace import Row
from headrace.api.sink import CommitRequest, WriterContext
from headrace.api.sources import ReaderContext
from headrace.connectors.avro import AvroCodec, AvroFormat
from headrace.connectors.files import FileSink, FileSource
from headrace.errors import InvalidArgument
from headrace.records.types import PICKLED, as_type

PAIR = {"type": "record", "name": "Pair", "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}]}


@pytest.mark.parametrize(
    ("schema", "value", "data"),
    [
        ("long", 0, "00"),
        ("long", -1, "01"),
        ("long", -64, "7f"),
        ("long", 64, "8001"),
        ("int", 1 << 30, "8080808008"),
        ("boolean", True, "01"),
        ("double", 1.5, "000000000000f83f"),
        ("string", "foo", "06666f6f"),
        ("bytes", b"\x01", "0201"),
        (PAIR, {"a": 27, "b": "foo"}, "3606666f6f"),
        ({"type": "array", "items": "long"}, [3, 27], "04063600"),
        ({"type": "map", "values": "int"}, {"k": 1}, "02026b0200"),
        (["null", "string"], None, "00"),
        (["null", "string"], "a", "020261"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "02"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", "6162"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}, Decimal("-12.34"), "04fb2e"),
        ({"type": "int", "logicalType": "date"}, dt.date(1970, 1, 3), "04"),
        ({"type": "long", "logicalType": "timestamp-millis"}, dt.datetime(1970, 1, 1, 0, 0, 1), "d00f"),  # noqa: DTZ001
        ({"type": "int", "logicalType": "time-millis"}, dt.time(0, 0, 1), "d00f"),
    ],
)
def test_the_bytes_of_values(schema, value, data):
    codec = AvroCodec(schema if isinstance(schema, str) else json.dumps(schema))
    assert codec.encode(value).hex() == data
    assert codec.decode(bytes.fromhex(data)) == value
    assert cloudpickle.loads(cloudpickle.dumps(codec)).encode(value).hex() == data


def test_rows_and_tuples_are_records():
    codec = AvroCodec(PAIR)
    assert codec.encode((27, "foo")) == codec.encode(Row(b="foo", a=27)) == codec.encode({"a": 27, "b": "foo"})


def test_a_record_that_contains_itself():
    tree = {"name": "Tree", "type": "record", "fields": [{"name": "next", "type": ["null", "Tree"]}]}
    codec = AvroCodec(tree)
    value = {"next": {"next": {"next": None}}}
    assert codec.decode(codec.encode(value)) == value
    assert codec.type() == PICKLED  # it has no columns


def test_another_schema_reads_what_it_knows():
    newer = {
        "type": "record",
        "name": "Pair",
        "fields": [
            {"name": "c", "type": {"type": "array", "items": "int"}, "default": []},
            {"name": "text", "aliases": ["b"], "type": ["null", "string"]},
            {"name": "a", "type": "double"},
        ],
    }
    written = AvroCodec(PAIR).encode((7, "x"))
    assert AvroCodec(newer, PAIR).decode(written) == {"c": [], "text": "x", "a": 7.0}
    with pytest.raises(InvalidArgument, match="a string was written where the schema has a int"):
        AvroCodec("int", "string")
    with pytest.raises(ValueError, match="field 'c' is missing, and has no default"):
        AvroCodec({"type": "record", "name": "Pair", "fields": [{"name": "c", "type": "int"}]}, PAIR)


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        (PAIR, {"a": "x", "b": "y"}, r"Avro: .* does not fit the schema: field 'a': "),
        (PAIR, (1,), "1 fields in place of 2"),
        (PAIR, {"a": 1}, "field 'b' is missing"),
        (["int", "null"], "x", "'x' is of no type of the union"),
        ("long", 1 << 70, "has more than 64 bits"),
        ("int", True, "True is not an integer"),
    ],
)
def test_values_that_do_not_fit(schema, value, message):
    with pytest.raises(InvalidArgument, match=message):
        AvroCodec(schema).encode(value)


@pytest.mark.parametrize("data", [b"", b"\x36\x06f", b"\xff" * 11])
def test_bytes_that_are_no_value(data):
    with pytest.raises(ValueError):
        AvroCodec(PAIR).decode(data)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "the schema is not JSON"),
        ('{"type": "rekord", "name": "R"}', "unknown type 'rekord'"),
        ('{"type": "record", "fields": []}', "a record in the schema has no name"),
    ],
)
def test_schemas_that_are_none(schema, message):
    with pytest.raises(InvalidArgument, match=message):
        AvroCodec(schema)


def test_decoded_batches_have_columns_and_corrupt_records_are_told():
    format = AvroFormat(PAIR)
    assert format.type == as_type("a bigint, b string")
    values = [format.codec.encode((n, "x")) for n in range(3)]
    batch, bad = format.decoder().decode([values[0], b"\x02", values[1], values[2]])
    assert batch.rows() == [(0, "x"), (1, "x"), (2, "x")]
    assert [(one.index, one.data) for one in bad] == [(1, b"\x02")]


def written(tmp_path, format, rows, type=PICKLED):
    sink = FileSink(str(tmp_path / "out"), format)
    sink.check(type)
    context = WriterContext("out", "op", 0, 1, 128, 0, "0" * 32, None, type, 1)
    writer = sink.writer(context, [])
    for row in rows:
        writer.write(row)
    requests = [CommitRequest(one, 1) for one in writer.prepare(True)]
    sink.committer(context).commit(requests)
    (file,) = (tmp_path / "out").glob("part-*.avro")
    return file


def read(path, format, stop=None, at=None):
    """Records of a file, and the splits after `stop` of them."""
    source = FileSource(str(path), format)
    splits = list(source.enumerator(None).discover()) if at is None else at
    reader = source.reader(ReaderContext(0, 1, lambda: 0), splits)
    reader.no_more_splits()
    rows = []
    while not reader.finished and (stop is None or len(rows) < stop):
        batch = reader.poll(7 if stop is None else stop - len(rows))
        rows += [] if batch is None else batch.rows()
    return rows, reader.snapshot()


@pytest.mark.parametrize("compression", ["null", "deflate"])
def test_files(tmp_path, compression):
    rows = [{"a": n, "b": "x" * (n % 100)} for n in range(5000)]  # several blocks
    file = written(tmp_path, AvroFormat(PAIR, compression=compression), rows)
    assert read(file, AvroFormat(PAIR, typed=False))[0] == rows
    typed, _ = read(file, AvroFormat(PAIR))
    assert typed == [tuple(row.values()) for row in rows]
    for stop in (1, 3000):  # a restored reader goes on behind the last record that was given
        first, splits = read(file, AvroFormat(PAIR, typed=False), stop)
        rest, _ = read(file, AvroFormat(PAIR, typed=False), at=splits)
        assert first + rest == rows


def test_damaged_files(tmp_path):
    file = written(tmp_path, AvroFormat(PAIR), [(1, "x")])
    data = file.read_bytes()
    for damaged, message in [
        (b"PAR1" + data, "it is no Avro file"),
        (data[:-3], "it ends too early"),
        (data[:-1] + bytes([data[-1] ^ 1]), "does not end with the mark"),
        (data.replace(b"null", b"lzip"), "its compression 'lzip' is not supported"),
    ]:
        file.write_bytes(damaged)
        with pytest.raises(Exception, match=message):
            read(file, AvroFormat(PAIR))


def test_what_a_format_refuses():
    with pytest.raises(InvalidArgument, match="compression must be 'null' or 'deflate', got 'zstd'"):
        AvroFormat(PAIR, compression="zstd")
    assert isinstance(AvroFormat(PAIR).codec.decode_from(io.BytesIO(b"\x02\x00")), dict)
