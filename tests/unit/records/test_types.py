"""Types: DDL, pyarrow and PyFlink spellings, rows, and the way from Python to Arrow and back."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import pickle
import string

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidArgument
from headrace.records.types import PICKLED, Row, TypeInformation, TypeMismatch, Types, as_type, row_class

# --- DDL ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ddl", "arrow"),
    [
        ("boolean", pa.bool_()),
        ("tinyint", pa.int8()),
        ("byte", pa.int8()),
        ("smallint", pa.int16()),
        ("short", pa.int16()),
        ("int", pa.int32()),
        ("INTEGER", pa.int32()),
        ("bigint", pa.int64()),
        ("long", pa.int64()),
        ("float", pa.float32()),
        ("real", pa.float32()),
        ("double", pa.float64()),
        ("string", pa.string()),
        ("varchar(20)", pa.string()),
        ("char(3)", pa.string()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestamp_ntz", pa.timestamp("us")),
        ("decimal", pa.decimal128(10, 0)),
        ("decimal(7)", pa.decimal128(7, 0)),
        ("numeric(12, 3)", pa.decimal128(12, 3)),
        ("array<int>", pa.list_(pa.int32())),
        ("map<string, array<double>>", pa.map_(pa.string(), pa.list_(pa.float64()))),
        (" bigint ", pa.int64()),
    ],
)
def test_ddl_of_one_value(ddl, arrow):
    kind = as_type(ddl)
    assert (kind.kind, kind.arrow_type) == ("scalar", arrow)


def test_ddl_of_a_row():
    kind = as_type("word string, n bigint NOT NULL, `odd name` date COMMENT 'a day'")
    assert kind.kind == "row"
    assert kind.schema.names == ["word", "n", "odd name"]
    assert [f.nullable for f in kind.schema] == [True, False, True]


def test_ddl_with_colons_and_nesting():
    kind = as_type(
        "id bigint, who struct<name: string, tags: array<struct<k: string, v: int>>>, m map<string,struct<a:int>>"
    )
    tags = pa.list_(pa.struct([("k", pa.string()), ("v", pa.int32())]))
    assert kind.schema.field("who").type == pa.struct([("name", pa.string()), ("tags", tags)])
    assert kind.schema.field("m").type == pa.map_(pa.string(), pa.struct([("a", pa.int32())]))


def test_a_struct_alone_is_a_row():
    assert as_type("struct<a: int, b: string>") == as_type("a int, b string")


@pytest.mark.parametrize(
    ("ddl", "why"),
    [
        ("", "it is empty"),
        ("   ", "it is empty"),
        ("strin", "unknown type 'strin'"),
        ("word strin", "unknown type 'strin'"),
        ("word string n bigint", "expected ,, found n"),
        ("word string,", "found the end"),
        ("array<int", "expected >, found the end"),
        ("array<int>>", "unexpected '>' after the type"),
        ("map<string>", "expected ,, found >"),
        ("a int; b int", "cannot read '; b int'"),
        ("decimal(50, 2)", "precision"),
        ("decimal(x)", "expected a number, found x"),
        ("decimal(10, )", "expected a number, found )"),
        ("a int NOT", "expected null, found the end"),
        ("a int NOT b", "expected null, found b"),
    ],
)
def test_bad_ddl_says_what_is_wrong_and_how_to_write_it(ddl, why):
    with pytest.raises(InvalidArgument) as caught:
        as_type(ddl)
    assert why in str(caught.value)
    assert "write it as Spark DDL, for example 'word string, n bigint'" in str(caught.value)


def test_a_field_twice():
    with pytest.raises(InvalidArgument, match="field names must be unique, got a, a"):
        as_type("a int, a string")


_names = st.text(string.ascii_letters + "_", min_size=1, max_size=6)
_ddl_types = st.recursive(
    st.sampled_from(["boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary", "date"]),
    lambda inner: st.one_of(
        inner.map(lambda t: f"array<{t}>"),
        st.tuples(inner, inner).map(lambda kv: f"map<{kv[0]},{kv[1]}>"),
        st.lists(st.tuples(_names, inner), min_size=1, max_size=3, unique_by=lambda f: f[0]).map(
            lambda fields: f"struct<{','.join(f'`{n}`:{t}' for n, t in fields)}>"
        ),
    ),
    max_leaves=5,
)


@given(_ddl_types)
def test_the_text_of_a_field_can_be_read_again(ddl):
    """What a type prints is Spark DDL or Arrow's own word for it; both name the same type."""
    kind = as_type(f"`x` {ddl}")
    assert kind.schema.field("x").type == as_type(f"struct<x: {ddl}>").schema.field("x").type
    assert pickle.loads(pickle.dumps(kind)) == kind


# --- what a user may give -------------------------------------------------------------------------------------------


def test_none_is_untyped():
    assert as_type(None) is PICKLED
    assert not PICKLED.is_typed
    assert repr(PICKLED) == "pickled"


def test_pyarrow_types_and_schemas():
    schema = pa.schema([("a", pa.int64())])
    assert as_type(schema) == as_type("a bigint")
    assert as_type(pa.struct([("a", pa.int64())])) == as_type("a bigint")
    assert as_type(pa.int64()) == as_type("bigint") == Types.LONG()


@pytest.mark.parametrize("given", [int, 7, ["word"], {"a": "int"}])
def test_what_is_not_a_type(given):
    with pytest.raises(InvalidArgument, match="is not a type: give Spark DDL"):
        as_type(given)


def test_untyped_has_no_columns():
    with pytest.raises(InvalidArgument, match="an untyped stream has no Arrow columns; declare a type"):
        PICKLED.to_batch([1])
    with pytest.raises(InvalidArgument, match="declare a type"):
        _ = PICKLED.arrow_type


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Types.STRING(), "a"),
        (Types.BOOLEAN(), True),
        (Types.BYTE(), -128),
        (Types.SHORT(), 300),
        (Types.INT(), 1 << 30),
        (Types.LONG(), 1 << 62),
        (Types.FLOAT(), 0.5),
        (Types.DOUBLE(), 0.1),
        (Types.CHAR(), "c"),
        (Types.BIG_DEC(), decimal.Decimal("1.500000000000000000")),
        (Types.SQL_DATE(), dt.date(2026, 1, 2)),
        (Types.SQL_TIME(), dt.time(1, 2, 3, 4)),
        (Types.SQL_TIMESTAMP(), dt.datetime(2026, 1, 2, 3, 4, 5, 6)),  # noqa: DTZ001 - a local timestamp has no zone
        (Types.INSTANT(), dt.datetime(2026, 1, 2, tzinfo=dt.UTC)),
        (Types.PRIMITIVE_ARRAY(Types.BYTE()), b"bytes"),
        (Types.PRIMITIVE_ARRAY(Types.INT()), [1, 2]),
        (Types.BASIC_ARRAY(Types.STRING()), ["a", None]),
        (Types.OBJECT_ARRAY(Types.LIST(Types.INT())), [[1], []]),
        (Types.LIST(Types.DOUBLE()), []),
        (Types.MAP(Types.STRING(), Types.LONG()), {"a": 1}),
        (Types.TUPLE([Types.STRING(), Types.INT()]), ("a", 1)),
        (Types.ROW([Types.STRING(), Types.INT()]), ("a", 1)),
        (Types.ROW_NAMED(["w", "n"], [Types.STRING(), Types.INT()]), Row(w="a", n=1)),
        (Types.TUPLE([Types.ROW_NAMED(["x"], [Types.INT()]), Types.MAP(Types.INT(), Types.ROW([Types.INT()]))]), None),
    ],
)
def test_values_of_pyflinks_types_survive(kind, value):
    value = value if value is not None else (Row(x=1), {1: (2,)})
    (back,) = kind.to_rows(kind.to_batch([value]))
    assert back == value
    assert type(back) is type(value) or isinstance(back, Row)


def test_pyflinks_argument_names():
    named = Types.ROW_NAMED(field_names=["a"], field_types=[Types.INT()])
    assert named == as_type("a int")
    assert Types.ROW(field_types=[Types.INT()]).schema.names == ["f0"]
    assert Types.TUPLE(field_types=[Types.INT()]).kind == "tuple"
    assert Types.MAP(key_type_info=Types.INT(), value_type_info=Types.INT()) == as_type("map<int,int>")
    assert Types.LIST(element_type_info=Types.INT()) == Types.BASIC_ARRAY(element_type=Types.INT())
    with pytest.raises(InvalidArgument, match="ROW_NAMED got 2 names for 1 types"):
        Types.ROW_NAMED(["a", "b"], [Types.INT()])


@pytest.mark.parametrize(
    "kind",
    [
        Types.TUPLE([Types.STRING(), Types.PICKLED_BYTE_ARRAY()]),
        Types.ROW([Types.PICKLED_BYTE_ARRAY()]),
        Types.LIST(Types.PICKLED_BYTE_ARRAY()),
        Types.MAP(Types.STRING(), Types.PICKLED_BYTE_ARRAY()),
    ],
)
def test_one_pickled_part_makes_the_whole_pickled(kind):
    assert kind is PICKLED


def test_types_print_as_ddl():
    assert str(Types.TUPLE([Types.STRING(), Types.LONG()])) == "tuple<f0 string, f1 bigint>"
    assert str(as_type("w string, n int")) == "row<w string, n int>"
    assert str(Types.DOUBLE()) == "double"


def test_equal_types_hash_equal():
    assert hash(as_type("a int")) == hash(Types.ROW_NAMED(["a"], [Types.INT()]))
    assert as_type("a int") != Types.TUPLE([Types.INT()])
    assert as_type("a int") != "a int"


# --- round trips ----------------------------------------------------------------------------------------------------

_float32 = st.floats(allow_nan=False, width=32)
_columns = {
    "bigint": st.integers(-(1 << 63), (1 << 63) - 1),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "tinyint": st.integers(-128, 127),
    "double": st.floats(allow_nan=False),
    "float": _float32,
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=10),
    "binary": st.binary(max_size=10),
    "boolean": st.booleans(),
    "date": st.dates(),
    "timestamp_ntz": st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1)),  # noqa: DTZ001
    "array<bigint>": st.lists(st.none() | st.integers(-100, 100), max_size=4),
    "map<string,int>": st.dictionaries(st.text("abc", max_size=3), st.integers(0, 9), max_size=3),
}


@st.composite
def _typed_rows(draw: st.DrawFn) -> tuple[str, list[tuple[object, ...]]]:
    chosen = draw(st.lists(st.sampled_from(sorted(_columns)), min_size=1, max_size=4))
    ddl = ", ".join(f"c{i} {name}" for i, name in enumerate(chosen))
    rows = draw(st.lists(st.tuples(*(st.none() | _columns[name] for name in chosen)), max_size=8))
    return ddl, rows


@given(_typed_rows())
def test_rows_survive_arrow(case):
    ddl, rows = case
    kind = as_type(ddl)
    batch = kind.to_batch(rows)
    assert batch.schema == kind.schema
    assert kind.to_rows(batch) == rows
    assert all(type(row) is kind.row for row in kind.to_rows(batch))


@given(_typed_rows(), st.integers(0, 7), st.integers(0, 7))
def test_rows_survive_a_slice(case, start, length):
    ddl, rows = case
    kind = as_type(ddl)
    assert kind.to_rows(kind.to_batch(rows).slice(start, length)) == rows[start : start + length]


@pytest.mark.parametrize("name", sorted(_columns))
@given(data=st.data())
def test_single_values_survive_arrow(name, data):
    values = data.draw(st.lists(st.none() | _columns[name], max_size=8))
    kind = as_type(name)
    assert kind.to_rows(kind.to_batch(values)) == values


def test_nan_and_infinities_survive():
    kind = as_type("double")
    back = kind.to_rows(kind.to_batch([math.inf, -math.inf, math.nan]))
    assert back[:2] == [math.inf, -math.inf]
    assert math.isnan(back[2])


def test_nested_structs_come_back_as_rows():
    kind = as_type("id int, who struct<name: string, pets: array<struct<n: int>>>")
    (row,) = kind.to_rows(kind.to_batch([(1, {"name": "a", "pets": [{"n": 2}]})]))
    assert row.who.name == "a"
    assert row.who.pets[0].n == 2
    (again,) = kind.to_rows(kind.to_batch([row]))
    assert again == row


def test_some_columns_of_a_batch():
    kind = as_type("a int, b string, c double")
    batch = kind.to_batch([(1, "x", 0.5), (2, "y", 1.5)])
    assert kind.columns(batch, [2, 0]) == [[0.5, 1.5], [1, 2]]


# --- mismatches -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ddl", "rows", "index", "text"),
    [
        ("bigint", [1, "x"], 1, "expected bigint, got 'x': 'x' is not bigint"),
        ("tinyint", [1, 2, 300], 2, "expected tinyint, got 300: 300 is not tinyint"),
        ("w string, n int", [("a", 1), ("b", "c")], 1, "'c' is not int for field 'n'"),
        ("w string, n int", [("a", 1), ("b",)], 1, "1 fields instead of 2"),
        ("w string, n int", [("a", 1, 2)], 0, "3 fields instead of 2"),
        ("w string, n int", [("a", 1), 5], 1, "a int is not a row of 2 fields"),
        ("w string, n int", [None], 0, "a NoneType is not a row of 2 fields"),
        ("a string, b string", ["xy"], 0, "a str is not a row of 2 fields"),
        ("a string, b string", [{"a": "x", "b": "y"}], 0, "a dict is not a row of 2 fields"),
        ("a string, b string", [{"x", "y"}], 0, "a set is not a row of 2 fields"),
        ("a int NOT NULL, b int", [(1, None), (None, 1)], 1, "None for field 'a', which is NOT NULL"),
    ],
)
def test_a_record_that_does_not_fit_is_named(ddl, rows, index, text):
    with pytest.raises(TypeMismatch) as caught:
        as_type(ddl).to_batch(rows)
    assert text in str(caught.value)
    assert caught.value.index == index


def test_many_rows_become_columns():
    kind = as_type("a bigint, b string")
    rows = [(number, str(number)) for number in range(1000)]
    assert kind.to_batch(rows).to_pydict() == {"a": list(range(1000)), "b": [text for _, text in rows]}
    for size in (255, 256, 257, 512, 513):
        assert kind.to_rows(kind.to_batch(rows[:size])) == rows[:size]
    for odd in ((1, "a", 2), (1,)):
        for place in (0, 255, 256, 999):
            with pytest.raises(TypeMismatch, match="fields instead of 2") as refused:
                kind.to_batch([*rows[:place], odd, *rows[place + 1 :]])
            assert refused.value.index == place


@pytest.mark.parametrize("value", [{"a": "x", "b": "y"}, "xy", {"x", "y"}])
def test_only_tuples_and_lists_are_tuples(value):
    with pytest.raises(TypeMismatch, match=f"a {type(value).__name__} is not a tuple of 2 fields"):
        Types.TUPLE([Types.STRING(), Types.STRING()]).to_batch([value])


def test_a_long_value_is_cut_in_the_message():
    with pytest.raises(TypeMismatch) as caught:
        as_type("bigint").to_batch(["x" * 1000])
    assert len(str(caught.value)) < 250


def test_normalise_makes_named_rows_and_refuses_the_rest():
    kind = as_type("w string, n int")
    rows = kind.normalise([("a", 1), ["b", 2], Row(w="c", n=3)])
    assert [row.w for row in rows] == ["a", "b", "c"]
    with pytest.raises(TypeMismatch, match="a int is not a row") as caught:
        kind.normalise([("a", 1), 7])
    assert caught.value.index == 1


def test_named_rows_are_matched_by_name():
    """A Row with the type's names in another order must not land in the wrong columns."""
    kind = as_type("first string, last string")
    swapped = [Row(last="Lovelace", first="Ada"), ("Grace", "Hopper")]
    expected = [("Ada", "Lovelace"), ("Grace", "Hopper")]
    assert kind.normalise(swapped) == expected
    assert kind.to_rows(kind.to_batch(swapped)) == expected


def test_named_rows_with_other_names_go_by_position():
    kind = as_type("a int, b int")
    assert kind.to_rows(kind.to_batch([Row(x=1, y=2)])) == [(1, 2)]
    assert kind.normalise([Row(x=1, y=2)])[0].b == 2


# --- fit ------------------------------------------------------------------------------------------------------------


def test_a_batch_that_fits_is_left_alone():
    kind = as_type("a bigint")
    batch = kind.to_batch([(1,)])
    assert kind.fit(batch) is batch


def test_a_batch_with_the_right_names_is_cast():
    kind = as_type("a bigint, s string")
    batch = pa.RecordBatch.from_pydict({"a": pa.array([1], pa.int32()), "s": pa.array(["x"], pa.large_string())})
    assert kind.to_rows(kind.fit(batch)) == [(1, "x")]


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"b": [1]}, "the columns are b, but the type is row<a bigint>"),
        ({"a": ["x"]}, "does not fit row<a bigint>"),
    ],
)
def test_a_batch_that_cannot_be_cast_is_refused(columns, text):
    with pytest.raises(TypeMismatch) as caught:
        as_type("a bigint").fit(pa.RecordBatch.from_pydict(columns))
    assert text in str(caught.value)


def test_what_is_not_a_batch_is_refused():
    with pytest.raises(TypeMismatch, match=r"expected a pyarrow.RecordBatch, got dict"):
        as_type("a bigint").fit({"a": [1]})


# --- Row ------------------------------------------------------------------------------------------------------------


def test_a_row_is_a_tuple_with_names():
    row = Row(word="a", n=1)
    assert row == ("a", 1)
    assert (row.word, row["n"], row[0], row[-1], row[0:1]) == ("a", 1, "a", 1, ("a",))
    assert repr(row) == "Row(word='a', n=1)"
    assert row.as_dict() == {"word": "a", "n": 1}
    assert hash(row) == hash(("a", 1))


def test_a_row_without_names():
    row = Row("a", 1)
    assert repr(row) == "Row('a', 1)"
    assert row.as_dict() == {"f0": "a", "f1": 1}


def test_a_row_of_names_makes_rows_as_in_pyflink():
    person = Row("name", "age")
    assert person("Alice", 11) == Row(name="Alice", age=11)
    assert person("Alice", 11).name == "Alice"
    with pytest.raises(InvalidArgument, match="2 fields, got 1 values"):
        person("Alice")


def test_fields_may_have_the_names_of_tuple_methods():
    row = Row(count=3, index=1, as_dict=5)
    assert (row.count, row["count"], row.index, row["as_dict"]) == (3, 3, 1, 5)
    assert row.as_dict() == {"count": 3, "index": 1, "as_dict": 5}
    assert repr(row) == "Row(count=3, index=1, as_dict=5)"


def test_an_unknown_field():
    with pytest.raises(KeyError, match="'x'; the row has word, n"):
        _ = Row(word="a", n=1)["x"]
    with pytest.raises(AttributeError):
        _ = Row(word="a", n=1).x


def test_rows_nest_as_dicts():
    row = Row(a=1, b=Row(c=2, d=[Row(e=3)]))
    assert row.as_dict() == {"a": 1, "b": Row(c=2, d=[Row(e=3)])}
    assert row.as_dict(recursive=True) == {"a": 1, "b": {"c": 2, "d": [{"e": 3}]}}


def test_values_positional_or_named_not_both():
    with pytest.raises(InvalidArgument, match="positional or named values, not both"):
        Row(1, a=2)


@given(st.dictionaries(_names, st.integers(), min_size=1, max_size=5))
def test_rows_survive_pickle(fields):
    row = Row(**fields)
    again = pickle.loads(pickle.dumps(row))
    assert again == row
    assert type(again) is type(row) is row_class(tuple(fields))


def test_type_information_survives_pickle():
    for kind in (PICKLED, as_type("bigint"), as_type("a int NOT NULL, b string"), Types.TUPLE([Types.INT()])):
        again = pickle.loads(pickle.dumps(kind))
        assert again == kind
        assert isinstance(again, TypeInformation)


class Celsius(pa.ExtensionType):
    def __init__(self):
        super().__init__(pa.int64(), "test.celsius")

    def __arrow_ext_serialize__(self):
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type, serialized):
        return cls()


@pytest.mark.parametrize(
    ("given", "where"),
    [
        (Celsius(), "this is an"),
        (pa.schema([("n", pa.int64()), ("t", Celsius())]), "column 't' has the"),
        (pa.struct([("days", pa.list_(pa.struct([("t", Celsius())])))]), r"column 'days\.\w+\.t' has the"),
    ],
)
def test_an_extension_type_of_the_program_is_refused(given, where):
    with pytest.raises(
        InvalidArgument, match=f"{where} extension type test.celsius, which workers do not know: use int64"
    ):
        as_type(given)
