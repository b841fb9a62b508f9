"""Keys of a batch: columns and selectors must find the same key group for the same key."""

from __future__ import annotations

import datetime as dt
import decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.functions import KeySelector
from headrace.api.stream import key_spec
from headrace.errors import HeadraceError
from headrace.pyflink.common import Types
from headrace.records.batch import Batch
from headrace.records.flink_values import MutableRow
from headrace.records.types import PICKLED, TypeMismatch, as_type
from headrace.worker.keys import KeyReader

RECORD = as_type("s string, i int, l bigint, d double, b boolean, y binary")
_numbers_and_bytes = (st.integers(-(1 << 63), (1 << 63) - 1), st.floats(), st.booleans(), st.binary(max_size=5))
_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)  # columns refuse surrogates
_small_ints = st.integers(0, (1 << 31) - 1)  # a negative int32 has a key group of its own, see connect()
_records = st.lists(st.tuples(_texts, _small_ints, *_numbers_and_bytes), min_size=1, max_size=10)
_columns = st.one_of(
    st.sampled_from(RECORD.schema.names), st.lists(st.sampled_from(RECORD.schema.names), min_size=1, unique=True)
)


def readers(columns, max_parallelism=128):
    """By columns, and by a selector that reads the same fields."""
    selector = (
        (lambda row: row[columns]) if isinstance(columns, str) else (lambda row: tuple(row[name] for name in columns))
    )
    return (
        KeyReader(key_spec(RECORD, columns, None), max_parallelism),
        KeyReader(key_spec(RECORD, selector, None), max_parallelism),
    )


@given(_records, _columns, st.sampled_from([1, 2, 128, 32768]))
def test_columns_and_selectors_agree(rows, columns, max_parallelism):
    by_column, by_selector = readers(columns, max_parallelism)
    batch = Batch.of_rows(rows, RECORD)
    again = Batch.of_arrow(batch.arrow(), RECORD)
    assert repr(by_column.keys(batch)) == repr(by_selector.keys(again))
    groups = by_column.groups(batch).tolist()
    assert groups == by_selector.groups(again).tolist()
    assert all(0 <= group < max_parallelism for group in groups)


@given(_records, _columns)
def test_all_ways_to_a_key_group_agree(rows, columns):
    for reader in readers(columns):
        batch = Batch.of_arrow(RECORD.to_batch(rows), RECORD)
        keys, groups, arrays = reader.keys_and_groups(batch)
        if arrays is not None:
            assert [array.tolist() for array in arrays] == [keys, groups]
        assert groups == reader.groups(batch).tolist()
        assert groups == [reader.group_of(key) for key in keys]
        assert repr(keys) == repr(reader.keys(batch))


SMALL = as_type("s string, l bigint, d double, b boolean, y binary")
_small_records = st.lists(st.tuples(_texts, *_numbers_and_bytes), min_size=1, max_size=10)
_small_columns = st.one_of(
    st.sampled_from(SMALL.schema.names), st.lists(st.sampled_from(SMALL.schema.names), min_size=1, unique=True)
)


@given(_small_records, _small_columns, st.sampled_from([1, 128, 32768]))
def test_small_batches_have_the_keys_of_their_columns(rows, columns, max_parallelism):
    reader = KeyReader(key_spec(SMALL, columns, None), max_parallelism)
    small, large = Batch.of_rows(rows, SMALL), Batch.of_arrow(SMALL.to_batch(rows), SMALL)
    assert small.is_small == all(row[0].isascii() for row in rows)
    assert not large.is_small
    assert repr(reader.keys(small)) == repr(reader.keys(large))
    assert reader.groups(small).tolist() == reader.groups(large).tolist()
    assert reader.keys_and_groups(small)[1] == reader.keys_and_groups(large)[1]


@pytest.mark.parametrize("type_name", ["tinyint", "smallint", "int", "bigint"])
def test_integer_keys_come_as_arrays_too(type_name):
    record = as_type(f"v string, k {type_name}")
    batch = Batch.of_arrow(record.to_batch([("a", -1), ("b", 7), ("c", 7)]), record)
    keys, groups, arrays = KeyReader(key_spec(record, "k", None), 128).keys_and_groups(batch)
    assert arrays is not None
    assert (keys, arrays[0].dtype) == ([-1, 7, 7], np.int64)
    assert [array.tolist() for array in arrays] == [keys, groups]
    for others in ("v", ["k"], lambda row: row.k):  # texts, tuples, what a function gives
        assert KeyReader(key_spec(record, others, None), 128).keys_and_groups(batch)[2] is None


@pytest.mark.parametrize(("type_name", "bits"), [("tinyint", 8), ("int", 32), ("bigint", 64)])
def test_a_key_that_is_too_large_for_its_declared_type(type_name, bits):
    reader = KeyReader(key_spec(PICKLED, lambda row: row, type_name), 128)
    limit = 1 << (bits - 1)
    for fits in ([-limit, 5], [limit - 1]):
        assert reader.keys(Batch.of_rows(fits, PICKLED)) == fits
    for wrong in (-limit - 1, limit):
        with pytest.raises(TypeMismatch, match=type_name):
            reader.keys(Batch.of_rows([5, wrong], PICKLED))


def test_one_column_gives_the_bare_value_and_a_list_a_tuple():
    batch = Batch.of_arrow(as_type("a int, b int").to_batch([(1, 2)]), as_type("a int, b int"))
    assert KeyReader(key_spec(batch.type, "a", None), 128).keys(batch) == [1]
    assert KeyReader(key_spec(batch.type, ["a"], None), 128).keys(batch) == [(1,)]
    assert KeyReader(key_spec(batch.type, ("b", 0), None), 128).keys(batch) == [(2, 1)]


def test_positions_of_untyped_tuples():
    batch = Batch.of_rows([("a", 1, True)])
    assert KeyReader(key_spec(PICKLED, 1, None), 128).keys(batch) == [1]
    assert KeyReader(key_spec(PICKLED, [0, 1], None), 128).keys(batch) == [("a", 1)]


class First(KeySelector):
    def get_key(self, value):
        return value[0]


@pytest.mark.parametrize("selector", [First(), str, lambda row: row[0]])
def test_selectors(selector):
    (key,) = KeyReader(key_spec(PICKLED, selector, None), 128).keys(Batch.of_rows([("a", 1)]))
    assert key == ("('a', 1)" if selector is str else "a")


@pytest.mark.parametrize("columns", ["s", ["s", "i"]])
def test_a_key_that_is_null_is_refused(columns):
    batch = Batch.of_arrow(RECORD.to_batch([(None, 1, 1, 1.0, True, b"")]), RECORD)
    with pytest.raises(HeadraceError, match=r"key column has 1 null"):
        KeyReader(key_spec(RECORD, columns, None), 128).groups(batch)


def test_a_selector_may_give_none_unless_a_type_is_declared():
    # SPEC R3.1
    batch = Batch.of_rows([None])
    assert KeyReader(key_spec(PICKLED, lambda row: row, None), 128).keys_and_groups(batch) == ([None], [94], None)
    with pytest.raises(
        HeadraceError, match="key is None, which is not int: every record needs a key, or leave key_type out"
    ):
        KeyReader(key_spec(PICKLED, lambda row: row, "int"), 128).keys(batch)


@pytest.mark.parametrize(
    ("key_type", "given", "converted"),
    [
        ("int", [1.0, True, 7], [1, 1, 7]),
        ("double", [1, 2], [1.0, 2.0]),
        ("date", [dt.date(2024, 1, 1)], [dt.date(2024, 1, 1)]),
        ("array<int>", [[1], (2,)], [[1], [2]]),
        (Types.TUPLE([Types.INT(), Types.STRING()]), [(1, "a")], [(1, "a")]),
        (Types.BIG_DEC(), [decimal.Decimal("1.50")], [decimal.Decimal("1.50")]),
        (Types.ROW([Types.INT()]), [MutableRow(1), (2,)], [(1,), (2,)]),
    ],
)
def test_keys_are_converted_to_their_declared_type(key_type, given, converted):
    keys = KeyReader(key_spec(PICKLED, lambda row: row, key_type), 128).keys(Batch.of_rows(given))
    assert keys == converted
    assert [type(key) for key in keys] == [type(key) for key in converted]


def test_a_key_that_does_not_fit_its_type_is_refused():
    with pytest.raises(HeadraceError, match="expected int, got 'a'"):
        KeyReader(key_spec(PICKLED, lambda row: row, "int"), 128).keys(Batch.of_rows(["a"]))


_by_type = {
    "tinyint": st.integers(-128, 127),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "bigint": _numbers_and_bytes[0],
    "float": st.floats(width=32, allow_nan=False) | st.floats(-1e30, 1e30),
    "double": st.floats(allow_nan=False) | st.integers(-(1 << 53), 1 << 53),
    "boolean": st.booleans(),
    "string": _texts,
    "binary": st.binary(max_size=5),
    "date": st.dates() | st.datetimes(),
    "timestamp": st.datetimes(timezones=st.just(dt.UTC)) | st.datetimes(),
    "array<double>": st.lists(st.floats(allow_nan=False) | st.integers(0, 9), max_size=3),
}
_typed_keys = st.lists(st.sampled_from(list(_by_type)), min_size=1, max_size=3).flatmap(
    lambda names: st.tuples(
        st.just(names), st.lists(st.tuples(*[_by_type[name] for name in names]), min_size=1, max_size=4)
    )
)


@given(_typed_keys, st.booleans())
def test_keys_of_a_declared_type_are_what_its_columns_give_back(drawn, named):
    # SPEC R3.1
    names, keys = drawn
    fields = [as_type(name) for name in names]
    kind = Types.ROW_NAMED([f"f{n}" for n in range(len(names))], fields) if named else Types.TUPLE(fields)
    reader = KeyReader(key_spec(PICKLED, lambda row: row, kind), 128)
    used, groups, _ = reader.keys_and_groups(Batch.of_rows(keys))
    assert repr(list(map(tuple, kind.to_rows(kind.to_batch(used))))) == repr(list(map(tuple, used)))
    assert groups == [reader.group_of(key) for key in keys] == [reader.group_of(key) for key in used]
