"""Avro: the bytes of the specification's examples, schemas that have changed, and files."""

import datetime as dt
import io
import json
import sys
import uuid
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
        ('{"type": "record", "fields": []}', "the schema is not valid: .name. is a required field missing"),
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


# --- what the specification says, and fastavro alone does not do ------------------------------------------------------


def record(name, *fields, **more):
    return {
        "type": "record",
        "name": name,
        "fields": [dict(zip(("name", "type", "default"), f, strict=False)) for f in fields],
        **more,
    }


def test_equal_names_in_two_namespaces_are_kept_apart():
    schema = record(
        "Top",
        ("a", record("Key", ("n", "long"), namespace="a")),
        ("b", record("Outer", ("k1", record("Key", ("s", "string"))), ("k2", "Key"), namespace="b")),
        namespace="x",
    )
    value = {"a": {"n": 1}, "b": {"k1": {"s": "x"}, "k2": {"s": "y"}}}
    codec = AvroCodec(schema)
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("int", 1 << 31),
        ("int", -(1 << 31) - 1),
        ({"type": "array", "items": "int"}, [1 << 31]),
        ({"type": "map", "values": "int"}, {"k": 1 << 31}),
        (["null", "int"], 1 << 40),
    ],
)
def test_an_int_has_32_bits(schema, value):
    with pytest.raises(InvalidArgument, match="more than 32 bits"):
        AvroCodec(schema).encode(value)
    data = AvroCodec(json.loads(json.dumps(schema).replace("int", "long"))).encode(value)
    with pytest.raises(ValueError, match="more than 32 bits"):
        AvroCodec(schema).decode(data)


@pytest.mark.parametrize(
    ("schema", "data", "message"),
    [
        (["null", "string"], b"\x01", "negative index"),
        (["null", "string"], b"\x06", "list index out of range"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x01", "-1 is not the place of a symbol of E"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "1 is not the place of a symbol of E"),
        ("long", b"\x02\x00", "1 bytes follow the value"),
        ("string", b"\x02\xff", "codec can't decode"),
        ("string", b"\x01", "it ends too early"),
        ("long", b"\xff" * 10 + b"\x01", "a number has more than 64 bits"),
        ({"type": "array", "items": "null"}, bytes.fromhex("808080808040") + b"\x00", "values without bytes"),
        (
            {"type": "array", "items": record("Null", ("n", "null"))},
            bytes.fromhex("80808080804000"),
            "values without bytes",
        ),
        ({"type": "array", "items": "boolean"}, bytes.fromhex("808080808040") + b"\x00", "it ends too early"),
        ({"type": "int", "logicalType": "date"}, bytes.fromhex("feffffff0f"), "no value of the Avro schema"),
        ({"type": "int", "logicalType": "time-millis"}, b"\x01", "-1 is not a time of day"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2}, b"\x02\x64", "a decimal has more than 2 digits"),
        ({"type": "long", "logicalType": "timestamp-micros"}, b"\xff" * 9 + b"\x01", "no value of the Avro schema"),
    ],
)
def test_bytes_that_no_writer_makes_are_corrupt(schema, data, message):
    codec = AvroCodec(record("R", ("f", schema)))
    with pytest.raises(ValueError, match=message):
        codec.decode(data)
    _, bad = AvroFormat(record("R", ("f", schema))).decoder().decode([data])
    assert [one.index for one in bad] == [0]


def test_an_array_of_nulls_is_read():
    codec = AvroCodec({"type": "array", "items": "null"})
    for _ in range(3):
        assert codec.decode(codec.encode([None] * 600_000)) == [None] * 600_000


TREE = record("Tree", ("next", ["null", "Tree"], None))


@pytest.mark.parametrize("schema", [TREE, record("Tree", ("next", {"type": "array", "items": "Tree"}))])
@pytest.mark.parametrize("depth", [300, 200_000])
def test_values_that_are_nested_too_deeply_are_corrupt(schema, depth):
    data = b"\x02" * depth + b"\x00" * (depth + 1 if schema is not TREE else 1)
    with pytest.raises(ValueError, match="it is nested too deeply"):
        AvroCodec(schema).decode(data)


def test_a_record_that_contains_itself_is_read_at_any_size():
    codec = AvroCodec(record("Tree", ("text", "string"), ("next", ["null", "Tree"]), ("at", "int")))
    value = {"text": "x" * 500, "next": {"text": "y", "next": None, "at": 1}, "at": 2}
    assert codec.decode(codec.encode(value)) == value
    deep = None
    for _ in range(5000):
        deep = {"text": "", "next": deep, "at": 1}
    with pytest.raises(InvalidArgument, match="a value is nested too deeply to be written"):
        codec.encode(deep)


A, B = record("A", ("x", "int", 0)), record("B", ("y", "string", ""))


def test_a_record_of_a_union_is_the_one_that_has_its_fields():
    codec = AvroCodec([A, B])
    assert codec.encode({"y": "hello"}) == b"\x02\x0ahello"
    assert codec.decode(b"\x02\x0ahello") == {"y": "hello"}
    assert codec.encode(Row(x=7)) == b"\x00\x0e"
    with pytest.raises(InvalidArgument, match=r"\{\} fits several records of the union, A, B: write \(name of"):
        codec.encode({})
    assert codec.encode(("B", {})) == b"\x02\x00"
    with pytest.raises(InvalidArgument, match="is of no type of the union"):
        codec.encode({"z": 1})


@pytest.mark.parametrize(
    ("union", "value", "data"),
    [
        (["double", "long"], (1 << 60) + 1, None),
        (["float", "double"], 0.1, None),
        (["double", "null"], 3, None),
        (["null", "string", "bytes"], b"\xff\x00", "0404ff00"),
        (["null", "string", "bytes"], "abc", "0206616263"),
        (["int", "long"], 1 << 40, None),
        (["int", "long"], 5, "000a"),
        (["boolean", "int"], True, "0001"),
        (["boolean", "int"], 1, "0202"),
        ([{"type": "map", "values": "int"}, A], {"k": 1}, "0002026b0200"),
        ([{"type": "map", "values": "int"}, A], {"x": 1}, "0202"),
        ([{"type": "array", "items": "int"}, "null"], [1], "00020200"),
        (["string", {"type": "enum", "name": "E", "symbols": ["a"]}], "a", "000261"),
        (["null", {"type": "enum", "name": "E", "symbols": ["a", "b"]}], "b", "0202"),
        (["null", {"type": "fixed", "name": "F", "size": 2}], b"ab", "026162"),
        (["string", {"type": "int", "logicalType": "date"}], dt.date(1970, 1, 3), "0204"),
        (["null", {"type": "long", "logicalType": "timestamp-micros"}], dt.datetime(1970, 1, 1, 0, 0, 0, 3), "0206"),  # noqa: DTZ001
        (["double", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}], Decimal("1.5"), "02020f"),
    ],
)
def test_the_branch_of_a_union_is_that_of_the_value(union, value, data):
    codec = AvroCodec(union)
    encoded = codec.encode(value)
    assert data is None or encoded.hex() == data
    decoded = codec.decode(encoded)
    assert (decoded, type(decoded)) == (value, float if union == ["double", "null"] else type(value))


@pytest.mark.parametrize(
    ("wanted", "written", "value", "expected"),
    [
        (["double", "long"], "long", (1 << 60) + 1, (1 << 60) + 1),  # the same type, before one to promote to
        (["double", "null"], "int", 3, 3.0),
        (["string", "bytes"], "bytes", b"\xff", b"\xff"),
        ([B, A], A, {"x": 3}, {"x": 3}),
        ([record("n.A", ("z", "int", 1)), record("m.A", ("x", "int", 0))], record("m.A", ("x", "int")), (3,), {"x": 3}),
        ([B, record("C", ("x", "int"), aliases=["A"])], A, {"x": 3}, {"x": 3}),
        (["null", record("Other", ("x", "long"))], A, {"x": 3}, {"x": 3}),  # the only record
        ("long", ["int", "null"], 3, 3),
        (["null", "double"], ["int", "null"], None, None),
        (["null", "double"], ["int", "null"], 3, 3.0),
        ("bytes", "string", "x", b"x"),
        ("string", "bytes", b"x", "x"),
        ("float", "long", 3, 3.0),
        ({"type": "array", "items": "double"}, {"type": "array", "items": "int"}, [1], [1.0]),
        ({"type": "map", "values": "double"}, {"type": "map", "values": "int"}, {"k": 1}, {"k": 1.0}),
        ({"type": "long", "logicalType": "timestamp-millis"}, "int", 1000, dt.datetime(1970, 1, 1, 0, 0, 1)),  # noqa: DTZ001
    ],
)
def test_values_of_another_schema(wanted, written, value, expected):
    found = AvroCodec(wanted, written).decode(AvroCodec(written).encode(value))
    assert (found, type(found)) == (expected, type(expected))


def enum(*symbols, **more):
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def test_symbols_that_the_reader_does_not_know():
    data = AvroCodec(enum("A", "B")).encode("B")
    assert AvroCodec(enum("B", "A"), enum("A", "B")).decode(data) == "B"
    assert AvroCodec(enum("A", default="A"), enum("A", "B")).decode(data) == "A"
    with pytest.raises(ValueError, match="'B' is not a symbol of E"):
        AvroCodec(enum("A"), enum("A", "B")).decode(data)


def logical(kind, name, **more):
    return {"type": kind, "logicalType": name, **more}


@pytest.mark.parametrize(
    ("wanted", "written", "message"),
    [
        (["string", "null"], "int", "a int was written where the schema has a union of string, null"),
        (logical("long", "timestamp-micros"), logical("long", "timestamp-millis"), "a timestamp-millis was written"),
        (
            logical("bytes", "decimal", precision=5, scale=2),
            logical("bytes", "decimal", precision=5, scale=1),
            "a decimal was written where the schema has a decimal",
        ),
        ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 3}, "a fixed F was written"),
        ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "G", "size": 2}, "a fixed G was written"),
        (
            [B, record("C", ("x", "int"))],
            A,
            "a record A was written where the schema has a union of record B, record C",
        ),
    ],
)
def test_schemas_that_cannot_be_resolved_are_refused(wanted, written, message):
    with pytest.raises(InvalidArgument, match=message):
        AvroCodec(wanted, written)


def test_a_branch_that_cannot_be_read_is_an_error_where_it_is_met():
    codec = AvroCodec("int", ["int", "string"])
    assert codec.decode(b"\x00\x06") == 3
    with pytest.raises(ValueError, match="a string was written where the schema has a int"):
        codec.decode(b"\x02\x02a")


def test_fields_in_another_order_with_others_between():
    written = record("R", ("gone", TREE), ("b", "int"), ("old", "string"), ("a", "int"))
    wanted = record("R", ("a", "long"), ("c", "int", 5), ("b", "int"), ("new", "string"))
    wanted["fields"][3]["aliases"] = ["old"]
    data = AvroCodec(written).encode({"gone": {"next": {}}, "b": 1, "old": "x", "a": 2})
    found = AvroCodec(wanted, written).decode(data)
    assert list(found.items()) == [("a", 2), ("c", 5), ("b", 1), ("new", "x")]


def test_defaults_are_logical_values_and_new_ones_each_time():
    wanted = record(
        "R",
        ("day", logical("int", "date"), 1),
        ("price", logical("bytes", "decimal", precision=4, scale=2), "\u0001"),
        ("items", {"type": "array", "items": logical("int", "date")}, [0]),
        ("more", {"type": "map", "values": "int"}, {}),
        ("inner", A, {}),
        ("choice", ["null", "string"], None),
        ("other", ["string", "null"], None),
        ("ratio", "double", 1),
        ("data", "bytes", "\u00ff"),
    )
    codec = AvroCodec(wanted, record("R"))
    expected = {
        "day": dt.date(1970, 1, 2),
        "price": Decimal("0.01"),
        "items": [dt.date(1970, 1, 1)],
        "more": {},
        "inner": {"x": 0},
        "choice": None,
        "other": None,
        "ratio": 1.0,
        "data": b"\xff",
    }
    first, second = codec.decode(b""), codec.decode(b"")
    assert first == second == expected
    first["items"].append(1)
    first["more"]["k"] = 1
    assert second == codec.decode(b"") == expected
    written = AvroCodec(wanted)
    assert written.decode(written.encode({})) == expected
    assert type(second["ratio"]) is float


@pytest.mark.parametrize(
    ("schema", "default"),
    [("int", "x"), ("int", 1 << 40), ("string", 1), (["null", "int"], "x"), (enum("A"), "B"), ("boolean", 0), (A, 5)],
)
def test_wrong_defaults_are_refused(schema, default):
    with pytest.raises(InvalidArgument, match="Avro: the default of field 'f' is wrong"):
        AvroCodec(record("R", ("f", schema, default)))


def test_timestamps_of_nanoseconds():
    schema = record("R", ("t", logical("long", "timestamp-nanos")))
    format = AvroFormat(schema)
    assert str(format.type) == "row<t timestamp[ns]>"
    data = AvroCodec(record("R", ("t", "long"))).encode((1_000_000_001,))
    (batch, _) = format.decoder().decode([data])
    assert batch.arrow().column(0).cast("int64").to_pylist() == [1_000_000_001]
    (found,) = batch.rows()[0]
    assert (found.isoformat(), format.codec.encode((found,))) == ("1970-01-01T00:00:01.000000001", data)
    assert format.codec.encode((dt.datetime(1970, 1, 1, 0, 0, 1),)) == AvroCodec("long").encode(10**9)  # noqa: DTZ001


def test_uuids():
    value = uuid.UUID(int=5)
    assert AvroCodec(logical("string", "uuid")).encode(value) == AvroCodec("string").encode(str(value))
    assert AvroCodec(logical("string", "uuid")).decode(AvroCodec("string").encode(str(value))) == str(value)
    assert AvroCodec({"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}).encode(value) == value.bytes
    assert AvroCodec(["null", logical("string", "uuid")]).encode(value)[:1] == b"\x02"


def test_decimals_are_exact():
    schema = logical("bytes", "decimal", precision=38, scale=4)
    value = Decimal("-1234567890123456789012345678901234.5678")
    assert AvroCodec(schema).decode(AvroCodec(schema).encode(value)) == value
    for wrong, message in [("0.00001", "more than 4 digits after the point"), ("1E+40", "more than 38 digits")]:
        with pytest.raises(InvalidArgument, match=message):
            AvroCodec(schema).encode(Decimal(wrong))
    with pytest.raises(InvalidArgument, match="does not fit"):
        AvroCodec(schema).encode(Decimal("NaN"))


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        ("null", 1, "1 is not null"),
        ("boolean", None, "None is not a boolean"),
        ("double", "1.5", "'1.5' is not a number"),
        ("float", 1e300, "has no place in 32 bits"),
        ("bytes", 5, "5 is not bytes"),
        ("string", 5, "5 is not a string"),
        (enum("A"), "B", "'B' is not a symbol of E"),
        ({"type": "array", "items": "string"}, "ab", "'ab' is not an array"),
        (record("R", ("a", A)), {"a": {"x": "y"}}, "field 'a': field 'x': "),
    ],
)
def test_values_of_other_types_are_refused(schema, value, message):
    with pytest.raises(InvalidArgument, match=message):
        AvroCodec(schema).encode(value)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (["int", "int"], "a union has int twice"),
        (["int", ["null"]], "a union is directly inside another"),
        (record("R", ("a", A), ("b", A)), "redefined named type: A"),
        (record("R", ("a", "int"), ("a", "int")), "R has field 'a' twice"),
        ({"type": "array"}, "items"),
        (record("R", ("a", "Unknown")), "unknown type 'Unknown'"),
        (5, "not valid"),
    ],
)
def test_schemas_that_are_not_valid(schema, message):
    with pytest.raises(InvalidArgument, match=message):
        AvroCodec(schema)


def test_types_inside_types_and_names_as_types():
    codec = AvroCodec(record("R", ("a", {"type": {"type": "string"}}), ("b", A), ("c", {"type": "A"})))
    assert codec.decode(codec.encode({"a": "x", "b": {}, "c": {"x": 1}})) == {"a": "x", "b": {"x": 0}, "c": {"x": 1}}


def test_long_numbers_are_told_from_texts():
    codec = AvroCodec(record("R", ("text", "string"), ("data", "bytes"), ("n", "long")))
    value = {"text": "水" * 100, "data": b"\xff" * 100, "n": -(1 << 63)}
    assert codec.decode(codec.encode(value)) == value
    singles = AvroCodec({"type": "array", "items": {"type": "fixed", "name": "F", "size": 1}})
    assert singles.decode(singles.encode([b"\xff"] * 20)) == [b"\xff"] * 20


def test_codecs_are_pickled_with_both_schemas():
    codec = cloudpickle.loads(cloudpickle.dumps(AvroCodec("double", "int")))
    assert codec.decode(b"\x06") == 3.0


def test_without_fastavro_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(InvalidArgument, match=r"Avro needs the package fastavro \(.*\): pip install .*avro"):
        AvroCodec("int")
