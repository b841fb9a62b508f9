"""Batches: two forms of the same records, cut and selected without losing any."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.records.batch import Batch
from headrace.records.types import PICKLED, TypeMismatch, Types, as_type

PAIR = as_type("word string, n bigint")


def typed(rows: list[tuple[str, int]]) -> Batch:
    return Batch.of_arrow(PAIR.to_batch(rows), PAIR)


def test_the_other_form_is_made_at_need_and_kept():
    batch = Batch.of_rows([("a", 1)], PAIR)
    assert batch._arrow is None
    assert batch.arrow().num_rows == 1
    assert batch._arrow is not None
    assert batch.arrow() is batch.arrow()
    back = typed([("a", 1)])
    assert back.rows()[0].word == "a"
    assert back.rows() is back.rows()


def test_a_column_that_was_read_is_not_converted_again():
    rows = [("a" * 30, 1 << 40), ("b" * 30, 2 << 40)]
    batch = typed(rows)
    words, numbers = batch.column(0), batch.column(1)
    assert batch.column(0) is words
    assert list(zip(words, numbers, strict=True)) == rows == batch.rows()
    assert all(row.word is word and row.n is n for row, word, n in zip(batch.rows(), words, numbers, strict=True))
    assert batch.slice(1, 1).rows() == rows[1:]


def test_values_that_can_be_changed_are_not_shared_with_a_column():
    kind = Types.TUPLE([Types.LIST(Types.LONG()), Types.LONG()])
    batch = Batch.of_arrow(kind.to_batch([([1, 2], 3)]), kind)
    batch.column(0)[0].append(9)
    assert batch.rows() == [([1, 2], 3)]


def test_a_batch_that_is_kept_has_no_python_values_beside_its_columns():
    batch = typed([("a", 1)]).with_timestamps(np.array([7]))
    rows = batch.rows()
    kept = batch.in_one_form()
    assert kept._rows is None
    assert kept.rows() == rows
    assert kept.timestamps is batch.timestamps
    untyped = Batch.of_rows([1, 2])
    assert untyped.in_one_form() is untyped


def test_untyped_records_are_anything():
    rows = [object(), None, {"a": 1}]
    assert Batch.of_rows(rows).rows() == rows
    assert Batch.of_rows(rows).type is PICKLED


def test_what_a_function_gave_is_made_into_rows_when_it_is_used():
    batch = Batch.of_output([("a", 1), ["b", 2]], PAIR, ("Map", "file.py:1"))
    assert [row.word for row in batch.rows()] == ["a", "b"]


@pytest.mark.parametrize("use", [Batch.rows, Batch.arrow])
def test_a_wrong_output_names_the_operator_that_made_it(use):
    batch = Batch.of_output([("a", 1), "b"], PAIR, ("Map", "file.py:1"))
    with pytest.raises(TypeMismatch) as caught:
        use(batch)
    assert caught.value.origin == ("Map", "file.py:1")
    assert caught.value.index == 1


@pytest.mark.parametrize("part", [lambda b: b.slice(1, 1), lambda b: b.select(np.array([1]))])
def test_a_part_still_knows_who_made_it(part):
    batch = part(Batch.of_output([("a", 1), ("b", "x"), ("c", 1)], PAIR, ("Map", "file.py:1")))
    with pytest.raises(TypeMismatch) as caught:
        batch.arrow()
    assert caught.value.origin == ("Map", "file.py:1")


def test_the_whole_as_a_slice_is_the_batch_itself():
    batch = Batch.of_rows([1, 2, 3])
    assert batch.slice(0, 3) is batch
    assert batch.slice(0, 100) is batch


def test_a_slice_of_columns_shares_them():
    batch = typed([(str(n), n) for n in range(100)])
    part = batch.slice(10, 5)
    assert part._arrow is not None
    assert part.arrow().column(1).buffers()[1].address == batch.arrow().column(1).buffers()[1].address


_rows = st.lists(st.tuples(st.text("abc", max_size=3), st.integers(-5, 5)), max_size=12)
_forms = st.sampled_from(["rows", "arrow", "both"])


def make(rows: list[tuple[str, int]], form: str, stamped: bool) -> Batch:
    batch = Batch.of_rows(list(rows), PAIR) if form == "rows" else typed(rows)
    if form == "both":
        batch.rows()
    if stamped:
        batch.timestamps = np.arange(len(rows), dtype=np.int64) * 10
    return batch


@given(_rows, _forms, st.booleans(), st.integers(0, 12), st.integers(0, 12))
def test_slices(rows, form, stamped, start, length):
    part = make(rows, form, stamped).slice(start, length)
    assert part.rows() == rows[start : start + length]
    assert len(part) == len(part.rows()) == part.arrow().num_rows
    if stamped:
        assert part.timestamps.tolist() == [10 * i for i in range(len(rows))][start : start + length]


@given(_rows, _forms, st.booleans(), st.data())
def test_selections(rows, form, stamped, data):
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=12)) if rows else []
    part = make(rows, form, stamped).select(np.array(chosen, np.int64))
    assert part.rows() == [rows[i] for i in chosen]
    if stamped:
        assert part.timestamps.tolist() == [10 * i for i in chosen]


def test_plain_tuples_of_a_source_are_named_rows():
    """So that an operator chained to the source sees what one behind a shuffle sees."""
    (row,) = Batch.of_rows([(1, "a")], as_type("n bigint, word string")).rows()
    assert (row.n, row.word) == (1, "a")


@pytest.mark.parametrize("columns", [False, True])
def test_joined_batches_keep_timestamps_and_origin(columns):
    parts = []
    for word in "abc":
        part = Batch.of_output([(word, 1)], PAIR, ("Map", "file.py:1"))
        part.timestamps = np.array([ord(word)], np.int64)
        parts.append(part)
    if columns:
        parts[1].arrow()
    joined = Batch.joined(parts)
    assert [(row.word, stamp) for row, stamp in zip(joined.rows(), joined.timestamps, strict=True)] == [
        ("a", 97),
        ("b", 98),
        ("c", 99),
    ]
    assert joined.origin == ("Map", "file.py:1")


@pytest.mark.parametrize(
    ("type_info", "rows"),
    [
        (Types.TUPLE([Types.LONG(), Types.STRING()]), [(1, "a"), (2, None)]),
        (PAIR, [("a", 1), ("b", 2)]),
        (Types.LONG(), [5, 6]),
        (PICKLED, [{}, 5]),
    ],
)
def test_each_record_is_what_it_is_among_all(type_info, rows):
    batches = [Batch.of_rows(rows, type_info)]
    if type_info is not PICKLED:
        batches.append(Batch.of_arrow(type_info.to_batch(rows), type_info))
    for batch in batches:
        found = list(batch.each())
        assert found == batch.rows() == list(batch.each()) == rows
        assert list(map(type, found)) == list(map(type, batch.rows()))


def test_records_that_are_made_already_are_not_made_again():
    type_info = Types.TUPLE([Types.LONG(), Types.STRING()])
    batch = Batch.of_arrow(type_info.to_batch([(1, "a"), (2, "b")]), type_info)
    rows = batch.rows()
    assert all(one is made for one, made in zip(batch.each(), rows, strict=True))
