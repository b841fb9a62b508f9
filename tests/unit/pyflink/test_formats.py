"""PyFlink's schemas and formats: what they write and read is what Flink writes and reads."""

import datetime as dt
from decimal import Decimal

import pyarrow.parquet as pq
import pytest

from headrace.errors import HeadraceError, InvalidArgument
from headrace.pyflink.common import (
    ByteArraySchema,
    Encoder,
    Row,
    SimpleStringSchema,
    Types,
    WatermarkStrategy,
)
from headrace.pyflink.common.serialization import (
    DeserializationSchema,
    RowFieldExtractorSchema,
    SerializationSchema,
    as_text,
)
from headrace.pyflink.datastream import StreamExecutionEnvironment
from headrace.pyflink.datastream.connectors.file_system import (
    BucketAssigner,
    FileEnumeratorProvider,
    FileSink,
    FileSource,
    StreamFormat,
)
from headrace.pyflink.datastream.formats.avro import (
    AvroBulkWriters,
    AvroInputFormat,
    AvroRowDeserializationSchema,
    AvroRowSerializationSchema,
    AvroSchema,
    GenericRecordAvroTypeInfo,
)
from headrace.pyflink.datastream.formats.csv import (
    CsvBulkWriters,
    CsvReaderFormat,
    CsvRowDeserializationSchema,
    CsvRowSerializationSchema,
    CsvSchema,
)
from headrace.pyflink.datastream.formats.json import JsonRowDeserializationSchema, JsonRowSerializationSchema
from headrace.pyflink.datastream.formats.orc import OrcBulkWriters
from headrace.pyflink.datastream.formats.parquet import (
    AvroParquetReaders,
    AvroParquetWriters,
    ParquetBulkWriters,
    ParquetColumnarRowInputFormat,
)
from headrace.pyflink.table import DataTypes
from headrace.testing import local_runtime


@pytest.fixture
def env():
    with local_runtime():
        env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    return env


def source_of(env, format, path):
    build = (
        FileSource.for_bulk_file_format if "Parquet" in type(format).__name__ else FileSource.for_record_stream_format
    )
    return env.from_source(build(format, str(path)).build(), WatermarkStrategy.no_watermarks(), "source")


def write_files(env, stream, factory, path):
    sink = FileSink.for_bulk_format(str(path), factory)
    stream.sink_to(sink.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build())
    env.execute()
    return sorted(path.glob("part-*"))


# --- plain schemas ----------------------------------------------------------------------------------------------------


def test_strings_and_bytes():
    assert SimpleStringSchema().serialize("test") == b"test"
    assert SimpleStringSchema("ISO-8859-1").deserialize(b"\xe4") == "ä"
    assert SimpleStringSchema().decoder().decode([b"a", b"\xff"])[0].rows() == ["a"]
    assert ByteArraySchema().deserialize(ByteArraySchema().serialize(b"\x00")) == b"\x00"
    with pytest.raises(
        InvalidArgument, match=r"SimpleStringSchema writes strings, got '1' of type int; put \.map\(str"
    ):
        SimpleStringSchema().serialize(1)
    with pytest.raises(InvalidArgument, match="ByteArraySchema writes bytes, got 'x' of type str"):
        ByteArraySchema().serialize("x")
    with pytest.raises(InvalidArgument, match="there is no character set 'klingon'"):
        SimpleStringSchema("klingon")


def test_one_field_of_a_row():
    schema = RowFieldExtractorSchema(1)
    assert schema.serialize(Row(b"k", b"v")) == b"v"
    assert schema.serialize(Row(b"k", None)) == schema.serialize(None) == b""
    assert schema == RowFieldExtractorSchema(1)
    assert hash(schema) == hash(RowFieldExtractorSchema(1))
    assert schema != RowFieldExtractorSchema(2)
    with pytest.raises(ValueError, match="Field index must be non-negative, got: -1"):
        RowFieldExtractorSchema(-1)
    with pytest.raises(InvalidArgument, match="the field must be bytes, got int"):
        schema.serialize(Row(b"k", 7))


def test_schemas_of_a_program():
    class Upper(SerializationSchema, DeserializationSchema):
        def serialize(self, element):
            return element.upper().encode()

        def deserialize(self, message):
            return message.decode().lower()

        def get_produced_type(self):
            return Types.STRING()

    assert Upper().serialize("a") == b"A"
    batch, bad = Upper().decoder().decode([b"A", b"\xff", b"B"])
    assert batch.rows() == ["a", "b"]
    assert [(one.index, one.reason.partition(":")[0]) for one in bad] == [(1, "UnicodeDecodeError")]
    with pytest.raises(NotImplementedError, match="SerializationSchema must define serialize"):
        SerializationSchema().serialize(1)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (("hi", 1, None), "(hi,1,null)"),
        (Row("hi", True, [1.0, 2.5]), "+I[hi, true, [1.0, 2.5]]"),
        ({"a": 1}, "{a=1}"),
        (1e-5, "1.0E-5"),
        (float("nan"), "NaN"),
        (Decimal("1.50"), "1.50"),
    ],
)
def test_the_text_of_values_is_flinks(value, text):
    assert as_text(value) == text


# --- JSON -------------------------------------------------------------------------------------------------------------

EVENT = Types.ROW_NAMED(
    ["svt", "ops", "ids"],
    [Types.STRING(), Types.ROW_NAMED(["id"], [Types.STRING()]), Types.PRIMITIVE_ARRAY(Types.INT())],
)


@pytest.mark.parametrize(
    ("given", "written"),
    [
        (b'{"svt":"2020"}', b'{"svt":"2020","ops":null,"ids":null}'),
        (b'{"ops":{"id":"a"},"svt":"x","ids":[1, 2], "b":1}', b'{"svt":"x","ops":{"id":"a"},"ids":[1,2]}'),
        (b'{"svt":5,"ids":["1"]}', b'{"svt":"5","ops":null,"ids":[1]}'),
    ],
)
def test_json_rows(given, written):
    reading = JsonRowDeserializationSchema.builder().type_info(EVENT).build()
    row = reading.deserialize(given)
    assert reading.get_produced_type() == EVENT
    assert JsonRowSerializationSchema.builder().with_type_info(EVENT).build().serialize(row) == written


def test_json_of_other_types():
    kinds = {
        "day": Types.SQL_DATE(),
        "at": Types.SQL_TIMESTAMP(),
        "time": Types.SQL_TIME(),
        "data": Types.PRIMITIVE_ARRAY(Types.BYTE()),
        "tags": Types.MAP(Types.STRING(), Types.LONG()),
        "good": Types.BOOLEAN(),
        "x": Types.DOUBLE(),
    }
    type = Types.ROW_NAMED(list(kinds), list(kinds.values()))
    text = (
        b'{"day":"2026-11-16","at":"2026-11-16T10:00:00Z","time":"10:00:00Z","data":"aGk=","tags":{"a":1},'
        b'"good":true,"x":1.5}'
    )
    row = JsonRowDeserializationSchema.builder().type_info(type).build().deserialize(text)
    assert list(row)[:4] == [dt.date(2026, 11, 16), dt.datetime(2026, 11, 16, 10), dt.time(10), b"hi"]  # noqa: DTZ001
    assert JsonRowSerializationSchema.builder().with_type_info(type).build().serialize(row) == text


def test_json_that_is_none():
    type = Types.ROW_NAMED(["n"], [Types.INT()])
    builder = JsonRowDeserializationSchema.builder
    values = [b'{"n":1}', b"{", b'{"n":"x"}', b"[]", b'{"n":2}']
    batch, bad = builder().type_info(type).build().decoder().decode(values)
    assert [row[0] for row in batch.rows()] == [1, 2]
    assert [one.index for one in bad] == [1, 2, 3]
    lenient = builder().type_info(type).ignore_parse_errors().build()
    assert lenient.ignores_errors
    batch, bad = lenient.decoder().decode(values)
    assert [row[0] for row in batch.rows()] == [1, None, 2]
    assert [one.index for one in bad] == [1, 3]
    strict = builder().type_info(type).fail_on_missing_field().build()
    with pytest.raises(ValueError, match="it has no field 'n'"):
        strict.deserialize(b"{}")
    with pytest.raises(InvalidArgument, match="not both"):
        builder().type_info(type).ignore_parse_errors().fail_on_missing_field().build()
    with pytest.raises(TypeError, match=r"Typeinfo should be set\."):
        JsonRowSerializationSchema.builder().build()
    two = Types.ROW_NAMED(["n", "word"], [Types.INT(), Types.STRING()])
    with pytest.raises(InvalidArgument, match="has 1 fields, the type has 2"):
        JsonRowSerializationSchema.builder().with_type_info(two).build().serialize(Row(1))


def test_json_has_only_the_fields_of_the_type():
    """As Flink writes the key of a Kafka record: the first fields of a row, or those with the names of the type."""
    key = JsonRowSerializationSchema.builder().with_type_info(Types.ROW_NAMED(["n"], [Types.INT()])).build()
    assert key.serialize(Row(1, 2)) == b'{"n":1}'
    assert key.serialize(Row(word="a", n=1)) == b'{"n":1}'


def test_a_json_schema_is_a_type():
    schema = """{"type": "object", "properties": {"name": {"type": "string"}, "day": {"type": "string", "format": "date"},
        "tags": {"type": "array", "items": {"$ref": "#/definitions/tag"}}}, "definitions": {"tag": {"type": ["boolean", "null"]}}}"""
    made = JsonRowDeserializationSchema.builder().json_schema(schema).build()
    expected = Types.ROW_NAMED(["name", "day", "tags"], [Types.STRING(), Types.SQL_DATE(), Types.LIST(Types.BOOLEAN())])
    assert made.get_produced_type() == expected


# --- CSV --------------------------------------------------------------------------------------------------------------


def columns():
    return (
        CsvSchema.builder()
        .add_number_column("tiny", DataTypes.TINYINT())
        .add_number_column("big")
        .add_number_column("float", DataTypes.FLOAT())
        .add_number_column("double", DataTypes.DOUBLE())
        .add_number_column("decimal", DataTypes.DECIMAL(2, 0))
        .add_boolean_column("good")
        .add_string_column("text")
    )


CASES = [
    (columns(), ["127,-9223372036854775808,3e38,2e-308,1.5,true,string\n"],
     [(127, -(1 << 63), 3e38, 2e-308, 2, True, "string")],
     ["127,-9223372036854775808,3.0E38,2.0E-308,2,true,string\n"]),
    (CsvSchema.builder().add_array_column("n", ";", DataTypes.INT()).add_array_column("t", ",").set_column_separator("|")
        .disable_quote_char(), ["1;2;3|a,b\n"], [([1, 2, 3], ["a", "b"])], ["1;2;3|a,b\n"]),
    (CsvSchema.builder().add_string_column("a").set_allow_comments(), ["a\n", "# comment\n", "b\n"], [("a",), ("b",)],
     ["a\n", "b\n"]),
    (CsvSchema.builder().add_string_column("a").add_number_column("b").set_use_header(), ["h1,h2\n", "x,1\n"], [("x", 1)],
     ["x,1\n"]),
    (CsvSchema.builder().add_string_column("a").add_number_column("b").set_use_header().set_strict_headers(),
     ["a,b\n", "x,1\n"], [("x", 1)], ["x,1\n"]),
    (CsvSchema.builder().add_string_column("a").set_skip_first_data_row(), ["skipped\n", "x\n"], [("x",)], ["x\n"]),
    (CsvSchema.builder().add_string_column("a").add_string_column("b").set_column_separator("|"), ['"x"|"y z"\n'],
     [("x", "y z")], ['"x"|"y z"\n']),
    (CsvSchema.builder().add_string_column("a").add_string_column("b").set_quote_char("`"), ["`a,b`,c\n"], [("a,b", "c")],
     ["`a,b`,c\n"]),
    (CsvSchema.builder().add_string_column("a").add_string_column("b").set_escape_char("\\"), ['string\\,,"""s"""\n'],
     [("string,", '"s"')], ['"string,","""s"""\n']),
    (CsvSchema.builder().add_number_column("a").add_string_column("b").set_null_value("-"), [",-\n"], [(None, None)],
     ["-,-\n"]),
]  # fmt: skip


@pytest.mark.parametrize(("builder", "lines", "rows", "written"), CASES)
def test_csv_files(env, tmp_path, builder, lines, rows, written):
    (tmp_path / "in.csv").write_text("".join(lines))
    stream = source_of(env, CsvReaderFormat.for_schema(builder.build()), tmp_path / "in.csv")
    files = write_files(env, stream, CsvBulkWriters.for_schema(builder.build()), tmp_path / "out")
    assert files[0].read_text().splitlines(keepends=True) == written
    (back,) = [
        list(source_of(env, CsvReaderFormat.for_schema(builder.build()), tmp_path / "in.csv").execute_and_collect())
    ]
    close = [tuple(pytest.approx(one, rel=1e-6) if isinstance(one, float) else one for one in row) for row in rows]
    assert [tuple(row) for row in back] == close


def test_csv_that_is_none(env, tmp_path):
    schema = (
        CsvSchema.builder().add_string_column("a").add_number_column("b").set_use_header().set_strict_headers().build()
    )
    (tmp_path / "in.csv").write_text("b,a\nx,1\n")
    with pytest.raises(HeadraceError, match="its first line is 'b,a', but the columns are a, b"):
        list(source_of(env, CsvReaderFormat.for_schema(schema), tmp_path / "in.csv").execute_and_collect())
    (tmp_path / "in.csv").write_text("a,b\nx,y\n")
    with pytest.raises(HeadraceError, match="'y' in column 'b' is not bigint"):
        list(source_of(env, CsvReaderFormat.for_schema(schema), tmp_path / "in.csv").execute_and_collect())
    with pytest.raises(ValueError, match="Quote char must be a single char, got ab"):
        CsvSchema.builder().set_quote_char("ab")
    assert (schema.size(), len(schema), len(CsvSchema.builder().add_columns_from(schema))) == (2, 2, 2)
    assert len(CsvSchema.builder().add_columns_from(schema).clear_columns()) == 0


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Types.STRING(), "'123''4**'", "123'4*"),
        (Types.STRING(), "'a;b''c'", "a;b'c"),
        (Types.INT(), "12", 12),
        (Types.ROW([Types.STRING(), Types.STRING()]), "'1:hello world'", Row("1", "hello world")),
        (Types.STRING(), "null", "null"),
    ],
)
def test_csv_messages(kind, text, value):
    type = Types.ROW([Types.STRING(), kind, Types.STRING()])

    def settings(builder):
        builder.set_escape_character("*").set_quote_character("'").set_array_element_delimiter(":").set_field_delimiter(
            ";"
        )
        return builder.build()

    line = f"BEGIN;{text};END\n".encode()
    assert settings(CsvRowSerializationSchema.Builder(type)).serialize(Row("BEGIN", value, "END")) == line
    row = settings(CsvRowDeserializationSchema.Builder(type)).deserialize(line)
    assert [row[0], row[2]] == ["BEGIN", "END"]
    assert row[1] == value or list(row[1]) == list(value)


def test_csv_messages_that_are_none():
    type = Types.ROW([Types.STRING(), Types.INT()])
    batch, bad = CsvRowDeserializationSchema.Builder(type).build().decoder().decode([b"a,1", b"a", b"a,x", b"b,2"])
    assert [row[1] for row in batch.rows()] == [1, 2]
    assert [one.reason for one in bad] == ["1 fields in place of 2", "'x' in column 'f1' is not int"]
    lenient = CsvRowDeserializationSchema.Builder(type).set_ignore_parse_errors(True).build()
    assert [row[1] for row in lenient.decoder().decode([b"a,1", b"a", b"a,x"])[0].rows()] == [1, None, None]
    with pytest.raises(TypeError, match="Type information must not be None"):
        CsvRowDeserializationSchema.Builder(None)
    with pytest.raises(InvalidArgument, match="CsvRowSerializationSchema needs a row type"):
        CsvRowSerializationSchema.Builder(Types.STRING())


# --- Avro, Parquet, ORC -----------------------------------------------------------------------------------------------

RECORD = """{"type": "record", "name": "test", "fields": [
    {"name": "id", "type": "int"}, {"name": "tags", "type": {"type": "array", "items":
        {"type": "record", "name": "item", "fields": [{"name": "k", "type": "string"}, {"name": "x", "type": "double"}]}}},
    {"name": "more", "type": {"type": "map", "values": "long"}}]}"""
RECORDS = [{"id": 1, "tags": [{"k": "a", "x": 1.5}], "more": {"n": 7}}, {"id": 2, "tags": [], "more": {}}]


def test_avro_rows():
    schema = (
        '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}, {"name": "name", "type": "string"}]}'
    )
    data = AvroRowSerializationSchema(avro_schema_string=schema).serialize(Row(1, "hi"))
    assert data == b"\x02\x04hi"
    reading = AvroRowDeserializationSchema(avro_schema_string=schema)
    assert list(reading.deserialize(data)) == [1, "hi"]
    assert str(reading.get_produced_type()) == "RowTypeInfo(id: Integer, name: String)"
    with pytest.raises(TypeError, match="record_class or avro_schema_string should be specified"):
        AvroRowSerializationSchema()
    with pytest.raises(InvalidArgument, match=r"org\.x\.User is a Java class; give its schema as avro_schema_string"):
        AvroRowDeserializationSchema("org.x.User")


def test_avro_files(env, tmp_path):
    schema = AvroSchema.parse_string(RECORD)
    (tmp_path / "schema.avsc").write_text(RECORD)
    assert str(AvroSchema.parse_file(str(tmp_path / "schema.avsc"))) == str(schema)
    stream = env.from_collection(RECORDS).map(lambda e: e, output_type=GenericRecordAvroTypeInfo(schema))
    (file,) = write_files(env, stream, AvroBulkWriters.for_generic_record(schema), tmp_path / "out")
    source = AvroInputFormat(str(file), schema)
    assert source.get_produced_type() == GenericRecordAvroTypeInfo(schema)
    assert list(env.from_source(source).execute_and_collect()) == RECORDS


def test_parquet_of_avro_records(env, tmp_path):
    schema = AvroSchema.parse_string(RECORD)
    stream = env.from_collection(RECORDS).map(lambda e: e, output_type=GenericRecordAvroTypeInfo(schema))
    (file,) = write_files(env, stream, AvroParquetWriters.for_generic_record(schema), tmp_path / "out")
    assert pq.read_table(file).column("id").to_pylist() == [1, 2]
    format = AvroParquetReaders.for_generic_record(schema)
    assert list(source_of(env, format, file).execute_and_collect()) == RECORDS
    with pytest.raises(InvalidArgument, match="Parquet needs an Avro record without unions"):
        AvroParquetReaders.for_generic_record(AvroSchema.parse_string('["int", "string"]'))


def test_parquet_and_orc_of_rows(env, tmp_path):
    type = DataTypes.ROW([DataTypes.FIELD("a", DataTypes.INT()), DataTypes.FIELD("b", DataTypes.STRING())])
    rows = [Row(1, "x"), Row(2, None)]
    stream = env.from_collection(rows, Types.ROW([Types.INT(), Types.STRING()]))
    (file,) = write_files(env, stream, ParquetBulkWriters.for_row_type(type), tmp_path / "out")
    format = ParquetColumnarRowInputFormat(type, batch_size=7)
    assert [row["b"] for row in source_of(env, format, file).execute_and_collect()] == ["x", None]
    with local_runtime():
        other = StreamExecutionEnvironment.get_execution_environment()
    stream = other.from_collection(rows, Types.ROW([Types.INT(), Types.STRING()]))
    (file,) = write_files(other, stream, OrcBulkWriters.for_row_type(type), tmp_path / "orc")
    from pyarrow import orc

    assert orc.read_table(file).to_pylist() == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]
    with pytest.raises(TypeError, match="row_type must be an instance of RowType"):
        OrcBulkWriters.for_row_type(DataTypes.INT())
    with pytest.raises(InvalidArgument, match="names of columns are case-sensitive"):
        ParquetColumnarRowInputFormat(type, is_case_sensitive=False)


def test_the_table_api_is_not_there():
    with pytest.raises(InvalidArgument, match="Headrace has no Table API; use Spark's DataFrames and SQL"):
        from headrace.pyflink.table import StreamTableEnvironment  # noqa: F401


# --- text files -------------------------------------------------------------------------------------------------------


def test_text_files(env, tmp_path):
    (tmp_path / "1.txt").write_bytes("a\nä\n".encode("latin-1"))
    (tmp_path / "2.txt").write_bytes(b"b")
    builder = FileSource.for_record_stream_format(
        StreamFormat.text_line_format("ISO-8859-1"), str(tmp_path / "1.txt"), str(tmp_path / "2.txt")
    )
    builder.set_file_enumerator(FileEnumeratorProvider.default_non_splittable_file_enumerator())
    stream = env.from_source(builder.process_static_file_set().build(), WatermarkStrategy.no_watermarks(), "files")
    assert sorted(stream.execute_and_collect()) == ["a", "b", "ä"]
    with pytest.raises(InvalidArgument, match="lines are cut at the byte of"):
        StreamFormat.text_line_format("UTF-16")


def test_text_of_records_in_files(env, tmp_path):
    stream = env.from_collection([("hi", 1)], Types.TUPLE([Types.STRING(), Types.INT()]))
    sink = FileSink.for_row_format(str(tmp_path), Encoder.simple_string_encoder())
    stream.sink_to(sink.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build())
    env.execute()
    (file,) = tmp_path.glob("part-*")
    assert file.read_text() == "(hi,1)\n"
